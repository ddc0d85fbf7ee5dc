//! `ociseek try` without a container: the facts, their page, and its resistance to hostile images.
//! tests/system/report.rs tests the page in a browser.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use insta::assert_snapshot;
use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use ociseek_testkit::report::{Image, NAMES};
use ociseek_testkit::sandbox::{GZIP, PLAIN, Sandbox, gzip, index, masked, tar};

/// The two zero blocks after the entries of a tar, in bytes.
const END: usize = 1024;

/// A base layer, a layer that replaces one of its files, and a tiny layer.
fn image(sandbox: &Sandbox) {
    let mut entries = tar(2, 2, 30_000);
    entries.truncate(entries.len() - END);
    let mut over = tar::Builder::new(entries);
    append(&mut over, "dir1/file0", &[7; 100]);
    let tars = [tar(1, 4, 50_000), over.into_inner().unwrap(), tar(3, 1, 10)];
    let history = json!([
        {"created_by": "ADD base.tar / # <b>"}, {"created_by": "ENV A=b", "empty_layer": true},
        {"created_by": "RUN make"}, {"created_by": "COPY . ."},
    ]);
    Image {
        layers: &[(GZIP, gzip(&tars[0])), (PLAIN, tars[1].clone()), (GZIP, gzip(&tars[2]))],
        tars: &tars,
        history,
    }
    .write(&sandbox.path("img"));
}

fn append(tar: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    tar.append_data(&mut header, name, content).unwrap();
}

fn profile(sandbox: &Sandbox, reads: &[(&str, u64, u64)]) {
    let line = |(path, offset, size): &(&str, u64, u64)| {
        let layer = Digest::sha256(b"another build's");
        json!({"ms": 1.5, "path": path, "layer": layer, "offset": offset, "size": size, "spans": [9]}).to_string()
            + "\n"
    };
    std::fs::write(sandbox.path("start.jsonl"), reads.iter().map(line).collect::<String>())
        .unwrap();
}

/// A start that reads the second file of the base and a part of a file in the upper layer.
fn indexed_with_profile() -> Sandbox {
    let sandbox = Sandbox::new();
    image(&sandbox);
    sandbox.json(0, &index(&["--json", "oci:img"]));
    profile(
        &sandbox,
        &[("dir1/file1", 0, 50_000), ("dir2/file1", 2000, 10), ("dir1/gone<u>", 0, 1)],
    );
    sandbox
}

