//! zstd (RFC 8878) as a push decoder: any number of frames, including skippable ones.
//!
//! [`ZstdReader`] decodes with libzstd. [`ZstdBlocks`] reads the blocks as far as that is needed to
//! resume at any of them: their tables, repeat offsets, and what they refer to. [`ZstdResumed`]
//! decodes from such a place.

mod after;
mod block;
mod blocks;
mod frame;
mod fse;
mod resume;
#[allow(unsafe_code, reason = "to call instructions that not every CPU has")]
mod sequences;

#[cfg(test)]
mod tests;

pub use after::zstd_state_after;
pub(crate) use block::MAX_BLOCK;
pub use blocks::{ZstdBlocks, ZstdBorder, ZstdSink};
pub use resume::{ZstdDictionary, ZstdResumed, ZstdState};
pub use sequences::ZstdReference;

use std::io;

use zstd::stream::raw::{DParameter, Decoder, Operation};

use frame::Frame;

/// The limit for the window of a frame: 128 MiB, the zstd tool's default. Decoding needs this much
/// memory.
const WINDOW_LOG: u32 = 27;
/// Buffer size for the output of one step.
const OUTPUT: usize = 128 << 10;
/// Fewer bytes than any frame has: an empty skippable one has 8 (RFC 8878 section 3.1.2).
const NO_FRAME: usize = 7;

/// Receives what a [`ZstdReader`] decodes, in its own memory.
pub trait ZstdOutput<E> {
    /// Where the next bytes go: at least one byte.
    ///
    /// # Errors
    /// If the memory limit is reached. Decoding then stops.
    fn room(&mut self) -> Result<&mut [u8], E>;

    /// The next `size` bytes were written to the start of the room.
    ///
    /// # Errors
    /// Any that should stop decoding.
    fn written(&mut self, size: usize) -> Result<(), E>;
}

/// Decodes a zstd blob pushed in chunks. Chunk boundaries do not matter.
pub struct ZstdReader {
    decoder: Decoder<'static>,
    /// The room of [`ZstdReader::push`]. Empty before the first call.
    output: Box<[u8]>,
    /// Whether the decoder is inside a frame.
    is_open: bool,
    frame: Frame,
}

crate::opaque_debug!(ZstdReader);

impl ZstdReader {
    /// Creates a reader at the start of a blob.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub fn new() -> io::Result<ZstdReader> {
        let mut decoder = Decoder::new()?;
        decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG))?;
        Ok(ZstdReader { decoder, output: Box::default(), is_open: false, frame: Frame::default() })
    }

    /// Decodes the next bytes of the blob into `sink`.
    ///
    /// # Errors
    /// Errors of zstd and of the sink.
    pub fn push<E: From<io::Error>>(
        &mut self,
        chunk: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = std::mem::take(&mut self.output);
        if buffer.is_empty() {
            buffer = vec![0; OUTPUT].into();
        }
        let mut buffered = Buffered { buffer, sink };
        let pushed = self.push_into(chunk, &mut buffered);
        self.output = buffered.buffer;
        pushed
    }

    /// Decodes the next bytes of the blob into `output`.
    ///
    /// # Errors
    /// Errors of zstd and of the output.
    pub fn push_into<E: From<io::Error>>(
        &mut self,
        mut chunk: &[u8],
        output: &mut impl ZstdOutput<E>,
    ) -> Result<(), E> {
        loop {
            if !self.is_open {
                self.frame.begin();
            }
            // Until the decoder has the frame's header, it gets small pieces. With a whole frame at
            // hand, libzstd would decode it in another way, which accepts frames that it refuses in
            // pieces. It would even do so if the input from here on looks like a whole frame, but
            // is the middle of this one.
            let most = if self.frame.has_header() { usize::MAX } else { NO_FRAME };
            let input = chunk.get(..most).unwrap_or(chunk);
            let room = output.room()?;
            let size = room.len();
            let status =
                self.decoder.run_on_buffers(input, room).map_err(|e| self.explain(e, input))?;
            let (read, rest) = chunk.split_at_checked(status.bytes_read).unwrap_or_default();
            self.frame.read(read, status.bytes_written)?;
            chunk = rest;
            output.written(status.bytes_written)?;
            let moved = status.bytes_read > 0 || status.bytes_written > 0;
            if moved {
                self.is_open = status.remaining != 0;
            }
            if moved && !self.is_open {
                self.frame.end()?;
            }
            // A full buffer may mean that more is waiting.
            if chunk.is_empty() && status.bytes_written < size {
                return Ok(());
            }
            if !moved {
                return Err(io::Error::other("the decoder makes no progress").into());
            }
        }
    }

    /// Call this at the end of the blob.
    ///
    /// # Errors
    /// If it ends inside a frame.
    pub fn finish(self) -> io::Result<()> {
        if self.is_open {
            Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the zstd data is truncated inside a frame",
            ))
        } else {
            Ok(())
        }
    }

    fn explain(&self, error: io::Error, input: &[u8]) -> io::Error {
        match self.frame.window(input).filter(|window| *window > 1 << WINDOW_LOG) {
            Some(window) => {
                let most = 1 << (WINDOW_LOG - 20);
                io::Error::other(format!(
                    "a zstd frame needs a window of {window} bytes; the limit is {most} MiB"
                ))
            }
            None => error,
        }
    }
}

/// Hands out the output in pieces.
struct Buffered<'a, S> {
    buffer: Box<[u8]>,
    sink: &'a mut S,
}

impl<E, S: FnMut(&[u8]) -> Result<(), E>> ZstdOutput<E> for Buffered<'_, S> {
    fn room(&mut self) -> Result<&mut [u8], E> {
        Ok(&mut self.buffer)
    }

    fn written(&mut self, size: usize) -> Result<(), E> {
        (self.sink)(self.buffer.get(..size).unwrap_or_default())
    }
}
