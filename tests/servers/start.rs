//! The requests up to the first byte of an image: how many there are, and which of them are
//! parallel.

use std::collections::BTreeSet;
use std::process::Output;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use ociseek_format::digest::Digest;
use ociseek_format::image::enabled::INDEX_DIGEST;
use ociseek_format::progress::SilentProgress;
use ociseek_store::cache::ZtocCache;
use ociseek_testkit::faulty::{Faulty, ReceivedRequest, RegistrySettings, no_response, status};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, Sandbox, gzip, tar};
use serde_json::{Value, json};

const FILE: &str = "dir1/file3";

/// The purpose of a request, by its path.
fn kind(seen: &ReceivedRequest, config: &Digest) -> &'static str {
    let path = &seen.path;
    match () {
        () if path.contains("/referrers/") => "referrers",
        () if path.contains("/manifests/sha256-") => "tag",
        () if path.contains("/manifests/") => "manifest",
        () if path.contains(&config.to_string()) => "config",
        () if path.contains("/blobs/") => "blob",
        () => "other",
    }
}

/// Adds an image with one layer to the registry, and returns the digest of its config.
fn push(registry: &Faulty) -> Digest {
    push_annotated(registry, &json!({}))
}

fn push_annotated(registry: &Faulty, annotations: &Value) -> Digest {
    let tar = tar(1, 20, 10_000);
    let layers = [(GZIP, gzip(&tar))];
    let image = Image::new(&config(&[tar]), layers).annotated(annotations);
    image.add_to(registry, "v1");
    Digest::sha256(&image.config)
}

/// Runs the program with a registry.
async fn ended(sandbox: &Arc<Sandbox>, args: &[&str]) -> Output {
    let sandbox = Arc::clone(sandbox);
    let args = args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
    let ended = tokio::task::spawn_blocking(move || {
        sandbox.command(&args.iter().map(String::as_str).collect::<Vec<_>>()).output().unwrap()
    });
    ended.await.unwrap()
}

/// Runs the program with a registry. It must succeed.
async fn run(sandbox: &Arc<Sandbox>, args: &[&str]) -> Vec<u8> {
    let output = ended(sandbox, args).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_document_is_requested_once() {
    for referrers in [false, true] {
        let registry = Faulty::honest(RegistrySettings {
            referrers,
            bearer: Some(None),
            ..RegistrySettings::default()
        })
        .await;
        let config = push(&registry);
        let sandbox = Arc::new(Sandbox::new());
        let image = format!("{}/a/b:v1", registry.host());
        run(&sandbox, &["index", "--quiet", "--min-layer-size=0", &image]).await;
        let before = registry.requests().len();
        let cat = run(&sandbox, &["cat", "--cache-dir=cache", &image, FILE]).await;
        assert_eq!(cat.len(), 10_000);
        let mut asked: Vec<&str> = registry.requests()[before..]
            .iter()
            .filter(|seen| seen.path != "/v2/")
            .map(|seen| kind(seen, &config))
            .collect();
        asked.sort_unstable();
        // Manifests: the image's, again with a token, and the index's. Blobs: the ztoc and the
        // span.
        let expected = [
            "blob",
            "blob",
            "config",
            "manifest",
            "manifest",
            "manifest",
            "other",
            "referrers",
            "tag",
        ];
        assert_eq!(asked, expected, "referrers API: {referrers}");
    }
}

/// What the program asks a registry for to print the file, by purpose.
async fn asked(
    registry: &Faulty,
    sandbox: &Arc<Sandbox>,
    image: &str,
    config: &Digest,
) -> Vec<&'static str> {
    let before = registry.requests().len();
    let cat = run(sandbox, &["cat", "--cache-dir=cache", image, FILE]).await;
    assert_eq!(cat.len(), 10_000);
    let seen = registry.requests();
    let mut asked: Vec<&str> = seen[before..].iter().map(|seen| kind(seen, config)).collect();
    asked.sort_unstable();
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn opening_again_requests_only_the_image_and_its_referrers() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let config = push(&registry);
    let sandbox = Arc::new(Sandbox::new());
    let tagged = format!("{}/a/b:v1", registry.host());
    run(
        &sandbox,
        &["index", "--quiet", "--no-cache", "--min-layer-size=0", "--kind=v1,fine", &tagged],
    )
    .await;
    let first = asked(&registry, &sandbox, &tagged, &config).await;
    // Manifests: the image's and those of both indexes. Blobs: the head and the span.
    assert_eq!(
        first,
        ["blob", "blob", "config", "manifest", "manifest", "manifest", "referrers", "tag"]
    );
    // The fallback tag is requested beside the referrers. With everything else in the cache, the
    // program may end before that request is sent.
    let besides_tag = |mut asked: Vec<&'static str>| {
        asked.pop_if(|kind| *kind == "tag");
        asked
    };
    let again = ["manifest", "referrers"];
    assert_eq!(besides_tag(asked(&registry, &sandbox, &tagged, &config).await), again);
    let manifest = Digest::sha256(&registry.manifest("v1").unwrap());
    let by_digest = format!("{}/a/b@{manifest}", registry.host());
    assert_eq!(besides_tag(asked(&registry, &sandbox, &by_digest, &config).await), again);

    // What has another digest is not used.
    let cache = ZtocCache::open(Some(&sandbox.path("cache")), Arc::new(SilentProgress));
    let documents: BTreeSet<Digest> =
        registry.manifests().values().map(|bytes| Digest::sha256(bytes)).collect();
    for digest in documents.iter().chain([&config]) {
        cache.put_document(digest, OCI_MANIFEST, b"{}");
    }
    let expected = ["config", "manifest", "manifest", "manifest", "referrers", "tag"];
    assert_eq!(asked(&registry, &sandbox, &tagged, &config).await, expected);
    assert_eq!(
        besides_tag(asked(&registry, &sandbox, &tagged, &config).await),
        again,
        "it was replaced"
    );

    // The cache does not make up for a repository that does not have the image.
    let elsewhere = Faulty::honest(RegistrySettings::default()).await;
    let missing = format!("{}/a/b@{manifest}", elsewhere.host());
    let output = ended(&sandbox, &["cat", "--cache-dir=cache", &missing, FILE]).await;
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The kinds of the requests that have arrived.
#[derive(Default)]
struct Arrived {
    kinds: Mutex<BTreeSet<&'static str>>,
    more: Condvar,
}

