//! `ociseek doctor`: each possible state of an image's indexes, in real registries and layouts.

use std::io::{Read, Write};
use std::net::TcpStream;

use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use super::push;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, status};
use ociseek_testkit::sandbox::{
    Layout, OCI_INDEX, OCI_MANIFEST, Sandbox, enabled, index, tar, two_platforms,
};
use ociseek_testkit::servers::Server;

/// The manifest with number `place` in the report on `image`, after a run that must end with
/// `status`.
fn diagnosis(sandbox: &Sandbox, status: i32, place: usize, image: &str) -> Value {
    let report = sandbox.json(status, &["doctor", "--all-platforms", "--format=json", image]);
    assert_eq!(report["lazy"], status == 0);
    report["manifests"][place].clone()
}

/// The consumer's verdict: `v1`, `v2`, or the reason for neither.
fn verdict(diagnosis: &Value, consumer: &str) -> String {
    let all = diagnosis["consumers"].as_array().unwrap();
    let found = all.iter().find(|c| c["consumer"] == consumer).unwrap();
    assert_eq!(found["lazy"], found["reason"].is_null());
    match found["version"].as_u64() {
        Some(version) => format!("v{version}"),
        None => found["reason"]["code"].as_str().unwrap().to_owned(),
    }
}

/// All verdicts, in the order of the report.
fn verdicts(diagnosis: &Value) -> Vec<String> {
    let all = diagnosis["consumers"].as_array().unwrap();
    all.iter().map(|c| verdict(diagnosis, c["consumer"].as_str().unwrap())).collect()
}

fn problems(diagnosis: &Value) -> Vec<&str> {
    let all = diagnosis["findings"].as_array().unwrap().iter();
    all.filter(|f| f["problem"] == true).map(|f| f["code"].as_str().unwrap()).collect()
}

fn notes(diagnosis: &Value) -> Vec<&str> {
    let all = diagnosis["findings"].as_array().unwrap().iter();
    all.filter(|f| f["problem"] == false).map(|f| f["code"].as_str().unwrap()).collect()
}

/// Runs the command that the report suggests for a finding, with the small sizes of these images.
fn follow(sandbox: &Sandbox, diagnosis: &Value, code: &str) {
    let all = diagnosis["findings"].as_array().unwrap();
    let next = all.iter().find(|f| f["code"] == code).unwrap()["next"].as_str().unwrap();
    let words: Vec<&str> = next.split(' ').collect();
    assert_eq!(words[..2], ["ociseek", "index"], "{next}");
    let text =
        sandbox.run(&[&["index", "--no-cache", "--min-layer-size=1KiB"], &words[2..]].concat());
    assert!(text.ends_with("--- status 0 ---"), "{text}");
}

