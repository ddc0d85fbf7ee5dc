//! Layers, images and archives of builders in public reports of 2025 and 2026. Each row has its
//! source.

use std::path::Path;

use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use ociseek_testkit::image::{image_index, image_manifest};
use ociseek_testkit::layers::text;
use ociseek_testkit::mounts::image_of;
use ociseek_testkit::sandbox::{
    GZIP, Layout, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, PLAIN, Sandbox, ZSTD, for_platform, gzip,
};
use ociseek_testkit::tarball::{end, entry, file, pax};

/// A layer: its tar, its media type, and its blob.
type Layer = (Vec<u8>, &'static str, Vec<u8>);

/// Layers, and what the files of the image are in the end. None for a file that is not there.
struct Layers {
    source: &'static str,
    layers: fn() -> Vec<Layer>,
    files: &'static [(&'static str, Option<&'static [u8]>)],
}

fn plain(entries: &[Vec<u8>]) -> Layer {
    let tar = [entries.concat(), end()].concat();
    (tar.clone(), PLAIN, tar)
}

fn some_files() -> [Vec<u8>; 4] {
    [file("a", b"one"), file("big", &text(1, 300_000)), file("z", b"end"), end()]
}

const LAYERS: &[Layers] = &[
    Layers {
        source: "github.com/composefs/composefs-rs/issues/383 (zstd:chunked)",
        layers: || {
            let tar = some_files().concat();
            let frames = tar.chunks(40_000).map(|part| zstd::encode_all(part, 3).unwrap());
            // The table of contents, and the footer.
            let skipped =
                [&b"\x50\x2a\x4d\x18\x03\0\0\0toc"[..], b"\x50\x2a\x4d\x18\x08\0\0\0GNUlInUx"];
            let blob = [frames.collect::<Vec<_>>().concat(), skipped.concat()].concat();
            vec![(tar, ZSTD, blob)]
        },
        files: &[("/a", Some(b"one")), ("/z", Some(b"end"))],
    },
    Layers {
        source: "github.com/bootc-dev/bootc/issues/2408 (gzip of several members)",
        layers: || {
            let members: Vec<_> = some_files().iter().map(|entry| gzip(entry)).collect();
            vec![(some_files().concat(), GZIP, members.concat())]
        },
        files: &[("/a", Some(b"one")), ("/z", Some(b"end"))],
    },
    Layers {
        source: "github.com/confidential-containers/guest-components/issues/1737",
        layers: || {
            let empty = pax(b'x', &[("SCHILY.xattr.user.overlay.origin", b""), ("mtime", b"1.5")]);
            vec![plain(&[empty, file("a", b"one"), file("z", b"end")])]
        },
        files: &[("/a", Some(b"one")), ("/z", Some(b"end"))],
    },
    Layers {
        source: "github.com/smol-machines/smolvm/pull/401 (a whiteout that is a hard link)",
        layers: || {
            vec![
                plain(&[file("tmp/CERN.repo", b"repo"), file("tmp/key", b"key")]),
                plain(&[entry(b'1', "tmp/.wh.key", "tmp/CERN.repo"), file("z", b"end")]),
            ]
        },
        files: &[("/tmp/key", None), ("/tmp/CERN.repo", Some(b"repo")), ("/z", Some(b"end"))],
    },
    Layers {
        source: "github.com/anchore/stereoscope/pull/694",
        layers: || {
            vec![
                plain(&[file("target/keep", b"keep"), entry(b'2', "link", "/target")]),
                plain(&[
                    entry(b'5', "link/", ""),
                    file("link/.wh..wh..opq", b""),
                    file("link/new", b"new"),
                ]),
            ]
        },
        files: &[
            ("/target/keep", Some(b"keep")),
            ("/link/new", Some(b"new")),
            ("/link/keep", None),
            ("/target/new", None),
        ],
    },
    Layers {
        source: "github.com/tinylabscom/mvm/issues/1674",
        layers: || {
            vec![
                plain(&[file("etc/passwd", b"root"), file("etc/group", b"root")]),
                plain(&[file("etc/passwd", b"root, user"), file("etc/passwd", b"root, user, me")]),
            ]
        },
        files: &[("/etc/passwd", Some(b"root, user, me")), ("/etc/group", Some(b"root"))],
    },
];

#[test]
fn layers_are_read_as_runtimes_unpack_them() {
    for Layers { source, layers, files } in LAYERS {
        let sandbox = Sandbox::new();
        let (tars, layers): (Vec<_>, Vec<_>) =
            layers().into_iter().map(|(tar, kind, blob)| (tar, (kind, blob))).unzip();
        image_of(&sandbox, "img", &layers, &tars, &json!({}));
        // Without an index, and by one.
        for is_indexed in [false, true] {
            if is_indexed {
                let args = ["index", "--kind=v1,fine", "--min-layer-size=0", "oci:img:v1"];
                let said = sandbox.run(&args);
                assert!(said.ends_with("--- status 0 ---"), "{source}: {said}");
            }
            for (path, content) in *files {
                let mut cat = sandbox.command(&["cat", "--no-cache", "oci:img:v1", path]);
                let output = cat.output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr);
                let found = output.status.success().then_some(&output.stdout[..]);
                assert_eq!(found, *content, "{source}, {path}, {is_indexed}: {said}");
            }
        }
    }
}

