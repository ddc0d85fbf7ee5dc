//! Documents compared with their layers.

use std::sync::Arc;

use super::{blobs, gzip, index, tar};
use crate::codec::UsedBytes;
use crate::digest::{Algorithm, ChainState};
use crate::fine::{FineLayer, FineSpans, SpanParts, SpanWindow};
use crate::layer::Outcome;
use crate::layer::prove::{Difference, LayerProof};
use crate::offset::SpanId;
use crate::ztoc::{self, FileMetadata};

/// The differences between a document and its layer. The ztoc has none.
fn proven(blob: &[u8], layer: FineLayer, ztoc: Option<&[u8]>) -> Vec<Difference> {
    let is_whole = layer.spans().blob_size() == blob.len() as u64;
    let ztoc = ztoc.map(|ztoc| Arc::new(ztoc::decode(ztoc).unwrap()));
    let mut proof = LayerProof::with_fine(ztoc, Some(Arc::new(layer)), Algorithm::Sha256, Algorithm::Sha256);
    blob.chunks(10_000).for_each(|chunk| proof.push(chunk));
    let proof = proof.finish();
    assert!(!is_whole || proof.differences.is_empty(), "{:?}", proof.differences);
    proof.of_document.list
}

#[test]
fn documents_hold_against_their_layers() {
    for (name, blob) in blobs() {
        let indexed = index(&blob, 1 << 16);
        let Outcome::Ztoc(built) = &indexed.outcome else { panic!("{name}") };
        let layer = indexed.fine.unwrap();
        assert_eq!(proven(&blob, layer.clone(), Some(&built.bytes)), [], "{name}");
        assert_eq!(proven(&blob, layer, None), [], "{name}: without a ztoc");
    }
}

/// The layer with changed entries, spans, or windows of all spans but the first.
fn changed(
    layer: &FineLayer,
    change: impl FnOnce(&mut Vec<FileMetadata>, &mut SpanParts, &mut Vec<(SpanId, SpanWindow)>),
) -> FineLayer {
    let spans = layer.spans();
    let mut parts = SpanParts {
        layer: spans.layer(),
        codec: spans.codec(),
        blob_size: spans.blob_size(),
        tar_end: spans.tar_end(),
        span_size: spans.span_size(),
        starts: spans.starts().to_vec(),
    };
    let mut files = layer.entries().to_vec();
    let mut windows: Vec<_> = layer.windows().flat_map(|group| group.unwrap().into_windows()).collect();
    change(&mut files, &mut parts, &mut windows);
    FineLayer::new(files, FineSpans::new(parts).unwrap(), windows.into_iter().map(|(_, window)| window)).unwrap()
}

#[test]
fn what_differs_is_found() {
    let blob = gzip(&tar(), 6, 1);
    let indexed = index(&blob, 1 << 16);
    let Outcome::Ztoc(built) = &indexed.outcome else { panic!() };
    let (layer, ztoc) = (indexed.fine.unwrap(), Some(&built.bytes[..]));
    let used = |window: &SpanWindow| {
        let mut used = UsedBytes::default();
        let (zeros, ones) = (window.expand(0), window.expand(0xff));
        (0..zeros.len()).filter(|at| zeros[*at] == ones[*at]).for_each(|at| used.mark(at..at + 1));
        used
    };
    let at = (0..).zip(layer.windows().flat_map(|group| group.unwrap().into_windows()));
    let (at, span) = at.filter(|(_, (_, window))| window.used() > 10).map(|(at, (span, _))| (at, span)).next().unwrap();
    let content = |differences: &[Difference]| match differences {
        [Difference::FineContent { span: wrong, reason }] if *wrong == span => reason.clone(),
        other => panic!("{other:?}"),
    };

    let wrong_byte = changed(&layer, |_, _, windows| {
        let window = &mut windows[at].1;
        let (used, mut bytes) = (used(window), window.expand(0));
        bytes[used.ranges().next().unwrap().start] ^= 1;
        *window = SpanWindow::new(window.lead(), &bytes, &used);
    });
    assert!(content(&proven(&blob, wrong_byte, ztoc)).contains("differ from the layer"));

    let left_out = changed(&layer, |_, _, windows| {
        let window = &mut windows[at].1;
        let (ranges, bytes) = (used(window), window.expand(0));
        let mut fewer = UsedBytes::default();
        ranges.ranges().skip(1).for_each(|range| fewer.mark(range));
        *window = SpanWindow::new(window.lead(), &bytes, &fewer);
    });
    assert!(content(&proven(&blob, left_out, ztoc)).contains("left out"));

    let state = changed(&layer, |_, parts, _| parts.starts[2].state = ChainState::INITIAL);
    let span = |number| Difference::FineProof { span: SpanId(number) };
    assert_eq!(proven(&blob, state, ztoc), [span(1), span(2)]);

    let renamed = |files: &mut Vec<FileMetadata>| files[3].name = b"another".as_slice().into();
    let entry = changed(&layer, |files, _, _| renamed(files));
    for ztoc in [ztoc, None] {
        let found = proven(&blob, entry.clone(), ztoc);
        assert!(matches!(found[..], [Difference::Entry { entry: 3, field: "name", .. }]), "{found:?}");
    }
    let short = &blob[..blob.len() / 2];
    assert!(proven(short, layer, None).iter().any(|difference| matches!(difference, Difference::FineContent { .. })));
}
