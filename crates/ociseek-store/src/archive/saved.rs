//! The output of `docker save`: a tar with a manifest.json, which names the config and the layers
//! of each image (moby, image/tarexport; containers/image, docker/internal/tarfile).
//!
//! Such an image has no manifest, so an OCI manifest is made from its config and from the layers as
//! they are stored in the tar. A plain layer has the digest that the config states for it, which is
//! checked when the layer is read. The digest of a compressed layer is not stated anywhere: the
//! layer is read once when the archive is opened, and its content is compared with the config.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read};
use std::path::Path;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use zstd::stream::read::Decoder as ZstdDecoder;

use super::{ArchiveFile, MemberPlace, Members, in_folder, shown};
use crate::layout::{BlobReader, LayoutError};
use ociseek_format::codec::sniff::Format;
use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::image::config::{self, MAX_CONFIG};
use ociseek_format::image::go::GoManifest;
use ociseek_format::image::json::{self, Level};
use ociseek_format::image::manifest::{MAX_DESCRIPTORS, MAX_DOCUMENT, OCI_CONFIG, OCI_MANIFEST};
use ociseek_format::image::{
    Descriptor, OCI_LAYER, Reference, SavedImageSelector, is_tag, null_is_default,
};
use ociseek_format::layer::format;
use ociseek_format::progress::{Progress, ProgressEvent, ReadAllReason};
use ociseek_format::tar::BLOCK;

const MANIFEST_JSON: &str = "manifest.json";

/// An image of an archive, with the manifest that was made for it.
pub(super) struct Saved {
    pub manifest: Descriptor,
    pub bytes: Bytes,
    /// The locations of its config and layers.
    pub blobs: HashMap<Digest, MemberPlace>,
}

/// An entry of manifest.json.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Image {
    config: String,
    #[serde(default, deserialize_with = "null_is_default")]
    repo_tags: Vec<String>,
    #[serde(default, deserialize_with = "null_is_default")]
    layers: Vec<String>,
}

/// Finds the image in the archive and makes its manifest.
pub(super) fn open(
    file: &ArchiveFile,
    select: &SavedImageSelector,
    progress: &dyn Progress,
) -> Result<Saved, LayoutError> {
    let path = file.path;
    let members = Members::of(file, &|reason| not_saved(path, reason))?;
    let images = images(file, &members)?;
    let image = choose(path, &images, select)?;

    let (config, config_place) = config(file, &members, &image.config)?;
    let diff_ids = config::diff_ids(&config).map_err(|source| LayoutError::SavedConfig {
        path: path.to_owned(),
        name: shown(&image.config),
        source,
    })?;
    if diff_ids.len() != image.layers.len() {
        let layers = image.layers.len();
        let diff_ids = diff_ids.len();
        return Err(not_saved(
            path,
            format!("{MANIFEST_JSON} lists {layers} layers, but the config lists {diff_ids}"),
        ));
    }
    if diff_ids.len() > MAX_DESCRIPTORS {
        return Err(not_saved(
            path,
            format!("it has {} layers; the limit is {MAX_DESCRIPTORS}", diff_ids.len()),
        ));
    }

    let config = Descriptor::of(OCI_CONFIG, &config);
    let mut blobs = HashMap::from([(config.digest, config_place)]);
    let mut seen = HashSet::new();
    let mut once = Vec::new();
    for (name, diff_id) in image.layers.iter().zip(&diff_ids) {
        if seen.insert(*diff_id) {
            once.push(Layer::find(file, name, members.find(path, name)?, *diff_id)?);
        }
    }
    let compressed = || once.iter().filter(|layer: &&Layer| layer.compression.is_some());
    if compressed().count() > 0 {
        let bytes = compressed().map(|layer| layer.place.size).sum();
        progress.report(ProgressEvent::Reading {
            layers: compressed().count(),
            bytes,
            why: ReadAllReason::Undigested,
        });
    }
    let mut known: HashMap<Digest, Descriptor> = HashMap::new();
    for layer in once {
        let descriptor = layer.descriptor(file, progress)?;
        blobs.insert(descriptor.digest, layer.place);
        known.insert(layer.diff_id, descriptor);
    }
    let layers = diff_ids.iter().filter_map(|diff_id| known.get(diff_id).cloned()).collect();
    let manifest = GoManifest {
        schema_version: 2,
        media_type: OCI_MANIFEST.to_owned(),
        artifact_type: String::new(),
        config,
        layers: Some(layers),
        subject: None,
        annotations: BTreeMap::new(),
    };
    let bytes = Bytes::from(manifest.encode());
    Ok(Saved { manifest: Descriptor::of(OCI_MANIFEST, &bytes), bytes, blobs })
}

