//! Prefetch lists written by `index` and `convert`, compared with soci's own library, and their use
//! by mounts.

use ociseek_testkit::soci;
use std::path::Path;
use std::process::Command;

use ociseek_testkit::random::numbers;
use ociseek_testkit::sandbox::{GZIP, Layout, PLAIN, Sandbox, gzip, index};
use serde_json::{Value, json};

const PREFETCH: &str = "application/vnd.amazon.soci.prefetch.v1+json";

/// A tar with files of pseudo-random bytes, and links (a target that begins with `=` makes a hard
/// link).
fn layer(entries: &[(&str, &str, usize)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut digits = numbers(1).map(|number| b"0123456789abcdef"[(number >> 40) as usize % 16]);
    for (name, target, size) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(*size as u64);
        header.set_entry_type(match target.as_bytes() {
            [] => tar::EntryType::Regular,
            [b'=', ..] => tar::EntryType::Link,
            _ => tar::EntryType::Symlink,
        });
        let content: Vec<u8> = digits.by_ref().take(*size).collect();
        match target.trim_start_matches('=') {
            "" => builder.append_data(&mut header, name, &content[..]).unwrap(),
            target => builder.append_link(&mut header, name, target).unwrap(),
        }
    }
    builder.into_inner().unwrap()
}

/// An image with three layers in `oci:img:v1`. The top layer removes `srv/old` and has a new
/// `srv/a`.
fn image(sandbox: &Sandbox) {
    let mut layout = Layout::new(&sandbox.path("img"));
    let layers = [
        layout.blob(
            GZIP,
            &gzip(&layer(&[("srv/a", "", 90_000), ("srv/b", "", 200_000), ("srv/old", "", 10)])),
        ),
        layout.blob(
            PLAIN,
            &layer(&[("srv/c", "", 100_000), ("srv/link", "b", 0), ("srv/hard", "=srv/c", 0)]),
        ),
        layout.blob(GZIP, &gzip(&layer(&[("srv/a", "", 120_000), ("srv/.wh.old", "", 0)]))),
    ];
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
}

/// The document with a digest in the layout `img`.
fn document(dir: &Path, digest: &Value) -> Value {
    let hex = &digest.as_str().unwrap()["sha256:".len()..];
    serde_json::from_slice(&std::fs::read(dir.join("blobs/sha256").join(hex)).unwrap()).unwrap()
}

/// The ranges of each prefetch artifact in the index of a report, by the number of its layer.
fn lists(sandbox: &Sandbox, report: &Value) -> Vec<(usize, Vec<(u64, u64)>)> {
    let dir = sandbox.path("img");
    let manifest = &report["images"][0]["manifests"][0];
    let index = document(&dir, &manifest["index"]["digest"]);
    let layers =
        document(&dir, &manifest["manifest"]["digest"])["layers"].as_array().unwrap().clone();
    let listed = index["layers"].as_array().unwrap();
    let first =
        listed.iter().position(|entry| entry["mediaType"] == PREFETCH).unwrap_or(listed.len());
    assert!(
        listed[first..].iter().all(|entry| entry["mediaType"] == PREFETCH),
        "behind the ztocs: {index}"
    );
    let list = |entry: &Value| {
        let layer = &entry["annotations"]["com.amazon.soci.image-layer-digest"];
        let place = layers.iter().position(|known| known["digest"] == *layer).unwrap();
        let ranges = document(&dir, &entry["digest"])["prefetch_spans"].as_array().unwrap().clone();
        let range = |range: &Value| {
            (range["start_span"].as_u64().unwrap(), range["end_span"].as_u64().unwrap())
        };
        (place, ranges.iter().map(range).collect())
    };
    listed[first..].iter().map(list).collect()
}

