//! Blobs of indexes that were lost or damaged in the storage of real registries: `verify` names the
//! command that repairs them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::index::copied;
use ociseek_testkit::sandbox::{SMALL, Sandbox, index, program, two_platforms};
use ociseek_testkit::servers::Server;

/// What happens to a file.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Harm {
    Lost,
    Cut,
    Flipped,
}

impl Harm {
    fn to(self, file: &Path) {
        let mut bytes = std::fs::read(file).unwrap();
        match self {
            Harm::Lost => return std::fs::remove_file(file).unwrap(),
            Harm::Cut => bytes.truncate(bytes.len() / 2),
            Harm::Flipped => *bytes.last_mut().unwrap() ^= 1,
        }
        std::fs::write(file, bytes).unwrap();
    }
}

/// The file below `dir` that holds this blob: its digest is the name of the file or of its
/// directory.
fn file_of(dir: &Path, digest: &str) -> PathBuf {
    let hex = digest.strip_prefix("sha256:").unwrap();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let is_named = |path: &Path| path.file_name().is_some_and(|name| name == hex);
            let is_data = entry.file_name().is_some_and(|name| name == "data");
            if entry.is_dir() {
                dirs.push(entry);
            } else if is_named(&entry) || is_data && entry.parent().is_some_and(is_named) {
                return entry;
            }
        }
    }
    panic!("{digest} is not there")
}

/// The command in the last hint of `verify`, which must end with `status`.
fn command(sandbox: &Sandbox, image: &str, status: i32) -> String {
    let text = sandbox.run(&["verify", image]);
    assert!(text.contains(&format!("--- status {status} ---")), "{text}");
    let hint = text
        .lines()
        .rfind(|line| line.contains("hint: to repair it, "))
        .unwrap_or_else(|| panic!("{text}"));
    hint.split_once("was made with: ").unwrap().1.to_owned()
}

/// Types `command` into a shell, with the options of the tests as variables.
fn typed(sandbox: &Sandbox, command: &str) {
    let mut shell = Command::new("/bin/sh");
    shell
        .args(["-c", command])
        .current_dir(sandbox.dir.path())
        .env_clear()
        .env("HOME", sandbox.dir.path());
    shell.env("PATH", Path::new(program()).parent().unwrap());
    for (name, value) in
        [("BUILD_TOOL_IDENTIFIER", "test"), ("SPAN_SIZE", "16KiB"), ("MIN_LAYER_SIZE", "1KiB")]
    {
        shell.env(format!("OCISEEK_{name}"), value);
    }
    let output = shell.output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The arguments of `ociseek index` in the hint that `verify` prints, which must fail.
fn hinted(sandbox: &Sandbox, image: &str, about: &str) -> Vec<String> {
    let text = sandbox.run(&["verify", "--platform=linux/amd64", image]);
    assert!(text.contains("--- status 3 ---"), "{about}: {text}");
    let hint = text.split_once(
        "hint: to repair it, run this with the options that it was made with: ociseek index ",
    );
    let (_, command) = hint.unwrap_or_else(|| panic!("{about}: {text}"));
    command.lines().next().unwrap().split(' ').map(str::to_owned).collect()
}

/// Harms a ztoc and a fine document in each way, and repairs the index as `verify` says. `replaces`
/// tells whether the registry replaces what it has by what is pushed under the same digest.
fn harm_and_repair(server: &Server, replaces: bool) {
    let Some((sandbox, image)) = copied(server, &[]) else { return };
    let image = image.as_str();
    let report = sandbox
        .json(0, &index(&["--format=json", "--kind=v1,fine", "--platform=linux/amd64", image]));
    let manifest = &report["images"][0]["manifests"][0];
    let digest = |value: &Value| value["digest"].as_str().unwrap().to_owned();
    let blobs = [
        ("document", &["--kind", "fine"][..], digest(&manifest["fine"]["documents"][0])),
        ("ztoc", &[], digest(&manifest["layers"][0]["ztoc"])),
    ];
    for (kind, options, digest) in blobs {
        for harm in [Harm::Lost, Harm::Cut, Harm::Flipped] {
            let about = format!("{kind}, {harm:?}, replaces: {replaces}");
            let file = file_of(server.dir.path(), &digest);
            let sound = std::fs::read(&file).unwrap();
            harm.to(&file);
            let hint = hinted(&sandbox, image, &about);
            let words =
                [options, &["--existing", "replace", "--platform", "linux/amd64", image]].concat();
            assert!(hint.iter().eq(words.iter()), "{about}: {hint:?}");

            let again: Vec<&str> = hint.iter().map(String::as_str).collect();
            let text = sandbox.run(&index(&again));
            if replaces || harm == Harm::Lost {
                assert!(text.contains("--- status 0 ---"), "{about}: {text}");
                assert!(std::fs::read(&file).unwrap() == sound, "{about}");
                let text = sandbox.run(&["verify", "--platform=linux/amd64", image]);
                assert!(
                    text.matches(": ok (").count() == 2 && !text.contains("hint:"),
                    "{about}: {text}"
                );
            } else {
                assert!(text.contains("--- status 1 ---"), "{about}: {text}");
                assert!(text.contains("is still damaged there"), "{about}: {text}");
                std::fs::write(&file, &sound).unwrap();
            }

            // A run that finds the index up to date asks for existence and size of its blobs.
            harm.to(&file);
            let run = [options, &["--format=json", "--platform=linux/amd64", image]].concat();
            match harm {
                Harm::Cut if !replaces => {
                    let text = sandbox.run(&index(&run));
                    assert!(text.contains("is still damaged there"), "{about}: {text}");
                }
                _ => {
                    let report = sandbox.json(0, &index(&run));
                    let outcome = &report["images"][0]["manifests"][0];
                    let outcome = if kind == "document" { &outcome["fine"] } else { outcome };
                    let expected = if harm == Harm::Flipped { "already-there" } else { "attached" };
                    assert_eq!(outcome["status"], expected, "{about}");
                }
            }
            std::fs::write(&file, &sound).unwrap();
        }
    }
}

/// `convert`, [`SMALL`], and `args`.
fn convert<'a>(args: &[&'a str]) -> Vec<&'a str> {
    ["convert"].into_iter().chain(SMALL).chain(args.iter().copied()).collect()
}

