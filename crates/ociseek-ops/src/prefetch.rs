//! Finds the spans of layers that a container reads when it starts, for the prefetch list in a SOCI
//! index.
//!
//! Paths are resolved in the flattened image, through whiteouts and links, to the layer that holds
//! the file's bytes. Only layers with a ztoc matter, because consumers pull the others completely.
//! The spans of a whole file are chosen like soci's, which also counts the byte after the file
//! (soci-snapshotter v0.15.0, soci/soci_index.go, `buildPrefetchLayer`).

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ociseek_format::digest::Digest;
use ociseek_format::fine::FineLayer;
use ociseek_format::glob;
use ociseek_format::image::JsonFault;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::image::prefetch::{SpanRange, merge};
use ociseek_format::layer::span::{SpanError, SpanTable};
use ociseek_format::offset::{SpanId, Uncompressed};
use ociseek_format::tree::{Extent, NodeId, NodeKind, Tree, TreeError};
use ociseek_format::ztoc::Ztoc;
use ociseek_rootfs::record::{self, RecordError};

/// The files to prefetch, as specified by the user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PrefetchList {
    requests: Vec<RequestedRead>,
}

/// What to prefetch.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RequestedRead {
    /// A whole file, or all files that match a glob.
    File(Vec<u8>),
    /// A part of a file, in bytes.
    Part { path: Vec<u8>, offset: u64, size: u64 },
}

/// Why a list cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum PathListError {
    #[error("not a JSON array of paths")]
    Json(#[from] JsonFault),
    #[error("not a list of paths: it is not UTF-8")]
    Utf8(#[source] std::str::Utf8Error),
    #[error(
        "not a recording, a JSON array or a list of paths: line {number} is {line} (a path with blanks begins with /)"
    )]
    NotAPath { number: usize, line: String },
    #[error("it lists no paths")]
    Empty,
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Why the files of a list cannot be looked up.
#[derive(Debug, thiserror::Error)]
pub enum PathLookupError {
    #[error("the files to prefetch cannot be looked up: the layers do not form a file system")]
    Tree(#[from] TreeError),
    #[error("the files to prefetch cannot be looked up: the ztoc of layer {layer} cannot be read")]
    Spans { layer: Digest, source: SpanError },
}

/// The result of resolving a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PrefetchSpans {
    /// For each given layer, in order: its [merged](merge) spans, empty for most layers.
    pub spans: Vec<Vec<SpanRange>>,
    /// For each layer: the size of these spans in its blob, in bytes.
    pub bytes: Vec<u64>,
    /// Paths that match no file, in the given order.
    pub missing: Vec<MissingPath>,
}

/// A path that matches no file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPath {
    /// Quoted if it contains unusual characters.
    pub path: String,
    /// The reason, for people.
    pub reason: String,
}

impl fmt::Display for MissingPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not prefetched: {}", self.path, self.reason)
    }
}

impl PrefetchList {
    /// Adds a path or a glob. It starts at the root of the image, with or without a leading slash.
    pub fn add_path(&mut self, path: &str) {
        self.requests.push(RequestedRead::File(path.as_bytes().to_vec()));
    }

    /// Adds a file: a recorded start ([`record::parse`]), a JSON array of paths, as for soci's
    /// `--prefetch-files-json`, or one path per line.
    ///
    /// # Errors
    /// If it is something else, or lists no path.
    pub fn add_file(&mut self, text: &[u8]) -> Result<(), PathListError> {
        let paths: Vec<String> = match text.trim_ascii_start().first() {
            Some(b'{') => return self.add_record(text),
            Some(b'[') => parse_lenient(text)?,
            _ => std::str::from_utf8(text)
                .map_err(PathListError::Utf8)?
                .lines()
                .map(str::to_owned)
                .collect(),
        };
        let is_json = text.trim_ascii_start().first() == Some(&b'[');
        let odd = paths.iter().map(|path| path.trim()).find(|path| !is_listed_path(path));
        if let Some(odd) = odd.filter(|_| !is_json) {
            let number = paths.iter().position(|path| path.trim() == odd).unwrap_or_default() + 1;
            return Err(PathListError::NotAPath { number, line: shown(odd.as_bytes()) });
        }
        let before = self.requests.len();
        // soci trims them too.
        paths
            .iter()
            .map(|path| path.trim())
            .filter(|path| !path.is_empty())
            .for_each(|path| self.add_path(path));
        if self.requests.len() > before { Ok(()) } else { Err(PathListError::Empty) }
    }

