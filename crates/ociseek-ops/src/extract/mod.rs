//! Extracts the regular files of a layer into a directory, reading through its ztoc.
//!
//! Only regular files are written, with their other names as hard links, in the directories that
//! this needs. Whiteouts are ordinary files. Names are resolved like in [`Tree::of_layer`]: the
//! last entry for a name wins, names stay below the root, and an entry below a symbolic link goes
//! where the link leads inside the layer. Each span is decoded once. Besides the tree, at most the
//! compressed bytes of one span are in memory.

mod output;

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

pub use output::Output;
use output::UnfinishedFile;

use ociseek_format::layer::MAX_SPAN;
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::offset::{SpanId, Uncompressed};
use ociseek_format::path::shown;
use ociseek_format::tree::{Extent, NodeId, NodeKind, Tree, TreeError};
use ociseek_format::ztoc::{ExtentFault, FileMetadata, VERSION, Ztoc, check_extents};

/// The result of extracting.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtractReport {
    /// The number of regular files.
    pub files: u64,
    /// The size of their content in bytes.
    pub bytes: u64,
    /// The number of additional names of files that have several.
    pub hard_links: u64,
    /// The number of symbolic links, devices and fifos, which are not written.
    pub left_out: u64,
    /// Warnings for people.
    pub warnings: Vec<String>,
}

/// Why a layer's files cannot be extracted.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    #[error("unknown ztoc format version {0:?} (expected 0.9)")]
    Version(String),
    #[error("the ztoc is for a layer of {stated} bytes; this one has {actual}")]
    Size { stated: u64, actual: u64 },
    #[error("the ztoc's spans cannot be used")]
    Spans(#[source] SpanError),
    #[error("the ztoc's entries do not form a tree")]
    Tree(#[from] TreeError),
    #[error(
        "the ztoc says that {} ends at byte {end} of the tar, which ends at byte {tar}",
        shown(name)
    )]
    PastEnd { name: Box<[u8]>, end: u64, tar: Uncompressed },
    #[error("the ztoc says that {} and {} share bytes", shown(one), shown(other))]
    Overlap { one: Box<[u8]>, other: Box<[u8]> },
    #[error("the layer cannot be read")]
    Read(#[source] io::Error),
    #[error("span {0} has {1} compressed bytes, more than can be read at once")]
    SpanSize(SpanId, u64),
    #[error("{} cannot be read", shown(name))]
    Span {
        name: Box<[u8]>,
        #[source]
        source: SpanError,
    },
    #[error("{} is incomplete: no span holds byte {at} of the tar", shown(name))]
    NoSpan { name: Box<[u8]>, at: Uncompressed },
    #[error("cannot use the output {}", path.display())]
    Output {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} already exists", shown(name))]
    Exists { name: Box<[u8]> },
    #[error("{} cannot be written", shown(name))]
    Write {
        name: Box<[u8]>,
        #[source]
        source: io::Error,
    },
    #[error("stopped")]
    Stopped,
}

/// A name of a regular file.
#[derive(Clone, Copy)]
struct Name {
    node: NodeId,
    directory: NodeId,
    /// The index of the name in its directory.
    number: usize,
    extent: Extent,
}

/// Reads the layer in `blob` by the spans of `table` and writes its files into `output`. `go_on` is
/// called often, and stops the work by returning false.
///
/// # Errors
/// If the layer does not match the ztoc. Files that were completed before remain; the one at fault
/// is not written.
pub fn extract(
    table: &SpanTable,
    blob: &File,
    output: &mut Output,
    go_on: &dyn Fn() -> bool,
) -> Result<ExtractReport, ExtractError> {
    let ztoc = table.ztoc();
    if *ztoc.version != *VERSION {
        return Err(ExtractError::Version(shown(&ztoc.version)));
    }
    let actual = blob.metadata().map_err(ExtractError::Read)?.len();
    if actual != ztoc.compressed_size.0 {
        return Err(ExtractError::Size { stated: ztoc.compressed_size.0, actual });
    }
    check_files(ztoc)?;
    let tree = Tree::of_layer(&ztoc.files[..])?;
    let (mut names, left_out) = regular_files(&tree);
    // The first name of each file is written, in the order of the tar. The others become links to
    // it.
    names.sort_by_key(|name| (name.extent.offset, name.node));
    let (mut files, mut links): (Vec<Name>, Vec<(Name, Name)>) = (Vec::new(), Vec::new());
    for name in names {
        match files.last() {
            Some(first) if first.node == name.node => links.push((*first, name)),
            _ => files.push(name),
        }
    }
    let mut extraction = Extraction {
        table,
        blob,
        tree: &tree,
        files: &files,
        done: 0,
        open: None,
        output,
        go_on,
        bytes: 0,
    };
    extraction.all()?;
    let bytes = extraction.bytes;
    for (first, name) in &links {
        stop(go_on)?;
        output.link(
            &tree,
            (first.directory, first.name(&tree)),
            (name.directory, name.name(&tree)),
        )?;
    }
    let warnings = tree.warnings().to_vec();
    Ok(ExtractReport {
        files: files.len() as u64,
        bytes,
        hard_links: links.len() as u64,
        left_out,
        warnings,
    })
}

impl Name {
    fn name<'t>(&self, tree: &'t Tree) -> &'t [u8] {
        tree.children(self.directory).nth(self.number).map_or(&[][..], |(name, _)| name)
    }

    fn end(&self) -> u64 {
        self.extent.offset.0 + self.extent.size
    }
}

fn stop(go_on: &dyn Fn() -> bool) -> Result<(), ExtractError> {
    if go_on() { Ok(()) } else { Err(ExtractError::Stopped) }
}

