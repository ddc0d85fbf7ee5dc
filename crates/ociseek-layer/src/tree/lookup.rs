//! Where a name leads while layers are applied: containerd's rules (continuity, fs/path.go
//! RootPath), under which a symbolic link in front of the last part leads below the root, whatever
//! it says.
//!
//! Those rules join paths as text, so that `..` behind a link does not always lead where a kernel
//! would go. The tree is to be the one that containerd leaves, so the same steps are taken here,
//! path by path.

use super::error::TreeFault;
use super::paths::{NAME_MAX, PATH_MAX, PathId, Paths, ROOT};
use crate::layer::below_root;

/// Links that containerd follows for one name.
const MAX_LINKS: u32 = 255;
/// Links that Linux follows for one name.
const MAX_KERNEL_LINKS: u32 = 40;

/// A path as it is written.
#[derive(Clone)]
pub(super) struct Written<'a> {
    is_absolute: bool,
    /// Without empty ones; `.` and `..` may be among them.
    parts: Vec<&'a [u8]>,
}

/// What the tree so far says of inodes.
pub(super) enum Seen<'a> {
    Directory,
    Symlink(&'a [u8]),
    Other,
}

/// Names, and what lies there.
pub(super) struct Lookup<'t, 'a, F: Fn(u32) -> Seen<'a>> {
    pub paths: &'t Paths<'a>,
    pub seen: F,
    /// Steps that may still be taken.
    pub work: &'t mut u64,
}

/// How far a path without symbolic links exists.
pub(super) struct Found {
    /// What of it is there ...
    pub deepest: PathId,
    /// ... and how many parts are missing behind that.
    pub missing: usize,
}

impl<'a> Written<'a> {
    pub(super) fn new(path: &'a [u8]) -> Written<'a> {
        let parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty()).collect();
        Written { is_absolute: path.first() == Some(&b'/'), parts }
    }

    /// Go's filepath.Clean of a path, without the `..` that it leaves in front: like a slash, they lead to the root.
    pub(super) fn clean(path: &'a [u8]) -> Written<'a> {
        let mut clean = Written { is_absolute: path.first() == Some(&b'/'), parts: Vec::new() };
        for part in path.split(|&b| b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => clean.is_absolute |= clean.parts.pop().is_none(),
                part => clean.parts.push(part),
            }
        }
        clean
    }

    /// Takes the last part away.
    pub(super) fn pop(&mut self) -> Option<&'a [u8]> {
        self.parts.pop()
    }

    fn has_dots(&self) -> bool {
        self.parts.iter().any(|part| matches!(*part, b"." | b".."))
    }
}

