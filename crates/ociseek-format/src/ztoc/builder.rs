//! A flatbuffers writer with the same layout as Google's Go builder (flatbuffers/go builder.go):
//! equal ztocs must have equal digests, and the Rust crate shares vtables by different rules.

use super::schema;
use crate::copy::copy_short;

/// The distance of a written object from the end of the buffer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offset(u32);

/// Writes from back to front.
pub(super) struct Builder {
    /// `bytes[head..]` is written. The bytes before it are zero.
    bytes: Vec<u8>,
    head: usize,
    /// The largest alignment requested.
    alignment: usize,
    vtables: Vec<Offset>,
}

/// A table under construction.
pub(super) struct TableBuilder {
    /// For each field, its position as an [`Offset`], or 0 if it was not written.
    fields: [u32; schema::file::COUNT],
    /// The position of the table's end.
    end: u32,
}

impl Builder {
    /// A builder for a buffer of about `capacity` bytes.
    pub(super) fn with_capacity(capacity: usize) -> Builder {
        let bytes = vec![0; capacity.max(64)];
        Builder { head: bytes.len(), bytes, alignment: 1, vtables: Vec::new() }
    }

    pub(super) fn string(&mut self, text: &[u8]) -> Offset {
        self.prepare(4, text.len() + 1);
        self.skip(1);
        self.place(text);
        self.place_word((text.len() as u32).to_le_bytes());
        self.offset()
    }

    pub(super) fn byte_vector(&mut self, parts_last_first: &[&[u8]]) -> Offset {
        let length = parts_last_first.iter().map(|part| part.len()).sum::<usize>();
        self.prepare(4, length);
        for part in parts_last_first {
            self.place(part);
        }
        self.place_word((length as u32).to_le_bytes());
        self.offset()
    }

    pub(super) fn offset_vector(&mut self, offsets: &[Offset]) -> Offset {
        self.prepare(4, 4 * offsets.len());
        for &offset in offsets.iter().rev() {
            self.prepend_offset(offset);
        }
        self.place_word((offsets.len() as u32).to_le_bytes());
        self.offset()
    }

    pub(super) fn start_table(&mut self) -> TableBuilder {
        TableBuilder { fields: [0; schema::file::COUNT], end: self.offset().0 }
    }

    pub(super) fn add_offset(&mut self, table: &mut TableBuilder, field: usize, value: Offset) {
        self.prepend_offset(value);
        table.fields[field] = self.offset().0;
    }

    pub(super) fn add_i64(&mut self, table: &mut TableBuilder, field: usize, value: i64) {
        self.add_scalar(table, field, value != 0, value.to_le_bytes());
    }

    pub(super) fn add_u32(&mut self, table: &mut TableBuilder, field: usize, value: u32) {
        self.add_scalar(table, field, value != 0, value.to_le_bytes());
    }

    /// Adds a byte field.
    pub(super) fn add_u8(&mut self, table: &mut TableBuilder, field: usize, value: u8, default: u8) {
        self.add_scalar(table, field, value != default, [value]);
    }

    /// Fields with their default value are omitted.
    fn add_scalar<const N: usize>(&mut self, table: &mut TableBuilder, field: usize, differs: bool, bytes: [u8; N]) {
        if differs {
            self.prepare(N, 0);
            self.place_word(bytes);
            table.fields[field] = self.offset().0;
        }
    }

    /// Ends the table with its vtable, or with a pointer to an equal one.
    pub(super) fn end_table(&mut self, table: TableBuilder) -> Offset {
        self.prepare(4, 0);
        self.skip(4);
        let object = self.offset();
        let used = table.fields.iter().rposition(|&field| field != 0).map_or(0, |last| last + 1);
        let fields = table.fields.map(|field| if field == 0 { 0 } else { (object.0 - field) as u16 });
        let fields = &fields[..used];
        let vtable = match self.vtables.iter().rev().copied().find(|&vtable| self.vtable_has(vtable, fields)) {
            Some(vtable) => vtable,
            None => {
                for field in fields.iter().rev() {
                    self.place_word(field.to_le_bytes());
                }
                self.place_word(((object.0 - table.end) as u16).to_le_bytes());
                self.place_word(((fields.len() + 2) as u16 * 2).to_le_bytes());
                let vtable = self.offset();
                self.vtables.push(vtable);
                vtable
            }
        };
        let at = self.bytes.len() - object.0 as usize;
        let distance = vtable.0 as i32 - object.0 as i32;
        self.bytes[at..at + 4].copy_from_slice(&distance.to_le_bytes());
        object
    }

    /// Ends the buffer with a pointer to its root table.
    pub(super) fn finish(mut self, root: Offset) -> Vec<u8> {
        self.prepare(self.alignment, 4);
        self.prepend_offset(root);
        self.bytes.drain(..self.head);
        self.bytes
    }

    /// Compares only the fields, as Go does: two tables of different sizes may share a vtable.
    fn vtable_has(&self, vtable: Offset, fields: &[u16]) -> bool {
        let at = self.bytes.len() - vtable.0 as usize;
        let written = &self.bytes[at..];
        let size = usize::from(u16::from_le_bytes([written[0], written[1]]));
        size == (fields.len() + 2) * 2
            && written[4..size].chunks_exact(2).zip(fields).all(|(a, b)| a == b.to_le_bytes())
    }

    fn offset(&self) -> Offset {
        Offset((self.bytes.len() - self.head) as u32)
    }

    fn prepend_offset(&mut self, to: Offset) {
        self.prepare(4, 0);
        let distance = self.offset().0 - to.0 + 4;
        self.place_word(distance.to_le_bytes());
    }

    /// Pads so that, after `additional` more bytes, something of `size` bytes is aligned.
    #[inline]
    fn prepare(&mut self, size: usize, additional: usize) {
        self.alignment = self.alignment.max(size);
        let unaligned = self.offset().0 as usize + additional;
        self.skip(unaligned.wrapping_neg() & (size - 1));
    }

    #[inline]
    fn place(&mut self, bytes: &[u8]) {
        self.skip(bytes.len());
        copy_short(&mut self.bytes[self.head..self.head + bytes.len()], bytes);
    }

    /// Like `place`, for a length known at compile time.
    #[inline]
    fn place_word<const N: usize>(&mut self, bytes: [u8; N]) {
        self.skip(N);
        self.bytes[self.head..self.head + N].copy_from_slice(&bytes);
    }

    /// Reserves `count` zero bytes. The buffer already contains zeros.
    #[inline]
    fn skip(&mut self, count: usize) {
        if self.head < count {
            self.grow(count);
        }
        self.head -= count;
    }

    #[cold]
    fn grow(&mut self, needed: usize) {
        let extra = self.bytes.len().max(needed);
        let old = self.bytes.len();
        self.bytes.resize(old + extra, 0);
        self.bytes.copy_within(0..old, extra);
        self.bytes[..extra].fill(0);
        self.head += extra;
    }
}
