//! Stretches of a gzip blob that are decoded by themselves, on other threads, before a reader comes to where they begin.
//!
//! A member needs nothing of what lies before it. Tools that write many members (bgzip, mgzip, eStargz) write one kind of header, so
//! the bytes of a blob's first header show where others may begin. That is a guess: whether a member does begin there is
//! known when the reader in front of it has come there, and until then nothing that a stretch says counts.

use memchr::memmem;

use super::WINDOW;
use super::gzip::{BlockStart, GzipReader, Sink};
use super::sniff::{self, Content};
use crate::offset::{Compressed, Uncompressed};

/// A gzip header without its optional fields (RFC 1952, section 2.3.1).
const HEADER: usize = 10;
/// Compressed bytes that are decoded before it is looked what they made: at most 1,032 times as many.
const STEP: usize = 4 << 10;

/// Where further members of a blob may begin.
#[derive(Debug, Clone)]
pub struct MemberFinder {
    /// Magic, method and flags.
    start: memmem::Finder<'static>,
    /// XFL and OS; the time between may differ from member to member.
    end: [u8; 2],
}

impl MemberFinder {
    /// Looks for headers like the one that `blob` begins with. None if that is not all there.
    pub fn like(blob: &[u8]) -> Option<MemberFinder> {
        let &[id1, id2, method, flags, _, _, _, _, xfl, os] = blob.first_chunk::<HEADER>()?;
        let is_gzip = sniff::content(blob) == Content::Gzip;
        let start = memmem::Finder::new(&[id1, id2, method, flags]).into_owned();
        is_gzip.then_some(MemberFinder { start, end: [xfl, os] })
    }

    /// The first place in `bytes`, from `from` on, where a whole header may be.
    pub fn find(&self, bytes: &[u8], from: usize) -> Option<usize> {
        let searched = bytes.get(from..)?;
        let mut starts = self.start.find_iter(searched).map(|at| from + at);
        starts.find(|at| bytes.get(at + HEADER - 2..at + HEADER) == Some(&self.end))
    }
}

/// What came out of a stretch.
pub struct Stretch {
    /// Where in the blob it begins.
    at: Compressed,
    /// Decoded it, and can go on with what follows. Counts output from the stretch's start.
    reader: GzipReader,
    made: Made,
    /// Bytes that were decoded: all, if they did not make too much.
    taken: usize,
    /// No member begins there, or it is damaged.
    is_broken: bool,
}

#[derive(Default)]
struct Made {
    plain: Vec<u8>,
    starts: Vec<Start>,
}

struct Start {
    input: Compressed,
    output: usize,
    bits: u8,
}

impl Made {
    fn size(&self) -> usize {
        self.plain.len() + self.starts.len() * size_of::<Start>()
    }
}

impl Sink for Made {
    fn output(&mut self, bytes: &[u8]) {
        self.plain.extend_from_slice(bytes);
    }

    fn block_start(&mut self, at: BlockStart<'_>) {
        self.starts.push(Start { input: at.input, output: self.plain.len(), bits: at.bits });
    }
}

impl Default for Stretch {
    /// One that is of no use.
    fn default() -> Stretch {
        let reader = GzipReader::new();
        Stretch { at: Compressed(0), reader, made: Made::default(), taken: 0, is_broken: true }
    }
}

impl Stretch {
    /// Decodes the bytes of `chunks`, which lie at `at` in a blob, as if a member began there. Stops when they have made more than `limit`
    /// bytes; at most 4 MiB more are kept. `plain` is where they go, emptied before.
    pub fn decode<C: AsRef<[u8]>>(at: Compressed, chunks: &[C], mut plain: Vec<u8>, limit: usize) -> Stretch {
        plain.clear();
        let made = Made { plain, starts: Vec::new() };
        let mut stretch = Stretch { at, reader: GzipReader::at_member(at), made, taken: 0, is_broken: false };
        for step in chunks.iter().flat_map(|chunk| chunk.as_ref().chunks(STEP)) {
            stretch.is_broken = stretch.reader.push(step, &mut stretch.made).is_err();
            if stretch.is_broken {
                break;
            }
            stretch.taken += step.len();
            if stretch.made.size() > limit {
                break;
            }
        }
        stretch
    }

    /// Makes `reader` go on behind this stretch, as if it had decoded it into `sink` itself, if it has come to where the
    /// stretch begins and a member may begin there. Says how many bytes it need not be given any more: none if the guess was wrong.
    pub fn hand_over(self, reader: &mut GzipReader, sink: &mut impl Sink) -> HandedOver {
        let Stretch { at, reader: ahead, made: Made { plain, starts }, taken, is_broken } = self;
        if is_broken || !reader.is_between_members(at) {
            return HandedOver { taken: 0, plain };
        }
        let mut told = 0;
        let base = reader.output();
        let mut joined = [0; WINDOW];
        for Start { input, output, bits } in starts {
            sink.output(&plain[told..output]);
            told = output;
            let window = match plain[..output].last_chunk() {
                Some(window) => window,
                None => {
                    joined[..WINDOW - output].copy_from_slice(&reader.window()[output..]);
                    joined[WINDOW - output..].copy_from_slice(&plain[..output]);
                    &joined
                }
            };
            sink.block_start(BlockStart { input, output: Uncompressed(base.0 + output as u64), bits, window });
        }
        sink.output(&plain[told..]);
        reader.go_on_as(ahead, &plain);
        HandedOver { taken, plain }
    }

    /// Hands nothing over.
    pub fn give_up(self) -> HandedOver {
        HandedOver { taken: 0, plain: self.made.plain }
    }
}

/// How handing over a [`Stretch`] went.
pub struct HandedOver {
    /// Bytes from its start on that its blob's reader has read. What follows them is to be pushed to the reader.
    pub taken: usize,
    /// To decode another stretch into.
    pub plain: Vec<u8>,
}
