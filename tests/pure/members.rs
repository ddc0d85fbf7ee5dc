//! Layers of many gzip members, or with a ztoc as a guide: decoded by several threads they give
//! what one thread gives, byte for byte and error for error.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flate2::write::GzEncoder;
use flate2::{Compression, GzBuilder};
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::layer::map::SparseFile;
use ociseek_format::layer::parallel::{ChunksError, Threads, index_chunks, read_chunks};
use ociseek_format::layer::span::SpanTable;
use ociseek_format::layer::{
    IndexedLayer, KeepSpans, LayerError, LayerIndexer, LayerMap, LayerOptions, MappedLayer, Notes,
    Outcome,
};
use ociseek_format::layer::{ReadOptions, record};
use ociseek_format::offset::{SpanId, SpanSize};
use ociseek_format::tar::SparseMap;
use ociseek_format::time::Time;
use ociseek_format::ztoc::{Checkpoint, Checkpoints, Ztoc, decode};

/// The headers that tools write: bgzip's and mgzip's extra fields hold the member's size, which
/// nothing here reads.
const BGZIP: &[u8] = b"BC\x02\x00\xff\x3f";
const MGZIP: &[u8] = b"SZ\x04\x00\x00\x00\x01\x00";

const SPAN: u64 = 300_000;

struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Bytes that compress to about three quarters.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.below(64) as u8).collect()
    }
}

/// A tar with files, and the positions of their headers.
fn tar(files: &[Vec<u8>]) -> (Vec<u8>, Vec<usize>) {
    let mut builder = tar::Builder::new(Vec::new());
    let mut starts = Vec::new();
    for (number, data) in files.iter().enumerate() {
        starts.push(builder.get_ref().len());
        let mut header = tar::Header::new_ustar();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, format!("dir/file{number}"), &data[..]).unwrap();
    }
    (builder.into_inner().unwrap(), starts)
}

fn files(noise: &mut Noise, count: u64, most: u64) -> Vec<Vec<u8>> {
    (0..count)
        .map(|_| {
            let size = noise.below(most) as usize;
            if noise.below(4) == 0 { vec![b'z'; size] } else { noise.bytes(size) }
        })
        .collect()
}

fn member(plain: &[u8], extra: &[u8], level: u32) -> Vec<u8> {
    let builder = GzBuilder::new().operating_system(255);
    let builder = if extra.is_empty() { builder } else { builder.extra(extra) };
    let mut encoder: GzEncoder<_> = builder.write(Vec::new(), Compression::new(level));
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap()
}

/// Divided at every `size` bytes of tar, as by bgzip and mgzip.
fn by_size(tar: &[u8], size: usize, extra: &[u8], level: u32) -> Vec<u8> {
    tar.chunks(size).flat_map(|part| member(part, extra, level)).collect()
}

/// A member begins with each file, as in eStargz.
fn by_file(tar: &[u8], starts: &[usize]) -> Vec<u8> {
    let ends = starts[1..].iter().copied().chain([tar.len()]);
    starts.iter().zip(ends).flat_map(|(&start, end)| member(&tar[start..end], b"", 6)).collect()
}

fn options(span_size: u64) -> LayerOptions {
    LayerOptions {
        span_size: SpanSize::new(span_size).unwrap(),
        build_tool_identifier: "members".into(),
        fine: false,
    }
}

fn straight(blob: &[u8], chunk: usize, span_size: u64) -> Result<IndexedLayer, LayerError> {
    let mut indexer = LayerIndexer::new(options(span_size), None);
    for chunk in blob.chunks(chunk) {
        indexer.push(chunk)?;
    }
    indexer.finish()
}

/// The blob in chunks, in batches of `count`.
fn batches(
    blob: &[u8],
    chunk: usize,
    count: usize,
) -> impl FnMut() -> Result<Option<Vec<Bytes>>, Infallible> {
    let blob = Bytes::copy_from_slice(blob);
    let mut chunks =
        (0..blob.len()).step_by(chunk).map(move |at| blob.slice(at..(at + chunk).min(blob.len())));
    move || {
        let batch: Vec<_> = chunks.by_ref().take(count).collect();
        Ok((!batch.is_empty()).then_some(batch))
    }
}

/// These chunks never fail.
fn of_layer(error: ChunksError<Infallible>) -> LayerError {
    match error {
        ChunksError::Layer(error) => error,
        ChunksError::Next(never) => match never {},
    }
}

