//! The JSON output of `ociseek list`.

use serde::Serialize;

use crate::cli::shared::fine::Fine;
use crate::cli::shared::json::{CoverageJson, DigestText, Failure, Manifest as ManifestRef};
use ociseek_ops::list::{ListedImage, ListedIndex, ListedManifest};

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Listing {
    /// The full name of the repository, layout or image.
    place: String,
    /// One object for each tag, in the registry's order, or for each image of a layout.
    images: Vec<Image>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Image {
    /// Its tag, or its digest if it has none.
    name: String,
    /// The digest of its manifest or image index; null if it could not be read.
    digest: Option<DigestText>,
    status: Status,
    /// Why it is not `ok`, or null.
    error: Option<Failure>,
    /// One object for each platform's manifest; empty unless `ok`.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Ok,
    NotAnImage,
    Failed,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    manifest: ManifestRef,
    /// The creation time of the image according to its config (RFC 3339), or null.
    created: Option<String>,
    /// Why indexes of version 1 and fine indexes cannot be listed, or null.
    error: Option<Failure>,
    /// The SOCI indexes.
    indexes: Vec<Index>,
    /// The fine indexes.
    fine: Vec<Fine>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index {
    digest: DigestText,
    /// 1 or 2.
    version: u8,
    found_by: &'static str,
    /// Whether ociseek reads the image through this index.
    chosen: bool,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Null if it cannot be used.
    coverage: Option<CoverageJson>,
    /// Why it cannot be used, or null.
    error: Option<Failure>,
}

impl Listing {
    pub(crate) fn of(place: &str, images: &[ListedImage]) -> Listing {
        Listing { place: place.to_owned(), images: images.iter().map(Image::of).collect() }
    }
}

impl Image {
    fn of(listed: &ListedImage) -> Image {
        let (status, error, manifests) = match listed.manifests.as_ref() {
            Ok(manifests) => (Status::Ok, None, manifests.iter().map(Manifest::of).collect()),
            Err(error) if error.is_not_an_image() => (Status::NotAnImage, Some(Failure::of(error)), Vec::new()),
            Err(error) => (Status::Failed, Some(Failure::of(error)), Vec::new()),
        };
        Image { name: listed.name.clone(), digest: listed.digest.map(DigestText::from), status, error, manifests }
    }
}

impl Manifest {
    fn of(listed: &ListedManifest) -> Manifest {
        Manifest {
            platform: listed.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::named(listed.manifest),
            created: listed.created.and_then(|time| time.to_rfc3339()),
            error: listed.unlisted.as_deref().map(Failure::of_text),
            indexes: listed.indexes.iter().map(Index::of).collect(),
            fine: Fine::each(&listed.fine),
        }
    }
}

impl Index {
    fn of(listed: &ListedIndex) -> Index {
        let content = listed.content.as_ref().ok();
        Index {
            digest: listed.digest.into(),
            version: listed.version.number(),
            found_by: listed.via.code(),
            chosen: listed.chosen,
            tool: content.and_then(|content| content.tool.clone()),
            coverage: content.map(|content| CoverageJson::with_ztocs(&content.coverage, content.ztoc_bytes)),
            error: listed.content.as_ref().err().map(|error| Failure::of_text(error)),
        }
    }
}
