//! Compares the tar headers in a span with the entries that the ztoc states there.

use std::ops::Range;

use super::difference::{Difference, Differences};
use super::entries::fields;
use crate::layer::consumer::stated_like;
use crate::layer::stated;
use crate::offset::Uncompressed;
use crate::tar::Walker;
use crate::ztoc::FileMetadata;

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
    pub fn among(first: usize, files: &'a [FileMetadata], span: &Range<Uncompressed>) -> SpanHeaders<'a> {
        // The headers of an entry begin after the padded data of the previous one.
        let next = match span.start {
            Uncompressed(0) => 0,
            start => files.partition_point(|file| file.data_end() < start) + 1,
        };
        let before = next.checked_sub(1).map(|before| files.get(before));
        // If no earlier entry reaches into the span, it only holds the end of the tar.
        let begin = before.map_or(Uncompressed(0), |before| before.map_or(span.end, FileMetadata::data_end));
        let differences = Differences::default();
        let (position, end, walker) = (span.start, span.end, Walker::new());
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
            let (name, offset) = (entry.name.clone(), entry.data);
            match (stated(entry), files.get(*next)) {
                (Err(unservable), _) => differences.add(Difference::Unservable(unservable)),
                (Ok(_), None) => differences.add(Difference::EntryMissing { name, offset }),
                (Ok(actual), Some(file)) => fields(*first + *next, file, &stated_like(file, actual), differences),
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
        let overdue = self.files.get(self.next).filter(|file| self.walker.is_over() || file.offset <= end);
        if let Some(error) = self.error {
            self.differences.add(Difference::Tar(error));
        } else if let Some(file) = overdue.filter(|_| self.begin < end) {
            self.differences.add(Difference::EntryAdded { entry: self.first + self.next, name: file.name.clone() });
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
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else { panic!("it has a ztoc") };
        ztoc::decode(&built.bytes).unwrap().files
    }

    fn codes(tar: &[u8], files: &[FileMetadata], span: Range<u64>) -> Vec<&'static str> {
        let range = Uncompressed(span.start)..Uncompressed(span.end);
        let mut headers = SpanHeaders::new(files, &range);
        tar[span.start as usize..span.end as usize].chunks(100).for_each(|piece| headers.push(piece));
        headers.finish().iter().map(|found| found.code().word()).collect()
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
            (file.kind, file.linkname) = (FileKind::HardLink, b"below/in/another/layer".as_slice().into());
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
