//! Compares the entries of a ztoc with the headers of the layer's tar: all of them, or those in a
//! span.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::{Difference, Differences};
use crate::layer::consumer::stated_like;
use crate::layer::stated;
use crate::offset::Uncompressed;
use crate::tar::{Entry, PaxRecord, Walker};
use crate::ztoc::{FileMetadata, Ztoc};

/// Walks the tar and compares each entry as it is found.
pub(super) struct EntryCheck {
    ztoc: Arc<Ztoc>,
    walker: Walker,
    error: Option<String>,
    compare: Compare,
    differences: Differences,
}

struct Compare {
    /// The first entry of the ztoc that was not found yet.
    next: usize,
    met: Vec<bool>,
    /// The last entry, in the order of the ztoc, that was found.
    furthest: Option<usize>,
    /// Entries of the ztoc by the start of their data. Built when the two lists get out of step.
    by_offset: Option<HashMap<Uncompressed, Vec<usize>>>,
    /// Whether an entry that a ztoc cannot express was found. Reported once.
    unservable: bool,
}

impl EntryCheck {
    pub(super) fn new(ztoc: Arc<Ztoc>) -> EntryCheck {
        let met = vec![false; ztoc.files.len()];
        let compare = Compare { next: 0, met, furthest: None, by_offset: None, unservable: false };
        EntryCheck {
            ztoc,
            walker: Walker::new(),
            error: None,
            compare,
            differences: Differences::default(),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.error.is_some() || self.walker.is_over() {
            return;
        }
        let EntryCheck { ztoc, walker, compare, differences, .. } = self;
        let walked =
            walker.push(bytes, &mut |entry| compare.entry(entry, &ztoc.files, differences));
        self.error = walked.err().map(|error| error.to_string());
    }

    /// Call this at the end of the layer. `is_broken` tells that it ended too early.
    pub(super) fn finish(self, is_broken: bool) -> Differences {
        let EntryCheck { ztoc, walker, error, compare, mut differences } = self;
        let end = match error {
            Some(error) => Err(error),
            None => walker.finish().map_err(|error| error.to_string()),
        };
        let stated = ztoc.uncompressed_size.0;
        match end {
            Ok(actual) if actual.0 != stated => {
                differences.add(Difference::Size {
                    what: "the end of the tar",
                    stated,
                    actual: actual.0,
                });
            }
            Ok(_) => {}
            // The broken layer was already reported.
            Err(_) if is_broken => {}
            Err(reason) => differences.add(Difference::Tar(reason)),
        }
        for (entry, file) in ztoc.files.iter().enumerate().filter(|(entry, _)| !compare.met[*entry])
        {
            differences.add(Difference::EntryAdded { entry, name: file.name.clone() });
        }
        differences
    }
}

impl Compare {
    fn entry(&mut self, entry: Entry, files: &[FileMetadata], differences: &mut Differences) {
        let offset = entry.data;
        while self.met.get(self.next) == Some(&true) {
            self.next += 1;
        }
        let number = match stated(entry) {
            Ok(actual) => {
                let Some(number) = self.find(&actual, files) else {
                    differences.add(Difference::EntryMissing { name: actual.name, offset });
                    return;
                };
                let file = &files[number];
                fields(number, file, &stated_like(file, actual), differences);
                number
            }
            Err(unservable) => {
                if !std::mem::replace(&mut self.unservable, true) {
                    differences.add(Difference::Unservable(unservable));
                }
                match self.at(offset, files) {
                    // Entries without data, such as a global header, need not be in
                    // the ztoc.
                    None => return,
                    Some(number) => number,
                }
            }
        };
        if self.furthest.is_some_and(|furthest| number < furthest) {
            differences
                .add(Difference::EntryOrder { entry: number, name: files[number].name.clone() });
        }
        self.furthest = self.furthest.max(Some(number));
        self.met[number] = true;
    }

    /// The ztoc's entry for an entry of the tar: the next one if they are equal, otherwise one at
    /// the same offset, otherwise the next one if it has the same name.
    fn find(&mut self, actual: &FileMetadata, files: &[FileMetadata]) -> Option<usize> {
        let next = files.get(self.next);
        if next == Some(actual) {
            return Some(self.next);
        }
        let here = self.at(actual.offset, files);
        here.or_else(|| next.filter(|next| next.name == actual.name).map(|_| self.next))
    }

