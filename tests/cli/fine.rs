//! `index --kind v1,fine` and `--kind fine`: the content of fine indexes, and when they are rebuilt
//! or kept.

use std::fs;

use ociseek_format::budget::Budget;
use ociseek_format::fine;
use ociseek_format::image::fine::parse;
use serde_json::{Value, json};

use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, Layout, PLAIN, Sandbox, ZSTD, gzip, index, tar};

/// An image with a gzip layer, a plain one and one that cannot be indexed, in `oci:img:v1`.
fn image(sandbox: &Sandbox) {
    let mut layout = Layout::new(&sandbox.path("img"));
    let layers = [
        layout.blob(GZIP, &deflated(&tar(1, 6, 300_000))),
        layout.blob(PLAIN, &tar(2, 2, 300_000)),
        layout.blob(ZSTD, b"\x28\xb5\x2f\xfd, which nobody reads"),
    ];
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
}

/// A gzip with matches between blocks, so that spans have windows.
fn deflated(content: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(content).unwrap();
    gzip.finish().unwrap()
}

/// The size of the layers that can be indexed, in bytes.
fn layer_bytes(report: &Value) -> u64 {
    let layers = report["images"][0]["manifests"][0]["layers"].as_array().unwrap().iter();
    layers
        .filter(|layer| layer["reason"].is_null())
        .map(|layer| layer["size"].as_u64().unwrap())
        .sum()
}

/// Runs `index` with a separate cache, and returns its report.
fn run(sandbox: &Sandbox, args: &[&str]) -> Value {
    let options =
        ["index", "--min-layer-size=1KiB", "--jobs=2", "--cache-dir=cache", "--format=json"];
    sandbox.json(0, &[&options, args, &["oci:img:v1"]].concat())
}

fn manifest(report: &Value) -> &Value {
    &report["images"][0]["manifests"][0]
}

/// The status of the SOCI index and of the fine index, the bytes read, and whether anything was
/// written.
fn came(report: &Value) -> Value {
    let manifest = manifest(report);
    json!([
        manifest["status"],
        manifest["fine"]["status"],
        report["bytes_read"],
        report["bytes_written"] != 0
    ])
}

fn fine_digest(report: &Value) -> String {
    manifest(report)["fine"]["index"]["digest"].as_str().unwrap().to_owned()
}

fn blob(sandbox: &Sandbox, digest: &Value) -> Vec<u8> {
    let hex = &digest.as_str().unwrap()["sha256:".len()..];
    fs::read(sandbox.path("img/blobs/sha256").join(hex)).unwrap()
}

/// Reads of two files: the last one in the gzip layer, then the first one.
fn profile(sandbox: &Sandbox, name: &str, reads: &[(&str, u64)]) {
    let lines: Vec<String> = (reads.iter())
        .map(|(path, offset)| {
            json!({"ms": 1.0, "path": path, "layer": "sha256:0", "offset": offset, "size": 4096, "spans": []})
                .to_string()
        })
        .collect();
    fs::write(sandbox.path(name), lines.join("\n")).unwrap();
}

#[test]
fn both_kinds_are_built_from_one_reading_and_a_second_run_reads_nothing() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let first = run(&sandbox, &["--kind=v1,fine"]);
    let all = layer_bytes(&first);
    assert_eq!(came(&first), json!(["attached", "attached", all, true]), "{first:#}");
    let fine = &manifest(&first)["fine"];
    assert_eq!(
        (&fine["coverage"]["layers"], &fine["attached"], &fine["profile"]),
        (&json!(2), &json!("layout"), &Value::Null)
    );

    // The documents must match the layers, and the manifest the documents.
    let listed = parse(&blob(&sandbox, &fine["index"]["digest"])).unwrap();
    assert_eq!(listed.layers.len(), 2);
    for (document, told) in listed.layers.iter().zip(fine["documents"].as_array().unwrap()) {
        let bytes = blob(&sandbox, &told["digest"]);
        assert_eq!((document.size, &json!(document.layer)), (bytes.len() as u64, &told["layer"]));
        let mut memory = Budget::new(1 << 30).open();
        let layer = fine::decode(&bytes, &mut memory).unwrap();
        assert_eq!(layer.spans().layer(), document.layer);
        assert!(layer.entries().iter().any(|entry| entry.name.ends_with(b"/file0")));
        let head =
            fine::decode_head(&bytes[..document.head_size as usize], document.size, &mut memory)
                .unwrap();
        assert_eq!(head.start_size(), document.start_size);
    }

    let files = sandbox.files("img");
    let again = run(&sandbox, &["--kind=v1,fine", "--no-cache"]);
    assert_eq!(came(&again), json!(["already-there", "already-there", 0, false]));
    assert_eq!(fine_digest(&again), fine_digest(&first));
    assert_eq!(sandbox.files("img"), files);
    let text = sandbox.run(&["index", "--kind=v1,fine", "--min-layer-size=1KiB", "oci:img:v1"]);
    assert!(
        text.contains(&format!("  fine index {}\n  up to date", fine_digest(&first))),
        "{text}"
    );
    assert!(text.contains(", of which startup fetches "), "{text}");
    let digests =
        sandbox.run(&["index", "--kind=v1,fine", "--min-layer-size=1KiB", "--quiet", "oci:img:v1"]);
    assert!(digests.contains(&format!("\n{}\n", fine_digest(&first))), "{digests}");
}

