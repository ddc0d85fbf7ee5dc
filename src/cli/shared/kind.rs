//! `--kind`: which indexes to make.

use std::str::FromStr;

use clap::Args;
use clap::builder::FalseyValueParser;

use super::error::CliError;
use ociseek_format::image::TagTemplate;
use ociseek_ops::index::Kinds;
use ociseek_ops::versions::Versions;

const LONG_HELP: &str = "\
What to make; several with commas between them, such as v1,v2={tag}-soci

v1: an index attached to the image, for soci-snapshotter with [pull_modes.soci_v1] enable = true. The image stays \
as it is.

v2=TAG: a SOCI-enabled image under another tag of the same repository, for Fargate, SageMaker Studio and \
soci-snapshotter with its default settings. {tag} in TAG is the tag in the image's name, {digest} the first 12 hex \
digits of its digest. A tag that points to anything other than a SOCI-enabled image is never overwritten.

fine: a fine index, ociseek's own, with which its snapshotter, mount, bundle, ls and cat fetch a fraction of the \
bytes. Other tools do not see it. With v2, the SOCI-enabled image names it too.

Each layer is read once for all of them. docs/runtimes.md lists which runtime reads what, and docs/fine.md describes \
the fine index.";

/// An index to make for an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KindArg {
    /// A SOCI index attached to the image.
    V1,
    /// A SOCI-enabled image.
    V2(TagTemplate),
    /// A fine index.
    Fine,
}

impl FromStr for KindArg {
    type Err = String;

    fn from_str(text: &str) -> Result<KindArg, String> {
        let text = text.trim();
        let (name, tag) = text.split_once('=').map_or((text, None), |(name, tag)| (name, Some(tag)));
        match (&*name.to_ascii_lowercase(), tag) {
            ("v1", None) => Ok(KindArg::V1),
            ("fine", None) => Ok(KindArg::Fine),
            ("v2", None | Some("")) => Err("version 2 needs a tag: v2=TAG, such as 'v2={tag}-soci'".into()),
            ("v2", Some(tag)) => tag.parse().map(KindArg::V2).map_err(|error| format!("{error}")),
            _ => Err("expected v1, v2=TAG or fine".into()),
        }
    }
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct KindArgs {
    /// What to make: v1, v2=TAG or fine; several with commas between them [default: v1]
    #[arg(long, value_name = "KIND", env = "OCISEEK_KIND", value_delimiter = ',')]
    #[arg(long_help = LONG_HELP, conflicts_with_all = ["v2", "v2_only", "fine", "fine_only"])]
    kind: Vec<KindArg>,

    /// The same as --kind v1,v2=TAG
    #[arg(long, value_name = "TAG", env = "OCISEEK_V2", conflicts_with = "v2_only", hide = true)]
    v2: Option<TagTemplate>,

    /// The same as --kind v2=TAG
    #[arg(long, value_name = "TAG", env = "OCISEEK_V2_ONLY", hide = true)]
    v2_only: Option<TagTemplate>,

    /// The same as adding fine to --kind
    #[arg(long, env = "OCISEEK_FINE", value_parser = FalseyValueParser::new(), conflicts_with = "fine_only")]
    #[arg(hide = true)]
    fine: bool,

    /// The same as --kind fine
    #[arg(long, env = "OCISEEK_FINE_ONLY", value_parser = FalseyValueParser::new(), hide = true)]
    #[arg(conflicts_with_all = ["v2", "v2_only"])]
    fine_only: bool,
}

impl KindArgs {
    /// The requested versions of the SOCI index, and whether a fine index is wanted in addition to
    /// them or alone. For one image or for `several`.
    pub(crate) fn selected(self, several: bool) -> Result<(Versions, Kinds), CliError> {
        let (mut v1, mut v2, mut fine) = (false, None, false);
        for kind in self.list() {
            match kind {
                KindArg::V1 => v1 = true,
                KindArg::Fine => fine = true,
                KindArg::V2(template) if v2.is_none() => v2 = Some(template),
                KindArg::V2(_) => return Err(CliError::Usage("--kind takes one v2=TAG")),
            }
        }
        if several && v2.as_ref().is_some_and(|template| !template.tells_apart()) {
            return Err(CliError::Usage(
                "the tag of v2=TAG must be different for each image: use {tag} or {digest} in it, such as \
                 v2={tag}-soci",
            ));
        }
        let kinds = match (v1 || v2.is_some(), fine) {
            (false, true) => Kinds::Fine,
            (true, true) => Kinds::Both,
            (_, false) => Kinds::Soci,
        };
        let versions = match v2 {
            None => Versions::V1,
            Some(template) if v1 => Versions::Both(template),
            Some(template) => Versions::V2(template),
        };
        Ok((versions, kinds))
    }

    fn list(self) -> Vec<KindArg> {
        let only = |kind: KindArg| vec![kind];
        let mut list = match (self.v2, self.v2_only) {
            _ if !self.kind.is_empty() => return self.kind,
            _ if self.fine_only => return only(KindArg::Fine),
            (Some(tag), _) => vec![KindArg::V1, KindArg::V2(tag)],
            (None, Some(tag)) => only(KindArg::V2(tag)),
            (None, None) => only(KindArg::V1),
        };
        list.extend(self.fine.then_some(KindArg::Fine));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(list: &[&str]) -> Result<(Versions, Kinds), CliError> {
        let kind = list.iter().map(|text| text.parse().unwrap()).collect();
        KindArgs { kind, ..KindArgs::default() }.selected(true)
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
        ] {
            assert_eq!(kinds(list).unwrap(), want, "{list:?}");
        }
        assert!(kinds(&["v2=soci"]).is_err() && kinds(&["v2={tag}-a", "v2={tag}-b"]).is_err());
        for text in ["", "v3", "V2", "v2", "v2=", "v2=a b", "v1=x", "fine=x"] {
            assert!(text.parse::<KindArg>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_earlier_options_are_kinds() {
        let tag = || Some("{tag}-soci".parse::<TagTemplate>().unwrap());
        let selected = |args: KindArgs| args.selected(true).unwrap();
        let both = KindArgs { v2: tag(), fine: true, ..KindArgs::default() };
        assert_eq!(selected(both), kinds(&["v1", "v2={tag}-soci", "fine"]).unwrap());
        let only = KindArgs { v2_only: tag(), ..KindArgs::default() };
        assert_eq!(selected(only), kinds(&["v2={tag}-soci"]).unwrap());
        let fine = KindArgs { fine_only: true, ..KindArgs::default() };
        assert_eq!(selected(fine), kinds(&["fine"]).unwrap());
    }
}
