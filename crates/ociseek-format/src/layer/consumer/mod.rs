//! Whether soci-snapshotter, the consumer of ztocs, can serve a layer. It compares each opened file
//! with its tar header (fs/reader/reader.go), builds its tree from the entries (metadata/reader.go)
//! and checks the spans (fs/span-manager/span_manager.go, ztoc/compression/gzip_zinfo.c). A layer
//! that would fail one of these checks gets no ztoc.

use super::{MAX_KEY, UnservableCode, UnservableReason};
use crate::offset::{Compressed, SpanSize, Uncompressed};
use crate::path::{WHITEOUT, clean, shown};
use crate::tar::{Entry, Kind, PaxRecord};
use crate::ztoc::{Checkpoints, FileKind, FileMetadata, Ztoc};

mod tree;

pub(super) use self::tree::check as check_tree;

/// The largest span that is read, in bytes of the blob and of the tar. The consumer counts both in
/// C ints (soci-snapshotter, gzip_zinfo.c).
pub const MAX_SPAN: u64 = i32::MAX as u64;

/// A tar entry as a ztoc states it.
///
/// # Errors
/// If a ztoc cannot express it, or the consumer would find that ztoc and header disagree.
pub fn file(entry: Entry) -> Result<FileMetadata, UnservableReason> {
    let kind = match kind(entry.kind) {
        Ok(kind) => kind,
        Err(UnlistedEntry::GlobalHeader) => {
            let reason = format!("its tar has a PAX global header at byte {}", entry.header);
            return Err(UnservableReason::new(UnservableCode::PaxGlobalHeader, reason));
        }
        Err(UnlistedEntry::Sparse) => {
            return Err(refuse(UnservableCode::SparseFile, &entry, "is a sparse file"));
        }
        Err(UnlistedEntry::Other(flag)) => {
            let what = format!("has the entry type {:?}", char::from(flag));
            return Err(refuse(UnservableCode::EntryType, &entry, &what));
        }
    };
    if entry.size < 0 || (kind != FileKind::Regular && entry.size != 0) {
        let what = format!("claims {} bytes of data, which its type does not allow", entry.size);
        return Err(refuse(UnservableCode::SizeWithoutData, &entry, &what));
    }
    let (Ok(uid), Ok(gid)) = (u32::try_from(entry.uid), u32::try_from(entry.gid)) else {
        let what = format!("belongs to {}:{}, which are not 32-bit IDs", entry.uid, entry.gid);
        return Err(refuse(UnservableCode::OwnerOutOfRange, &entry, &what));
    };
    if !entry.mtime.has_rfc3339() {
        let what = format!(
            "was modified {} seconds after 1970, outside the years 0 to 9999",
            entry.mtime.seconds
        );
        return Err(refuse(UnservableCode::MtimeOutOfRange, &entry, &what));
    }
    if kind == FileKind::Regular && states_other_type(entry.mode) {
        let what =
            format!("is a regular file, but its mode {:o} is that of another type", entry.mode);
        return Err(refuse(UnservableCode::ModeTypeBits, &entry, &what));
    }
    if loses_xattr(&entry.pax) {
        return Err(refuse(
            UnservableCode::EmptyXattr,
            &entry,
            "has several extended attributes, one of them empty or too long",
        ));
    }
    Ok(metadata(entry, kind, uid, gid))
}

/// An entry that is not a file of a kind that a ztoc can express.
pub(super) enum UnlistedEntry {
    GlobalHeader,
    Sparse,
    /// An entry of another type, with its type flag.
    Other(u8),
}