#[test]
fn fine_only_builds_no_soci_index() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let first = run(&sandbox, &["--kind=fine"]);
    assert_eq!((&came(&first)[0], &came(&first)[1]), (&json!("not-asked"), &json!("attached")));
    assert_eq!(manifest(&first)["index"], Value::Null);
    let listed = sandbox.json(0, &["list", "--format=json", "oci:img"]);
    assert_eq!(listed["images"][0]["manifests"][0]["indexes"], json!([]));
    let again = run(&sandbox, &["--kind=fine", "--no-cache"]);
    assert_eq!(came(&again), json!(["not-asked", "already-there", 0, false]));
    // A SOCI index is added, and the fine index is kept. Its ztocs were cached.
    let beside = run(&sandbox, &["--kind=v1,fine"]);
    assert_eq!(came(&beside), json!(["attached", "already-there", 0, true]));
    assert_eq!(fine_digest(&beside), fine_digest(&first));
    // Without the option, the fine index is neither reported nor changed.
    let without = run(&sandbox, &[]);
    assert_eq!(
        (&came(&without)[0], &manifest(&without)["fine"]),
        (&json!("already-there"), &Value::Null)
    );
}

#[test]
fn layers_without_a_cached_document_are_read_again() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let soci = run(&sandbox, &[]);
    let all = layer_bytes(&soci);
    assert_eq!(soci["bytes_read"], all);
    let fine = run(&sandbox, &["--kind=v1,fine"]);
    assert_eq!(came(&fine), json!(["already-there", "attached", all, true]));
    sandbox.json(0, &["rm", "--format=json", "oci:img:v1"]);
    let cached = run(&sandbox, &["--kind=v1,fine"]);
    assert_eq!(came(&cached), json!(["attached", "attached", 0, true]));
    assert_eq!(fine_digest(&cached), fine_digest(&fine));
}

