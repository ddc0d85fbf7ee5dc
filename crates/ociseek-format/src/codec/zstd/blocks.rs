//! Reads the frames and blocks of a blob without decoding it: tells where decoding can resume and
//! which output is referred to. Only libzstd knows whether a blob is valid.

use std::io;

use super::block::{BlockLayout, BlockPlace, MAX_BLOCK, Tables};
use super::frame::FrameHead;
use super::resume::{ZstdState, window_descriptor};
use super::sequences::{SequenceDecoder, ZstdReference};
use crate::offset::{Compressed, Uncompressed};

/// The magic number of a frame.
const FRAME: [u8; 4] = *b"\x28\xb5\x2f\xfd";

/// Receives what is found in a blob, in order.
pub trait ZstdSink {
    /// Decoding can resume here.
    fn block_start(&mut self, at: ZstdBorder<'_>);

    /// A skippable frame of this size begins. Nothing that follows can refer to the output so far.
    fn skippable(&mut self, _at: Compressed, _output: Uncompressed, _size: u32) {}

    /// The position in the output that references to the bytes before it are wanted of. None if
    /// none are wanted.
    fn since(&self) -> Option<Uncompressed>;

    /// References of the block that follows this position. Not called without any.
    fn references(&mut self, references: &[ZstdReference]);
}

/// A place where decoding can resume.
#[derive(Clone, Copy)]
pub struct ZstdBorder<'a> {
    /// The first byte of the frame or block that starts here.
    pub input: Compressed,
    /// The size of the output before it.
    pub output: Uncompressed,
    /// None at the start of a frame.
    frame: Option<(&'a OpenFrame, &'a Tables)>,
}

crate::opaque_debug!(ZstdBorder<'_>);

impl ZstdBorder<'_> {
    /// The state of a decoder here. None at the start of a frame, which needs none.
    pub fn state(&self) -> Option<ZstdState> {
        self.frame.map(|(frame, tables)| ZstdState {
            window: window_descriptor(frame.window),
            has_checksum: frame.has_checksum,
            tables: tables.write(),
        })
    }

    /// How many bytes before this place can be referred to. 0 at the start of a frame.
    pub fn window(&self) -> u64 {
        self.frame.map_or(0, |(frame, _)| frame.reach(self.output))
    }

    /// How many bytes before this place the repeat offsets reach.
    pub fn reach(&self) -> u64 {
        self.frame.map_or(0, |(_, tables)| tables.reach().into())
    }
}

/// A frame that is being read.
struct OpenFrame {
    window: u64,
    has_checksum: bool,
    /// Where its output begins. None if its start was not read here.
    start: Option<Uncompressed>,
}

impl OpenFrame {
    /// How many bytes before `output` its blocks can refer to.
    fn reach(&self, output: Uncompressed) -> u64 {
        self.start.map_or(self.window, |start| self.window.min(output - start))
    }
}

enum Next {
    Frame,
    Block,
    Checksum,
    /// The rest of a skippable frame.
    Skipped(u64),
}

/// Reads a blob pushed in chunks. Chunk boundaries do not matter.
pub struct ZstdBlocks {
    /// The start of a header or block that is not complete.
    pending: Vec<u8>,
    next: Next,
    frame: OpenFrame,
    tables: Tables,
    decoder: SequenceDecoder,
    input: Compressed,
    output: Uncompressed,
}

crate::opaque_debug!(ZstdBlocks);

impl ZstdBlocks {
    /// Starts where a frame starts, or at the start of the blob.
    pub fn new(input: Compressed, output: Uncompressed) -> ZstdBlocks {
        ZstdBlocks {
            pending: Vec::new(),
            next: Next::Frame,
            frame: OpenFrame { window: 0, has_checksum: false, start: Some(output) },
            tables: Tables::default(),
            decoder: SequenceDecoder::new(),
            input,
            output,
        }
    }

    /// Starts at a block inside a frame. None if the state is not valid.
    pub fn resume(
        state: &ZstdState,
        input: Compressed,
        output: Uncompressed,
    ) -> Option<ZstdBlocks> {
        let tables = Tables::read(&state.tables)?;
        let frame = OpenFrame {
            window: state.window_size(),
            has_checksum: state.has_checksum,
            start: None,
        };
        Some(ZstdBlocks { next: Next::Block, frame, tables, ..ZstdBlocks::new(input, output) })
    }

    /// Reads the next bytes of the blob.
    ///
    /// # Errors
    /// If they are not valid, as far as that is checked here.
    pub fn push(&mut self, mut chunk: &[u8], sink: &mut impl ZstdSink) -> io::Result<()> {
        loop {
            let is_whole = self.pending.is_empty();
            if is_whole && matches!(self.next, Next::Frame) && chunk.first() == Some(&FRAME[0]) {
                sink.block_start(ZstdBorder {
                    input: self.input,
                    output: self.output,
                    frame: None,
                });
            }
            let needed = self.needed(if is_whole { chunk } else { &self.pending })?;
            if is_whole && needed <= chunk.len() {
                let (unit, rest) = chunk.split_at(needed);
                chunk = rest;
                self.take(unit, sink)?;
                continue;
            }
            let (more, rest) =
                chunk.split_at(needed.saturating_sub(self.pending.len()).min(chunk.len()));
            self.pending.extend_from_slice(more);
            chunk = rest;
            if self.pending.len() < needed {
                return Ok(());
            }
            if self.needed(&self.pending)? == needed {
                let mut unit = std::mem::take(&mut self.pending);
                self.take(&unit, sink)?;
                unit.clear();
                self.pending = unit;
            }
        }
    }

