//! Replies to the kernel's requests.
//!
//! Everything except file content comes from the tree in memory, at once, and so does content that
//! is in memory. Other reads may have to wait for a registry: each of them continues as a separate
//! task, so the threads that receive requests never wait, and ends at the latest at the content's
//! deadline. An image does not change, so the kernel may cache everything without limit.
//!
//! Requests are not interrupted (fuser does not pass on FUSE_INTERRUPT). But a program that reads
//! waits for pages of the kernel's cache, and a fatal signal ends that wait at once.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::attr;
use super::fill::FillerThread;
use crate::content::Content;
use crate::record::ReadRecorder;
use ociseek_format::tree::{Node, NodeId, NodeKind, Tree};

/// The maximum length of a file name in bytes, as on other file systems of Linux.
pub(super) const NAME_MAX: usize = 255;
/// Ten years stand for "without limit". More would not overflow today, but the kernel counts in
/// jiffies.
pub(super) const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Inode numbers are never reused for other files.
pub(super) const GENERATION: Generation = Generation(0);

/// How many read-ahead requests the kernel may send. Reads served from the cache are only delayed
/// by a slow registry when this many are waiting.
pub(super) const BACKGROUND: u16 = 128;

/// The maximum length of a symbolic link for the kernel (PATH_MAX without its NUL).
const MAX_LINK: usize = 4095;

/// The prefix of overlayfs's own extended attributes. In an image they are only data, but an
/// overlay on top would obey them.
const OVERLAY: &[u8] = b"trusted.overlay.";

/// POSIX access control lists.
const ACL: &[u8] = b"system.posix_acl_";

/// An image's files, for the kernel.
pub(super) struct ImageFs {
    /// Added to all inode numbers: the file systems of several trees can be parts of one.
    pub first_inode: u64,
    pub tree: Arc<Tree>,
    pub content: Content,
    pub runtime: Handle,
    pub recorder: Option<Arc<ReadRecorder>>,
    /// The thread that fills the kernel's caches.
    pub filler: Option<Arc<FillerThread>>,
    /// Whether the kernel checks mode bits. It applies access control lists only then.
    pub checked: bool,
    /// Whether an overlay will be mounted on top.
    pub under_overlay: bool,
    /// The size of all files in bytes, for `statfs`.
    pub bytes: u64,
    /// Dropped when the session ends, which notifies those who wait for that.
    pub _alive: Option<oneshot::Sender<()>>,
    /// Whether the kernel can do without `open` and `opendir`. It is then told that they are not
    /// implemented.
    pub no_open: bool,
    pub no_opendir: bool,
    /// Whether the kernel may always ask for extended attributes. See
    /// [`super::FuseOptions::answers_xattrs`].
    pub answers_xattrs: bool,
    /// Whether the kernel need not ask for them, since no file has any.
    pub no_xattrs: bool,
}

impl ImageFs {
    fn node(&self, inode: INodeNo) -> Result<(NodeId, &Node), Errno> {
        let id = inode.0.checked_sub(self.first_inode).and_then(|own| attr::node_id(INodeNo(own)));
        let id = id.ok_or(Errno::ESTALE)?;
        Ok((id, self.tree.get(id).ok_or(Errno::ESTALE)?))
    }

    fn inode(&self, id: NodeId) -> INodeNo {
        INodeNo(self.first_inode + attr::inode(id).0)
    }

    pub(super) fn attributes(&self, id: NodeId) -> FileAttr {
        FileAttr { ino: self.inode(id), ..attr::attributes(id, self.tree.node(id)) }
    }

    /// The entries of a directory from number `from` on, each with the number of the next. `.` and
    /// `..` come first.
    fn entries(
        &self,
        inode: INodeNo,
        from: u64,
    ) -> Result<impl Iterator<Item = (u64, &OsStr, NodeId)>, Errno> {
        let (id, node) = self.node(inode)?;
        if !matches!(node.kind, NodeKind::Directory(..)) {
            return Err(Errno::ENOTDIR);
        }
        let dots = [(&b"."[..], id), (&b".."[..], self.tree.parent(id))];
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        let entries =
            dots.into_iter().skip(from).chain(self.tree.children(id).skip(from.saturating_sub(2)));
        Ok(entries
            .zip(from as u64 + 1..)
            .map(|((name, id), next)| (next, OsStr::from_bytes(name), id)))
    }

