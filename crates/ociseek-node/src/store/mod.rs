//! The layers of a store for podman and CRI-O: which there are, and which are in use.
//!
//! An image is opened when a runtime first looks for one of its layers. Layers that no index
//! covers, or whose index is not trusted, are left to the runtime, which pulls them. What a runtime
//! uses is found again by the manifest of its image, also after its tag was moved.

mod image;
mod mounting;
mod rows;
mod status;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use image::{FetchedBlob, StoredImage, StoredOptions};
use ociseek_format::digest::Digest;
use ociseek_format::image::{ImageName, Reference};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::tree::OpaqueXattr;
use ociseek_ops::lazy_from::LazyFrom;
use ociseek_ops::open::OpenOptions;
use ociseek_ops::trust::NotedDocuments;
use ociseek_rootfs::content::BackgroundFetches;
use ociseek_rootfs::fuse::MountInfo;
use ociseek_rootfs::fuse::store::{KnownNames, LayerOrigin, LayerSource, NoLayer, StoredLayer};
use ociseek_rootfs::layers::Caches;
use ociseek_store::blob::Target;
use ociseek_store::lock::Hold;
use ociseek_store::{Source, state_file};
use rows::{AnswerFiles, UsedLayers};

pub use mounting::{MountedStore, StoreMountError, StorePoint};
pub use rows::UsedImage;
pub use status::{KeptStore, kept_store};

/// For how long a tag is not looked up again. A pull looks for each layer by itself.
const FRESH: Duration = Duration::from_secs(10);

/// The registry of an image, and what to open of it.
pub type ImageOpener = Arc<
    dyn Fn(Reference) -> BoxFuture<'static, Result<(Source, OpenOptions), String>> + Send + Sync,
>;

/// Options of a store.
pub struct StoreOptions {
    /// How to open an image. None of its layers may be chosen.
    pub opener: ImageOpener,
    /// Whose images are served.
    pub lazy_from: LazyFrom,
    /// How overlayfs marks opaque directories.
    pub opaque: OpaqueXattr,
    /// The time limit for opening an image.
    pub deadline: Duration,
    /// Fetch the rest of each image in the background, with this in common.
    pub rest: Option<Arc<BackgroundFetches>>,
    /// Tell podman up to 5.0 the digest of each layer's tar that the image's config claims.
    pub claims: bool,
    /// The caches of documents and content.
    pub caches: Caches,
}

ociseek_format::opaque_debug!(StoreOptions);

/// The layers of images in registries.
pub struct LayerStore {
    options: StoreOptions,
    dir: PathBuf,
    used: UsedLayers,
    recent: Mutex<HashMap<WantedImage, Arc<Attempt>>>,
    open: Mutex<OpenImages>,
    answers: AnswerFiles,
    /// What the kernel knows, and where. None once another process may serve the state.
    served: Mutex<Option<ServedNames>>,
    progress: Arc<dyn Progress>,
}

ociseek_format::opaque_debug!(LayerStore);

/// The file with what the kernel knows of a mounted store.
const NAMES: &str = "names.json";

/// What the kernel knows of a mounted store.
#[derive(Debug, Default, Serialize, Deserialize)]
struct ServedNames {
    /// The mount point, and the number of the file system that is mounted there.
    mount: Option<(PathBuf, (u32, u32))>,
    names: KnownNames,
}

/// An image by its name, and by the digest of its manifest if that is known.
type WantedImage = (String, Option<Digest>);

/// An image that was opened, or could not be.
struct Attempt {
    begun: Instant,
    image: OnceCell<Option<Arc<StoredImage>>>,
}

/// Images that may be open, by repository and manifest.
type OpenImages = HashMap<(String, Digest), Weak<StoredImage>>;

impl LayerStore {
    /// A store that keeps its state in `dir`. Blocks.
    ///
    /// # Errors
    /// If the state cannot be read, or another process uses it.
    pub fn open(
        dir: &Path,
        options: StoreOptions,
        progress: Arc<dyn Progress>,
    ) -> io::Result<LayerStore> {
        let recent = Mutex::default();
        let open = Mutex::default();
        let warn = |text: &str| progress.report(ProgressEvent::Warning(text.to_owned()));
        let used = UsedLayers::open(dir, &warn)?;
        let served = Mutex::new(Some(ServedNames::default()));
        let answers = AnswerFiles::open(dir, |manifest| used.has(manifest));
        Ok(LayerStore {
            options,
            dir: dir.to_owned(),
            used,
            recent,
            open,
            answers,
            served,
            progress,
        })
    }

