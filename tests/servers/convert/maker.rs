//! Image layouts with handwritten JSON, however unusual.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use ociseek_format::digest::{Algorithm, Digest};

use ociseek_testkit::layers;
pub use ociseek_testkit::sandbox::{GZIP, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, PLAIN, ZSTD};

pub const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";
pub const DOCKER_GZIP: &str = "application/vnd.docker.image.rootfs.diff.tar.gzip";
pub const DOCKER_TAR: &str = "application/vnd.docker.image.rootfs.diff.tar";
pub const DOCKER_FOREIGN: &str = "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip";
pub const IN_TOTO: &str = "application/vnd.in-toto+json";

/// A layout under construction.
pub struct Maker {
    pub dir: PathBuf,
    entries: RefCell<Vec<String>>,
}

impl Maker {
    pub fn new(dir: &Path) -> Maker {
        std::fs::create_dir_all(dir.join("blobs/sha256")).unwrap();
        std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Maker { dir: dir.to_owned(), entries: RefCell::default() }
    }

    /// Writes a blob. Returns its descriptor.
    pub fn blob(&self, media_type: &str, content: &[u8]) -> String {
        self.blob_by(Algorithm::Sha256, media_type, content)
    }

    pub fn blob_by(&self, algorithm: Algorithm, media_type: &str, content: &[u8]) -> String {
        let digest = Digest::of(algorithm, content);
        let dir = self.dir.join("blobs").join(algorithm.name());
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(digest.hex()), content).unwrap();
        format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{}}}"#, content.len())
    }

    /// A layer. Each `seed` gives another one.
    pub fn layer_as(&self, media_type: &str, seed: u64) -> String {
        let tar = tar(seed);
        let plain = media_type == PLAIN
            || media_type == DOCKER_TAR
            || media_type.ends_with("nondistributable.v1.tar");
        self.blob(media_type, &if plain { tar } else { layers::gzip(&tar, 6) })
    }

    pub fn layer(&self, seed: u64) -> String {
        self.layer_as(GZIP, seed)
    }

    /// A config with these fields.
    pub fn config(&self, fields: &str) -> String {
        let rootfs = r#""rootfs":{"type":"layers","diff_ids":[]}"#;
        let comma = if fields.is_empty() { "" } else { "," };
        self.blob(OCI_CONFIG, format!("{{{fields}{comma}{rootfs}}}").as_bytes())
    }

    pub fn linux(&self, architecture: &str) -> String {
        self.config(&format!(r#""architecture":"{architecture}","os":"linux""#))
    }

    /// A manifest with exactly this text.
    pub fn raw(&self, media_type: &str, text: &str) -> String {
        self.blob(media_type, text.as_bytes())
    }

    /// A manifest with additional fields `more` after its layers.
    pub fn manifest_as(
        &self,
        media_type: &str,
        config: &str,
        layers: &[String],
        more: &str,
    ) -> String {
        let layers = layers.join(",");
        let head = format!(r#""schemaVersion":2,"mediaType":"{media_type}","config":{config}"#);
        self.raw(media_type, &format!(r#"{{{head},"layers":[{layers}]{more}}}"#))
    }

    pub fn manifest(&self, config: &str, layers: &[String]) -> String {
        self.manifest_as(OCI_MANIFEST, config, layers, "")
    }

    /// The image for a platform with one layer, as an entry of an index.
    pub fn image(&self, architecture: &str, seed: u64) -> String {
        let platform = linux(architecture);
        let rootfs = format!(
            r#""rootfs":{{"type":"layers","diff_ids":["{}"]}}"#,
            Digest::sha256(&tar(seed))
        );
        let config = self.blob(OCI_CONFIG, format!("{{{platform},{rootfs}}}").as_bytes());
        on(&self.manifest(&config, &[self.layer(seed)]), &platform)
    }

    /// An image index.
    pub fn index_as(&self, media_type: &str, entries: &[String], more: &str) -> String {
        let entries = entries.join(",");
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{media_type}","manifests":[{entries}]{more}}}"#
        );
        self.raw(media_type, &text)
    }

    pub fn index(&self, entries: &[String]) -> String {
        self.index_as(OCI_INDEX, entries, "")
    }

    /// Adds the image to index.json.
    pub fn root(&self, descriptor: String) {
        self.entries.borrow_mut().push(descriptor);
        let entries = self.entries.borrow().join(",");
        let text =
            format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[{entries}]}}"#);
        std::fs::write(self.dir.join("index.json"), text).unwrap();
    }

    pub fn path(&self, descriptor: &str) -> PathBuf {
        let (algorithm, hex) = digest(descriptor).split_once(':').unwrap();
        self.dir.join("blobs").join(algorithm).join(hex)
    }

    /// Deletes the blob of a descriptor.
    pub fn remove(&self, descriptor: &str) {
        std::fs::remove_file(self.path(descriptor)).unwrap();
    }
}

/// A small tree, which depends on `seed`.
pub fn tar(seed: u64) -> Vec<u8> {
    use ociseek_testkit::tarball::{end, entry, file};
    let name = format!("d{seed}/file");
    [entry(b'5', &format!("d{seed}/"), ""), file(&name, &layers::text(seed, 9000)), end()].concat()
}

/// A descriptor's digest.
pub fn digest(descriptor: &str) -> &str {
    descriptor.split_once(r#""digest":""#).unwrap().1.split('"').next().unwrap()
}

/// A descriptor with additional fields.
pub fn with(descriptor: &str, fields: &str) -> String {
    format!("{},{fields}}}", descriptor.strip_suffix('}').unwrap())
}

/// A descriptor with a platform.
pub fn on(descriptor: &str, platform: &str) -> String {
    with(descriptor, &format!(r#""platform":{{{platform}}}"#))
}

pub fn linux(architecture: &str) -> String {
    format!(r#""architecture":"{architecture}","os":"linux""#)
}

pub fn windows(version: &str) -> String {
    format!(r#""architecture":"amd64","os":"windows","os.version":"{version}""#)
}

/// The same by BuildKit 0.32 and later: an artifact whose subject is the image.
pub fn artifact_attestation(maker: &Maker, of: &str) -> String {
    let empty = maker.blob("application/vnd.oci.empty.v1+json", b"{}");
    let statement = maker.blob(IN_TOTO, format!("about {}", digest(of)).as_bytes());
    let subject = of.split(r#","platform""#).next().unwrap();
    let more = format!(
        r#","artifactType":"application/vnd.docker.attestation.manifest.v1+json","subject":{}}}"#,
        subject.trim_end_matches('}')
    );
    let manifest = maker.manifest_as(OCI_MANIFEST, &empty, &[statement], &more);
    let annotations = format!(
        r#""vnd.docker.reference.digest":"{}","vnd.docker.reference.type":"attestation-manifest""#,
        digest(of)
    );
    let platform = r#""platform":{"architecture":"unknown","os":"unknown"}"#;
    with(&manifest, &format!(r#""annotations":{{{annotations}}},{platform}"#))
}

/// The entry of a BuildKit attestation for the image `of`.
pub fn attestation(maker: &Maker, of: &str) -> String {
    let config = maker.config(r#""architecture":"unknown","os":"unknown""#);
    let statement = maker.blob(IN_TOTO, format!("about {}", digest(of)).as_bytes());
    let manifest = maker.manifest(&config, &[statement]);
    let annotations = format!(
        r#""vnd.docker.reference.digest":"{}","vnd.docker.reference.type":"attestation-manifest""#,
        digest(of)
    );
    let platform = r#""platform":{"architecture":"unknown","os":"unknown"}"#;
    with(&manifest, &format!(r#""annotations":{{{annotations}}},{platform}"#))
}