/// Runtimes do not agree on it: containerd would remove the folder that holds it.
#[test]
fn a_whiteout_of_nothing_is_refused() {
    let source = "github.com/opencontainers/image-spec/issues/1301";
    let sandbox = Sandbox::new();
    let (tar, kind, blob) = plain(&[file(".wh.", b""), file("etc/config.txt", b"new")]);
    let below = plain(&[file("etc/old", b"old")]);
    let layers = [(below.1, below.2), (kind, blob)];
    image_of(&sandbox, "img", &layers, &[below.0, tar], &json!({}));
    let said = sandbox.run(&["ls", "oci:img:v1"]);
    assert!(said.contains("is a whiteout without a name"), "{source}: {said}");
    assert!(said.ends_with("--- status 1 ---"), "{source}: {said}");
}

/// The only layer of an image.
fn layer() -> Vec<u8> {
    [file("a", &text(3, 50_000)), end()].concat()
}

/// A layout with an image for amd64, which has no tag, and the descriptor of the image.
fn image(dir: &Path) -> (Layout, Value) {
    let layout = Layout::new(dir);
    let config = json!({"os": "linux", "architecture": "amd64",
        "rootfs": {"type": "layers", "diff_ids": [Digest::sha256(&layer())]}});
    let config = layout.blob(OCI_CONFIG, config.to_string().as_bytes());
    let layers = [layout.blob(GZIP, &gzip(&layer()))];
    let manifest = image_manifest(&config, &layers);
    let image = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
    (layout, image)
}

/// An archive of a folder, in the order of names.
fn archive(sandbox: &Sandbox, folder: &str, to: &str) {
    let members = sandbox.files(folder).into_iter().map(|(path, content)| {
        let name = path.strip_prefix(sandbox.path(folder)).unwrap();
        let name = name.to_str().unwrap();
        file(name, &content)
    });
    let bytes = members.chain([end()]).collect::<Vec<_>>().concat();
    std::fs::write(sandbox.path(to), bytes).unwrap();
}

fn lists(sandbox: &Sandbox, source: &str, image: &str) {
    let text = sandbox.run(&["ls", "--no-cache", image]);
    assert!(text.starts_with("a\n") && text.ends_with("--- status 0 ---"), "{source}: {text}");
}

/// `docker save` of today writes a layout, whose manifest.json names blobs.
#[test]
fn an_archive_of_docker_may_be_a_layout() {
    let source = "github.com/socktainer/socktainer/pull/218";
    let sandbox = Sandbox::new();
    let (mut layout, image) = image(&sandbox.path("img"));
    layout.tag(image.clone(), "v1");
    let blob = |descriptor: &Value| {
        let digest: Digest = descriptor["digest"].as_str().unwrap().parse().unwrap();
        format!("blobs/sha256/{}", digest.hex())
    };
    let manifest = std::fs::read(sandbox.path("img").join(blob(&image))).unwrap();
    let manifest: Value = serde_json::from_slice(&manifest).unwrap();
    let listed = json!([{"Config": blob(&manifest["config"]), "RepoTags": ["app:v1"],
        "Layers": [blob(&manifest["layers"][0])]}]);
    std::fs::write(sandbox.path("img/manifest.json"), listed.to_string()).unwrap();
    archive(&sandbox, "img", "x.tar");
    for name in ["docker-archive:x.tar", "oci-archive:x.tar:v1"] {
        lists(&sandbox, source, name);
    }
}

