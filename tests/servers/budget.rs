//! Images that are designed to use up memory: each command fails with an error that names what is
//! too large, and stays below 512 MiB.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use ociseek_format::digest::Digest;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::offset::SpanSize;
use ociseek_testkit::blobs::SOCI;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::hostile::ztocs::{hand_written, indexed};
use ociseek_testkit::hostile::{Ended, MIB, PROMISED, descriptor, list, manifest, name, run};
use ociseek_testkit::image::image_index;
use ociseek_testkit::sandbox::{self, GZIP, OCI_INDEX, OCI_MANIFEST, PLAIN, Sandbox};
use ociseek_testkit::{layers, tarball};
use serde_json::{Value, json};

/// Checks that it failed because of the memory limit, and names `what`.
fn assert_over_budget(ended: &Ended, what: &str) {
    let Ended { code, text, peak } = ended;
    assert_eq!(*code, Some(1), "{text}");
    assert!(text.contains(what) && text.contains("allowed for the image"), "{text}");
    assert!(text.contains("--max-memory"), "{text}");
    assert!(*peak > 0 && *peak < PROMISED, "{} MiB", peak / MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifests_are_limited_together() {
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let layer = descriptor(GZIP, registry.add_blob("x"), 1);
    let platforms: Vec<Value> = (0..20)
        .map(|n| {
            let mut platform = manifest(&registry, n, &vec![layer.clone(); 4000]);
            platform["platform"] = json!({"os": "linux", "architecture": format!("a{n}")});
            platform
        })
        .collect();
    let index = image_index(&platforms);
    registry.add_manifest("many", OCI_INDEX, index.to_string());
    let image = format!("{}/a/b:many", registry.host());
    let sandbox = Sandbox::new();
    for command in [&["index"][..], &["verify"], &["doctor", "--all-platforms"]] {
        let args = [command, &["--max-memory=48MiB", &image]].concat();
        assert_over_budget(&run(&sandbox, &args), "manifest sha256:");
    }
    let more = run(&sandbox, &["index", "--quiet", &image]);
    assert_eq!(more.code, Some(0), "{}", more.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_referrers_is_limited() {
    // Each page has a referrer with an annotation of 3 MiB, and a link to another page.
    let filler = "x".repeat(3 << 20);
    let registry = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let (_, query) = seen.path.split_once("/referrers/")?;
        let page = query.rsplit_once("page=").map_or(0, |(_, page)| page.parse().unwrap());
        let mut referrer =
            descriptor(OCI_MANIFEST, Digest::sha256(format!("{page}").as_bytes()), 100);
        referrer["artifactType"] = SOCI.into();
        referrer["annotations"] = json!({"a": filler});
        let body = image_index(&[referrer]).to_string();
        let path = seen.path.split('?').next().unwrap();
        let answer = axum::http::Response::builder().header("content-type", OCI_INDEX);
        let answer = answer.header("link", format!("<{path}?page={}>; rel=\"next\"", page + 1));
        Some(answer.body(body.into()).unwrap())
    })
    .await;
    let layer = descriptor(GZIP, registry.add_blob("x"), 1);
    let image = manifest(&registry, 0, &[layer]);
    let image = name(&registry, &image);
    let sandbox = Sandbox::new();
    for command in ["index", "verify"] {
        let args = [command, "--max-memory=48MiB", &image];
        assert_over_budget(&run(&sandbox, &args), "the list of referrers of sha256:");
    }
}

/// Entries after the 32nd index are neither read nor replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_number_of_indexes_read_is_limited() {
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let layer = sandbox::gzip(&sandbox::tar(1, 1, 1000));
    let layer = descriptor(GZIP, registry.add_blob(layer.clone()), layer.len());
    let image = manifest(&registry, 0, &[layer]);
    let listed: Vec<Value> = (1..=40)
        .map(|n| {
            let mut other = manifest(&registry, n, &[]);
            other["artifactType"] = SOCI.into();
            other
        })
        .collect();
    list(&registry, &image, &listed);
    let image = name(&registry, &image);
    let sandbox = Sandbox::new();
    let run = sandbox.json(0, &sandbox::index(&["--format=json", "--existing=replace", &image]));
    let read = |n: usize| registry.saw("GET", listed[n]["digest"].as_str().unwrap()).len();
    assert_eq!((read(0), read(31), read(32), read(39)), (1, 1, 0, 0));
    assert_eq!(registry.saw("DELETE", "").len(), 0);
    let others = run["images"][0]["manifests"][0]["others"].as_array().unwrap();
    let unread = others
        .iter()
        .filter(|other| other["unusable"].as_str().unwrap().contains("was not read"))
        .count();
    assert_eq!((others.len(), unread), (40, 8));
}

/// An image with the same layer, a plain tar, `times` times, and an index with `ztoc` for it.
/// Returns its name.
fn with_ztoc(registry: &Faulty, layer: &[u8], times: usize, ztoc: &[u8]) -> String {
    let layer_descriptor = descriptor(PLAIN, registry.add_blob(layer.to_vec()), layer.len());
    let image = manifest(registry, 0, &vec![layer_descriptor; times]);
    let reference = ZtocRef {
        ztoc: registry.add_blob(ztoc.to_vec()),
        size: ztoc.len() as u64,
        layer: Digest::sha256(layer),
        layer_media_type: PLAIN.into(),
        span_size: SpanSize::new(512).unwrap(),
    };
    indexed(registry, &image, vec![vec![reference; times]]);
    name(registry, &image)
}

/// A ztoc can belong to any number of equal layers. It is fetched, decoded and kept once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layer_repeated_200_times_is_kept_once() {
    let layer = sandbox::tar(1, 1, 8 << 20);
    let ztoc = layers::built(&layer, 512, "test");
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let image = with_ztoc(&registry, &layer, 200, &ztoc.bytes);
    let sandbox = Sandbox::new();
    // A budget that it does not fit into even once.
    for command in ["ls", "verify"] {
        let ended = run(&sandbox, &[command, "--max-memory=1MiB", &image]);
        assert_over_budget(&ended, &ztoc.digest.to_string());
    }
    let before = registry.saw("GET", &ztoc.digest.to_string()).len();
    let ended = run(&sandbox, &["ls", &image]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(!ended.text.contains("without its ztoc"), "{}", ended.text);
    assert_eq!(registry.saw("GET", &ztoc.digest.to_string()).len(), before + 1);
    assert!(ended.peak < 96 * MIB, "{} MiB", ended.peak / MIB);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ztocs_that_share_their_span_digests_are_refused() {
    assert_eq!(
        ociseek_format::ztoc::decode(&hand_written(2, 0)).map(|ztoc| ztoc.span_digests.len()),
        Ok(2)
    );
    let ztoc = hand_written(2 << 20, 0);
    assert!(
        ociseek_format::ztoc::decode(&ztoc).unwrap_err().to_string().contains("reuses its parts")
    );
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let image = with_ztoc(&registry, &sandbox::tar(1, 1, 1000), 1, &ztoc);
    let ended = run(&Sandbox::new(), &["ls", &image]);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.text.contains("reuses its parts"), "{}", ended.text);
    assert!(ended.peak < 96 * MIB, "{} MiB", ended.peak / MIB);
}

/// A gzip layer with `entries` entries of 60,000 PAX records each: in memory some four times as
/// large as in the tar, and twenty times as large as the blob.
fn pax_layer(entries: usize, n: u8) -> Vec<u8> {
    let keys: Vec<String> = (0..60_000).map(|key| format!("{key:05}")).collect();
    let records: Vec<(&str, &[u8])> = keys.iter().map(|key| (key.as_str(), &b"v"[..])).collect();
    let entry = [tarball::pax(b'x', &records), tarball::file("a", &[n])].concat();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(&[entry.repeat(entries), tarball::end()].concat()).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_entries_of_a_layer_are_limited() {
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let image = |n: u8, layers: Vec<Vec<u8>>| {
        let layers: Vec<Value> = layers
            .into_iter()
            .map(|layer| descriptor(GZIP, registry.add_blob(layer.clone()), layer.len()))
            .collect();
        name(&registry, &manifest(&registry, n.into(), &layers))
    };
    let sandbox = Sandbox::new();
    let large = pax_layer(32, 0);
    let digest = Digest::sha256(&large).to_string();
    std::fs::write(sandbox.path("large"), &large).unwrap();
    let ended =
        run(&sandbox, &["ztoc", "create", "--max-memory=64MiB", "large", "--output", "ztoc"]);
    assert_over_budget(&ended, "large: the layer does not fit into memory");
    let large = image(0, vec![large]);
    for args in [&["index", "--min-layer-size=0"][..], &["ls"]] {
        let ended = run(&sandbox, &[args, &["--no-cache", "--max-memory=64MiB", &large]].concat());
        assert_over_budget(&ended, &format!("layer {digest} does not fit into memory"));
        assert!(ended.peak < 160 * MIB, "{} MiB", ended.peak / MIB);
    }
    // Two layers that fit one after the other, but not together.
    let two = image(1, vec![pax_layer(10, 1), pax_layer(10, 2)]);
    let args =
        ["index", "--min-layer-size=0", "--no-cache", "--jobs=2", "--max-memory=80MiB", &two];
    let ended = run(&sandbox, &args);
    assert_eq!(ended.code, Some(0), "{}", ended.text);
    assert!(ended.peak < 160 * MIB, "{} MiB", ended.peak / MIB);
}
