//! Reads the documents of an image layout, in a directory or a tar.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{BlobReader, FileRange, LayoutError, read_range};
use crate::blob::{Document, Referrers, Target};
use ociseek_format::digest::Digest;
use ociseek_format::image::manifest::{self, MAX_DOCUMENT, Manifest, OCI_INDEX, OCI_MANIFEST};
use ociseek_format::image::select::Child;
use ociseek_format::image::{
    Descriptor, ImageSelector, JsonError, go, is_referrers_tag, is_tag, json, referrers_tag,
};

/// The size limit of index.json in bytes. The limit for other image indexes, 4 MiB, would hold only
/// some 10,000 entries.
pub(crate) const MAX_INDEX_JSON: usize = 16 << 20;
/// The annotation for the name of an entry in image-spec (annotations.md): a tag, or a full name.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The annotation for the full name that containerd, BuildKit and Docker write.
pub(super) const IMAGE_NAME: &str = "io.containerd.image.name";

/// The files of a layout, in a directory or a tar.
pub(crate) trait LayoutFiles {
    /// The path for messages.
    fn path(&self) -> &Path;
    fn index_json(&self) -> Result<Vec<u8>, LayoutError>;
    /// A manifest that is not stored in a file, but was made from the layout's documents.
    fn manifest(&self, _digest: &Digest) -> Option<Bytes> {
        None
    }
    fn blob(&self, digest: &Digest) -> Result<Option<FileRange>, LayoutError>;
}

/// The entries of index.json as Go parses them, since other tools for layouts are written in Go.
fn entries(files: &impl LayoutFiles, index_json: &[u8]) -> Result<Vec<Descriptor>, LayoutError> {
    go::decode_index(index_json)
        .map(|index| index.manifests)
        .or_else(|_| strict_entries(files, index_json))
}

/// The entries of index.json, parsed strictly: no duplicate keys, and none in another case.
fn strict_entries(
    files: &impl LayoutFiles,
    index_json: &[u8],
) -> Result<Vec<Descriptor>, LayoutError> {
    #[derive(Deserialize)]
    struct IndexJson {
        manifests: Option<Vec<Descriptor>>,
    }
    let index: IndexJson = json::parse(index_json, MAX_INDEX_JSON, &["manifests"])
        .map_err(|source| document_error(files, "index.json", source))?;
    Ok(index.manifests.unwrap_or_default())
}

/// The entries of index.json as Go parses them, if it is unambiguous: no duplicate keys, and none
/// in another case.
pub(super) fn unambiguous_entries(
    files: &impl LayoutFiles,
    index_json: &[u8],
) -> Result<Vec<Descriptor>, LayoutError> {
    json::parse::<IgnoredAny>(index_json, MAX_INDEX_JSON, &["manifests"])
        .map_err(|source| document_error(files, "index.json", source))?;
    entries(files, index_json)
}

pub(super) fn document_error(
    files: &impl LayoutFiles,
    name: impl Into<String>,
    source: JsonError,
) -> LayoutError {
    LayoutError::Document { path: files.path().to_owned(), name: name.into(), source }
}

/// The only entry that `select` names.
pub(crate) fn find(
    files: &impl LayoutFiles,
    select: &ImageSelector,
) -> Result<Descriptor, LayoutError> {
    let index_json = files.index_json()?;
    let entries = entries(files, &index_json)?;
    let candidates: Vec<&Descriptor> = match select {
        ImageSelector::Digest(digest) => return by_digest(files, &entries, digest),
        ImageSelector::Tag(tag) => entries.iter().filter(|entry| is_named(entry, tag)).collect(),
        ImageSelector::Any => {
            let images: Vec<_> =
                entries.iter().filter(|entry| is_listed_image(files, entry)).collect();
            match images.is_empty() {
                // Their manifests may be missing or damaged, which reading them will say.
                true => entries
                    .iter()
                    .filter(|entry| is_unclear(entry) && !has_other_config(files, entry))
                    .collect(),
                false => images,
            }
        }
    };
    let mut distinct: Vec<&Descriptor> = Vec::new();
    for entry in candidates {
        if distinct.iter().all(|d| d.digest != entry.digest) {
            distinct.push(entry);
        }
    }
    if distinct.len() > 1 && *select == ImageSelector::Any {
        // Referrers written by older tools do not declare their type in index.json.
        distinct.retain(|entry| !is_artifact(files, entry));
    }
    let path = || files.path().to_owned();
    match (&distinct[..], select) {
        ([one], _) => Ok((*one).clone()),
        ([], ImageSelector::Tag(tag)) => Err(LayoutError::NoSuchImage {
            path: path(),
            wanted: format!("{tag:?}"),
            there: labels(&entries),
        }),
        ([], _) => Err(LayoutError::NoImage { path: path() }),
        // One image whose platforms are listed in index.json itself, which is an image index too.
        (several, ImageSelector::Any)
            if several.iter().all(|entry| entry.platform.is_some() && name_of(entry).is_none()) =>
        {
            Ok(Descriptor::of(OCI_INDEX, &index_json))
        }
        (several, _) => {
            let there = several.iter().map(|entry| label(entry)).collect();
            Err(LayoutError::SeveralImages { path: path(), there })
        }
    }
}

