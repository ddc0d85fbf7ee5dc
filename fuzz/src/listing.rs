//! What a layer holds, compared with what zlib and Go's archive/tar find in it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use flate2::bufread::GzDecoder;
use ociseek_format::budget::Budget;
use ociseek_format::codec::sniff::{Format, format};
use ociseek_format::digest::Digest;
use ociseek_format::layer::map::Entries;
use ociseek_format::layer::parallel::{Threads, read_chunks};
use ociseek_format::layer::{
    LayerIndexer, LayerMap, LayerOptions, MappedLayer, Outcome, ReadOptions,
};
use ociseek_format::offset::SpanSize;
use ociseek_format::ztoc::{FileKind, FileMetadata, decode};

/// Of the ztocs and maps.
const SPAN: u64 = 2048;
/// Sparse files of more bytes are not expanded. The oracle has the same limit.
const MAX_EXPANDED: u64 = 16 << 20;
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";

/// The ztoc of a layer that we accept; why we do not.
pub fn built(layer: &[u8]) -> Result<Vec<u8>, String> {
    let options = LayerOptions {
        span_size: SpanSize::new(SPAN).unwrap(),
        build_tool_identifier: "test".into(),
        fine: false,
    };
    let mut indexer = LayerIndexer::new(options, None);
    indexer.push(layer).map_err(|e| e.to_string())?;
    match indexer.finish().map_err(|e| e.to_string())?.outcome {
        Outcome::Ztoc(built) => Ok(built.bytes),
        Outcome::Unservable(why) => Err(why.to_string()),
    }
}

/// What a layer that we accept has. zstd is only read, never published.
pub fn accepted(layer: &[u8]) -> Result<LayerMap, String> {
    if !layer.starts_with(ZSTD) {
        return built(layer).map(|ztoc| decode(&ztoc).expect("our own ztoc is sound").into());
    }
    let options = ReadOptions {
        span_size: SpanSize::new(SPAN).unwrap(),
        whole_span_size: SpanSize::new(SPAN).unwrap(),
        ..ReadOptions::default()
    };
    let expected = (Digest::sha256(layer), layer.len() as u64);
    let mut batch = Some(vec![Bytes::copy_from_slice(layer)]);
    let next = || Ok::<_, std::convert::Infallible>(batch.take());
    let threads = Threads { cores: 1, guide: None };
    let read = read_chunks(options, expected, threads, Budget::new(u64::MAX).open(), next);
    let MappedLayer { map, .. } = read.map_err(|e| format!("{e:?}"))?;
    Ok(map)
}

/// What decoders that are not ours make of it; bytes behind the last gzip member are no part of it.
fn plain(layer: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut plain = Vec::new();
    if layer.starts_with(ZSTD) {
        return zstd::decode_all(layer);
    }
    if !layer.starts_with(b"\x1f\x8b") {
        return Ok(layer.to_vec());
    }
    let mut rest = layer;
    while plain.is_empty() || rest.starts_with(b"\x1f\x8b\x08") {
        let before = rest.len();
        GzDecoder::new(&mut rest).read_to_end(&mut plain)?;
        if rest.len() == before {
            break;
        }
    }
    Ok(plain)
}

/// The listing in the form of the oracle's command `list`.
fn listing(map: &LayerMap, plain: &[u8]) -> String {
    let entries = map.entries();
    let line = |(number, file): (u32, &FileMetadata)| {
        let stored = |size: u64| {
            let at = file.offset.0 as usize;
            plain.get(at..at + size as usize).expect("a file's bytes are in the tar")
        };
        let content = match Entries::from(&entries).sparse(number) {
            // Go would take as long to read the zeros.
            Some(sparse) if sparse.size() > MAX_EXPANDED.max(plain.len() as u64) => {
                format!("{}:-", sparse.size())
            }
            Some(sparse) => {
                let mut bytes = vec![0; sparse.size() as usize];
                let stored = stored(sparse.stored());
                for part in sparse.within(0..sparse.size()) {
                    let length = (part.file.end - part.file.start) as usize;
                    let from = part.stored as usize;
                    bytes[part.file.start as usize..part.file.end as usize]
                        .copy_from_slice(&stored[from..from + length]);
                }
                format!("{}:{:08x}", sparse.size(), crc32fast::hash(&bytes))
            }
            None if file.kind == FileKind::Regular => {
                format!("{}:{:08x}", file.size, crc32fast::hash(stored(file.size)))
            }
            None => "-".to_owned(),
        };
        let mut records: Vec<String> = file
            .pax
            .iter()
            .map(|record| format!("{}={}", hex(&record.key), hex(&record.value)))
            .collect();
        records.sort();
        let mtime = file.mtime.unwrap_or_default();
        format!(
            "{} {} {content} {} {}:{} {}:{} {} {}.{} {},{} {};",
            file.kind.name(),
            hex(&file.name),
            file.mode,
            file.uid,
            file.gid,
            hex(&file.uname),
            hex(&file.gname),
            hex(&file.linkname),
            mtime.seconds,
            mtime.nanos,
            file.devmajor,
            file.devminor,
            records.join(",")
        )
    };
    (0..).zip(&*entries.files).map(line).collect()
}

