//! Blocks of zstd frames: where decoding can resume, and resuming there.
//!
//! Invariants under test: blocks that libzstd decodes are read, to the same sizes, however the
//! input is cut; from every border, with nothing but the bytes that are referred to, the rest
//! decodes to the same bytes, and ends in the state of the next border; a state that is wrong gives
//! an error or other bytes, within bounds.

use std::cell::RefCell;
use std::io;
use std::sync::LazyLock;

use ociseek_format::codec::ZstdReader;
use ociseek_format::internals::{
    ZstdBlocks, ZstdBorder, ZstdDictionary, ZstdReference, ZstdResumed, ZstdSink, ZstdState,
    zstd_state_after,
};
use ociseek_format::offset::{Compressed, Uncompressed};
use zstd::zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd::zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective};

/// The most borders of an input that are resumed at.
const BORDERS: usize = 16;

/// A border, and what the output up to the next one refers to.
#[derive(Debug, Clone, PartialEq)]
struct Border {
    input: usize,
    output: usize,
    state: Option<ZstdState>,
    references: Vec<ZstdReference>,
}

#[derive(Default, PartialEq)]
struct Borders {
    list: Vec<Border>,
    /// The size of what the blocks decode to.
    size: u64,
}

impl ZstdSink for Borders {
    fn block_start(&mut self, at: ZstdBorder<'_>) {
        let input = at.input.0 as usize;
        let output = at.output.0 as usize;
        self.list.push(Border { input, output, state: at.state(), references: Vec::new() });
    }

    fn since(&self) -> Option<Uncompressed> {
        self.list.last().map(|last| Uncompressed(last.output as u64))
    }

    fn references(&mut self, references: &[ZstdReference]) {
        self.list
            .last_mut()
            .expect("they are wanted since a border")
            .references
            .extend_from_slice(references);
    }
}

/// The borders of whole frames. None if the blocks are not valid, or not complete.
fn scanned<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<Borders> {
    let mut blocks = ZstdBlocks::new(Compressed(0), Uncompressed(0));
    let mut sink = Borders::default();
    for piece in pieces {
        blocks.push(piece, &mut sink).ok()?;
    }
    sink.size = blocks.output().0;
    (!blocks.is_inside()).then_some(sink)
}

/// Pushes the bytes to a decoder, with a limit.
macro_rules! decoded {
    ($reader:expr, $bytes:expr, $most:expr) => {{
        let mut plain = Vec::new();
        let pushed = $reader.push($bytes, &mut |bytes: &[u8]| {
            plain.extend_from_slice(bytes);
            let fits = plain.len() as u64 <= $most;
            fits.then_some(()).ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))
        });
        pushed.map(|()| plain)
    }};
}

/// Both the input as frames, and a frame of the input.
pub fn scan<'a>(data: &'a [u8], pieces: impl Iterator<Item = &'a [u8]>, most: u64) {
    let whole = scanned(std::iter::once(data));
    assert!(whole == scanned(pieces), "the pieces matter");
    let mut reader = ZstdReader::new().expect("there is memory");
    let plain = decoded!(reader, data, most);
    if let Ok(plain) = plain
        && reader.finish().is_ok()
    {
        resume_all(data, &plain, &whole.expect("libzstd has decoded it"));
    }
    let frame = encoded(data);
    let found = scanned(frame.chunks(1 + data.len() % 5000)).expect("libzstd has written it");
    resume_all(&frame, data, &found);
}

