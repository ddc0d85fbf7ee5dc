//! Fine indexes: listed, shown, moved and removed next to SOCI indexes.

use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::{EMPTY_CONFIG, FineIndex, FineRef};
use serde_json::{Value, json};

use super::{found, image, indexed_by, is_there, registries, subjects, without_api};
use ociseek_testkit::copied::copied;
use ociseek_testkit::image::image_index;
use ociseek_testkit::sandbox::{OCI_INDEX, OCI_MANIFEST, Sandbox};
use ociseek_testkit::servers::{Server, repository, run, tool};

/// A fine index for the image manifest `subject` in `a/b`, with a document for each layer, under
/// this tool name. Returns its digest. The content of the documents does not matter here.
fn fine_by(server: &Server, maker: &str, subject: &str) -> String {
    let (status, body) = server.request("GET", &format!("/v2/a/b/manifests/{subject}"));
    assert_eq!(status, 200, "{body}");
    let image: Value = serde_json::from_str(&body).unwrap();
    let documents: Vec<(FineRef, String)> = (image["layers"].as_array().unwrap().iter())
        .map(|layer| {
            let text = format!("the document of {}", layer["digest"]);
            let document = Digest::sha256(text.as_bytes());
            let layer = layer["digest"].as_str().unwrap().parse().unwrap();
            let head_digest = Digest::sha256(&text.as_bytes()[..10]);
            let size = text.len() as u64;
            (FineRef { document, size, layer, head_size: 10, head_digest, start_size: 20 }, text)
        })
        .collect();
    let subject = Descriptor::new(OCI_MANIFEST, subject.parse().unwrap(), body.len() as u64);
    let index = FineIndex {
        layers: documents.iter().map(|(document, _)| document.clone()).collect(),
        subject: Some(subject.clone()),
        build_tool: Some(maker.to_owned()),
        profile: None,
    };
    let encoded = index.encode();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let repository = repository(&server.host, "a/b", None);
        for (document, text) in &documents {
            repository.push_blob(&document.blob(), text.clone().into()).await.unwrap();
        }
        repository.push_blob(&Descriptor::of(EMPTY_CONFIG, b"{}"), "{}".into()).await.unwrap();
        repository.attach(&encoded.descriptor, encoded.bytes.into(), &subject, &[]).await.unwrap();
    });
    encoded.descriptor.digest.to_string()
}

/// The digests of the fine indexes in a command's report, by platform.
pub(super) fn fine_in(report: &Value) -> Vec<Vec<String>> {
    let digests = |manifest: &Value| {
        let fine = manifest["fine"].as_array().unwrap().iter();
        let mut digests: Vec<String> =
            fine.map(|fine| fine["digest"].as_str().unwrap().to_owned()).collect();
        digests.sort();
        digests
    };
    report["manifests"].as_array().unwrap().iter().map(digests).collect()
}

pub(super) fn inspected(sandbox: &Sandbox, image: &str) -> Value {
    sandbox.doctor(image)
}

/// The kind, status and digest of each index in the report of `rm`, sorted.
fn removed(sandbox: &Sandbox, args: &[&str]) -> Vec<[String; 3]> {
    let report = sandbox.json(0, &[&["rm", "--format=json"], args].concat());
    let manifests = report["manifests"].as_array().unwrap().iter();
    let indexes = manifests.flat_map(|manifest| manifest["indexes"].as_array().unwrap());
    told(indexes, ["kind", "status", "digest"])
}

/// The same for `rm --obsolete`, with the reason.
fn obsolete(sandbox: &Sandbox, server: &Server, options: &[&str]) -> Vec<[String; 4]> {
    let repository = format!("{}/a/b", server.host);
    let report = sandbox
        .json(0, &[&["rm", "--obsolete", "--format=json"], options, &[&repository]].concat());
    told(report["waste"].as_array().unwrap().iter(), ["kind", "reason", "status", "digest"])
}

