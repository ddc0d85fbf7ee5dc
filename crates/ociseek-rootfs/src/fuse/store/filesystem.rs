//! Replies to the kernel's requests for a store. Those for files of a layer go to the layer.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use futures_util::future::join_all;
use rustix::process::{getegid, geteuid};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::warn;

use super::super::attr::{self, BLOCK};
use super::super::filesystem::{BACKGROUND, FOREVER, GENERATION, ImageFs, NAME_MAX};
use super::super::handover::tree_identity;
use super::nodes::{KnownNames, Nodes, OpenSlot, Slot, StoreNode};
use super::{LayerSource, NoLayer};
use ociseek_format::digest::Digest;
use ociseek_format::tree::{NodeId, Tree};
use ociseek_store::lock::Hold;

/// The longest name that the kernel passes on (fs/fuse: FUSE_NAME_MAX).
const NAME_LIMIT: usize = 1024;
/// Directories of images and layers are looked up again each time: they come and go.
const NOT_KEPT: Duration = Duration::ZERO;
/// The name by whose creation a runtime says that it uses a layer.
const USE: &[u8] = b"use";

/// A store, for the kernel.
pub(crate) struct StoreFs {
    shared: Arc<Shared>,
    /// Dropped when the session ends, which notifies those who wait for that.
    _alive: oneshot::Sender<()>,
}

struct Shared {
    source: Arc<dyn LayerSource>,
    nodes: Mutex<Nodes>,
    runtime: Handle,
    /// Whether the kernel can do without `open`.
    no_open: OnceLock<bool>,
    owner: (u32, u32),
}

impl StoreFs {
    /// With `known`, it takes over from another server.
    pub(crate) fn new(
        source: Arc<dyn LayerSource>,
        known: Option<&KnownNames>,
        runtime: Handle,
        alive: oneshot::Sender<()>,
    ) -> StoreFs {
        let owner = (geteuid().as_raw(), getegid().as_raw());
        let nodes = Mutex::new(known.map_or_else(Nodes::default, Nodes::restored));
        let no_open = OnceLock::new();
        StoreFs {
            shared: Arc::new(Shared { source, nodes, runtime, no_open, owner }),
            _alive: alive,
        }
    }

    /// Opens the layers that an earlier server has shown and runtimes use, as far as that is
    /// possible at present. Their files are needed at once.
    pub(crate) async fn reopen(&self) {
        let slots: Vec<_> = self.shared.nodes().slots().map(Arc::clone).collect();
        let used =
            slots.iter().filter(|slot| self.shared.source.is_used(&slot.reference, &slot.layer));
        join_all(used.map(|slot| self.shared.open(slot))).await;
    }

    /// The files of the layer that an inode is in.
    fn inside(&self, inode: INodeNo) -> Option<Result<Arc<Slot>, Errno>> {
        match StoreNode::of(inode) {
            StoreNode::Diff(slot) | StoreNode::Inside(slot) => {
                let slot = self.shared.nodes().slot(slot).ok_or(Errno::ESTALE);
                Some(slot.and_then(|slot| {
                    if slot.open.initialized() { Ok(slot) } else { Err(self.unopened(slot)) }
                }))
            }
            _ => None,
        }
    }

    /// The answer for a layer that could not be opened again yet. The next attempt begins.
    fn unopened(&self, slot: Arc<Slot>) -> Errno {
        let shared = Arc::clone(&self.shared);
        self.shared.runtime.spawn(async move {
            // It has reported why it fails.
            let _ = shared.open(&slot).await;
        });
        Errno::EIO
    }
}

