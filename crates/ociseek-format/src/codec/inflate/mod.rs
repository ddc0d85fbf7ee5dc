//! Raw deflate (RFC 1951), decoded step by step, with a stop at every block boundary.
//!
//! Two loops decode symbols. `fast` runs while the ends of input and output are far away: it fills
//! 64 bits at a time and copies words without checking for the ends. The loop in this file does the
//! rest, byte by byte and without `unsafe`. It can decode everything, so the fast loop is tested
//! against it: input pushed in single bytes never enters the fast loop. Bits are taken from the
//! input only when needed, and the fast loop returns the bytes it over-read. So at a block boundary
//! fewer than 8 bits are left, and a checkpoint stores their number.
//!
//! It accepts what zlib accepts (inflate.c, inftrees.c), including incomplete codes.

#[allow(unsafe_code, reason = "the only place where it pays: see the module")]
mod fast;
mod header;
mod tables;
mod track;

use std::sync::Mutex;

use super::WINDOW;
use tables::{
    CODE_LENGTH_SYMBOLS, CodeLengthTable, Codes, DISTANCE_SYMBOLS, END_OF_BLOCK, EXCEPTIONAL,
    LITERAL, LITLEN_SYMBOLS, bits, low_bits, value,
};
use track::{Track, Tracker};

pub(crate) use track::BackReference;

/// Buffer size for the output of many steps, large enough to make the cost of moving the window
/// negligible.
const SLOT: usize = 256 * 1024;
/// A step ends when fewer bytes are free: no symbol needs more, even with the fast loop's
/// overshoot.
const MARGIN: usize = 320;

/// The buffers of decoders that have ended, for later ones. A span is about as large as a buffer,
/// so clearing fresh memory would take as long as copying the span.
static SPARE: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());
/// How many are kept.
const SPARES: usize = 8;

/// A buffer that begins with a window of zeros.
fn buffer() -> Box<[u8]> {
    let spare = SPARE.lock().ok().and_then(|mut spare| spare.pop());
    match spare {
        Some(mut buffer) => {
            buffer[..WINDOW].fill(0);
            buffer
        }
        None => vec![0; WINDOW + SLOT].into_boxed_slice(),
    }
}

/// Decodes the blocks of one deflate stream after another, keeping the last 32 KiB of all their
/// output.
pub struct Inflate {
    state: State,
    /// Unused bits from the input, lowest first. Bits above `count` are zero between steps.
    bits: u64,
    count: u32,
    last_block: bool,
    codes: Box<Codes>,
    /// The code lengths of a dynamic block read so far, and their number from the header.
    lengths: [u8; LITLEN_SYMBOLS + DISTANCE_SYMBOLS],
    litlen_count: usize,
    distance_count: usize,
    code_length_table: Box<CodeLengthTable>,
    /// History and new output: `buffer[..end]` is valid, and `end >= WINDOW` always.
    buffer: Box<[u8]>,
    /// Where the output of the last step starts.
    start: usize,
    /// Where it ends.
    end: usize,
    /// Where the output of the current stream starts, or 0 if that is no longer in the buffer. No
    /// match may reach further back.
    floor: usize,
    /// None until tracking is used.
    tracker: Option<Box<Tracker>>,
}

crate::opaque_debug!(Inflate);

#[derive(Debug, Clone, Copy)]
enum State {
    BlockHeader,
    StoredLength,
    Stored {
        left: usize,
    },
    /// The three counts of a dynamic block's header.
    Counts,
    /// Reading the lengths of the code for code lengths; this many of `total` are read.
    CodeLengthLengths {
        read: usize,
        total: usize,
    },
    /// The code lengths themselves.
    CodeLengths {
        read: usize,
    },
    Symbol,
    Distance {
        length: usize,
    },
    Ended,
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepOutcome {
    /// Bytes consumed from the front of the input.
    pub consumed: usize,
    /// Why it ended, and so what comes next.
    pub stop: Stop,
}

/// Why a step ended, which tells the caller what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// All input was consumed: call again with more.
    Input,
    /// The output buffer is full: take the output and call again.
    Output,
    /// A block ended and another one follows. High bits of the last byte taken (0 to 7) belong to
    /// it.
    Border {
        /// How many of them, from the top.
        bits: u8,
    },
    /// The last block ended: the bytes after it are not deflate.
    End,
}

