//! What docs/lifecycle.md says of moving images: `oras cp -r` and `regctl image copy --referrers`
//! take each kind of index along, and it is verified at the destination.

use std::path::Path;

use serde_json::Value;

use super::{found, image, is_there, registries, subjects};
use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::{Server, run, tool};

const SMALL: [&str; 4] =
    ["--span-size=16KiB", "--min-layer-size=1KiB", "--no-cache", "--progress=none"];

/// A copy by one of the tools, of a tag in `a/b` to the same tag in `copy/TOOL`.
fn moved(program: &Path, from: &Server, to: &Server, tag: &str) -> String {
    let name = program.file_name().unwrap().to_str().unwrap();
    let source = format!("{}/a/b:{tag}", from.host);
    let destination = format!("{}/copy/{name}:{tag}", to.host);
    if name == "oras" {
        let plain = ["--from-plain-http", "--to-plain-http"];
        run(program, &[&["cp", "-r"], &plain[..], &[&source, &destination]].concat());
    } else {
        let [from, to] = [from, to].map(|server| format!("reg={},tls=disabled", server.host));
        let hosts = ["--host", &from, "--host", &to];
        let copy = ["image", "copy", "--referrers", &source, &destination];
        run(program, &[&hosts[..], &copy].concat());
    }
    destination
}

/// A SOCI index of version 1 and a fine index beside `v1`, and the SOCI-enabled image `v2` with a
/// fine index of its own.
fn with_each_kind(sandbox: &Sandbox, image: &str) {
    let enabled = image.replace(":v1", ":v2");
    let index = ["index", "--kind=v1,fine", image];
    let convert = ["convert", "--fine", image, &enabled];
    for command in [&index[..], &convert] {
        let said = sandbox.run(&[command, &SMALL].concat());
        assert!(said.ends_with("--- status 0 ---"), "{said}");
    }
}

#[test]
fn oras_and_regctl_move_each_kind_of_index() {
    let (Some(oras), Some(regctl)) = (tool("oras"), tool("regctl")) else { return };
    let all: Vec<Server> = registries().collect();
    let [olareg, distribution] = &all[..] else { return };
    for (from, to) in [(olareg, distribution), (distribution, olareg)] {
        let Some((sandbox, image)) = image(from) else { return };
        with_each_kind(&sandbox, &image);
        for program in [&oras, &regctl] {
            for tag in ["v1", "v2"] {
                let source = format!("{}/a/b:{tag}", from.host);
                let copy = moved(program, from, to, tag);
                assert_eq!(subjects(&sandbox, &copy), subjects(&sandbox, &source), "{copy}");
                assert_eq!(found(&sandbox, &copy), found(&sandbox, &source), "{copy}");
                let [copied, original] = [&copy, &source].map(|image| {
                    let report = sandbox.doctor(image);
                    let manifests = report["manifests"].as_array().unwrap();
                    let fine = manifests.iter().map(|one| one["fine"][0]["digest"].clone());
                    fine.collect::<Vec<_>>()
                });
                assert!(copied.iter().all(Value::is_string), "{copied:?}");
                assert_eq!(copied, original, "{copy}");
                // The layers are read at the destination, and each index agrees with them.
                let said = sandbox.run(&["verify", "--no-cache", "--progress=none", &copy]);
                assert_eq!(said.matches(": ok (2 of 2 layers").count(), 4, "{copy}: {said}");
            }
        }
        assert!(is_there(to, "copy/oras", "v1") && is_there(to, "copy/regctl", "v2"));
    }
}
