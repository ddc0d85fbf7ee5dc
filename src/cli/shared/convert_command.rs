//! The commands that make a SOCI-enabled image again, which repairs it.

use super::quote::quoted;
use ociseek_format::image::{ImageName, ImageSelector};

/// From the SOCI-enabled image itself.
pub(crate) fn convert_again(image: &ImageName) -> String {
    format!("ociseek convert {} {}", quoted(image.to_string().as_bytes()), name_for(image))
}

/// From the original, if the SOCI-enabled image cannot be read.
pub(crate) fn convert_original(image: &ImageName) -> String {
    format!("ociseek convert ORIGINAL {}", name_for(image))
}

/// Its own name if that can be the name of a converted image, and otherwise a new one.
fn name_for(image: &ImageName) -> String {
    let has_tag = match image {
        ImageName::Registry(reference) => reference.digest.is_none(),
        ImageName::Layout { select, .. } => matches!(select, ImageSelector::Tag(_)),
        ImageName::Archive { .. } | ImageName::Saved { .. } => false,
    };
    if has_tag { quoted(image.to_string().as_bytes()) } else { "NEW-NAME".to_owned() }
}