/// The stream is not valid deflate; the text is zlib's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InflateError(pub &'static str);

/// The input of one step and how far it is read.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The input ended before enough bits were available.
struct EndOfInput;

/// The meaning of a literal/length code.
enum Symbol {
    /// A literal, or a length whose distance is read next.
    Data,
    EndOfBlock,
    EndOfInput,
}

impl Drop for Inflate {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        if let Ok(mut spare) = SPARE.lock()
            && spare.len() < SPARES
        {
            spare.push(buffer);
        }
    }
}

impl Default for Inflate {
    fn default() -> Self {
        Inflate::new()
    }
}

impl Inflate {
    /// Creates a decoder at the start of a deflate stream, with a window of zeros.
    pub fn new() -> Inflate {
        Inflate {
            state: State::BlockHeader,
            bits: 0,
            count: 0,
            last_block: false,
            codes: Box::new(Codes::new()),
            lengths: [0; LITLEN_SYMBOLS + DISTANCE_SYMBOLS],
            litlen_count: 0,
            distance_count: 0,
            code_length_table: Box::new(CodeLengthTable::new()),
            buffer: buffer(),
            start: WINDOW,
            end: WINDOW,
            floor: WINDOW,
            tracker: None,
        }
    }

    /// Starts a new deflate stream. Matches in it cannot reach earlier output, but
    /// [`Inflate::window`] still includes it.
    pub fn restart(&mut self) {
        self.state = State::BlockHeader;
        (self.bits, self.count) = (0, 0);
        self.start = self.end;
        self.floor = self.end;
    }

    /// Creates a decoder inside a deflate stream, at the start of a block whose first bits are the
    /// high `bits` (0..=7) of `before`, the byte before the next one. Matches may reach all of
    /// `window`.
    pub fn resume(window: &[u8; WINDOW], bits: u8, before: u8) -> Inflate {
        let mut inflate = Inflate::new();
        inflate.buffer[..WINDOW].copy_from_slice(window);
        inflate.begin_at(bits, before);
        inflate
    }

    /// Begins at a block, as [`Inflate::resume`] says.
    fn begin_at(&mut self, bits: u8, before: u8) {
        self.floor = 0;
        self.count = u32::from(bits.min(7));
        self.bits = u64::from(before) >> (8 - self.count);
    }

    /// Whether a block may start in this decoder's next stream: in `input`, with its first bits in
    /// the high `bits` of `before`. What was decoded earlier stays in the window.
    pub(crate) fn may_start(&mut self, bits: u8, before: u8, input: &[u8]) -> bool {
        self.restart();
        self.begin_at(bits, before);
        self.step(input).is_ok()
    }

