//! Invalid documents, grouped by rule: each has one fault and is refused within bounded memory.

mod zstd;

use super::head::{FineHeader, HEADER};
use super::tests::{layer, ranges, spans};
use super::*;
use crate::budget::{Budget, Charge};
use crate::digest::Digest;
use crate::offset::{SpanId, Uncompressed};
use crate::time::Time;
use crate::ztoc::{FileKind, FileMetadata};

/// The memory limit for decoding any of these documents.
const ROOM: u64 = 4 << 20;

fn compressed(plain: &[u8]) -> Vec<u8> {
    wire::Compressor::new(1).compress(plain).unwrap()
}

/// A document in separate parts, to be changed one at a time.
#[derive(Clone)]
struct Document {
    header: FineHeader,
    /// Decoded. `frames` overrides what is stored for it.
    spans: Vec<u8>,
    entries: Vec<u8>,
    frames: [Option<Vec<u8>>; 2],
    proofs: Vec<u8>,
    pages: Vec<Page>,
    /// Bytes of the finished document that are overwritten at the end.
    last: Vec<(usize, u8)>,
    behind: Vec<u8>,
}

#[derive(Clone)]
struct Page {
    plain: Vec<u8>,
    frame: Option<Vec<u8>>,
    /// What the head states about the page instead of the truth.
    sizes: [Option<u32>; 2],
    digest: Option<Digest>,
}

impl Page {
    fn stored(&self) -> Vec<u8> {
        self.frame.clone().unwrap_or_else(|| compressed(&self.plain))
    }
}

impl Document {
    /// 30 spans and 40 entries. Of gzip, 5 pages for the recorded start and the other spans; of
    /// zstd, a page for each window.
    fn new(codec: Codec) -> Document {
        let (layer, _) = layer(30, codec);
        let bytes = layer.encode(&ranges(&[(17, 20), (3, 5)])).unwrap().bytes;
        let header = FineHeader::parse(&bytes).unwrap();
        let head =
            decode_head(&bytes[..header.head_size() as usize], bytes.len() as u64, &mut room())
                .unwrap();
        let stored = |range: std::ops::Range<u64>| &bytes[range.start as usize..range.end as usize];
        let first = HEADER as u64;
        let second = first + u64::from(header.spans_size[0]);
        let proofs = second + u64::from(header.entries_size[0]);
        let pages = head.pages().map(|page| {
            let plain =
                ::zstd::bulk::decompress(stored(head.page_range(page)), codec.max_page()).unwrap();
            Page { plain, frame: None, sizes: [None; 2], digest: None }
        });
        Document {
            header,
            spans: ::zstd::bulk::decompress(stored(first..second), MAX_HEAD).unwrap(),
            entries: ::zstd::bulk::decompress(stored(second..proofs), MAX_HEAD).unwrap(),
            frames: [None, None],
            proofs: stored(proofs..proofs + 29 * 32).to_vec(),
            pages: pages.collect(),
            last: Vec::new(),
            behind: Vec::new(),
        }
    }

    fn files(&self) -> Vec<FileMetadata> {
        entries::decode(&self.entries, self.header.entries as usize, &mut room()).unwrap()
    }

    fn with_files(mut self, change: impl FnOnce(&mut Vec<FileMetadata>)) -> Document {
        let mut files = self.files();
        change(&mut files);
        self.entries = entries::encode(&files);
        self
    }

    /// The document. Sizes and digests of frames are correct unless overridden.
    fn bytes(&self) -> Vec<u8> {
        let mut header = self.header;
        let [spans, entries] = [(&self.spans, 0), (&self.entries, 1)]
            .map(|(plain, at)| self.frames[at].clone().unwrap_or_else(|| compressed(plain)));
        header.spans_size = [spans.len() as u32, self.spans.len() as u32];
        header.entries_size = [entries.len() as u32, self.entries.len() as u32];
        let mut bytes = Vec::new();
        header.write(&mut bytes);
        bytes.extend([&spans[..], &entries, &self.proofs].concat());
        for page in &self.pages {
            let stored = page.stored();
            let sizes = [
                page.sizes[0].unwrap_or(stored.len() as u32),
                page.sizes[1].unwrap_or(page.plain.len() as u32),
            ];
            sizes.iter().for_each(|size| bytes.extend(size.to_le_bytes()));
            bytes.extend(page.digest.unwrap_or_else(|| Digest::sha256(&stored)).as_bytes());
        }
        self.pages.iter().for_each(|page| bytes.extend(page.stored()));
        self.last.iter().for_each(|(at, value)| bytes[*at] = *value);
        bytes.extend(&self.behind);
        bytes
    }
}