fn on_cores(
    blob: &[u8],
    chunk: usize,
    cores: usize,
    guide: Option<&Arc<Ztoc>>,
) -> Result<IndexedLayer, LayerError> {
    let threads = Threads { cores, guide: guide.cloned() };
    let next = batches(blob, chunk, cores);
    index_chunks(options(SPAN), None, threads, &Budget::new(u64::MAX), next).map_err(of_layer)
}

/// Keeps the plain bytes of all spans.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Vec<u8>>>);

impl KeepSpans for Keeper {
    fn keep(&mut self, _digest: &Digest, _checkpoint: Option<&Checkpoint>, plain: &[u8]) -> bool {
        self.0.lock().unwrap().extend_from_slice(plain);
        true
    }
}

/// The map of a blob that is only read locally, and all plain bytes of its spans.
fn read_here(
    blob: &[u8],
    chunk: usize,
    cores: usize,
) -> Result<(MappedLayer, Vec<u8>), LayerError> {
    let keeper = Keeper::default();
    let options = ReadOptions {
        span_size: SpanSize::new(SPAN).unwrap(),
        whole_span_size: SpanSize::new(2 * SPAN).unwrap(),
        keeper: Some(Box::new(keeper.clone())),
        keeps_plain: true,
    };
    let expected = (Digest::sha256(blob), blob.len() as u64);
    let threads = Threads { cores, guide: None };
    let memory = Budget::new(u64::MAX).open();
    let mapped = read_chunks(options, expected, threads, memory, batches(blob, chunk, cores))
        .map_err(of_layer)?;
    let kept = std::mem::take(&mut *keeper.0.lock().unwrap());
    Ok((mapped, kept))
}

/// The tar, read through the spans of `map` from the blob or the tar itself.
fn through_spans(map: &LayerMap, blob: &[u8]) -> Vec<u8> {
    let table = SpanTable::new(Arc::new(map.clone())).unwrap();
    let mut plain = Vec::new();
    for span in (0..table.count()).map(SpanId) {
        let range = table.blob_range(span);
        let compressed = &blob[range.start.0 as usize..range.end.0 as usize];
        let mut out = |bytes: &[u8]| {
            plain.extend_from_slice(bytes);
            ControlFlow::Continue(())
        };
        table.decode(span, compressed, &mut out).unwrap();
    }
    plain
}

/// The results with one, two and seven cores must equal that of a single thread.
fn compare(name: &str, blob: &[u8], guide: Option<&Arc<Ztoc>>) -> Result<IndexedLayer, LayerError> {
    for chunk in [256 << 10, 100_003, 16 << 10] {
        let straight = straight(blob, chunk, SPAN);
        for cores in [1, 2, 7] {
            let shared = on_cores(blob, chunk, cores, guide);
            assert!(
                shared == straight,
                "{name}, chunks of {chunk}, {cores} cores: {shared:?}\n{straight:?}"
            );
        }
    }
    straight(blob, 256 << 10, SPAN)
}

/// The ztoc of a layer.
fn ztoc(blob: &[u8], span_size: u64) -> Ztoc {
    match straight(blob, 256 << 10, span_size).unwrap().outcome {
        Outcome::Ztoc(built) => decode(&built.bytes).unwrap(),
        Outcome::Unservable(why) => panic!("left out: {why}"),
    }
}

fn members(layer: &IndexedLayer) -> Option<u64> {
    match &layer.outcome {
        Outcome::Ztoc(built) => built.form.gzip_members(),
        Outcome::Unservable(why) => panic!("left out: {why}"),
    }
}

#[test]
fn layers_of_all_tools() {
    let mut noise = Noise(1);
    let (tar, starts) = tar(&files(&mut noise, 60, 200_000));
    for (name, blob) in [
        ("bgzip", by_size(&tar, 0xff00, BGZIP, 6)),
        ("mgzip", by_size(&tar, 1_000_000, MGZIP, 6)),
        ("eStargz", by_file(&tar, &starts)),
        ("members of 3 MB", by_size(&tar, 3_000_000, b"", 1)),
        ("small members", by_size(&tar, 1000, b"", 6)),
        ("one member", by_size(&tar, usize::MAX, b"", 6)),
    ] {
        let layer = compare(name, &blob, None).unwrap();
        assert!(members(&layer) > Some(1) || name == "one member", "{name}");
    }
}

#[test]
fn highly_compressed_members() {
    let mut noise = Noise(2);
    let mut files = files(&mut noise, 12, 400_000);
    files.insert(4, vec![0; 40 << 20]);
    files.push(vec![b'a'; 9 << 20]);
    let (tar, starts) = tar(&files);
    compare("zeros by file", &by_file(&tar, &starts), None).unwrap();
    compare("zeros, by size", &by_size(&tar, 0xff00, BGZIP, 6), None).unwrap();
}

