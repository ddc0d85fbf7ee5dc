use super::*;
use crate::image::go::{decode_index, decode_manifest};
use crate::image::select::{ATTESTATION, REFERENCE_TYPE};
use crate::image::soci;
use crate::offset::SpanSize;
use proptest::prelude::*;

const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

fn manifest(content: &str) -> GoManifest {
    GoManifest {
        schema_version: 2,
        media_type: "application/vnd.docker.distribution.manifest.v2+json".to_owned(),
        artifact_type: String::new(),
        config: Descriptor::of(DOCKER_CONFIG, content.as_bytes()),
        layers: Some(vec![Descriptor::of(GZIP, content.as_bytes())]),
        subject: None,
        annotations: BTreeMap::new(),
    }
}

fn platform(text: &str) -> Platform {
    let mut parts = text.split('/');
    let mut part = || parts.next().unwrap_or_default().to_owned();
    let os = part();
    let architecture = part();
    let variant = part();
    let version = part();
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    Platform {
        os,
        architecture,
        variant: some(variant),
        os_version: some(version),
        os_features: Vec::new(),
    }
}

/// An image index of images, named by their platforms and distinguished by content.
fn original(entries: &[(&str, &str)]) -> Original {
    let contents: Vec<EntryContent> =
        entries.iter().map(|(_, content)| EntryContent::of(manifest(content))).collect();
    let manifests = entries.iter().zip(&contents).map(|((name, _), content)| {
        let mut descriptor = Descriptor::of(OCI_MANIFEST, &content.image().unwrap().encode());
        descriptor.platform = Some(platform(name)).filter(|p| !p.os.is_empty());
        descriptor
    });
    let mut original = Original::single(Descriptor::of("", b""), manifest(""));
    original.index.manifests = manifests.collect();
    original.contents = contents;
    original
}

#[test]
fn soci_indexes_that_no_manifest_names_are_dropped() {
    let mut image = original(&[("linux/amd64", "a"), ("linux/arm64", "b")]);
    let stranger = |content: &str| Descriptor {
        artifact_type: Some(INDEX_V2.to_owned()),
        platform: Some(platform("linux/s390x")),
        ..Descriptor::of(OCI_MANIFEST, content.as_bytes())
    };
    let mut named = stranger("named");
    named.platform = Some(platform("linux/arm64"));
    let EntryContent::Image(arm) = &mut image.contents[1] else { panic!() };
    arm.annotations.insert(INDEX_DIGEST.to_owned(), named.digest.to_string());
    image.index.manifests.extend([stranger("x"), named.clone()]);
    image.contents.extend([EntryContent::Kept, EntryContent::Kept]);
    let enabled = convert(image, &["linux/amd64"]);
    let listed: Vec<Digest> =
        soci_indexes(&enabled.index.manifests).map(|entry| entry.digest).collect();
    assert_eq!(listed, [named.digest, enabled.indexes[0].descriptor.digest]);
}

fn ztoc(layer: &Descriptor) -> ZtocRef {
    ZtocRef {
        ztoc: Digest::sha256(layer.digest.to_string().as_bytes()),
        size: 7,
        layer: layer.digest,
        layer_media_type: layer.media_type.clone(),
        span_size: SpanSize::DEFAULT,
    }
}

fn convert(original: Original, requested: &[&str]) -> EnabledDocuments {
    let requested: Vec<Platform> = requested.iter().map(|name| platform(name)).collect();
    let targets = original.targets(&requested);
    assert_eq!(targets.missing, []);
    let indexed: Vec<SociIndexParts> = targets
        .targets
        .into_iter()
        .map(|target| {
            let ztocs = original.contents[target.entry]
                .image()
                .unwrap()
                .layers()
                .iter()
                .map(ztoc)
                .collect();
            SociIndexParts {
                target,
                ztocs,
                prefetch: Vec::new(),
                fine: None,
                tocs: BTreeMap::new(),
            }
        })
        .collect();
    original.enable(&indexed, "tool")
}

/// Parses the converted image.
fn read(enabled: &EnabledDocuments, before: &Original) -> Original {
    let index = decode_index(&enabled.bytes).unwrap();
    let contents = index.manifests.iter().enumerate().map(|(entry, descriptor)| {
        let new = enabled.manifests.iter().find(|m| m.digest == descriptor.digest);
        match new {
            Some(new) => EntryContent::of(decode_manifest(&new.bytes).unwrap()),
            None => before
                .contents
                .get(entry)
                .filter(|c| **c == EntryContent::Kept)
                .cloned()
                .unwrap_or(EntryContent::Kept),
        }
    });
    Original { contents: contents.collect(), index, platforms: BTreeMap::new() }
}

