//! The spans and windows that are collected, and documents compared with their layers.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::{blobs, decoded, gzip, index, options, plain, tar};
use crate::budget::Budget;
use crate::codec::UsedBytes;
use crate::codec::gzip::{BlockStart, GzipReader};
use crate::digest::{Algorithm, ChainState, Digest};
use crate::fine::{
    self, Codec, FineLayer, FineSpans, SpanParts, SpanWindow, decode_head, decode_page,
};
use crate::layer::parallel::{ChunksError, Threads, index_chunks};
use crate::layer::prove::{Difference, LayerProof, SpanTail, decode_to_next};
use crate::layer::span::{SpanError, SpanTable};
use crate::layer::{
    IndexedLayer, LayerError, LayerIndexer, LayerMap, LayerOptions, Outcome, UnservableCode,
};
use crate::offset::{SpanId, SpanSize, Uncompressed};
use crate::ztoc::{self, FileMetadata};

fn encoded(layer: &FineLayer) -> (LayerMap, Vec<u8>) {
    let encoded = layer.encode(&[]).unwrap();
    let head = &encoded.bytes[..encoded.head_size as usize];
    let mut memory = Budget::new(u64::MAX).open();
    let head = decode_head(head, encoded.bytes.len() as u64, &mut memory).unwrap();
    assert_eq!(&fine::decode(&encoded.bytes, &mut memory).unwrap(), layer);
    (LayerMap::from(head), encoded.bytes)
}

/// Decodes a span of a gzip blob from its checkpoint. The window bytes that were left out become
/// `fill`, and the one at index `damaged` among the others is changed.
fn by_window(
    layer: &FineLayer,
    span: SpanId,
    window: &SpanWindow,
    blob: &[u8],
    fill: u8,
    damaged: Option<usize>,
) -> Vec<u8> {
    let start = layer.spans().starts()[span.0 as usize];
    let range = layer.spans().fetch_range(span);
    let fetched = &blob[range.start.0 as usize..range.end.0 as usize];
    let mut bytes = window.expand(fill);
    if let Some(at) = damaged {
        bytes[at] ^= 0xff;
    }
    let (before, lead) =
        if start.bits == 0 { (0, window.lead()) } else { (window.lead()[0], &window.lead()[1..]) };
    let at =
        BlockStart { input: start.input, output: start.output, bits: start.bits, window: &bytes };
    let plain = layer.spans().plain_range(span);
    let mut out = decoded(GzipReader::resume(at, before), &[lead, fetched]);
    out.truncate((plain.end - plain.start) as usize);
    out
}

#[test]
fn every_span_decodes_to_its_part_of_the_layer() {
    for (name, blob) in blobs() {
        let indexed = index(&blob, 1 << 16);
        let Outcome::Ztoc(built) = &indexed.outcome else {
            panic!("{name}: {:?}", indexed.outcome)
        };
        let layer = indexed.fine.as_ref().unwrap_or_else(|| panic!("{name}: no document"));
        let ztoc = ztoc::decode(&built.bytes).unwrap();
        assert_eq!(layer.entries(), ztoc.files, "{name}");
        assert_eq!(
            (layer.spans().layer(), layer.spans().blob_size()),
            (indexed.digest, indexed.size),
            "{name}"
        );
        assert_eq!(layer.spans().tar_end(), ztoc.uncompressed_size, "{name}");

        let (map, document) = encoded(layer);
        let head = Arc::clone(map.fine().unwrap());
        let table = SpanTable::new(Arc::new(map)).unwrap();
        let straight = plain(&blob);
        let mut read = Vec::new();
        let mut fetched = 0;
        let mut used = 0;
        for span in table.each() {
            let windows = head.page_of(span).map(|page| {
                let range = head.page_range(page);
                decode_page(&head, page, &document[range.start as usize..range.end as usize])
                    .unwrap()
            });
            let window = windows.as_ref().and_then(|windows| windows.get(span));
            let range = table.blob_range(span);
            assert!(range.start.0 == fetched && range.start.0.is_multiple_of(64), "{name} {span}");
            fetched = range.end.0;
            let mut bytes = blob[range.start.0 as usize..range.end.0 as usize].to_vec();
            let from = read.len();
            let mut decode = |bytes: &[u8], window| {
                table.decode_with(span, window, bytes, &mut |piece| {
                    read.extend_from_slice(piece);
                    ControlFlow::Continue(())
                })
            };
            decode(&bytes, window).unwrap_or_else(|error| panic!("{name} {span}: {error}"));
            bytes[0] ^= 1;
            assert_eq!(decode(&bytes, window), Err(SpanError::Proof { span }));
            bytes[0] ^= 1;
            if let Some(window) = window {
                assert_eq!(decode(&bytes, None), Err(SpanError::NoWindow { span }));
                let part = &read[from..];
                used += window.used();
                assert!(
                    by_window(layer, span, window, &blob, 0xaa, None) == part,
                    "{name} {span}: a byte left out is read"
                );
                let zeros = window.expand(0);
                let ones = window.expand(0xff);
                let known = |at: &usize| zeros[*at] == ones[*at];
                for at in (0..zeros.len()).filter(known).step_by(1000) {
                    let other = by_window(layer, span, window, &blob, 0, Some(at));
                    assert!(
                        part.is_empty() || other != part,
                        "{name} {span}: byte {at} of the window is not read"
                    );
                }
            } else {
                assert_eq!(layer.spans().codec() == Codec::Plain, table.map().is_plain(), "{name}");
                assert!(table.map().is_plain() || span.0 == 0, "{name}");
            }
        }
        assert_eq!(fetched, blob.len() as u64, "{name}");
        let end = table.plain_end().0 as usize;
        assert!(read == straight[..end], "{name}");
        match name {
            "level 6" | "members" | "zeros behind the end" | "odd" => {
                assert!(used > 1000, "{name}: {used}")
            }
            "plain" | "stored" => assert_eq!(used, 0, "{name}"),
            _ => {}
        }
        // At level 1 the whole layer is one block.
        assert!(table.count() > 5 || name == "level 1", "{name}");
    }
}

