//! Stretches of a gzip blob, decoded on other threads before the reader gets there.
//!
//! A member does not depend on the data before it. Tools that write many members (bgzip, mgzip,
//! eStargz) always write the same header, so a blob's first header shows where others may start. A
//! block needs a window, which the checkpoint of a ztoc provides. Without either, a block is looked
//! for, and decoded without its window. All are guesses: only when the reader reaches that place is
//! it known whether a member or block really starts there, and until then the result of a stretch
//! is not used.

use memchr::memmem;

use super::WINDOW;
use super::block_finder;
use super::gzip::{BlockStart, GzipReader, Sink, window_after};
use super::inflate::{BackReference, Inflate};
use super::sniff::{self, Format};
use super::two_windows::{WINDOWS, resolve};
use crate::offset::{Compressed, Uncompressed};

/// A gzip header without its optional fields (RFC 1952, section 2.3.1).
const HEADER: usize = 10;
/// Compressed bytes decoded before the output is checked; the output is at most 1,032 times as
/// large.
const STEP: usize = 4 << 10;
/// The first bytes of what may be a block, which show nearly always if it is none.
const TRIED: usize = 1 << 10;
/// How many guesses are tried. Compressed data of this size has some 200.
const TRIES: usize = 1000;
/// How many bytes are searched for a block. zlib's blocks have 60 KiB at most, others seldom more.
const SEARCHED: usize = 128 << 10;

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
    /// Somewhere inside a member. Where the next block starts is not known, and neither is its
    /// window.
    Unknown,
}

/// The result of decoding a stretch.
pub struct Stretch {
    /// Where in the blob it starts.
    at: Compressed,
    /// Bytes before that which belong to no block that was found. The scan decodes them.
    lead: usize,
    begin: Begin,
    /// The reader that decoded it and can continue after it. It counts output from the start of the
    /// stretch.
    reader: GzipReader,
    decoded: Output,
    /// The number of bytes decoded: all of them, unless the output grew too large.
    taken: usize,
    /// No member or block starts there, or it is damaged.
    is_broken: bool,
}

crate::opaque_debug!(Stretch);

/// What the decoded part of a stretch begins with.
enum Begin {
    Member,
    Block {
        bits: u8,
        window: Box<[u8; WINDOW]>,
    },
    /// Decoded with the first of [`WINDOWS`].
    WithoutWindow {
        bits: u8,
        /// What the second one gives, until both give the same.
        other: Vec<u8>,
    },
}

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
        Stretch::unusable(Vec::new())
    }
}

impl Stretch {
    fn unusable(plain: Vec<u8>) -> Stretch {
        Stretch {
            at: Compressed(0),
            lead: 0,
            begin: Begin::Member,
            reader: GzipReader::new(),
            decoded: Output { plain, ..Output::default() },
            taken: 0,
            is_broken: true,
        }
    }

