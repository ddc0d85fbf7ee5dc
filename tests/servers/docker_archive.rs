//! Archives by `docker save`, read in place: in the forms that tools write or used to write, and
//! hostile ones.

use std::fs;

use insta::assert_snapshot;
use ociseek_format::digest::{Algorithm, Digest};
use serde_json::{Value, json};

use ociseek_testkit::image::Image;
use ociseek_testkit::sandbox::{GZIP, PLAIN, Sandbox, gzip};
use ociseek_testkit::servers::{Server, copied_by_skopeo, run, skip, tool};
use ociseek_testkit::tarball::{Block, end, entry, file, padded, pax};

/// A layer's tar with one file.
fn layer(name: &str, content: &[u8]) -> Vec<u8> {
    [file(name, content), end()].concat()
}

fn config_of(diff_ids: &[Digest]) -> Vec<u8> {
    json!({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": diff_ids}})
        .to_string()
        .into_bytes()
}

fn config(tars: &[&[u8]]) -> Vec<u8> {
    config_of(&tars.iter().map(|tar| Digest::sha256(tar)).collect::<Vec<_>>())
}

fn manifest_json(images: &[(&str, &[&str], &[&str])]) -> Vec<u8> {
    type Image<'a> = (&'a str, &'a [&'a str], &'a [&'a str]);
    let image = |(config, tags, layers): &Image<'_>| json!({"Config": config, "RepoTags": tags, "Layers": layers});
    Value::from_iter(images.iter().map(image)).to_string().into_bytes()
}

fn write(sandbox: &Sandbox, members: &[Vec<u8>]) {
    fs::write(sandbox.path("x.tar"), [members.concat(), end()].concat()).unwrap();
}

/// The three layers of [`archive`]. The third equals the first.
fn layers() -> [Vec<u8>; 3] {
    let bottom = layer("etc/os-release", b"NAME=test\n");
    [bottom.clone(), layer("app/main", &[b'x'; 3000]), bottom]
}

/// How a layer is stored: the members that hold it, and its name in manifest.json.
type Placed<'a> = &'a dyn Fn(usize, &[u8]) -> (Vec<u8>, String);

/// An archive with an image of [`layers`], each stored by `place`.
fn archive(sandbox: &Sandbox, place: Placed<'_>) {
    let tars = layers();
    let config = config(&[&tars[0], &tars[1], &tars[2]]);
    let placed: Vec<(Vec<u8>, String)> =
        tars.iter().enumerate().map(|(number, tar)| place(number, tar)).collect();
    let names: Vec<&str> = placed.iter().map(|(_, name)| name.as_str()).collect();
    let mut members = vec![file("c.json", &config)];
    members.extend(placed.iter().map(|(bytes, _)| bytes.clone()));
    members.push(file("manifest.json", &manifest_json(&[("c.json", &["app:1"], &names)])));
    write(sandbox, &members);
}

