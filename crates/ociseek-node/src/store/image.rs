//! An image of which single layers are served, and the blob of a layer, which a runtime reads when
//! it pushes or saves an image.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use ociseek_format::budget::Charge;
use ociseek_format::digest::{Digest, Hasher};
use ociseek_format::image::enabled::TOC_DIGEST;
use ociseek_format::image::{Descriptor, LayerKind};
use ociseek_format::layer::LayerMap;
use ociseek_format::offset::LayerId;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::tree::{OpaqueXattr, Tree};
use ociseek_ops::background::BackgroundTask;
use ociseek_ops::discover::{DiscoverError, PlatformImage};
use ociseek_ops::judge::{Judged, judge_image};
use ociseek_ops::mount::settle;
use ociseek_ops::open::{
    OpenImageError, OpenOptions, facts, open_layers_of, prefetch_artifacts, reopen,
};
use ociseek_ops::tree_memory::{charge_tree, keep_tree};
use ociseek_rootfs::content::{BackgroundFetches, Content};
use ociseek_rootfs::fuse::store::{LayerBlob, LayerOrigin};
use ociseek_rootfs::layers::{Caches, LayerAccess};
use ociseek_store::Source;

/// An image whose indexed layers are open.
pub(super) struct StoredImage {
    pub manifest: Digest,
    pub source: Source,
    pub content: Content,
    layers: Vec<ImageLayer>,
    opaque: OpaqueXattr,
    claims: bool,
    _tasks: Vec<BackgroundTask>,
}

/// A layer that can be read.
pub(super) struct ImageLayer {
    pub descriptor: Descriptor,
    /// Its number in the content.
    number: LayerId,
    /// The digest of its tar, as the image's config claims.
    diff_id: Digest,
    /// The digest of what it is read by: the head of a fine document, or a ztoc. It was verified
    /// when the layer was opened.
    document: Digest,
    /// The size of its tar.
    plain_size: u64,
    map: Arc<LayerMap>,
    tree: OnceCell<(Arc<Tree>, Charge)>,
}

