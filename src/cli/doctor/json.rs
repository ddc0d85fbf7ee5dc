//! What `ociseek doctor --format json` prints.

use serde::Serialize;

use super::next::{next, platform};
use crate::cli::shared::json::{Coded, Coverage, IndexRef, Manifest as ManifestRef};
use crate::ops::discover::number;
use crate::ops::doctor::{self, Diagnosis, Verdict};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Report {
    /// The IMAGE, in full.
    image: String,
    /// At least one consumer uses an index, on at least one platform.
    lazy: bool,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Such as `linux/arm64`; null if the image does not say.
    platform: Option<String>,
    manifest: ManifestRef,
    consumers: Vec<Consumer>,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Consumer {
    /// A stable word.
    consumer: &'static str,
    /// For people.
    name: &'static str,
    /// It uses an index.
    lazy: bool,
    /// The index that it uses, or null.
    index: Option<IndexRef>,
    /// Of that index: 1 or 2.
    version: Option<u8>,
    /// What that index covers.
    coverage: Option<Coverage>,
    /// Why it mounts no layer lazily, or null.
    reason: Option<Coded>,
    /// Where it is written down what the consumer does.
    source: &'static str,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Finding {
    /// A stable word.
    code: &'static str,
    /// It keeps consumers from what they could have; the others are only worth knowing.
    problem: bool,
    text: String,
    /// A command or advice, or null.
    next: Option<String>,
}

impl Report {
    pub fn of(image: &str, found: &[Diagnosis]) -> Report {
        Report {
            image: image.to_owned(),
            lazy: found.iter().any(|one| one.verdicts.any_lazy()),
            manifests: found.iter().map(|one| Manifest::of(image, one)).collect(),
        }
    }
}

impl Manifest {
    fn of(name: &str, found: &Diagnosis) -> Manifest {
        let image = &found.inspected.image;
        let platform = platform(found);
        let finding = |finding: &doctor::Finding| Finding {
            code: finding.code(),
            problem: finding.is_problem(),
            text: finding.to_string(),
            next: next(finding, name, &platform),
        };
        Manifest {
            platform: image.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::of(&image.manifest),
            consumers: found.verdicts.iter().map(|(who, verdict)| Consumer::of(who, verdict)).collect(),
            findings: found.findings.iter().map(finding).collect(),
        }
    }
}

impl Consumer {
    fn of(consumer: doctor::Consumer, verdict: Verdict) -> Consumer {
        let (index, coverage, reason) = match verdict {
            Verdict::Lazy { index, version, coverage } => (Some((index, version)), Some(coverage), None),
            Verdict::Whole(reason) => (None, None, Some(reason)),
        };
        Consumer {
            consumer: consumer.code(),
            name: consumer.name(),
            lazy: index.is_some(),
            index: index.map(|(digest, _)| IndexRef::named(digest)),
            version: index.map(|(_, version)| number(version)),
            coverage: coverage.map(|coverage| Coverage::of(&coverage)),
            reason: reason.map(|reason| Coded { code: reason.code(), text: reason.to_string() }),
            source: consumer.source(),
        }
    }
}
