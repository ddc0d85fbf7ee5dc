//! Unusual tar entries, and layers of them.

/// An entry, which can be changed with [`Entry::xattr`] and similar functions.
#[derive(Clone)]
pub struct Entry {
    name: Vec<u8>,
    flag: u8,
    link: Vec<u8>,
    content: Vec<u8>,
    mode: u64,
    uid: u64,
    gid: u64,
    mtime: (i64, u32),
    device: (u64, u64),
    records: Vec<(Vec<u8>, Vec<u8>)>,
}

pub type Layer = Vec<Entry>;

fn entry(flag: u8, name: impl AsRef<[u8]>) -> Entry {
    Entry {
        name: name.as_ref().to_vec(),
        flag,
        link: Vec::new(),
        content: Vec::new(),
        mode: if flag == b'5' { 0o750 } else { 0o640 },
        uid: 1000,
        gid: 100,
        mtime: (1_600_000_000, 0),
        device: (0, 0),
        records: Vec::new(),
    }
}

pub fn file(name: impl AsRef<[u8]>, content: &str) -> Entry {
    Entry { content: content.into(), ..entry(b'0', name) }
}

pub fn dir(name: impl AsRef<[u8]>) -> Entry {
    entry(b'5', name)
}

pub fn symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    Entry { link: target.as_ref().to_vec(), ..entry(b'2', name) }
}

pub fn hard_link(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Entry {
    Entry { link: target.as_ref().to_vec(), ..entry(b'1', name) }
}

pub fn device(flag: u8, name: &str, major: u64, minor: u64) -> Entry {
    Entry { device: (major, minor), ..entry(flag, name) }
}

pub fn fifo(name: &str) -> Entry {
    entry(b'6', name)
}

/// A PAX global header, with a record that states a name if `path` is not empty.
pub fn global(name: &str, path: &str) -> Entry {
    let records = [(&b"comment"[..], "x"), (b"path", path)];
    let stated = records.into_iter().filter(|(_, value)| !value.is_empty());
    let content = stated.flat_map(|(key, value)| record(key, value.as_bytes())).collect();
    Entry { content, ..entry(b'g', name) }
}

/// A file of `size` bytes of which the tar has only those from `start` on, in PAX format 0.1.
pub fn sparse(name: &str, start: usize, content: &str, size: usize) -> Entry {
    let map = format!("{start},{}", content.len());
    let records = [
        ("map", map),
        ("name", name.into()),
        ("numblocks", "1".into()),
        ("size", size.to_string()),
    ];
    records.into_iter().fold(file("GNUSparseFile.0/s", content), |file, (key, value)| {
        file.record(&format!("GNU.sparse.{key}"), value)
    })
}

/// The whiteout of a path.
pub fn whiteout(path: &str) -> Entry {
    let (parent, name) = path.rsplit_once('/').map_or(("", path), |(parent, name)| (parent, name));
    let slash = if parent.is_empty() { "" } else { "/" };
    file(format!("{parent}{slash}.wh.{name}"), "")
}

/// The opaque marker of a directory, or of the root if the name is empty.
pub fn opaque(directory: &str) -> Entry {
    let slash = if directory.is_empty() { "" } else { "/" };
    file(format!("{directory}{slash}.wh..wh..opq"), "")
}

impl Entry {
    pub fn mode(self, mode: u64) -> Entry {
        Entry { mode, ..self }
    }

    pub fn owner(self, uid: u64, gid: u64) -> Entry {
        Entry { uid, gid, ..self }
    }

    pub fn mtime(self, seconds: i64, nanos: u32) -> Entry {
        Entry { mtime: (seconds, nanos), ..self }
    }

    pub fn xattr(self, name: &str, value: impl AsRef<[u8]>) -> Entry {
        self.record(&format!("SCHILY.xattr.{name}"), value)
    }

    pub fn record(mut self, key: &str, value: impl AsRef<[u8]>) -> Entry {
        self.records.push((key.into(), value.as_ref().to_vec()));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut records = self.records.clone();
        let (seconds, nanos) = self.mtime;
        if nanos != 0 || !(0..1 << 33).contains(&seconds) {
            records.push((b"mtime".into(), format!("{seconds}.{nanos:09}").into()));
        }
        let mut bytes = Vec::new();
        if !records.is_empty() {
            let body: Vec<u8> =
                records.iter().flat_map(|(key, value)| record(key, value)).collect();
            bytes.extend(block(b"pax", b'x', body.len() as u64, &entry(b'x', "pax")));
            bytes.extend(padded(body));
        }
        for (flag, text) in [(b'L', &self.name), (b'K', &self.link)] {
            if text.len() > 100 {
                bytes.extend(block(b"././@LongLink", flag, text.len() as u64, &entry(flag, "")));
                bytes.extend(padded(text.clone()));
            }
        }
        let name = &self.name[..self.name.len().min(100)];
        bytes.extend(block(name, self.flag, self.content.len() as u64, self));
        bytes.extend(padded(self.content.clone()));
        bytes
    }
}

/// The lowest layer of an image: files of each kind, and what upper layers can hide or change.
pub fn motley() -> Vec<Entry> {
    let capability = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    vec![
        dir("d/").mode(0o1777).owner(7, 8),
        file("d/f", "lower f"),
        dir("d/sub/").xattr("user.k", "lower"),
        file("d/sub/deep", "lower deep"),
        dir("gone/"),
        file("gone/x", "x"),
        dir("again/"),
        file("again/old", "old"),
        dir("turned/"),
        file("turned/x", "x"),
        file("top", "top").mode(0o4755).owner(1000, 100),
        hard_link("linked", "top").mode(0o4755).owner(1000, 100),
        file("capable", "x").xattr("security.capability", capability),
        device(b'3', "null", 1, 3).mode(0o666),
        device(b'4', "disk", 8, 1),
        fifo("pipe"),
        symlink("to-d", "d"),
    ]
}

/// The tar of a layer.
pub fn tar(layer: &[Entry]) -> Vec<u8> {
    layer.iter().flat_map(Entry::bytes).chain([0; 1024]).collect()
}

fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn block(name: &[u8], flag: u8, size: u64, of: &Entry) -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, &number(of.mode, 8));
    put(108, &number(of.uid, 8));
    put(116, &number(of.gid, 8));
    put(124, &number(size, 12));
    put(136, &number(u64::try_from(of.mtime.0).unwrap_or(0), 12));
    put(148, b"        ");
    put(156, &[flag]);
    put(157, &of.link[..of.link.len().min(100)]);
    // With GNU's magic, numbers may be in base 256.
    put(257, b"ustar  \0");
    put(329, &number(of.device.0, 8));
    put(337, &number(of.device.1, 8));
    let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

/// Octal where it fits, else base 256.
fn number(value: u64, width: usize) -> Vec<u8> {
    if value < 1 << (3 * (width - 1)) {
        return format!("{value:0digits$o}\0", digits = width - 1).into_bytes();
    }
    let mut bytes = vec![0; width];
    let big = value.to_be_bytes();
    let kept = width.min(8);
    bytes[width - kept..].copy_from_slice(&big[8 - kept..]);
    bytes[0] |= 0x80;
    bytes
}
