//! The options that say which indexes to make (`--kind`) and how, for commands, hooks and backfill.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Args, Command};
use strsim::levenshtein;

use super::args::{BuildArgs, ExistingArg, MinLayerArgs, PlatformsArgs};
use super::error::CliError;
use super::file::read_input;
use super::parse;
use super::source::Images;
use ociseek_format::image::coverage::Share;
use ociseek_format::image::{ImageName, Reference, TagTemplate};
use ociseek_format::layer::LayerOptions;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_ops::index::{Existing, Gate, IndexOptions, Kinds, Reuse, ReuseSource};
use ociseek_ops::prefetch::PrefetchList;
use ociseek_ops::versions::Versions;

const LONG_HELP: &str = "\
What to make; several with commas between them, such as v1,v2={tag}-soci

v1: an index attached to the image, for ociseek's own programs, and for soci-snapshotter with [pull_modes.soci_v1] \
enable = true or before 0.10. The image stays as it is.

v2=TAG: a SOCI-enabled image under another tag of the same repository, for Fargate, SageMaker Studio and \
soci-snapshotter with its default settings. {tag} in TAG is the tag in the image's name, {digest} the first 12 hex \
digits of its digest. A tag that points to anything other than a SOCI-enabled image is never overwritten.

fine: a fine index, ociseek's own, with which its snapshotter, mount, bundle, ls and cat fetch a fraction of the \
bytes. Other tools do not see it. With v2, the SOCI-enabled image names it too.

fine=TAG: an image under another tag, as with v2=TAG, that names only its fine index. Programs that read SOCI indexes \
pull it whole. containerd does not fetch ztocs at its pull, which our snapshotter never reads.

index attaches v1 by default: that changes nothing that is there, and needs no tag. backfill and the hooks have no \
default: say what every image gets.

Each layer is read once for all of them. docs/runtimes.md lists which runtime reads what, and docs/kinds.md \
describes each kind.";

/// An index to make for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
enum KindArg {
    /// A SOCI index attached to the image.
    V1,
    /// A SOCI-enabled image.
    V2(TagTemplate),
    /// A fine index.
    Fine,
    /// An image that names only its fine index.
    FineImage(TagTemplate),
}

impl FromStr for KindArg {
    type Err = String;

    fn from_str(text: &str) -> Result<KindArg, String> {
        let text = text.trim();
        let (name, tag) =
            text.split_once('=').map_or((text, None), |(name, tag)| (name, Some(tag)));
        match (&*name.to_ascii_lowercase(), tag) {
            ("v1", None) => Ok(KindArg::V1),
            ("fine", None) => Ok(KindArg::Fine),
            ("v2", None | Some("")) => {
                Err("version 2 needs a tag: v2=TAG, such as 'v2={tag}-soci'".into())
            }
            ("v2", Some(tag)) => tag.parse().map(KindArg::V2).map_err(|error| format!("{error}")),
            ("fine", Some("")) => {
                Err("such an image needs a tag: fine=TAG, such as 'fine={tag}-fine'".into())
            }
            ("fine", Some(tag)) => {
                tag.parse().map(KindArg::FineImage).map_err(|error| format!("{error}"))
            }
            ("", _) => Err(format!("it is empty: is a variable not set? Expected {KINDS}")),
            _ => Err(match tag_meant(text) {
                Some(meant) => format!("expected {KINDS}; did you mean {meant}?"),
                None => format!("expected {KINDS}, with a comma between several"),
            }),
        }
    }
}

/// Also tells shells what to offer.
#[derive(Debug, Clone)]
struct KindParser;

impl TypedValueParser for KindParser {
    type Value = KindArg;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<KindArg, clap::Error> {
        KindArg::from_str.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(["v1", "v2={tag}-soci", "fine"].into_iter().map(PossibleValue::new)))
    }
}

const KINDS: &str = "v1, v2=TAG, fine or fine=TAG";

