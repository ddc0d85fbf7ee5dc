//! Documents that are fetched before the image is opened, as the snapshotter does.

use super::*;
use ociseek_ops::ahead::{DocumentsAhead, FetchingAhead};
use ociseek_ops::judge::judge;
use ociseek_store::recall::Recall;

/// Spans of the lower layer, in an order other than the layer's.
fn start() -> [Range<SpanId>; 2] {
    [SpanId(12)..SpanId(14), SpanId(2)..SpanId(6)]
}

impl Reader {
    /// The same with what the registry said kept, and the image's digest.
    fn pinned(&self, registry: &Faulty) -> (Source, Target) {
        let manifest = Digest::sha256(&registry.manifest("v1").unwrap());
        (self.source.recalling(&Recall::default()), Target::Digest(manifest))
    }

    /// What opening an image reads first. Indexes cover all of its layers.
    async fn ahead(
        &self,
        (source, root): &(Source, Target),
        options: &OpenOptions,
    ) -> DocumentsAhead {
        let progress = Arc::clone(&self.recorder) as Arc<dyn Progress>;
        let source = source.with_documents_in(&self.caches.ztocs);
        let judged = judge(&source, root, options, &self.caches, &progress).await.unwrap();
        let layers = judged.lazy_layers().unwrap();
        assert!(layers.iter().all(|layer| layer.document.is_some()), "{layers:?}");
        DocumentsAhead::of(&source, &judged, options)
    }
}

fn with_start() -> OpenOptions {
    OpenOptions {
        documents: DocumentFetch { start: true },
        content: options(),
        ..OpenOptions::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_that_were_fetched_ahead_are_not_requested_again() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let image = Image::push(&registry, false, &start());
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, Some(dir.path()));
    let pinned = reader.pinned(&registry);
    let options = with_start();
    let found = reader.ahead(&pinned, &options).await;
    let sizes = [0, 1].map(|layer| image.fine.layers[layer].start_size);
    assert_eq!(found.size(), sizes[0] + sizes[1]);
    found.fetch(&reader.caches).await;
    assert_eq!(image.parts(&registry, 0), [format!("bytes=0-{}", sizes[0] - 1)]);

    let before = registry.requests().len();
    let progress = Arc::clone(&reader.recorder) as Arc<dyn Progress>;
    let opened = open(&pinned.0, &pinned.1, &options, &reader.caches, &progress).await.unwrap();
    settled(&opened, 6).await;
    let blob = image.blobs[0].digest.to_string();
    let others: Vec<String> =
        registry.requests().split_off(before).into_iter().map(|seen| seen.path).collect();
    let others: Vec<&String> =
        others.iter().filter(|path| *path != "/v2/" && !path.contains(&blob)).collect();
    assert_eq!(others, Vec::<&String>::new(), "only spans of the start are requested");
    check(&opened, 0, &image.tars[0]).await;
    check(&opened, 1, &image.tars[1]).await;
    assert_eq!(reader.warnings(), Vec::<String>::new());

    // Pages are for the first opening. Later, what needs them is in the cache.
    assert_eq!(reader.caches.ztocs.take_start(&image.fine.layers[0].head_digest), None);
    reader.ahead(&pinned, &options).await.fetch(&reader.caches).await;
    assert_eq!(reader.caches.ztocs.take_start(&image.fine.layers[0].head_digest), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn documents_that_are_being_fetched_are_waited_for() {
    let settings = RegistrySettings {
        referrers: true,
        slow_blobs: Duration::from_millis(50),
        ..RegistrySettings::default()
    };
    let registry = Faulty::honest(settings).await;
    let image = Image::push(&registry, false, &start());
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, Some(dir.path()));
    let pinned = reader.pinned(&registry);
    let found = reader.ahead(&pinned, &with_start()).await;
    let ahead = FetchingAhead::new(reader.caches.clone(), Duration::from_secs(60));
    ahead.start(found).done().await;
    let progress = Arc::clone(&reader.recorder) as Arc<dyn Progress>;
    let opened =
        open(&pinned.0, &pinned.1, &with_start(), &reader.caches, &progress).await.unwrap();
    settled(&opened, 6).await;
    assert_eq!([0, 1].map(|layer| image.parts(&registry, layer).len()), [1, 1]);
    check(&opened, 0, &image.tars[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_pages_that_were_fetched_ahead_change_no_byte() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let image = Image::push(&registry, false, &start());
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, Some(dir.path()));
    let pinned = reader.pinned(&registry);
    let options = with_start();
    reader.ahead(&pinned, &options).await.fetch(&reader.caches).await;
    let head = &image.fine.layers[0].head_digest;
    let mut pages = reader.caches.ztocs.take_start(head).unwrap();
    pages[7] ^= 1;
    reader.caches.ztocs.put_start(head, &pages);
    let progress = Arc::clone(&reader.recorder) as Arc<dyn Progress>;
    let opened = open(&pinned.0, &pinned.1, &options, &reader.caches, &progress).await.unwrap();
    check(&opened, 0, &image.tars[0]).await;
    assert_eq!(opened.layers[0].how, LayerAccess::Local, "the layer itself was read");
    assert_eq!(reader.warnings().len(), 1, "{:?}", reader.warnings());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn what_refers_to_a_digest_is_requested_together_with_it() {
    let listed = Arc::new(AtomicBool::new(false));
    let seen_list = Arc::clone(&listed);
    let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, truth| {
        if seen.path.contains("/referrers/") {
            seen_list.store(true, Ordering::SeqCst);
        }
        let image = Digest::sha256(&truth.manifest("v1")?).to_string();
        if !seen.path.ends_with(&format!("/manifests/{image}")) {
            return None;
        }
        // Answered once the list was requested.
        let is_listed = || {
            (0..2000).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                seen_list.load(Ordering::SeqCst)
            })
        };
        (!tokio::task::block_in_place(is_listed)).then(|| status(400))
    })
    .await;
    Image::push(&registry, false, &[]);
    let reader = Reader::new(&registry, None);
    let pinned = reader.pinned(&registry);
    reader.ahead(&pinned, &with_start()).await;
    assert!(listed.load(Ordering::SeqCst));
    assert_eq!(registry.saw("GET", "/referrers/").len(), 1);
}
