//! What the store keeps on disk, to serve layers again while their registry is away.
//!
//! Which layers runtimes use is in a file that is replaced as a whole. A runtime names a layer by
//! the image's name and a digest. The row also has the image's manifest, by which the layer is
//! found again after the tag was moved.
//!
//! What registries said of their images is in a directory for each manifest (`sha256-...`), with a
//! file for each repository.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use ociseek_format::digest::Digest;
use ociseek_store::lock::Hold;
use ociseek_store::recall::Recall;
use ociseek_store::state_file;

const STATE: &str = "layers.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UsedLayer {
    reference: String,
    layer: Digest,
    manifest: Digest,
    uses: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    layers: Vec<UsedLayer>,
}

/// The layers that runtimes use.
#[derive(Debug)]
pub(super) struct UsedLayers {
    dir: PathBuf,
    state: Mutex<State>,
    lock: File,
}

impl UsedLayers {
    /// Opens the file in `dir`, which no other process may use.
    pub(super) fn open(dir: &Path) -> io::Result<UsedLayers> {
        fs::create_dir_all(dir)?;
        let lock = state_file::lock(dir, "layer store")?;
        let state = Mutex::new(state_file::read(dir, STATE)?);
        Ok(UsedLayers { dir: dir.to_owned(), state, lock })
    }

    /// Lets another process use the file.
    pub(super) fn unlock(&self) {
        // It fails only where no lock is held.
        let _ = self.lock.unlock();
    }

    /// The manifest of the image in which a used layer was found.
    pub(super) fn manifest(&self, reference: &str, layer: &Digest) -> Option<Digest> {
        let state = self.state.hold();
        let row = state.layers.iter().find(|row| row.layer == *layer && row.reference == reference);
        row.map(|row| row.manifest)
    }

    /// Whether a layer of the image with this manifest is used.
    pub(super) fn has(&self, manifest: &Digest) -> bool {
        self.state.hold().layers.iter().any(|row| row.manifest == *manifest)
    }

    /// Counts one use more. `manifest` is noted down with the first one.
    ///
    /// # Errors
    /// If the file cannot be written. The use counts nevertheless.
    pub(super) fn begin(
        &self,
        reference: &str,
        layer: &Digest,
        manifest: Option<Digest>,
    ) -> io::Result<()> {
        self.change(|layers| {
            let row =
                layers.iter_mut().find(|row| row.layer == *layer && row.reference == reference);
            match (row, manifest) {
                (Some(row), _) => row.uses = row.uses.saturating_add(1),
                (None, Some(manifest)) => {
                    layers.push(UsedLayer {
                        reference: reference.to_owned(),
                        layer: *layer,
                        manifest,
                        uses: 1,
                    });
                }
                (None, None) => {}
            }
        })
    }

    /// Counts one use less.
    ///
    /// # Errors
    /// As [`UsedLayers::begin`].
    pub(super) fn end(&self, reference: &str, layer: &Digest) -> io::Result<()> {
        self.change(|layers| {
            let row =
                layers.iter_mut().find(|row| row.layer == *layer && row.reference == reference);
            if let Some(row) = row {
                row.uses = row.uses.saturating_sub(1);
            }
            layers.retain(|row| row.uses > 0);
        })
    }

    fn change(&self, change: impl FnOnce(&mut Vec<UsedLayer>)) -> io::Result<()> {
        let mut state = self.state.hold();
        change(&mut state.layers);
        state_file::save(&self.dir, STATE, &*state)
    }
}

/// The directory of the answers.
#[derive(Debug)]
pub(super) struct AnswerFiles(PathBuf);

impl AnswerFiles {
    /// The answers of a store with its state in `dir`. Those of images that are not used are
    /// removed. Blocks.
    pub(super) fn open(dir: &Path, is_used: impl Fn(&Digest) -> bool) -> AnswerFiles {
        let files = AnswerFiles(dir.join("answers"));
        for entry in fs::read_dir(&files.0).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            if !name.replacen('-', ":", 1).parse().is_ok_and(|manifest| is_used(&manifest)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        files
    }

    fn image(&self, manifest: &Digest) -> PathBuf {
        self.0.join(manifest.to_string().replace(':', "-"))
    }

    fn file(&self, repository: &str, manifest: &Digest) -> PathBuf {
        // The name of a repository may be longer than that of a file.
        self.image(manifest).join(Digest::sha256(repository.as_bytes()).hex())
    }

    /// What the registry said of an image. Blocks.
    pub(super) fn read(&self, repository: &str, manifest: &Digest) -> Option<Recall> {
        Recall::read(&self.file(repository, manifest))
    }

    /// Blocks.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(
        &self,
        repository: &str,
        manifest: &Digest,
        answers: &Recall,
    ) -> io::Result<()> {
        fs::create_dir_all(self.image(manifest))?;
        answers.write(&self.file(repository, manifest))
    }

    /// Removes what is known of an image. Blocks.
    pub(super) fn remove(&self, manifest: &Digest) {
        // What is left is removed at the next start.
        let _ = fs::remove_dir_all(self.image(manifest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ociseek_format::digest::Algorithm;

    #[test]
    fn uses_survive_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let layer = Digest::sha256(b"layer");
        let one = Digest::sha256(b"one");
        let other = Digest::sha256(b"other");
        let layers = UsedLayers::open(dir.path()).unwrap();
        assert!(
            UsedLayers::open(dir.path()).unwrap_err().to_string().contains("another layer store")
        );
        layers.begin("a", &layer, None).unwrap();
        assert_eq!(layers.manifest("a", &layer), None);
        layers.begin("a", &layer, Some(one)).unwrap();
        layers.begin("a", &layer, Some(other)).unwrap();
        layers.begin("b", &layer, Some(other)).unwrap();
        layers.end("b", &layer).unwrap();
        layers.end("b", &layer).unwrap();
        drop(layers);
        fs::write(dir.path().join("unfinished-x"), "x").unwrap();
        let layers = UsedLayers::open(dir.path()).unwrap();
        assert!(!dir.path().join("unfinished-x").exists());
        assert_eq!((layers.manifest("a", &layer), layers.manifest("b", &layer)), (Some(one), None));
        assert!(layers.has(&one) && !layers.has(&other));
        layers.end("a", &layer).unwrap();
        assert_eq!(layers.manifest("a", &layer), Some(one));
        layers.end("a", &layer).unwrap();
        drop(layers);
        assert_eq!(UsedLayers::open(dir.path()).unwrap().manifest("a", &layer), None);
        fs::write(dir.path().join(STATE), "{").unwrap();
        assert!(UsedLayers::open(dir.path()).unwrap_err().to_string().contains("damaged"));
    }

    #[test]
    fn answers_stay_as_long_as_their_image_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let one = Digest::of(Algorithm::Sha512, b"one");
        let other = Digest::sha256(b"two");
        let files = AnswerFiles::open(dir.path(), |_| false);
        for (repository, manifest) in [("a/b", one), ("c/d", one), ("a/b", other)] {
            assert!(files.read(repository, &manifest).is_none());
            files.write(repository, &manifest, &Recall::default()).unwrap();
            assert!(files.read(repository, &manifest).is_some());
        }
        let files = AnswerFiles::open(dir.path(), |manifest| *manifest == one);
        assert!(files.read("c/d", &one).is_some() && files.read("a/b", &other).is_none());
        files.remove(&one);
        files.remove(&one);
        assert!(files.read("a/b", &one).is_none());
    }
}
