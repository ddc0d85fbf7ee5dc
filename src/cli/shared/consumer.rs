//! The JSON for a consumer's handling of an image.

use serde::Serialize;

use super::json::{Coded, CoverageJson, IndexRef};
use ociseek_format::image::consumer::{self, Verdict};
use ociseek_ops::discover::FoundIndexRef;
use ociseek_ops::inspect::InspectedImage;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Consumer"))]
pub(crate) struct ConsumerJson {
    /// A stable word.
    consumer: &'static str,
    /// For people.
    name: &'static str,
    /// Whether it uses an index.
    lazy: bool,
    /// The index that it uses, or null.
    index: Option<IndexRef>,
    /// The version of that index: 1 or 2.
    version: Option<u8>,
    /// What that index covers.
    coverage: Option<CoverageJson>,
    /// Why it mounts no layer lazily, or null.
    reason: Option<Coded>,
    /// The document that states what the consumer does.
    source: &'static str,
}

impl ConsumerJson {
    pub(crate) fn each(inspected: &InspectedImage) -> Vec<ConsumerJson> {
        let indexes = &inspected.image.indexes;
        inspected.verdicts().iter().map(|(consumer, verdict)| ConsumerJson::of(consumer, verdict, indexes)).collect()
    }

    fn of(consumer: consumer::Consumer, verdict: Verdict, indexes: &[FoundIndexRef]) -> ConsumerJson {
        let (index, coverage, reason) = match verdict {
            Verdict::Lazy { index, version, coverage } => (Some((index, version)), Some(coverage), None),
            Verdict::Whole(reason) => (None, None, Some(reason)),
        };
        ConsumerJson {
            consumer: consumer.code(),
            name: consumer.name(),
            lazy: index.is_some(),
            index: index
                .and_then(|(digest, _)| indexes.iter().find(|found| found.digest == digest))
                .map(IndexRef::found),
            version: index.map(|(_, version)| version.number()),
            coverage: coverage.map(|coverage| CoverageJson::of(&coverage)),
            reason: reason.map(|reason| Coded { code: reason.code(), text: reason.to_string() }),
            source: consumer.source(),
        }
    }
}
