//! Records which files and spans of an image are read first, and in which order. Lists of spans to
//! fetch in advance are made from these records.
//!
//! A read is recorded if it is the first of its file, or if some of its bytes were not read before.
//! So records depend neither on the spans of an index nor on the content of caches. A record is a
//! line of JSON:
//!
//! | field | |
//! |---|---|
//! | `ms` | milliseconds since the mount, with three decimal places |
//! | `path` | of the file, one of them if it has several; `path_b64`, in base64, if it is not UTF-8 |
//! | `layer` | digest of the layer that holds the file's content |
//! | `offset`, `size` | what was read, in bytes of the file |
//! | `spans` | numbers of the layer's spans that no line before this one has; none if the layer has no spans |

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};

use super::content::Content;
use ociseek_format::digest::Digest;
use ociseek_format::image::JsonFault;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::offset::{LayerId, SpanId};
use ociseek_format::printable::json_line;
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_format::tree::{Extent, NodeId, Tree};
use ociseek_store::lock::Hold;

/// Where reads are recorded.
#[derive(Debug)]
pub enum Record {
    /// A file, in which each line is written at once.
    File(File),
    /// Memory, for at most this many reads.
    Memory(usize),
}

/// A read that touched something for the first time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Touch {
    /// The time since the mount.
    #[serde(rename = "ms", serialize_with = "serialize")]
    pub since_mount: Duration,
    /// The path of the file in the image.
    #[serde(flatten)]
    pub path: FilePath,
    /// The layer that holds the file's content.
    pub layer: Digest,
    /// The offset of the read in the file, in bytes.
    pub offset: u64,
    /// The size of the read in bytes.
    pub size: u64,
    /// The spans of the layer that hold these bytes.
    #[serde(serialize_with = "numbers")]
    pub spans: Vec<SpanId>,
}

/// A path that can be written as JSON, whatever its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilePath(pub Vec<u8>);

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeMap;
        let mut map = serializer.serialize_map(Some(1))?;
        match std::str::from_utf8(&self.0) {
            Ok(path) => map.serialize_entry("path", path)?,
            Err(_) => map.serialize_entry("path_b64", &STANDARD.encode(&self.0))?,
        }
        map.end()
    }
}

/// A read of a recorded start, reduced to what other builds of the image can use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRead {
    /// The path of the file without a leading slash.
    pub path: Vec<u8>,
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The size of the read in bytes.
    pub size: u64,
}

/// Why a text is not a record of reads.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("line {0} is not a record of a read")]
    Line(usize, #[source] JsonFault),
    #[error("line {0} has neither a path nor a path in base64")]
    Path(usize),
    #[error("not the document of ociseek try")]
    Report(#[source] JsonFault),
    #[error("it records no reads")]
    Empty,
}

#[derive(Deserialize)]
struct Line {
    path: Option<String>,
    path_b64: Option<String>,
    offset: u64,
    size: u64,
}

/// Parses the output of [`ReadRecorder`]: its lines, or the JSON document of `ociseek try`, which
/// has them in `touches`.
///
/// # Errors
/// If `text` is something else, or records no reads.
pub fn parse(text: &[u8]) -> Result<Vec<RecordedRead>, RecordError> {
    #[derive(Deserialize)]
    struct Report {
        touches: Vec<Line>,
    }
    let lines: Vec<&[u8]> =
        text.split(|&b| b == b'\n').filter(|line| !line.trim_ascii().is_empty()).collect();
    let is_report = lines.first().is_some_and(|first| first.trim_ascii() == b"{");
    let touches: Vec<Line> = if is_report {
        parse_lenient::<Report>(text).map_err(RecordError::Report)?.touches
    } else {
        (1..)
            .zip(&lines)
            .map(|(number, line)| {
                parse_lenient(line).map_err(|fault| RecordError::Line(number, fault))
            })
            .collect::<Result<_, _>>()?
    };
    if touches.is_empty() {
        return Err(RecordError::Empty);
    }
    let read = |(number, Line { path, path_b64, offset, size })| {
        let decoded = || path_b64.and_then(|text: String| STANDARD.decode(text).ok());
        let path =
            path.map(String::into_bytes).or_else(decoded).ok_or(RecordError::Path(number))?;
        Ok(RecordedRead { path, offset, size })
    };
    (1..).zip(touches).map(read).collect()
}

fn numbers<S: Serializer>(spans: &[SpanId], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(spans.iter().map(|span| span.0))
}

fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(milliseconds(*duration))
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_micros() as f64 / 1000.0
}

