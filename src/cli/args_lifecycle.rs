//! What can be typed to keep, find, move and remove indexes.

use std::fmt;
use std::str::FromStr;

use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand, ValueEnum};

use super::args::{CacheDirArgs, Format, ProgressStyle, RegistryArgs};
use crate::image::{ImageName, ImageNameError, Platform};

const RM_LONG_ABOUT: &str = "\
Removes SOCI indexes (version 1) of an image. The image itself, its tags and its other referrers stay as they are.

Only indexes that ociseek made are removed; --all removes those of every tool. IMAGE@DIGEST, with the digest of an index, \
removes that index, whoever made it. An image that is gone can be named by its digest too: its indexes may have outlived it.

Each index is read before it is deleted: what is listed as an index of the image and is not one stays, with a note. Where the \
registry lists no referrers itself, the index also leaves the list under the tag sha256-..., which stays even when it is empty. ztocs are \
left to the registry's garbage collection. In a layout (oci:DIR) the index leaves index.json; its files stay.

An index of version 2 is a part of its image: remove the image's tag to be rid of it.";

const RM_AFTER_HELP: &str = "\
Examples:
  ociseek rm --dry-run ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app:1.4
  ociseek rm --all --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek rm ghcr.io/acme/app@sha256:6b6c3d79...

JSON: the documentation of the crate, module cli::rm_json, says what each field means.

Exit status: 0 removed, or there was nothing to remove, 1 an index could not be removed, 2 wrong usage, \
129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Remove SOCI indexes of an image
#[derive(Debug, Args)]
#[command(long_about = RM_LONG_ABOUT, after_long_help = RM_AFTER_HELP, after_help = "Examples: ociseek rm --help")]
pub struct RmArgs {
    /// The image, or REPOSITORY@DIGEST of one index
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Remove the indexes of every tool, not only those that ociseek made
    #[arg(long)]
    pub all: bool,

    /// Only this platform, such as linux/arm64; may be repeated [default: all platforms of the image]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_delimiter = ',')]
    pub platform: Vec<Platform>,

    /// Say what would be removed, and remove nothing
    #[arg(long, env = "OCISEEK_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

const LIST_LONG_ABOUT: &str = "\
Lists which images have which SOCI indexes: the platform, the version of the index, how many layers it covers, how much of the image that is, \
the size of its ztocs, and the tool that made it. AGE is the image's, as its config says; an index does not say when it was made.

A repository without a tag means all of its tags, and oci:DIR all images of the layout. No layer and no ztoc is read: each image costs a \
few small requests, and tags of the same image are looked at once. Tags that name no image (charts, signatures) are left out unless \
--all is given.";

const LIST_AFTER_HELP: &str = "\
Examples:
  ociseek list ghcr.io/acme/app
  ociseek list ghcr.io/acme/app:1.4
  ociseek list --format json ghcr.io/acme/app | jq -r '.images[] | select(.manifests[].indexes == []) | .name'

JSON: the documentation of the crate, module cli::list_json, says what each field means.

Exit status: 0 done, 1 an image could not be looked at, 2 wrong usage, 129, 130 or 143 ended by a hangup, an interrupt, a \
termination.";

/// List which images have which SOCI indexes
#[derive(Debug, Args)]
#[command(long_about = LIST_LONG_ABOUT, after_long_help = LIST_AFTER_HELP, after_help = "Examples: ociseek list --help")]
pub struct ListArgs {
    /// A repository, [REGISTRY/]REPOSITORY, a layout, oci:DIR, or an image
    #[arg(value_name = "REPOSITORY|IMAGE")]
    pub place: ListPlace,

    /// List tags that name no image, too
    #[arg(long)]
    pub all: bool,

    /// How many images are looked at side by side
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// One image, or all of a repository or layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListPlace {
    Repository { registry: String, repository: String },
    Image(ImageName),
}

impl ListPlace {
    /// The registry that it is in, if it is in one.
    pub fn registry(&self) -> Option<&str> {
        match self {
            ListPlace::Repository { registry, .. } => Some(registry),
            ListPlace::Image(image) => super::source::registry(image),
        }
    }
}

impl FromStr for ListPlace {
    type Err = ImageNameError;

    fn from_str(typed: &str) -> Result<ListPlace, ImageNameError> {
        Ok(match typed.parse()? {
            // The tag that a name without one stands for is not written in it.
            ImageName::Registry(image)
                if image.digest.is_none() && !typed.rsplit('/').next().is_some_and(|last| last.contains(':')) =>
            {
                ListPlace::Repository { registry: image.registry, repository: image.repository }
            }
            image => ListPlace::Image(image),
        })
    }
}

impl fmt::Display for ListPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListPlace::Repository { registry, repository } => write!(f, "{registry}/{repository}"),
            ListPlace::Image(image) => image.fmt(f),
        }
    }
}

