//! Reads untrusted flatbuffers: every step is checked against the buffer, and strings are bytes.

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
        self.bytes.get(at..end).and_then(|bytes| bytes.try_into().ok()).ok_or(FlatbufferError::Short(at))
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
        if size < 4 || !size.is_multiple_of(2) || vtable.checked_add(size).is_none_or(|end| end > self.bytes.len()) {
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
        let Some(at) = self.field(field)? else { return Ok(Offsets { view: self.view, first: 0, count: 0 }) };
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
