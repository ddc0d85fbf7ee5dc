//! The commands that `doctor` prints are run, for images in every state and every place: each must
//! do what it was printed for. `verify`, `diff` and `report` say the same as `doctor`.

use std::collections::BTreeSet;

use serde_json::Value;

use ociseek_testkit::copied::{copied, copied_alone};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, PLAIN, Sandbox, ZSTD, gzip, tar};
use ociseek_testkit::servers::Server;

/// More than the least size of an indexed layer.
/// Also as zstd.
const LARGE: usize = 19 << 20;

/// The media type and the blob of each layer.
type Blobs<'a> = &'a [(&'static str, Vec<u8>)];

/// Layouts whose images have these layers, under the tag `v1`. Their names say what can be indexed.
fn layouts(sandbox: &Sandbox) -> Vec<&'static str> {
    let large = tar(1, 1, LARGE);
    let small = tar(2, 1, 100);
    let zstd = zstd::encode_all(&large[..], 1).unwrap();
    let states: [(&str, Blobs<'_>); 5] = [
        ("gzip", &[(GZIP, gzip(&large))]),
        ("mixed", &[(GZIP, gzip(&large)), (ZSTD, zstd.clone()), (GZIP, gzip(&small))]),
        ("plain", &[(PLAIN, large.clone())]),
        ("zstd", &[(ZSTD, zstd), (GZIP, gzip(&small))]),
        ("small", &[(GZIP, gzip(&small))]),
    ];
    for (name, layers) in states {
        let tars: Vec<Vec<u8>> = (layers.iter())
            .map(|(kind, _)| if *kind == GZIP && name == "small" { &small } else { &large })
            .cloned()
            .collect();
        Image::new(&config(&tars), layers.iter().cloned()).write(&sandbox.path(name));
    }
    states.map(|(name, _)| name).to_vec()
}

/// The findings about an image: their codes, each with the command that it names.
fn findings(sandbox: &Sandbox, image: &str) -> Vec<(String, Option<String>)> {
    let output = sandbox.command(&["doctor", "--all-platforms", "--json", image]).output().unwrap();
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{image}: {output:?}"));
    let all = report["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|one| one["findings"].as_array().unwrap());
    all.map(|found| {
        (found["code"].as_str().unwrap().to_owned(), found["next"].as_str().map(str::to_owned))
    })
    .collect()
}

/// Runs the commands about `image`, and those about the images that they write.
fn follow(sandbox: &Sandbox, image: &str, seen: &mut BTreeSet<String>) {
    for (code, next) in findings(sandbox, image) {
        // `try` runs the image, and these have no programs.
        let command =
            next.filter(|next| next.starts_with("ociseek ") && !next.starts_with("ociseek try"));
        let Some(command) = command.filter(|command| seen.insert(command.clone())) else {
            continue;
        };
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let said = sandbox.command(&words).output().unwrap();
        assert!(
            said.status.success(),
            "{image}: {code}: {command}: {}",
            String::from_utf8_lossy(&said.stderr)
        );
        let result = words.last().copied().unwrap_or_default();
        let left = findings(sandbox, result);
        assert!(
            left.iter().all(|(other, _)| *other != code),
            "{image}: {code} is still there after {command}"
        );
        follow(sandbox, result, seen);
    }
}

/// What `verify` says of an image without an index is what `doctor` says.
fn agree(sandbox: &Sandbox, image: &str) {
    let found = findings(sandbox, image);
    let (_, next) = found
        .iter()
        .find(|(code, _)| code == "no-index")
        .unwrap_or_else(|| panic!("{image}: {found:?}"));
    let doctor = sandbox.command(&["doctor", "--all-platforms", image]).output().unwrap();
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    let text = doctor.lines().find_map(|line| line.trim().strip_prefix("problem: ")).unwrap();
    let hint = Some(format!("hint: {}", next.as_deref().unwrap_or(text)));
    let hinted = |args: &[&str]| {
        sandbox.run(args).lines().find(|line| line.starts_with("hint: ")).map(str::to_owned)
    };
    if !image.starts_with("docker-archive:") {
        assert_eq!(hinted(&["verify", image]), hint, "verify {image}");
    }
}

#[test]
fn every_command_that_is_printed_helps() {
    let Some(server) = Server::distribution_on_disk("docker-registry") else { return };
    let sandbox = Sandbox::new();
    let mut images = Vec::new();
    for name in layouts(&sandbox) {
        let layout = format!("oci:{name}:v1");
        let remote = format!("{}/{name}:v1", server.host);
        copied(&sandbox, &layout, &remote);
        let archive = sandbox.path(&format!("{name}.tar"));
        let mut packed = tar::Builder::new(std::fs::File::create(&archive).unwrap());
        packed.append_dir_all(".", sandbox.path(name)).unwrap();
        packed.finish().unwrap();
        images.extend([layout, remote, format!("oci-archive:{name}.tar")]);
    }
    for image in &images {
        agree(&sandbox, image);
    }
    let mut seen = BTreeSet::new();
    for image in &images {
        follow(&sandbox, image, &mut seen);
    }
    // With version 1 alone, which no default runtime reads.
    for image in [format!("{}/gzip:one", server.host), "oci:old:v1".to_owned()] {
        copied_alone(&sandbox, "oci:gzip:v1", &image);
        sandbox.run(&["index", &image]);
        assert!(
            findings(&sandbox, &image).iter().any(|(code, _)| code == "only-version-1"),
            "{image}"
        );
        follow(&sandbox, &image, &mut seen);
    }
    let ran = |what: &str| seen.iter().filter(|command| command.starts_with(what)).count();
    assert!(ran("ociseek convert") >= 9 && ran("ociseek index --kind fine") >= 1, "{seen:#?}");
}