    /// An entry that was not found yet and whose data begin at `offset`.
    fn at(&mut self, offset: Uncompressed, files: &[FileMetadata]) -> Option<usize> {
        if files.get(self.next).is_some_and(|next| next.offset == offset) {
            return Some(self.next);
        }
        let by_offset = self.by_offset.get_or_insert_with(|| {
            let mut map: HashMap<Uncompressed, Vec<usize>> = HashMap::new();
            for (number, file) in files.iter().enumerate().rev() {
                map.entry(file.offset).or_default().push(number);
            }
            map
        });
        let numbers = by_offset.get_mut(&offset)?;
        while let Some(number) = numbers.pop() {
            if !self.met[number] {
                return Some(number);
            }
        }
        None
    }
}

/// Compares all fields that the format has for an entry.
pub(super) fn fields(
    entry: usize,
    stated: &FileMetadata,
    actual: &FileMetadata,
    differences: &mut Differences,
) {
    for (field, says, is) in differing(stated, actual) {
        let name = stated.name.clone();
        differences.add(Difference::Entry { entry, name, field, stated: says, actual: is });
    }
}

/// The fields in which two entries differ, with both values in readable form.
pub fn differing(
    stated: &FileMetadata,
    actual: &FileMetadata,
) -> Vec<(&'static str, String, String)> {
    let mut differences = Vec::new();
    if stated == actual {
        return differences;
    }
    let mut compared = |field, pair: Option<(String, String)>| {
        differences.extend(pair.map(|(says, is)| (field, says, is)));
    };
    let number = |of: fn(&FileMetadata) -> i128| {
        let stated = of(stated);
        let actual = of(actual);
        (stated != actual).then(|| (stated.to_string(), actual.to_string()))
    };
    let time = |file: &FileMetadata| {
        file.mtime.and_then(|time| time.to_rfc3339()).unwrap_or_else(|| "nothing".into())
    };
    compared("name", text(&stated.name, &actual.name));
    compared("type", text(stated.kind.name().as_bytes(), actual.kind.name().as_bytes()));
    compared("offset", number(|file| file.offset.0.into()));
    compared("size", number(|file| file.size.into()));
    compared("linkname", text(&stated.linkname, &actual.linkname));
    let modes = (stated.mode != actual.mode)
        .then(|| (format!("{:#o}", stated.mode), format!("{:#o}", actual.mode)));
    compared("mode", modes);
    compared("uid", number(|file| file.uid.into()));
    compared("gid", number(|file| file.gid.into()));
    compared("uname", text(&stated.uname, &actual.uname));
    compared("gname", text(&stated.gname, &actual.gname));
    compared("mtime", (stated.mtime != actual.mtime).then(|| (time(stated), time(actual))));
    compared("devmajor", number(|file| file.devmajor.into()));
    compared("devminor", number(|file| file.devminor.into()));
    compared("xattrs", records(stated, actual));
    differences
}

/// The first PAX records in which two entries differ. The order of records does not matter.
fn records(stated: &FileMetadata, actual: &FileMetadata) -> Option<(String, String)> {
    let sorted = |file: &FileMetadata| {
        let mut records: Vec<PaxRecord> = file.pax.to_vec();
        records.sort_unstable();
        records
    };
    let stated = sorted(stated);
    let actual = sorted(actual);
    let at = (0..stated.len().max(actual.len())).find(|&at| stated.get(at) != actual.get(at))?;
    let shown = |records: &[PaxRecord]| {
        records
            .get(at)
            .map_or_else(Vec::new, |record| [&record.key[..], b"=", &record.value].concat())
    };
    text(&shown(&stated), &shown(&actual))
}

/// Two different texts, each quoted on one line. Long ones are cut to the part that differs,
/// because an untrusted tar may hold megabytes.
fn text(stated: &[u8], actual: &[u8]) -> Option<(String, String)> {
    const MOST: usize = 200;
    if stated == actual {
        return None;
    }
    let common = stated.iter().zip(actual).take_while(|(one, other)| one == other).count();
    let from =
        if stated.len().max(actual.len()) > MOST { common.saturating_sub(MOST / 4) } else { 0 };
    let shown = |bytes: &[u8]| {
        let to = bytes.len().min(from + MOST);
        let part = bytes.get(from..to).unwrap_or_default().escape_ascii();
        let dots = |cut| if cut { "…" } else { "" };
        format!("\"{}{part}{}\"", dots(from > 0), dots(to < bytes.len()))
    };
    Some((shown(stated), shown(actual)))
}

/// Takes a decoded span and compares each entry whose headers are all in it.
pub struct SpanHeaders<'a> {
    files: &'a [FileMetadata],
    /// The number of the first one in the tar.
    first: usize,
    /// The entry whose headers come next.
    next: usize,
    /// Where these headers begin in the tar, according to the ztoc. Earlier bytes of the span are
    /// skipped.
    begin: Uncompressed,
    position: Uncompressed,
    end: Uncompressed,
    walker: Walker,
    error: Option<String>,
    differences: Differences,
}