fn is_image(entry: &Descriptor) -> bool {
    matches!(Child::of(entry), Child::Image | Child::Index)
}

fn is_unclear(entry: &Descriptor) -> bool {
    Child::of(entry) == Child::Unclear
}

/// Whether an entry is an image, which its manifest tells if the entry does not.
fn is_listed_image(files: &impl LayoutFiles, entry: &Descriptor) -> bool {
    is_image(entry)
        || is_unclear(entry)
            && document(files, &entry.digest, Some(entry)).is_ok_and(|document| {
                match manifest::parse(Some(&document.media_type), &document.bytes) {
                    Ok(Manifest::Image(image)) => image.subject.is_none(),
                    Ok(Manifest::Index(index)) => index.subject.is_none(),
                    Err(_) => false,
                }
            })
}

/// The images in index.json, without the lists of referrers that regctl keeps.
pub(super) fn images(files: &impl LayoutFiles) -> Result<Vec<(String, Digest)>, LayoutError> {
    let mut entries = entries(files, &files.index_json()?)?;
    let is_list = |entry: &Descriptor| name_of(entry).is_some_and(is_referrers_tag);
    entries.retain(|entry| {
        is_listed_image(files, entry) && !is_list(entry) && !is_artifact(files, entry)
    });
    let name = |entry: Descriptor| {
        (name_of(&entry).map_or_else(|| entry.digest.to_string(), str::to_owned), entry.digest)
    };
    Ok(entries.into_iter().map(name).collect())
}

/// An entry of index.json, or any manifest that the layout holds.
fn by_digest(
    files: &impl LayoutFiles,
    entries: &[Descriptor],
    digest: &Digest,
) -> Result<Descriptor, LayoutError> {
    if let Some(entry) = entries.iter().find(|entry| entry.digest == *digest) {
        return Ok(entry.clone());
    }
    let document = document(files, digest, None)?;
    Ok(Descriptor::new(document.media_type, document.digest, document.bytes.len() as u64))
}

/// The manifest or index that `target` names, with a verified digest.
pub(crate) fn manifest(files: &impl LayoutFiles, target: &Target) -> Result<Document, LayoutError> {
    match target {
        Target::Tag(tag) => {
            let entry = find(files, &ImageSelector::Tag(tag.clone()))?;
            document(files, &entry.digest, Some(&entry))
        }
        Target::Digest(digest) => {
            let index_json = files.index_json()?;
            if Digest::of(digest.algorithm(), &index_json) == *digest {
                // `find` returns this digest if index.json is the image's index.
                return Ok(Document {
                    media_type: OCI_INDEX.to_owned(),
                    digest: *digest,
                    bytes: index_json.into(),
                });
            }
            let entries = entries(files, &index_json)?;
            document(files, digest, entries.iter().find(|entry| entry.digest == *digest))
        }
    }
}

fn document(
    files: &impl LayoutFiles,
    digest: &Digest,
    entry: Option<&Descriptor>,
) -> Result<Document, LayoutError> {
    let bytes = match files.manifest(digest) {
        Some(bytes) => bytes,
        None => {
            let extent = extent(files, digest)?;
            if let Some(entry) = entry {
                check_size(files, entry, extent.size)?;
            }
            whole(files, digest, extent, MAX_DOCUMENT as u64)?
        }
    };
    let stated = entry.map(|entry| entry.media_type.clone()).filter(|stated| !stated.is_empty());
    let media_type = stated.unwrap_or_else(|| media_type_of(&bytes));
    Ok(Document { media_type, digest: *digest, bytes })
}

