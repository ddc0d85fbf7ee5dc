//! The memory that a large layer takes, from a registry that generates it while it is sent.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress};
use futures_util::stream;
use ociseek_format::digest::{Algorithm, Hasher};
use ociseek_format::image::Descriptor;
use serde_json::json;

use super::aws::FakeEcr;
use super::pushed;
use super::runtime_api::{Bootstrap, RuntimeApi};
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::image::image_manifest;
use ociseek_testkit::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST};

const MIB: usize = 1 << 20;

/// A registry with an image that has one layer of any size.
struct Big {
    registry: Faulty,
    /// The digest of the image's manifest.
    digest: String,
}

/// One MiB of noise, and the same as deflate blocks that do not refer to earlier data.
fn segment() -> (Vec<u8>, Bytes) {
    let mut state = 1u32;
    let plain: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    })
    .take(MIB)
    .collect();
    let mut encoder = Compress::new(Compression::fast(), false);
    let mut deflated = Vec::with_capacity(2 * MIB);
    encoder.compress_vec(&plain, &mut deflated, FlushCompress::Full).unwrap();
    (plain, deflated.into())
}

/// The pieces of the gzip of a tar with a file of `mib` MiB.
fn pieces(mib: usize) -> Vec<Bytes> {
    let (plain, deflated) = segment();
    let mut tar_header = tar::Header::new_gnu();
    tar_header.set_path("big").unwrap();
    tar_header.set_size((mib * MIB) as u64);
    tar_header.set_mode(0o644);
    tar_header.set_mtime(1_700_000_000);
    tar_header.set_cksum();
    let stored = |data: &[u8], last: u8| {
        let length = data.len() as u16;
        Bytes::from([&[last], &length.to_le_bytes()[..], &(!length).to_le_bytes(), data].concat())
    };
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(tar_header.as_bytes());
    // Combining checksums is cheaper than reading each MiB again.
    let mut one = crc32fast::Hasher::new();
    one.update(&plain);
    (0..mib).for_each(|_| checksum.combine(&one));
    checksum.update(&[0; 1024]);
    let size = (512 + mib * MIB + 1024) as u32;
    let mut pieces =
        vec![Bytes::from_static(b"\x1f\x8b\x08\0\0\0\0\0\0\x03"), stored(tar_header.as_bytes(), 0)];
    pieces.extend(std::iter::repeat_n(deflated, mib));
    pieces.push(stored(&[0; 1024], 1));
    pieces.push(Bytes::from([checksum.finalize().to_le_bytes(), size.to_le_bytes()].concat()));
    pieces
}

/// The registry, which requires `password`.
async fn registry(password: &str, mib: usize) -> Big {
    let pieces = pieces(mib);
    let mut hasher = Hasher::new(Algorithm::Sha256);
    pieces.iter().for_each(|piece| hasher.update(piece));
    let size: usize = pieces.iter().map(Bytes::len).sum();
    let layer = Descriptor::new(GZIP, hasher.finish(), size as u64);
    let path = format!("/blobs/{}", layer.digest);
    let settings = RegistrySettings {
        referrers: true,
        basic: Some(("AWS".into(), password.into())),
        ..RegistrySettings::default()
    };
    let registry = Faulty::start(settings, move |seen, _| {
        if !seen.is("GET", &path) || seen.header("authorization").is_none() {
            return None;
        }
        let body = stream::iter(pieces.clone().into_iter().map(Ok::<_, std::io::Error>));
        Some(
            Response::builder()
                .header(header::CONTENT_LENGTH, size)
                .body(Body::from_stream(body))
                .unwrap(),
        )
    })
    .await;
    let config = json!({"os": "linux", "architecture": "amd64"}).to_string();
    let manifest = image_manifest(&Descriptor::of(OCI_CONFIG, config.as_bytes()), &[layer]);
    registry.add_blob(config);
    let digest = registry.add_manifest("v1", OCI_MANIFEST, manifest.to_string()).to_string();
    Big { registry, digest }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_layer_of_2_gib_takes_less_than_256_mib_of_memory() {
    let registry = registry("p", 2048).await;
    let ecr = FakeEcr::start("p").await;
    let (api, address) = RuntimeApi::start().await;
    let function = Bootstrap::start(
        &address,
        &[("AWS_ENDPOINT_URL_ECR", &ecr.url), ("OCISEEK_ECR_REGISTRY", &registry.registry.host())],
    );
    let answer = api.invoke(pushed("app", &registry.digest, "v1"), Duration::from_secs(600)).await;
    assert!(answer.ok, "{answer:?}");
    assert_eq!(answer.body["images"][0]["status"], "indexed");
    assert!(answer.body["images"][0]["bytes_read"].as_u64().unwrap() >= 2 << 30);
    let peak = function.child.peak_memory() >> 20;
    println!("a layer of 2 GiB in {:.1} s, {peak} MiB at the peak", answer.took.as_secs_f64());
    assert!(peak < 256, "{peak} MiB");
}
