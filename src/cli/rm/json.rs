//! The JSON output of `ociseek rm`.

use serde::Serialize;

use crate::cli::shared::json::{DigestText, Failure, Kind, Manifest as ManifestRef};
use ociseek_ops::remove::{self, RemovalOutcome, RemovedIndexes};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Removal {
    /// The full name of IMAGE.
    image: String,
    /// Whether nothing was removed because of --dry-run.
    dry_run: bool,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Null if the image does not state it or does not exist any more.
    platform: Option<String>,
    manifest: ManifestRef,
    /// The index of version 2 that the manifest names, which is never removed; or null.
    version_2: Option<String>,
    indexes: Vec<Index>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index {
    digest: DigestText,
    kind: Kind,
    /// The tool that made it, or null.
    tool: Option<String>,
    status: Status,
    /// Whether it is still listed.
    listed: bool,
    /// Why it is `not-an-index`, or why removing it failed; otherwise null.
    error: Option<Failure>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Removed,
    /// It would be removed without --dry-run.
    WouldRemove,
    /// Another tool made it.
    Kept,
    /// It is listed as an index of the image but is not one. It was not touched.
    NotAnIndex,
    Failed,
}

impl Removal {
    pub(crate) fn of(image: &str, cleared: &[RemovedIndexes], dry_run: bool) -> Removal {
        Removal { image: image.to_owned(), dry_run, manifests: cleared.iter().map(Manifest::of).collect() }
    }
}

impl Manifest {
    fn of(cleared: &RemovedIndexes) -> Manifest {
        Manifest {
            platform: cleared.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::named(cleared.manifest),
            version_2: cleared.version_2.clone(),
            indexes: cleared.indexes.iter().map(Index::of).collect(),
        }
    }
}

impl Index {
    fn of(removal: &remove::Removal) -> Index {
        let (status, listed, error) = match &removal.fate {
            RemovalOutcome::Removed => (Status::Removed, false, None),
            RemovalOutcome::WouldRemove => (Status::WouldRemove, true, None),
            RemovalOutcome::OfAnother => (Status::Kept, true, None),
            RemovalOutcome::NotAnIndex(why) => (Status::NotAnIndex, true, Some(Failure::of(why))),
            RemovalOutcome::Failed { source, unlisted } => (Status::Failed, !unlisted, Some(Failure::of(source))),
        };
        Index {
            digest: removal.index.into(),
            kind: removal.kind.into(),
            tool: removal.tool.clone(),
            status,
            listed,
            error,
        }
    }
}