#[test]
fn any_chunking_gives_the_same_document() {
    for (name, blob) in blobs() {
        let whole = index(&blob, blob.len());
        for chunk in [1, 7, 64, 1000, 4096] {
            assert!(index(&blob, chunk) == whole, "{name} in chunks of {chunk}");
        }
        // A ztoc with other options shows where a single member can be divided.
        let mut finer = LayerIndexer::new(
            LayerOptions { span_size: SpanSize::new(50_000).unwrap(), ..LayerOptions::default() },
            None,
        );
        finer.push(&blob).unwrap();
        let Outcome::Ztoc(finer) = finer.finish().unwrap().outcome else { panic!("{name}") };
        let finer = Arc::new(ztoc::decode(&finer.bytes).unwrap());
        let encoded =
            |indexed: &IndexedLayer| indexed.fine.as_ref().unwrap().encode(&[]).unwrap().bytes;
        for (cores, size) in [(1, 9000), (2, 9000), (2, 300_000), (4, 64), (7, 1000), (7, 70_001)] {
            for guide in [None, Some(Arc::clone(&finer))] {
                let mut batches = blob
                    .chunks(300_000)
                    .map(|batch| batch.chunks(size).map(Bytes::copy_from_slice).collect());
                let threads = Threads { cores, guide };
                let next = || Ok::<Option<Vec<Bytes>>, Infallible>(batches.next());
                let indexed =
                    index_chunks(options(), None, threads, &Budget::new(u64::MAX), next).unwrap();
                assert!(indexed == whole, "{name} in chunks of {size} on {cores} cores");
                assert!(
                    encoded(&indexed) == encoded(&whole),
                    "{name} in chunks of {size} on {cores} cores"
                );
            }
        }
        let mut without = LayerIndexer::new(LayerOptions::default(), None);
        without.push(&blob).unwrap();
        let without = without.finish().unwrap();
        assert_eq!(without.fine, None);
        assert!(without.outcome == whole.outcome, "{name}: the ztoc is the same");
    }
}

#[test]
fn padding_that_has_spans_of_its_own_costs_no_document() {
    let mut padded = tar();
    let end = padded.len();
    padded.resize(end + (20 << 20), 0);
    for (name, blob) in [("gzip", gzip(&padded, 6, 1)), ("plain", padded.clone())] {
        let indexed = index(&blob, 1 << 16);
        let code = match &indexed.outcome {
            Outcome::Unservable(why) => why.code,
            Outcome::Ztoc(_) => panic!("{name}"),
        };
        assert_eq!(code, UnservableCode::PaddingPastSpan, "{name}");
        let layer = indexed.fine.unwrap();
        assert!(layer.spans().starts().iter().any(|start| start.output.0 > end as u64), "{name}");
        assert_eq!(proven(&blob, layer.clone(), None), [], "{name}");
        assert!(to_next(&layer, &blob).into_iter().all(|outcome| outcome == Ok(())), "{name}");
        assert_tails(&layer, &blob, &padded);
    }
}

#[test]
fn unsupported_layers_get_no_document() {
    let tar = tar();
    let blob = gzip(&tar, 6, 1);
    let trailing = [&blob[..], b"trailing bytes"].concat();
    assert_eq!(index(&trailing, 1000).fine, None, "not servable");
    let expected = Digest::of(Algorithm::Sha512, &blob);
    let mut indexer = LayerIndexer::new(options(), Some((expected, blob.len() as u64)));
    indexer.push(&blob).unwrap();
    let indexed = indexer.finish().unwrap();
    assert!(matches!(indexed.outcome, Outcome::Ztoc(_)) && indexed.fine.is_none(), "SHA-512");
}