fn page(sandbox: &Sandbox, args: &[&str]) -> String {
    let output = sandbox
        .command(&[&["try", "--no-run", "--no-cache", "--output=-"], args].concat())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The same facts give the same bytes, so the page can be compared with one that was reviewed.
#[test]
fn the_page_matches_the_reviewed_one() {
    let sandbox = indexed_with_profile();
    let page = page(&sandbox, &["--profile=start.jsonl", "oci:img:v1"]);
    let (head, rest) = page.split_once("<style>").unwrap();
    let (style, rest) = rest.split_once("</style>").unwrap();
    let hash = STANDARD.encode(Digest::sha256(style.as_bytes()).as_bytes());
    assert!(head.contains(&format!("style-src 'sha256-{hash}';")), "{head}");
    assert!(
        !page.contains(" style=") && !page.contains("<script"),
        "the policy lets neither through"
    );
    let shown = masked(&format!("{}<style>…</style>{rest}", head.replace(&hash, "…")));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/report.html");
    if std::env::var_os("UPDATE_REPORT").is_some() {
        std::fs::write(&path, &shown).unwrap();
    }
    let hint = "look at the page in a browser, then UPDATE_REPORT=1 cargo test --test cli report::";
    assert!(std::fs::read_to_string(&path).unwrap() == shown, "{} differs: {hint}", path.display());
}

#[test]
fn doctor_and_try_say_what_a_cache_does_not_hold() {
    let sandbox = indexed_with_profile();
    let trial = |size: &str| {
        let profile = "--profile=start.jsonl";
        sandbox.run(&["try", profile, "--cache-size", size, "oci:img:v1"]).replace("\n  ", " ")
    };
    let doctor = |size: &str| sandbox.run(&["doctor", "--cache-size", size, "oci:img:v1"]);
    // The layers have 300 KB unpacked, of which startup reads 50 KB.
    let image = "note: the image has ";
    let startup = "note: startup reads 48.8 KiB, and the cache holds 32.0 KiB";
    let says = |text: String| [text.contains(image), text.contains(startup)];
    assert_eq!(says(trial("4GiB")), [false, false]);
    assert_eq!(says(trial("100KiB")), [true, false]);
    assert_eq!(says(trial("32KiB")), [false, true]);
    assert_eq!(says(trial("0B")), [false, false], "a cache that is turned off");
    assert_eq!(says(doctor("4GiB")), [false, false]);
    assert_eq!(says(doctor("32KiB")), [true, false], "it does not know what startup reads");
    let report = sandbox.json(0, &["doctor", "--json", "--cache-size=32KiB", "oci:img:v1"]);
    let findings = report["manifests"][0]["findings"].as_array().unwrap();
    let larger = findings.iter().find(|finding| finding["code"] == "larger-than-cache").unwrap();
    assert_eq!(larger["next"], "ociseek try oci:img:v1");
}

#[test]
fn the_report_shows_what_a_start_reads() {
    let sandbox = indexed_with_profile();
    let report = sandbox
        .json(0, &["try", "--no-run", "--json", "--no-cache", "--profile=start.jsonl", "oci:img"]);
    // The second file of the base is at 51,200 to 101,200. A span has three blocks of 8,000 bytes,
    // up to the first border after 16 KiB.
    let layers = report["layers"].as_array().unwrap();
    let read: Vec<Vec<u64>> = layers
        .iter()
        .map(|layer| {
            layer["groups"]
                .as_array()
                .unwrap()
                .iter()
                .map(|group| group["read"].as_u64().unwrap())
                .collect()
        })
        .collect();
    assert_eq!(read, [vec![0, 0, 1, 1, 1, 0, 0, 0, 0], vec![0, 0, 1, 0], vec![0]]);
    let sum =
        |key: &str| layers.iter().map(|layer| layer["read"][key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("spans"), &report["sizes"][0]["read_spans"]), (4, &json!(4)));
    assert_eq!(report["start"]["bytes"], report["sizes"][0]["read_bytes"]);
    assert_eq!(report["start"]["missing_files"], json!([{"path": "dir1/gone<u>"}]));
    // The upper layer replaces a file of the base.
    assert_eq!(report["totals"]["shadowed"], json!({"files": 1, "bytes": 50_000}));
    assert_eq!(layers[0]["shadowed"], report["totals"]["shadowed"]);
    assert_eq!(layers[1]["created_by"], "RUN make");
    let largest = &report["largest"];
    assert_eq!(largest[0], json!({"path": "dir1/file1", "size": 50_000, "layer": 0, "read": true}));
    let indexed = sandbox.json(0, &index(&["--json", "oci:img"]));
    assert_eq!(report["coverage"], indexed["images"][0]["manifests"][0]["coverage"]);
    // All estimates here are for larger spans: one for each layer, without an upper bound.
    let sizes: Vec<_> = report["sizes"].as_array().unwrap()[1..]
        .iter()
        .map(|size| &size["read_bytes_at_most"])
        .collect();
    assert_eq!(sizes, [&Value::Null; 4]);
    assert_eq!(
        (&report["sizes"][1]["spans"], &report["sizes"][1]["read_spans"]),
        (&json!(3), &json!(2))
    );
}

#[test]
fn the_report_shows_what_a_start_fetches_with_a_fine_index() {
    let sandbox = indexed_with_profile();
    let with_profile =
        ["try", "--no-run", "--json", "--no-cache", "--profile=start.jsonl", "oci:img"];
    let before = sandbox.json(0, &with_profile);
    assert_eq!(before["fine"], Value::Null);
    let made = sandbox.json(0, &index(&["--json", "--kind=v1,fine", "oci:img"]));
    let made = &made["images"][0]["manifests"][0]["fine"];
    let report = sandbox.json(0, &with_profile);
    // The facts remain those of the SOCI index.
    assert_eq!((&report["layers"], &report["sizes"]), (&before["layers"], &before["sizes"]));
    let fine = &report["fine"];
    assert_eq!(
        (&fine["digest"], &fine["coverage"]["layers"]),
        (&made["index"]["digest"], &json!(3))
    );
    let sum = |key: &str| {
        made["documents"].as_array().unwrap().iter().map(|d| d[key].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(
        (&fine["bytes"], &fine["start_bytes"]),
        (&json!(sum("size")), &json!(sum("start_size")))
    );
    // Each layer is one span of 256 KiB; of the smallest nothing is read.
    let size = |layer: usize| report["layers"][layer]["size"].as_u64().unwrap();
    let fetch = &fine["fetch"];
    assert_eq!(
        (&fetch["read_spans"], &fetch["read_bytes"]),
        (&json!(2), &json!(size(0) + size(1)))
    );
    assert_eq!(
        (&fetch["whole_bytes"], &fetch["checkpoint_bytes"]),
        (&json!(0), &fine["start_bytes"])
    );
    let html = page(&sandbox, &["--profile=start.jsonl", "oci:img"]);
    assert!(html.contains("<th>fine index</th>") && html.contains("<dt>Fine index</dt>"), "{html}");
    let html = page(&sandbox, &["oci:img"]);
    assert!(
        !html.contains("<th>fine index</th>") && html.contains("<dt>Fine index</dt>"),
        "{html}"
    );
    // A document that cannot be read is none.
    let document = made["documents"][0]["digest"].as_str().unwrap();
    std::fs::remove_file(sandbox.path("img/blobs/sha256").join(&document["sha256:".len()..]))
        .unwrap();
    let without = sandbox.json(0, &with_profile);
    assert_eq!(without["fine"]["coverage"]["layers"], json!(2));
    assert_eq!(
        without["fine"]["fetch"]["read_spans"],
        json!(1 + before["layers"][0]["read"]["spans"].as_u64().unwrap())
    );
}

/// Nobody wants to wait until all of a large image is read, for the row about an index that it does
/// not have.
#[test]
fn the_fine_index_is_enough_for_the_report() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    profile(&sandbox, &[("dir1/file1", 0, 10), ("dir2/file1", 2000, 10)]);
    sandbox.json(0, &index(&["--json", "--kind=fine", "oci:img"]));
    let with_profile =
        ["try", "--no-run", "--json", "--no-cache", "--profile=start.jsonl", "oci:img"];
    let report = sandbox.json(0, &with_profile);
    assert_eq!((&report["index"], &report["coverage"]["layers"]), (&Value::Null, &json!(0)));
    assert_eq!(report["fine"]["coverage"]["layers"], 3);
    assert_eq!(report["layers"][0]["reason"]["code"], "too-small");
    let html = page(&sandbox, &["--profile=start.jsonl", "oci:img"]);
    assert!(html.contains("<dt>Fine index</dt>"), "{html}");
    // Reading a layer would show that it is broken.
    let layer = report["layers"][0]["digest"].as_str().unwrap();
    let blob = sandbox.path("img/blobs/sha256").join(&layer["sha256:".len()..]);
    let mut bytes = std::fs::read(&blob).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&blob, bytes).unwrap();
    assert_eq!(sandbox.json(0, &with_profile), report);
}

/// The bytes that a trace says it needs are those that the report says.
#[test]
fn without_an_index_the_layers_are_read() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    profile(&sandbox, &[("dir1/file1", 0, 10)]);
    let report = sandbox
        .json(0, &["try", "--no-run", "--json", "--no-cache", "--profile=start.jsonl", "oci:img"]);
    assert_eq!((&report["index"], &report["coverage"]["bytes"]), (&Value::Null, &json!(0)));
    assert_eq!(report["start"]["bytes"], report["coverage"]["of_bytes"]);
    assert_eq!(report["layers"][0]["reason"]["code"], "too-small");
    assert_eq!(
        report["sizes"].as_array().unwrap().len(),
        1,
        "no index would cover such small layers"
    );
    let page = page(&sandbox, &["oci:img"]);
    assert!(page.contains("layers are all smaller than 10 MiB"), "{page}");
}

