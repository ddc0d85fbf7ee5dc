//! Stretches of a gzip blob, decoded on other threads before the reader gets there.
//!
//! A member does not depend on the data before it. Tools that write many members (bgzip, mgzip,
//! eStargz) always write the same header, so a blob's first header shows where others may start. A
//! block needs a window, which the checkpoint of a ztoc provides. Both are guesses: only when the
//! reader reaches that place is it known whether a member or block really starts there, and until
//! then the result of a stretch is not used.

use memchr::memmem;

use super::WINDOW;
use super::gzip::{BlockStart, GzipReader, Sink};
use super::inflate::BackReference;
use super::sniff::{self, Format};
use crate::offset::{Compressed, Uncompressed};

/// A gzip header without its optional fields (RFC 1952, section 2.3.1).
const HEADER: usize = 10;
/// Compressed bytes decoded before the output is checked; the output is at most 1,032 times as
/// large.
const STEP: usize = 4 << 10;

/// Finds where further members of a blob may start.
#[derive(Debug, Clone)]
pub struct MemberFinder {
    /// Magic, method and flags.
    start: memmem::Finder<'static>,
    /// XFL and OS. The time between may differ between members.
    end: [u8; 2],
}

impl MemberFinder {
    /// Searches for headers like the first one of `blob`. None if that one is incomplete.
    pub fn like(blob: &[u8]) -> Option<MemberFinder> {
        let &[id1, id2, method, flags, _, _, _, _, xfl, os] = blob.first_chunk::<HEADER>()?;
        let is_gzip = sniff::format(blob) == Format::Gzip;
        let start = memmem::Finder::new(&[id1, id2, method, flags]).into_owned();
        is_gzip.then_some(MemberFinder { start, end: [xfl, os] })
    }

    /// The first position in `bytes`, from `from`, where a complete header may be.
    pub fn find(&self, bytes: &[u8], from: usize) -> Option<usize> {
        let searched = bytes.get(from..)?;
        let mut starts = self.start.find_iter(searched).map(|at| from + at);
        starts.find(|at| bytes.get(at + HEADER - 2..at + HEADER) == Some(&self.end))
    }
}

/// What a stretch is assumed to begin with.
#[derive(Debug, Clone)]
pub enum StretchStart {
    /// The header of a gzip member: nothing before it matters.
    Member,
    /// A block inside a member, with its first bits in the high `bits` (0..=7) of the byte `before`
    /// it.
    Block {
        /// The number of bits (0 to 7) of the byte before the block that belong to it, counted from
        /// the top.
        bits: u8,
        /// That byte.
        before: u8,
        /// The plain bytes before the block, which it may refer to.
        window: Box<[u8; WINDOW]>,
    },
}

/// The result of decoding a stretch.
pub struct Stretch {
    /// Where in the blob it starts.
    at: Compressed,
    begin: StretchStart,
    /// The reader that decoded it and can continue after it. It counts output from the start of the
    /// stretch.
    reader: GzipReader,
    decoded: Output,
    /// The number of bytes decoded: all of them, unless the output grew too large.
    taken: usize,
    /// No member starts there, or it is damaged.
    is_broken: bool,
}

crate::opaque_debug!(Stretch);

#[derive(Default)]
struct Output {
    plain: Vec<u8>,
    starts: Vec<Start>,
    /// Which of the blocks the reader's sink will ask for is not known, so references to before any
    /// block are recorded. None if no sink will ask. Positions are counted in `plain`.
    references: Option<Vec<BackReference>>,
}

struct Start {
    input: Compressed,
    output: usize,
    bits: u8,
}

impl Output {
    fn size(&self) -> usize {
        let references =
            self.references.as_ref().map_or(0, |references| size_of_val(&references[..]));
        self.plain.len() + self.starts.len() * size_of::<Start>() + references
    }
}

impl Sink for Output {
    fn output(&mut self, bytes: &[u8]) {
        self.plain.extend_from_slice(bytes);
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        self.starts.push(Start { input: at.input, output: self.plain.len(), bits: at.bits });
    }

    fn wants_references(&self) -> bool {
        self.references.is_some()
    }

    fn references(&mut self, base: Uncompressed, references: &[BackReference]) {
        let moved = |reference: &BackReference| BackReference {
            to: reference.to + base.0 as u32,
            ..*reference
        };
        self.references.iter_mut().for_each(|all| all.extend(references.iter().map(moved)));
    }
}

