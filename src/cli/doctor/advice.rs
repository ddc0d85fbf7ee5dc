//! What to do about a finding.

use crate::cli::shared::convert_command::convert_again;
use crate::cli::shared::quote::quoted;
use ociseek_format::image::soci::Version;
use ociseek_format::image::{ImageName, LayerKind, NotIndexed};
use ociseek_ops::discover::Note;
use ociseek_ops::doctor::{Diagnosis, Finding, NoIndex};

pub(super) fn platform(found: &Diagnosis) -> String {
    found.inspected.image.platform.as_ref().map_or_else(|| "unknown platform".to_owned(), ToString::to_string)
}

/// The command that would help.
pub(super) fn next(finding: &Finding, image: &str, found: &Diagnosis) -> Option<String> {
    let name: Option<ImageName> = image.parse().ok();
    let is_saved = matches!(name, Some(ImageName::Saved { .. }));
    let image = quoted(image.as_bytes());
    let index = |options: &str| Some(format!("ociseek index {options}{image}"));
    match finding {
        Finding::NoIndex(NoIndex::Possible) if is_saved => {
            Some(format!("push the image and index it there, or convert it: ociseek convert {image} oci:DIR"))
        }
        Finding::NoIndex(NoIndex::Possible) => {
            let platform = platform(found);
            match platform.parse::<ociseek_format::image::Platform>() {
                Ok(_) => index(&format!("--platform {platform} ")),
                Err(_) => index(""),
            }
        }
        Finding::OnImageIndex(_) | Finding::OtherVersion { .. } => index(""),
        Finding::Several(_)
        | Finding::Unusable { version: Version::V1, .. }
        | Finding::Note { note: Note::NotCanonical | Note::TooLarge { .. } | Note::NotInImage { .. }, .. }
        | Finding::Note { note: Note::Second { .. } | Note::NotServable { .. } | Note::MediaType { .. }, .. } => {
            index("--existing replace ")
        }
        Finding::BrokenZtoc(_) | Finding::LostBlobs { .. } => match name.filter(|_| is_of_version_2(finding, found)) {
            Some(name) => Some(convert_again(&name)),
            None => index("--existing replace "),
        },
        Finding::Unusable { .. } | Finding::OddAnnotation(_) => {
            Some("ociseek convert, from the original image, to a new tag".into())
        }
        Finding::Note { note: Note::NotBeside, .. } => {
            Some("copy the whole image index: skopeo copy --all, crane copy".into())
        }
        Finding::OnlyV1 => Some(format!(
            "ociseek convert {image} NEW-NAME makes a SOCI-enabled image of version 2; or enable version 1 \
             ([pull_modes.soci_v1] enable = true)"
        )),
        Finding::LostLayer(_) | Finding::LostConfig(_) => Some("push the image again".into()),
        Finding::Uncovered { why: Some(NotIndexed::Kind(LayerKind::Zstd)), .. } => Some(
            "build the image with gzip layers: docker buildx build --output \
                 type=image,compression=gzip,force-compression=true"
                .into(),
        ),
        Finding::Uncovered { why: None, .. } => index("--dry-run --existing replace "),
        Finding::NoFine { .. } if is_saved => None,
        // A SOCI index of another tool would get one beside it.
        Finding::NoFine { is_indexed: true } | Finding::UnusableFine { .. } => index("--fine-only "),
        Finding::NoFine { is_indexed: false } => index("--fine "),
        Finding::BrokenDocument(_) => index("--fine-only --existing replace "),
        Finding::NoStart(_) => Some(format!(
            "ociseek trace {image} --output start.jsonl, then ociseek index --fine-only --profile start.jsonl {image}"
        )),
        Finding::Foreign { .. } => Some(format!("ociseek verify --quick {image}")),
        Finding::NoIndex(NoIndex::Small | NoIndex::Impossible)
        | Finding::NotListed(_)
        | Finding::Note { note: Note::Unknown { .. }, .. }
        | Finding::Uncovered { .. }
        | Finding::SmallImage(_) => None,
    }
}

/// Whether an index of version 2 names the blobs of the finding.
fn is_of_version_2(finding: &Finding, found: &Diagnosis) -> bool {
    let mut indexes = found.inspected.image.indexes.iter().filter(|index| index.version == Version::V2);
    indexes.any(|found| match (finding, &found.content) {
        (Finding::LostBlobs { index, .. }, _) => found.digest == *index,
        (Finding::BrokenZtoc(broken), Ok(content)) => content.index.ztocs.iter().any(|ztoc| ztoc.ztoc == broken.ztoc),
        _ => false,
    })
}
