//! Raw deflate (RFC 1951), decoded step by step, with a stop at every block border.
//!
//! This is the border behind which the decoder can be changed: callers see [`Inflate::step`], the output of that step and the
//! window before now, and nothing of zlib-rs, which does the work today.
//!
//! The only `unsafe` of the crate is here: zlib-rs shows block borders in its C interface alone. The invariant is that the
//! stream's pointers are set anew before each call, from slices that outlive it; the fuzz target `gzip` and the tests
//! against flate2 hold it to that.

use std::ffi::c_int;

use libz_rs_sys as z;

use super::WINDOW;

/// How much output one step can make. Large enough that moving the window in front of it costs nothing that can be measured.
const SLOT: usize = 256 * 1024;

/// Decodes the blocks of one deflate stream after another, keeping the last 32 KiB of all their output.
pub struct Inflate {
    /// Boxed, since zlib's state points back at it.
    stream: Box<z::z_stream>,
    /// History and new output: `buffer[..end]` is valid, and `end >= WINDOW` always.
    buffer: Box<[u8]>,
    /// Where the output of the last step begins.
    start: usize,
    /// Where it ends.
    end: usize,
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// Bytes taken from the front of the input.
    pub consumed: usize,
    pub stop: Stop,
}

/// Why a step ended, and so what the caller does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// All input was taken: come back with more.
    Input,
    /// The output slot is full: take the output and come back.
    Output,
    /// A block ended and another one follows. `bits` (0..=7) high bits of the last byte taken belong to it.
    Border { bits: u8 },
    /// The last block ended; what follows the bytes taken is not deflate any more.
    End,
}

/// The stream is not deflate; the text is zlib's own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InflateError(pub &'static str);

// SAFETY: the stream owns its state (made by inflateInit2_, freed by inflateEnd) and shares it with nobody.
unsafe impl Send for Inflate {}

impl Default for Inflate {
    fn default() -> Self {
        Inflate::new()
    }
}

impl Inflate {
    /// A decoder at the start of a deflate stream, before which lies a window of zeros.
    pub fn new() -> Inflate {
        let mut stream = Box::new(z::z_stream::default());
        // SAFETY: the stream is a valid, default-initialised z_stream; -15 asks for raw deflate with a 32 KiB window.
        let code = unsafe {
            z::inflateInit2_(&mut *stream, -15, z::zlibVersion(), std::mem::size_of::<z::z_stream>() as c_int)
        };
        assert_eq!(code, z::Z_OK, "zlib-rs refuses to start: out of memory");
        let buffer = vec![0; WINDOW + SLOT].into_boxed_slice();
        Inflate { stream, buffer, start: WINDOW, end: WINDOW }
    }

    /// Starts a new deflate stream. Matches in it cannot reach what came before, yet [`Inflate::window`] goes on over the border.
    pub fn restart(&mut self) {
        // SAFETY: the stream was initialised in `new` and not ended.
        unsafe { z::inflateReset(&mut *self.stream) };
        self.start = self.end;
    }

    /// Decodes from `input` until something stops it. The output of the step before is gone after this.
    ///
    /// # Errors
    /// When the stream breaks RFC 1951, as strictly as zlib has it.
    pub fn step(&mut self, input: &[u8]) -> Result<Step, InflateError> {
        if self.end == self.buffer.len() {
            self.buffer.copy_within(self.end - WINDOW.., 0);
            self.end = WINDOW;
        }
        self.start = self.end;
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            let room = &mut self.buffer[self.end..];
            let (given, free) = (rest.len().min(u32::MAX as usize), room.len());
            self.stream.next_in = rest.as_ptr().cast_mut();
            self.stream.avail_in = given as u32;
            self.stream.next_out = room.as_mut_ptr();
            self.stream.avail_out = free as u32;
            // SAFETY: next_in/avail_in and next_out/avail_out describe the live slices `rest` and `room`; zlib only reads
            // the first, only writes the second, and keeps neither pointer for later use.
            let code = unsafe { z::inflate(&mut *self.stream, z::Z_BLOCK) };
            let taken = given - self.stream.avail_in as usize;
            let made = free - self.stream.avail_out as usize;
            consumed += taken;
            self.end += made;
            let stop = match code {
                z::Z_STREAM_END => Some(Stop::End),
                z::Z_OK | z::Z_BUF_ERROR => {
                    let state = self.stream.data_type;
                    // zlib.h, inflate(): 128 is set right after a block's end, 64 in the last block.
                    let ended_block = state & 128 != 0 && (taken > 0 || made > 0);
                    if ended_block && state & 64 == 0 {
                        Some(Stop::Border { bits: (state & 7) as u8 })
                    } else if self.end == self.buffer.len() {
                        Some(Stop::Output)
                    } else if consumed == input.len() && !(ended_block && state & 64 != 0) {
                        Some(Stop::Input)
                    } else if taken == 0 && made == 0 && !ended_block {
                        return Err(InflateError("zlib made no progress"));
                    } else {
                        None
                    }
                }
                _ => return Err(InflateError(self.message())),
            };
            if let Some(stop) = stop {
                return Ok(Step { consumed, stop });
            }
        }
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

    fn message(&self) -> &'static str {
        if self.stream.msg.is_null() {
            return "damaged data";
        }
        // SAFETY: zlib's messages are NUL-terminated string literals.
        unsafe { std::ffi::CStr::from_ptr(self.stream.msg) }.to_str().unwrap_or("damaged data")
    }
}

impl Drop for Inflate {
    fn drop(&mut self) {
        // SAFETY: initialised in `new`, ended only here.
        unsafe { z::inflateEnd(&mut *self.stream) };
    }
}
