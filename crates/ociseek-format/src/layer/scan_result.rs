//! The result of a scan: a ztoc and a fine document for publishing, or a map for local reading.

use std::panic::resume_unwind;
use std::thread;

use super::contents::{Notes, TarListing};
use super::fine::FineParts;
use super::model::{NoZtoc, not_read_lazily};
use super::{
    BlobForm, BuiltZtoc, IndexedLayer, LayerError, LayerMap, LayerOptions, Outcome, Starts,
    UnservableCode, UnservableReason, consumer, record,
};
use crate::budget::Charge;
use crate::codec::sniff::Format;
use crate::digest::Digest;
use crate::fine::{Codec, FineError, FineLayer, FineSpans, SPAN_SIZE, SpanParts};
use crate::offset::{Compressed, Uncompressed};
use crate::ztoc::{self, Checkpoints, MAX_ENCODED, VERSION, Ztoc};

/// With at least this many files, another thread saves more than it costs.
const MANY_FILES: usize = 4096;

/// A layer that was read here, with the map for reading parts of it later.
pub struct MappedLayer {
    /// The map to read it with.
    pub map: LayerMap,
    /// Notes taken while reading.
    pub notes: Notes,
    /// The memory that the map takes.
    pub memory: Charge,
}

crate::opaque_debug!(MappedLayer);

/// The result for a blob that was read to its end.
pub(super) struct ScanResult {
    pub digest: Digest,
    pub size: u64,
    pub outcome: Result<ValidLayer, UnservableReason>,
}

/// A valid layer with entries and spans.
pub(super) struct ValidLayer {
    pub listed: TarListing,
    pub starts: Starts,
    pub span_digests: Vec<Digest>,
    /// The size of the blob in bytes.
    pub size: u64,
    /// The number of members in the blob; 0 if it is not gzip.
    pub gzip_members: u64,
    /// The data of the fine document, if it was requested.
    pub fine: Option<FineParts>,
}

impl ScanResult {
    /// For publishing: a ztoc, if consumers could serve the layer from it.
    ///
    /// # Errors
    /// If it does not fit into memory.
    pub(super) fn publish(self, options: LayerOptions) -> Result<IndexedLayer, LayerError> {
        let built = self
            .outcome
            .map_err(NoZtoc::Unservable)
            .and_then(|sound| sound.build(self.digest, options));
        let (outcome, fine) = match built {
            Ok((outcome, fine)) => (outcome, fine),
            Err(NoZtoc::Unservable(unservable)) => (Outcome::Unservable(unservable), None),
            Err(NoZtoc::Broken(error)) => return Err(error),
        };
        Ok(IndexedLayer { digest: self.digest, size: self.size, outcome, fine })
    }

    /// For local reading.
    ///
    /// # Errors
    /// If the layer is too large.
    pub(super) fn map(self) -> Result<MappedLayer, LayerError> {
        // In local reading, a verdict can only mean that a limit was exceeded.
        let sound = self.outcome.map_err(|_| LayerError::TooLarge)?;
        let ValidLayer { listed, starts, span_digests, size, .. } = sound;
        let TarListing { files, sparse, notes, size: tar_size, memory, .. } = listed;
        let size = match starts {
            Starts::InBlob(_) | Starts::Fine(_) => size,
            Starts::Unpacked { .. } => tar_size,
        };
        let size = Compressed(size);
        let tar_end = Uncompressed(tar_size);
        let map = LayerMap { files: files.into(), sparse, tar_end, size, starts, span_digests };
        if record::encoded_size_bound(&map) > MAX_ENCODED {
            return Err(LayerError::TooLarge);
        }
        Ok(MappedLayer { map, notes, memory })
    }
}

