//! The windows of fine documents, which are fetched in pages: those of the recorded start together
//! with the head, the others when a span needs them. Neighbours are fetched together.
//!
//! Windows are compared with the layer where the span before theirs is decoded. That may happen
//! while the page with the window is not in memory. The window is then compared before it is used;
//! or it was used earlier, and its page is fetched again. What a window needs of the tar must still
//! be in memory or in the cache on disk for that; the rest of it is always compared.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::budget::ReadBudget;
use super::fetch::CountedPart;
use super::inner::LayerHandle;
use super::lru::Lru;
use super::pieces::covering;
use super::{Purpose, ReadError};
use crate::cache::PIECE;
use crate::layers::{OpenDocument, OpenLayer, WINDOW_CHECK};
use ociseek_format::digest::Digest;
use ociseek_format::fine::{FineError, FineHead, PageId, SpanWindow, Windows, decode_page};
use ociseek_format::layer::prove::SpanTail;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::SpanId;
use ociseek_store::StoreError;
use ociseek_store::lock::Hold;

/// How many bytes of decoded windows are kept, over all layers.
const KEPT: u64 = 16 << 20;
/// The most bytes of pages in a request, unless a single page has more.
const REQUEST: u64 = 1 << 20;
/// The most bytes of pages that are fetched because they follow a missing one. Decoded, they must
/// not displace what is needed sooner.
const MOST_AFTER: u64 = 256 << 10;

/// A page of a layer's document.
type PageOf = (Digest, PageId);

/// The pages in memory.
pub(super) struct WindowStore {
    /// Those that were fetched when the layers were opened: the recorded start needs each of them
    /// once, in any order, so they stay until it has been fetched.
    start: Mutex<HashMap<PageOf, Arc<Windows>>>,
    /// The most recently used ones of the others.
    recent: Lru<PageOf, Arc<Windows>>,
}

impl WindowStore {
    /// Takes the pages that were fetched when the layers were opened.
    pub(super) fn new(layers: &[OpenLayer]) -> WindowStore {
        let mut start = HashMap::new();
        for layer in layers {
            let pages = layer.document.iter().flat_map(|document| document.take_pages());
            start.extend(pages.map(|(page, windows)| ((layer.descriptor.digest, page), windows)));
        }
        WindowStore { start: Mutex::new(start), recent: Lru::new(KEPT) }
    }

    fn get(&self, page: PageOf) -> Option<Arc<Windows>> {
        let of_start = self.start.hold().get(&page).cloned();
        of_start.or_else(|| self.recent.get(page))
    }

    fn has(&self, page: PageOf) -> bool {
        self.start.hold().contains_key(&page) || self.recent.has(page)
    }

    fn put(&self, page: PageOf, windows: &Arc<Windows>) {
        self.recent.put(page, Arc::clone(windows), windows.footprint() as u64);
    }

    /// The recorded start has been fetched, or will not be: its pages may be evicted as others.
    pub(super) fn release_start(&self) {
        let pages = std::mem::take(&mut *self.start.hold());
        pages.iter().for_each(|(page, windows)| self.put(*page, windows));
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
        pages.filter(|page| !self.inner.windows.has((self.layer.digest(), *page))).collect()
    }

    /// Fetches the windows of spans in the background, while the spans are being fetched.
    pub(super) fn fetch_windows(
        &self,
        spans: impl Iterator<Item = SpanId> + Clone,
        purpose: Purpose,
    ) {
        if self.missing(spans.clone()).is_empty() {
            return;
        }
        let handle = self.clone();
        let spans = spans.collect::<Vec<SpanId>>();
        // The task that decodes one of the spans retries whatever fails here, and reports it.
        tokio::spawn(async move { handle.load(spans.into_iter(), purpose).await.map(drop) });
    }

    /// The page with the window of a span, if it has one.
    pub(super) async fn windows(
        &self,
        span: SpanId,
        purpose: Purpose,
        budget: ReadBudget,
    ) -> Result<Option<Arc<Windows>>, ReadError> {
        let layer = self.layer.digest();
        let Some(page) = self.document().and_then(|(head, _)| head.page_of(span)) else {
            return Ok(None);
        };
        if let Some(windows) = self.inner.windows.get((layer, page)) {
            return Ok(Some(windows));
        }
        match budget.wait(self.load(std::iter::once(span), purpose)).await {
            Some(loaded) => Ok(loaded?.into_iter().next()),
            None => Err(budget.exceeded(layer, span)),
        }
    }

    /// The page with the window of a span, if it is in memory.
    pub(super) fn loaded_windows(&self, span: SpanId) -> Option<Arc<Windows>> {
        let page = self.document()?.0.page_of(span)?;
        self.inner.windows.get((self.layer.digest(), page))
    }

