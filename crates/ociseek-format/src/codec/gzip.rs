//! gzip (RFC 1952) as a push parser: decodes one member after another, checks checksums and
//! lengths, and reports block starts.

use super::WINDOW;
use super::gzip_header::{HeaderError, HeaderParser};
use super::inflate::{BackReference, Inflate, Stop};
use crate::offset::{Compressed, Uncompressed};

/// Receives the output of a [`GzipReader`].
pub trait Sink {
    /// The next plain bytes, in order and without gaps.
    fn output(&mut self, bytes: &[u8]);

    /// A deflate block starts here: after a member's header, or after a block that is not its last.
    fn block_start(&mut self, at: BlockStart<'_>);

    /// Whether to report the matches that refer to output before the block that was reported last.
    /// Asked once for each block.
    fn wants_references(&self) -> bool {
        false
    }

    /// Reports matches that refer to output before the last block for which they were wanted, in
    /// their order and before the next block is reported. Their positions are counted from `base`.
    fn references(&mut self, base: Uncompressed, references: &[BackReference]) {
        let _ = (base, references);
    }
}

/// A place where decoding can resume.
#[derive(Debug, Clone, Copy)]
pub struct BlockStart<'a> {
    /// The first byte of the blob without a used bit.
    pub input: Compressed,
    /// The position of the block's first byte in the plain data.
    pub output: Uncompressed,
    /// How many high bits (0..=7) of the byte before `input` belong to the block.
    pub bits: u8,
    /// The output before `output`, oldest first, padded with zeros. It spans members.
    pub window: &'a [u8; WINDOW],
}

/// Decodes a gzip blob pushed in chunks. Chunk boundaries do not matter.
pub struct GzipReader {
    state: State,
    inflate: Inflate,
    /// The number of bytes read so far.
    input: Compressed,
    /// The number of plain bytes decoded so far.
    output: Uncompressed,
    /// Checksum and length of the current member's output.
    crc: crc32fast::Hasher,
    length: u64,
    /// The start of the member was not read, so checksum and length cannot be compared with its
    /// trailer.
    is_partial: bool,
    /// The end of such a member.
    unchecked: Option<UncheckedMember>,
    members: u64,
    /// Where the current member's header begins.
    header: Compressed,
    /// The last block start that was reported.
    block: (Compressed, u8),
}

crate::opaque_debug!(GzipReader);

/// The part of a member that was read, and its trailer, which can only be checked when the part
/// before it is known.
struct UncheckedMember {
    crc: crc32fast::Hasher,
    length: u64,
    trailer: [u8; 8],
}

/// The checksum and the length of a member as they were.
pub(super) struct Counted {
    crc: crc32fast::Hasher,
    length: u64,
}

enum State {
    Header(HeaderParser),
    Deflate,
    Trailer {
        bytes: [u8; 8],
        filled: usize,
    },
    /// Non-gzip bytes follow the last member.
    Trailing {
        from: Compressed,
    },
}

/// How a gzip blob ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GzipEnd {
    /// The number of members in the stream, including empty ones.
    pub members: u64,
    /// The total size of the plain data of all members.
    pub output: Uncompressed,
    /// The offset of bytes that belong to no member. gzip(1) warns about them, Go and zlib fail.
    pub trailing: Option<Compressed>,
}

/// Why a blob is not valid gzip. Offsets are bytes into the blob.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum GzipError {
    #[error("bad gzip header of member {member} at byte {offset}")]
    Header {
        offset: Compressed,
        member: u64,
        #[source]
        cause: HeaderError,
    },
    /// The offset is that of the block.
    #[error("damaged deflate data in the block at byte {offset}: {message}")]
    Deflate { offset: Compressed, message: &'static str },
    #[error(
        "wrong CRC-32 in gzip member {member}, which ends at byte {offset}: stored {stored:#010x}, computed \
         {actual:#010x}"
    )]
    Crc { offset: Compressed, member: u64, stored: u32, actual: u32 },
    #[error(
        "wrong length in gzip member {member}, which ends at byte {offset}: stored {stored} (modulo 2^32), \
         actual {actual}"
    )]
    Length { offset: Compressed, member: u64, stored: u32, actual: u64 },
    #[error("the gzip data is truncated at byte {offset}, inside {place} of member {member}")]
    Truncated { offset: Compressed, member: u64, place: &'static str },
}

impl Default for GzipReader {
    fn default() -> Self {
        GzipReader::new()
    }
}

impl GzipReader {
    /// A reader at the start of a blob.
    pub fn new() -> GzipReader {
        GzipReader::with(Inflate::new())
    }

