//! A file that lists the finished images, to continue an interrupted run. Lines are only ever
//! appended, and an incomplete one is ignored. Only the first one is synced to disk: after a power
//! failure, the images of lost lines are looked at again.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use ociseek_ops::index::{Existing, IndexOptions, Kinds};
use ociseek_ops::versions::Versions;
use ociseek_store::durable::{sync, sync_name};

/// The size limit of a line that is read, in bytes: a registry, a repository and a digest are
/// shorter.
const LINE: u64 = 4096;

/// Why a state file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot use {path}", path = .path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} was written with other options, or is not a state file of backfill", path = .path.display())]
    Other { path: PathBuf },
}

/// The finished images.
pub struct BackfillState {
    path: PathBuf,
    file: File,
    done: FinishedWork,
}

ociseek_format::opaque_debug!(BackfillState);

/// The finished work by subject: an image of a repository, or a tag with the image that it last
/// named.
#[derive(Default)]
struct FinishedWork(HashMap<String, String>);

impl FinishedWork {
    fn has(&self, key: &str) -> bool {
        let (name, digest) = split(key);
        self.0.get(name).is_some_and(|done| done == digest)
    }

    fn add(&mut self, key: &str) {
        let (name, digest) = split(key);
        self.0.insert(name.to_owned(), digest.to_owned());
    }
}

/// Splits a key into `REPOSITORY:TAG` and the digest. A key without a tag is returned whole, with
/// an empty digest.
fn split(key: &str) -> (&str, &str) {
    let (name, digest) = key.split_once('@').unwrap_or((key, ""));
    if name.rsplit('/').next().is_some_and(|last| last.contains(':')) {
        (name, digest)
    } else {
        (key, "")
    }
}

impl BackfillState {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// If it cannot be read and written, or was written for other options.
    pub fn open(
        path: &Path,
        options: &IndexOptions,
        versions: &Versions,
    ) -> Result<BackfillState, StateError> {
        let failed = |source| StateError::Io { path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let head = header(options, versions);
        let mut lines = Lines(BufReader::new(&file));
        let mut done = FinishedWork::default();
        let mut ends_well = true;
        match lines.next().map_err(failed)? {
            None => begin(&mut file, &head, path).map_err(failed)?,
            Some((first, false)) if is_unfinished(&first, &head) => {
                begin(&mut file, &head, path).map_err(failed)?
            }
            Some((first, whole)) if first == head.as_bytes() && whole => {
                while let Some((line, whole)) = lines.next().map_err(failed)? {
                    ends_well = whole;
                    if let Some(key) = std::str::from_utf8(&line).ok().filter(|_| whole) {
                        done.add(key);
                    }
                }
            }
            Some(_) => return Err(StateError::Other { path: path.to_owned() }),
        }
        if !ends_well {
            file.write_all(b"\n").map_err(failed)?;
        }
        Ok(BackfillState { path: path.to_owned(), file, done })
    }

    /// `key` is the [key](crate::job::Job::key) of a job with a digest.
    pub fn has(&self, key: &str) -> bool {
        self.done.has(key)
    }

    /// Records that a job is done.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn add(&mut self, key: &str) -> Result<(), StateError> {
        let written = self.file.write_all(format!("{key}\n").as_bytes());
        written.map_err(|source| StateError::Io { path: self.path.clone(), source })?;
        self.done.add(key);
        Ok(())
    }
}

/// Writes the first line of a new file.
fn begin(file: &mut File, head: &str, path: &Path) -> io::Result<()> {
    // A special file has no length to set.
    if file.metadata()?.len() > 0 {
        file.set_len(0)?;
    }
    file.write_all(format!("{head}\n").as_bytes())?;
    sync(file)?;
    sync_name(path)
}

/// Whether a first line is one that was not completed. Either the process that created the file was
/// killed, or the power failed, which may leave zeros in place of what was not on the disk yet.
fn is_unfinished(first: &[u8], head: &str) -> bool {
    let written = first.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    first.len() <= head.len() + 1 && head.as_bytes().starts_with(&first[..written])
}

/// The first line: the options that determine an index. With other options, no image counts as
/// done.
fn header(options: &IndexOptions, versions: &Versions) -> String {
    let platforms: Vec<String> = options.platforms.iter().map(ToString::to_string).collect();
    let IndexOptions { layer, min_layer_size, .. } = options;
    let kinds = match options.kinds {
        Kinds::Soci => "",
        Kinds::Both => "with fine indexes, ",
        Kinds::Fine => "only fine indexes, ",
    };
    let existing = match options.existing {
        Existing::Skip => "",
        Existing::Replace => "existing replaced, ",
        Existing::Keep => "existing kept, ",
    };
    let versions = match versions {
        Versions::V1 => String::new(),
        Versions::V2(template) => format!("only version 2 as {template}, "),
        Versions::Both(template) => format!("version 2 as {template}, "),
    };
    format!(
        "ociseek backfill 1: span size {}, least layer {min_layer_size}, platforms [{}], {existing}{kinds}{versions}{}",
        layer.span_size,
        platforms.join(","),
        layer.build_tool_identifier
    )
}

