//! JSON as Go's encoding/json reads and writes it over the structs of the OCI specification.
//!
//! Every tool that reads a SOCI-enabled image is written in Go. An image is converted from what
//! these tools see in it, and written in the bytes that they would write.

mod document;
mod encode;
mod merge;
mod text;

pub use document::{GoError, Index, Manifest, decode_index, decode_manifest, decode_platform};
pub(super) use encode::encode;