fn room() -> Charge {
    Budget::new(ROOM).open()
}

/// Named documents, each with a different fault.
struct Kinds {
    codec: Codec,
    list: Vec<(String, Vec<u8>)>,
}

impl Kinds {
    fn add(&mut self, name: impl Into<String>, change: impl FnOnce(&mut Document)) {
        let mut document = Document::new(self.codec);
        change(&mut document);
        self.list.push((name.into(), document.bytes()));
    }

    /// The number of pages.
    fn pages(&self) -> u32 {
        if self.codec == Codec::Zstd { 29 } else { 5 }
    }

    /// Overwrites bytes of the finished head.
    fn set(&mut self, name: &str, at: usize, value: &[u8]) {
        let changes = value.iter().enumerate().map(|(index, byte)| (at + index, *byte)).collect();
        self.add(format!("{name}: {value:?}"), |document| document.last = changes);
    }

    fn header(&mut self) {
        for at in 0..MAGIC {
            self.set("magic", at, b"x");
        }
        let (version, other) = if self.codec == Codec::Zstd { (1, 1) } else { (2, 2) };
        [0, version, 255].iter().for_each(|version| self.set("version", 7, &[*version]));
        [other, 3, 255].iter().for_each(|codec| self.set("codec", 8, &[*codec]));
        self.set("plain instead of a compressed layer", 8, &[0]);
        (9..16).for_each(|at| self.set("reserved", at, &[1]));
        for size in [0, 1, 100, 1 << 63, u64::MAX] {
            self.set("size of the blob", 48, &size.to_le_bytes());
        }
        for end in [0, 1, 5000, 1 << 63, u64::MAX] {
            self.set("end of the tar", 56, &end.to_le_bytes());
        }
        for size in [0, 1, 63, 64, 32767, 32769, u64::MAX] {
            self.set("span size", 64, &size.to_le_bytes());
        }
        let counts = [
            ("spans", 72, 30),
            ("entries", 76, 40),
            ("pages", 80, self.pages()),
            ("ranges", 84, 2),
        ];
        for (name, at, count) in counts {
            for wrong in [0, count - 1, count + 1, count * 2, 1 << 20, i32::MAX as u32, u32::MAX] {
                self.set(name, at, &wrong.to_le_bytes());
            }
        }
        for (at, name) in
            [(88, "spans stored"), (92, "spans"), (96, "entries stored"), (100, "entries")]
        {
            for wrong in [0u32, 1, 50, 60 << 20, MAX_HEAD as u32, u32::MAX] {
                self.set(name, at, &wrong.to_le_bytes());
            }
        }
    }

    /// Adds faulty frames: `put` stores one in the document.
    fn frames(&mut self, name: &str, plain: &[u8], put: impl Fn(&mut Document, Vec<u8>)) {
        let frame = compressed(plain);
        let streamed = ::zstd::stream::encode_all(plain, 1).unwrap();
        let mut damaged = frame.clone();
        damaged.iter_mut().skip(8).for_each(|byte| *byte ^= 0x55);
        let bomb = compressed(&vec![0; 20 << 20]);
        // The frame of 20 MiB gets the wanted size in its header: a single segment, 4 bytes.
        let lie = |size: u32| {
            let mut lie = bomb.clone();
            assert_eq!(lie[4] >> 6, 2, "a size of 4 bytes");
            let at = if lie[4] & 0x20 == 0 { 6 } else { 5 };
            lie[at..at + 4].copy_from_slice(&size.to_le_bytes());
            lie
        };
        let wrong = [
            ("nothing", Vec::new()),
            ("no frame", plain.to_vec()),
            ("no size", streamed),
            ("two frames", [&frame[..], &frame].concat()),
            ("a frame and another byte", [&frame[..], &[0]].concat()),
            ("a skippable frame before", [b"\x50\x2a\x4d\x18\x03\0\0\0abc", &frame[..]].concat()),
            ("only a skippable frame", b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec()),
            ("cut", frame[..frame.len() - 1].to_vec()),
            ("only its head", frame[..6].to_vec()),
            ("damaged", damaged),
            ("less than stated", compressed(&plain[1..])),
            ("more than stated", compressed(&[plain, &[0]].concat())),
            ("20 MiB", bomb.clone()),
            ("20 MiB that state less", lie(plain.len() as u32)),
            ("20 MiB that state more", lie(u32::MAX)),
        ];
        for (what, frame) in wrong {
            self.add(format!("{name}: {what}"), |document| put(document, frame));
        }
    }

