//! The limits of an image that is converted.

/// The maximum number of manifests in an image index. Each is fetched and rewritten.
pub const MAX_MANIFESTS: usize = 1000;
/// The limit for all manifests of an image together, in bytes. They are in memory until the new
/// ones are written.
pub const MAX_DOCUMENTS: u64 = 64 << 20;
/// How many manifests are read at the same time. Until they are charged to the image's budget, they
/// take up to 4 MiB each.
pub(super) const SIDE_BY_SIDE: usize = 4;
