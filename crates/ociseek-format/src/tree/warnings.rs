//! Warnings about layers that could be applied.

use crate::layer::shown;
use crate::offset::LayerId;
use crate::ztoc::FileMetadata;

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
            format!("layer {layer}: {name} has an owner ID wider than 32 bits, truncated to {}:{}", file.uid, file.gid)
        });
    }

    pub(super) fn xattr_ignored(&mut self, layer: LayerId, file: &FileMetadata, xattr: &[u8], why: &str) {
        self.add(|| {
            format!(
                "layer {layer}: skipping the extended attribute {} of {}: it {why}",
                shown(xattr),
                shown(&file.name)
            )
        });
    }

    pub(super) fn link_left_out(&mut self, file: &FileMetadata, target: &[u8]) {
        self.add(|| {
            let (name, target) = (shown(&file.name), shown(target));
            format!("skipping {name}: it is a hard link to {target}, which is not in this layer")
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
            self.list.push(format!("... and {} more warnings about the layers' entries", self.more));
        }
        self.list
    }
}
