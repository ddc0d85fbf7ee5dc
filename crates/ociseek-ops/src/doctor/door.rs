//! What ociseek's own programs do with an image. The coverage that the snapshotter wants is judged
//! by its own code; whom a node trusts is known only there.

use std::collections::BTreeSet;

use super::finding::is_linux;
use crate::inspect::InspectedImage;
use crate::judge::{NotLazy, covers_enough};
use ociseek_format::digest::Digest;
use ociseek_format::image::{Coverage, Descriptor};

/// A way to start containers, or to read files, with ociseek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// containerd with `ociseek snapshotter`.
    Snapshotter,
    /// podman and CRI-O with `ociseek store`.
    Store,
    /// `ociseek mount` and `ociseek bundle`.
    Mount,
}

/// What is read by indexes, or why the image does not start lazily.
pub type DoorVerdict = Result<Coverage, NotLazy>;

impl Door {
    /// All of them, in display order.
    pub const ALL: [Door; 3] = [Door::Snapshotter, Door::Store, Door::Mount];

    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Door::Snapshotter => "ociseek-snapshotter",
            Door::Store => "ociseek-store",
            Door::Mount => "ociseek-mount",
        }
    }

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Door::Snapshotter => "ociseek snapshotter",
            Door::Store => "ociseek store (podman, CRI-O)",
            Door::Mount => "ociseek mount, bundle",
        }
    }

    /// What it wants of an image, besides an index.
    pub fn rule(self) -> &'static str {
        match self {
            Door::Snapshotter => {
                "lazy-from names its repository, or a key of the node signed its index, and indexes cover 80% of it"
            }
            Door::Store => {
                "lazy-from names its repository, or a key of the node signed its index; podman 5.1 and \
                 later also needs --toc-digests"
            }
            Door::Mount => "any index; layers without one are read whole",
        }
    }

    /// Judges an image, as if its repository were in lazy-from. Documents that are missing or
    /// damaged count as absent.
    pub(super) fn judge(self, inspected: &InspectedImage) -> DoorVerdict {
        let InspectedImage { image, pieces, .. } = inspected;
        if !is_linux(image) {
            return Err(NotLazy::Failed("it runs only Linux images".to_owned()));
        }
        if let Some(blob) = pieces.config.or(pieces.layers.first().copied()) {
            return Err(NotLazy::Failed(format!("blob {} is missing", blob.short())));
        }
        let broken: BTreeSet<&Digest> =
            pieces.documents.iter().map(|broken| &broken.layer).collect();
        // Not counted as a whole: its problem is listed, with the command that repairs it.
        let is_damaged = !pieces.broken.is_empty()
            || image.index().is_some_and(|(index, _)| pieces.lost.contains_key(&index.digest));
        let is_read = |layer: &Descriptor| {
            let layer = &layer.digest;
            match image.document_for(layer) {
                Some(_) => !broken.contains(layer),
                None => !is_damaged && image.ztoc_for(layer).is_some(),
            }
        };
        self.with(&image.layers, is_read).map_err(|why| match (why, image.unseen()) {
            (NotLazy::NoIndex, _) if is_damaged => {
                NotLazy::Failed("its index has missing or damaged parts".to_owned())
            }
            (NotLazy::NoIndex, Some(error)) => NotLazy::of(error),
            (why, _) => why,
        })
    }

    fn with(self, layers: &[Descriptor], is_read: impl Fn(&Descriptor) -> bool) -> DoorVerdict {
        if self == Door::Snapshotter {
            return covers_enough(layers, &BTreeSet::new(), is_read);
        }
        // Layer by layer.
        let coverage = Coverage::of(layers, is_read);
        if coverage.layers > 0 { Ok(coverage) } else { Err(NotLazy::NoIndex) }
    }
}