    /// What the last process with the state in `dir` has told the kernel of `mount`. None if it
    /// served another mount, or nothing is known. Blocks.
    pub fn names_of(dir: &Path, mount: &MountInfo) -> Option<KnownNames> {
        let served: ServedNames = state_file::read(dir, NAMES).ok()?;
        let (point, file_system) = served.mount?;
        (point == mount.point && file_system == mount.device).then_some(served.names)
    }

    /// The store is mounted here. Begins to keep what another process needs that takes over.
    pub fn mounted(&self, mount: &MountInfo) {
        self.change_served(|served| served.mount = Some((mount.point.clone(), mount.device)));
    }

    /// Lets another process open a store with the same state. Layers that are open remain so.
    pub fn retire(&self) {
        *self.served.hold() = None;
        self.used.unlock();
    }

    fn change_served(&self, change: impl FnOnce(&mut ServedNames)) {
        let mut served = self.served.hold();
        let Some(served) = &mut *served else { return };
        change(served);
        if served.mount.is_some()
            && let Err(error) = state_file::save(&self.dir, NAMES, served)
        {
            self.warn(format!(
                "if the store is killed, its containers must be started again: {NAMES}: {error}"
            ));
        }
    }

    fn warn(&self, text: String) {
        self.progress.report(ProgressEvent::Warning(text));
    }

    /// The image with this name, or with this manifest in its repository. None if it cannot be
    /// opened at present; the reason was reported.
    async fn image(&self, name: &str, manifest: Option<Digest>) -> Option<Arc<StoredImage>> {
        let attempt = {
            let mut recent = self.recent.hold();
            recent.retain(|_, attempt| attempt.begun.elapsed() < FRESH);
            let new = || Arc::new(Attempt { begun: Instant::now(), image: OnceCell::new() });
            Arc::clone(recent.entry((name.to_owned(), manifest)).or_insert_with(new))
        };
        let open = || async {
            match timeout(self.options.deadline, self.open_image(name, manifest)).await {
                Ok(Ok(image)) => Some(image),
                Ok(Err(why)) => {
                    self.warn(format!("cannot open {name}: {why}"));
                    None
                }
                Err(_) => {
                    self.warn(format!(
                        "cannot open {name}: no answer within {:?}",
                        self.options.deadline
                    ));
                    None
                }
            }
        };
        attempt.image.get_or_init(open).await.clone()
    }

    /// Whether the operator names the image's repository. Reports it once for a pull if not.
    fn is_named(&self, name: &str) -> bool {
        let Some(reference) = reference(name) else { return false };
        let named = self.options.lazy_from.rules_for(&ImageName::Registry(reference));
        let Err(reason) = &named else { return true };
        let mut recent = self.recent.hold();
        recent.retain(|_, attempt| attempt.begun.elapsed() < FRESH);
        let attempt = Attempt { begun: Instant::now(), image: OnceCell::new_with(Some(None)) };
        if recent.insert((name.to_owned(), None), Arc::new(attempt)).is_none() {
            self.warn(format!("{name} is left to the runtime: {reason}"));
        }
        false
    }

    async fn open_image(
        &self,
        name: &str,
        manifest: Option<Digest>,
    ) -> Result<Arc<StoredImage>, String> {
        let reference = reference(name).ok_or("not the name of an image in a registry")?;
        let repository = repository(&reference);
        let root = manifest.map_or_else(|| Target::of(&reference), Target::Digest);
        let is_same = |name: &str| {
            self::reference(name).is_some_and(|other| self::repository(&other) == repository)
        };
        let noted = manifest
            .map_or_else(NotedDocuments::new, |manifest| self.used.documents(&manifest, is_same));
        let image = ImageName::Registry(reference.clone());
        let trust = self.options.lazy_from.rules_in_use(&image, noted);
        let (source, open) = (self.options.opener)(reference).await?;
        let open = OpenOptions { trust, ..open };
        // An image that is used is opened again without asking.
        let answers = manifest
            .and_then(|manifest| self.answers.read(&repository, &manifest))
            .unwrap_or_default();
        let source = source.with_documents_in(&self.options.caches.ztocs).recalling(&answers);
        let StoreOptions { opaque, rest, claims, caches, .. } = &self.options;
        let opaque = *opaque;
        let rest = rest.clone();
        let claims = *claims;
        let options = StoredOptions { open, opaque, rest, claims };
        let stored = StoredImage::find(&source, &root, &options, &self.progress).await;
        let stored = stored.map_err(|error| causes(&error))?;
        let key = (repository, stored.manifest.descriptor.digest);
        if let Some(image) = self.open.hold().get(&key).and_then(Weak::upgrade) {
            return Ok(image);
        }
        let image = StoredImage::open(&source, stored, &options, caches, &self.progress).await;
        let image = Arc::new(image.map_err(|error| causes(&error))?);
        self.add(key.clone(), &image);
        let files = self.answers.clone();
        let written = spawn_blocking(move || {
            let written = files.write(&key.0, &key.1, &answers);
            // The image would keep what strangers list for it.
            answers.forget();
            written
        });
        if let Ok(Err(error)) = written.await {
            self.warn(format!("{name} cannot be opened without its registry: {error}"));
        }
        Ok(image)
    }