    fn is_hidden(&self, xattr: &[u8]) -> bool {
        self.under_overlay && xattr.starts_with(OVERLAY)
    }

    fn xattrs(&self, inode: INodeNo) -> Result<impl Iterator<Item = (&[u8], &[u8])>, Errno> {
        let (id, _) = self.node(inode)?;
        let xattrs = self.tree.xattrs(id).iter().map(|(name, value)| (&name[..], &value[..]));
        Ok(xattrs.filter(|(name, _)| !self.is_hidden(name)))
    }
}

/// Replies to a request for the value of an extended attribute or the list of names. Callers first
/// request the size (`room` is 0), then the data with enough room. Above 64 KiB the kernel turns
/// ERANGE into E2BIG.
fn give(value: Result<&[u8], Errno>, room: u32, reply: ReplyXattr) {
    match value {
        Err(error) => reply.error(error),
        Ok(value) => match u32::try_from(value.len()) {
            Ok(size) if room == 0 => reply.size(size),
            Ok(size) if size <= room => reply.data(value),
            Ok(_) => reply.error(Errno::ERANGE),
            Err(_) => reply.error(Errno::E2BIG),
        },
    }
}

/// Runs `answer` on this thread up to where it waits, and the rest on the runtime. Handing a
/// request to another thread takes longer than copying bytes that are in memory.
fn answer(runtime: &Handle, answer: impl Future<Output = ()> + Send + 'static) {
    let mut answer = Box::pin(answer);
    // The runtime polls it again with its own waker.
    if answer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        runtime.spawn(answer);
    }
}