#[test]
fn paths_lists_and_profiles_resolve_to_spans() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    std::fs::write(sandbox.path("list.json"), r#"["/srv/hard"]"#).unwrap();
    let profile = json!({"ms": 1, "path": "srv/b", "layer": "x", "offset": 150_000, "size": 4096, "spans": [0]});
    std::fs::write(sandbox.path("start.jsonl"), format!("{profile}\n")).unwrap();
    let run =
        |args: &[&str]| sandbox.json(0, &index(&[args, &["--format=json", "oci:img:v1"]].concat()));

    let plain = run(&[]);
    assert_eq!(lists(&sandbox, &plain), []);
    let args = ["--prefetch-file=/srv/a", "--profile=list.json", "--profile=start.jsonl"];
    let first = run(&args);
    let found = lists(&sandbox, &first);
    assert_eq!(found.iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0, 1, 2], "{found:?}");
    // 4 KiB in the middle of srv/b are in one or two spans, the whole of srv/a in several.
    let spans =
        |place: usize| found[place].1.iter().map(|(start, end)| end - start + 1).sum::<u64>();
    assert!((1..=2).contains(&spans(0)) && spans(1) >= 6 && spans(2) >= 2, "{found:?}");
    let digest = &first["images"][0]["manifests"][0]["index"]["digest"];

    // The same list again, or none, changes nothing.
    for args in [&args[..], &[]] {
        let again = run(args);
        let manifest = &again["images"][0]["manifests"][0];
        assert_eq!(
            (&manifest["status"], &manifest["index"]["digest"]),
            (&json!("already-there"), digest),
            "{again}"
        );
    }

    // Another list replaces it.
    let other = run(&["--prefetch-file=/srv/link"]);
    assert_eq!(lists(&sandbox, &other).iter().map(|(place, _)| *place).collect::<Vec<_>>(), [0]);

    // A missing file is a warning, an invalid list an error.
    let said = sandbox.run(&index(&["--dry-run", "--prefetch-file=/srv/old", "oci:img:v1"]));
    assert!(
        said.contains(
            "warning: \"/srv/old\" is not prefetched: no indexed layer has it (the others are pulled whole)"
        ),
        "{said}"
    );
    let elsewhere =
        json!({"ms": 1, "path": "srv/small", "layer": "x", "offset": 0, "size": 1, "spans": [0]});
    std::fs::write(sandbox.path("elsewhere.jsonl"), format!("{profile}\n{elsewhere}\n")).unwrap();
    let said = sandbox.run(&index(&["--dry-run", "--profile=elsewhere.jsonl", "oci:img:v1"]));
    assert!(
        said.contains(
            "warning: \"srv/small\" is not prefetched: no indexed layer has it (the others are pulled whole)"
        ),
        "{said}"
    );
    std::fs::write(sandbox.path("bad"), "[1]").unwrap();
    std::fs::write(sandbox.path("worse"), "{\"ms\": 1}\n").unwrap();
    // A file may be of any kind.
    let said = sandbox.run(&index(&["--profile=bad", "oci:img:v1"]));
    assert!(said.contains("error: bad: not a prefetch list: not a JSON array of paths"), "{said}");
    let said = sandbox.run(&index(&["--profile=worse", "oci:img:v1"]));
    assert!(
        said.contains("error: worse: not a prefetch list: line 1 is not a record of a read"),
        "{said}"
    );
    for file in ["list.json", "start.jsonl"] {
        let listed = run(&["--existing=replace", &format!("--profile={file}")]);
        assert!(!lists(&sandbox, &listed).is_empty(), "{file}");
    }
}

#[test]
fn prefetch_lists_match_soci() {
    let Some(oracle) = soci::oracle_binary() else { return };
    let sandbox = Sandbox::new();
    image(&sandbox);
    let options = |span_size, least| {
        ["--build-tool-identifier", "test", "--span-size", span_size, "--min-layer-size", least]
    };
    for paths in [&["/srv/a"][..], &["srv/b", "/srv//c"], &["srv/a", "srv/b", "srv/c", "srv/none"]]
    {
        let wanted: Vec<String> =
            paths.iter().map(|path| format!("--prefetch-file={path}")).collect();
        let soci = Command::new(&oracle)
            .arg("convert")
            .args(options("16384", "1024"))
            .args(&wanted)
            .arg(sandbox.path("img"))
            .arg(sandbox.path(&format!("soci-{}", paths.len())))
            .output()
            .unwrap();
        assert!(soci.status.success(), "{}", String::from_utf8_lossy(&soci.stderr));
        let theirs = String::from_utf8(soci.stdout).unwrap().lines().last().unwrap().to_owned();
        let destination = format!("oci:ours-{}:v1", paths.len());
        let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let args = [
            &["convert", "--quiet", "--no-cache"],
            &options("16KiB", "1KiB")[..],
            &wanted,
            &["oci:img:v1", &destination],
        ]
        .concat();
        let ours = sandbox.command(&args).output().unwrap();
        assert!(ours.status.success(), "{}", String::from_utf8_lossy(&ours.stderr));
        assert_eq!(String::from_utf8(ours.stdout).unwrap().trim(), theirs, "{paths:?}");
    }
}

