//! Images whose SOCI indexes and ztocs are hostile. Their layers may not exist.

use ociseek_format::digest::Digest;
use ociseek_format::image::soci::{SociIndex, ZtocRef};
use ociseek_format::offset::{Compressed, SpanSize, Uncompressed};
use ociseek_format::ztoc::{Checkpoints, VERSION, Ztoc, encode};
use ociseek_ops::TOOL_IDENTIFIER;
use serde_json::{Value, json};

use super::{descriptor, list, manifest, name};
use crate::faulty::Faulty;
use crate::sandbox::{OCI_MANIFEST, PLAIN};

/// A flatbuffer that is written by hand, front to back.
#[derive(Default)]
struct Buffer(Vec<u8>);

impl Buffer {
    /// A table of `size` bytes after its vtable. Returns its position.
    fn table(&mut self, fields: &[u16], size: usize) -> usize {
        let vtable = self.0.len();
        for word in [4 + 2 * fields.len() as u16, size as u16].iter().chain(fields) {
            self.0.extend(word.to_le_bytes());
        }
        let at = self.0.len();
        self.0.resize(at + size, 0);
        self.set(at, (at - vtable) as u32);
        at
    }

    fn set(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Sets the offset at `at` to the end, and appends a vector.
    fn vector(&mut self, at: usize, bytes: &[u8]) {
        self.set(at, (self.0.len() - at) as u32);
        self.0.extend((bytes.len() as u32).to_le_bytes());
        self.0.extend(bytes);
    }

    /// Sets the offset at `at` to the end, and appends a vector of `count` offsets to what comes
    /// next.
    fn repeated(&mut self, at: usize, count: u32) {
        self.set(at, (self.0.len() - at) as u32);
        self.0.extend(count.to_le_bytes());
        for number in 0..count {
            self.0.extend((4 * (count - number)).to_le_bytes());
        }
    }
}

/// A ztoc with `spans` spans that share a digest, which takes 4 bytes for each of them, and in the
/// same way `entries` entries that share a table.
pub fn hand_written(spans: u32, entries: u32) -> Vec<u8> {
    let mut inner = Buffer(vec![0; 4]);
    let table = inner.table(&[4, 8, 16], 24);
    inner.set(0, table as u32);
    inner.set(table + 4, 2);
    inner.set(table + 8, 1);
    inner.set(table + 16, spans);

    let mut buffer = Buffer(vec![0; 4]);
    let root = buffer.table(&[4, 8, 16, 24, 12, 32], 36);
    buffer.set(0, root as u32);
    buffer.vector(root + 4, b"0.9");
    buffer.vector(root + 8, b"test");
    buffer.set(root + 16, spans);
    buffer.set(root + 24, spans);
    let spans_table = buffer.table(&[4, 8, 12, 16], 20);
    buffer.set(root + 32, (spans_table - (root + 32)) as u32);
    buffer.0[spans_table + 4] = 2;
    buffer.set(spans_table + 8, spans - 1);
    buffer.vector(spans_table + 16, &inner.0);
    buffer.repeated(spans_table + 12, spans);
    let digest = Digest::sha256(b"").to_string();
    buffer.0.extend((digest.len() as u32).to_le_bytes());
    buffer.0.extend(digest.as_bytes());

    let files = buffer.table(&[4], 8);
    buffer.set(root + 12, (files - (root + 12)) as u32);
    buffer.repeated(files + 4, entries);
    let first = buffer.0.len() - 4 * entries as usize;
    let entry = buffer.table(&[4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 12], 16);
    for number in 0..entries as usize {
        let at = first + 4 * number;
        buffer.set(at, (entry - at) as u32);
    }
    for (field, text) in [(4, &b"f"[..]), (8, b"reg"), (12, b"1970-01-01T00:00:00Z")] {
        buffer.vector(entry + field, text);
    }
    buffer.0
}

/// Attaches SOCI indexes with these ztocs to an image, as ociseek makes them.
pub fn indexed(registry: &Faulty, image: &Value, indexes: Vec<Vec<ZtocRef>>) {
    registry.add_blob("{}");
    let subject = Some(serde_json::from_value(image.clone()).unwrap());
    let attach = |layers| {
        let build_tool_identifier = TOOL_IDENTIFIER.into();
        let index = SociIndex {
            layers,
            subject: subject.clone(),
            build_tool_identifier,
            prefetch: Vec::new(),
        };
        let index = index.encode();
        registry.add_manifest(&index.descriptor.digest.to_string(), OCI_MANIFEST, index.bytes);
        json!(index.descriptor)
    };
    list(registry, image, &indexes.into_iter().map(attach).collect::<Vec<Value>>());
}

/// The `n`th image with `layers` layers of this size that do not exist. The index lacks the last
/// one, so that a command that makes an index looks at the ztoc for the others.
fn image(registry: &Faulty, n: usize, layers: usize, size: usize, ztoc: &[u8]) -> String {
    let digests: Vec<Digest> = (0..layers)
        .map(|layer| Digest::sha256(&[n, layer].map(usize::to_le_bytes).concat()))
        .collect();
    let of_layers: Vec<Value> =
        digests.iter().map(|digest| descriptor(PLAIN, *digest, size)).collect();
    let image = manifest(registry, n, &of_layers);
    let ztoc = (registry.add_blob(ztoc.to_vec()), ztoc.len() as u64);
    let of_layer = |layer: &Digest| ZtocRef {
        ztoc: ztoc.0,
        size: ztoc.1,
        layer: *layer,
        layer_media_type: PLAIN.into(),
        span_size: SpanSize::new(512).unwrap(),
    };
    indexed(registry, &image, vec![digests[..layers - 1].iter().map(of_layer).collect()]);
    name(registry, &image)
}

pub fn images(registry: &Faulty) -> Vec<(&'static str, String)> {
    let large = {
        let spans = 100_000;
        let span_size = 512;
        let size = spans * span_size;
        encode(&Ztoc {
            version: VERSION.into(),
            build_tool_identifier: (*b"test").into(),
            compressed_size: Compressed(size),
            uncompressed_size: Uncompressed(size),
            files: Vec::new(),
            checkpoints: Checkpoints::Uncompressed {
                span_size: SpanSize::new(span_size).unwrap(),
                size,
            },
            span_digests: (0..spans).map(|span| Digest::sha256(&span.to_le_bytes())).collect(),
        })
    };
    let many = {
        let image = manifest(registry, 203, &[descriptor(PLAIN, Digest::sha256(b"203"), 1)]);
        let of_layer = |number: usize| ZtocRef {
            ztoc: Digest::sha256(&number.to_le_bytes()),
            size: 1,
            layer: Digest::sha256(&number.to_be_bytes()),
            layer_media_type: PLAIN.into(),
            span_size: SpanSize::new(512).unwrap(),
        };
        let index = |number: usize| (number..number + 8000).map(of_layer).collect();
        indexed(registry, &image, (0..24).map(index).collect());
        name(registry, &image)
    };
    vec![
        (
            "4,000,000 spans that share a digest",
            image(registry, 200, 2, 4_000_000, &hand_written(4_000_000, 0)),
        ),
        (
            "2,000,000 entries that are one",
            image(registry, 201, 2, 512, &hand_written(1, 2_000_000)),
        ),
        ("100,000 spans of each of 60 layers", image(registry, 202, 61, 51_200_000, &large)),
        ("24 indexes of 8,000 ztocs", many),
    ]
}
