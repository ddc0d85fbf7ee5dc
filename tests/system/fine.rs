//! Images that the kernel mounts through their fine indexes: everything is as packed.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, mpsc};

use ociseek::digest::Digest;
use ociseek::image::Descriptor;
use ociseek::layer::{LayerIndexer, LayerOptions, Outcome};
use ociseek::offset::SpanId;
use ociseek::ops::open::{OpenOptions, open};
use ociseek::progress::{Progress, SilentProgress};
use ociseek::rootfs::cache::SpanCache;
use ociseek::rootfs::fuse::{FuseMount, FuseOptions};
use ociseek::rootfs::layers::Caches;
use ociseek::store::Source;
use ociseek::store::blob::Target;
use ociseek::store::cache::ZtocCache;
use ociseek::store::registry::{Client, ClientConfig, CredentialSource};
use serde_json::{Value, json};

use crate::mount::{everything, unpack};
use crate::support::PATIENCE;
use crate::support::corpus::{self, debian_layers};
use crate::support::faulty::{Faulty, Nature};
use crate::support::fine;
use crate::support::mounts::{Clean, Serving, assert_same, can_mount, compressed, packed, seen, system};
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

    let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
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
        let mounted = FuseMount::new(tree, content, &mnt, &options, workers.handle().clone()).unwrap();
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

/// Makes a fine index of the image with this tag in a layout, and compares every file of a mount by it with what tar
/// unpacks.
fn assert_unpacked(layout: &Path, tag: &str) {
    let sandbox = Sandbox::new();
    let _clean = Clean(&sandbox);
    let (unpacked, mnt) = (sandbox.path("unpacked"), sandbox.path("mnt"));
    [&unpacked, &mnt].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let name = format!("oci:{}:{tag}", layout.display());
    let index = ["index", "--fine-only", "--min-layer-size=0", "--no-cache", "--quiet", &name];
    let output = sandbox.command(&index).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let blob = |digest: &Value| layout.join("blobs").join(digest.as_str().unwrap().replace(':', "/"));
    let parse = |path: &Path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let listed = parse(&layout.join("index.json"));
    let is_it = |entry: &&Value| entry["annotations"]["org.opencontainers.image.ref.name"] == tag;
    let entry = listed["manifests"].as_array().unwrap().iter().find(is_it).unwrap();
    let manifest = parse(&blob(&entry["digest"]));
    for layer in manifest["layers"].as_array().unwrap() {
        unpack(&blob(&layer["digest"]), &unpacked);
    }
    let serving = Serving::start(&sandbox, &["mount", "--stats", "stats", "--cache-dir", "cache", &name, "mnt"]);
    let (expected, found) = (seen(&unpacked, false), seen(&mnt, false));
    assert!(expected.len() > 1, "{name}: nothing was unpacked");
    assert_same(&expected, &found);
    drop(serving);
    let stats = parse(&sandbox.path("stats"));
    assert!(stats["layers"].as_array().unwrap().iter().all(|layer| layer["how"] == "fine"), "{name}: {stats}");
}

/// The Debian image of the corpus, and every tagged image of one platform in the layouts below the folder
/// `OCISEEK_IMAGES`.
#[test]
fn every_file_of_real_images_is_as_tar_unpacks_it() {
    let Some(layers) = debian_layers() else { return };
    if !can_mount() {
        return;
    }
    let debian = corpus::Image::of(&layers.join("debian-rootfs.go.tar.gz"));
    assert_unpacked(&debian.dir.path().join("image"), "v1");
    let Some(folder) = std::env::var_os("OCISEEK_IMAGES") else { return };
    for layout in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(listed) = std::fs::read(layout.join("index.json")) else { continue };
        let listed: Value = serde_json::from_slice(&listed).unwrap();
        // A copy, because the fine index is written beside the image.
        let copy = tempfile::tempdir().unwrap();
        system("cp", &[OsStr::new("-a"), layout.join(".").as_os_str(), copy.path().as_os_str()]);
        for entry in listed["manifests"].as_array().unwrap() {
            let tag = &entry["annotations"]["org.opencontainers.image.ref.name"];
            if let (Some(tag), Some(OCI_MANIFEST)) = (tag.as_str(), entry["mediaType"].as_str()) {
                assert_unpacked(copy.path(), tag);
            }
        }
    }
}