    /// Rewrites each column of the spans with one value changed.
    fn spans(&mut self) {
        let document = Document::new(self.codec);
        let mut reader = wire::Reader::new(&document.spans, "spans");
        let numbers: Vec<u64> = (0..59).map(|_| reader.number().unwrap()).collect();
        let (bits, start) = document.spans[document.spans.len() - reader.left()..].split_at(29);
        let written = |numbers: &[u64], bits: &[u8], start: &[u8]| {
            let mut spans = Vec::new();
            numbers.iter().for_each(|number| wire::put(&mut spans, *number));
            [&spans[..], bits, start].concat()
        };
        for span in [1, 2, 15, 29] {
            for wrong in [0, 1, 50_000, i64::MAX as u64, u64::MAX] {
                let mut changed = numbers.clone();
                changed[span] = wrong;
                self.add(format!("input of span {span}: {wrong}"), |d| {
                    d.spans = written(&changed, bits, start)
                });
            }
            for wrong in [0, 1, 32767, u64::MAX] {
                let mut changed = numbers.clone();
                changed[29 + span] = wrong;
                self.add(format!("output of span {span}: {wrong}"), |d| {
                    d.spans = written(&changed, bits, start)
                });
            }
            let other = if self.codec == Codec::Zstd { 7 } else { 8 };
            for wrong in [other, 100, 255] {
                let mut changed = bits.to_vec();
                changed[span - 1] = wrong;
                self.add(format!("bits of span {span}: {wrong}"), |d| {
                    d.spans = written(&numbers, &changed, start)
                });
            }
        }
        for first in [50_000, u64::MAX] {
            let changed = [&[first][..], &numbers[1..]].concat();
            self.add(format!("input of span 0: {first}"), |d| {
                d.spans = written(&changed, bits, start)
            });
        }
        let starts: [(&str, [u64; 4]); 8] = [
            ("an empty range", [17, 0, 3, 2]),
            ("a range behind the layer", [30, 1, 3, 2]),
            ("a range past the layer", [17, 14, 3, 2]),
            ("a range far past the layer", [17, u64::MAX, 3, 2]),
            ("a range from far behind the layer", [u64::MAX, 1, 3, 2]),
            ("the same range twice", [3, 2, 3, 2]),
            ("two ranges that overlap", [3, 5, 7, 1]),
            ("everything", [0, 30, 0, 30]),
        ];
        for (name, start) in starts {
            self.add(name, |d| {
                d.spans = [&written(&numbers, bits, &[])[..], &written(&start, &[], &[])].concat()
            });
        }
        let endless = [0x80; 12];
        self.add("a number without an end", |d| {
            d.spans = [&d.spans[..3], &endless, &d.spans[5..]].concat()
        });
        self.add("a number of more than 64 bits", |d| {
            d.spans = [&[0xff; 9][..], &[2], &d.spans[1..]].concat()
        });
        self.add("bytes behind the spans", |d| d.spans.push(0));
        for cut in (0..document.spans.len()).step_by(5) {
            self.add(format!("spans cut at {cut}"), |d| d.spans.truncate(cut));
        }
    }