fn request(server: &Server, head: &str) {
    let mut stream = TcpStream::connect(&server.host).unwrap();
    write!(stream, "{head} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.host)
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 2"), "{head}: {answer}");
}

fn first_index(sandbox: &Sandbox, image: &str) -> Value {
    sandbox.doctor(image)["manifests"][0]["indexes"][0].clone()
}

/// With the referrers API and without.
fn registries() -> impl Iterator<Item = Server> {
    let olareg = Server::olareg(|_, _| vec!["--api-blob-delete".to_owned()]);
    [olareg, Server::distribution("127.0.0.1:0", |_| String::new())].into_iter().flatten()
}

const NONE: [&str; 7] =
    ["no-index", "no-index", "reads-no-index", "no-index", "zstd", "zstd", "not-in-ecr"];
const V1: [&str; 7] =
    ["other-version-only", "v1", "reads-no-index", "v1", "zstd", "zstd", "not-in-ecr"];

#[test]
fn doctor_finds_missing_and_damaged_indexes_and_its_advice_helps() {
    for server in registries() {
        let sandbox = Sandbox::with_small_image();
        let Some(image) = push(&sandbox, "img", &server, &[]) else { return };
        let none = diagnosis(&sandbox, 3, 0, &image);
        assert_eq!(verdicts(&none), NONE);
        assert_eq!(
            (problems(&none), notes(&none)),
            (vec!["no-index"], vec!["zstd", "small-image"])
        );
        // Layers this small are not worth an index, so none is suggested.
        assert!(
            none["findings"][0]["text"].as_str().unwrap().contains("smaller than 10 MiB"),
            "{none}"
        );
        assert!(none["findings"][0]["next"].is_null(), "{none}");
        sandbox.run(&["index", "--no-cache", "--min-layer-size=1KiB", &image]);

        let ours = diagnosis(&sandbox, 0, 0, &image);
        assert_eq!(verdicts(&ours), V1);
        assert_eq!(
            (problems(&ours), notes(&ours)),
            (vec![], vec!["only-version-1", "zstd", "small-image"])
        );
        let enabled = &ours["consumers"][1];
        let coverage = &enabled["coverage"];
        assert_eq!(
            (&coverage["layers"], &coverage["of_layers"], &coverage["percent"]),
            (&3.into(), &4.into(), &99.98.into())
        );

        let found = first_index(&sandbox, &image);
        assert_eq!(enabled["index"]["digest"], found["digest"]);
        let ztoc = found["ztocs"][0]["digest"].as_str().unwrap();
        request(&server, &format!("DELETE /v2/a/b/blobs/{ztoc}"));
        let lost = diagnosis(&sandbox, 3, 0, &image);
        assert_eq!(verdict(&lost, "soci-snapshotter-v1-enabled"), "incomplete");
        assert_eq!(problems(&lost), ["missing-blobs"]);
        assert!(lost["findings"][0]["text"].as_str().unwrap().contains(ztoc));
        follow(&sandbox, &lost, "missing-blobs");
        assert_eq!(verdicts(&diagnosis(&sandbox, 0, 0, &image)), V1);
    }
}

#[test]
fn doctor_finds_two_indexes_and_an_incomplete_one() {
    for server in registries() {
        let sandbox = Sandbox::with_small_image();
        let Some(image) = push(&sandbox, "img", &server, &[]) else { return };
        let sparse = [
            "index",
            "--build-tool-identifier=test",
            "--no-cache",
            "--min-layer-size=100KiB",
            &image,
        ];
        sandbox.run(&sparse);
        let sparse = diagnosis(&sandbox, 0, 0, &image);
        assert_eq!(notes(&sparse).iter().filter(|code| **code == "too-small").count(), 2);
        assert_eq!(sparse["consumers"][1]["coverage"]["layers"], 1);
        let small = sparse["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|f| f["code"] == "too-small")
            .unwrap();
        assert!(small["next"].is_null(), "{small}");
        assert!(notes(&sparse).contains(&"foreign-index"), "the tool is called test");

        sandbox.run(&["index", "--no-cache", "--min-layer-size=1KiB", &image]);
        let two = diagnosis(&sandbox, 0, 0, &image);
        assert_eq!(problems(&two), ["several-indexes"]);
        follow(&sandbox, &two, "several-indexes");
        let one = diagnosis(&sandbox, 0, 0, &image);
        assert_eq!(problems(&one), Vec::<&str>::new());
    }
}

#[test]
fn doctor_judges_each_platform() {
    for server in registries() {
        let sandbox = Sandbox::with_two_platforms();
        let Some(image) = push(&sandbox, "img", &server, &[]) else { return };
        sandbox.run(&index(&["--platform=linux/amd64", &image]));
        let amd64 = diagnosis(&sandbox, 0, 0, &image);
        let arm64 = diagnosis(&sandbox, 0, 1, &image);
        assert_eq!((problems(&amd64), problems(&arm64)), (vec![], vec!["no-index"]));
        assert_eq!(
            sandbox.command(&["doctor", "--platform=linux/arm64", &image]).status().unwrap().code(),
            Some(3)
        );
        sandbox.run(&index(&["--platform=linux/arm64", &image]));
        assert_eq!(problems(&diagnosis(&sandbox, 0, 1, &image)), Vec::<&str>::new());
        let text = sandbox.run(&["doctor", "--platform=linux/s390x", &image]);
        assert!(
            text.contains("it has linux/amd64, linux/arm64") && text.ends_with("--- status 1 ---"),
            "{text}"
        );
    }
}

#[test]
fn doctor_finds_an_index_attached_to_the_image_index() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::with_two_platforms();
    let Some(image) = push(&sandbox, "img", &server, &[]) else { return };
    let report = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let root = &report["images"][0]["digest"];
    let manifest = &report["images"][0]["manifests"][0];
    let blob = |digest: &str| {
        std::fs::read(sandbox.path("img/blobs/sha256").join(&digest["sha256:".len()..])).unwrap()
    };
    sandbox.run(&index(&[&image]));
    // The same ztocs with the image index as their subject, without the index of the manifest.
    let list = blob(root.as_str().unwrap());
    let v1 = String::from_utf8(blob(manifest["index"]["digest"].as_str().unwrap())).unwrap();
    let (before, rest) = v1.split_once("\"subject\":{").unwrap();
    let (_, after) = rest.split_once('}').unwrap();
    let subject = format!(r#""mediaType":"{OCI_INDEX}","digest":{root},"size":{}"#, list.len());
    let wrong = format!("{before}\"subject\":{{{subject}}}{after}");
    let digest = Digest::sha256(wrong.as_bytes()).to_string();
    server.put_manifest("a/b", &digest, OCI_MANIFEST, wrong.as_bytes());
    for manifest in report["images"][0]["manifests"].as_array().unwrap() {
        request(
            &server,
            &format!("DELETE /v2/a/b/manifests/{}", manifest["index"]["digest"].as_str().unwrap()),
        );
    }
    let found = diagnosis(&sandbox, 3, 0, &image);
    assert_eq!(problems(&found), ["no-index", "on-image-index"]);
    assert!(found["findings"][1]["text"].as_str().unwrap().contains(&digest));
}

#[test]
fn doctor_judges_soci_enabled_images() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index(&["oci:img"]));
    enabled(&sandbox);
    let expected = ["v2", "v2", "reads-no-index", "other-version-only"];
    let found = diagnosis(&sandbox, 0, 0, "oci:enabled");
    assert_eq!(verdicts(&found)[..4], expected);
    assert_eq!(verdict(&found, "sagemaker-studio"), "v2", "a layout may yet be pushed to ECR");
    assert_eq!(problems(&found), Vec::<&str>::new());
    for server in registries() {
        let Some(image) = push(&sandbox, "enabled", &server, &[]) else { return };
        assert_eq!(verdicts(&diagnosis(&sandbox, 0, 0, &image))[..4], expected);
    }

    // Copied without the other entries of its image index, so the manifest names a missing index.
    let manifest = found["manifest"]["digest"].as_str().unwrap();
    let bytes =
        std::fs::read(sandbox.path("enabled/blobs/sha256").join(&manifest["sha256:".len()..]))
            .unwrap();
    let mut alone = Layout::new(&sandbox.path("alone"));
    for file in std::fs::read_dir(sandbox.path("enabled/blobs/sha256")).unwrap().map(Result::unwrap)
    {
        std::fs::copy(file.path(), sandbox.path("alone/blobs/sha256").join(file.file_name()))
            .unwrap();
    }
    let descriptor = alone.blob(OCI_MANIFEST, &bytes);
    alone.tag(descriptor, "v1");
    assert_eq!(problems(&diagnosis(&sandbox, 0, 0, "oci:alone")), ["not-beside-image"]);
    let v2 = found["consumers"][0]["index"]["digest"].as_str().unwrap();
    std::fs::remove_file(sandbox.path("alone/blobs/sha256").join(&v2["sha256:".len()..])).unwrap();
    let lost = diagnosis(&sandbox, 3, 0, "oci:alone");
    assert_eq!(verdicts(&lost)[..2], ["unusable", "unusable"]);
    assert_eq!(problems(&lost), ["unusable-index"]);
}

