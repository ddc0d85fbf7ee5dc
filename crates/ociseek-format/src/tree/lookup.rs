//! Resolves names while layers are applied, by containerd's rules (continuity, fs/path.go
//! RootPath). Symbolic links before the last part are resolved below the root, whatever they say.
//!
//! These rules join paths as text, so `..` after a link does not always lead where a kernel would
//! go. The tree must equal containerd's, so the same steps are taken here, path by path.

use super::error::TreeFault;
use super::paths::{NAME_MAX, PATH_MAX, PathId, Paths, ROOT};
use crate::path::{below_root, clean_into};

/// The number of links that containerd follows for a name.
const MAX_LINKS: u32 = 255;
/// The number of links that Linux follows for a name.
const MAX_KERNEL_LINKS: u32 = 40;

/// A path as written in the tar.
#[derive(Clone)]
pub(super) struct TarPath<'a> {
    is_absolute: bool,
    /// Without empty parts, but possibly with `.` and `..`.
    parts: Vec<&'a [u8]>,
}

/// The types of existing inodes, as far as lookups need them.
pub(super) enum InodeKind<'a> {
    Directory,
    Symlink(&'a [u8]),
    Other,
}

/// Names and the files at them.
pub(super) struct Lookup<'t, 'a, F: Fn(u32) -> InodeKind<'a>> {
    pub paths: &'t mut Paths<'a>,
    pub seen: F,
    /// The number of steps left.
    pub work: &'t mut u64,
}

/// How much of a path without symbolic links exists.
pub(super) struct PathPrefix {
    /// The deepest existing directory or file ...
    pub deepest: PathId,
    /// ... and the number of parts missing after it.
    pub missing: usize,
}

impl<'a> TarPath<'a> {
    pub(super) fn new(path: &'a [u8]) -> TarPath<'a> {
        let parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty()).collect();
        TarPath { is_absolute: path.first() == Some(&b'/'), parts }
    }

    /// Go's filepath.Clean, also without leading `..`: like a slash, they lead to the root.
    pub(super) fn clean(path: &'a [u8]) -> TarPath<'a> {
        TarPath::clean_in(Vec::new(), path)
    }

    /// [`TarPath::clean`] in the memory of another path's parts.
    pub(super) fn clean_in(mut parts: Vec<&'a [u8]>, path: &'a [u8]) -> TarPath<'a> {
        let leads_above = clean_into(&mut parts, path);
        TarPath { is_absolute: leads_above || path.first() == Some(&b'/'), parts }
    }

    /// Whether these are its parts.
    pub(super) fn is(&self, parts: &[&[u8]]) -> bool {
        self.parts == parts
    }

    /// How many of its parts, from the first one, are also those of another path.
    pub(super) fn shared(&self, parts: &[&[u8]]) -> usize {
        self.parts.iter().zip(parts).take_while(|(one, other)| one == other).count()
    }

    /// Removes the last part.
    pub(super) fn pop(&mut self) -> Option<&'a [u8]> {
        self.parts.pop()
    }

    pub(super) fn into_parts(self) -> Vec<&'a [u8]> {
        self.parts
    }

    fn has_dots(&self) -> bool {
        self.parts.iter().any(|part| matches!(*part, b"." | b".."))
    }
}

