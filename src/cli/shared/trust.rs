//! The options that say whose word a reader takes for what an index says.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

use super::error::CliError;
use super::policy::PolicyArgs;
use super::terminal::{Style, complain};
use ociseek_format::image::ImageName;
use ociseek_ops::trust::{AcceptedTrust, TrustLevel, TrustRules};

/// Whose word is taken.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Trust")]
pub(crate) struct TrustArgs {
    /// Read through indexes that only the repository vouches for, or only through those that the
    /// image binds, a trusted key signed, or this machine proved [default: depends on the command
    /// and IMAGE]
    ///
    /// Anyone who may push to a repository can attach an index there, and an index says which files
    /// there are and where. mount, bundle and trace take "image" if IMAGE has a digest or a key or
    /// policy is given; layers without such an index are read completely before the start.
    /// Otherwise the default is "repository".
    #[arg(long, value_name = "WORD", env = "OCISEEK_TRUST", value_enum)]
    pub trust: Option<TrustArg>,

    /// Whether to read through fine indexes: yes or no
    #[arg(long, value_name = "BOOL", value_parser = BoolishValueParser::new(), default_value = "yes")]
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
    /// The rules for the image `name`.
    ///
    /// # Errors
    /// If the policy, a key or a certificate cannot be read or used.
    pub(crate) fn rules(&self, name: &ImageName, purpose: UseOfFiles) -> Result<TrustRules, CliError> {
        let policy = PolicyArgs::for_reader(&self.policy, &self.signature_key, &self.signature_cert).policy()?;
        let is_strict = !policy.is_empty() || (purpose == UseOfFiles::Run && name.digest().is_some());
        let accepted = match self.trust {
            Some(TrustArg::Repository) => AcceptedTrust::Repository,
            Some(TrustArg::Image) => AcceptedTrust::Vouched,
            None if is_strict => AcceptedTrust::Vouched,
            None => AcceptedTrust::Repository,
        };
        Ok(TrustRules { accepted, policy })
    }
}

/// Says whose word it is what a command shows of an image that is named by its digest, if that
/// digest does not cover it.
pub(crate) fn tell_trust(name: &ImageName, level: TrustLevel) {
    if name.digest().is_some() && level == TrustLevel::Repository {
        complain(&format!(
            "{} this is the repository's word, which the digest does not cover: whoever may push there can attach an \
             index; --trust image reads without it",
            Style::stderr().dim("note:")
        ));
    }
}
