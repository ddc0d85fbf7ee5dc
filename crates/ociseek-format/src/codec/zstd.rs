//! zstd (RFC 8878) as a push decoder: any number of frames, including skippable ones.

use std::io;

use zstd::stream::raw::{DParameter, Decoder, Operation};

use super::zstd_frame::Frame;

/// The limit for the window of a frame: 128 MiB, the zstd tool's default. Decoding needs this much
/// memory.
const WINDOW_LOG: u32 = 27;
/// Buffer size for the output of one step.
const OUTPUT: usize = 128 << 10;
/// Fewer bytes than any frame has: an empty skippable one has 8 (RFC 8878 section 3.1.2).
const NO_FRAME: usize = 7;

/// Decodes a zstd blob pushed in chunks. Chunk boundaries do not matter.
pub struct ZstdReader {
    decoder: Decoder<'static>,
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
        Ok(ZstdReader { decoder, output: vec![0; OUTPUT].into(), is_open: false, frame: Frame::default() })
    }

    /// Decodes the next bytes of the blob into `sink`.
    ///
    /// # Errors
    /// Errors of zstd and of the sink.
    pub fn push<E: From<io::Error>>(
        &mut self,
        mut chunk: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
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
            let status = self.decoder.run_on_buffers(input, &mut self.output).map_err(|e| self.explain(e, input))?;
            let (read, rest) = chunk.split_at_checked(status.bytes_read).unwrap_or_default();
            self.frame.read(read, status.bytes_written)?;
            chunk = rest;
            sink(self.output.get(..status.bytes_written).unwrap_or_default())?;
            let moved = status.bytes_read > 0 || status.bytes_written > 0;
            if moved {
                self.is_open = status.remaining != 0;
            }
            if moved && !self.is_open {
                self.frame.end()?;
            }
            // A full buffer may mean that more is waiting.
            if chunk.is_empty() && status.bytes_written < self.output.len() {
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
        match self.is_open {
            true => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the zstd data is truncated inside a frame")),
            false => Ok(()),
        }
    }

    fn explain(&self, error: io::Error, input: &[u8]) -> io::Error {
        match self.frame.window(input).filter(|window| *window > 1 << WINDOW_LOG) {
            Some(window) => {
                let most = 1 << (WINDOW_LOG - 20);
                io::Error::other(format!("a zstd frame needs a window of {window} bytes; the limit is {most} MiB"))
            }
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(blob: &[u8], step: usize) -> io::Result<Vec<u8>> {
        let mut reader = ZstdReader::new()?;
        let mut plain = Vec::new();
        for chunk in blob.chunks(step) {
            reader.push(chunk, &mut |bytes| {
                plain.extend_from_slice(bytes);
                io::Result::Ok(())
            })?;
        }
        reader.finish().map(|()| plain)
    }

    #[test]
    fn all_kinds_of_frames_decode_at_any_chunking() {
        let text: Vec<u8> = (0..400_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
        let frame = zstd::stream::encode_all(&text[..], 3).unwrap();
        let blob = [&skippable[..], &frame, skippable, &frame].concat();
        let expected = [&text[..], &text].concat();
        for step in [1, 7, 4096, blob.len()] {
            assert!(decode(&blob, step).unwrap() == expected, "{step}");
        }
        for cut in [1, 5, 13, frame.len() / 2, blob.len() - 1] {
            assert!(decode(&blob[..cut], 1000).is_err(), "{cut}");
        }
        assert!(decode(&[&frame[..], b"garbage"].concat(), 1000).is_err());
    }

    #[test]
    fn a_frame_that_holds_less_than_it_states_is_refused_at_any_chunking() {
        let sound = zstd::stream::encode_all(&b"sound"[..], 3).unwrap();
        // 256 bytes are stated. Two blocks hold 18, and the last one is empty.
        let frame = b"\x28\xb5\x2f\xfd\x40\0\0\0\x08\0\0\0\x8a\0\0\0\0\0\0\x01\0\0";
        let blob = [&sound[..], frame].concat();
        for step in [1, 7, 20, blob.len()] {
            assert!(decode(&blob, step).is_err(), "{step}");
        }
        let error = decode(&blob, 1).unwrap_err().to_string();
        assert_eq!(error, "a zstd frame holds 18 bytes, but its header states 256");
    }

    #[test]
    fn frames_are_refused_wherever_they_are_cut() {
        // An empty content, and a block that repeats a byte zero times.
        let repeating = b"\x28\xb5\x2f\xfd\x20\0\x02\0\0\0\x01\0\0".to_vec();
        // A dictionary whose ID is a magic number, as if a sound frame of 32 bytes began there.
        let nested = [&b"\x28\xb5\x2f\xfd\x23\x28\xb5\x2f\xfd\x20\x20\x01\x01\0"[..], &[7; 32]].concat();
        // An empty content, and a compressed block without one.
        let empty = b"\x28\xb5\x2f\xfd\x20\0\x05\0\0".to_vec();
        for frame in [repeating, nested, empty] {
            for cut in 0..=frame.len() {
                let (first, second) = frame.split_at(cut);
                let mut reader = ZstdReader::new().unwrap();
                let mut push = |part| reader.push(part, &mut |_| io::Result::Ok(()));
                assert!(push(first).and_then(|()| push(second)).is_err(), "{cut} of {frame:?}");
            }
        }
    }

    #[test]
    fn a_too_large_window_is_refused_with_its_size() {
        // Magic, a window descriptor of 2^31 bytes, and an empty last block.
        let frame = b"\x28\xb5\x2f\xfd\0\xa8\x01\0\0";
        let error = decode(frame, 100).unwrap_err().to_string();
        assert!(error.contains("2147483648 bytes") && error.contains("128 MiB"), "{error}");
    }
}