    /// Adds an image that was opened, and forgets those that are closed.
    fn add(&self, key: (String, Digest), image: &Arc<StoredImage>) {
        let mut open = self.open.hold();
        open.insert(key, Arc::downgrade(image));
        let closed: Vec<Digest> = open
            .extract_if(|_, image| image.strong_count() == 0)
            .map(|((_, manifest), _)| manifest)
            .collect();
        for manifest in closed {
            self.remove_answers(&open, &manifest);
        }
    }

    /// Removes what registries said of an image that is neither used nor open. One that is open may
    /// be used again.
    fn remove_answers(&self, open: &OpenImages, manifest: &Digest) {
        let mut images = open.iter().filter(|((_, other), _)| other == manifest);
        if !self.used.has(manifest) && images.all(|(_, image)| image.strong_count() == 0) {
            self.answers.remove(manifest);
        }
    }

    async fn layer(&self, name: &str, layer: &Digest) -> Result<StoredLayer, NoLayer> {
        let manifest = self.used.manifest(name, layer);
        if manifest.is_none() && !self.is_named(name) {
            return Err(NoLayer::LeftToRuntime);
        }
        let image = self.image(name, manifest).await.ok_or(NoLayer::Failed)?;
        let (opened, info) = image.layer(layer).ok_or(NoLayer::LeftToRuntime)?;
        let tree = image.tree(opened).await.map_err(|error| {
            self.warn(format!(
                "layer {layer} of {name} is left to the runtime: {}",
                causes(&error)
            ));
            NoLayer::LeftToRuntime
        })?;
        let descriptor = opened.descriptor.clone();
        let blob_size = descriptor.size;
        let blob = FetchedBlob::new(
            image.source.clone(),
            descriptor,
            self.dir.clone(),
            Arc::clone(&self.progress),
        );
        Ok(StoredLayer {
            tree,
            content: image.content.clone(),
            info,
            origin: opened.origin(image.manifest),
            blob_size,
            blob: Arc::new(blob),
            hold: Arc::clone(&image) as _,
        })
    }
}

fn repository(reference: &Reference) -> String {
    format!("{}/{}", reference.registry, reference.repository)
}

/// The name of an image in a registry. Runtimes also have images from folders and archives, whose
/// names lead to files of this machine.
fn reference(name: &str) -> Option<Reference> {
    match ImageName::from_str(name) {
        Ok(ImageName::Registry(reference)) => Some(reference),
        _ => None,
    }
}

impl LayerSource for LayerStore {
    fn is_image(&self, name: &str) -> bool {
        reference(name).is_some()
    }

    fn open<'a>(
        &'a self,
        name: &'a str,
        layer: &'a Digest,
    ) -> BoxFuture<'a, Result<StoredLayer, NoLayer>> {
        Box::pin(self.layer(name, layer))
    }

    fn is_used(&self, name: &str, layer: &Digest) -> bool {
        self.used.manifest(name, layer).is_some()
    }

    fn begin_use(&self, name: &str, layer: &Digest, origin: Option<LayerOrigin>) {
        if let Err(error) = self.used.begin(name, layer, origin) {
            self.warn(format!("cannot write down that layer {layer} is used: {error}"));
        }
    }

    fn end_use(&self, name: &str, layer: &Digest) {
        let manifest = self.used.manifest(name, layer);
        if let Err(error) = self.used.end(name, layer) {
            self.warn(format!("cannot write down that layer {layer} is used less: {error}"));
        }
        if let Some(manifest) = manifest {
            self.remove_answers(&self.open.hold(), &manifest);
        }
    }

    fn save_names(&self, names: KnownNames) {
        self.change_served(|served| served.names = names);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_in_registries_have_layers() {
        for name in ["localhost:5000/a/b:v1", "docker.io/library/debian:12", "ghcr.io/a/b@sha256:0"]
        {
            assert_eq!(reference(name).is_some(), !name.ends_with(":0"), "{name}");
        }
        for name in
            ["oci:/etc", "oci-archive:/a.tar", "docker-archive:/a.tar", "", "/", "a b", "..", "A"]
        {
            assert!(reference(name).is_none(), "{name}");
        }
    }
}
