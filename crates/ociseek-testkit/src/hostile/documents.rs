//! Images whose fine documents are hostile (docs/contributing/fine-format.md has the format). Their
//! layers may not exist.

use ociseek_format::digest::Digest;
use ociseek_format::image::fine::{FineIndex, FineRef};
use ociseek_ops::TOOL_IDENTIFIER;
use serde_json::{Value, json};

use super::{compressed, descriptor, list, manifest, name, zeros};
use crate::faulty::Faulty;
use crate::sandbox::{GZIP, OCI_MANIFEST};

/// The columns of an entry, a byte in each at least.
const COLUMNS: usize = 14;

/// A zstd frame, and the size of its content.
#[derive(Clone)]
struct Frame {
    stored: Vec<u8>,
    plain: usize,
}

impl Frame {
    fn of(plain: &[u8]) -> Frame {
        Frame { stored: zstd::bulk::compress(plain, 1).unwrap(), plain: plain.len() }
    }

    /// At most 128 KiB of zeros, in a frame that requests a window of 2 GiB.
    fn with_large_window(zeros: usize) -> Frame {
        // The size in four bytes; a last block that repeats a byte.
        let mut stored = b"\x28\xb5\x2f\xfd\x80\xa8".to_vec();
        stored.extend((zeros as u32).to_le_bytes());
        stored.extend(&(zeros as u32 * 8 + 3).to_le_bytes()[..3]);
        stored.push(0);
        Frame { stored, plain: zeros }
    }
}

/// A document of a gzip layer.
#[derive(Clone)]
struct Document {
    layer: Digest,
    blob_size: u64,
    tar_end: u64,
    spans: (usize, Frame),
    entries: (usize, Frame),
    /// Each page of the document.
    page: Frame,
}

impl Document {
    /// A document of one span.
    fn new(layer: Digest, blob_size: usize, entries: (usize, Frame)) -> Document {
        let spans = (1, Frame::of(&[10]));
        Document {
            layer,
            blob_size: blob_size as u64,
            tar_end: 1 << 41,
            spans,
            entries,
            page: Frame::of(b""),
        }
    }

    /// Adds it to the registry.
    fn push(&self, registry: &Faulty) -> FineRef {
        let Document {
            layer,
            blob_size,
            tar_end,
            spans: (spans, in_spans),
            entries: (entries, in_entries),
            page,
        } = self;
        let pages = (spans - 1).div_ceil(8);
        let mut bytes = b"OSKFINE\x01\x01\0\0\0\0\0\0\0".to_vec();
        bytes.extend(layer.as_bytes());
        [*blob_size, *tar_end, 256 << 10].iter().for_each(|size| bytes.extend(size.to_le_bytes()));
        let sizes = [in_spans, in_entries].map(|frame| [frame.stored.len(), frame.plain]);
        for number in [*spans, *entries, pages, 0].iter().chain(sizes.as_flattened()) {
            bytes.extend((*number as u32).to_le_bytes());
        }
        bytes.extend([&in_spans.stored[..], &in_entries.stored].concat());
        bytes.resize(bytes.len() + 32 * (spans - 1), 0);
        let of_page =
            [page.stored.len(), page.plain].map(|size| (size as u32).to_le_bytes()).concat();
        let of_page = [&of_page[..], Digest::sha256(&page.stored).as_bytes()].concat();
        bytes.extend(of_page.repeat(pages));
        let head_size = bytes.len() as u64;
        let head_digest = Digest::sha256(&bytes);
        bytes.extend(page.stored.repeat(pages));
        let size = bytes.len() as u64;
        let document = registry.add_blob(bytes);
        FineRef { document, size, layer: *layer, head_size, head_digest, start_size: head_size }
    }
}

/// Entries without names or anything else.
fn empty(count: usize) -> (usize, Frame) {
    (count, Frame::of(&vec![0; count * COLUMNS]))
}

/// An LEB128 number.
fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// The file `l0` of this size.
fn large(size: u64) -> (usize, Frame) {
    (1, Frame::of(&[&b"\0\0\x02l0"[..], &number(size), &[0; COLUMNS - 4]].concat()))
}

/// Entries with the same name of 1 MiB, which is there once.
fn same_names(count: usize) -> (usize, Frame) {
    let kinds = vec![0; count];
    let length = number(1 << 20);
    let name = vec![b'n'; 1 << 20];
    let shared = [vec![0], length.repeat(count - 1)].concat();
    let own = [length, vec![0; count - 1]].concat();
    (count, Frame::of(&[kinds, shared, own, name, vec![0; count * (COLUMNS - 3)]].concat()))
}

/// Spans of 64 bytes of the blob and 32 KiB of the tar.
fn spans(count: usize) -> (usize, Frame) {
    let more = count - 1;
    (
        count,
        Frame::of(
            &[vec![0], vec![64; more], number(32 << 10).repeat(more), vec![0; more]].concat(),
        ),
    )
}

/// The `n`th image, with these documents. Returns its name.
fn image(registry: &Faulty, n: usize, documents: &[Document]) -> String {
    let of_layer =
        |document: &Document| descriptor(GZIP, document.layer, document.blob_size as usize);
    let image = manifest(registry, n, &documents.iter().map(of_layer).collect::<Vec<Value>>());
    let index = FineIndex {
        layers: documents.iter().map(|document| document.push(registry)).collect(),
        subject: Some(serde_json::from_value(image.clone()).unwrap()),
        build_tool: Some(TOOL_IDENTIFIER.into()),
        profile: None,
    };
    let index = index.encode();
    registry.add_blob("{}");
    registry.add_manifest(&index.descriptor.digest.to_string(), OCI_MANIFEST, index.bytes);
    list(registry, &image, &[json!(index.descriptor)]);
    name(registry, &image)
}

pub fn images(registry: &Faulty) -> Vec<(&'static str, String)> {
    let zeros = compressed(zeros(256));
    let size = zeros.len();
    let bomb = registry.add_blob(zeros);
    let of_bomb = |entries| Document::new(bomb, size, entries);
    let each =
        |layer: usize| Document::new(Digest::sha256(&layer.to_le_bytes()), 1000, empty(100_000));
    let many_spans = Document {
        tar_end: 1_000_000 << 15,
        spans: spans(1_000_000),
        page: Frame::of(&vec![0; 1 << 20]),
        ..Document::new(Digest::sha256(b"spans"), 64_000_064, large(1 << 30))
    };
    let large_window = (8000, Frame::with_large_window(8000 * COLUMNS));
    vec![
        ("4,000,000 files in a few bytes", image(registry, 300, &[of_bomb(empty(4_000_000))])),
        ("250 names of 1 MiB that are one", image(registry, 301, &[of_bomb(same_names(250))])),
        (
            "100,000 files in each of 40 layers",
            image(registry, 302, &(0..40).map(each).collect::<Vec<_>>()),
        ),
        ("a span that holds a file of 1 TiB", image(registry, 303, &[of_bomb(large(1 << 40))])),
        ("1,000,000 spans and pages of 1 MiB", image(registry, 304, &[many_spans])),
        ("a list with a window of 2 GiB", image(registry, 305, &[of_bomb(large_window)])),
    ]
}