/// All names of regular files, and the number of other nodes that are not directories.
fn regular_files(tree: &Tree) -> (Vec<Name>, u64) {
    let mut names = Vec::new();
    let mut left_out = 0;
    let mut directories = vec![Tree::ROOT];
    while let Some(directory) = directories.pop() {
        for (number, (_, node)) in tree.children(directory).enumerate() {
            match tree.node(node).kind {
                NodeKind::Directory(_) => directories.push(node),
                NodeKind::File(extent) => names.push(Name { node, directory, number, extent }),
                _ => left_out += 1,
            }
        }
    }
    (names, left_out)
}

/// Checks that the files are inside the tar and do not overlap. Entries may be in any order: files
/// are read in the order of the tar.
///
/// # Errors
/// The first file that does not comply.
fn check_files(ztoc: &Ztoc) -> Result<(), ExtractError> {
    let mut entries: Vec<(usize, &FileMetadata)> = ztoc.files.iter().enumerate().collect();
    entries.sort_by_key(|(_, file)| file.offset);
    let tar = ztoc.uncompressed_size;
    let name =
        |entry: usize| ztoc.files.get(entry).map_or_else(Box::default, |file| file.name.clone());
    check_extents(entries.iter().copied(), tar).map_err(|fault| match fault {
        ExtentFault::Overlap { one, other } => {
            ExtractError::Overlap { one: name(one), other: name(other) }
        }
        ExtentFault::PastEnd { entry } => {
            let end =
                ztoc.files.get(entry).map_or(0, |file| file.offset.0.saturating_add(file.size));
            ExtractError::PastEnd { name: name(entry), end, tar }
        }
    })
}

/// The state of writing decoded spans to files.
struct Extraction<'a> {
    table: &'a SpanTable,
    blob: &'a File,
    tree: &'a Tree,
    /// In the order of the tar.
    files: &'a [Name],
    /// The number of files written so far.
    done: usize,
    /// The file that is being written, and the position of its next byte in the tar.
    open: Option<(UnfinishedFile, u64)>,
    output: &'a mut Output,
    go_on: &'a dyn Fn() -> bool,
    bytes: u64,
}

impl Extraction<'_> {
    fn all(&mut self) -> Result<(), ExtractError> {
        let mut blob = Vec::new();
        loop {
            self.finish_complete()?;
            let Some(next) = self.files.get(self.done) else { return Ok(()) };
            let at = self.open.as_ref().map_or(next.extent.offset.0, |(_, at)| *at);
            let name = || next.name(self.tree).into();
            let missing = || ExtractError::NoSpan { name: name(), at: Uncompressed(at) };
            let spans = self.table.covering(Uncompressed(at)..Uncompressed(at + 1));
            let span = Some(spans.start).filter(|_| !spans.is_empty()).ok_or_else(missing)?;
            let range = self.table.blob_range(span);
            let size = range.end - range.start;
            if size > MAX_SPAN {
                return Err(ExtractError::SpanSize(span, size));
            }
            // The blob is long enough: its length was compared with the ztoc's.
            blob.resize(size as usize, 0);
            self.blob.read_exact_at(&mut blob, range.start.0).map_err(ExtractError::Read)?;
            let mut position = self.table.plain_range(span).start.0;
            let mut failed = None;
            let before = (self.done, at);
            let decoded =
                self.table.decode(span, &blob, &mut |piece| match self.take(position, piece) {
                    Ok(flow) => {
                        position += piece.len() as u64;
                        flow
                    }
                    Err(error) => {
                        failed = Some(error);
                        ControlFlow::Break(())
                    }
                });
            if let Some(error) = failed {
                return Err(error);
            }
            decoded.map_err(|source| ExtractError::Span { name: name(), source })?;
            if before == (self.done, self.open.as_ref().map_or(before.1, |(_, at)| *at)) {
                return Err(missing());
            }
        }
    }

    /// Takes plain bytes that begin at `position` in the tar.
    fn take(&mut self, position: u64, piece: &[u8]) -> Result<ControlFlow<()>, ExtractError> {
        stop(self.go_on)?;
        let end = position + piece.len() as u64;
        loop {
            self.finish_complete()?;
            let Some(next) = self.files.get(self.done) else { return Ok(ControlFlow::Break(())) };
            if next.extent.offset.0 >= end {
                return Ok(ControlFlow::Continue(()));
            }
            let (writing, at) = self.opened(next)?;
            if *at >= end {
                return Ok(ControlFlow::Continue(()));
            }
            let from = at.saturating_sub(position) as usize;
            let to = (next.end().min(end) - position) as usize;
            writing.write(&piece[from..to])?;
            *at += (to - from) as u64;
        }
    }

    fn opened(&mut self, name: &Name) -> Result<&mut (UnfinishedFile, u64), ExtractError> {
        let open = match self.open.take() {
            Some(open) => open,
            None => (
                self.output.create(self.tree, name.directory, name.name(self.tree))?,
                name.extent.offset.0,
            ),
        };
        Ok(self.open.insert(open))
    }

    /// Gives complete files their names, including empty ones.
    fn finish_complete(&mut self) -> Result<(), ExtractError> {
        while let Some(next) = self.files.get(self.done) {
            if next.extent.size > 0 && self.open.as_ref().is_none_or(|(_, at)| *at < next.end()) {
                return Ok(());
            }
            stop(self.go_on)?;
            self.opened(next)?;
            if let Some((writing, _)) = self.open.take() {
                writing.finish(self.tree.node(next.node), self.output)?;
            }
            self.bytes += next.extent.size;
            self.done += 1;
        }
        Ok(())
    }
}