/// Go's archive/tar, in a process that answers layer after layer.
pub struct Go(Child, ChildStdin, BufReader<ChildStdout>);

impl Go {
    pub fn start(binary: &Path) -> Go {
        let mut child = Command::new(binary)
            .arg("list")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = child.stdout.take().unwrap();
        Go(child, stdin, BufReader::new(stdout))
    }

    fn list(&mut self, layer: &[u8]) -> Result<String, String> {
        self.1.write_all(&(layer.len() as u32).to_le_bytes()).unwrap();
        self.1.write_all(layer).unwrap();
        let mut answer = String::new();
        self.2.read_line(&mut answer).unwrap();
        match answer.trim_end_matches('\n').split_once('\t').expect("an answer") {
            ("ok", listing) => Ok(listing.to_owned()),
            (_, why) => Err(why.to_owned()),
        }
    }
}

impl Drop for Go {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a layer was accepted; what was wrong with that.
pub fn check_layer(layer: &[u8], go: Option<&mut Go>) -> Result<bool, String> {
    let Ok(map) = accepted(layer) else { return Ok(false) };
    let plain = plain(layer).map_err(|e| format!("a foreign decoder refuses it: {e}"))?;
    let ours = listing(&map, &plain);
    let theirs = go.map(|go| match go.list(layer) {
        // libzstd, the reference, decodes some damaged blocks that Go's decoder refuses: only a
        // checksum or the layer's digest tells. What it decodes them to must be a tar all the same.
        Err(why) if why.starts_with("zstd: ") => go.list(&plain),
        answer => answer,
    });
    match theirs {
        Some(Err(why)) => Err(format!("Go refuses it: {why}")),
        Some(Ok(theirs)) if !same(&theirs, &ours) => {
            Err(format!("Go lists something else:\n{theirs}\n{ours}"))
        }
        _ => Ok(true),
    }
}

/// Whether both list the same entries. A whiteout that is a hard link may be an empty file in ours
/// (`unlink_whiteouts` says why).
fn same(theirs: &str, ours: &str) -> bool {
    let as_empty_file = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        let [kind, name, content, _, _, _, link, ..] = words.as_mut_slice() else { return None };
        let letters: Vec<&[u8]> = name.as_bytes().chunks(2).collect();
        let mut parts = letters.split(|letter| *letter == b"2f");
        let whiteout = [b"2e", b"77", b"68", b"2e"].map(|letter| letter.as_slice());
        if *kind != "hardlink" || !parts.any(|part| part.starts_with(&whiteout)) {
            return None;
        }
        (*kind, *content, *link) = ("reg", "0:00000000", "");
        Some(words.join(" "))
    };
    theirs.split(';').count() == ours.split(';').count()
        && theirs.split(';').zip(ours.split(';')).all(|(theirs, ours)| {
            theirs == ours || as_empty_file(theirs).is_some_and(|theirs| theirs == ours)
        })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

static GO: LazyLock<Mutex<Go>> = LazyLock::new(|| {
    let cache = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/ociseek-tools/bin"));
    let tools = std::env::var_os("OCISEEK_TEST_TOOLS")
        .map(PathBuf::from)
        .or_else(cache)
        .expect("there is a home");
    Mutex::new(Go::start(&tools.join("ociseek-oracle")))
});

/// Tar archives, with every checksum made right: hardly any change of a header would get further
/// otherwise.
pub fn compare(data: &[u8]) {
    let layer = with_checksums(data);
    // A tar header whose name looks like compressed data is a header to us, and a frame to Go's
    // decoder.
    if format(&layer) != Format::Plain {
        return;
    }
    let go = &mut GO.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(why) = check_layer(&layer, Some(go)) {
        panic!("{why}");
    }
}

/// Makes the checksums right of the first block and of all that say they are a header.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut tar = data.to_vec();
    for (number, block) in tar.as_chunks_mut::<512>().0.iter_mut().enumerate() {
        if number == 0 || &block[257..262] == b"ustar" {
            block[148..156].fill(b' ');
            let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
    tar
}
