//! Conversion from and to registries and layouts: what is sent and kept, and what an interrupted or
//! refused run leaves behind.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use ociseek_format::digest::Digest;
use serde_json::Value;

use super::maker::{Maker, OCI_CONFIG, OCI_INDEX, OCI_MANIFEST, attestation, linux, on};
use ociseek_testkit::faulty::{
    Faulty, OpenResponses, ReceivedRequest, RegistrySettings, cut, problem, status,
};
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::{Server, run, tool};

const SMALL: [&str; 4] = ["--min-layer-size=0", "--span-size=16KiB", "--no-cache", "--jobs=2"];

pub(super) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.arg("convert").args(SMALL).args(["--format=json", "--progress=none"]).args(args);
    command.stdin(Stdio::null());
    command
}

fn converted(args: &[&str]) -> Value {
    let output = command(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The error of a run that must fail with this status.
fn refused(code: i32, args: &[&str]) -> String {
    let Output { status, stderr, .. } = command(args).output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{args:?}: {text}");
    text
}

/// An image for two platforms with attestations, under the tag `v1` of a layout.
pub fn image(dir: &Path) -> String {
    let maker = Maker::new(dir);
    let images = [maker.image("amd64", 1), maker.image("arm64", 2)];
    let attestations = images.clone().map(|image| attestation(&maker, &image));
    let index = maker.index(&[&images[..], &attestations[..]].concat());
    maker.root(super::maker::with(
        &index,
        r#""annotations":{"org.opencontainers.image.ref.name":"v1"}"#,
    ));
    super::maker::digest(&index).to_owned()
}

/// Copies a layout to a registry, with its image under the tag `v1`.
pub(super) fn load(registry: &Faulty, layout: &Path, root: &str) {
    for file in std::fs::read_dir(layout.join("blobs/sha256")).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let digest = Digest::sha256(&bytes).to_string();
        let document: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        match document["mediaType"].as_str() {
            Some(media_type) => {
                let reference = if digest == root { "v1" } else { &digest };
                registry.add_manifest(reference, media_type, bytes.clone());
            }
            None => drop(registry.add_blob(bytes)),
        }
    }
}

/// Checks that all content named by a tag of a registry exists.
pub(super) fn assert_whole(registry: &Faulty, tag: &str) {
    let mut todo = vec![tag.to_owned()];
    while let Some(reference) = todo.pop() {
        let bytes = registry
            .manifest(&reference)
            .unwrap_or_else(|| panic!("manifest {reference} is not there"));
        let document: Value = serde_json::from_slice(&bytes).unwrap();
        let digests = |key: &str| -> Vec<String> {
            let list = document[key].as_array().into_iter().flatten();
            list.map(|descriptor| descriptor["digest"].as_str().unwrap().to_owned()).collect()
        };
        todo.extend(digests("manifests"));
        let config = document["config"]["digest"].as_str().map(str::to_owned);
        for blob in digests("layers").into_iter().chain(config) {
            assert!(registry.blob(&blob.parse().unwrap()).is_some(), "blob {blob} is not there");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_killed_at_any_request_leaves_the_old_image_or_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    image(&dir.path().join("l"));
    let source = format!("oci:{}:v1", dir.path().join("l").display());
    let mut done = false;
    let mut last = 0;
    let mut kills = 0;
    while !done {
        for applied in [false, true] {
            let pid = Arc::new(AtomicI32::new(0));
            let requests = Arc::new(AtomicUsize::new(0));
            let at = last;
            let killed = Arc::clone(&pid);
            let counted = Arc::clone(&requests);
            let registry = Faulty::start(
                RegistrySettings::default(),
                move |seen: &ReceivedRequest, faulty: &Faulty| {
                    (counted.fetch_add(1, Ordering::SeqCst) == at).then(|| {
                        let answer = if applied { faulty.truth_now(seen) } else { status(500) };
                        while killed.load(Ordering::SeqCst) == 0 {
                            std::thread::yield_now();
                        }
                        let pid =
                            rustix::process::Pid::from_raw(killed.load(Ordering::SeqCst)).unwrap();
                        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                        answer
                    })
                },
            )
            .await;
            let old =
                registry.add_manifest("v2", OCI_INDEX, r#"{"schemaVersion":2,"manifests":[]}"#);
            let target = format!("{}/app:v2", registry.host());
            let output = tokio::task::spawn_blocking({
                let source = source.clone();
                move || {
                    let child = command(&["--replace-tag", &source, &target])
                        .stderr(Stdio::piped())
                        .stdout(Stdio::piped())
                        .spawn()
                        .unwrap();
                    pid.store(child.id() as i32, Ordering::SeqCst);
                    child.wait_with_output().unwrap()
                }
            })
            .await
            .unwrap();
            let now = Digest::sha256(&registry.manifest("v2").unwrap());
            if now != old {
                assert_whole(&registry, "v2");
            }
            match output.status.code() {
                None => kills += 1,
                Some(code) => {
                    assert_eq!(code, 0, "{}", String::from_utf8_lossy(&output.stderr));
                    assert_ne!(now, old);
                    done = true;
                }
            }
        }
        last += 1;
    }
    assert!(kills > 20, "{kills} runs were killed");
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_streamed_resumed_and_verified() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("l");
    let root = image(&layout);
    let here = converted(&[
        &format!("oci:{}:v1", layout.display()),
        &format!("oci:{}:v2", dir.path().join("o").display()),
    ]);

    // Each blob is truncated if it is requested from its start.
    let from = Faulty::start(RegistrySettings::default(), |seen, faulty| {
        let whole = seen.is("GET", "/blobs/sha256") && seen.header("range").is_none();
        let digest = seen.path.rsplit('/').next().unwrap_or_default().to_owned();
        let content = digest
            .parse()
            .ok()
            .and_then(|digest| faulty.blob(&digest))
            .filter(|b| whole && b.len() > 1000)?;
        Some(cut(faulty.truth_now(seen), &content, content.len() / 2))
    })
    .await;
    load(&from, &layout, &root);
    let to = Faulty::honest(RegistrySettings::default()).await;
    let source = format!("{}/a:v1", from.host());
    let target = format!("{}/b:v2", to.host());
    let report = tokio::task::spawn_blocking(move || converted(&[&source, &target])).await.unwrap();
    assert_eq!(report["digest"], here["digest"]);
    assert!(report["bytes_copied"].as_u64().unwrap() > 1000, "{report}");
    assert_whole(&to, "v2");

    // Other bytes of the same length are not the layer, so nothing is tagged.
    let layer = report["manifests"][0]["layers"][0]["digest"].as_str().unwrap().to_owned();
    let wrong = layer.clone();
    let from = Faulty::start(RegistrySettings::default(), move |seen, faulty| {
        let length = faulty.blob(&wrong.parse().unwrap())?.len();
        let answer = axum::response::Response::builder()
            .body(axum::body::Body::from(vec![0; length]))
            .unwrap();
        seen.is("GET", &wrong).then_some(answer)
    })
    .await;
    load(&from, &layout, &root);
    let to = Faulty::honest(RegistrySettings::default()).await;
    let source = format!("{}/a:v1", from.host());
    let target = format!("{}/b:v2", to.host());
    // Small layers are copied without examining their content, but their digests are verified.
    let args = move || refused(1, &["--platform=linux/arm64", &source, &target]);
    let said = tokio::task::spawn_blocking(args).await.unwrap();
    assert!(said.contains(&layer), "{said}");
    assert!(to.manifest("v2").is_none() && to.blob(&layer.parse().unwrap()).is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ztocs_of_an_up_to_date_image_are_checked_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let maker = Maker::new(dir.path());
    let platforms = ["amd64", "arm64", "386", "s390x", "riscv64", "ppc64le", "mips64le", "loong64"];
    let images: Vec<String> =
        platforms.iter().zip(1..).map(|(platform, seed)| maker.image(platform, seed)).collect();
    let first = Faulty::honest(RegistrySettings::default()).await;
    load(&first, dir.path(), super::maker::digest(&maker.index(&images)));
    let convert = |registry: &Faulty| {
        let [source, target] = ["v1", "v2"].map(|tag| format!("{}/a:{tag}", registry.host()));
        tokio::task::spawn_blocking(move || converted(&[&source, &target]))
    };
    let report = convert(&first).await.unwrap();
    let ztocs: Vec<String> = report["manifests"].as_array().unwrap().iter().map(ztoc).collect();
    assert_eq!(ztocs.len(), platforms.len());

    let open = Arc::new(OpenResponses::default());
    let counting = Arc::clone(&open);
    let second = first
        .copy(move |seen, registry| {
            let ztoc = ztocs.iter().find(|ztoc| seen.is("GET", ztoc))?;
            Some(counting.answer(registry.truth_now(seen), registry.blob(&ztoc.parse().unwrap())?))
        })
        .await;
    assert_eq!(convert(&second).await.unwrap()["status"], "already-there");
    assert!((2..=4).contains(&open.most()), "{} at a time", open.most());
}

/// Its prefetch list would be lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_soci_index_that_cannot_be_read_now_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let root = image(dir.path());
    let first = Faulty::honest(RegistrySettings::default()).await;
    load(&first, dir.path(), &root);
    let names = |registry: &Faulty| ["v1", "v2"].map(|tag| format!("{}/a:{tag}", registry.host()));
    let [source, target] = names(&first);
    let report = tokio::task::spawn_blocking(move || converted(&[&source, &target])).await.unwrap();
    let index = report["manifests"][0]["index"]["digest"].as_str().unwrap().to_owned();
    let second = first
        .copy(move |seen, _| seen.is("GET", &index).then(|| problem(403, "DENIED", "not now")))
        .await;
    let [source, target] = names(&second);
    let args = move || refused(1, &["--build-tool-identifier=another", &source, &target]);
    let said = tokio::task::spawn_blocking(args).await.unwrap();
    assert!(said.contains("cannot read the destination's current image"), "{said}");
    assert_eq!(second.manifest("v2"), first.manifest("v2"));
}

/// The digest of the ztoc of a platform's first layer.
fn ztoc(manifest: &Value) -> String {
    manifest["layers"][0]["ztoc"]["digest"].as_str().unwrap().to_owned()
}

/// In a real registry: within a repository, across repositories, and to another registry.
fn in_a_registry(server: &Server, other: &Server) -> Option<()> {
    let regctl = tool("regctl")?;
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("l");
    image(&layout);
    let host = |server: &Server| format!("reg={},tls=disabled", server.host);
    let source = format!("{}/team/app:v1", server.host);
    run(
        &regctl,
        &[
            "--host",
            &host(server),
            "image",
            "copy",
            &format!("ocidir://{}:v1", layout.display()),
            &source,
        ],
    );
    let expected = converted(&[
        &format!("oci:{}:v1", layout.display()),
        &format!("oci:{}:v2", dir.path().join("o").display()),
    ]);

    let beside = format!("{}/team/app:v1-soci", server.host);
    let first = converted(&[&source, &beside]);
    assert_eq!(
        (&first["digest"], &first["status"], &first["bytes_copied"]),
        (&expected["digest"], &"written".into(), &0.into())
    );
    // What the destination says is not taken over, unless the user names it.
    let again = converted(&[&source, &beside]);
    assert_eq!(
        (&again["status"], &again["bytes_read"]),
        (&"already-there".into(), &first["bytes_read"]),
        "{again}"
    );
    let named = converted(&[&format!("--reuse-from={beside}"), &source, &beside]);
    assert_eq!(
        (&named["status"], &named["bytes_read"]),
        (&"already-there".into(), &0.into()),
        "{named}"
    );

    let mounted = converted(&[&source, &format!("{}/mirror/app:v2", server.host)]);
    assert_eq!((&mounted["digest"], &mounted["bytes_copied"]), (&expected["digest"], &0.into()));
    let sent = converted(&[&beside, &format!("{}/far/app:v2", other.host)]);
    assert_eq!(
        (&sent["digest"], &sent["bytes_read"]),
        (&expected["digest"], &0.into()),
        "the ztocs were there"
    );
    assert!(sent["bytes_copied"].as_u64() > Some(0));

    for target in [
        beside.clone(),
        format!("{}/mirror/app:v2", server.host),
        format!("{}/far/app:v2", other.host),
    ] {
        for args in [
            &["verify", &target][..],
            &["ls", &target],
            &["cat", &target, "d1/file"],
            &["doctor", &target],
        ] {
            let mut command = Command::new(program());
            let output = command.args(args).arg("--platform=linux/amd64").output().unwrap();
            let said = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&said));
        }
    }
    // The tag of the source is only replaced on request. The old image still exists under its
    // digest.
    let said = refused(1, &[&source, &source]);
    assert!(said.contains("--replace-tag"), "{said}");
    let replaced = converted(&["--replace-tag", &source, &source]);
    assert_eq!(
        (&replaced["digest"], &replaced["replaced"]),
        (&expected["digest"], &first["source_digest"])
    );
    let old = format!("{}/team/app@{}", server.host, first["source_digest"].as_str().unwrap());
    run(&regctl, &["--host", &host(server), "manifest", "get", &old, "--format", "raw-body"]);
    let now = run(&regctl, &["--host", &host(server), "manifest", "head", &source]);
    assert_eq!(now.trim(), expected["digest"].as_str().unwrap());
    Some(())
}

#[test]
fn images_are_converted_in_olareg_and_copied_to_distribution() {
    let Some(olareg) = Server::olareg(|_, _| Vec::new()) else { return };
    let Some(other) = Server::distribution("127.0.0.1:0", |_| String::new()) else { return };
    in_a_registry(&olareg, &other);
}

#[test]
fn images_are_converted_in_distribution_and_copied_to_olareg() {
    let Some(server) = Server::distribution("127.0.0.1:0", |_| String::new()) else { return };
    let Some(other) = Server::olareg(|_, _| Vec::new()) else { return };
    in_a_registry(&server, &other);
}

#[test]
fn tags_in_a_layout_are_kept_unless_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("l");
    let root = image(&layout);
    let name = |tag: &str| format!("oci:{}{tag}", layout.display());
    let said = refused(1, &[&name(":v1"), &name(":v1")]);
    assert!(said.contains("--replace-tag") && said.contains(&root), "{said}");
    assert!(refused(2, &[&name(":v1"), &name("")]).contains("a different tag"));
    assert!(refused(2, &[&name(":v1"), &name(&format!("@{root}"))]).contains("not a digest"));
    assert!(refused(2, &[&name(":v1"), "oci-archive:x.tar:v1"]).contains("read-only"));
    assert!(refused(2, &[&name(":v1"), &format!("localhost:1/x@{root}")]).contains("not a digest"));
    // A dry run writes nothing, not even a layout.
    let before = std::fs::read(layout.join("index.json")).unwrap();
    let dry = converted(&["--dry-run", &name(":v1"), &name(":v2")]);
    assert_eq!((&dry["status"], &dry["replaced"]), (&"dry-run".into(), &Value::Null));
    converted(&["--dry-run", &name(":v1"), &format!("oci:{}", dir.path().join("new").display())]);
    assert!(!dir.path().join("new").exists());
    assert_eq!(std::fs::read(layout.join("index.json")).unwrap(), before);

    let beside = converted(&[&name(":v1"), &name(":v2")]);
    assert_eq!(beside["digest"], dry["digest"]);
    assert_eq!(beside["bytes_copied"], 0);
    let over = converted(&["--replace-tag", &name(":v1"), &name(":v1")]);
    assert_eq!((&over["digest"], over["replaced"].as_str()), (&dry["digest"], Some(root.as_str())));
    // The original no longer has a name, but can be found by digest.
    let again = converted(&["--dry-run", &name(&format!("@{root}")), &name(":v3")]);
    assert_eq!(again["digest"], dry["digest"]);
}

#[test]
fn a_second_conversion_with_other_options_replaces_the_first() {
    let dir = tempfile::tempdir().unwrap();
    image(&dir.path().join("l"));
    let name = |tag: &str| format!("oci:{}:{tag}", dir.path().join("l").display());
    let first = converted(&[&name("v1"), &name("v2")]);
    let tool = "--build-tool-identifier=another";
    let direct = converted(&[tool, &name("v1"), &name("v3")]);
    let through = converted(&[tool, &name("v2"), &name("v2"), "--replace-tag"]);
    assert_eq!(through["digest"], direct["digest"]);
    assert_eq!(through["replaced"], first["digest"]);
    assert!(
        refused(1, &[&name("v2"), &name("v2")]).contains("--replace-tag"),
        "it would change the tag of its source"
    );
}

/// As in a layout that was exported for one platform.
#[test]
fn a_missing_soci_index_of_another_platform_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let layout = dir.path().join("l");
    let out = dir.path().join("out");
    image(&layout);
    let name = |tag: &str| format!("oci:{}:{tag}", layout.display());
    let both = converted(&[&name("v1"), &name("v2")]);
    let [amd64, arm64] =
        [0, 1].map(|at: usize| both["manifests"][at]["index"]["digest"].as_str().unwrap());
    let blob = |dir: &Path, digest: &str| {
        dir.join("blobs/sha256").join(digest.strip_prefix("sha256:").unwrap())
    };
    std::fs::remove_file(blob(&layout, arm64)).unwrap();
    let one =
        converted(&["--platform=linux/amd64", &name("v2"), &format!("oci:{}:v2", out.display())]);
    let index = std::fs::read(blob(&out, one["digest"].as_str().unwrap())).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let listed: Vec<&str> = index["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["digest"].as_str().unwrap())
        .collect();
    assert!(listed.contains(&amd64) && !listed.contains(&arm64), "{listed:?}");
    assert!(listed.iter().all(|digest| blob(&out, digest).exists()), "{listed:?}");
}

#[test]
fn hostile_image_indexes_get_a_clear_error_and_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let make = |name: &str, make: &dyn Fn(&Maker) -> String| {
        let maker = Maker::new(&dir.path().join(name));
        let root = make(&maker);
        maker.root(root);
        (format!("oci:{}", maker.dir.display()), dir.path().join(format!("{name}-out")))
    };
    let many = |count: usize| {
        move |maker: &Maker| {
            let images: Vec<String> = vec![maker.image("amd64", 1); count];
            maker.index(&images)
        }
    };
    let deep = |maker: &Maker| {
        let inner = (0..6).fold(maker.image("amd64", 1), |inner, _| maker.index(&[inner]));
        maker.index(&[maker.image("amd64", 1), inner])
    };
    let large = |maker: &Maker| {
        let padding = format!(r#","annotations":{{"x":"{}"}}"#, "x".repeat(4 << 20));
        maker.index_as(OCI_INDEX, &[maker.image("amd64", 1), maker.image("arm64", 2)], &padding)
    };
    let repeated = |maker: &Maker| {
        let padding = format!(r#","annotations":{{"x":"{}"}}"#, "x".repeat(4_000_000));
        let config = maker.blob(OCI_CONFIG, b"{}");
        let image = maker.manifest_as(OCI_MANIFEST, &config, &[maker.layer(1)], &padding);
        maker.index(&vec![on(&image, &linux("amd64")); 20])
    };
    let liar = |maker: &Maker| {
        let image = maker.image("amd64", 1);
        let size =
            image.split_once(r#""size":"#).unwrap().1.split([',', '}']).next().unwrap().to_owned();
        maker.index(&[
            image.replace(&format!(r#""size":{size}"#), r#""size":1"#),
            maker.image("arm64", 2),
        ])
    };
    let path = |maker: &Maker| {
        let image = maker.image("amd64", 1);
        let digest = super::maker::digest(&image).to_owned();
        maker
            .index(&[image.replace(&digest, "sha256:../../../etc/passwd"), maker.image("arm64", 2)])
    };
    let itself = |maker: &Maker| {
        // Content cannot contain its own digest, so the index names a missing one.
        maker.index(&[
            maker.image("amd64", 1),
            on(&maker.index(&[]), r#""architecture":"x","os":"y""#),
        ])
    };
    for (name, (source, out), said) in [
        ("many", make("many", &many(1001)), "at most 1000 can be converted"),
        ("more", make("more", &many(10_001)), "more than 10000 elements"),
        ("deep", make("deep", &deep), "nested more than 4 deep"),
        ("large", make("large", &large), "bytes; the limit is 4MiB"),
        ("repeated", make("repeated", &repeated), "exceed 67108864 bytes in total"),
        ("liar", make("liar", &liar), "bytes, but its descriptor says 1"),
        ("path", make("path", &path), "invalid digest"),
    ] {
        let error = refused(1, &[&source, &format!("oci:{}:v2", out.display())]);
        assert!(error.contains(said), "{name}: {error}");
        let index = std::fs::read_to_string(out.join("index.json")).unwrap_or_default();
        assert!(!index.contains("sha256"), "{name}: {index}");
    }
    // Many entries for a platform, or an empty index next to an image, do no harm.
    for (name, (source, out)) in
        [("twice", make("twice", &many(900))), ("empty", make("empty", &itself))]
    {
        let report = converted(&[&source, &format!("oci:{}:v2", out.display())]);
        assert_eq!(report["manifests"].as_array().map(Vec::len), Some(1), "{name}");
    }
}

/// Runtimes choose entries by their mediaType, so one without it is not indexed. It is kept, with
/// an empty mediaType, as Go writes it.
#[test]
fn an_entry_without_a_media_type_is_kept_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let maker = Maker::new(&dir.path().join("in"));
    let [image, other] = [maker.image("amd64", 1), maker.image("arm64", 2)];
    let bare = other.replace(&format!(r#""mediaType":"{OCI_MANIFEST}","#), "");
    assert_ne!(bare, other);
    let index = maker.index(&[image, bare.clone()]);
    maker.root(index);
    let from = format!("oci:{}", dir.path().join("in").display());
    let output = command(&[&from, &format!("oci:{}:v2", dir.path().join("out").display())])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    let mut bare: Value = serde_json::from_str(&bare).unwrap();
    bare["mediaType"] = "".into();
    let digest = bare["digest"].as_str().unwrap();
    let warning = format!(
        "warning: {digest} was not indexed: its entry has no mediaType, which runtimes need\n"
    );
    assert_eq!(stderr.matches(&warning).count(), 1, "{stderr}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let made = report["digest"].as_str().unwrap().trim_start_matches("sha256:");
    let made = std::fs::read(dir.path().join("out/blobs/sha256").join(made)).unwrap();
    let made: Value = serde_json::from_slice(&made).unwrap();
    assert!(made["manifests"].as_array().unwrap().contains(&bare), "{made}");
}
