//! Checks a layer's ztoc, its fine document, or both against the layer, which is read and decoded
//! once.
//!
//! Decoders other than ours (flate2 with zlib-rs, and zstd) decode the layer from start to end. The
//! result is compared with the ztoc: its windows, its entries, and what our own decoder produces
//! from each span and its checkpoint. Each span is decoded as its compressed bytes arrive, so
//! nothing of the layer is kept.
//!
//! If every entry equals the layer's and every span decodes to the layer's bytes, then every file
//! can be read correctly through the spans, and every tar header is where a consumer looks for it:
//! after the data of the previous entry.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use bytes::Bytes;

use self::decoder::LayerDecoder;
use self::entries::EntryCheck;
use self::fine::{FineBlob, FinePlainCheck};
use self::plain::PlainCheck;
use self::spans::{BlobSpans, PlainSpanCheck};
use crate::codec::sniff::Format;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::fine::FineLayer;
use crate::layer::servable;
use crate::layer::span::SpanTable;
use crate::offset::{Compressed, SpanSize};
use crate::ztoc::{Checkpoints, VERSION, Ztoc};

mod decoder;
mod difference;
mod entries;
mod fine;
mod headers;
mod next;
mod plain;
mod spans;

pub use difference::{Difference, Differences};
pub use entries::differing;
pub use headers::{SpanHeaders, headers_across, headers_of};
pub use next::{SpanTail, decode_to_next};

/// How many batches of chunks the decoder on the other thread may lag behind.
const BATCHES: usize = 4;

/// Takes a layer's blob in chunks and finds the differences from its documents. Chunk boundaries do
/// not matter, unless the layer is broken: then they decide how much is checked before the fault.
///
/// Memory does not grow with the layer, except for a few bytes for each span and entry of the
/// documents.
pub struct LayerProof {
    decoder: LayerDecoder,
    blob: Blob,
    ztoc: Option<Arc<Ztoc>>,
}

crate::opaque_debug!(LayerProof);

/// The half that takes the compressed blob.
struct Blob {
    digest: Hasher,
    size: u64,
    spans: Option<BlobSpans>,
    fine: Option<FineBlob>,
    differences: Differences,
    fine_differences: Differences,
}

/// The findings about a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// The digest of the blob, with the requested algorithm.
    pub digest: Digest,
    /// The size of the blob in bytes.
    pub size: u64,
    /// The digest of the whole decoded layer, with the requested algorithm. None if decoding
    /// failed.
    pub diff_id: Option<Digest>,
    /// The size of the decoded layer in bytes, including the padding after the tar's end.
    pub plain_size: u64,
    /// How many bytes of decoded spans were compared.
    pub compared: u64,
    /// The number of spans whose compressed bytes have the digest in the ztoc.
    pub matching: u32,
    /// The differences from the ztoc, and the layer's own faults.
    pub differences: Vec<Difference>,
    /// The number of further ones, beyond the first thousand.
    pub more: u64,
    /// The differences from the fine document, and the layer's own faults. Empty without a
    /// document.
    pub of_document: Differences,
}

impl Proof {
    /// Whether there are no differences. The caller compares digest, size and diff_id.
    pub fn holds(&self) -> bool {
        self.differences.is_empty() && self.of_document.list.is_empty()
    }
}

impl LayerProof {
    /// Checks a layer with a ztoc. Without one, only its digests and size are determined. `blob`
    /// and `diff_id` are the algorithms of the requested digests.
    pub fn new(ztoc: Option<Arc<Ztoc>>, blob: Algorithm, diff_id: Algorithm) -> LayerProof {
        LayerProof::with_fine(ztoc, None, blob, diff_id)
    }

    /// Checks a layer that may have a fine document too. What is found of one document does not
    /// depend on the other.
    pub fn with_fine(
        ztoc: Option<Arc<Ztoc>>,
        fine: Option<Arc<FineLayer>>,
        blob: Algorithm,
        diff_id: Algorithm,
    ) -> LayerProof {
        let mut differences = Differences::default();
        // The same entries are compared once for both.
        let own_entries = fine.as_deref().filter(|fine| ztoc.as_ref().is_none_or(|ztoc| !is_same(ztoc, fine)));
        let table = ztoc.as_ref().and_then(|ztoc| {
            if *ztoc.version != *VERSION {
                differences.add(Difference::Version(ztoc.version.clone()));
            }
            if let Err(unservable) = servable(ztoc) {
                differences.add(Difference::Unservable(unservable));
            }
            SpanTable::new(ztoc.clone()).map_err(|error| differences.add(Difference::Spans(error))).ok()
        });
        let plain = PlainCheck {
            diff_id: Hasher::new(diff_id),
            size: 0,
            entries: ztoc.clone().map(EntryCheck::new),
            fine_entries: own_entries.map(|fine| EntryCheck::new(Arc::new(listing(fine)))),
            spans: table.clone().map(PlainSpanCheck::new),
            fine: fine.clone().map(FinePlainCheck::new),
            differences: Differences::default(),
        };
        let blob = Blob {
            digest: Hasher::new(blob),
            size: 0,
            spans: table.map(BlobSpans::new),
            fine: fine.map(FineBlob::new),
            differences,
            fine_differences: Differences::default(),
        };
        LayerProof { decoder: LayerDecoder::new(plain), blob, ztoc }
    }

