//! Walks a tar stream that is pushed in chunks: archive/tar's Reader.Next as a state machine.

use super::header::{BadHeader, Dialect, Header, cut_at_nul, linkname};
use super::pax::{self, Records, UnfinishedMap};
use super::{BLOCK, Entry, Kind, OwnerName, padding};
use crate::offset::Uncompressed;
use crate::time::Time;

/// The maximum size of a PAX header or GNU long name (archive/tar maxSpecialFileSize): 1 MiB.
const MAX_EXTENSION: u64 = 1 << 20;
/// How many bytes of the buffer for such a header are kept for the next one: enough for most.
const KEPT_EXTENSION: usize = 4096;

/// Finds the entries of a tar stream. Chunk boundaries do not matter.
pub struct Walker {
    state: State,
    /// Bytes consumed so far, until the archive has ended.
    position: Uncompressed,
    /// Where the current entry's first header starts.
    entry_start: Uncompressed,
    /// Where the data of the current extension header starts.
    extension_start: Uncompressed,
    overrides: EntryOverrides,
    /// A header block that arrived in pieces.
    block: Box<[u8; BLOCK]>,
    /// The data of a PAX header or GNU long name, as far as they arrived.
    extension_data: Vec<u8>,
    /// Whether to continue after sparse files.
    passes_sparse: bool,
    /// A sparse file whose map is being read.
    sparse: Option<Box<UnfinishedMap>>,
}

crate::opaque_debug!(Walker);

enum State {
    /// In a header block; this many of its bytes are in [`Walker::block`].
    Header {
        filled: usize,
    },
    /// After one zero block: another one ends the archive.
    SecondZero {
        filled: usize,
    },
    /// The data of a PAX header or GNU long name.
    Extension {
        kind: ExtensionHeader,
        left: u64,
    },
    /// Blocks of the map of [`Walker::sparse`].
    SparseMap {
        filled: usize,
    },
    /// File data, then padding.
    Data {
        left: u64,
        pad: u64,
    },
    Padding {
        left: u64,
    },
    /// After the end, or after a sparse file that ends the walk.
    Over,
}

#[derive(Clone, Copy)]
enum ExtensionHeader {
    Pax,
    /// A global header. Its records are skipped, since Go does not apply them to later entries.
    Global,
    LongName,
    LongLink,
}

/// What extension headers say about the next entry.
#[derive(Default)]
struct EntryOverrides {
    pax: Option<Records>,
    long_name: Vec<u8>,
    long_link: Vec<u8>,
}

/// Why a stream is not a tar, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{fault} at byte {offset} of the tar")]
pub struct TarError {
    /// Where the faulty header or entry starts.
    pub offset: Uncompressed,
    /// What is wrong there.
    pub fault: TarFault,
}

/// What is wrong with a tar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum TarFault {
    #[error("not a tar header (its checksum is wrong)")]
    Checksum,
    #[error("bad number in the {0} field of the tar header")]
    Number(&'static str),
    #[error("negative size in the tar header")]
    NegativeSize,
    #[error("malformed PAX records")]
    Pax,
    #[error("PAX header or long name of more than 1 MiB")]
    ExtensionTooLong,
    #[error("a sparse file header outside the GNU tar format")]
    SparseDialect,
    #[error("a sparse file whose map is malformed, too long or does not match its data")]
    SparseMap,
    #[error("data after a single zero block: the archive ends with two")]
    LoneZeroBlock,
    #[error("the tar is truncated inside a header block")]
    CutInHeader,
    #[error("the tar is truncated inside the data of an entry")]
    CutInData,
}

impl Default for Walker {
    fn default() -> Self {
        Walker::new()
    }
}

impl Walker {
    /// A walker at the start of a tar.
    pub fn new() -> Walker {
        Walker {
            state: State::Header { filled: 0 },
            position: Uncompressed(0),
            entry_start: Uncompressed(0),
            extension_start: Uncompressed(0),
            overrides: EntryOverrides::default(),
            block: Box::new([0; BLOCK]),
            extension_data: Vec::new(),
            passes_sparse: false,
            sparse: None,
        }
    }

    /// Creates a walker that continues after sparse files. Their entries have the name and size of
    /// the expanded file, and its map.
    pub fn past_sparse_files() -> Walker {
        Walker { passes_sparse: true, ..Walker::new() }
    }