fn platforms(enabled: &EnabledDocuments) -> Vec<String> {
    soci_indexes(&enabled.index.manifests)
        .map(|d| {
            let platform = d.platform.as_ref().unwrap();
            format!(
                "{platform}{}",
                platform.os_version.as_deref().map(|v| format!("@{v}")).unwrap_or_default()
            )
        })
        .collect()
}

#[test]
fn each_image_names_its_index_and_each_index_its_image() {
    let original = original(&[("linux/amd64", "a"), ("linux/arm64/v8", "b")]);
    let enabled = convert(original, &[]);
    let entries = &enabled.index.manifests;
    assert_eq!(platforms(&enabled), ["linux/amd64", "linux/arm64/v8"]);
    for (image, index) in [(0, 2), (1, 3)] {
        assert_eq!(entries[index].annotations[MANIFEST_DIGEST], entries[image].digest.to_string());
        assert_eq!(entries[image].annotations[INDEX_DIGEST], entries[index].digest.to_string());
        assert_eq!(entries[image].media_type, OCI_MANIFEST);
        let manifest = decode_manifest(&enabled.manifests[image].bytes).unwrap();
        assert_eq!(manifest.annotations, entries[image].annotations);
        assert_eq!(manifest.config.media_type, OCI_CONFIG);
        let index = soci::parse(&enabled.indexes[image].bytes).unwrap();
        assert!(index.canonical && index.version == soci::Version::V2 && index.subject.is_none());
    }
}

#[test]
fn requested_platforms_are_matched() {
    for (entries, requested, want) in [
        (&["linux/amd64", "linux/x86_64", "Linux/amd64/v1"][..], &[][..], &["linux/amd64"][..]),
        (&["Linux/x86_64", "linux/amd64/v3"], &[], &["Linux/x86_64", "linux/amd64/v3"]),
        (&["linux/arm64/v8"], &["linux/arm64"], &["linux/arm64"]),
        (&["linux/arm64"], &["linux/arm64/v8", "linux/arm64"], &["linux/arm64/v8"]),
        (&["linux/arm", "linux/arm/v7"], &[], &["linux/arm"]),
        (&["unknown/unknown", "linux/unknown", "linux/386"], &[], &["linux/386"]),
        (&["linux/amd64//1", "linux/amd64//2"], &[], &["linux/amd64@1"]),
        (
            &["windows/amd64//10.0.1", "windows/amd64//10.0.2"],
            &[],
            &["windows/amd64@10.0.1", "windows/amd64@10.0.2"],
        ),
        (
            &["windows/amd64//10.0.1", "linux/amd64", "windows/amd64//10.0.2"],
            &["windows/amd64"],
            &["windows/amd64@10.0.1", "windows/amd64@10.0.2"],
        ),
    ] {
        let named: Vec<(&str, &str)> = entries.iter().map(|name| (*name, *name)).collect();
        assert_eq!(
            platforms(&convert(original(&named), requested)),
            want,
            "{entries:?} {requested:?}"
        );
    }
    let targets =
        original(&[("linux/amd64", "a"), ("linux/amd64", "b")]).targets(&[platform("linux/386")]);
    assert_eq!((targets.targets.len(), targets.missing), (0, vec![platform("linux/386")]));
    assert_eq!(original(&[("linux/amd64", "a"), ("linux/amd64", "b")]).targets(&[]).shadowed, [1]);
}

#[test]
fn os_features_distinguish_images() {
    let mut original = original(&[("linux/amd64", "a"), ("linux/amd64", "b")]);
    original.index.manifests[0].platform.as_mut().unwrap().os_features = vec!["f".to_owned()];
    assert_eq!(original.targets(&[]).targets.len(), 2);
    let requested = original.targets(&[platform("linux/amd64")]).targets;
    assert_eq!(requested.iter().map(|target| target.entry).collect::<Vec<_>>(), [1]);
}

#[test]
fn attestations_name_the_new_image_and_artifacts_are_unchanged() {
    let mut original = original(&[("linux/amd64", "a"), ("unknown/unknown", "att")]);
    let image = original.index.manifests[0].digest;
    let annotations = &mut original.index.manifests[1].annotations;
    annotations.insert(REFERENCE_TYPE.to_owned(), ATTESTATION.to_owned());
    annotations.insert(REFERENCE_DIGEST.to_owned(), image.to_string());
    let mut chart = manifest("chart");
    chart.config.media_type = "application/vnd.cncf.helm.config.v1+json".to_owned();
    let mut entry = Descriptor::of(OCI_MANIFEST, &chart.encode());
    entry.annotations.insert("own".to_owned(), "1".to_owned());
    original.index.manifests.push(entry.clone());
    original.contents.push(EntryContent::of(chart));
    let enabled = convert(original, &[]);
    let entries = &enabled.index.manifests;
    assert_ne!(entries[0].digest, image);
    assert_eq!(entries[1].annotations[REFERENCE_DIGEST], entries[0].digest.to_string());
    assert_eq!(entries[1].annotations[REFERENCE_TYPE], ATTESTATION);
    assert_eq!(entries[2], entry);
    assert_eq!(enabled.manifests.len(), 2);
}

