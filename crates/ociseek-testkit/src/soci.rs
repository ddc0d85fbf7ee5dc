//! What tests against soci's own library share: the oracle (tests/oracle, a Go program), and how a
//! layer is indexed here.
use std::convert::Infallible;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use ociseek_format::budget::Budget;
use ociseek_format::layer::parallel::{ChunksError, Threads, index_chunks};
use ociseek_format::layer::{IndexedLayer, LayerError, LayerIndexer, LayerOptions, Outcome};
use ociseek_format::offset::SpanSize;
use ociseek_format::ztoc::decode;

use super::child_process::ChildProcess;
use super::in_memory;
use super::servers::skip;

/// The tool name that soci's own command writes into a ztoc.
pub const TOOL: &str = "AWS SOCI CLI v0.2";

/// The oracle's program, built by .ci/tools. If it is missing, prints a line and returns None.
pub fn oracle_binary() -> Option<PathBuf> {
    let found = tools().map(|dir| dir.join("ociseek-oracle")).filter(|file| file.is_file());
    if found.is_none() {
        skip("no ociseek-oracle: run .ci/tools, which needs Go");
    }
    found
}

/// The folder of the tools that .ci/tools builds.
pub fn tools() -> Option<PathBuf> {
    let cache = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/ociseek-tools/bin"));
    std::env::var_os("OCISEEK_TEST_TOOLS").map(PathBuf::from).or_else(cache)
}

/// Indexes a blob in a file, as callers do: on one thread, and on several for one, two and seven
/// cores, the last time guided by the earlier ztoc. All results must be equal.
pub fn index(layer: &Path, span_size: u64, tool: &str) -> Result<IndexedLayer, LayerError> {
    let options = LayerOptions {
        span_size: SpanSize::new(span_size).unwrap(),
        build_tool_identifier: tool.into(),
        fine: false,
    };
    let straight = straight(layer, span_size, tool);
    for cores in [1, 2, 7] {
        let guide = match &straight {
            Ok(IndexedLayer { outcome: Outcome::Ztoc(built), .. }) if cores == 7 => {
                decode(&built.bytes).ok().map(Arc::new)
            }
            _ => None,
        };
        let mut chunks = chunks(layer);
        let next = || {
            Ok::<_, Infallible>(
                Some(chunks.by_ref().take(cores).collect())
                    .filter(|batch: &Vec<_>| !batch.is_empty()),
            )
        };
        let shared = index_chunks(
            options.clone(),
            None,
            Threads { cores, guide },
            &Budget::new(u64::MAX),
            next,
        );
        let expected = straight.clone().map_err(ChunksError::Layer);
        assert!(shared == expected, "{}, {cores} cores: {shared:?}\n{straight:?}", layer.display());
    }
    straight
}

/// Likewise, on one thread.
pub fn straight(layer: &Path, span_size: u64, tool: &str) -> Result<IndexedLayer, LayerError> {
    let options = LayerOptions {
        span_size: SpanSize::new(span_size).unwrap(),
        build_tool_identifier: tool.into(),
        fine: false,
    };
    let mut indexer = LayerIndexer::new(options, None);
    chunks(layer).try_for_each(|chunk| indexer.push(&chunk))?;
    indexer.finish()
}

fn chunks(layer: &Path) -> impl Iterator<Item = Bytes> + use<> {
    let mut file = File::open(layer).expect("the layer is there");
    std::iter::from_fn(move || {
        let mut chunk = vec![0; 256 << 10];
        let read = file.read(&mut chunk).expect("the layer can be read");
        chunk.truncate(read);
        (read > 0).then(|| chunk.into())
    })
}

/// The compression, which soci does not detect itself.
pub fn algorithm(layer: &Path) -> &'static str {
    let mut head = [0; 2];
    let read = File::open(layer).and_then(|mut f| f.read(&mut head));
    if read.is_ok() && head == [0x1f, 0x8b] { "gzip" } else { "uncompressed" }
}

/// A verdict of the oracle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Ok(String),
    /// soci fails, panics or hangs.
    Refused(String),
    /// soci reads the ztoc, but serves something else than the layer's content.
    Bad(String),
}

impl Verdict {
    pub fn is_ok(&self) -> bool {
        matches!(self, Verdict::Ok(_))
    }

    pub fn detail(&self) -> &str {
        let (Verdict::Ok(detail) | Verdict::Refused(detail) | Verdict::Bad(detail)) = self;
        detail
    }
}

/// A command of the oracle, as a process that handles one job after another.
pub struct Oracle {
    binary: PathBuf,
    command: &'static str,
    running: Option<(ChildProcess, ChildStdin, BufReader<ChildStdout>)>,
}

impl Oracle {
    pub fn new(binary: &Path, command: &'static str) -> Oracle {
        Oracle { binary: binary.into(), command, running: None }
    }

    /// Passes a job to the oracle. A job that kills it counts as refused; the next one gets a new
    /// process.
    pub fn ask(&mut self, fields: &[&str]) -> Verdict {
        let (_, stdin, stdout) =
            self.running.get_or_insert_with(|| start(&self.binary, self.command));
        let mut answer = String::new();
        let asked =
            writeln!(stdin, "{}", fields.join("\t")).and_then(|()| stdout.read_line(&mut answer));
        let Some((word, detail)) =
            answer.trim_end_matches('\n').split_once('\t').filter(|_| asked.is_ok())
        else {
            self.running = None;
            return Verdict::Refused("the oracle's process died of it".into());
        };
        if detail.starts_with("no answer within") {
            self.running = None; // what hangs there would go on
        }
        match word {
            "ok" => Verdict::Ok(detail.into()),
            "bad" => Verdict::Bad(detail.into()),
            _ => Verdict::Refused(detail.into()),
        }
    }

    /// Has soci build a ztoc and write it to `out`.
    pub fn build(&mut self, span_size: u64, tool: &str, layer: &Path, out: &Path) -> Verdict {
        let _ = std::fs::remove_file(out);
        self.ask(&[&span_size.to_string(), tool, algorithm(layer), text(layer), text(out)])
    }

    /// Compares the files that the consumer would serve from a ztoc with the layer.
    pub fn verify(&mut self, ztoc: &Path, layer: &Path) -> Verdict {
        self.ask(&[text(ztoc), text(layer)])
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        if let Some((mut child, stdin, _)) = self.running.take() {
            drop(stdin); // the end of its jobs
            child.wait();
        }
    }
}

fn start(binary: &Path, command: &str) -> (ChildProcess, ChildStdin, BufReader<ChildStdout>) {
    // The oracle's metadata store syncs its file for each entry, so keep it in memory.
    let mut oracle = Command::new(binary);
    oracle.arg(command).env("TMPDIR", in_memory());
    let mut child = ChildProcess::spawn(
        oracle.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()),
    );
    let stdin = child.stdin();
    let stdout = child.stdout();
    (child, stdin, BufReader::new(stdout))
}

fn text(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}