fn told<'a, const N: usize>(
    objects: impl Iterator<Item = &'a Value>,
    keys: [&str; N],
) -> Vec<[String; N]> {
    let mut told: Vec<_> =
        objects.map(|one| keys.map(|key| one[key].as_str().unwrap().to_owned())).collect();
    told.sort();
    told
}

fn words<const N: usize>(words: [&str; N]) -> [String; N] {
    words.map(str::to_owned)
}

#[test]
fn list_and_doctor_show_fine_indexes_beside_soci_indexes() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let [amd64, arm64] = <[String; 2]>::try_from(subjects(&sandbox, &image)).unwrap();
        let soci = indexed_by(&sandbox, "ociseek v0.0.1", &image);
        let fine = fine_by(&server, "ociseek v0.0.2", &amd64);

        let report = sandbox.json(0, &["list", "--format=json", &image]);
        let [first, second] = [0, 1].map(|n| &report["images"][0]["manifests"][n]);
        assert_eq!(first["indexes"].as_array().unwrap().len(), 1);
        let shown = &first["fine"][0];
        assert_eq!(
            (&shown["digest"], &shown["chosen"]),
            (&json!(fine), &json!(true)),
            "{report:#}"
        );
        assert_eq!((&shown["tool"], &shown["error"]), (&json!("ociseek v0.0.2"), &Value::Null));
        assert_eq!((&shown["coverage"]["layers"], &shown["start_bytes"]), (&json!(2), &json!(40)));
        assert_eq!(second["fine"], json!([]));
        let text = sandbox.run(&["list", &image]);
        let rows: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(
            rows.iter().any(|row| row.starts_with(&["v1", "linux/amd64", "fine", "2/2", "100%"])),
            "{text}"
        );
        assert_eq!(rows.iter().filter(|row| row.get(2) == Some(&"1")).count(), 2, "{text}");

        let report = inspected(&sandbox, &image);
        assert_eq!(fine_in(&report), [vec![fine.clone()], vec![]]);
        let layer = &report["manifests"][0]["layers"][0];
        assert_eq!(
            (&layer["document"]["head_size"], &layer["document"]["start_size"]),
            (&json!(10), &json!(20))
        );
        assert_ne!(layer["ztoc"], Value::Null);
        let text = sandbox.run(&["doctor", "--all-platforms", "--verbose", &image]);
        assert!(
            text.contains(&format!(
                "  fine index {fine}\n    by \"ociseek v0.0.2\", 2 of 2 layers (100%)"
            )),
            "{text}"
        );

        // An image without a SOCI index is not reported as having no index.
        sandbox.json(0, &["rm", "--format=json", &format!("{}/a/b@{}", server.host, soci[0])]);
        let text = sandbox.run(&["list", "--format=text", &format!("{}/a/b@{amd64}", server.host)]);
        assert!(text.contains(" fine ") && !text.contains(" none "), "{text}");
        // An index that is requested for another platform's image does not belong to this image.
        let other = format!("{}/a/b@{arm64}", server.host);
        let text = sandbox.run(&["verify", &format!("--index={fine}"), &other]);
        assert!(text.contains("it is the index of another image manifest"), "{text}");
    }
}

#[test]
fn rm_removes_our_fine_indexes_with_the_soci_indexes() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let subjects = subjects(&sandbox, &image);
        let soci = indexed_by(&sandbox, "ociseek v0.0.1", &image);
        let ours = fine_by(&server, "ociseek v0.0.2", &subjects[0]);
        let theirs = fine_by(&server, "another tool", &subjects[0]);

        let mut want =
            vec![words(["fine", "would-remove", &ours]), words(["fine", "kept", &theirs])];
        want.extend(soci.iter().map(|digest| words(["soci", "would-remove", digest])));
        want.sort();
        assert_eq!(removed(&sandbox, &["--dry-run", &image]), want);
        let text = sandbox.run(&["rm", &image]);
        assert!(
            text.contains(&format!(": removed fine index {ours} by \"ociseek v0.0.2\"\n")),
            "{text}"
        );
        assert!(
            text.contains(&format!(": kept fine index {theirs} by \"another tool\"")),
            "{text}"
        );
        assert!(!is_there(&server, "a/b", &ours) && !is_there(&server, "a/b", &soci[0]));
        assert_eq!(fine_in(&inspected(&sandbox, &image)), [vec![theirs.clone()], vec![]]);

        // A named index is removed, whichever tool made it.
        let named = format!("{}/a/b@{theirs}", server.host);
        assert_eq!(removed(&sandbox, &[&named]), [words(["fine", "removed", &theirs])]);
        assert_eq!(fine_in(&inspected(&sandbox, &image)), [vec![], Vec::<String>::new()]);
    }
}

