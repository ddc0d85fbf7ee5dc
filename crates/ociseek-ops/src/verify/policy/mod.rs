//! Additional requirements for an index: its coverage, the size of its ztocs, the tool that made
//! it, and its signature.

use std::collections::BTreeSet;
use std::fmt;

use super::Problem;
use super::signature::{Signatures, Trust};
use crate::discover::{FineContent, IndexContent};
use ociseek_format::code::Code;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::{Coverage, Share, percent};

mod tool;

pub use tool::{ToolPattern, ToolPatternError};

/// The requirements for every index that is found. None by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// The minimum share of bytes that an index covers, among layers of at least `min_layer_size`
    /// bytes. The same rule as [`Gate::least_coverage`](crate::index::Gate) for a new index.
    pub least_coverage: Option<Share>,
    /// In bytes. Smaller layers do not count for `least_coverage`.
    pub min_layer_size: u64,
    /// The maximum size of a ztoc, as a share of its layer's blob.
    pub max_ztoc_ratio: Option<Share>,
    /// The tools that may have made the index and its ztocs. Empty for any tool.
    pub tools: Vec<ToolPattern>,
    /// Who must have signed the index. Empty if it need not be signed.
    pub trust: Trust,
    /// What is required of fine indexes.
    pub fine: FineRule,
}

/// What a policy requires of each fine index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FineRule {
    /// What it requires of SOCI indexes: the tool and the signature.
    #[default]
    Same,
    /// The same, but without a signature.
    Unsigned,
    /// There must be none.
    None,
}

/// A requirement of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The minimum share of the layers' bytes that the index covers.
    MinCoverage,
    /// The maximum size of the ztocs, as a share of their layers.
    MaxZtocRatio,
    /// The index must be made by one of the listed tools.
    AllowTool,
    /// The index, or the image that names it, must have a trusted signature.
    Signature,
    /// No fine index is allowed.
    FineIndex,
}

/// The result for a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruling {
    /// The rule.
    pub rule: Rule,
    /// The requirement in words.
    pub wanted: String,
    /// The actual value in words.
    pub found: String,
    /// Empty if the rule is met.
    pub violations: Vec<Problem>,
}

impl Policy {
    /// Whether the policy has no requirements.
    pub fn is_empty(&self) -> bool {
        self.least_coverage.is_none()
            && self.max_ztoc_ratio.is_none()
            && self.tools.is_empty()
            && self.trust.is_empty()
            && self.fine != FineRule::None
    }

    /// Whether fine indexes must be signed.
    pub(super) fn fine_is_signed(&self) -> bool {
        self.fine == FineRule::Same && !self.trust.is_empty()
    }
}

impl fmt::Display for Rule {
    /// The stable word: the name of the option.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rule::MinCoverage => "min-coverage",
            Rule::MaxZtocRatio => "max-ztoc-ratio",
            Rule::AllowTool => "allow-tool",
            Rule::Signature => "signature",
            Rule::FineIndex => "fine-index",
        })
    }
}

/// An index of either kind to be judged by a policy.
pub(crate) struct JudgedIndex<'a> {
    /// The image's layers.
    layers: &'a [Descriptor],
    is_fine: bool,
    /// The tool that made it, if it names one.
    tool: Option<&'a str>,
    /// In the order of the image's layers, each layer once.
    covered: Vec<JudgedDocument<'a>>,
    /// None if no signature is required.
    signatures: Option<&'a Signatures>,
}

/// The ztoc or fine document of a layer.
pub(crate) struct JudgedDocument<'a> {
    pub layer: &'a Descriptor,
    pub digest: Digest,
    /// In bytes.
    pub size: u64,
    /// The tool identifier in it, if it has one and could be read.
    pub tool: Option<&'a [u8]>,
}

impl<'a> JudgedIndex<'a> {
    /// A SOCI index for an image with these `layers`. `tool` is the tool identifier in a ztoc.
    pub(crate) fn soci(
        layers: &'a [Descriptor],
        content: &'a IndexContent,
        signatures: Option<&'a Signatures>,
        tool: impl Fn(&Digest, &Digest) -> Option<&'a [u8]>,
    ) -> JudgedIndex<'a> {
        let covered = once(layers).filter_map(|layer| {
            let ztoc = content.ztocs.get(&layer.digest)?;
            let tool = tool(&layer.digest, &ztoc.ztoc);
            Some(JudgedDocument { layer, digest: ztoc.ztoc, size: ztoc.size, tool })
        });
        let of_index = content.index.build_tool_identifier.as_deref();
        JudgedIndex {
            layers,
            is_fine: false,
            tool: of_index,
            covered: covered.collect(),
            signatures,
        }
    }

    /// A fine index for an image with these `layers`.
    pub(crate) fn fine(
        layers: &'a [Descriptor],
        content: &'a FineContent,
        signatures: Option<&'a Signatures>,
    ) -> JudgedIndex<'a> {
        let covered = once(layers).filter_map(|layer| {
            let document = content.documents.get(&layer.digest)?;
            Some(JudgedDocument {
                layer,
                digest: document.document,
                size: document.size,
                tool: None,
            })
        });
        let tool = content.index.build_tool.as_deref();
        JudgedIndex { layers, is_fine: true, tool, covered: covered.collect(), signatures }
    }
}

/// The layers without duplicates.
fn once(layers: &[Descriptor]) -> impl Iterator<Item = &Descriptor> {
    let first =
        |at: usize| layers.iter().position(|layer| layer.digest == layers[at].digest) == Some(at);
    layers.iter().enumerate().filter(move |(at, _)| first(*at)).map(|(_, layer)| layer)
}

