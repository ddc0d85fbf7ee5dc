//! Recognises sequential readers of files, to fetch the following bytes in advance.

use std::ops::Range;

/// How many readers of a layer are tracked at the same time.
const STREAMS: usize = 16;
/// The size of the first read-ahead in bytes. Each further one is twice as large.
const FIRST: u64 = 1 << 20;
/// How far the start of a read may be from the end of the previous one to count as sequential, in
/// bytes: the kernel requests several ranges at a time, which arrive in any order.
const SLACK: u64 = 256 << 10;
/// How many sequential reads are needed, because two may be a coincidence.
const IN_ORDER: u32 = 2;

/// The readers of a layer.
pub(super) struct Readers {
    /// The most recently active ones are last.
    streams: Vec<Stream>,
    most: u64,
}

struct Stream {
    /// The end of the last read.
    next: u64,
    /// The number of sequential reads.
    in_order: u32,
    /// How many bytes to fetch in advance.
    window: u64,
    /// The end of the bytes that were fetched.
    fetched: u64,
    /// The file that the last reads were in. Empty if it was not looked up.
    file: Range<u64>,
}

impl Readers {
    /// Reads ahead by at most `most` bytes.
    pub(super) fn new(most: u64) -> Readers {
        Readers { streams: Vec::new(), most }
    }

    /// Records a read. Returns a range after it, within the same file, that should be fetched in
    /// addition. `file_at` returns the range of the file that an offset lies in.
    pub(super) fn note(
        &mut self,
        read: Range<u64>,
        file_at: impl FnOnce(u64) -> Option<Range<u64>>,
    ) -> Option<Range<u64>> {
        if self.most == 0 {
            return None;
        }
        let goes_on = |stream: &Stream| read.start.abs_diff(stream.next) <= SLACK;
        let Some(at) = self.streams.iter().position(goes_on) else {
            if self.streams.len() == STREAMS {
                self.streams.remove(0);
            }
            let next = read.end;
            let fetched = read.end;
            self.streams.push(Stream { next, in_order: 0, window: 0, fetched, file: 0..0 });
            return None;
        };
        let mut stream = self.streams.remove(at);
        let is_on = read.end > stream.next;
        stream.in_order = stream.in_order.saturating_add(u32::from(is_on));
        stream.next = stream.next.max(read.end);
        stream.fetched = stream.fetched.max(read.end);
        let mut ahead = None;
        // More bytes are requested when half of those fetched in advance were read, so that
        // requests stay large.
        if is_on && stream.in_order >= IN_ORDER && stream.fetched - stream.next <= stream.window / 2
        {
            stream.window = (stream.window * 2).clamp(FIRST.min(self.most), self.most);
            if !stream.file.contains(&read.start) {
                stream.file = file_at(read.start).unwrap_or(read.clone());
            }
            let to = stream.next.saturating_add(stream.window).min(stream.file.end);
            if to > stream.fetched {
                ahead = Some(stream.fetched..to);
                stream.fetched = to;
            }
        }
        self.streams.push(stream);
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;
    const M: u64 = 1 << 20;

    /// The readers of a layer with these files.
    struct ReadersOf(Vec<Range<u64>>, Readers);

    impl ReadersOf {
        fn note(&mut self, read: Range<u64>) -> Option<Range<u64>> {
            self.1.note(read, |at| self.0.iter().find(|file| file.contains(&at)).cloned())
        }
    }

    fn readers(files: Vec<Range<u64>>, most: u64) -> ReadersOf {
        ReadersOf(files, Readers::new(most))
    }

    #[test]
    fn sequential_reads_are_fetched_ahead_up_to_the_end_of_the_file() {
        let mut readers = readers(std::iter::once(512..100 * M).collect(), 16 * M);
        let mut fetched = 0;
        let mut asked = 0;
        for at in (512..100 * M).step_by(128 << 10) {
            let end = (100 * M).min(at + 128 * K);
            if let Some(range) = readers.note(at..end) {
                assert!(
                    range.start <= fetched.max(end)
                        && range.end <= 100 * M
                        && range.end - end <= 16 * M,
                    "{range:?}"
                );
                fetched = range.end;
                asked += 1;
            }
        }
        assert_eq!(fetched, 100 * M);
        assert!(asked < 20, "{asked}");
    }

    #[test]
    fn small_files_and_random_reads_fetch_nothing_ahead() {
        let mut readers = readers((0..1000).map(|i| i * 4 * M..i * 4 * M + 5000).collect(), 16 * M);
        for file in [5u64, 900, 3, 400, 401, 402] {
            assert_eq!(readers.note(file * 4 * M..file * 4 * M + 4096), None);
            assert_eq!(readers.note(file * 4 * M + 4096..file * 4 * M + 5000), None);
        }
        assert!(readers.1.streams.len() <= STREAMS);
    }

    #[test]
    fn two_interleaved_readers_are_both_tracked() {
        let mut readers = readers(vec![0..64 * M, 64 * M..128 * M], 16 * M);
        let followed = (0..8u64).filter(|i| {
            let at = i * 128 * K;
            let first = readers.note(at..at + 128 * K);
            first.is_some() | readers.note(64 * M + at..64 * M + at + 128 * K).is_some()
        });
        assert!(followed.count() > 0);
        assert_eq!(readers.1.streams.len(), 2);
        assert!(readers.1.streams.iter().all(|s| s.window > 0));
    }
}
