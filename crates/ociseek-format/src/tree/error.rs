//! What is wrong with entries: why layers cannot be combined to a tree, and what is warned of in
//! layers that could be.

use crate::offset::LayerId;
use crate::path::shown;
use crate::ztoc::FileMetadata;

/// An entry that no unpacker could apply. containerd fails to unpack the same image, except where
/// noted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("entry {entry} of layer {layer}, {}, {fault}", shown(name))]
pub struct TreeError {
    /// Counted from the lowest layer, 0.
    pub layer: LayerId,
    /// Counted from 0 in the order of the layer's tar.
    pub entry: u32,
    /// The entry's path as written in the tar.
    pub name: Box<[u8]>,
    /// Why it cannot be applied.
    pub fault: TreeFault,
}

/// Why no unpacker could apply an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum TreeFault {
    #[error("has a name component longer than 255 bytes")]
    NameTooLong,
    #[error("has a path longer than 4095 bytes")]
    PathTooLong,
    #[error("has a NUL in its name")]
    Nul,
    #[error("is below something that is not a directory")]
    NotDirectory,
    #[error("is below a symbolic link loop, or below more than 255 symbolic links")]
    LinkLoop,
    #[error("is a whiteout without a name: \".wh.\", \".wh..\" and \".wh...\" are refused")]
    Whiteout,
    #[error("is a hard link to {}, which does not exist", shown(.0))]
    LinkToNothing(Box<[u8]>),
    #[error("is a hard link to {}, a directory", shown(.0))]
    LinkToDirectory(Box<[u8]>),
    #[error("is a symbolic link whose target is empty, longer than 4095 bytes, or contains a NUL")]
    LinkTarget,
    #[error("has the device number {0}:{1}, which is out of range")]
    Device(i64, i64),
    #[error("has the extended attribute {}, {why}", shown(name))]
    Xattr { name: Box<[u8]>, why: &'static str },
    #[error("is a directory that its own layer removes again, so its time cannot be set")]
    DirectoryGone,
    /// Our limit, far beyond any real image.
    #[error("exceeds the limit of {0} directories without an entry of their own")]
    TooManyImplied(u32),
    /// Our limit, which keeps the time in proportion to the layers.
    #[error("is behind too many symbolic links or opaque directories")]
    TooMuchWork,
    /// Our limit, because names and their bytes are numbered with 32 bits.
    #[error("exceeds the limit of 2^32 names in a tree, or of 4 GiB for them")]
    TooManyNames,
}

/// The most warnings, even for a layer with millions of strange entries.
const MOST: usize = 20;

#[derive(Default)]
pub(super) struct TreeWarnings {
    list: Vec<String>,
    more: u64,
}

impl TreeWarnings {
    pub(super) fn owner_wrapped(&mut self, layer: LayerId, file: &FileMetadata) {
        self.add(|| {
            let name = shown(&file.name);
            format!(
                "layer {layer}: {name} has an owner ID wider than 32 bits, truncated to {}:{}",
                file.uid, file.gid
            )
        });
    }

    pub(super) fn xattr_ignored(
        &mut self,
        layer: LayerId,
        file: &FileMetadata,
        xattr: &[u8],
        why: &str,
    ) {
        self.add(|| {
            format!(
                "layer {layer}: skipping the extended attribute {} of {}: it {why}",
                shown(xattr),
                shown(&file.name)
            )
        });
    }

    fn add(&mut self, text: impl FnOnce() -> String) {
        if self.list.len() < MOST {
            self.list.push(text());
        } else {
            self.more += 1;
        }
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        if self.more > 0 {
            self.list
                .push(format!("... and {} more warnings about the layers' entries", self.more));
        }
        self.list
    }
}
