//! The commands that cure an image without a usable index.

use std::path::Path;

use super::terminal::quoted;
use ociseek_format::image::{ImageName, ImageSelector};
use ociseek_ops::doctor::NoIndex;

/// The command that gives an image of one platform an index, or other advice. None if nothing
/// helps.
pub(crate) fn to_index(image: &ImageName, why: &NoIndex) -> Option<String> {
    match why {
        NoIndex::Possible => Some(format!(
            "ociseek convert {} {}",
            quoted_name(image),
            quoted(new_name(image).as_bytes())
        )),
        NoIndex::Impossible { has_large_zstd: true, .. } => Some(WITH_GZIP.into()),
        NoIndex::Small | NoIndex::Impossible { .. } => None,
    }
}

/// What helps with layers that no consumer serves.
pub(crate) const WITH_GZIP: &str = "build the image with gzip layers: docker buildx build --output \
                                    type=image,compression=gzip,force-compression=true";

/// What helps an image of zstd layers without any index.
pub(crate) fn or_fine(image: &ImageName) -> String {
    match image {
        ImageName::Archive { .. } | ImageName::Saved { .. } => WITH_GZIP.to_owned(),
        _ => format!(
            "{WITH_GZIP}; or, for ociseek's own mount, bundle and snapshotter: ociseek index \
             --kind fine {}",
            quoted_name(image)
        ),
    }
}

/// A name for the SOCI-enabled image of this image, in the same place; for archives, in a layout.
pub(crate) fn new_name(image: &ImageName) -> String {
    let layout = |file: &Path| format!("oci:{}-soci", file.with_extension("").display());
    match image {
        ImageName::Registry(reference) => {
            let place = format!("{}/{}", reference.registry, reference.repository);
            match (&reference.tag, &reference.digest) {
                (Some(tag), _) => format!("{place}:{tag}-soci"),
                (None, Some(digest)) => format!("{place}:{}-soci", digest.short()),
                (None, None) => format!("{place}:latest-soci"),
            }
        }
        ImageName::Layout { dir, select } => match select {
            ImageSelector::Tag(tag) => format!("oci:{}:{tag}-soci", dir.display()),
            ImageSelector::Digest(digest) => {
                format!("oci:{}:{}-soci", dir.display(), digest.short())
            }
            ImageSelector::Any => format!("oci:{}:soci", dir.display()),
        },
        ImageName::Archive { file, .. } | ImageName::Saved { file, .. } => layout(file),
    }
}

pub(crate) fn quoted_name(image: &ImageName) -> String {
    quoted(image.to_string().as_bytes())
}

/// From the SOCI-enabled image itself.
pub(crate) fn convert_again(image: &ImageName) -> String {
    format!("ociseek convert {} {}", quoted(image.to_string().as_bytes()), name_for(image))
}

/// From the original, if the SOCI-enabled image cannot be read.
pub(crate) fn convert_original(image: &ImageName) -> String {
    format!("ociseek convert ORIGINAL {}", name_for(image))
}

/// Whether a converted image can have this name.
pub(crate) fn has_tag(image: &ImageName) -> bool {
    match image {
        ImageName::Registry(reference) => reference.digest.is_none(),
        ImageName::Layout { select, .. } => matches!(select, ImageSelector::Tag(_)),
        ImageName::Archive { .. } | ImageName::Saved { .. } => false,
    }
}

/// Its own name if that can be the name of a converted image, and otherwise a new one.
fn name_for(image: &ImageName) -> String {
    if has_tag(image) { quoted(image.to_string().as_bytes()) } else { "NEW-NAME".to_owned() }
}