/// Show and empty the local cache
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    Ls(CacheLsArgs),
    Clear(CacheClearArgs),
}

const CACHE_LS_LONG_ABOUT: &str = "\
Shows where the local caches are and what they take: ztocs, which spare index, ls, cat and mount the reading of layers (at most 1 GiB, see \
--ztoc-cache-size of those commands), and the content of spans that was read (at most 4 GiB, see --cache-size).

When a cache is full, the entries that were not used for longest go.";

/// Show where the local caches are and what they take
#[derive(Debug, Args)]
#[command(long_about = CACHE_LS_LONG_ABOUT)]
pub struct CacheLsArgs {
    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    pub dir: CacheDirArgs,
}

const CACHE_CLEAR_LONG_ABOUT: &str = "\
Empties the local caches, without asking, and prints what that freed.

Nothing but time is lost, and a mount or index that runs meanwhile goes on: what it misses it fetches or makes again.";

/// Empty the local caches
#[derive(Debug, Args)]
#[command(long_about = CACHE_CLEAR_LONG_ABOUT)]
pub struct CacheClearArgs {
    /// Empty only this one
    #[arg(long, value_name = "CACHE", value_enum)]
    pub only: Option<WhichCache>,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    pub dir: CacheDirArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WhichCache {
    Ztocs,
    Spans,
}

impl WhichCache {
    pub fn name(self) -> &'static str {
        match self {
            WhichCache::Ztocs => "ztocs",
            WhichCache::Spans => "spans",
        }
    }
}

const COPY_LONG_ABOUT: &str = "\
Copies an image with everything that refers to it (SOCI indexes, signatures, attestations, and what refers to those), between registries and \
layouts. Digests stay the same.

Blobs are mounted where source and destination are in one registry, else they are streamed from one to the other: no disk is used, and \
broken connections are resumed. The tag is written last, so a copy that was broken off leaves no tag; run it again and it goes on. \
Where the destination lists no referrers itself, they are listed under the tag sha256-... .

DESTINATION is [REGISTRY/]REPOSITORY[:TAG] or oci:DIR[:TAG]; without TAG it is the source's. All platforms are copied. What cosign stores \
under tags of its own (sha256-....sig) refers to nothing and is not copied.";

const COPY_AFTER_HELP: &str = "\
Examples:
  ociseek copy staging.example/acme/app:1.4 prod.example/acme/app
  ociseek copy ghcr.io/acme/app:1.4 oci:app
  ociseek copy oci:app:1.4 localhost:5000/app:test

