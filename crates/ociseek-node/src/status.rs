//! What a snapshotter keeps, read from its directory and the kernel, whether or not it runs, and
//! how much a directory takes on the disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::images::{MountKey, fetched};
use super::rows::{SnapshotKind, SnapshotRow, SnapshotRows, read};
use crate::mount_server::Fetched;
use ociseek_rootfs::fuse::{FS_TYPE, answering, keeper_of, mounts, process_memory};

/// What a snapshotter keeps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptState {
    /// All snapshots, also those of layers that are not pulled.
    pub snapshots: usize,
    /// The images with such layers, by name.
    pub images: Vec<KeptImage>,
    /// The process that keeps the devices of the mounts.
    pub keeper: Option<u32>,
}

/// An image whose layers are not pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptImage {
    /// Its name with the digest of its manifest. An image that has the same layers, and was pulled
    /// later, is not listed.
    pub name: String,
    /// How many of its layers are snapshots, from the bottom.
    pub layers: usize,
    /// The containers over it, and other snapshots that can be written or are mounted.
    pub users: usize,
    /// Its mount. There are several if images have different numbers of layers in common, or if
    /// the image was mounted for programs that compare its files.
    pub mounts: Vec<KeptMount>,
}

/// A mount of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptMount {
    /// The mount point.
    pub point: PathBuf,
    /// Whether it answers.
    pub answers: bool,
    /// What was fetched for it, a few seconds ago.
    pub fetched: Fetched,
}

/// What the snapshotter with the directory `root` keeps.
///
/// # Errors
/// If its state or the kernel's list of mounts cannot be read, or its state is damaged.
pub fn kept(root: &Path) -> io::Result<KeptState> {
    // As the snapshotter names it for the kernel.
    let root = match root.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KeptState::default()),
        state => state?,
    };
    let rows = read(&root)?;
    let mut users: HashMap<u64, usize> = HashMap::new();
    let is_used = |row: &&SnapshotRow| row.kind != SnapshotKind::Committed;
    for row in rows.iter().map(|(_, row)| row).filter(is_used) {
        if let Some(image) = rows.below(row).find(|row| row.lazy.is_some()) {
            *users.entry(image.id).or_default() += 1;
        }
    }
    let mut mounts = kept_mounts(&root, &rows)?;
    let mut images: BTreeMap<&str, KeptImage> = BTreeMap::new();
    for (_, row) in rows.iter() {
        let Some(lazy) = &row.lazy else { continue };
        let image = images.entry(&lazy.image).or_insert_with(|| KeptImage {
            name: lazy.image.clone(),
            layers: 0,
            users: 0,
            mounts: Vec::new(),
        });
        image.layers = image.layers.max(lazy.layers);
        image.users += users.get(&row.id).copied().unwrap_or(0);
        image.mounts.extend(mounts.remove(&row.id).into_iter().flatten());
    }
    Ok(KeptState {
        snapshots: rows.iter().count(),
        images: images.into_values().collect(),
        keeper: keeper_of(&root).map(|keeper| keeper.pid.cast_unsigned()),
    })
}

/// The mounts of the images by the id of their snapshot.
fn kept_mounts(root: &Path, rows: &SnapshotRows) -> io::Result<HashMap<u64, Vec<KeptMount>>> {
    let points = points(root, rows)?;
    let answering = answering(points.values());
    let mut by_id: HashMap<u64, Vec<KeptMount>> = HashMap::new();
    for (key, point) in points {
        let mount = KeptMount {
            answers: answering.contains(&point),
            fetched: point.parent().map(fetched).unwrap_or_default(),
            point,
        };
        by_id.entry(key.id).or_default().push(mount);
    }
    by_id.values_mut().for_each(|mounts| mounts.sort_by(|one, other| one.point.cmp(&other.point)));
    Ok(by_id)
}

/// The mount points of images that are mounted.
pub(crate) fn points(root: &Path, rows: &SnapshotRows) -> io::Result<HashMap<MountKey, PathBuf>> {
    let images = root.join("images");
    let mounted =
        mounts()?.into_iter().filter(|mount| mount.fs_type == FS_TYPE).map(|mount| mount.point);
    let keys = mounted.filter_map(|point| {
        let dir = point.strip_prefix(&images).ok()?.parent()?;
        Some((MountKey::of_dir(dir.to_str()?)?, point))
    });
    let lazy: Vec<u64> =
        rows.iter().filter(|(_, row)| row.lazy.is_some()).map(|(_, row)| row.id).collect();
    Ok(keys.filter(|(key, _)| lazy.contains(&key.id)).collect())
}