#[test]
fn rm_obsolete_removes_outdated_and_orphaned_fine_indexes() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let subjects = subjects(&sandbox, &image);
        let soci = indexed_by(&sandbox, "ociseek v0.0.1", &image);
        let old = fine_by(&server, "ociseek v0.0.2", &subjects[0]);
        let new = fine_by(&server, "ociseek v0.0.3", &subjects[0]);
        // Documents that do not open supersede nothing.
        assert_eq!(obsolete(&sandbox, &server, &[]), Vec::<[String; 4]>::new());
        assert!([&old, &new, &soci[0]].iter().all(|index| is_there(&server, "a/b", index)));
        // Those of this version do, and no fine index replaces a SOCI index.
        let made = sandbox
            .json(0, &["index", "--kind=fine", "--format=json", "--min-layer-size=0", &image]);
        let made = made["images"][0]["manifests"][0]["fine"]["index"]["digest"]
            .as_str()
            .unwrap()
            .to_owned();
        let old = fine_by(&server, "ociseek v0.0.2", &subjects[0]);
        assert_eq!(
            obsolete(&sandbox, &server, &["--dry-run"]),
            [words(["fine", "superseded", "would-remove", &old])]
        );
        assert_eq!(
            obsolete(&sandbox, &server, &[]),
            [words(["fine", "superseded", "removed", &old])]
        );
        assert!(
            !is_there(&server, "a/b", &old)
                && is_there(&server, "a/b", &made)
                && is_there(&server, "a/b", &soci[0])
        );
    }
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let [gone, stays] = <[String; 2]>::try_from(subjects(&sandbox, &image)).unwrap();
    let of_gone = fine_by(&server, "ociseek v1", &gone);
    let of_stays = fine_by(&server, "ociseek v1", &stays);
    sandbox.json(0, &["rm", "--dry-run", "--format=json", &image]);
    for digest in [&request_digest(&server, "v1"), &gone] {
        assert_eq!(server.request("DELETE", &format!("/v2/a/b/manifests/{digest}")).0, 202);
    }
    assert_eq!(
        obsolete(&sandbox, &server, &[]),
        [words(["fine", "image-gone", "removed", &of_gone])]
    );
    assert!(!is_there(&server, "a/b", &of_gone) && is_there(&server, "a/b", &of_stays));
}

/// The digest that a tag of `a/b` names.
fn request_digest(server: &Server, tag: &str) -> String {
    let (_, body) = server.request("GET", &format!("/v2/a/b/manifests/{tag}"));
    Digest::sha256(body.as_bytes()).to_string()
}