#[test]
fn converting_one_platform_keeps_the_index_of_another() {
    let before = original(&[("linux/amd64", "a"), ("linux/arm64", "b")]);
    let both = convert(before.clone(), &[]);
    let amd64 = convert(read(&both, &before), &["linux/amd64"]);
    assert_eq!(amd64.digest, both.digest);
    // With another tool, its own index is replaced in place, and the other one stays.
    let image = read(&both, &before);
    let target = image.targets(&[platform("linux/amd64")]).targets.remove(0);
    let ztocs = image.contents[target.entry].image().unwrap().layers().iter().map(ztoc).collect();
    let other = image.enable(
        &[SociIndexParts {
            target,
            ztocs,
            prefetch: Vec::new(),
            fine: None,
            tocs: BTreeMap::new(),
        }],
        "other",
    );
    assert_eq!(platforms(&other), ["linux/amd64", "linux/arm64"]);
    let entries = (&other.index.manifests, &both.index.manifests);
    assert_eq!((&entries.0[1], &entries.0[3]), (&entries.1[1], &entries.1[3]));
    assert_eq!(entries.0[0].annotations[INDEX_DIGEST], entries.0[2].digest.to_string());
    assert_ne!(entries.0[2].digest, entries.1[2].digest);
}

#[test]
fn a_lost_index_is_only_listed_if_it_is_made_again() {
    let before = original(&[("linux/amd64", "a"), ("linux/arm64", "b")]);
    let both = convert(before.clone(), &[]);
    let mut image = read(&both, &before);
    image.contents[2] = EntryContent::Lost;
    image.contents[3] = EntryContent::Lost;
    assert_eq!(
        convert(image.clone(), &["linux/amd64"]).index.manifests[..],
        both.index.manifests[..3]
    );
    assert_eq!(convert(image, &[]).digest, both.digest);
}

#[test]
fn a_platform_from_a_config_is_stated_although_old_indexes_are_removed() {
    let entries = [("linux/amd64", "old"), ("linux/amd64", "old"), ("linux/amd64", "a"), ("", "b")];
    let mut original = original(&entries);
    for old in [0, 1] {
        original.index.manifests[old].artifact_type = Some(INDEX_V2.to_owned());
        original.contents[old] = EntryContent::Kept;
    }
    original.platforms.insert(3, platform("linux/arm64"));
    let enabled = convert(original, &[]);
    assert_eq!(platforms(&enabled), ["linux/amd64", "linux/arm64"]);
    let image = enabled.manifests.iter().find(|manifest| manifest.entry == 3).unwrap();
    let entry = enabled.index.manifests.iter().find(|entry| entry.digest == image.digest).unwrap();
    assert_eq!(entry.platform, Some(platform("linux/arm64")));
}

proptest! {
    #[test]
    fn converting_twice_changes_nothing(
        names in proptest::collection::vec(0_usize..10, 1..8),
        contents in proptest::collection::vec(0_usize..4, 8),
        requested in proptest::option::of(0_usize..10),
    ) {
        const NAMES: [&str; 10] = [
            "linux/amd64", "linux/x86_64", "linux/arm64/v8", "linux/arm64", "linux/arm", "Linux/ARM/v6",
            "windows/amd64//10.0.1", "windows/amd64//10.0.2", "unknown/unknown", "",
        ];
        const CONTENTS: [&str; 4] = ["a", "b", "c", "d"];
        let entries: Vec<_> = names.iter().zip(&contents).map(|(n, c)| (NAMES[*n], CONTENTS[*c])).collect();
        let before = original(&entries);
        let requested: Vec<&str> = requested.map(|place| NAMES[place]).into_iter().collect();
        let chosen = before.targets(&requested.iter().map(|name| platform(name)).collect::<Vec<_>>());
        prop_assume!(chosen.missing.is_empty() && !chosen.targets.is_empty());
        let once = convert(before.clone(), &requested);
        let twice = convert(read(&once, &before), &requested);
        prop_assert_eq!(String::from_utf8_lossy(&twice.bytes), String::from_utf8_lossy(&once.bytes));
    }
}