    /// Fetches the missing pages that the spans need, and those after them. Returns that of the
    /// last span. Only one task of a layer does this at a time, so no page is fetched twice.
    async fn load(
        &self,
        spans: impl Iterator<Item = SpanId> + Clone,
        purpose: Purpose,
    ) -> Result<Option<Arc<Windows>>, ReadError> {
        let Some((head, document)) = self.document() else { return Ok(None) };
        let layer = self.layer.digest();
        let _alone = self.layer.paging.lock().await;
        let missing = self.missing(spans.clone());
        let missing = self.with_next_pages(head, missing);
        let wanted = spans.last().and_then(|span| head.page_of(span));
        let mut last = None;
        for run in runs(head, missing) {
            let (Some(first), Some(end)) = (run.first(), run.last()) else { continue };
            let range = head.page_range(*first).start..head.page_range(*end).end;
            let fetched = |source| ReadError::Window { layer, source: Arc::new(source) };
            let mut bytes =
                self.part(document, range.clone(), false, purpose).await.map_err(fetched)?;
            let mut decoded = decode(head, &run, &bytes);
            if let Err(FineError::PageDigest { .. }) = decoded {
                // A cache between us and the registry may have stored wrong bytes.
                self.inner.counts.retries.add(1);
                bytes = self.part(document, range, true, purpose).await.map_err(fetched)?;
                decoded = decode(head, &run, &bytes);
            }
            for (page, windows) in decoded.map_err(|source| ReadError::Page { layer, source })? {
                self.inner.windows.put((layer, page), &windows);
                last = last.or_else(|| (Some(page) == wanted).then_some(windows));
            }
        }
        Ok(last.or_else(|| self.inner.windows.get((layer, wanted?))))
    }