/// A frame of the data with many blocks, and parameters that depend on the data's first bytes.
/// libzstd is told the size, so it takes tables that fit: clearing those for data of any size took
/// nine tenths of the time.
fn encoded(data: &[u8]) -> Vec<u8> {
    thread_local!(static CONTEXT: RefCell<CCtx<'static>> = RefCell::new(CCtx::create()));
    let [first, second] = [0, 1].map(|at| data.get(at).copied().unwrap_or(0));
    let parameters = [
        CParameter::CompressionLevel(i32::from(first % 7)),
        // Without it, the frame states its window, as one that is written piece by piece.
        CParameter::ContentSizeFlag(first & 8 == 0),
        CParameter::ChecksumFlag(first & 16 == 0),
    ];
    CONTEXT.with_borrow_mut(|context| {
        let known = "libzstd knows it";
        context.reset(ResetDirective::SessionAndParameters).expect(known);
        for parameter in parameters {
            context.set_parameter(parameter).expect(known);
        }
        context.set_pledged_src_size(Some(data.len() as u64)).expect(known);
        // A block has at least three bytes that are not its content.
        let room = 2 * zstd::zstd_safe::compress_bound(data.len());
        let mut frame = Vec::with_capacity(room);
        let mut output = OutBuffer::around(&mut frame);
        let step = 8 << (second % 16);
        let pieces = data.chunks(step).map(|piece| (piece, ZSTD_EndDirective::ZSTD_e_flush));
        for (piece, how) in pieces.chain([(&[][..], ZSTD_EndDirective::ZSTD_e_end)]) {
            let mut input = InBuffer::around(piece);
            let left =
                context.compress_stream2(&mut output, &mut input, how).expect("there is memory");
            assert_eq!(left, 0, "there is room");
        }
        frame
    })
}

fn resume_all(blob: &[u8], whole: &[u8], found: &Borders) {
    assert!(found.size == whole.len() as u64, "libzstd decodes other bytes");
    for (number, at) in found.list.iter().enumerate().take(BORDERS) {
        let next = found.list.get(number + 1);
        if let Some(next) = next {
            let bytes = &blob[at.input..next.input];
            let (lead, rest) = bytes.split_at(bytes.len().min(at.input % 65));
            let after = zstd_state_after(at.state.as_ref(), lead, rest);
            assert!(after.as_ref() == Some(&next.state), "the state after {}", at.input);
        }
        let Some(state) = &at.state else { continue };
        let (input, output) =
            next.map_or((blob.len(), whole.len()), |next| (next.input, next.output));
        let reach = state.reach().expect("it is our own") as usize;
        let far = at.references.iter().map(|reference| reference.back as usize).max();
        let length = reach.max(far.unwrap_or(0));
        for fill in [0, 0xff] {
            let (mut bytes, start) = state.dictionary(length, fill);
            for ZstdReference { back, length: size } in &at.references {
                let back = *back as usize;
                let size = *size as usize;
                let from = at.output - back;
                let to = start + length - back;
                bytes[to..to + size].copy_from_slice(&whole[from..from + size]);
            }
            let dictionary = ZstdDictionary::new(&bytes).expect("it is our own");
            let wanted = (output - at.output) as u64;
            let mut reader = ZstdResumed::new(state, &dictionary, wanted).expect("there is memory");
            let plain =
                decoded!(reader, &blob[at.input..input], u64::MAX).expect("it was accepted");
            assert!(plain == whole[at.output..output], "from the border at {} on", at.input);
        }
    }
}

/// A state inside a frame, and the blocks after it.
static SOUND: LazyLock<(ZstdState, Vec<u8>)> = LazyLock::new(|| {
    let words: Vec<u8> =
        (0..60_000u32).flat_map(|n| (n.wrapping_mul(n) / 77 % 5000).to_le_bytes()).collect();
    let frame = zstd::encode_all(&words[..], 3).expect("there is memory");
    let found = scanned(std::iter::once(&frame[..])).expect("libzstd has written it");
    let last = found.list.last().expect("it has several blocks");
    (last.state.clone().expect("it is inside the frame"), frame[last.input..].to_vec())
});

/// A state and blocks with changes of four bytes each: two for the position, one for the operation,
/// and one for the value. The first two bytes are the window and the size of the content.
pub fn resume(data: &[u8], most: u64) {
    let [window, content, rest @ ..] = data else { return };
    let (mut state, mut blocks) = SOUND.clone();
    let mut tables = state.tables.to_vec();
    for &[low, high, how, value] in rest.as_chunks().0 {
        let target = if how & 8 == 0 { &mut tables } else { &mut blocks };
        let at = usize::from(u16::from_le_bytes([low, high])) % target.len().max(1);
        match how % 8 {
            0 => target.truncate(at),
            1 => target.insert(at, value),
            2 if at < target.len() => drop(target.remove(at)),
            3 if at < target.len() => target[at] = value,
            _ if at < target.len() => target[at] ^= 1 << (value % 8),
            _ => {}
        }
    }
    state = ZstdState { window: *window, has_checksum: content & 1 == 1, tables: tables.into() };
    let Some(reach) = state.reach() else { return };
    let length = if content & 2 == 0 { reach } else { u64::from(*content) << 12 };
    if length > ZstdState::MAX_WINDOW {
        return;
    }
    let (bytes, _) = state.dictionary(length as usize, 0);
    let Ok(dictionary) = ZstdDictionary::new(&bytes) else { return };
    let mut reader = ZstdResumed::new(&state, &dictionary, 1 << 20).expect("there is memory");
    let plain = decoded!(reader, &blocks, most);
    let input = Compressed(0);
    let output = Uncompressed(0);
    let mut read = ZstdBlocks::resume(&state, input, output).expect("the state is valid");
    let found = read.push(&blocks, &mut Borders::default());
    if let Ok(plain) = plain {
        // Of a raw block that is cut, libzstd decodes a part.
        found.expect("libzstd has decoded it");
        let size = read.output().0;
        let rest = plain.len() as u64;
        assert!(
            if read.is_inside() { size <= rest } else { size == rest },
            "libzstd decodes other bytes"
        );
    }
}
