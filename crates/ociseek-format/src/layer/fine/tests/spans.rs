//! The spans and windows that are collected.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::{blobs, decoded, gzip, index, options, plain, tar};
use crate::budget::Budget;
use crate::codec::gzip::{BlockStart, GzipReader};
use crate::digest::{Algorithm, Digest};
use crate::fine::{self, Codec, FineLayer, SpanWindow, decode_head, decode_page};
use crate::layer::parallel::{ChunksError, Threads, index_chunks};
use crate::layer::span::{SpanError, SpanTable};
use crate::layer::{IndexedLayer, LayerError, LayerIndexer, LayerMap, LayerOptions, Outcome};
use crate::offset::{SpanId, SpanSize};
use crate::ztoc;
use bytes::Bytes;

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
    let (start, range) = (layer.spans().starts()[span.0 as usize], layer.spans().fetch_range(span));
    let fetched = &blob[range.start.0 as usize..range.end.0 as usize];
    let mut bytes = window.expand(fill);
    if let Some(at) = damaged {
        bytes[at] ^= 0xff;
    }
    let (before, lead) = if start.bits == 0 { (0, window.lead()) } else { (window.lead()[0], &window.lead()[1..]) };
    let at = BlockStart { input: start.input, output: start.output, bits: start.bits, window: &bytes };
    let plain = layer.spans().plain_range(span);
    let mut out = decoded(GzipReader::resume(at, before), &[lead, fetched]);
    out.truncate((plain.end - plain.start) as usize);
    out
}

#[test]
fn every_span_decodes_to_its_part_of_the_layer() {
    for (name, blob) in blobs() {
        let indexed = index(&blob, 1 << 16);
        let Outcome::Ztoc(built) = &indexed.outcome else { panic!("{name}: {:?}", indexed.outcome) };
        let layer = indexed.fine.as_ref().unwrap_or_else(|| panic!("{name}: no document"));
        let ztoc = ztoc::decode(&built.bytes).unwrap();
        assert_eq!(layer.entries(), ztoc.files, "{name}");
        assert_eq!((layer.spans().layer(), layer.spans().blob_size()), (indexed.digest, indexed.size), "{name}");
        assert_eq!(layer.spans().tar_end(), ztoc.uncompressed_size, "{name}");

        let (map, document) = encoded(layer);
        let head = Arc::clone(map.fine().unwrap());
        let table = SpanTable::new(Arc::new(map)).unwrap();
        let (straight, mut read) = (plain(&blob), Vec::new());
        let (mut fetched, mut used) = (0, 0);
        for span in table.each() {
            let windows = head.page_of(span).map(|page| {
                let range = head.page_range(page);
                decode_page(&head, page, &document[range.start as usize..range.end as usize]).unwrap()
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
                let (zeros, ones) = (window.expand(0), window.expand(0xff));
                let known = |at: &usize| zeros[*at] == ones[*at];
                for at in (0..zeros.len()).filter(known).step_by(1000) {
                    let other = by_window(layer, span, window, &blob, 0, Some(at));
                    assert!(part.is_empty() || other != part, "{name} {span}: byte {at} of the window is not read");
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
            "level 6" | "members" | "zeros behind the end" | "odd" => assert!(used > 1000, "{name}: {used}"),
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
        let encoded = |indexed: &IndexedLayer| indexed.fine.as_ref().unwrap().encode(&[]).unwrap().bytes;
        for (cores, size) in [(1, 9000), (2, 9000), (2, 300_000), (4, 64), (7, 1000), (7, 70_001)] {
            for guide in [None, Some(Arc::clone(&finer))] {
                let mut batches =
                    blob.chunks(300_000).map(|batch| batch.chunks(size).map(Bytes::copy_from_slice).collect());
                let threads = Threads { cores, guide };
                let next = || Ok::<Option<Vec<Bytes>>, Infallible>(batches.next());
                let indexed = index_chunks(options(), None, threads, &Budget::new(u64::MAX), next).unwrap();
                assert!(indexed == whole, "{name} in chunks of {size} on {cores} cores");
                assert!(encoded(&indexed) == encoded(&whole), "{name} in chunks of {size} on {cores} cores");
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
