//! Layers without a ztoc, with one that does not fit, and layers for which no ztoc is possible.

use std::error::Error;
use std::fs;

use super::*;
use ociseek_format::layer::{BlobForm, BuiltZtoc, Outcome};
use ociseek_format::offset::SpanSize;
use ociseek_format::tree::{NodeKind, Tree};
use ociseek_format::ztoc::FileKind;
use ociseek_store::cache::CacheKey;
use ociseek_testkit::mounts::wait_until;

async fn serve(blob: &Bytes) -> (Faulty, Source) {
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(blob.clone());
    let source = registry(&faulty.host());
    (faulty, source)
}

/// Deletes what the cache has of content. What was read may still be on its way there.
fn delete_spans(cache: &Path) {
    wait_until("the spans are deleted", || fs::remove_dir_all(cache.join("spans")).is_ok());
}

#[tokio::test]
async fn a_layer_without_a_ztoc_is_read_once_for_all_mounts() {
    let plain = tar(&[3_000_000, 10, 2_000_000]);
    for (media_type, blob, how) in [
        (GZIP, gzip(&plain), LayerAccess::Local),
        (PLAIN, Bytes::from(plain.clone()), LayerAccess::Local),
        (ZSTD, zstd(&plain), LayerAccess::Whole),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (faulty, source) = serve(&blob).await;
        let layer = Descriptor::of(media_type, &blob);
        for mount in 0..2 {
            let desk = Desk::new(Some(dir.path()));
            let open = desk.open(&source, &layer, None).await.unwrap();
            assert_eq!((open.how, open.map().files.len()), (how, 3));
            assert_eq!(open.bytes_read, if mount == 0 { blob.len() as u64 } else { 0 });
            let content = desk.content(&source, vec![open], options());
            check(&content, 0, &plain, 40).await;
            assert_eq!(
                faulty.requests().len(),
                1,
                "{media_type}: what was read to index it is kept"
            );
            assert_eq!(
                content.stats().bytes_fetched,
                if mount == 0 { blob.len() as u64 } else { 0 }
            );
        }
        // The spans were deleted, but not the index.
        delete_spans(dir.path());
        let desk = Desk::new(Some(dir.path()));
        let content = desk.one(&source, &layer, None).await;
        check(&content, 0, &plain, 40).await;
        if how == LayerAccess::Whole {
            assert_eq!(faulty.requests().len(), 2, "decoded again once, for all of it");
        }
        // The same, with a complete prefetch before reading.
        delete_spans(dir.path());
        let content = Desk::new(Some(dir.path())).one(&source, &layer, None).await;
        content.fetch_rest(&BackgroundFetches::default()).await;
        let asked = faulty.requests().len();
        check(&content, 0, &plain, 40).await;
        assert_eq!((faulty.requests().len(), content.stats().errors), (asked, 0));
        assert!(content.stats().bytes_fetched <= blob.len() as u64 + 1000);
        // Without any cache.
        let content = Desk::new(None).one(&source, &layer, None).await;
        check(&content, 0, &plain, 40).await;
        let desk = Desk::new(None);
        let open = desk.open(&source, &layer, None).await.unwrap();
        let content = desk.content(&source, vec![open], ContentOptions { memory: 0, ..options() });
        check(&content, 0, &plain, 5).await;
    }
}

#[tokio::test]
async fn a_zstd_layer_that_changed_later_is_an_error() {
    let plain = tar(&[3_000_000, 10, 6_000_000]);
    let blob = zstd(&plain);
    let dir = tempfile::tempdir().unwrap();
    let layer = Descriptor::of(ZSTD, &blob);
    let mut other_plain = plain.clone();
    other_plain[600] ^= 1;
    let other = zstd(&other_plain);
    let honest = first(1);
    let other_too = other.clone();
    let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
        (!honest()).then(|| axum::http::Response::new(axum::body::Body::from(other_too.clone())))
    })
    .await;
    faulty.add_blob(blob.clone());
    let source = registry(&faulty.host());
    let desk = Desk::new(Some(dir.path()));
    let open = desk.open(&source, &layer, None).await.unwrap();
    delete_spans(dir.path());
    let desk = Desk::new(Some(dir.path()));
    let content = desk.content(&source, vec![open], options());
    let error = read(&content, 0, 1000).await.unwrap_err();
    assert!(matches!(error, ReadError::Unpack { .. }), "{error:?}");
    assert!(error.source().is_some());
}

