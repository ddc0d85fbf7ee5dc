//! The directory into which files are extracted. No file can be written outside it: each directory
//! below it is opened by a single name from its parent, and never through a symbolic link.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;

use rustix::fs::{AtFlags, Mode, OFlags, RawMode, RenameFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::ExtractError;
use ociseek_format::time::Time;
use ociseek_format::tree::{Node, NodeId, Tree};

/// How many directories are kept open.
const OPEN: usize = 32;

/// The destination of extracted files.
pub struct Output {
    root: Rc<OwnedFd>,
    /// The most recently used ones first.
    open: VecDeque<(NodeId, Rc<OwnedFd>)>,
    replaces: bool,
    /// The number of temporary files so far.
    count: u64,
}

ociseek_format::opaque_debug!(Output);

/// A file without its final name. It is deleted if it is dropped before it gets one.
pub(super) struct UnfinishedFile {
    file: Option<BufWriter<File>>,
    directory: Rc<OwnedFd>,
    temporary: String,
    name: Box<[u8]>,
}

impl Output {
    /// Opens a directory, and creates it if it does not exist. Existing files are only replaced if
    /// `replaces` is set.
    ///
    /// # Errors
    /// If it can be neither created nor opened.
    pub fn new(path: &Path, replaces: bool) -> Result<Output, ExtractError> {
        let failed = |source| ExtractError::Output { path: path.to_owned(), source };
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(error));
            }
            _ => {}
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        Ok(Output { root: Rc::new(root), open: VecDeque::new(), replaces, count: 0 })
    }

    /// Creates a file that will be called `name` in a directory of the tree.
    pub(super) fn create(
        &mut self,
        tree: &Tree,
        directory: NodeId,
        name: &[u8],
    ) -> Result<UnfinishedFile, ExtractError> {
        let failed = |error: Errno| ExtractError::Write { name: name.into(), source: error.into() };
        let directory = self.directory(tree, directory).map_err(failed)?;
        if !self.replaces
            && rustix::fs::statat(&*directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        {
            return Err(ExtractError::Exists { name: name.into() });
        }
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        loop {
            self.count += 1;
            let temporary = format!(".ociseek-{}-{}", std::process::id(), self.count);
            match rustix::fs::openat(&*directory, &temporary, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => {
                    let file = Some(BufWriter::with_capacity(64 << 10, File::from(file)));
                    return Ok(UnfinishedFile { file, directory, temporary, name: name.into() });
                }
                // The layer may have such a name, or a killed process left it.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Adds another name for a written file. Both names are given as a directory of the tree and a
    /// name in it.
    pub(super) fn link(
        &mut self,
        tree: &Tree,
        (old_directory, old): (NodeId, &[u8]),
        (directory, name): (NodeId, &[u8]),
    ) -> Result<(), ExtractError> {
        let failed = |error: Errno| match error {
            Errno::EXIST => ExtractError::Exists { name: name.into() },
            error => ExtractError::Write { name: name.into(), source: error.into() },
        };
        let old_directory = self.directory(tree, old_directory).map_err(failed)?;
        let directory = self.directory(tree, directory).map_err(failed)?;
        if self.replaces {
            match rustix::fs::unlinkat(&*directory, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        rustix::fs::linkat(&*old_directory, old, &*directory, name, AtFlags::empty())
            .map_err(failed)
    }

    /// Opens a directory, and creates it and its parents if they do not exist.
    fn directory(&mut self, tree: &Tree, id: NodeId) -> Result<Rc<OwnedFd>, Errno> {
        if id == Tree::ROOT {
            return Ok(self.root.clone());
        }
        if let Some(at) = self.open.iter().position(|(known, _)| *known == id)
            && let Some(found) = self.open.remove(at)
        {
            self.open.push_front(found.clone());
            return Ok(found.1);
        }
        let path = tree.path(id);
        let mut directory = self.root.clone();
        for name in path.split(|&b| b == b'/') {
            match rustix::fs::mkdirat(&*directory, name, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
            directory = Rc::new(rustix::fs::openat(&*directory, name, flags, Mode::empty())?);
        }
        self.open.truncate(OPEN - 1);
        self.open.push_front((id, directory.clone()));
        Ok(directory)
    }
}

impl UnfinishedFile {
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ExtractError> {
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes));
        written.map_err(|source| self.failed(source))
    }

    /// Completes the file: sets its permissions (without setuid and similar bits), its time, and
    /// its name.
    pub(super) fn finish(mut self, node: &Node, output: &Output) -> Result<(), ExtractError> {
        let named = self.name_it(node, output);
        match named {
            Ok(()) => {
                self.temporary.clear();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(ExtractError::Exists { name: self.name.clone() })
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn name_it(&mut self, node: &Node, output: &Output) -> io::Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode((node.mode & 0o777) as RawMode))?;
        let Time { seconds, nanos } = node.mtime();
        let time = Timespec { tv_sec: seconds, tv_nsec: nanos.into() };
        rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
        drop(file);
        let directory = &*self.directory;
        let temporary = self.temporary.as_str();
        let name = &self.name[..];
        if output.replaces {
            rustix::fs::renameat(directory, temporary, directory, name)?;
            return Ok(());
        }
        match rustix::fs::renameat_with(
            directory,
            temporary,
            directory,
            name,
            RenameFlags::NOREPLACE,
        ) {
            // Not every file system supports that. A link does not replace files either.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(directory, temporary, directory, name, AtFlags::empty())?;
                rustix::fs::unlinkat(directory, temporary, AtFlags::empty())?;
            }
            renamed => renamed?,
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> ExtractError {
        ExtractError::Write { name: self.name.clone(), source }
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if !self.temporary.is_empty() {
            // If it cannot be removed, there is nobody to report that to.
            let _ =
                rustix::fs::unlinkat(&*self.directory, self.temporary.as_str(), AtFlags::empty());
        }
    }
}