#[test]
fn the_size_of_the_page_is_limited() {
    let sandbox = Sandbox::new();
    let mut tars = vec![tar(1, 6000, 600)];
    tars.extend((2..110).map(|seed| tar(seed, 1, 10)));
    // A blob may be used for two layers.
    tars.push(tars[0].clone());
    let layers: Vec<_> = tars.iter().map(|tar| (PLAIN, tar.clone())).collect();
    Image { layers: &layers, tars: &tars, history: Value::Null }.write(&sandbox.path("img"));
    let args = ["index", "-q", "--min-layer-size=0", "--span-size=16KiB", "--no-cache", "oci:img"];
    assert!(sandbox.command(&args).status().unwrap().success());
    let report = sandbox.json(0, &["try", "--no-run", "--json", "--no-cache", "oci:img"]);
    let layers = report["layers"].as_array().unwrap();
    assert_eq!((layers.len(), &report["layers_left_out"]), (100, &json!(10)));
    let spans = layers[0]["spans"].as_u64().unwrap();
    let groups = layers[0]["groups"].as_array().unwrap();
    assert!(spans > 500 && groups.len() <= 200, "{spans} {}", groups.len());
    let mut next = 0;
    for group in groups {
        assert_eq!(group["first"], next);
        next = group["last"].as_u64().unwrap() + 1;
    }
    assert_eq!(next, spans);
    let bytes: u64 = groups.iter().map(|group| group["size"].as_u64().unwrap()).sum();
    assert_eq!(bytes, layers[0]["size"].as_u64().unwrap());
    let twice = layers.last().unwrap();
    assert_eq!((&twice["same_as"], &twice["groups"]), (&json!(0), &json!([])));
    let page = page(&sandbox, &["oci:img"]);
    assert!(page.len() < 600_000, "{}", page.len());
    assert!(page.contains("10 smaller layers are not shown"));
}