/// Harms each part of a SOCI-enabled image that the original does not have, in each way, and
/// converts again: the original, or the SOCI-enabled image itself as `verify` says.
fn harm_and_convert_again(server: &Server, replaces: bool) {
    let Some((sandbox, image)) = copied(server, &[]) else { return };
    let enabled = format!("{image}-soci");
    let run = |source: &str| sandbox.json(0, &convert(&["--format=json", source, &enabled]));
    let report = run(&image);
    let manifest = &report["manifests"][0];
    let digest = |value: &Value| value["digest"].as_str().unwrap().to_owned();
    let parts = [
        ("ztoc", digest(&manifest["layers"][0]["ztoc"])),
        ("index", digest(&manifest["index"])),
        ("manifest", digest(&manifest["manifest"])),
    ];
    for (kind, digest) in parts {
        // Distribution returns no damaged manifests, but errors that are tried again and again.
        for harm in [Harm::Lost, Harm::Cut, Harm::Flipped]
            .into_iter()
            .filter(|_| replaces || kind == "ztoc")
        {
            for source in [&image, &enabled] {
                let about = format!("{kind}, {harm:?}, of {source}, replaces: {replaces}");
                let file = file_of(server.dir.path(), &digest);
                let sound = std::fs::read(&file).unwrap();
                harm.to(&file);
                let text = sandbox.run(&["verify", "--platform=linux/amd64", &enabled]);
                let from = if kind == "manifest" { "ORIGINAL" } else { enabled.as_str() };
                let hint = format!("was made with: ociseek convert {from} {enabled}\n");
                assert!(text.contains(&hint), "{about}: {text}");

                let text = sandbox.run(&convert(&[source, &enabled]));
                let is_repaired = std::fs::read(&file).is_ok_and(|found| found == sound);
                if kind == "manifest" && source == &enabled {
                    assert!(
                        text.contains("--- status 1 ---") && text.contains("cannot read manifest"),
                        "{about}: {text}"
                    );
                } else if harm == Harm::Lost || kind == "ztoc" && replaces {
                    assert!(text.contains("--- status 0 ---") && is_repaired, "{about}: {text}");
                } else {
                    let is_told = text.contains("is still damaged there")
                        && text.contains("--- status 1 ---");
                    assert!(is_told && !is_repaired, "{about}: {text}");
                }
                std::fs::write(&file, &sound).unwrap();
                assert_eq!(run(&image)["status"], "already-there", "{about}");
            }
        }
    }
}

#[test]
fn version_2_by_converting_again() {
    let on_disk = |dir: &Path, _| {
        ["--store-type=dir".to_owned(), format!("--dir={}", dir.display())].to_vec()
    };
    let Some(server) = Server::olareg(on_disk) else { return };
    harm_and_convert_again(&server, true);
    for program in ["docker-registry", "distribution3"] {
        let Some(server) = Server::distribution_on_disk(program) else { return };
        harm_and_convert_again(&server, false);
    }
}

