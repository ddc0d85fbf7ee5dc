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

pub use entries::{SpanHeaders, differing, headers_across, headers_of};
pub use next::{SpanTail, decode_to_next};

use self::decoder::{LayerDecoder, PlainCheck};
use self::entries::EntryCheck;
use self::fine::{FineBlob, FinePlainCheck};
use self::spans::{BlobSpans, PlainSpanCheck};
use crate::code::Code;
use crate::codec::sniff::Format;
use crate::digest::{Algorithm, Digest, Hasher};
use crate::fine::FineLayer;
use crate::layer::span::{SpanError, SpanTable};
use crate::layer::{UnservableReason, servable};
use crate::offset::{Compressed, SpanId, SpanSize, Uncompressed};
use crate::path::shown;
use crate::progress::causes;
use crate::ztoc::{Checkpoints, VERSION, Ztoc, ZtocError};

mod decoder;
mod entries;
mod fine;
mod next;
mod spans;

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
        let own_entries =
            fine.as_deref().filter(|fine| ztoc.as_ref().is_none_or(|ztoc| !is_same(ztoc, fine)));
        let table = ztoc.as_ref().and_then(|ztoc| {
            if *ztoc.version != *VERSION {
                differences.add(Difference::Version(ztoc.version.clone()));
            }
            if let Err(unservable) = servable(ztoc) {
                differences.add(Difference::Unservable(unservable));
            }
            SpanTable::new(ztoc.clone())
                .map_err(|error| differences.add(Difference::Spans(error)))
                .ok()
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
    pub fn read<E>(
        self,
        mut next: impl FnMut() -> Result<Option<Vec<Bytes>>, E>,
    ) -> Result<Proof, E> {
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
        let Blob { digest, size, spans, fine, mut differences, fine_differences: mut of_document } =
            blob;
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
                differences.add(Difference::Size {
                    what: "the size of the blob",
                    stated,
                    actual: size,
                });
            }
        }
        if let Some(reason) = &decoder.broken {
            differences.add(Difference::Broken(reason.clone()));
            if fine.is_some() {
                of_document.add(Difference::Broken(reason.clone()));
            }
        }
        let mut compared = 0;
        let mut matching = 0;
        let mut is_fine = false;
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
        let entries = plain.entries.map(finished);
        let fine_entries = plain.fine_entries.map(finished);
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

/// A difference. Programs read [`Difference::code`], people its Display.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum Difference {
    /// The ztoc cannot be compared with the layer: it is damaged, or its parts contradict each
    /// other.
    #[error("the ztoc cannot be used: {}", causes(.0))]
    Malformed(ZtocError),
    #[error("the layer cannot be decoded completely: {0}")]
    Broken(String),
    #[error("the layer's tar cannot be read: {0}")]
    Tar(String),
    #[error("the layer is {actual}, but the ztoc is for a {stated} one")]
    Compression { stated: Format, actual: Format },
    #[error("the ztoc's spans cannot be used: {0}")]
    Spans(SpanError),
    /// soci-snapshotter refuses it (FORMAT, section 4).
    #[error("consumers reject this layer: {0}")]
    Unservable(UnservableReason),
    #[error("the ztoc has the format version \"{}\", not \"0.9\"", .0.escape_ascii())]
    Version(Box<[u8]>),
    #[error("{what}: the ztoc says {stated}, actual {actual}")]
    Size { what: &'static str, stated: u64, actual: u64 },
    #[error("span {span} has the digest {actual}, but the ztoc says {stated}")]
    SpanDigest { span: SpanId, stated: Digest, actual: Digest },
    #[error("the window of checkpoint {span} differs from the tar at byte {at}")]
    Window { span: SpanId, at: Uncompressed },
    #[error("decoding span {span} from its checkpoint goes wrong: {reason}; {}", lying_in(*files, .first.as_deref()))]
    SpanContent {
        span: SpanId,
        reason: String,
        /// The number of regular files with bytes in the span, according to the ztoc, and the name
        /// of the first.
        files: u64,
        first: Option<Box<[u8]>>,
    },
    #[error(
        "the bytes of span {span} of the fine document do not have the state of SHA-256 that it says"
    )]
    FineProof { span: SpanId },
    #[error("decoding span {span} by the fine document goes wrong: {reason}")]
    FineContent { span: SpanId, reason: String },
    #[error("the entry {} at byte {offset} of the tar is not in the ztoc", shown(name))]
    EntryMissing { name: Box<[u8]>, offset: Uncompressed },
    #[error("entry {entry} of the ztoc, {}, is not in the layer", shown(name))]
    EntryAdded { entry: usize, name: Box<[u8]> },
    #[error("entry {entry} of the ztoc, {}, is out of order", shown(name))]
    EntryOrder { entry: usize, name: Box<[u8]> },
    #[error(
        "entry {entry} of the ztoc, {}, says {field} {stated}; the layer says {actual}",
        shown(name)
    )]
    Entry { entry: usize, name: Box<[u8]>, field: &'static str, stated: String, actual: String },
}

