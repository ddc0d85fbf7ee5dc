//! A layer's blob in, and out what it can be read by: as [`LayerIndexer`](crate::layer::LayerIndexer) does it for others, but for
//! ourselves, who can read more than a consumer of SOCI indexes can.

use std::io;

use super::entries::{Entries, Notes, TooMany};
use super::slices::{GzipSlices, Shelf, Slices};
use crate::budget::Charge;
use crate::codec::gzip::{BlockStart, GzipReader, Sink};
use crate::codec::sniff::{self, Content};
use crate::codec::zstd::ZstdReader;
use crate::digest::{Digest, Hasher};
use crate::image::Descriptor;
use crate::layer::LayerError;
use crate::layer::spans::{GzipSpans, SpanHashes};
use crate::offset::{Compressed, Uncompressed};
use crate::rootfs::cache::SpanCache;
use crate::tar;
use crate::ztoc::{self, Checkpoints, FileMetadata, MAX_ENCODED, VERSION, Ztoc};

/// Bytes of a blob that are decoded at a time: they make at most 1,032 times as many.
const STEP: usize = 16 << 10;
/// A checkpoint and the digest of its span, encoded.
const CHECKPOINT: usize = 33 << 10;

/// Why a blob cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Zstd(#[from] io::Error),
    #[error("foreign compression")]
    Compression(&'static str),
    #[error("too large")]
    TooLarge,
}

impl From<TooMany> for Fault {
    fn from(_: TooMany) -> Fault {
        Fault::TooLarge
    }
}

/// What a layer can be read by.
pub(super) struct Indexed {
    pub ztoc: Ztoc,
    pub notes: Notes,
    /// The ztoc is that of the decoded tar: the blob itself has no places to start from.
    pub is_whole: bool,
    /// What it takes.
    pub memory: Charge,
}

/// Takes a blob in chunks.
pub(super) struct Indexer {
    /// Bytes of tar in a span of a gzip layer or plain tar, and in one of a tar that is kept whole.
    span_size: u64,
    whole_span_size: u64,
    digest: Digest,
    expected_size: u64,
    hasher: Hasher,
    size: u64,
    /// Plain tars need not be kept.
    is_near: bool,
    cache: SpanCache,
    /// None once the body has it.
    memory: Option<Charge>,
    body: Body,
}

enum Body {
    /// Too few bytes yet to say what the blob is.
    Unknown(Vec<u8>),
    Gzip(Box<GzipReader>, Box<GzipSink>),
    Plain(Box<PlainBody>),
    Zstd(Box<ZstdReader>, Box<PlainBody>),
}

struct PlainBody {
    entries: Entries,
    slices: Slices,
    size: u64,
}

struct GzipSink {
    entries: Entries,
    spans: GzipSpans,
    hashes: SpanHashes,
    slices: GzipSlices,
    /// Bytes of the blob before this step.
    blob: u64,
    plain: u64,
    fault: Option<Fault>,
}

impl Indexer {
    /// An indexer for a blob. `is_near` tells that the store is on this machine. `memory` grows by what is collected.
    pub fn new(
        span_size: u64,
        whole: u64,
        blob: &Descriptor,
        is_near: bool,
        cache: SpanCache,
        memory: Charge,
    ) -> Indexer {
        let Descriptor { digest, size, .. } = *blob;
        Indexer {
            span_size,
            whole_span_size: whole,
            digest,
            expected_size: size,
            hasher: Hasher::new(digest.algorithm()),
            size: 0,
            is_near,
            cache,
            memory: Some(memory),
            body: Body::Unknown(Vec::new()),
        }
    }

    pub fn push(&mut self, chunk: &[u8]) -> Result<(), Fault> {
        for step in chunk.chunks(STEP) {
            self.step(step)?;
        }
        Ok(())
    }

    fn step(&mut self, chunk: &[u8]) -> Result<(), Fault> {
        self.size += chunk.len() as u64;
        if self.size > self.expected_size {
            return Err(LayerError::Size { expected: self.expected_size, actual: self.size }.into());
        }
        let Body::Unknown(head) = &mut self.body else {
            return self.body.push(chunk, self.size, &mut self.hasher);
        };
        head.extend_from_slice(chunk);
        if head.len() >= tar::BLOCK { self.tell() } else { Ok(()) }
    }

    /// The blob is at its end.
    pub fn finish(mut self) -> Result<Indexed, Fault> {
        self.tell()?;
        let actual = self.hasher.finish();
        if self.size != self.expected_size {
            return Err(LayerError::Size { expected: self.expected_size, actual: self.size }.into());
        }
        if actual != self.digest {
            return Err(LayerError::Digest { expected: self.digest, actual }.into());
        }
        self.body.finish(self.span_size, self.whole_span_size, self.size)
    }

