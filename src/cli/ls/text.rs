//! The output of `ociseek ls` for people.

use std::borrow::Cow;
use std::io::{self, Write};

use crate::cli::ls::Listing;
use crate::cli::shared::size::human;
use crate::cli::shared::terminal::quoted;
use ociseek_format::time::Time;
use ociseek_format::tree::{NodeId, NodeKind, Tree};
use ociseek_format::ztoc::{FileKind, FileMetadata};

/// How names are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameStyle {
    /// Unchanged, byte for byte.
    Raw,
    /// Quoted, so that a terminal can show them.
    Quoted,
}

impl NameStyle {
    fn show(self, name: &[u8]) -> Cow<'_, [u8]> {
        match self {
            NameStyle::Raw => Cow::Borrowed(name),
            NameStyle::Quoted => Cow::Owned(quoted(name).into_bytes()),
        }
    }
}

/// How much is shown about a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    Name,
    /// Sizes in bytes.
    Long,
    /// Sizes with a unit.
    Human,
}

impl Detail {
    fn size(self, bytes: u64) -> String {
        if self == Detail::Human { human(bytes).replace(' ', "") } else { bytes.to_string() }
    }
}

pub(super) fn tree(
    tree: &Tree,
    listing: &Listing,
    detail: Detail,
    names: NameStyle,
    mut out: impl Write,
) -> io::Result<()> {
    match listing {
        Listing::File { name, node } => {
            rows(&[(&name[..], *node)], tree, detail, names, &mut out)?;
        }
        Listing::Directories { list, recursive } => {
            for (number, (path, directory)) in list.iter().enumerate() {
                if *recursive {
                    let heading = if path.is_empty() { b"/" } else { &path[..] };
                    out.write_all(if number == 0 { b"" } else { b"\n" })?;
                    out.write_all(&names.show(heading))?;
                    out.write_all(b":\n")?;
                }
                let children: Vec<(&[u8], NodeId)> = tree.children(*directory).collect();
                rows(&children, tree, detail, names, &mut out)?;
            }
        }
    }
    out.flush()
}

fn rows(
    list: &[(&[u8], NodeId)],
    tree: &Tree,
    detail: Detail,
    names: NameStyle,
    out: &mut impl Write,
) -> io::Result<()> {
    if detail == Detail::Name {
        for (name, _) in list {
            out.write_all(&names.show(name))?;
            out.write_all(b"\n")?;
        }
        return Ok(());
    }
    let columns: Vec<Columns> =
        list.iter().map(|(_, id)| Columns::of_node(tree, *id, detail)).collect();
    let widths = Widths::of(&columns);
    for ((name, id), columns) in list.iter().zip(&columns) {
        let target = match &tree.node(*id).kind {
            NodeKind::Symlink(target) => Some(&target[..]),
            _ => None,
        };
        widths.write(columns, name, target, " -> ", names, out)?;
    }
    Ok(())
}

/// The entries of a layer, as stored in its tar.
pub(super) fn layer(
    entries: &[&FileMetadata],
    detail: Detail,
    names: NameStyle,
    mut out: impl Write,
) -> io::Result<()> {
    let columns: Vec<Columns> = match detail {
        Detail::Name => Vec::new(),
        detail => entries.iter().map(|file| Columns::of_entry(file, detail)).collect(),
    };
    let widths = Widths::of(&columns);
    for (number, file) in entries.iter().enumerate() {
        let (target, arrow) = match file.kind {
            FileKind::Symlink => (Some(&file.linkname[..]), " -> "),
            FileKind::HardLink => (Some(&file.linkname[..]), " link to "),
            _ => (None, ""),
        };
        match columns.get(number) {
            Some(columns) => widths.write(columns, &file.name, target, arrow, names, &mut out)?,
            None => {
                out.write_all(&names.show(&file.name))?;
                out.write_all(b"\n")?;
            }
        }
    }
    out.flush()
}

/// A line of `ls -l` without the name.
struct Columns {
    mode: String,
    links: String,
    uid: String,
    gid: String,
    /// For devices, their numbers instead of the size.
    size: String,
    mtime: String,
}