    fn add_record(&mut self, text: &[u8]) -> Result<(), PathListError> {
        let reads = record::parse(text)?.into_iter();
        self.requests.extend(reads.map(|read| RequestedRead::Part {
            path: read.path,
            offset: read.offset,
            size: read.size,
        }));
        Ok(())
    }

    /// Identifies this list: the SHA-256 of all its entries, in order.
    pub fn digest(&self) -> Digest {
        let mut text = Vec::new();
        for wish in &self.requests {
            let (path, offset, size) = match wish {
                RequestedRead::File(path) => (path, 0, None),
                RequestedRead::Part { path, offset, size } => (path, *offset, Some(*size)),
            };
            // The length of the path makes the text unambiguous.
            text.extend_from_slice(format!("{} {offset} {size:?} ", path.len()).as_bytes());
            text.extend_from_slice(path);
        }
        Digest::sha256(&text)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }
}

/// Whether a line of a list can be meant as a path or a glob, or is empty. Files of other kinds
/// would be hundreds of paths that no image has.
fn is_listed_path(line: &str) -> bool {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || "<>={}#;".contains(c);
    line.starts_with('/') || !line.contains(is_odd)
}

/// The spans of `layers`, lowest first, that hold the files on the list.
///
/// # Errors
/// If the layers cannot be combined.
pub fn resolve(
    list: &PrefetchList,
    layers: &[(Digest, Arc<Ztoc>)],
) -> Result<PrefetchSpans, PathLookupError> {
    let tree = Tree::flatten(layers.iter().map(|(_, ztoc)| &ztoc.files[..]))?;
    let mut tables = Vec::with_capacity(layers.len());
    for (layer, ztoc) in layers {
        let table = SpanTable::new(Arc::clone(ztoc));
        tables.push(table.map_err(|source| PathLookupError::Spans { layer: *layer, source })?);
    }
    let (parts, missing) = find(list, &tree);
    // A blob may be several layers of an image. Its spans are the same for each.
    let mut by_layer: BTreeMap<Digest, Vec<SpanRange>> = BTreeMap::new();
    for (layer, bytes) in parts {
        let (Some((digest, _)), Some(table)) = (layers.get(layer), tables.get(layer)) else {
            continue;
        };
        let covering = table.covering(bytes);
        if !covering.is_empty() {
            by_layer.entry(*digest).or_default().push(covering.start..=SpanId(covering.end.0 - 1));
        }
    }
    by_layer.values_mut().for_each(|spans| *spans = merge(std::mem::take(spans)));
    let spans: Vec<_> =
        layers.iter().map(|(layer, _)| by_layer.get(layer).cloned().unwrap_or_default()).collect();
    let bytes = tables.iter().zip(&spans).map(|(table, spans)| bytes(table, spans)).collect();
    Ok(PrefetchSpans { spans, bytes, missing })
}

/// What a start reads, by layer: parts of the tar in the order of first use.
pub type LayerReads = BTreeMap<Digest, Vec<Range<Uncompressed>>>;

/// What the list names, by layer, in the order of the list. Also returns entries that match no
/// file. `layers` starts with the lowest.
///
/// # Errors
/// If the layers cannot be combined.
pub fn reads<'a>(
    list: &PrefetchList,
    layers: impl Iterator<Item = (Digest, &'a FineLayer)> + Clone,
) -> Result<(LayerReads, Vec<MissingPath>), PathLookupError> {
    let tree = Tree::flatten(layers.clone().map(|(_, layer)| layer.entries()))?;
    let digests: Vec<Digest> = layers.map(|(digest, _)| digest).collect();
    let (parts, missing) = find(list, &tree);
    let mut reads = LayerReads::new();
    for (layer, bytes) in parts {
        if let Some(digest) = digests.get(layer) {
            reads.entry(*digest).or_default().push(bytes);
        }
    }
    Ok((reads, missing))
}

/// Why a file is not found: most images have small layers that are not indexed.
const NOT_INDEXED: &str = "no indexed layer has it (the others are pulled whole)";

/// The index of a layer in a tree, and a range of its tar.
type Part = (usize, Range<Uncompressed>);