    /// Decides what the blob is by what there is of it, unless that was decided before.
    fn tell(&mut self) -> Result<(), Fault> {
        let Body::Unknown(head) = &mut self.body else { return Ok(()) };
        let head = std::mem::take(head);
        let Some(memory) = self.memory.take() else { return Ok(()) };
        let is_tar = head.first_chunk().is_some_and(tar::has_valid_checksum);
        let plain = |size, shelf, memory| {
            Box::new(PlainBody { entries: Entries::new(memory), slices: Slices::new(size, shelf), size: 0 })
        };
        let kept = self.cache.is_enabled().then(|| Shelf::new(&self.cache, self.expected_size));
        self.body = match sniff::content(&head) {
            Content::Gzip => {
                let sink = GzipSink {
                    entries: Entries::new(memory),
                    spans: GzipSpans::new(self.span_size),
                    hashes: SpanHashes::default(),
                    slices: GzipSlices::new(kept),
                    blob: 0,
                    plain: 0,
                    fault: None,
                };
                Body::Gzip(Box::default(), Box::new(sink))
            }
            Content::Foreign("zstd") if !is_tar => {
                Body::Zstd(Box::new(ZstdReader::new()?), plain(self.whole_span_size, kept, memory))
            }
            Content::Foreign(name) if !is_tar => return Err(Fault::Compression(name)),
            Content::Foreign(_) | Content::Plain => {
                Body::Plain(plain(self.span_size, kept.filter(|_| !self.is_near), memory))
            }
        };
        self.body.push(&head, self.size, &mut self.hasher)
    }
}

impl Body {
    /// Takes the next bytes of the blob, up to its byte `blob`; `hasher` gets them too.
    fn push(&mut self, chunk: &[u8], blob: u64, hasher: &mut Hasher) -> Result<(), Fault> {
        if !matches!(self, Body::Gzip(..)) {
            hasher.update(chunk);
        }
        match self {
            Body::Unknown(_) => Ok(()),
            Body::Gzip(reader, sink) => {
                sink.blob = blob;
                reader.push(chunk, &mut **sink).map_err(LayerError::from)?;
                sink.hashes.push(chunk, &mut &sink.spans.starts()[..], hasher);
                sink.slices.keep(&sink.spans.list, &sink.hashes.digests, sink.plain);
                sink.fault.take().map_or(Ok(()), Err)
            }
            Body::Plain(body) => body.push(chunk, blob),
            Body::Zstd(reader, body) => reader.push(chunk, &mut |plain| body.push(plain, blob)),
        }
    }

    fn finish(self, span_size: u64, whole_span_size: u64, size: u64) -> Result<Indexed, Fault> {
        let build = |files, checkpoints, span_digests, compressed, plain, notes, is_whole, memory| {
            let ztoc = ztoc_of(files, checkpoints, span_digests, Compressed(compressed), Uncompressed(plain))?;
            Ok(Indexed { ztoc, notes, is_whole, memory })
        };
        match self {
            Body::Unknown(_) => Err(Fault::TooLarge), // `tell` was called
            Body::Gzip(reader, sink) => {
                let GzipSink { entries, spans, hashes, mut slices, plain, .. } = *sink;
                let end = reader.finish().map_err(LayerError::from)?;
                let (files, mut notes, memory) = entries.finish()?;
                if let Some(from) = end.trailing {
                    notes.warn(format!("bytes that are not gzip follow its last member, from byte {from} on"));
                }
                let (list, digests) = (spans.list, hashes.finish());
                slices.keep(&list, &digests, plain);
                build(files, Checkpoints::Gzip { span_size, list }, digests, size, plain, notes, false, memory)
            }
            Body::Plain(body) => {
                let (files, notes, memory) = body.entries.finish()?;
                let checkpoints = Checkpoints::Uncompressed { span_size, size };
                build(files, checkpoints, body.slices.finish(), size, size, notes, false, memory)
            }
            Body::Zstd(reader, body) => {
                reader.finish()?;
                let (files, notes, memory) = body.entries.finish()?;
                let size = body.size;
                let checkpoints = Checkpoints::Uncompressed { span_size: whole_span_size, size };
                build(files, checkpoints, body.slices.finish(), size, size, notes, true, memory)
            }
        }
    }
}

impl PlainBody {
    fn push(&mut self, bytes: &[u8], blob: u64) -> Result<(), Fault> {
        self.entries.push(bytes, blob)??;
        self.slices.push(bytes);
        self.size += bytes.len() as u64;
        Ok(())
    }
}

impl Sink for GzipSink {
    fn output(&mut self, bytes: &[u8]) {
        self.plain += bytes.len() as u64;
        if self.fault.is_none() {
            self.slices.push(bytes);
            self.fault = match self.entries.push(bytes, self.blob) {
                Ok(Ok(())) => None,
                Ok(Err(too_many)) => Some(too_many.into()),
                Err(error) => Some(error.into()),
            };
        }
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        if self.fault.is_some() {
            return;
        }
        let before = self.spans.list.len();
        self.spans.block_start(at);
        let spans = self.spans.list.len();
        if spans * CHECKPOINT > MAX_ENCODED {
            self.fault = Some(Fault::TooLarge);
        } else if spans > before {
            self.fault = self.entries.charge_span(CHECKPOINT).err().map(|over| LayerError::from(over).into());
        }
    }
}

fn ztoc_of(
    files: Vec<FileMetadata>,
    checkpoints: Checkpoints,
    span_digests: Vec<Digest>,
    compressed_size: Compressed,
    uncompressed_size: Uncompressed,
) -> Result<Ztoc, Fault> {
    if ztoc::encoded_size_bound(&files, &checkpoints) > MAX_ENCODED {
        return Err(Fault::TooLarge);
    }
    Ok(Ztoc {
        version: VERSION.into(),
        build_tool_identifier: Box::default(),
        compressed_size,
        uncompressed_size,
        files,
        checkpoints,
        span_digests,
    })
}
