//! Fine indexes in a registry that counts requests: each layer is read once, and only if it must be.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use ociseek::digest::Digest;
use ociseek::image::fine::{FINE_INDEX, FineIndex, parse};
use ociseek::ops::index::{IndexOptions, Kinds};
use ociseek::ops::verify::{Problem, Verified, VerifyOptions, verify};
use ociseek::progress::{Progress, Recorder};
use ociseek::store::Source;
use ociseek::store::blob::Target;
use serde_json::Value;

use crate::reuse::{Setting, layer, options, requests};

/// The manifests with this text, without duplicates.
fn manifests(setting: &Setting, text: &str) -> Vec<Bytes> {
    let all = setting.registry.manifests();
    let found = all
        .iter()
        .filter(|(reference, bytes)| reference.starts_with("sha256:") && String::from_utf8_lossy(bytes).contains(text));
    found.map(|(_, bytes)| bytes.clone()).collect()
}

/// The only fine index.
fn fine_index(setting: &Setting) -> FineIndex {
    let found = manifests(setting, FINE_INDEX);
    assert_eq!(found.len(), 1);
    parse(&found[0]).unwrap()
}

async fn verified(setting: &Setting, options: &VerifyOptions) -> Verified {
    let progress: Arc<dyn Progress> = Arc::new(Recorder::default());
    verify(&Source::Registry(setting.repository()), &Target::Tag("v1".into()), options, &progress).await.unwrap()
}

/// What is found of the layers by their ztocs, and by their fine documents.
fn found(verified: &Verified) -> [Vec<Problem>; 2] {
    let manifest = &verified.manifests[0];
    let ztocs = manifest.indexes.iter().flat_map(|index| &index.layers).flat_map(|layer| &layer.differences);
    let documents = manifest.fine.iter().flat_map(|index| &index.layers).flat_map(|layer| &layer.differences);
    [ztocs.cloned().collect(), documents.cloned().collect()]
}

/// A registry that flips a bit of the layer `damaged` once the flag is set.
async fn damaging(damaged: Digest) -> (Setting, Arc<AtomicBool>) {
    let flag = Arc::new(AtomicBool::new(false));
    let is_on = Arc::clone(&flag);
    let setting = Setting::lying(move |seen, truth| {
        let is_it = is_on.load(Ordering::Relaxed) && seen.is("GET", &format!("blobs/{damaged}"));
        is_it.then(|| {
            let mut bytes = truth.blob(&damaged).unwrap().to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            Response::new(Body::from(bytes))
        })
    });
    (setting.await, flag)
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_reads_a_layer_once_for_both_kinds() {
    let (one, two) = (layer(1, 1_500_000), layer(2, 700_000));
    let (setting, is_damaged) = damaging(Digest::sha256(&two)).await;
    setting.push("v1", &[&one, &two]);
    setting.index("v1", &IndexOptions { kinds: Kinds::Both, ..options() }).await;
    assert_eq!((requests(&setting, &one), requests(&setting, &two)), ((1, 0), (1, 0)));

    let all = VerifyOptions::default();
    let verified_all = verified(&setting, &all).await;
    assert_eq!((requests(&setting, &one), requests(&setting, &two)), ((2, 0), (2, 0)));
    assert_eq!(found(&verified_all), [Vec::new(), Vec::new()]);
    let soci: Value = serde_json::from_slice(&manifests(&setting, "soci.index.v1+json")[0]).unwrap();
    let ztocs: u64 = soci["layers"].as_array().unwrap().iter().map(|ztoc| ztoc["size"].as_u64().unwrap()).sum();
    let documents: u64 = fine_index(&setting).layers.iter().map(|document| document.size).sum();
    assert_eq!(verified_all.bytes_read, (one.len() + two.len()) as u64 + ztocs + documents);
    let manifest = &verified_all.manifests[0];
    for (ztoc, document) in manifest.indexes[0].layers.iter().zip(&manifest.fine[0].layers) {
        assert_eq!((ztoc.proven.spans, document.proven.spans), (ztoc.proven.of_spans, document.proven.of_spans));
        assert_eq!((ztoc.proven.bytes, ztoc.proven.entries), (document.proven.bytes, document.proven.entries));
    }

    // Each kind has the same findings together as alone.
    is_damaged.store(true, Ordering::Relaxed);
    let [by_ztocs, by_documents] = found(&verified(&setting, &all).await);
    let one_index = async |digest: Digest| {
        found(&verified(&setting, &VerifyOptions { index: Some(digest), ..VerifyOptions::default() }).await)
    };
    assert_eq!(one_index(manifest.indexes[0].digest).await, [by_ztocs.clone(), Vec::new()]);
    assert_eq!(one_index(manifest.fine[0].digest).await, [Vec::new(), by_documents.clone()]);
    assert!(!by_ztocs.is_empty() && !by_documents.is_empty());
}