/// Files that contain stored gzip members. None of their headers is a border of the layer.
#[test]
fn member_headers_inside_of_members() {
    let mut noise = Noise(3);
    let inner = by_size(&noise.bytes(6 << 20), 300_000, b"", 6);
    let (tar, starts) = tar(&[
        noise.bytes(500_000),
        inner.clone(),
        noise.bytes(700_000),
        inner,
        noise.bytes(900_000),
    ]);
    for level in [0, 6] {
        compare("gzip in one member", &by_size(&tar, usize::MAX, b"", level), None).unwrap();
        compare("gzip in members", &by_size(&tar, 777_777, b"", level), None).unwrap();
    }
    compare("gzip by file", &by_file(&tar, &starts), None).unwrap();
    let mut header = member(b"", b"", 6);
    header.truncate(10);
    let traps: Vec<u8> = header.iter().copied().cycle().take(4 << 20).collect();
    let (tar, _) = self::tar(&[traps]);
    compare("nothing but headers", &by_size(&tar, usize::MAX, b"", 0), None).unwrap();
}

#[test]
fn broken_blobs() {
    let mut noise = Noise(4);
    let (tar, starts) = tar(&files(&mut noise, 40, 150_000));
    let whole = [by_size(&tar, 0xff00, BGZIP, 6), by_file(&tar, &starts)];
    let mut errors = BTreeSet::<String>::new();
    for round in 0..24 {
        let mut blob = whole[round % 2].clone();
        let at = noise.below(blob.len() as u64) as usize;
        match round % 6 {
            0 | 1 => blob[at] ^= 1 << noise.below(8),
            2 => blob.truncate(at),
            3 => blob.extend_from_slice(&noise.bytes(2 << 20)),
            4 => drop(blob.splice(at..at, noise.bytes(3))),
            _ => drop(blob.drain(at..at + 1)),
        }
        match compare(&format!("broken {round} at {at}"), &blob, None) {
            Ok(layer) => errors.insert(format!("{:?}", layer.outcome).chars().take(20).collect()),
            Err(error) => errors.insert(format!("{error:?}").chars().take(12).collect()),
        };
    }
    assert!(errors.len() >= 3, "the blobs are all broken in the same way: {errors:?}");
    // The tar is truncated in the middle of the blob, and the gzip stream later.
    let mut tar = tar;
    tar[starts[20]..starts[20] + 512].fill(b'x');
    let mut blob = by_size(&tar, 0xff00, BGZIP, 6);
    let late = blob.len() - 300_000;
    blob[late..late + 40].fill(0xff);
    compare("broken tar in broken gzip", &blob, None).unwrap_err();
}

/// The layer's own ztoc as a guide, with any span size, with several members and with one.
#[test]
fn a_ztoc_is_a_guide() {
    let mut noise = Noise(5);
    let mut files = files(&mut noise, 60, 200_000);
    files.insert(9, vec![b'q'; 30 << 20]);
    let (tar, _) = tar(&files);
    for (name, blob) in [
        ("one member", by_size(&tar, usize::MAX, b"", 6)),
        ("fixed codes", by_size(&tar, usize::MAX, b"", 1)),
        ("stored", by_size(&tar, usize::MAX, b"", 0)),
        ("members of 3 MB", by_size(&tar, 3_000_000, b"", 6)),
        ("small members", by_size(&tar, 0xff00, BGZIP, 6)),
    ] {
        for span_size in [10_000, 1 << 20, 4 << 20] {
            let guide = Arc::new(ztoc(&blob, span_size));
            compare(&format!("{name}, guided by spans of {span_size}"), &blob, Some(&guide))
                .unwrap();
        }
    }
}