JSON: {\"source\", \"destination\", \"digest\", \"manifests\" (how many, referrers not counted), \"referrers\": [{\"digest\", \"subject\", \
\"artifact_type\"}], \"blobs\": {\"there\", \"mounted\", \"streamed\"}, \"bytes_streamed\", \"seconds\"}. Fields are only ever added.

Exit status: 0 copied, 1 failed, 2 wrong usage, 129, 130 or 143 ended by a hangup, an interrupt, a termination.";

/// Copy an image with its indexes and all that refers to it
#[derive(Debug, Args)]
#[command(long_about = COPY_LONG_ABOUT, after_long_help = COPY_AFTER_HELP, after_help = "Examples: ociseek copy --help")]
pub struct CopyArgs {
    /// The image
    #[arg(value_name = "SOURCE")]
    pub source: ImageName,

    /// Where the copy goes
    #[arg(value_name = "DESTINATION")]
    pub destination: ListPlace,

    /// Copy the image alone, without what refers to it
    #[arg(long)]
    pub no_referrers: bool,

    /// How many blobs are copied side by side
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    /// Progress on standard error
    #[arg(long, value_name = "STYLE", env = "OCISEEK_PROGRESS", value_enum, default_value_t = ProgressStyle::Auto)]
    pub progress: ProgressStyle,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

const PRUNE_LONG_ABOUT: &str = "\
Finds what nobody needs in a repository, and removes it with --delete:

  - SOCI indexes that ociseek made, beside one that a later version of ociseek made for the same image and layers
  - SOCI indexes that ociseek made for an image that is gone (--all: those of every tool), as far as they are listed under a tag \
sha256-...: a registry that lists referrers itself does not tell of images that are gone
  - entries of the lists under the tags sha256-... that name nothing

Each index is read before it is removed, and whether its image is gone is asked again right before that, so images can be pushed and \
indexed meanwhile.";

const PRUNE_AFTER_HELP: &str = "\
Examples:
  ociseek prune ghcr.io/acme/app
  ociseek prune --delete ghcr.io/acme/app

JSON: {\"repository\", \"dry_run\", \"images\" (image manifests that were looked at), \"waste\": [{\"digest\", \"subject\", \"tool\", \
\"reason\": image-gone, superseded or not-there, \"newer\", \"status\": would-remove, removed or failed, \"error\"}], \"not_looked_at\": \
[{\"tag\", \"error\"}]}. Fields are only ever added.

Exit status: 0 done, 1 something could not be looked at or removed, 2 wrong usage, 129, 130 or 143 ended by a hangup, an \
interrupt, a termination.";

/// Remove the obsolete indexes of a repository
#[derive(Debug, Args)]
#[command(long_about = PRUNE_LONG_ABOUT, after_long_help = PRUNE_AFTER_HELP)]
#[command(after_help = "Examples: ociseek prune --help")]
pub struct PruneArgs {
    /// The repository, [REGISTRY/]REPOSITORY
    #[arg(value_name = "REPOSITORY")]
    pub repository: ListPlace,

    /// Remove what is found [default: only say what would be removed]
    #[arg(long)]
    pub delete: bool,

    /// Of images that are gone, remove the indexes of every tool, not only those that ociseek made
    #[arg(long)]
    pub all: bool,

    /// How many images are looked at side by side
    #[arg(long, short, value_name = "N", env = "OCISEEK_JOBS", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub jobs: u16,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

const DIFF_LONG_ABOUT: &str = "\
Shows in what two ztocs differ, entry by entry and span by span, or two SOCI indexes, layer by layer.

A and B are two ztocs, which are files, or two images. Of an image it is the index that a reader takes, on one platform; \
REPOSITORY@DIGEST of an index is that index. Layers are matched by their digest, and ztocs that are not equal are fetched and compared.";

const DIFF_AFTER_HELP: &str = "\
Examples:
  ociseek diff old.ztoc new.ztoc
  ociseek diff ghcr.io/acme/app:1.3 ghcr.io/acme/app:1.4
  ociseek diff ghcr.io/acme/app@sha256:6b6c3d79... ghcr.io/acme/app@sha256:91f0a2e4...

JSON: {\"a\", \"b\", \"status\": same or different, \"differences\": [{\"code\", \"message\", \"span\", \"name\" or \"name_b64\"}]}; of ztocs also \
\"more_differences\" (how many there are beyond those listed); of indexes also \"index_a\", \"index_b\" and \"layers\": [{\"layer\", \
\"ztoc_a\", \"ztoc_b\", \"differences\", \"more_differences\"}]. Fields are only ever added.

Exit status: 0 no difference, 1 failed, 2 wrong usage, 3 they differ, 129, 130 or 143 ended by a hangup, an interrupt, a \
termination.";

/// Show in what two ztocs or SOCI indexes differ
#[derive(Debug, Args)]
#[command(long_about = DIFF_LONG_ABOUT, after_long_help = DIFF_AFTER_HELP, after_help = "Examples: ociseek diff --help")]
pub struct DiffArgs {
    /// A ztoc, which is a file, or an image
    #[arg(value_name = "A")]
    pub a: String,

    /// What it is compared with
    #[arg(value_name = "B")]
    pub b: String,

    /// The platform, such as linux/arm64 [default: this machine's, or the only one]
    #[arg(long, value_name = "OS/ARCH[/VARIANT]", env = "OCISEEK_PLATFORM", value_parser = super::parse::one_platform)]
    pub platform: Option<Platform>,

    /// What is printed on standard output: text for people, or one JSON document
    #[arg(long, value_name = "FORMAT", env = "OCISEEK_FORMAT", value_enum, default_value_t = Format::Text)]
    pub format: Format,

    #[command(flatten)]
    pub registry: RegistryArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_without_a_tag_is_a_repository() {
        let shown = |typed: &str| match typed.parse().unwrap() {
            place @ ListPlace::Repository { .. } => format!("repository {place}"),
            place @ ListPlace::Image(_) => format!("image {place}"),
        };
        for (typed, want) in [
            ("localhost:5000/a/b", "repository localhost:5000/a/b"),
            ("debian", "repository docker.io/library/debian"),
            ("localhost:5000/a/b:v1", "image localhost:5000/a/b:v1"),
            ("debian:latest", "image docker.io/library/debian:latest"),
            ("oci:dir", "image oci:dir"),
        ] {
            assert_eq!(shown(typed), want);
        }
        assert!("docker://a".parse::<ListPlace>().is_err());
    }
}
