//! Reading an image layout's documents, whatever its files lie in.

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use serde::Deserialize;

use super::blob::{BlobReader, Extent, read_range};
use super::error::LayoutError;
use crate::digest::Digest;
use crate::image::manifest::{self, MAX_DOCUMENT, Manifest, OCI_INDEX, OCI_MANIFEST};
use crate::image::select::Child;
use crate::image::{Descriptor, JsonError, Select, go, is_referrers_tag, is_tag, json};
use crate::store::blob::{Document, Referrers, Target};

/// The largest index.json that is read, in bytes: 4 MiB, as for any image index, would hold some 10,000 entries.
pub(in crate::store) const MAX_INDEX_JSON: usize = 16 << 20;
/// The name that image-spec gives an entry (annotations.md): a tag, or a full name.
pub(super) const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// The full name that containerd, BuildKit and Docker write.
pub(super) const IMAGE_NAME: &str = "io.containerd.image.name";

/// The files of a layout, in a directory or a tar.
pub(in crate::store) trait Files {
    /// For messages.
    fn path(&self) -> &Path;
    fn index_json(&self) -> Result<Vec<u8>, LayoutError>;
    /// A manifest that is in none of the files, but was made of what they say.
    fn manifest(&self, _digest: &Digest) -> Option<Bytes> {
        None
    }
    fn blob(&self, digest: &Digest) -> Result<Option<Extent>, LayoutError>;
}

/// The entries of index.json as Go reads them, since the tools that read and write layouts are
/// written in Go.
fn entries(files: &impl Files, index_json: &[u8]) -> Result<Vec<Descriptor>, LayoutError> {
    go::decode_index(index_json).map(|index| index.manifests).or_else(|_| strict_entries(files, index_json))
}

/// The entries of index.json, of which nothing is ambiguous: no key twice, none in another case.
pub(super) fn strict_entries(files: &impl Files, index_json: &[u8]) -> Result<Vec<Descriptor>, LayoutError> {
    #[derive(Deserialize)]
    struct IndexJson {
        manifests: Option<Vec<Descriptor>>,
    }
    let index: IndexJson = json::parse(index_json, MAX_INDEX_JSON, &["manifests"])
        .map_err(|source| document_error(files, "index.json", source))?;
    Ok(index.manifests.unwrap_or_default())
}

pub(super) fn document_error(files: &impl Files, name: impl Into<String>, source: JsonError) -> LayoutError {
    LayoutError::Document { path: files.path().to_owned(), name: name.into(), source }
}

