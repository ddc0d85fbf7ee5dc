//! The flatbuffers of a ztoc: the numbers of their fields, a writer, and a reader.

use crate::copy::copy_short;

/// The root.
pub(super) mod root {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const BUILD_TOOL_IDENTIFIER: usize = 1;
    pub(crate) const COMPRESSED_SIZE: usize = 2;
    pub(crate) const UNCOMPRESSED_SIZE: usize = 3;
    pub(crate) const TOC: usize = 4;
    pub(crate) const COMPRESSION_INFO: usize = 5;
}

/// The list of files.
pub(super) mod toc {
    pub(crate) const FILES: usize = 0;
}

/// An entry of the tar.
pub(super) mod file {
    pub(crate) const NAME: usize = 0;
    pub(crate) const KIND: usize = 1;
    pub(crate) const OFFSET: usize = 2;
    pub(crate) const SIZE: usize = 3;
    pub(crate) const LINKNAME: usize = 4;
    pub(crate) const MODE: usize = 5;
    pub(crate) const UID: usize = 6;
    pub(crate) const GID: usize = 7;
    pub(crate) const UNAME: usize = 8;
    pub(crate) const GNAME: usize = 9;
    pub(crate) const MTIME: usize = 10;
    pub(crate) const DEVMAJOR: usize = 11;
    pub(crate) const DEVMINOR: usize = 12;
    pub(crate) const PAX: usize = 13;
    /// The number of fields. No other table has more.
    pub(super) const COUNT: usize = 14;
}

/// A PAX record of an entry.
pub(super) mod record {
    pub(crate) const KEY: usize = 0;
    pub(crate) const VALUE: usize = 1;
}

/// The spans.
pub(super) mod info {
    pub(crate) const ALGORITHM: usize = 0;
    pub(crate) const LAST_SPAN: usize = 1;
    pub(crate) const SPAN_DIGESTS: usize = 2;
    pub(crate) const CHECKPOINTS: usize = 3;

    /// The values of `ALGORITHM`. A missing field means gzip.
    pub(crate) const GZIP: u8 = 1;
    pub(crate) const UNCOMPRESSED: u8 = 2;
}

/// The checkpoints of a plain tar, a separate flatbuffer.
pub(super) mod tar {
    pub(crate) const VERSION: usize = 0;
    pub(crate) const SPAN_SIZE: usize = 1;
    pub(crate) const SIZE: usize = 2;
}

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
    fields: [u32; file::COUNT],
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
        TableBuilder { fields: [0; file::COUNT], end: self.offset().0 }
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
    pub(super) fn add_u8(
        &mut self,
        table: &mut TableBuilder,
        field: usize,
        value: u8,
        default: u8,
    ) {
        self.add_scalar(table, field, value != default, [value]);
    }

    /// Fields with their default value are omitted.
    fn add_scalar<const N: usize>(
        &mut self,
        table: &mut TableBuilder,
        field: usize,
        differs: bool,
        bytes: [u8; N],
    ) {
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
        let fields =
            table.fields.map(|field| if field == 0 { 0 } else { (object.0 - field) as u16 });
        let fields = &fields[..used];
        let vtable = match self
            .vtables
            .iter()
            .rev()
            .copied()
            .find(|&vtable| self.vtable_has(vtable, fields))
        {
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

/// Why a buffer is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum FlatbufferError {
    #[error("an offset at byte {0} points outside the buffer")]
    Offset(usize),
    #[error("the buffer ends inside the value at byte {0}")]
    Short(usize),
    #[error("the vector at byte {0} is longer than the buffer")]
    Vector(usize),
    #[error("the table at byte {0} has a vtable that makes no sense")]
    Vtable(usize),
    #[error("required field {1} of the table at byte {0} is missing")]
    Missing(usize, usize),
}

/// A buffer.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    bytes: &'a [u8],
}

/// A table in a buffer.
#[derive(Clone, Copy)]
pub(super) struct TableView<'a> {
    view: View<'a>,
    at: usize,
    /// Where the vtable's fields start, and their number.
    fields: usize,
    count: usize,
}

/// A vector of offsets.
#[derive(Clone, Copy)]
pub(super) struct Offsets<'a> {
    view: View<'a>,
    first: usize,
    count: usize,
}