/// Go's filepath.Join of two paths. The second one is always relative.
fn join<'a>(base: &TarPath<'a>, more: &[&'a [u8]]) -> TarPath<'a> {
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
    TarPath { is_absolute: base.is_absolute, parts }
}

impl<'t, 'a, F: Fn(u32) -> InodeKind<'a>> Lookup<'t, 'a, F> {
    /// Resolves all symbolic links of `path`, including the last part, to a path below the root.
    /// The result need not exist.
    ///
    /// # Errors
    /// Where containerd fails: for loops of links, for paths below a file, and for names that are
    /// too long.
    pub(super) fn root_path(&mut self, path: TarPath<'a>) -> Result<Vec<&'a [u8]>, TreeFault> {
        if !path.has_dots() && self.find(&path.parts)?.is_some() {
            return Ok(path.parts);
        }
        self.without_links(path)
    }

    /// [`Lookup::root_path`], followed by [`Lookup::find`]. `known` is a directory that the first
    /// parts of the path lead to without links, and the number of these parts.
    ///
    /// # Errors
    /// Those of both.
    pub(super) fn locate(
        &mut self,
        path: TarPath<'a>,
        known: (PathId, usize),
    ) -> Result<(Vec<&'a [u8]>, Option<PathPrefix>), TreeFault> {
        if !path.has_dots()
            && let Some(prefix) = self.find_below(known, &path.parts)?
        {
            return Ok((path.parts, Some(prefix)));
        }
        let parts = self.without_links(path)?;
        let prefix = self.find(&parts)?;
        Ok((parts, prefix))
    }

    fn without_links(&mut self, path: TarPath<'a>) -> Result<Vec<&'a [u8]>, TreeFault> {
        let mut path = path;
        let mut links = 0;
        loop {
            let before = links;
            path = self.walk(&path, &mut links)?;
            if links == before {
                return Ok(below_root(path.parts));
            }
        }
    }

    /// How much of a clean path exists. None if it contains a symbolic link.
    ///
    /// # Errors
    /// If it leads through a file, or has a part that is too long.
    pub(super) fn find(&mut self, parts: &[&'a [u8]]) -> Result<Option<PathPrefix>, TreeFault> {
        self.find_below((ROOT, 0), parts)
    }

    /// [`Lookup::find`] without looking up the parts that are already `known`.
    ///
    /// # Errors
    /// Those of [`Lookup::find`].
    fn find_below(
        &mut self,
        known: (PathId, usize),
        parts: &[&'a [u8]],
    ) -> Result<Option<PathPrefix>, TreeFault> {
        self.spend(parts.len())?;
        let (mut deepest, known) = known;
        for (number, part) in parts.iter().enumerate().skip(known) {
            if part.len() > NAME_MAX {
                return Err(TreeFault::NameTooLong);
            }
            let Some(path) = self.paths.child(deepest, part) else {
                return Ok(Some(PathPrefix { deepest, missing: parts.len() - number }));
            };
            match self.paths.inode(path).map(&self.seen) {
                Some(InodeKind::Symlink(_)) => return Ok(None),
                Some(InodeKind::Other) if number + 1 < parts.len() => {
                    return Err(TreeFault::NotDirectory);
                }
                _ => deepest = path,
            }
        }
        Ok(Some(PathPrefix { deepest, missing: 0 }))
    }

    /// One pass over the path: examines each part once and replaces a link by its target.
    fn walk(&mut self, path: &TarPath<'a>, links: &mut u32) -> Result<TarPath<'a>, TreeFault> {
        let root = TarPath { is_absolute: true, parts: Vec::new() };
        let mut walked = path.is_absolute.then(|| root.clone());
        for part in &path.parts {
            if *links > MAX_LINKS {
                return Err(TreeFault::LinkLoop);
            }
            let base = walked.as_ref().unwrap_or(&root);
            self.spend(base.parts.len() + 1)?;
            let here = below_root(base.parts.iter().copied().chain([*part]));
            let Some(target) = self.link_at(&here)? else {
                walked = Some(TarPath { is_absolute: true, parts: here });
                continue;
            };
            *links += 1;
            let target = TarPath::new(target);
            walked = Some(match walked {
                Some(base) if !target.is_absolute => join(&base, &target.parts),
                _ => target,
            });
        }
        Ok(walked.unwrap_or(root))
    }

    /// The target of the symbolic link at `path`. None for other files and for missing ones. As in
    /// lstat(2), links before the last part are followed. Links that lead out of the root count as
    /// missing.
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
                Some(InodeKind::Symlink(target)) if ahead.is_empty() => return Ok(Some(target)),
                Some(InodeKind::Symlink(target)) => {
                    let target = TarPath::new(target);
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
                Some(InodeKind::Directory) => behind.push(next),
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