#[test]
fn doctor_finds_damaged_parts_of_images_and_ztocs() {
    let sandbox = Sandbox::with_small_image();
    sandbox.run(&index(&["oci:img"]));
    let found = first_index(&sandbox, "oci:img");
    let blob = |digest: &Value| {
        sandbox.path("img/blobs/sha256").join(&digest.as_str().unwrap()["sha256:".len()..])
    };
    // Damaged or another layer's: consumers that find it do not use the index.
    let good = found["ztocs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|ztoc| std::fs::read(blob(&ztoc["digest"])).unwrap());
    let good: Vec<Vec<u8>> = good.collect();
    std::fs::write(blob(&found["ztocs"][0]["digest"]), vec![b'x'; good[0].len()]).unwrap();
    let damaged = diagnosis(&sandbox, 3, 0, "oci:img");
    assert_eq!(
        (problems(&damaged), verdict(&damaged, "soci-snapshotter-v1-enabled")),
        (vec!["broken-ztoc"], "broken-ztoc".into())
    );
    std::fs::write(blob(&found["ztocs"][0]["digest"]), &good[0]).unwrap();
    assert_eq!(problems(&diagnosis(&sandbox, 0, 0, "oci:img")), Vec::<&str>::new());

    std::fs::remove_file(blob(&found["ztocs"][1]["layer"])).unwrap();
    let gone = diagnosis(&sandbox, 3, 0, "oci:img");
    assert_eq!(problems(&gone), ["missing-layer"]);
    assert!(verdicts(&gone).iter().all(|verdict| verdict == "missing-blob"), "{gone}");

    // The entries of an image index state the platforms, so doctor needs no config.
    two_platforms(&sandbox.path("two"));
    sandbox.run(&index(&["oci:two"]));
    let inspected = sandbox.doctor("oci:two");
    for manifest in inspected["manifests"].as_array().unwrap() {
        let blob = |digest: &str| sandbox.path("two/blobs/sha256").join(&digest["sha256:".len()..]);
        let manifest =
            std::fs::read(blob(manifest["manifest"]["digest"].as_str().unwrap())).unwrap();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let _ = std::fs::remove_file(blob(manifest["config"]["digest"].as_str().unwrap()));
    }
    let gone = diagnosis(&sandbox, 3, 0, "oci:two");
    assert_eq!(problems(&gone), ["missing-config"]);
    assert!(verdicts(&gone).iter().all(|verdict| verdict == "missing-blob"), "{gone}");
}

#[test]
fn doctor_finds_the_ztoc_of_another_layer() {
    let sandbox = Sandbox::with_small_image();
    let report = sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let blob = |digest: &str| {
        std::fs::read(sandbox.path("img/blobs/sha256").join(&digest["sha256:".len()..])).unwrap()
    };
    let manifest = &report["images"][0]["manifests"][0];
    let v1 = String::from_utf8(blob(manifest["index"]["digest"].as_str().unwrap())).unwrap();
    // The same index with the ztocs of two layers swapped.
    let layers: Vec<&str> = manifest["layers"].as_array().unwrap()[..2]
        .iter()
        .map(|l| l["digest"].as_str().unwrap())
        .collect();
    let swapped =
        v1.replace(layers[0], "FIRST").replace(layers[1], layers[0]).replace("FIRST", layers[1]);
    let mut other = Layout::new(&sandbox.path("other"));
    for file in std::fs::read_dir(sandbox.path("img/blobs/sha256")).unwrap().map(Result::unwrap) {
        if file.file_name() != manifest["index"]["digest"].as_str().unwrap()["sha256:".len()..] {
            std::fs::copy(file.path(), sandbox.path("other/blobs/sha256").join(file.file_name()))
                .unwrap();
        }
    }
    let image = other.blob(OCI_MANIFEST, &blob(manifest["manifest"]["digest"].as_str().unwrap()));
    other.tag(image, "v1");
    let mut index = other.blob(OCI_MANIFEST, swapped.as_bytes());
    index["artifactType"] = "application/vnd.amazon.soci.index.v1+json".into();
    other.tag(index, "index");
    let found = diagnosis(&sandbox, 3, 0, "oci:other:v1");
    let broken = found["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["code"] == "broken-ztoc");
    let told: Vec<&str> = broken.map(|finding| finding["text"].as_str().unwrap()).collect();
    assert!(
        told.len() == 2 && told.iter().all(|text| text.contains("it is for a layer of")),
        "{found}"
    );
}

#[test]
fn doctor_explains_when_no_index_helps() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("zst"));
    let layers = [layout.blob(
        "application/vnd.oci.image.layer.v1.tar+zstd",
        b"\x28\xb5\x2f\xfd, which nobody reads",
    )];
    let image = layout.image("amd64", &layers);
    layout.tag(image, "v1");
    let found = diagnosis(&sandbox, 3, 0, "oci:zst");
    assert!(
        found["findings"][0]["text"].as_str().unwrap().ends_with("can be indexed: 1 zstd"),
        "{found}"
    );
    assert!(found["findings"][0]["next"].is_null(), "{found}");
    assert!(found["findings"][1]["next"].as_str().unwrap().contains("gzip"), "{found}");

    // A layer that is large enough, although it is missing: an index would help.
    let mut layout = Layout::new(&sandbox.path("big"));
    let mut layer = layout.blob("application/vnd.oci.image.layer.v1.tar+gzip", b"not read");
    layer["size"] = (20 << 20).into();
    let image = layout.image("amd64", &[layer]);
    layout.tag(image, "v1");
    let found = diagnosis(&sandbox, 3, 0, "oci:big");
    let next = |code: &str| {
        let finding =
            found["findings"].as_array().unwrap().iter().find(|f| f["code"] == code).unwrap();
        finding["next"].clone()
    };
    assert_eq!(next("no-index"), "ociseek convert oci:big oci:big:soci");
    assert_eq!(next("no-fine-index"), "ociseek convert --fine oci:big oci:big:soci");
}

