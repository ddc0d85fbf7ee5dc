use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::{Value, json};
use std::io::Write;

use super::*;
use crate::faults::{layer, open, request};

#[tokio::test(flavor = "multi_thread")]
async fn only_layers_that_fit_the_image_are_noted() {
    let root = tempfile::tempdir().unwrap();
    let it = open(root.path()).await.unwrap();
    for odd in [
        layer("", "chain-a", "another", "a"),
        layer("", "chain-a", "manifest", "b"),
        layer("", "chain-b", "manifest", "b"),
        layer("", "chain-b", "manifest", "a"),
        request("unpacking", "", &[(TARGET, "chain-a"), (IMAGE, "host/name:tag")]),
    ] {
        let mounts = it.create(SnapshotKind::Active, odd.clone()).await.unwrap();
        assert_eq!(mounts[0].kind, "bind", "{odd:?}");
        it.remove("unpacking").await.unwrap();
    }
    let noted = |request| it.create(SnapshotKind::Active, request);
    assert!(matches!(
        noted(layer("", "chain-a", "manifest", "a")).await,
        Err(SnapshotError::Exists(_))
    ));
    assert!(matches!(
        noted(layer("chain-a", "chain-b", "manifest", "b")).await,
        Err(SnapshotError::Exists(_))
    ));
    let names: Vec<_> = it.list(&[]).unwrap().into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["chain-a", "chain-b"]);
    // Another layer, or another document for the same one, is unpacked under its own name.
    for (manifest, digest) in [("lying", "x"), ("other-document", "a")] {
        let mounts = noted(layer("", "chain-a", manifest, digest)).await.unwrap();
        assert_eq!(mounts[0].kind, "bind", "{manifest}");
        it.remove("unpacking").await.unwrap();
    }
    // A container that cannot start leaves nothing.
    let failed = it.create(SnapshotKind::Active, request("container", "chain-b", &[])).await;
    assert!(matches!(failed, Err(SnapshotError::Mount(_))));
    assert!(matches!(it.stat("container"), Err(SnapshotError::NotFound(_))));
    for key in ["chain-b", "chain-a"] {
        it.remove(key).await.unwrap();
    }
    it.cleanup().await.unwrap();
    let left = |dir| fs::read_dir(root.path().join(dir)).unwrap().count();
    assert_eq!((left("images"), left("snapshots")), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mount_that_hangs_delays_neither_its_removal_nor_others() {
    let root = tempfile::tempdir().unwrap();
    let it = Arc::new(open(root.path()).await.unwrap());
    for (chain, manifest, digest) in [("chain-h", "hanging", "h"), ("chain-a", "manifest", "a")] {
        let noted = it.create(SnapshotKind::Active, layer("", chain, manifest, digest)).await;
        assert!(matches!(noted, Err(SnapshotError::Exists(_))));
    }
    let hanging = Arc::clone(&it);
    let begun = std::time::Instant::now();
    let hanging = tokio::spawn(async move {
        hanging.create(SnapshotKind::Active, request("hangs", "chain-h", &[])).await
    });
    while it.images.sessions().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Another image.
    let other = it.create(SnapshotKind::Active, request("other", "chain-a", &[])).await;
    assert!(other.unwrap_err().to_string().contains("the registry is away"));
    it.remove("chain-a").await.unwrap();
    assert!(!hanging.is_finished());
    let error = hanging.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("is being mounted"), "{error}");
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
    // It continues in the background, until its snapshot is removed.
    assert_eq!(it.images.sessions().len(), 1);
    it.remove("chain-h").await.unwrap();
    assert!(it.images.sessions().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_removed_snapshots_stay_until_the_cleanup() {
    let root = tempfile::tempdir().unwrap();
    let it = open(root.path()).await.unwrap();
    let create = |key| it.create(SnapshotKind::Active, request(key, "", &[]));
    create("large").await.unwrap();
    fs::write(root.path().join("snapshots/1/fs/file"), "x").unwrap();
    it.remove("large").await.unwrap();
    assert!(matches!(it.stat("large"), Err(SnapshotError::NotFound(_))));
    assert!(root.path().join("snapshots/1/fs/file").exists());
    create("large").await.unwrap();
    assert_eq!(fs::read_dir(root.path().join("snapshots/2/fs")).unwrap().count(), 0);
    it.cleanup().await.unwrap();
    assert!(
        !root.path().join("snapshots/1").exists() && root.path().join("snapshots/2/fs").exists()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_buildkit_are_noted() {
    let root = tempfile::tempdir().unwrap();
    let it = open(root.path()).await.unwrap();
    let create = |reference| {
        let labels = [(TARGET, "chain-a"), (BUILD_REFERENCE, reference), (BUILD_LAYER, "a")];
        it.create(SnapshotKind::Active, request("unpacking", "", &labels))
    };
    // A tag may be moved between the pull and the first container.
    assert_eq!(create("host/name:tag").await.unwrap()[0].kind, "bind");
    it.remove("unpacking").await.unwrap();
    assert!(matches!(create("host/name:tag@manifest").await, Err(SnapshotError::Exists(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn state_survives_a_crash_and_what_it_left_is_removed() {
    let root = tempfile::tempdir().unwrap();
    let it = open(root.path()).await.unwrap();
    for key in ["gone", "kept"] {
        it.create(SnapshotKind::Active, request(key, "", &[])).await.unwrap();
    }
    assert!(open(root.path()).await.is_err(), "another process uses it");
    // As if the process had been killed between the row and the files, and in a write.
    it.store.change(|rows| rows.remove("gone")).unwrap();
    drop(it);
    fs::write(root.path().join("unfinished-1"), "{").unwrap();
    let it = open(root.path()).await.unwrap();
    assert!(it.mounts("kept").await.is_ok());
    assert!(!root.path().join("unfinished-1").exists());
    assert_eq!(fs::read_dir(root.path().join("snapshots")).unwrap().count(), 1);
    // Its id is not used again.
    it.create(SnapshotKind::View, request("new", "", &[])).await.unwrap();
    assert!(root.path().join("snapshots/3").exists());
}

fn names(it: &Snapshotter) -> Vec<String> {
    it.list(&[]).unwrap().into_iter().map(|info| info.name).collect()
}

/// Containers may use what the rows were about.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_set_aside_and_its_directories_stay() {
    let root = tempfile::tempdir().unwrap();
    let state = root.path().join("state.json");
    let it = open(root.path()).await.unwrap();
    let create = async |it: &Snapshotter, key: &str, parent: &str| {
        it.create(SnapshotKind::Active, request(key, parent, &[])).await
    };
    for key in ["base", "other"] {
        create(&it, key, "").await.unwrap();
        let commit = CommitRequest {
            name: key.to_uppercase(),
            key: key.to_owned(),
            ..CommitRequest::default()
        };
        it.commit(commit).await.unwrap();
    }
    create(&it, "above", "BASE").await.unwrap();
    drop(it);
    // One row.
    let text = fs::read_to_string(&state).unwrap();
    let damaged = text.replacen("\"id\":1,", "\"id\":-1,", 1);
    assert_ne!(text, damaged);
    fs::write(&state, &damaged).unwrap();
    let it = open(root.path()).await.unwrap();
    assert_eq!(names(&it), ["OTHER", "above"]);
    assert_eq!(fs::read_to_string(root.path().join("state.json.damaged")).unwrap(), damaged);
    let error = it.mounts("above").await.unwrap_err().to_string();
    assert!(error.contains("the row of BASE, below snapshot above, was damaged"), "{error}");
    create(&it, "new", "OTHER").await.unwrap();
    it.cleanup().await.unwrap();
    assert!(root.path().join("snapshots/1/fs").exists());
    drop(it);
    // All of them.
    for (damage, number) in [("{", "1"), ("", "2"), ("[]", "3")] {
        fs::write(&state, damage).unwrap();
        let it = open(root.path()).await.unwrap();
        assert_eq!(names(&it), Vec::<String>::new());
        it.cleanup().await.unwrap();
        let set_aside = root.path().join(format!("state.json.damaged{number}"));
        assert_eq!(fs::read_to_string(set_aside).unwrap(), damage);
    }
    fs::remove_file(&state).unwrap();
    drop(open(root.path()).await.unwrap());
    fs::remove_file(&state).unwrap();
    fs::create_dir_all(state.join("full")).unwrap();
    drop(open(root.path()).await.unwrap());
    // They also stay after another start, and their ids are not used again.
    let it = open(root.path()).await.unwrap();
    create(&it, "new", "").await.unwrap();
    let left: BTreeSet<u64> = (1..=5).collect();
    assert_eq!(directories(root.path()).unwrap(), left);
}

/// Otherwise, one disk would stop reads of all containers.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_only_read_rows_wait_for_no_disk() {
    let root = tempfile::tempdir().unwrap();
    let it = Arc::new(open(root.path()).await.unwrap());
    it.create(SnapshotKind::Active, request("known", "", &[])).await.unwrap();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let (begin, begun) = std::sync::mpsc::channel();
    let changing = Arc::clone(&it);
    let changing = std::thread::spawn(move || {
        changing.store.unchanged(|_| {
            begin.send(()).unwrap();
            // Until the other end is dropped.
            let _ = ended.recv();
        });
    });
    begun.recv().unwrap();
    assert_eq!((names(&it), it.numbers().snapshots), (vec!["known".to_owned()], 1));
    assert!(it.stat("known").is_ok() && it.is_ready());
    it.mounts("known").await.unwrap();
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
        let it = open(root.path()).await.unwrap();
        for (key, parent) in [("a", ""), ("b", "A"), ("c", "B")] {
            it.create(SnapshotKind::Active, request(key, parent, &[])).await.unwrap();
            if key != "c" {
                let name = key.to_uppercase();
                let key = key.to_owned();
                it.commit(CommitRequest { name, key, ..CommitRequest::default() }).await.unwrap();
            }
        }
        drop(it);
        let mut rows: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
        rows["rows"][row][field] = value;
        fs::write(&state, rows.to_string()).unwrap();
        let it = open(root.path()).await.unwrap();
        assert_eq!(names(&it), left, "{row} {field}");
        it.create(SnapshotKind::Active, request("new", "B", &[])).await.unwrap_or_default();
        it.create(SnapshotKind::Active, request("other", "", &[])).await.unwrap();
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
        Ok(it) => it.create(SnapshotKind::Active, request("new", "", &[])).await,
        Err(_) => Ok(Vec::new()),
    };
    let is_left = held.exists();
    if is_held {
        unmount(&held, UnmountFlags::DETACH).unwrap();
    }
    let it = opened.unwrap();
    again.unwrap();
    assert_eq!(is_left, is_held);
    for name in ["lock", "keeper.json", "keeper.sock", "images"] {
        assert!(at(&format!("{name}.damaged")).exists(), "{name}");
    }
    assert_eq!(names(&it), ["new"]);
    it.cleanup().await.unwrap();
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
    let it = open(root.path()).await.unwrap();
    it.create(SnapshotKind::Active, request("new", "", &[])).await.unwrap();
    let found: Vec<_> = fs::read_dir(root.path()).unwrap().map(Result::unwrap).collect();
    assert!(found.len() >= 4, "{found:?}");
    for entry in found {
        let mode = entry.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{entry:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_maps_the_ids_of_the_lower_directory_itself() {
    let root = tempfile::tempdir().unwrap();
    let it = open(root.path()).await.unwrap();
    let labels = [
        ("containerd.io/snapshot/uidmapping", "0:7:9"),
        ("containerd.io/snapshot/gidmapping", "0:7:9"),
    ];
    for (key, labels, end) in [("mapped", &labels[..], "/."), ("plain", &[], "")] {
        it.create(SnapshotKind::Active, request(key, "", labels)).await.unwrap();
        let row = it.store.read(|rows| rows.get(key).cloned()).unwrap();
        let below = root.path().to_str().unwrap();
        let lower = LowerDir { path: below.to_owned(), owner: None };
        let mounted = it.mount(&row, vec![lower]).unwrap();
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
    let it = open(&root).await.unwrap();
    for key in ["large", "parent", "small"] {
        it.create(SnapshotKind::Active, request(key, "", &[])).await.unwrap();
    }
    let noted = it.create(SnapshotKind::Active, layer("", "chain-a", "manifest", "a")).await;
    assert!(matches!(noted, Err(SnapshotError::Exists(_))));
    fs::write(root.join("snapshots/1/fs/large"), [1; 65_536]).unwrap();
    disk.fill();

    let names = |it: &Snapshotter| {
        it.list(&[]).unwrap().into_iter().map(|info| info.name).collect::<Vec<_>>()
    };
    let failed = it.create(SnapshotKind::Active, request("new", "", &[])).await.unwrap_err();
    assert!(failed.to_string().contains("state.json: No space left"), "{failed}");
    assert_eq!(names(&it), ["chain-a", "large", "parent", "small"]);
    // Removing these frees no block of the disk.
    it.remove("small").await.unwrap();
    it.remove("chain-a").await.unwrap();
    assert_eq!(names(&it), ["large", "parent"]);
    assert!(!root.join("snapshots/3").exists());
    drop(it);

    // What is not written down is found out after a restart, but for layers without files.
    let it = open(&root).await.unwrap();
    assert_eq!(names(&it), ["chain-a", "large", "parent"]);
    it.remove("large").await.unwrap();
    drop(it);
    let it = open(&root).await.unwrap();
    assert_eq!(names(&it), ["chain-a", "parent"]);
    it.create(SnapshotKind::Active, request("new", "", &[])).await.unwrap();
    it.cleanup().await.unwrap();
    let left = fs::read_dir(root.join("snapshots")).unwrap().count();
    assert_eq!(left, 2, "parent and new");
}

/// As if the process had been killed while it removed a snapshot from a full disk.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_completed_after_a_crash() {
    let root = tempfile::tempdir().unwrap();
    let it = open(root.path()).await.unwrap();
    it.create(SnapshotKind::Active, request("gone", "", &[])).await.unwrap();
    it.hide(1).unwrap();
    drop(it);
    let it = open(root.path()).await.unwrap();
    assert!(matches!(it.stat("gone"), Err(SnapshotError::NotFound(_))));
    assert_eq!(fs::read_dir(root.path().join("snapshots")).unwrap().count(), 0);
}
