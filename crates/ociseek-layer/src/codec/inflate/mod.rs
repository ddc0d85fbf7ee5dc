//! Raw deflate (RFC 1951), decoded step by step, with a stop at every block border.
//!
//! Two loops decode symbols. `fast` runs while both ends are far: it fills 64 bits at a time and copies words, with no check
//! for the ends inside. The loop in this file does the rest, byte by byte and without `unsafe`; it can do all of it, so it
//! is also the twin that the fast one is tested against: input pushed in single bytes never enters the fast loop.
//! Bits are taken from the input only when they are needed, and the fast loop gives back what it took too much, so at
//! a block border fewer than 8 bits are left over: that is what a checkpoint needs to know.
//!
//! What is accepted is what zlib accepts (inflate.c, inftrees.c), incomplete codes among it.

#[allow(unsafe_code, reason = "the only place where it pays: see the module")]
mod fast;
mod header;
mod tables;

use super::WINDOW;
use tables::{
    CODE_LENGTH_SYMBOLS, CodeLengthTable, Codes, DISTANCE_SYMBOLS, END_OF_BLOCK, EXCEPTIONAL, LITERAL, LITLEN_SYMBOLS,
    bits, low_bits, value,
};

/// Room for the output of many steps. Large enough that moving the window in front of it costs nothing that can be measured.
const SLOT: usize = 256 * 1024;
/// A step ends when fewer bytes than this are free: no symbol makes more, the fast loop's overshoot included.
const MARGIN: usize = 320;

/// Decodes the blocks of one deflate stream after another, keeping the last 32 KiB of all their output.
pub struct Inflate {
    state: State,
    /// Bits taken from the input and not yet used; the low one is next. Bits above `count` are zero between steps.
    bits: u64,
    count: u32,
    last_block: bool,
    codes: Box<Codes>,
    /// The lengths of a dynamic block's codes, as far as they are read, and what the header says about their number.
    lengths: [u8; LITLEN_SYMBOLS + DISTANCE_SYMBOLS],
    litlen_count: usize,
    distance_count: usize,
    code_length_table: Box<CodeLengthTable>,
    /// History and new output: `buffer[..end]` is valid, and `end >= WINDOW` always.
    buffer: Box<[u8]>,
    /// Where the output of the last step begins.
    start: usize,
    /// Where it ends.
    end: usize,
    /// Where the current stream's output begins, or 0 when that is further back than the buffer: no match may reach before it.
    floor: usize,
}

#[derive(Debug, Clone, Copy)]
enum State {
    BlockHeader,
    StoredLength,
    Stored {
        left: usize,
    },
    /// The three counts of a dynamic block's header.
    Counts,
    /// The lengths of the code that code lengths are written in; so many of `total` are read.
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

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Bytes taken from the front of the input.
    pub consumed: usize,
    /// Why it ended, and so what comes next.
    pub stop: Stop,
}

/// Why a step ended, and so what the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// All input was taken: come back with more.
    Input,
    /// The output slot is full: take the output and come back.
    Output,
    /// A block ended and another one follows. High bits of the last byte taken (0 to 7) belong to it.
    Border {
        /// How many of them, from the top.
        bits: u8,
    },
    /// The last block ended; what follows the bytes taken is not deflate any more.
    End,
}

/// The stream is not deflate; the text is what zlib says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InflateError(pub &'static str);

/// The input of one step and how far it is read.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The input is at its end before the bits are there.
struct Starved;

/// What a literal/length code stood for.
enum Symbol {
    /// A literal, or a length of which the distance is to be read next.
    Data,
    EndOfBlock,
    Starved,
}

impl Default for Inflate {
    fn default() -> Self {
        Inflate::new()
    }
}

