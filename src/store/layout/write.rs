//! Writing into a layout directory so that nothing is ever there by half.

use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use super::Layout;
use super::error::LayoutError;
use super::read::{Files, MAX_INDEX_JSON, document_error};
use crate::digest::Digest;
use crate::image::manifest::OCI_INDEX;
use crate::image::{Descriptor, JsonError};

/// What image-spec's image-layout.md puts into every layout.
const OCI_LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// Makes `dir` an empty layout unless it is one. A directory that holds anything else stays as it is.
pub(super) fn create(dir: &Path) -> Result<(), LayoutError> {
    fs::create_dir_all(dir).map_err(|source| io_error("create", dir, source))?;
    let _lock = lock(dir)?;
    if dir.join("oci-layout").exists() {
        return Ok(());
    }
    let mut listing = fs::read_dir(dir).map_err(|source| io_error("list", dir, source))?;
    // `blobs` and index.json may be what a creator that was killed left behind: oci-layout is written last.
    let foreign = listing.any(|entry| {
        entry.is_ok_and(|e| {
            let name = e.file_name();
            name != "blobs" && name != "index.json" && !name.to_string_lossy().starts_with(TEMPORARY)
        })
    });
    if foreign {
        let reason = "it has other files and no oci-layout".to_owned();
        return Err(LayoutError::NotALayout { path: dir.to_owned(), reason });
    }
    let blobs = dir.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(|source| io_error("create", &blobs, source))?;
    if !dir.join("index.json").exists() {
        let empty = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []});
        replace(dir, &dir.join("index.json"), empty.to_string().as_bytes())?;
    }
    replace(dir, &dir.join("oci-layout"), OCI_LAYOUT)
}

/// Writes a blob under its digest unless it is there, whole. True: it was written.
pub(super) fn blob(layout: &Layout, digest: &Digest, content: &[u8]) -> Result<bool, LayoutError> {
    let actual = Digest::of(digest.algorithm(), content);
    if actual != *digest {
        return Err(LayoutError::Content { expected: *digest, actual });
    }
    let path = layout.blob_path(digest);
    // What lies there under the name is believed only when it is the same.
    if super::open_regular(&path).and_then(|file| same(file, content)).unwrap_or(false) {
        return Ok(false);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(|source| io_error("create", parent, source))?;
    }
    replace(layout.path(), &path, content)?;
    Ok(true)
}

fn same(file: File, content: &[u8]) -> io::Result<bool> {
    use io::Read;
    if file.metadata()?.len() != content.len() as u64 {
        return Ok(false);
    }
    let mut there = Vec::with_capacity(content.len());
    file.take(content.len() as u64 + 1).read_to_end(&mut there)?;
    Ok(there == content)
}

/// Puts `entry` into index.json, in the place of the first of `replaces` and without the others. Fields and entries of other tools
/// stay as they are.
pub(super) fn entry(layout: &Layout, entry: &Descriptor, replaces: &[Digest]) -> Result<(), LayoutError> {
    let dir = layout.path();
    let _lock = lock(dir)?;
    let bytes = layout.index_json()?;
    let unsound = |e| document_error(layout, "index.json", JsonError::Json(e));
    // Checks what the plain reading below would let pass, such as a key that stands twice.
    super::read::entries(layout, &bytes)?;
    let mut index: serde_json::Map<String, Value> = serde_json::from_slice(&bytes).map_err(unsound)?;
    let mut manifests = match index.remove("manifests") {
        Some(Value::Array(manifests)) => manifests,
        _ => Vec::new(),
    };
    let new = serde_json::to_value(entry).map_err(unsound)?;
    let goes: Vec<String> = replaces.iter().chain([&entry.digest]).map(Digest::to_string).collect();
    let is_going = |m: &Value| m["digest"].as_str().is_some_and(|d| goes.iter().any(|g| g == d));
    // An entry of the same digest is the same manifest: another tool's tag on it survives.
    let kept = manifests.iter().find(|m| m["digest"] == new["digest"]).cloned();
    let place = manifests.iter().position(is_going).unwrap_or(manifests.len());
    manifests.retain(|m| !is_going(m));
    manifests.insert(place.min(manifests.len()), merged(new, kept));
    index.insert("manifests".to_owned(), Value::Array(manifests));
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

/// `new` with the annotations that only `kept` has.
fn merged(mut new: Value, kept: Option<Value>) -> Value {
    if let Some(Value::Object(old)) = kept.and_then(|mut kept| kept.get_mut("annotations").map(Value::take)) {
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

/// Writes a file of the layout: a temporary file beside the layout's own, on disk before it gets its name.
fn replace(dir: &Path, path: &Path, content: &[u8]) -> Result<(), LayoutError> {
    let failed = |source| io_error("write", path, source);
    let mut builder = tempfile::Builder::new();
    // Modes of others' tools: readable by all, as far as the umask allows.
    builder.prefix(TEMPORARY).permissions(Permissions::from_mode(0o644));
    let mut file = builder.tempfile_in(dir).map_err(failed)?;
    file.write_all(content).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
    file.persist(path).map_err(|e| failed(e.error))?;
    let parent = path.parent().unwrap_or(dir);
    File::open(parent).and_then(|d| d.sync_all()).map_err(failed)
}

/// Keeps other processes from index.json for as long as the answer lives; they hold it for milliseconds. Where the file system
/// knows no such locks (some NFS mounts) there is none: the lock is between processes of this tool anyway.
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
