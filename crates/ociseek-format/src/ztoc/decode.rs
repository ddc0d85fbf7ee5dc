//! Decodes a ztoc, or only its root. The bytes are untrusted: anyone who can push to the registry
//! may have made them.

use super::checkpoints::{CheckpointsError, decode_gzip, decode_tar, gzip_head};
use super::flatbuffer::{FlatbufferError, TableView, View, file, info, record, root, toc};
use super::{FileKind, FileMetadata, Ztoc, short_footprint, text_footprint};
use crate::budget::{self, Charge, OverBudget};
use crate::digest::{Digest, DigestError};
use crate::offset::{Compressed, SpanId, SpanSize, Uncompressed};
use crate::tar::{PaxRecord, ShortText};
use crate::time::Time;

/// Why bytes are not a usable ztoc.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ZtocError {
    #[error("not a ztoc, or a damaged one")]
    Malformed(#[from] FlatbufferError),
    #[error("the ztoc has more entries or text than its {0} bytes can hold: it reuses its parts")]
    Amplified(usize),
    #[error("the ztoc does not fit into memory")]
    Memory(#[from] OverBudget),
    #[error("unknown compression algorithm {0} in the ztoc (1 is gzip, 2 is uncompressed)")]
    Algorithm(u8),
    #[error("the ztoc gives a negative size for the {0}")]
    NegativeSize(&'static str),
    #[error("the ztoc's checkpoints cannot be used")]
    Checkpoints(#[from] CheckpointsError),
    #[error("the ztoc has {digests} span digests and a last span {last} for {spans} checkpoints")]
    SpanCount { digests: usize, last: i32, spans: u64 },
    #[error("span {0} has an invalid digest")]
    SpanDigest(SpanId, #[source] DigestError),
    #[error("entry {0} has an unknown type")]
    EntryType(usize),
    #[error("entry {0} has a negative or impossible offset or size")]
    EntryRange(usize),
    #[error("entry {0} has an invalid modification time")]
    EntryTime(usize),
}

/// Decodes and checks a ztoc. Time and memory are bounded by the size of `bytes`.
///
/// # Errors
/// If the buffer is malformed, or its values make no sense to a reader.
pub fn decode(bytes: &[u8]) -> Result<Ztoc, ZtocError> {
    decode_within(bytes, &mut budget::Budget::new(u64::MAX).open())
}

/// Like [`decode`], with a budget: `charge` grows by the memory of the ztoc before it is allocated.
///
/// # Errors
/// As [`decode`], and [`ZtocError::Memory`] if it does not fit.
pub fn decode_within(bytes: &[u8], charge: &mut Charge) -> Result<Ztoc, ZtocError> {
    let Head { version, build_tool_identifier, compressed_size, uncompressed_size, .. } =
        head(bytes)?;
    let root = View::new(bytes).root()?;
    let mut budget = Budget { left: bytes.len().saturating_mul(2), size: bytes.len(), charge };
    let offsets = root.table(root::TOC)?.offsets(toc::FILES)?;
    budget.take(offsets.len().saturating_mul(FILE_COST))?;
    budget.charge(offsets.len().saturating_mul(size_of::<FileMetadata>()))?;
    let mut files = Vec::with_capacity(offsets.len());
    for (number, table) in offsets.tables().enumerate() {
        files.push(decode_file(number, table?, &mut budget)?);
    }

    let info = root.table(root::COMPRESSION_INFO)?;
    let stored = info.bytes(info::CHECKPOINTS)?;
    // Each window is allocated separately; its numbers take no more memory than in the buffer.
    budget.charge(stored.len() + stored.len() / 256)?;
    let checkpoints = match info.u8(info::ALGORITHM, info::GZIP)? {
        info::GZIP => decode_gzip(stored, compressed_size)?,
        info::UNCOMPRESSED => decode_tar(stored, compressed_size)?,
        other => return Err(ZtocError::Algorithm(other)),
    };
    let digests = info.offsets(info::SPAN_DIGESTS)?;
    let last = info.u32(info::LAST_SPAN)? as i32;
    let spans = checkpoints.spans();
    if digests.len() as u64 != spans || i64::from(last) + 1 != spans as i64 {
        return Err(ZtocError::SpanCount { digests: digests.len(), last, spans });
    }
    budget.take(digests.len().saturating_mul(DIGEST_COST))?;
    budget.charge(digests.len().saturating_mul(size_of::<Digest>()))?;
    let span_digests = (0..)
        .zip(digests.strings())
        .map(|(number, text)| {
            let text = String::from_utf8_lossy(text?);
            text.parse::<Digest>().map_err(|e| ZtocError::SpanDigest(SpanId(number), e))
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

fn decode_file(
    number: usize,
    table: TableView<'_>,
    budget: &mut Budget<'_>,
) -> Result<FileMetadata, ZtocError> {
    let name = budget.text(table, file::NAME)?;
    let linkname = budget.text(table, file::LINKNAME)?;
    let uname = budget.short(table, file::UNAME)?;
    let gname = budget.short(table, file::GNAME)?;
    let mut pax = Vec::new();
    for record in table.offsets(file::PAX)?.tables() {
        let record = record?;
        budget.take(RECORD_COST)?;
        budget.charge(size_of::<PaxRecord>())?;
        pax.push(PaxRecord {
            key: budget.short(record, record::KEY)?,
            value: budget.short(record, record::VALUE)?,
        });
    }
    let range = |value: i64| u64::try_from(value).map_err(|_| ZtocError::EntryRange(number));
    let offset = range(table.i64(file::OFFSET)?)?;
    let size = range(table.i64(file::SIZE)?)?;
    if offset.checked_add(size).is_none_or(|end| end > i64::MAX as u64) {
        return Err(ZtocError::EntryRange(number));
    }
    let mtime = match table.bytes(file::MTIME)? {
        b"" => None,
        text => {
            let time = std::str::from_utf8(text).ok().and_then(Time::from_rfc3339);
            Some(time.ok_or(ZtocError::EntryTime(number))?)
        }
    };
    Ok(FileMetadata {
        name,
        kind: FileKind::from_name(table.bytes(file::KIND)?).ok_or(ZtocError::EntryType(number))?,
        offset: Uncompressed(offset),
        size,
        linkname,
        mode: table.i64(file::MODE)?,
        uid: table.u32(file::UID)?,
        gid: table.u32(file::GID)?,
        uname,
        gname,
        mtime,
        devmajor: table.i64(file::DEVMAJOR)?,
        devminor: table.i64(file::DEVMINOR)?,
        pax: pax.into(),
    })
}

/// A lower bound for the size of an entry in a buffer, with its table and its six strings, in
/// bytes.
const FILE_COST: usize = 64;
/// A lower bound for the size of a PAX record, in bytes.
const RECORD_COST: usize = 32;

/// The size of the shortest valid digest, `sha256:` and 64 digits, in bytes. Each span has its own.
const DIGEST_COST: usize = 71;

/// Keeps the decoded data in proportion to the buffer, since many offsets can point to the same
/// bytes, and charges the memory it takes.
struct Budget<'a> {
    left: usize,
    size: usize,
    charge: &'a mut Charge,
}

impl Budget<'_> {
    fn charge(&mut self, bytes: usize) -> Result<(), ZtocError> {
        let size = self.size;
        Ok(self.charge.grow(bytes as u64, || format!("what a ztoc of {size} bytes holds"))?)
    }

    fn take(&mut self, bytes: usize) -> Result<(), ZtocError> {
        self.left = self.left.checked_sub(bytes).ok_or(ZtocError::Amplified(self.size))?;
        Ok(())
    }

    fn text(&mut self, table: TableView<'_>, field: usize) -> Result<Box<[u8]>, ZtocError> {
        let bytes = table.bytes(field)?;
        self.take(bytes.len())?;
        self.charge(text_footprint(bytes.len()))?;
        Ok(bytes.into())
    }

    fn short<const SHORT: usize>(
        &mut self,
        table: TableView<'_>,
        field: usize,
    ) -> Result<ShortText<SHORT>, ZtocError> {
        let bytes = table.bytes(field)?;
        self.take(bytes.len())?;
        self.charge(short_footprint::<SHORT>(bytes.len()))?;
        Ok(bytes.into())
    }
}

/// The root of a ztoc. Its values are unchecked and can be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The version of the ztoc's format.
    pub version: &'a [u8],
    /// The tool that built the ztoc.
    pub build_tool_identifier: &'a [u8],
    /// Size of the blob in bytes.
    pub compressed_size: Compressed,
    /// The size of the tar in bytes.
    pub uncompressed_size: Uncompressed,
    /// Minimum number of tar bytes between two checkpoints.
    pub span_size: SpanSize,
    /// The number of spans that it claims to have.
    pub spans: u64,
}

/// Reads the root of a ztoc in constant time, without allocating memory.
///
/// # Errors
/// If the root is malformed, or its values make no sense to a reader.
pub fn head(bytes: &[u8]) -> Result<Head<'_>, ZtocError> {
    let root = View::new(bytes).root()?;
    let size =
        |field, what| u64::try_from(root.i64(field)?).map_err(|_| ZtocError::NegativeSize(what));
    let compressed_size = Compressed(size(root::COMPRESSED_SIZE, "compressed layer")?);
    let uncompressed_size = Uncompressed(size(root::UNCOMPRESSED_SIZE, "uncompressed layer")?);
    let info = root.table(root::COMPRESSION_INFO)?;
    let stored = info.bytes(info::CHECKPOINTS)?;
    let (spans, span_size) = match info.u8(info::ALGORITHM, info::GZIP)? {
        info::GZIP => gzip_head(stored)?,
        info::UNCOMPRESSED => {
            let table = decode_tar(stored, compressed_size)?;
            (table.spans(), table.span_size())
        }
        other => return Err(ZtocError::Algorithm(other)),
    };
    let version = root.bytes(root::VERSION)?;
    let build_tool_identifier = root.bytes(root::BUILD_TOOL_IDENTIFIER)?;
    Ok(Head {
        version,
        build_tool_identifier,
        compressed_size,
        uncompressed_size,
        span_size,
        spans,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::WINDOW;
    use crate::ztoc::{Checkpoint, Checkpoints, CheckpointsError, VERSION, Ztoc, encode};

    fn size(bytes: u64) -> SpanSize {
        SpanSize::new(bytes).unwrap()
    }

    fn ztoc(checkpoints: Checkpoints) -> Ztoc {
        Ztoc {
            version: VERSION.into(),
            build_tool_identifier: b"tool".as_slice().into(),
            compressed_size: Compressed(1000),
            uncompressed_size: Uncompressed(5000),
            files: Vec::new(),
            checkpoints,
            span_digests: Vec::new(),
        }
    }

    #[test]
    fn the_head_round_trips() {
        let checkpoint = |n: u64| Checkpoint {
            input: Compressed(10 + n),
            output: Uncompressed(n),
            bits: 0,
            window: Box::new([0; WINDOW]),
        };
        let gzip =
            Checkpoints::Gzip { span_size: size(64), list: vec![checkpoint(0), checkpoint(100)] };
        let plain = Checkpoints::Uncompressed { span_size: size(300), size: 1000 };
        for (checkpoints, spans, span_size) in [(gzip, 2, 64), (plain, 4, 300)] {
            let bytes = encode(&ztoc(checkpoints));
            let expected = Head {
                version: VERSION,
                build_tool_identifier: b"tool",
                compressed_size: Compressed(1000),
                uncompressed_size: Uncompressed(5000),
                span_size: size(span_size),
                spans,
            };
            assert_eq!(head(&bytes), Ok(expected));
            for cut in 0..bytes.len().min(64) {
                assert!(head(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn unusable_heads_are_refused() {
        let mut bad = ztoc(Checkpoints::Uncompressed { span_size: size(0x0102_0304), size: 1000 });
        let encoded = encode(&bad);
        let stored = 0x0102_0304_u64.to_le_bytes();
        let at = encoded.windows(8).position(|bytes| bytes == stored).unwrap();
        for wrong in [0, -1, i64::MIN] {
            let mut encoded = encoded.clone();
            encoded[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            let expected = ZtocError::Checkpoints(CheckpointsError::SpanSize(wrong));
            assert_eq!(head(&encoded), Err(expected));
        }
        bad.checkpoints = Checkpoints::Uncompressed { span_size: size(300), size: 999 };
        assert!(matches!(head(&encode(&bad)), Err(ZtocError::Checkpoints(_))));
        bad.compressed_size = Compressed(u64::MAX);
        assert!(matches!(head(&encode(&bad)), Err(ZtocError::NegativeSize(_))));
    }
}