impl Columns {
    fn of_node(tree: &Tree, id: NodeId, detail: Detail) -> Columns {
        let node = tree.node(id);
        let (kind, size) = match &node.kind {
            NodeKind::Directory(_) => ('d', "0".to_owned()),
            NodeKind::File(extent) => ('-', detail.size(extent.size)),
            NodeKind::Sparse(extent) => ('-', detail.size(extent.map.size())),
            NodeKind::Symlink(target) => ('l', detail.size(target.len() as u64)),
            NodeKind::CharDevice { major, minor } => ('c', format!("{major},{minor}")),
            NodeKind::BlockDevice { major, minor } => ('b', format!("{major},{minor}")),
            NodeKind::Fifo => ('p', "0".to_owned()),
        };
        Columns {
            // ls marks files with additional access attributes in the same way.
            mode: permissions(kind, node.mode) + if tree.xattrs(id).is_empty() { "" } else { "+" },
            links: node.nlink.to_string(),
            uid: node.uid.to_string(),
            gid: node.gid.to_string(),
            size,
            mtime: time(Some(node.mtime())),
        }
    }

    fn of_entry(file: &FileMetadata, detail: Detail) -> Columns {
        let device = || format!("{},{}", file.devmajor, file.devminor);
        let (kind, size) = match file.kind {
            FileKind::Directory => ('d', "0".to_owned()),
            FileKind::Regular => ('-', detail.size(file.size)),
            FileKind::HardLink => ('h', "0".to_owned()),
            FileKind::Symlink => ('l', detail.size(file.linkname.len() as u64)),
            FileKind::CharDevice => ('c', device()),
            FileKind::BlockDevice => ('b', device()),
            FileKind::Fifo => ('p', "0".to_owned()),
        };
        let has_xattrs = file.pax.iter().any(|record| record.key.starts_with(b"SCHILY.xattr."));
        Columns {
            mode: permissions(kind, (file.mode & 0o7777) as u32)
                + if has_xattrs { "+" } else { "" },
            links: String::new(),
            uid: file.uid.to_string(),
            gid: file.gid.to_string(),
            size,
            mtime: time(file.mtime),
        }
    }
}

/// The widths of the columns, as needed for their content.
struct Widths([usize; 5]);

impl Widths {
    fn of(rows: &[Columns]) -> Widths {
        let width = |column: fn(&Columns) -> &str| {
            rows.iter().map(|row| column(row).len()).max().unwrap_or(0)
        };
        Widths([
            width(|r| &r.mode),
            width(|r| &r.links),
            width(|r| &r.uid),
            width(|r| &r.gid),
            width(|r| &r.size),
        ])
    }

    fn write(
        &self,
        columns: &Columns,
        name: &[u8],
        target: Option<&[u8]>,
        arrow: &str,
        names: NameStyle,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let Columns { mode, links, uid, gid, size, mtime } = columns;
        let [modes, all_links, uids, gids, sizes] = self.0;
        write!(out, "{mode:modes$} ")?;
        if all_links > 0 {
            write!(out, "{links:>all_links$} ")?;
        }
        write!(out, "{uid:>uids$} {gid:>gids$} {size:>sizes$} {mtime} ")?;
        out.write_all(&names.show(name))?;
        if let Some(target) = target {
            out.write_all(arrow.as_bytes())?;
            out.write_all(&names.show(target))?;
        }
        out.write_all(b"\n")
    }
}

/// `drwxr-xr-x`, with setuid, setgid and sticky bits like ls.
fn permissions(kind: char, mode: u32) -> String {
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
        });
    }
    text
}

/// The time in UTC, in whole seconds.
fn time(time: Option<Time>) -> String {
    let seconds = time.and_then(|time| Time { nanos: 0, ..time }.to_rfc3339());
    seconds.unwrap_or_else(|| "-                   ".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        for (kind, mode, text) in [
            ('-', 0o644, "-rw-r--r--"),
            ('d', 0o1777, "drwxrwxrwt"),
            ('-', 0o4755, "-rwsr-xr-x"),
            ('-', 0o6640, "-rwSr-S---"),
            ('d', 0o1000, "d--------T"),
        ] {
            assert_eq!(permissions(kind, mode), text);
        }
    }
}
