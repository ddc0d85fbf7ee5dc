//! Writes into a layout directory, and never leaves partial files there.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use bytes::Bytes;
use rustix::fs::Access;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::read::{
    IMAGE_NAME, LayoutFiles, MAX_INDEX_JSON, REF_NAME, document_error, is_named, name_of,
};
use super::{Layout, LayoutError};
use crate::blob::Target;
use crate::durable::{create_directories, persist, without_path};
use crate::entries::STALE;
use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::image::select::Child;
use ociseek_format::image::{Descriptor, JsonError, referrers_tag};

/// The marker that image-spec (image-layout.md) requires in every layout.
const OCI_LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// The index.json of a layout without images.
pub(super) const EMPTY_INDEX: &[u8] =
    br#"{"manifests":[],"mediaType":"application/vnd.oci.image.index.v1+json","schemaVersion":2}"#;

/// Checks that a layout can be created in `dir`, which is not one.
pub(super) fn check_place(dir: &Path) -> Result<(), LayoutError> {
    refuse_other_files(dir)?;
    refuse_links(dir, Algorithm::Sha256)?;
    let existing = dir.ancestors().find(|place| place.exists()).unwrap_or(Path::new("."));
    rustix::fs::access(existing, Access::WRITE_OK)
        .map_err(|source| io_error("create", dir, source.into()))
}

/// Refuses a directory with content that no layout has.
fn refuse_other_files(dir: &Path) -> Result<(), LayoutError> {
    let mut listing = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        listing => listing.map_err(|source| io_error("list", dir, source))?,
    };
    // `blobs` and index.json may remain from a creator that was killed, because oci-layout is
    // written last.
    let foreign = listing.any(|entry| {
        entry.is_ok_and(|e| {
            let name = e.file_name();
            name != "blobs"
                && name != "index.json"
                && !name.to_string_lossy().starts_with(TEMPORARY)
        })
    });
    if foreign {
        let reason = "it has other files and no oci-layout".to_owned();
        return Err(LayoutError::NotALayout { path: dir.to_owned(), reason });
    }
    Ok(())
}

/// Creates the files of an empty layout that is new, unless another process did meanwhile. A
/// directory with other content is left unchanged.
fn create(layout: &Layout) -> Result<(), LayoutError> {
    let dir = layout.path();
    if !layout.is_new || dir.join("oci-layout").exists() {
        return Ok(());
    }
    create_directories(dir).map_err(|source| io_error("create", dir, source))?;
    let _lock = lock(dir)?;
    if dir.join("oci-layout").exists() {
        return Ok(());
    }
    refuse_other_files(dir)?;
    let blobs = dir.join("blobs/sha256");
    refuse_links(dir, Algorithm::Sha256)?;
    create_directories(&blobs).map_err(|source| io_error("create", &blobs, source))?;
    if !dir.join("index.json").exists() {
        replace(dir, &dir.join("index.json"), EMPTY_INDEX)?;
    }
    replace(dir, &dir.join("oci-layout"), OCI_LAYOUT)
}

/// Writes a blob under its digest unless it already exists and is complete. Returns whether it was
/// written.
pub(super) fn blob(layout: &Layout, digest: &Digest, content: &[u8]) -> Result<bool, LayoutError> {
    let actual = Digest::of(digest.algorithm(), content);
    if actual != *digest {
        return Err(LayoutError::Content { expected: *digest, actual });
    }
    let path = layout.blob_path(digest);
    // An existing file is only trusted if its content is the same.
    if super::open_regular(&path).and_then(|file| same(file, content)).unwrap_or(false) {
        return Ok(false);
    }
    make_blob_directory(layout, digest)?;
    replace(layout.path(), &path, content)?;
    Ok(true)
}

/// Creates the directory of a blob's file.
fn make_blob_directory(layout: &Layout, digest: &Digest) -> Result<(), LayoutError> {
    create(layout)?;
    refuse_links(layout.path(), digest.algorithm())?;
    let blobs = layout.path().join("blobs").join(digest.algorithm().name());
    create_directories(&blobs).map_err(|source| io_error("create", &blobs, source))
}

/// Refuses links below the directory that the user named: a layout may come from an archive of
/// a stranger, and its links may lead to any directory.
fn refuse_links(dir: &Path, algorithm: Algorithm) -> Result<(), LayoutError> {
    let blobs = dir.join("blobs");
    for path in [blobs.join(algorithm.name()), blobs] {
        if fs::symlink_metadata(&path).is_ok_and(|metadata| metadata.is_symlink()) {
            return Err(LayoutError::Link { path });
        }
    }
    Ok(())
}

