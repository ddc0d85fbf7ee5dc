//! What `ociseek diff --format json` prints.

use serde::Serialize;

use crate::cli::shared::difference::DifferenceJson;
use crate::cli::shared::json::{DigestText, IndexRef};
use crate::ops::diff::{Changes, IndexDiff, LayerDiff, Side};

/// Of two ztocs, or of the indexes of two images.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Comparison {
    /// A and B, as they were typed.
    a: String,
    b: String,
    status: Status,
    /// Of the ztocs, or of the indexes themselves.
    differences: Vec<DifferenceJson>,
    /// How many more there are beyond those listed.
    more_differences: u64,
    /// The index of A; there only of indexes, as the next two.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_a: Option<IndexRef>,
    /// The index of B.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_b: Option<IndexRef>,
    /// The layers that either index has a ztoc for.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<Layer>>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Same,
    Different,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    digest: DigestText,
    /// Null if A has none.
    ztoc_a: Option<Ztoc>,
    /// Null if B has none.
    ztoc_b: Option<Ztoc>,
    differences: Vec<DifferenceJson>,
    /// How many more there are beyond those listed.
    more_differences: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Ztoc {
    digest: DigestText,
}

impl Comparison {
    pub(crate) fn of_ztocs([a, b]: [&str; 2], changes: &Changes) -> Comparison {
        Comparison {
            a: a.to_owned(),
            b: b.to_owned(),
            status: if changes.is_empty() { Status::Same } else { Status::Different },
            differences: changes.list.iter().map(DifferenceJson::from).collect(),
            more_differences: changes.more,
            index_a: None,
            index_b: None,
            layers: None,
        }
    }

    pub(crate) fn of_indexes(names: [&str; 2], [a, b]: [&Side; 2], diff: &IndexDiff) -> Comparison {
        Comparison {
            status: if diff.is_empty() { Status::Same } else { Status::Different },
            index_a: Some(IndexRef::of(&a.manifest)),
            index_b: Some(IndexRef::of(&b.manifest)),
            layers: Some(diff.layers.iter().map(Layer::of).collect()),
            ..Comparison::of_ztocs(names, &diff.changes)
        }
    }
}

impl Layer {
    fn of(diff: &LayerDiff) -> Layer {
        Layer {
            digest: diff.layer.into(),
            ztoc_a: diff.a.map(|digest| Ztoc { digest: digest.into() }),
            ztoc_b: diff.b.map(|digest| Ztoc { digest: digest.into() }),
            differences: diff.changes.list.iter().map(DifferenceJson::from).collect(),
            more_differences: diff.changes.more,
        }
    }
}