impl Shared {
    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.hold()
    }

    fn attributes(&self, node: StoreNode) -> Result<FileAttr, Errno> {
        let (uid, gid) = self.owner;
        let entry = FileAttr { ino: node.inode(), uid, gid, ..attr::nothing() };
        let directory = FileAttr {
            kind: FileType::Directory,
            perm: 0o700,
            nlink: 2,
            size: u64::from(BLOCK),
            ..entry
        };
        let file = |size: u64| FileAttr {
            perm: 0o400,
            nlink: 1,
            size,
            blocks: size.div_ceil(512),
            ..entry
        };
        let slot = || node.slot().and_then(|slot| self.nodes().slot(slot)).ok_or(Errno::ESTALE);
        let sized =
            |size: fn(&OpenSlot) -> u64| Ok(file(size(slot()?.open.get().ok_or(Errno::ESTALE)?)));
        match node {
            StoreNode::Root => Ok(directory),
            StoreNode::Reference(number) => {
                self.nodes().reference_at(number).map(|_| directory).ok_or(Errno::ESTALE)
            }
            StoreNode::Layer(_) => slot().map(|_| directory),
            StoreNode::Info(_) => sized(|open| open.layer.info.len() as u64),
            StoreNode::Blob(_) => sized(|open| open.layer.blob_size),
            StoreNode::Diff(_) | StoreNode::Inside(_) => {
                let slot = slot()?;
                Ok(slot.open.get().ok_or(Errno::ESTALE)?.files.attributes(Tree::ROOT))
            }
        }
    }

    /// Replies to a lookup that found `node`, or nothing.
    fn found(&self, node: Result<StoreNode, Errno>, reply: ReplyEntry) {
        let entry =
            node.and_then(|node| self.attributes(node).map(|attributes| (node, attributes)));
        match entry {
            Ok((node, attributes)) => {
                // The reference has counted its own.
                if !matches!(node, StoreNode::Reference(_)) {
                    self.nodes().looked_up(node);
                }
                let time_to_live = match node {
                    StoreNode::Diff(_) | StoreNode::Info(_) | StoreNode::Blob(_) => FOREVER,
                    _ => NOT_KEPT,
                };
                reply.entry(&time_to_live, &attributes, GENERATION);
            }
            Err(error) => reply.error(error),
        }
    }

    /// A layer by its name in the directory of an image.
    async fn layer(&self, parent: u64, name: Digest) -> Result<StoreNode, Errno> {
        let (known, reference) = {
            let nodes = self.nodes();
            (nodes.known(parent, &name), nodes.reference_at(parent).ok_or(Errno::ESTALE)?)
        };
        if let Some(slot) = known {
            return Ok(StoreNode::Layer(slot.number));
        }
        // What a runtime uses can be released when the registry is away.
        let opened = if self.source.is_used(&reference, &name) {
            None
        } else {
            Some(self.source.open(&reference, &name).await.map_err(error_of)?)
        };
        let slot = self.nodes().add(parent, name).ok_or(Errno::ESTALE)?;
        if let Some(layer) = opened {
            // Another lookup may have opened it meanwhile.
            let _ = slot.open.set(self.open_slot(&slot, layer).await?);
        }
        self.save_names();
        Ok(StoreNode::Layer(slot.number))
    }

    /// `diff`, `info` or `blob` of a layer, which is opened for that.
    async fn part(&self, slot: &Slot, part: StoreNode) -> Result<StoreNode, Errno> {
        self.open(slot).await.map(|()| part)
    }

    /// Opens a layer that a runtime has.
    async fn open(&self, slot: &Slot) -> Result<(), Errno> {
        if slot.open.initialized() {
            return Ok(());
        }
        let open = || async {
            let layer =
                self.source.open(&slot.reference, &slot.layer).await.map_err(
                    |error| match error {
                        // A runtime has it already, so it cannot be left to it any more.
                        NoLayer::LeftToRuntime | NoLayer::Failed => Errno::EIO,
                    },
                )?;
            self.open_slot(slot, layer).await
        };
        slot.open.get_or_try_init(open).await?;
        self.save_names();
        Ok(())
    }

    /// Has the names saved, for a server that takes over.
    fn save_names(&self) {
        // One after the other, so that the last one has everything.
        let nodes = self.nodes();
        self.source.save_names(nodes.known_names());
    }

    /// A slot of an open layer, whose tree must be the one that the kernel knows.
    async fn open_slot(&self, slot: &Slot, layer: super::StoredLayer) -> Result<OpenSlot, Errno> {
        let tree = Arc::clone(&layer.tree);
        let identified = self.runtime.spawn_blocking(move || tree_identity(&tree)).await;
        let identity = identified.map_err(|_| Errno::EIO)?;
        if *slot.identity.get_or_init(|| identity) != identity {
            warn!(layer = %slot.layer, reference = &*slot.reference, "its files differ from before: it is not served");
            return Err(Errno::EIO);
        }
        let tree = Arc::clone(&layer.tree);
        let bytes = (0..tree.len() as u32)
            .map(|id| tree.node(NodeId(id)).kind.size())
            .fold(0, u64::saturating_add);
        let files = ImageFs {
            first_inode: u64::from(slot.number) << 32,
            tree,
            content: layer.content.clone(),
            runtime: self.runtime.clone(),
            recorder: None,
            filler: None,
            checked: true,
            under_overlay: false,
            bytes,
            _alive: None,
            no_open: self.no_open.get().copied().unwrap_or_default(),
            // ENOSYS would be the answer for all directories and all layers.
            no_opendir: false,
            answers_xattrs: true,
            no_xattrs: false,
        };
        Ok(OpenSlot { files, layer })
    }

    /// The names in one of the store's own directories, from number `from` on, each with the number
    /// of the next.
    fn entries(&self, inode: INodeNo, from: u64) -> Result<Vec<(u64, String, StoreNode)>, Errno> {
        let node = StoreNode::of(inode);
        let mut entries = vec![(".".to_owned(), node), ("..".to_owned(), StoreNode::Root)];
        match node {
            StoreNode::Root | StoreNode::Reference(_) => entries.extend(self.nodes().names(node)),
            StoreNode::Layer(slot) => {
                let is_open = self.nodes().slot(slot).ok_or(Errno::ESTALE)?.open.initialized();
                let parts = [("blob", StoreNode::Blob(slot)), ("diff", StoreNode::Diff(slot))];
                let parts =
                    parts.into_iter().chain([("info", StoreNode::Info(slot))]).filter(|_| is_open);
                entries.extend(parts.map(|(name, node)| (name.to_owned(), node)));
            }
            _ => return Err(Errno::ENOTDIR),
        }
        let numbered = entries.into_iter().zip(1..).map(|((name, node), next)| (next, name, node));
        Ok(numbered.skip(usize::try_from(from).unwrap_or(usize::MAX)).collect())
    }

    /// Runs what blocks, such as writing the state, and then replies.
    fn noted(self: &Arc<Self>, slot: Arc<Slot>, ends: bool, reply: impl FnOnce() + Send + 'static) {
        let shared = Arc::clone(self);
        self.runtime.spawn_blocking(move || {
            let reference = &*slot.reference;
            let layer = &slot.layer;
            if ends {
                shared.source.end_use(reference, layer)
            } else {
                let origin = slot.open.get().map(|open| open.layer.origin);
                shared.source.begin_use(reference, layer, origin);
            }
            let is_used = shared.source.is_used(reference, layer);
            {
                let mut nodes = shared.nodes();
                if ends && !is_used {
                    nodes.released(slot.number);
                }
                nodes.tidy(slot.number, is_used);
            }
            reply();
        });
    }
}

