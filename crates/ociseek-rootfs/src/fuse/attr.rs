//! The attributes of nodes for the kernel.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};

use ociseek_format::time::Time;
use ociseek_format::tree::{Node, NodeId, NodeKind};

/// The size of a block for `stat`, and the block size that it recommends, as on ext4.
const SECTOR: u64 = 512;
pub(super) const BLOCK: u32 = 4096;

/// The inode number of a node. The kernel requires 1 for the root. 0 would mean that there is no
/// file.
pub(super) fn inode(node: NodeId) -> INodeNo {
    INodeNo(u64::from(node.0) + 1)
}

/// The inverse of [`inode`].
pub(super) fn node_id(inode: INodeNo) -> Option<NodeId> {
    Some(NodeId(u32::try_from(inode.0.checked_sub(1)?).ok()?))
}

pub(super) fn file_type(kind: &NodeKind) -> FileType {
    match kind {
        NodeKind::Directory(..) => FileType::Directory,
        NodeKind::File(_) | NodeKind::Sparse(_) => FileType::RegularFile,
        NodeKind::Symlink(_) => FileType::Symlink,
        NodeKind::CharDevice { .. } => FileType::CharDevice,
        NodeKind::BlockDevice { .. } => FileType::BlockDevice,
        NodeKind::Fifo => FileType::NamedPipe,
    }
}

/// All fields of `stat`. A tar has a single time for each entry, which is used for all three.
pub(super) fn attributes(id: NodeId, node: &Node) -> FileAttr {
    let (size, rdev) = match &node.kind {
        NodeKind::File(_) | NodeKind::Sparse(_) => (node.kind.size(), 0),
        NodeKind::Symlink(target) => (target.len() as u64, 0),
        NodeKind::CharDevice { major, minor } | NodeKind::BlockDevice { major, minor } => {
            (0, device(*major, *minor))
        }
        NodeKind::Directory(..) => (u64::from(BLOCK), 0),
        NodeKind::Fifo => (0, 0),
    };
    let time = system_time(node.mtime());
    FileAttr {
        ino: inode(id),
        size,
        blocks: size.div_ceil(SECTOR),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: file_type(&node.kind),
        perm: (node.mode & 0o7777) as u16,
        nlink: node.nlink,
        uid: node.uid,
        gid: node.gid,
        rdev,
        blksize: BLOCK,
        flags: 0,
    }
}

/// The reply for a name that does not exist, which lets the kernel cache that.
pub(super) fn nothing() -> FileAttr {
    let time = SystemTime::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK,
        flags: 0,
    }
}

/// A device number as the kernel packs it in 32 bits: 12 bits of major, 20 of minor
/// (`new_encode_dev` in linux/kdev_t.h).
fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xf_ff00) << 12)
}

/// The same point in time, also before 1970. Becomes 1970 if the system's clock cannot represent
/// it.
fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let second = if time.seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    second
        .and_then(|second| second.checked_add(Duration::from_nanos(u64::from(time.nanos))))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_start_at_one() {
        assert_eq!(inode(NodeId(0)), INodeNo::ROOT);
        assert_eq!(node_id(INodeNo::ROOT), Some(NodeId(0)));
        assert_eq!(node_id(inode(NodeId(u32::MAX))), Some(NodeId(u32::MAX)));
        assert_eq!(node_id(INodeNo(0)), None);
        assert_eq!(node_id(INodeNo(u64::MAX)), None);
    }

    #[test]
    fn device_numbers() {
        assert_eq!(device(1, 3), 0x103);
        assert_eq!(device(259, 65_537), 0x1001_0301);
        assert_eq!(device(0, 0), 0);
    }

    #[test]
    fn times_before_1970() {
        let before = system_time(Time { seconds: -2, nanos: 500_000_000 });
        assert_eq!(
            SystemTime::UNIX_EPOCH.duration_since(before).unwrap(),
            Duration::from_millis(1500)
        );
        let after = system_time(Time { seconds: 7, nanos: 1 });
        assert_eq!(after.duration_since(SystemTime::UNIX_EPOCH).unwrap(), Duration::new(7, 1));
        for seconds in [i64::MIN, i64::MAX] {
            let _ = system_time(Time { seconds, nanos: 999_999_999 });
        }
    }
}
