//! `ociseek cache`, and the size limits of the caches.

use serde_json::Value;

use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, Sandbox, gzip, tar};

/// An image of two layers, `oci:img:v1`, whose config has their digests.
fn image(sandbox: &Sandbox) {
    let tars = [tar(1, 4, 50_000), tar(2, 2, 20_000)];
    let layers = tars.each_ref().map(|tar| (GZIP, gzip(tar)));
    Image::new(&config(&tars), layers).write(&sandbox.path("img"));
}

/// The number of entries and bytes of a cache.
fn usage(cache: &Value, bytes: &str) -> (u64, u64) {
    (cache["entries"].as_u64().unwrap(), cache[bytes].as_u64().unwrap())
}

/// The number and size of the files with names of entries in a directory of the sandbox.
fn on_disk(sandbox: &Sandbox, dir: &str) -> (u64, u64) {
    let files = std::fs::read_dir(sandbox.path(dir)).into_iter().flatten().map(Result::unwrap);
    let entries = files.filter(|file| file.file_name().len() == 64);
    entries.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.metadata().unwrap().len()))
}

#[test]
fn the_cache_is_listed_and_cleared() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let ztocs = ".cache/ociseek";
    let spans = ".cache/ociseek/spans";
    let ls = |sandbox: &Sandbox| sandbox.json(0, &["cache", "ls", "--format=json"]);
    // Nothing exists yet, and nothing is created.
    assert_eq!(usage(&ls(&sandbox)["ztocs"], "bytes"), (0, 0));
    assert!(!sandbox.path(".cache").exists());

    let fill = ["index", "--min-layer-size=1KiB", "--span-size=16KiB", "oci:img"];
    assert!(sandbox.run(&fill).ends_with("--- status 0 ---"));
    let cat = sandbox.run(&["cat", "oci:img:v1", "/dir1/file0"]);
    assert!(cat.ends_with("--- status 0 ---"));
    let shown = ls(&sandbox);
    assert_eq!(shown["dir"].as_str(), sandbox.path(ztocs).to_str());
    let there = (on_disk(&sandbox, ztocs), on_disk(&sandbox, spans));
    assert!(there.0.0 >= 2 && there.1.0 >= 1, "{there:?}");
    assert_eq!((usage(&shown["ztocs"], "bytes"), usage(&shown["spans"], "bytes")), there);
    let text = sandbox.run(&["cache", "ls"]);
    assert!(
        text.contains(&format!("{}\n  ztocs ", sandbox.path(ztocs).display()))
            && text.contains("  spans "),
        "{text}"
    );

    let freed = sandbox.json(0, &["cache", "clear", "--only=spans", "--format=json"]);
    assert_eq!(usage(&freed["spans"], "freed_bytes"), there.1);
    assert!(freed["ztocs"].is_null());
    assert_eq!((on_disk(&sandbox, ztocs), on_disk(&sandbox, spans)), (there.0, (0, 0)));
    let text = sandbox.run(&["cache", "clear"]);
    assert!(
        text.starts_with("freed ")
            && text.contains(&format!(": {} entries of ztocs, 0 entries of spans\n", there.0.0)),
        "{text}"
    );
    assert_eq!(on_disk(&sandbox, ztocs), (0, 0));
    // Its content is created again.
    assert_eq!(sandbox.run(&["cat", "oci:img:v1", "/dir1/file0"]), cat);
}

/// The number of entries and bytes of the cache after indexing an image.
fn indexed(sandbox: &Sandbox, options: &[&str]) -> (u64, u64) {
    let args =
        [&["index", "--min-layer-size=1KiB", "--span-size=16KiB"], options, &["oci:img"]].concat();
    let text = sandbox.run(&args);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    on_disk(sandbox, ".cache/ociseek")
}

#[test]
fn cached_ztocs_are_limited() {
    let [keeps, keeps_none] = [Sandbox::new(), Sandbox::new()];
    for sandbox in [&keeps, &keeps_none] {
        image(sandbox);
    }
    assert_eq!(indexed(&keeps_none, &["--ztoc-cache-size=0"]), (0, 0));
    let (entries, bytes) = indexed(&keeps, &[]);
    // A ztoc and the mark that it was proven, for each of two layers.
    assert_eq!(entries, 4);
    // Another tool name gives other entries, which displace older ones.
    let limit = format!("--ztoc-cache-size={bytes}B");
    let (entries, after) = indexed(&keeps, &[&limit, "--build-tool-identifier=another"]);
    assert!(entries > 0 && after <= bytes, "{after} of {bytes}");
}