/// Returns the proportional set size of a process in bytes (proc_pid_smaps_rollup(5)), or `None` if
/// it is gone or may not be inspected.
pub fn memory(process: u32) -> Option<u64> {
    process_memory(&process.to_string(), "smaps_rollup", "Pss")
}

/// The bytes of the blocks below `dir`, and the number of inodes, each hard-linked file once.
///
/// A container may remove files meanwhile: they are not counted.
///
/// # Errors
/// If `dir` is missing, or a file or directory that is there cannot be read.
pub(crate) fn usage(dir: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(dir)?;
    let mut bytes = 0;
    let mut seen = HashSet::new();
    let mut waiting = vec![dir.to_owned()];
    while let Some(path) = waiting.pop() {
        let Some(metadata) = unless_gone(fs::symlink_metadata(&path))? else { continue };
        if seen.insert((metadata.dev(), metadata.ino())) {
            // stat(2): a block has 512 bytes.
            bytes += metadata.blocks() * 512;
        }
        if metadata.is_dir()
            && let Some(entries) = unless_gone(fs::read_dir(&path))?
        {
            for entry in entries {
                waiting.extend(unless_gone(entry)?.map(|entry| entry.path()));
            }
        }
    }
    Ok((bytes, seen.len() as u64))
}

/// Returns `None` if the file is gone or is not a directory any more.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(None)
        }
        result => result.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn nothing_is_kept_where_no_snapshotter_ran() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kept(&dir.path().join("none")).unwrap(), KeptState::default());
        assert_eq!(kept(dir.path()).unwrap(), KeptState::default());
        fs::write(dir.path().join("state.json"), "{").unwrap();
        assert!(kept(dir.path()).unwrap_err().to_string().contains("state.json is damaged"));
    }

    #[test]
    fn images_and_those_who_use_them_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let row = |id: u64, kind: &str, parent: &str, lazy: &str| {
            format!(
                r#"{{"id":{id},"kind":"{kind}","parent":"{parent}","labels":{{}},"created":[0,0],"updated":[0,0],
                "lazy":{lazy},"usage":[0,0]}}"#
            )
        };
        let lazy = |image: &str, layers: usize| {
            format!(r#"{{"image":"{image}","digest":"d","layers":{layers}}}"#)
        };
        let rows = [
            ("a", row(1, "committed", "", &lazy("one@x", 1))),
            ("b", row(2, "committed", "a", &lazy("one@x", 2))),
            ("c", row(3, "committed", "b", &lazy("two@y", 3))),
            ("above", row(4, "committed", "b", "null")),
            ("container", row(5, "active", "above", "null")),
            ("view", row(6, "view", "b", "null")),
            ("other", row(7, "active", "", "null")),
        ];
        let rows: Vec<String> = rows.iter().map(|(name, row)| format!("{name:?}:{row}")).collect();
        fs::write(
            dir.path().join("state.json"),
            format!(r#"{{"last_id":7,"rows":{{{}}}}}"#, rows.join(",")),
        )
        .unwrap();
        let state = kept(dir.path()).unwrap();
        let images: Vec<_> =
            state.images.iter().map(|image| (&*image.name, image.layers, image.users)).collect();
        assert_eq!((state.snapshots, images), (7, vec![("one@x", 2, 2), ("two@y", 3, 0)]));
    }

    #[test]
    fn files_are_counted_while_others_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert!(usage(&dir.path().join("missing")).is_err());
        fs::write(dir.path().join("kept"), [1; 4096]).unwrap();
        let (bytes, inodes) = usage(dir.path()).unwrap();
        assert!(bytes >= 4096 && inodes == 2, "{bytes} bytes, {inodes} inodes");
        let folder = dir.path().join("folder");
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    fs::create_dir_all(folder.join("inner")).unwrap();
                    fs::write(folder.join("inner/file"), "").unwrap();
                    fs::remove_dir_all(&folder).unwrap();
                }
            });
            let counted = (0..2000)
                .try_for_each(|_| usage(dir.path()).map(|(_, inodes)| assert!(inodes >= 2)));
            has_ended.store(true, Ordering::Relaxed);
            counted.unwrap();
        });
    }
}