/// The lists in a report, by the numbers of their layers.
fn reported(report: &Value, prefetch: &Value) -> Vec<(usize, Vec<(u64, u64)>)> {
    let layers: Vec<&Value> =
        report["layers"].as_array().unwrap().iter().map(|layer| &layer["digest"]).collect();
    let list = |list: &Value| {
        let place = layers.iter().position(|layer| **layer == list["layer"]).unwrap();
        let range =
            |range: &Value| (range["first"].as_u64().unwrap(), range["last"].as_u64().unwrap());
        assert!(list["bytes"].as_u64().unwrap() > 0, "{list}");
        (place, list["ranges"].as_array().unwrap().iter().map(range).collect())
    };
    prefetch["layers"].as_array().unwrap().iter().map(list).collect()
}

#[test]
fn reports_list_the_prefetched_spans() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let args = ["--prefetch-file=/srv/a", "--prefetch-file=/srv/c", "--prefetch-file=/srv/old"];
    let run =
        |args: &[&str]| sandbox.json(0, &index(&[args, &["--format=json", "oci:img:v1"]].concat()));
    let plain = run(&["--dry-run"]);
    assert_eq!(plain["images"][0]["manifests"][0]["prefetch"], Value::Null);

    let report = run(&args);
    let manifest = &report["images"][0]["manifests"][0];
    let found = lists(&sandbox, &report);
    assert_eq!(reported(manifest, &manifest["prefetch"]), found);
    assert_eq!(manifest["prefetch"]["carried_over"], false);
    let missing = json!([{"path": "\"/srv/old\"", "reason": "no indexed layer has it (the others are pulled whole)"}]);
    assert_eq!(manifest["prefetch"]["missing"], missing);
    let spans: u64 =
        found.iter().flat_map(|(_, ranges)| ranges).map(|(first, last)| last - first + 1).sum();
    let line = format!("  prefetch {spans} spans of 2 layers, ");
    let said = sandbox.run(&index(&[&args[..], &["--dry-run", "oci:img:v1"]].concat()));
    assert!(said.contains(&line), "{said}");

    let inspected = sandbox.doctor("oci:img:v1");
    let inspected = &inspected["manifests"][0];
    for (place, layer) in inspected["layers"].as_array().unwrap().iter().enumerate() {
        let list = &layer["prefetch"];
        let Some((_, ranges)) = found.iter().find(|(listed, _)| *listed == place) else {
            assert_eq!(*list, Value::Null);
            continue;
        };
        let shown: Vec<Value> =
            ranges.iter().map(|(first, last)| json!({"first": first, "last": last})).collect();
        assert_eq!((&list["ranges"], &list["error"]), (&json!(shown), &Value::Null));
        assert!(
            manifest["prefetch"]["layers"]
                .as_array()
                .unwrap()
                .iter()
                .any(|told| told["bytes"] == list["bytes"])
        );
    }
    assert_eq!(inspected["indexes"][0]["prefetch"].as_array().unwrap().len(), 2);
    let said = sandbox.run(&["doctor", "--verbose", "oci:img:v1"]);
    assert!(said.contains(&line), "{said}");

    // A missing list is reported, and the rest is shown.
    let artifact = manifest["prefetch"]["layers"][0]["artifact"].as_str().unwrap();
    std::fs::remove_file(sandbox.path("img/blobs/sha256").join(&artifact["sha256:".len()..]))
        .unwrap();
    let said = sandbox.run(&["doctor", "--verbose", "oci:img:v1"]);
    assert!(said.contains(&format!("prefetch list {artifact} cannot be used: ")), "{said}");
    assert!(said.contains(" of 1 layer, "), "{said}");
    let inspected = sandbox.doctor("oci:img:v1");
    let errors = inspected["manifests"][0]["layers"].as_array().unwrap().iter();
    assert_eq!(errors.filter(|layer| layer["prefetch"]["error"]["message"].is_string()).count(), 1);

    let options = ["--span-size=16KiB", "--min-layer-size=0", "--no-cache", "--format=json"];
    let converted =
        sandbox.json(0, &[&["convert", "oci:img:v1", "oci:v2:v1"], &options[..], &args].concat());
    let converted = &converted["manifests"][0];
    assert_eq!(reported(converted, &converted["prefetch"]), found);
}

