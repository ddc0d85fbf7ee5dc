//! The list of files, stored column by column because the values of a column are similar.

use super::FineError;
use super::wire::{Reader, put, put_signed};
use crate::budget::Charge;
use crate::offset::Uncompressed;
use crate::tar::{self, OwnerName, PaxRecord, PaxText};
use crate::time::Time;
use crate::ztoc::{
    ExtentFault, FileKind, FileMetadata, check_extents, short_footprint, text_footprint,
};

const SECTION: &str = "entries";
/// The least bytes of an entry: one for each of the columns that are always present.
pub(super) const LEAST: usize = 14;
/// The limit for the names of all entries together, in bytes. Each can repeat most of the previous
/// one, so few stored bytes can expand to many.
const MAX_NAMES: usize = 256 << 20;
/// Set in the kind's byte if the entry has a time.
const HAS_TIME: u8 = 8;
/// File kinds, indexed by their numbers in the format.
const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::HardLink,
    FileKind::CharDevice,
    FileKind::BlockDevice,
    FileKind::Fifo,
];

/// Writes all columns.
pub(crate) fn encode(files: &[FileMetadata]) -> Vec<u8> {
    let mut out = Vec::with_capacity(files.len() * 32);
    for file in files {
        let kind = KINDS.iter().position(|kind| *kind == file.kind).unwrap_or(0) as u8;
        out.push(kind | if file.mtime.is_some() { HAS_TIME } else { 0 });
    }
    let names = || {
        files.iter().scan(&b""[..], |before, file| {
            Some((std::mem::replace(before, &file.name), &file.name))
        })
    };
    names().for_each(|(before, name)| put(&mut out, common(before, name) as u64));
    names().for_each(|(before, name)| put(&mut out, (name.len() - common(before, name)) as u64));
    names().for_each(|(before, name)| out.extend_from_slice(&name[common(before, name)..]));
    files.iter().for_each(|file| put(&mut out, file.size));
    let mut expected = tar::BLOCK as u64;
    for file in files {
        put_signed(&mut out, file.offset.0.wrapping_sub(expected) as i64);
        expected = next_data(file.offset.0, file.size);
    }
    texts(&mut out, files.iter().map(|file| &file.linkname[..]));
    files.iter().for_each(|file| put_signed(&mut out, file.mode));
    files.iter().for_each(|file| put(&mut out, file.uid.into()));
    files.iter().for_each(|file| put(&mut out, file.gid.into()));
    texts(&mut out, files.iter().map(|file| &file.uname[..]));
    texts(&mut out, files.iter().map(|file| &file.gname[..]));
    let times = || files.iter().filter_map(|file| file.mtime);
    let mut before = 0i64;
    for time in times() {
        put_signed(&mut out, time.seconds.wrapping_sub(before));
        before = time.seconds;
    }
    times().for_each(|time| put(&mut out, time.nanos.into()));
    files.iter().for_each(|file| put_signed(&mut out, file.devmajor));
    files.iter().for_each(|file| put_signed(&mut out, file.devminor));
    files.iter().for_each(|file| put(&mut out, file.pax.len() as u64));
    let records = || files.iter().flat_map(|file| &file.pax);
    texts(&mut out, records().map(|record| &record.key[..]));
    texts(&mut out, records().map(|record| &record.value[..]));
    out
}

/// Where the next entry's data start if its header is a single block. Only the difference is
/// stored, which is then usually 0.
fn next_data(offset: u64, size: u64) -> u64 {
    let block = tar::BLOCK as u64;
    let end = offset.wrapping_add(size);
    end.wrapping_add(end.wrapping_neg() % block).wrapping_add(block)
}

/// The length of the common prefix of two names.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Writes the lengths of the texts, followed by their bytes.
fn texts<'a>(out: &mut Vec<u8>, texts: impl Iterator<Item = &'a [u8]> + Clone) {
    texts.clone().for_each(|text| put(out, text.len() as u64));
    texts.for_each(|text| out.extend_from_slice(text));
}

/// Reads `count` entries that [`encode`] wrote. `memory` grows by what they take.
///
/// # Errors
/// If the bytes are not valid or the entries do not fit into memory.
pub(crate) fn decode(
    plain: &[u8],
    count: usize,
    memory: &mut Charge,
) -> Result<Vec<FileMetadata>, FineError> {
    let mut reader = Reader::new(plain, SECTION);
    if count > plain.len() / LEAST {
        return Err(FineError::Short(SECTION));
    }
    charge(memory, count * size_of::<FileMetadata>())?;
    let mut files = Vec::with_capacity(count);
    let kinds = reader.bytes(count)?;
    for (number, byte) in kinds.iter().enumerate() {
        let kind = KINDS.get(usize::from(byte & !HAS_TIME)).ok_or(FineError::EntryType(number))?;
        files.push(FileMetadata { kind: *kind, ..FileMetadata::default() });
    }
    names(&mut reader, &mut files, memory)?;
    for file in &mut files {
        file.size = reader.number()?;
    }
    let mut expected = tar::BLOCK as u64;
    for file in &mut files {
        file.offset = Uncompressed(expected.wrapping_add_signed(reader.signed()?));
        expected = next_data(file.offset.0, file.size);
    }
    let mut linknames = files.iter_mut().map(|file| &mut file.linkname);
    read_texts(&mut reader, count, memory, text_footprint, &mut linknames)?;
    for file in &mut files {
        file.mode = reader.signed()?;
    }
    for file in &mut files {
        file.uid = reader.u32()?;
    }
    for file in &mut files {
        file.gid = reader.u32()?;
    }
    let mut unames = files.iter_mut().map(|file| &mut file.uname);
    read_texts(&mut reader, count, memory, short_footprint::<{ OwnerName::SHORT }>, &mut unames)?;
    let mut gnames = files.iter_mut().map(|file| &mut file.gname);
    read_texts(&mut reader, count, memory, short_footprint::<{ OwnerName::SHORT }>, &mut gnames)?;
    times(&mut reader, &mut files, kinds)?;
    for file in &mut files {
        file.devmajor = reader.signed()?;
    }
    for file in &mut files {
        file.devminor = reader.signed()?;
    }
    records(&mut reader, &mut files, memory)?;
    reader.end()?;
    Ok(files)
}

