use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::{PlatformChoice, ResolveError, resolve};
use ociseek_format::image::manifest::{OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use ociseek_format::image::soci::INDEX_V2;
use ociseek_format::image::{Descriptor, OCI_LAYER, Platform};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_store::Source;
use ociseek_store::blob::Target;
use ociseek_store::layout::Layout;

#[derive(Default)]
pub(crate) struct Warnings(pub(crate) Mutex<Vec<String>>);

impl Progress for Warnings {
    fn report(&self, event: ProgressEvent) {
        if let ProgressEvent::Warning(text) = event {
            self.0.lock().unwrap().push(text);
        }
    }
}

pub(crate) struct Store {
    pub(crate) layout: Layout,
    _dir: tempfile::TempDir,
}

impl Store {
    pub(crate) fn new() -> Store {
        let dir = tempfile::tempdir().unwrap();
        Store { layout: Layout::open_or_new(&dir.path().join("l")).unwrap(), _dir: dir }
    }

    pub(crate) fn put(&self, media_type: &str, document: &Value) -> Descriptor {
        let bytes = document.to_string();
        let descriptor = Descriptor::of(media_type, bytes.as_bytes());
        self.layout.write_blob(&descriptor, bytes.as_bytes()).unwrap();
        descriptor
    }

    pub(crate) fn image(&self, architecture: &str) -> Descriptor {
        let config = self.put(OCI_CONFIG, &json!({"os": "linux", "architecture": architecture}));
        let layer = self.put(OCI_LAYER, &json!(architecture));
        self.put(OCI_MANIFEST, &json!({"schemaVersion": 2, "config": config, "layers": [layer]}))
    }

    fn sbom(&self) -> Descriptor {
        let empty = self.put("application/vnd.oci.empty.v1+json", &json!({}));
        let layer = self.put("application/spdx+json", &json!({"spdx": 1}));
        self.put(
            OCI_MANIFEST,
            &json!({"schemaVersion": 2, "artifactType": "application/spdx+json", "config": empty, "layers": [layer]}),
        )
    }

    /// The platforms of an index with these entries, and the warnings.
    fn resolve(&self, entries: &[Value], wanted: &[&str]) -> (Result<Vec<String>, ResolveError>, Vec<String>) {
        let wanted: Vec<Platform> = wanted.iter().map(|platform| platform.parse().unwrap()).collect();
        let index = self.put(OCI_INDEX, &json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}));
        let source = Source::Layout(Arc::new(self.layout.clone()));
        let warnings = Arc::new(Warnings::default());
        let progress: Arc<dyn Progress> = warnings.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let wanted = PlatformChoice::each_or_all(&wanted);
        let resolved = runtime.block_on(resolve(&source, &Target::Digest(index.digest), wanted, &progress));
        let platform = |platform: Option<Platform>| platform.map_or_else(String::new, |found| found.to_string());
        let found = resolved.map(|image| image.manifests.into_iter().map(|one| platform(one.platform)).collect());
        let warnings = warnings.0.lock().unwrap().clone();
        (found, warnings)
    }
}

/// An entry with more fields; null removes one.
pub(crate) fn entry(descriptor: &Descriptor, more: Value) -> Value {
    let mut entry = serde_json::to_value(descriptor).unwrap();
    let fields = entry.as_object_mut().unwrap();
    for (key, value) in more.as_object().unwrap() {
        match value {
            Value::Null => drop(fields.remove(key)),
            value => drop(fields.insert(key.clone(), value.clone())),
        }
    }
    entry
}

pub(crate) fn on(architecture: &str) -> Value {
    json!({"platform": {"os": "linux", "architecture": architecture}})
}

#[test]
fn an_image_is_one_whatever_its_entry_says() {
    let store = Store::new();
    let (amd, arm) = (store.image("amd64"), store.image("arm64"));
    let platform = json!({"os": "linux", "architecture": "arm64"});
    for hints in [
        json!({"artifactType": OCI_CONFIG, "platform": platform}),
        json!({"artifactType": "application/vnd.docker.container.image.v1+json", "platform": platform}),
        json!({"artifactType": "application/vnd.acme.rocket", "platform": platform}),
        json!({"artifactType": OCI_CONFIG}),
        json!({"artifactType": "application/vnd.acme.rocket"}),
        json!({"platform": {}}),
        json!({"platform": {"os": "linux", "architecture": ""}}),
        json!({"platform": null}),
        json!({"mediaType": null, "platform": platform}),
        json!({"mediaType": null}),
    ] {
        let (found, warnings) = store.resolve(&[entry(&amd, on("amd64")), entry(&arm, hints.clone())], &[]);
        assert_eq!(found.unwrap(), ["linux/amd64", "linux/arm64"], "{hints}");
        assert_eq!(warnings, Vec::<String>::new(), "{hints}");
        let (found, _) = store.resolve(&[entry(&arm, hints.clone())], &["linux/arm64"]);
        assert_eq!(found.unwrap(), ["linux/arm64"], "{hints}");
    }
    let unknown = json!({"platform": {"os": "unknown", "architecture": "unknown"}});
    assert_eq!(store.resolve(&[entry(&amd, unknown)], &[]).0.unwrap(), ["unknown/unknown"]);
    let nested = store.put(OCI_INDEX, &json!({"schemaVersion": 2, "manifests": [entry(&arm, on("arm64"))]}));
    for hints in [json!({}), json!({"mediaType": null}), json!({"artifactType": "application/vnd.acme.rocket"})] {
        let (found, _) = store.resolve(&[entry(&nested, hints)], &[]);
        assert_eq!(found.unwrap(), ["linux/arm64"]);
    }
}