impl Touch {
    /// Milliseconds since the mount, with microsecond precision.
    pub fn milliseconds(&self) -> f64 {
        milliseconds(self.since_mount)
    }
}

/// Records reads. Called from several threads at once.
pub struct ReadRecorder {
    tree: Arc<Tree>,
    content: Content,
    /// The digests of the layers, lowest first.
    layers: Vec<Digest>,
    started: Instant,
    has_ended: AtomicBool,
    state: Mutex<State>,
    progress: Arc<dyn Progress>,
}

ociseek_format::opaque_debug!(ReadRecorder);

struct State {
    /// The ranges read from each file.
    files: HashMap<NodeId, Ranges>,
    spans: HashSet<(LayerId, SpanId)>,
    notes: Notes,
}

/// Disjoint ranges, as a map from start to end.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range. Returns false if all of it was already there.
    fn add(&mut self, range: Range<u64>) -> bool {
        let mut start = range.start;
        let mut end = range.end;
        while let Some((&from, &to)) =
            self.0.range(..=end).next_back().filter(|(_, to)| **to >= start)
        {
            if from <= range.start && range.end <= to {
                return false;
            }
            self.0.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.0.insert(start, end);
        true
    }
}

enum Notes {
    Memory {
        touches: Vec<Touch>,
        most: usize,
    },
    File(File),
    /// Writing the file failed, or the record has ended.
    Ended,
}

impl ReadRecorder {
    /// Starts the clock.
    pub fn new(
        tree: Arc<Tree>,
        content: Content,
        layers: Vec<Digest>,
        record: Record,
        progress: Arc<dyn Progress>,
    ) -> ReadRecorder {
        let notes = match record {
            Record::File(file) => Notes::File(file),
            Record::Memory(most) => Notes::Memory { touches: Vec::new(), most },
        };
        let state = Mutex::new(State { files: HashMap::new(), spans: HashSet::new(), notes });
        let started = Instant::now();
        let has_ended = AtomicBool::new(false);
        ReadRecorder { tree, content, layers, started, has_ended, state, progress }
    }

    /// Records a read of the bytes of `range` of a file, which are in the tar at `stored`.
    pub fn record_read(&self, node: NodeId, range: Range<u64>, stored: Extent) {
        let layer = stored.layer;
        // Most reads of a long mount come after the end, and need no lock.
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let since_mount = self.started.elapsed();
        let Some(digest) = self.layers.get(layer.0 as usize) else { return };
        let needed = self.content.spans(layer, stored.range());
        let mut state = self.state.hold();
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let is_first = !state.files.contains_key(&node);
        let offset = range.start;
        let size = range.end.saturating_sub(range.start);
        let is_new = state.files.entry(node).or_default().add(range);
        if !is_first && !is_new {
            return;
        }
        let spans =
            SpanId::each(needed).filter(|span| state.spans.insert((layer, *span))).collect();
        let path = FilePath(self.tree.path(node));
        let touch = Touch { since_mount, path, layer: *digest, offset, size, spans };
        match &mut state.notes {
            Notes::Memory { touches, most } => {
                touches.push(touch);
                if touches.len() >= *most {
                    self.has_ended.store(true, Ordering::Relaxed);
                    (state.files, state.spans) = Default::default();
                }
            }
            Notes::Ended => {}
            Notes::File(file) => {
                if let Err(error) = write_line(file, &touch) {
                    state.notes = Notes::Ended;
                    let text = format!("cannot write the record of reads any further: {error}");
                    self.progress.report(ProgressEvent::Warning(text));
                }
            }
        }
    }

