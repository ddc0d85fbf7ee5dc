//! Layers whose fine document turns out to be damaged after they were opened. They are opened again
//! without it, and read in that other way from then on.

use std::sync::Arc;

use bytes::Bytes;
use tokio::time::timeout;

use super::inner::{Layer, LayerHandle};
use super::model::ReadError;
use crate::layers::OpenError;
use ociseek_format::layer::span::SpanError;
use ociseek_format::offset::{LayerId, Uncompressed};
use ociseek_format::progress::causes;

/// Why a layer cannot be read in another way after its fine document turned out to be damaged.
#[derive(Debug, thiserror::Error)]
#[error("its fine document lists other files than the layer")]
struct OtherFiles;

impl ReadError {
    /// Whether a layer's fine document may be the reason, and not the layer or the registry.
    fn is_of_document(&self) -> bool {
        match self {
            ReadError::Page { .. } => true,
            ReadError::Window { source, .. } => !source.is_transient(),
            ReadError::Span { source, .. } => {
                matches!(source, SpanError::Gzip { .. } | SpanError::Short { .. } | SpanError::NoWindow { .. })
            }
            _ => false,
        }
    }
}

impl LayerHandle {
    /// What the layer is read by instead of its fine document.
    pub(super) fn replacement(&self) -> Option<LayerHandle> {
        let layer = Arc::clone(self.layer.replacement.get()?.as_ref()?);
        // Its spans differ from those of the document, so they need another layer number.
        let id = LayerId(self.id.0 + self.inner.layers.len() as u32);
        Some(LayerHandle { inner: Arc::clone(&self.inner), layer, id })
    }

    /// Reads without the fine document what could not be read by it. Returns `error` if that is not
    /// the document's fault, or if nothing else can be read.
    pub(super) async fn read_without_document(
        &self,
        error: ReadError,
        at: Uncompressed,
        size: usize,
    ) -> Result<Bytes, ReadError> {
        if self.layer.open.document.is_none() || !error.is_of_document() {
            return Err(error);
        }
        self.replace(&error).await;
        self.inner.check_index(self.layer.open.how)?;
        match self.replacement() {
            Some(other) => other.read(at, size).await,
            None => Err(error),
        }
    }

    /// Opens the layer without its fine document, because of `error`. Waits for at most the
    /// deadline of a read.
    async fn replace(&self, error: &ReadError) {
        let Some(open) = self.inner.reopen.get().cloned() else { return };
        let (on, why) = (self.clone(), causes(error));
        // Opening may read the whole layer. If that takes longer than a read may wait, only later
        // reads benefit.
        let opening = tokio::spawn(async move {
            let opened = on.layer.replacement.get_or_try_init(|| async {
                let (inner, digest) = (&on.inner, on.layer.digest());
                inner.warn(format!("reading layer {digest} without its fine document: {why}"));
                match open(on.layer.open.descriptor.clone()).await {
                    // The tree was made from the document's entries.
                    Ok(open) if open.map().files != on.layer.open.map().files => {
                        inner.contradict(on.layer.open.how, &digest, &OtherFiles);
                        Ok(None)
                    }
                    Ok(open) => {
                        inner.counts.requests.add(u64::from(open.bytes_read > 0));
                        inner.counts.bytes_fetched.add(open.bytes_read);
                        Ok(Some(Arc::new(Layer::new(open, &inner.options))))
                    }
                    // The next read tries again.
                    Err(OpenError::Read { source, .. }) if source.is_transient() => Err(()),
                    Err(error) => {
                        inner.warn(causes(&error));
                        Ok(None)
                    }
                }
            });
            opened.await.is_ok()
        });
        let _ = timeout(self.inner.options.deadline, opening).await;
    }
}
