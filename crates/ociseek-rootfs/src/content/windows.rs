//! The windows of fine documents, which are fetched in pages: those of the recorded start together
//! with the head, the others when a span needs them. Neighbours are fetched together.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use tokio::time::timeout;

use super::fetch::CountedPart;
use super::inner::LayerHandle;
use super::lru::Lru;
use super::model::{Purpose, ReadError};
use crate::layers::{OpenDocument, OpenLayer};
use ociseek_format::digest::Digest;
use ociseek_format::fine::{FineError, FineHead, PageId, Windows, decode_page};
use ociseek_format::offset::SpanId;
use ociseek_store::StoreError;

/// How many bytes of decoded windows are kept, over all layers.
const KEPT: u64 = 16 << 20;
/// The most bytes of pages in a request, unless a single page has more.
const REQUEST: u64 = 1 << 20;

/// The most recently used pages, by layer.
pub(super) struct WindowStore(Lru<(Digest, PageId), Arc<Windows>>);

impl WindowStore {
    /// Starts with the pages that were fetched when the layers were opened.
    pub(super) fn new(layers: &[OpenLayer]) -> WindowStore {
        let store = WindowStore(Lru::new(KEPT));
        for layer in layers {
            for (page, windows) in layer.document.iter().flat_map(|document| &document.pages) {
                store.put(layer.descriptor.digest, *page, windows);
            }
        }
        store
    }

    fn put(&self, layer: Digest, page: PageId, windows: &Arc<Windows>) {
        self.0.put((layer, page), Arc::clone(windows), windows.footprint() as u64);
    }
}

impl LayerHandle {
    fn document(&self) -> Option<(&FineHead, &OpenDocument)> {
        Some((self.layer.open.map().fine()?, self.layer.open.document.as_ref()?))
    }

    /// The missing pages that the spans need.
    fn missing(&self, spans: impl Iterator<Item = SpanId>) -> BTreeSet<PageId> {
        let Some((head, _)) = self.document() else { return BTreeSet::new() };
        let pages = spans.filter_map(|span| head.page_of(span));
        pages.filter(|page| !self.inner.windows.0.has((self.layer.digest(), *page))).collect()
    }

    /// Fetches the windows of spans in the background, while the spans are being fetched.
    pub(super) fn fetch_windows(&self, spans: impl Iterator<Item = SpanId> + Clone, purpose: Purpose) {
        if self.missing(spans.clone()).is_empty() {
            return;
        }
        let (on, spans) = (self.clone(), spans.collect::<Vec<SpanId>>());
        // The task that decodes one of the spans retries whatever fails here, and reports it.
        tokio::spawn(async move { on.load(spans.into_iter(), purpose).await.map(drop) });
    }

    /// The page with the window of a span, if it has one.
    pub(super) async fn windows(&self, span: SpanId, purpose: Purpose) -> Result<Option<Arc<Windows>>, ReadError> {
        let layer = self.layer.digest();
        let Some(page) = self.document().and_then(|(head, _)| head.page_of(span)) else { return Ok(None) };
        if let Some(windows) = self.inner.windows.0.get((layer, page)) {
            return Ok(Some(windows));
        }
        let after = self.inner.options.deadline;
        match timeout(after, self.load(std::iter::once(span), purpose)).await {
            Ok(loaded) => Ok(loaded?.into_iter().next()),
            Err(_) => Err(ReadError::Deadline { layer, span, after }),
        }
    }

    /// The page with the window of a span, if it is in memory.
    pub(super) fn loaded_windows(&self, span: SpanId) -> Option<Arc<Windows>> {
        let page = self.document()?.0.page_of(span)?;
        self.inner.windows.0.get((self.layer.digest(), page))
    }

    /// Fetches the missing pages that the spans need. Returns those of the last request if they are
    /// few. Only one task of a layer does this at a time, so no page is fetched twice.
    async fn load(
        &self,
        spans: impl Iterator<Item = SpanId> + Clone,
        purpose: Purpose,
    ) -> Result<Option<Arc<Windows>>, ReadError> {
        let Some((head, document)) = self.document() else { return Ok(None) };
        let layer = self.layer.digest();
        let _alone = self.layer.paging.lock().await;
        let missing = self.missing(spans.clone());
        let mut last = None;
        for run in runs(head, missing) {
            let (Some(first), Some(end)) = (run.first(), run.last()) else { continue };
            let range = head.page_range(*first).start..head.page_range(*end).end;
            let fetched = |source| ReadError::Window { layer, source: Arc::new(source) };
            let mut bytes = self.part(document, range.clone(), false, purpose).await.map_err(fetched)?;
            let mut decoded = decode(head, &run, &bytes);
            if let Err(FineError::PageDigest { .. }) = decoded {
                // A cache between us and the registry may have stored wrong bytes.
                self.inner.counts.retries.add(1);
                bytes = self.part(document, range, true, purpose).await.map_err(fetched)?;
                decoded = decode(head, &run, &bytes);
            }
            for (page, windows) in decoded.map_err(|source| ReadError::Page { layer, source })? {
                self.inner.windows.put(layer, page, &windows);
                last = Some((page, windows));
            }
        }
        let Some(page) = spans.last().and_then(|span| head.page_of(span)) else { return Ok(None) };
        let loaded = last.filter(|(loaded, _)| *loaded == page).map(|(_, windows)| windows);
        Ok(loaded.or_else(|| self.inner.windows.0.get((layer, page))))
    }

    async fn part(
        &self,
        document: &OpenDocument,
        range: Range<u64>,
        bypass_caches: bool,
        purpose: Purpose,
    ) -> Result<Vec<u8>, StoreError> {
        let part = self.inner.source.blob_part(&document.blob, range, bypass_caches).await?;
        let mut part = CountedPart::new(part, &self.inner.counts, purpose);
        let mut bytes = Vec::new();
        while let Some(chunk) = part.next().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

/// Adjacent pages, up to the size of a request.
fn runs(head: &FineHead, pages: BTreeSet<PageId>) -> Vec<Vec<PageId>> {
    let mut runs: Vec<Vec<PageId>> = Vec::new();
    for page in pages {
        let range = head.page_range(page);
        let fits = |run: &&mut Vec<PageId>| {
            let (first, last) = (run.first().copied(), run.last().copied());
            let start = first.map_or(range.start, |first| head.page_range(first).start);
            last.is_some_and(|last| last.0 + 1 == page.0) && range.end - start <= REQUEST
        };
        match runs.last_mut().filter(fits) {
            Some(run) => run.push(page),
            None => runs.push(vec![page]),
        }
    }
    runs
}

/// Decodes adjacent pages.
fn decode(head: &FineHead, run: &[PageId], bytes: &[u8]) -> Result<Vec<(PageId, Arc<Windows>)>, FineError> {
    let start = run.first().map_or(0, |first| head.page_range(*first).start);
    let page = |page: &PageId| {
        let range = head.page_range(*page);
        let bytes = bytes.get((range.start - start) as usize..(range.end - start) as usize).unwrap_or_default();
        Ok((*page, Arc::new(decode_page(head, *page, bytes)?)))
    };
    run.iter().map(page).collect()
}
