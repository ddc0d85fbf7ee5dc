//! Images that the kernel mounts through their fine indexes: everything is as packed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, mpsc};

use ociseek::digest::Digest;
use ociseek::image::Descriptor;
use ociseek::layer::{LayerIndexer, LayerOptions, Outcome};
use ociseek::offset::SpanId;
use ociseek::ops::open::{OpenOptions, open};
use ociseek::progress::{Progress, Silent};
use ociseek::rootfs::cache::SpanCache;
use ociseek::rootfs::fuse::{FuseOptions, Mounted};
use ociseek::rootfs::layers::Caches;
use ociseek::store::Source;
use ociseek::store::blob::Target;
use ociseek::store::cache::ZtocCache;
use ociseek::store::registry::{Client, ClientConfig, CredentialSource};
use serde_json::{Value, json};

use crate::mount::everything;
use crate::support::faulty::{Faulty, Nature};
use crate::support::fine;
use crate::support::mounts::{Clean, PATIENCE, Serving, assert_same, can_mount, compressed, packed, seen};
use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST, Sandbox, tar};

/// Adds an image with this tar to the registry, with a fine index of small spans.
fn push(registry: &Faulty, tar: &[u8]) {
    let blob = compressed(tar);
    let options = LayerOptions { span_size: 64 << 10, build_tool_identifier: "test".into(), fine: false };
    let mut indexer = LayerIndexer::new(options, None);
    indexer.push(&blob).unwrap();
    let Outcome::Ztoc(ztoc) = indexer.finish().unwrap().outcome else { panic!("no ztoc") };
    let layer = fine::layer(&blob, &ztoc.bytes);
    let config = json!({
        "architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [Digest::sha256(tar)]},
    });
    let config = config.to_string();
    let descriptors = (Descriptor::of(OCI_CONFIG, config.as_bytes()), Descriptor::of(GZIP, &blob));
    registry.add_blob(config);
    registry.add_blob(blob);
    let (config, blob) = descriptors;
    let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [blob]});
    let manifest = manifest.to_string();
    registry.add_manifest("v1", OCI_MANIFEST, manifest.clone());
    let start = vec![SpanId(3)..SpanId(5), SpanId(0)..SpanId(2)];
    fine::attach(registry, manifest.as_bytes(), &[(layer, start)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_mount_by_a_fine_index_is_what_was_packed() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    let (dir, mnt) = (sandbox.path("dir"), sandbox.path("mnt"));
    [&dir, &mnt].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    everything(&dir);
    let registry = Faulty::honest(Nature { referrers: true, ..Nature::default() }).await;
    push(&registry, &packed(&dir));
    let image = format!("{}/a/b:v1", registry.host());
    let look = |cache: &[&str], stats: &str| -> Value {
        let args = [&["mount", "--stats", stats], cache, &[&image, "mnt"]].concat();
        tokio::task::block_in_place(|| {
            let serving = Serving::start(&sandbox, &args);
            assert_same(&seen(&dir, false), &seen(&mnt, false));
            drop(serving);
        });
        serde_json::from_slice(&std::fs::read(sandbox.path(stats)).unwrap()).unwrap()
    };
    let runs =
        [look(&["--cache-dir", "a"], "first"), look(&["--cache-dir", "b"], "second"), look(&["--no-cache"], "third")];
    for stats in &runs {
        assert_eq!(stats["layers"][0]["how"], "fine", "{stats}");
        assert!(stats["fine_index"]["digest"].is_string() && stats["index"].is_null(), "{stats}");
        assert!(stats["fine_index"]["size"].is_u64(), "{stats}");
        let (phases, first) = (&stats["phases"], &runs[0]["phases"]);
        // The same in every run.
        assert_eq!(phases["opening"], first["opening"]);
        assert_eq!(phases["start"]["bytes"], first["start"]["bytes"]);
        assert_eq!(phases["reading"]["bytes"], first["reading"]["bytes"]);
        assert_eq!((&phases["start"]["unread_bytes"], &phases["start"]["stopped"]), (&json!(0), &json!(false)));
        assert!(phases["start"]["bytes"].as_u64() > Some(0) && phases["start"]["requests"].as_u64() <= Some(4));
    }
    // The manifest, the list of referrers, the fallback tag, the config, the fine index, and one part of its document.
    assert_eq!(runs[0]["phases"]["opening"]["requests"], 6);
    let again = look(&["--cache-dir", "a"], "again");
    assert_eq!(again["phases"]["opening"]["requests"], 3, "head, config and fine index are there");
    assert_eq!(
        (&again["phases"]["start"]["requests"], &again["phases"]["reading"]["requests"]),
        (&json!(0), &json!(0))
    );
}

/// The bytes of a file at an offset, from a thread of its own. The kernel reads nothing else.
fn read_at(path: &std::path::Path, at: u64) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    let file = File::open(path).unwrap();
    std::thread::spawn(move || {
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, at).unwrap();
        sender.send(bytes)
    });
    receiver
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_in_memory_is_read_while_all_workers_are_busy_and_other_reads_wait() {
    if !can_mount() {
        return;
    }
    const FILES: usize = 20;
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    let mnt = sandbox.path("mnt");
    std::fs::create_dir(&mnt).unwrap();
    let registry = Faulty::honest(Nature { referrers: true, ..Nature::default() }).await;
    let tar = tar(1, FILES, 200_000);
    push(&registry, &tar);

    let progress: Arc<dyn Progress> = Arc::new(Silent);
    let config = ClientConfig { credentials: CredentialSource::Anonymous, ..ClientConfig::default() };
    let source = Source::Registry(Client::new(config).unwrap().repository(&registry.host(), "a/b").unwrap());
    let ztocs = ZtocCache::open(None, Arc::clone(&progress));
    let caches = Caches { ztocs, spans: SpanCache::open(None, 0, Arc::clone(&progress)) };
    let workers = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let opening = async move {
        open(&source, &Target::Tag("v1".into()), &OpenOptions::default(), &caches, &progress).await.unwrap()
    };
    let image = workers.spawn(opening).await.unwrap();
    tokio::task::block_in_place(|| {
        let (tree, content) = (Arc::clone(&image.tree), image.content.clone());
        let options = FuseOptions::default();
        let mounted = Mounted::new(tree, content, &mnt, &options, workers.handle().clone()).unwrap();
        let file = |number: usize| mnt.join(format!("dir1/file{number}"));
        let first = read_at(&file(0), 0).recv_timeout(PATIENCE).unwrap();

        let (busy, is_busy) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        workers.spawn(async move {
            busy.send(()).unwrap();
            let _ = released.recv();
        });
        is_busy.recv_timeout(PATIENCE).unwrap();
        // More than there are threads that receive requests.
        let waiting: Vec<_> = (1..FILES).map(|number| read_at(&file(number), 100_000)).collect();
        let second = read_at(&file(0), 8192).recv_timeout(PATIENCE);
        let is_early = waiting.iter().any(|read| read.try_recv().is_ok());
        drop(release);
        for read in waiting {
            read.recv_timeout(PATIENCE).unwrap();
        }
        drop(mounted);
        let start = tar.windows(4096).position(|bytes| bytes == first).unwrap();
        assert!(second.expect("it is in memory") == tar[start + 8192..start + 12288]);
        assert!(!is_early, "nobody fetched them");
    });
    drop(image);
    workers.shutdown_background();
}
