//! Whose word a reader takes for what an index says: the options of commands that read, and the
//! policy that judges indexes, also for `ociseek verify`, with its options and its file.

use std::path::{Path, PathBuf};

use clap::{Arg, Args, ValueEnum};
use serde::{Deserialize, Deserializer};

use super::error::CliError;
use super::file::read_input;
use super::parse;
use super::size::ByteSize;
use super::terminal::{Style, complain};
use ociseek_format::image::coverage::Share;
use ociseek_format::image::{ImageName, JsonError, NotIndexed, json};
use ociseek_ops::lazy_from::{LazyFrom, LazyRule};
use ociseek_ops::trust::{AcceptedTrust, TrustLevel, TrustRules};
use ociseek_ops::verify::policy::{FineRule, Policy};
use ociseek_ops::verify::signature::{Certificate, PublicKey, Trust};

/// Whose word is taken.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Trust")]
pub(crate) struct TrustArgs {
    /// Read through indexes that only the repository vouches for, or only through those that the
    /// image names, a trusted key signed, or this machine verified [default: depends on the
    /// command and IMAGE]
    ///
    /// Anyone who may push to a repository can attach an index there, and an index says which files
    /// an image has and where. For mount, bundle and try, the default is "image" if IMAGE has a
    /// digest, or if a key or policy is given; layers without such an index are read completely
    /// before startup. Otherwise the default is "repository".
    #[arg(long, value_name = "WORD", env = "OCISEEK_TRUST", value_enum)]
    pub trust: Option<TrustArg>,

    /// Whether to read through fine indexes
    #[arg(long, value_name = "yes|no", value_parser = parse::switch, default_value = "yes")]
    #[arg(action = clap::ArgAction::Set, hide_short_help = true)]
    pub fine: bool,

    /// Use only indexes that keep the rules in this JSON file (docs/policy.md)
    #[arg(long, value_name = "FILE", env = "OCISEEK_POLICY", hide_short_help = true)]
    pub policy: Option<PathBuf>,

    /// Use only indexes that cosign signed, or whose SOCI-enabled image it signed, with the key in
    /// this PEM file; can be repeated
    #[arg(long, value_name = "FILE", env = "OCISEEK_SIGNATURE_KEY", hide_short_help = true)]
    pub signature_key: Vec<PathBuf>,

    /// The same for notation, with a certificate of the signer or of an authority; can be repeated
    #[arg(long, value_name = "FILE", env = "OCISEEK_SIGNATURE_CERT", hide_short_help = true)]
    pub signature_cert: Vec<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TrustArg {
    /// Anyone who may push to the repository
    Repository,
    /// The image's digest, a trusted key, or this machine
    Image,
    /// A trusted key, for the index and the image. The servers of a node mount images by it.
    #[value(hide = true)]
    Signed,
}

const NOBODY_VOUCHES: &str = "\
no repository or key is trusted, so no image could start lazily: name the repositories that you trust with \
--lazy-from 'registry.example/team/*' (in the snapshotter's configuration: lazy-from = [\"registry.example/team/*\"]), \
all with --lazy-from '*' if one party chooses every image of this node, or the key that signs indexes with \
--signature-key /etc/ociseek/cosign.pub";

/// Hides the options for commands that read one image: the servers of a node refuse them.
pub(crate) fn of_a_node(arg: Arg) -> Arg {
    let is_for_one_image =
        ["trust", "index", "stats", "password_stdin"].contains(&arg.get_id().as_str());
    if is_for_one_image { arg.hide(true) } else { arg }
}

/// Whose images a node starts lazily.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Trust")]
pub(crate) struct LazyFromArgs {
    /// The repositories whose images start lazily: HOST[:PORT][/GLOB] or *.DOMAIN[:PORT][/GLOB], or
    /// * for all; can be repeated
    ///
    /// Layers that are not pulled are not checked by the runtime: what a container sees is the word
    /// of those who push to these repositories. In the glob, * matches anything but a slash, and **
    /// anything. Use * alone only on a node where one party chooses every image. Instead, or in
    /// addition, --signature-key or --signature-cert name who must have signed.
    #[arg(long, value_name = "REPOSITORIES", env = "OCISEEK_LAZY_FROM", value_delimiter = ',')]
    pub lazy_from: Vec<LazyRule>,
}

impl LazyFromArgs {
    /// Checks that there can be the operator's word, without reading files.
    ///
    /// # Errors
    /// If nobody vouches for images.
    pub(crate) fn check(&self, trust: &TrustArgs) -> Result<(), CliError> {
        let TrustArgs { policy, signature_key, signature_cert, .. } = trust;
        let nobody = !self.lazy_from.iter().any(LazyRule::is_word)
            && policy.is_none()
            && signature_key.is_empty()
            && signature_cert.is_empty();
        if nobody { Err(CliError::usage(NOBODY_VOUCHES)) } else { Ok(()) }
    }

