//! Fine indexes in a registry that counts requests: each layer is read once, and only if it must
//! be.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use futures_util::FutureExt;
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::fine;
use ociseek_format::image::fine::{FINE_INDEX, FineIndex, FineRef, parse};
use ociseek_format::image::soci;
use ociseek_format::offset::Uncompressed;
use ociseek_format::progress::{Progress, Recorder};
use ociseek_ops::TOOL_IDENTIFIER;
use ociseek_ops::index::{Existing, IndexOptions, Kinds, ManifestResult, Work, index};
use ociseek_ops::prefetch::PrefetchList;
use ociseek_ops::verify::{Depth, Problem, VerifiedImage, VerifyOptions, verify};
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_store::{Destination, Source};
use serde_json::Value;

use crate::reuse::{Setting, layer, options, requests};
use ociseek_testkit::faulty::{body_of, damaged, problem};
use ociseek_testkit::fine::{DocumentParts, with_wrong_byte};
use ociseek_testkit::sandbox::{OCI_MANIFEST, Sandbox, tar};

/// The manifests with this text, without duplicates.
fn manifests(setting: &Setting, text: &str) -> Vec<Bytes> {
    let all = setting.registry.manifests();
    let found = all.iter().filter(|(reference, bytes)| {
        reference.starts_with("sha256:") && String::from_utf8_lossy(bytes).contains(text)
    });
    found.map(|(_, bytes)| bytes.clone()).collect()
}

/// The only fine index.
fn fine_index(setting: &Setting) -> FineIndex {
    let found = manifests(setting, FINE_INDEX);
    assert_eq!(found.len(), 1);
    parse(&found[0]).unwrap()
}

async fn verified(setting: &Setting, options: &VerifyOptions) -> VerifiedImage {
    let progress: Arc<dyn Progress> = Arc::new(Recorder::default());
    verify(&Source::Registry(setting.repository()), &Target::Tag("v1".into()), options, &progress)
        .await
        .unwrap()
}