#[tokio::test]
async fn layers_that_no_ztoc_can_describe_are_read() {
    let sparse = [
        tarball::pax(
            b'x',
            &[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"sparse"),
                ("GNU.sparse.realsize", b"1000000"),
            ],
        ),
        tarball::file(
            "GNUSparseFile.0/sparse",
            &[b"1\n0\n3\n".to_vec(), vec![0; 506], b"abc".to_vec()].concat(),
        ),
    ]
    .concat();
    // An old sparse file with an additional block in its map.
    let mut old = tarball::Block {
        name: b"old".to_vec(),
        flag: b'S',
        size: 3,
        magic: *b"ustar  \0",
        ..Default::default()
    }
    .bytes();
    old[482] = 1;
    old[483..495].copy_from_slice(b"00000001750\0");
    old[148..156].copy_from_slice(b"        ");
    let sum: u32 = old.iter().map(|&b| u32::from(b)).sum();
    old[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut block = [0; 512];
    block[..24].copy_from_slice(b"00000000050\x0000000000003\0");
    old.extend(block);
    old.extend(tarball::padded(b"abc"));
    let plain = [
        tarball::pax(b'g', &[("comment", b"from git")]),
        tarball::file("a", b"first"),
        sparse,
        old,
        tarball::entry(b'V', "volume", ""),
        tarball::Block {
            name: b"far".to_vec(),
            mtime: 1 << 40,
            uid: 1 << 33,
            ..Default::default()
        }
        .bytes(),
        tarball::file("b", b"last"),
        tarball::end(),
        vec![0; 5000],
    ]
    .concat();
    for blob in [gzip(&plain), zstd(&plain), Bytes::from(plain.clone())] {
        let dir = tempfile::tempdir().unwrap();
        let (_faulty, source) = serve(&blob).await;
        // The media type is wrong, and the bytes decide.
        let layer = Descriptor::of(GZIP, &blob);
        for mount in 0..2 {
            let desk = Desk::new(Some(dir.path()));
            let open = desk.open(&source, &layer, None).await.unwrap();
            let map = Arc::clone(open.map());
            let files = map.entries();
            // A global header counts by its name, as containerd counts it: here, it deletes
            // PaxHeaders/x.
            let (global, listed) = files.files.split_first().unwrap();
            assert_eq!(*global.name, *b"PaxHeaders/.wh.x");
            let names: Vec<_> =
                listed.iter().map(|f| String::from_utf8_lossy(&f.name).into_owned()).collect();
            assert_eq!(names, ["a", "sparse", "old", "far", "b"]);
            assert!(listed.iter().all(|f| f.kind == FileKind::Regular));
            assert_eq!((listed[1].size, listed[2].size), (1_000_000, 1000));
            assert_eq!(listed[3].mtime.unwrap().seconds, 1 << 40, "mount {mount}");
            let content = desk.content(&source, vec![open], options());
            for (file, expected) in [(&listed[0], "first"), (&listed[4], "last")] {
                let found =
                    content.read(LayerId(0), file.offset, file.size as usize).await.unwrap();
                assert_eq!(found, expected);
            }
            let tree = Tree::flatten([&files]).unwrap();
            for (name, size, start) in [("sparse", 1_000_000, 0), ("old", 1000, 40)] {
                let file = &tree.node(tree.resolve(name.as_bytes(), true).unwrap()).kind;
                assert_eq!(
                    (file.size(), matches!(file, NodeKind::Sparse(_))),
                    (size, true),
                    "{name}"
                );
                let found = content.read_file(file, 0..size).await.unwrap();
                let mut expected = vec![0; size as usize];
                expected[start..start + 3].copy_from_slice(b"abc");
                assert!(found == expected, "{name}");
                assert_eq!(content.read_file(file, size - 10..size).await.unwrap(), [0; 10][..]);
            }
            assert_eq!(content.stats().errors, 0);
            let warnings = desk.warnings().join("\n");
            for said in ["skipping \"volume\"", "8589934592:0"] {
                assert!(warnings.contains(said), "{said}: {warnings}");
            }
        }
    }
}

