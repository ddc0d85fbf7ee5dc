//! Indexing with too little time: finished layers are attached, the others are reported, and the
//! next run with the same cache continues with them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::{self, SociIndex, ZtocRef};
use ociseek_format::layer::LayerOptions;
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::{Progress, SilentProgress};
use ociseek_ops::TOOL_IDENTIFIER;
use ociseek_ops::index::{
    IndexError, IndexOptions, IndexedImage, LayerOutcome, LayerReport, LeftOutReason,
    ManifestResult, Origin, Work, index,
};
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_store::registry::Repository;
use ociseek_store::{Destination, Source};
use ociseek_testkit::faulty::{Faulty, ReceivedRequest, RegistrySettings, problem, stalls};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, OCI_MANIFEST, Sandbox, gzip, tar};
use ociseek_testkit::servers::repository;
use serde_json::json;
use tempfile::TempDir;

/// Longer than three small layers take on a machine that is busy with many other tests.
const SOON: Duration = Duration::from_secs(6);

/// A registry with an image of four layers. It sends the largest ones slowly while that is set.
struct Slow {
    registry: Faulty,
    subject: Descriptor,
    /// In the image's order, which is not sorted by size.
    layers: Vec<Descriptor>,
    is_slow: Arc<AtomicBool>,
    cache: ZtocCache,
    _dir: TempDir,
}

impl Slow {
    /// The layers with numbers in `stalled` start and then stop.
    async fn registry(referrers: bool, stalled: &[usize]) -> Slow {
        Slow::lying(referrers, stalled, |_| false).await
    }

    /// Requests for which `refused` is true are refused.
    async fn lying(
        referrers: bool,
        stalled: &[usize],
        refused: fn(&ReceivedRequest) -> bool,
    ) -> Slow {
        let contents: Vec<Bytes> = [30_000, 90_000, 10_000, 60_000]
            .iter()
            .enumerate()
            .map(|(n, size)| gzip(&tar(n as u64, 2, *size)).into())
            .collect();
        let is_slow = Arc::new(AtomicBool::new(true));
        let slow = Arc::clone(&is_slow);
        let held: Vec<(Digest, Bytes)> =
            stalled.iter().map(|&n| (Digest::sha256(&contents[n]), contents[n].clone())).collect();
        let settings = RegistrySettings { referrers, ..RegistrySettings::default() };
        let registry = Faulty::start(settings, move |seen, _| {
            if refused(seen) {
                return Some(problem(405, "UNSUPPORTED", "not here"));
            }
            let (_, content) =
                held.iter().find(|(digest, _)| seen.is("GET", &format!("blobs/{digest}")))?;
            slow.load(SeqCst).then(|| stalls(content, 20_000))
        })
        .await;
        let image = Image::new(&config(&[]), contents.into_iter().map(|content| (GZIP, content)));
        let subject = image.add_to(&registry, "v1");
        let dir = tempfile::tempdir().unwrap();
        let cache = ZtocCache::open(Some(dir.path()), Arc::new(SilentProgress));
        Slow { registry, subject, layers: image.descriptors(), is_slow, cache, _dir: dir }
    }

    fn repository(&self) -> Repository {
        repository(&self.registry.host(), "a/b", None)
    }

    async fn index(&self, options: &IndexOptions) -> Result<IndexedImage, IndexError> {
        let repository = self.repository();
        let source = Source::Registry(repository.clone());
        let destination = Destination::Registry(repository);
        let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
        index(
            &source,
            &Target::Tag("v1".into()),
            Some(&destination),
            Work { cache: Some(&self.cache), options, progress: &progress },
        )
        .await
    }

    /// With a near deadline.
    async fn in_time(&self) -> IndexedImage {
        self.index(&IndexOptions { deadline: Some(Instant::now() + SOON), ..options() })
            .await
            .unwrap()
    }

    async fn complete(&self) -> IndexedImage {
        self.index(&options()).await.unwrap()
    }