/// The kind of an entry in a ztoc.
pub(super) fn kind(kind: Kind) -> Result<FileKind, UnlistedEntry> {
    match kind {
        Kind::Regular => Ok(FileKind::Regular),
        Kind::HardLink => Ok(FileKind::HardLink),
        Kind::Symlink => Ok(FileKind::Symlink),
        Kind::CharDevice => Ok(FileKind::CharDevice),
        Kind::BlockDevice => Ok(FileKind::BlockDevice),
        Kind::Directory => Ok(FileKind::Directory),
        Kind::Fifo => Ok(FileKind::Fifo),
        Kind::GlobalHeader => Err(UnlistedEntry::GlobalHeader),
        Kind::Sparse => Err(UnlistedEntry::Sparse),
        Kind::Other(flag) => Err(UnlistedEntry::Other(flag)),
    }
}

/// The entry in a ztoc, with its kind and owner determined. Negative sizes become 0.
pub(super) fn metadata(entry: Entry, kind: FileKind, uid: u32, gid: u32) -> FileMetadata {
    FileMetadata {
        name: entry.name,
        kind,
        offset: entry.data,
        size: u64::try_from(entry.size).unwrap_or(0),
        linkname: entry.linkname,
        mode: entry.mode,
        uid,
        gid,
        uname: entry.uname,
        gname: entry.gname,
        mtime: Some(entry.mtime),
        devmajor: entry.devmajor,
        devminor: entry.devminor,
        pax: entry.pax,
    }
}

/// States whiteouts as empty files if they are hard links that the consumer would reject. Docker
/// with AUFS wrote whiteouts as hard links (vmware/vic#5997), and in some images their target is a
/// file of a lower layer (smol-machines/smolvm#397). Unpackers and the consumer go by the name
/// alone (containerd, pkg/archive/tar.go applyNaive; soci-snapshotter, fs/layer/node.go).
pub(super) fn unlink_whiteouts(files: &mut [FileMetadata]) {
    if !files.iter().any(is_linked_whiteout) {
        return;
    }
    for number in tree::loose_whiteouts(files) {
        let file = &mut files[number];
        *file = as_empty_file(std::mem::take(file));
    }
}

/// The entry as the ztoc may state it: a whiteout that is a hard link may also be an empty file.
pub(super) fn stated_like(stated: &FileMetadata, actual: FileMetadata) -> FileMetadata {
    if stated.kind == FileKind::Regular && is_linked_whiteout(&actual) {
        as_empty_file(actual)
    } else {
        actual
    }
}

/// Whether this is a whiteout that is a hard link, and could be an empty file instead.
fn is_linked_whiteout(file: &FileMetadata) -> bool {
    file.kind == FileKind::HardLink
        && !states_other_type(file.mode)
        && clean(&file.name).last().is_some_and(|base| base.starts_with(WHITEOUT))
}

fn as_empty_file(file: FileMetadata) -> FileMetadata {
    FileMetadata { kind: FileKind::Regular, size: 0, linkname: Box::default(), ..file }
}

/// Checks whether the consumer could serve a layer from this ztoc, made by any tool.
///
/// # Errors
/// The reason why it could not.
pub fn servable(ztoc: &Ztoc) -> Result<(), UnservableReason> {
    for file in &ztoc.files {
        let refused = |code, what: &str| {
            Err(UnservableReason::new(code, format!("{} {what}", shown(&file.name))))
        };
        if file.kind != FileKind::Regular && file.size != 0 {
            return refused(
                UnservableCode::SizeWithoutData,
                "claims data, which its type does not allow",
            );
        }
        if file.mtime.is_none() {
            return refused(UnservableCode::MtimeOutOfRange, "has no time of modification");
        }
        if file.kind == FileKind::Regular && states_other_type(file.mode) {
            return refused(
                UnservableCode::ModeTypeBits,
                "is a regular file, but its mode is that of another type",
            );
        }
        if loses_xattr(&file.pax) {
            return refused(
                UnservableCode::EmptyXattr,
                "has several extended attributes, one of them empty or too long",
            );
        }
    }
    layer(&ztoc.files, &ztoc.checkpoints, ztoc.compressed_size, ztoc.uncompressed_size)
}

