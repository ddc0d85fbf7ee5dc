//! OCI image layouts on disk: finding, reading, attaching, and what hostile ones do.

use std::fs;
use std::io::Read;
use std::path::Path;

use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::image::manifest::{OCI_CONFIG, OCI_INDEX, OCI_MANIFEST};
use ociseek_format::image::soci::{INDEX_V1, SociIndex};
use ociseek_format::image::{Descriptor, ImageSelector};
use ociseek_store::blob::{AttachMethod, Target};
use ociseek_store::layout::{Layout, LayoutError};
use ociseek_testkit::image::{image_index, image_manifest};
use ociseek_testkit::sandbox::GZIP;

fn layout() -> (tempfile::TempDir, Layout) {
    let dir = tempfile::tempdir().unwrap();
    let layout = Layout::open_or_new(&dir.path().join("l")).unwrap();
    put(&layout, "x/y", b"the first write creates the files");
    (dir, layout)
}

/// Writes a blob and answers its descriptor.
fn put(layout: &Layout, media_type: &str, content: &[u8]) -> Descriptor {
    let descriptor = Descriptor::of(media_type, content);
    layout.write_blob(&descriptor, content).unwrap();
    descriptor
}

fn image(layout: &Layout, content: &str) -> Descriptor {
    let config = put(
        layout,
        OCI_CONFIG,
        format!(r#"{{"os":"linux","architecture":"amd64","x":"{content}"}}"#).as_bytes(),
    );
    let layer = put(layout, GZIP, content.as_bytes());
    let manifest = image_manifest(&config, &[layer]);
    put(layout, OCI_MANIFEST, manifest.to_string().as_bytes())
}

fn list(dir: &Path, entries: &[serde_json::Value]) {
    let index = serde_json::json!({"schemaVersion": 2, "x": "y", "manifests": entries});
    fs::write(dir.join("l/index.json"), index.to_string()).unwrap();
}

fn named(descriptor: &Descriptor, key: &str, name: &str) -> serde_json::Value {
    let mut value = serde_json::to_value(descriptor).unwrap();
    value["annotations"] = serde_json::json!({ key: name });
    value
}

fn index_of(subject: &Descriptor, tool: &str) -> ociseek_format::image::soci::EncodedIndex {
    let subject = Some(subject.clone());
    SociIndex {
        layers: Vec::new(),
        subject,
        build_tool_identifier: tool.to_owned(),
        prefetch: Vec::new(),
    }
    .encode()
}

fn index_json(dir: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(dir.join("l/index.json")).unwrap()).unwrap()
}