    /// Whether the archive has ended: the bytes that follow are not part of it.
    pub fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    /// Consumes the next bytes of the stream and passes each entry to `each`.
    ///
    /// # Errors
    /// Where Go's archive/tar fails. The walker cannot be used after that.
    pub fn push(&mut self, mut bytes: &[u8], each: &mut impl FnMut(Entry)) -> Result<(), TarError> {
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                State::Header { filled } => {
                    let taken = bytes.len().min(BLOCK - *filled);
                    self.block[*filled..*filled + taken].copy_from_slice(&bytes[..taken]);
                    *filled += taken;
                    if *filled == BLOCK {
                        let at = Uncompressed(self.position.0 + taken as u64 - BLOCK as u64);
                        self.header(at, each)?;
                    }
                    taken
                }
                State::SecondZero { filled } => {
                    let taken = bytes.len().min(BLOCK - *filled);
                    if bytes[..taken].iter().any(|&b| b != 0) {
                        return Err(self.fault(TarFault::LoneZeroBlock));
                    }
                    *filled += taken;
                    if *filled == BLOCK {
                        self.state = State::Over;
                    }
                    taken
                }
                State::Extension { kind, left } => {
                    let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    self.extension_data.extend_from_slice(&bytes[..taken]);
                    *left -= taken as u64;
                    if *left == 0 {
                        let kind = *kind;
                        let mut data = std::mem::take(&mut self.extension_data);
                        self.extension(kind, &data, each)?;
                        data.clear();
                        data.shrink_to(KEPT_EXTENSION);
                        self.extension_data = data;
                    }
                    taken
                }
                State::SparseMap { filled } => {
                    let taken = bytes.len().min(BLOCK - *filled);
                    self.block[*filled..*filled + taken].copy_from_slice(&bytes[..taken]);
                    *filled += taken;
                    if *filled == BLOCK
                        && let Some(mut file) = self.sparse.take()
                    {
                        file.block(&self.block).ok_or_else(|| self.fault(TarFault::SparseMap))?;
                        self.sparse_file(file, each)?;
                    }
                    taken
                }
                State::Data { .. } | State::Padding { .. } => {
                    let taken = self.skip(bytes.len() as u64);
                    bytes = &bytes[taken as usize..];
                    continue;
                }
                State::Over => return Ok(()),
            };
            self.position += taken as u64;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    /// Skips at most `limit` of the next bytes, if they are an entry's data and padding. Returns
    /// how many were skipped; do not push these. This lets a caller that can seek read only the
    /// headers.
    pub fn skip(&mut self, limit: u64) -> u64 {
        let mut skipped = 0;
        loop {
            let (left, next) = match &mut self.state {
                State::Data { left, pad } => (left, State::Padding { left: *pad }),
                State::Padding { left } => (left, State::Header { filled: 0 }),
                _ => break,
            };
            let taken = (*left).min(limit - skipped);
            *left -= taken;
            skipped += taken;
            if *left > 0 {
                break;
            }
            self.state = next;
        }
        self.position += skipped;
        skipped
    }

    /// Call this at the end of the stream. Returns where Go's reader stops: after the second zero
    /// block, or at the end of the stream.
    ///
    /// # Errors
    /// If the stream is truncated inside a header or an entry's data. Go accepts truncated padding.
    pub fn finish(self) -> Result<Uncompressed, TarError> {
        match self.state {
            State::Header { filled: 0 } | State::SecondZero { filled: 0 } => Ok(self.position),
            State::Padding { .. } | State::Over => Ok(self.position),
            State::Header { .. } | State::SecondZero { .. } => {
                Err(self.fault(TarFault::CutInHeader))
            }
            State::Extension { .. } | State::SparseMap { .. } | State::Data { .. } => {
                Err(self.fault(TarFault::CutInData))
            }
        }
    }

    fn fault(&self, fault: TarFault) -> TarError {
        TarError { offset: self.entry_start, fault }
    }