fn succeeds(sandbox: &Sandbox, args: &[&str]) -> String {
    let output = sandbox.command(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that the image of [`layers`] is read and converted correctly.
fn check(sandbox: &Sandbox, image: &str, what: &str) {
    assert_eq!(succeeds(sandbox, &["cat", image, "etc/os-release"]), "NAME=test\n", "{what}");
    assert_eq!(
        succeeds(sandbox, &["ls", image, "/", "-R"]).lines().filter(|l| l.contains("main")).count(),
        1,
        "{what}"
    );
    let verified = sandbox.json(0, &["verify", "--format=json", image]);
    assert_eq!(verified["status"], "right", "{what}");
    assert_eq!(verified["manifests"][0]["content"]["layers"], 2, "{what}");
    let _ = fs::remove_dir_all(sandbox.path("out"));
    succeeds(sandbox, &["convert", "-q", "--min-layer-size=0", "--no-cache", image, "oci:out:1"]);
    assert_eq!(succeeds(sandbox, &["cat", "oci:out:1", "app/main"]), "x".repeat(3000), "{what}");
    let converted = sandbox.json(0, &["verify", "--format=json", "oci:out:1"]);
    assert_eq!(converted["status"], "right", "{what}");
    assert_ne!(converted["manifests"][0]["indexes"], json!([]), "{what}");
}

#[test]
fn archives_of_all_tools_are_read() {
    let sandbox = Sandbox::new();
    let hex = |tar: &[u8]| Digest::sha256(tar).hex();
    let all = |what: &str, place: Placed<'_>| {
        archive(&sandbox, place);
        check(&sandbox, "docker-archive:x.tar", what);
    };
    // Docker 1.10 to 24: a folder for each layer. A repeated layer is a link.
    all("folders", &|number, tar| {
        let name = format!("id{number}/layer.tar");
        let more = [
            file(&format!("id{number}/VERSION"), b"1.0"),
            entry(b'5', &format!("id{number}/"), ""),
        ]
        .concat();
        let member =
            if number == 2 { entry(b'2', &name, "../id0/layer.tar") } else { file(&name, tar) };
        ([more, member].concat(), name)
    });
    // Names with a leading `./`, a link through a link, a hard link.
    all("links", &|number, tar| match number {
        0 => (
            [entry(b'2', "./a/1", "./2"), entry(b'1', "a/2", "b/./layer"), file("./b/layer", tar)]
                .concat(),
            "a/1".into(),
        ),
        _ => (file(&format!("./{number}.tar"), tar), format!("{number}.tar")),
    });
    // Docker 25 and newer: an image layout that also has a manifest.json. The third layer is the
    // same file as the first.
    all("blobs", &|number, tar| {
        let name = format!("blobs/sha256/{}", hex(tar));
        (if number == 2 { Vec::new() } else { file(&name, tar) }, name)
    });
    // crane and kaniko use gzip; BuildKit can use zstd.
    all("compressed", &|number, tar| match number {
        0 => (file("a.tar.gz", &gzip(tar)), "a.tar.gz".into()),
        1 => (file("b", &zstd::encode_all(tar, 3).unwrap()), "b".into()),
        _ => (Vec::new(), "a.tar.gz".into()),
    });
    // Names that are too long for a header, and a file that is not requested.
    all("long names", &|number, tar| {
        let name = format!("{}/{number}", "d".repeat(150));
        let sparse = Block {
            name: b"sparse".to_vec(),
            flag: b'S',
            magic: *b"ustar  \0",
            ..Block::default()
        }
        .bytes();
        ([sparse, pax(b'x', &[("path", name.as_bytes())]), file("short", tar)].concat(), name)
    });
}

#[test]
fn layers_are_identified_by_their_tars_unless_compressed() {
    let sandbox = Sandbox::new();
    let tars = layers();
    let packed = gzip(&tars[1]);
    archive(&sandbox, &|number, tar| match number {
        1 => (file("1", &packed), "1".into()),
        _ => (if number == 0 { file("0", tar) } else { Vec::new() }, "0".into()),
    });
    succeeds(
        &sandbox,
        &["convert", "-q", "--min-layer-size=0", "--no-cache", "docker-archive:x.tar", "oci:out:1"],
    );
    let found = sandbox.doctor("oci:out:1");
    let layers = found["manifests"][0]["layers"].as_array().unwrap().iter();
    let layers: Vec<_> =
        layers.map(|layer| (&layer["digest"], &layer["media_type"], &layer["size"])).collect();
    let plain = (json!(Digest::sha256(&tars[0])), json!(PLAIN), json!(tars[0].len()));
    let packed = (json!(Digest::sha256(&packed)), json!(GZIP), json!(packed.len()));
    assert_eq!(layers, [&plain, &packed, &plain].map(|(digest, kind, size)| (digest, kind, size)));
}

#[test]
fn one_of_several_images_is_selected() {
    let sandbox = Sandbox::new();
    let tars = [layer("which", b"one"), layer("which", b"two"), layer("which", b"three")];
    let mut members = vec![file(
        "manifest.json",
        &manifest_json(&[
            ("0.json", &["app:1", "docker.io/library/app:latest"], &["0"]),
            ("1.json", &["localhost:5000/team/app:2"], &["1"]),
            ("2.json", &[], &["2"]),
        ]),
    )];
    for (number, tar) in tars.iter().enumerate() {
        members.push(file(&format!("{number}.json"), &config(&[tar])));
        members.push(file(&number.to_string(), tar));
    }
    write(&sandbox, &members);
    for (select, content) in [
        (":1", "one"),
        (":app:1", "one"),
        (":docker.io/library/app:1", "one"),
        (":app", "one"),
        (":latest", "one"),
        (":@0", "one"),
        (":2", "two"),
        (":localhost:5000/team/app:2", "two"),
        (":@2", "three"),
    ] {
        assert_eq!(
            succeeds(&sandbox, &["cat", &format!("docker-archive:x.tar{select}"), "which"]),
            content,
            "{select}"
        );
    }
    assert_snapshot!(sandbox.run(&["ls", "docker-archive:x.tar"]), @r#"
    --- stderr ---
    error: x.tar holds several images: choose one of :app:1, :localhost:5000/team/app:2, :@2
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "docker-archive:x.tar:3"]), @r#"
    --- stderr ---
    error: x.tar has no image "3"; it has :app:1, :localhost:5000/team/app:2, :@2
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "docker-archive:x.tar:@3"]), @r#"
    --- stderr ---
    error: x.tar has no image number 3, counted from 0; it has :app:1, :localhost:5000/team/app:2, :@2
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "docker-archive:x.tar:@x"]), @r#"
    --- stderr ---
    error: invalid value 'docker-archive:x.tar:@x' for '<IMAGE>': "docker-archive:x.tar:@x" names no image: write docker-archive:FILE, and :TAG, :REPOSITORY:TAG or :@NUMBER behind it if FILE holds several; FILE has no colon

    For more information, try '--help'.
    --- status 2 ---
    "#);
    // Images for two platforms, saved together.
    members[0] = file(
        "manifest.json",
        &manifest_json(&[("0.json", &["app:1"], &["0"]), ("1.json", &["app:1"], &["1"])]),
    );
    write(&sandbox, &members);
    assert_snapshot!(sandbox.run(&["ls", "docker-archive:x.tar:app:1"]), @r#"
    --- stderr ---
    error: x.tar holds several images: choose one of :@0, :@1
    --- status 1 ---
    "#);
}