    /// The pages and those after each, as many as arrive in the time that a request costs anyway.
    /// Pages are in the order of the recorded start, and then in that of the layer.
    fn with_next_pages(&self, head: &FineHead, missing: BTreeSet<PageId>) -> BTreeSet<PageId> {
        let most = self.inner.pace.bytes_per_request().min(MOST_AFTER);
        let layer = self.layer.digest();
        let after = |page: &PageId| {
            let end = head.page_range(*page).end + most;
            let is_next = move |next: &PageId| {
                let range = head.page_range(*next);
                !range.is_empty() && range.end <= end && !self.inner.windows.has((layer, *next))
            };
            (page.0 + 1..).map(PageId).take_while(is_next).collect::<Vec<PageId>>()
        };
        let next: Vec<PageId> = missing.iter().flat_map(after).collect();
        missing.into_iter().chain(next).collect()
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
            let first = run.first().copied();
            let last = run.last().copied();
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
fn decode(
    head: &FineHead,
    run: &[PageId],
    bytes: &[u8],
) -> Result<Vec<(PageId, Arc<Windows>)>, FineError> {
    let start = run.first().map_or(0, |first| head.page_range(*first).start);
    let page = |page: &PageId| {
        let range = head.page_range(*page);
        let bytes = bytes
            .get((range.start - start) as usize..(range.end - start) as usize)
            .unwrap_or_default();
        Ok((*page, Arc::new(decode_page(head, *page, bytes)?)))
    };
    run.iter().map(page).collect()
}

/// What is known about the windows of a layer, by span. The layer's memory charge includes
/// [`WINDOW_CHECK`] for each span.
#[derive(Default)]
pub(super) struct WindowChecks(Mutex<BTreeMap<SpanId, WindowState>>);

// Half of the places in a tree's nodes may be empty, and a node has more than its entries.
const _: () = assert!(WINDOW_CHECK >= 3 * size_of::<(SpanId, WindowState)>() as u64);

enum WindowState {
    /// The span before it was decoded, and shows this.
    Shown(SpanTail),
    /// A span was decoded with it, and the span before that was not.
    Used,
    Compared,
}

impl WindowChecks {
    /// Whether a window was used that was not compared.
    pub(super) fn was_used(&self, span: SpanId) -> bool {
        matches!(self.0.hold().get(&span), Some(WindowState::Used))
    }

    fn compared(&self, span: SpanId) {
        self.0.hold().insert(span, WindowState::Compared);
    }

    fn shown(&self, span: SpanId, tail: SpanTail) {
        self.0.hold().insert(span, WindowState::Shown(tail));
    }

    /// A window is about to be used. Returns what it must be compared with before that.
    fn used(&self, span: SpanId) -> Option<SpanTail> {
        let mut states = self.0.hold();
        match states.insert(span, WindowState::Used) {
            Some(WindowState::Shown(tail)) => Some(tail),
            Some(WindowState::Compared) => {
                states.insert(span, WindowState::Compared);
                None
            }
            Some(WindowState::Used) | None => None,
        }
    }
}

impl LayerHandle {
    /// Compares the window of a span that is about to be decoded, unless that was done.
    ///
    /// # Errors
    /// If it is not what the span before it has shown.
    pub(super) fn check_used_window(
        &self,
        span: SpanId,
        window: &SpanWindow,
    ) -> Result<(), SpanError> {
        match self.layer.window_checks.used(span) {
            Some(tail) if !tail.agrees(window) || !self.has_parts(span, window) => {
                Err(SpanError::Window { span })
            }
            Some(_) => {
                self.layer.window_checks.compared(span);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Call this after the span before `span` was decoded. `tail` is what that showed if the window
    /// of `span` was not known then.
    ///
    /// # Errors
    /// If the window has become known since, and is another one.
    pub(super) fn check_next_window(
        &self,
        span: SpanId,
        is_compared: bool,
        tail: Option<SpanTail>,
    ) -> Result<(), SpanError> {
        if is_compared {
            self.layer.window_checks.compared(span);
        }
        let Some(tail) = tail else { return Ok(()) };
        self.layer.window_checks.shown(span, tail);
        // Another task may have used it in the meantime, before this was known.
        let page = self.loaded_windows(span);
        page.as_ref()
            .and_then(|page| page.get(span))
            .map_or(Ok(()), |window| self.check_used_window(span, window))
    }

    /// Whether a window has the bytes of the tar that are in memory or on disk.
    fn has_parts(&self, span: SpanId, window: &SpanWindow) -> bool {
        let spans = &self.layer.open.spans;
        // The tar may end before the span starts.
        let start = spans.map().fine().map(|head| head.spans().decoded_range(span).start);
        let Some(start) = start else { return true };
        let mut last = None;
        for (offset, part) in window.parts_of_tar(start) {
            for (holder, range) in self.layer.parts(&(offset.0..offset.0 + part.len() as u64)) {
                // Where the part begins, relative to the start of the span that holds it.
                let part_start = offset.0 as i64 - spans.plain_range(holder).start.0 as i64;
                for number in covering(&range) {
                    let id = self.piece(holder, number);
                    // Neighbours are often in the same piece.
                    let (_, piece) = match last.take().filter(|(known, _)| *known == id) {
                        Some(known) => last.insert(known),
                        None => last.insert((id, self.known_piece(holder, number))),
                    };
                    let Some(piece) = piece else { continue };
                    let at = u64::from(number) * PIECE as u64;
                    let both = range.start.max(at)..range.end.min(at + piece.len() as u64);
                    let of_piece = piece.get((both.start - at) as usize..(both.end - at) as usize);
                    let place = |at: u64| (at as i64 - part_start) as usize;
                    if of_piece != part.get(place(both.start)..place(both.end)) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// A piece that was decoded earlier.
    fn known_piece(&self, span: SpanId, number: u32) -> Option<Bytes> {
        let LayerHandle { inner, layer, .. } = self;
        inner.memory.get(self.piece(span, number)).or_else(|| {
            let is_kept = self.keeps_on_disk();
            let read = || inner.cache.read(&layer.place(span), number..number + 1)?.pop();
            is_kept.then(read).flatten()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_recorded_start_stay_until_it_is_fetched() {
        let store = WindowStore::new(&[]);
        let page = |number| (Digest::sha256(b""), PageId(number));
        store.start.hold().insert(page(0), Arc::default());
        store.put(page(1), &Arc::default());
        let has =
            || [0, 1].map(|number| store.has(page(number)) && store.get(page(number)).is_some());
        assert_eq!(has(), [true, true]);
        // As if many others had been used since.
        store.recent.drop_unused();
        store.recent.drop_unused();
        assert_eq!(has(), [true, false]);
        store.release_start();
        assert_eq!(has(), [true, false]);
        store.recent.drop_unused();
        store.recent.drop_unused();
        assert_eq!(has(), [false, false]);
    }

    #[test]
    fn a_window_is_compared_once_wherever_it_is_used() {
        let checks = WindowChecks::default();
        let span = SpanId(7);
        let tail = SpanTail::of(&SpanWindow::default());
        // Used first: it is wanted again when the span before it is decoded.
        assert!(checks.used(span).is_none());
        assert!(checks.was_used(span));
        checks.shown(span, tail);
        assert!(!checks.was_used(span));
        assert_eq!(checks.used(span), Some(tail));
        checks.compared(span);
        assert!(!checks.was_used(span));
        assert!(checks.used(span).is_none());
        assert!(!checks.was_used(span));
        assert!(checks.used(SpanId(8)).is_none());
    }
}