    /// Parses a complete header block, which began at `at`.
    fn header(&mut self, at: Uncompressed, each: &mut impl FnMut(Entry)) -> Result<(), TarError> {
        if self.overrides.is_empty() {
            self.entry_start = at;
        }
        if self.block.iter().all(|&b| b == 0) {
            self.entry_start = at;
            self.state = State::SecondZero { filled: 0 };
            return Ok(());
        }
        let header = Header::parse(&self.block).map_err(|bad| TarError {
            offset: at,
            fault: match bad {
                BadHeader::Checksum => TarFault::Checksum,
                BadHeader::Number(what) => TarFault::Number(what),
            },
        })?;
        let extension = match header.flag {
            b'x' => ExtensionHeader::Pax,
            b'g' => ExtensionHeader::Global,
            b'L' => ExtensionHeader::LongName,
            b'K' => ExtensionHeader::LongLink,
            _ => return self.entry(header, at + BLOCK as u64, each),
        };
        let left = u64::try_from(header.size).map_err(|_| self.fault(TarFault::NegativeSize))?;
        self.extension_start = at + BLOCK as u64;
        if left > MAX_EXTENSION {
            return Err(self.fault(TarFault::ExtensionTooLong));
        }
        if left == 0 {
            self.extension(extension, &[], each)
        } else {
            self.state = State::Extension { kind: extension, left };
            Ok(())
        }
    }

    /// Parses the complete data of an extension header.
    fn extension(
        &mut self,
        kind: ExtensionHeader,
        data: &[u8],
        each: &mut impl FnMut(Entry),
    ) -> Result<(), TarError> {
        match kind {
            ExtensionHeader::Pax => {
                self.overrides.pax =
                    Some(pax::parse(data).ok_or_else(|| self.fault(TarFault::Pax))?);
            }
            ExtensionHeader::Global => {
                let mut global = self.global();
                let records = pax::parse(data).ok_or_else(|| self.fault(TarFault::Pax))?;
                pax::merge(&mut global, records).ok_or_else(|| self.fault(TarFault::Pax))?;
                let name = if global.name.is_empty() {
                    Header::parse(&self.block)
                        .map(|header| header.name(&self.block))
                        .unwrap_or_default()
                } else {
                    global.name
                };
                each(Entry { name, ..self.global() });
                self.overrides = EntryOverrides::default();
            }
            ExtensionHeader::LongName => self.overrides.long_name = cut_at_nul(data).to_vec(),
            ExtensionHeader::LongLink => self.overrides.long_link = cut_at_nul(data).to_vec(),
        }
        self.state = match padding(data.len() as u64) {
            0 => State::Header { filled: 0 },
            left => State::Padding { left },
        };
        Ok(())
    }

    /// Reports an entry whose data starts at `data`.
    fn entry(
        &mut self,
        header: Header,
        data: Uncompressed,
        each: &mut impl FnMut(Entry),
    ) -> Result<(), TarError> {
        let EntryOverrides { pax, long_name, long_link } = std::mem::take(&mut self.overrides);
        if header.size < 0 && !Kind::from_flag(header.flag).is_header_only() {
            return Err(self.fault(TarFault::NegativeSize));
        }
        let (uname, gname) = header.owners(&self.block);
        let mut entry = Entry {
            name: Box::default(),
            kind: Kind::from_flag(header.flag),
            linkname: Box::default(),
            size: header.size,
            mode: header.mode,
            uid: header.uid,
            gid: header.gid,
            uname,
            gname,
            mtime: header.mtime,
            devmajor: header.devmajor,
            devminor: header.devminor,
            pax: Box::default(),
            sparse: None,
            header: self.entry_start,
            data,
        };
        if let Some(records) = pax {
            pax::merge(&mut entry, records).ok_or_else(|| self.fault(TarFault::Pax))?;
        }
        if !long_name.is_empty() {
            entry.name = long_name.into();
        } else if entry.name.is_empty() {
            entry.name = header.name(&self.block);
        }
        if !long_link.is_empty() {
            entry.linkname = long_link.into();
        } else if entry.linkname.is_empty() {
            entry.linkname = linkname(&self.block);
        }
        if header.flag == 0 {
            // Archives from before POSIX mark directories only by a trailing slash.
            entry.kind = if entry.name.ends_with(b"/") { Kind::Directory } else { Kind::Regular };
        }
        let left = if entry.kind.is_header_only() {
            0
        } else {
            u64::try_from(entry.size).map_err(|_| self.fault(TarFault::NegativeSize))?
        };
        if header.flag == b'S' {
            if header.dialect != Dialect::Gnu {
                return Err(self.fault(TarFault::SparseDialect));
            }
            entry.kind = Kind::Sparse;
        } else if pax::is_sparse(&entry.pax) {
            entry.kind = Kind::Sparse;
        }
        if entry.kind == Kind::Sparse && self.passes_sparse {
            let file = match header.flag {
                b'S' => UnfinishedMap::old(entry, left, &self.block),
                _ => UnfinishedMap::pax(entry, left),
            };
            let file = file.ok_or_else(|| self.fault(TarFault::SparseMap))?;
            return self.sparse_file(Box::new(file), each);
        }
        self.state = match entry.kind {
            Kind::Sparse => State::Over,
            _ => data_state(left),
        };
        let full = pax::value_of(&entry.pax, b"GNU.sparse.name");
        if entry.kind == Kind::Sparse && !full.is_empty() {
            entry.name = full.into();
        }
        each(entry);
        Ok(())
    }