/// The entries of manifest.json.
fn images(file: &ArchiveFile, members: &Members) -> Result<Vec<Image>, LayoutError> {
    const KEYS: Level = Level { keys: &["Config", "RepoTags", "Layers"], below: &[] };
    let path = file.path;
    if !members.has(MANIFEST_JSON) {
        if let Some(folder) = members.folder_of(MANIFEST_JSON) {
            return Err(not_saved(path, in_folder(MANIFEST_JSON, &folder)));
        }
        return Err(not_saved(
            path,
            if members.has("oci-layout") {
                "it has no manifest.json but is an image layout: use oci-archive:FILE"
            } else if members.has("repositories") {
                "it has no manifest.json, so Docker before 1.10 saved it: load it into a newer Docker and save it again"
            } else {
                "it has no manifest.json"
            },
        ));
    }
    let bytes = file.whole(members.find(path, MANIFEST_JSON)?, MAX_DOCUMENT)?;
    json::parse_list(&bytes, MAX_DOCUMENT, KEYS).map_err(|source| LayoutError::Document {
        path: path.to_owned(),
        name: MANIFEST_JSON.to_owned(),
        source,
    })
}

/// The selected image.
fn choose<'a>(
    path: &Path,
    images: &'a [Image],
    select: &SavedImageSelector,
) -> Result<&'a Image, LayoutError> {
    let reference = |name: &str| name.parse::<Reference>().ok();
    let labels = || images.iter().enumerate().map(|(number, image)| label(number, image)).collect();
    let missing = |wanted: String| LayoutError::NoSuchImage {
        path: path.to_owned(),
        wanted,
        there: labels(),
    };
    let numbered = |matches: &dyn Fn(&str) -> bool| -> Vec<usize> {
        let named = |image: &Image| image.repo_tags.iter().any(|tag| matches(tag));
        (0..images.len()).filter(|&number| named(&images[number])).collect()
    };
    let numbers = match select {
        SavedImageSelector::Any => (0..images.len()).collect(),
        SavedImageSelector::Number(number) => {
            Vec::from_iter(Some(*number).filter(|number| *number < images.len()))
        }
        SavedImageSelector::Name(name) => {
            let wanted = reference(name);
            let numbers =
                numbered(&|tag| tag == name || wanted.is_some() && reference(tag) == wanted);
            if numbers.is_empty() && is_tag(name) {
                numbered(&|tag| tag.rsplit_once(':').is_some_and(|(_, tag)| tag == name))
            } else {
                numbers
            }
        }
    };
    match (&numbers[..], select) {
        ([one], _) => images.get(*one).ok_or_else(|| missing(format!("number {one}"))),
        ([], SavedImageSelector::Any) => {
            Err(not_saved(path, format!("{MANIFEST_JSON} lists no image")))
        }
        ([], SavedImageSelector::Number(number)) => {
            Err(missing(format!("number {number}, counted from 0")))
        }
        ([], SavedImageSelector::Name(name)) => Err(missing(format!("{:?}", shown(name)))),
        (_, SavedImageSelector::Any) => {
            Err(LayoutError::SeveralImages { path: path.to_owned(), there: labels() })
        }
        (several, _) => {
            let there = several.iter().map(|number| format!(":@{number}")).collect();
            Err(LayoutError::SeveralImages { path: path.to_owned(), there })
        }
    }
}

/// The suffix of the file name that selects this image.
fn label(number: usize, image: &Image) -> String {
    match image.repo_tags.first() {
        Some(name) => format!(":{}", shown(name)),
        None => format!(":@{number}"),
    }
}

fn config(
    file: &ArchiveFile,
    members: &Members,
    name: &str,
) -> Result<(Vec<u8>, MemberPlace), LayoutError> {
    let place = members.find(file.path, name)?;
    Ok((file.whole(place.clone(), MAX_CONFIG)?, place))
}

