use std::sync::Arc;

use serde_json::{Value, json};

use super::{CopyError, CopyOptions, CopyReport, copy};
use crate::resolve::tests::{Store, Warnings, entry, on};
use ociseek_format::budget::Budget;
use ociseek_format::image::manifest::{OCI_INDEX, OCI_MANIFEST};
use ociseek_format::image::soci::INDEX_V1;
use ociseek_format::image::{Descriptor, OCI_LAYER};
use ociseek_format::progress::Progress;
use ociseek_store::blob::Target;
use ociseek_store::{Destination, Source};

/// Copies `root` with this memory. The copy, its report, and the warnings.
fn copied(from: &Store, root: &Descriptor, memory: u64) -> (Store, Result<CopyReport, CopyError>, Vec<String>) {
    let to = Store::new();
    let source = Source::Layout(Arc::new(from.layout.clone().with_budget(Budget::new(memory))));
    let destination = Destination::Layout(Arc::new(to.layout.clone()));
    let warnings = Arc::new(Warnings::default());
    let progress: Arc<dyn Progress> = warnings.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let target = Target::Digest(root.digest);
    let report = runtime.block_on(copy(&source, &target, &destination, "v", &CopyOptions::default(), &progress));
    let warnings = warnings.0.lock().unwrap().clone();
    (to, report, warnings)
}

fn index(store: &Store, entries: &[Value]) -> Descriptor {
    store.put(OCI_INDEX, &json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}))
}

fn referrer(store: &Store, subject: &Descriptor, artifact_type: &str, text: &str) -> Descriptor {
    let empty = store.put("application/vnd.oci.empty.v1+json", &json!({}));
    let manifest = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": artifact_type,
        "config": empty, "layers": [empty],
        "subject": subject, "annotations": {"text": text},
    });
    let referrer = store.put(OCI_MANIFEST, &manifest);
    let listed = Descriptor { artifact_type: Some(artifact_type.to_owned()), ..referrer.clone() };
    store.layout.attach(&listed, manifest.to_string().as_bytes(), &[]).unwrap();
    referrer
}

#[test]
fn platforms_that_a_layout_lacks_are_not_copied() {
    let store = Store::new();
    let amd = store.image("amd64");
    let gone = Descriptor::of(OCI_MANIFEST, b"not here");
    let root = index(&store, &[entry(&amd, on("amd64")), entry(&gone, on("arm64"))]);
    let (to, report, warnings) = copied(&store, &root, 100 << 20);
    assert_eq!(report.unwrap().digest, root.digest);
    assert!(to.layout.blob_exists(&amd.digest, None).unwrap());
    let warned = format!("{} is not copied, because it is not in the layout", gone.digest);
    assert_eq!(warnings, [warned]);
}

#[test]
fn an_index_of_layers_is_copied() {
    let store = Store::new();
    let (layer, cache) =
        (store.put(OCI_LAYER, &json!(1)), store.put("application/vnd.buildkit.cacheconfig.v0", &json!({})));
    let root = index(&store, &[entry(&layer, json!({})), entry(&cache, json!({}))]);
    let (to, report, warnings) = copied(&store, &root, 100 << 20);
    assert_eq!((report.unwrap().blobs.streamed, warnings.len()), (2, 0));
    assert!(to.layout.blob_exists(&layer.digest, Some(layer.size)).unwrap());
}

#[test]
fn referrers_of_strangers_do_not_take_the_image_s_memory() {
    let store = Store::new();
    let image = store.image("amd64");
    let ours = referrer(&store, &image, INDEX_V1, "ours");
    let sbom = referrer(&store, &image, "application/spdx+json", "small");
    let large: Vec<_> = (0..9)
        .map(|number| referrer(&store, &image, "application/x", &format!("{number}{}", "x".repeat(200 << 10))))
        .collect();
    let too_large = referrer(&store, &image, "application/x", &"y".repeat(1 << 20));
    let (to, report, warnings) = copied(&store, &image, 8 << 20);
    let report = report.unwrap();
    let is_there = |descriptor: &Descriptor| report.referrers.iter().any(|one| one.digest == descriptor.digest);
    assert!(is_there(&ours) && is_there(&sbom) && large.iter().all(is_there), "{warnings:?}");
    assert!(!is_there(&too_large));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("was not copied") && warnings[0].contains("bytes of memory"), "{warnings:?}");
    // The lists of layouts and fallback tags stay small.
    let listed = to.layout.referrers(&image.digest, None).unwrap().descriptors;
    assert_eq!(listed.len(), 11);
    // What must not be left out fails instead.
    let signature = "application/vnd.cncf.notary.signature";
    referrer(&store, &image, signature, &"z".repeat(1 << 20));
    let (_, report, _) = copied(&store, &image, 8 << 20);
    assert!(matches!(report, Err(CopyError::Read { .. })), "{report:?}");
}

#[test]
fn what_strangers_attach_does_not_keep_an_image_from_being_copied() {
    let store = Store::new();
    let image = store.image("amd64");
    let ours = referrer(&store, &image, INDEX_V1, "ours");
    let empty = store.put("application/vnd.oci.empty.v1+json", &json!({}));
    let gone = Descriptor::of("application/x", b"not here");
    let wrong_size = Descriptor { size: 7, ..empty.clone() };
    let attach = |artifact_type: &str, subject: &Descriptor, media_type: &str, fields: Value| {
        let mut manifest = json!({
            "schemaVersion": 2, "mediaType": media_type, "artifactType": artifact_type, "subject": subject,
        });
        manifest.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let referrer = store.put(media_type, &manifest);
        let listed = Descriptor { artifact_type: Some(artifact_type.to_owned()), ..referrer.clone() };
        store.layout.attach(&listed, manifest.to_string().as_bytes(), &[]).unwrap();
        referrer
    };
    let mut strange = Vec::new();
    for kind in [INDEX_V1, "application/x"] {
        for blobs in [
            json!({"config": empty, "layers": [gone]}),
            json!({"config": wrong_size, "layers": []}),
            json!({"config": empty, "layers": [{"mediaType": "x/y", "digest": "blake3:ab", "size": 1}]}),
            json!({"config": empty, "layers": [], "fsLayers": []}),
        ] {
            strange.push(attach(kind, &image, OCI_MANIFEST, blobs));
        }
        let child = Descriptor { media_type: OCI_MANIFEST.to_owned(), ..wrong_size.clone() };
        strange.push(attach(kind, &image, OCI_INDEX, json!({"manifests": [child]})));
    }
    // What refers to those goes with them.
    let of_strange = referrer(&store, &strange[0], "application/x", "of a stranger");
    let (to, report, warnings) = copied(&store, &image, 100 << 20);
    let copied: Vec<_> = report.unwrap().referrers.iter().map(|one| one.digest).collect();
    assert_eq!(copied, [ours.digest], "{warnings:#?}");
    assert!(to.layout.blob_exists(&image.digest, None).unwrap());
    assert!(!to.layout.blob_exists(&of_strange.digest, None).unwrap());
    for one in &strange {
        let told = warnings.iter().filter(|warning| warning.starts_with(&one.digest.to_string()));
        assert_eq!(told.count(), 1, "{one:?}: {warnings:#?}");
    }
}