    /// The repositories.
    ///
    /// # Errors
    /// If none is named.
    pub(crate) fn named(&self) -> Result<&[LazyRule], CliError> {
        let is_named = self.lazy_from.iter().any(LazyRule::is_word);
        if is_named { Ok(&self.lazy_from) } else { Err(CliError::usage(NOBODY_VOUCHES)) }
    }

    /// The operator's word.
    ///
    /// # Errors
    /// If there is none, or the policy, a key or a certificate cannot be used.
    pub(crate) fn word(&self, trust: &TrustArgs) -> Result<LazyFrom, CliError> {
        if trust.trust.is_some() {
            return Err(CliError::usage(
                "--trust is for commands that read one image: here, lazy-from names the repositories whose indexes \
                 count",
            ));
        }
        let policy = trust.policy()?;
        LazyFrom::new(self.lazy_from.clone(), policy).ok_or(CliError::usage(NOBODY_VOUCHES))
    }
}

/// What a command does with the files of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UseOfFiles {
    /// Programs read or run them.
    Run,
    /// A person looks at them.
    Show,
}

impl TrustArgs {
    fn policy(&self) -> Result<Policy, CliError> {
        PolicyArgs::for_reader(&self.policy, &self.signature_key, &self.signature_cert).policy()
    }

    /// The rules for the image `name`.
    ///
    /// # Errors
    /// If the policy, a key or a certificate cannot be read or used.
    pub(crate) fn rules(
        &self,
        name: &ImageName,
        purpose: UseOfFiles,
    ) -> Result<TrustRules, CliError> {
        let policy = self.policy()?;
        let is_strict =
            !policy.is_empty() || (purpose == UseOfFiles::Run && name.digest().is_some());
        let accepted = match self.trust {
            Some(TrustArg::Repository) => AcceptedTrust::Repository,
            Some(TrustArg::Image) => AcceptedTrust::Vouched,
            Some(TrustArg::Signed) => AcceptedTrust::Signed,
            None if is_strict => AcceptedTrust::Vouched,
            None => AcceptedTrust::Repository,
        };
        Ok(TrustRules { accepted, policy, ..TrustRules::default() })
    }
}

/// Says that only the repository vouches for what a command shows of an image that is named by its
/// digest.
pub(crate) fn tell_trust(name: &ImageName, level: TrustLevel) {
    if name.digest().is_some() && level == TrustLevel::Repository {
        complain(&format!(
            "{} only the repository vouches for the index, which the digest does not cover: anyone who may push there \
             can attach one; --trust image reads without it",
            Style::stderr().dim("note:")
        ));
    }
}

/// The size limit of a policy, key or certificate file, in bytes.
const MAX_FILE: usize = 1 << 20;