    fn proofs_and_pages(&mut self) {
        self.add("a proof less", |d| d.proofs.truncate(28 * 32));
        self.add("a proof more", |d| d.proofs.extend([0; 32]));
        for page in 0..5 {
            for wrong in [0, 1, (self.codec.max_page() + 1) as u32, u32::MAX] {
                self.add(format!("page {page} stored: {wrong}"), |d| {
                    d.pages[page].sizes[0] = Some(wrong)
                });
                self.add(format!("page {page} decoded: {wrong}"), |d| {
                    d.pages[page].sizes[1] = Some(wrong)
                });
            }
            self.add(format!("digest of page {page}"), |d| {
                d.pages[page].digest = Some(Digest::sha256(b""))
            });
            self.add(format!("page {page} is gone"), |d| drop(d.pages.remove(page)));
            self.add(format!("page {page} comes twice"), |d| {
                d.pages.insert(page, d.pages[page].clone())
            });
            self.add(format!("page {page} is cut"), |d| {
                let plain = &mut d.pages[page].plain;
                plain.truncate(100.min(plain.len() - 1));
            });
            self.add(format!("bytes behind page {page}"), |d| d.pages[page].plain.push(0));
            self.add(format!("page {page} lacks a byte of a lead"), |d| {
                d.pages[page].plain.remove(0);
            });
            self.add(format!("page {page} is full of ones"), |d| d.pages[page].plain.fill(0xff));
        }
        self.add("bytes behind the document", |d| d.behind.push(0));
    }

    fn gzip_windows(&mut self) {
        // The first page begins with the lead of the recorded start's first span.
        let lead = spans(30, Codec::Gzip).0.lead(SpanId(17));
        let windows: [(&str, &[u64]); 9] = [
            ("more parts than can be", &[16_385]),
            ("far more parts than can be", &[u64::MAX]),
            ("a gap of the whole window", &[1, 32_768, 0]),
            ("a part of more than the window", &[1, 0, 32_768]),
            ("a part past the window", &[1, 32_767, 1]),
            ("two parts past the window", &[2, 32_000, 0, 767, 0]),
            ("parts that touch", &[2, 0, 0, 0, 0]),
            ("a gap of more than 64 bits", &[1, u64::MAX, 0]),
            ("parts without their bytes", &[1, 0, 32_767]),
        ];
        for (name, numbers) in windows {
            self.add(name, |d| {
                let plain = &mut d.pages[0].plain;
                plain.truncate(lead);
                numbers.iter().for_each(|number| wire::put(plain, *number));
            });
        }
    }

