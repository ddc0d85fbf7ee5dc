//! An archive written by `docker save` has no index. Its image can only be verified by comparing
//! the layers with the config.

use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::VerifyError;
use super::full::{LayerToVerify, other_tar, read_layer};
use super::model::{UnindexedLayers, VerifiedImage, VerifiedManifest, VerifyOptions};
use super::problem::Problem;
use super::{DiscoveredImage, diff_ids};
use ociseek_format::progress::Progress;
use ociseek_store::Source;
use ociseek_store::feed::{FeedAborted, FeedError};

/// Reads the layers of the images, without duplicates.
pub(super) async fn verify(
    source: &Source,
    images: Vec<DiscoveredImage>,
    options: &VerifyOptions,
    progress: &Arc<dyn Progress>,
) -> Result<VerifiedImage, VerifyError> {
    let side_by_side = options.jobs.max(1);
    let mut verified = VerifiedImage { manifests: Vec::with_capacity(images.len()), bytes_read: 0 };
    for image in images {
        let (diff_ids, wrong) = diff_ids(source, &image).await?;
        let mut manifest = VerifiedManifest {
            manifest: image.manifest,
            platform: image.platform,
            layers: image.layers.len(),
            indexes: Vec::new(),
            fine: Vec::new(),
            content: None,
            differences: Vec::from_iter(wrong),
            warnings: Vec::new(),
        };
        let mut layers: Vec<_> = image.layers.into_iter().zip(diff_ids).collect();
        layers.sort_by_key(|(layer, _)| layer.digest);
        layers.dedup_by_key(|(layer, _)| layer.digest);
        let mut content = UnindexedLayers { layers: layers.len(), bytes: 0 };
        let mut proofs = stream::iter(layers)
            .map(async |(layer, diff_id)| {
                let digest = layer.digest;
                let mut read = 0;
                let to_verify = LayerToVerify { layer: &layer, diff_id: Some(diff_id), ztoc: None, fine: None };
                let proof = read_layer(source, &to_verify, side_by_side, progress, false, &mut read).await;
                let proof = proof.map_err(|failure| match failure {
                    FeedError::Lost | FeedError::Work(FeedAborted) => VerifyError::Thread { layer: digest },
                    FeedError::Store(source) => VerifyError::Layer { layer: digest, source },
                })?;
                Ok::<_, VerifyError>((digest, other_tar(&diff_id, &proof), proof.plain_size, read))
            })
            .buffered(side_by_side);
        while let Some((layer, wrong, bytes, read)) = proofs.try_next().await? {
            let wrong = wrong.map(|Problem { code, text }| Problem::new(code, format!("layer {layer}: {text}")));
            manifest.differences.extend(wrong);
            content.bytes += bytes;
            verified.bytes_read += read;
        }
        manifest.content = Some(content);
        verified.manifests.push(manifest);
    }
    Ok(verified)
}