#[test]
fn copies_include_fine_indexes_and_their_documents() {
    let all: Vec<Server> = registries().collect();
    let [olareg, distribution] = &all[..] else { return };
    for (from, to) in [(olareg, distribution), (distribution, olareg)] {
        let Some((sandbox, image)) = image(from) else { return };
        let subjects = subjects(&sandbox, &image);
        let fine: Vec<Vec<String>> =
            subjects.iter().map(|subject| vec![fine_by(from, "x", subject)]).collect();
        let there = format!("{}/copy/fine:v1", to.host);
        for (source, copy) in
            [(&*image, &*there), (&there, "oci:copy:v1"), ("oci:copy:v1", &format!("{there}2"))]
        {
            copied(&sandbox, source, copy);
            assert_eq!(fine_in(&inspected(&sandbox, copy)), fine);
        }
        for layer in inspected(&sandbox, &there)["manifests"][0]["layers"].as_array().unwrap() {
            let document = layer["document"]["digest"].as_str().unwrap();
            assert_eq!(to.request("GET", &format!("/v2/copy/fine/blobs/{document}")).0, 200);
        }
        // In a layout they are removed too.
        let gone = fine.iter().map(|fine| words(["fine", "removed", &fine[0]]));
        let mut gone: Vec<_> = gone.collect();
        gone.sort();
        assert_eq!(removed(&sandbox, &["--any-tool", "oci:copy:v1"]), gone);
        assert_eq!(fine_in(&inspected(&sandbox, "oci:copy:v1")), [vec![], Vec::<String>::new()]);
    }
}

/// Anyone who may push can list any manifest as a fine index of the image.
#[test]
fn fake_fine_indexes_are_shown_and_not_removed() {
    let Some(server) = without_api() else { return };
    let Some((sandbox, image)) = image(&server) else { return };
    let [mine, other] = <[String; 2]>::try_from(subjects(&sandbox, &image)).unwrap();
    let of_other = fine_by(&server, "ociseek v0.0.1", &other);
    let good = fine_by(&server, "ociseek v0.0.2", &mine);
    let entry = |digest: &str, more: usize| {
        let (_, body) = server.request("GET", &format!("/v2/a/b/manifests/{digest}"));
        json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": body.len() + more,
            "artifactType": "application/vnd.ociseek.fine.v1+json"})
    };
    let list = [entry(&other, 0), entry(&of_other, 0), entry(&good, 0)];
    let list = image_index(&list).to_string();
    server.put_manifest("a/b", &mine.replace(':', "-"), OCI_INDEX, list.as_bytes());

    let image = format!("{}/a/b@{mine}", server.host);
    let report = inspected(&sandbox, &image);
    let fine = report["manifests"][0]["fine"].as_array().unwrap();
    let errors: Vec<&str> =
        fine.iter().filter_map(|fine| fine["error"]["message"].as_str()).collect();
    assert_eq!(errors.len(), 2, "{fine:?}");
    assert!(
        errors[0].contains("the manifest is not a fine index")
            && errors[1].contains("another image"),
        "{errors:?}"
    );
    assert_eq!((&fine[2]["digest"], &fine[2]["chosen"]), (&json!(good), &json!(true)));
    let mut want =
        vec![words(["fine", "not-an-index", &other]), words(["fine", "not-an-index", &of_other])];
    want.push(words(["fine", "removed", &good]));
    want.sort();
    assert_eq!(removed(&sandbox, &["--any-tool", &image]), want);
    assert!(is_there(&server, "a/b", &other) && is_there(&server, "a/b", &of_other));
    assert_eq!(found(&sandbox, &image), [Vec::<String>::new()]);

    // A list with a wrong size for the manifest.
    let list = image_index(&[entry(&of_other, 1)]).to_string();
    server.put_manifest("a/b", &other.replace(':', "-"), OCI_INDEX, list.as_bytes());
    let report = inspected(&sandbox, &format!("{}/a/b@{other}", server.host));
    let error = report["manifests"][0]["fine"][0]["error"]["message"].as_str().unwrap();
    assert!(error.contains("but the list says"), "{error}");
}

