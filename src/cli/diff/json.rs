//! The JSON output of `ociseek diff`.

use serde::Serialize;

use crate::cli::shared::difference::DifferenceJson;
use crate::cli::shared::json::{DigestText, IndexRef};
use ociseek_ops::diff::{Changes, IndexDiff, LayerDiff, Side};

/// The comparison of two ztocs, or of the indexes of two images.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Comparison {
    /// A and B as typed.
    a: String,
    b: String,
    status: Status,
    /// Differences between the ztocs, or between the indexes themselves.
    differences: Vec<DifferenceJson>,
    /// The number of differences that are not listed.
    more_differences: u64,
    /// The index of A; present only when indexes are compared, like the next two fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_a: Option<IndexRef>,
    /// The index of B.
    #[serde(skip_serializing_if = "Option::is_none")]
    index_b: Option<IndexRef>,
    /// The layers with a ztoc in either index.
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
    /// Null if A has no ztoc for the layer.
    ztoc_a: Option<Ztoc>,
    /// Null if B has no ztoc for the layer.
    ztoc_b: Option<Ztoc>,
    differences: Vec<DifferenceJson>,
    /// The number of differences that are not listed.
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
