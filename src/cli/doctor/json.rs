//! The JSON output of `ociseek doctor`.

use serde::Serialize;

use super::advice::next;
use crate::cli::shared::consumer::ConsumerJson;
use crate::cli::shared::fine::Fine;
use crate::cli::shared::json::Manifest as ManifestRef;
use ociseek_ops::doctor::{self, Diagnosis};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// The full name of IMAGE.
    image: String,
    /// Whether at least one consumer uses an index, on at least one platform.
    lazy: bool,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    manifest: ManifestRef,
    consumers: Vec<ConsumerJson>,
    /// The fine indexes that were found: none of the consumers reads them, but `ociseek mount` and
    /// `bundle` do.
    fine: Vec<Fine>,
    findings: Vec<Finding>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Finding {
    /// A stable word.
    code: &'static str,
    /// Whether it prevents consumers from using an index. Other findings are only informative.
    problem: bool,
    text: String,
    /// A command or advice, or null.
    next: Option<String>,
}

impl Report {
    pub(crate) fn of(image: &str, found: &[Diagnosis]) -> Report {
        Report {
            image: image.to_owned(),
            lazy: found.iter().any(|one| one.inspected.verdicts().any_lazy()),
            manifests: found.iter().map(|one| Manifest::of(image, one)).collect(),
        }
    }
}

impl Manifest {
    fn of(name: &str, found: &Diagnosis) -> Manifest {
        let image = &found.inspected.image;
        let finding = |finding: &doctor::Finding| Finding {
            code: finding.code(),
            problem: finding.is_problem(),
            text: finding.to_string(),
            next: next(finding, name, found),
        };
        Manifest {
            platform: image.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::of(&image.manifest),
            consumers: ConsumerJson::each(&found.inspected),
            fine: Fine::each(&image.fine_summaries()),
            findings: found.findings.iter().map(finding).collect(),
        }
    }
}
