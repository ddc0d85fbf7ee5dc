//! What the store keeps on disk, to serve layers again while their registry is away.
//!
//! Which layers runtimes use is in a file that is replaced as a whole. A runtime names a layer by
//! the image's name and a digest. The row also has the image's manifest, by which the layer is
//! found again after the tag was moved.
//!
//! What registries said of their images is in a directory for each manifest (`sha256-...`), with a
//! file for each repository.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use ociseek_format::digest::Digest;
use ociseek_ops::trust::NotedDocuments;
use ociseek_rootfs::fuse::store::LayerOrigin;
use ociseek_store::lock::Hold;
use ociseek_store::recall::Recall;
use ociseek_store::state_file::{self, StateEntry, StateReport};

const STATE: &str = "layers.json";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct UsedLayer {
    reference: String,
    layer: Digest,
    #[serde(flatten)]
    origin: LayerOrigin,
    uses: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "StoredState")]
struct State {
    layers: Vec<UsedLayer>,
    /// How many entries of the file are damaged.
    #[serde(skip)]
    damaged: usize,
}

/// The entries in the file. One that is damaged costs only itself.
#[derive(Deserialize)]
struct StoredState {
    layers: Vec<StateEntry<UsedLayer>>,
}

impl From<StoredState> for State {
    fn from(stored: StoredState) -> State {
        let all = stored.layers.len();
        let layers: Vec<UsedLayer> =
            stored.layers.into_iter().filter_map(StateEntry::valid).collect();
        State { damaged: all - layers.len(), layers }
    }
}

/// An image of which runtimes use layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedImage {
    /// The name by which a runtime looked for the layers.
    pub name: String,
    /// Its manifest.
    pub manifest: Digest,
    /// How many of its layers are used.
    pub layers: usize,
}

/// The images of the store with its state in `dir`, by name. Another process may change them
/// meanwhile. Blocks.
///
/// # Errors
/// If the file cannot be read or is damaged.
pub(super) fn used_images(dir: &Path) -> io::Result<Vec<UsedImage>> {
    let state: State = state_file::read(dir, STATE)?;
    let mut layers: BTreeMap<(String, Digest), usize> = BTreeMap::new();
    for row in state.layers {
        *layers.entry((row.reference, row.origin.manifest)).or_default() += 1;
    }
    let image = |((name, manifest), layers)| UsedImage { name, manifest, layers };
    Ok(layers.into_iter().map(image).collect())
}

/// The layers that runtimes use.
#[derive(Debug)]
pub(super) struct UsedLayers {
    dir: PathBuf,
    state: Mutex<State>,
    lock: File,
}

impl UsedLayers {
    /// Opens the file in `dir`, which no other process may use. What is damaged is set aside.
    pub(super) fn open(dir: &Path, report: StateReport<'_>) -> io::Result<UsedLayers> {
        fs::create_dir_all(dir)?;
        let lock = state_file::lock(dir, "layer store", report)?;
        let (state, _) = state_file::read_or_set_aside::<State>(dir, STATE, report)?;
        if state.damaged > 0 {
            let why = format!("{} of its entries are damaged", state.damaged);
            state_file::set_aside(&dir.join(STATE), &why, report);
        }
        Ok(UsedLayers { dir: dir.to_owned(), state: Mutex::new(state), lock })
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
        row.map(|row| row.origin.manifest)
    }

    /// The documents by which the used layers of an image are read. `is_name` says which names the
    /// image has.
    pub(super) fn documents(
        &self,
        manifest: &Digest,
        is_name: impl Fn(&str) -> bool,
    ) -> NotedDocuments {
        let state = self.state.hold();
        let of_image =
            |row: &&UsedLayer| row.origin.manifest == *manifest && is_name(&row.reference);
        let rows = state.layers.iter().filter(of_image);
        rows.map(|row| (row.origin.blob, Some(row.origin.document))).collect()
    }

    /// Whether a layer of the image with this manifest is used.
    pub(super) fn has(&self, manifest: &Digest) -> bool {
        self.state.hold().layers.iter().any(|row| row.origin.manifest == *manifest)
    }

