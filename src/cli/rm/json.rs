//! What `ociseek rm --format json` prints.

use serde::Serialize;

use crate::cli::shared::json::{DigestText, Failure, Kind, Manifest as ManifestRef};
use crate::ops::remove::{self, Cleared, Fate};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Removal {
    /// The IMAGE, in full.
    image: String,
    /// Nothing was removed.
    dry_run: bool,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Null if the image does not say, or is gone.
    platform: Option<String>,
    manifest: ManifestRef,
    /// What the manifest names as its index of version 2, which stays; or null.
    version_2: Option<String>,
    indexes: Vec<Index>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index {
    digest: DigestText,
    kind: Kind,
    /// What its maker calls itself, or null.
    tool: Option<String>,
    status: Status,
    /// It is still listed.
    listed: bool,
    /// Why it is `not-an-index`, or why removing it failed; else null.
    error: Option<Failure>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Removed,
    /// In a dry run.
    WouldRemove,
    /// It is another tool's.
    Kept,
    /// It is listed as an index of the image and is not one. It was left alone.
    NotAnIndex,
    Failed,
}

impl Removal {
    pub(crate) fn of(image: &str, cleared: &[Cleared], dry_run: bool) -> Removal {
        Removal { image: image.to_owned(), dry_run, manifests: cleared.iter().map(Manifest::of).collect() }
    }
}

impl Manifest {
    fn of(cleared: &Cleared) -> Manifest {
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
            Fate::Removed => (Status::Removed, false, None),
            Fate::WouldRemove => (Status::WouldRemove, true, None),
            Fate::OfAnother => (Status::Kept, true, None),
            Fate::NotAnIndex(why) => (Status::NotAnIndex, true, Some(Failure::of(why))),
            Fate::Failed { source, unlisted } => (Status::Failed, !unlisted, Some(Failure::of(source))),
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