    /// Continues with the map of a sparse file, or reports the file.
    fn sparse_file(
        &mut self,
        file: Box<UnfinishedMap>,
        each: &mut impl FnMut(Entry),
    ) -> Result<(), TarError> {
        if file.is_unfinished() {
            self.state = State::SparseMap { filled: 0 };
            self.sparse = Some(file);
            return Ok(());
        }
        let (entry, left) = file.finish().ok_or_else(|| self.fault(TarFault::SparseMap))?;
        self.state = data_state(left);
        each(entry);
        Ok(())
    }

    fn global(&self) -> Entry {
        Entry {
            name: Box::default(),
            kind: Kind::GlobalHeader,
            linkname: Box::default(),
            size: 0,
            mode: 0,
            uid: 0,
            gid: 0,
            uname: OwnerName::default(),
            gname: OwnerName::default(),
            mtime: Time::default(),
            devmajor: 0,
            devminor: 0,
            pax: Box::default(),
            sparse: None,
            header: self.entry_start,
            data: self.extension_start,
        }
    }
}

fn data_state(left: u64) -> State {
    match left {
        0 => State::Header { filled: 0 },
        _ => State::Data { left, pad: padding(left) },
    }
}

impl EntryOverrides {
    fn is_empty(&self) -> bool {
        self.pax.is_none() && self.long_name.is_empty() && self.long_link.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header block and its data, padded.
    fn member(flag: u8, name: &str, data: &[u8]) -> Vec<u8> {
        let mut block = [0; BLOCK];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..135].copy_from_slice(format!("{:011o}", data.len()).as_bytes());
        block[148..156].fill(b' ');
        block[156] = flag;
        block[257..263].copy_from_slice(b"ustar\0");
        block[263..265].copy_from_slice(b"00");
        let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut member = [&block[..], data].concat();
        member.resize(member.len().next_multiple_of(BLOCK), 0);
        member
    }

    fn entries(tar: &[u8], piece: usize) -> Vec<Entry> {
        let mut walker = Walker::new();
        let mut entries = Vec::new();
        for piece in tar.chunks(piece) {
            walker.push(piece, &mut |entry| entries.push(entry)).unwrap();
        }
        walker.finish().unwrap();
        entries
    }

    #[test]
    fn entries_do_not_depend_on_the_pieces() {
        let long = format!("{}\0", "n".repeat(700));
        let tar = [
            member(b'g', "pax_global_header", b"13 comment=x\n"),
            member(b'0', "file", &[7; 1300]),
            member(b'g', "short", b"16 path=tmp/gh1\n"),
            member(b'L', "long", long.as_bytes()),
            member(b'0', "cut", b"x"),
            member(b'g', "empty", b""),
            vec![0; 2 * BLOCK],
        ]
        .concat();
        let whole = entries(&tar, tar.len());
        let names: Vec<_> = whole.iter().map(|entry| entry.name.to_vec()).collect();
        let expected =
            [b"pax_global_header".to_vec(), b"file".to_vec(), b"tmp/gh1".to_vec(), vec![b'n'; 700]];
        assert_eq!(names[..4], expected);
        assert_eq!(names[4..], [b"empty".to_vec()]);
        let at: Vec<u64> = whole.iter().map(|entry| entry.data.0).collect();
        let header = whole.iter().map(|entry| entry.header.0);
        assert_eq!(header.collect::<Vec<_>>(), [0, 1024, 3072, 4096, 6656]);
        assert_eq!(at, [512, 1536, 3584, 6144, 7168]);
        for piece in 1..=tar.len().min(1100) {
            assert_eq!(entries(&tar, piece), whole, "pieces of {piece} bytes");
        }
    }
}