/// The file of the only entry in the cache of ztocs below `dir`, but for the mark that it was
/// proven.
fn entry(dir: &Path) -> std::path::PathBuf {
    let is_mark = |file: &std::path::PathBuf| {
        std::fs::read(file).unwrap().windows(13).any(|text| text == b"ociseek proof")
    };
    let files = std::fs::read_dir(dir.join("ztocs")).unwrap().map(|file| file.unwrap().path());
    let mut entries: Vec<_> = files.filter(|file| !is_mark(file)).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

#[tokio::test]
async fn cached_layer_maps_of_other_versions_are_ignored() {
    let plain = tar(&[300_000, 5000]);
    let blob = gzip(&plain);
    let (_faulty, source) = serve(&blob).await;
    let layer = Descriptor::of(GZIP, &blob);
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::new(Some(dir.path()));
    let bytes_read = async || desk.open(&source, &layer, None).await.unwrap().bytes_read;
    // Earlier versions stored a ztoc with JSON in place of the tool's name.
    let mut old = ociseek_format::ztoc::decode(&ztoc(&blob, 2 << 20)).unwrap();
    let extra: &[u8] =
        br#"{"is_whole":false,"notes":{"warnings":[],"more_warnings":0,"times":[]}}"#;
    old.build_tool_identifier = extra.into();
    let bytes = ociseek_format::ztoc::encode(&old);
    let digest = Digest::sha256(&bytes);
    let form = BlobForm::Gzip { members: Some(1) };
    let built = BuiltZtoc { bytes, digest, spans: 1, entries: 2, uncompressed_size: 0, form };
    let key = CacheKey {
        layer: &layer.digest,
        span_size: SpanSize::mib::<2>(),
        build_tool_identifier: "ociseek reader 1",
    };
    desk.caches.ztocs.put(key, layer.size, &Outcome::Ztoc(built));
    std::fs::remove_file({
        let old = entry(dir.path());
        assert_eq!(bytes_read().await, layer.size);
        old
    })
    .unwrap();
    assert_eq!(bytes_read().await, 0, "the layer's own entry is another one");

    // A valid entry with an unusable record.
    let path = entry(dir.path());
    let sound = std::fs::read(&path).unwrap();
    let with_record = |change: &dyn Fn(&str, &[u8]) -> Vec<u8>| {
        let body = &sound[32..];
        let meta = body.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let first = meta + body[meta..].iter().position(|&byte| byte == b'\n').unwrap();
        let version = std::str::from_utf8(&body[meta..first]).unwrap();
        let body = [&body[..meta], &change(version, &body[first..])].concat();
        std::fs::write(&path, [Digest::sha256(&body).as_bytes(), &body[..]].concat()).unwrap();
    };
    with_record(&|version, rest| [version.as_bytes(), rest].concat());
    assert_eq!(bytes_read().await, 0, "nothing was changed");
    for (what, change) in [
        (
            "a later version's",
            (|version, rest| [format!("{version}9").as_bytes(), rest].concat())
                as fn(&str, &[u8]) -> _,
        ),
        ("nothing", |_, _| Vec::new()),
        ("a ztoc", |_, rest| rest[1..].to_vec()),
        ("half of it", |version, rest| [version.as_bytes(), &rest[..rest.len() / 2]].concat()),
    ] {
        with_record(&change);
        assert_eq!(bytes_read().await, layer.size, "{what}");
        assert_eq!(bytes_read().await, 0, "{what}: it is written again");
    }
    assert_eq!(desk.warnings(), Vec::<String>::new());
}

#[tokio::test]
async fn a_mismatched_ztoc_is_reported_and_not_used() {
    let plain = tar(&[300_000, 5000]);
    let blob = gzip(&plain);
    let (_faulty, source) = serve(&blob).await;
    let layer = Descriptor::of(GZIP, &blob);
    let good = ociseek_format::ztoc::decode(&ztoc(&blob, 65_536)).unwrap();
    let spoilt = |change: fn(&mut ociseek_format::ztoc::Ztoc)| {
        let mut ztoc = good.clone();
        change(&mut ztoc);
        Bytes::from(ociseek_format::ztoc::encode(&ztoc))
    };
    for (what, bytes) in [
        ("no ztoc", Bytes::from_static(b"{}")),
        ("another layer's", ztoc(&gzip(&tar(&[9000])), 65_536)),
        ("a plain tar's", {
            let mut plain = tar(&[300_000]);
            plain.resize(blob.len().max(plain.len()), 0);
            ztoc(&plain, 65_536)
        }),
        ("an entry behind the end", spoilt(|z| z.files[1].size = 1 << 40)),
        ("entries in one place", spoilt(|z| z.files[1].offset = z.files[0].offset)),
        ("another format version", spoilt(|z| z.version = (*b"1.0").into())),
        ("a span digest too few", spoilt(|z| z.span_digests.truncate(1))),
    ] {
        let desk = Desk::new(None);
        let open = desk.open(&source, &layer, Some(bytes)).await.unwrap();
        assert_eq!(open.how, LayerAccess::Local, "{what}");
        let warnings = desk.warnings();
        assert!(
            warnings.len() == 1 && warnings[0].contains(&layer.digest.to_string()),
            "{what}: {warnings:?}"
        );
        let content = desk.content(&source, vec![open], options());
        check(&content, 0, &plain, 10).await;
    }
}

#[tokio::test]
async fn spans_too_large_for_memory_are_refused_when_the_layer_is_opened() {
    let blob = gzip(&tar(&[300_000]));
    let mut huge = ociseek_format::ztoc::decode(&ztoc(&blob, 1 << 30)).unwrap();
    huge.compressed_size = ociseek_format::offset::Compressed(200 << 20);
    let layer = Descriptor { size: 200 << 20, ..Descriptor::of(GZIP, &blob) };
    let (_faulty, source) = serve(&blob).await;
    let desk = Desk::new(None);
    let opened = desk.open(&source, &layer, Some(ociseek_format::ztoc::encode(&huge).into())).await;
    assert!(
        matches!(opened, Err(OpenError::Read { .. })),
        "the layer is not that large either: {opened:?}"
    );
    assert!(desk.warnings()[0].contains("its span 0 has"), "{:?}", desk.warnings());
}

#[tokio::test]
async fn unreadable_layers_are_errors() {
    let plain = tar(&[300_000]);
    let whole = gzip(&plain);
    let window = Bytes::from_static(b"\x28\xb5\x2f\xfd\0\xa8\x01\0\0");
    for (what, media_type, blob, said) in [
        ("gzip that is cut", GZIP, whole.slice(..whole.len() / 2), "truncated"),
        ("zstd that is cut", ZSTD, zstd(&plain).slice(..1000), "truncated"),
        ("a window of 2 GiB", ZSTD, window, "2147483648"),
        ("xz", GZIP, Bytes::from_static(b"\xfd7zXZ\0\0\x04"), "xz"),
        ("bzip2", GZIP, Bytes::from_static(b"BZh91AY&SY"), "bzip2"),
        ("text", PLAIN, Bytes::from(vec![b'x'; 2000]), "checksum"),
        ("a web page", GZIP, Bytes::from(vec![b'<'; 2000]), "HTML"),
        (
            "an encrypted layer",
            "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            whole.clone(),
            "encrypted",
        ),
        ("an attestation", "application/vnd.in-toto+json", whole.clone(), "in-toto"),
    ] {
        let (_faulty, source) = serve(&blob).await;
        let layer = Descriptor::of(media_type, &blob);
        let error = Desk::new(None).open(&source, &layer, None).await.unwrap_err();
        let mut text = error.to_string();
        let mut next = error.source();
        while let Some(cause) = next {
            text += &format!(": {cause}");
            next = cause.source();
        }
        assert!(text.contains(said) && text.contains(&layer.digest.to_string()), "{what}: {text}");
        assert_eq!(error.layer(), layer.digest);
    }
    // Valid, but not the blob that the manifest names.
    let other = gzip(&tar(&[299_999]));
    let length = other.len() as u64;
    let faulty = Faulty::start(RegistrySettings::default(), move |_, _| {
        Some(axum::http::Response::new(axum::body::Body::from(other.clone())))
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let layer = Descriptor { size: length, ..Descriptor::of(GZIP, &whole) };
    for _ in 0..2 {
        let error = Desk::new(Some(dir.path()))
            .open(&registry(&faulty.host()), &layer, None)
            .await
            .unwrap_err();
        assert!(matches!(error, OpenError::Broken { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn empty_layers_and_empty_tars_are_opened() {
    for blob in
        [Bytes::new(), gzip(b""), gzip(&tarball::end()), zstd(b""), Bytes::from(tarball::end())]
    {
        let dir = tempfile::tempdir().unwrap();
        let (_faulty, source) = serve(&blob).await;
        for _ in 0..2 {
            let desk = Desk::new(Some(dir.path()));
            let open = desk.open(&source, &Descriptor::of(GZIP, &blob), None).await.unwrap();
            assert!(open.map().files.is_empty());
            let content = desk.content(&source, vec![open], options());
            assert_eq!(read(&content, 0, 0).await.unwrap(), "");
            assert!(read(&content, 5000, 1).await.is_err());
            content.fetch_rest(&BackgroundFetches::default()).await;
        }
    }
}

#[tokio::test]
async fn a_repeated_layer_is_read_once() {
    let a = gzip(&tar(&[1000]));
    let b = gzip(&tar(&[2000]));
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(a.clone());
    faulty.add_blob(b.clone());
    let desk = Desk::new(None);
    let source = registry(&faulty.host());
    let layers = [&a, &b, &a].map(|blob| Descriptor::of(GZIP, blob)).to_vec();
    let no_document = async |_| None;
    let no_ztoc = async |_| Ok(None);
    let caches = &desk.caches;
    let progress = &desk.progress;
    let opened = ociseek_rootfs::layers::open_layers(
        &source,
        layers,
        no_document,
        no_ztoc,
        caches,
        progress,
    );
    let opened = opened.await.unwrap();
    let sizes: Vec<_> = opened.iter().map(|open| open.descriptor.size).collect();
    assert_eq!(sizes, [a.len() as u64, b.len() as u64, a.len() as u64]);
    assert_eq!(faulty.requests().len(), 2);
    let content = desk.content(&source, opened, options());
    check(&content, 2, &tar(&[1000]), 5).await;
    assert_eq!(content.stats().image_bytes, (a.len() + b.len()) as u64);
    let silent = Content::new(
        source,
        Vec::new(),
        desk.caches.spans.clone(),
        options(),
        Arc::new(SilentProgress),
    );
    assert_eq!(silent.layers().len(), 0);
}