#[test]
fn what_is_no_image_is_passed_over_and_said_once() {
    let store = Store::new();
    let (amd, sbom) = (store.image("amd64"), store.sbom());
    let layer = store.put(OCI_LAYER, &json!("x"));
    let attestation = store.put(
        OCI_MANIFEST,
        &json!({
            "schemaVersion": 2,
            "config": store.put(OCI_CONFIG, &json!({"os": "unknown", "architecture": "unknown"})),
            "layers": [store.put("application/vnd.in-toto+json", &json!({}))],
        }),
    );
    for (odd, warned) in [
        (entry(&sbom, json!({})), "not an image but an SBOM"),
        (entry(&sbom, json!({"platform": {}})), "not an image but an SBOM"),
        (entry(&sbom, json!({"platform": {"os": "linux", "architecture": ""}})), "not an image but an SBOM"),
        (entry(&sbom, on("amd64")), "listed for linux/amd64: this is not an image but an SBOM"),
        (entry(&sbom, json!({"mediaType": null})), "not an image but an SBOM"),
        (entry(&attestation, json!({})), "an attestation"),
        (entry(&layer, json!({})), "is not a manifest"),
        // These say themselves what they are.
        (entry(&sbom, json!({"artifactType": "application/spdx+json"})), ""),
        (entry(&sbom, json!({"artifactType": "application/spdx+json", "platform": on("amd64")["platform"]})), ""),
        (entry(&sbom, json!({"artifactType": INDEX_V2})), ""),
        (entry(&attestation, json!({"platform": {"os": "unknown", "architecture": "unknown"}})), ""),
    ] {
        for entries in [[entry(&amd, on("amd64")), odd.clone()], [odd.clone(), entry(&amd, on("amd64"))]] {
            for wanted in [&[][..], &["linux/amd64"]] {
                let (found, warnings) = store.resolve(&entries, wanted);
                assert_eq!(found.unwrap(), ["linux/amd64"], "{entries:?}");
                let mut expected = usize::from(!warned.is_empty());
                // The image comes second of its platform, or the SBOM does, unread.
                if warned.contains("listed for") {
                    let second = warnings.iter().any(|warning| warning.contains("a second manifest"));
                    assert_eq!(second, entries[1] == odd, "{warnings:?}");
                } else {
                    assert!(warnings.iter().all(|warning| warning.contains(warned)), "{warnings:?}");
                }
                expected = expected.max(usize::from(!warned.is_empty()));
                assert_eq!(warnings.len(), expected, "{odd}: {warnings:?}");
            }
        }
        let (alone, _) = store.resolve(std::slice::from_ref(&odd), &[]);
        assert!(alone.unwrap_err().is_no_image(), "{odd}");
    }
}

#[test]
fn platforms_that_a_layout_lacks_are_passed_over() {
    let store = Store::new();
    let amd = store.image("amd64");
    let gone = Descriptor::of(OCI_MANIFEST, b"not here");
    for lost in [entry(&gone, on("arm64")), entry(&gone, json!({})), entry(&gone, json!({"mediaType": OCI_INDEX}))] {
        let (found, warnings) = store.resolve(&[entry(&amd, on("amd64")), lost.clone()], &[]);
        assert_eq!(found.unwrap(), ["linux/amd64"], "{lost}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].ends_with("it is not in the layout"), "{warnings:?}");
        let (alone, _) = store.resolve(std::slice::from_ref(&lost), &[]);
        assert!(matches!(alone, Err(ResolveError::Lost { .. })), "{alone:?}");
    }
    let (asked, _) = store.resolve(&[entry(&amd, on("amd64")), entry(&gone, on("arm64"))], &["linux/arm64"]);
    assert!(matches!(asked, Err(ResolveError::Lost { .. })), "{asked:?}");
    let marked = entry(&gone, json!({"artifactType": "application/spdx+json"}));
    let (found, warnings) = store.resolve(&[entry(&amd, on("amd64")), marked], &[]);
    assert_eq!((found.unwrap().len(), warnings.len()), (1, 0));
}

#[test]
fn a_wanted_platform_does_not_depend_on_other_entries() {
    let store = Store::new();
    let (amd, bad) = (store.image("amd64"), store.put(OCI_MANIFEST, &json!({"schemaVersion": 1})));
    let entries = [entry(&amd, on("amd64")), entry(&bad, json!({}))];
    let (found, warnings) = store.resolve(&entries, &["linux/amd64"]);
    assert_eq!(found.unwrap(), ["linux/amd64"]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(matches!(store.resolve(&entries, &[]).0, Err(ResolveError::NotAnImage { .. })));
    // It could be the one that the entry is.
    assert!(matches!(store.resolve(&entries, &["linux/arm64"]).0, Err(ResolveError::NotAnImage { .. })));
}