    async fn listed(&self) -> Vec<Descriptor> {
        self.repository()
            .referrers(&self.subject.digest, Some(soci::INDEX_V1))
            .await
            .unwrap()
            .descriptors
    }

    /// How many times each of the image's layers was requested as a whole.
    fn reads(&self) -> Vec<usize> {
        let saw = |layer: &Descriptor| self.registry.saw("GET", &format!("blobs/{}", layer.digest));
        let whole = |layer| saw(layer).iter().filter(|seen| seen.header("range").is_none()).count();
        self.layers.iter().map(whole).collect()
    }

    fn digests(&self, places: &[usize]) -> Vec<Digest> {
        places.iter().map(|&n| self.layers[n].digest).collect()
    }
}

fn options() -> IndexOptions {
    IndexOptions {
        layer: LayerOptions {
            span_size: SpanSize::new(16 << 10).unwrap(),
            ..LayerOptions::default()
        },
        min_layer_size: 0,
        jobs: 2,
        ..IndexOptions::default()
    }
}

fn attached(done: &IndexedImage) -> (&Descriptor, &[Digest], &[Digest]) {
    match &done.manifests[0].result {
        ManifestResult::Attached { index, replaced, not_deleted, .. } => {
            (index, replaced, not_deleted)
        }
        other => panic!("{other:?}"),
    }
}

fn left(done: &IndexedImage) -> Vec<Digest> {
    done.left.iter().map(|layer| layer.digest).collect()
}

