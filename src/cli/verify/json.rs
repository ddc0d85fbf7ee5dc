//! The JSON output of `ociseek verify`.

use serde::Serialize;

use crate::cli::shared::difference::Status;
use crate::cli::shared::json::{DigestText, Manifest as ManifestRef};
use ociseek_ops::verify::policy::Ruling;
use ociseek_ops::verify::{
    ComparedCounts, Depth, Problem, VerifiedDocument, VerifiedFine, VerifiedImage, VerifiedIndex,
    VerifiedLayer, VerifiedManifest,
};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Verification {
    /// The full name of IMAGE.
    image: String,
    status: Status,
    depth: Looked,
    /// With --quick: the seed that repeats its choice of spans; otherwise null.
    seed: Option<u64>,
    /// Bytes of layers, ztocs and fine documents that were read.
    bytes_read: u64,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Looked {
    Full,
    Quick,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    manifest: ManifestRef,
    /// The number of layers in the image.
    layers: usize,
    /// Facts that are not faults, but may be surprising.
    warnings: Vec<String>,
    /// Faults of the image itself.
    differences: Vec<Difference>,
    /// Empty if the manifest has none.
    indexes: Vec<Index>,
    /// The fine indexes that were found.
    fine: Vec<Fine>,
    /// For a `docker-archive:`, what was compared only with the config; otherwise null.
    content: Option<Content>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Content {
    layers: usize,
    /// Size of their tars in bytes.
    bytes: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index {
    digest: DigestText,
    /// 1 or 2.
    version: u8,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Faults of the document itself.
    differences: Vec<Difference>,
    layers: Vec<Layer>,
    /// One object for each rule of a policy; empty without a policy, and if the index cannot be
    /// used.
    policy: Vec<Rule>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Rule {
    /// `min-coverage`, `signature` or `fine-index`.
    rule: String,
    status: RuleStatus,
    /// The requirement in words, for people.
    wanted: String,
    /// The actual value in words, for people.
    found: String,
    violations: Vec<Difference>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum RuleStatus {
    Kept,
    Broken,
}

/// A fault.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Difference {
    /// A stable word, see policy.md.
    code: &'static str,
    text: String,
    /// How to fix it, or null.
    next: Option<&'static str>,
}

/// A layer that the index covers.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    digest: DigestText,
    ztoc: Ztoc,
    /// The tool that the ztoc names, or null.
    tool: Option<String>,
    #[serde(flatten)]
    compared: Compared,
}

/// How much of a layer was compared, and the differences.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Compared {
    /// Spans that were compared.
    spans: u64,
    /// Spans in all; 0 if the ztoc or document cannot be used.
    of_spans: u64,
    /// Number of spans that were chosen for a quick check but are too large for it.
    spans_too_large: u64,
    /// Number of entries that were compared.
    entries: u64,
    /// Bytes of the tar that were compared.
    bytes: u64,
    differences: Vec<Difference>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Ztoc {
    digest: DigestText,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Fine {
    digest: DigestText,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Faults of the manifest of the fine index itself.
    differences: Vec<Difference>,
    layers: Vec<FineLayer>,
    /// One object for each rule of a policy that is about fine indexes.
    policy: Vec<Rule>,
}

/// A layer that the fine index covers.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FineLayer {
    digest: DigestText,
    document: Document,
    #[serde(flatten)]
    compared: Compared,
}

/// A layer's fine document.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Document {
    digest: DigestText,
}

impl Verification {
    pub(crate) fn of(image: &str, verified: &VerifiedImage, depth: Depth) -> Verification {
        let seed = match depth {
            Depth::Full => None,
            Depth::Quick { seed, .. } => Some(seed),
        };
        Verification {
            image: image.to_owned(),
            status: Status::of(verified.differences().next().is_none()),
            depth: if seed.is_none() { Looked::Full } else { Looked::Quick },
            seed,
            bytes_read: verified.bytes_read,
            manifests: verified.manifests.iter().map(Manifest::of).collect(),
        }
    }
}

impl Manifest {
    fn of(verified: &VerifiedManifest) -> Manifest {
        Manifest {
            platform: verified.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::of(&verified.manifest),
            layers: verified.layers,
            warnings: verified.warnings.clone(),
            differences: findings(&verified.differences),
            indexes: verified.indexes.iter().map(Index::of).collect(),
            fine: verified.fine.iter().map(Fine::of).collect(),
            content: verified
                .content
                .map(|content| Content { layers: content.layers, bytes: content.bytes }),
        }
    }
}

impl Index {
    fn of(verified: &VerifiedIndex) -> Index {
        Index {
            digest: verified.digest.into(),
            version: verified.version.number(),
            tool: verified.tool.clone(),
            differences: findings(&verified.differences),
            layers: verified.layers.iter().map(Layer::of).collect(),
            policy: verified.rulings.iter().map(Rule::of).collect(),
        }
    }
}

impl Rule {
    fn of(ruling: &Ruling) -> Rule {
        Rule {
            rule: ruling.rule.to_string(),
            status: if ruling.violations.is_empty() {
                RuleStatus::Kept
            } else {
                RuleStatus::Broken
            },
            wanted: ruling.wanted.clone(),
            found: ruling.found.clone(),
            violations: findings(&ruling.violations),
        }
    }
}

impl Layer {
    fn of(verified: &VerifiedLayer) -> Layer {
        Layer {
            digest: verified.layer.into(),
            ztoc: Ztoc { digest: verified.ztoc.into() },
            tool: verified.tool.as_deref().map(|tool| String::from_utf8_lossy(tool).into_owned()),
            compared: Compared::of(&verified.compared, &verified.differences),
        }
    }
}

impl Compared {
    fn of(compared: &ComparedCounts, differences: &[Problem]) -> Compared {
        Compared {
            spans: compared.spans,
            of_spans: compared.of_spans,
            spans_too_large: compared.too_large,
            entries: compared.entries,
            bytes: compared.bytes,
            differences: findings(differences),
        }
    }
}

impl Fine {
    fn of(verified: &VerifiedFine) -> Fine {
        Fine {
            digest: verified.digest.into(),
            tool: verified.tool.clone(),
            differences: findings(&verified.differences),
            layers: verified.layers.iter().map(FineLayer::of).collect(),
            policy: verified.rulings.iter().map(Rule::of).collect(),
        }
    }
}

impl FineLayer {
    fn of(verified: &VerifiedDocument) -> FineLayer {
        FineLayer {
            digest: verified.layer.into(),
            document: Document { digest: verified.document.into() },
            compared: Compared::of(&verified.compared, &verified.differences),
        }
    }
}

fn findings(findings: &[Problem]) -> Vec<Difference> {
    let difference = |finding: &Problem| Difference {
        code: finding.code.word(),
        text: finding.text.clone(),
        next: super::advice(finding.code),
    };
    findings.iter().map(difference).collect()
}