crate::opaque_debug!(SpanHeaders<'_>);

impl<'a> SpanHeaders<'a> {
    /// For the bytes of the tar in `span`. `files` are the tar's entries in its order.
    pub fn new(files: &'a [FileMetadata], span: &Range<Uncompressed>) -> SpanHeaders<'a> {
        SpanHeaders::among(0, files, span)
    }

    /// For the bytes of the tar in `span`. `files` are those of its entries that [`FileList::near`]
    /// returns, and `first` is the number of the first one.
    ///
    /// [`FileList::near`]: crate::layer::FileList::near
    pub fn among(
        first: usize,
        files: &'a [FileMetadata],
        span: &Range<Uncompressed>,
    ) -> SpanHeaders<'a> {
        // The headers of an entry begin after the padded data of the previous one.
        let next = match span.start {
            Uncompressed(0) => 0,
            start => files.partition_point(|file| file.data_end() < start) + 1,
        };
        let before = next.checked_sub(1).map(|before| files.get(before));
        // If no earlier entry reaches into the span, it only holds the end of the tar.
        let begin = before
            .map_or(Uncompressed(0), |before| before.map_or(span.end, FileMetadata::data_end));
        let differences = Differences::default();
        let position = span.start;
        let end = span.end;
        let walker = Walker::new();
        SpanHeaders { files, first, next, begin, position, end, walker, error: None, differences }
    }

    /// Takes the next bytes of the span.
    pub fn push(&mut self, piece: &[u8]) {
        let skipped = self.begin.0.saturating_sub(self.position.0).min(piece.len() as u64);
        self.position += piece.len() as u64;
        if self.error.is_some() || self.walker.is_over() {
            return;
        }
        let SpanHeaders { files, first, next, begin, walker, differences, .. } = self;
        let walked = walker.push(&piece[skipped as usize..], &mut |mut entry| {
            entry.data = *begin + entry.data.0;
            let name = entry.name.clone();
            let offset = entry.data;
            match (stated(entry), files.get(*next)) {
                (Err(unservable), _) => differences.add(Difference::Unservable(unservable)),
                (Ok(_), None) => differences.add(Difference::EntryMissing { name, offset }),
                (Ok(actual), Some(file)) => {
                    fields(*first + *next, file, &stated_like(file, actual), differences)
                }
            }
            *next += 1;
        });
        self.error = walked.err().map(|error| error.to_string());
    }

    /// Ends the span. Returns at most a thousand differences, in the order in which they were
    /// found.
    pub fn finish(mut self) -> Vec<Difference> {
        // A span may have been decoded only in part.
        let end = self.end.min(self.position);
        let overdue =
            self.files.get(self.next).filter(|file| self.walker.is_over() || file.offset <= end);
        if let Some(error) = self.error {
            self.differences.add(Difference::Tar(error));
        } else if let Some(file) = overdue.filter(|_| self.begin < end) {
            self.differences.add(Difference::EntryAdded {
                entry: self.first + self.next,
                name: file.name.clone(),
            });
        }
        self.differences.list
    }
}

/// The range of the tar headers that lie on both sides of `at`, according to the ztoc.
pub fn headers_across(files: &[FileMetadata], at: Uncompressed) -> Option<Range<Uncompressed>> {
    let headers = headers_of(files, files.partition_point(|file| file.offset <= at));
    (headers.start < at && at < headers.end).then_some(headers)
}

/// Where the tar headers of an entry are: after the data of the previous entry.
pub fn headers_of(files: &[FileMetadata], entry: usize) -> Range<Uncompressed> {
    let before = entry.checked_sub(1).and_then(|before| files.get(before));
    let end = files.get(entry).map_or(Uncompressed(0), |file| file.offset);
    before.map_or(Uncompressed(0), FileMetadata::data_end).min(end)..end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::{LayerIndexer, LayerOptions, Outcome};
    use crate::offset::SpanSize;
    use crate::ztoc::{self, FileKind};

    /// A tar of five files, and its entries.
    fn tar() -> (Vec<u8>, Vec<FileMetadata>) {
        let mut builder = tar::Builder::new(Vec::new());
        for (number, size) in [0, 700, 512, 3000, 1].into_iter().enumerate() {
            let mut header = tar::Header::new_gnu();
            header.set_size(size as u64);
            header.set_mode(0o644);
            // One name is too long for a header, so its entry has a second header.
            let name = "x".repeat(if number == 3 { 150 } else { 10 + number });
            builder.append_data(&mut header, name, &vec![7; size][..]).unwrap();
        }
        let tar = builder.into_inner().unwrap();
        let files = entries(&tar);
        (tar, files)
    }

    fn entries(tar: &[u8]) -> Vec<FileMetadata> {
        let options = LayerOptions { span_size: SpanSize::mib::<1>(), ..LayerOptions::default() };
        let mut indexer = LayerIndexer::new(options, None);
        indexer.push(tar).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else {
            panic!("it has a ztoc")
        };
        ztoc::decode(&built.bytes).unwrap().files
    }

    fn codes(tar: &[u8], files: &[FileMetadata], span: Range<u64>) -> Vec<&'static str> {
        let range = Uncompressed(span.start)..Uncompressed(span.end);
        let mut headers = SpanHeaders::new(files, &range);
        tar[span.start as usize..span.end as usize]
            .chunks(100)
            .for_each(|piece| headers.push(piece));
        headers.finish().iter().map(|difference| difference.code().word()).collect()
    }

    #[test]
    fn valid_entries_are_found_in_any_span() {
        let (tar, files) = tar();
        let ends = || (0..=tar.len() as u64).step_by(256);
        for start in ends() {
            for end in ends().filter(|end| *end > start) {
                assert_eq!(codes(&tar, &files, start..end), [""; 0], "{start}..{end}");
            }
        }
    }

    #[test]
    fn a_whiteout_that_is_a_hard_link_may_be_stated_as_an_empty_file() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Link);
        builder.append_link(&mut header, "d/.wh.x", "below/in/another/layer").unwrap();
        let tar = builder.into_inner().unwrap();
        let files = entries(&tar);
        assert_eq!((files[0].kind, &*files[0].linkname), (FileKind::Regular, &b""[..]));
        let all = 0..tar.len() as u64;
        assert_eq!(codes(&tar, &files, all.clone()), [""; 0]);
        let stated = |change: fn(&mut FileMetadata)| {
            let mut files = files.clone();
            change(&mut files[0]);
            codes(&tar, &files, all.clone())
        };
        let as_link = |file: &mut FileMetadata| {
            (file.kind, file.linkname) =
                (FileKind::HardLink, b"below/in/another/layer".as_slice().into());
        };
        assert_eq!(stated(as_link), [""; 0]);
        assert_eq!(stated(|file| file.kind = FileKind::Symlink), ["entry-field"; 2]);
        assert_eq!(stated(|file| file.linkname = b"y".as_slice().into()), ["entry-field"]);
    }

    #[test]
    fn wrong_entries_are_found_at_their_offset() {
        let (tar, files) = tar();
        let all = 0..tar.len() as u64;
        let header = files[2].offset.0 - 512..files[2].offset.0;
        let mut renamed = files.clone();
        renamed[2].name = b"other".as_slice().into();
        assert_eq!(codes(&tar, &renamed, all.clone()), ["entry-field"]);
        assert_eq!(codes(&tar, &renamed, header.clone()), ["entry-field"]);
        // The header is not in this span.
        assert_eq!(codes(&tar, &renamed, 0..header.start), [""; 0]);
        let mut longer = files.clone();
        longer[1].size += 512;
        assert!(codes(&tar, &longer, all.clone()).contains(&"entry-field"));
        assert!(codes(&tar, &files[..4], all.clone()).contains(&"entry-missing"));
        let mut added = files.clone();
        added.push(FileMetadata { name: b"added".as_slice().into(), ..files[4].clone() });
        assert!(codes(&tar, &added, all.clone()).contains(&"entry-added"));
        let mut shifted = files;
        shifted.iter_mut().for_each(|file| file.offset += 1);
        assert!(!codes(&tar, &shifted, all).is_empty());
    }
}
