//! Where a decoder stands after some bytes, without reading all of their sequences.

use std::collections::VecDeque;

use super::block::{BlockLayout, BlockPlace, MAX_BLOCK, Sequences, Tables};
use super::blocks::{Block, ZstdBlocks, ZstdBorder, ZstdSink};
use super::frame::FrameHead;
use super::fse::TableSource;
use super::resume::{ZstdState, window_descriptor};
use super::sequences::{SequenceDecoder, ZstdReference};
use crate::offset::{Compressed, Uncompressed};

/// How many blocks are kept to find the repeat offsets. Three offsets follow from one block, unless
/// that has few sequences.
const KEPT: usize = 16;
/// Stands for repeat offsets that are not known. A sequence can subtract 1 from one; no offset is
/// that large.
const UNKNOWN: [u32; 3] = [u32::MAX, u32::MAX, u32::MAX];
const LEAST_UNKNOWN: u32 = 0xf000_0000;

/// The state of a decoder after the bytes of both parts, which begin with a block in the given
/// state, or with a frame. None if neither a frame nor a block starts after them, or no dictionary
/// can state what is needed there. The bytes must be valid. `lead` is copied, so it should be
/// short.
pub fn zstd_state_after(
    state: Option<&ZstdState>,
    lead: &[u8],
    rest: &[u8],
) -> Option<Option<ZstdState>> {
    /// No less than a block with its header and a checksum.
    const LONGEST: usize = MAX_BLOCK + 64;
    // What begins in the first part may end in the other.
    let joined = [lead, rest.get(..LONGEST).unwrap_or(rest)].concat();
    let mut skim = Skim {
        lead: lead.len(),
        joined: &joined,
        rest,
        at: 0,
        frame: None,
        blocks: VecDeque::new(),
        number: 0,
    };
    if let Some(ZstdState { window, has_checksum, tables }) = state {
        skim.frame = Some(Frame {
            window: *window,
            has_checksum: *has_checksum,
            tables: Tables::read(tables)?,
        });
    }
    while skim.at < lead.len() + rest.len() {
        skim.unit()?;
    }
    if skim.at > lead.len() + rest.len() {
        return None;
    }
    let Some(Frame { window, has_checksum, mut tables }) = skim.frame else { return Some(None) };
    if !tables.can_be_stated() {
        return None;
    }
    match repeats(&skim.blocks, skim.number, tables.repeats) {
        Some(repeats) => tables.repeats = repeats,
        None => return read_all(state, [lead, rest]).map(Some),
    }
    Some(Some(ZstdState { window, has_checksum, tables: tables.write() }))
}

struct Skim<'a> {
    /// The size of the first part, this part with what may belong to its end, and the second part.
    lead: usize,
    joined: &'a [u8],
    rest: &'a [u8],
    /// How many bytes were read.
    at: usize,
    /// None between frames.
    frame: Option<Frame>,
    /// The last blocks of the frame that have sequences.
    blocks: VecDeque<SkimmedBlock<'a>>,
    /// How many there were.
    number: usize,
}

/// A frame. The repeat offsets are those of its first block.
struct Frame {
    window: u8,
    has_checksum: bool,
    tables: Tables,
}

struct SkimmedBlock<'a> {
    sequences: Sequences<'a>,
    sources: [Option<TableSource>; 3],
}

impl Skim<'_> {
    /// Reads a header or a block, with what follows it. None if not all of it is there.
    fn unit(&mut self) -> Option<()> {
        const SKIPPABLE: usize = 8;
        let bytes = match self.at.checked_sub(self.lead) {
            Some(at) => self.rest.get(at..)?,
            None => self.joined.get(self.at..)?,
        };
        let Some(frame) = &mut self.frame else {
            if let [0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d, ..] = *bytes {
                self.at += SKIPPABLE + u32::from_le_bytes([a, b, c, d]) as usize;
                return Some(());
            }
            let head = FrameHead::read(bytes)?;
            self.at += head.length;
            let window = window_descriptor(head.window);
            let has_checksum = head.has_checksum;
            self.frame = Some(Frame { window, has_checksum, tables: Tables::default() });
            (self.blocks, self.number) = (VecDeque::new(), 0);
            return Some(());
        };
        let block = Block::read(bytes)?;
        let content = bytes.get(Block::HEADER..)?.get(..block.stored())?;
        self.at += Block::HEADER + content.len();
        if block.kind == 2
            && let Some(sequences) = frame.tables.take(&BlockLayout::parse(content)?)?.sequences
        {
            self.number += 1;
            if self.blocks.len() == KEPT {
                self.blocks.pop_front();
            }
            self.blocks.push_back(SkimmedBlock { sequences, sources: frame.tables.sources });
        }
        if block.is_last {
            self.at += if frame.has_checksum { 4 } else { 0 };
            self.frame = None;
        }
        Some(())
    }
}

/// The repeat offsets after the last one of `number` blocks, of which `blocks` are the last ones.
/// `first` are those before the first one. None if they cannot be found.
fn repeats(
    blocks: &VecDeque<SkimmedBlock<'_>>,
    number: usize,
    first: [u32; 3],
) -> Option<[u32; 3]> {
    let mut decoder = SequenceDecoder::new();
    let place = BlockPlace { before: 0, window: 0, since: None };
    let mut taken = 0;
    loop {
        taken = (taken * 2).clamp(1, blocks.len().max(1));
        let mut tables = Tables::default();
        tables.repeats = if taken >= number { first } else { UNKNOWN };
        for block in blocks.iter().skip(blocks.len().saturating_sub(taken)) {
            tables.sources = block.sources;
            decoder.decode(&block.sequences, &mut tables, place)?;
        }
        if taken >= number || tables.repeats.iter().all(|repeat| *repeat < LEAST_UNKNOWN) {
            return Some(tables.repeats);
        }
        if taken == blocks.len() {
            return None;
        }
    }
}

/// The same by reading all blocks.
fn read_all(state: Option<&ZstdState>, parts: [&[u8]; 2]) -> Option<ZstdState> {
    struct Last(Compressed, Option<ZstdState>);
    impl ZstdSink for Last {
        fn block_start(&mut self, at: ZstdBorder<'_>) {
            if at.input == self.0 {
                self.1 = at.state();
            }
        }

        fn since(&self) -> Option<Uncompressed> {
            None
        }

        fn references(&mut self, _references: &[ZstdReference]) {}
    }
    let input = Compressed(0);
    let output = Uncompressed(0);
    let mut blocks = match state {
        Some(state) => ZstdBlocks::resume(state, input, output)?,
        None => ZstdBlocks::new(input, output),
    };
    let mut last = Last(Compressed(parts.map(|part| part.len() as u64).iter().sum()), None);
    parts.iter().try_for_each(|part| blocks.push(part, &mut last)).ok()?;
    last.1
}