    /// Reads the whole blob from `next`, which returns its chunks, a batch at a time, and None at
    /// its end. The decoder for the whole layer has its own thread, since it is independent of the
    /// decoder of spans.
    ///
    /// # Errors
    /// Those of `next`.
    pub fn read<E>(self, mut next: impl FnMut() -> Result<Option<Vec<Bytes>>, E>) -> Result<Proof, E> {
        let LayerProof { mut decoder, mut blob, ztoc } = self;
        thread::scope(|scope| {
            let (read, chunks) = sync_channel::<Vec<Bytes>>(BATCHES);
            let decoding = scope.spawn(move || {
                chunks.iter().flatten().for_each(|chunk| decoder.push(&chunk));
                decoder
            });
            while let Some(batch) = next()? {
                // The receiver is gone only if that thread panicked, which joining it passes on.
                let _ = read.send(batch.clone());
                batch.iter().for_each(|chunk| blob.push(chunk));
            }
            drop(read);
            let decoder = decoding.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok(LayerProof { decoder, blob, ztoc }.finish())
        })
    }

    /// Takes the next bytes of the blob.
    pub fn push(&mut self, chunk: &[u8]) {
        self.decoder.push(chunk);
        self.blob.push(chunk);
    }

    /// Ends the blob.
    pub fn finish(self) -> Proof {
        let LayerProof { decoder, blob, ztoc } = self;
        let Blob { digest, size, spans, fine, mut differences, fine_differences: mut of_document } = blob;
        let decoder = decoder.finish();
        let mut plain = decoder.plain;
        if let Some(ztoc) = &ztoc {
            let stated = match &ztoc.checkpoints {
                Checkpoints::Gzip { .. } => Format::Gzip,
                Checkpoints::Uncompressed { .. } => Format::Plain,
            };
            if stated != decoder.format {
                differences.add(Difference::Compression { stated, actual: decoder.format });
            }
            if ztoc.compressed_size.0 != size {
                let stated = ztoc.compressed_size.0;
                differences.add(Difference::Size { what: "the size of the blob", stated, actual: size });
            }
        }
        if let Some(reason) = &decoder.broken {
            differences.add(Difference::Broken(reason.clone()));
            if fine.is_some() {
                of_document.add(Difference::Broken(reason.clone()));
            }
        }
        let (mut compared, mut matching, mut is_fine) = (0, 0, false);
        if let (Some(spans), Some(plain_spans)) = (spans, plain.spans.take()) {
            let hashes = plain_spans.finish(&mut plain.differences);
            (compared, matching) = spans.finish(&hashes, &mut differences);
        }
        if let (Some(fine), Some(plain_fine)) = (fine, plain.fine.take()) {
            fine.finish(&plain_fine.finish(), &mut of_document);
            is_fine = true;
        }
        differences.add_all(plain.differences);
        let finished = |entries: EntryCheck| entries.finish(decoder.broken.is_some());
        let (entries, fine_entries) = (plain.entries.map(finished), plain.fine_entries.map(finished));
        if is_fine {
            of_document.add_all(fine_entries.or_else(|| entries.clone()).unwrap_or_default());
        }
        differences.add_all(entries.unwrap_or_default());
        Proof {
            digest: digest.finish(),
            size,
            diff_id: decoder.broken.is_none().then(|| plain.diff_id.finish()),
            plain_size: plain.size,
            compared,
            matching,
            differences: differences.list,
            more: differences.more,
            of_document,
        }
    }
}

impl Blob {
    fn push(&mut self, chunk: &[u8]) {
        self.digest.update(chunk);
        self.size += chunk.len() as u64;
        if let Some(spans) = &mut self.spans {
            spans.push(chunk, &mut self.differences);
        }
        if let Some(fine) = &mut self.fine {
            fine.push(chunk, &mut self.fine_differences);
        }
    }
}

/// Whether a ztoc and a fine document have the same entries and the same end of the tar.
fn is_same(ztoc: &Ztoc, fine: &FineLayer) -> bool {
    ztoc.uncompressed_size == fine.spans().tar_end() && ztoc.files == fine.entries()
}

/// A ztoc without spans, for the document's entries.
fn listing(fine: &FineLayer) -> Ztoc {
    Ztoc {
        version: VERSION.into(),
        build_tool_identifier: Box::default(),
        compressed_size: Compressed(fine.spans().blob_size()),
        uncompressed_size: fine.spans().tar_end(),
        files: fine.entries().to_vec(),
        checkpoints: Checkpoints::Uncompressed { span_size: SpanSize::DEFAULT, size: 0 },
        span_digests: Vec::new(),
    }
}