/// What ociseek's own programs do with the image: `lazy`, or the reason why not.
fn doors(diagnosis: &Value) -> Vec<&str> {
    let all = diagnosis["ociseek"].as_array().unwrap().iter();
    all.map(|door| door["reason"]["code"].as_str().unwrap_or("lazy")).collect()
}

/// What it says of the commands that mount images.
fn by_mount(sandbox: &Sandbox, image: &str) -> Option<String> {
    let text = sandbox.run(&["doctor", image]);
    text.lines().find(|line| line.starts_with("  ociseek mount, bundle ")).map(str::to_owned)
}

/// A registry that does not show its indexes is not an image without one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn doctor_says_that_indexes_could_not_be_asked_for() {
    let registry = Faulty::start(RegistrySettings::default(), |seen, _| {
        let is_list = seen.is("GET", "/referrers/") || seen.is("GET", "/manifests/sha256-");
        is_list.then(|| status(418))
    })
    .await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let image = format!("{}/a/b:v1", registry.host());
    tokio::task::block_in_place(|| {
        let diagnosis = diagnosis(&Sandbox::new(), 3, 0, &image);
        assert_eq!(doors(&diagnosis), ["failed"; 3], "{diagnosis}");
        let said = diagnosis["ociseek"][0].to_string();
        assert!(said.contains("/referrers/") && said.contains("418"), "{said}");
    });
}

