//! The documents of an image: references, platforms, manifests, and the SOCI index. Parses and
//! encodes bytes, without I/O.

pub mod config;
pub mod consumer;
pub mod coverage;
pub mod descriptor;
pub mod ecr;
pub mod enabled;
pub mod fine;
pub mod go;
pub mod json;
mod layer_kind;
pub mod manifest;
mod name;
#[cfg(feature = "oci-spec")]
mod oci_spec_types;
pub mod platform;
pub mod prefetch;
mod reference;
pub mod select;
pub mod soci;
mod tag_template;

pub use coverage::Coverage;
pub use descriptor::Descriptor;
pub use descriptor::null_is_default;
pub use json::{JsonError, JsonFault};
pub use layer_kind::{LayerKind, NotIndexed, OCI_LAYER};
pub use manifest::{ImageIndex, ImageManifest, Manifest, ManifestError};
pub use name::{ImageName, ImageNameError, ImageSelector, SavedImageSelector};
pub use platform::{Platform, PlatformError};
pub use reference::{
    CANONICAL_REGISTRY, DEFAULT_TAG, DOCKER_HUB, Reference, ReferenceError, is_canonical_registry, is_referrers_tag,
    is_registry, is_repository, is_tag, referrers_tag,
};
pub use tag_template::{TagError, TagTemplate};