impl Default for Stretch {
    /// A stretch that cannot be used.
    fn default() -> Stretch {
        let reader = GzipReader::new();
        Stretch {
            at: Compressed(0),
            begin: StretchStart::Member,
            reader,
            decoded: Output::default(),
            taken: 0,
            is_broken: true,
        }
    }
}

impl Stretch {
    /// Decodes `chunks`, found at `at` in a blob, on the assumption that they begin as given. Stops
    /// when the output exceeds `limit` bytes, by at most 4 MiB. The output replaces the content of
    /// `plain`. `is_tracking` says whether a sink may want references.
    pub fn decode<C: AsRef<[u8]>>(
        at: Compressed,
        begin: StretchStart,
        chunks: &[C],
        mut plain: Vec<u8>,
        limit: usize,
        is_tracking: bool,
    ) -> Stretch {
        plain.clear();
        let decoded = Output { plain, starts: Vec::new(), references: is_tracking.then(Vec::new) };
        let reader = match &begin {
            StretchStart::Member => GzipReader::at_member(at),
            StretchStart::Block { bits, before, window } => {
                let block = BlockStart { input: at, output: Uncompressed(0), bits: *bits, window };
                let mut reader = GzipReader::resume(block, *before);
                if is_tracking {
                    reader.track();
                }
                reader
            }
        };
        let mut stretch = Stretch { at, begin, reader, decoded, taken: 0, is_broken: false };
        for step in chunks.iter().flat_map(|chunk| chunk.as_ref().chunks(STEP)) {
            stretch.is_broken = stretch.reader.push(step, &mut stretch.decoded).is_err();
            if stretch.is_broken {
                break;
            }
            stretch.taken += step.len();
            if stretch.decoded.size() > limit {
                break;
            }
        }
        stretch
    }

    /// Moves `reader` to the end of this stretch, as if it had decoded it into `sink` itself. This
    /// works if the reader is at the start of the stretch and the guess was right. Returns how many
    /// bytes it can skip: 0 if the guess was wrong.
    pub fn hand_over(self, reader: &mut GzipReader, sink: &mut impl Sink) -> Handover {
        let Stretch { at, begin, reader: ahead, decoded, taken, is_broken } = self;
        let Output { plain, starts, references } = decoded;
        let was_right = match &begin {
            StretchStart::Member => reader.is_between_members(at),
            StretchStart::Block { bits, window, .. } => {
                reader.is_at_block(at, *bits)
                    && reader.window() == &**window
                    && reader.is_continued_by(&ahead)
            }
        };
        if is_broken || !was_right {
            return Handover { taken: 0, plain };
        }
        let mut passed = 0;
        let base = reader.output();
        let references = references.unwrap_or_default();
        let mut references = &references[..];
        let mut pass_on =
            |sink: &mut _, end: usize| pass_references(sink, base, &mut references, end);
        let mut joined = [0; WINDOW];
        for Start { input, output, bits } in starts {
            sink.output(&plain[passed..output]);
            pass_on(sink, output);
            passed = output;
            let window = match plain[..output].last_chunk() {
                Some(window) => window,
                None => {
                    joined[..WINDOW - output].copy_from_slice(&reader.window()[output..]);
                    joined[WINDOW - output..].copy_from_slice(&plain[..output]);
                    &joined
                }
            };
            sink.block_start(BlockStart {
                input,
                output: Uncompressed(base.0 + output as u64),
                bits,
                window,
            });
        }
        sink.output(&plain[passed..]);
        pass_on(sink, plain.len());
        reader.go_on_as(ahead, &plain);
        Handover { taken, plain }
    }

    /// Hands nothing over.
    pub fn give_up(self) -> Handover {
        Handover { taken: 0, plain: self.decoded.plain }
    }
}

/// Passes on those of `references` that begin before `end`, and removes them.
fn pass_references(
    sink: &mut impl Sink,
    base: Uncompressed,
    references: &mut &[BackReference],
    end: usize,
) {
    let (now, later) =
        references.split_at(references.partition_point(|reference| (reference.to as usize) < end));
    if !now.is_empty() {
        sink.references(base, now);
    }
    *references = later;
}

/// How handing over a [`Stretch`] went.
pub struct Handover {
    /// Bytes from its start that the blob's reader has now read. Push the ones after them.
    pub taken: usize,
    /// A buffer for decoding another stretch.
    pub plain: Vec<u8>,
}

