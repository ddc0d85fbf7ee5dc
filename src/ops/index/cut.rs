//! Cuts a gzip blob of many members into stretches that can be decoded side by side.

use bytes::Bytes;

use crate::codec::stretch::MemberFinder;
use crate::offset::Compressed;

/// A stretch of less is not worth handing around.
const LEAST: usize = 256 << 10;
/// Where a stretch ends without a border in sight. What follows is decoded behind it.
const MOST: usize = 4 << 20;
/// A blob that has no second member so far has none, or too few to be worth the search.
const SEARCHED: u64 = 16 << 20;

/// Takes a blob in chunks and gives it back in pieces. No byte is copied.
pub(super) struct Cutter {
    search: Search,
    position: Compressed,
    open: Option<Open>,
}

enum Search {
    NotBegun,
    For(Box<MemberFinder>),
    Over,
}

/// A stretch in the making.
struct Open {
    at: Compressed,
    chunks: Vec<Bytes>,
    size: usize,
}

/// What follows the piece before it in a blob.
pub(super) enum Piece {
    Chunk(Bytes),
    /// A member may begin with it.
    Stretch {
        at: Compressed,
        chunks: Vec<Bytes>,
    },
}

impl Cutter {
    /// One that gives chunks back as they are, if the blob `is_whole`.
    pub fn new(is_whole: bool) -> Cutter {
        let search = if is_whole { Search::Over } else { Search::NotBegun };
        Cutter { search, position: Compressed(0), open: None }
    }

    /// Takes the next chunk of the blob; `out` gets the pieces that are complete.
    pub fn push<E>(&mut self, mut chunk: Bytes, mut out: impl FnMut(Piece) -> Result<(), E>) -> Result<(), E> {
        if let Search::NotBegun = self.search {
            self.search = MemberFinder::like(&chunk).map_or(Search::Over, |finder| Search::For(Box::new(finder)));
        }
        while let Some(border) = self.border(&chunk) {
            let before = chunk.split_to(border);
            if let Some(whole) = self.add(before).or_else(|| self.close()) {
                out(whole)?;
            }
            self.open = Some(Open { at: self.position, chunks: Vec::new(), size: 0 });
        }
        let ended = self.add(chunk);
        if self.open.is_none() && self.position.0 > SEARCHED && ended.is_some() {
            self.search = Search::Over;
        }
        if self.open.as_ref().is_some_and(|open| open.size > MOST)
            && let Some(stretch) = self.close()
        {
            out(stretch)?;
        }
        ended.map_or(Ok(()), out)
    }

    /// The blob is at its end: what is left of it.
    pub fn end(&mut self) -> Option<Piece> {
        self.close()
    }

    /// Cuts no more.
    pub fn give_up(&mut self) {
        self.search = Search::Over;
    }

    /// Where in `chunk` a stretch is to begin.
    fn border(&self, chunk: &Bytes) -> Option<usize> {
        let Search::For(finder) = &self.search else { return None };
        let from = match &self.open {
            Some(open) => LEAST.saturating_sub(open.size),
            // The blob's first member needs no search.
            None => usize::from(self.position == Compressed(0)),
        };
        finder.find(chunk, from)
    }

    /// Adds bytes to the open stretch, or gives them back if there is none.
    fn add(&mut self, chunk: Bytes) -> Option<Piece> {
        if chunk.is_empty() {
            return None;
        }
        self.position = self.position + chunk.len() as u64;
        match &mut self.open {
            Some(open) => {
                open.size += chunk.len();
                open.chunks.push(chunk);
                None
            }
            None => Some(Piece::Chunk(chunk)),
        }
    }

    fn close(&mut self) -> Option<Piece> {
        self.open.take().map(|Open { at, chunks, .. }| Piece::Stretch { at, chunks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 1, 2, 3, 4, 0, 255];

    /// A blob with headers at these places.
    fn blob(size: usize, headers: &[usize]) -> Bytes {
        let mut blob = vec![b'.'; size];
        headers.iter().for_each(|&at| blob[at..at + HEADER.len()].copy_from_slice(&HEADER));
        blob.into()
    }

    /// The pieces of a blob pushed in chunks: where they begin, their sizes, and whether they are stretches.
    fn cut(blob: &Bytes, chunk: usize) -> Vec<(usize, usize, bool)> {
        let (mut cutter, mut pieces, mut joined) = (Cutter::new(false), Vec::new(), Vec::new());
        let mut out = |piece: Piece| {
            let (chunks, stretch) = match piece {
                Piece::Chunk(chunk) => (vec![chunk], None),
                Piece::Stretch { at, chunks } => (chunks, Some(at)),
            };
            let at = joined.len();
            chunks.iter().for_each(|chunk| joined.extend_from_slice(chunk));
            assert!(stretch.is_none_or(|stretch| stretch == Compressed(at as u64)));
            pieces.push((at, joined.len() - at, stretch.is_some()));
            Ok::<(), ()>(())
        };
        for from in (0..blob.len()).step_by(chunk) {
            cutter.push(blob.slice(from..(from + chunk).min(blob.len())), &mut out).unwrap();
        }
        cutter.end().map_or(Ok(()), &mut out).unwrap();
        assert!(joined == blob[..], "the pieces are not the blob");
        pieces
    }

    #[test]
    fn stretches_begin_with_headers_and_are_not_small() {
        let headers: Vec<usize> = (0..40).map(|n| n * 50_000).collect();
        let blob = blob(2_010_000, &headers);
        for chunk in [256 << 10, 30_000, 2_010_000] {
            let pieces = cut(&blob, chunk);
            let stretches: Vec<_> = pieces.iter().filter(|piece| piece.2).collect();
            assert!(stretches.len() >= 5, "{pieces:?}");
            assert!(stretches.iter().all(|(at, _, _)| headers.contains(at)), "{pieces:?}");
            let (_, whole) = stretches.split_last().unwrap();
            assert!(whole.iter().all(|(_, size, _)| (LEAST..LEAST + 100_000).contains(size)), "{pieces:?}");
        }
    }

    #[test]
    fn a_long_member_ends_a_stretch() {
        let blob = blob(20 << 20, &[0, 1 << 20, 2 << 20, 15 << 20]);
        let pieces = cut(&blob, 256 << 10);
        let stretches: Vec<_> = pieces.iter().filter(|piece| piece.2).map(|&(at, size, _)| (at, size)).collect();
        assert_eq!(stretches, [(1 << 20, 1 << 20), (2 << 20, MOST + (256 << 10)), (15 << 20, MOST + (256 << 10))]);
    }

    #[test]
    fn blobs_of_one_member_pass_as_they_are() {
        let one = blob(1 << 20, &[0]);
        let late = blob(20 << 20, &[0, 18 << 20]);
        let tar = Bytes::from(vec![0; 1 << 20]);
        for blob in [one, late, tar] {
            let pieces = cut(&blob, 256 << 10);
            assert!(pieces.iter().all(|&(_, size, is_stretch)| !is_stretch && size <= 256 << 10));
        }
    }
}