    /// Decodes `chunks`, found at `at` in a blob, on the assumption that they begin as given. Stops
    /// when the output exceeds `limit` bytes, by at most 4 MiB, or 8 MiB if it is decoded twice
    /// because its start is unknown. The output replaces the content of `plain`. `is_tracking` says
    /// whether a sink may want references.
    pub fn decode<C: AsRef<[u8]>>(
        at: Compressed,
        begin: StretchStart,
        chunks: &[C],
        mut plain: Vec<u8>,
        limit: usize,
        is_tracking: bool,
    ) -> Stretch {
        plain.clear();
        let (begin, reader) = match begin {
            StretchStart::Member => (Begin::Member, GzipReader::at_member(at)),
            StretchStart::Block { bits, before, window } => {
                let reader = resumed(at, bits, before, &window);
                (Begin::Block { bits, window }, reader)
            }
            StretchStart::Unknown => {
                return Stretch::search(at, chunks, plain, limit, is_tracking);
            }
        };
        let mut stretch = Stretch::begin(at, begin, reader, plain, is_tracking);
        for step in steps(chunks, 0) {
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

    fn begin(
        at: Compressed,
        begin: Begin,
        mut reader: GzipReader,
        plain: Vec<u8>,
        is_tracking: bool,
    ) -> Stretch {
        if is_tracking && !matches!(begin, Begin::Member) {
            reader.track();
        }
        let decoded = Output { plain, starts: Vec::new(), references: is_tracking.then(Vec::new) };
        Stretch { at, lead: 0, begin, reader, decoded, taken: 0, is_broken: false }
    }

    /// Decodes from the first block that can be found in `chunks`.
    fn search<C: AsRef<[u8]>>(
        at: Compressed,
        chunks: &[C],
        mut plain: Vec<u8>,
        limit: usize,
        is_tracking: bool,
    ) -> Stretch {
        let mut searched = Vec::with_capacity(SEARCHED);
        for chunk in chunks {
            let left = SEARCHED - searched.len();
            searched.extend_from_slice(&chunk.as_ref()[..chunk.as_ref().len().min(left)]);
        }
        let mut trial = Inflate::new();
        // A block that starts with the first byte of the stretch may have begun before it.
        for bit in block_finder::blocks(&searched, 8).take(TRIES) {
            let (lead, bits) = (bit.div_ceil(8), (bit.wrapping_neg() % 8) as u8);
            let tried = &searched[lead..];
            if !trial.may_start(bits, searched[lead - 1], &tried[..tried.len().min(TRIED)]) {
                continue;
            }
            let stretch = Stretch::without_window(
                at + lead as u64,
                (bits, searched[lead - 1]),
                steps(chunks, lead),
                plain,
                limit,
                is_tracking,
            );
            // What decodes for long is a block.
            if !stretch.is_broken || stretch.taken > 0 {
                return Stretch { lead, ..stretch };
            }
            plain = stretch.decoded.plain;
            plain.clear();
        }
        Stretch::unusable(plain)
    }

    /// Decodes from a block whose first bits are the high ones of a byte before it: their number,
    /// and that byte.
    fn without_window<'a>(
        at: Compressed,
        (bits, before): (u8, u8),
        steps: impl Iterator<Item = &'a [u8]>,
        plain: Vec<u8>,
        limit: usize,
        is_tracking: bool,
    ) -> Stretch {
        let [reader, twin] = WINDOWS.each_ref().map(|window| resumed(at, bits, before, window));
        let begin = Begin::WithoutWindow { bits, other: Vec::new() };
        let mut stretch = Stretch::begin(at, begin, reader, plain, is_tracking);
        let mut twin = Some((twin, Output::default()));
        let mut other = Vec::new();
        for step in steps {
            stretch.is_broken = stretch.reader.push(step, &mut stretch.decoded).is_err();
            if let Some((reader, decoded)) = &mut twin {
                // Of a member that ends here the checksum is not known.
                stretch.is_broken |=
                    reader.push(step, decoded).is_err() || reader.has_ended_member();
                if reader.window() == stretch.reader.window() {
                    other = std::mem::take(&mut decoded.plain);
                    twin = None;
                    stretch.reader.count_from_here();
                }
            }
            if stretch.is_broken {
                break;
            }
            stretch.taken += step.len();
            let twins = twin.as_ref().map_or(&other, |(_, decoded)| &decoded.plain);
            if stretch.decoded.size() + twins.len() > limit {
                break;
            }
        }
        if let Some((_, decoded)) = twin {
            other = decoded.plain;
            stretch.reader.count_from_here();
        }
        Stretch { begin: Begin::WithoutWindow { bits, other }, ..stretch }
    }

    /// How many bytes of the chunks the reader must decode before it can take over this stretch.
    pub fn lead(&self) -> usize {
        self.lead
    }

    /// Moves `reader` to the end of this stretch, as if it had decoded it into `sink` itself. This
    /// works if the reader is at the start of the stretch, after [`Stretch::lead`], and the guess
    /// was right. Returns how many bytes it can skip: 0 if the guess was wrong.
    pub fn hand_over(self, reader: &mut GzipReader, sink: &mut impl Sink) -> Handover {
        let Stretch { at, begin, reader: ahead, decoded, taken, is_broken, .. } = self;
        let Output { mut plain, starts, references } = decoded;
        let mut has_window = plain.len() >= WINDOW;
        let was_right = !is_broken
            && match &begin {
                Begin::Member => reader.is_between_members(at),
                Begin::Block { bits, window } => {
                    reader.is_at_block(at, *bits)
                        && reader.window() == &**window
                        && reader.is_continued_by(&ahead)
                }
                Begin::WithoutWindow { bits, other } => {
                    reader.is_at_block(at, *bits) && {
                        // Until its end both windows gave something else.
                        has_window &= other.len() < plain.len();
                        resolve(&mut plain, other, reader.window());
                        let before = reader.count(&plain[..other.len()]);
                        let is_continued = reader.is_continued_by(&ahead);
                        if !is_continued {
                            reader.count_back(before);
                        }
                        is_continued
                    }
                }
            };
        if !was_right {
            return Handover { taken: 0, plain };
        }
        let mut passed = 0;
        let base = reader.output();
        let references = references.unwrap_or_default();
        let mut references = &references[..];
        let mut pass_on =
            |sink: &mut _, end: usize| pass_references(sink, base, &mut references, end);
        for Start { input, output, bits } in starts {
            sink.output(&plain[passed..output]);
            pass_on(sink, output);
            passed = output;
            let joined;
            let window = match plain[..output].last_chunk() {
                Some(window) => window,
                None => {
                    joined = window_after(reader.window(), &plain[..output]);
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
        reader.go_on_as(ahead, &plain, has_window);
        Handover { taken, plain }
    }

    /// Hands nothing over.
    pub fn give_up(self) -> Handover {
        Handover { taken: 0, plain: self.decoded.plain }
    }
}

/// A reader at a block.
fn resumed(at: Compressed, bits: u8, before: u8, window: &[u8; WINDOW]) -> GzipReader {
    GzipReader::resume(BlockStart { input: at, output: Uncompressed(0), bits, window }, before)
}

/// What follows the first `lead` bytes of `chunks`, in small parts.
fn steps<C: AsRef<[u8]>>(chunks: &[C], mut lead: usize) -> impl Iterator<Item = &[u8]> {
    chunks.iter().flat_map(move |chunk| {
        let chunk = chunk.as_ref();
        let skipped = lead.min(chunk.len());
        lead -= skipped;
        chunk[skipped..].chunks(STEP)
    })
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
            StretchStart::Member | StretchStart::Unknown => (at, begin),
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

    /// What a sink receives.
    #[derive(Default, PartialEq)]
    struct Told {
        plain: Vec<u8>,
        starts: Vec<(u64, u64, u8, Vec<u8>)>,
        references: Vec<(u64, u16, u16)>,
        is_tracking: bool,
    }

    impl Sink for Told {
        fn output(&mut self, bytes: &[u8]) {
            self.plain.extend_from_slice(bytes);
        }

        fn block_start(&mut self, at: BlockStart<'_>) {
            self.starts.push((at.input.0, at.output.0, at.bits, at.window.to_vec()));
        }

        fn wants_references(&self) -> bool {
            self.is_tracking
        }

        fn references(&mut self, base: Uncompressed, references: &[BackReference]) {
            self.references.extend(
                references.iter().map(|r| (base.0 + u64::from(r.to), r.distance, r.length)),
            );
        }
    }

    /// Reads `blob` in stretches that begin anywhere, `size` bytes apart. Returns what a sink
    /// receives, how the blob ends, and how many bytes were decoded ahead.
    fn anywhere(
        blob: &[u8],
        size: usize,
        limit: usize,
        is_tracking: bool,
    ) -> (Told, Result<u64, String>, usize) {
        let mut reader = GzipReader::new();
        let mut told = Told { is_tracking, ..Told::default() };
        let mut ahead = 0;
        for (number, part) in blob.chunks(size).enumerate() {
            let at = Compressed((number * size) as u64);
            let halves = part.split_at(part.len() / 2);
            let chunks = [halves.0, halves.1];
            let unknown = StretchStart::Unknown;
            let stretch = Stretch::decode(at, unknown, &chunks, Vec::new(), limit, is_tracking);
            let lead = stretch.lead();
            let pushed = reader.push(&part[..lead], &mut told);
            let taken = stretch.hand_over(&mut reader, &mut told).taken;
            ahead += taken;
            let pushed = pushed.and_then(|()| reader.push(&part[lead + taken..], &mut told));
            if let Err(error) = pushed {
                return (told, Err(error.to_string()), ahead);
            }
        }
        (told, reader.finish().map(|end| end.members).map_err(|error| error.to_string()), ahead)
    }

    fn gzip(plain: &[u8], level: u32) -> Vec<u8> {
        let level = flate2::Compression::new(level);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn stretches_that_begin_anywhere_tell_what_one_reader_tells() {
        let mut seed = 3u64;
        let mut next = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        // Words that refer far back, runs, and noise in between.
        let mut text: Vec<u8> = (0..40_000).map(|_| next(256) as u8).collect();
        while text.len() < 1_500_000 {
            let from = text.len() - 1 - next(32_000) as usize;
            match next(40) {
                0 => text.extend(vec![b'r'; next(4000) as usize]),
                1 => text.extend((0..next(3000)).map(|_| next(256) as u8).collect::<Vec<_>>()),
                _ => text.extend_from_within(from..(from + 40).min(text.len())),
            }
        }
        // Copies alone: nothing of the window ever leaves it.
        let copies: Vec<u8> = text[..30_000].iter().copied().cycle().take(3_000_000).collect();
        let mut damaged = gzip(&text, 6);
        let middle = damaged.len() / 2;
        damaged[middle] ^= 4;
        let mut wrong_sum = gzip(&text, 6);
        let last = wrong_sum.len() - 6;
        wrong_sum[last] ^= 1;
        let short = gzip(&text[..200_000], 6);
        for (blob, least) in [
            (gzip(&text, 2), 30),
            (gzip(&text, 9), 30),
            (gzip(&text, 0), 0),
            (gzip(&copies, 6), 0),
            ([gzip(&text[..700_000], 6), short.clone(), gzip(&text[7..], 2)].concat(), 30),
            (short.repeat(9), 10),
            ([&gzip(&text, 6)[..], &[0; 512]].concat(), 30),
            (damaged, 10),
            (wrong_sum, 10),
            (gzip(&text, 6)[..middle].to_vec(), 30),
        ] {
            for (size, limit) in [(60_000, usize::MAX), (130_001, usize::MAX), (130_001, 50_000)] {
                for is_tracking in [false, true] {
                    let (straight, end, _) = anywhere(&blob, usize::MAX, 0, is_tracking);
                    let (told, guessed_end, ahead) = anywhere(&blob, size, limit, is_tracking);
                    assert!(told == straight && guessed_end == end, "{end:?}, {guessed_end:?}");
                    let least = if limit == usize::MAX { least } else { 0 };
                    assert!(ahead * 100 >= blob.len() * least, "{ahead} of {}, {size}", blob.len());
                }
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