crate::opaque_debug!(Handover);

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Two members of noise, with their offsets.
    fn blob() -> (Vec<u8>, usize) {
        let mut seed = 7u32;
        let mut plain: Vec<u8> = Vec::new();
        for _ in 0..300_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            plain.push((seed >> 26) as u8);
        }
        let member = |plain: &[u8]| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(plain).unwrap();
            encoder.finish().unwrap()
        };
        let first = member(&plain);
        (([&first[..], &member(&plain[1000..])].concat()), first.len())
    }

    /// Reads `blob` up to `at` and decodes the rest as a stretch. Returns how many bytes of the
    /// stretch were accepted, and the output.
    fn read(blob: &[u8], at: usize, begin: StretchStart) -> (usize, Output) {
        let mut reader = GzipReader::new();
        let mut decoded = Output::default();
        reader.push(&blob[..at], &mut decoded).unwrap();
        let stretch = Stretch::decode(
            Compressed(at as u64),
            begin,
            &[&blob[at..]],
            Vec::new(),
            usize::MAX,
            false,
        );
        let taken = stretch.hand_over(&mut reader, &mut decoded).taken;
        reader.push(&blob[at + taken..], &mut decoded).unwrap();
        assert_eq!(reader.finish().unwrap().members, 2);
        (taken, decoded)
    }

    /// The block starts of a blob, with their windows.
    fn blocks(blob: &[u8]) -> Vec<(usize, StretchStart)> {
        struct Blocks(Vec<(usize, StretchStart)>);
        impl Sink for Blocks {
            fn output(&mut self, _bytes: &[u8]) {}
            fn block_start(&mut self, at: BlockStart<'_>) {
                let (at, bits, window) = (at.input.0 as usize, at.bits, Box::new(*at.window));
                self.0.push((at, StretchStart::Block { bits, before: 0, window }));
            }
        }
        let mut blocks = Blocks(Vec::new());
        GzipReader::new().push(blob, &mut blocks).unwrap();
        let with_byte = |(at, begin): (usize, StretchStart)| match begin {
            StretchStart::Block { bits, window, .. } => {
                (at, StretchStart::Block { bits, before: blob[at - 1], window })
            }
            StretchStart::Member => (at, begin),
        };
        blocks.0.into_iter().map(with_byte).collect()
    }

    #[test]
    fn only_correct_guesses_are_used() {
        let (blob, border) = blob();
        let (taken, straight) = read(&blob, blob.len(), StretchStart::Member);
        assert_eq!(taken, 0);
        let same = |decoded: &Output| {
            decoded.plain == straight.plain && decoded.starts.len() == straight.starts.len()
        };

        let (taken, decoded) = read(&blob, border, StretchStart::Member);
        assert!(taken == blob.len() - border && same(&decoded));
        for wrong in [border - 1, border + 1, 100] {
            let (taken, decoded) = read(&blob, wrong, StretchStart::Member);
            assert!(taken == 0 && same(&decoded));
        }

        let blocks = blocks(&blob);
        assert!(blocks.len() > 8);
        for (number, ((at, begin), start)) in blocks.iter().zip(&straight.starts).enumerate() {
            let (taken, decoded) = read(&blob, *at, begin.clone());
            assert!(same(&decoded));
            // The first blocks of a member cannot refer to data before the member.
            let reaches = start.output % 300_000 >= WINDOW;
            assert_eq!(taken, if reaches { blob.len() - at } else { 0 });

            let StretchStart::Block { bits, before, window } = begin else { unreachable!() };
            let mut other = window.clone();
            other[number] ^= 1;
            let wrong = [
                (*at, StretchStart::Block { bits: *bits, before: *before, window: other }),
                (
                    *at,
                    StretchStart::Block { bits: bits ^ 1, before: *before, window: window.clone() },
                ),
                (*at + 1, begin.clone()),
                (*at, StretchStart::Member),
            ];
            for (at, begin) in wrong {
                let (taken, decoded) = read(&blob, at, begin);
                assert!(taken == 0 && same(&decoded));
            }
        }
    }

    #[test]
    fn a_stretch_stops_at_its_output_limit() {
        let (blob, border) = blob();
        let stretch = Stretch::decode(
            Compressed(0),
            StretchStart::Member,
            &[&blob[..]],
            Vec::new(),
            50_000,
            false,
        );
        let mut reader = GzipReader::new();
        let mut decoded = Output::default();
        let taken = stretch.hand_over(&mut reader, &mut decoded).taken;
        assert!(
            taken > 20_000 && taken < border && (50_000..60_000).contains(&decoded.plain.len())
        );
        reader.push(&blob[taken..], &mut decoded).unwrap();
        assert_eq!(reader.finish().unwrap().output, Uncompressed(599_000));
    }
}
