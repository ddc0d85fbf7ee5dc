//! Blobs of indexes that were lost or damaged in the storage of real registries: `verify` names the
//! command that repairs them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::index::copied;
use crate::support::sandbox::{Sandbox, index};
use crate::support::servers::Server;

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

/// The file below `dir` that holds this blob: its digest is the name of the file or of its directory.
fn file_of(dir: &Path, digest: &str) -> PathBuf {
    let hex = digest.strip_prefix("sha256:").unwrap();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let is_named = |path: &Path| path.file_name().is_some_and(|name| name == hex);
            let is_data = entry.file_name().is_some_and(|name| name == "data");
            match entry.is_dir() {
                true => dirs.push(entry),
                false if is_named(&entry) || is_data && entry.parent().is_some_and(is_named) => return entry,
                false => {}
            }
        }
    }
    panic!("{digest} is not there")
}

/// The options in the hint that `verify` prints, which must fail.
fn hinted(sandbox: &Sandbox, image: &str, about: &str) -> Vec<String> {
    let text = sandbox.run(&["verify", "--platform=linux/amd64", image]);
    assert!(text.contains("--- status 3 ---"), "{about}: {text}");
    let hint = text.split_once("hint: repair it with ociseek index ");
    let (_, command) = hint.unwrap_or_else(|| panic!("{about}: {text}"));
    command.lines().next().unwrap().split(' ').map(str::to_owned).collect()
}

/// Harms a ztoc and a fine document in each way, and repairs the index as `verify` says. `replaces` tells
/// whether the registry replaces what it has by what is pushed under the same digest.
fn harm_and_repair(server: &Server, replaces: bool) {
    let Some((sandbox, image)) = copied(server, &[]) else { return };
    let image = image.as_str();
    let report = sandbox.json(0, &index(&["--format=json", "--fine", "--platform=linux/amd64", image]));
    let manifest = &report["images"][0]["manifests"][0];
    let digest = |value: &Value| value["digest"].as_str().unwrap().to_owned();
    let blobs = [
        ("document", "--fine-only", digest(&manifest["fine"]["documents"][0])),
        ("ztoc", "", digest(&manifest["layers"][0]["ztoc"])),
    ];
    for (kind, option, digest) in blobs {
        for harm in [Harm::Lost, Harm::Cut, Harm::Flipped] {
            let about = format!("{kind}, {harm:?}, replaces: {replaces}");
            let file = file_of(server.dir.path(), &digest);
            let sound = std::fs::read(&file).unwrap();
            harm.to(&file);
            let hint = hinted(&sandbox, image, &about);
            let options = [option, "--existing", "replace"];
            assert!(hint.iter().eq(options.iter().filter(|option| !option.is_empty())), "{about}: {hint:?}");

            let again: Vec<&str> = hint.iter().map(String::as_str).chain(["--platform=linux/amd64", image]).collect();
            let text = sandbox.run(&index(&again));
            if replaces || harm == Harm::Lost {
                assert!(text.contains("--- status 0 ---"), "{about}: {text}");
                assert!(std::fs::read(&file).unwrap() == sound, "{about}");
                let text = sandbox.run(&["verify", "--platform=linux/amd64", image]);
                assert!(text.matches(": ok (").count() == 2 && !text.contains("hint:"), "{about}: {text}");
            } else {
                assert!(text.contains("--- status 1 ---"), "{about}: {text}");
                assert!(text.contains("is still damaged there"), "{about}: {text}");
                std::fs::write(&file, &sound).unwrap();
            }

            // A run that finds the index up to date asks for existence and size of its blobs.
            harm.to(&file);
            let plain: Vec<&str> = hint[..hint.len() - 2].iter().map(String::as_str).collect();
            let run = [&plain[..], &["--format=json", "--platform=linux/amd64", image]].concat();
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

#[test]
fn by_a_registry_that_replaces_blobs() {
    let on_disk = |dir: &Path, _| ["--store-type=dir".to_owned(), format!("--dir={}", dir.display())].to_vec();
    let Some(server) = Server::olareg(on_disk) else { return };
    harm_and_repair(&server, true);
}

#[test]
fn by_a_registry_that_keeps_blobs() {
    for program in ["docker-registry", "distribution3"] {
        let Some(server) = Server::distribution_on_disk(program) else { return };
        harm_and_repair(&server, false);
    }
}