#[test]
fn images_are_found_by_tag_name_or_digest() {
    let (dir, layout) = layout();
    assert!(matches!(layout.find(&ImageSelector::Any), Err(LayoutError::NoImage { .. })));
    let a = image(&layout, "a");
    let b = image(&layout, "b");
    list(
        dir.path(),
        &[
            named(&a, "org.opencontainers.image.ref.name", "v1"),
            named(&b, "io.containerd.image.name", "docker.io/library/b:2"),
        ],
    );
    let tag = |t: &str| layout.find(&ImageSelector::Tag(t.to_owned())).map(|d| d.digest);
    assert_eq!(tag("v1").unwrap(), a.digest);
    assert_eq!(tag("2").unwrap(), b.digest);
    assert_eq!(tag("docker.io/library/b:2").unwrap(), b.digest);
    assert_eq!(layout.find(&ImageSelector::Digest(b.digest)).unwrap().digest, b.digest);
    match layout.find(&ImageSelector::Any) {
        Err(e @ LayoutError::SeveralImages { .. }) => {
            assert!(e.to_string().contains(r#"choose one of "v1", "docker.io"#))
        }
        other => panic!("{other:?}"),
    }
    match tag("3") {
        Err(e) => assert!(e.to_string().contains(r#"no image "3"; it has "v1", "#), "{e}"),
        other => panic!("{other:?}"),
    }
    let document = layout.manifest(&Target::Tag("v1".to_owned())).unwrap();
    assert_eq!((document.digest, document.media_type.as_str()), (a.digest, OCI_MANIFEST));

    // A manifest that only an index lists is found by its digest.
    list(dir.path(), &[serde_json::to_value(&a).unwrap()]);
    assert_eq!(layout.find(&ImageSelector::Any).unwrap().digest, a.digest);
    assert_eq!(layout.find(&ImageSelector::Digest(b.digest)).unwrap(), b);
}

#[test]
fn an_index_json_that_lists_platforms_is_an_image() {
    let (dir, layout) = layout();
    let entry = |content: &str, architecture: &str| {
        let mut value = serde_json::to_value(image(&layout, content)).unwrap();
        value["platform"] = serde_json::json!({"os": "linux", "architecture": architecture});
        value
    };
    list(dir.path(), &[entry("a", "amd64"), entry("b", "arm64")]);
    let found = layout.find(&ImageSelector::Any).unwrap();
    assert_eq!(found.media_type, OCI_INDEX);
    let document = layout.manifest(&Target::Digest(found.digest)).unwrap();
    assert_eq!(Digest::sha256(&document.bytes), found.digest);
}

#[test]
fn attaching_adds_a_referrer_and_keeps_other_entries() {
    let (dir, layout) = layout();
    let subject = image(&layout, "a");
    list(dir.path(), &[named(&subject, "org.opencontainers.image.ref.name", "v1")]);
    let old = index_of(&subject, "old");
    let new = index_of(&subject, "new");
    let attach = |index: &ociseek_format::image::soci::EncodedIndex, replaces: &[Digest]| {
        layout.attach(&index.descriptor, &index.bytes, replaces).unwrap()
    };
    assert_eq!(attach(&old, &[]), AttachMethod::Layout);
    assert_eq!(attach(&old, &[]), AttachMethod::Layout);
    let digests = || -> Vec<Digest> {
        layout
            .referrers(&subject.digest, Some(INDEX_V1))
            .unwrap()
            .descriptors
            .iter()
            .map(|d| d.digest)
            .collect()
    };
    assert_eq!(digests(), [old.descriptor.digest], "attaching twice lists once");
    let other = index_of(&subject, "other");
    attach(&other, &[]);
    attach(&new, &[old.descriptor.digest]);
    assert_eq!(
        digests(),
        [new.descriptor.digest, other.descriptor.digest],
        "in the place of what it replaces"
    );
    assert!(
        layout.blob_exists(&old.descriptor.digest, None).unwrap(),
        "blobs of replaced indexes stay"
    );

    let json = index_json(dir.path());
    assert_eq!(json["x"], "y");
    assert_eq!(json["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "v1");
    assert_eq!(json["manifests"][1]["artifactType"], INDEX_V1);
    assert_eq!(
        layout.find(&ImageSelector::Any).unwrap().digest,
        subject.digest,
        "a referrer is not an image"
    );
    assert!(
        layout.referrers(&subject.digest, Some("application/x")).unwrap().descriptors.is_empty()
    );
    assert!(layout.referrers(&old.descriptor.digest, None).unwrap().descriptors.is_empty());
    let leftovers = fs::read_dir(dir.path().join("l")).unwrap().count();
    assert_eq!(leftovers, 3, "blobs, index.json, oci-layout and no temporary file");
}

#[test]
fn referrers_are_also_read_from_the_fallback_tag_and_removed_there() {
    let (dir, layout) = layout();
    let sha256 = image(&layout, "a");
    let sha512 = Descriptor { digest: Digest::of(Algorithm::Sha512, b"a"), ..sha256.clone() };
    for subject in [sha256, sha512] {
        let index = index_of(&subject, "x");
        layout.write_blob(&index.descriptor, &index.bytes).unwrap();
        let list_of = image_index(&[&index.descriptor]);
        let fallback = put(&layout, OCI_INDEX, list_of.to_string().as_bytes());
        let tag = format!("{}-{}", subject.digest.algorithm().name(), &subject.digest.hex()[..64]);
        list(dir.path(), &[named(&fallback, "org.opencontainers.image.ref.name", &tag)]);
        let referrers = || layout.referrers(&subject.digest, Some(INDEX_V1)).unwrap().descriptors;
        assert_eq!(referrers(), std::slice::from_ref(&index.descriptor));
        layout.detach(&subject.digest, &[index.descriptor.digest]).unwrap();
        assert!(referrers().is_empty());
    }
}

/// The layout may be a stranger's.
#[test]
fn a_fallback_tag_of_something_other_than_a_list_is_left_alone() {
    let (dir, layout) = layout();
    let subject = image(&layout, "a");
    let index = index_of(&subject, "x");
    layout.attach(&index.descriptor, &index.bytes, &[]).unwrap();
    let referrer = serde_json::to_value(&index.descriptor).unwrap();
    let tag = format!("sha256-{}", subject.digest.hex());
    for strange in ["[]", "\"x\"", "1", "{}", r#"{"manifests": null}"#, r#"{"manifests": {}}"#] {
        let strange = named(
            &put(&layout, OCI_INDEX, strange.as_bytes()),
            "org.opencontainers.image.ref.name",
            &tag,
        );
        list(dir.path(), &[referrer.clone(), strange.clone()]);
        layout.detach(&subject.digest, &[index.descriptor.digest]).unwrap();
        assert_eq!(index_json(dir.path())["manifests"], serde_json::json!([strange]));
    }
}

/// What is missing or damaged is no referrer; what cannot be read may be one.
#[test]
fn a_list_of_referrers_is_complete_or_an_error() {
    let (dir, layout) = layout();
    let subject = image(&layout, "a");
    let index = index_of(&subject, "x");
    layout.attach(&index.descriptor, &index.bytes, &[]).unwrap();
    let path = dir.path().join("l/blobs/sha256").join(index.descriptor.digest.hex());
    fs::write(&path, vec![b' '; index.bytes.len()]).unwrap();
    assert!(layout.referrers(&subject.digest, None).unwrap().descriptors.is_empty());
    fs::remove_file(&path).unwrap();
    assert!(layout.referrers(&subject.digest, None).unwrap().descriptors.is_empty());
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert!(matches!(layout.referrers(&subject.digest, None), Err(LayoutError::Io { .. })));
}

#[test]
fn concurrent_writers_lose_nothing() {
    let (dir, layout) = layout();
    let subject = image(&layout, "a");
    let threads = 8;
    let each = 5;
    std::thread::scope(|scope| {
        for t in 0..threads {
            let layout = Layout::open(&dir.path().join("l")).unwrap();
            let subject = &subject;
            scope.spawn(move || {
                for i in 0..each {
                    let index = index_of(subject, &format!("{t}/{i}"));
                    layout.attach(&index.descriptor, &index.bytes, &[]).unwrap();
                }
            });
        }
    });
    assert_eq!(
        layout.referrers(&subject.digest, Some(INDEX_V1)).unwrap().descriptors.len(),
        threads * each
    );
}

#[test]
fn temporary_files_of_killed_writers_are_removed() {
    let (dir, layout) = layout();
    let subject = image(&layout, "abc");
    let hours_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 3600);
    let leave = |name: &str, is_old: bool| {
        let path = dir.path().join("l").join(name);
        let file = fs::File::create(&path).unwrap();
        file.set_modified(if is_old { hours_ago } else { std::time::SystemTime::now() }).unwrap();
        (path, file)
    };
    let (abandoned, _) = leave(".ociseek-old", true);
    let (being_written, file) = leave(".ociseek-locked", true);
    file.lock().unwrap();
    let (young, _) = leave(".ociseek-young", false);
    let (foreign, _) = leave(".other-old", true);
    layout.name(&subject, Some("v1"), None).unwrap();
    assert!(!abandoned.exists());
    assert!(being_written.exists() && young.exists() && foreign.exists());
}

#[test]
fn blobs_are_checked() {
    let (dir, layout) = layout();
    let blob = put(&layout, GZIP, b"content");
    assert!(!layout.write_blob(&blob, b"content").unwrap());
    assert!(matches!(layout.write_blob(&blob, b"other"), Err(LayoutError::Content { .. })));
    let mut read = Vec::new();
    layout.blob(&blob).unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read, b"content");
    assert!(matches!(layout.blob_bytes(&blob, 6), Err(LayoutError::TooLarge { .. })));
    let longer = Descriptor { size: 8, ..blob.clone() };
    assert!(matches!(layout.blob(&longer), Err(LayoutError::Size { expected: 8, actual: 7, .. })));
    assert!(matches!(layout.blob(&Descriptor::of(GZIP, b"x")), Err(LayoutError::Missing { .. })));

    let path = dir.path().join("l/blobs/sha256").join(blob.digest.hex());
    fs::write(&path, b"damaged").unwrap();
    assert!(matches!(layout.blob_bytes(&blob, 100), Err(LayoutError::Damaged { .. })));
    assert!(layout.write_blob(&blob, b"content").unwrap(), "damage is written over");
    assert_eq!(layout.blob_bytes(&blob, 100).unwrap(), "content");

    // Cut while it is read.
    let mut reader = layout.blob(&blob).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(3).unwrap();
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);

    let sha512 = Descriptor::new(GZIP, Digest::of(Algorithm::Sha512, b"long"), 4);
    assert!(layout.write_blob(&sha512, b"long").unwrap());
    assert_eq!(layout.blob_bytes(&sha512, 4).unwrap(), "long");
}

#[test]
fn special_files_are_refused_without_hanging() {
    let (dir, layout) = layout();
    let blob = put(&layout, GZIP, b"content");
    let path = dir.path().join("l/blobs/sha256").join(blob.digest.hex());
    fs::remove_file(&path).unwrap();
    let status = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(status.success());
    assert!(matches!(layout.blob(&blob), Err(LayoutError::Io { .. })), "a FIFO");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(layout.blob(&blob), Err(LayoutError::Io { .. })), "a directory");
}

#[test]
fn invalid_layouts_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    let reason = |path: &Path| Layout::open(path).unwrap_err().to_string();
    assert!(reason(&path.join("none")).contains("cannot open"));
    assert!(reason(path).contains("no file oci-layout"));
    fs::write(path.join("file"), "x").unwrap();
    assert!(reason(&path.join("file")).contains("oci-archive:FILE"));
    assert!(
        matches!(Layout::open_or_new(path), Err(LayoutError::NotALayout { .. })),
        "other files are not mixed in"
    );
    fs::write(path.join("manifest.json"), "[]").unwrap();
    assert!(reason(path).contains("docker save"));
    fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap();
    assert!(reason(path).contains("2.0.0"));
    fs::write(path.join("oci-layout"), "{").unwrap();
    assert!(reason(path).contains("is not valid"));
    fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let layout = Layout::open(path).unwrap();
    let twice = r#"{"manifests":[],"manifests":[]}"#;
    for bad in ["", "[]", twice, r#"{"manifests":[{"digest":"sha256:../x"}]}"#] {
        fs::write(path.join("index.json"), bad).unwrap();
        let found = layout.find(&ImageSelector::Any);
        if bad == twice {
            // Read as Go reads it, where the last one counts, but never written anew.
            assert!(!matches!(found, Ok(_) | Err(LayoutError::Document { .. })), "{found:?}");
        } else {
            assert!(matches!(found, Err(LayoutError::Document { .. })), "{bad}");
        }
        let index = index_of(&Descriptor::of(OCI_MANIFEST, b"x"), "t");
        assert!(layout.attach(&index.descriptor, &index.bytes, &[]).is_err());
        assert_eq!(fs::read_to_string(path.join("index.json")).unwrap(), bad, "left as it was");
    }
}

#[test]
fn a_new_layout_is_empty_and_is_created_by_the_first_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/layout");
    let layout = Layout::open_or_new(&path).unwrap();
    assert_eq!(layout.images().unwrap(), []);
    assert!(matches!(layout.find(&ImageSelector::Any), Err(LayoutError::NoImage { .. })));
    let content = b"content";
    let blob = Descriptor::of("x/y", content);
    assert!(!layout.blob_exists(&blob.digest, None).unwrap());
    assert_eq!(layout.referrers(&blob.digest, None).unwrap().descriptors, []);
    assert!(!dir.path().join("new").exists());
    // Another process may be first.
    let other = Layout::open_or_new(&path).unwrap();
    for (layout, name) in [(&other, "one"), (&layout, "two")] {
        layout.name(&image(layout, name), Some(name), None).unwrap();
    }
    let written = Layout::open(&path).unwrap();
    assert_eq!(written.images().unwrap().len(), 2);
    // Once it is written, a missing file is an error.
    fs::remove_file(path.join("index.json")).unwrap();
    assert!(written.images().is_err());
}