enum Compression {
    Gzip,
    Zstd,
}

/// A layer as stored in the tar.
struct Layer<'a> {
    name: &'a str,
    place: MemberPlace,
    /// The digest of its uncompressed tar, according to the config.
    diff_id: Digest,
    compression: Option<Compression>,
}

impl Layer<'_> {
    fn find<'a>(
        file: &ArchiveFile,
        name: &'a str,
        place: MemberPlace,
        diff_id: Digest,
    ) -> Result<Layer<'a>, LayoutError> {
        let head =
            file.whole(MemberPlace { size: place.size.min(BLOCK as u64), ..place.clone() }, BLOCK)?;
        let compression = match format(&head) {
            Format::Gzip => Some(Compression::Gzip),
            Format::Zstd => Some(Compression::Zstd),
            Format::Foreign(_) => {
                let reason = "has an unsupported compression (supported: gzip, zstd)";
                return Err(LayoutError::Member {
                    path: file.path.to_owned(),
                    name: shown(name),
                    reason,
                });
            }
            Format::Plain => None,
        };
        Ok(Layer { name, place, diff_id, compression })
    }

    /// Compares the content of a compressed layer with the config.
    fn descriptor(
        &self,
        file: &ArchiveFile,
        progress: &dyn Progress,
    ) -> Result<Descriptor, LayoutError> {
        let Layer { place, diff_id, .. } = self;
        let diff_id = *diff_id;
        let Some(compression) = &self.compression else {
            return Ok(Descriptor::new(OCI_LAYER, diff_id, place.size));
        };
        progress.report(ProgressEvent::LayerStarted { layer: diff_id, bytes: place.size });
        let measured = measure(file.reader(place.clone()), compression, &diff_id, progress);
        progress.report(match measured {
            Ok(_) => ProgressEvent::LayerDone { layer: diff_id },
            Err(_) => ProgressEvent::LayerFailed { layer: diff_id },
        });
        let path = || file.path.to_owned();
        let (digest, actual) = measured.map_err(|source| LayoutError::Decompress {
            path: path(),
            name: shown(self.name),
            source,
        })?;
        if actual != diff_id {
            return Err(LayoutError::Damaged { path: path(), expected: diff_id, actual });
        }
        let suffix = match compression {
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        };
        Ok(Descriptor::new(format!("{OCI_LAYER}+{suffix}"), digest, place.size))
    }
}

/// The digests of a compressed layer and of its uncompressed tar, which should be `diff_id`.
fn measure(
    blob: BlobReader,
    compression: &Compression,
    diff_id: &Digest,
    progress: &dyn Progress,
) -> io::Result<(Digest, Digest)> {
    let count = |bytes| progress.report(ProgressEvent::LayerRead { layer: *diff_id, bytes });
    let mut blob = HashingReader { reader: blob, hasher: Hasher::new(Algorithm::Sha256), count };
    let tar = match compression {
        Compression::Gzip => digest(MultiGzDecoder::new(&mut blob), diff_id.algorithm())?,
        Compression::Zstd => digest(ZstdDecoder::new(&mut blob)?, diff_id.algorithm())?,
    };
    // Decoders may stop before the end of the input, after their last frame.
    io::copy(&mut blob, &mut io::sink())?;
    Ok((blob.hasher.finish(), tar))
}

fn digest(reader: impl Read, algorithm: Algorithm) -> io::Result<Digest> {
    let mut reader = HashingReader { reader, hasher: Hasher::new(algorithm), count: |_| {} };
    io::copy(&mut reader, &mut io::sink())?;
    Ok(reader.hasher.finish())
}

/// A reader that hashes the bytes it reads.
struct HashingReader<R, F> {
    reader: R,
    hasher: Hasher,
    /// Called with the number of bytes of each read.
    count: F,
}

impl<R: Read, F: Fn(u64)> Read for HashingReader<R, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.hasher.update(buffer.get(..read).unwrap_or_default());
        (self.count)(read as u64);
        Ok(read)
    }
}

fn not_saved(path: &Path, reason: impl Into<String>) -> LayoutError {
    LayoutError::NotSaved { path: path.to_owned(), reason: reason.into() }
}