/// The requirements for every index that is found.
#[derive(Debug, Args)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// Check each index against the rules in this JSON file; the options below override its rules
    ///
    /// Its fields, all optional, are min_coverage and min_layer_size (strings such as "80%"),
    /// signature_keys and signature_certs (lists of file names, relative to the policy's
    /// directory), and fine_index.
    #[arg(long, value_name = "FILE", env = "OCISEEK_POLICY")]
    pub policy: Option<PathBuf>,

    /// Fail if an index covers less than this share of the image's compressed layer bytes, such as
    /// 80%
    ///
    /// As for ociseek index --min-coverage, layers below --min-layer-size do not count, and layers
    /// that cannot be served count as not covered.
    #[arg(long, value_name = "PERCENT", env = "OCISEEK_MIN_COVERAGE", value_parser = parse::share)]
    pub min_coverage: Option<Share>,

    /// Smaller layers do not count for --min-coverage [default: 10MiB]
    #[arg(long, value_name = "SIZE", env = "OCISEEK_MIN_LAYER_SIZE")]
    pub min_layer_size: Option<ByteSize>,

    /// Fail unless cosign signed the index, or the SOCI-enabled image, with the key in this PEM
    /// file; can be repeated
    ///
    /// A signature by any one of the keys and certificates is enough.
    #[arg(long, value_name = "FILE", env = "OCISEEK_SIGNATURE_KEY")]
    pub signature_key: Vec<PathBuf>,

    /// The same for notation, with a certificate of the signer or of an authority; can be repeated
    #[arg(long, value_name = "FILE", env = "OCISEEK_SIGNATURE_CERT")]
    pub signature_cert: Vec<PathBuf>,

    /// What is required of fine indexes [default: same]
    #[arg(long, value_name = "RULE", env = "OCISEEK_FINE_INDEX")]
    pub fine_index: Option<FineIndexRule>,
}

/// The requirement for each fine index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FineIndexRule {
    /// The signature that a SOCI index must have
    Same,
    /// They need no signature
    Unsigned,
    /// There must be none
    None,
}

impl From<FineIndexRule> for FineRule {
    fn from(rule: FineIndexRule) -> FineRule {
        match rule {
            FineIndexRule::Same => FineRule::Same,
            FineIndexRule::Unsigned => FineRule::Unsigned,
            FineIndexRule::None => FineRule::None,
        }
    }
}

/// The content of a policy file.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PolicyFile {
    #[serde(deserialize_with = "given")]
    min_coverage: Option<String>,
    #[serde(deserialize_with = "given")]
    min_layer_size: Option<String>,
    #[serde(deserialize_with = "given")]
    signature_keys: Option<Vec<PathBuf>>,
    #[serde(deserialize_with = "given")]
    signature_certs: Option<Vec<PathBuf>>,
    #[serde(deserialize_with = "given")]
    fine_index: Option<FineIndexRule>,
}

/// A field that is there has a value: null may be an unset variable in a template, and must not
/// turn a rule off.
fn given<'a, D: Deserializer<'a>, T: Deserialize<'a>>(value: D) -> Result<Option<T>, D::Error> {
    T::deserialize(value).map(Some)
}

impl PolicyArgs {
    /// The rules that readers take: a file, and who must have signed.
    fn for_reader(
        policy: &Option<PathBuf>,
        keys: &[PathBuf],
        certificates: &[PathBuf],
    ) -> PolicyArgs {
        PolicyArgs {
            policy: policy.clone(),
            min_coverage: None,
            min_layer_size: None,
            signature_key: keys.to_vec(),
            signature_cert: certificates.to_vec(),
            fine_index: None,
        }
    }

