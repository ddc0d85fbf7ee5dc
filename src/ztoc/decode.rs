//! Bytes to a ztoc. They come from whoever could push to the registry: nothing in them is believed.

use super::checkpoints::{CheckpointsError, decode_gzip, decode_tar};
use super::head::{Head, head};
use super::model::{FileKind, FileMetadata, Ztoc};
use super::view::{Malformed, Table, View};
use crate::digest::{Digest, DigestError};
use crate::offset::Uncompressed;
use crate::tar::{PaxRecord, Time};

/// Why bytes are not a ztoc that can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZtocError {
    #[error("not a ztoc, or a damaged one")]
    Malformed(#[from] Malformed),
    #[error("the ztoc has more entries or text than its {0} bytes can hold: parts of it are used twice")]
    Amplified(usize),
    #[error("the ztoc is for compression algorithm {0}: 1 (gzip) and 2 (uncompressed) are known")]
    Algorithm(u8),
    #[error("the ztoc gives a negative size for the {0}")]
    NegativeSize(&'static str),
    #[error("the ztoc's checkpoints cannot be used")]
    Checkpoints(#[from] CheckpointsError),
    #[error("the ztoc has {digests} span digests and a last span {last} for {spans} checkpoints")]
    SpanCount { digests: usize, last: i32, spans: u64 },
    #[error("the digest of span {0} is none")]
    SpanDigest(usize, #[source] DigestError),
    #[error("entry {0} has an unknown type")]
    EntryType(usize),
    #[error("entry {0} has a negative or impossible offset or size")]
    EntryRange(usize),
    #[error("entry {0} has a modification time that is none")]
    EntryTime(usize),
}

/// Decodes and checks a ztoc. Time and memory are bounded by the size of `bytes`.
///
/// # Errors
/// When the buffer is malformed, or says what no reader could act on.
pub fn decode(bytes: &[u8]) -> Result<Ztoc, ZtocError> {
    let Head { version, build_tool_identifier, compressed_size, uncompressed_size, .. } = head(bytes)?;
    let root = View::new(bytes).root()?;
    let mut budget = Budget { left: bytes.len().saturating_mul(2), size: bytes.len() };
    let offsets = root.table(4)?.offsets(0)?;
    budget.take(offsets.len().saturating_mul(FILE_COST))?;
    let mut files = Vec::with_capacity(offsets.len());
    for (number, table) in offsets.tables().enumerate() {
        files.push(decode_file(number, table?, &mut budget)?);
    }

    let info = root.table(5)?;
    let stored = info.bytes(3)?;
    let checkpoints = match info.u8(0, 1)? {
        1 => decode_gzip(stored, compressed_size)?,
        2 => decode_tar(stored, compressed_size)?,
        other => return Err(ZtocError::Algorithm(other)),
    };
    let digests = info.offsets(2)?;
    let last = info.u32(1)? as i32;
    let spans = checkpoints.spans();
    if digests.len() as u64 != spans || i64::from(last) + 1 != spans as i64 {
        return Err(ZtocError::SpanCount { digests: digests.len(), last, spans });
    }
    let span_digests = digests
        .strings()
        .enumerate()
        .map(|(number, text)| {
            let text = String::from_utf8_lossy(text?);
            text.parse::<Digest>().map_err(|e| ZtocError::SpanDigest(number, e))
        })
        .collect::<Result<_, ZtocError>>()?;
    Ok(Ztoc {
        version: version.into(),
        build_tool_identifier: build_tool_identifier.into(),
        compressed_size,
        uncompressed_size,
        files,
        checkpoints,
        span_digests,
    })
}

fn decode_file(number: usize, table: Table<'_>, budget: &mut Budget) -> Result<FileMetadata, ZtocError> {
    let (name, linkname) = (budget.text(table, 0)?, budget.text(table, 4)?);
    let (uname, gname) = (budget.text(table, 8)?, budget.text(table, 9)?);
    let mut pax = Vec::new();
    for record in table.offsets(13)?.tables() {
        let record = record?;
        budget.take(RECORD_COST)?;
        pax.push(PaxRecord { key: budget.text(record, 0)?, value: budget.text(record, 1)? });
    }
    let range = |value: i64| u64::try_from(value).map_err(|_| ZtocError::EntryRange(number));
    let (offset, size) = (range(table.i64(2)?)?, range(table.i64(3)?)?);
    if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
        return Err(ZtocError::EntryRange(number));
    }
    let mtime = match table.bytes(10)? {
        b"" => None,
        text => {
            let time = std::str::from_utf8(text).ok().and_then(Time::from_rfc3339);
            Some(time.ok_or(ZtocError::EntryTime(number))?)
        }
    };
    Ok(FileMetadata {
        name,
        kind: FileKind::from_name(table.bytes(1)?).ok_or(ZtocError::EntryType(number))?,
        offset: Uncompressed(offset),
        size,
        linkname,
        mode: table.i64(5)?,
        uid: table.u32(6)?,
        gid: table.u32(7)?,
        uname,
        gname,
        mtime,
        devmajor: table.i64(11)?,
        devminor: table.i64(12)?,
        pax: pax.into(),
    })
}

/// Less than the bytes that an entry takes in a buffer at least, its six strings and its table being its own.
const FILE_COST: usize = 64;
/// The same for a PAX record.
const RECORD_COST: usize = 32;

/// Keeps what is decoded in proportion to the buffer: offsets may point at the same bytes again and again.
struct Budget {
    left: usize,
    size: usize,
}

impl Budget {
    fn take(&mut self, bytes: usize) -> Result<(), ZtocError> {
        self.left = self.left.checked_sub(bytes).ok_or(ZtocError::Amplified(self.size))?;
        Ok(())
    }

    fn text(&mut self, table: Table<'_>, field: usize) -> Result<Box<[u8]>, ZtocError> {
        let bytes = table.bytes(field)?;
        self.take(bytes.len())?;
        Ok(bytes.into())
    }
}
