//! The list of files, stored column by column because the values of a column are similar.

use super::FineError;
use super::varint::{Reader, put, put_signed};
use crate::budget::Charge;
use crate::offset::Uncompressed;
use crate::tar::{self, PaxRecord};
use crate::time::Time;
use crate::ztoc::{ExtentFault, FileKind, FileMetadata, check_extents, owner_footprint, text_footprint};

const SECTION: &str = "entries";
/// The least bytes of an entry: one for each of the columns that are always present.
const LEAST: usize = 14;
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
pub(super) fn encode(files: &[FileMetadata]) -> Vec<u8> {
    let mut out = Vec::with_capacity(files.len() * 32);
    for file in files {
        let kind = KINDS.iter().position(|kind| *kind == file.kind).unwrap_or(0) as u8;
        out.push(kind | if file.mtime.is_some() { HAS_TIME } else { 0 });
    }
    let names =
        || files.iter().scan(&b""[..], |before, file| Some((std::mem::replace(before, &file.name), &file.name)));
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
pub(super) fn decode(plain: &[u8], count: usize, memory: &mut Charge) -> Result<Vec<FileMetadata>, FineError> {
    let mut reader = Reader::new(plain, SECTION);
    if count > plain.len() / LEAST {
        return Err(FineError::Short(SECTION));
    }
    charge(memory, count * size_of::<FileMetadata>())?;
    let mut columns = Columns::find(&mut reader, count, memory)?;
    reader.end()?;
    let mut files: Vec<FileMetadata> = Vec::with_capacity(count);
    for number in 0..count {
        let before = files.last().map_or(&[][..], |file| &file.name);
        let file = columns.next(number, before)?;
        files.push(file);
    }
    Ok(files)
}

fn charge(memory: &mut Charge, bytes: usize) -> Result<(), FineError> {
    Ok(memory.grow(bytes as u64, || "the list of files of a fine document".to_owned())?)
}

/// The columns, each as far as it was not read. They are read side by side, entry by entry: going
/// through a long list of entries once for each column takes longer than all else.
struct Columns<'a> {
    kinds: &'a [u8],
    shared: Reader<'a>,
    own: Reader<'a>,
    names: Reader<'a>,
    sizes: Reader<'a>,
    data: Reader<'a>,
    linknames: Texts<'a>,
    modes: Reader<'a>,
    uids: Reader<'a>,
    gids: Reader<'a>,
    unames: Texts<'a>,
    gnames: Texts<'a>,
    seconds: Reader<'a>,
    nanos: Reader<'a>,
    majors: Reader<'a>,
    minors: Reader<'a>,
    records: Reader<'a>,
    keys: Texts<'a>,
    values: Texts<'a>,
    /// Where the next entry's data is expected, and the time of the last entry that has one.
    expected: u64,
    before: i64,
}

/// A column of texts, such as names or values: their lengths, followed by their bytes.
struct Texts<'a> {
    lengths: Reader<'a>,
    bytes: Reader<'a>,
}