/// The locations of the listed parts of files, in order, and the entries that match no file.
fn find(list: &PrefetchList, tree: &Tree) -> (Vec<Part>, Vec<MissingPath>) {
    let mut parts = FoundParts { tree, parts: Vec::new() };
    let mut missing = Vec::new();
    // Recorded files that do not exist are reported once.
    let mut unread = BTreeMap::new();
    for wish in &list.requests {
        match wish {
            RequestedRead::File(path) => {
                if let Err(reason) = parts.add_files(path) {
                    let reason = of_indexed(tree, path, reason);
                    missing.push(MissingPath { path: shown(path), reason });
                }
            }
            RequestedRead::Part { path, offset, size } => match file_at(tree, path) {
                Ok(file) => {
                    let part = part(file, *offset, *size);
                    parts.parts.extend(part.map(|part| (part.layer.0 as usize, part.range())));
                }
                Err(reason) => {
                    unread.entry(path).or_insert_with(|| of_indexed(tree, path, reason));
                }
            },
        }
    }
    missing
        .extend(unread.into_iter().map(|(path, reason)| MissingPath { path: shown(path), reason }));
    (parts.parts, missing)
}

/// The `reason` why the file at `path` is not found, or that the layers of `tree` lack it. The
/// image may have others.
fn of_indexed(tree: &Tree, path: &[u8], reason: String) -> String {
    let is_pattern = path.iter().any(|b| b"*?".contains(b));
    if is_pattern || tree.resolve(path, true).is_ok() { reason } else { NOT_INDEXED.to_owned() }
}

/// The size of spans in the layer's blob, in bytes. Spans that do not exist count as empty.
pub fn bytes(table: &SpanTable, spans: &[SpanRange]) -> u64 {
    let size = |range: &SpanRange| {
        let first = *range.start();
        let last = (*range.end()).min(SpanId(table.count().checked_sub(1)?));
        (first <= last).then(|| table.blob_range(last).end.0 - table.blob_range(first).start.0)
    };
    spans.iter().filter_map(size).sum()
}

/// The [merged](merge) spans of `new` that hold the content of `spans` of `old`. Both tables must
/// be of the same layer.
pub fn remap(old: &SpanTable, spans: &[SpanRange], new: &SpanTable) -> Vec<SpanRange> {
    let mut mapped = Vec::with_capacity(spans.len());
    for range in spans {
        let first = *range.start();
        let last = (*range.end()).min(SpanId(old.count().saturating_sub(1)));
        if first > last {
            continue;
        }
        let bytes = old.plain_range(first).start..old.plain_range(last).end;
        let covering = new.covering(bytes);
        if !covering.is_empty() {
            mapped.push(covering.start..=SpanId(covering.end.0 - 1));
        }
    }
    merge(mapped)
}

/// The regular file at `path`, following links.
///
/// # Errors
/// Why the path leads to no regular file, for people.
pub fn file_at<'t>(tree: &'t Tree, path: &[u8]) -> Result<&'t NodeKind, String> {
    let node: NodeId = tree.resolve(path, true).map_err(|error| error.to_string())?;
    match &tree.node(node).kind {
        file @ (NodeKind::File(_) | NodeKind::Sparse(_)) => Ok(file),
        NodeKind::Directory(_) => {
            Err("it is a directory (add /** to prefetch the files in it)".to_owned())
        }
        _ => Err("it is not a regular file".to_owned()),
    }
}

/// Where the layer's tar holds a part of a file. None if it holds nothing of it.
pub fn part(file: &NodeKind, offset: u64, size: u64) -> Option<Extent> {
    let end = file.size().min(offset.saturating_add(size));
    file.stored_in(offset.min(end)..end).filter(|part| part.size > 0)
}

struct FoundParts<'a> {
    tree: &'a Tree,
    parts: Vec<Part>,
}

