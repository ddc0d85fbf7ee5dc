//! Decodes a blob block by block, and tells where decoding can resume and which output is referred
//! to.

use std::io;

use super::ZstdReader;
use super::block::{BlockLayout, BlockPlace, MAX_BLOCK, Tables, ZstdReference};
use super::frame::FrameHead;
use super::resume::{ZstdDictionary, ZstdResumed, ZstdState, window_descriptor};
use crate::offset::{Compressed, Uncompressed};

/// The magic number of a frame.
const FRAME: [u8; 4] = *b"\x28\xb5\x2f\xfd";

/// Receives the output of a blob, in order.
pub trait ZstdSink {
    /// Why it takes no more.
    type Error: From<io::Error>;

    /// The next bytes of output.
    ///
    /// # Errors
    /// If it takes no more.
    fn output(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;

    /// Decoding can resume here, after the output so far.
    fn block_start(&mut self, at: ZstdBorder<'_>);

    /// The position in the output that references to the bytes before it are wanted of. None if
    /// none are wanted.
    fn since(&self) -> Option<Uncompressed>;

    /// References of the blocks that follow this position. Not called without any.
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

enum Decoder<'a> {
    Whole(ZstdReader),
    Resumed(ZstdResumed<'a>),
}

/// Decodes a blob pushed in chunks. Chunk boundaries do not matter.
pub struct ZstdScanner<'a> {
    decoder: Decoder<'a>,
    /// The start of a header or block that is not complete.
    pending: Vec<u8>,
    next: Next,
    frame: OpenFrame,
    tables: Tables,
    input: Compressed,
    output: Uncompressed,
    references: Vec<ZstdReference>,
}

crate::opaque_debug!(ZstdScanner<'_>);

impl<'a> ZstdScanner<'a> {
    /// Creates a scanner at the start of a blob.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub fn new() -> io::Result<ZstdScanner<'a>> {
        Ok(ZstdScanner::at(Decoder::Whole(ZstdReader::new()?), Compressed(0), Uncompressed(0)))
    }

    /// Creates a scanner at the start of a frame inside a blob.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub fn at_frame(input: Compressed, output: Uncompressed) -> io::Result<ZstdScanner<'a>> {
        Ok(ZstdScanner::at(Decoder::Whole(ZstdReader::new()?), input, output))
    }

    /// Creates a scanner at a block inside a frame. `wanted` is the size of the output that is
    /// wanted.
    ///
    /// # Errors
    /// If the state is not valid, or zstd cannot allocate memory.
    pub fn resume(
        state: &ZstdState,
        dictionary: &'a ZstdDictionary<'a>,
        input: Compressed,
        output: Uncompressed,
        wanted: u64,
    ) -> io::Result<ZstdScanner<'a>> {
        let decoder = Decoder::Resumed(ZstdResumed::new(state, dictionary, wanted)?);
        let tables = Tables::read(&state.tables);
        let tables = tables.ok_or_else(|| io::Error::other("the state of the zstd decoder is not valid"))?;
        let window = state.window_size();
        let frame = OpenFrame { window, has_checksum: state.has_checksum, start: None };
        Ok(ZstdScanner { next: Next::Block, frame, tables, ..ZstdScanner::at(decoder, input, output) })
    }