/// Go's filepath.Join of two paths, the second one taken as relative.
fn join<'a>(base: &Written<'a>, more: &[&'a [u8]]) -> Written<'a> {
    let mut parts: Vec<&[u8]> = Vec::with_capacity(base.parts.len() + more.len());
    for &part in base.parts.iter().chain(more) {
        match part {
            b"." => {}
            b".." => match parts.last() {
                Some(&last) if last != b".." => {
                    parts.pop();
                }
                _ if base.is_absolute => {}
                _ => parts.push(part),
            },
            part => parts.push(part),
        }
    }
    Written { is_absolute: base.is_absolute, parts }
}

impl<'t, 'a, F: Fn(u32) -> Seen<'a>> Lookup<'t, 'a, F> {
    /// The path below the root to which `path` leads through all symbolic links, the last part's
    /// too. It need not exist.
    ///
    /// # Errors
    /// Where containerd fails: for links in a circle, for something below a file, for what is too long.
    pub(super) fn root_path(&mut self, path: Written<'a>) -> Result<Vec<&'a [u8]>, TreeFault> {
        if !path.has_dots() && self.find(&path.parts)?.is_some() {
            return Ok(path.parts);
        }
        let (mut path, mut links) = (path, 0);
        loop {
            let before = links;
            path = self.walk(&path, &mut links)?;
            if links == before {
                return Ok(below_root(path.parts));
            }
        }
    }

    /// How far a clean path exists; None if a symbolic link is part of it.
    ///
    /// # Errors
    /// When it leads through a file, or has a part that is too long.
    pub(super) fn find(&mut self, parts: &[&'a [u8]]) -> Result<Option<Found>, TreeFault> {
        self.spend(parts.len())?;
        let mut deepest = ROOT;
        for (number, part) in parts.iter().enumerate() {
            if part.len() > NAME_MAX {
                return Err(TreeFault::NameTooLong);
            }
            let Some(path) = self.paths.child(deepest, part) else {
                return Ok(Some(Found { deepest, missing: parts.len() - number }));
            };
            match self.paths.inode(path).map(&self.seen) {
                Some(Seen::Symlink(_)) => return Ok(None),
                Some(Seen::Other) if number + 1 < parts.len() => return Err(TreeFault::NotDirectory),
                _ => deepest = path,
            }
        }
        Ok(Some(Found { deepest, missing: 0 }))
    }

    /// One round: each part is looked at once, and a link is replaced by its target.
    fn walk(&mut self, path: &Written<'a>, links: &mut u32) -> Result<Written<'a>, TreeFault> {
        let root = Written { is_absolute: true, parts: Vec::new() };
        let mut walked = path.is_absolute.then(|| root.clone());
        for part in &path.parts {
            if *links > MAX_LINKS {
                return Err(TreeFault::LinkLoop);
            }
            let base = walked.as_ref().unwrap_or(&root);
            self.spend(base.parts.len() + 1)?;
            let here = below_root(base.parts.iter().copied().chain([*part]));
            let Some(target) = self.link_at(&here)? else {
                walked = Some(Written { is_absolute: true, parts: here });
                continue;
            };
            *links += 1;
            let target = Written::new(target);
            walked = Some(match walked {
                Some(base) if !target.is_absolute => join(&base, &target.parts),
                _ => target,
            });
        }
        Ok(walked.unwrap_or(root))
    }

    /// The target of the symbolic link at `path`; None if there is something else, or nothing. As
    /// lstat(2) does it, links in front of the last part are followed; those that lead out of the
    /// root lead to nothing here.
    fn link_at(&mut self, path: &[&'a [u8]]) -> Result<Option<&'a [u8]>, TreeFault> {
        if path.iter().map(|part| part.len() + 1).sum::<usize>() > PATH_MAX {
            return Err(TreeFault::PathTooLong);
        }
        let mut ahead: Vec<&[u8]> = path.iter().rev().copied().collect();
        let mut behind: Vec<PathId> = vec![ROOT];
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            self.spend(1)?;
            if part.len() > NAME_MAX {
                return Err(TreeFault::NameTooLong);
            }
            let here = behind.last().copied().unwrap_or(ROOT);
            match part {
                b"." => continue,
                b".." => {
                    behind.pop();
                    if behind.is_empty() {
                        return Ok(None);
                    }
                    continue;
                }
                _ => {}
            }
            let Some(next) = self.paths.child(here, part) else { return Ok(None) };
            match self.paths.inode(next).map(&self.seen) {
                Some(Seen::Symlink(target)) if ahead.is_empty() => return Ok(Some(target)),
                Some(Seen::Symlink(target)) => {
                    let target = Written::new(target);
                    links += 1;
                    if links > MAX_KERNEL_LINKS {
                        return Err(TreeFault::LinkLoop);
                    }
                    if target.is_absolute {
                        return Ok(None);
                    }
                    self.spend(target.parts.len())?;
                    ahead.extend(target.parts.iter().rev());
                }
                Some(Seen::Directory) => behind.push(next),
                _ if ahead.is_empty() => return Ok(None),
                _ => return Err(TreeFault::NotDirectory),
            }
        }
        Ok(None)
    }

    fn spend(&mut self, steps: usize) -> Result<(), TreeFault> {
        *self.work = self.work.checked_sub(steps as u64).ok_or(TreeFault::TooMuchWork)?;
        Ok(())
    }
}
