//! A second reader of fine indexes, written from their specification, agrees with this one:
//! `tests/fine_reader.py`.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use ociseek_testkit::sandbox::{GZIP, Layout, PLAIN, Sandbox, ZSTD, tar};
use ociseek_testkit::servers::skip;

fn deflated(content: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(content).unwrap();
    gzip.finish().unwrap()
}

fn frame(content: &[u8], level: i32, has_checksum: bool) -> Vec<u8> {
    let mut encoder = ::zstd::Encoder::new(Vec::new(), level).unwrap();
    encoder.include_checksum(has_checksum).unwrap();
    // With small windows, even layers of this size have several spans.
    encoder.window_log(11).unwrap();
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Whether a program is there. If not, this prints a line.
fn has(program: &str) -> bool {
    let found =
        Command::new(program).arg("--version").output().is_ok_and(|said| said.status.success());
    if !found {
        skip(&format!("{program} is missing: documents of zstd layers"));
    }
    found
}

fn second_reader(layout: &Path) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fine_reader.py");
    if !has("python3") || !has("zstd") {
        return None;
    }
    let output = Command::new("python3").arg(script).arg(layout).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_reader_written_from_the_specification_reads_every_kind_of_document() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let tars: Vec<Vec<u8>> = (0..5).map(|seed| tar(seed, 6, 200_000)).collect();
    let of_frames = [frame(&tars[2][..500_000], 5, true), frame(&tars[2][500_000..], 3, false)];
    let of_members = [deflated(&tars[3][..700_000]), deflated(&tars[3][700_000..])];
    let layers = [
        layout.blob(ZSTD, &frame(&tars[0], 3, true)),
        layout.blob(ZSTD, &frame(&tars[1], 12, false)),
        layout.blob(ZSTD, &of_frames.concat()),
        layout.blob(GZIP, &of_members.concat()),
        layout.blob(PLAIN, &tars[4]),
    ];
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
    // Some spans are divided and come first.
    let start: Vec<String> =
        [0, 1, 3].map(|layer| format!("--prefetch-file=/dir{layer}/file3")).into();
    let start: Vec<&str> = start.iter().map(String::as_str).collect();
    for more in [&[][..], &start] {
        let options = [
            "index",
            "--kind=fine",
            "--min-layer-size=0",
            "--no-cache",
            "--format=json",
            "oci:img:v1",
        ];
        let report: Value = sandbox.json(0, &[&options, more].concat());
        assert_eq!(
            report["images"][0]["manifests"][0]["fine"]["documents"].as_array().unwrap().len(),
            5
        );
        let Some(said) = second_reader(&sandbox.path("img")) else { return };
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 5, "{said}");
        for (line, codec) in lines.iter().zip([2, 2, 2, 1, 0]) {
            let (spans, rest) = line
                .strip_prefix(&format!("codec {codec}: "))
                .unwrap()
                .split_once(" spans, ")
                .unwrap();
            assert!(spans.parse::<u32>().unwrap() > 1 && rest.starts_with("6 entries, "), "{said}");
        }
    }
}

/// Whatever the zstd program was told, every span of what it writes decodes to the layer's bytes.
#[test]
fn layers_that_the_zstd_program_compresses_in_its_many_ways_have_sound_documents() {
    const WAYS: [&str; 10] = [
        "--fast=5",
        "-1 --no-check",
        "-3 -T4 -B512KiB",
        "-5 -T2 --rsyncable",
        "-7 --long=27",
        "-9 -T2 --rsyncable --long=27",
        "-6 --target-compressed-block-size=1500",
        "-13 --zstd=wlog=19,clog=18,hlog=18,mml=3",
        "-16 --single-thread",
        "--ultra -22",
    ];
    if !has("zstd") {
        return;
    }
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layers = (0..).zip(WAYS).map(|(seed, way)| {
        let path = sandbox.path("layer");
        // The second half, after a tar without its end, repeats the first one from far away.
        let half = tar(seed, 5, 400_000);
        std::fs::write(&path, [&half[..half.len() - 1024], &half].concat()).unwrap();
        let output =
            Command::new("zstd").args(way.split(' ')).arg("-qc").arg(path).output().unwrap();
        assert!(output.status.success(), "{way}: {}", String::from_utf8_lossy(&output.stderr));
        layout.blob(ZSTD, &output.stdout)
    });
    let layers: Vec<Value> = layers.collect();
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
    let report = sandbox.json(
        0,
        &[
            "index",
            "--kind=fine",
            "--min-layer-size=0",
            "--no-cache",
            "--format=json",
            "oci:img:v1",
        ],
    );
    assert_eq!(
        report["images"][0]["manifests"][0]["fine"]["documents"].as_array().unwrap().len(),
        WAYS.len()
    );
    // The image's config lists no layers, which is reported too.
    let verified = sandbox.run(&["verify", "--no-cache", "oci:img:v1"]);
    assert!(verified.contains(&format!(": ok ({0} of {0} layers", WAYS.len())), "{verified}");
}
