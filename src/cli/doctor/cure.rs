//! The command that cures what `ociseek doctor` finds.

use crate::cli::shared::remedy::{WITH_GZIP, convert_again, has_tag, new_name, or_fine, to_index};
use crate::cli::shared::terminal::quoted;
use ociseek_format::image::soci::Version;
use ociseek_format::image::{ImageName, LayerKind, NotIndexed};
use ociseek_ops::discover::{DiscoveryMethod, FoundFineRef, Note};
use ociseek_ops::doctor::{Diagnosis, Finding, NoIndex};

/// The command that would help.
pub(super) fn next(finding: &Finding, image: &str, diagnosis: &Diagnosis) -> Option<String> {
    let name: ImageName = image.parse().ok()?;
    // Nothing can be attached to an image in an archive.
    let is_archive = matches!(name, ImageName::Archive { .. } | ImageName::Saved { .. });
    let image = quoted(image.as_bytes());
    let converted = quoted(new_name(&name).as_bytes());
    let convert = || Some(format!("ociseek convert {image} {converted}"));
    let index = |options: &str| (!is_archive).then(|| format!("ociseek index {options}{image}"));
    let has_fine = diagnosis.inspected.image.fine_index().is_some();
    let has_v2 = diagnosis.inspected.image.indexes.iter().any(|index| index.version == Version::V2);
    let is_named = |fine: &FoundFineRef| fine.via == DiscoveryMethod::Annotation;
    let is_enabled = has_v2 || diagnosis.inspected.image.fine.iter().any(is_named);
    let kind = if has_v2 { "--fine" } else { "--kind fine" };
    let convert_fine = |options: &str| {
        if has_tag(&name) {
            format!("ociseek convert {kind} {options}--replace-tag {image} {image}")
        } else {
            format!("ociseek convert {kind} {options}{image} {converted}")
        }
    };
    match finding {
        Finding::NoIndex { why: NoIndex::Impossible { has_large_zstd: true, .. }, .. }
            if !has_fine =>
        {
            Some(or_fine(&name))
        }
        Finding::Uncovered {
            size: NotIndexed::MIN_LAYER_SIZE..,
            why: Some(NotIndexed::Kind(LayerKind::Zstd)),
            ..
        } if !has_fine => Some(or_fine(&name)),
        Finding::NoIndex { why, .. } => to_index(&name, why),
        Finding::OnImageIndex(_) | Finding::OtherVersion { .. } => index(""),
        Finding::Several(_)
        | Finding::Unusable { version: Version::V1, .. }
        | Finding::Note {
            note: Note::NotCanonical | Note::TooLarge { .. } | Note::NotInImage { .. },
            ..
        }
        | Finding::Note {
            note: Note::Second { .. } | Note::NotServable { .. } | Note::MediaType { .. },
            ..
        } => index("--existing replace "),
        Finding::BrokenZtoc(_) | Finding::LostBlobs { .. } => {
            if is_of_version_2(finding, diagnosis) {
                Some(convert_again(&name))
            } else {
                index("--existing replace ")
            }
        }
        Finding::Unusable { .. } | Finding::OddAnnotation(_) => {
            Some("ociseek convert, from the original image, to a new tag".into())
        }
        Finding::Note { note: Note::NotBeside, .. } => {
            Some("copy the whole image index: skopeo copy --all, crane copy".into())
        }
        Finding::OnlyV1 => convert(),
        Finding::LostLayer(_) | Finding::LostConfig(_) => Some("push the image again".into()),
        Finding::Uncovered { why: Some(NotIndexed::Kind(LayerKind::Zstd)), .. } => {
            Some(WITH_GZIP.into())
        }
        // Runtimes take the index that the image names, not one that is attached.
        Finding::Uncovered { why: None, .. } if is_enabled && has_tag(&name) => {
            Some(format!("ociseek convert --dry-run --replace-tag {image} {image}"))
        }
        Finding::Uncovered { why: None, .. } => index("--dry-run --existing replace "),
        Finding::NoFine { .. } | Finding::NoStart(_) if is_archive => None,
        // A SOCI index of another tool would get a second one.
        // One that is only attached would not be used: the digest covers all that startup reads.
        Finding::NoFine { .. } | Finding::UnusableFine { .. } | Finding::BrokenDocument(_)
            if is_enabled =>
        {
            Some(convert_fine(""))
        }
        Finding::NoStart(_) if is_enabled => Some(format!(
            "ociseek try {image} --record start.jsonl && {}",
            convert_fine("--profile start.jsonl ")
        )),
        Finding::NoFine { is_indexed: true } | Finding::UnusableFine { .. } => {
            index("--kind fine ")
        }
        Finding::NoFine { is_indexed: false } => {
            Some(format!("ociseek convert --fine {image} {converted}"))
        }
        Finding::BrokenDocument(_) => index("--kind fine --existing replace "),
        Finding::NoStart(_) => Some(format!(
            "ociseek try {image} --record start.jsonl && ociseek index --kind fine --profile start.jsonl {image}"
        )),
        Finding::Foreign { .. } => Some(format!("ociseek verify --quick {image}")),
        Finding::LargerThanCache(_) => Some(format!("ociseek try {image}")),
        Finding::NotListed(_)
        | Finding::Note { note: Note::Unknown { .. }, .. }
        | Finding::Uncovered { .. }
        | Finding::SmallImage(_) => None,
    }
}

/// Whether an index of version 2 names the blobs of the finding.
fn is_of_version_2(finding: &Finding, diagnosis: &Diagnosis) -> bool {
    let mut indexes =
        diagnosis.inspected.image.indexes.iter().filter(|index| index.version == Version::V2);
    indexes.any(|reference| match (finding, &reference.content) {
        (Finding::LostBlobs { index, .. }, _) => reference.digest == *index,
        (Finding::BrokenZtoc(broken), Ok(content)) => {
            content.index.ztocs.iter().any(|ztoc| ztoc.ztoc == broken.ztoc)
        }
        _ => false,
    })
}