impl<'a> View<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> View<'a> {
        View { bytes }
    }

    pub(super) fn root(self) -> Result<TableView<'a>, FlatbufferError> {
        self.table(self.follow(0)?)
    }

    fn array<const N: usize>(self, at: usize) -> Result<[u8; N], FlatbufferError> {
        let end = at.checked_add(N).ok_or(FlatbufferError::Short(at))?;
        self.bytes
            .get(at..end)
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or(FlatbufferError::Short(at))
    }

    /// The target of the offset at `at`, which always points forward.
    fn follow(self, at: usize) -> Result<usize, FlatbufferError> {
        let to = at.checked_add(u32::from_le_bytes(self.array(at)?) as usize);
        to.filter(|&to| to < self.bytes.len() && to > at).ok_or(FlatbufferError::Offset(at))
    }

    fn table(self, at: usize) -> Result<TableView<'a>, FlatbufferError> {
        let back = i64::from(i32::from_le_bytes(self.array(at)?));
        let vtable = usize::try_from(at as i64 - back).map_err(|_| FlatbufferError::Vtable(at))?;
        let size = usize::from(u16::from_le_bytes(self.array(vtable)?));
        if size < 4
            || !size.is_multiple_of(2)
            || vtable.checked_add(size).is_none_or(|end| end > self.bytes.len())
        {
            return Err(FlatbufferError::Vtable(at));
        }
        Ok(TableView { view: self, at, fields: vtable + 4, count: (size - 4) / 2 })
    }

    /// The bytes of a vector (or string) whose length is stored at `at`.
    fn vector(self, at: usize, element: usize) -> Result<(usize, usize), FlatbufferError> {
        let count = u32::from_le_bytes(self.array(at)?) as usize;
        let end = count.checked_mul(element).and_then(|bytes| bytes.checked_add(at + 4));
        match end {
            Some(end) if end <= self.bytes.len() => Ok((at + 4, count)),
            _ => Err(FlatbufferError::Vector(at)),
        }
    }

    fn byte_vector(self, at: usize) -> Result<&'a [u8], FlatbufferError> {
        let (first, count) = self.vector(at, 1)?;
        Ok(&self.bytes[first..first + count])
    }
}

impl<'a> TableView<'a> {
    /// The position of a field, if it is present.
    fn field(self, field: usize) -> Result<Option<usize>, FlatbufferError> {
        if field >= self.count {
            return Ok(None);
        }
        let offset = usize::from(u16::from_le_bytes(self.view.array(self.fields + 2 * field)?));
        Ok((offset != 0).then_some(self.at + offset))
    }

    pub(super) fn i64(self, field: usize) -> Result<i64, FlatbufferError> {
        self.field(field)?.map_or(Ok(0), |at| Ok(i64::from_le_bytes(self.view.array(at)?)))
    }

    pub(super) fn u32(self, field: usize) -> Result<u32, FlatbufferError> {
        self.field(field)?.map_or(Ok(0), |at| Ok(u32::from_le_bytes(self.view.array(at)?)))
    }

    pub(super) fn u8(self, field: usize, default: u8) -> Result<u8, FlatbufferError> {
        self.field(field)?.map_or(Ok(default), |at| Ok(self.view.array::<1>(at)?[0]))
    }

    /// A string or byte vector; empty if it is missing.
    pub(super) fn bytes(self, field: usize) -> Result<&'a [u8], FlatbufferError> {
        self.field(field)?.map_or(Ok(&[][..]), |at| self.view.byte_vector(self.view.follow(at)?))
    }

    pub(super) fn table(self, field: usize) -> Result<TableView<'a>, FlatbufferError> {
        let at = self.field(field)?.ok_or(FlatbufferError::Missing(self.at, field))?;
        self.view.table(self.view.follow(at)?)
    }

    /// A vector of tables or strings; empty if it is missing.
    pub(super) fn offsets(self, field: usize) -> Result<Offsets<'a>, FlatbufferError> {
        let Some(at) = self.field(field)? else {
            return Ok(Offsets { view: self.view, first: 0, count: 0 });
        };
        let (first, count) = self.view.vector(self.view.follow(at)?, 4)?;
        Ok(Offsets { view: self.view, first, count })
    }
}

impl<'a> Offsets<'a> {
    pub(super) fn len(self) -> usize {
        self.count
    }

    pub(super) fn tables(self) -> impl Iterator<Item = Result<TableView<'a>, FlatbufferError>> {
        (0..self.count).map(move |i| self.view.table(self.view.follow(self.first + 4 * i)?))
    }

    pub(super) fn strings(self) -> impl Iterator<Item = Result<&'a [u8], FlatbufferError>> {
        (0..self.count).map(move |i| self.view.byte_vector(self.view.follow(self.first + 4 * i)?))
    }
}
