//! Additional requirements for an index: its coverage, and its signature.

use std::collections::BTreeMap;
use std::fmt;

use super::Problem;
use super::signature::{Signatures, Trust};
use ociseek_format::code::Code;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::{Coverage, Share};
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::printable::{exact_size, human_size};

/// The requirements for every index that is found. None by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policy {
    /// The minimum share of bytes that an index covers, among layers of at least `min_layer_size`
    /// bytes. The same rule as [`Gate::least_coverage`](crate::index::Gate) for a new index.
    pub least_coverage: Option<Share>,
    /// In bytes. Smaller layers do not count for `least_coverage`.
    pub min_layer_size: u64,
    /// Who must have signed the index. Empty if it need not be signed.
    pub trust: Trust,
    /// What is required of fine indexes.
    pub fine: FineRule,
}

/// What a policy requires of each fine index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FineRule {
    /// What it requires of SOCI indexes: the signature.
    #[default]
    Same,
    /// They need no signature.
    Unsigned,
    /// There must be none.
    None,
}

/// A requirement of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The minimum share of the layers' bytes that the index covers.
    MinCoverage,
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
        self.least_coverage.is_none() && self.trust.is_empty() && self.fine != FineRule::None
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
            Rule::Signature => "signature",
            Rule::FineIndex => "fine-index",
        })
    }
}

/// An index of either kind to be judged by a policy.
pub(crate) struct JudgedIndex<'a> {
    /// The image's layers.
    pub layers: &'a [Descriptor],
    /// The layers that a SOCI index covers. None for a fine index.
    pub covered: Option<&'a BTreeMap<Digest, ZtocRef>>,
    /// None if no signature is required.
    pub signatures: Option<&'a Signatures>,
}

/// The result for each rule of the policy.
pub(crate) fn judge(policy: &Policy, subject: &JudgedIndex<'_>) -> Vec<Ruling> {
    let is_fine = subject.covered.is_none();
    if is_fine && policy.fine == FineRule::None {
        let violation = Problem::new(Code::FineIndex, "the policy allows no fine index");
        let wanted = "no fine index".to_owned();
        let found = "a fine index".to_owned();
        return vec![Ruling { rule: Rule::FineIndex, wanted, found, violations: vec![violation] }];
    }
    let mut rulings = Vec::new();
    if let (Some(covered), Some(least)) = (subject.covered, policy.least_coverage) {
        rulings.push(coverage(subject.layers, covered, least, policy.min_layer_size));
    }
    let signatures = subject.signatures.filter(|_| !is_fine || policy.fine_is_signed());
    rulings.extend(signatures.map(|signatures| signature(&policy.trust, signatures)));
    rulings
}

fn coverage(
    layers: &[Descriptor],
    covered: &BTreeMap<Digest, ZtocRef>,
    least: Share,
    min_layer_size: u64,
) -> Ruling {
    let large = layers.iter().filter(|layer| layer.size >= min_layer_size);
    let is = Coverage::of(large, |layer| covered.contains_key(&layer.digest));
    let of_what = match min_layer_size {
        0 => "layers".to_owned(),
        least => format!("layers of at least {}", exact_size(least)),
    };
    let found = format!(
        "{} ({} of {} {of_what}, {} of {})",
        is.share(),
        is.layers,
        is.of_layers,
        human_size(is.bytes),
        human_size(is.of_bytes)
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