#[test]
fn doctor_judges_fine_indexes() {
    let sandbox = Sandbox::with_small_image();
    assert!(by_mount(&sandbox, "oci:img").unwrap().ends_with("whole  it has no index"));
    let none = diagnosis(&sandbox, 3, 0, "oci:img");
    assert_eq!(doors(&none), ["no-index"; 3]);
    sandbox.json(0, &index(&["--format=json", "--kind=fine", "oci:img"]));
    // It is nothing to the consumers of SOCI indexes, but ociseek itself starts the image lazily.
    let only = diagnosis(&sandbox, 0, 0, "oci:img");
    assert!(
        only["consumers"].as_array().unwrap().iter().all(|consumer| consumer["lazy"] == false),
        "{only}"
    );
    assert!(notes(&only).contains(&"no-index"), "{only}");
    assert_eq!(
        (problems(&only), only["fine"][0]["chosen"].clone()),
        (Vec::<&str>::new(), true.into())
    );
    assert_eq!(doors(&only), ["lazy"; 3]);
    let report = sandbox.json(0, &index(&["--format=json", "--kind=v1,fine", "oci:img"]));
    let found = diagnosis(&sandbox, 0, 0, "oci:img");
    assert_eq!(problems(&found), Vec::<&str>::new());
    assert!(notes(&found).contains(&"no-recorded-start"), "{found}");
    let fine = &found["fine"][0];
    assert_eq!(fine["coverage"], report["images"][0]["manifests"][0]["fine"]["coverage"]);
    let layers = fine["coverage"]["layers"].as_u64().unwrap();
    assert_eq!(layers, 3);
    let line = by_mount(&sandbox, "oci:img").unwrap();
    let digest = fine["digest"].as_str().unwrap();
    assert!(
        line.contains(&format!("lazy   fine index {}: 3 of 4 layers", &digest[7..19])),
        "{line}"
    );

    // With a recorded start.
    let read = json!({"ms": 1, "path": "dir1/file1", "layer": digest, "offset": 0, "size": 9, "spans": [0]});
    std::fs::write(sandbox.path("start.jsonl"), format!("{read}\n")).unwrap();
    let report = sandbox
        .json(0, &index(&["--format=json", "--kind=fine", "--profile=start.jsonl", "oci:img"]));
    assert!(!notes(&diagnosis(&sandbox, 0, 0, "oci:img")).contains(&"no-recorded-start"));
    assert!(
        by_mount(&sandbox, "oci:img")
            .unwrap()
            .ends_with(" fetched first, with its recorded startup")
    );

    // A document that is damaged, and one that is gone: the layer is read without it.
    let made = &report["images"][0]["manifests"][0]["fine"];
    let blob = |digest: &Value| {
        sandbox.path("img/blobs/sha256").join(&digest.as_str().unwrap()["sha256:".len()..])
    };
    let document = blob(&made["documents"][0]["digest"]);
    let good = std::fs::read(&document).unwrap();
    std::fs::write(&document, vec![b'x'; good.len()]).unwrap();
    assert_eq!(problems(&diagnosis(&sandbox, 0, 0, "oci:img")), ["broken-fine-document"]);
    assert!(by_mount(&sandbox, "oci:img").unwrap().contains(": 2 of 4 layers"));
    std::fs::remove_file(&document).unwrap();
    let gone = diagnosis(&sandbox, 0, 0, "oci:img");
    assert_eq!(problems(&gone), ["broken-fine-document"]);
    follow(&sandbox, &gone, "broken-fine-document");
    assert_eq!(problems(&diagnosis(&sandbox, 0, 0, "oci:img")), Vec::<&str>::new());

    // One that is not valid.
    let broken = std::fs::read_to_string(blob(&made["index"]["digest"])).unwrap();
    let broken = broken.replacen("head-size\":\"", "head-size\":\"0", 1);
    let mut other = Layout::new(&sandbox.path("other"));
    for file in std::fs::read_dir(sandbox.path("img/blobs/sha256")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), sandbox.path("other/blobs/sha256").join(file.file_name()))
            .unwrap();
    }
    let image =
        other.blob(OCI_MANIFEST, &std::fs::read(blob(&found["manifest"]["digest"])).unwrap());
    other.tag(image, "v1");
    let mut index = other.blob(OCI_MANIFEST, broken.as_bytes());
    index["artifactType"] = "application/vnd.ociseek.fine.v1+json".into();
    other.tag(index, "index");
    let found = diagnosis(&sandbox, 3, 0, "oci:other:v1");
    assert_eq!(problems(&found), ["no-index", "unusable-fine-index"]);
    assert_eq!(found["findings"][1]["next"], "ociseek index --kind fine oci:other:v1");
}
