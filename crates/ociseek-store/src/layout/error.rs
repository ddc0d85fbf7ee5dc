//! Why an image layout or its archive cannot be used.

use std::io;
use std::path::PathBuf;

use ociseek_format::digest::Digest;
use ociseek_format::image::JsonError;
use ociseek_format::image::config::ConfigError;

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum LayoutError {
    #[error("cannot {action} {}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not an image layout: {reason}", path.display())]
    NotALayout { path: PathBuf, reason: String },
    /// An archive in Docker's own format.
    #[error(
        "{} is not an image layout: it has a manifest.json, as written by docker save: use docker-archive:FILE",
        path.display()
    )]
    Saved { path: PathBuf },
    /// The one who placed the link chose where the files go.
    #[error("{} is a symbolic link, and a layout is not written through links", path.display())]
    Link { path: PathBuf },
    #[error("{} is not a docker save archive: {reason}", path.display())]
    NotSaved { path: PathBuf, reason: String },
    /// A file that a document of the archive names.
    #[error("{name:?} in {} {reason}", path.display())]
    Member { path: PathBuf, name: String, reason: &'static str },
    #[error("{name:?} in {} cannot be decompressed", path.display())]
    Decompress {
        path: PathBuf,
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("{name:?} in {} cannot be used", path.display())]
    SavedConfig {
        path: PathBuf,
        name: String,
        #[source]
        source: ConfigError,
    },
    #[error("{} in {} is not valid", name, path.display())]
    Document {
        path: PathBuf,
        name: String,
        #[source]
        source: JsonError,
    },
    /// It lists only indexes or other artifacts, or nothing.
    #[error("{} holds no image", path.display())]
    NoImage { path: PathBuf },
    #[error("{} has no image {wanted}; it has {}", path.display(), listed(there, "no images at all"))]
    NoSuchImage { path: PathBuf, wanted: String, there: Vec<String> },
    #[error("{} holds several images: choose one of {}", path.display(), listed(there, "none"))]
    SeveralImages { path: PathBuf, there: Vec<String> },
    #[error("{} does not hold {digest}", path.display())]
    Missing { path: PathBuf, digest: Digest },
    #[error("{digest} in {} has {actual} bytes, but its descriptor says {expected}", path.display())]
    Size { path: PathBuf, digest: Digest, expected: u64, actual: u64 },
    #[error("{digest} in {} has {size} bytes; the limit is {limit}", path.display())]
    TooLarge { path: PathBuf, digest: Digest, size: u64, limit: u64 },
    #[error("{expected} in {} is damaged: its content is {actual}", path.display())]
    Damaged { path: PathBuf, expected: Digest, actual: Digest },
    #[error("the content for {expected} is {actual}")]
    Content { expected: Digest, actual: Digest },
    /// The tar of an archive is not valid. `offset` is the position in the file.
    #[error("{} is not a valid tar archive: {reason} at offset {offset}", path.display())]
    Tar { path: PathBuf, reason: String, offset: u64 },
    #[error("{} is compressed with {with} and must be decompressed first ({command})", path.display())]
    Compressed { path: PathBuf, with: &'static str, command: &'static str },
}

/// Lists at most ten names and the number of the others. Without names, returns `none`.
fn listed(names: &[String], none: &str) -> String {
    match names.len() {
        0 => none.to_owned(),
        n if n > 10 => format!("{} and {} more", names[..10].join(", "), n - 10),
        _ => names.join(", "),
    }
}