#[test]
fn memory_is_charged() {
    let blob = gzip(&tar(), 6, 1);
    let with = |limit: u64, fine: bool| {
        let mut batches = blob.chunks(300_000).map(|batch| vec![Bytes::copy_from_slice(batch)]);
        let next = || Ok::<Option<Vec<Bytes>>, Infallible>(batches.next());
        let options = LayerOptions { fine, ..LayerOptions::default() };
        index_chunks(options, None, Threads { cores: 1, guide: None }, &Budget::new(limit), next)
    };
    let least = (0..).map(|step| step * 1000).find(|limit| with(*limit, false).is_ok()).unwrap();
    assert!(matches!(with(least, true), Err(ChunksError::Layer(LayerError::Memory(_)))));
    assert!(with(least + (1 << 20), true).is_ok());
}

/// What comes of decoding each span to the next one.
fn to_next(layer: &FineLayer, blob: &[u8]) -> Vec<Result<(), SpanError>> {
    let spans = layer.spans();
    let decode = |span: SpanId| {
        let [own, next] = [span, SpanId(span.0 + 1)].map(|span| layer.window(span).unwrap());
        let range = spans.fetch_range(span);
        let blob = &blob[range.start.0 as usize..range.end.0 as usize];
        let decoded = decode_to_next(spans, span, [own.as_ref(), next.as_ref()], blob, &mut |_| {
            ControlFlow::Continue(())
        });
        decoded.map(|tail| assert_eq!(tail, None))
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
        for (at, part) in window.parts_of_tar(spans.decoded_range(span).end) {
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
    let at = span.0 as usize;
    let window = |windows: &[(SpanId, SpanWindow)]| windows[span.0 as usize - 1].1.clone();
    let no_block = Err(SpanError::NoBlock { span });
    let wrong = Err(SpanError::Window { span });
    let changes: [(&str, Change<'_>, &Result<(), SpanError>); 5] = [
        ("bits", &|parts, _| parts.starts[at].bits += 1, &no_block),
        (
            "output",
            &|parts, _| parts.starts[at].output = Uncompressed(parts.starts[at].output.0 - 1),
            &no_block,
        ),
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
                let used = used(&window(windows));
                let mut bytes = window(windows).expand(0);
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
    let mut proof =
        LayerProof::with_fine(ztoc, Some(Arc::new(layer)), Algorithm::Sha256, Algorithm::Sha256);
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
    let mut windows: Vec<_> =
        layer.windows().flat_map(|group| group.unwrap().into_windows()).collect();
    change(&mut files, &mut parts, &mut windows);
    FineLayer::new(
        files,
        FineSpans::new(parts).unwrap(),
        windows.into_iter().map(|(_, window)| window),
    )
    .unwrap()
}

/// The bytes that a window has.
fn used(window: &SpanWindow) -> UsedBytes {
    let mut used = UsedBytes::default();
    let zeros = window.expand(0);
    let ones = window.expand(0xff);
    (0..zeros.len()).filter(|at| zeros[*at] == ones[*at]).for_each(|at| used.mark(at..at + 1));
    used
}

fn content_of(differences: &[Difference], span: SpanId) -> String {
    match differences {
        [Difference::FineContent { span: wrong, reason }] if *wrong == span => reason.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn differences_are_found() {
    let blob = gzip(&tar(), 6, 1);
    let indexed = index(&blob, 1 << 16);
    let Outcome::Ztoc(built) = &indexed.outcome else { panic!() };
    let layer = indexed.fine.unwrap();
    let ztoc = Some(&built.bytes[..]);
    let at = (0..).zip(layer.windows().flat_map(|group| group.unwrap().into_windows()));
    let (at, span) = at
        .filter(|(_, (_, window))| window.used() > 10)
        .map(|(at, (span, _))| (at, span))
        .next()
        .unwrap();
    let content = |differences: &[Difference]| match differences {
        // A reader finds it when it decodes the span before.
        [Difference::FineContent { span: before, reason: shown }, differences @ ..]
            if before.0 + 1 == span.0 && shown.contains("the window of span") =>
        {
            content_of(differences, span)
        }
        differences => content_of(differences, span),
    };

    let wrong_byte = changed(&layer, |_, _, windows| {
        let window = &mut windows[at].1;
        let used = used(window);
        let mut bytes = window.expand(0);
        bytes[used.ranges().next().unwrap().start] ^= 1;
        *window = SpanWindow::new(window.lead(), &bytes, &used);
    });
    assert!(content(&proven(&blob, wrong_byte, ztoc)).contains("differ from the layer"));

    let left_out = changed(&layer, |_, _, windows| {
        let window = &mut windows[at].1;
        let ranges = used(window);
        let bytes = window.expand(0);
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
        let differences = proven(&blob, entry.clone(), ztoc);
        assert!(
            matches!(differences[..], [Difference::Entry { entry: 3, field: "name", .. }]),
            "{differences:?}"
        );
    }
    let short = &blob[..blob.len() / 2];
    assert!(
        proven(short, layer, None)
            .iter()
            .any(|difference| matches!(difference, Difference::FineContent { .. }))
    );
}