/// The media type that a manifest states or appears to have. Its parser decides whether it is
/// valid.
fn media_type_of(bytes: &[u8]) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Peek {
        media_type: Option<String>,
        manifests: Option<serde::de::IgnoredAny>,
    }
    match serde_json::from_slice::<Peek>(bytes) {
        Ok(Peek { media_type: Some(media_type), .. }) => media_type,
        Ok(Peek { manifests: Some(_), .. }) => OCI_INDEX.to_owned(),
        _ => OCI_MANIFEST.to_owned(),
    }
}

/// A reader for a blob whose size is known from an index or manifest.
pub(crate) fn blob(files: &impl LayoutFiles, blob: &Descriptor) -> Result<BlobReader, LayoutError> {
    let extent = extent(files, &blob.digest)?;
    check_size(files, blob, extent.size)?;
    Ok(BlobReader::new(extent))
}

/// The bytes of a range of such a blob.
pub(crate) fn blob_range(
    files: &impl LayoutFiles,
    blob: &Descriptor,
    range: Range<u64>,
) -> Result<Bytes, LayoutError> {
    let extent = extent(files, &blob.digest)?;
    check_size(files, blob, extent.size)?;
    let read = read_range(&extent, range);
    let read = read.map_err(|source| LayoutError::Io {
        action: "read a blob of",
        path: files.path().to_owned(),
        source,
    });
    Ok(read?.into())
}

pub(crate) fn blob_bytes(
    files: &impl LayoutFiles,
    blob: &Descriptor,
    limit: u64,
) -> Result<Bytes, LayoutError> {
    let extent = extent(files, &blob.digest)?;
    check_size(files, blob, extent.size)?;
    whole(files, &blob.digest, extent, limit)
}

/// The manifests with this `subject`: entries of index.json, as listed by oras, and those in the
/// index with the [referrers tag](referrers_tag), as kept by regctl.
pub(crate) fn referrers(
    files: &impl LayoutFiles,
    subject: &Digest,
    artifact_type: Option<&str>,
) -> Result<Referrers, LayoutError> {
    let entries = entries(files, &files.index_json()?)?;
    let fallback = referrers_tag(subject);
    let mut candidates = entries.clone();
    for entry in entries.iter().filter(|entry| is_named(entry, &fallback)) {
        if let Some(document) = sound(document(files, &entry.digest, Some(entry)))?
            && let Ok(Manifest::Index(index)) =
                manifest::parse(Some(&document.media_type), &document.bytes)
        {
            candidates.extend(index.manifests);
        }
    }
    let mut descriptors: Vec<Descriptor> = Vec::new();
    for candidate in candidates {
        let stated = candidate.artifact_type.as_deref().filter(|stated| !stated.is_empty());
        let other =
            stated.is_some_and(|stated| artifact_type.is_some_and(|wanted| wanted != stated));
        if other || descriptors.iter().any(|d| d.digest == candidate.digest) {
            continue;
        }
        if let Some(referrer) = as_referrer(files, &candidate, subject)?
            && artifact_type.is_none_or(|wanted| referrer.artifact_type.as_deref() == Some(wanted))
        {
            descriptors.push(referrer);
        }
    }
    Ok(Referrers { descriptors, api: true })
}

/// The fields of a manifest that make it a referrer (distribution-spec, "Listing Referrers").
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referring {
    subject: Option<Descriptor>,
    artifact_type: Option<String>,
    config: Option<Descriptor>,
    #[serde(default, deserialize_with = "ociseek_format::image::null_is_default")]
    annotations: std::collections::BTreeMap<String, String>,
}

/// `candidate` with artifact type and annotations, if its manifest exists, is valid, and refers to
/// `subject`.
fn as_referrer(
    files: &impl LayoutFiles,
    candidate: &Descriptor,
    subject: &Digest,
) -> Result<Option<Descriptor>, LayoutError> {
    let manifest = referring(files, candidate)?;
    let refers = |manifest: &Referring| {
        manifest.subject.as_ref().is_some_and(|other| other.digest == *subject)
    };
    let Some(manifest) = manifest.filter(refers) else { return Ok(None) };
    let stated = manifest.artifact_type.filter(|stated| !stated.is_empty());
    let mut referrer =
        Descriptor::new(candidate.media_type.clone(), candidate.digest, candidate.size);
    referrer.artifact_type = stated.or_else(|| manifest.config.map(|config| config.media_type));
    referrer.annotations = manifest.annotations;
    Ok(Some(referrer))
}