    fn with(inflate: Inflate) -> GzipReader {
        GzipReader {
            state: State::Header(HeaderParser::default()),
            inflate,
            input: Compressed(0),
            output: Uncompressed(0),
            crc: crc32fast::Hasher::new(),
            length: 0,
            is_partial: false,
            unchecked: None,
            members: 0,
            header: Compressed(0),
            block: (Compressed(0), 0),
        }
    }

    /// A reader that starts `input` bytes into a blob, at a member. Members and output are counted
    /// from there.
    pub(super) fn at_member(input: Compressed) -> GzipReader {
        GzipReader { input, header: input, ..GzipReader::new() }
    }

    /// Whether a member may start with the next byte, `input` bytes into the blob.
    pub(super) fn is_between_members(&self, input: Compressed) -> bool {
        matches!(&self.state, State::Header(header) if header.is_empty()) && self.input == input
    }

    /// Whether an unread block starts `input` bytes into the blob, with its first `bits` bits in
    /// the byte before, and matches in it may reach the whole window.
    pub(super) fn is_at_block(&self, input: Compressed, bits: u8) -> bool {
        // With fewer than 8 bits left, a header may be readable but not the data it announces.
        self.input == input && self.block == (input, bits) && self.length >= WINDOW as u64
    }

    /// Whether `ahead`, which started here, agrees with the checksum of the current member.
    pub(super) fn is_continued_by(&self, ahead: &GzipReader) -> bool {
        ahead.unchecked.as_ref().is_none_or(|UncheckedMember { crc, length, trailer }| {
            let (stored_crc, stored_length) = fields(*trailer);
            stored_crc == joined(&self.crc, crc).finalize()
                && stored_length == (self.length + length) as u32
        })
    }

    /// Counts `plain`, which begins what another reader decoded from here on but is not part of its
    /// checksum. Returns what undoes that.
    pub(super) fn count(&mut self, plain: &[u8]) -> Counted {
        let before = Counted { crc: self.crc.clone(), length: self.length };
        self.crc.update(plain);
        self.length += plain.len() as u64;
        before
    }

    /// Counts no longer what was counted since `before`.
    pub(super) fn count_back(&mut self, before: Counted) {
        (self.crc, self.length) = (before.crc, before.length);
    }

    /// Leaves what was decoded so far out of the checksum.
    pub(super) fn count_from_here(&mut self) {
        self.crc = crc32fast::Hasher::new();
        self.length = 0;
    }

    /// Whether a member has ended.
    pub(super) fn has_ended_member(&self) -> bool {
        self.members > 0
    }

    /// Appends the work of `ahead`, which started here and decoded `plain`. `has_window` says
    /// whether the last 32 KiB that it decoded are what they should be.
    pub(super) fn go_on_as(&mut self, mut ahead: GzipReader, plain: &[u8], has_window: bool) {
        if !has_window {
            ahead.inflate.replace_window(&window_after(self.inflate.window(), plain));
        }
        ahead.output = self.output + plain.len() as u64;
        ahead.members += self.members;
        if ahead.is_partial {
            ahead.crc = joined(&self.crc, &ahead.crc);
            ahead.length += self.length;
        }
        (ahead.is_partial, ahead.unchecked) = (false, None);
        *self = ahead;
    }

    pub(super) fn window(&self) -> &[u8; WINDOW] {
        self.inflate.window()
    }

    pub(super) fn output(&self) -> Uncompressed {
        self.output
    }

    /// Reads from the start of a block. `before` is the byte before `at.input`, used if `at.bits`
    /// is not 0. The checksum of the current member is not checked, and earlier members are not
    /// counted.
    pub fn resume(at: BlockStart<'_>, before: u8) -> GzipReader {
        GzipReader {
            state: State::Deflate,
            input: at.input,
            output: at.output,
            is_partial: true,
            block: (at.input, at.bits),
            ..GzipReader::with(Inflate::resume(at.window, at.bits, before))
        }
    }

    /// Decodes the next bytes of the blob into `sink`.
    ///
    /// # Errors
    /// If the blob violates RFC 1951 or 1952. The reader cannot be used after that.
    pub fn push(&mut self, mut chunk: &[u8], sink: &mut impl Sink) -> Result<(), GzipError> {
        while !chunk.is_empty() {
            let taken = match &mut self.state {
                State::Header(header) => match header.parse(chunk) {
                    Ok((taken, complete)) => {
                        if complete {
                            self.begin_member(taken, sink);
                        }
                        taken
                    }
                    // Without any valid member the blob is broken; after one, these are
                    // trailing bytes.
                    Err(HeaderError::Magic | HeaderError::Method(_)) if self.members > 0 => {
                        self.state = State::Trailing { from: self.header };
                        chunk.len()
                    }
                    Err(cause) => {
                        let member = self.members + 1;
                        return Err(GzipError::Header { offset: self.header, member, cause });
                    }
                },
                State::Deflate => self.inflate(chunk, sink)?,
                State::Trailer { bytes, filled } => {
                    let taken = chunk.len().min(8 - *filled);
                    bytes[*filled..*filled + taken].copy_from_slice(&chunk[..taken]);
                    *filled += taken;
                    if *filled == 8 {
                        let bytes = *bytes;
                        self.end_member(bytes, self.input + taken as u64)?;
                    }
                    taken
                }
                State::Trailing { .. } => chunk.len(),
            };
            self.input += taken as u64;
            chunk = &chunk[taken..];
        }
        Ok(())
    }