#[test]
fn hostile_names_stay_text() {
    let sandbox = Sandbox::new();
    Image::hostile(&sandbox.path("img"));
    let args = [
        "index",
        "-q",
        "--min-layer-size=0",
        "--no-cache",
        "--build-tool-identifier=<i>x</i>",
        "oci:img",
    ];
    assert!(sandbox.command(&args).status().unwrap().success());
    let page = page(&sandbox, &["oci:img"]);
    for name in NAMES {
        assert!(!page.contains(name), "{name:?} is there as it is");
    }
    assert!(
        page.contains("&lt;script&gt;") && page.contains("\\u{202e}") && page.contains("\\xff")
    );
    assert!(page.contains("made by <bdi>&lt;i&gt;x&lt;/i&gt;</bdi>"));
    // The page has no control characters except newlines.
    assert!(page.chars().all(|c| c == '\n' || !c.is_control()));
    // Programs get the unescaped names.
    let report = sandbox.json(0, &["try", "--no-run", "--json", "--no-cache", "oci:img"]);
    let named = report["layers"][0]["groups"][0]["largest"].to_string();
    assert!(named.contains("path_b64"), "{named}");
}

#[test]
fn the_page_is_written_to_standard_output_or_a_file() {
    let sandbox = Sandbox::new();
    image(&sandbox);
    sandbox.json(0, &index(&["--json", "oci:img"]));
    let printed = page(&sandbox, &["oci:img"]);
    let args = ["try", "-q", "--no-run", "--no-cache", "--output=page.html", "oci:img"];
    assert!(sandbox.command(&args).status().unwrap().success());
    assert_eq!(std::fs::read_to_string(sandbox.path("page.html")).unwrap(), printed);
    // An existing page is kept if there is no new one.
    std::fs::write(sandbox.path("start.jsonl"), "").unwrap();
    let args =
        ["try", "-q", "--no-cache", "--output=page.html", "--profile=start.jsonl", "oci:img"];
    assert_snapshot!(sandbox.run(&args), @"
    --- stderr ---
    error: start.jsonl: not a recorded startup: it records no reads
    hint: ociseek try IMAGE --record FILE records one, and so does ociseek mount --record
    --- status 1 ---
    ");
    assert_eq!(std::fs::read_to_string(sandbox.path("page.html")).unwrap(), printed);
    profile(&sandbox, &[("another/app", 0, 10)]);
    assert_snapshot!(sandbox.run(&args), @"
    --- stderr ---
    error: the image has none of the 1 files that the profile recorded: it is the profile of another image
    --- status 1 ---
    ");
    for (command, status, says) in [
        ("dir2/nothing", 127, "the image does not have the program \"dir2/nothing\""),
        ("cat /dir2/file0", 127, "write the words of a command without quotes"),
        ("/dir2/file1", 126, "\"/dir2/file1\" of the image is not executable: its mode is 0644"),
    ] {
        let said = sandbox.run(&["try", "--no-run", "--no-cache", "oci:img", "--", command]);
        let status = format!("--- status {status} ---");
        assert!(said.contains(says) && said.ends_with(&status), "{command}: {said}");
    }
    let failed = sandbox.json(1, &["try", "--json", "oci:nothing"]);
    assert!(failed["error"]["message"].as_str().unwrap().contains("nothing"));
}

/// The kernel says "no such file" of the program.
#[test]
fn a_program_without_its_interpreter_is_named() {
    let sandbox = Sandbox::new();
    // A program with one header, which names the loader behind it.
    let loader = b"/lib/ld-none.so.9\0";
    let mut program = vec![0; 120];
    program[..6].copy_from_slice(b"\x7fELF\x02\x01");
    program[32] = 64;
    program[56] = 1;
    program[64] = 3;
    program[72] = 120;
    program[96] = u8::try_from(loader.len()).unwrap();
    program.extend_from_slice(loader);
    let files = [
        ("script", &b"#! /bin/none -e\n"[..]),
        ("windows", b"#!/script\r\n"),
        ("right", b"#!/script\n"),
        ("program", &program),
    ];
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o755);
        tar.append_data(&mut header, name, content).unwrap();
    }
    ociseek_testkit::mounts::image(&sandbox, "img", &[tar.into_inner().unwrap()], &json!({}));
    let run = |program: &str| {
        sandbox.run(&["try", "--no-run", "--no-cache", "oci:img:v1", "--", program])
    };
    assert_snapshot!(run("/script"), @r#"
    --- stderr ---
    error: "/script" of the image needs the interpreter "/bin/none", which the image does not have
    --- status 127 ---
    "#);
    assert_snapshot!(run("/windows"), @r#"
    --- stderr ---
    error: "/windows" of the image needs the interpreter "/script\r", which the image does not have
    hint: its lines end as on Windows: save it with Unix line ends
    --- status 127 ---
    "#);
    assert!(run("/program").contains("needs the interpreter \"/lib/ld-none.so.9\""));
    assert!(run("/right").ends_with("--- status 0 ---"));
}
