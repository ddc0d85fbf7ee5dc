//! Resolves paths from users and image configs as inside a container: symbolic links start at the
//! root of the tree.

use super::{NodeId, NodeKind, Tree};

/// The number of links that Linux follows in one path.
const MAX_LINKS: u32 = 40;
/// The maximum path length on Linux.
const PATH_MAX: usize = 4095;

/// Why a path cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum PathError {
    #[error("no such file or directory: {}", shown(.0))]
    NotFound(Vec<u8>),
    #[error("not a directory: {}", shown(.0))]
    NotDirectory(Vec<u8>),
    #[error("too many levels of symbolic links: {}", shown(.0))]
    TooManyLinks(Vec<u8>),
    #[error("the path is longer than 4095 bytes")]
    TooLong,
}

fn shown(path: &[u8]) -> String {
    crate::layer::shown(&[b"/", path].concat())
}

impl Tree {
    /// Resolves `path` from the root, with or without a leading slash. `..` of the root is the
    /// root. A symbolic link at the end is followed if `follow_last` is set or a slash follows it.
    ///
    /// # Errors
    /// If a part does not exist or is not a directory, and after 40 links.
    pub fn resolve(&self, path: &[u8], follow_last: bool) -> Result<NodeId, PathError> {
        if path.len() > PATH_MAX {
            return Err(PathError::TooLong);
        }
        let follow_last = follow_last || path.ends_with(b"/");
        let must_be_directory = path.ends_with(b"/") || path.ends_with(b"/.");
        let parts = |path: &[u8]| -> Vec<Box<[u8]>> {
            path.split(|&b| b == b'/').rev().filter(|part| !part.is_empty()).map(Into::into).collect()
        };
        let mut ahead = parts(path);
        let mut here = Tree::ROOT;
        let mut links = 0;
        while let Some(part) = ahead.pop() {
            if !self.node(here).kind.is_directory() {
                return Err(PathError::NotDirectory(self.path(here)));
            }
            let below = |name: &[u8]| {
                [&self.path(here)[..], name].iter().filter(|p| !p.is_empty()).copied().collect::<Vec<_>>().join(&b'/')
            };
            match &part[..] {
                b"." => continue,
                b".." => {
                    here = self.parent(here);
                    continue;
                }
                name => {
                    let child = self.child(here, name).ok_or_else(|| PathError::NotFound(below(name)))?;
                    match &self.node(child).kind {
                        NodeKind::Symlink(target) if !ahead.is_empty() || follow_last => {
                            links += 1;
                            if links > MAX_LINKS {
                                return Err(PathError::TooManyLinks(below(name)));
                            }
                            if target.first() == Some(&b'/') {
                                here = Tree::ROOT;
                            }
                            ahead.extend(parts(target));
                        }
                        _ => here = child,
                    }
                }
            }
        }
        if must_be_directory && !self.node(here).kind.is_directory() {
            return Err(PathError::NotDirectory(self.path(here)));
        }
        Ok(here)
    }
}