/// What containers/storage notes down of a layer (its `Layer`, layers.go).
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct LayerInfo {
    compressed_size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    diff_digest: Option<Digest>,
    diff_size: u64,
    /// Its number of a compression (pkg/archive).
    compression: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    toc_digest: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<LayerFlags>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct LayerFlags {
    expected_layer_diffid: Digest,
}

/// What of an image is opened, and how.
pub(super) struct StoredOptions {
    pub open: OpenOptions,
    pub opaque: OpaqueXattr,
    /// Fetch the rest of the image in the background, with this in common with others.
    pub rest: Option<Arc<BackgroundFetches>>,
    /// Tell podman up to 5.0 the digests of tars that the image's config claims.
    pub claims: bool,
}

impl StoredImage {
    /// Opens those layers of an image that an index covers. Others are not read.
    ///
    /// # Errors
    /// If the image, its config, or one of these layers cannot be read.
    pub(super) async fn open(
        source: &Source,
        image: PlatformImage,
        options: &StoredOptions,
        caches: &Caches,
        progress: &Arc<dyn Progress>,
    ) -> Result<StoredImage, OpenImageError> {
        let StoredOptions { open, opaque, rest, claims } = options;
        let Judged { image: discovered, trust, diff_ids, .. } =
            judge_image(source, &image, open, caches, progress).await?;
        let document = |layer: &Digest, how| match how {
            LayerAccess::Fine => {
                discovered.document_for(layer).map(|document| document.head_digest)
            }
            LayerAccess::Index => discovered.ztoc_for(layer).map(|ztoc| ztoc.ztoc),
            LayerAccess::Local | LayerAccess::Whole => None,
        };
        let indexed = (discovered.layers.iter().zip(diff_ids))
            .filter(|(layer, _)| discovered.read_by(&layer.digest).is_some());
        let (wanted, diff_ids): (Vec<Descriptor>, Vec<Digest>) =
            indexed.map(|(layer, diff_id)| (layer.clone(), diff_id)).unzip();
        let opened = open_layers_of(
            source,
            &discovered,
            &trust,
            wanted.clone(),
            &open.documents,
            caches,
            progress,
        )
        .await?;
        let facts: Vec<_> = opened.iter().map(|layer| facts(layer, &trust)).collect();
        let layers = (0..).zip(opened.iter().zip(wanted).zip(diff_ids));
        let layers = layers.filter_map(|(number, ((layer, descriptor), diff_id))| {
            Some(ImageLayer {
                // Without a document that fits, it was read completely, and is left to the runtime.
                document: document(&descriptor.digest, layer.how)?,
                plain_size: layer.spans().plain_end().0,
                map: Arc::clone(layer.map()),
                number: LayerId(number),
                diff_id,
                descriptor,
                tree: OnceCell::new(),
            })
        });
        let layers = layers.collect();
        let artifacts = prefetch_artifacts(&discovered, &facts);
        let content = Content::new(
            source.clone(),
            opened,
            caches.spans.clone(),
            open.content.clone(),
            Arc::clone(progress),
        )
        .with_reopen(reopen(source, &discovered, caches));
        let start = open.documents.start;
        let rest = rest.clone();
        let ahead = content.clone();
        let settled = content.clone();
        // Each tree is made when its layer is first looked up.
        let settling = BackgroundTask::spawn(async move { settle(&settled, 0).await });
        let task = BackgroundTask::spawn(async move {
            if start {
                ahead.fetch_start().await;
                ahead.prefetch_artifacts(artifacts).await;
            }
            if let Some(shared) = rest {
                ahead.fetch_rest(&shared).await;
            }
        });
        let manifest = discovered.manifest.digest;
        let opaque = *opaque;
        let claims = *claims;
        let source = source.clone();
        Ok(StoredImage {
            manifest,
            source,
            content,
            layers,
            opaque,
            claims,
            _tasks: vec![task, settling],
        })
    }

    /// A layer by the digest of its blob, or by that of its table of contents.
    ///
    /// A runtime keeps a layer by what `info` says of it, and takes it for other images that state
    /// the same. So nothing is said that only this image claims. The table of contents must be the
    /// document by which the layer is read. The digest of the tar could be that of another
    /// image's layer, and is not known without reading the layer, so podman up to 5.0 gets a digest
    /// that stands for this layer read by this document, unless claims are taken.
    pub(super) fn layer(&self, name: &Digest) -> Option<(&ImageLayer, Bytes)> {
        let by_digest = self.layers.iter().find(|layer| layer.descriptor.digest == *name);
        if let Some(layer) = by_digest {
            let diff_digest = if self.claims { layer.diff_id } else { layer.identity() };
            let info = LayerInfo { diff_digest: Some(diff_digest), ..layer.info() };
            return Some((layer, info.bytes()));
        }
        let layer = self
            .layers
            .iter()
            .find(|layer| layer.document == *name && layer.toc() == Some(*name))?;
        let flags = Some(LayerFlags { expected_layer_diffid: layer.diff_id });
        let info = LayerInfo { toc_digest: Some(*name), flags, ..layer.info() };
        Some((layer, info.bytes()))
    }

    /// The files of a layer, as a lower directory of overlayfs.
    ///
    /// # Errors
    /// If they do not fit into memory, or the layer cannot be a directory by itself.
    pub(super) async fn tree(&self, layer: &ImageLayer) -> Result<Arc<Tree>, OpenImageError> {
        let make = || async {
            let files = layer.map.files.all();
            let charge = charge_tree(self.source.budget(), std::iter::once(&files[..]))?;
            let map = Arc::clone(&layer.map);
            let number = layer.number;
            let opaque = self.opaque;
            let made = spawn_blocking(move || Tree::for_overlay(&map.entries(), number, opaque));
            let tree = made.await.map_err(|_| OpenImageError::Ending)??;
            let (tree, charge) = keep_tree(charge, tree);
            Ok::<_, OpenImageError>((Arc::new(tree), charge))
        };
        Ok(Arc::clone(&layer.tree.get_or_try_init(make).await?.0))
    }
}

impl ImageLayer {
    /// Where its files come from, in the image with this manifest.
    pub(super) fn origin(&self, manifest: Digest) -> LayerOrigin {
        LayerOrigin { manifest, blob: self.descriptor.digest, document: self.document }
    }

    fn toc(&self) -> Option<Digest> {
        self.descriptor.annotations.get(TOC_DIGEST)?.parse().ok()
    }

    fn identity(&self) -> Digest {
        Digest::sha256(
            format!("ociseek store {} {}", self.descriptor.digest, self.document).as_bytes(),
        )
    }

    fn info(&self) -> LayerInfo {
        let compression = match LayerKind::of(&self.descriptor.media_type) {
            LayerKind::Gzip => 2,
            LayerKind::Zstd => 4,
            _ => 0,
        };
        LayerInfo {
            compressed_size: self.descriptor.size,
            diff_digest: None,
            diff_size: self.plain_size,
            compression,
            toc_digest: None,
            flags: None,
        }
    }
}

impl LayerInfo {
    fn bytes(&self) -> Bytes {
        // Digests and numbers are always valid JSON.
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

impl StoredImage {
    /// The manifest of one platform, by which an open image is found again.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) async fn find(
        source: &Source,
        root: &ociseek_store::blob::Target,
        options: &StoredOptions,
        progress: &Arc<dyn Progress>,
    ) -> Result<PlatformImage, OpenImageError> {
        let image = PlatformImage::find(source, root, options.open.platform.as_ref(), progress);
        Ok(Box::pin(image).await.map_err(DiscoverError::from)?)
    }
}

/// A blob that is fetched as a whole when it is first read, into a file without a name: only of a
/// whole blob the digest can be verified.
pub(super) struct FetchedBlob {
    source: Source,
    descriptor: Descriptor,
    dir: PathBuf,
    file: OnceCell<Arc<File>>,
    progress: Arc<dyn Progress>,
}

impl FetchedBlob {
    /// The file is made in `dir`.
    pub(super) fn new(
        source: Source,
        descriptor: Descriptor,
        dir: PathBuf,
        progress: Arc<dyn Progress>,
    ) -> FetchedBlob {
        FetchedBlob { source, descriptor, dir, file: OnceCell::new(), progress }
    }

    async fn fetch(&self) -> Result<Arc<File>, String> {
        let failed = |error: io::Error| error.to_string();
        let mut file = tempfile::tempfile_in(&self.dir).map_err(failed)?;
        let mut blob =
            self.source.blob(&self.descriptor, false).await.map_err(|error| causes(&error))?;
        let mut hasher = Hasher::new(self.descriptor.digest.algorithm());
        while let Some(chunk) = blob.next().await.map_err(|error| causes(&error))? {
            let written = spawn_blocking(move || {
                hasher.update(&chunk);
                file.write_all(&chunk).map(|()| (hasher, file))
            });
            (hasher, file) = written.await.map_err(|error| error.to_string())?.map_err(failed)?;
        }
        match hasher.finish() {
            digest if digest == self.descriptor.digest => Ok(Arc::new(file)),
            digest => Err(format!("it has the digest {digest}")),
        }
    }
}

impl LayerBlob for FetchedBlob {
    fn read(&self, offset: u64, size: usize) -> BoxFuture<'_, Option<Bytes>> {
        Box::pin(async move {
            let fetched = self.file.get_or_try_init(|| self.fetch()).await;
            let file = fetched.inspect_err(|why| {
                let what = format!("cannot fetch layer {}: {why}", self.descriptor.digest);
                self.progress.report(ProgressEvent::Warning(what));
            });
            let file = Arc::clone(file.ok()?);
            let left = self.descriptor.size.saturating_sub(offset);
            let size = size.min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = move || {
                let mut bytes = vec![0; size];
                file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
            };
            spawn_blocking(read).await.ok()?.ok()
        })
    }
}