/// Large members, which several threads decode from anywhere, whatever is there.
#[test]
fn large_members() {
    let mut noise = Noise(7);
    let mut files = files(&mut noise, 60, 600_000);
    // Blocks that are not compressed, and some that hold much.
    files.insert(20, noise.bytes(1 << 20).iter().map(|_| noise.below(256) as u8).collect());
    files.insert(40, vec![b'q'; 30 << 20]);
    let (tar, _) = tar(&files);
    let one = by_size(&tar, usize::MAX, b"", 6);
    assert!(one.len() > 9 << 20);
    let two = by_size(&tar, tar.len() / 3, b"", 9);
    let mut damaged = one.clone();
    damaged[7 << 20] ^= 1;
    for (name, blob) in [
        ("one member", &one[..]),
        ("three members", &two),
        ("damaged", &damaged),
        ("cut off", &one[..8 << 20]),
    ] {
        let straight = straight(blob, 256 << 10, SPAN);
        for cores in [2, 3, 7] {
            let shared = on_cores(blob, 256 << 10, cores, None);
            assert!(shared == straight, "{name}, {cores} cores: {shared:?}\n{straight:?}");
        }
        let fine = |cores| {
            let threads = Threads { cores, guide: None };
            let next = batches(blob, 100_003, cores);
            let options = LayerOptions { fine: true, ..options(SPAN) };
            index_chunks(options, None, threads, &Budget::new(u64::MAX), next).map_err(of_layer)
        };
        assert!(fine(1) == fine(5), "{name}");
    }
    // Which spans are kept depends on how soon they are hashed.
    let (mapped, _) = read_here(&one, 256 << 10, 1).unwrap();
    let (shared, _) = read_here(&one, 256 << 10, 7).unwrap();
    assert!(mapped.map == shared.map && mapped.notes == shared.notes);
}

/// Wrong guides must not change the result.
#[test]
fn wrong_guides() {
    let mut noise = Noise(6);
    let (tar, _) = tar(&files(&mut noise, 60, 200_000));
    let (other, _) = self::tar(&files(&mut noise, 60, 200_000));
    let blob = by_size(&tar, 2_000_000, b"", 6);
    let right = ztoc(&blob, 300_000);
    let of_other = Arc::new(ztoc(&by_size(&other, 2_000_000, b"", 6), 300_000));
    compare("the ztoc of another layer", &blob, Some(&of_other)).unwrap();
    let plain = Arc::new(ztoc(&tar, 300_000));
    compare("the ztoc of the plain tar", &blob, Some(&plain)).unwrap();
    compare("the ztoc of a gzip for a plain tar", &tar, Some(&Arc::new(right.clone()))).unwrap();
    for round in 0..12 {
        let mut guide = right.clone();
        let Checkpoints::Gzip { list, .. } = &mut guide.checkpoints else { panic!("is of a gzip") };
        for checkpoint in list.iter_mut().skip(1) {
            match (round % 4) + 4 * noise.below(2) {
                0 => checkpoint.window[noise.below(32 << 10) as usize] ^= 1,
                1 => checkpoint.bits = noise.below(8) as u8,
                2 => checkpoint.input.0 += noise.below(3),
                3 => checkpoint.output.0 += noise.below(3),
                _ => {}
            }
        }
        compare(&format!("a damaged ztoc, {round}"), &blob, Some(&Arc::new(guide))).unwrap();
    }
    // A match that reaches before its member is an error, even if a window has the bytes.
    let mut broken = by_size(&tar, 1_500_000, b"", 6);
    let guide = Arc::new(ztoc(&broken, 20_000));
    for _ in 0..6 {
        let at = noise.below(broken.len() as u64) as usize;
        broken[at] ^= 1 << noise.below(8);
        compare("a broken blob", &broken, Some(&guide)).unwrap_err();
    }
}

#[test]
fn layers_without_a_ztoc_are_mapped() {
    let mut noise = Noise(7);
    let (tar, starts) = tar(&files(&mut noise, 40, 200_000));
    let trailing = [by_size(&tar, usize::MAX, b"", 6), b"no gzip".repeat(100)].concat();
    for (name, blob, warnings) in [
        ("small members", by_size(&tar, 0xff00, BGZIP, 6), 0),
        ("members of 500 KB", by_size(&tar, 500_000, b"", 6), 0),
        ("eStargz", by_file(&tar, &starts), 0),
        ("one member", by_size(&tar, usize::MAX, b"", 6), 0),
        ("something behind the gzip", trailing, 1),
        ("a plain tar", tar.clone(), 0),
        ("zstd", zstd::encode_all(&tar[..], 3).unwrap(), 0),
    ] {
        let (MappedLayer { map, notes, .. }, _) = read_here(&blob, blob.len(), 1).unwrap();
        assert_eq!((map.is_unpacked(), notes.warnings.len()), (name == "zstd", warnings), "{name}");
        assert_eq!(map.files.len(), starts.len(), "{name}");
        let spans_of = if map.is_unpacked() { &tar } else { &blob };
        assert!(through_spans(&map, spans_of) == tar, "{name}: its spans are not the tar");
        let kept = record::encode(&map, &notes).unwrap().concat();
        assert!(
            decoded(&kept).unwrap() == (map.clone(), notes.clone()),
            "{name}: its record says something else"
        );
        for (chunk, cores) in [(256 << 10, 1), (256 << 10, 2), (100_003, 7), (16 << 10, 2)] {
            let (same, kept) = read_here(&blob, chunk, cores).unwrap();
            let case = format!("{name}, chunks of {chunk}, {cores} cores");
            assert!(same.map == map && same.notes == notes, "{case}");
            assert!(kept == tar, "{case}: {} bytes were kept", kept.len());
        }
    }
}