#[test]
fn a_fine_index_with_other_options_is_replaced() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    profile(&sandbox, "one", &[("dir1/file5", 200_000), ("dir1/file0", 0)]);
    profile(&sandbox, "two", &[("dir1/file3", 0)]);
    let plain = run(&sandbox, &["--kind=fine"]);
    let replaced = |report: &Value| manifest(report)["fine"]["replaced"].clone();

    // Another profile, or the same one in two files. The cache avoids reading, except for the spans
    // that are divided.
    let attached = |report: &Value| {
        let read = report["bytes_read"].as_u64().unwrap();
        let layer = blob(&sandbox, &manifest(report)["fine"]["documents"][0]["layer"]).len() as u64;
        assert!((1..layer).contains(&read), "{read} of {layer}");
        assert_eq!(came(report), json!(["not-asked", "attached", read, true]));
    };
    let recorded = run(&sandbox, &["--kind=fine", "--profile=one"]);
    attached(&recorded);
    assert_eq!(replaced(&recorded), json!([fine_digest(&plain)]));
    let documents =
        |report: &Value| manifest(report)["fine"]["documents"].as_array().unwrap().clone();
    let [of_gzip, of_plain] = <[Value; 2]>::try_from(documents(&recorded)).unwrap();
    assert!(of_gzip["start_size"].as_u64() > of_gzip["head_size"].as_u64(), "{of_gzip}");
    // Spans of a plain tar have no windows.
    assert_eq!(of_plain["start_size"], of_plain["head_size"]);
    let bytes = blob(&sandbox, &of_gzip["digest"]);
    let head = fine::decode_head(
        &bytes[..of_gzip["head_size"].as_u64().unwrap() as usize],
        bytes.len() as u64,
        &mut Budget::new(1 << 30).open(),
    );
    let starts: Vec<u32> = head.unwrap().start().iter().map(|spans| spans.start.0).collect();
    assert!(
        starts.len() >= 2 && starts[0] > *starts.last().unwrap(),
        "in the order of the reads: {starts:?}"
    );
    let merged = run(&sandbox, &["--kind=fine", "--profile=one", "--profile=two"]);
    attached(&merged);
    assert_eq!(replaced(&merged), json!([fine_digest(&recorded)]));
    assert_ne!(documents(&merged)[0]["start_size"], of_gzip["start_size"]);

    // The same profile again, or no profile, changes nothing.
    for args in [&["--kind=fine", "--profile=one", "--profile=two"][..], &["--kind=fine"]] {
        let same = run(&sandbox, &[args, &["--no-cache"]].concat());
        assert_eq!(
            (came(&same), fine_digest(&same)),
            (json!(["not-asked", "already-there", 0, false]), fine_digest(&merged))
        );
    }
    // An index that replaces it keeps its profile.
    let renamed = run(
        &sandbox,
        &["--kind=fine", "--existing=replace", "--build-tool-identifier=ociseek v0.0.1"],
    );
    assert_eq!(
        (&came(&renamed)[1], replaced(&renamed)),
        (&json!("attached"), json!([fine_digest(&merged)]))
    );
    assert_eq!(documents(&renamed), documents(&merged));
    // An older one of ours is replaced. One that claims a newer version is unknown: it stays, and
    // ours is attached too.
    let ours = run(&sandbox, &["--kind=fine"]);
    assert_eq!(replaced(&ours), json!([fine_digest(&renamed)]));
    let newer = ["--existing=replace", "--build-tool-identifier=ociseek v999.0.0"];
    let newer = fine_digest(&run(&sandbox, &[&["--kind=fine"][..], &newer].concat()));
    let beside = run(&sandbox, &["--kind=fine"]);
    assert_eq!((&came(&beside)[1], replaced(&beside)), (&json!("attached"), json!([])));
    assert_ne!(fine_digest(&beside), newer);
}

#[test]
fn lost_documents_are_written_again_except_by_a_dry_run() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let files = sandbox.files("img");
    let dry = run(&sandbox, &["--kind=v1,fine", "--dry-run"]);
    assert_eq!(came(&dry), json!(["dry-run", "dry-run", layer_bytes(&dry), false]));
    assert_eq!(sandbox.files("img"), files);
    let first = run(&sandbox, &["--kind=v1,fine"]);
    assert_eq!(fine_digest(&first), fine_digest(&dry));
    let document = manifest(&first)["fine"]["documents"][0]["digest"].as_str().unwrap().to_owned();
    fs::remove_file(sandbox.path("img/blobs/sha256").join(&document["sha256:".len()..])).unwrap();
    let again = run(&sandbox, &["--kind=v1,fine"]);
    assert_eq!(came(&again), json!(["already-there", "attached", 0, true]));
    assert!(!blob(&sandbox, &json!(document)).is_empty());
}