/// Writes a blob from batches of chunks, and removes it if it is incomplete in the end.
pub(super) fn chunks(
    layout: &Layout,
    blob: &Descriptor,
    batches: impl Iterator<Item = Option<Vec<Bytes>>>,
) -> Result<(), LayoutError> {
    let path = layout.blob_path(&blob.digest);
    let failed = |source| io_error("write", &path, source);
    make_blob_directory(layout, &blob.digest)?;
    let mut file = temporary(layout.path()).map_err(failed)?;
    let mut hasher = Hasher::new(blob.digest.algorithm());
    let mut size = 0;
    for batch in batches {
        let interrupted =
            || failed(io::Error::new(io::ErrorKind::Interrupted, "its content is incomplete"));
        for chunk in batch.ok_or_else(interrupted)? {
            size += chunk.len() as u64;
            hasher.update(&chunk);
            file.write_all(&chunk).map_err(failed)?;
        }
    }
    let actual = hasher.finish();
    if size != blob.size {
        let path = layout.path().to_owned();
        return Err(LayoutError::Size {
            path,
            digest: blob.digest,
            expected: blob.size,
            actual: size,
        });
    }
    if actual != blob.digest {
        return Err(LayoutError::Content { expected: blob.digest, actual });
    }
    persist(file, &path, true).map_err(failed)
}

/// Names an image in index.json.
pub(super) fn name(
    layout: &Layout,
    image: &Descriptor,
    tag: Option<&str>,
    keep: Option<&Digest>,
) -> Result<(), LayoutError> {
    amend(layout, |manifests| {
        let mut entry = Descriptor::new(image.media_type.clone(), image.digest, image.size);
        entry.annotations.extend(tag.map(|tag| (REF_NAME.to_owned(), tag.to_owned())));
        let new = value(layout, &entry)?;
        let mut place = None;
        let mut entries = Vec::with_capacity(manifests.len() + 1);
        for mut old in std::mem::take(manifests) {
            let Ok(described) = serde_json::from_value::<Descriptor>(old.clone()) else {
                entries.push(old);
                continue;
            };
            let same_name = match tag {
                Some(tag) => is_named(&described, tag),
                None => {
                    name_of(&described).is_none()
                        && matches!(Child::of(&described), Child::Image | Child::Index)
                }
            };
            let nameless = described.digest == image.digest && name_of(&described).is_none();
            if !same_name && !nameless {
                entries.push(old);
                continue;
            }
            place.get_or_insert(entries.len());
            if keep == Some(&described.digest) && described.digest != image.digest {
                if let Some(annotations) = old.get_mut("annotations").and_then(Value::as_object_mut)
                {
                    annotations.retain(|key, _| key != REF_NAME && key != IMAGE_NAME);
                }
                entries.push(old);
            }
        }
        entries.insert(place.unwrap_or(entries.len()), new);
        *manifests = entries;
        Ok(())
    })
}

fn same(file: File, content: &[u8]) -> io::Result<bool> {
    use io::Read;
    if file.metadata()?.len() != content.len() as u64 {
        return Ok(false);
    }
    let mut stored = Vec::with_capacity(content.len());
    file.take(content.len() as u64 + 1).read_to_end(&mut stored)?;
    Ok(stored == content)
}

/// Adds `entry` to index.json, replacing the first of `replaces` and removing the others. Fields
/// and entries of other tools are left unchanged.
pub(super) fn entry(
    layout: &Layout,
    entry: &Descriptor,
    replaces: &[Digest],
) -> Result<(), LayoutError> {
    amend(layout, |manifests| {
        let new = value(layout, entry)?;
        let goes: Vec<Digest> = replaces.iter().chain([&entry.digest]).copied().collect();
        // An entry with the same digest is the same manifest, so a tag that another tool gave it is
        // kept.
        let same = manifests.iter().find(|m| m["digest"] == new["digest"]).cloned();
        let place = manifests.iter().position(|m| is_one_of(m, &goes)).unwrap_or(manifests.len());
        manifests.retain(|m| !is_one_of(m, &goes));
        manifests.insert(place.min(manifests.len()), merged(new, same));
        Ok(())
    })
}

/// Removes `goes` from index.json, and from the list of `subject`'s referrers that regctl keeps.
pub(super) fn unlist(
    layout: &Layout,
    subject: &Digest,
    goes: &[Digest],
) -> Result<(), LayoutError> {
    let fallback = referrers_tag(subject);
    amend(layout, |manifests| {
        manifests.retain(|m| !is_one_of(m, goes));
        for listed in manifests {
            let Ok(entry) = serde_json::from_value::<Descriptor>(listed.clone()) else { continue };
            if !is_named(&entry, &fallback) {
                continue;
            }
            let document = layout.manifest(&Target::Digest(entry.digest))?;
            let mut list: Value = serde_json::from_slice(&document.bytes)
                .map_err(|e| unsound(layout, entry.digest.to_string(), e))?;
            let referrers = list.get_mut("manifests").and_then(Value::as_array_mut);
            if let Some(referrers) = referrers.filter(|r| r.iter().any(|m| is_one_of(m, goes)))
                && let Some(fields) = listed.as_object_mut()
            {
                referrers.retain(|m| !is_one_of(m, goes));
                let text = list.to_string();
                let digest = Digest::sha256(text.as_bytes());
                blob(layout, &digest, text.as_bytes())?;
                fields.insert("digest".to_owned(), json!(digest));
                fields.insert("size".to_owned(), json!(text.len()));
            }
        }
        Ok(())
    })
}

