//! The names of entries: their limit, and how they are shown.

/// The consumer stores xattrs and file names as keys of a bbolt database, which limits their
/// length.
pub(super) const MAX_KEY: usize = 32_768;

/// A name from an untrusted tar, quoted and truncated to fit on a line. It cannot move the cursor.
pub fn shown(name: &[u8]) -> String {
    const MOST: usize = 80;
    if name.len() <= MOST {
        format!("\"{}\"", name.escape_ascii())
    } else {
        format!("\"{}…\"", name[..MOST].escape_ascii())
    }
}
