//! Fine documents made from the ztocs of layers, and fine indexes of them in a faulty registry.

use std::ops::Range;

use ociseek_format::budget::Budget;
use ociseek_format::codec::WINDOW;
use ociseek_format::digest::{Algorithm, Digest, Hasher};
use ociseek_format::fine::{
    self, Codec, EncodedFine, FineLayer, FineSpans, FineStart, SpanParts, SpanWindow,
};
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::{FineIndex, FineRef};
use ociseek_format::image::manifest::OCI_MANIFEST;
use ociseek_format::internals::UsedBytes;
use ociseek_format::layer::{LayerIndexer, LayerOptions};
use ociseek_format::offset::SpanId;
use ociseek_format::ztoc::{self, Checkpoint, Checkpoints, FileMetadata};

use super::faulty::Faulty;

/// The layer of a ztoc as a fine layer with complete windows.
pub fn layer(blob: &[u8], ztoc: &[u8]) -> FineLayer {
    let ztoc = ztoc::decode(ztoc).unwrap();
    let (codec, span_size, checkpoints) = match ztoc.checkpoints {
        Checkpoints::Gzip { span_size, list } => (Codec::Gzip, span_size.get(), list),
        Checkpoints::Uncompressed { span_size, size } => {
            let span_size = span_size.get();
            let at = |span: u64| ociseek_format::offset::Compressed(span * span_size);
            let spans = 0..size.div_ceil(span_size).max(1);
            let checkpoint = |span| Checkpoint {
                input: at(span),
                output: ociseek_format::offset::Uncompressed(span * span_size),
                bits: 0,
                window: Box::new([0; WINDOW]),
            };
            (Codec::Plain, span_size, spans.map(checkpoint).collect())
        }
    };
    let border = |checkpoint: &Checkpoint| checkpoint.input.0.next_multiple_of(64) as usize;
    let start = |checkpoint: &Checkpoint| {
        let mut hasher = Hasher::new(Algorithm::Sha256);
        hasher.update(&blob[..border(checkpoint)]);
        let Checkpoint { input, output, bits, .. } = checkpoint;
        FineStart {
            input: *input,
            output: *output,
            bits: *bits,
            state: hasher.chain_state().unwrap(),
        }
    };
    let parts = SpanParts {
        layer: Digest::sha256(blob),
        codec,
        blob_size: blob.len() as u64,
        tar_end: ztoc.uncompressed_size,
        span_size,
        starts: checkpoints.iter().map(start).collect(),
    };
    let window = |checkpoint: &Checkpoint| {
        let lead = &blob[checkpoint.span_start().0 as usize..border(checkpoint)];
        let mut all = UsedBytes::default();
        all.mark(0..WINDOW);
        SpanWindow::new(lead, &checkpoint.window, &all)
    };
    let windows = checkpoints.iter().skip(1).filter(|_| codec == Codec::Gzip).map(window);
    FineLayer::new(ztoc.files, FineSpans::new(parts).unwrap(), windows).unwrap()
}

/// A window with one wrong byte, the first that it has.
pub fn with_wrong_byte(window: &SpanWindow) -> SpanWindow {
    let mut bytes = window.expand(0);
    let ones = window.expand(0xff);
    let kept: Vec<usize> = (0..WINDOW).filter(|&at| bytes[at] == ones[at]).collect();
    let mut used = UsedBytes::default();
    kept.iter().for_each(|&at| used.mark(at..at + 1));
    bytes[kept[0]] ^= 1;
    SpanWindow::new(window.lead(), &bytes, &used)
}

/// The layer's own document, of any codec.
pub fn made_by_indexing(blob: &[u8]) -> FineLayer {
    let mut indexer =
        LayerIndexer::new(LayerOptions { fine: true, ..LayerOptions::default() }, None);
    indexer.push(blob).unwrap();
    indexer.finish().unwrap().fine.unwrap()
}

/// A document whose page `number` has another content. It has no recorded start.
pub fn with_page(
    document: &EncodedFine,
    number: usize,
    change: impl FnOnce(&mut Vec<u8>),
) -> FineLayer {
    /// The sizes of a page, and its digest.
    const ROW: usize = 40;
    let bytes = &document.bytes;
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let head = document.head_size as usize;
    let rows = head - ROW * word(80);
    let row = rows + ROW * number;
    let start = head + (rows..row).step_by(ROW).map(word).sum::<usize>();
    let end = start + word(row);
    let mut plain = zstd::bulk::decompress(&bytes[start..end], word(row + 4)).unwrap();
    change(&mut plain);
    let stored = zstd::bulk::compress(&plain, 3).unwrap();
    let mut changed = [&bytes[..start], &stored, &bytes[end..]].concat();
    changed[row..row + 4].copy_from_slice(&(stored.len() as u32).to_le_bytes());
    changed[row + 4..row + 8].copy_from_slice(&(plain.len() as u32).to_le_bytes());
    changed[row + 8..row + ROW].copy_from_slice(Digest::sha256(&stored).as_bytes());
    fine::decode(&changed, &mut Budget::new(1 << 30).open()).unwrap()
}

/// The content of a document, to be changed.
pub struct DocumentParts {
    pub entries: Vec<FileMetadata>,
    pub starts: Vec<FineStart>,
    pub windows: Vec<SpanWindow>,
    pub span_size: u64,
    spans: FineSpans,
}

impl DocumentParts {
    pub fn of(document: &[u8]) -> DocumentParts {
        let layer = fine::decode(document, &mut Budget::new(1 << 30).open()).unwrap();
        let windows = layer
            .windows()
            .flat_map(|windows| windows.unwrap().into_windows())
            .map(|(_, window)| window);
        let windows = windows.collect();
        let spans = layer.spans().clone();
        let entries = layer.entries().to_vec();
        let starts = spans.starts().to_vec();
        DocumentParts { entries, starts, windows, span_size: spans.span_size(), spans }
    }

    /// The document without a recorded start.
    pub fn encoded(self) -> EncodedFine {
        self.try_encoded().unwrap()
    }

    /// The same, if the parts are consistent.
    pub fn try_encoded(self) -> Option<EncodedFine> {
        let DocumentParts { entries, starts, windows, span_size, spans } = self;
        let spans = SpanParts {
            layer: spans.layer(),
            codec: spans.codec(),
            blob_size: spans.blob_size(),
            tar_end: spans.tar_end(),
            span_size,
            starts,
        };
        FineLayer::new(entries, FineSpans::new(spans).ok()?, windows).ok()?.encode(&[]).ok()
    }
}

/// Adds a fine index for the image `manifest` to the registry, with the given layers and their
/// recorded starts.
pub fn attach(
    registry: &Faulty,
    manifest: &[u8],
    layers: &[(FineLayer, Vec<Range<SpanId>>)],
) -> FineIndex {
    let layers = layers.iter().map(|(layer, start)| {
        let encoded = layer.encode(start).unwrap();
        registry.add_blob(encoded.bytes.clone());
        FineRef {
            document: encoded.digest,
            size: encoded.bytes.len() as u64,
            layer: layer.spans().layer(),
            head_size: encoded.head_size,
            head_digest: encoded.head_digest,
            start_size: encoded.start_size,
        }
    });
    let subject = Some(Descriptor::of(OCI_MANIFEST, manifest));
    let index = FineIndex { layers: layers.collect(), subject, build_tool: None, profile: None };
    let encoded = index.encode();
    registry.add_manifest(&encoded.descriptor.digest.to_string(), OCI_MANIFEST, encoded.bytes);
    index
}
