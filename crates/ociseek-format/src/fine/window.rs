//! Windows that keep only the bytes that are referred to.

use super::varint::{self, Reader};
use super::{BLOCK, FineError};
use crate::codec::{UsedBytes, WINDOW};

/// What decoding a span needs in addition to its fetched bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpanWindow {
    /// The bytes of the blob from the span's first byte to the next border: at most 64.
    pub(super) lead: Box<[u8]>,
    /// The parts of the 32 KiB before the span that it refers to. For each part: how many bytes are
    /// skipped before it, and its length minus one.
    parts: Box<[(u16, u16)]>,
    /// The bytes of all parts.
    bytes: Box<[u8]>,
}

impl SpanWindow {
    /// Creates a span's window from its bytes before the border and the bytes of `window`, the 32
    /// KiB before the span, that are `used`.
    ///
    /// # Panics
    /// If `lead` has more than 64 bytes.
    pub fn new(lead: &[u8], window: &[u8; WINDOW], used: &UsedBytes) -> SpanWindow {
        /// Most ranges are shorter. Copying this many bytes takes less time than calling memcpy.
        const COPY: usize = 32;
        // Counted first, so that nothing grows.
        let (count, size) = used.ranges().fold((0, 0), |(count, size), range| (count + 1, size + range.len()));
        let (mut parts, mut bytes) = (Vec::with_capacity(count), vec![0; size + COPY]);
        let (mut at, mut end) = (0, 0);
        for range in used.ranges() {
            parts.push(((range.start - at) as u16, (range.len() - 1) as u16));
            at = range.end;
            let (from, to) = (&window[range.start..], &mut bytes[end..]);
            match (from.first_chunk::<COPY>(), to.first_chunk_mut::<COPY>()) {
                // The next range overwrites what follows this one.
                (Some(from), Some(to)) if range.len() <= COPY => *to = *from,
                _ => to[..range.len()].copy_from_slice(&from[..range.len()]),
            }
            end += range.len();
        }
        bytes.truncate(size);
        SpanWindow { lead: Box::default(), parts: parts.into(), bytes: bytes.into() }.led_by(lead)
    }

    /// Replaces the lead.
    pub(crate) fn led_by(self, lead: &[u8]) -> SpanWindow {
        assert!(lead.len() as u64 <= BLOCK, "a border is the next multiple of 64");
        SpanWindow { lead: lead.into(), ..self }
    }

    /// The bytes of the blob from the span's first byte to the next border.
    pub fn lead(&self) -> &[u8] {
        &self.lead
    }

    /// The number of window bytes that the span refers to.
    pub fn used(&self) -> usize {
        self.bytes.len()
    }

    /// The whole window, oldest byte first. Bytes that the span does not refer to are `fill`.
    pub fn expand(&self, fill: u8) -> Box<[u8; WINDOW]> {
        let mut window = Box::new([fill; WINDOW]);
        for (from, part) in self.parts() {
            window[from..from + part.len()].copy_from_slice(part);
        }
        window
    }

    /// Whether the bytes that are not left out are those of `window`.
    pub fn is_part_of(&self, window: &[u8; WINDOW]) -> bool {
        self.parts().all(|(from, part)| window[from..from + part.len()] == *part)
    }

    /// The parts, each with where it begins in the window.
    fn parts(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let (mut at, mut bytes) = (0, &self.bytes[..]);
        self.parts.iter().map(move |&(gap, more)| {
            let (from, length) = (at + usize::from(gap), usize::from(more) + 1);
            let (part, rest) = bytes.split_at(length);
            (at, bytes) = (from + length, rest);
            (from, part)
        })
    }

    /// Approximate memory use in bytes.
    pub fn footprint(&self) -> usize {
        size_of::<SpanWindow>() + self.lead.len() + size_of_val(&self.parts[..]) + self.bytes.len() + 3 * 16
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.lead);
        varint::put(out, self.parts.len() as u64);
        for &(gap, more) in &self.parts {
            varint::put(out, gap.into());
            varint::put(out, more.into());
        }
        out.extend_from_slice(&self.bytes);
    }

    /// Reads a window with a lead of `lead` bytes, as [`SpanWindow::write`] wrote it.
    ///
    /// # Errors
    /// If the bytes are not a valid window.
    pub(super) fn read(reader: &mut Reader<'_>, lead: usize) -> Result<SpanWindow, FineError> {
        let lead = reader.bytes(lead)?.into();
        let count = reader.length()?;
        // Parts do not touch, so there are at most half as many parts as bytes.
        if count > WINDOW / 2 {
            return Err(reader.out_of_range());
        }
        let (mut parts, mut end, mut size) = (Vec::with_capacity(count), 0u64, 0);
        for number in 0..count {
            let (gap, more) = (reader.number()?, reader.number()?);
            let limit = WINDOW as u64;
            if gap >= limit || more >= limit || (gap == 0 && number > 0) {
                return Err(reader.out_of_range());
            }
            end += gap + more + 1;
            if end > limit {
                return Err(reader.out_of_range());
            }
            size += more as usize + 1;
            parts.push((gap as u16, more as u16));
        }
        Ok(SpanWindow { lead, parts: parts.into(), bytes: reader.bytes(size)?.into() })
    }
}