impl FoundParts<'_> {
    /// Adds the file at a path, or else all files that match the path as a glob.
    fn add_files(&mut self, path: &[u8]) -> Result<(), String> {
        let why = match file_at(self.tree, path) {
            Ok(file) => {
                self.add_whole(file);
                return Ok(());
            }
            Err(why) => why,
        };
        if !path.iter().any(|b| b"*?".contains(b)) {
            return Err(why);
        }
        let pattern = path.strip_prefix(b"./").unwrap_or(path);
        let pattern = pattern.strip_prefix(b"/").unwrap_or(pattern);
        let mut matched = false;
        // A file with several names matches by any of them.
        let mut directories = vec![(Tree::ROOT, Vec::new())];
        while let Some((directory, above)) = directories.pop() {
            for (name, node) in self.tree.children(directory) {
                let mut path: Vec<u8> = above.clone();
                path.extend_from_slice(name);
                if self.tree.node(node).kind.is_directory() {
                    path.push(b'/');
                    directories.push((node, path));
                } else if glob::matches(pattern, &path)
                    && let Ok(file) = file_at(self.tree, &path)
                {
                    matched = true;
                    self.add_whole(file);
                }
            }
        }
        if matched { Ok(()) } else { Err("no file of the indexed layers matches it".to_owned()) }
    }

    /// Adds the whole file and, like soci, the byte after it.
    fn add_whole(&mut self, file: &NodeKind) {
        if let Some(extent) = file.stored_in(0..file.size()) {
            let end = Uncompressed(extent.range().end.0.saturating_add(1));
            self.parts.push((extent.layer.0 as usize, extent.offset..end));
        }
    }
}