impl Difference {
    /// The stable word for this difference.
    pub fn code(&self) -> Code {
        match self {
            Difference::Malformed(_) => Code::ZtocMalformed,
            Difference::Broken(_) => Code::BrokenLayer,
            Difference::Tar(_) => Code::BrokenTar,
            Difference::Compression { .. } => Code::Compression,
            Difference::Spans(_) => Code::Spans,
            Difference::Unservable(_) => Code::Unservable,
            Difference::Version(_) => Code::Version,
            Difference::Size { .. } => Code::Size,
            Difference::SpanDigest { .. } | Difference::FineProof { .. } => Code::SpanDigest,
            Difference::Window { .. } => Code::CheckpointWindow,
            Difference::SpanContent { .. } | Difference::FineContent { .. } => Code::SpanContent,
            Difference::EntryMissing { .. } => Code::EntryMissing,
            Difference::EntryAdded { .. } => Code::EntryAdded,
            Difference::EntryOrder { .. } => Code::EntryOrder,
            Difference::Entry { .. } => Code::EntryField,
        }
    }

    /// The message for people when the entries and sizes come from a fine document instead of a
    /// ztoc.
    pub fn of_document(&self) -> String {
        match self {
            Difference::Size { what, stated, actual } => {
                format!("{what}: the fine document says {stated}, actual {actual}")
            }
            Difference::EntryMissing { name, offset } => {
                format!(
                    "the entry {} at byte {offset} of the tar is not in the fine document",
                    shown(name)
                )
            }
            Difference::EntryAdded { entry, name } => {
                format!("entry {entry} of the fine document, {}, is not in the layer", shown(name))
            }
            Difference::EntryOrder { entry, name } => {
                format!("entry {entry} of the fine document, {}, is out of order", shown(name))
            }
            Difference::Entry { entry, name, field, stated, actual } => {
                let name = shown(name);
                format!(
                    "entry {entry} of the fine document, {name}, says {field} {stated}; the layer says {actual}"
                )
            }
            other => other.to_string(),
        }
    }

    /// The affected span.
    pub fn span(&self) -> Option<SpanId> {
        match self {
            Difference::SpanDigest { span, .. }
            | Difference::Window { span, .. }
            | Difference::FineProof { span }
            | Difference::FineContent { span, .. }
            | Difference::SpanContent { span, .. } => Some(*span),
            _ => None,
        }
    }

    /// The number (if it is in the ztoc) and name of the affected entry.
    pub fn entry(&self) -> Option<(Option<usize>, &[u8])> {
        match self {
            Difference::EntryMissing { name, .. } => Some((None, name)),
            Difference::EntryAdded { entry, name }
            | Difference::EntryOrder { entry, name }
            | Difference::Entry { entry, name, .. } => Some((Some(*entry), name)),
            _ => None,
        }
    }
}

fn lying_in(files: u64, first: Option<&[u8]>) -> String {
    match first {
        None => "no file lies in it".into(),
        Some(first) if files == 1 => format!("{} lies in it", shown(first)),
        Some(first) => format!("{files} files lie in it, the first is {}", shown(first)),
    }
}

/// The differences found so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// The first thousand, in the order in which they were found.
    pub list: Vec<Difference>,
    /// The number of further differences.
    pub more: u64,
}

/// Enough for a reader. A layer compared with another layer's ztoc has millions of differences.
const MOST: usize = 1000;

impl Differences {
    fn add(&mut self, difference: Difference) {
        if self.list.len() < MOST {
            self.list.push(difference);
        } else {
            self.more += 1;
        }
    }

    fn add_all(&mut self, other: Differences) {
        other.list.into_iter().for_each(|difference| self.add(difference));
        self.more += other.more;
    }
}
