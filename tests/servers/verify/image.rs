//! An indexed image in a layout, and ways to damage it.

use std::io::Write;
use std::path::PathBuf;

use ociseek_format::digest::Digest;
use ociseek_format::ztoc::{self, Ztoc};
use serde_json::{Value, json};

use ociseek_testkit::blobs::SOCI;
use ociseek_testkit::image;
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, PLAIN, Sandbox, tar};

/// The image `img` in a sandbox: two gzip layers whose windows matter, a plain one, and one without
/// a ztoc.
pub struct Image {
    pub sandbox: Sandbox,
    pub dir: PathBuf,
    /// The blobs of the layers.
    pub layers: Vec<Digest>,
}

pub fn compressed(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

impl Image {
    /// The image with an index.
    pub fn new() -> Image {
        let image = Image::unindexed(|_| {});
        image.run_index(&[]);
        image
    }

    /// `config` can change the image's config.
    pub fn unindexed(config: impl FnOnce(&mut Value)) -> Image {
        let tars = [tar(1, 6, 70_000), tar(2, 3, 30_000), tar(3, 2, 50_000), tar(4, 1, 10)];
        Image::of(
            &[(GZIP, &tars[0]), (PLAIN, &tars[1]), (GZIP, &tars[2]), (GZIP, &tars[3])],
            config,
        )
    }

    /// An image of these tars, each as a layer of a media type.
    pub fn of(tars: &[(&'static str, &Vec<u8>)], config: impl FnOnce(&mut Value)) -> Image {
        let sandbox = Sandbox::new();
        let dir = sandbox.path("img");
        let blobs = tars
            .iter()
            .map(|(kind, tar)| (*kind, if *kind == GZIP { compressed(tar) } else { tar.to_vec() }));
        let tars: Vec<Vec<u8>> = tars.iter().map(|(_, tar)| tar.to_vec()).collect();
        let mut document = image::config(&tars);
        config(&mut document);
        let image = image::Image::new(&document, blobs);
        image.write(&dir);
        let layers = image.descriptors().iter().map(|layer| layer.digest).collect();
        Image { sandbox, dir, layers }
    }

    pub fn run_index(&self, more: &[&str]) {
        let sizes = [
            "index",
            "--quiet",
            "--no-cache",
            "--span-size=16KiB",
            "--min-layer-size=1KiB",
            "oci:img:v1",
        ];
        let output = self.sandbox.command(&[&sizes[..], more].concat()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    pub fn path(&self, digest: &Digest) -> PathBuf {
        self.dir.join("blobs/sha256").join(digest.hex())
    }

    pub fn read(&self, digest: &Digest) -> Vec<u8> {
        std::fs::read(self.path(digest)).unwrap()
    }

    /// Writes a blob. Returns its digest.
    pub fn write(&self, content: &[u8]) -> Digest {
        let digest = Digest::sha256(content);
        std::fs::write(self.path(&digest), content).unwrap();
        digest
    }

    /// Changes a blob's bytes, but not its name.
    pub fn damage(&self, digest: &Digest, change: impl FnOnce(&mut Vec<u8>)) {
        let mut content = self.read(digest);
        change(&mut content);
        std::fs::write(self.path(digest), content).unwrap();
    }

    fn index_json(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.dir.join("index.json")).unwrap()).unwrap()
    }

    /// Writes a manifest and lists it in index.json.
    pub fn list(&self, manifest: &Value, annotations: &Value) {
        let manifest = manifest.to_string();
        self.list_blob(&self.write(manifest.as_bytes()), manifest.len(), annotations);
    }

    /// Lists a blob in index.json as a manifest.
    pub fn list_blob(&self, digest: &Digest, size: usize, annotations: &Value) {
        let mut index = self.index_json();
        let entry = json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": size, "annotations": annotations});
        index["manifests"].as_array_mut().unwrap().push(entry);
        std::fs::write(self.dir.join("index.json"), index.to_string()).unwrap();
    }

    /// The listed SOCI indexes.
    pub fn indexes(&self) -> Vec<Digest> {
        let index = self.index_json();
        let listed =
            index["manifests"].as_array().unwrap().iter().filter(|m| m["artifactType"] == SOCI);
        listed.map(|m| m["digest"].as_str().unwrap().parse().unwrap()).collect()
    }

    /// The digest of the manifest with a tag.
    pub fn tagged(&self, tag: &str) -> Digest {
        let index = self.index_json();
        let is_tagged = |m: &&Value| m["annotations"]["org.opencontainers.image.ref.name"] == tag;
        let manifest = index["manifests"].as_array().unwrap().iter().find(is_tagged).unwrap();
        manifest["digest"].as_str().unwrap().parse().unwrap()
    }

    /// The manifest of the only index.
    pub fn manifest(&self) -> String {
        String::from_utf8(self.read(&self.indexes()[0])).unwrap()
    }

    /// Replaces the index by `manifest`.
    pub fn replace_index(&self, manifest: &str) {
        let old = self.indexes()[0].to_string();
        let digest = self.write(manifest.as_bytes());
        let mut index = self.index_json();
        for entry in index["manifests"].as_array_mut().unwrap() {
            if entry["digest"] == old.as_str() {
                entry["digest"] = json!(digest);
                entry["size"] = json!(manifest.len());
            }
        }
        std::fs::write(self.dir.join("index.json"), index.to_string()).unwrap();
    }

    /// Replaces a text in the index's manifest, and updates all digests.
    pub fn edit_index(&self, old: &str, new: &str) {
        let manifest = self.manifest();
        assert!(manifest.contains(old), "{manifest}");
        self.replace_index(&manifest.replacen(old, new, 1));
    }

    /// The digest and size of the ztoc with this number.
    pub fn ztoc(&self, place: usize) -> (Digest, u64) {
        let manifest: Value = serde_json::from_str(&self.manifest()).unwrap();
        let ztoc = &manifest["layers"][place];
        (ztoc["digest"].as_str().unwrap().parse().unwrap(), ztoc["size"].as_u64().unwrap())
    }

    /// Replaces a ztoc, and updates all digests, so that only the layer reveals the change.
    pub fn edit_ztoc(&self, place: usize, change: impl FnOnce(&mut Ztoc)) {
        let (old, size) = self.ztoc(place);
        let mut ztoc = ztoc::decode(&self.read(&old)).unwrap();
        change(&mut ztoc);
        self.replace_ztoc(place, &ztoc::encode(&ztoc));
        assert_ne!((old, size), self.ztoc(place), "nothing was changed");
    }

    pub fn replace_ztoc(&self, place: usize, ztoc: &[u8]) {
        let (old, size) = self.ztoc(place);
        let new = self.write(ztoc);
        let text = |digest: &Digest, size: u64| format!("\"digest\":\"{digest}\",\"size\":{size}");
        self.edit_index(&text(&old, size), &text(&new, ztoc.len() as u64));
    }

    /// The document of a run that must end with `status`.
    pub fn verify(&self, status: i32, more: &[&str]) -> Value {
        self.sandbox.json(
            status,
            &[&["verify", "--format=json", "--progress=none", "oci:img:v1"], more].concat(),
        )
    }

    /// The codes of all differences, sorted, without duplicates.
    pub fn codes(&self, more: &[&str]) -> Vec<String> {
        let document = self.verify(3, more);
        assert_eq!(document["status"], "different");
        codes(&document)
    }
}

pub fn codes(document: &Value) -> Vec<String> {
    fn walk(value: &Value, codes: &mut Vec<String>) {
        match value {
            Value::Object(object) => {
                for (key, value) in object {
                    match key.as_str() {
                        "differences" | "violations" => codes.extend(
                            value
                                .as_array()
                                .unwrap()
                                .iter()
                                .map(|d| d["code"].as_str().unwrap().to_owned()),
                        ),
                        _ => walk(value, codes),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| walk(value, codes)),
            _ => {}
        }
    }
    let mut codes = Vec::new();
    walk(document, &mut codes);
    codes.sort();
    codes.dedup();
    codes
}

/// All spans of every layer, without reading the layers completely.
pub const QUICK: [&str; 2] = ["--quick", "--spans=100000"];

/// Checks the codes of a full verification and of one by spans; each must be in the output.
pub fn found(image: &Image, full: &[&str], quick: &[&str]) {
    for (words, more) in [(full, &[][..]), (quick, &QUICK[..])] {
        if words.is_empty() {
            image.verify(0, more);
            continue;
        }
        let codes = image.codes(more);
        for word in words {
            assert!(codes.iter().any(|code| code == word), "{word} is not in {codes:?} ({more:?})");
        }
    }
}