#[test]
fn archives_cannot_be_indexed_and_the_error_suggests_a_way() {
    let sandbox = Sandbox::new();
    archive(&sandbox, &|number, tar| (file(&number.to_string(), tar), number.to_string()));
    let refused = sandbox.run(&["index", "docker-archive:x.tar"]);
    assert_snapshot!(refused, @r#"
    --- stderr ---
    error: cannot index docker-archive:x.tar: docker save keeps no manifest to attach an index to, and its uncompressed layers have different digests from those of a pushed image, so the index would not fit that image either
    hint: push the image (docker push) and index it in the registry, or convert the archive to a SOCI-enabled image: ociseek convert docker-archive:x.tar oci:DIR
    --- status 2 ---
    "#);
    for more in ["--output=oci:out", "--dry-run", "--kind=v2=a"] {
        assert_eq!(sandbox.run(&["index", more, "docker-archive:x.tar"]), refused, "{more}");
    }
    assert!(!sandbox.path("out").exists());
    assert_snapshot!(sandbox.run(&["verify", "--quick", "docker-archive:x.tar"]), @r#"
    --- stderr ---
    error: docker save keeps no SOCI index: only the layers can be verified, and only all of them
    hint: omit --quick and --index
    --- status 1 ---
    "#);
    // A policy requires an index, but there is none.
    let judged = sandbox.run(&["verify", "--min-coverage=0%", "docker-archive:x.tar"]);
    assert!(
        judged.contains("has neither a SOCI index") && judged.ends_with("--- status 1 ---"),
        "{judged}"
    );
    assert_snapshot!(sandbox.run(&["verify", "docker-archive:x.tar"]), @r#"
    docker-archive:x.tar linux/amd64: 2 layers against the config: ok (6.5 KiB); docker save keeps no SOCI index
    --- stderr ---
    --- status 0 ---
    "#);
    assert!(sandbox.run(&["convert", "oci:a", "docker-archive:b"]).contains("read-only"));
    // Uncompressed layers are never pushed to registries. This one receives no requests.
    let refused = sandbox.run(&["convert", "docker-archive:x.tar", "127.0.0.1:1/a/b:1"]);
    assert!(
        refused
            .contains("error: docker-archive:x.tar is not pushed: its layers are not compressed"),
        "{refused}"
    );
    assert!(refused.contains("skopeo copy docker-archive:x.tar docker://NAME"), "{refused}");
    assert!(refused.ends_with("--- status 2 ---"), "{refused}");
    // A layer that is large enough for an index.
    let large = layer("large", &vec![0; 11 << 20]);
    let manifest = file("manifest.json", &manifest_json(&[("c", &["app:1"], &["l"])]));
    write(&sandbox, &[file("c", &config(&[&large])), file("l", &large), manifest]);
    let doctor = sandbox.run(&["doctor", "docker-archive:x.tar:app:1"]);
    assert!(doctor.contains("ociseek convert docker-archive:x.tar:app:1 oci:x-soci"), "{doctor}");
    assert!(!doctor.contains("ociseek index --platform"), "{doctor}");
    // Each error suggests the other command.
    assert!(sandbox.run(&["ls", "oci-archive:x.tar"]).contains("use docker-archive:FILE"));
    write(&sandbox, &[file("oci-layout", b"{}"), file("index.json", b"{}")]);
    assert!(sandbox.run(&["ls", "docker-archive:x.tar"]).contains("use oci-archive:FILE"));
}

/// The standard error of a command that must fail.
fn refusal(sandbox: &Sandbox, args: &[&str]) -> String {
    let output = sandbox.command(args).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(1),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn hostile_archives_are_refused() {
    let sandbox = Sandbox::new();
    let tar = layer("f", b"content");
    let sound = config(&[&tar]);
    let manifest = |layers: &[&str]| file("manifest.json", &manifest_json(&[("c", &[], layers)]));
    let base = || vec![file("c", &sound), file("l", &tar), manifest(&["l"])];
    let refused = |members: &[Vec<u8>], why: &str| {
        write(&sandbox, members);
        let said = refusal(&sandbox, &["ls", "docker-archive:x.tar"]);
        assert!(said.contains(why), "{why}: {said}");
    };
    let with = |more: Vec<u8>| [vec![more], base()].concat();
    let leading_to = |name: &str| vec![file("c", &sound), file("l", &tar), manifest(&[name])];
    write(&sandbox, &base());
    succeeds(&sandbox, &["ls", "docker-archive:x.tar"]);
    // Members that are not requested do no harm.
    let twice = [file("other", b"1"), file("other", b"2")].concat();
    for harmless in [file("../l", b"x"), file("a/../../l", b"x"), entry(b'2', "x", "x"), twice] {
        write(&sandbox, &with(harmless));
        assert_eq!(succeeds(&sandbox, &["cat", "docker-archive:x.tar", "f"]), "content");
    }

    // The last member of a name counts.
    for older in [
        file("manifest.json", b"[]"),
        file("/l", b"other"),
        file("./l", b"other"),
        entry(b'2', "l", "c"),
    ] {
        write(&sandbox, &with(older));
        assert_eq!(succeeds(&sandbox, &["cat", "docker-archive:x.tar", "f"]), "content");
    }
    refused(&[file("d/manifest.json", b"[]")], "it has manifest.json only in the folder d");
    refused(&leading_to("gone"), "\"gone\" in x.tar is not in the archive");
    refused(&leading_to("../l"), "\"../l\" in x.tar leads out of the archive");
    refused(&leading_to("a/../../l"), "leads out of the archive");
    let links = [
        entry(b'2', "a", "b"),
        entry(b'2', "b", "./a"),
        entry(b'2', "out", "../l"),
        entry(b'2', "root", "/l"),
    ];
    let linked = |name: &str| [links.to_vec(), leading_to(name)].concat();
    refused(&linked("a"), "\"a\" in x.tar is a link in a loop");
    refused(&linked("out"), "is a link that leads out of the archive");
    refused(&linked("root"), "is a link that leads out of the archive");
    refused(
        &[vec![entry(b'6', "fifo", "")], leading_to("fifo")].concat(),
        "\"fifo\" in x.tar is not a regular file",
    );
    refused(
        &[vec![entry(b'5', "d/", "")], leading_to("d")].concat(),
        "\"d\" in x.tar is not in the archive",
    );

    let json = |text: &[u8]| vec![file("c", &sound), file("l", &tar), file("manifest.json", text)];
    refused(&json(b"[]"), "manifest.json lists no image");
    refused(&json(b"{}"), "expected a list");
    refused(&json(br#"[{"Config":"c","Layers":["l"],"layers":["c"]}]"#), "some readers treat as");
    refused(&json(br#"[{"Config":"c","Config":"l","Layers":["l"]}]"#), "duplicate key");
    refused(&json(&vec![b' '; (4 << 20) + 1]), "manifest.json in x.tar is not valid");
    refused(&json(br#"[{"Config":"c"}]"#), "manifest.json lists 0 layers, but the config lists 1");
    refused(&json(br#"[{"Config":"l","Layers":["l"]}]"#), "\"l\" in x.tar cannot be used");
    refused(&[file("repositories", b"{}")], "Docker before 1.10");
    refused(&[file("c", b"{}")], "it has no manifest.json");

    let config_claims = |digest: Digest, layer: &[u8]| {
        vec![file("c", &config_of(&[digest])), file("l", layer), manifest(&["l"])]
    };
    let other = Digest::sha256(b"other");
    refused(&config_claims(other, &gzip(&tar)), &format!("{other} in x.tar is damaged"));
    refused(
        &config_claims(other, &zstd::encode_all(&tar[..], 3).unwrap()),
        &format!("{other} in x.tar is damaged"),
    );
    let cut = gzip(&tar);
    refused(&config_claims(other, &cut[..cut.len() - 9]), "\"l\" in x.tar cannot be decompressed");
    refused(&config_claims(other, b"\xfd7zXZ\0 and so on"), "has an unsupported compression");
    // A size that exceeds the file.
    let lies = Block { name: b"l".to_vec(), size: 1 << 40, ..Block::default() }.bytes();
    refused(
        &[file("c", &sound), manifest(&["l"]), lies],
        "the tar is truncated inside the data of an entry",
    );
    // Very many names.
    let many: Vec<Vec<u8>> =
        (0..70_000).map(|number| entry(b'0', &format!("{number}"), "")).collect();
    refused(&[many, base()].concat(), "more than 65536 files");

    fs::write(sandbox.path("x.tar"), gzip(&base().concat())).unwrap();
    assert!(
        refusal(&sandbox, &["ls", "docker-archive:x.tar"])
            .contains("must be decompressed first (gunzip)")
    );
    fs::write(sandbox.path("x.tar"), b"").unwrap();
    assert!(refusal(&sandbox, &["ls", "docker-archive:x.tar"]).contains("it is empty"));
    assert!(
        refusal(&sandbox, &["ls", "docker-archive:."])
            .contains("not a docker save archive: it is a directory")
    );
}

#[test]
fn a_plain_layer_that_differs_from_the_config_is_refused() {
    let sandbox = Sandbox::new();
    for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
        let tar = layer("f", b"content");
        let other = Digest::of(algorithm, &layer("f", b"CONTENT"));
        let manifest = file("manifest.json", &manifest_json(&[("c", &[], &["l"])]));
        write(&sandbox, &[file("c", &config_of(&[other])), file("l", &tar), manifest]);
        for args in [&["cat", "docker-archive:x.tar", "f"][..], &["ls", "docker-archive:x.tar"]] {
            let said = refusal(&sandbox, args);
            assert!(said.contains(&other.to_string()), "{said}");
        }
        let said = refusal(
            &sandbox,
            &["convert", "--min-layer-size=0", "docker-archive:x.tar", "oci:out:1"],
        );
        assert!(said.contains(&other.to_string()), "{said}");
        assert!(
            !fs::read_to_string(sandbox.path("out/index.json"))
                .unwrap_or_default()
                .contains("manifests\":[{")
        );
        let verified = sandbox.json(3, &["verify", "--format=json", "docker-archive:x.tar"]);
        assert_eq!(verified["manifests"][0]["differences"][0]["code"], "diff-id");
    }
}

/// The image of [`layers`] as a layout, `img:v1`: two gzip layers and a plain one.
fn layout(sandbox: &Sandbox) -> Value {
    let tars = layers();
    let config = serde_json::from_slice(&config(&[&tars[0], &tars[1], &tars[2]])).unwrap();
    let layers = [(GZIP, gzip(&tars[0])), (GZIP, gzip(&tars[1])), (PLAIN, tars[2].clone())];
    let image = Image::new(&config, layers);
    image.write(&sandbox.path("img"));
    json!(image.descriptors())
}

#[test]
fn skopeo_reads_the_same_layer_digests() {
    let Some(skopeo) = tool("skopeo") else { return };
    let sandbox = Sandbox::new();
    layout(&sandbox);
    let at = |name: &str| sandbox.path(name).display().to_string();
    let from = format!("oci:{}:v1", at("img"));
    let to = format!("docker-archive:{}", at("x.tar"));
    run(&skopeo, &["copy", "--quiet", &from, &format!("{to}:registry.example/team/app:1")]);
    check(&sandbox, "docker-archive:x.tar:registry.example/team/app:1", "skopeo");
    check(&sandbox, "docker-archive:x.tar", "skopeo, without a name");
    let theirs: Value = serde_json::from_str(&run(&skopeo, &["inspect", &to])).unwrap();
    let ours = sandbox.doctor("docker-archive:x.tar");
    let ours: Vec<&Value> =
        ours["manifests"][0]["layers"].as_array().unwrap().iter().map(|l| &l["digest"]).collect();
    assert_eq!(theirs["Layers"].as_array().unwrap().iter().collect::<Vec<_>>(), ours);
}

#[test]
fn archives_by_regctl_and_crane_keep_the_layers_of_the_registry() {
    let (Some(regctl), Some(crane)) = (tool("regctl"), tool("crane")) else { return };
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let layers = layout(&sandbox);
    let at = |name: &str| sandbox.path(name).display().to_string();
    let image = format!("{}/a:v1", server.host);
    let Some(()) = copied_by_skopeo(&sandbox.path("img"), &image, &["--preserve-digests"]) else {
        return;
    };
    let digests = |found: &Value| -> Vec<Value> {
        found.as_array().unwrap().iter().map(|l| l["digest"].clone()).collect()
    };
    let found = |name: &str| digests(&sandbox.doctor(name)["manifests"][0]["layers"]);

    run(&regctl, &["image", "export", &format!("ocidir://{}:v1", at("img")), &at("x.tar")]);
    check(&sandbox, "docker-archive:x.tar", "regctl");
    // The third layer equals the first one, by its diff ID. Which of their blobs is used does not
    // matter.
    assert_eq!(found("docker-archive:x.tar")[..2], digests(&layers)[..2]);

    run(&crane, &["pull", "--insecure", "--format=tarball", &image, &at("x.tar")]);
    check(&sandbox, &format!("docker-archive:x.tar:{image}"), "crane");
    assert_eq!(found("docker-archive:x.tar")[..2], digests(&layers)[..2]);
}

/// An archive whose data are holes, so only its headers can be read.
#[test]
fn only_headers_and_requested_files_are_read() {
    use std::os::unix::fs::FileExt;
    let sandbox = Sandbox::new();
    let tar = layer("f", b"content");
    let huge = 1 << 40;
    let head = Block { name: b"huge".to_vec(), size: huge, ..Block::default() }.bytes();
    let rest = [
        file("c", &config(&[&tar])),
        file("l", &tar),
        file("manifest.json", &manifest_json(&[("c", &[], &["l"])])),
        padded(&end()),
    ];
    let file = fs::File::create(sandbox.path("x.tar")).unwrap();
    file.write_all_at(&head, 0).unwrap();
    if file.write_all_at(&rest.concat(), 512 + huge as u64).is_err() {
        skip("the file system takes no file of 4 TiB");
        return;
    }
    assert_eq!(succeeds(&sandbox, &["cat", "docker-archive:x.tar", "f"]), "content");
}
