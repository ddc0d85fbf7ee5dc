//! The image that all registries get, and what each command makes of it in a layout: a registry
//! must have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Value, json};

use super::server::Repository;
use ociseek_testkit::image::{image_index, image_manifest};
use ociseek_testkit::mounts::config;
use ociseek_testkit::random;
use ociseek_testkit::sandbox::{
    GZIP, Layout, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Sandbox, gzip, tar,
};

/// What all runs have in common: no layer is too small.
pub const ENVIRONMENT: [(&str, &str); 4] = [
    ("OCISEEK_MIN_LAYER_SIZE", "0"),
    ("OCISEEK_SPAN_SIZE", "1MiB"),
    ("OCISEEK_PROGRESS", "none"),
    ("OCISEEK_RETRY_FOR", "3s"),
];

/// The size of the file in the large layer, which does not compress.
const LARGE: usize = 17 << 20;

pub struct Image {
    /// The content of the large file.
    pub large: Vec<u8>,
    /// The digest of the image's manifest.
    pub digest: String,
    pub plain: Repository,
    pub indexed: Repository,
    /// With a second index, by an older version.
    pub with_older: Repository,
    pub with_fine: Repository,
    pub with_v2: Repository,
    pub converted: Repository,
    pub replaced: Repository,
}

/// Made once for all tests of the process.
pub static IMAGE: LazyLock<Image> = LazyLock::new(Image::make);

