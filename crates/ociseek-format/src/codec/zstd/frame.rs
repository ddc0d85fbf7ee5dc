//! What libzstd does not check when frames arrive in pieces: their sizes, and that no block is
//! empty where it may not be.

use std::io;

use super::resume::window_size;

/// The maximum size of a frame's header in bytes (RFC 8878 section 3.1.1.1).
const HEAD: usize = 18;

/// A frame as far as it has been decoded.
#[derive(Default)]
pub(super) struct Frame {
    /// Its first bytes.
    head: Vec<u8>,
    /// How many bytes of content it has held so far.
    held: u64,
    /// None before its header is complete, and in skippable frames.
    blocks: Option<Blocks>,
}

impl Frame {
    /// Goes to the next frame.
    pub(super) fn begin(&mut self) {
        self.head.clear();
        self.held = 0;
        self.blocks = None;
    }

    /// Whether its header was read.
    pub(super) fn has_header(&self) -> bool {
        self.blocks.is_some() || self.head.len() >= HEAD
    }

    /// Its next bytes were decoded to `held` bytes of content.
    ///
    /// # Errors
    /// If a block is invalid.
    pub(super) fn read(&mut self, bytes: &[u8], held: usize) -> io::Result<()> {
        self.held = self.held.saturating_add(held as u64);
        if let Some(blocks) = &mut self.blocks {
            return blocks.read(bytes);
        }
        if self.has_header() {
            return Ok(());
        }
        self.head.extend_from_slice(bytes);
        let Some(head) = FrameHead::read(&self.head) else { return Ok(()) };
        self.blocks.insert(Blocks::default()).read(self.head.get(head.length..).unwrap_or_default())
    }

    /// Compares the size of a frame that has ended with the size in its header. libzstd does not if
    /// the last block is empty.
    ///
    /// # Errors
    /// If they differ.
    pub(super) fn end(&self) -> io::Result<()> {
        match FrameHead::read(&self.head).and_then(|head| head.content) {
            Some(stated) if stated != self.held => Err(io::Error::other(format!(
                "a zstd frame holds {} bytes, but its header states {stated}",
                self.held
            ))),
            _ => Ok(()),
        }
    }

    /// The size of its window in bytes, if that is known with the bytes `next`.
    pub(super) fn window(&self, next: &[u8]) -> Option<u64> {
        let head: Vec<u8> = self.head.iter().chain(next).take(HEAD).copied().collect();
        FrameHead::read(&head).map(|head| head.window)
    }
}

/// The sizes in a frame's header (RFC 8878 section 3.1.1.1), in bytes.
pub(super) struct FrameHead {
    pub window: u64,
    /// The size of the content, if it is stated.
    content: Option<u64>,
    /// The size of the header itself.
    pub length: usize,
    /// Whether a checksum follows the last block.
    pub has_checksum: bool,
}

impl FrameHead {
    /// None if this is too short, or the start of a skippable frame.
    pub(super) fn read(head: &[u8]) -> Option<FrameHead> {
        let rest = head.strip_prefix(b"\x28\xb5\x2f\xfd")?;
        let (&descriptor, mut rest) = rest.split_first()?;
        let is_single = descriptor & 0x20 != 0;
        let mut window = None;
        if !is_single {
            let (&byte, after) = rest.split_first()?;
            window = Some(window_size(byte));
            rest = after;
        }
        let id = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let size = match descriptor >> 6 {
            0 => usize::from(is_single),
            log => 1 << log,
        };
        let (content, rest) = rest.get(id..)?.split_at_checked(size)?;
        let number = content.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b));
        let content = match size {
            0 => None,
            2 => Some(number + 256),
            _ => Some(number),
        };
        // The window of a single segment is as large as the content.
        let length = head.len() - rest.len();
        let has_checksum = descriptor & 4 != 0;
        Some(FrameHead { window: window.or(content)?, content, length, has_checksum })
    }
}

/// The blocks of a frame (RFC 8878 section 3.1.1.2), without their content.
#[derive(Default)]
struct Blocks {
    /// How many bytes remain until the next block's header.
    left: u64,
    header: Vec<u8>,
}

impl Blocks {
    /// # Errors
    /// If a compressed block is empty. libzstd reads such a block as one of no bytes, unless it has
    /// the whole frame at once.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            let passed = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            self.left -= passed as u64;
            let Some((&byte, rest)) = bytes.get(passed..).and_then(<[u8]>::split_first) else {
                return Ok(());
            };
            bytes = rest;
            self.header.push(byte);
            if let [low, middle, high] = self.header[..] {
                let header = u32::from_le_bytes([low, middle, high, 0]);
                let is_last = header & 1 == 1;
                let kind = header >> 1 & 3;
                let size = u64::from(header >> 3);
                self.left = match (kind, size) {
                    (2, 0) => {
                        return Err(io::Error::other(
                            "a compressed block of a zstd frame is empty",
                        ));
                    }
                    (1, _) => 1,
                    _ => size,
                };
                if is_last {
                    // Only a checksum follows.
                    self.left = u64::MAX;
                }
                self.header.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_end_where_the_format_says() {
        for (descriptor, length) in [
            // A window, no ID of a dictionary, no size.
            (0x00, 6),
            (0x04, 6),
            // No window, and a size.
            (0x20, 6),
            (0x60, 7),
            (0xa0, 9),
            (0xe0, 13),
            // Both.
            (0x40, 8),
            (0xc0, 14),
            // And an ID.
            (0x01, 7),
            (0x02, 8),
            (0x03, 10),
            (0xc3, 18),
        ] {
            let mut frame = Frame::default();
            let header = [&b"\x28\xb5\x2f\xfd"[..], &[descriptor], &[1; 13]].concat();
            for (at, byte) in header[..length].iter().enumerate() {
                assert!(!frame.has_header(), "{descriptor:#x}: after {at} bytes");
                frame.read(&[*byte], 0).unwrap();
            }
            assert!(frame.has_header(), "{descriptor:#x}");
        }
    }

    #[test]
    fn a_skippable_frame_has_no_blocks() {
        let mut frame = Frame::default();
        // As a header of a block, these bytes would be invalid.
        frame.read(&[&b"\x50\x2a\x4d\x18"[..], &[5, 0, 0, 0], &[5, 0, 0]].concat(), 0).unwrap();
        frame.read(&[5, 0, 0].repeat(9), 0).unwrap();
        assert!(frame.has_header() && frame.end().is_ok());
    }
}
