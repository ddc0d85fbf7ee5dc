//! `ociseek convert`: compared with soci's own converter, and with various stores.

mod both;
mod cases;
mod maker;
mod odd;
mod stores;
mod subjects;

use ociseek_testkit::sandbox::program;
use ociseek_testkit::{in_memory, soci};
use std::path::Path;
use std::process::Command;

use cases::{CASES, Case, Expect};
use maker::Maker;
use ociseek_format::digest::Digest;
use odd::Odd;
use serde_json::Value;

const TOOL: &str = "--build-tool-identifier=AWS SOCI CLI v0.2";

/// The digest that a converter prints, or its error.
fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("the converter runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout).lines().last().unwrap_or_default().to_owned())
    } else {
        Err(text(&output.stderr))
    }
}

fn ours(
    source: &str,
    destination: &str,
    smallest: u64,
    platform: Option<&str>,
) -> Result<String, String> {
    let mut command = Command::new(program());
    command
        .args(["convert", "--quiet", "--no-cache", "--jobs=2", source, destination])
        .args(["--span-size=64KiB", TOOL]);
    command.arg(format!("--min-layer-size={smallest}B"));
    run(command.args(platform.map(|platform| format!("--platform={platform}"))))
}

fn theirs(
    oracle: &Path,
    source: &Path,
    destination: &Path,
    smallest: u64,
    platform: Option<&str>,
) -> Result<String, String> {
    let mut command = Command::new(oracle);
    command
        .env("TMPDIR", in_memory())
        .arg("convert")
        .args(["--span-size=65536", TOOL])
        .arg(format!("--min-layer-size={smallest}"));
    command.arg(
        platform.map_or_else(
            || "--all-platforms".to_owned(),
            |platform| format!("--platform={platform}"),
        ),
    );
    run(command.arg(source).arg(destination))
}

/// Checks that all content named by the image in a layout exists and has the right digest.
fn assert_whole(layout: &Path, root: &str) {
    let mut todo = vec![root.to_owned()];
    while let Some(digest) = todo.pop() {
        let (algorithm, hex) = digest.split_once(':').unwrap();
        let Ok(bytes) = std::fs::read(layout.join("blobs").join(algorithm).join(hex)) else {
            panic!("{digest} is not in {}", layout.display());
        };
        let parsed: Digest = digest.parse().unwrap();
        assert_eq!(Digest::of(parsed.algorithm(), &bytes), parsed);
        let Ok(document) = serde_json::from_slice::<Value>(&bytes) else { continue };
        let lists =
            ["manifests", "layers"].iter().filter_map(|key| document[key].as_array()).flatten();
        let named = lists
            .chain(document.get("config"))
            .filter(|descriptor| descriptor.get("urls").is_none());
        todo.extend(named.filter_map(|descriptor| Some(descriptor["digest"].as_str()?.to_owned())));
    }
}

/// The image index that a converter wrote, or its error.
fn show(dir: &Path, digest: &Result<String, String>) -> String {
    match digest {
        Ok(digest) => {
            std::fs::read_to_string(dir.join("blobs/sha256").join(&digest[7..])).unwrap_or_default()
        }
        Err(error) => error.clone(),
    }
}

fn compare(oracle: &Path, case: &Case) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    (case.make)(&Maker::new(&source));
    let out = dir.path().join("ours");
    let reference = dir.path().join("theirs");
    let made = ours(
        &format!("oci:{}", source.display()),
        &format!("oci:{}:v2", out.display()),
        0,
        case.platform,
    );
    let soci = theirs(oracle, &source, &reference, 0, case.platform);
    match (case.expect, &made, &soci) {
        (Expect::Same, Ok(made), Ok(soci)) if made == soci => {}
        (Expect::Differs(_), Ok(made), Ok(soci)) if made != soci => {}
        (Expect::OnlyOurs(_), Ok(_), Err(_))
        | (Expect::OnlySoci(_), Err(_), Ok(_))
        | (Expect::Neither, Err(_), Err(_)) => {
            if made.is_err() {
                let index = std::fs::read_to_string(out.join("index.json")).unwrap_or_default();
                assert!(
                    !index.contains("sha256:"),
                    "{}: it failed and left a name: {index}",
                    case.name
                );
            }
        }
        _ => {
            return Err(format!(
                "{}\n  ours: {}\n  soci: {}",
                case.name,
                show(&out, &made),
                show(&reference, &soci)
            ));
        }
    }
    if let Ok(made) = made {
        assert_whole(&out, &made);
        // Converting the result changes nothing.
        let enabled = format!("oci:{}:v2", out.display());
        let again = ours(&enabled, &enabled, 0, case.platform);
        if again.as_deref() != Ok(made.as_str()) {
            return Err(format!("{}: converted again it is {again:?}", case.name));
        }
    }
    Ok(())
}