#[test]
fn fine_indexes_combine_with_soci_enabled_images() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let both = run(&sandbox, &["--kind=v1,v2=v1-soci,fine"]);
    assert_eq!((&came(&both)[0], &came(&both)[1]), (&json!("attached"), &json!("attached")));
    assert_eq!(both["images"][0]["enabled"]["status"], "written", "{both:#}");
    for (args, why) in [
        (&["--kind=fine", "--strict"][..], "--strict and --min-coverage are about SOCI indexes"),
        (&["--kind=v2=v1-a,v2=v1-b"], "--kind takes one v2=TAG"),
        (&["--kind=v2"], "version 2 needs a tag: v2=TAG"),
        (&["--kind=v2=v1-soci", "--timeout=5s"], "--timeout needs v1 in --kind"),
    ] {
        let text = sandbox.run(&index(&[args, &["oci:img:v1"]].concat()));
        assert!(text.contains(why) && text.ends_with("--- status 2 ---"), "{text}");
    }
    // Readers would not take a fine index that is only attached to an image that names one.
    let bound = sandbox.run(&index(&["--kind=fine", "oci:img:v1-soci"]));
    assert!(bound.contains("is SOCI-enabled, and a fine index that is only attached"), "{bound}");
    assert!(bound.contains("hint: ociseek convert --fine --replace-tag"), "{bound}");
    // None of its layers can be indexed.
    let mut layout = Layout::new(&sandbox.path("none"));
    let layers = [layout.blob(ZSTD, b"\x28\xb5\x2f\xfd"), layout.blob(GZIP, &gzip(&tar(1, 1, 10)))];
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
    let none =
        sandbox.json(0, &["index", "--kind=v1,fine", "--format=json", "--no-cache", "oci:none"]);
    assert_eq!(came(&none), json!(["nothing-to-index", "nothing-to-index", 0, false]));
}

/// A hook and a CI step that convert the same image with other options do not replace each other's
/// result.
#[test]
fn a_fine_index_at_the_destination_stays() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let convert = |options: &[&str]| {
        let command = ["convert", "--format=json", "--min-layer-size=1KiB"];
        sandbox.json(0, &[&command, options, &["oci:img:v1", "oci:img:soci"]].concat())
    };
    let fine = convert(&["--fine"])["digest"].clone();
    for options in [&[][..], &["--dry-run"], &["--no-cache"], &["--fine"]] {
        assert_eq!(convert(options)["digest"], fine, "{options:?}");
    }
    // A fine index that nobody has made is not.
    sandbox.run(&["convert", "--min-layer-size=1KiB", "oci:img:v1", "oci:img:other"]);
    let plain = sandbox.doctor("oci:img:other");
    assert_eq!(plain["manifests"][0]["fine"], json!([]));
}

/// What `convert` with these options made of `oci:img:v1`.
fn converted(sandbox: &Sandbox, options: &[&str], to: &str) -> Value {
    let command = ["convert", "--format=json", "--min-layer-size=1KiB"];
    sandbox.json(0, &[&command, options, &["oci:img:v1", to]].concat())
}

#[test]
fn an_image_can_name_only_its_fine_index() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let first = converted(&sandbox, &["--kind=fine", "--no-cache"], "oci:img:fine");
    let image = &first["manifests"][0];
    assert_eq!((&first["status"], &image["index"]), (&json!("written"), &Value::Null), "{first:#}");
    let covered = json!([image["coverage"]["layers"], image["coverage"]["of_layers"]]);
    assert_eq!(covered, json!([2, 3]), "{first:#}");
    // Only the layer that has no document is listed.
    let left = image["layers"].as_array().unwrap();
    assert_eq!((left.len(), &left[0]["status"]), (1, &json!("left-out")), "{first:#}");
    let root: Value = serde_json::from_slice(&blob(&sandbox, &first["digest"])).unwrap();
    let types: Vec<_> = root["manifests"].as_array().unwrap().iter().skip(1).collect();
    assert_eq!(types.len(), 1, "{root:#}");
    assert_eq!(types[0]["artifactType"], "application/vnd.ociseek.fine.v1+json", "{root:#}");
    // The same as that of an image that names both.
    let both = converted(&sandbox, &["--kind=v2,fine", "--no-cache"], "oci:img:both");
    assert_eq!(both["manifests"][0]["fine"], image["fine"]);
    assert_eq!(both["digest"], converted(&sandbox, &["--fine"], "oci:img:both")["digest"]);
    for options in
        [&["--kind=fine"][..], &["--kind=fine", "--no-cache"], &["--kind=fine", "--fine"]]
    {
        let again = converted(&sandbox, options, "oci:img:fine");
        let (status, written) = (&again["status"], &again["bytes_written"]);
        assert_eq!((status, written), (&json!("already-there"), &json!(0)), "{again:#}");
    }
    // `index`, backfill and the hooks make the same image.
    let tagged = run(&sandbox, &["--kind=fine={tag}-lazy"]);
    let enabled = &tagged["images"][0]["enabled"];
    assert_eq!((&enabled["status"], &enabled["digest"]), (&json!("written"), &first["digest"]));
    let attached = run(&sandbox, &["--kind=fine,fine={tag}-lazy"]);
    assert_eq!(manifest(&attached)["fine"]["status"], "attached", "{attached:#}");
    assert_eq!(attached["images"][0]["enabled"]["status"], "already-there", "{attached:#}");
    // A SOCI index that DST names stays, so that nobody replaces another's image for ever.
    let kept = converted(&sandbox, &["--kind=fine"], "oci:img:both");
    assert_eq!((&kept["status"], &kept["digest"]), (&json!("already-there"), &both["digest"]));
    for (args, why) in [
        (&["--kind=fine", "--strict"][..], "are about SOCI indexes: add v2 to --kind"),
        (&["--kind=v1"], "[possible values: v2, fine]"),
    ] {
        let text = sandbox.run(&[&["convert"], args, &["oci:img:v1", "oci:img:x"]].concat());
        assert!(text.contains(why) && text.ends_with("--- status 2 ---"), "{text}");
    }
}

