//! One layer against its ztoc and its fine document.
//!
//! The layer is decoded straight through by decoders that are not ours (flate2 with zlib-rs, and
//! zstd), and what comes out is what the ztoc is held against: its windows, its entries, and what
//! our own decoder makes of each span from its checkpoint. Each span is decoded while its
//! compressed bytes pass by, so nothing is kept of the layer.
//!
//! When every entry is equal to the layer's and every span decodes to the layer's bytes, then every
//! file reads right through the spans, and every tar header lies where a consumer looks for it:
//! behind the data of the entry before.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

use bytes::Bytes;

use self::difference::Differences;
use self::entries::Entries;
use self::fine::{FineBlob, FinePlain};
use self::plain::Plain;
use self::spans::{BlobSpans, PlainSpanCheck};
use self::straight::Straight;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::fine::FineLayer;
use crate::layer::servable;
use crate::layer::span::SpanTable;
use crate::offset::Compressed;
use crate::ztoc::{Checkpoints, VERSION, Ztoc};

mod difference;
mod entries;
mod fine;
mod headers;
mod plain;
mod spans;
mod straight;

pub use difference::Difference;
pub use entries::differing;
pub use headers::{SpanHeaders, headers_of};

/// How many batches of chunks the straight decoder may lag behind.
const BATCHES: usize = 4;

/// Takes a layer's blob in chunks and finds what differs from its ztoc. Chunk borders carry no
/// meaning, unless the layer breaks off: then they decide how much of it is looked at before that.
///
/// Memory does not grow with the layer, but for some bytes for each span and entry of the ztoc.
pub struct LayerProof {
    straight: Straight,
    blob: Blob,
    ztoc: Option<Arc<Ztoc>>,
}

/// The half that takes the blob as it is.
struct Blob {
    digest: Hasher,
    size: u64,
    spans: Option<BlobSpans>,
    fine: Option<FineBlob>,
    differences: Differences,
}

/// What was found out about a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    /// Of the blob, by the algorithm asked for.
    pub digest: Digest,
    /// Bytes of the blob.
    pub size: u64,
    /// Of the decoded layer, all of it, by the algorithm asked for. None if it could not be decoded to its end.
    pub diff_id: Option<Digest>,
    /// Bytes of the decoded layer, padding behind the tar's end and all.
    pub plain_size: u64,
    /// Bytes that were compared with what their spans decode to.
    pub compared: u64,
    /// Spans whose bytes in the blob have the digest that the ztoc says.
    pub matching: u32,
    /// In the order in which they were found; a thousand at most.
    pub differences: Vec<Difference>,
    /// How many more there are.
    pub more: u64,
}

impl Proof {
    /// Nothing differs. Digest, size and diff_id are for the caller to compare.
    pub fn holds(&self) -> bool {
        self.differences.is_empty()
    }
}

impl LayerProof {
    /// For a layer with a ztoc, or for one without, of which only digests and size are found out.
    /// `blob` and `diff_id` are the algorithms of the digests wanted.
    pub fn new(ztoc: Option<Arc<Ztoc>>, blob: Algorithm, diff_id: Algorithm) -> LayerProof {
        LayerProof::with_fine(ztoc, None, blob, diff_id)
    }

    /// The same for a layer that also has a fine document. Its spans and windows are held against the
    /// layer, and its entries against those of the ztoc, or without one against the layer.
    pub fn with_fine(
        ztoc: Option<Arc<Ztoc>>,
        fine: Option<Arc<FineLayer>>,
        blob: Algorithm,
        diff_id: Algorithm,
    ) -> LayerProof {
        let mut differences = Differences::default();
        if let (Some(ztoc), Some(fine)) = (&ztoc, &fine) {
            let (stated, others) = (fine.entries(), &ztoc.files);
            let same = stated.iter().zip(others).take_while(|(stated, other)| stated == other).count();
            if same < stated.len().max(others.len()) {
                differences.add(Difference::FineEntry { entry: same });
            }
        }
        let listed = ztoc.clone().or_else(|| fine.as_deref().map(|fine| Arc::new(listing(fine))));
        let table = ztoc.as_ref().and_then(|ztoc| {
            if *ztoc.version != *VERSION {
                differences.add(Difference::Version(ztoc.version.clone()));
            }
            if let Err(unservable) = servable(ztoc) {
                differences.add(Difference::Unservable(unservable));
            }
            SpanTable::new(ztoc.clone()).map_err(|error| differences.add(Difference::Spans(error))).ok()
        });
        let plain = Plain {
            diff_id: Hasher::new(diff_id),
            size: 0,
            entries: listed.map(Entries::new),
            spans: table.clone().map(PlainSpanCheck::new),
            fine: fine.clone().map(FinePlain::new),
            differences: Differences::default(),
        };
        let blob = Blob {
            digest: Hasher::new(blob),
            size: 0,
            spans: table.map(BlobSpans::new),
            fine: fine.map(FineBlob::new),
            differences,
        };
        LayerProof { straight: Straight::new(plain), blob, ztoc }
    }