impl Arrived {
    fn add(&self, kind: &'static str) {
        self.kinds.lock().unwrap().insert(kind);
        self.more.notify_all();
    }

    /// Whether all of these arrive.
    fn arrive(&self, awaited: &[&str]) -> bool {
        let is_missing = |kinds: &mut BTreeSet<_>| !awaited.iter().all(|kind| kinds.contains(kind));
        let kinds = self.kinds.lock().unwrap();
        let wait =
            || self.more.wait_timeout_while(kinds, Duration::from_secs(20), is_missing).unwrap().1;
        !tokio::task::block_in_place(wait).timed_out()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn config_referrers_fallback_tag_and_named_index_are_requested_concurrently() {
    const ALL: [&str; 4] = ["config", "index", "referrers", "tag"];
    let config = Arc::new(Mutex::new(None));
    let known = Arc::clone(&config);
    let arrived = Arrived::default();
    // Each of them is answered after all have arrived.
    let registry = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let kind = match kind(seen, &(*known.lock().unwrap())?) {
            "manifest" if seen.path.contains("/manifests/sha256:") => "index",
            kind if ALL.contains(&kind) => kind,
            _ => return None,
        };
        arrived.add(kind);
        (!arrived.arrive(&ALL)).then(|| status(400))
    })
    .await;
    let digest = push_annotated(&registry, &json!({INDEX_DIGEST: Digest::sha256(b"the index")}));
    *config.lock().unwrap() = Some(digest);
    let image = format!("{}/a/b:v1", registry.host());
    let cat = run(&Arc::new(Sandbox::new()), &["cat", "--cache-dir=cache", &image, FILE]).await;
    assert_eq!(cat.len(), 10_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn documents_and_ztocs_are_requested_before_the_config_arrives() {
    for kind_of_index in ["--kind=fine", "--existing=skip"] {
        let config = Arc::new(Mutex::new(None));
        let known = Arc::clone(&config);
        let arrived = Arrived::default();
        let registry = Faulty::start(RegistrySettings::default(), move |seen, _| {
            let kind = kind(seen, &(*known.lock().unwrap())?);
            arrived.add(kind);
            // The first blob is the document or the ztoc.
            (kind == "config" && !arrived.arrive(&["blob"])).then(|| status(400))
        })
        .await;
        let digest = push(&registry);
        let image = format!("{}/a/b:v1", registry.host());
        let sandbox = Arc::new(Sandbox::new());
        run(
            &sandbox,
            &["index", "--quiet", "--no-cache", "--min-layer-size=0", kind_of_index, &image],
        )
        .await;
        *config.lock().unwrap() = Some(digest);
        let before = registry.requests().len();
        let cat = run(&sandbox, &["cat", "--cache-dir=cache", &image, FILE]).await;
        assert_eq!(cat.len(), 10_000);
        let mut asked: Vec<&str> =
            registry.requests()[before..].iter().map(|seen| kind(seen, &digest)).collect();
        asked.sort_unstable();
        let expected = ["blob", "blob", "config", "manifest", "manifest", "referrers", "tag"];
        assert_eq!(asked, expected, "{kind_of_index}: none is asked for twice");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn an_error_of_the_config_cancels_other_requests() {
    let config = Arc::new(Mutex::new(None));
    let known = Arc::clone(&config);
    let arrived = Arrived::default();
    // The document never comes. If it were awaited, it would be requested again after a while.
    let registry = Faulty::start(RegistrySettings::default(), move |seen, _| {
        let kind = kind(seen, &(*known.lock().unwrap())?);
        arrived.add(kind);
        match kind {
            "blob" => Some(no_response()),
            "config" => Some(status(if arrived.arrive(&["blob"]) { 404 } else { 400 })),
            _ => None,
        }
    })
    .await;
    let digest = push(&registry);
    let image = format!("{}/a/b:v1", registry.host());
    let sandbox = Arc::new(Sandbox::new());
    run(&sandbox, &["index", "--quiet", "--no-cache", "--min-layer-size=0", "--kind=fine", &image])
        .await;
    *config.lock().unwrap() = Some(digest);
    let before = registry.requests().len();
    let output = ended(&sandbox, &["cat", "--cache-dir=cache", &image, FILE]).await;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && text.contains(&format!("cannot read the config {digest}")),
        "{text}"
    );
    assert!(text.contains("404"), "{text}");
    let blobs =
        registry.requests()[before..].iter().filter(|seen| kind(seen, &digest) == "blob").count();
    assert_eq!(blobs, 1, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn the_same_one_of_two_errors_is_always_reported() {
    let index = Digest::sha256(b"the index");
    let mut reports = BTreeSet::new();
    for (first, second) in [("config", "index"), ("index", "config")] {
        let config = Arc::new(Mutex::new(None));
        let known = Arc::clone(&config);
        let arrived = Arrived::default();
        let registry = Faulty::start(RegistrySettings::default(), move |seen, _| {
            let kind = match kind(seen, &(*known.lock().unwrap())?) {
                "manifest" if seen.path.contains("/manifests/sha256:") => "index",
                kind => kind,
            };
            let is_last = kind == second && arrived.arrive(&[first]);
            arrived.add(kind);
            (is_last || kind == first).then(|| status(404))
        })
        .await;
        let digest = push(&registry);
        *config.lock().unwrap() = Some(digest);
        let image = format!("{}/a/b:v1", registry.host());
        let output =
            ended(&Arc::new(Sandbox::new()), &["cat", &format!("--index={index}"), &image, FILE])
                .await;
        let text = String::from_utf8_lossy(&output.stderr).replace(&registry.host(), "HOST");
        assert!(
            !output.status.success() && text.contains(&format!("cannot read the config {digest}")),
            "{text}"
        );
        reports.insert(text);
    }
    assert_eq!(reports.len(), 1, "{reports:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn listing_one_layer_needs_no_config() {
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let config = push(&registry);
    let image = format!("{}/a/b:v1", registry.host());
    let sandbox = Arc::new(Sandbox::new());
    let listed = run(&sandbox, &["ls", "--no-cache", "--layer=0", &image]).await;
    assert!(String::from_utf8_lossy(&listed).contains(FILE));
    assert!(registry.requests().iter().all(|seen| kind(seen, &config) != "config"));
}