    /// Whether nothing that follows can refer to what precedes it.
    pub(crate) fn is_outside_frames(&self) -> bool {
        !matches!(self.next, Next::Block)
    }

    /// What follows can only refer to output from here on.
    pub(crate) fn referable(&self) -> Uncompressed {
        let reach = if self.is_outside_frames() { 0 } else { self.frame.reach(self.output) };
        Uncompressed(self.output.0.saturating_sub(reach))
    }

    /// The bytes of the blob so far, as far as they were read.
    pub fn input(&self) -> Compressed {
        self.input
    }

    /// The output of the blocks so far, counted from the start of the blob's.
    pub fn output(&self) -> Uncompressed {
        self.output
    }

    /// Whether the last block was not read yet, because a part of it is missing.
    pub fn is_inside(&self) -> bool {
        !self.pending.is_empty()
    }

    /// The size of what comes next, as far as that is known from its first bytes: at least one byte
    /// more than there are, or all of it.
    fn needed(&self, bytes: &[u8]) -> io::Result<usize> {
        /// The size of the header of a skippable frame.
        const SKIPPABLE: usize = 8;
        Ok(match self.next {
            Next::Frame => match bytes {
                [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => SKIPPABLE,
                [a, b, c, d, _, ..] if [*a, *b, *c, *d] == FRAME => {
                    FrameHead::read(bytes).map_or(bytes.len() + 1, |head| head.length)
                }
                [_, _, _, _, _, ..] => return Err(self.broken("has no magic number")),
                _ => 5,
            },
            Next::Block => match Block::read(bytes) {
                None => Block::HEADER,
                Some(block) if block.stored() > MAX_BLOCK => {
                    return Err(self.broken("has a block that is too large"));
                }
                Some(block) => Block::HEADER + block.stored(),
            },
            Next::Checksum => 4,
            Next::Skipped(left) => {
                usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len()).max(1)
            }
        })
    }

    /// Reads a header, block or checksum.
    fn take(&mut self, unit: &[u8], sink: &mut impl ZstdSink) -> io::Result<()> {
        let size = unit.len() as u64;
        match self.next {
            Next::Frame => {
                if let [0x50..=0x5f, 0x2a, 0x4d, 0x18, size @ ..] = unit {
                    let size = size.try_into().map_or(0, u32::from_le_bytes);
                    sink.skippable(self.input, self.output, size);
                    self.next = if size > 0 { Next::Skipped(size.into()) } else { Next::Frame };
                } else if let Some(FrameHead { window, has_checksum, .. }) = FrameHead::read(unit) {
                    self.frame = OpenFrame { window, has_checksum, start: Some(self.output) };
                    self.tables = Tables::default();
                    self.next = Next::Block;
                }
            }
            Next::Block => return self.block(unit, sink),
            Next::Checksum => self.next = Next::Frame,
            Next::Skipped(left) => {
                let left = left.saturating_sub(size);
                self.next = if left > 0 { Next::Skipped(left) } else { Next::Frame };
            }
        }
        self.input += size;
        Ok(())
    }

    fn block(&mut self, unit: &[u8], sink: &mut impl ZstdSink) -> io::Result<()> {
        let Some(block) = Block::read(unit) else { return Err(self.broken("has no block")) };
        self.next = match (block.is_last, self.frame.has_checksum) {
            (true, true) => Next::Checksum,
            (true, false) => Next::Frame,
            (false, _) => Next::Block,
        };
        let size = match block.kind {
            2 => {
                let read =
                    self.compressed(unit.get(Block::HEADER..).unwrap_or_default(), sink.since());
                let size = read.ok_or_else(|| self.broken("has an invalid block"))?;
                let references = self.decoder.references();
                if !references.is_empty() {
                    sink.references(references);
                }
                size
            }
            0 | 1 if block.size <= MAX_BLOCK => block.size as u64,
            _ => return Err(self.broken("has an invalid block")),
        };
        self.input += unit.len() as u64;
        self.output += size;
        // Here and not at the next block, so that nobody has to go back.
        if matches!(self.next, Next::Block) && self.tables.can_be_stated() {
            let frame = Some((&self.frame, &self.tables));
            sink.block_start(ZstdBorder { input: self.input, output: self.output, frame });
        }
        Ok(())
    }

    /// Reads a compressed block, and returns the size of what it decodes to.
    fn compressed(&mut self, content: &[u8], since: Option<Uncompressed>) -> Option<u64> {
        let place = BlockPlace {
            before: self.frame.reach(self.output),
            window: self.frame.window,
            since: since.map(|since| self.output - since),
        };
        let taken = self.tables.take(&BlockLayout::parse(content)?)?;
        self.decoder.read(&taken, &mut self.tables, place)
    }

    fn broken(&self, what: &str) -> io::Error {
        io::Error::other(format!("the zstd frame {what}, at byte {} of the blob", self.input))
    }
}

/// The header of a block (RFC 8878 section 3.1.1.2).
pub(super) struct Block {
    pub is_last: bool,
    /// 0 raw, 1 a repeated byte, 2 compressed.
    pub kind: u32,
    /// Bytes that follow the header. Of a repeated byte, how often it is repeated.
    size: usize,
}

impl Block {
    pub(super) const HEADER: usize = 3;

    pub(super) fn read(bytes: &[u8]) -> Option<Block> {
        let [low, middle, high, ..] = *bytes else { return None };
        let header = u32::from_le_bytes([low, middle, high, 0]);
        Some(Block {
            is_last: header & 1 == 1,
            kind: header >> 1 & 3,
            size: (header >> 3) as usize,
        })
    }

    /// Bytes that follow the header.
    pub(super) fn stored(&self) -> usize {
        if self.kind == 1 { 1 } else { self.size }
    }
}