fn shown(path: &[u8]) -> String {
    ociseek_format::path::shown(path)
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::*;
    use ociseek_format::layer::{LayerIndexer, LayerOptions, Outcome};
    use ociseek_format::offset::SpanSize;
    use ociseek_format::ztoc;

    const SPAN: u64 = 4096;

    /// A plain layer with these entries: name, link target, size. A size makes a file; a target
    /// that begins with `=` makes a hard link.
    fn layer(entries: &[(&str, &str, u64)]) -> (Digest, Arc<Ztoc>) {
        layer_of(entries, SPAN)
    }

    fn layer_of(entries: &[(&str, &str, u64)], span_size: u64) -> (Digest, Arc<Ztoc>) {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, target, size) in entries {
            let mut header = tar::Header::new_gnu();
            header.set_size(*size);
            header.set_mode(0o644);
            let kind = match target.strip_prefix('=') {
                Some(_) => tar::EntryType::Link,
                None if !target.is_empty() => tar::EntryType::Symlink,
                None if name.ends_with('/') => tar::EntryType::Directory,
                None => tar::EntryType::Regular,
            };
            header.set_entry_type(kind);
            header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            if !target.is_empty() {
                header.set_link_name(target.trim_start_matches('=')).unwrap();
            }
            header.set_cksum();
            tar.append(&header, &vec![b'x'; *size as usize][..]).unwrap();
        }
        let tar = tar.into_inner().unwrap();
        let span_size = SpanSize::new(span_size).unwrap();
        let mut indexer =
            LayerIndexer::new(LayerOptions { span_size, ..LayerOptions::default() }, None);
        indexer.push(&tar).unwrap();
        let Outcome::Ztoc(built) = indexer.finish().unwrap().outcome else {
            panic!("it has a ztoc")
        };
        (Digest::sha256(&tar), Arc::new(ztoc::decode(&built.bytes).unwrap()))
    }

    fn spans<const N: usize>(ranges: [RangeInclusive<u32>; N]) -> Vec<SpanRange> {
        ranges.map(|range| SpanId(*range.start())..=SpanId(*range.end())).into()
    }

    fn list(paths: &[&str]) -> PrefetchList {
        let mut list = PrefetchList::default();
        paths.iter().for_each(|path| list.add_path(path));
        list
    }

    /// Two layers. The lower one: headers at 0, 512 (directory), then `lib/a` at 1,536..9,536,
    /// `lib/b` at 10,240..10,250.
    fn image() -> Vec<(Digest, Arc<Ztoc>)> {
        let lower =
            layer(&[("./", "", 0), ("./lib/", "", 0), ("./lib/a", "", 8000), ("./lib/b", "", 10)]);
        let upper = layer(&[
            ("lib/.wh.b", "", 0),
            ("lib/c", "", 7680),
            ("lib/hard", "=lib/c", 0),
            ("lib/soft", "a", 0),
            ("abs", "/lib/soft", 0),
        ]);
        vec![lower, upper]
    }

    #[test]
    fn paths_are_resolved_to_the_layer_that_holds_the_file() {
        let image = image();
        for (path, lower, upper) in [
            ("/lib/a", spans([0..=2]), spans([])),
            ("./lib//a", spans([0..=2]), spans([])),
            ("abs", spans([0..=2]), spans([])),
            // 1,024 to 8,704; the byte after it is in the same span.
            ("lib/c", spans([]), spans([0..=2])),
            ("lib/hard", spans([]), spans([0..=2])),
            ("lib/*", spans([0..=2]), spans([0..=2])),
            ("**/a", spans([0..=2]), spans([])),
        ] {
            let resolved = resolve(&list(&[path]), &image).unwrap();
            assert_eq!((&resolved.spans[0], &resolved.spans[1]), (&lower, &upper), "{path}");
            assert_eq!(resolved.missing, [], "{path}");
        }
    }

    #[test]
    fn a_file_that_ends_at_a_span_border_includes_the_next_span_as_in_soci() {
        // 512 to 4,096.
        let image = [layer(&[("a", "", SPAN - 512), ("b", "", 1)])];
        assert_eq!(resolve(&list(&["a"]), &image).unwrap().spans, [spans([0..=1])]);
    }

    #[test]
    fn missing_files_cause_warnings() {
        let resolved = resolve(&list(&["lib/b", "lib", "nothing/*", "lib/a/x"]), &image()).unwrap();
        assert_eq!(resolved.spans, [spans([]), spans([])]);
        assert_eq!(resolved.bytes, [0, 0]);
        assert_eq!(resolved.missing.len(), 4, "{:?}", resolved.missing);
        assert!(resolved.missing[1].to_string().contains("/**"), "{:?}", resolved.missing);
    }

    #[test]
    fn recorded_reads_are_parts_of_files() {
        let read = |path: &str, offset: u64, size: u64| {
            format!(
                r#"{{"ms":1.0,"path":"{path}","layer":"sha256:0","offset":{offset},"size":{size},"spans":[7]}}"#
            )
        };
        let profile = [
            read("lib/a", 7000, 4096),
            read("gone", 0, 1),
            read("gone", 1, 1),
            read("lib/c", 9000, 1),
        ];
        let mut list = PrefetchList::default();
        list.add_file(profile.join("\n").as_bytes()).unwrap();
        let resolved = resolve(&list, &image()).unwrap();
        // Bytes 8,536 to 9,536 of the lower tar. A part after the end of a file that used to be
        // larger gives nothing.
        assert_eq!(resolved.spans, [spans([2..=2]), spans([])]);
        assert_eq!(resolved.missing.len(), 1, "{:?}", resolved.missing);
    }

    #[test]
    fn ranges_convert_to_spans_of_another_size() {
        let tar = [("a", "", 20_000), ("b", "", 5_000)];
        let table = |span| SpanTable::new(layer_of(&tar, span).1).unwrap();
        let fine = table(SPAN);
        let coarse = table(3 * SPAN);
        assert_eq!(resolve(&list(&["a"]), &[layer(&tar)]).unwrap().bytes, [6 * SPAN]);
        let some = spans([0..=0, 5..=u32::MAX, 99..=100]);
        assert_eq!(bytes(&fine, &some), SPAN + fine.ztoc().compressed_size.0 - 5 * SPAN);
        assert_eq!(remap(&fine, &spans([0..=1, 4..=4]), &coarse), spans([0..=1]));
        assert_eq!(remap(&coarse, &spans([1..=1]), &fine), spans([3..=5]));
        for table in [&fine, &coarse] {
            let all = spans([0..=table.count() - 1]);
            assert_eq!(remap(table, &all, table), all);
            // Spans are cut at the end, and those after the end are dropped.
            assert_eq!(remap(table, &spans([0..=u32::MAX, 99..=u32::MAX]), table), all);
        }
    }

    #[test]
    fn lists_are_json_or_lines() {
        let mut lines = PrefetchList::default();
        lines.add_file(b" /a \n\n/b\r\n").unwrap();
        let mut json = PrefetchList::default();
        json.add_file(b"\n[\"/a\", \" /b\", \"\"]").unwrap();
        assert_eq!(lines, json);
        assert_eq!(lines, list(&["/a", "/b"]));
        for bad in [&b""[..], b"[]", b"[1]", b"\xff"] {
            assert!(PrefetchList::default().add_file(bad).is_err());
        }
    }

    #[test]
    fn a_repeated_layer_has_one_list() {
        let twice = layer(&[("a", "", 10_000)]);
        let resolved = resolve(&list(&["a"]), &[twice.clone(), twice]).unwrap();
        assert_eq!(resolved.spans, [spans([0..=2]), spans([0..=2])]);
    }
}