#[test]
fn odd_images_are_converted_as_by_soci() {
    let Some(oracle) = soci::oracle_binary() else { return };
    assert!(CASES.len() >= 60, "{} cases", CASES.len());
    let failed: Vec<String> = std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            let oracle = &oracle;
            scope.spawn(move || {
                CASES
                    .iter()
                    .skip(half)
                    .step_by(2)
                    .filter_map(|case| compare(oracle, case).err())
                    .collect::<Vec<_>>()
            })
        });
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), CASES.len(), failed.join("\n"));
}

/// Compares both converters on an image that is generated from a number. The error describes the
/// difference.
fn compare_odd(oracle: &Path, number: u64) -> (Odd, Result<(), String>) {
    let dir = tempfile::tempdir().unwrap();
    let [source, out, reference] = ["source", "ours", "theirs"].map(|name| dir.path().join(name));
    let odd = odd::make(&Maker::new(&source), number);
    let smallest = odd.min_layer_size;
    let platform = odd.platform.as_deref();
    let made = ours(
        &format!("oci:{}", source.display()),
        &format!("oci:{}:v2", out.display()),
        smallest,
        platform,
    );
    let soci = theirs(oracle, &source, &reference, smallest, platform);
    let is_explained = match (&made, &soci) {
        (Ok(made), Ok(soci)) if made == soci => true,
        (Ok(_), Ok(_)) => odd.explains(&show(&out, &made), &show(&reference, &soci)),
        (Ok(_), Err(error)) => odd.excuses(error),
        (Err(error), Ok(_)) => odd.forbids(error),
        (Err(_), Err(_)) => true,
    };
    let text = || {
        let ours = show(&out, &made);
        let theirs = show(&reference, &soci);
        let Odd { traits, reasons, .. } = &odd;
        format!(
            "{number}: {traits:?} {reasons:?} asked for {platform:?}\n  ours: {ours}\n  soci: {theirs}"
        )
    };
    let mut result = if is_explained { Ok(()) } else { Err(text()) };
    match &made {
        Ok(made) => {
            // Converting the result changes nothing.
            let enabled = format!("oci:{}:v2", out.display());
            let again = ours(&enabled, &enabled, smallest, platform);
            if again.as_ref() != Ok(made) {
                result = Err(format!("{}\n  converted again: {}", text(), show(&out, &again)));
            }
        }
        Err(_) => {
            let index = std::fs::read_to_string(out.join("index.json")).unwrap_or_default();
            assert!(!index.contains("sha256:"), "{number}: it failed and left a name: {index}");
        }
    }
    (odd, result)
}

#[test]
fn random_images_are_converted_as_by_soci() {
    let Some(oracle) = soci::oracle_binary() else { return };
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let seed = number("OCISEEK_ODD_SEED", 1);
    let count = number("OCISEEK_ODD_COUNT", 200);
    let results: Vec<_> = std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            let oracle = &oracle;
            scope.spawn(move || {
                (seed..seed + count)
                    .skip(half)
                    .step_by(2)
                    .map(|number| compare_odd(oracle, number))
                    .collect::<Vec<_>>()
            })
        });
        halves.into_iter().flat_map(|half| half.join().unwrap()).collect()
    });
    let (odds, results): (Vec<Odd>, Vec<Result<(), String>>) = results.into_iter().unzip();
    println!("{count} odd images from {seed} on: {:?}", odd::counted(&odds));
    let failed: Vec<String> = results.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{} of {count}:\n{}", failed.len(), failed.join("\n"));
}