/// The kind that other words stand for.
fn tag_meant(text: &str) -> Option<String> {
    let text = text.to_ascii_lowercase();
    match &*text {
        "1" | "soci-v1" | "sociv1" | "version1" => Some("v1".to_owned()),
        "2" | "soci" | "soci-v2" | "sociv2" | "version2" | "enabled" => {
            Some("'v2={tag}-soci'".to_owned())
        }
        _ if text.contains(' ') => Some(
            text.split_whitespace()
                .map(|word| word.trim_matches(','))
                .collect::<Vec<_>>()
                .join(","),
        ),
        _ => {
            let kinds = ["v1", "fine"];
            let near =
                |kind: &&&str| levenshtein(&text, kind) <= if kind.len() > 2 { 2 } else { 0 };
            kinds.iter().find(near).map(|kind| (*kind).to_owned())
        }
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct KindArgs {
    /// What to make: v1, v2=TAG, fine or fine=TAG; several with commas between them [default of
    /// index: v1]
    #[arg(long, value_name = "KIND", env = "OCISEEK_KIND", value_delimiter = ',')]
    #[arg(value_parser = KindParser, hide_possible_values = true, long_help = LONG_HELP)]
    kind: Vec<KindArg>,
}

impl KindArgs {
    /// Whether the default is taken.
    pub(crate) fn is_default(&self) -> bool {
        self.kind.is_empty()
    }

    /// For a dry run, which makes nothing: those without an index of version 1, unless a kind is
    /// given.
    pub(crate) fn or_default(&mut self) {
        if self.kind.is_empty() {
            self.kind.push(KindArg::V1);
        }
    }

    /// As [`selected`](KindArgs::selected), where nobody looks at each image: nothing is made by
    /// default.
    fn of_all_images(self) -> Result<(Versions, Kinds), CliError> {
        if self.is_default() {
            return Err(CliError::usage(
                "--kind is missing: say what every image gets, 'v2={tag}-soci' for soci-snapshotter and AWS Fargate, \
                 or v1 or fine for ociseek's own programs",
            ));
        }
        self.selected(true)
    }

    /// Whether an index is attached, an image with one is written, or both; and which kinds of
    /// index these are. For one image or for `several`.
    pub(crate) fn selected(self, several: bool) -> Result<(Versions, Kinds), CliError> {
        let mut v1 = false;
        let mut fine = false;
        let mut images = Vec::new();
        let mut only_fine = false;
        for kind in self.kind {
            match kind {
                KindArg::V1 => v1 = true,
                KindArg::Fine => fine = true,
                KindArg::V2(template) => images.push(template),
                KindArg::FineImage(template) => {
                    images.push(template);
                    only_fine = true;
                }
            }
        }
        if images.len() > 1 {
            return Err(CliError::usage("--kind takes one v2=TAG or fine=TAG"));
        }
        if v1 && only_fine {
            return Err(CliError::usage(
                "v1 and fine=TAG are two runs: the image of fine=TAG names no SOCI index",
            ));
        }
        let image = images.pop();
        if several && image.as_ref().is_some_and(TagTemplate::is_own) {
            return Err(CliError::usage(
                "{tag} is the image's own tag, which is never overwritten: use another tag, such as v2={tag}-soci",
            ));
        }
        if several && image.as_ref().is_some_and(|template| !template.tells_apart()) {
            return Err(CliError::usage(
                "the tag must be different for each image: use {tag} or {digest} in it, such as \
                 v2={tag}-soci",
            ));
        }
        let has_soci = v1 || image.is_some() && !only_fine;
        let kinds = match (has_soci, fine || only_fine) {
            (false, true) => Kinds::Fine,
            (true, true) => Kinds::Both,
            // Version 1 is the default.
            (_, false) => Kinds::Soci,
        };
        let is_attached = v1 || only_fine && fine;
        let versions = match image {
            None => Versions::V1,
            Some(template) if is_attached => Versions::Both(template),
            Some(template) => Versions::V2(template),
        };
        Ok((versions, kinds))
    }
}

/// What an index must be like. Checked before anything is written.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Requirements")]
pub(crate) struct RequirementArgs {
    /// Fail if a layer is left out for any reason other than its size
    ///
    /// Nothing is written, for any platform, and each such layer is listed: zstd, foreign,
    /// encrypted, sparse files, PAX global headers, and whatever else a consumer could not serve.
    /// If an existing index is kept, its layers are checked instead.
    #[arg(long, env = "OCISEEK_STRICT", value_parser = parse::switch)]
    pub strict: bool,

    /// Fail if the index covers less than this share of the image's compressed layer bytes, such as
    /// 80%
    ///
    /// Each platform must reach it; otherwise nothing is written, for any platform. Layers below
    /// --min-layer-size do not count, so an image with only small layers passes. Layers that cannot
    /// be served count as not covered; to fail on any of them, use --strict.
    #[arg(long, value_name = "PERCENT", env = "OCISEEK_MIN_COVERAGE", value_parser = parse::share)]
    pub min_coverage: Option<Share>,
}

impl RequirementArgs {
    pub(crate) fn gate(self) -> Gate {
        Gate { all_servable: self.strict, least_coverage: self.min_coverage }
    }
}

/// The content of a prefetch list.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Prefetch")]
pub(crate) struct PrefetchArgs {
    /// Have consumers fetch this file before the container starts; can be repeated
    ///
    /// A path from the root of the image; symbolic links are followed. `*` matches anything but a
    /// slash, `**` anything, `?` one character. A path that is not in the indexed layers causes a
    /// warning. soci-snapshotter uses the list if `[prefetch] enable = true`; ociseek mount and
    /// bundle always do.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "PATH", env = "OCISEEK_PREFETCH_FILE", value_parser = parse::not_empty)]
    pub prefetch_file: Vec<String>,

    /// The same for the files that this file names: a recorded startup, or paths; can be repeated
    ///
    /// A recorded startup is written by ociseek try --record and mount --record. Paths are in a
    /// JSON array, as for soci, or on lines. Several files are merged, in their order. In a fine
    /// index, what these options name comes first, in this order.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "FILE", env = "OCISEEK_PROFILE")]
    pub profile: Vec<PathBuf>,
}

/// The longest list of paths or recorded startup, in bytes.
pub(crate) const MAX_LIST: u64 = 64 << 20;

impl PrefetchArgs {
    /// All of them combined. None if no option was given.
    pub(crate) fn list(&self) -> Result<Option<Arc<PrefetchList>>, CliError> {
        let mut list = PrefetchList::default();
        self.prefetch_file.iter().for_each(|path| list.add_path(path));
        for path in &self.profile {
            let text = read_input(path, MAX_LIST)?;
            list.add_file(&text).map_err(CliError::at(path, "not a prefetch list"))?;
        }
        Ok((!list.is_empty()).then(|| Arc::new(list)))
    }
}

/// For the commands `index` and `convert`.
#[derive(Debug, Args)]
#[command(next_help_heading = "Reuse")]
pub(crate) struct ReuseArgs {
    /// Also use the SOCI indexes of this image, such as :latest or the base image; can be repeated
    ///
    /// Layers listed in such an index are not read: their ztocs are fetched, checked, and compared
    /// with some spans of the layer. That does not find every lie, so name only images whose
    /// repository you trust, or SOCI-enabled images by their digest. The image can be in another
    /// repository or registry, or in a layout. If it cannot be read, ociseek prints a warning and
    /// continues.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "IMAGE", env = "OCISEEK_REUSE_FROM", value_delimiter = ',')]
    pub reuse_from: Vec<ImageName>,

    /// Read every layer that is not in the cache, ignoring other indexes
    #[arg(long, env = "OCISEEK_NO_REUSE", value_parser = parse::switch, conflicts_with = "reuse_from")]
    #[arg(hide = true)]
    pub no_reuse: bool,
}

/// For hooks and backfill.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Reuse")]
pub(crate) struct HookReuseArgs {
    /// Also use the SOCI indexes of this image, such as a base image; can be repeated
    ///
    /// It is used for every image that is indexed. It can be in another repository or registry, as
    /// long as the service is allowed to access that. Its ztocs are compared with some spans of the
    /// layer, which does not find every lie, so name only images whose repository you trust.
    #[arg(hide_short_help = true)]
    #[arg(long, value_name = "IMAGE", env = "OCISEEK_REUSE_FROM", value_delimiter = ',')]
    pub reuse_from: Vec<Reference>,

    /// Read every layer that is not in the cache, ignoring other indexes
    #[arg(long, env = "OCISEEK_NO_REUSE", value_parser = parse::switch, conflicts_with = "reuse_from")]
    #[arg(hide = true)]
    pub no_reuse: bool,
}

impl ReuseArgs {
    /// The selected options, without any images yet.
    pub(crate) fn options(&self) -> Reuse {
        Reuse { indexes: !self.no_reuse, ..Reuse::default() }
    }
}

impl HookReuseArgs {
    /// The selected options, without any images yet.
    pub(crate) fn options(&self) -> Reuse {
        Reuse { indexes: !self.no_reuse, ..Reuse::default() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct UnattendedArgs {
    #[command(flatten, next_help_heading = "Indexing")]
    pub kinds: KindArgs,

    #[command(flatten, next_help_heading = "Indexing")]
    pub platforms: PlatformsArgs,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten, next_help_heading = "Indexing")]
    pub min_layer: MinLayerArgs,

    #[command(flatten)]
    pub reuse: HookReuseArgs,
}

/// The options in the types of the library.
pub(crate) struct Unattended {
    pub index: IndexOptions,
    pub versions: Versions,
    pub reuse_from: Vec<Reference>,
}

impl UnattendedArgs {
    /// The options, with `jobs` layers of an image read in parallel.
    pub(crate) fn options(self, jobs: usize) -> Result<Unattended, CliError> {
        let (versions, kinds) = self.kinds.of_all_images()?;
        let index = IndexOptions {
            platforms: self.platforms.platform,
            kinds,
            layer: layer_options(&self.build),
            min_layer_size: self.min_layer.min_layer_size.0,
            jobs,
            reuse: self.reuse.options(),
            ..IndexOptions::default()
        };
        Ok(Unattended { index, versions, reuse_from: self.reuse.reuse_from })
    }
}

pub(crate) fn layer_options(build: &BuildArgs) -> LayerOptions {
    LayerOptions {
        span_size: build.span_size,
        build_tool_identifier: build.build_tool_identifier.clone(),
        fine: false,
    }
}

/// The images of --reuse-from. Prints a warning for each image that cannot be opened.
pub(crate) async fn named(
    images: &Images,
    names: &[ImageName],
    progress: &Arc<dyn Progress>,
) -> Vec<ReuseSource> {
    let mut places = Vec::with_capacity(names.len());
    for name in names {
        match images.open(name).await {
            Ok((source, target)) => {
                places.push(ReuseSource { name: name.to_string().into(), source, target })
            }
            Err(error) => {
                let why = format!("cannot reuse anything from {name}: {}", causes(&error));
                progress.report(ProgressEvent::Warning(why));
            }
        }
    }
    places
}

impl From<ExistingArg> for Existing {
    fn from(rule: ExistingArg) -> Existing {
        match rule {
            ExistingArg::Skip => Existing::Skip,
            ExistingArg::Replace => Existing::Replace,
            ExistingArg::Keep => Existing::Keep,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(list: &[&str]) -> Result<(Versions, Kinds), CliError> {
        let kind = list.iter().map(|text| text.parse().unwrap()).collect();
        KindArgs { kind }.selected(true)
    }

    #[test]
    fn kinds_are_versions_and_a_fine_index() {
        let template = || "{tag}-soci".parse::<TagTemplate>().unwrap();
        for (list, want) in [
            (&[][..], (Versions::V1, Kinds::Soci)),
            (&["v1"], (Versions::V1, Kinds::Soci)),
            (&["FINE"], (Versions::V1, Kinds::Fine)),
            (&["V1", " fine"], (Versions::V1, Kinds::Both)),
            (&["v2={tag}-soci"], (Versions::V2(template()), Kinds::Soci)),
            (&["v2={tag}-soci", "fine"], (Versions::V2(template()), Kinds::Both)),
            (&["fine", "v2={tag}-soci", "v1"], (Versions::Both(template()), Kinds::Both)),
            (&["fine={tag}-soci"], (Versions::V2(template()), Kinds::Fine)),
            (&["fine={tag}-soci", "fine"], (Versions::Both(template()), Kinds::Fine)),
        ] {
            assert_eq!(kinds(list).unwrap(), want, "{list:?}");
        }
        assert!(kinds(&["v2=soci"]).is_err() && kinds(&["v2={tag}-a", "v2={tag}-b"]).is_err());
        assert!(kinds(&["v1", "fine={tag}-fine"]).is_err());
        assert!(kinds(&["v2={tag}-a", "fine={tag}-b"]).is_err());
        assert!(kinds(&["fine=same"]).is_err());
        for text in ["", "v3", "V2", "v2", "v2=", "v2=a b", "v1=x", "fine=", "fine=a b"] {
            assert!(text.parse::<KindArg>().is_err(), "{text}");
        }
    }
}