/// The one entry that `select` names.
pub(in crate::store) fn find(files: &impl Files, select: &Select) -> Result<Descriptor, LayoutError> {
    let index_json = files.index_json()?;
    let entries = entries(files, &index_json)?;
    let candidates: Vec<&Descriptor> = match select {
        Select::Digest(digest) => return by_digest(files, &entries, digest),
        Select::Tag(tag) => entries.iter().filter(|entry| is_named(entry, tag)).collect(),
        Select::Any => match entries.iter().any(is_image) {
            true => entries.iter().filter(|entry| is_image(entry)).collect(),
            // An image may have an artifact type too.
            false => entries.iter().filter(|entry| is_manifest(entry) && !has_other_config(files, entry)).collect(),
        },
    };
    let mut distinct: Vec<&Descriptor> = Vec::new();
    for entry in candidates {
        if distinct.iter().all(|d| d.digest != entry.digest) {
            distinct.push(entry);
        }
    }
    if distinct.len() > 1 && *select == Select::Any {
        // Referrers of older tools do not say in index.json that they are none.
        distinct.retain(|entry| !is_artifact(files, entry));
    }
    let path = || files.path().to_owned();
    match (&distinct[..], select) {
        ([one], _) => Ok((*one).clone()),
        ([], Select::Tag(tag)) => {
            Err(LayoutError::NoSuchImage { path: path(), wanted: format!("{tag:?}"), there: labels(&entries) })
        }
        ([], _) => Err(LayoutError::NoImage { path: path() }),
        // One image whose platforms were listed in index.json itself, which is an image index after all.
        (several, Select::Any) if several.iter().all(|entry| entry.platform.is_some() && name_of(entry).is_none()) => {
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

fn is_manifest(entry: &Descriptor) -> bool {
    let bare = Descriptor { artifact_type: None, ..entry.clone() };
    is_image(&bare)
}

/// The images in index.json, but for the lists of referrers that regctl keeps.
pub(super) fn images(files: &impl Files) -> Result<Vec<(String, Digest)>, LayoutError> {
    let mut entries = entries(files, &files.index_json()?)?;
    let is_list = |entry: &Descriptor| name_of(entry).is_some_and(is_referrers_tag);
    entries.retain(|entry| is_image(entry) && !is_list(entry) && !is_artifact(files, entry));
    let name =
        |entry: Descriptor| (name_of(&entry).map_or_else(|| entry.digest.to_string(), str::to_owned), entry.digest);
    Ok(entries.into_iter().map(name).collect())
}

/// An entry of index.json, or any manifest that the layout holds.
fn by_digest(files: &impl Files, entries: &[Descriptor], digest: &Digest) -> Result<Descriptor, LayoutError> {
    if let Some(entry) = entries.iter().find(|entry| entry.digest == *digest) {
        return Ok(entry.clone());
    }
    let document = document(files, digest, None)?;
    Ok(Descriptor::new(document.media_type, document.digest, document.bytes.len() as u64))
}

/// The manifest or index that `target` names, its digest checked.
pub(in crate::store) fn manifest(files: &impl Files, target: &Target) -> Result<Document, LayoutError> {
    match target {
        Target::Tag(tag) => {
            let entry = find(files, &Select::Tag(tag.clone()))?;
            document(files, &entry.digest, Some(&entry))
        }
        Target::Digest(digest) => {
            let index_json = files.index_json()?;
            if Digest::of(digest.algorithm(), &index_json) == *digest {
                // What `find` answers when index.json is the image's index.
                return Ok(Document { media_type: OCI_INDEX.to_owned(), digest: *digest, bytes: index_json.into() });
            }
            let entries = entries(files, &index_json)?;
            document(files, digest, entries.iter().find(|entry| entry.digest == *digest))
        }
    }
}

fn document(files: &impl Files, digest: &Digest, entry: Option<&Descriptor>) -> Result<Document, LayoutError> {
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
    let media_type = entry.map_or_else(|| media_type_of(&bytes), |entry| entry.media_type.clone());
    Ok(Document { media_type, digest: *digest, bytes })
}

/// What a manifest says it is, or what it looks like. Whether it is sound is for its parser to say.
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

/// A reader of a blob of which index or manifest said the size.
pub(in crate::store) fn blob(files: &impl Files, blob: &Descriptor) -> Result<BlobReader, LayoutError> {
    let extent = extent(files, &blob.digest)?;
    check_size(files, blob, extent.size)?;
    Ok(BlobReader::new(extent))
}

/// The bytes of a part of such a blob.
pub(in crate::store) fn blob_range(
    files: &impl Files,
    blob: &Descriptor,
    range: Range<u64>,
) -> Result<Bytes, LayoutError> {
    let extent = extent(files, &blob.digest)?;
    check_size(files, blob, extent.size)?;
    let read = read_range(&extent, range);
    let read =
        read.map_err(|source| LayoutError::Io { action: "read a blob of", path: files.path().to_owned(), source });
    Ok(read?.into())
}

pub(in crate::store) fn blob_bytes(files: &impl Files, blob: &Descriptor, limit: u64) -> Result<Bytes, LayoutError> {
    let extent = extent(files, &blob.digest)?;
    check_size(files, blob, extent.size)?;
    whole(files, &blob.digest, extent, limit)
}

/// The manifests of which `subject` is the subject: entries of index.json, as oras lists them, and
/// those in the index tagged `sha256-…`, as regctl keeps them.
pub(in crate::store) fn referrers(
    files: &impl Files,
    subject: &Digest,
    artifact_type: Option<&str>,
) -> Result<Referrers, LayoutError> {
    let entries = entries(files, &files.index_json()?)?;
    let fallback = fallback_tag(subject);
    let mut candidates = entries.clone();
    for entry in entries.iter().filter(|entry| is_named(entry, &fallback)) {
        if let Some(document) = sound(document(files, &entry.digest, Some(entry)))?
            && let Ok(Manifest::Index(index)) = manifest::parse(Some(&document.media_type), &document.bytes)
        {
            candidates.extend(index.manifests);
        }
    }
    let mut descriptors: Vec<Descriptor> = Vec::new();
    for candidate in candidates {
        let stated = candidate.artifact_type.as_deref().filter(|stated| !stated.is_empty());
        let other = stated.is_some_and(|stated| artifact_type.is_some_and(|wanted| wanted != stated));
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
    #[serde(default, deserialize_with = "crate::image::descriptor::null_is_default")]
    annotations: std::collections::BTreeMap<String, String>,
}

/// `candidate` with artifact type and annotations, if its manifest is there, sound, and refers to `subject`.
fn as_referrer(
    files: &impl Files,
    candidate: &Descriptor,
    subject: &Digest,
) -> Result<Option<Descriptor>, LayoutError> {
    let manifest = referring(files, candidate)?;
    let refers = |manifest: &Referring| manifest.subject.as_ref().is_some_and(|other| other.digest == *subject);
    let Some(manifest) = manifest.filter(refers) else { return Ok(None) };
    let stated = manifest.artifact_type.filter(|stated| !stated.is_empty());
    let mut referrer = Descriptor::new(candidate.media_type.clone(), candidate.digest, candidate.size);
    referrer.artifact_type = stated.or_else(|| manifest.config.map(|config| config.media_type));
    referrer.annotations = manifest.annotations;
    Ok(Some(referrer))
}

fn referring(files: &impl Files, candidate: &Descriptor) -> Result<Option<Referring>, LayoutError> {
    let document = sound(document(files, &candidate.digest, Some(candidate)))?;
    Ok(document.and_then(|document| json::parse(&document.bytes, MAX_DOCUMENT, &[]).ok()))
}

/// A document that is missing or damaged is passed over. One that could not be read may be sound: without it a list
/// would not be complete.
fn sound(document: Result<Document, LayoutError>) -> Result<Option<Document>, LayoutError> {
    match document {
        Err(error @ LayoutError::Io { .. }) => Err(error),
        document => Ok(document.ok()),
    }
}

/// Whether a manifest is certainly no image: it is an artifact, or refers to another manifest.
fn is_artifact(files: &impl Files, entry: &Descriptor) -> bool {
    let Ok(document) = document(files, &entry.digest, Some(entry)) else { return false };
    match manifest::parse(Some(&document.media_type), &document.bytes) {
        Ok(Manifest::Image(image)) => image.subject.is_some(),
        Ok(Manifest::Index(index)) => index.subject.is_some(),
        Err(e) => matches!(e, manifest::ManifestError::NotAnImage { .. }),
    }
}

/// Whether a manifest's config is certainly not an image's.
fn has_other_config(files: &impl Files, entry: &Descriptor) -> bool {
    document(files, &entry.digest, Some(entry)).is_ok_and(|document| {
        let parsed = manifest::parse(Some(&document.media_type), &document.bytes);
        matches!(parsed, Err(manifest::ManifestError::NotAnImage { .. }))
    })
}

fn extent(files: &impl Files, digest: &Digest) -> Result<Extent, LayoutError> {
    files.blob(digest)?.ok_or_else(|| LayoutError::Missing { path: files.path().to_owned(), digest: *digest })
}

fn check_size(files: &impl Files, blob: &Descriptor, actual: u64) -> Result<(), LayoutError> {
    if blob.size == actual {
        return Ok(());
    }
    Err(LayoutError::Size { path: files.path().to_owned(), digest: blob.digest, expected: blob.size, actual })
}

fn whole(files: &impl Files, digest: &Digest, extent: Extent, limit: u64) -> Result<Bytes, LayoutError> {
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

/// The tag of the index that regctl keeps a manifest's referrers in.
pub(super) fn fallback_tag(subject: &Digest) -> String {
    format!("{}-{}", subject.algorithm().name(), subject.hex())
}

/// Whether `typed` names the entry: by its whole name, or by the tag that a full name ends with.
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

/// The tag by which an entry of index.json is named, or that its full name ends with.
pub fn tag_of(entry: &Descriptor) -> Option<&str> {
    let name = name_of(entry)?;
    Some(name.rsplit_once(':').map_or(name, |(_, tag)| tag)).filter(|tag| is_tag(tag))
}

/// How a person would choose the entry.
fn label(entry: &Descriptor) -> String {
    match name_of(entry) {
        Some(name) => format!("{:?}", name.chars().take(100).collect::<String>()),
        None => format!("@{}", entry.digest),
    }
}

fn labels(entries: &[Descriptor]) -> Vec<String> {
    entries.iter().filter(|e| matches!(Child::of(e), Child::Image | Child::Index)).map(label).collect()
}