impl<'a> Columns<'a> {
    /// Finds the columns of `count` entries, and charges what the entries allocate.
    fn find(reader: &mut Reader<'a>, count: usize, memory: &mut Charge) -> Result<Columns<'a>, FineError> {
        let kinds = reader.bytes(count)?;
        let times = kinds.iter().filter(|kind| **kind & HAS_TIME != 0).count();
        let (shared, own) = (reader.numbers(count)?, reader.numbers(count)?);
        let names = names(reader, count, [shared.clone(), own.clone()], memory)?;
        let (sizes, data) = (reader.numbers(count)?, reader.numbers(count)?);
        let linknames = Texts::find(reader, count, memory, text_footprint)?;
        let (modes, uids, gids) = (reader.numbers(count)?, reader.numbers(count)?, reader.numbers(count)?);
        let unames = Texts::find(reader, count, memory, owner_footprint)?;
        let gnames = Texts::find(reader, count, memory, owner_footprint)?;
        let (seconds, nanos) = (reader.numbers(times)?, reader.numbers(times)?);
        let (majors, minors) = (reader.numbers(count)?, reader.numbers(count)?);
        let records = reader.numbers(count)?;
        let all = records.clone().sum(count)?;
        // A record takes at least two bytes.
        if all > reader.left() / 2 {
            return Err(FineError::Short(SECTION));
        }
        charge(memory, all * size_of::<PaxRecord>())?;
        let keys = Texts::find(reader, all, memory, text_footprint)?;
        let values = Texts::find(reader, all, memory, text_footprint)?;
        Ok(Columns {
            kinds,
            shared,
            own,
            names,
            sizes,
            data,
            linknames,
            modes,
            uids,
            gids,
            unames,
            gnames,
            seconds,
            nanos,
            majors,
            minors,
            records,
            keys,
            values,
            expected: tar::BLOCK as u64,
            before: 0,
        })
    }

    /// The next entry, with the number `number`, after one called `before`.
    fn next(&mut self, number: usize, before: &[u8]) -> Result<FileMetadata, FineError> {
        let byte = self.kinds.get(number).copied().unwrap_or_default();
        let kind = KINDS.get(usize::from(byte & !HAS_TIME)).ok_or(FineError::EntryType(number))?;
        let shared = before.get(..self.shared.size()?).ok_or(FineError::EntryName(number))?;
        let name = [shared, self.names.bytes(self.own.size()?)?].concat().into();
        let size = self.sizes.number()?;
        let offset = self.expected.wrapping_add_signed(self.data.signed()?);
        self.expected = next_data(offset, size);
        let mtime = if byte & HAS_TIME != 0 { Some(self.time(number)?) } else { None };
        Ok(FileMetadata {
            name,
            kind: *kind,
            offset: Uncompressed(offset),
            size,
            linkname: self.linknames.next()?.into(),
            mode: self.modes.signed()?,
            uid: self.uids.u32()?,
            gid: self.gids.u32()?,
            uname: self.unames.next()?.into(),
            gname: self.gnames.next()?.into(),
            mtime,
            devmajor: self.majors.signed()?,
            devminor: self.minors.signed()?,
            pax: self.pax()?,
        })
    }

    fn time(&mut self, number: usize) -> Result<Time, FineError> {
        self.before = self.before.wrapping_add(self.seconds.signed()?);
        let time = Time { seconds: self.before, nanos: self.nanos.u32()? };
        match time.has_rfc3339() && time.nanos < 1_000_000_000 {
            true => Ok(time),
            false => Err(FineError::EntryTime(number)),
        }
    }

    fn pax(&mut self) -> Result<Box<[PaxRecord]>, FineError> {
        let count = self.records.size()?;
        let mut records = Vec::with_capacity(count);
        for _ in 0..count {
            records.push(PaxRecord { key: self.keys.next()?.into(), value: self.values.next()?.into() });
        }
        Ok(records.into())
    }
}

/// The bytes of `count` names, of which these columns say how much they share with the one before,
/// and how much of each is stored.
fn names<'a>(
    reader: &mut Reader<'a>,
    count: usize,
    [mut shared, own]: [Reader<'_>; 2],
    memory: &mut Charge,
) -> Result<Reader<'a>, FineError> {
    let (mut all, mut footprint, mut before) = (0usize, 0usize, 0);
    let mut each = own.clone();
    for number in 0..count {
        let shared = shared.size()?;
        if shared > before {
            return Err(FineError::EntryName(number));
        }
        before = shared.saturating_add(each.size()?);
        all = all.saturating_add(before);
        footprint = footprint.saturating_add(text_footprint(before));
    }
    charge(memory, footprint)?;
    if all > MAX_NAMES {
        return Err(FineError::TooLarge);
    }
    reader.part(own.sum(count)?)
}

impl<'a> Texts<'a> {
    /// Finds a column of `count` texts. `footprint` is the memory of one of this length.
    fn find(
        reader: &mut Reader<'a>,
        count: usize,
        memory: &mut Charge,
        footprint: fn(usize) -> usize,
    ) -> Result<Texts<'a>, FineError> {
        let lengths = reader.numbers(count)?;
        let bytes = reader.part(lengths.clone().sum(count)?)?;
        let (mut each, mut all) = (lengths.clone(), 0);
        for _ in 0..count {
            all += footprint(each.size()?);
        }
        charge(memory, all)?;
        Ok(Texts { lengths, bytes })
    }

    fn next(&mut self) -> Result<&'a [u8], FineError> {
        self.bytes.bytes(self.lengths.size()?)
    }
}

/// Checks that each entry has only fields that its type allows, and that entries follow one another
/// within a tar that ends at `end`.
///
/// # Errors
/// For the first entry that is not valid.
pub(super) fn check(files: &[FileMetadata], end: Uncompressed) -> Result<(), FineError> {
    let is_valid = |file: &FileMetadata| {
        let after = file.offset.0.checked_add(file.size);
        after.is_some_and(|after| after <= i64::MAX as u64) && (file.size == 0 || file.kind == FileKind::Regular)
    };
    if let Some(number) = files.iter().position(|file| !is_valid(file)) {
        return Err(FineError::EntryRange(number));
    }
    check_extents(files.iter().enumerate(), end).map_err(|fault| match fault {
        ExtentFault::Overlap { other, .. } => FineError::EntryOverlap(other),
        ExtentFault::PastEnd { entry } => FineError::EntryBeyond(entry),
    })
}