    /// Call this at the end of the blob.
    ///
    /// # Errors
    /// If it ends inside a member.
    pub fn finish(self) -> Result<GzipEnd, GzipError> {
        let cut =
            |place| GzipError::Truncated { offset: self.input, member: self.members + 1, place };
        let trailing = match &self.state {
            State::Header(header) if header.is_empty() && self.members > 0 => None,
            State::Header(_) => return Err(cut("the header")),
            State::Deflate => return Err(cut("the compressed data")),
            State::Trailer { .. } => return Err(cut("the trailer")),
            State::Trailing { from } => Some(*from),
        };
        Ok(GzipEnd { members: self.members, output: self.output, trailing })
    }

    fn begin_member(&mut self, taken: usize, sink: &mut impl Sink) {
        self.state = State::Deflate;
        self.crc = crc32fast::Hasher::new();
        self.length = 0;
        self.is_partial = false;
        self.inflate.restart();
        self.report(taken, 0, sink);
    }

    /// Runs one step of the decoder and returns how many bytes it consumed.
    fn inflate(&mut self, chunk: &[u8], sink: &mut impl Sink) -> Result<usize, GzipError> {
        let mut taken = 0;
        loop {
            let step = self
                .inflate
                .step(&chunk[taken..])
                .map_err(|e| GzipError::Deflate { offset: self.block.0, message: e.0 })?;
            taken += step.consumed;
            let bytes = self.inflate.output();
            self.crc.update(bytes);
            self.length += bytes.len() as u64;
            let base = self.output;
            self.output += bytes.len() as u64;
            sink.output(bytes);
            let references = self.inflate.references();
            if !references.is_empty() {
                sink.references(base, references);
            }
            match step.stop {
                Stop::Output => {}
                Stop::Input => return Ok(taken),
                Stop::Border { bits } => self.report(taken, bits, sink),
                Stop::End => {
                    self.state = State::Trailer { bytes: [0; 8], filled: 0 };
                    return Ok(taken);
                }
            }
        }
    }

    fn report(&mut self, taken: usize, bits: u8, sink: &mut impl Sink) {
        let input = self.input + taken as u64;
        self.block = (input, bits);
        sink.block_start(BlockStart {
            input,
            output: self.output,
            bits,
            window: self.inflate.window(),
        });
        if sink.wants_references() {
            self.inflate.track();
        }
    }

    /// Reports references to what was decoded so far, as [`Sink::wants_references`] says for a
    /// block.
    pub(super) fn track(&mut self) {
        self.inflate.track();
    }

    fn end_member(&mut self, trailer: [u8; 8], end: Compressed) -> Result<(), GzipError> {
        let member = self.members + 1;
        let (stored_crc, stored_length) = fields(trailer);
        let actual = self.crc.clone().finalize();
        if self.is_partial {
            self.unchecked =
                Some(UncheckedMember { crc: self.crc.clone(), length: self.length, trailer });
        } else if stored_crc != actual {
            return Err(GzipError::Crc { offset: end, member, stored: stored_crc, actual });
        } else if stored_length != self.length as u32 {
            return Err(GzipError::Length {
                offset: end,
                member,
                stored: stored_length,
                actual: self.length,
            });
        }
        self.members = member;
        self.header = end;
        self.state = State::Header(HeaderParser::default());
        Ok(())
    }
}

/// The last bytes of `before` and `plain`.
pub(super) fn window_after(before: &[u8; WINDOW], plain: &[u8]) -> [u8; WINDOW] {
    plain.last_chunk().copied().unwrap_or_else(|| {
        let mut window = [0; WINDOW];
        let (old, new) = window.split_at_mut(WINDOW - plain.len());
        old.copy_from_slice(&before[plain.len()..]);
        new.copy_from_slice(plain);
        window
    })
}

/// The CRC-32 and the length of a member, modulo 2^32 (RFC 1952, section 2.3.1).
fn fields(trailer: [u8; 8]) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = trailer;
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// The combined checksum of two consecutive reads.
fn joined(first: &crc32fast::Hasher, second: &crc32fast::Hasher) -> crc32fast::Hasher {
    let mut joined = first.clone();
    joined.combine(second);
    joined
}