#[test]
fn rebuilding_an_index_keeps_its_prefetch_list() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let options = ["index", "--min-layer-size=0", "--no-cache", "--format=json"];
    let run = |args: &[&str]| sandbox.json(0, &[&options[..], args, &["oci:img:v1"]].concat());
    let files = ["--prefetch-file=/srv/a", "--prefetch-file=/srv/b"];
    let first =
        run(&[&["--span-size=16KiB", "--build-tool-identifier=ociseek v0.0.1"], &files[..]]
            .concat());
    let fine = lists(&sandbox, &first);
    assert_eq!(fine.len(), 2);

    // With a newer version of this program and other spans, and then with the first ones again.
    let newer = run(&["--span-size=16KiB"]);
    let manifest = &newer["images"][0]["manifests"][0];
    assert_eq!(
        (&manifest["status"], &manifest["prefetch"]["carried_over"]),
        (&json!("attached"), &json!(true))
    );
    assert_eq!(lists(&sandbox, &newer), fine);
    let coarse = run(&["--span-size=64KiB"]);
    let spans = |report: &Value| -> Vec<(usize, u64)> {
        let sum =
            |ranges: Vec<(u64, u64)>| ranges.iter().map(|(first, last)| last - first + 1).sum();
        lists(&sandbox, report).into_iter().map(|(place, ranges)| (place, sum(ranges))).collect()
    };
    for ((place, many), (same, few)) in spans(&newer).into_iter().zip(spans(&coarse)) {
        assert!(place == same && few > 0 && few < many, "{many} and {few} spans");
    }
    let again = run(&["--span-size=16KiB"]);
    let within = |(first, last): &(u64, u64), ranges: &[(u64, u64)]| {
        ranges.iter().any(|(a, b)| a <= first && last <= b)
    };
    for ((_, old), (_, new)) in fine.iter().zip(lists(&sandbox, &again)) {
        assert!(old.iter().all(|range| within(range, &new)), "{old:?} {new:?}");
    }
    let text = [
        "index",
        "--min-layer-size=0",
        "--no-cache",
        "--span-size=16KiB",
        "--existing=replace",
        "oci:img:v1",
    ];
    let said = sandbox.run(&text);
    assert!(said.contains(", carried over from the previous index"), "{said}");

    // A list that cannot be carried over is reported, and the index is built without it.
    let lost = again["images"][0]["manifests"][0]["prefetch"]["layers"][0]["artifact"]
        .as_str()
        .unwrap()
        .to_owned();
    std::fs::remove_file(sandbox.path("img/blobs/sha256").join(&lost["sha256:".len()..])).unwrap();
    let said = sandbox.run(&text);
    assert!(
        said.contains(" is not carried over: ") && said.ends_with("--- status 0 ---"),
        "{said}"
    );
    assert_eq!(lists(&sandbox, &run(&["--span-size=16KiB"])).len(), 1);
}

/// The result depends on the source and the options, and not on what the destination has.
#[test]
fn converting_takes_over_the_prefetch_list_of_the_source_only() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let options = ["--span-size=16KiB", "--min-layer-size=0", "--no-cache", "--format=json"];
    let run = |from: &str, to: &str, more: &[&str]| {
        sandbox.json(0, &[&["convert", from, to], &options[..], more].concat())
    };
    let first = run("oci:img:v1", "oci:v2:v1", &["--prefetch-file=/srv/a"]);
    assert_eq!(first["manifests"][0]["prefetch"]["carried_over"], false);
    // By another tool, from the enabled image.
    let other = run("oci:v2:v1", "oci:other:v1", &["--build-tool-identifier=other"]);
    let new = &other["manifests"][0]["prefetch"];
    let old = &first["manifests"][0]["prefetch"];
    assert_eq!(
        (&other["status"], &new["carried_over"]),
        (&json!("written"), &json!(true)),
        "{other}"
    );
    assert_eq!(new["layers"], old["layers"]);

    let again = sandbox
        .run(&[&["convert", "oci:img:v1", "oci:v2:v1", "--progress=none"], &options[..3]].concat());
    assert!(
        again.contains(
            "warning: the image at the destination has a prefetch list, which is not copied"
        ),
        "{again}"
    );
    let bare = run("oci:img:v1", "oci:bare:v1", &[]);
    let last = run("oci:img:v1", "oci:v2:v1", &[]);
    assert_eq!((&last["status"], &last["digest"]), (&json!("already-there"), &bare["digest"]));
}
