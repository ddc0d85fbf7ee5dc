//! Images that the kernel mounts through their fine indexes: everything is as packed.

use ociseek::digest::Digest;
use ociseek::image::Descriptor;
use ociseek::layer::{LayerIndexer, LayerOptions, Outcome};
use ociseek::offset::SpanId;
use serde_json::{Value, json};

use crate::mount::everything;
use crate::support::faulty::{Faulty, Nature};
use crate::support::fine;
use crate::support::mounts::{Clean, Serving, assert_same, can_mount, compressed, packed, seen};
use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST, Sandbox};

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
    assert_eq!(again["phases"]["opening"]["requests"], 5, "the head is there");
    assert_eq!(
        (&again["phases"]["start"]["requests"], &again["phases"]["reading"]["requests"]),
        (&json!(0), &json!(0))
    );
}