    /// Takes all of the blob from `next`, which returns its chunks, a batch at a time, and `None` at
    /// its end. The straight decoder has a thread of its own: it and the decoder of spans need
    /// nothing of each other.
    ///
    /// # Errors
    /// Those of `next`.
    pub fn read<E>(self, mut next: impl FnMut() -> Result<Option<Vec<Bytes>>, E>) -> Result<Proof, E> {
        let LayerProof { mut straight, mut blob, ztoc } = self;
        thread::scope(|scope| {
            let (read, chunks) = sync_channel::<Vec<Bytes>>(BATCHES);
            let decoding = scope.spawn(move || {
                chunks.iter().flatten().for_each(|chunk| straight.push(&chunk));
                straight
            });
            while let Some(batch) = next()? {
                // Nobody takes it only if that thread panicked, which joining it passes on.
                let _ = read.send(batch.clone());
                batch.iter().for_each(|chunk| blob.push(chunk));
            }
            drop(read);
            let straight = decoding.join().unwrap_or_else(|panic| resume_unwind(panic));
            Ok(LayerProof { straight, blob, ztoc }.finish())
        })
    }

    /// The next bytes of the blob.
    pub fn push(&mut self, chunk: &[u8]) {
        self.straight.push(chunk);
        self.blob.push(chunk);
    }

    /// The blob is at its end.
    pub fn finish(self) -> Proof {
        let LayerProof { straight, blob: Blob { digest, size, spans, fine, mut differences }, ztoc } = self;
        let straight = straight.finish();
        let mut plain = straight.plain;
        if let Some(ztoc) = &ztoc {
            let stated = match &ztoc.checkpoints {
                Checkpoints::Gzip { .. } => "gzip",
                Checkpoints::Uncompressed { .. } => "not compressed",
            };
            if stated != straight.compression {
                differences.add(Difference::Compression { stated, actual: straight.compression });
            }
            if ztoc.compressed_size.0 != size {
                let stated = ztoc.compressed_size.0;
                differences.add(Difference::Size { what: "the size of the blob", stated, actual: size });
            }
        }
        if let Some(reason) = &straight.broken {
            differences.add(Difference::Broken(reason.clone()));
        }
        let (mut compared, mut matching) = (0, 0);
        if let (Some(spans), Some(plain_spans)) = (spans, plain.spans.take()) {
            let hashes = plain_spans.finish(&mut plain.differences);
            (compared, matching) = spans.finish(&hashes, &mut differences);
        }
        if let (Some(fine), Some(plain_fine)) = (fine, plain.fine.take()) {
            fine.finish(&plain_fine.finish(), &mut differences);
        }
        if let Some(entries) = plain.entries.take() {
            entries.finish(straight.broken.is_some(), &mut plain.differences);
        }
        for difference in plain.differences.list {
            differences.add(difference);
        }
        Proof {
            digest: digest.finish(),
            size,
            diff_id: straight.broken.is_none().then(|| plain.diff_id.finish()),
            plain_size: plain.size,
            compared,
            matching,
            differences: differences.list,
            more: differences.more + plain.differences.more,
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
            fine.push(chunk, &mut self.differences);
        }
    }
}

/// A ztoc without spans, for its entries.
fn listing(fine: &FineLayer) -> Ztoc {
    Ztoc {
        version: VERSION.into(),
        build_tool_identifier: Box::default(),
        compressed_size: Compressed(fine.spans().blob_size()),
        uncompressed_size: fine.spans().tar_end(),
        files: fine.entries().to_vec(),
        checkpoints: Checkpoints::Uncompressed { span_size: 1, size: 0 },
        span_digests: Vec::new(),
    }
}