impl Inflate {
    /// A decoder at the start of a deflate stream, before which lies a window of zeros.
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
            buffer: vec![0; WINDOW + SLOT].into_boxed_slice(),
            start: WINDOW,
            end: WINDOW,
            floor: WINDOW,
        }
    }

    /// Starts a new deflate stream. Matches in it cannot reach what came before, yet [`Inflate::window`] goes on over the border.
    pub fn restart(&mut self) {
        self.state = State::BlockHeader;
        (self.bits, self.count) = (0, 0);
        self.start = self.end;
        self.floor = self.end;
    }

    /// A decoder in the middle of a deflate stream: at the start of a block, of which the high `bits` (0..=7) bits of `before`,
    /// the byte before the next one, are part. Matches may reach all of `window`.
    pub fn resume(window: &[u8; WINDOW], bits: u8, before: u8) -> Inflate {
        let mut inflate = Inflate::new();
        inflate.buffer[..WINDOW].copy_from_slice(window);
        inflate.floor = 0;
        let bits = u32::from(bits.min(7));
        inflate.bits = u64::from(before) >> (8 - bits);
        inflate.count = bits;
        inflate
    }

    /// What the last step made.
    pub fn output(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// The 32 KiB of output before now, oldest first, with zeros in front of the very first byte.
    pub fn window(&self) -> &[u8; WINDOW] {
        match self.buffer[self.end - WINDOW..self.end].as_array() {
            Some(window) => window,
            None => unreachable!("the slice is WINDOW bytes long"),
        }
    }

    /// Says what lay before the first of the `made` bytes that this decoder has made, for [`Inflate::window`]: no match may reach it.
    pub fn precede(&mut self, before: &[u8; WINDOW], made: usize) {
        let unknown = WINDOW.saturating_sub(made);
        let window = self.end - WINDOW;
        self.buffer[window..window + unknown].copy_from_slice(&before[WINDOW - unknown..]);
    }

    /// Decodes from `input` until something stops it. The output of the step before is gone after this.
    ///
    /// # Errors
    /// When the stream breaks RFC 1951, as strictly as zlib has it.
    pub fn step(&mut self, input: &[u8]) -> Result<Step, InflateError> {
        if self.buffer.len() - self.end < MARGIN {
            let moved = self.end - WINDOW;
            self.buffer.copy_within(moved.., 0);
            self.end = WINDOW;
            self.floor = self.floor.saturating_sub(moved);
        }
        self.start = self.end;
        let mut input = Input { bytes: input, at: 0 };
        let stop = self.run(&mut input)?;
        Ok(Step { consumed: input.at, stop })
    }

    /// Runs the state machine until a stop; without enough input, in a state from which it can go on with more.
    fn run(&mut self, input: &mut Input<'_>) -> Result<Stop, InflateError> {
        /// Takes the value of a reading that may starve.
        macro_rules! fed {
            ($reading:expr) => {
                match $reading {
                    Ok(value) => value,
                    Err(Starved) => return Ok(Stop::Input),
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
                    self.state = State::CodeLengthLengths { read: 0, total: (counts >> 10) as usize + 4 };
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
                        // The symbol is not used up before its extra bits are there too.
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
                            Symbol::Starved => return Ok(Stop::Input),
                        };
                    }
                    if ended && let Some(stop) = self.end_block() {
                        return Ok(stop);
                    }
                }
                State::Distance { length } => {
                    let (entry, taken) = fed!(self.entry(input, |this| this.codes.distance.resolve(this.bits)));
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

    /// A block is at its end: a border or the end of the stream.
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
        let Ok((entry, taken)) = self.entry(input, |this| this.codes.litlen.resolve(this.bits)) else {
            return Ok(Symbol::Starved);
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

    /// Copies a match, byte by byte, as its bytes may be its own source.
    fn copy(&mut self, length: usize, distance: usize) -> Result<(), InflateError> {
        if distance > self.end - self.floor {
            return Err(InflateError("invalid distance too far back"));
        }
        for at in self.end..self.end + length {
            self.buffer[at] = self.buffer[at - distance];
        }
        self.end += length;
        Ok(())
    }

    /// The next entry of a table and the bits it takes, used up. Pulls only as many bytes as the entry needs.
    fn entry(
        &mut self,
        input: &mut Input<'_>,
        resolve: impl Fn(&Inflate) -> (u32, u32),
    ) -> Result<(u32, u64), Starved> {
        loop {
            // With too few bits the look-up sees zeros behind them: then the entry it finds takes more bits than there are.
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

    /// Takes `count` (at most 32) bits.
    fn take(&mut self, input: &mut Input<'_>, count: u32) -> Result<u32, Starved> {
        while self.count < count {
            self.pull(input)?;
        }
        let value = self.bits & ((1 << count) - 1);
        self.drop_bits(count);
        Ok(value as u32)
    }

    /// Takes one more byte from the input.
    fn pull(&mut self, input: &mut Input<'_>) -> Result<(), Starved> {
        let &byte = input.bytes.get(input.at).ok_or(Starved)?;
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