fn error_of(error: NoLayer) -> Errno {
    match error {
        NoLayer::LeftToRuntime => Errno::ENOENT,
        NoLayer::Failed => Errno::EIO,
    }
}

fn kind_of(node: StoreNode) -> FileType {
    match node {
        StoreNode::Info(_) | StoreNode::Blob(_) => FileType::RegularFile,
        _ => FileType::Directory,
    }
}

/// Passes a request on if it is for a file in a layer.
macro_rules! in_layer {
    ($store:expr, $request:expr, $inode:expr, $reply:expr, $call:ident($($argument:expr),*)) => {
        if let Some(slot) = $store.inside($inode) {
            return match slot.as_ref().map(|slot| slot.open.get()) {
                Ok(Some(open)) => open.files.$call($request, $inode, $($argument,)* $reply),
                Ok(None) => $reply.error(Errno::ESTALE),
                Err(error) => $reply.error(*error),
            };
        }
    };
}

/// Requests that would change something.
macro_rules! refused {
    ($($name:ident($($type:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, _: &Request, $(_: $type,)* reply: $reply) {
            reply.error(Errno::EROFS);
        })*
    };
}

impl Filesystem for StoreFs {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let offered = config.capabilities();
        let wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_NO_OPEN_SUPPORT
            // It is not known yet whether a layer has access control lists.
            | InitFlags::FUSE_POSIX_ACL;
        let _ = self.shared.no_open.set(offered.contains(InitFlags::FUSE_NO_OPEN_SUPPORT));
        // An older kernel has fewer capabilities, which is fine.
        let _ = config.add_capabilities(wanted & offered);
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        in_layer!(self, request, parent, reply, lookup(name));
        if name.len() > NAME_LIMIT {
            return reply.error(Errno::ENAMETOOLONG);
        }
        let shared = Arc::clone(&self.shared);
        let missing = || Errno::ENOENT;
        match StoreNode::of(parent) {
            StoreNode::Root => {
                let node = name.to_str().ok_or_else(missing).and_then(|name| {
                    let reference =
                        STANDARD.decode(name).ok().and_then(|bytes| String::from_utf8(bytes).ok());
                    let reference = reference.filter(|reference| shared.source.is_image(reference));
                    let reference = reference.ok_or_else(missing)?;
                    let (node, is_new) = {
                        let mut nodes = shared.nodes();
                        let is_new = !nodes.knows(name);
                        (nodes.reference(name, &reference), is_new)
                    };
                    if is_new {
                        shared.save_names();
                    }
                    Ok(node)
                });
                shared.found(node, reply);
            }
            StoreNode::Reference(number) => {
                match name.to_str().and_then(|name| name.parse::<Digest>().ok()) {
                    Some(layer) => drop(self.shared.runtime.spawn(async move {
                        let node = shared.layer(number, layer).await;
                        shared.found(node, reply);
                    })),
                    None => reply.error(Errno::ENOENT),
                }
            }
            StoreNode::Layer(number) => {
                let part = match name.as_bytes() {
                    b"diff" => StoreNode::Diff(number),
                    b"info" => StoreNode::Info(number),
                    b"blob" => StoreNode::Blob(number),
                    _ => return reply.error(Errno::ENOENT),
                };
                let Some(slot) = shared.nodes().slot(number) else {
                    return reply.error(Errno::ESTALE);
                };
                self.shared.runtime.spawn(async move {
                    let node = shared.part(&slot, part).await;
                    shared.found(node, reply);
                });
            }
            _ => reply.error(Errno::ENOTDIR),
        }
    }

    fn forget(&self, _: &Request, inode: INodeNo, count: u64) {
        let node = StoreNode::of(inode);
        if matches!(node, StoreNode::Root | StoreNode::Inside(_)) {
            return;
        }
        let slot = {
            let mut nodes = self.shared.nodes();
            nodes.forgotten(node, count);
            node.slot().and_then(|slot| nodes.slot(slot))
        };
        if let Some(slot) = slot {
            let is_used = self.shared.source.is_used(&slot.reference, &slot.layer);
            self.shared.nodes().tidy(slot.number, is_used);
        }
    }

    fn getattr(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        in_layer!(self, request, inode, reply, getattr(handle));
        match self.shared.attributes(StoreNode::of(inode)) {
            Ok(attributes) => reply.attr(&NOT_KEPT, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        in_layer!(self, request, inode, reply, readlink());
        reply.error(Errno::EINVAL);
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        in_layer!(self, request, inode, reply, open(flags));
        match self.shared.no_open.get() {
            Some(true) => reply.error(Errno::ENOSYS),
            _ => reply.opened(FileHandle(0), FopenFlags::empty()),
        }
    }

    fn opendir(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        in_layer!(self, request, inode, reply, opendir(flags));
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn read(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        lock: Option<LockOwner>,
        reply: ReplyData,
    ) {
        in_layer!(self, request, inode, reply, read(handle, offset, size, flags, lock));
        let node = StoreNode::of(inode);
        let slot = node.slot().and_then(|slot| self.shared.nodes().slot(slot));
        let Some(slot) = slot.filter(|slot| slot.open.initialized()) else {
            return reply.error(Errno::ESTALE);
        };
        self.shared.runtime.spawn(async move {
            let Some(open) = slot.open.get() else { return reply.error(Errno::ESTALE) };
            match node {
                StoreNode::Info(_) => {
                    let info = &open.layer.info;
                    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(info.len());
                    reply.data(&info[start..info.len().min(start.saturating_add(size as usize))]);
                }
                StoreNode::Blob(_) => match open.layer.blob.read(offset, size as usize).await {
                    Some(bytes) => reply.data(&bytes),
                    None => reply.error(Errno::EIO),
                },
                _ => reply.error(Errno::EISDIR),
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

    fn readdir(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        in_layer!(self, request, inode, reply, readdir(handle, offset));
        match self.shared.entries(inode, offset) {
            Ok(entries) => {
                for (next, name, node) in entries {
                    if reply.add(node.inode(), next, kind_of(node), name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        in_layer!(self, request, inode, reply, readdirplus(handle, offset));
        let entries = match self.shared.entries(inode, offset) {
            Ok(entries) => entries,
            Err(error) => return reply.error(error),
        };
        for (next, name, node) in entries {
            let Ok(attributes) = self.shared.attributes(node) else { continue };
            if reply.add(node.inode(), next, &name, &NOT_KEPT, &attributes, GENERATION) {
                break;
            }
            // The kernel does not count the directory itself and the one above it.
            if next > 2 {
                self.shared.nodes().looked_up(node);
            }
        }
        reply.ok();
    }

    fn statfs(&self, request: &Request, inode: INodeNo, reply: ReplyStatfs) {
        in_layer!(self, request, inode, reply, statfs());
        reply.statfs(0, 0, 0, 0, 0, BLOCK, NAME_MAX as u32, BLOCK);
    }

    fn getxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        in_layer!(self, request, inode, reply, getxattr(name, size));
        reply.error(Errno::NO_XATTR);
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        in_layer!(self, request, inode, reply, listxattr(size));
        if size == 0 { reply.size(0) } else { reply.data(&[]) }
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        in_layer!(self, request, inode, reply, access(mask));
        reply.ok();
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let slot = match StoreNode::of(parent) {
            StoreNode::Layer(slot) if name.as_bytes() == USE => self.shared.nodes().slot(slot),
            _ => return reply.error(Errno::EROFS),
        };
        match slot {
            Some(slot) => self.shared.noted(slot, false, move || reply.error(Errno::ENOENT)),
            None => reply.error(Errno::ESTALE),
        }
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let StoreNode::Reference(parent) = StoreNode::of(parent) else {
            return reply.error(Errno::EROFS);
        };
        let layer = name.to_str().and_then(|name| name.parse::<Digest>().ok());
        let slot = layer.and_then(|layer| self.shared.nodes().known(parent, &layer));
        match slot {
            Some(slot) => self.shared.noted(slot, true, move || reply.error(Errno::ENOENT)),
            None => reply.error(Errno::ENOENT),
        }
    }

    refused! {
        setattr(
            INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>, Option<TimeOrNow>,
            Option<SystemTime>, Option<FileHandle>, Option<SystemTime>, Option<SystemTime>, Option<SystemTime>,
            Option<BsdFileFlags>
        ) -> ReplyAttr;
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        write(INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>) -> ReplyWrite;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
    }
}
