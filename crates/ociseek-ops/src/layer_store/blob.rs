//! The blob of a layer, which a runtime reads when it pushes or saves an image.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use ociseek_format::digest::Hasher;
use ociseek_format::image::Descriptor;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_rootfs::fuse::store::LayerBlob;
use ociseek_store::Source;

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
        let mut blob = self.source.blob(&self.descriptor, false).await.map_err(|error| causes(&error))?;
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
            let (file, left) = (Arc::clone(file.ok()?), self.descriptor.size.saturating_sub(offset));
            let size = size.min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = move || {
                let mut bytes = vec![0; size];
                file.read_exact_at(&mut bytes, offset).map(|()| Bytes::from(bytes))
            };
            spawn_blocking(read).await.ok()?.ok()
        })
    }
}