    /// The output of the last step.
    pub fn output(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The last 32 KiB of output, oldest first, padded with zeros at the front.
    pub fn window(&self) -> &[u8; WINDOW] {
        match self.buffer[self.end - WINDOW..self.end].as_array() {
            Some(window) => window,
            None => unreachable!("the slice is WINDOW bytes long"),
        }
    }

    /// Replaces the last 32 KiB of output, as if they had been decoded to `window`. Later matches
    /// copy from there.
    pub(crate) fn replace_window(&mut self, window: &[u8; WINDOW]) {
        self.buffer[self.end - WINDOW..self.end].copy_from_slice(window);
    }

    /// Decodes `input` until it has to stop. This overwrites the output of the previous step.
    ///
    /// # Errors
    /// If the stream violates RFC 1951, as strictly as zlib checks it.
    pub fn step(&mut self, input: &[u8]) -> Result<StepOutcome, InflateError> {
        if self.buffer.len() - self.end < MARGIN {
            let moved = self.end - WINDOW;
            self.buffer.copy_within(moved.., 0);
            self.end = WINDOW;
            self.floor = self.floor.saturating_sub(moved);
            if let Some(tracker) = &mut self.tracker {
                tracker.shift(moved);
            }
        }
        self.start = self.end;
        let mut input = Input { bytes: input, at: 0 };
        let stop = self.run(&mut input)?;
        Ok(StepOutcome { consumed: input.at, stop })
    }

    /// Runs the state machine until it stops. If input runs out, it can continue with more.
    fn run(&mut self, input: &mut Input<'_>) -> Result<Stop, InflateError> {
        /// Takes the value of a read that may run out of input.
        macro_rules! fed {
            ($reading:expr) => {
                match $reading {
                    Ok(value) => value,
                    Err(EndOfInput) => return Ok(Stop::Input),
                }
            };
        }
        loop {
            match self.state {
                State::BlockHeader => {
                    let header = fed!(self.take(input, 3));
                    self.last_block = header & 1 != 0;
                    self.state = match header >> 1 {
                        0 => {
                            (self.bits, self.count) = (0, 0); // the rest of the byte is padding
                            State::StoredLength
                        }
                        1 => {
                            self.use_fixed_codes()?;
                            State::Symbol
                        }
                        2 => State::Counts,
                        _ => return Err(InflateError("invalid block type")),
                    };
                }
                State::StoredLength => {
                    let lengths = fed!(self.take(input, 32));
                    let length = lengths & 0xffff;
                    if length != !lengths >> 16 & 0xffff {
                        return Err(InflateError("invalid stored block lengths"));
                    }
                    self.state = State::Stored { left: length as usize };
                }
                State::Stored { left } => {
                    let rest = &input.bytes[input.at..];
                    let taken = left.min(rest.len()).min(self.buffer.len() - self.end);
                    self.buffer[self.end..self.end + taken].copy_from_slice(&rest[..taken]);
                    self.end += taken;
                    input.at += taken;
                    self.state = State::Stored { left: left - taken };
                    if taken == left {
                        if let Some(stop) = self.end_block() {
                            return Ok(stop);
                        }
                    } else if taken == rest.len() {
                        return Ok(Stop::Input);
                    } else {
                        return Ok(Stop::Output);
                    }
                }
                State::Counts => {
                    let counts = fed!(self.take(input, 14));
                    self.litlen_count = (counts & 31) as usize + 257;
                    self.distance_count = (counts >> 5 & 31) as usize + 1;
                    if self.litlen_count > 286 || self.distance_count > 30 {
                        return Err(InflateError("too many length or distance symbols"));
                    }
                    self.lengths[..CODE_LENGTH_SYMBOLS].fill(0);
                    self.state =
                        State::CodeLengthLengths { read: 0, total: (counts >> 10) as usize + 4 };
                }
                State::CodeLengthLengths { read, total } if read < total => {
                    /// RFC 1951, section 3.2.7: the order in which they are stored.
                    const ORDER: [u8; CODE_LENGTH_SYMBOLS] =
                        [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
                    self.lengths[usize::from(ORDER[read])] = fed!(self.take(input, 3)) as u8;
                    self.state = State::CodeLengthLengths { read: read + 1, total };
                }
                State::CodeLengthLengths { .. } => {
                    let lengths = self.lengths.first_chunk().unwrap_or(&[0; CODE_LENGTH_SYMBOLS]);
                    self.code_length_table
                        .build_code_lengths(lengths)
                        .map_err(|_| InflateError("invalid code lengths set"))?;
                    self.state = State::CodeLengths { read: 0 };
                }
                State::CodeLengths { read } if read < self.litlen_count + self.distance_count => {
                    let mut read = self.code_lengths(input, read)?;
                    self.state = State::CodeLengths { read };
                    if read < self.litlen_count + self.distance_count {
                        // The symbol is not consumed before its extra bits are available.
                        loop {
                            let (_, code, extra) = self.code_length_code();
                            if code + extra <= self.count {
                                break;
                            }
                            fed!(self.pull(input));
                        }
                        read = self.code_length(read)?;
                        self.state = State::CodeLengths { read };
                    }
                }
                State::CodeLengths { .. } => {
                    self.use_dynamic_codes()?;
                    self.state = State::Symbol;
                }
                State::Symbol => {
                    let mut ended = self.fast(input)?;
                    if !ended {
                        if self.buffer.len() - self.end < MARGIN {
                            return Ok(Stop::Output);
                        }
                        ended = match self.symbol(input)? {
                            Symbol::Data => false,
                            Symbol::EndOfBlock => true,
                            Symbol::EndOfInput => return Ok(Stop::Input),
                        };
                    }
                    if ended && let Some(stop) = self.end_block() {
                        return Ok(stop);
                    }
                }
                State::Distance { length } => {
                    let (entry, taken) =
                        fed!(self.entry(input, |this| this.codes.distance.resolve(this.bits)));
                    if entry & EXCEPTIONAL != 0 {
                        return Err(InflateError("invalid distance code"));
                    }
                    self.copy(length, value(entry, taken) as usize)?;
                    self.state = State::Symbol;
                }
                State::Ended => return Ok(Stop::End),
            }
        }
    }

    /// Ends a block, and perhaps the stream.
    fn end_block(&mut self) -> Option<Stop> {
        if self.last_block {
            (self.bits, self.count) = (0, 0);
            self.state = State::Ended;
            return None;
        }
        self.state = State::BlockHeader;
        Some(Stop::Border { bits: self.count as u8 })
    }

    /// Decodes one literal or length, or the end of the block.
    fn symbol(&mut self, input: &mut Input<'_>) -> Result<Symbol, InflateError> {
        let Ok((entry, taken)) = self.entry(input, |this| this.codes.litlen.resolve(this.bits))
        else {
            return Ok(Symbol::EndOfInput);
        };
        if entry & LITERAL != 0 {
            self.buffer[self.end] = (entry >> 16) as u8;
            self.end += 1;
        } else if entry & EXCEPTIONAL == 0 {
            self.state = State::Distance { length: value(entry, taken) as usize };
        } else if entry & END_OF_BLOCK != 0 {
            return Ok(Symbol::EndOfBlock);
        } else {
            return Err(InflateError("invalid literal/length code"));
        }
        Ok(Symbol::Data)
    }

    /// Copies a match byte by byte, since it may overlap its source.
    fn copy(&mut self, length: usize, distance: usize) -> Result<(), InflateError> {
        if distance > self.end - self.floor {
            return Err(InflateError("invalid distance too far back"));
        }
        if self.is_tracking()
            && let Some(tracker) = &mut self.tracker
        {
            tracker.note(self.end, distance, length);
        }
        for at in self.end..self.end + length {
            self.buffer[at] = self.buffer[at - distance];
        }
        self.end += length;
        Ok(())
    }

    /// Consumes the next entry of a table and its bits, reading only as many bytes as it needs.
    fn entry(
        &mut self,
        input: &mut Input<'_>,
        resolve: impl Fn(&Inflate) -> (u32, u32),
    ) -> Result<(u32, u64), EndOfInput> {
        loop {
            // With too few bits, the lookup sees zeros after them and finds an entry that needs
            // more bits than are available.
            let (entry, skipped) = resolve(self);
            if skipped + bits(entry) <= self.count {
                self.drop_bits(skipped);
                let taken = low_bits(self.bits, entry);
                self.drop_bits(bits(entry));
                return Ok((entry, taken));
            }
            self.pull(input)?;
        }
    }

    /// Consumes `count` (at most 32) bits.
    fn take(&mut self, input: &mut Input<'_>, count: u32) -> Result<u32, EndOfInput> {
        while self.count < count {
            self.pull(input)?;
        }
        let value = self.bits & ((1 << count) - 1);
        self.drop_bits(count);
        Ok(value as u32)
    }

    /// Reads one more byte of input.
    fn pull(&mut self, input: &mut Input<'_>) -> Result<(), EndOfInput> {
        let &byte = input.bytes.get(input.at).ok_or(EndOfInput)?;
        input.at += 1;
        self.bits |= u64::from(byte) << self.count;
        self.count += 8;
        Ok(())
    }

    fn drop_bits(&mut self, count: u32) {
        self.bits >>= count;
        self.count -= count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_decoder_knows_nothing_of_those_that_have_ended() {
        // A stored block of 3 bytes, which is not the last one.
        let stored = [0, 3, 0, 0xfc, 0xff, 7, 7, 7];
        // A match of 3 bytes at distance 1, with the fixed codes.
        let reaches_back = [0x03, 0x02, 0x00];
        for _ in 0..SPARES + 2 {
            let mut before = Inflate::resume(&[9; WINDOW], 0, 0);
            before.step(&stored).unwrap();
            assert_eq!(before.output(), [7; 3]);
            drop(before);
            let mut decoder = Inflate::new();
            assert_eq!(decoder.window(), &[0; WINDOW]);
            assert!(decoder.step(&reaches_back).is_err());
        }
    }
}
