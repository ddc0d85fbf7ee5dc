//! Names and paths of tars, as consumers clean and show them.

/// The prefix of a whiteout, before the name of the removed file.
pub(crate) const WHITEOUT: &[u8] = b".wh.";

/// A name from an untrusted tar, quoted and truncated to fit on a line. It cannot move the cursor.
pub fn shown(name: &[u8]) -> String {
    const MOST: usize = 80;
    if name.len() <= MOST {
        format!("\"{}\"", name.escape_ascii())
    } else {
        format!("\"{}…\"", name[..MOST].escape_ascii())
    }
}

/// The parts of a path below the root, as Go's filepath.Clean leaves them.
pub fn clean(name: &[u8]) -> Vec<&[u8]> {
    below_root(split(name))
}

/// [`clean`] in the memory of `parts`. Returns whether a `..` leads above the root.
pub(crate) fn clean_into<'a>(parts: &mut Vec<&'a [u8]>, name: &'a [u8]) -> bool {
    parts.clear();
    add_below_root(parts, split(name))
}

/// The parts of a path, empty ones too.
fn split(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    memchr::memchr_iter(b'/', name)
        .chain([name.len()])
        .map(move |end| &name[std::mem::replace(&mut start, end + 1)..end])
}

/// Cleans a path that is already split into parts.
pub(crate) fn below_root<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let mut clean = Vec::with_capacity(8);
    add_below_root(&mut clean, parts);
    clean
}

fn add_below_root<'a>(
    clean: &mut Vec<&'a [u8]>,
    parts: impl IntoIterator<Item = &'a [u8]>,
) -> bool {
    let mut leads_above = false;
    for part in parts {
        match part {
            b"" | b"." => {}
            b".." => leads_above |= clean.pop().is_none(),
            part => clean.push(part),
        }
    }
    leads_above
}