    /// The rules from the options and the file.
    ///
    /// # Errors
    /// If a file cannot be read or used.
    pub(crate) fn policy(&self) -> Result<Policy, CliError> {
        let mut policy = Policy { min_layer_size: NotIndexed::MIN_LAYER_SIZE, ..Policy::default() };
        let mut keys = Vec::new();
        let mut certificates = Vec::new();
        if let Some(path) = &self.policy {
            let unusable = || CliError::at(path, "the policy cannot be used");
            let file = PolicyFile::parse(&read_input(path, MAX_FILE as u64)?).map_err(unusable())?;
            file.fill(&mut policy).map_err(unusable())?;
            let beside = |file: PathBuf| path.parent().unwrap_or(Path::new("")).join(file);
            keys = file.signature_keys.into_iter().flatten().map(beside).collect();
            certificates = file.signature_certs.into_iter().flatten().map(beside).collect();
            if policy.is_empty() && keys.is_empty() && certificates.is_empty() {
                return Err(unusable()(PolicyError::NoRule));
            }
        }
        policy.least_coverage = self.min_coverage.or(policy.least_coverage);
        policy.min_layer_size = self.min_layer_size.map_or(policy.min_layer_size, |size| size.0);
        // The signers are a single rule: combining options and file would trust more signers than
        // either of them.
        if !self.signature_key.is_empty() || !self.signature_cert.is_empty() {
            (keys, certificates) = (self.signature_key.clone(), self.signature_cert.clone());
        }
        policy.fine = self.fine_index.map_or(policy.fine, FineRule::from);
        policy.trust = trust(&keys, &certificates)?;
        Ok(policy)
    }
}

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
enum PolicyError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("{field}: {why}")]
    Value { field: &'static str, why: String },
    #[error("{0} is empty: omit it to skip the rule")]
    EmptyList(&'static str),
    #[error("it has no rules")]
    NoRule,
}

impl PolicyFile {
    fn parse(text: &[u8]) -> Result<PolicyFile, PolicyError> {
        Ok(json::parse(text, MAX_FILE, &[])?)
    }

    fn fill(&self, policy: &mut Policy) -> Result<(), PolicyError> {
        let value = |field| move |why| PolicyError::Value { field, why };
        let share = |field, text: &Option<String>| {
            text.as_deref().map(parse::share).transpose().map_err(value(field))
        };
        policy.least_coverage = share("min_coverage", &self.min_coverage)?;
        if let Some(size) = &self.min_layer_size {
            let size = size.parse::<ByteSize>();
            policy.min_layer_size =
                size.map_err(|error| value("min_layer_size")(error.to_string()))?.0;
        }
        policy.fine = self.fine_index.map_or(policy.fine, FineRule::from);
        let lists = [
            ("signature_keys", self.signature_keys.as_ref().map(Vec::is_empty)),
            ("signature_certs", self.signature_certs.as_ref().map(Vec::is_empty)),
        ];
        match lists.iter().find(|(_, is_empty)| *is_empty == Some(true)) {
            Some((list, _)) => Err(PolicyError::EmptyList(list)),
            None => Ok(()),
        }
    }
}

const UNUSABLE_SIGNER: &str = "not a usable key or certificate";

fn trust(keys: &[PathBuf], certificates: &[PathBuf]) -> Result<Trust, CliError> {
    let mut trust = Trust::default();
    for path in keys {
        trust.keys.extend(
            PublicKey::read(&path.display().to_string(), &read_input(path, MAX_FILE as u64)?)
                .map_err(CliError::at(path, UNUSABLE_SIGNER))?,
        );
    }
    for path in certificates {
        let read =
            Certificate::read(&path.display().to_string(), &read_input(path, MAX_FILE as u64)?);
        trust.certificates.extend(read.map_err(CliError::at(path, UNUSABLE_SIGNER))?);
    }
    Ok(trust)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<Policy, String> {
        let mut policy = Policy::default();
        let file = PolicyFile::parse(text.as_bytes()).map_err(|error| error.to_string())?;
        file.fill(&mut policy).map_err(|error| error.to_string())?;
        Ok(policy)
    }

    #[test]
    fn policy_files_are_parsed() {
        let policy = filled(r#"{"min_coverage": "99.5%", "min_layer_size": "1KiB"}"#).unwrap();
        assert_eq!(policy.least_coverage.map(|share| share.to_string()).as_deref(), Some("99.5%"));
        assert_eq!(policy.min_layer_size, 1024);
        for (text, why) in [
            (r#"{"min_covrage": "80%"}"#, "not the expected JSON"),
            (r#"{"min_coverage": 80}"#, "not the expected JSON"),
            (r#"{"min_coverage": "80%", "min_coverage": "0%"}"#, "not the expected JSON"),
            (r#"{"min_coverage": "0.8"}"#, "min_coverage: expected a percentage"),
            (r#"{"min_layer_size": "much"}"#, "min_layer_size: "),
            (r#"{"min_coverage": "1%", "signature_keys": []}"#, "signature_keys is empty"),
            (r#"{"signature_keys": null, "min_coverage": "0%"}"#, "not the expected JSON"),
            (r#"{"fine_index": null}"#, "not the expected JSON"),
            (r#"{"fine_index": "no"}"#, "not the expected JSON"),
            (r#"{"min_coverage": null}"#, "not the expected JSON"),
            (r#"{"min_layer_size": null}"#, "not the expected JSON"),
            (r#"{"signature_keys": [null]}"#, "not the expected JSON"),
            (r#"{"signature_certs": null}"#, "not the expected JSON"),
            ("null", "not the expected JSON"),
            ("", "not the expected JSON"),
        ] {
            let error = filled(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
