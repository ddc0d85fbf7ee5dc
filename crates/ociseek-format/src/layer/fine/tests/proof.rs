//! Documents compared with their layers.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::{blobs, gzip, index, plain, tar};
use crate::codec::UsedBytes;
use crate::digest::{Algorithm, ChainState};
use crate::fine::{FineLayer, FineSpans, SpanParts, SpanWindow};
use crate::layer::Outcome;
use crate::layer::prove::{Difference, LayerProof, SpanTail, decode_to_next};
use crate::layer::span::SpanError;
use crate::offset::{SpanId, Uncompressed};
use crate::ztoc::{self, FileMetadata};

/// What comes of decoding each span to the next one.
fn to_next(layer: &FineLayer, blob: &[u8]) -> Vec<Result<(), SpanError>> {
    let spans = layer.spans();
    let decode = |span: SpanId| {
        let [own, next] = [span, SpanId(span.0 + 1)].map(|span| layer.window(span).unwrap());
        let range = spans.fetch_range(span);
        let blob = &blob[range.start.0 as usize..range.end.0 as usize];
        let found =
            decode_to_next(spans, span, [own.as_ref(), next.as_ref()], blob, &mut |_| ControlFlow::Continue(()));
        found.map(|tail| assert_eq!(tail, None))
    };
    SpanId::each(SpanId(0)..SpanId(spans.count())).map(decode).collect()
}

#[test]
fn each_span_leads_to_the_next() {
    for (name, blob) in blobs() {
        let layer = index(&blob, 1 << 16).fine.unwrap();
        for (span, outcome) in to_next(&layer, &blob).into_iter().enumerate() {
            assert_eq!(outcome, Ok(()), "{name} {span}");
        }
        assert_tails(&layer, &blob, &plain(&blob));
    }
}

/// What each span shows of the next window is what that has, and so are the window's bytes.
pub(super) fn assert_tails(layer: &FineLayer, blob: &[u8], tar: &[u8]) {
    let spans = layer.spans();
    for span in SpanId::each(SpanId(0)..SpanId(spans.count())) {
        let [own, next] = [span, SpanId(span.0 + 1)].map(|span| layer.window(span).unwrap());
        let range = spans.fetch_range(span);
        let blob = &blob[range.start.0 as usize..range.end.0 as usize];
        let mut go_on = |_: &[u8]| ControlFlow::Continue(());
        let tail = decode_to_next(spans, span, [own.as_ref(), None], blob, &mut go_on).unwrap();
        assert_eq!(tail, next.as_ref().map(SpanTail::of), "{span}");
        let Some(window) = next else { continue };
        let mut size = 0;
        for (at, part) in window.parts_of_tar(spans.plain_range(span).end) {
            assert!(tar[at.0 as usize..][..part.len()] == *part, "{span}, at {at}");
            size += part.len();
        }
        assert_eq!(size, window.used());
        assert!(tail.is_some_and(|tail| !tail.agrees(&window.led_by(b"another"))));
    }
}

#[test]
fn a_span_that_does_not_lead_to_the_next_is_found() {
    type Change<'a> = &'a dyn Fn(&mut SpanParts, &mut Vec<(SpanId, SpanWindow)>);
    let blob = gzip(&tar(), 6, 1);
    let layer = index(&blob, 1 << 16).fine.unwrap();
    let windows = layer.windows().flat_map(|group| group.unwrap().into_windows());
    let mut fit = windows.filter(|(span, window)| {
        let bits = layer.spans().starts()[span.0 as usize].bits;
        window.used() > 10 && (1..7).contains(&bits) && window.lead().len() > 2
    });
    let span = fit.next().unwrap().0;
    let (at, window) = (span.0 as usize, |windows: &[(SpanId, SpanWindow)]| windows[span.0 as usize - 1].1.clone());
    let (no_block, wrong) = (Err(SpanError::NoBlock { span }), Err(SpanError::Window { span }));
    let changes: [(&str, Change<'_>, &Result<(), SpanError>); 5] = [
        ("bits", &|parts, _| parts.starts[at].bits += 1, &no_block),
        ("output", &|parts, _| parts.starts[at].output = Uncompressed(parts.starts[at].output.0 - 1), &no_block),
        (
            "input",
            &|parts, windows| {
                parts.starts[at].input += 1;
                let lead = &window(windows).lead()[1..].to_vec();
                windows[at - 1].1 = window(windows).led_by(lead);
            },
            &no_block,
        ),
        (
            "lead",
            &|_, windows| {
                let mut lead = window(windows).lead().to_vec();
                lead[1] ^= 1;
                windows[at - 1].1 = window(windows).led_by(&lead);
            },
            &wrong,
        ),
        (
            "window",
            &|_, windows| {
                let (used, mut bytes) = (used(&window(windows)), window(windows).expand(0));
                bytes[used.ranges().last().unwrap().start] ^= 1;
                windows[at - 1].1 = SpanWindow::new(window(windows).lead(), &bytes, &used);
            },
            &wrong,
        ),
    ];
    for (what, change, expected) in changes {
        let other = changed(&layer, |_, parts, windows| change(parts, windows));
        assert_eq!(&to_next(&other, &blob)[at - 1], expected, "{what}");
    }
}

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
fn documents_match_their_layers() {
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

/// The bytes that a window has.
fn used(window: &SpanWindow) -> UsedBytes {
    let mut used = UsedBytes::default();
    let (zeros, ones) = (window.expand(0), window.expand(0xff));
    (0..zeros.len()).filter(|at| zeros[*at] == ones[*at]).for_each(|at| used.mark(at..at + 1));
    used
}

#[test]
fn differences_are_found() {
    let blob = gzip(&tar(), 6, 1);
    let indexed = index(&blob, 1 << 16);
    let Outcome::Ztoc(built) = &indexed.outcome else { panic!() };
    let (layer, ztoc) = (indexed.fine.unwrap(), Some(&built.bytes[..]));
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
