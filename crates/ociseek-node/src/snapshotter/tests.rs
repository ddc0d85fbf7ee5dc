use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use std::io::Write;

use super::*;
use crate::faults::{layer, open, request};

#[tokio::test(flavor = "multi_thread")]
async fn only_layers_that_fit_the_image_are_noted() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    for odd in [
        layer("", "chain-a", "another", "a"),
        layer("", "chain-a", "manifest", "b"),
        layer("", "chain-b", "manifest", "b"),
        layer("", "chain-b", "manifest", "a"),
        request("unpacking", "", &[(TARGET, "chain-a"), (IMAGE, "host/name:tag")]),
    ] {
        let mounts = snapshotter.create(SnapshotKind::Active, odd.clone()).await.unwrap();
        assert_eq!(mounts[0].kind, "bind", "{odd:?}");
        snapshotter.remove("unpacking").await.unwrap();
    }
    let noted = |request| snapshotter.create(SnapshotKind::Active, request);
    assert!(matches!(
        noted(layer("", "chain-a", "manifest", "a")).await,
        Err(SnapshotError::Exists(_))
    ));
    assert!(matches!(
        noted(layer("chain-a", "chain-b", "manifest", "b")).await,
        Err(SnapshotError::Exists(_))
    ));
    let names: Vec<_> = snapshotter.list(&[]).unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["chain-a", "chain-b"]);
    // Another layer, or another document for the same one, is unpacked under its own name.
    for (manifest, digest) in [("lying", "x"), ("other-document", "a")] {
        let mounts = noted(layer("", "chain-a", manifest, digest)).await.unwrap();
        assert_eq!(mounts[0].kind, "bind", "{manifest}");
        snapshotter.remove("unpacking").await.unwrap();
    }
    // A container that cannot start leaves nothing.
    let failed =
        snapshotter.create(SnapshotKind::Active, request("container", "chain-b", &[])).await;
    assert!(matches!(failed, Err(SnapshotError::Mount(_))));
    assert!(matches!(snapshotter.stat("container"), Err(SnapshotError::NotFound(_))));
    for key in ["chain-b", "chain-a"] {
        snapshotter.remove(key).await.unwrap();
    }
    snapshotter.cleanup().await.unwrap();
    let left = |dir| fs::read_dir(root.path().join(dir)).unwrap().count();
    assert_eq!((left("images"), left("snapshots")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_hangs_delays_neither_its_removal_nor_others() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = Arc::new(open(root.path()).await.unwrap());
    for (chain, manifest, digest) in [("chain-h", "hanging", "h"), ("chain-a", "manifest", "a")] {
        let noted =
            snapshotter.create(SnapshotKind::Active, layer("", chain, manifest, digest)).await;
        assert!(matches!(noted, Err(SnapshotError::Exists(_))));
    }
    let hanging = Arc::clone(&snapshotter);
    let begun = std::time::Instant::now();
    let hanging = tokio::spawn(async move {
        hanging.create(SnapshotKind::Active, request("hangs", "chain-h", &[])).await
    });
    while snapshotter.images.sessions().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Another image.
    let other = snapshotter.create(SnapshotKind::Active, request("other", "chain-a", &[])).await;
    assert!(other.unwrap_err().to_string().contains("the registry is away"));
    snapshotter.remove("chain-a").await.unwrap();
    assert!(!hanging.is_finished());
    let error = hanging.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("is being mounted"), "{error}");
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    // It continues in the background, until its snapshot is removed.
    assert_eq!(snapshotter.images.sessions().len(), 1);
    snapshotter.remove("chain-h").await.unwrap();
    assert!(snapshotter.images.sessions().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_removed_snapshots_stay_until_the_cleanup() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    let create = |key| snapshotter.create(SnapshotKind::Active, request(key, "", &[]));
    create("large").await.unwrap();
    fs::write(root.path().join("snapshots/1/fs/file"), "x").unwrap();
    snapshotter.remove("large").await.unwrap();
    assert!(matches!(snapshotter.stat("large"), Err(SnapshotError::NotFound(_))));
    assert!(root.path().join("snapshots/1/fs/file").exists());
    create("large").await.unwrap();
    assert_eq!(fs::read_dir(root.path().join("snapshots/2/fs")).unwrap().count(), 0);
    snapshotter.cleanup().await.unwrap();
    assert!(
        !root.path().join("snapshots/1").exists() && root.path().join("snapshots/2/fs").exists()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_buildkit_are_noted() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    let create = |reference| {
        let labels = [(TARGET, "chain-a"), (BUILD_REFERENCE, reference), (BUILD_LAYER, "a")];
        snapshotter.create(SnapshotKind::Active, request("unpacking", "", &labels))
    };
    // A tag may be moved between the pull and the first container.
    assert_eq!(create("host/name:tag").await.unwrap()[0].kind, "bind");
    snapshotter.remove("unpacking").await.unwrap();
    assert!(matches!(create("host/name:tag@manifest").await, Err(SnapshotError::Exists(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn state_survives_a_crash_and_what_it_left_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    for key in ["gone", "kept"] {
        snapshotter.create(SnapshotKind::Active, request(key, "", &[])).await.unwrap();
    }
    assert!(open(root.path()).await.is_err(), "another process uses it");
    // As if the process had been killed between the row and the files, and in a write.
    snapshotter.store.change(|rows| rows.remove("gone")).unwrap();
    drop(snapshotter);
    fs::write(root.path().join("unfinished-1"), "{").unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    assert!(snapshotter.mounts("kept").await.is_ok());
    assert!(!root.path().join("unfinished-1").exists());
    assert_eq!(fs::read_dir(root.path().join("snapshots")).unwrap().count(), 1);
    // Its id is not used again.
    snapshotter.create(SnapshotKind::View, request("new", "", &[])).await.unwrap();
    assert!(root.path().join("snapshots/3").exists());
}

fn names(snapshotter: &Snapshotter) -> Vec<String> {
    snapshotter.list(&[]).unwrap().into_iter().map(|info| info.name).collect()
}

/// Containers may use what the rows were about.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_set_aside_and_its_directories_stay() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state.json");
    let snapshotter = open(root.path()).await.unwrap();
    let create = async |snapshotter: &Snapshotter, key: &str, parent: &str| {
        snapshotter.create(SnapshotKind::Active, request(key, parent, &[])).await
    };
    for key in ["base", "other"] {
        create(&snapshotter, key, "").await.unwrap();
        let commit = CommitRequest {
            name: key.to_uppercase(),
            key: key.to_owned(),
            ..CommitRequest::default()
        };
        snapshotter.commit(commit).await.unwrap();
    }
    create(&snapshotter, "above", "BASE").await.unwrap();
    drop(snapshotter);
    // One row.
    let text = fs::read_to_string(&state).unwrap();
    let damaged = text.replacen("\"id\":1,", "\"id\":-1,", 1);
    assert_ne!(text, damaged);
    fs::write(&state, &damaged).unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    assert_eq!(names(&snapshotter), ["OTHER", "above"]);
    assert_eq!(fs::read_to_string(root.path().join("state.json.damaged")).unwrap(), damaged);
    let error = snapshotter.mounts("above").await.unwrap_err().to_string();
    assert!(error.contains("the row of BASE, below snapshot above, was damaged"), "{error}");
    create(&snapshotter, "new", "OTHER").await.unwrap();
    snapshotter.cleanup().await.unwrap();
    assert!(root.path().join("snapshots/1/fs").exists());
    drop(snapshotter);
    // All of them.
    for (damage, number) in [("{", "1"), ("", "2"), ("[]", "3")] {
        fs::write(&state, damage).unwrap();
        let snapshotter = open(root.path()).await.unwrap();
        assert_eq!(names(&snapshotter), Vec::<String>::new());
        snapshotter.cleanup().await.unwrap();
        let set_aside = root.path().join(format!("state.json.damaged{number}"));
        assert_eq!(fs::read_to_string(set_aside).unwrap(), damage);
    }
    fs::remove_file(&state).unwrap();
    drop(open(root.path()).await.unwrap());
    fs::remove_file(&state).unwrap();
    fs::create_dir_all(state.join("full")).unwrap();
    drop(open(root.path()).await.unwrap());
    // They also stay after another start, and their ids are not used again.
    let snapshotter = open(root.path()).await.unwrap();
    create(&snapshotter, "new", "").await.unwrap();
    let left: BTreeSet<u64> = (1..=5).collect();
    assert_eq!(directories(root.path()).unwrap(), left);
}

/// Otherwise, one disk would stop reads of all containers.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_only_read_rows_wait_for_no_disk() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = Arc::new(open(root.path()).await.unwrap());
    snapshotter.create(SnapshotKind::Active, request("known", "", &[])).await.unwrap();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = std::sync::mpsc::channel();
    let changing = Arc::clone(&snapshotter);
    let changing = std::thread::spawn(move || {
        changing.store.unchanged(|_| {
            begin.send(()).unwrap();
            // Until the other end is dropped.
            let _ = ended.recv();
        });
    });
    begun.recv().unwrap();
    assert_eq!(
        (names(&snapshotter), snapshotter.numbers().snapshots),
        (vec!["known".to_owned()], 1)
    );
    assert!(snapshotter.stat("known").is_ok() && snapshotter.is_ready());
    snapshotter.mounts("known").await.unwrap();
    drop(end);
    changing.join().unwrap();
}

/// A row that is its own ancestor has no end, and the last id has no next one.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_contradict_others_are_damaged() {
    for (row, field, value, left) in [
        ("A", "parent", json!("B"), ["B", "c"]),
        ("c", "parent", json!("c"), ["A", "B"]),
        ("c", "id", json!(2), ["A", "B"]),
        ("c", "id", json!(u64::MAX), ["A", "B"]),
    ] {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("state.json");
        let snapshotter = open(root.path()).await.unwrap();
        for (key, parent) in [("a", ""), ("b", "A"), ("c", "B")] {
            snapshotter.create(SnapshotKind::Active, request(key, parent, &[])).await.unwrap();
            if key != "c" {
                let name = key.to_uppercase();
                let key = key.to_owned();
                snapshotter
                    .commit(CommitRequest { name, key, ..CommitRequest::default() })
                    .await
                    .unwrap();
            }
        }
        drop(snapshotter);
        let mut rows: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
        rows["rows"][row][field] = value;
        fs::write(&state, rows.to_string()).unwrap();
        let snapshotter = open(root.path()).await.unwrap();
        assert_eq!(names(&snapshotter), left, "{row} {field}");
        snapshotter
            .create(SnapshotKind::Active, request("new", "B", &[]))
            .await
            .unwrap_or_default();
        snapshotter.create(SnapshotKind::Active, request("other", "", &[])).await.unwrap();
        assert!(root.path().join("state.json.damaged").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_removed_or_is_in_the_way_does_not_keep_it_from_serving() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    // A mount is busy, as an immutable file would be.
    let held = at("snapshots/7/fs/held");
    fs::create_dir_all(&held).unwrap();
    let is_held = mount("none", &held, "tmpfs", MountFlags::empty(), c"size=64k").is_ok();
    fs::create_dir_all(at("snapshots/8/fs/file")).unwrap();
    fs::create_dir_all(at("lock/full")).unwrap();
    fs::create_dir_all(at("keeper.json/full")).unwrap();
    fs::create_dir_all(at("keeper.sock/full")).unwrap();
    fs::create_dir_all(at("unfinished-dir/full")).unwrap();
    fs::write(at("images"), "").unwrap();
    fs::write(at("state.json"), r#"{"last_id":8,"rows":{}}"#).unwrap();
    let opened = open(root.path()).await;
    let again = match &opened {
        Ok(snapshotter) => snapshotter.create(SnapshotKind::Active, request("new", "", &[])).await,
        Err(_) => Ok(Vec::new()),
    };
    let is_left = held.exists();
    if is_held {
        unmount(&held, UnmountFlags::DETACH).unwrap();
    }
    let snapshotter = opened.unwrap();
    again.unwrap();
    assert_eq!(is_left, is_held);
    for name in ["lock", "keeper.json", "keeper.sock", "images"] {
        assert!(at(&format!("{name}.damaged")).exists(), "{name}");
    }
    assert_eq!(names(&snapshotter), ["new"]);
    snapshotter.cleanup().await.unwrap();
    assert!(!held.exists());
}

/// Another user may have made the directory. Private files of images, and their programs that run
/// as root, are not for users of the node.
#[tokio::test(flavor = "multi_thread")]
async fn others_see_nothing_in_a_directory_that_they_may_enter() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("images")).unwrap();
    for dir in [root.path(), &root.path().join("images")] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    let snapshotter = open(root.path()).await.unwrap();
    snapshotter.create(SnapshotKind::Active, request("new", "", &[])).await.unwrap();
    let entries: Vec<_> = fs::read_dir(root.path()).unwrap().map(Result::unwrap).collect();
    assert!(entries.len() >= 4, "{entries:?}");
    for entry in entries {
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{entry:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_maps_the_ids_of_the_lower_directory_itself() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    let labels = [
        ("containerd.io/snapshot/uidmapping", "0:7:9"),
        ("containerd.io/snapshot/gidmapping", "0:7:9"),
    ];
    for (key, labels, end) in [("mapped", &labels[..], "/."), ("plain", &[], "")] {
        snapshotter.create(SnapshotKind::Active, request(key, "", labels)).await.unwrap();
        let row = snapshotter.store.read(|rows| rows.get(key).cloned()).unwrap();
        let below = root.path().to_str().unwrap();
        let lower = LowerDir { path: below.to_owned(), owner: None };
        let mounted = snapshotter.mount(&row, vec![lower]).unwrap();
        assert!(mounted.options.contains(&format!("lowerdir={below}{end}")), "{mounted:?}");
    }
}

/// A small file system without any space left, until it is dropped.
struct FullDisk(tempfile::TempDir);

impl FullDisk {
    /// None without the right to mount one.
    fn new() -> Option<FullDisk> {
        let dir = tempfile::tempdir().unwrap();
        let mounted = mount("none", dir.path(), "tmpfs", MountFlags::empty(), c"size=256k");
        if mounted.is_err() {
            println!("skipped: cannot mount a tmpfs");
        }
        mounted.is_ok().then(|| FullDisk(dir))
    }

    fn fill(&self) {
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.0.path().join("filler"))
            .unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for FullDisk {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_removed_from_a_full_disk() {
    let Some(disk) = FullDisk::new() else { return };
    let root = disk.0.path().join("root");
    let snapshotter = open(&root).await.unwrap();
    for key in ["large", "parent", "small"] {
        snapshotter.create(SnapshotKind::Active, request(key, "", &[])).await.unwrap();
    }
    let noted =
        snapshotter.create(SnapshotKind::Active, layer("", "chain-a", "manifest", "a")).await;
    assert!(matches!(noted, Err(SnapshotError::Exists(_))));
    fs::write(root.join("snapshots/1/fs/large"), [1; 65_536]).unwrap();
    disk.fill();

    let names = |snapshotter: &Snapshotter| {
        snapshotter.list(&[]).unwrap().into_iter().map(|info| info.name).collect::<Vec<_>>()
    };
    let failed =
        snapshotter.create(SnapshotKind::Active, request("new", "", &[])).await.unwrap_err();
    assert!(failed.to_string().contains("state.json: No space left"), "{failed}");
    assert_eq!(names(&snapshotter), ["chain-a", "large", "parent", "small"]);
    // Removing these frees no block of the disk.
    snapshotter.remove("small").await.unwrap();
    snapshotter.remove("chain-a").await.unwrap();
    assert_eq!(names(&snapshotter), ["large", "parent"]);
    assert!(!root.join("snapshots/3").exists());
    drop(snapshotter);

    // What is not written down is found out after a restart, but for layers without files.
    let snapshotter = open(&root).await.unwrap();
    assert_eq!(names(&snapshotter), ["chain-a", "large", "parent"]);
    snapshotter.remove("large").await.unwrap();
    drop(snapshotter);
    let snapshotter = open(&root).await.unwrap();
    assert_eq!(names(&snapshotter), ["chain-a", "parent"]);
    snapshotter.create(SnapshotKind::Active, request("new", "", &[])).await.unwrap();
    snapshotter.cleanup().await.unwrap();
    let left = fs::read_dir(root.join("snapshots")).unwrap().count();
    assert_eq!(left, 2, "parent and new");
}

/// As if the process had been killed while it removed a snapshot from a full disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_completed_after_a_crash() {
    let root = tempfile::tempdir().unwrap();
    let snapshotter = open(root.path()).await.unwrap();
    snapshotter.create(SnapshotKind::Active, request("gone", "", &[])).await.unwrap();
    snapshotter.hide(1).unwrap();
    drop(snapshotter);
    let snapshotter = open(root.path()).await.unwrap();
    assert!(matches!(snapshotter.stat("gone"), Err(SnapshotError::NotFound(_))));
    assert_eq!(fs::read_dir(root.path().join("snapshots")).unwrap().count(), 0);
}