    fn at(decoder: Decoder<'a>, input: Compressed, output: Uncompressed) -> ZstdScanner<'a> {
        ZstdScanner {
            decoder,
            pending: Vec::new(),
            next: Next::Frame,
            frame: OpenFrame { window: 0, has_checksum: false, start: Some(output) },
            tables: Tables::default(),
            input,
            output,
            references: Vec::new(),
        }
    }

    /// Decodes the next bytes of the blob.
    ///
    /// # Errors
    /// If they are not valid, and errors of the sink.
    pub fn push<S: ZstdSink>(&mut self, mut chunk: &[u8], sink: &mut S) -> Result<(), S::Error> {
        loop {
            let is_whole = self.pending.is_empty();
            if is_whole && matches!(self.next, Next::Frame) && chunk.first() == Some(&FRAME[0]) {
                sink.block_start(ZstdBorder { input: self.input, output: self.output, frame: None });
            }
            let needed = self.needed(if is_whole { chunk } else { &self.pending })?;
            if is_whole && needed <= chunk.len() {
                let (unit, rest) = chunk.split_at(needed);
                chunk = rest;
                self.take(unit, sink)?;
                continue;
            }
            let (more, rest) = chunk.split_at(needed.saturating_sub(self.pending.len()).min(chunk.len()));
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

    /// Whether a frame, a skippable one or the end of the blob may follow.
    pub fn is_between_frames(&self) -> bool {
        matches!(self.next, Next::Frame) && self.pending.is_empty()
    }

    /// The output so far, counted from the start of the blob's.
    pub fn output(&self) -> Uncompressed {
        self.output
    }

    /// Call this at the end of the blob.
    ///
    /// # Errors
    /// If it ends inside a frame.
    pub fn finish(self) -> io::Result<()> {
        match self.decoder {
            Decoder::Whole(reader) if self.pending.is_empty() => reader.finish(),
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the zstd data is truncated inside a frame")),
        }
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
                // Anything else is left to libzstd to refuse.
                _ => 5,
            },
            Next::Block => match Block::read(bytes) {
                None => Block::HEADER,
                Some(block) if block.stored > MAX_BLOCK => {
                    return Err(self.broken("has a block that is too large"));
                }
                Some(block) => Block::HEADER + block.stored,
            },
            Next::Checksum => 4,
            Next::Skipped(left) => usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len()).max(1),
        })
    }

    /// Reads a header, block or checksum.
    fn take<S: ZstdSink>(&mut self, unit: &[u8], sink: &mut S) -> Result<(), S::Error> {
        match self.next {
            Next::Frame => {
                if let [0x50..=0x5f, 0x2a, 0x4d, 0x18, size @ ..] = unit {
                    let size = size.try_into().map_or(0, u32::from_le_bytes);
                    self.next = if size > 0 { Next::Skipped(size.into()) } else { Next::Frame };
                    return self.decode(unit, sink).map(drop);
                }
                let head = FrameHead::read(unit);
                self.frame = OpenFrame {
                    window: head.as_ref().map_or(0, |head| head.window),
                    has_checksum: head.is_some_and(|head| head.has_checksum),
                    start: Some(self.output),
                };
                self.tables = Tables::default();
                self.next = Next::Block;
                self.decode(unit, sink).map(drop)
            }
            Next::Block => self.block(unit, sink),
            Next::Checksum => {
                self.next = Next::Frame;
                self.decode(unit, sink).map(drop)
            }
            Next::Skipped(left) => {
                let left = left - (unit.len() as u64).min(left);
                self.next = if left > 0 { Next::Skipped(left) } else { Next::Frame };
                self.decode(unit, sink).map(drop)
            }
        }
    }

    fn block<S: ZstdSink>(&mut self, unit: &[u8], sink: &mut S) -> Result<(), S::Error> {
        let Some(block) = Block::read(unit) else { return Err(self.broken("has no block").into()) };
        let content = unit.get(Block::HEADER..).unwrap_or_default();
        let layout = match block.kind {
            2 => Some(BlockLayout::parse(content).ok_or_else(|| self.broken("has an invalid block"))?),
            _ => None,
        };
        self.next = match (block.is_last, self.frame.has_checksum) {
            (true, true) => Next::Checksum,
            (true, false) => Next::Frame,
            (false, _) => Next::Block,
        };
        let output = self.output;
        let size = self.decode(unit, sink)?;
        if let Some(layout) = layout {
            self.follow(&layout, output, size, sink)?;
        }
        // Here and not at the next block, so that nobody has to go back.
        if matches!(self.next, Next::Block) && self.tables.can_be_stated() {
            let frame = Some((&self.frame, &self.tables));
            sink.block_start(ZstdBorder { input: self.input, output: self.output, frame });
        }
        Ok(())
    }

    /// Reads what a block leaves for later ones. It was decoded to `size` bytes, from `output` on.
    fn follow<S: ZstdSink>(
        &mut self,
        layout: &BlockLayout<'_>,
        output: Uncompressed,
        size: u64,
        sink: &mut S,
    ) -> Result<(), S::Error> {
        let place = BlockPlace {
            before: self.frame.reach(output),
            window: self.frame.window,
            since: sink.since().map(|since| output - since),
        };
        self.references.clear();
        if self.tables.take(layout, place, &mut self.references) != Some(size) {
            return Err(self.broken("has a block that libzstd reads in another way").into());
        }
        if !self.references.is_empty() {
            sink.references(&self.references);
        }
        Ok(())
    }

    /// Decodes bytes, and returns how many they decode to.
    fn decode<S: ZstdSink>(&mut self, bytes: &[u8], sink: &mut S) -> Result<u64, S::Error> {
        let before = self.output;
        let output = &mut self.output;
        let mut take = |plain: &[u8]| {
            *output += plain.len() as u64;
            sink.output(plain)
        };
        match &mut self.decoder {
            Decoder::Whole(reader) => reader.push(bytes, &mut take)?,
            Decoder::Resumed(reader) => reader.push(bytes, &mut take)?,
        }
        self.input += bytes.len() as u64;
        Ok(self.output - before)
    }

    fn broken(&self, what: &str) -> io::Error {
        io::Error::other(format!("the zstd frame {what}, at byte {} of the blob", self.input))
    }
}

/// The header of a block (RFC 8878 section 3.1.1.2).
struct Block {
    is_last: bool,
    kind: u32,
    /// Bytes that follow the header.
    stored: usize,
}

impl Block {
    const HEADER: usize = 3;

    fn read(bytes: &[u8]) -> Option<Block> {
        let [low, middle, high, ..] = *bytes else { return None };
        let header = u32::from_le_bytes([low, middle, high, 0]);
        let (kind, size) = (header >> 1 & 3, (header >> 3) as usize);
        Some(Block { is_last: header & 1 == 1, kind, stored: if kind == 1 { 1 } else { size } })
    }
}