#[test]
fn nothing_is_written_through_links() {
    use ociseek_format::digest::Algorithm::{Sha256, Sha512};
    let outside = tempfile::tempdir().unwrap();
    for link in ["blobs/sha256", "blobs", "blobs/sha512"] {
        let (dir, layout) = layout();
        let path = dir.path().join("l").join(link);
        let _ = fs::remove_dir_all(&path);
        let away = outside.path().join(link);
        fs::create_dir_all(&away).unwrap();
        std::os::unix::fs::symlink(&away, &path).unwrap();
        let algorithm = if link == "blobs/sha512" { Sha512 } else { Sha256 };
        let content = b"content";
        let blob =
            Descriptor { digest: Digest::of(algorithm, content), ..Descriptor::of("x/y", content) };
        let chunks = [Some(vec![bytes::Bytes::from_static(content)]), None];
        for written in [
            layout.write_blob(&blob, content).map(drop),
            layout.write_chunks(&blob, chunks.into_iter()),
        ] {
            assert!(
                matches!(&written, Err(LayoutError::Link { path: named }) if *named == path),
                "{written:?}"
            );
        }
        assert_eq!(
            fs::read_dir(&away).unwrap().filter(|e| e.as_ref().unwrap().path().is_file()).count(),
            0
        );
    }
    // A directory that somebody prepared is not completed through one either.
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("l")).unwrap();
    std::os::unix::fs::symlink(outside.path(), dir.path().join("l/blobs")).unwrap();
    assert!(matches!(Layout::open_or_new(&dir.path().join("l")), Err(LayoutError::Link { .. })));
    // The user's own link to the layout is not one below it.
    let (dir, _) = layout();
    std::os::unix::fs::symlink(dir.path().join("l"), dir.path().join("to")).unwrap();
    image(&Layout::open(&dir.path().join("to")).unwrap(), "content");
}