fn referring(
    files: &impl LayoutFiles,
    candidate: &Descriptor,
) -> Result<Option<Referring>, LayoutError> {
    let document = sound(document(files, &candidate.digest, Some(candidate)))?;
    Ok(document.and_then(|document| json::parse(&document.bytes, MAX_DOCUMENT, &[]).ok()))
}

/// Skips a document that is missing or damaged. One that could not be read may be valid, so the
/// list would be incomplete without it.
fn sound(document: Result<Document, LayoutError>) -> Result<Option<Document>, LayoutError> {
    match document {
        Err(error @ LayoutError::Io { .. }) => Err(error),
        document => Ok(document.ok()),
    }
}

/// Whether a manifest is certainly not an image: it is an artifact, or refers to another manifest.
fn is_artifact(files: &impl LayoutFiles, entry: &Descriptor) -> bool {
    let Ok(document) = document(files, &entry.digest, Some(entry)) else { return false };
    match manifest::parse(Some(&document.media_type), &document.bytes) {
        Ok(Manifest::Image(image)) => image.subject.is_some(),
        Ok(Manifest::Index(index)) => index.subject.is_some(),
        Err(e) => matches!(e, manifest::ManifestError::NotAnImage { .. }),
    }
}

/// Whether a manifest certainly has a config that is not an image's.
fn has_other_config(files: &impl LayoutFiles, entry: &Descriptor) -> bool {
    document(files, &entry.digest, Some(entry)).is_ok_and(|document| {
        let parsed = manifest::parse(Some(&document.media_type), &document.bytes);
        matches!(parsed, Err(manifest::ManifestError::NotAnImage { .. }))
    })
}

fn extent(files: &impl LayoutFiles, digest: &Digest) -> Result<FileRange, LayoutError> {
    files
        .blob(digest)?
        .ok_or_else(|| LayoutError::Missing { path: files.path().to_owned(), digest: *digest })
}

fn check_size(files: &impl LayoutFiles, blob: &Descriptor, actual: u64) -> Result<(), LayoutError> {
    if blob.size == actual {
        return Ok(());
    }
    Err(LayoutError::Size {
        path: files.path().to_owned(),
        digest: blob.digest,
        expected: blob.size,
        actual,
    })
}

fn whole(
    files: &impl LayoutFiles,
    digest: &Digest,
    extent: FileRange,
    limit: u64,
) -> Result<Bytes, LayoutError> {
    let path = || files.path().to_owned();
    let size = extent.size;
    if size > limit {
        return Err(LayoutError::TooLarge { path: path(), digest: *digest, size, limit });
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or_default().saturating_add(1));
    BlobReader::new(extent).read_to_end(&mut bytes).map_err(|source| LayoutError::Io {
        action: "read a blob of",
        path: path(),
        source,
    })?;
    let actual = Digest::of(digest.algorithm(), &bytes);
    if actual != *digest {
        return Err(LayoutError::Damaged { path: path(), expected: *digest, actual });
    }
    Ok(bytes.into())
}

/// Whether `typed` names the entry: by its complete name, or by the tag at the end of a full name.
pub(super) fn is_named(entry: &Descriptor, typed: &str) -> bool {
    let tag_of = |name: &str| name.rsplit_once(':').is_some_and(|(_, tag)| tag == typed);
    [REF_NAME, IMAGE_NAME]
        .iter()
        .filter_map(|key| entry.annotations.get(*key))
        .any(|name| name == typed || tag_of(name))
}

pub(super) fn name_of(entry: &Descriptor) -> Option<&str> {
    [REF_NAME, IMAGE_NAME].iter().find_map(|key| entry.annotations.get(*key)).map(String::as_str)
}

/// The tag of an entry of index.json, possibly at the end of its full name.
pub fn tag_of(entry: &Descriptor) -> Option<&str> {
    let name = name_of(entry)?;
    Some(name.rsplit_once(':').map_or(name, |(_, tag)| tag)).filter(|tag| is_tag(tag))
}

/// The text with which a user would select the entry.
fn label(entry: &Descriptor) -> String {
    match name_of(entry) {
        Some(name) => format!("{:?}", name.chars().take(100).collect::<String>()),
        None => format!("@{}", entry.digest),
    }
}

fn labels(entries: &[Descriptor]) -> Vec<String> {
    entries.iter().filter(|entry| Child::of(entry).may_be_image()).map(label).collect()
}