    fn entries(&mut self) {
        type Change = fn(&mut Vec<FileMetadata>);
        let files: [(&str, Change); 16] = [
            ("an entry less", |files| drop(files.pop())),
            ("an entry more", |files| files.push(files[0].clone())),
            ("no entry", Vec::clear),
            ("a size without an end", |files| files[3].size = u64::MAX),
            ("a size past 2^63", |files| files[3].size = 1 << 63),
            ("a file past the end of the tar", |files| files[39].size = 1 << 40),
            ("an offset past the end of the tar", |files| files[39].offset = Uncompressed(1 << 40)),
            ("an offset past 2^63", |files| files[3].offset = Uncompressed(1 << 63)),
            ("an offset that is negative", |files| files[0].offset = Uncompressed(u64::MAX)),
            ("files that overlap", |files| files[5].offset = files[3].offset + 1),
            ("files in another order", |files| files.swap(3, 5)),
            ("a link with content", |files| files[3].kind = FileKind::Symlink),
            ("a directory with content", |files| files[3].kind = FileKind::Directory),
            ("a time after 9999", |files| {
                files[3].mtime = Some(Time { seconds: i64::MAX, nanos: 0 })
            }),
            ("a time before 0", |files| {
                files[3].mtime = Some(Time { seconds: i64::MIN, nanos: 0 })
            }),
            ("a billion nanoseconds", |files| {
                files[3].mtime = Some(Time { seconds: 0, nanos: 1_000_000_000 });
            }),
        ];
        for (name, change) in files {
            self.add(name, |d| *d = d.clone().with_files(change));
        }
        for kind in [7, 15, 16, 64, 255] {
            self.add(format!("kind {kind}"), |d| d.entries[3] = kind);
        }
        // The second column says how much each name shares with the previous one.
        for shared in [1, 127] {
            self.add(format!("{shared} bytes of no name"), |d| d.entries[40] = shared);
        }
        self.add("a name without an end", |d| {
            d.entries.splice(80..81, [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
        });
        self.add("bytes behind the entries", |d| d.entries.push(0));
        for cut in (0..Document::new(self.codec).entries.len()).step_by(40) {
            self.add(format!("entries cut at {cut}"), |d| d.entries.truncate(cut));
        }
        for from in [100, 500, 1000, 1500] {
            self.add(format!("ones from {from} on"), |d| d.entries[from..].fill(0xff));
        }
    }
}

const MAGIC: usize = 7;

#[test]
fn contradictory_documents_are_refused() {
    contradictory(Codec::Gzip, Kinds::gzip_windows);
}

/// Documents of layers of this codec, with wrong windows among them.
fn contradictory(codec: Codec, windows: impl Fn(&mut Kinds)) {
    let sound = Document::new(codec);
    assert!(
        decode(&sound.bytes(), &mut room()).is_ok(),
        "there is room, and it is put together right"
    );
    let mut kinds = Kinds { codec, list: Vec::new() };
    kinds.header();
    kinds.frames("spans", &sound.spans, |document, frame| document.frames[0] = Some(frame));
    kinds.frames("entries", &sound.entries, |document, frame| document.frames[1] = Some(frame));
    kinds.frames("page", &sound.pages[2].plain, |document, frame| {
        document.pages[2].frame = Some(frame)
    });
    kinds.spans();
    kinds.proofs_and_pages();
    kinds.entries();
    windows(&mut kinds);
    assert!(kinds.list.len() > 200, "{}", kinds.list.len());
    for (name, document) in kinds.list {
        let error = decode(&document, &mut room()).map(|_| ()).expect_err(&name);
        assert!(!error.to_string().is_empty() && error.to_string().len() < 200, "{name}: {error}");
    }
}

#[test]
fn names_that_expand_from_few_bytes_are_limited() {
    // Each name repeats the previous one, so they compress to almost nothing.
    let mut file = Document::new(Codec::Gzip).files()[0].clone();
    (file.name, file.size, file.pax) = (vec![b'n'; 1 << 20].into(), 0, Box::default());
    let count = 300;
    let document = Document::new(Codec::Gzip).with_files(|files| *files = vec![file; count]);
    let document =
        Document { header: FineHeader { entries: count as u32, ..document.header }, ..document };
    assert!(document.entries.len() < 2 << 20);
    let bytes = document.bytes();
    assert!(matches!(decode(&bytes, &mut Budget::new(64 << 20).open()), Err(FineError::Memory(_))));
    assert_eq!(decode(&bytes, &mut Budget::new(u64::MAX).open()), Err(FineError::TooLarge));
}

#[test]
fn prefixes_and_flipped_bits_never_panic() {
    prefixes_and_flipped_bits(Codec::Gzip);
}

fn prefixes_and_flipped_bits(codec: Codec) {
    let (layer, _) = layer(3, codec);
    let files = layer.entries()[..4].to_vec();
    let windows: Vec<_> = layer
        .windows()
        .flat_map(|windows| windows.unwrap().into_windows())
        .map(|(_, w)| w)
        .collect();
    let layer = FineLayer::new(files, layer.spans().clone(), windows).unwrap();
    let encoded = layer.encode(&ranges(&[(2, 3)])).unwrap();
    let document = encoded.bytes;
    for length in 0..document.len() {
        assert!(decode(&document[..length], &mut room()).is_err(), "{length} bytes");
    }
    for at in 0..document.len() {
        for bit in 0..8 {
            let mut flipped = document.clone();
            flipped[at] ^= 1 << bit;
            let decoded = decode(&flipped, &mut room());
            if at as u64 >= encoded.head_size {
                assert!(matches!(decoded, Err(FineError::PageDigest { .. })), "{at}.{bit}");
            } else if let Ok(other) = decoded {
                // The manifest holds the head's own digest.
                assert!(
                    other != layer || other.encode(&ranges(&[(2, 3)])).unwrap().bytes != flipped,
                    "{at}.{bit}"
                );
                other.encode(&[]).unwrap();
            }
        }
    }
}