    /// Counts one use more. `origin` is noted down with the first one.
    ///
    /// # Errors
    /// If the file cannot be written. The use counts nevertheless.
    pub(super) fn begin(
        &self,
        reference: &str,
        layer: &Digest,
        origin: Option<LayerOrigin>,
    ) -> io::Result<()> {
        self.change(|layers| {
            let row =
                layers.iter_mut().find(|row| row.layer == *layer && row.reference == reference);
            match (row, origin) {
                (Some(row), _) => row.uses = row.uses.saturating_add(1),
                (None, Some(origin)) => {
                    layers.push(UsedLayer {
                        reference: reference.to_owned(),
                        layer: *layer,
                        origin,
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
#[derive(Debug, Clone)]
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
        let origin = |manifest, document: &[u8]| {
            Some(LayerOrigin { manifest, blob: layer, document: Digest::sha256(document) })
        };
        let open = || UsedLayers::open(dir.path(), &|_| ());
        let layers = open().unwrap();
        assert!(open().unwrap_err().to_string().contains("another layer store"));
        layers.begin("a", &layer, None).unwrap();
        assert_eq!(layers.manifest("a", &layer), None);
        layers.begin("a", &layer, origin(one, b"first")).unwrap();
        layers.begin("a", &layer, origin(other, b"second")).unwrap();
        layers.begin("b", &layer, origin(other, b"third")).unwrap();
        layers.end("b", &layer).unwrap();
        layers.end("b", &layer).unwrap();
        drop(layers);
        fs::write(dir.path().join("unfinished-x"), "x").unwrap();
        let layers = open().unwrap();
        assert!(!dir.path().join("unfinished-x").exists());
        assert_eq!((layers.manifest("a", &layer), layers.manifest("b", &layer)), (Some(one), None));
        assert!(layers.has(&one) && !layers.has(&other));
        let documents = layers.documents(&one, |name| name == "a");
        assert_eq!(documents, NotedDocuments::from([(layer, Some(Digest::sha256(b"first")))]));
        assert!(layers.documents(&one, |name| name == "b").is_empty());
        layers.end("a", &layer).unwrap();
        assert_eq!(layers.manifest("a", &layer), Some(one));
        layers.end("a", &layer).unwrap();
        drop(layers);
        assert_eq!(open().unwrap().manifest("a", &layer), None);
    }

    #[test]
    fn damaged_entries_are_set_aside_and_reported() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join(STATE);
        let reports = std::cell::RefCell::new(Vec::new());
        let report = |text: &str| reports.borrow_mut().push(text.to_owned());
        let open = || UsedLayers::open(dir.path(), &report).unwrap();
        let digest = Digest::sha256(b"layer");
        let origin = LayerOrigin { manifest: digest, blob: digest, document: digest };
        let layers = open();
        layers.begin("one", &digest, Some(origin)).unwrap();
        layers.begin("two", &digest, Some(origin)).unwrap();
        drop(layers);
        let text = fs::read_to_string(&state).unwrap();
        let damaged = text.replacen("\"uses\":1", "\"uses\":-1", 1);
        fs::write(&state, &damaged).unwrap();
        let layers = open();
        assert_eq!(layers.manifest("one", &digest), None);
        assert_eq!(layers.manifest("two", &digest), Some(digest));
        layers.begin("one", &digest, Some(origin)).unwrap();
        drop(layers);
        fs::write(&state, "{").unwrap();
        let layers = open();
        assert_eq!(layers.manifest("two", &digest), None);
        layers.begin("two", &digest, Some(origin)).unwrap();
        drop(layers);
        fs::remove_file(&state).unwrap();
        fs::create_dir_all(state.join("full")).unwrap();
        open().begin("two", &digest, Some(origin)).unwrap();
        let reports = reports.into_inner();
        assert!(
            reports.len() == 3 && reports.iter().all(|said| said.contains(STATE)),
            "{reports:?}"
        );
        let set_aside = |end: &str| fs::read_to_string(dir.path().join(format!("{STATE}{end}")));
        assert_eq!(
            (set_aside(".damaged").unwrap(), set_aside(".damaged1").unwrap()),
            (damaged, "{".to_owned())
        );
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