#[test]
fn by_the_command_as_it_stands_in_the_hint() {
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("it's here"));
    let image = "oci:it's here:v1";
    let report = sandbox.json(0, &index(&["--format=json", "--kind=v1,fine", image]));
    let manifest = &report["images"][0]["manifests"][1];
    for digest in
        [&manifest["fine"]["documents"][0]["digest"], &manifest["layers"][1]["ztoc"]["digest"]]
    {
        let file = file_of(&sandbox.path("it's here"), digest.as_str().unwrap());
        let sound = std::fs::read(&file).unwrap();
        Harm::Flipped.to(&file);
        typed(&sandbox, &command(&sandbox, image, 3));
        assert!(std::fs::read(&file).unwrap() == sound, "{digest}");
        assert!(!sandbox.run(&["verify", image]).contains("hint:"), "{digest}");
    }

    let enabled = "oci:it's here:v1-soci";
    let report = sandbox.json(0, &convert(&["--format=json", image, enabled]));
    for harm in [Harm::Lost, Harm::Flipped] {
        let digest = report["manifests"][1]["layers"][1]["ztoc"]["digest"].as_str().unwrap();
        let file = file_of(&sandbox.path("it's here"), digest);
        let sound = std::fs::read(&file).unwrap();
        harm.to(&file);
        let command = command(&sandbox, enabled, 3);
        let diagnosis = sandbox.run(&["doctor", "--platform=linux/arm64", enabled]);
        assert!(diagnosis.contains(&format!("next: {command}\n")), "{command}: {diagnosis}");
        typed(&sandbox, &command);
        assert!(std::fs::read(&file).unwrap() == sound, "{harm:?}");
        assert!(!sandbox.run(&["verify", enabled]).contains("hint:"), "{harm:?}");
    }
    let by_digest = format!("oci:it's here@{}", report["digest"].as_str().unwrap());
    Harm::Lost.to(&file_of(
        &sandbox.path("it's here"),
        report["manifests"][0]["layers"][0]["ztoc"]["digest"].as_str().unwrap(),
    ));
    assert!(
        command(&sandbox, &by_digest, 3).ends_with(" NEW-NAME"),
        "a digest cannot name the converted image"
    );
}

#[test]
fn a_lost_image_manifest_by_converting_the_original() {
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("it's here"));
    let image = "oci:it's here:v1";
    let enabled = "oci:it's here:v1-soci";
    let report = sandbox.json(0, &convert(&["--format=json", image, enabled]));
    let file = |manifest: &Value| {
        file_of(&sandbox.path("it's here"), manifest["digest"].as_str().unwrap())
    };

    let manifest = file(&report["manifests"][1]["manifest"]);
    let sound = std::fs::read(&manifest).unwrap();
    Harm::Flipped.to(&manifest);
    let command = command(&sandbox, enabled, 1);
    assert!(command.starts_with("ociseek convert ORIGINAL "), "{command}");
    typed(&sandbox, &command.replace("ORIGINAL", "\"oci:it's here:v1\""));
    assert!(std::fs::read(&manifest).unwrap() == sound);
    assert!(!sandbox.run(&["verify", enabled]).contains("hint:"));
    // A layout may lack platforms, and that is said.
    Harm::Lost.to(&manifest);
    assert!(
        sandbox
            .run(&["verify", enabled])
            .contains("listed for linux/arm64: it is not in the layout")
    );
    typed(&sandbox, &command.replace("ORIGINAL", "\"oci:it's here:v1\""));
    assert!(std::fs::read(&manifest).unwrap() == sound);

    // Nothing that ociseek wrote is lost.
    Harm::Lost.to(&file(&report["manifests"][0]["source_manifest"]));
    assert!(
        sandbox.run(&["verify", image]).contains("listed for linux/amd64: it is not in the layout")
    );
    assert!(sandbox.run(&["ls", "--platform=linux/amd64", image]).ends_with("--- status 1 ---"));
}

#[test]
fn a_registry_that_replaces_blobs_is_repaired() {
    let on_disk = |dir: &Path, _| {
        ["--store-type=dir".to_owned(), format!("--dir={}", dir.display())].to_vec()
    };
    let Some(server) = Server::olareg(on_disk) else { return };
    harm_and_repair(&server, true);
}

#[test]
fn a_registry_that_keeps_damaged_blobs_is_reported() {
    for program in ["docker-registry", "distribution3"] {
        let Some(server) = Server::distribution_on_disk(program) else { return };
        harm_and_repair(&server, false);
    }
}