fn is_one_of(entry: &Value, digests: &[Digest]) -> bool {
    entry["digest"]
        .as_str()
        .and_then(|digest| digest.parse().ok())
        .is_some_and(|d: Digest| digests.contains(&d))
}

/// A descriptor as an entry of index.json.
fn value(layout: &Layout, entry: &Descriptor) -> Result<Value, LayoutError> {
    serde_json::to_value(entry).map_err(|e| unsound(layout, "index.json", e))
}

fn unsound(layout: &Layout, name: impl Into<String>, error: serde_json::Error) -> LayoutError {
    document_error(layout, name, JsonError::Json(error.into()))
}

/// Changes the list in index.json while other processes are locked out.
fn amend(
    layout: &Layout,
    change: impl FnOnce(&mut Vec<Value>) -> Result<(), LayoutError>,
) -> Result<(), LayoutError> {
    let dir = layout.path();
    create(layout)?;
    let _lock = lock(dir)?;
    remove_abandoned(dir);
    let bytes = layout.index_json()?;
    let unsound = |e| unsound(layout, "index.json", e);
    // Rejects what the lenient parsing below would accept, such as duplicate keys.
    super::read::unambiguous_entries(layout, &bytes)?;
    let mut index: serde_json::Map<String, Value> =
        serde_json::from_slice(&bytes).map_err(unsound)?;
    // In its place, so that the keys keep their order.
    let manifests = index.entry("manifests").or_insert_with(|| json!([]));
    if !manifests.is_array() {
        *manifests = json!([]);
    }
    if let Some(manifests) = manifests.as_array_mut() {
        change(manifests)?;
    }
    let text = serde_json::to_vec(&index).map_err(unsound)?;
    if text.len() > MAX_INDEX_JSON {
        let source = JsonError::TooLarge { size: text.len() as u64, limit: MAX_INDEX_JSON as u64 };
        return Err(document_error(layout, "index.json", source));
    }
    if text == bytes {
        return Ok(());
    }
    replace(dir, &dir.join("index.json"), &text)
}

/// `new`, with additional annotations from `before`.
fn merged(mut new: Value, before: Option<Value>) -> Value {
    if let Some(Value::Object(old)) =
        before.and_then(|mut before| before.get_mut("annotations").map(Value::take))
    {
        let Some(new) = new.as_object_mut() else { return new };
        let annotations = new.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            for (key, value) in old {
                annotations.entry(key).or_insert(value);
            }
        }
    }
    new
}

const TEMPORARY: &str = ".ociseek-";

/// Writes a file of the layout: first a temporary file next to it, which is synced to disk before
/// it is renamed.
fn replace(dir: &Path, path: &Path, content: &[u8]) -> Result<(), LayoutError> {
    let failed = |source| io_error("write", path, source);
    let mut file = temporary(dir).map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    persist(file, path, true).map_err(failed)
}

/// Locked until it is dropped, which tells it from what a killed process left.
fn temporary(dir: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    // The mode that other tools use: readable by all, as far as the umask allows.
    builder.prefix(TEMPORARY).permissions(Permissions::from_mode(0o644));
    let file = builder.tempfile_in(dir).map_err(without_path)?;
    let _no_lock_on_this_file_system = file.as_file().try_lock();
    Ok(file)
}

/// Removes the temporary files of killed processes, as far as possible: those that nobody has
/// locked. A younger file may be one whose writer has yet to lock it.
fn remove_abandoned(dir: &Path) {
    let Ok(listing) = fs::read_dir(dir) else { return };
    for entry in listing.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = super::open_regular(&path) else { continue };
        let age = file
            .metadata()
            .and_then(|metadata| metadata.modified())
            .map(|written| written.elapsed());
        if matches!(age, Ok(Ok(age)) if age > STALE) && file.try_lock().is_ok() {
            let _still_there = fs::remove_file(&path);
        }
    }
}

/// Locks index.json against other processes until the result is dropped, usually for milliseconds.
/// File systems without such locks (some NFS mounts) are used without one, because the lock only
/// coordinates processes of this tool.
fn lock(dir: &Path) -> Result<File, LayoutError> {
    let directory = File::open(dir).map_err(|source| io_error("open", dir, source))?;
    match directory.lock() {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(io_error("lock", dir, e)),
        _ => Ok(directory),
    }
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> LayoutError {
    LayoutError::Io { action, path: path.to_owned(), source }
}