fn charge(memory: &mut Charge, bytes: usize) -> Result<(), FineError> {
    Ok(memory.grow(bytes as u64, || "the list of files of a fine document".to_owned())?)
}

fn names(
    reader: &mut Reader<'_>,
    files: &mut [FileMetadata],
    memory: &mut Charge,
) -> Result<(), FineError> {
    let mut shared = reader.column(files.len())?;
    let mut own = reader.column(files.len())?;
    let mut all = 0usize;
    let mut before: &[u8] = b"";
    for (number, file) in files.iter_mut().enumerate() {
        let shared = usize::try_from(shared.number()?).ok().and_then(|shared| before.get(..shared));
        let shared = shared.ok_or(FineError::EntryName(number))?;
        let own =
            reader.bytes(usize::try_from(own.number()?).map_err(|_| reader.out_of_range())?)?;
        let length = shared.len() + own.len();
        all += length;
        if all > MAX_NAMES {
            return Err(FineError::TooLarge);
        }
        charge(memory, text_footprint(length))?;
        file.name = [shared, own].concat().into();
        before = &file.name;
    }
    Ok(())
}

/// Reads a column of texts, such as names or values: their lengths, followed by their bytes.
/// `footprint` is the memory of one of this length.
fn read_texts<'a, T: for<'b> From<&'b [u8]> + 'a>(
    reader: &mut Reader<'_>,
    count: usize,
    memory: &mut Charge,
    footprint: fn(usize) -> usize,
    texts: &mut dyn Iterator<Item = &'a mut T>,
) -> Result<(), FineError> {
    let mut lengths = reader.clone();
    let mut all = 0usize;
    let mut needed = 0usize;
    for _ in 0..count {
        let length = reader.length()?;
        all = all.saturating_add(length);
        needed = needed.saturating_add(footprint(length));
    }
    if all > reader.left() {
        return Err(FineError::Short(SECTION));
    }
    charge(memory, needed)?;
    for text in texts {
        *text = reader.bytes(lengths.length()?)?.into();
    }
    Ok(())
}

fn times(
    reader: &mut Reader<'_>,
    files: &mut [FileMetadata],
    kinds: &[u8],
) -> Result<(), FineError> {
    let has_time = |(number, _): &(usize, &mut FileMetadata)| kinds[*number] & HAS_TIME != 0;
    let mut before = 0i64;
    for (number, file) in files.iter_mut().enumerate().filter(has_time) {
        before = before.wrapping_add(reader.signed()?);
        let time = Time { seconds: before, nanos: 0 };
        if !time.has_rfc3339() {
            return Err(FineError::EntryTime(number));
        }
        file.mtime = Some(time);
    }
    for (number, file) in files.iter_mut().enumerate() {
        if let Some(time) = &mut file.mtime {
            time.nanos = reader.u32()?;
            if time.nanos >= 1_000_000_000 {
                return Err(FineError::EntryTime(number));
            }
        }
    }
    Ok(())
}

/// Reads the PAX records of all entries.
fn records(
    reader: &mut Reader<'_>,
    files: &mut [FileMetadata],
    memory: &mut Charge,
) -> Result<(), FineError> {
    let mut counts = reader.clone();
    let mut all = 0usize;
    for _ in 0..files.len() {
        all = all.saturating_add(reader.length()?);
    }
    // A record takes at least two bytes.
    if all > reader.left() / 2 {
        return Err(FineError::Short(SECTION));
    }
    charge(memory, all * size_of::<PaxRecord>())?;
    for file in &mut *files {
        file.pax = (0..counts.length()?).map(|_| PaxRecord::default()).collect();
    }
    let mut keys = files.iter_mut().flat_map(|file| &mut file.pax).map(|record| &mut record.key);
    read_texts(reader, all, memory, short_footprint::<{ PaxText::SHORT }>, &mut keys)?;
    let mut values =
        files.iter_mut().flat_map(|file| &mut file.pax).map(|record| &mut record.value);
    read_texts(reader, all, memory, short_footprint::<{ PaxText::SHORT }>, &mut values)
}

/// Checks that each entry has only fields that its type allows, and that entries follow one another
/// within a tar that ends at `end`.
///
/// # Errors
/// For the first entry that is not valid.
pub(super) fn check(files: &[FileMetadata], end: Uncompressed) -> Result<(), FineError> {
    let is_valid = |file: &FileMetadata| {
        let after = file.offset.0.checked_add(file.size);
        after.is_some_and(|after| after <= i64::MAX as u64)
            && (file.size == 0 || file.kind == FileKind::Regular)
    };
    if let Some(number) = files.iter().position(|file| !is_valid(file)) {
        return Err(FineError::EntryRange(number));
    }
    check_extents(files.iter().enumerate(), end).map_err(|fault| match fault {
        ExtentFault::Overlap { other, .. } => FineError::EntryOverlap(other),
        ExtentFault::PastEnd { entry } => FineError::EntryBeyond(entry),
    })
}
