//! Whether the bytes of files can lie in a tar as their entries say.

use super::model::{FileKind, FileMetadata};
use crate::offset::Uncompressed;

/// What is wrong with the bytes of a file. Entries are given by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentFault {
    /// Two files share bytes.
    Overlap {
        /// The entry that comes first.
        one: usize,
        /// The entry after it.
        other: usize,
    },
    /// The file extends past the end of the tar.
    PastEnd {
        /// Its entry.
        entry: usize,
    },
}

/// Checks that files follow one another within a tar that ends at `end`: each starts at or after
/// the end of the one before it.
///
/// `entries` are numbered. Readers who rely on the order of the tar pass them as they are; who does
/// not sorts them by offset first. Entries without bytes are ignored.
///
/// # Errors
/// For the first file that is not valid.
pub fn check_extents<'a>(
    entries: impl IntoIterator<Item = (usize, &'a FileMetadata)>,
    end: Uncompressed,
) -> Result<(), ExtentFault> {
    let (mut previous, mut previous_end) = (0, 0);
    for (entry, file) in entries {
        if file.kind != FileKind::Regular || file.size == 0 {
            continue;
        }
        if file.offset.0 < previous_end {
            return Err(ExtentFault::Overlap { one: previous, other: entry });
        }
        (previous, previous_end) = (entry, file.offset.0.saturating_add(file.size));
        if previous_end > end.0 {
            return Err(ExtentFault::PastEnd { entry });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(offset: u64, size: u64) -> FileMetadata {
        let (name, offset) = (b"file"[..].into(), Uncompressed(offset));
        FileMetadata { name, offset, size, ..FileMetadata::default() }
    }

    fn check(files: &[FileMetadata]) -> Result<(), ExtentFault> {
        check_extents(files.iter().enumerate(), Uncompressed(100))
    }

    #[test]
    fn files_may_be_adjacent_and_end_with_the_layer() {
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[file(0, 40), file(40, 60)]), Ok(()));
        assert_eq!(check(&[file(0, 40), file(39, 1)]), Err(ExtentFault::Overlap { one: 0, other: 1 }));
        assert_eq!(check(&[file(40, 61)]), Err(ExtentFault::PastEnd { entry: 0 }));
        assert_eq!(check(&[file(u64::MAX, 2)]), Err(ExtentFault::PastEnd { entry: 0 }));
    }

    #[test]
    fn entries_without_bytes_are_ignored() {
        let directory = FileMetadata { kind: FileKind::Directory, ..file(0, 500) };
        let files = [file(0, 40), file(10, 0), directory, file(30, 5)];
        assert_eq!(check(&files), Err(ExtentFault::Overlap { one: 0, other: 3 }));
        assert_eq!(check(&files[..3]), Ok(()));
    }
}