/// Checks a whole layer.
///
/// # Errors
/// The reason why the consumer could not serve it.
pub(super) fn layer(
    files: &[FileMetadata],
    checkpoints: &Checkpoints,
    compressed: Compressed,
    uncompressed: Uncompressed,
) -> Result<(), UnservableReason> {
    match checkpoints {
        Checkpoints::Gzip { list, .. } => {
            let starts = list.iter().map(|c| (c.span_start(), c.output));
            let ends = list
                .iter()
                .skip(1)
                .map(|c| (c.input, c.output))
                .chain([(compressed, uncompressed)]);
            for (span, ((start, first), (end, last))) in starts.zip(ends).enumerate() {
                if last < first {
                    let reason = format!(
                        "zeros after the end of the tar (byte {last}) extend into span {span}"
                    );
                    return Err(UnservableReason::new(UnservableCode::PaddingPastSpan, reason));
                }
                if end - start > MAX_SPAN || last - first > MAX_SPAN {
                    let reason = format!(
                        "span {span} holds {} bytes of tar in {} bytes: consumers support at most {MAX_SPAN}",
                        last - first,
                        end - start
                    );
                    return Err(UnservableReason::new(UnservableCode::SpanTooLarge, reason));
                }
            }
        }
        Checkpoints::Uncompressed { span_size, size } => {
            plain_layer(files, *span_size, *size, uncompressed)?
        }
    }
    tree::check(files)
}

fn plain_layer(
    files: &[FileMetadata],
    span_size: SpanSize,
    size: u64,
    end: Uncompressed,
) -> Result<(), UnservableReason> {
    if size == 0 {
        return Err(UnservableReason::new(UnservableCode::Empty, "the blob is empty"));
    }
    let span_size = span_size.get();
    let last_span = (size - 1) / span_size;
    if last_span * span_size > end.0 {
        let reason =
            format!("zeros after the end of the tar (byte {end}) extend into span {last_span}");
        return Err(UnservableReason::new(UnservableCode::PaddingPastSpan, reason));
    }
    if span_size.min(size) > MAX_SPAN || last_span >= MAX_SPAN {
        return Err(UnservableReason::new(
            UnservableCode::SpanTooLarge,
            format!("a span would hold {} bytes", span_size.min(size)),
        ));
    }
    // After reading to the very end, the consumer looks for a span after the last one.
    let reaches_end =
        |file: &&FileMetadata| file.kind == FileKind::Regular && file.offset.0 + file.size == size;
    if size.is_multiple_of(span_size)
        && let Some(file) = files.last().filter(reaches_end)
    {
        let reason = format!(
            "{} ends where the blob and a span end, and no end blocks follow",
            shown(&file.name)
        );
        return Err(UnservableReason::new(UnservableCode::EndsOnSpanBorder, reason));
    }
    Ok(())
}

/// Whether Go reads another type from the mode than from the type flag (archive/tar
/// headerFileInfo.Mode).
fn states_other_type(mode: i64) -> bool {
    matches!(
        mode as u32 & !0o7777,
        0o010_000 | 0o020_000 | 0o040_000 | 0o060_000 | 0o120_000 | 0o140_000
    )
}

/// Whether the consumer's database drops or refuses an xattr. It stores one xattr, in no certain
/// order, apart from the others, and the others must have a name and a value (metadata/db.go
/// writeNodeEntry).
fn loses_xattr(records: &[PaxRecord]) -> bool {
    xattrs(records).count() > 1
        && xattrs(records)
            .any(|(name, value)| value.is_empty() || name.is_empty() || name.len() > MAX_KEY)
}

/// The names and values of an entry's xattrs, as the consumer finds them.
fn xattrs(records: &[PaxRecord]) -> impl Iterator<Item = (&[u8], &[u8])> {
    records
        .iter()
        .filter_map(|record| Some((record.key.strip_prefix(b"SCHILY.xattr.")?, &record.value[..])))
}

fn refuse(code: UnservableCode, entry: &Entry, what: &str) -> UnservableReason {
    UnservableReason::new(
        code,
        format!("{} {what} (tar header at byte {})", shown(&entry.name), entry.header),
    )
}
