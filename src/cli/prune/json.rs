//! What `ociseek prune --format json` prints.

use serde::Serialize;

use crate::cli::shared::json::{DigestText, Failure, Kind};
use crate::ops::prune::{self, Pruned, WasteReason};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Pruning {
    /// In full.
    repository: String,
    /// Nothing was removed.
    dry_run: bool,
    /// Image manifests that were looked at.
    images: usize,
    /// What nobody needs.
    waste: Vec<Waste>,
    not_looked_at: Vec<Unseen>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Waste {
    digest: DigestText,
    /// Null for an entry that names nothing.
    kind: Option<Kind>,
    /// The image that it is an index of.
    subject: DigestText,
    /// What its maker calls itself, or null.
    tool: Option<String>,
    reason: Reason,
    /// The index that is newer, if it is superseded.
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
    /// An entry of a list that names nothing.
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
    pub(crate) fn of(name: &str, pruned: &Pruned, delete: bool) -> Pruning {
        let unseen = pruned.unseen.iter();
        Pruning {
            repository: name.to_owned(),
            dry_run: !delete,
            images: pruned.images,
            waste: pruned.waste.iter().map(Waste::of).collect(),
            not_looked_at: unseen.map(|u| Unseen { tag: u.name.clone(), error: Failure::of(&u.error) }).collect(),
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