fn decoded(record: &[u8]) -> Option<(LayerMap, Notes)> {
    record::decode(record, &mut Budget::new(u64::MAX).open()).unwrap()
}

#[test]
fn layer_map_records_round_trip_and_reject_damage() {
    let (tar, _) = tar(&files(&mut Noise(9), 3, 20_000));
    let (MappedLayer { mut map, .. }, _) =
        read_here(&by_size(&tar, usize::MAX, b"", 6), 1 << 20, 1).unwrap();
    let sparse = |entry, parts: &[(u64, u64)]| SparseFile {
        entry,
        map: SparseMap::new(50, parts.iter().copied()).unwrap(),
    };
    map.sparse = vec![sparse(0, &[(10, 5), (20, 30)]), sparse(2, &[])];
    let mut files = map.files.all().to_vec();
    files[1].mtime = Some(Time { seconds: 1 << 40, nanos: 5 });
    map.files = files.into();
    let notes = Notes { warnings: vec!["odd \n \"so\"".to_owned()], more_warnings: 3 };
    let [head, rest] = record::encode(&map, &notes).unwrap();
    let record = [&head[..], &rest].concat();
    assert!(decoded(&record).unwrap() == (map.clone(), notes.clone()));
    let head = String::from_utf8(head).unwrap();
    let (version, extra) = head.split_once('\n').unwrap();
    let altered = |from: &str, to: &str| {
        assert!(extra.contains(from), "{extra}");
        decoded(&[format!("{version}\n{}", extra.replace(from, to)).as_bytes(), &rest].concat())
    };
    assert!(altered("[2,50,[]]", "[1,50,[]]").is_some());
    for (from, to) in [
        ("[2,50,[]]", "[3,50,[]]"),
        ("[2,50,[]]", "[0,50,[]]"),
        ("[20,30]", "[20,31]"),
        ("[20,30]", "[14,30]"),
        ("[[1,", "[[3,"),
        ("\"unpacked\":false", "\"unpacked\":true"),
        ("\"unpacked\"", "\"packed\""),
        ("{", "{\"more\":0,"),
    ] {
        assert!(altered(from, to).is_none(), "{from} is {to}");
    }
    assert!(decoded(&[b"ociseek layer map 1\n", extra.as_bytes(), &rest].concat()).is_none());
    for cut in (0..record.len()).step_by(97) {
        assert!(decoded(&record[..cut]).is_none(), "cut at {cut}");
    }
    let small = Budget::new(1000);
    assert!(record::decode(&record, &mut small.open()).is_err(), "it does not fit into memory");
}

#[test]
fn unsupported_layers_are_refused_early() {
    let mut bzip2 = Noise(8).bytes(2 << 20);
    bzip2[..4].copy_from_slice(b"BZh9");
    // The long one is not read to its end. The format of the short one is only known at its end.
    for blob in [&bzip2[..], &bzip2[..100]] {
        let mut all = batches(blob, 16 << 10, 1);
        let mut given = 0;
        let next = || {
            given += 1;
            all()
        };
        let options = ReadOptions {
            span_size: SpanSize::new(SPAN).unwrap(),
            whole_span_size: SpanSize::new(SPAN).unwrap(),
            ..ReadOptions::default()
        };
        let expected = (Digest::sha256(blob), blob.len() as u64);
        let threads = Threads { cores: 2, guide: None };
        let result = read_chunks(options, expected, threads, Budget::new(u64::MAX).open(), next);
        assert_eq!(result.err().map(of_layer), Some(LayerError::Compression("bzip2")));
        assert!(given < 40, "{given} of 128 chunks were asked for");
    }
    let (tar, _) = tar(&[vec![b'q'; 100_000]]);
    let zstd = zstd::encode_all(&tar[..], 3).unwrap();
    let cut = read_here(&zstd[..zstd.len() - 5], 1000, 2).err();
    assert!(matches!(&cut, Some(LayerError::Zstd(text)) if text.contains("truncated")), "{cut:?}");
}
