//! Blocks of zstd frames: where decoding can resume, and resuming there.
//!
//! Invariants under test: what the scanner accepts is what libzstd makes of it, however the input
//! is cut; from every border, with nothing but the bytes that are referred to, the rest decodes to the
//! same bytes; a state that is wrong gives an error or other bytes, within bounds.

use std::io;
use std::sync::LazyLock;

use ociseek_format::codec::zstd::{
    ZstdBorder, ZstdDictionary, ZstdReader, ZstdReference, ZstdResumed, ZstdScanner, ZstdSink, ZstdState,
};
use ociseek_format::offset::{Compressed, Uncompressed};

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

struct Borders {
    plain: Vec<u8>,
    list: Vec<Border>,
    most: u64,
}

impl ZstdSink for Borders {
    type Error = io::Error;

    fn output(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.plain.extend_from_slice(bytes);
        let fits = self.plain.len() as u64 <= self.most;
        fits.then_some(()).ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    }

    fn block_start(&mut self, at: ZstdBorder<'_>) {
        assert_eq!(at.output.0, self.plain.len() as u64, "a block starts where the output is");
        let (input, output) = (at.input.0 as usize, self.plain.len());
        self.list.push(Border { input, output, state: at.state(), references: Vec::new() });
    }

    fn since(&self) -> Option<Uncompressed> {
        self.list.last().map(|last| Uncompressed(last.output as u64))
    }

    fn references(&mut self, references: &[ZstdReference]) {
        self.list.last_mut().expect("they are wanted since a border").references.extend_from_slice(references);
    }
}

fn scanned<'a>(pieces: impl Iterator<Item = &'a [u8]>, most: u64) -> Option<io::Result<Borders>> {
    let mut scanner = ZstdScanner::new().expect("there is memory");
    let mut sink = Borders { plain: Vec::new(), list: Vec::new(), most };
    for piece in pieces {
        match scanner.push(piece, &mut sink) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return None,
            Err(error) => return Some(Err(error)),
        }
    }
    Some(scanner.finish().map(|()| sink))
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
    let whole = scanned(std::iter::once(data), most);
    if let (Some(whole), Some(cut)) = (&whole, scanned(pieces, most)) {
        assert_eq!(whole.is_ok(), cut.is_ok());
        if let (Ok(whole), Ok(cut)) = (whole, cut) {
            assert!(whole.plain == cut.plain && whole.list == cut.list, "the pieces matter");
        }
    }
    if let Some(Ok(found)) = &whole {
        resume_all(data, found);
    }
    let level = i32::from(data.first().copied().unwrap_or(0) % 7);
    let frame = zstd::encode_all(data, level).expect("there is memory");
    let found = scanned(frame.chunks(1 + data.len() % 5000), u64::MAX).expect("there is no limit");
    let found = found.expect("libzstd has written it");
    assert!(found.plain == data);
    resume_all(&frame, &found);
}

fn resume_all(blob: &[u8], found: &Borders) {
    let own = decoded!(ZstdReader::new().expect("there is memory"), blob, u64::MAX).expect("it was accepted");
    assert!(own == found.plain, "libzstd reads other bytes");
    for (number, at) in found.list.iter().enumerate().take(BORDERS) {
        let Some(state) = &at.state else { continue };
        let next = found.list.get(number + 1);
        let (input, output) = next.map_or((blob.len(), found.plain.len()), |next| (next.input, next.output));
        let reach = state.reach().expect("it is our own") as usize;
        let far = at.references.iter().map(|reference| reference.back as usize).max();
        let length = reach.max(far.unwrap_or(0));
        for fill in [0, 0xff] {
            let (mut bytes, start) = state.dictionary(length, fill);
            for ZstdReference { back, length: size } in &at.references {
                let (back, size) = (*back as usize, *size as usize);
                let (from, to) = (at.output - back, start + length - back);
                bytes[to..to + size].copy_from_slice(&found.plain[from..from + size]);
            }
            let dictionary = ZstdDictionary::new(&bytes).expect("it is our own");
            let wanted = (output - at.output) as u64;
            let mut reader = ZstdResumed::new(state, &dictionary, wanted).expect("there is memory");
            let plain = decoded!(reader, &blob[at.input..input], u64::MAX).expect("it was accepted");
            assert!(plain == found.plain[at.output..output], "from the border at {} on", at.input);
        }
    }
}

/// A state inside a frame, and the blocks after it.
static SOUND: LazyLock<(ZstdState, Vec<u8>)> = LazyLock::new(|| {
    let words: Vec<u8> = (0..60_000u32).flat_map(|n| (n.wrapping_mul(n) / 77 % 5000).to_le_bytes()).collect();
    let frame = zstd::encode_all(&words[..], 3).expect("there is memory");
    let found = scanned(std::iter::once(&frame[..]), u64::MAX).expect("no limit").expect("libzstd has written it");
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
    let (input, output) = (Compressed(0), Uncompressed(0));
    let mut scanner = ZstdScanner::resume(&state, &dictionary, input, output, 1 << 20).expect("the state is valid");
    let mut sink = Borders { plain: Vec::new(), list: Vec::new(), most };
    // Of a block that is cut, libzstd reads more than the scanner does.
    if scanner.push(&blocks, &mut sink).is_ok() && scanner.is_between_frames() {
        assert!(plain.expect("the scanner takes less") == sink.plain, "the scanner reads other bytes");
    }
}
