//! JSON that is read and written like Go's encoding/json does for the structs of the OCI
//! specification.
//!
//! Every tool that reads SOCI-enabled images is written in Go. So the conversion starts from what
//! these tools see in an image, and writes the bytes that they would write.

mod document;
mod encode;
mod merge;
mod text;

pub use document::{GoError, GoManifest, Index, decode_index, decode_manifest, decode_platform};
pub(super) use encode::encode;
pub(super) use merge::is_base64;
