//! A table of hostile images: for any of them, each command ends by itself, with one of its exit
//! codes, and within the memory limit. The table is printed with the peaks.
//!
//! Address space is limited too (see [`run`]), so a single huge allocation aborts the process and
//! is detected.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use ociseek::digest::Digest;
use serde_json::{Value, json};

use super::budget::{MIB, PROMISED, descriptor, manifest, run};
use crate::support::faulty::{Faulty, Nature};
use crate::support::sandbox::{GZIP, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, Sandbox, ZSTD, gzip, tar};
use crate::support::tarball::{Block, end, entry, file, pax};

/// Commands that read or write an image.
const COMMANDS: [&[&str]; 6] = [
    &["index", "--min-layer-size=0", "--no-cache"],
    &["ls", "--no-cache"],
    &["cat", "--no-cache"],
    &["verify"],
    &["inspect"],
    &["doctor"],
];

fn compressed(pieces: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    pieces.for_each(|piece| encoder.write_all(&piece).unwrap());
    encoder.finish().unwrap()
}

/// A tar with one file of zeros, in pieces.
fn zeros(mib: u64) -> impl Iterator<Item = Vec<u8>> {
    let header = Block { name: b"zeros".to_vec(), size: (mib << 20) as i64, ..Block::default() }.bytes();
    std::iter::once(header).chain((0..mib).map(|_| vec![0; 1 << 20])).chain([end()])
}

fn zstd(pieces: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    pieces.for_each(|piece| encoder.write_all(&piece).unwrap());
    encoder.finish().unwrap()
}

/// An image with these layers. Returns its name.
fn image(registry: &Faulty, n: usize, layers: &[(&str, Vec<u8>)]) -> String {
    let layers: Vec<Value> =
        layers.iter().map(|(kind, blob)| descriptor(kind, registry.add_blob(blob.clone()), blob.len())).collect();
    let image = manifest(registry, n, &layers);
    format!("{}/a/b@{}", registry.host(), image["digest"].as_str().unwrap())
}

/// A manifest with this text, under a tag.
fn document(registry: &Faulty, tag: &str, kind: &str, text: impl Into<String>) -> String {
    registry.add_manifest(tag, kind, text.into());
    format!("{}/a/b:{tag}", registry.host())
}

