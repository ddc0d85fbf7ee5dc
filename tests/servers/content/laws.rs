//! Every read gives the same bytes as decoding the layer from start to end.

use super::*;

fn demo() -> Vec<Bytes> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo/blobs/sha256");
    let blobs = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| Bytes::from(std::fs::read(entry.unwrap().path()).unwrap()));
    let layers: Vec<Bytes> = blobs.filter(|blob| blob.starts_with(b"\x1f\x8b")).collect();
    assert_eq!(layers.len(), 3);
    layers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_every_size_match_a_straight_decode() {
    let members = [gzip(&tar(&[300_000])[..200_000]), gzip(&tar(&[300_000])[200_000..])].concat();
    let mut layers = demo();
    layers.extend([gzip(&tar(&[1_000_000, 0, 5, 2_000_000])), members.into(), gzip(&tar(&[]))]);
    for blob in layers {
        let plain = gunzip(&blob);
        let faulty = Faulty::honest(RegistrySettings::default()).await;
        faulty.add_blob(blob.clone());
        let source = registry(&faulty.host());
        let layer = Descriptor::of(GZIP, &blob);
        for span_size in [1, 4096, 100_000, 4 << 20] {
            let ztoc = ztoc(&blob, span_size);
            for on_disk in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                let desk = Desk::new(on_disk.then_some(dir.path()));
                let open = desk.open(&source, &layer, Some(ztoc.clone())).await.unwrap();
                assert_eq!(open.how, LayerAccess::Index);
                // The ztoc ends where the tar's reader stops.
                let plain = &plain[..open.map().tar_end.0 as usize];
                let small = ContentOptions { memory: 300_000, ..options() };
                let content = desk.content(&source, vec![open], small);
                check(&content, 0, plain, 40).await;
                assert!(read(&content, plain.len(), 1).await.is_err());
                assert_eq!(content.stats().errors, 1);
            }
        }
    }
}

#[tokio::test]
async fn plain_layers_are_read_from_every_kind_of_store() {
    let plain = tar(&[100_000, 700, 900_000]);
    let blob = Bytes::from(plain.clone());
    let layer = Descriptor::of(PLAIN, &blob);
    let dir = tempfile::tempdir().unwrap();
    let layout = ociseek_store::layout::Layout::open_or_new(&dir.path().join("layout")).unwrap();
    layout.write_blob(&layer, &blob).unwrap();
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(blob.clone());
    for source in [Source::Layout(Arc::new(layout)), registry(&faulty.host())] {
        for ztoc in [Some(ztoc(&blob, 10_000)), None] {
            let desk = Desk::new(Some(&dir.path().join("cache")));
            let content = desk.one(&source, &layer, ztoc).await;
            check(&content, 0, &plain, 60).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_is_read_from_real_registries() {
    let plain = tar(&[2_000_000, 10, 1_000_000]);
    let blob = gzip(&plain);
    let layer = Descriptor::of(GZIP, &blob);
    let servers = [
        ociseek_testkit::servers::Server::olareg(|_, _| Vec::new()),
        ociseek_testkit::servers::Server::distribution("127.0.0.1:0", |_| String::new()),
    ];
    for server in servers.into_iter().flatten() {
        let source = registry(&server.host);
        let Source::Registry(repository) = &source else { unreachable!() };
        repository.push_blob(&layer, blob.clone()).await.unwrap();
        let desk = Desk::new(None);
        for ztoc in [Some(ztoc(&blob, 65_536)), None] {
            let content = desk.one(&source, &layer, ztoc).await;
            check(&content, 0, &plain[..plain.len()], 40).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_larger_than_the_memory_limit_is_read_in_part() {
    // 64 MiB in a single span, followed by a file.
    let mut plain = tarball::file("zeros", &vec![0; 64 << 20]);
    plain.extend(tar(&[100_000]));
    let blob = gzip(&plain);
    let faulty = Faulty::honest(RegistrySettings::default()).await;
    faulty.add_blob(blob.clone());
    let source = registry(&faulty.host());
    let layer = Descriptor::of(GZIP, &blob);
    let ztoc = ztoc(&blob, 1 << 30);
    for on_disk in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let desk = Desk::new(on_disk.then_some(dir.path()));
        let open = desk.open(&source, &layer, Some(ztoc.clone())).await.unwrap();
        assert_eq!(open.spans().count(), 1);
        let content = desk.content(&source, vec![open], options());
        let before = faulty.requests().len();
        check(&content, 0, &plain, 12).await;
        if on_disk {
            assert_eq!(faulty.requests().len() - before, 1, "the rest of it is on disk");
        }
    }
}