#[test]
fn an_image_that_names_only_its_fine_index_is_read_by_it() {
    let sandbox = Sandbox::new();
    // It compresses well, but its blob is larger than what doctor calls small.
    let tar = tar(1, 30, 1_000_000);
    let layer = deflated(&tar);
    let tars = [tar];
    Image::new(&config(&tars), [(GZIP, layer)]).write(&sandbox.path("img"));
    converted(&sandbox, &["--kind=fine"], "oci:img:fine");
    let seen = sandbox.doctor("oci:img:fine");
    let manifest = &seen["manifests"][0];
    assert_eq!(manifest["fine"].as_array().map(Vec::len), Some(1), "{seen:#}");
    let verified = sandbox.run(&["verify", "--no-cache", "oci:img:fine"]);
    assert!(verified.contains(": ok (1 of 1 layer"), "{verified}");
    assert!(verified.ends_with("--- status 0 ---"), "{verified}");
    // Nobody's word but the digest's, so the default trust reads by it.
    let mut archive = ::tar::Archive::new(&tars[0][..]);
    let file = archive.entries().unwrap().nth(3).unwrap().unwrap();
    let file = file.path().unwrap().to_string_lossy().into_owned();
    let read = sandbox.command(&["cat", "--no-cache", "oci:img:fine", &file]).output().unwrap();
    assert_eq!(read.stdout.len(), 1_000_000, "{}", String::from_utf8_lossy(&read.stderr));
    let doctor = sandbox.run(&["doctor", "oci:img:fine"]);
    for line in [
        "  AWS Fargate                                        whole  ",
        "  ociseek snapshotter                                lazy   fine index ",
        "  ociseek mount, bundle                              lazy   fine index ",
        " && ociseek convert --kind fine --profile start.jsonl --replace-tag oci:img:fine oci:img:fine\n",
    ] {
        assert!(doctor.contains(line), "{line}: {doctor}");
    }
    let list = sandbox.run(&["list", "oci:img:fine"]);
    assert!(list.contains("\nfine   linux/amd64     fine         1/1     100% "), "{list}");
}

/// GNU tar, Python, Nix and Bazel pad their archives. A SOCI index cannot have such a layer if the
/// padding extends into another span; a fine document states where the tar ends.
#[test]
fn padding_at_the_end_of_a_tar_costs_no_layer_its_fine_document() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let padded = [tar(1, 3, 100_000), vec![0; 5 << 20]].concat();
    let image = layout.image("amd64", &[layout.blob(PLAIN, &padded)]);
    layout.tag(image, "v1");
    let size = "--span-size=1MiB";
    for (kind, to) in [("--kind=v2,fine", "oci:img:both"), ("--kind=fine", "oci:img:fine")] {
        for status in ["written", "already-there"] {
            let made = converted(&sandbox, &[kind, size, "--no-cache"], to);
            assert_eq!(made["status"], status, "{kind}: {made:#}");
            let manifest = &made["manifests"][0];
            assert!(manifest["fine"].is_object() && manifest["index"].is_null(), "{made:#}");
        }
    }
    // With the cache, `index` knows that without reading the layer again.
    let known = |kind: &str| run(&sandbox, &[kind, size])["images"][0]["enabled"]["status"].clone();
    for kind in ["--kind=v2=v1-a,fine", "--kind=fine=v1-b"] {
        assert_eq!((known(kind), known(kind)), (json!("written"), json!("already-there")));
    }
}