/// What is found of the layers by their ztocs, and by their fine documents.
fn found(verified: &VerifiedImage) -> [Vec<Problem>; 2] {
    let manifest = &verified.manifests[0];
    let ztocs = manifest
        .indexes
        .iter()
        .flat_map(|index| &index.layers)
        .flat_map(|layer| &layer.differences);
    let documents =
        manifest.fine.iter().flat_map(|index| &index.layers).flat_map(|layer| &layer.differences);
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
async fn verify_reads_each_layer_once_for_both_kinds() {
    let one = layer(1, 1_500_000);
    let two = layer(2, 700_000);
    let (setting, is_damaged) = damaging(Digest::sha256(&two)).await;
    setting.push("v1", &[&one, &two]);
    setting.index("v1", &IndexOptions { kinds: Kinds::Both, ..options() }).await;
    assert_eq!((requests(&setting, &one), requests(&setting, &two)), ((1, 0), (1, 0)));

    let all = VerifyOptions::default();
    let verified_all = verified(&setting, &all).await;
    assert_eq!((requests(&setting, &one), requests(&setting, &two)), ((2, 0), (2, 0)));
    assert_eq!(found(&verified_all), [Vec::new(), Vec::new()]);
    let soci: Value =
        serde_json::from_slice(&manifests(&setting, "soci.index.v1+json")[0]).unwrap();
    let ztocs: u64 =
        soci["layers"].as_array().unwrap().iter().map(|ztoc| ztoc["size"].as_u64().unwrap()).sum();
    let documents: u64 = fine_index(&setting).layers.iter().map(|document| document.size).sum();
    assert_eq!(verified_all.bytes_read, (one.len() + two.len()) as u64 + ztocs + documents);
    let manifest = &verified_all.manifests[0];
    for (ztoc, document) in manifest.indexes[0].layers.iter().zip(&manifest.fine[0].layers) {
        assert_eq!(
            (ztoc.compared.spans, document.compared.spans),
            (ztoc.compared.of_spans, document.compared.of_spans)
        );
        assert_eq!(
            (ztoc.compared.bytes, ztoc.compared.entries),
            (document.compared.bytes, document.compared.entries)
        );
    }

    // Each kind has the same findings together as alone.
    is_damaged.store(true, Ordering::Relaxed);
    let [by_ztocs, by_documents] = found(&verified(&setting, &all).await);
    let one_index = async |digest: Digest| {
        found(
            &verified(&setting, &VerifyOptions { index: Some(digest), ..VerifyOptions::default() })
                .await,
        )
    };
    assert_eq!(one_index(manifest.indexes[0].digest).await, [by_ztocs.clone(), Vec::new()]);
    assert_eq!(one_index(manifest.fine[0].digest).await, [Vec::new(), by_documents.clone()]);
    assert!(!by_ztocs.is_empty() && !by_documents.is_empty());
}

fn both() -> IndexOptions {
    IndexOptions { kinds: Kinds::Both, ..options() }
}

/// Options with a start that reads these files.
fn starting(paths: &[&str]) -> IndexOptions {
    let mut list = PrefetchList::default();
    paths.iter().for_each(|path| list.add_path(path));
    IndexOptions { prefetch: Some(Arc::new(list)), ..both() }
}

/// An image in a registry of its own, with a fine index of these documents.
async fn with_documents(layers: &[&Bytes], documents: Vec<FineRef>, blobs: &Setting) -> Setting {
    let setting = Setting::new().await;
    let subject = Some(setting.push("v1", layers));
    for bytes in documents.iter().filter_map(|document| blobs.registry.blob(&document.document)) {
        setting.registry.add_blob(bytes);
    }
    setting.registry.add_blob(&b"{}"[..]);
    let build_tool = Some(TOOL_IDENTIFIER.to_owned());
    let index = FineIndex { layers: documents, subject, build_tool, profile: None };
    setting.registry.add_manifest("fine", OCI_MANIFEST, index.encode().bytes);
    setting
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_a_recorded_start_stay_divided() {
    let layer = layer(1, 3_000_000);
    let setting = Setting::new().await;
    setting.push("v1", &[&layer]);
    let spans = |setting: &Setting| {
        let bytes = setting.registry.blob(&fine_index(setting).layers[0].document).unwrap();
        fine::decode(&bytes, &mut Budget::new(u64::MAX).open()).unwrap().spans().count()
    };
    setting.index("v1", &both()).await;
    let whole = spans(&setting);
    setting.index("v1", &starting(&["/dir1/file0", "/dir1/file5"])).await;
    assert!(spans(&setting) > whole + 1, "{} and {whole} spans", spans(&setting));
    // Without a list, the old start is carried over.
    let before = fine_index(&setting).layers;
    setting.index("v1", &IndexOptions { existing: Existing::Replace, ..both() }).await;
    assert_eq!(fine_index(&setting).layers, before);
    assert_eq!(setting.warnings(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_range_requests_spans_of_a_recorded_start_stay_whole() {
    let layer = layer(1, 3_000_000);
    let whole = layer.clone();
    let setting = Setting::lying(move |seen, registry| {
        let digest = Digest::sha256(&whole);
        let is_layer =
            seen.is("GET", &format!("/blobs/{digest}")) && registry.blob(&digest).is_some();
        is_layer.then(|| Response::new(Body::from(whole.clone())))
    })
    .await;
    setting.push("v1", &[&layer]);
    setting.index("v1", &starting(&["/dir1/file0", "/dir1/file5", "/dir1/file9"])).await;
    let warnings = setting.warnings();
    assert!(
        warnings
            .iter()
            .any(|warning| warning.contains("not divided: the registry does not send parts")),
        "{warnings:?}"
    );
    // The index is as useful as one of an undivided layer.
    let index = fine_index(&setting);
    assert!(index.layers[0].start_size > index.layers[0].head_size);
    assert_eq!(
        found(&verified(&setting, &VerifyOptions::default()).await),
        [Vec::new(), Vec::new()]
    );
    assert!(setting.registry.saw("GET", &format!("/blobs/{}", Digest::sha256(&layer))).len() <= 4);
}

/// A document with changed parts, and what the index says of it.
fn changed(
    setting: &Setting,
    document: &FineRef,
    change: impl FnOnce(&mut DocumentParts),
) -> FineRef {
    let bytes = setting.registry.blob(&document.document).unwrap();
    let mut parts = DocumentParts::of(&bytes);
    change(&mut parts);
    let encoded = parts.encoded();
    setting.registry.add_blob(encoded.bytes.clone());
    FineRef {
        document: encoded.digest,
        size: encoded.bytes.len() as u64,
        layer: document.layer,
        head_size: encoded.head_size,
        head_digest: encoded.head_digest,
        start_size: encoded.start_size,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_window_after_a_right_span_is_found() {
    // The headers of the two entries are in different spans.
    let layer = Bytes::from(deflated(&tar(1, 2, 900_000)));
    let whole = Setting::new().await;
    whole.push("v1", &[&layer]);
    whole.index("v1", &both()).await;
    let all = fine_index(&whole).layers;
    let document = fine::decode(
        &whole.registry.blob(&all[0].document).unwrap(),
        &mut Budget::new(1 << 30).open(),
    );
    let document = document.unwrap();
    let headers = |entry: u64| Uncompressed(900_608 * entry);
    for entry in 0..2 {
        // A window is that of the span after its position.
        let sampled = document.spans_of(headers(entry)..Uncompressed(headers(entry).0 + 1)).start;
        let wrong = changed(&whole, &all[0], |parts| {
            let window = &mut parts.windows[sampled.0 as usize];
            *window = with_wrong_byte(window);
        });
        let setting = with_documents(&[&layer], vec![wrong], &whole).await;
        let sampled_all = Depth::Quick { spans: 100, seed: 1 };
        let options = VerifyOptions { depth: sampled_all, ..VerifyOptions::default() };
        let [_, differences] = found(&verified(&setting, &options).await);
        let expected = format!(
            "the window of span {} is not what the span before it decodes to",
            sampled.0 + 1
        );
        assert!(
            matches!(&differences[..], [one] if one.text.contains(&expected)),
            "{entry}: {differences:?}"
        );
    }
}

/// A layer whose windows matter.
fn compressed(seed: u64) -> Vec<u8> {
    deflated(&tar(seed, 8, 200_000))
}

fn deflated(tar: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(tar).unwrap();
    encoder.finish().unwrap()
}

/// What a registry answers for a blob or manifest.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Damage {
    Missing,
    Cut,
    Flipped,
}

/// A registry that damages what has this digest, as long as it was not written again.
async fn damaging_later() -> (Setting, Arc<Mutex<Option<(Digest, Damage)>>>) {
    let what: Arc<Mutex<Option<(Digest, Damage)>>> = Arc::default();
    let told = Arc::clone(&what);
    let setting = Setting::lying(move |seen, truth| {
        let (digest, damage) = (*told.lock().unwrap())?;
        if !seen.path.contains(&digest.hex())
            || (seen.method == "HEAD" && damage != Damage::Missing)
        {
            return None;
        }
        if seen.method == "PUT" {
            *told.lock().unwrap() = None;
            return None;
        }
        let (mut head, body) = truth.truth_now(seen).into_parts();
        let mut bytes = axum::body::to_bytes(body, usize::MAX).now_or_never()?.ok()?.to_vec();
        match damage {
            Damage::Missing => return Some(problem(404, "NOT_FOUND", "gone")),
            Damage::Cut => bytes.truncate(bytes.len() / 2),
            Damage::Flipped => *bytes.last_mut()? ^= 1,
        }
        head.headers.remove("content-length");
        head.headers.remove("docker-content-digest");
        Some(Response::from_parts(head, Body::from(bytes)))
    });
    (setting.await, what)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fine_index_damaged_by_the_registry_is_replaced() {
    let one = Bytes::from(compressed(1));
    let two = Bytes::from(compressed(2));
    for damage in [Damage::Missing, Damage::Cut, Damage::Flipped] {
        for of_manifest in [true, false] {
            let (setting, what) = damaging_later().await;
            setting.push("v1", &[&one, &two]);
            let fine = IndexOptions { kinds: Kinds::Fine, ..options() };
            setting.index("v1", &fine).await;
            let index = fine_index(&setting);
            let digest = if of_manifest {
                index.encode().descriptor.digest
            } else {
                index.layers[0].document
            };
            *what.lock().unwrap() = Some((digest, damage));
            let about = format!("{damage:?}, manifest: {of_manifest}");

            let code = match (of_manifest, damage) {
                (true, Damage::Missing) => "index-missing",
                (true, _) => "index-damaged",
                (false, Damage::Missing) => "document-missing",
                (false, _) => "document-damaged",
            };
            let sandbox = Sandbox::new();
            let name = format!("{}/a/b:v1", setting.registry.host());
            let text = sandbox.run(&["verify", &name]);
            assert!(text.contains(code) && text.contains(&digest.to_string()), "{about}: {text}");
            assert!(text.contains("--- status 3 ---"), "{about}: {text}");

            let done = setting.index("v1", &fine).await;
            if damage != Damage::Missing && !of_manifest {
                // It has its size, and nobody asks for its content, unless the index is to be
                // replaced.
                let there = done.manifests[0].fine.as_ref().unwrap();
                assert!(
                    matches!(there.result, ManifestResult::AlreadyThere { .. }),
                    "{about}: {:?}",
                    there.result
                );
                setting
                    .index("v1", &IndexOptions { existing: Existing::Replace, ..fine.clone() })
                    .await;
            }
            assert_eq!(
                found(&verified(&setting, &VerifyOptions::default()).await)[1],
                [],
                "{about}"
            );
            assert!(
                setting.registry.saw("PUT", &digest.hex()).len() > 1,
                "{about}: it was written again"
            );
        }
    }
}

/// How a registry answers a request for the content of a blob.
#[derive(Clone, Copy, PartialEq)]
enum Answer {
    Denied,
    DamagedOnce,
}

/// What a start reads is recorded once, and an index that replaces another one has it from there.
#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_start_that_cannot_be_read_now_is_not_lost() {
    let answer: Arc<Mutex<Option<(Digest, Answer)>>> = Arc::default();
    let told = Arc::clone(&answer);
    let setting = Setting::lying(move |seen, truth| {
        let mut told = told.lock().unwrap();
        let (_, answer) = told.filter(|(digest, _)| seen.is("GET", &format!("blobs/{digest}")))?;
        if answer == Answer::Denied {
            return Some(problem(403, "DENIED", "not now"));
        }
        *told = None;
        let (truth, bytes) = body_of(truth.truth_now(seen));
        Some(damaged(truth, &bytes))
    })
    .await;
    setting.push("v1", &[&compressed(1).into()]);
    setting.index("v1", &starting(&["/dir1/file0"])).await;
    let document = fine_index(&setting).layers[0].document;
    let soci =
        || serde_json::from_slice::<Value>(&manifests(&setting, "soci.index.v1+json")[0]).unwrap();
    let list: Digest = soci()["layers"][1]["digest"].as_str().unwrap().parse().unwrap();
    let sandbox = Sandbox::new();
    let name = format!("{}/a/b:v1", setting.registry.host());
    let again = async |kind: &str, tool: &str| {
        let tool = format!("--build-tool-identifier={tool}");
        let args =
            ["index", kind, "--existing=replace", "--min-layer-size=0", "--no-cache", &tool, &name];
        tokio::task::block_in_place(|| sandbox.run(&args))
    };

    let before = setting.registry.manifests();
    for (blob, kind, what) in [
        (list, "--kind=v1,fine", format!("prefetch list {list}")),
        (document, "--kind=fine", format!("fine document {document}")),
    ] {
        *answer.lock().unwrap() = Some((blob, Answer::Denied));
        let said = again(kind, "another").await;
        assert!(
            said.contains(&format!("cannot read {what}")) && said.ends_with("--- status 1 ---"),
            "{said}"
        );
        assert_eq!(setting.registry.manifests(), before, "{what}");
    }
    *answer.lock().unwrap() = Some((document, Answer::DamagedOnce));
    let said = again("--kind=v1,fine", "another").await;
    assert!(said.ends_with("--- status 0 ---") && answer.lock().unwrap().is_none(), "{said}");
    assert!(fine_index(&setting).layers[0].start_size > fine_index(&setting).layers[0].head_size);
    assert_eq!(soci()["layers"].as_array().unwrap().len(), 2, "ztoc and list: {said}");
    // A list and a document that are lost do not keep an index from being replaced.
    let list: Digest = soci()["layers"][1]["digest"].as_str().unwrap().parse().unwrap();
    [list, fine_index(&setting).layers[0].document]
        .iter()
        .for_each(|blob| setting.registry.remove_blob(blob));
    let said = again("--kind=v1,fine", "a third").await;
    assert_eq!(said.matches(" is not carried over: ").count(), 2, "{said}");
    assert!(said.ends_with("--- status 0 ---"), "{said}");
    assert_eq!(fine_index(&setting).profile, None);
}

/// The ztocs and the heads of fine documents in the registry, each with its layer.
fn documents(setting: &Setting) -> Vec<(Digest, Digest)> {
    let ztocs = manifests(setting, "soci.index.v1+json")
        .into_iter()
        .flat_map(|index| soci::parse(&index).unwrap().ztocs);
    let fine = fine_index(setting).layers;
    let heads = fine.iter().map(|document| (document.layer, document.head_digest));
    ztocs.map(|ztoc| (ztoc.layer, ztoc.ztoc)).chain(heads).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_this_machine_made_or_verified_is_proven() {
    let one = layer(1, 1_500_000);
    let two = layer(2, 700_000);
    let dir = tempfile::tempdir().unwrap();
    let cache =
        |name: &str| ZtocCache::open(Some(&dir.path().join(name)), Arc::new(Recorder::default()));
    let is_proven = |cache: &ZtocCache, documents: &[(Digest, Digest)]| -> Vec<bool> {
        documents.iter().map(|(layer, document)| cache.is_proven(layer, document)).collect()
    };
    for options in [both(), starting(&["file1"])] {
        let (setting, is_damaged) = damaging(Digest::sha256(&two)).await;
        setting.push("v1", &[&one, &two]);
        let source = Source::Registry(setting.repository());
        let there = Destination::Registry(setting.repository());
        let maker = cache("maker");
        let progress = Arc::new(Recorder::default()) as Arc<dyn Progress>;
        let tag = Target::Tag("v1".into());
        let work = Work { cache: Some(&maker), options: &options, progress: &progress };
        index(&source, &tag, Some(&there), work).await.unwrap();
        let documents = documents(&setting);
        assert_eq!(is_proven(&maker, &documents), [true; 4]);

        let quick = Depth::Quick { spans: 2, seed: 1 };
        let reader = cache("reader");
        let sampler = cache("sampler");
        verified(
            &setting,
            &VerifyOptions {
                cache: Some(sampler.clone()),
                depth: quick,
                ..VerifyOptions::default()
            },
        )
        .await;
        assert_eq!(is_proven(&sampler, &documents), [false; 4]);
        is_damaged.store(true, Ordering::Relaxed);
        let check = VerifyOptions { cache: Some(reader.clone()), ..VerifyOptions::default() };
        verified(&setting, &check).await;
        let of_two = |(layer, _): &(Digest, Digest)| *layer == Digest::sha256(&two);
        let of_one: Vec<bool> = documents.iter().map(|document| !of_two(document)).collect();
        assert_eq!(is_proven(&reader, &documents), of_one);
        is_damaged.store(false, Ordering::Relaxed);
        verified(&setting, &check).await;
        assert_eq!(is_proven(&reader, &documents), [true; 4]);
        std::fs::remove_dir_all(dir.path().join("reader")).unwrap();
    }
}
