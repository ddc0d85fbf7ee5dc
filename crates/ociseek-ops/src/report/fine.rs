//! The fine index of an image whose facts are those of its SOCI index: what it covers, and what a
//! start fetches by it.

use std::collections::BTreeMap;

use super::fetch::Fetch;
use crate::head::fetch_head;
use crate::open::RootFs;
use ociseek_format::budget::Charge;
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;

/// A fine index.
#[derive(Debug, Clone)]
pub struct FineReport {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The size of its manifest in bytes, if known.
    pub size: Option<u64>,
    /// The tool that built it, if it names one.
    pub tool: Option<String>,
    /// The layers that are read by it.
    pub coverage: Coverage,
    /// The size of the documents of these layers in bytes.
    pub bytes: u64,
    /// How much of that is fetched before a start.
    pub start_bytes: u64,
    /// The digest of the profile that it was built with.
    pub profile: Option<Digest>,
    /// What a recorded start fetches by it. None without a record.
    pub fetch: Option<Fetch>,
}

/// The heads of the documents of an image's fine index.
#[derive(Default)]
pub struct FineDocuments {
    /// The spans of each layer.
    pub(super) spans: BTreeMap<Digest, SpanTable<LayerMap>>,
    /// Their memory, held until they are dropped.
    _memory: Option<Charge>,
}

ociseek_format::opaque_debug!(FineDocuments);

impl FineDocuments {
    /// Fetches the heads of the fine index that a reader of `image` takes. Layers whose head cannot
    /// be read or used are left out: they are read without it.
    pub async fn of(image: &RootFs) -> FineDocuments {
        let mut documents = FineDocuments::default();
        let Some(content) = image.fine.as_ref().and_then(|found| found.content.as_ref().ok()) else { return documents };
        let mut memory = image.source.budget().open();
        for layer in image.layers.iter().map(|layer| &layer.descriptor) {
            if let Some(document) = content.documents.get(&layer.digest)
                && !documents.spans.contains_key(&layer.digest)
                && let Ok(spans) = fetch_head(&image.source, layer, document, &mut memory).await
            {
                documents.spans.insert(layer.digest, spans);
            }
        }
        documents._memory = Some(memory);
        documents
    }

    /// The facts, and what a start fetches by them.
    pub(super) fn report(&self, image: &RootFs, fetch: Option<Fetch>) -> Option<FineReport> {
        let found = image.fine.as_ref()?;
        let content = found.content.as_ref().ok()?;
        let used = || content.documents.values().filter(|document| self.spans.contains_key(&document.layer));
        Some(FineReport {
            digest: found.digest,
            size: found.size,
            tool: content.index.build_tool.clone(),
            coverage: Coverage::of(image.layers.iter().map(|layer| &layer.descriptor), |layer| {
                self.spans.contains_key(&layer.digest)
            }),
            bytes: used().map(|document| document.size).fold(0, u64::saturating_add),
            start_bytes: used().map(|document| document.start_size).fold(0, u64::saturating_add),
            profile: content.index.profile,
            fetch,
        })
    }
}