/// docker's image store has the platforms that were pulled, under the index of all.
#[test]
fn an_index_may_list_what_an_archive_does_not_have() {
    let source = "github.com/anistark/feluda/pull/271";
    let sandbox = Sandbox::new();
    let (mut layout, image) = image(&sandbox.path("img"));
    let absent = |seed: &[u8]| json!({"mediaType": OCI_MANIFEST, "digest": Digest::sha256(seed), "size": 400});
    let mut attestation = absent(b"attestation");
    attestation["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest",
        "vnd.docker.reference.digest": image["digest"]});
    let manifests =
        [for_platform(absent(b"arm"), "arm64"), for_platform(image, "amd64"), attestation];
    let index = layout.image_index(&manifests);
    layout.tag(index, "v1");
    archive(&sandbox, "img", "x.tar");
    let said = sandbox.run(&["ls", "--platform=linux/amd64", "oci-archive:x.tar:v1"]);
    assert!(said.starts_with("a\n"), "{source}: {said}");
    let said = sandbox.run(&["ls", "--platform=linux/arm64", "oci-archive:x.tar:v1"]);
    let missing = Digest::sha256(b"arm").to_string();
    assert!(said.contains(&missing) && said.ends_with("--- status 1 ---"), "{source}: {said}");
    let args = ["index", "--platform=linux/amd64", "--min-layer-size=0", "oci:img:v1"];
    let said = sandbox.run(&args);
    assert!(said.ends_with("--- status 0 ---"), "{source}: {said}");
}

/// An index.json that names an index, with names as containerd gives them.
#[test]
fn an_index_may_be_in_an_index() {
    let source = "github.com/elastic/elastic-agent/issues/12676";
    let sandbox = Sandbox::new();
    let (mut layout, image) = image(&sandbox.path("img"));
    let inner = layout.image_index(&[for_platform(image, "amd64")]);
    let outer = layout.image_index(std::slice::from_ref(&inner));
    layout.tag(inner, "v1");
    layout.tag(outer, "v2");
    for tag in ["v1", "v2"] {
        lists(&sandbox, source, &format!("oci:img:{tag}"));
    }
}

/// `docker save` left out layers that another image has too.
#[test]
fn a_layer_that_is_missing_is_named() {
    let source = "github.com/moby/moby/issues/49473";
    let sandbox = Sandbox::new();
    let (mut layout, image) = image(&sandbox.path("img"));
    layout.tag(image, "v1");
    let layer = Digest::sha256(&gzip(&layer()));
    std::fs::remove_file(sandbox.path("img/blobs/sha256").join(layer.hex())).unwrap();
    for args in [&["ls", "oci:img:v1"][..], &["index", "--min-layer-size=0", "oci:img:v1"]] {
        let said = sandbox.run(args);
        let is_named = said.contains(&layer.to_string()) || said.contains(&layer.hex());
        assert!(is_named && !said.ends_with("--- status 0 ---"), "{source}: {said}");
    }
}

/// BuildKit's cache is an index of layers. It was taken for an image.
#[test]
fn a_build_cache_is_not_an_image() {
    let source = "github.com/searlsco/posse_party/issues/27";
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&[file("a", b"one"), end()].concat()));
    let cache = layout.blob("application/vnd.buildkit.cacheconfig.v0", b"{\"layers\":[]}");
    let index = image_index(&[&layer, &cache]);
    let index = layout.blob(OCI_INDEX, index.to_string().as_bytes());
    layout.tag(index, "index");
    // In the newer form, a manifest whose config is the cache's.
    let manifest = image_manifest(&cache, &[layer]);
    let manifest = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
    layout.tag(manifest, "manifest");
    for tag in ["index", "manifest"] {
        for command in ["index", "convert"] {
            let name = format!("oci:img:{tag}");
            let args = match command {
                "convert" => vec![command, &name, "oci:img:new"],
                _ => vec![command, &name],
            };
            let said = sandbox.run(&args);
            assert!(!said.ends_with("--- status 0 ---"), "{source}: {said}");
            assert!(said.contains("error: "), "{source}: {said}");
        }
    }
}