impl Image {
    fn make() -> Image {
        let sandbox = Sandbox::new();
        let large: Vec<u8> = random::numbers(7).flat_map(u64::to_le_bytes).take(LARGE).collect();
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(large.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, "large", &large[..]).unwrap();
        let tars = [builder.into_inner().unwrap(), tar(2, 3, 40_000), tar(3, 1, 10)];
        let mut layout = Layout::new(&sandbox.path("img"));
        let layers: Vec<Value> = tars.iter().map(|tar| layout.blob(GZIP, &gzip(tar))).collect();
        let config = layout.blob(OCI_CONFIG, &config(&tars, &json!({})));
        let manifest = image_manifest(&config, &layers);
        let manifest = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
        let digest = manifest["digest"].as_str().unwrap().to_owned();
        layout.tag(manifest, "v1");
        let plain = repository(&sandbox.path("img"));
        let after = |from: &str, to: &str, args: &[&str]| {
            let copy =
                Command::new("cp").args(["-r", from, to]).current_dir(sandbox.dir.path()).status();
            assert!(copy.unwrap().success());
            let mut command = sandbox.command(args);
            let output = command.envs(ENVIRONMENT).output().unwrap();
            assert!(
                output.status.success(),
                "{args:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
            repository(&sandbox.path(to))
        };
        let older = after(
            "img",
            "older",
            &["index", "--build-tool-identifier=ociseek v0.0.1", "oci:older:v1"],
        );
        let indexed = after("img", "indexed", &["index", "oci:indexed:v1"]);
        let with_fine = after("indexed", "fine", &["index", "--kind=v1,fine", "oci:fine:v1"]);
        let with_v2 = after("img", "v2", &["index", "--kind=v1,v2={tag}-soci", "oci:v2:v1"]);
        let converted =
            after("img", "converted", &["convert", "oci:converted:v1", "oci:converted:v2"]);
        let replaced = after(
            "img",
            "replaced",
            &["convert", "--replace-tag", "oci:replaced:v1", "oci:replaced:v1"],
        );
        let mut with_older = indexed.clone();
        with_older.manifests.extend(older.manifests);
        with_older.blobs.extend(older.blobs);
        Image { large, digest, plain, indexed, with_older, with_fine, with_v2, converted, replaced }
    }
}

/// The repository that a layout would be.
pub fn repository(dir: &Path) -> Repository {
    let mut repository = Repository::default();
    for file in std::fs::read_dir(dir.join("blobs/sha256")).unwrap().map(Result::unwrap) {
        let digest = format!("sha256:{}", file.file_name().to_str().unwrap());
        let content = Bytes::from(std::fs::read(file.path()).unwrap());
        let document: Value = serde_json::from_slice(&content).unwrap_or_default();
        match document["mediaType"].as_str().filter(|_| document["schemaVersion"] == 2) {
            Some(media_type) => {
                _ = repository.manifests.insert(digest, (media_type.to_owned(), content))
            }
            None => _ = repository.blobs.insert(digest, content),
        }
    }
    let index: Value =
        serde_json::from_slice(&std::fs::read(dir.join("index.json")).unwrap()).unwrap();
    for entry in index["manifests"].as_array().unwrap() {
        if let Some(tag) = entry["annotations"]["org.opencontainers.image.ref.name"].as_str() {
            repository.tags.insert(tag.to_owned(), entry["digest"].as_str().unwrap().to_owned());
        }
    }
    repository
}

/// The tag that lists the referrers of a manifest.
pub fn list_tag(subject: &str) -> String {
    subject.replace(':', "-")
}

/// A repository as it is in a registry without the referrers API: with a list under a tag for each
/// subject.
pub fn with_lists(mut repository: Repository) -> Repository {
    let mut lists: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (digest, (media_type, bytes)) in &repository.manifests {
        let manifest: Value = serde_json::from_slice(bytes).unwrap();
        if let Some(subject) = manifest["subject"]["digest"].as_str() {
            let kind =
                manifest["artifactType"].as_str().or(manifest["config"]["mediaType"].as_str());
            lists
                .entry(list_tag(subject))
                .or_default()
                .push(json!({"mediaType": media_type, "digest": digest, "size": bytes.len(), "artifactType": kind,
                    "annotations": manifest["annotations"]}));
        }
    }
    for (tag, manifests) in lists {
        let list = image_index(&manifests).to_string();
        let digest = ociseek_format::digest::Digest::sha256(list.as_bytes()).to_string();
        repository.manifests.insert(digest.clone(), (OCI_INDEX.into(), list.into()));
        repository.tags.insert(tag, digest);
    }
    repository
}

/// The manifests but for lists of referrers, and the tags but for theirs.
pub fn documents(repository: &Repository) -> (BTreeSet<&str>, BTreeMap<&str, &str>) {
    let is_list = |bytes: &Bytes| {
        let document: Value = serde_json::from_slice(bytes).unwrap_or_default();
        document["manifests"]
            .as_array()
            .is_some_and(|all| all.iter().all(|entry| entry["platform"].is_null()))
    };
    let manifests = repository.manifests.iter().filter(|(_, (_, bytes))| !is_list(bytes));
    let tags = repository.tags.iter().filter(|(tag, _)| !tag.starts_with("sha256-"));
    (
        manifests.map(|(digest, _)| digest.as_str()).collect(),
        tags.map(|(tag, digest)| (tag.as_str(), digest.as_str())).collect(),
    )
}

/// Why the repository is not what it should be.
pub fn difference(found: &Repository, wanted: &Repository) -> Option<String> {
    if documents(found) != documents(wanted) {
        return Some(format!("it has {:#?}, not {:#?}", documents(found), documents(wanted)));
    }
    for (digest, (_, bytes)) in &found.manifests {
        let manifest: Value = serde_json::from_slice(bytes).unwrap();
        let blobs =
            manifest["layers"].as_array().into_iter().flatten().chain([&manifest["config"]]);
        for blob in blobs.filter_map(|blob| blob["digest"].as_str()) {
            if !found.blobs.contains_key(blob) {
                return Some(format!("it lacks {blob} of {digest}"));
            }
        }
    }
    None
}

/// Whether the list of the subject's referrers, under its tag, has all that name it as their
/// subject.
pub fn is_listed(found: &Repository, subject: &str) -> bool {
    let list = found.tags.get(&list_tag(subject)).and_then(|digest| found.manifests.get(digest));
    let list: Value =
        list.map(|(_, bytes)| serde_json::from_slice(bytes).unwrap()).unwrap_or_default();
    let listed: BTreeSet<&str> = list["manifests"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["digest"].as_str())
        .collect();
    let mut referrers = found.manifests.iter().filter(|(_, (_, bytes))| {
        let manifest: Value = serde_json::from_slice(bytes).unwrap();
        manifest["subject"]["digest"] == subject
    });
    referrers.all(|(digest, _)| listed.contains(digest.as_str()))
}