/// The manifest that soci would write for these layers.
fn manifest_of(slow: &Slow, done: &IndexedImage, places: &[usize]) -> Vec<u8> {
    let layers = places.iter().map(|&n| match &done.manifests[0].layers[n].outcome {
        LayerOutcome::Indexed(facts) => ZtocRef {
            ztoc: facts.digest,
            size: facts.size,
            layer: slow.layers[n].digest,
            layer_media_type: GZIP.into(),
            span_size: SpanSize::new(16 << 10).unwrap(),
        },
        other => panic!("{other:?}"),
    });
    let subject = Some(slow.subject.clone());
    SociIndex {
        layers: layers.collect(),
        subject,
        build_tool_identifier: TOOL_IDENTIFIER.into(),
        prefetch: Vec::new(),
    }
    .encode()
    .bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn finished_layers_are_attached_at_the_deadline_and_the_next_run_adds_the_rest() {
    for referrers in [true, false] {
        let slow = Slow::registry(referrers, &[1]).await;
        let begun = Instant::now();
        let first = slow.in_time().await;
        assert!(begun.elapsed() < SOON + Duration::from_secs(20), "{:?}", begun.elapsed());
        assert_eq!(left(&first), slow.digests(&[1]));
        assert!(matches!(
            first.manifests[0].layers[1].outcome,
            LayerOutcome::LeftOut(LeftOutReason::OutOfTime { stuck: false })
        ));
        let sparse = attached(&first).0.clone();
        let bytes = slow.registry.manifest(&sparse.digest.to_string()).unwrap();
        assert_eq!(bytes, manifest_of(&slow, &first, &[0, 2, 3]));
        assert_eq!(slow.listed().await.len(), 1);

        slow.is_slow.store(false, SeqCst);
        let before = slow.reads();
        let second = slow.in_time().await;
        assert!(second.left.is_empty());
        let (complete, replaced, not_deleted) = attached(&second);
        assert_eq!((replaced, not_deleted), (&[sparse.digest][..], &[][..]));
        assert_eq!(
            slow.registry.manifest(&complete.digest.to_string()).unwrap(),
            manifest_of(&slow, &second, &[0, 1, 2, 3])
        );
        let reads: Vec<usize> =
            slow.reads().iter().zip(&before).map(|(now, before)| now - before).collect();
        assert_eq!(reads, [0, 1, 0, 0], "only what was left is read");
        assert_eq!(second.bytes_read, slow.layers[1].size);
        for (place, layer) in second.manifests[0].layers.iter().enumerate() {
            let LayerOutcome::Indexed(facts) = &layer.outcome else { panic!("{layer:?}") };
            assert_eq!(facts.origin == Origin::Cache, place != 1, "{facts:?}");
        }
        assert_eq!(
            slow.listed().await.iter().map(|d| d.digest).collect::<Vec<_>>(),
            [complete.digest]
        );
        assert!(
            slow.registry.manifest(&sparse.digest.to_string()).is_none(),
            "the one that lacked a layer is gone"
        );

        // The same as if there had never been an incomplete one.
        let fresh = Slow::registry(referrers, &[]).await;
        assert_eq!(attached(&fresh.complete().await).0.digest, complete.digest);

        let before = slow.registry.requests().len();
        let third = slow.complete().await;
        assert!(matches!(
            third.manifests[0].result,
            ManifestResult::AlreadyThere { built: false, .. }
        ));
        let asked = slow.registry.requests();
        assert!(
            asked[before..].iter().all(|seen| matches!(seen.method.as_str(), "GET" | "HEAD")),
            "nothing is written"
        );
        assert_eq!(third.bytes_read, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn if_no_layer_is_finished_in_time_nothing_is_attached() {
    let slow = Slow::registry(true, &[0, 1, 2, 3]).await;
    let done = slow.in_time().await;
    assert!(matches!(done.manifests[0].result, ManifestResult::OutOfTime), "{done:?}");
    // Repeating the run would make no progress, which is reported.
    let stuck = |layer: &LayerReport| {
        matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { stuck: true }))
    };
    assert!(done.manifests[0].layers.iter().all(stuck), "{done:?}");
    assert_eq!(left(&done), slow.digests(&[0, 1, 2, 3]));
    let written = slow
        .registry
        .requests()
        .into_iter()
        .filter(|seen| !matches!(seen.method.as_str(), "GET" | "HEAD"));
    assert_eq!(written.count(), 0);
    // Only the shortest layers were started.
    assert_eq!(slow.reads(), [1, 0, 1, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_deadline_starts_no_work() {
    let slow = Slow::registry(true, &[]).await;
    let done =
        slow.index(&IndexOptions { deadline: Some(Instant::now()), ..options() }).await.unwrap();
    assert_eq!(done.left.len(), 4);
    assert_eq!(slow.reads(), [0; 4]);
    let begun = |layer: &LayerReport| {
        matches!(layer.outcome, LayerOutcome::LeftOut(LeftOutReason::OutOfTime { stuck: true }))
    };
    assert!(!done.manifests[0].layers.iter().any(begun), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_progress_nothing_is_written_again() {
    let slow = Slow::registry(false, &[1, 3]).await;
    let first = slow.in_time().await;
    assert_eq!(left(&first), slow.digests(&[1, 3]));
    let before = slow.registry.requests().len();
    let second = slow.in_time().await;
    assert_eq!(left(&second), slow.digests(&[1, 3]));
    let ManifestResult::AlreadyThere { index, .. } = &second.manifests[0].result else {
        panic!("{second:?}")
    };
    assert_eq!(index.digest, attached(&first).0.digest);
    assert!(
        slow.registry.requests()[before..]
            .iter()
            .all(|seen| matches!(seen.method.as_str(), "GET" | "HEAD"))
    );
    assert_eq!(slow.reads()[0], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_index_with_more_layers_stays_until_the_complete_one_exists() {
    let slow = Slow::registry(false, &[1]).await;
    slow.is_slow.store(false, SeqCst);
    // It contains nothing that can be used again.
    let layer = LayerOptions {
        build_tool_identifier: "ociseek v0.0.1".into(),
        span_size: SpanSize::new(8 << 10).unwrap(),
        fine: false,
    };
    let old = slow.index(&IndexOptions { layer, ..options() }).await.unwrap();
    let old = attached(&old).0.digest;
    slow.is_slow.store(true, SeqCst);

    let sparse = slow.in_time().await;
    let (index, replaced, _) = attached(&sparse);
    assert_eq!(replaced, []);
    assert_eq!(
        slow.listed().await.iter().map(|d| d.digest).collect::<Vec<_>>(),
        [old, index.digest]
    );
    assert!(sparse.manifests[0].others[0].listed_first);

    let sparse = index.digest;
    slow.is_slow.store(false, SeqCst);
    let complete = slow.in_time().await;
    let (index, replaced, _) = attached(&complete);
    assert_eq!(BTreeSet::from_iter(replaced), BTreeSet::from([&old, &sparse]));
    assert_eq!(slow.listed().await.iter().map(|d| d.digest).collect::<Vec<_>>(), [index.digest]);
    assert_eq!(complete.bytes_read, slow.layers[1].size);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_refuses_deletion_keeps_both_indexes_with_a_warning() {
    for referrers in [true, false] {
        let slow = Slow::lying(referrers, &[1], |seen| seen.method == "DELETE").await;
        let sparse = attached(&slow.in_time().await).0.digest;
        slow.is_slow.store(false, SeqCst);
        let second = slow.complete().await;
        let (index, replaced, not_deleted) = attached(&second);
        assert_eq!((replaced, not_deleted), (&[sparse][..], &[sparse][..]));
        let listed: Vec<Digest> = slow.listed().await.iter().map(|d| d.digest).collect();
        // With the tag schema, ociseek maintains the list, and the complete index replaces the
        // other.
        assert_eq!(listed.len(), if referrers { 2 } else { 1 });
        assert!(listed.contains(&index.digest));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_forged_ztoc_is_replaced() {
    let slow = Slow::registry(true, &[1]).await;
    let first = slow.in_time().await;
    let LayerOutcome::Indexed(lost) = &first.manifests[0].layers[0].outcome else {
        panic!("{first:?}")
    };
    slow.registry.remove_blob(&lost.digest);
    slow.is_slow.store(false, SeqCst);
    let second = slow.complete().await;
    assert!(slow.registry.blob(&lost.digest).is_some());
    assert_eq!(
        attached(&second).0.digest,
        attached(&Slow::registry(true, &[]).await.complete().await).0.digest
    );

    // An index under our name with one layer's ztoc for another: the sizes differ, so both layers
    // are read.
    let slow = Slow::registry(true, &[]).await;
    let LayerOutcome::Indexed(other) = &second.manifests[0].layers[3].outcome else {
        panic!("{second:?}")
    };
    let ztoc = fresh_ztoc(other.digest).await;
    slow.registry.add_blob(ztoc.clone());
    slow.registry.add_blob(&b"{}"[..]);
    let forged = SociIndex {
        layers: vec![ZtocRef {
            ztoc: other.digest,
            size: ztoc.len() as u64,
            layer: slow.layers[0].digest,
            layer_media_type: GZIP.into(),
            span_size: SpanSize::new(16 << 10).unwrap(),
        }],
        subject: Some(slow.subject.clone()),
        build_tool_identifier: TOOL_IDENTIFIER.into(),
        prefetch: Vec::new(),
    };
    slow.registry.add_manifest("forged", OCI_MANIFEST, forged.encode().bytes);
    let done = slow.complete().await;
    assert_eq!(slow.reads(), [1; 4]);
    assert_eq!(attached(&done).0.digest, attached(&second).0.digest);
}

/// The bytes of a ztoc of the image.
async fn fresh_ztoc(digest: Digest) -> Bytes {
    let slow = Slow::registry(true, &[]).await;
    slow.complete().await;
    slow.registry.blob(&digest).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_without_a_layer_that_nobody_can_serve_is_complete() {
    let slow = Slow::registry(true, &[]).await;
    // Another image: the first layer again, and one that no consumer can read.
    let odd = Bytes::from([&gzip(&tar(9, 2, 50_000))[..], b"x"].concat());
    let first = slow.registry.blob(&slow.layers[0].digest).unwrap();
    Image::new(&json!({"os": "linux"}), [(GZIP, first), (GZIP, odd.clone())])
        .add_to(&slow.registry, "v1");

    let first = slow.complete().await;
    assert!(matches!(
        first.manifests[0].layers[1].outcome,
        LayerOutcome::LeftOut(LeftOutReason::Unservable(_))
    ));
    let before = slow.registry.requests().len();
    let again = slow.complete().await;
    assert!(matches!(again.manifests[0].result, ManifestResult::AlreadyThere { .. }), "{again:?}");
    assert_eq!(again.bytes_read, 0);
    assert!(
        slow.registry.requests()[before..]
            .iter()
            .all(|seen| matches!(seen.method.as_str(), "GET" | "HEAD"))
    );
}

/// Another run was faster and complete while this one was reading: then nothing is attached next to
/// its index.
#[tokio::test(flavor = "multi_thread")]
async fn a_complete_index_attached_meanwhile_stays_the_only_one() {
    let slow = Slow::registry(true, &[1]).await;
    let complete = Slow::registry(true, &[]).await;
    let done = complete.complete().await;
    let index = attached(&done).0.clone();
    let mut other = Vec::new();
    for layer in &done.manifests[0].layers {
        let LayerOutcome::Indexed(facts) = &layer.outcome else { panic!("{layer:?}") };
        other.push(complete.registry.blob(&facts.digest).unwrap());
    }
    let manifest = complete.registry.manifest(&index.digest.to_string()).unwrap();
    let registry = slow.registry.clone();
    let faster = tokio::spawn(async move {
        tokio::time::sleep(SOON / 2).await;
        other.into_iter().for_each(|ztoc| {
            registry.add_blob(ztoc);
        });
        registry.add_blob(&b"{}"[..]);
        registry.add_manifest(&index.digest.to_string(), OCI_MANIFEST, manifest);
        index
    });
    let late = slow.in_time().await;
    let index = faster.await.unwrap();
    let ManifestResult::AlreadyThere { index: there, .. } = &late.manifests[0].result else {
        panic!("{late:?}")
    };
    assert_eq!(there.digest, index.digest);
    assert_eq!(slow.listed().await.len(), 1);
    assert!(late.left.is_empty(), "nothing is left to be done");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_stops_at_its_timeout_and_continues_next_time() {
    let slow = Slow::registry(false, &[1]).await;
    let image = format!("{}/a/b:v1", slow.registry.host());
    let is_slow = Arc::clone(&slow.is_slow);
    let commands = move || {
        let sandbox = Sandbox::new();
        let common = ["index", "--min-layer-size=0", "--span-size=16KiB", "--progress=none"];
        let run = |more: &[&str]| sandbox.run(&[&common[..], more, &[&image]].concat());
        let first = run(&["--timeout=6s"]);
        assert!(first.contains("timed out; run it again to continue"), "{first}");
        assert!(first.contains("timed out with 1 layer left (178.1 KiB)"), "{first}");
        assert!(first.contains("--- status 0 ---"), "{first}");
        // It now has all the time for itself, which is still not enough.
        let alone = run(&["--timeout=3s"]);
        assert!(
            alone.contains("timed out before any layer was done; use a longer --timeout"),
            "{alone}"
        );
        assert!(
            alone.contains("no layer was finished in time, so use a longer --timeout"),
            "{alone}"
        );
        assert!(!alone.contains("to continue"), "{alone}");
        is_slow.store(false, SeqCst);
        let second = sandbox.json(0, &[&common[..], &["--format=json", &image]].concat());
        let second = &second["images"][0];
        assert_eq!(second["left"], json!([]));
        assert_eq!(second["manifests"][0]["replaced"].as_array().unwrap().len(), 1);
        let origins: Vec<&str> = second["manifests"][0]["layers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["origin"].as_str().unwrap())
            .collect();
        assert_eq!(origins, ["cache", "read", "cache", "cache"]);
    };
    tokio::task::spawn_blocking(commands).await.unwrap();
}
