//! The documents of an image: references, platforms, manifests, and the SOCI index. Bytes in, values out.

pub mod descriptor;
mod name;
pub mod platform;
mod reference;

pub use descriptor::Descriptor;
pub use name::{ImageName, ImageNameError, Select};
pub use platform::{Platform, PlatformError};
pub use reference::{DOCKER_HUB, Reference, ReferenceError, is_repository, is_tag};
