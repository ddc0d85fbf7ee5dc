//! The file that says which images are done, so that a run that was broken off goes on from there. Lines are only ever added, and
//! one that was cut is as good as none.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::ops::index::{Existing, IndexOptions};

/// The longest line that is read, in bytes: a registry, a repository and a digest are shorter.
const LINE: u64 = 4096;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot use {path}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is of other options, or no state of ociseek backfill", path = .path.display())]
    Other { path: PathBuf },
}

/// Which images are done.
pub struct State {
    path: PathBuf,
    file: File,
    done: HashSet<String>,
}

impl State {
    /// Opens or makes the file.
    ///
    /// # Errors
    /// When it cannot be read and written, or was written for other options.
    pub fn open(path: &Path, options: &IndexOptions) -> Result<State, StateError> {
        let failed = |source| StateError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let head = header(options);
        let mut lines = Lines(BufReader::new(&file));
        let (mut done, mut ends_well) = (HashSet::new(), true);
        match lines.next().map_err(failed)? {
            None => file.write_all(format!("{head}\n").as_bytes()).map_err(failed)?,
            Some((first, whole)) if first == head.as_bytes() && whole => {
                while let Some((line, whole)) = lines.next().map_err(failed)? {
                    ends_well = whole;
                    if let Some(key) = std::str::from_utf8(&line).ok().filter(|_| whole) {
                        done.insert(key.to_owned());
                    }
                }
            }
            Some(_) => return Err(StateError::Other { path: path.to_owned() }),
        }
        if !ends_well {
            file.write_all(b"\n").map_err(failed)?;
        }
        Ok(State { path: path.to_owned(), file, done })
    }

    pub fn has(&self, repository: &str, digest: &Digest) -> bool {
        self.done.contains(&key(repository, digest))
    }

    /// Writes down that an image is done.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn add(&mut self, repository: &str, digest: &Digest) -> Result<(), StateError> {
        let key = key(repository, digest);
        let written = self.file.write_all(format!("{key}\n").as_bytes());
        written.map_err(|source| StateError::Io { path: self.path.clone(), source })?;
        self.done.insert(key);
        Ok(())
    }
}

/// The first line: what decides about an index. With other options nothing is done.
fn header(options: &IndexOptions) -> String {
    let platforms: Vec<String> = options.platforms.iter().map(ToString::to_string).collect();
    let IndexOptions { layer, min_layer_size, .. } = options;
    let existing = match options.existing {
        Existing::Skip => "",
        Existing::Replace => "existing replaced, ",
        Existing::Keep => "existing kept, ",
    };
    format!(
        "ociseek backfill 1: span size {}, least layer {min_layer_size}, platforms [{}], {existing}{}",
        layer.span_size,
        platforms.join(","),
        layer.build_tool_identifier
    )
}

fn key(repository: &str, digest: &Digest) -> String {
    format!("{repository}@{digest}")
}

struct Lines<R>(R);

impl<R: BufRead> Lines<R> {
    /// A line, and whether it is whole. One that is too long is read in parts, none of which is whole.
    fn next(&mut self) -> io::Result<Option<(Vec<u8>, bool)>> {
        let mut line = Vec::new();
        if io::Read::take(&mut self.0, LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let whole = line.pop_if(|byte| *byte == b'\n').is_some();
        Ok(Some((line, whole)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::LayerOptions;
    use crate::ops::index::{Gate, Reuse};

    fn options(span_size: u64) -> IndexOptions {
        IndexOptions {
            platforms: Vec::new(),
            layer: LayerOptions { span_size, build_tool_identifier: "t".into() },
            min_layer_size: 0,
            existing: Existing::Skip,
            jobs: 1,
            dry_run: false,
            deadline: None,
            gate: Gate::default(),
            reuse: Reuse::default(),
            prefetch: None,
        }
    }

    #[test]
    fn what_is_done_is_done_the_next_time_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let [a, b] = [Digest::sha256(b"a"), Digest::sha256(b"b")];
        let mut state = State::open(&path, &options(1)).unwrap();
        state.add("r/x", &a).unwrap();
        state.add("r/x", &b).unwrap();
        drop(state);

        let state = State::open(&path, &options(1)).unwrap();
        assert!(state.has("r/x", &a) && state.has("r/x", &b) && !state.has("r/y", &a));
        assert!(matches!(State::open(&path, &options(2)), Err(StateError::Other { .. })));
        let replacing = IndexOptions { existing: Existing::Replace, ..options(1) };
        assert!(matches!(State::open(&path, &replacing), Err(StateError::Other { .. })));
        std::fs::write(dir.path().join("other"), "x\n").unwrap();
        assert!(matches!(State::open(&dir.path().join("other"), &options(1)), Err(StateError::Other { .. })));
        assert!(matches!(State::open(dir.path(), &options(1)), Err(StateError::Io { .. })));
    }

    #[test]
    fn a_line_that_was_cut_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let [a, b, c] = [Digest::sha256(b"a"), Digest::sha256(b"b"), Digest::sha256(b"c")];
        let mut state = State::open(&path, &options(1)).unwrap();
        state.add("r/x", &a).unwrap();
        state.add("r/x", &b).unwrap();
        drop(state);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 1]).unwrap();
        let mut state = State::open(&path, &options(1)).unwrap();
        assert!(state.has("r/x", &a) && !state.has("r/x", &b));
        state.add("r/x", &c).unwrap();
        drop(state);
        let state = State::open(&path, &options(1)).unwrap();
        assert!(state.has("r/x", &a) && state.has("r/x", &c));
    }
}