    /// The touches so far, in order. Empty if they are written to a file.
    pub fn touches(&self) -> Vec<Touch> {
        match &self.state.hold().notes {
            Notes::Memory { touches, .. } => touches.clone(),
            Notes::File(_) | Notes::Ended => Vec::new(),
        }
    }

    /// The number of reads that are kept in memory so far.
    pub fn count(&self) -> usize {
        match &self.state.hold().notes {
            Notes::Memory { touches, .. } => touches.len(),
            Notes::File(_) | Notes::Ended => 0,
        }
    }

    /// Ends the record. Returns the touches, as [`touches`](ReadRecorder::touches), and keeps
    /// nothing.
    pub fn end(&self) -> Vec<Touch> {
        let mut state = self.state.hold();
        self.has_ended.store(true, Ordering::Relaxed);
        let ended = State { files: HashMap::new(), spans: HashSet::new(), notes: Notes::Ended };
        match std::mem::replace(&mut *state, ended).notes {
            Notes::Memory { touches, .. } => touches,
            Notes::File(_) | Notes::Ended => Vec::new(),
        }
    }
}

/// Writes a touch as a line of JSON.
///
/// # Errors
/// If writing to `out` fails.
pub fn write_line(out: &mut impl Write, touch: &Touch) -> io::Result<()> {
    let line = json_line(touch)? + "\n";
    out.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_round_trip() {
        let mut touch = Touch {
            since_mount: Duration::from_micros(12_345),
            path: FilePath(b"usr/bin/env".to_vec()),
            layer: Digest::sha256(b""),
            offset: 0,
            size: 7,
            spans: vec![SpanId(3), SpanId(4)],
        };
        let line = |touch: &Touch| serde_json::to_string(touch).unwrap();
        assert_eq!(
            line(&touch),
            format!(
                r#"{{"ms":12.345,"path":"usr/bin/env","layer":"{}","offset":0,"size":7,"spans":[3,4]}}"#,
                Digest::sha256(b"")
            )
        );
        let named = line(&touch);
        touch.path = FilePath(b"\xff".to_vec());
        touch.offset = 9;
        let odd = line(&touch);
        assert!(odd.contains(r#""path_b64":"/w==","#));

        let read = |path: &[u8], offset| RecordedRead { path: path.to_vec(), offset, size: 7 };
        let reads = vec![read(b"usr/bin/env", 0), read(b"\xff", 9)];
        assert_eq!(parse(format!("{named}\n{odd}\n").as_bytes()).unwrap(), reads);
        let report = serde_json::json!({"image": "x", "touches": [touch, touch]});
        let report = serde_json::to_string_pretty(&report).unwrap();
        assert_eq!(parse(report.as_bytes()).unwrap(), vec![reads[1].clone(); 2]);
    }

    #[test]
    fn each_byte_is_recorded_once() {
        let mut ranges = Ranges::default();
        for (range, is_new) in [
            (10..20, true),
            (30..40, true),
            (12..20, false),
            (15..35, true),
            (10..40, false),
            (40..50, true),
            (0..60, true),
            (0..60, false),
        ] {
            assert_eq!(ranges.add(range.clone()), is_new, "{range:?}");
        }
        assert_eq!(ranges.0, BTreeMap::from([(0, 60)]));
    }

    #[test]
    fn invalid_records_are_refused() {
        assert!(matches!(parse(b""), Err(RecordError::Empty)));
        assert!(matches!(parse(b"/usr/bin/env\n"), Err(RecordError::Line(1, _))));
        let line = r#"{"path":"a","offset":0,"size":1}"#;
        assert!(matches!(
            parse(format!("{line}\n\n{{\"offset\":0}}").as_bytes()),
            Err(RecordError::Line(2, _))
        ));
        assert!(matches!(parse(br#"{"offset":0,"size":1}"#), Err(RecordError::Path(1))));
        assert!(matches!(parse(b"{\n}"), Err(RecordError::Report(_))));
    }
}
