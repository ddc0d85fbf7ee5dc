//! The headers of a tar file, one after the other, by seeking: where each entry's data lies. ustar, GNU long names and PAX
//! (path and size); POSIX.1-2017 pax, GNU tar's manual "Basic Tar Format".

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::store::layout::LayoutError;
use crate::tar::{BLOCK, has_valid_checksum, padding};

/// The largest PAX header or long name that is read, in bytes (as Go's archive/tar).
const MAX_SPECIAL: u64 = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Regular,
    Directory,
    Other,
}

#[derive(Debug)]
pub(super) struct Header {
    pub name: Vec<u8>,
    pub kind: Kind,
    /// Where the header begins.
    pub header_offset: u64,
    /// Where the data begins, and its bytes; both within the file.
    pub offset: u64,
    pub size: u64,
}

/// What is wrong, and where in the file.
#[derive(Debug)]
pub(super) struct Fault {
    offset: u64,
    reason: Reason,
}

#[derive(Debug)]
enum Reason {
    Tar(&'static str),
    Io(io::Error),
}

impl Fault {
    pub fn at(self, path: &Path) -> LayoutError {
        let path = path.to_owned();
        match self.reason {
            Reason::Tar(reason) => LayoutError::Tar { path, reason: reason.to_owned(), offset: self.offset },
            Reason::Io(source) => LayoutError::Io { action: "read", path, source },
        }
    }
}

/// Walks the headers.
pub(super) struct Headers {
    file: Arc<File>,
    length: u64,
    /// Where the next header is; `None` after the end or a fault.
    at: Option<u64>,
}

/// What a special entry says of the one behind it.
#[derive(Default)]
struct Ahead {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl Headers {
    pub fn new(file: Arc<File>, length: u64) -> Headers {
        Headers { file, length, at: Some(0) }
    }

    fn step(&mut self, start: u64) -> Result<Option<Header>, Fault> {
        let mut ahead = Ahead::default();
        let mut at = start;
        loop {
            let fault = |reason| Fault { offset: at, reason: Reason::Tar(reason) };
            if at == self.length && at > 0 && at == start {
                // Some writers leave the end blocks out.
                return Ok(None);
            }
            let block = self.block(at)?;
            if block.iter().all(|&b| b == 0) {
                let ends = at + BLOCK as u64 == self.length || self.block(at + BLOCK as u64)?.iter().all(|&b| b == 0);
                return if ends && at == start {
                    Ok(None)
                } else {
                    Err(fault("a block of zeros stands before a header"))
                };
            }
            if !has_valid_checksum(&block) {
                return Err(fault("there is no tar header"));
            }
            let stated = number(&block[124..136]).ok_or_else(|| fault("the size field is no number"))?;
            let data = at + BLOCK as u64;
            let type_flag = block[156];
            let special = matches!(type_flag, b'x' | b'g' | b'L' | b'K');
            // Links, devices and directories have no data, whatever their size field says.
            let has_data = special || !matches!(type_flag, b'1'..=b'6');
            let size = match (has_data, special) {
                (false, _) => 0,
                (true, true) => stated,
                (true, false) => ahead.size.unwrap_or(stated),
            };
            let end = data.checked_add(size).filter(|&end| end <= self.length);
            let end = end.ok_or_else(|| fault("the file ends within an entry"))?;
            let next = end.saturating_add(padding(size)).min(self.length);
            match type_flag {
                b'x' | b'L' | b'K' if size > MAX_SPECIAL => {
                    return Err(fault("a PAX header or long name is over 1 MiB"));
                }
                b'x' => pax(&self.bytes(data, size)?, &mut ahead).ok_or_else(|| fault("a PAX header is malformed"))?,
                b'L' => {
                    let mut name = self.bytes(data, size)?;
                    name.truncate(name.iter().position(|&b| b == 0).unwrap_or(name.len()));
                    ahead.name = Some(name);
                }
                b'K' | b'g' => {}
                b'S' => return Err(fault("it has a sparse file")),
                _ => {
                    self.at = Some(next);
                    let name = ahead.name.unwrap_or_else(|| short_name(&block));
                    let kind = match type_flag {
                        b'5' => Kind::Directory,
                        b'0' | 0 | b'7' if name.ends_with(b"/") => Kind::Directory,
                        b'0' | 0 | b'7' if !ahead.sparse => Kind::Regular,
                        _ => Kind::Other,
                    };
                    return Ok(Some(Header { name, kind, header_offset: at, offset: data, size }));
                }
            }
            at = next;
        }
    }

    fn block(&self, at: u64) -> Result<[u8; BLOCK], Fault> {
        let mut block = [0; BLOCK];
        self.read(&mut block, at)?;
        Ok(block)
    }

    /// `size` bytes, at most [`MAX_SPECIAL`], that lie within the file.
    fn bytes(&self, at: u64, size: u64) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; usize::try_from(size.min(MAX_SPECIAL)).unwrap_or(0)];
        self.read(&mut bytes, at)?;
        Ok(bytes)
    }

    fn read(&self, buffer: &mut [u8], at: u64) -> Result<(), Fault> {
        self.file.read_exact_at(buffer, at).map_err(|e| {
            let cut = e.kind() == io::ErrorKind::UnexpectedEof;
            let reason = if cut { Reason::Tar("the file ends within a header") } else { Reason::Io(e) };
            Fault { offset: at, reason }
        })
    }
}

impl Iterator for Headers {
    type Item = Result<Header, Fault>;

    fn next(&mut self) -> Option<Result<Header, Fault>> {
        let at = self.at.take()?;
        self.step(at).transpose()
    }
}

/// The name in the header itself, with ustar's prefix.
fn short_name(block: &[u8; BLOCK]) -> Vec<u8> {
    let text = |field: &[u8]| field[..field.iter().position(|&b| b == 0).unwrap_or(field.len())].to_vec();
    let name = text(&block[..100]);
    // GNU's own format keeps other things where ustar has the prefix.
    let prefix = if &block[257..263] == b"ustar\0" { text(&block[345..500]) } else { Vec::new() };
    if prefix.is_empty() { name } else { [prefix, b"/".to_vec(), name].concat() }
}

/// A number field: octal, or base-256 where its first bit is set. `None` for what is neither, negative, or past 63 bits.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        if field[0] != 0x80 {
            return None;
        }
        let value = field[1..].iter().try_fold(0u64, |n, &b| n.checked_mul(256)?.checked_add(b.into()))?;
        return (value <= i64::MAX as u64).then_some(value);
    }
    let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\0']);
    if text.is_empty() {
        return Some(0);
    }
    if !text.bytes().all(|b| (b'0'..=b'7').contains(&b)) {
        return None;
    }
    u64::from_str_radix(text, 8).ok()
}

/// Records `LENGTH KEY=VALUE\n`.
fn pax(mut data: &[u8], ahead: &mut Ahead) -> Option<()> {
    while !data.is_empty() {
        let space = data.iter().position(|&b| b == b' ')?;
        let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
        let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|&b| b == b'=')?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        match key {
            b"path" => ahead.name = Some(value.to_vec()),
            b"size" => {
                let size: u64 = std::str::from_utf8(value).ok()?.parse().ok()?;
                ahead.size = Some(size);
            }
            _ if key.starts_with(b"GNU.sparse.") => ahead.sparse = true,
            _ => {}
        }
        data = &data[length..];
    }
    Some(())
}