struct Lines<R>(R);

impl<R: BufRead> Lines<R> {
    /// A line, and whether it is complete. A line that is too long is returned in parts, none of
    /// which is complete.
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
    use ociseek_format::digest::Digest;
    use ociseek_format::layer::LayerOptions;
    use ociseek_format::offset::SpanSize;

    fn options(span_size: u64) -> IndexOptions {
        IndexOptions {
            layer: LayerOptions {
                span_size: SpanSize::new(span_size).unwrap(),
                build_tool_identifier: "t".into(),
                fine: false,
            },
            min_layer_size: 0,
            ..IndexOptions::default()
        }
    }

    fn key(name: &str, digest: Digest) -> String {
        format!("{name}@{digest}")
    }

    #[test]
    fn only_the_last_image_of_a_tag_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let [a, b] = [Digest::sha256(b"a"), Digest::sha256(b"b")];
        let both = Versions::Both("{tag}-soci".parse().unwrap());
        let mut state = BackfillState::open(&path, &options(1), &both).unwrap();
        let names = [key("r:5000/x:1", a), key("r:5000/x:2", a), key("r:5000/x:1", b)];
        state.add(&names[0]).unwrap();
        state.add(&names[1]).unwrap();
        assert_eq!(names.each_ref().map(|name| state.has(name)), [true, true, false]);
        state.add(&names[2]).unwrap();
        drop(state);
        let state = BackfillState::open(&path, &options(1), &both).unwrap();
        assert_eq!(names.each_ref().map(|name| state.has(name)), [false, true, true]);
        for others in [
            Versions::V1,
            Versions::V2("{tag}-soci".parse().unwrap()),
            Versions::Both("{tag}-2".parse().unwrap()),
        ] {
            assert!(
                matches!(
                    BackfillState::open(&path, &options(1), &others),
                    Err(StateError::Other { .. })
                ),
                "{others:?}"
            );
        }
    }

    #[test]
    fn finished_images_stay_finished_in_later_runs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let [a, b] = [Digest::sha256(b"a"), Digest::sha256(b"b")];
        let mut state = BackfillState::open(&path, &options(1), &Versions::V1).unwrap();
        state.add(&key("r/x", a)).unwrap();
        state.add(&key("r/x", b)).unwrap();
        drop(state);

        let state = BackfillState::open(&path, &options(1), &Versions::V1).unwrap();
        assert!(
            state.has(&key("r/x", a)) && state.has(&key("r/x", b)) && !state.has(&key("r/y", a))
        );
        assert!(matches!(
            BackfillState::open(&path, &options(2), &Versions::V1),
            Err(StateError::Other { .. })
        ));
        let replacing = IndexOptions { existing: Existing::Replace, ..options(1) };
        assert!(matches!(
            BackfillState::open(&path, &replacing, &Versions::V1),
            Err(StateError::Other { .. })
        ));
        for other in [&b"x\n"[..], &[0; 4096]] {
            std::fs::write(dir.path().join("other"), other).unwrap();
            assert!(matches!(
                BackfillState::open(&dir.path().join("other"), &options(1), &Versions::V1),
                Err(StateError::Other { .. })
            ));
        }
        assert!(matches!(
            BackfillState::open(dir.path(), &options(1), &Versions::V1),
            Err(StateError::Io { .. })
        ));
    }

    #[test]
    fn a_truncated_first_line_is_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        drop(BackfillState::open(&path, &options(1), &Versions::V1).unwrap());
        let head = std::fs::read(&path).unwrap();
        let lost = vec![0; head.len()];
        for (length, zeros) in
            (0..head.len()).flat_map(|length| [(length, 0), (length, head.len() - length)])
        {
            std::fs::write(&path, [&head[..length], &lost[..zeros]].concat()).unwrap();
            let mut state = BackfillState::open(&path, &options(1), &Versions::V1).unwrap();
            state.add("r/x@sha256:00").unwrap();
            drop(state);
            assert!(
                BackfillState::open(&path, &options(1), &Versions::V1)
                    .unwrap()
                    .has("r/x@sha256:00"),
                "{length}"
            );
        }
    }

    #[test]
    fn a_truncated_line_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let [a, b, c] = [Digest::sha256(b"a"), Digest::sha256(b"b"), Digest::sha256(b"c")];
        let mut state = BackfillState::open(&path, &options(1), &Versions::V1).unwrap();
        state.add(&key("r/x", a)).unwrap();
        state.add(&key("r/x", b)).unwrap();
        drop(state);
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 1]).unwrap();
        let mut state = BackfillState::open(&path, &options(1), &Versions::V1).unwrap();
        assert!(state.has(&key("r/x", a)) && !state.has(&key("r/x", b)));
        state.add(&key("r/x", c)).unwrap();
        drop(state);
        let state = BackfillState::open(&path, &options(1), &Versions::V1).unwrap();
        assert!(state.has(&key("r/x", a)) && state.has(&key("r/x", c)));
    }
}