/// The images, by their fault.
fn images(registry: &Faulty) -> Vec<(&'static str, String)> {
    let small = || gzip(&tar(1, 1, 1000));
    let many_names = (0..100_000).map(|n| entry(b'0', &format!("dir/{n}"), "")).chain([end()]);
    let many_members = || (0..50_000).flat_map(|_| gzip(b"")).collect::<Vec<u8>>();
    let xattr = vec![b'x'; 60_000];
    let attributes = (0..500).flat_map(|n| {
        let records = [("SCHILY.xattr.user.k", &xattr[..])];
        [pax(b'x', &records), file(&format!("f{n}"), b"")]
    });
    let long_names = (0..80).flat_map(|n| {
        let path = format!("{}/{n}", "d/".repeat(500_000));
        [pax(b'x', &[("path", path.as_bytes())]), file("f", b"")]
    });
    let chain = (0..5000).map(|n| entry(b'2', &format!("l{n}"), &format!("l{}", n + 1))).chain([end()]);
    let skipped = {
        let frame = [&b"\x50\x2a\x4d\x18"[..], &0_u32.to_le_bytes()].concat();
        frame.repeat(500_000)
    };
    // A frame that requests a window of 2 GiB.
    let window = b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00".to_vec();
    let own_index = {
        let text = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}).to_string();
        let mut digest = registry.add_manifest("loop", OCI_INDEX, text);
        for _ in 0..40 {
            let one = descriptor(OCI_INDEX, digest, 100);
            let text = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": vec![one; 500]}).to_string();
            digest = registry.add_manifest("loop", OCI_INDEX, text);
        }
        format!("{}/a/b:loop", registry.host())
    };
    let wide_config = {
        let labels: serde_json::Map<String, Value> = (0..100_000).map(|n| (format!("k{n}"), json!("v"))).collect();
        let config = json!({
            "os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [Digest::sha256(b"x")]},
            "config": {"Labels": labels},
        })
        .to_string();
        let layer = small();
        let text = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": descriptor(OCI_CONFIG, registry.add_blob(config.clone()), config.len()),
            "layers": [descriptor(GZIP, registry.add_blob(layer.clone()), layer.len())],
        });
        document(registry, "labels", OCI_MANIFEST, text.to_string())
    };
    let listed = {
        let name = image(registry, 90, &[(GZIP, small())]);
        let digest: Digest = name.split_once('@').unwrap().1.parse().unwrap();
        let entry = |n: usize| {
            let mut entry = descriptor(OCI_MANIFEST, Digest::sha256(&n.to_le_bytes()), 100);
            entry["artifactType"] = "application/vnd.amazon.soci.index.v1+json".into();
            entry
        };
        let list: Vec<Value> = (0..15_000).map(entry).collect();
        let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": list}).to_string();
        registry.add_manifest(&digest.to_string().replace(':', "-"), OCI_INDEX, list);
        name
    };
    vec![
        ("512 MiB of zeros in gzip", image(registry, 1, &[(GZIP, compressed(zeros(512)))])),
        ("1 GiB of zeros in zstd", image(registry, 2, &[(ZSTD, zstd(zeros(1024)))])),
        ("100,000 names in a folder", image(registry, 3, &[(GZIP, compressed(many_names))])),
        ("50,000 empty gzip members", image(registry, 4, &[(GZIP, [many_members(), small()].concat())])),
        ("500,000 skippable zstd frames", image(registry, 5, &[(ZSTD, skipped)])),
        ("a zstd window of 2 GiB", image(registry, 6, &[(ZSTD, window)])),
        ("30 MB of attributes", image(registry, 7, &[(GZIP, compressed(attributes.chain([end()])))])),
        ("80 names of 1 MB", image(registry, 8, &[(GZIP, compressed(long_names.chain([end()])))])),
        ("a chain of 5,000 links", image(registry, 9, &[(GZIP, compressed(chain))])),
        ("9,000 layers that are one", image(registry, 10, &vec![(GZIP, small()); 9000])),
        ("a manifest of 2,000,000 brackets", document(registry, "deep", OCI_MANIFEST, "[".repeat(2_000_000))),
        ("a manifest of 300,000 keys", {
            let keys: String = (0..300_000).map(|n| format!("\"{n}\":0,")).collect();
            document(registry, "wide", OCI_MANIFEST, format!("{{{keys}\"schemaVersion\":2}}"))
        }),
        ("indexes in indexes, 500 to the 40th", own_index),
        ("100,000 labels", wide_config),
        ("15,000 listed indexes", listed),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_images_are_refused_or_read_below_what_is_promised() {
    let registry = Faulty::honest(Nature::default()).await;
    let sandbox = Sandbox::new();
    let (mut table, mut wrong, mut runs) = (String::new(), Vec::new(), 0);
    for (what, image) in images(&registry) {
        let mut peaks = Vec::new();
        for command in COMMANDS {
            let path: &[&str] = if command[0] == "cat" { &["l0"] } else { &[] };
            let ended = run(&sandbox, &[command, &[image.as_str()][..], path].concat());
            peaks.push(format!("{:>4}", ended.peak / MIB));
            runs += 1;
            let is_over = ended.text.contains("panicked") || ended.text.contains("overflowed its stack");
            if is_over || !matches!(ended.code, Some(0 | 1 | 3)) || ended.peak == 0 || ended.peak >= PROMISED {
                let text: String = ended.text.chars().take(500).collect();
                wrong.push(format!("{} of {what}: {:?}, {} MiB: {text}", command[0], ended.code, ended.peak / MIB));
            }
        }
        table += &format!("{what:>40} {}\n", peaks.join(" "));
    }
    let names: Vec<String> = COMMANDS.iter().map(|command| format!("{:>8}", command[0])).collect();
    println!("peaks in MiB of{}, {runs} runs\n{table}", names.join(""));
    assert!(wrong.is_empty(), "{} of {runs} runs:\n{}", wrong.len(), wrong.join("\n"));
}