/// Requests that would change something. The kernel itself refuses them on a read-only mount,
/// unless it is remounted writable.
macro_rules! read_only {
    ($($name:ident($($type:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, _: &Request, $(_: $type,)* reply: $reply) {
            reply.error(Errno::EROFS);
        })*
    };
}

impl Filesystem for ImageFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT;
        // Access control lists cost a request for each file, so they are only enabled for images
        // that have them.
        if self.checked && self.tree.all_xattrs().any(|(name, _)| name.starts_with(ACL)) {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if self.checked {
            // User namespaces of containers. The kernel allows it only where it checks permissions.
            wanted |= InitFlags::FUSE_ALLOW_IDMAP;
        }
        self.no_xattrs =
            !self.answers_xattrs && self.tree.all_xattrs().all(|(name, _)| self.is_hidden(name));
        self.no_open = offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        self.no_opendir = offered.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        // An older kernel has fewer capabilities, which is fine.
        let _ = config.add_capabilities(wanted & offered);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let parent = match self.node(parent) {
            Ok((id, _)) => id,
            Err(error) => return reply.error(error),
        };
        // The kernel passes on longer names than statfs allows.
        if name.len() > NAME_MAX {
            return reply.error(Errno::ENAMETOOLONG);
        }
        let attributes = match self.tree.child(parent, name.as_bytes()) {
            Some(id) => self.attributes(id),
            None => attr::nothing(),
        };
        reply.entry(&FOREVER, &attributes, GENERATION);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.node(ino) {
            Ok((id, _)) => reply.attr(&FOREVER, &self.attributes(id)),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.node(ino).map(|(_, node)| &node.kind) {
            Ok(NodeKind::Symlink(target)) if target.len() <= MAX_LINK => reply.data(target),
            Ok(NodeKind::Symlink(_)) => reply.error(Errno::ENAMETOOLONG),
            Ok(_) => reply.error(Errno::EINVAL),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            reply.error(Errno::ENOSYS)
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH)
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (id, kind) = match self.node(ino) {
            Ok((id, Node { kind: kind @ (NodeKind::File(_) | NodeKind::Sparse(_)), .. })) => {
                (id, kind.clone())
            }
            Ok((_, Node { kind: NodeKind::Directory(..), .. })) => {
                return reply.error(Errno::EISDIR);
            }
            Ok(_) => return reply.error(Errno::EINVAL),
            Err(error) => return reply.error(error),
        };
        let range = offset..kind.size().min(offset.saturating_add(size.into()));
        let Some(stored) = kind.stored_in(range.clone()).filter(|_| !range.is_empty()) else {
            return reply.data(&[]);
        };
        let content = self.content.clone();
        // The filler reads no sparse files.
        if self.filler.as_ref().is_some_and(|filler| filler.sent(request)) {
            return answer(&self.runtime, async move {
                match content.read_at_hand(stored.layer, stored.offset, stored.size as usize).await
                {
                    Some(bytes) => reply.data(&bytes),
                    // A program that wants these bytes makes the kernel request them again.
                    None => reply.error(Errno::EIO),
                }
            });
        }
        let recorder = self.recorder.clone();
        answer(&self.runtime, async move {
            if let Some(recorder) = recorder {
                // A line of the record may have to wait for the disk.
                tokio::task::yield_now().await;
                recorder.record_read(id, range.clone(), stored);
            }
            match content.read_file(&kind, range).await {
                Ok(bytes) => reply.data(&bytes),
                // The content has already reported the reason.
                Err(_) => reply.error(Errno::EIO),
            }
        });
    }

    /// There is never anything to write.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_opendir {
            reply.error(Errno::ENOSYS)
        } else {
            reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR)
        }
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let entries = match self.entries(ino, offset) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        for (next, name, id) in entries {
            if reply.add(self.inode(id), next, attr::file_type(&self.tree.node(id).kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let entries = match self.entries(ino, offset) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        for (next, name, id) in entries {
            if reply.add(self.inode(id), next, name, &FOREVER, &self.attributes(id), GENERATION) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = self.bytes.div_ceil(u64::from(attr::BLOCK));
        reply.statfs(
            blocks,
            0,
            0,
            self.tree.len() as u64,
            0,
            attr::BLOCK,
            NAME_MAX as u32,
            attr::BLOCK,
        );
    }

    /// An overlay asks for its own attributes at each lookup, which can be more than a third of all
    /// requests of a start. The kernel takes ENOSYS for an answer to all later ones, and tells
    /// programs that attributes are not supported.
    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if self.no_xattrs {
            return reply.error(Errno::ENOSYS);
        }
        let value = self.xattrs(ino).and_then(|mut xattrs| {
            xattrs
                .find(|(known, _)| *known == name.as_bytes())
                .map(|(_, value)| value)
                .ok_or(Errno::NO_XATTR)
        });
        give(value, size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.xattrs(ino).map(|xattrs| {
            xattrs.flat_map(|(name, _)| name.iter().copied().chain([0])).collect::<Vec<u8>>()
        });
        give(names.as_deref().map_err(|error| *error), size, reply);
    }

    /// Only called if the kernel does not check permissions itself: then only the user who mounted
    /// has access, may read everything, and may execute what anybody may (as root elsewhere, see
    /// generic_permission() in Linux's fs/namei.c).
    fn access(&self, _: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let is_executable =
            |node: &Node| matches!(node.kind, NodeKind::Directory(_)) || node.mode & 0o111 != 0;
        match self.node(ino) {
            Ok(_) if mask.contains(AccessFlags::W_OK) => reply.error(Errno::EROFS),
            Ok((_, node)) if mask.contains(AccessFlags::X_OK) && !is_executable(node) => {
                reply.error(Errno::EACCES)
            }
            Ok(_) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    read_only! {
        setattr(
            INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>, Option<TimeOrNow>,
            Option<SystemTime>, Option<FileHandle>, Option<SystemTime>, Option<SystemTime>, Option<SystemTime>,
            Option<BsdFileFlags>
        ) -> ReplyAttr;
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        write(INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>) -> ReplyWrite;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
        copy_file_range(
            INodeNo, FileHandle, u64, INodeNo, FileHandle, u64, u64, CopyFileRangeFlags
        ) -> ReplyWrite;
    }
}
