//! The options that select the versions of an index to make.

use clap::Args;

use super::error::CliError;
use ociseek_format::image::TagTemplate;
use ociseek_ops::versions::Versions;

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Versions")]
pub(crate) struct VersionsArgs {
    /// Also write a SOCI-enabled image (version 2) under this tag of the same repository, such as
    /// {tag}-soci
    ///
    /// {tag} is the tag in the image's name, {digest} the first 12 hex digits of its digest. The
    /// layers are read once for both versions. The image keeps its tag and its digest.
    /// docs/versions.md lists which runtime reads which version.
    #[arg(long, value_name = "TAG", env = "OCISEEK_V2", conflicts_with = "v2_only")]
    pub v2: Option<TagTemplate>,

    /// Write only the SOCI-enabled image (version 2) and attach no index
    #[arg(long, value_name = "TAG", env = "OCISEEK_V2_ONLY")]
    pub v2_only: Option<TagTemplate>,
}

/// For hooks and backfill.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Versions")]
pub(crate) struct HookVersionsArgs {
    /// Also write a SOCI-enabled image (version 2) for each tag, under this tag of the same
    /// repository, such as {tag}-soci
    ///
    /// {tag} is the image's tag, {digest} the first 12 hex digits of its digest. The layers are
    /// read once for both versions. For an image without a tag, the SOCI-enabled image is written
    /// only if TAG does not contain {tag}. A tag that points to anything other than a SOCI-enabled
    /// image is never overwritten. docs/versions.md lists which runtime reads which version.
    #[arg(long, value_name = "TAG", env = "OCISEEK_V2", conflicts_with = "v2_only")]
    pub v2: Option<TagTemplate>,

    /// Write only the SOCI-enabled image (version 2) and attach no index
    #[arg(long, value_name = "TAG", env = "OCISEEK_V2_ONLY")]
    pub v2_only: Option<TagTemplate>,
}

impl VersionsArgs {
    /// The selected versions, for one image or for `several`.
    pub(crate) fn versions(self, several: bool) -> Result<Versions, CliError> {
        versions(self.v2, self.v2_only, several)
    }
}

impl HookVersionsArgs {
    /// The selected versions.
    pub(crate) fn versions(self) -> Result<Versions, CliError> {
        versions(self.v2, self.v2_only, true)
    }
}

fn versions(v2: Option<TagTemplate>, v2_only: Option<TagTemplate>, several: bool) -> Result<Versions, CliError> {
    let versions = match (v2, v2_only) {
        (None, None) => Versions::V1,
        (Some(template), _) => Versions::Both(template),
        (None, Some(template)) => Versions::V2(template),
    };
    match versions.template() {
        Some(template) if several && !template.tells_apart() => Err(CliError::Usage(
            "the tag of --v2 or --v2-only must be different for each image: use {tag} or {digest} in it, such as \
             {tag}-soci",
        )),
        _ => Ok(versions),
    }
}
