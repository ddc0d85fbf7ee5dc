//! Conversion of images whose manifests have subjects, as the attestations of BuildKit have since
//! 0.32, where a registry refuses a manifest whose subject it does not have (GitLab).

use ociseek_format::digest::Digest;
use serde_json::Value;

use super::maker::{self, Maker, artifact_attestation};
use super::stores::{assert_whole, command, load};
use ociseek_testkit::faulty::{Faulty, RegistrySettings};

const ATTESTATION: &str = "application/vnd.docker.attestation.manifest.v1+json";

fn strict() -> RegistrySettings {
    RegistrySettings { strict_subjects: true, complete_lists: true, ..RegistrySettings::default() }
}

/// The report of a run, and what it says on standard error.
async fn convert(args: Vec<String>) -> (Value, String) {
    let run = move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        command(&args).output().unwrap()
    };
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

fn document(registry: &Faulty, reference: &str) -> Value {
    serde_json::from_slice(&registry.manifest(reference).unwrap()).unwrap()
}

/// The subjects of the artifacts that an image lists, and what the entries say of them.
fn attested(registry: &Faulty, tag: &str) -> Vec<[Value; 2]> {
    let index = document(registry, tag);
    let entries = index["manifests"].as_array().unwrap().iter();
    let artifacts = entries.filter_map(|entry| {
        let manifest = document(registry, entry["digest"].as_str().unwrap());
        let subject = manifest["subject"].as_object()?;
        assert_eq!(manifest["artifactType"], ATTESTATION);
        let bytes = registry.manifest(subject["digest"].as_str().unwrap()).unwrap();
        assert_eq!(subject["size"], bytes.len());
        let stated = entry["annotations"]["vnd.docker.reference.digest"].clone();
        Some([subject["digest"].clone(), stated])
    });
    artifacts.collect()
}

/// What an image lists for a platform.
fn image_for(registry: &Faulty, tag: &str, architecture: &str) -> Value {
    let index = document(registry, tag);
    let entries = index["manifests"].as_array().unwrap();
    entries.iter().find(|entry| entry["platform"]["architecture"] == architecture).unwrap()
        ["digest"]
        .clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn attestations_follow_their_image_and_come_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let maker = Maker::new(dir.path());
    let images = [maker.image("amd64", 1), maker.image("arm64", 2)];
    let attestations = images.clone().map(|image| artifact_attestation(&maker, &image));
    // The worst order: what is attested is last.
    let index = maker.index(&[&attestations[..], &images[..]].concat());
    let root = maker::digest(&index);
    for platforms in [&[][..], &["--platform=linux/arm64".to_owned()]] {
        for is_elsewhere in [false, true] {
            let from = Faulty::honest(strict()).await;
            load(&from, dir.path(), root);
            let to = if is_elsewhere { Faulty::honest(strict()).await } else { from.clone() };
            let names = [format!("{}/a:v1", from.host()), format!("{}/b:v2", to.host())];
            let (report, said) = convert([platforms, &names].concat()).await;
            assert_eq!(report["status"], "written", "{report}");
            assert!(!said.contains("warning"), "{said}");
            assert_whole(&to, "v2");
            let expected = ["amd64", "arm64"].map(|platform| {
                let image = image_for(&to, "v2", platform);
                [image.clone(), image]
            });
            assert_eq!(attested(&to, "v2"), expected, "{platforms:?}");
            let (again, _) = convert([platforms, &names].concat()).await;
            assert_eq!(again["status"], "already-there");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_whose_subject_is_refused_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let maker = Maker::new(dir.path());
    let image = maker.image("amd64", 1);
    let gone = maker.image("arm64", 2);
    let attestation = artifact_attestation(&maker, &gone);
    maker.remove(&gone);
    let index = maker.index(&[image.clone(), artifact_attestation(&maker, &image), attestation]);
    let from = Faulty::honest(RegistrySettings::default()).await;
    load(&from, dir.path(), maker::digest(&index));
    for (settings, artifacts) in [(RegistrySettings::default(), 2), (strict(), 1)] {
        let to = Faulty::honest(settings).await;
        let names = vec![format!("{}/a:v1", from.host()), format!("{}/b:v2", to.host())];
        let (report, said) = convert(names.clone()).await;
        assert_eq!(said.contains("warning: the registry refuses"), artifacts == 1, "{said}");
        assert_whole(&to, "v2");
        let stated = Digest::sha256(&to.manifest("v2").unwrap()).to_string();
        assert_eq!(report["digest"], stated);
        let index = document(&to, "v2");
        let entries = index["manifests"].as_array().unwrap().iter();
        let unknown = entries.filter(|entry| {
            let text = entry["annotations"]["vnd.docker.reference.type"].as_str();
            text == Some("attestation-manifest")
        });
        assert_eq!(unknown.count(), artifacts);
        let (again, _) = convert(names).await;
        assert_eq!(again["status"], "already-there");
    }
}