/// The result for each rule of the policy.
pub(crate) fn judge(policy: &Policy, subject: &JudgedIndex<'_>) -> Vec<Ruling> {
    if subject.is_fine && policy.fine == FineRule::None {
        let violation = Problem::new(Code::FineIndex, "the policy allows no fine index");
        let wanted = "no fine index".to_owned();
        let found = "a fine index".to_owned();
        return vec![Ruling { rule: Rule::FineIndex, wanted, found, violations: vec![violation] }];
    }
    let mut rulings = Vec::new();
    if !subject.is_fine {
        rulings.extend(
            policy.least_coverage.map(|least| coverage(subject, least, policy.min_layer_size)),
        );
        rulings.extend(policy.max_ztoc_ratio.map(|most| ratio(subject, most)));
    }
    if !policy.tools.is_empty() {
        rulings.push(tool(subject, &policy.tools));
    }
    let signatures = subject.signatures.filter(|_| !subject.is_fine || policy.fine_is_signed());
    rulings.extend(signatures.map(|signatures| signature(&policy.trust, signatures)));
    rulings
}

/// A size for people: whole MiB as `10 MiB`, all others in bytes.
fn least_size(bytes: u64) -> String {
    match bytes {
        0 => "0 bytes".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ => format!("{bytes} bytes"),
    }
}

fn coverage(subject: &JudgedIndex<'_>, least: Share, min_layer_size: u64) -> Ruling {
    let large = subject.layers.iter().filter(|layer| layer.size >= min_layer_size);
    let covered: BTreeSet<Digest> =
        subject.covered.iter().map(|document| document.layer.digest).collect();
    let is = Coverage::of(large, |layer| covered.contains(&layer.digest));
    let found = format!(
        "{} ({} of {} layers of at least {}, {} of {} bytes)",
        is.share(),
        is.layers,
        is.of_layers,
        least_size(min_layer_size),
        is.bytes,
        is.of_bytes
    );
    let violation = || {
        Problem::new(
            Code::Coverage,
            format!("the index covers {found}; at least {least} is required"),
        )
    };
    let violations = (!is.reaches(least)).then(violation).into_iter().collect();
    Ruling { rule: Rule::MinCoverage, wanted: format!("at least {least}"), found, violations }
}

fn ratio(subject: &JudgedIndex<'_>, most: Share) -> Ruling {
    // Rounded up, so that a ratio above the limit is never shown as within it.
    let hundredths =
        |ztoc: u64, layer: u64| (u128::from(ztoc) * 10_000).div_ceil(u128::from(layer.max(1)));
    let ratios = || {
        subject
            .covered
            .iter()
            .map(|covered| (hundredths(covered.size, covered.layer.size), covered))
    };
    let violations = ratios().filter(|(_, covered)| !most.bounds(covered.size, covered.layer.size));
    let violation = |(ratio, covered): (u128, &JudgedDocument<'_>)| {
        let JudgedDocument { layer, digest, size, .. } = covered;
        let text = format!(
            "ztoc {digest} has {size} bytes, {} of the {} of its layer {}; the limit is {most}",
            percent(ratio),
            layer.size,
            layer.digest
        );
        Problem::new(Code::ZtocRatio, text)
    };
    let violations = violations.map(violation).collect();
    let largest = ratios().map(|(ratio, ..)| ratio).max();
    let found = largest.map_or_else(|| "no ztoc".to_owned(), percent);
    Ruling { rule: Rule::MaxZtocRatio, wanted: format!("at most {most}"), found, violations }
}

fn tool(subject: &JudgedIndex<'_>, tools: &[ToolPattern]) -> Ruling {
    let is_allowed = |tool: &str| tools.iter().any(|pattern| pattern.allows(tool));
    let mut violations = Vec::new();
    match subject.tool {
        Some(tool) if is_allowed(tool) => {}
        Some(tool) => {
            violations
                .push(Problem::new(Code::Tool, format!("the index was made by {:?}", cut(tool))));
        }
        None => {
            violations.push(Problem::new(Code::Tool, "the index does not say which tool made it"))
        }
    }
    for JudgedDocument { digest, tool, .. } in &subject.covered {
        let Some(tool) = tool else { continue };
        if !std::str::from_utf8(tool).is_ok_and(is_allowed) {
            let tool = String::from_utf8_lossy(tool);
            violations.push(Problem::new(
                Code::ZtocTool,
                format!("ztoc {digest} was made by {:?}", cut(&tool)),
            ));
        }
    }
    let found =
        subject.tool.map_or_else(|| "none stated".to_owned(), |tool| format!("{:?}", cut(tool)));
    let wanted = tools.iter().map(|tool| format!("'{tool}'")).collect::<Vec<_>>().join(" or ");
    Ruling { rule: Rule::AllowTool, wanted, found, violations }
}

fn signature(trust: &Trust, signatures: &Signatures) -> Ruling {
    let wanted = format!("by one of: {}", trust.names().collect::<Vec<_>>().join(", "));
    let (found, violations) = match signatures {
        Signatures::Trusted { signer, kind, subject } => {
            (format!("{kind}, {signer}, for {subject}"), Vec::new())
        }
        Signatures::None { subjects } => {
            let subjects: Vec<String> = subjects.iter().map(ToString::to_string).collect();
            let text = format!("no signature was found for {}", subjects.join(" or "));
            ("none".to_owned(), vec![Problem::new(Code::SignatureMissing, text)])
        }
        Signatures::Untrusted { reasons, count } => {
            let text = format!("no signature is valid: {}", reasons.join("; "));
            let found = format!("{count}, none valid");
            (found, vec![Problem::new(Code::SignatureUntrusted, text)])
        }
    };
    Ruling { rule: Rule::Signature, wanted, found, violations }
}

fn cut(text: &str) -> String {
    text.chars().take(150).collect()
}