/// `index --fine` and `backfill --fine` in real registries: with a single reading for both
/// platforms, and with none if everything exists.
#[test]
fn index_and_backfill_attach_fine_indexes_in_registries() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let index = |args: &[&str]| {
            let common =
                ["index", "--kind=v1,fine", "--min-layer-size=1KiB", "--no-cache", "--format=json"];
            let report = sandbox.json(0, &[&common, args, &[&*image]].concat());
            let manifests = report["images"][0]["manifests"].as_array().unwrap();
            let statuses: Vec<Value> =
                manifests.iter().map(|manifest| manifest["fine"]["status"].clone()).collect();
            (
                statuses,
                report["bytes_read"].as_u64().unwrap(),
                report["bytes_written"].as_u64().unwrap(),
            )
        };
        let (statuses, read, written) = index(&[]);
        assert_eq!(statuses, [json!("attached"), json!("attached")]);
        assert!(read > 0 && written > 0);
        let made = fine_in(&inspected(&sandbox, &image));
        assert!(made.iter().all(|fine| fine.len() == 1), "{made:?}");
        assert_eq!(index(&[]), (vec![json!("already-there"); 2], 0, 0));

        let repository = format!("{}/a/b", server.host);
        let backfill = |args: &[&str]| {
            let common = [
                "backfill",
                "--kind=v1,fine",
                "--min-layer-size=1KiB",
                "--no-cache",
                "--format=json",
            ];
            let output =
                sandbox.command(&[&common, args, &[&*repository]].concat()).output().unwrap();
            let lines = String::from_utf8(output.stdout).unwrap();
            let line: Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
            line["status"].as_str().unwrap().to_owned()
        };
        assert_eq!(backfill(&[]), "already-indexed");
        // A missing fine index is a sufficient reason.
        let gone = format!("{}/a/b@{}", server.host, made[0][0]);
        assert_eq!(removed(&sandbox, &[&gone]), [words(["fine", "removed", &made[0][0]])]);
        assert_eq!(backfill(&["--dry-run"]), "pending");
        assert_eq!(backfill(&[]), "indexed");
        assert_eq!(fine_in(&inspected(&sandbox, &image)), made);
        assert_eq!(backfill(&[]), "already-indexed");
    }
}

/// The image index names the fine index that an image binds, so copies and the registry's garbage
/// collection keep it.
#[test]
fn copies_by_other_tools_and_garbage_collection_keep_what_an_image_binds() {
    // Version 2 deletes the manifests of image indexes, too (distribution#3178).
    let Some(server) = Server::distribution_on_disk("distribution3") else { return };
    let Some((sandbox, source)) = image(&server) else { return };
    let (Some(skopeo), Some(crane), Some(regctl)) = (tool("skopeo"), tool("crane"), tool("regctl"))
    else {
        return;
    };
    let name = |repository: &str| format!("{}/{repository}:v1-soci", server.host);
    let options = [
        "--fine",
        "--span-size=16KiB",
        "--min-layer-size=1KiB",
        "--no-cache",
        "--progress=none",
        "-q",
    ];
    let said = sandbox.run(&[&["convert"], &options[..], &[&source, &name("a/b")]].concat());
    assert!(said.ends_with("--- status 0 ---"), "{said}");
    let docker = |repository: &str| format!("docker://{}", name(repository));
    let plain = ["--src-tls-verify=false", "--dest-tls-verify=false"];
    run(
        &skopeo,
        &[&["copy", "--quiet", "--all"], &plain[..], &[&docker("a/b"), &docker("c/d")]].concat(),
    );
    run(&crane, &["copy", "--insecure", &name("a/b"), &name("e/f")]);
    let host = format!("reg={},tls=disabled", server.host);
    run(&regctl, &["--host", &host, "image", "copy", &name("a/b"), &name("g/h")]);
    let config = server.dir.path().join("config.yml").display().to_string();
    run(&tool("distribution3").unwrap(), &["garbage-collect", "--delete-untagged", &config]);
    let bound = inspected(&sandbox, &name("a/b"));
    assert!(fine_in(&bound).iter().all(|fine| fine.len() == 1), "{bound}");
    for repository in ["a/b", "c/d", "e/f", "g/h"] {
        let inspected = inspected(&sandbox, &name(repository));
        assert_eq!(fine_in(&inspected), fine_in(&bound), "{repository}");
        let said = sandbox.run(&["verify", "--no-cache", "--progress=none", &name(repository)]);
        assert_eq!(said.matches(": ok (2 of 2 layers").count(), 4, "{said}");
    }
}
