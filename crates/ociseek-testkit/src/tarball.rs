//! Tars made by hand, field by field, with content that well-behaved writers never produce.
/// A header block. Unset fields have the values of a plain file.
pub struct Block {
    pub name: Vec<u8>,
    pub flag: u8,
    pub link: Vec<u8>,
    pub size: i64,
    pub mode: i64,
    pub uid: i64,
    pub gid: i64,
    pub mtime: i64,
    pub magic: [u8; 8],
    pub prefix: Vec<u8>,
}

impl Default for Block {
    fn default() -> Block {
        Block {
            name: b"file".to_vec(),
            flag: b'0',
            link: Vec::new(),
            size: 0,
            mode: 0o644,
            uid: 0,
            gid: 0,
            mtime: 1_700_000_000,
            magic: *b"ustar\x0000",
            prefix: Vec::new(),
        }
    }
}

impl Block {
    pub fn bytes(&self) -> Vec<u8> {
        let mut block = vec![0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &self.name);
        put(100, &number(self.mode, 8));
        put(108, &number(self.uid, 8));
        put(116, &number(self.gid, 8));
        put(124, &number(self.size, 12));
        put(136, &number(self.mtime, 12));
        put(148, b"        ");
        put(156, &[self.flag]);
        put(157, &self.link);
        put(257, &self.magic);
        put(345, &self.prefix);
        let sum: u32 = block.iter().map(|&b| u32::from(b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }
}

/// Octal if the number fits, otherwise base-256.
fn number(value: i64, width: usize) -> Vec<u8> {
    if value >= 0 && value < 1 << (3 * (width - 1)) {
        return format!("{value:0digits$o}\0", digits = width - 1).into_bytes();
    }
    let mut bytes = vec![if value < 0 { 0xff } else { 0 }; width];
    let big = value.to_be_bytes();
    let kept = width.min(8);
    bytes[width - kept..].copy_from_slice(&big[8 - kept..]);
    bytes[0] |= 0x80;
    bytes
}

/// Data with padding.
pub fn padded(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(data.len().next_multiple_of(512), 0);
    bytes
}

/// A regular file.
pub fn file(name: &str, data: &[u8]) -> Vec<u8> {
    let header = Block { name: name.into(), size: data.len() as i64, ..Block::default() };
    [header.bytes(), padded(data)].concat()
}

/// An entry without data.
pub fn entry(flag: u8, name: &str, link: &str) -> Vec<u8> {
    Block { name: name.into(), flag, link: link.into(), ..Block::default() }.bytes()
}

/// An extended header with these records.
pub fn pax(flag: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        body.extend_from_slice(format!("{length} {key}=").as_bytes());
        body.extend_from_slice(value);
        body.push(b'\n');
    }
    let header =
        Block { name: b"PaxHeaders/x".to_vec(), flag, size: body.len() as i64, ..Block::default() };
    [header.bytes(), padded(&body)].concat()
}

/// The two zero blocks that end an archive.
pub fn end() -> Vec<u8> {
    vec![0; 1024]
}

/// A tar of 60,000 empty files, whose list is larger than the layer.
pub fn many_files() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for number in 0..60_000u32 {
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        header.set_mode(0o644);
        header.set_mtime(u64::from(number.wrapping_mul(2_654_435_761)));
        let name = format!("{:08x}", number.wrapping_mul(2_246_822_519));
        archive.append_data(&mut header, name, &b""[..]).unwrap();
    }
    archive.into_inner().unwrap()
}
