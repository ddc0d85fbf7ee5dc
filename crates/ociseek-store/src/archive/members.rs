//! The members of an archive by name, with links followed inside the archive.

use std::collections::HashMap;
use std::path::Path;

use super::{ArchiveFile, MemberPlace, tar};
use crate::layout::LayoutError;
use ociseek_format::tar::{Entry, Kind, SparseMap};

/// The maximum number of members. Old archives of Docker have three for each layer.
const MAX_MEMBERS: usize = 1 << 16;
/// The maximum total size of their names, link targets and sparse maps, in bytes.
const MAX_NAMES: usize = 16 << 20;
/// How many times the bytes of the archive a sparse member may have: its holes take no bytes, and
/// reading them takes time. Gzip compresses as far.
const MAX_EXPANSION: u64 = 1024;
/// The maximum length of a chain of links. Old archives use a link for a layer that is already
/// stored.
const MAX_LINKS: usize = 16;

/// The members of the tar by name. Of several with the same name, the last one counts, as when the
/// tar is unpacked.
#[derive(Debug)]
pub(super) struct Members(HashMap<Box<[u8]>, Member>);

#[derive(Debug, Clone)]
enum Member {
    File(MemberPlace),
    /// A link with its target; None if the target is outside the archive.
    Link(Option<Box<[u8]>>),
    /// A sparse file that expands too far.
    TooSparse,
    Other,
}

impl Members {
    /// Reads the headers of the tar. `not` makes the error that the file is not such an archive.
    pub(super) fn of(file: &ArchiveFile, not: &dyn Fn(&str) -> LayoutError) -> Result<Members, LayoutError> {
        let mut all: HashMap<Box<[u8]>, Member> = HashMap::new();
        let mut bytes = 0;
        tar::members(file.path, &file.file, file.length, |name, entry| {
            // Nobody can ask for a name that leads out of the archive.
            let Some(name) = resolved(name).filter(|_| entry.kind != Kind::Directory) else { return Ok(()) };
            bytes += entry.sparse.as_ref().map_or(0, SparseMap::footprint);
            let member = match member(&name, entry, file.length) {
                // A hard link is another name of what its target is now.
                Member::Link(Some(target)) if entry.kind == Kind::HardLink && *target != *name => {
                    all.get(&target).cloned().unwrap_or(Member::Link(Some(target)))
                }
                member => member,
            };
            bytes += name.len();
            if let Member::Link(Some(target)) = &member {
                bytes += target.len();
            }
            all.insert(name, member);
            if all.len() > MAX_MEMBERS || bytes > MAX_NAMES {
                return Err(not(&format!("it has more than {MAX_MEMBERS} files, or too long names or sparse maps")));
            }
            Ok(())
        })?;
        Ok(Members(all))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains_key(name.as_bytes())
    }

    /// The folder at the top that holds a file of this name.
    pub(super) fn folder_of(&self, file: &str) -> Option<String> {
        let folder = |name: &[u8]| {
            let folder = name.strip_suffix(file.as_bytes())?.strip_suffix(b"/")?;
            (!folder.contains(&b'/')).then(|| shown(&String::from_utf8_lossy(folder)))
        };
        self.0.keys().filter_map(|name| folder(name)).min()
    }

    /// The location of a file that a document of the archive names. None if it does not exist.
    pub(super) fn look_up(&self, path: &Path, name: &str) -> Result<Option<MemberPlace>, LayoutError> {
        let wrong = |reason| LayoutError::Member { path: path.to_owned(), name: shown(name), reason };
        let leads_out = "is a link that leads out of the archive";
        let mut next = resolved(name.as_bytes()).ok_or_else(|| wrong("leads out of the archive"))?;
        for _ in 0..=MAX_LINKS {
            next = match self.0.get(&next) {
                Some(Member::File(place)) => return Ok(Some(place.clone())),
                Some(Member::Link(target)) => target.clone().ok_or_else(|| wrong(leads_out))?,
                Some(Member::TooSparse) => {
                    return Err(wrong("is a sparse file of more than 1024 times the bytes of the archive"));
                }
                Some(Member::Other) => return Err(wrong("is not a regular file")),
                // A folder on the way may be a link.
                None => {
                    let slashes = next.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
                    let folder = slashes.into_iter().find_map(|at| match self.0.get(&next[..at]) {
                        Some(Member::Link(target)) => Some((target.clone(), at)),
                        _ => None,
                    });
                    let Some((target, at)) = folder else { return Ok(None) };
                    let target = target.ok_or_else(|| wrong(leads_out))?;
                    resolved(&[&*target, &next[at..]].concat()).ok_or_else(|| wrong(leads_out))?
                }
            };
        }
        Err(wrong("is a link in a loop, or through too many links"))
    }

    /// Like [`Members::look_up`], for a file that must be there.
    pub(super) fn find(&self, path: &Path, name: &str) -> Result<MemberPlace, LayoutError> {
        self.look_up(path, name)?.ok_or_else(|| LayoutError::Member {
            path: path.to_owned(),
            name: shown(name),
            reason: "is not in the archive",
        })
    }
}

fn member(name: &[u8], entry: &Entry, archive: u64) -> Member {
    let size = entry.size.unsigned_abs();
    match entry.kind {
        Kind::Sparse if size / MAX_EXPANSION > archive => Member::TooSparse,
        Kind::Regular | Kind::Sparse => {
            Member::File(MemberPlace { offset: entry.data.0, size, sparse: entry.sparse.clone() })
        }
        Kind::HardLink => Member::Link(resolved(&entry.linkname)),
        Kind::Symlink if entry.linkname.first() == Some(&b'/') => Member::Link(None),
        Kind::Symlink => {
            let directory = name.iter().rposition(|&b| b == b'/').map_or(&[][..], |slash| &name[..slash]);
            Member::Link(resolved(&[directory, b"/", &entry.linkname].concat()))
        }
        _ => Member::Other,
    }
}

/// The name without `.`, `..` and redundant slashes. None if it leads out of the archive.
fn resolved(name: &[u8]) -> Option<Box<[u8]>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/').into())
}

/// A name from the archive, for messages.
pub(super) fn shown(name: &str) -> String {
    name.chars().take(100).collect()
}
