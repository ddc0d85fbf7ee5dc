//! Additional requirements for an index: its coverage, the size of its ztocs, the tool that made
//! it, and its signature.

use std::fmt;

use super::problem::Problem;
use super::signature::{Signatures, Trust};
use crate::discover::IndexContent;
use ociseek_format::code::Code;
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::{Coverage, Share, percent};
use ociseek_format::image::soci::ZtocRef;

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
        self.least_coverage.is_none() && self.max_ztoc_ratio.is_none() && self.tools.is_empty() && self.trust.is_empty()
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
        })
    }
}

/// An index to be judged by a policy.
pub(super) struct JudgedIndex<'a> {
    /// The image's layers.
    pub layers: &'a [Descriptor],
    pub content: &'a IndexContent,
    /// Each layer that the index covers, with its ztoc and the tool identifier in that, if it could
    /// be read.
    pub covered: Vec<(&'a Descriptor, &'a ZtocRef, Option<&'a [u8]>)>,
    /// None if no signature is required.
    pub signatures: Option<&'a Signatures>,
}

/// The result for each rule of the policy.
pub(super) fn judge(policy: &Policy, subject: &JudgedIndex<'_>) -> Vec<Ruling> {
    let mut rulings = Vec::new();
    rulings.extend(policy.least_coverage.map(|least| coverage(subject, least, policy.min_layer_size)));
    rulings.extend(policy.max_ztoc_ratio.map(|most| ratio(subject, most)));
    if !policy.tools.is_empty() {
        rulings.push(tool(subject, &policy.tools));
    }
    rulings.extend(subject.signatures.map(|signatures| signature(&policy.trust, signatures)));
    rulings
}

fn coverage(subject: &JudgedIndex<'_>, least: Share, min_layer_size: u64) -> Ruling {
    let large = subject.layers.iter().filter(|layer| layer.size >= min_layer_size);
    let is = Coverage::of(large, |layer| subject.content.ztocs.contains_key(&layer.digest));
    let found = format!(
        "{} ({} of {} layers of at least {min_layer_size} bytes, {} of {} bytes)",
        is.share(),
        is.layers,
        is.of_layers,
        is.bytes,
        is.of_bytes
    );
    let violation = || Problem::new(Code::Coverage, format!("the index covers {found}; at least {least} is required"));
    let violations = (!is.reaches(least)).then(violation).into_iter().collect();
    Ruling { rule: Rule::MinCoverage, wanted: format!("at least {least}"), found, violations }
}

fn ratio(subject: &JudgedIndex<'_>, most: Share) -> Ruling {
    // Rounded up, so that a ratio above the limit is never shown as within it.
    let hundredths = |ztoc: u64, layer: u64| (u128::from(ztoc) * 10_000).div_ceil(u128::from(layer.max(1)));
    let ratios = || subject.covered.iter().map(|(layer, ztoc, _)| (hundredths(ztoc.size, layer.size), layer, ztoc));
    let violations = ratios().filter(|(_, layer, ztoc)| !most.bounds(ztoc.size, layer.size));
    let violation = |(ratio, layer, ztoc): (u128, &&Descriptor, &&ZtocRef)| {
        let text = format!(
            "ztoc {} has {} bytes, {} of the {} of its layer {}; the limit is {most}",
            ztoc.ztoc,
            ztoc.size,
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
    let of_index = subject.content.index.build_tool_identifier.as_deref();
    match of_index {
        Some(tool) if is_allowed(tool) => {}
        Some(tool) => {
            violations.push(Problem::new(Code::Tool, format!("the index was made by {:?}", cut(tool))));
        }
        None => violations.push(Problem::new(Code::Tool, "the index does not say which tool made it")),
    }
    for (_, ztoc, tool) in &subject.covered {
        let Some(tool) = tool else { continue };
        if !std::str::from_utf8(tool).is_ok_and(is_allowed) {
            let tool = String::from_utf8_lossy(tool);
            violations.push(Problem::new(Code::ZtocTool, format!("ztoc {} was made by {:?}", ztoc.ztoc, cut(&tool))));
        }
    }
    let found = of_index.map_or_else(|| "none stated".to_owned(), |tool| format!("{:?}", cut(tool)));
    let wanted = tools.iter().map(|tool| format!("'{tool}'")).collect::<Vec<_>>().join(" or ");
    Ruling { rule: Rule::AllowTool, wanted, found, violations }
}

fn signature(trust: &Trust, signatures: &Signatures) -> Ruling {
    let wanted = format!("by one of: {}", trust.names().collect::<Vec<_>>().join(", "));
    let (found, violations) = match signatures {
        Signatures::Trusted { signer, kind, subject } => (format!("{kind}, {signer}, for {subject}"), Vec::new()),
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
