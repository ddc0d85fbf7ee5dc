//! User namespaces: who owns the files that a container sees.
//!
//! containerd labels a snapshot with the ids of its user namespace, and there are two ways to give
//! the container files with these ids:
//!
//! - Where containerd's configuration says that the snapshotter can remap ids (`capabilities =
//!   ["remap-ids"]`), the options of the mount name the ids, and containerd maps them where it
//!   mounts the overlay. FUSE allows that since Linux 6.12 (`FUSE_ALLOW_IDMAP`).
//! - Otherwise, containerd creates a copy of the image's files first, owned by the mapped ids.
//!   These must not be mapped again. The root directory of the copy shows the difference.

use std::collections::BTreeMap;
use std::fs;

use super::messages::SnapshotError;
use ociseek_rootfs::fuse::Release;

/// The labels of the ids (containerd's `core/snapshots/snapshotter.go`).
const UIDS: &str = "containerd.io/snapshot/uidmapping";
const GIDS: &str = "containerd.io/snapshot/gidmapping";

/// The first version of Linux that maps the ids of FUSE mounts.
const CAN_MAP: Release = Release(6, 12);

/// A user and a group.
pub(crate) type Owner = (u32, u32);

/// The ids of a container's user namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedIds<'a> {
    uids: &'a str,
    gids: &'a str,
    /// The ids of the container's root outside of it.
    pub root: Owner,
}

impl<'a> MappedIds<'a> {
    /// The ids that the labels of a snapshot name, if any.
    ///
    /// # Errors
    /// If they cannot be used: containerd would not map them.
    pub(crate) fn of(
        labels: &'a BTreeMap<String, String>,
    ) -> Result<Option<MappedIds<'a>>, SnapshotError> {
        let label = |name: &str| labels.get(name).map(String::as_str).filter(|ids| !ids.is_empty());
        match (label(UIDS), label(GIDS)) {
            (None, None) => Ok(None),
            (Some(uids), Some(gids)) => {
                Ok(Some(MappedIds { uids, gids, root: (root_in(uids)?, root_in(gids)?) }))
            }
            _ => Err(SnapshotError::Invalid(
                "user ids and group ids must be mapped together".to_owned(),
            )),
        }
    }

    /// The options of the mount that has them mapped, over a root directory with this `owner`.
    /// `is_fuse` says whether FUSE mounts are below it.
    ///
    /// # Errors
    /// If the kernel cannot map them.
    pub(crate) fn options(
        &self,
        owner: Owner,
        is_fuse: bool,
        kernel: Release,
    ) -> Result<Vec<String>, SnapshotError> {
        if owner == self.root {
            // A copy that containerd made.
            return Ok(Vec::new());
        }
        if is_fuse && kernel < CAN_MAP {
            let text = format!(
                "a user namespace over an image that is not pulled needs Linux {CAN_MAP}, not {kernel}"
            );
            return Err(SnapshotError::Precondition(text));
        }
        Ok(vec![format!("uidmap={}", self.uids), format!("gidmap={}", self.gids)])
    }
}

/// The id of the container's root outside of it.
fn root_in(ids: &str) -> Result<u32, SnapshotError> {
    let odd = || SnapshotError::Invalid(format!("user namespace with the ids {ids:?}"));
    let mut root = None;
    for line in ids.split(',') {
        let numbers = line.split(':').map(number).collect::<Option<Vec<u32>>>().ok_or_else(odd)?;
        let [inside, outside, count] = numbers[..] else { return Err(odd()) };
        if count == 0 || inside.checked_add(count).is_none() || outside.checked_add(count).is_none()
        {
            return Err(odd());
        }
        root = root.or((inside == 0).then_some(outside));
    }
    root.ok_or_else(|| SnapshotError::Invalid(format!("user namespace without a root: {ids}")))
}

fn number(text: &str) -> Option<u32> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// The owner of a directory.
pub(crate) fn owner(path: &str) -> Result<Owner, SnapshotError> {
    use std::os::unix::fs::MetadataExt;
    let metadata =
        fs::metadata(path).map_err(|source| SnapshotError::Files { path: path.into(), source })?;
    Ok((metadata.uid(), metadata.gid()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(uids: &str, gids: &str) -> BTreeMap<String, String> {
        [(UIDS.to_owned(), uids.to_owned()), (GIDS.to_owned(), gids.to_owned())].into()
    }

    #[test]
    fn labels_are_read_strictly() {
        assert_eq!(MappedIds::of(&BTreeMap::new()).unwrap(), None);
        assert_eq!(MappedIds::of(&labels("", "")).unwrap(), None);
        let labels_of_both = labels("0:100000:65536", "5:7:1,0:200000:4");
        assert_eq!(MappedIds::of(&labels_of_both).unwrap().unwrap().root, (100_000, 200_000));
        for (uids, gids) in [
            ("0:1:2", ""),
            ("", "0:1:2"),
            ("1:1:2", "0:1:2"),
            ("0:1", "0:1:2"),
            ("0:1:2:3", "0:1:2"),
            ("0:1:0", "0:1:2"),
            ("0:-1:2", "0:1:2"),
            ("0:+1:2", "0:1:2"),
            ("0:1:2,lowerdir=/", "0:1:2"),
            ("0:4294967295:2", "0:1:2"),
            ("0:99999999999:2", "0:1:2"),
        ] {
            assert!(
                matches!(MappedIds::of(&labels(uids, gids)), Err(SnapshotError::Invalid(_))),
                "{uids} {gids}"
            );
        }
    }

    #[test]
    fn ids_are_mapped_once_or_refused() {
        let labels = labels("0:100000:65536", "0:200000:65536");
        let ids = MappedIds::of(&labels).unwrap().unwrap();
        let mapped = ["uidmap=0:100000:65536", "gidmap=0:200000:65536"];
        assert_eq!(ids.options((0, 0), true, Release(6, 12)).unwrap(), mapped);
        assert_eq!(ids.options((0, 0), false, Release(6, 1)).unwrap(), mapped);
        assert!(ids.options((100_000, 200_000), true, Release(6, 1)).unwrap().is_empty());
        let refused = ids.options((0, 0), true, Release(6, 11)).unwrap_err().to_string();
        let why = "a user namespace over an image that is not pulled needs Linux 6.12, not 6.11: failed precondition";
        assert_eq!(refused, why);
    }
}
