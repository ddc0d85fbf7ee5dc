//! The JSON output of `ociseek prune`.

use serde::Serialize;

use crate::cli::shared::json::{DigestText, Failure, Kind};
use ociseek_ops::prune::{self, PruneReport, WasteReason};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Pruning {
    /// The full name of the repository.
    repository: String,
    /// Whether nothing was removed because --delete is missing.
    dry_run: bool,
    /// Number of image manifests that were examined.
    images: usize,
    /// The obsolete indexes and entries.
    waste: Vec<Waste>,
    not_looked_at: Vec<Unseen>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Waste {
    digest: DigestText,
    /// Null for an entry whose manifest does not exist.
    kind: Option<Kind>,
    /// The image that the index belongs to.
    subject: DigestText,
    /// The tool that made it, or null.
    tool: Option<String>,
    reason: Reason,
    /// The newer index, if it is superseded.
    newer: Option<DigestText>,
    status: Status,
    error: Option<Failure>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Reason {
    ImageGone,
    Superseded,
    /// The manifest of a list entry does not exist.
    NotThere,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    WouldRemove,
    Removed,
    Failed,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Unseen {
    tag: String,
    error: Failure,
}

impl Pruning {
    pub(crate) fn of(name: &str, pruned: &PruneReport, delete: bool) -> Pruning {
        let unexamined = pruned.unexamined.iter();
        Pruning {
            repository: name.to_owned(),
            dry_run: !delete,
            images: pruned.images,
            waste: pruned.waste.iter().map(Waste::of).collect(),
            not_looked_at: unexamined.map(|u| Unseen { tag: u.name.clone(), error: Failure::of(&u.error) }).collect(),
        }
    }
}

impl Waste {
    fn of(waste: &prune::Waste) -> Waste {
        let (reason, newer) = match &waste.why {
            WasteReason::ImageGone => (Reason::ImageGone, None),
            WasteReason::Superseded { by } => (Reason::Superseded, Some(by.into())),
            WasteReason::NotThere => (Reason::NotThere, None),
        };
        let (status, error) = match &waste.removed {
            None => (Status::WouldRemove, None),
            Some(Ok(())) => (Status::Removed, None),
            Some(Err(error)) => (Status::Failed, Some(Failure::of(error))),
        };
        Waste {
            digest: waste.digest.into(),
            kind: waste.kind.map(Kind::from),
            subject: waste.subject.into(),
            tool: waste.tool.clone(),
            reason,
            newer,
            status,
            error,
        }
    }
}
