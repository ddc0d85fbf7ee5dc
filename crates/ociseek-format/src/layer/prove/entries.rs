//! Compares the entries of a ztoc with the headers of the layer's tar.

use std::collections::HashMap;
use std::sync::Arc;

use super::difference::{Difference, Differences};
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
        EntryCheck { ztoc, walker: Walker::new(), error: None, compare, differences: Differences::default() }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.error.is_some() || self.walker.is_over() {
            return;
        }
        let EntryCheck { ztoc, walker, compare, differences, .. } = self;
        let walked = walker.push(bytes, &mut |entry| compare.entry(entry, &ztoc.files, differences));
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
                differences.add(Difference::Size { what: "the end of the tar", stated, actual: actual.0 });
            }
            Ok(_) => {}
            // The broken layer was already reported.
            Err(_) if is_broken => {}
            Err(reason) => differences.add(Difference::Tar(reason)),
        }
        for (entry, file) in ztoc.files.iter().enumerate().filter(|(entry, _)| !compare.met[*entry]) {
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
            differences.add(Difference::EntryOrder { entry: number, name: files[number].name.clone() });
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
pub(super) fn fields(entry: usize, stated: &FileMetadata, actual: &FileMetadata, differences: &mut Differences) {
    for (field, says, is) in differing(stated, actual) {
        let name = stated.name.clone();
        differences.add(Difference::Entry { entry, name, field, stated: says, actual: is });
    }
}

/// The fields in which two entries differ, with both values in readable form.
pub fn differing(stated: &FileMetadata, actual: &FileMetadata) -> Vec<(&'static str, String, String)> {
    let mut found = Vec::new();
    if stated == actual {
        return found;
    }
    let mut compared = |field, pair: Option<(String, String)>| {
        found.extend(pair.map(|(says, is)| (field, says, is)));
    };
    let number = |of: fn(&FileMetadata) -> i128| {
        let (stated, actual) = (of(stated), of(actual));
        (stated != actual).then(|| (stated.to_string(), actual.to_string()))
    };
    let time = |file: &FileMetadata| file.mtime.and_then(|time| time.to_rfc3339()).unwrap_or_else(|| "nothing".into());
    compared("name", text(&stated.name, &actual.name));
    compared("type", text(stated.kind.name().as_bytes(), actual.kind.name().as_bytes()));
    compared("offset", number(|file| file.offset.0.into()));
    compared("size", number(|file| file.size.into()));
    compared("linkname", text(&stated.linkname, &actual.linkname));
    let modes = (stated.mode != actual.mode).then(|| (format!("{:#o}", stated.mode), format!("{:#o}", actual.mode)));
    compared("mode", modes);
    compared("uid", number(|file| file.uid.into()));
    compared("gid", number(|file| file.gid.into()));
    compared("uname", text(&stated.uname, &actual.uname));
    compared("gname", text(&stated.gname, &actual.gname));
    compared("mtime", (stated.mtime != actual.mtime).then(|| (time(stated), time(actual))));
    compared("devmajor", number(|file| file.devmajor.into()));
    compared("devminor", number(|file| file.devminor.into()));
    compared("xattrs", records(stated, actual));
    found
}

/// The first PAX records in which two entries differ. The order of records does not matter.
fn records(stated: &FileMetadata, actual: &FileMetadata) -> Option<(String, String)> {
    let sorted = |file: &FileMetadata| {
        let mut records: Vec<PaxRecord> = file.pax.to_vec();
        records.sort_unstable();
        records
    };
    let (stated, actual) = (sorted(stated), sorted(actual));
    let at = (0..stated.len().max(actual.len())).find(|&at| stated.get(at) != actual.get(at))?;
    let shown = |records: &[PaxRecord]| {
        records.get(at).map_or_else(Vec::new, |record| [&record.key[..], b"=", &record.value].concat())
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
    let from = if stated.len().max(actual.len()) > MOST { common.saturating_sub(MOST / 4) } else { 0 };
    let shown = |bytes: &[u8]| {
        let to = bytes.len().min(from + MOST);
        let part = bytes.get(from..to).unwrap_or_default().escape_ascii();
        let dots = |there| if there { "…" } else { "" };
        format!("\"{}{part}{}\"", dots(from > 0), dots(to < bytes.len()))
    };
    Some((shown(stated), shown(actual)))
}