impl ValidLayer {
    /// `digest` is the blob's.
    fn build(
        self,
        digest: Digest,
        options: LayerOptions,
    ) -> Result<(Outcome, Option<FineLayer>), NoZtoc> {
        /// The memory for judging an entry: its place in a tree.
        const JUDGED: usize = 96;
        let ValidLayer { listed, starts, span_digests, size, gzip_members, fine } = self;
        let blob = digest;
        let TarListing { mut files, end: uncompressed_size, mut memory, .. } = listed;
        memory.grow((files.len() * JUDGED) as u64, || "the tree of its files".to_owned())?;
        consumer::unlink_whiteouts(&mut files);
        let document = |fine: Option<FineParts>, codec, files| match fine {
            // Their memory stays charged until here.
            Some(FineParts { starts, windows, memory: _charged }) => {
                let tar_end = uncompressed_size;
                let parts = SpanParts {
                    layer: blob,
                    codec,
                    blob_size: size,
                    tar_end,
                    span_size: SPAN_SIZE,
                    starts,
                };
                Ok(Some(FineLayer::of_groups(files, FineSpans::new(parts)?, windows)?))
            }
            None => Ok::<_, NoZtoc>(None),
        };
        let Starts::InBlob(checkpoints) = starts else {
            consumer::check_tree(&files)?;
            let fine = match document(fine, Codec::Zstd, files) {
                Err(NoZtoc::Broken(LayerError::Fine(error @ FineError::LongSpan(_)))) => {
                    return Err(UnservableReason::new(
                        UnservableCode::SpanTooLarge,
                        error.to_string(),
                    )
                    .into());
                }
                document => document?,
            };
            return Ok((Outcome::Unservable(not_read_lazily(Format::Zstd)), fine));
        };
        let compressed_size = Compressed(size);
        let form = match checkpoints {
            Checkpoints::Gzip { .. } => BlobForm::Gzip { members: Some(gzip_members) },
            Checkpoints::Uncompressed { .. } => BlobForm::Tar,
        };
        let encoded = ztoc::encoded_size_bound(&files, &checkpoints);
        if encoded > MAX_ENCODED {
            let judged = consumer::layer(&files, &checkpoints, compressed_size, uncompressed_size);
            let reason = format!("its ztoc would exceed {} MiB", MAX_ENCODED >> 20);
            return Err(judged
                .err()
                .unwrap_or_else(|| UnservableReason::new(UnservableCode::ZtocTooLarge, reason))
                .into());
        }
        memory.grow(encoded as u64, || format!("its ztoc of {encoded} bytes"))?;
        let mut ztoc = Ztoc {
            version: VERSION.into(),
            build_tool_identifier: options.build_tool_identifier.into_bytes().into(),
            compressed_size,
            uncompressed_size,
            files,
            checkpoints,
            span_digests,
        };
        let has_fine = fine.is_some();
        // Of what consumers of ztocs refuse, only the padding is nothing to readers of documents,
        // which say where the tar ends.
        let judge = || {
            let judged =
                consumer::layer(&ztoc.files, &ztoc.checkpoints, compressed_size, uncompressed_size);
            match judged {
                Err(why) if has_fine && why.code == UnservableCode::PaddingPastSpan => {
                    consumer::check_tree(&ztoc.files).map(|()| Some(why))
                }
                judged => judged.map(|()| None),
            }
        };
        let spans = ztoc.checkpoints.spans() as u32;
        let entries = ztoc.files.len();
        let mut files = Vec::new();
        let (refused, bytes, digest) = if entries < MANY_FILES {
            let refused = judge()?;
            let bytes = ztoc::encode(&ztoc);
            let digest = Digest::sha256(&bytes);
            if has_fine {
                files = ztoc.files;
            }
            (refused, bytes, digest)
        } else {
            // For many files each of the two takes long, and the other threads are idle by now.
            let (judged, bytes) = beside(judge, || ztoc::encode(&ztoc));
            let refused = judged?;
            if has_fine {
                files = std::mem::take(&mut ztoc.files);
            }
            let (_, digest) = beside(move || drop(ztoc), || Digest::sha256(&bytes));
            (refused, bytes, digest)
        };
        let fine = document(fine, codec(form), files)?;
        if let Some(why) = refused {
            return Ok((Outcome::Unservable(why), fine));
        }
        let entries = entries as u64;
        let uncompressed_size = uncompressed_size.0;
        Ok((
            Outcome::Ztoc(BuiltZtoc { digest, bytes, spans, entries, uncompressed_size, form }),
            fine,
        ))
    }
}

/// The codec of a layer in this format.
fn codec(form: BlobForm) -> Codec {
    match form {
        BlobForm::Tar => Codec::Plain,
        BlobForm::Gzip { .. } => Codec::Gzip,
    }
}

/// Runs two functions at the same time.
fn beside<A: Send, B>(other: impl FnOnce() -> A + Send, this: impl FnOnce() -> B) -> (A, B) {
    thread::scope(|scope| {
        let other = scope.spawn(other);
        let this = this();
        (other.join().unwrap_or_else(|panic| resume_unwind(panic)), this)
    })
}
