//! A whole layer, from the store to the thread that proves it.

use std::sync::Arc;

use super::causes;
use super::documents::Damage;
use super::model::{Done, Finding, Job, VerifyError};
use crate::code::Code;
use crate::digest::{Algorithm, Digest};
use crate::image::Descriptor;
use crate::layer::prove::{LayerProof, Proof};
use crate::layer::span::SpanTable;
use crate::progress::{Event, Progress};
use crate::store::Source;
use crate::store::feed::{Abandoned, FeedError, feed, reported};
use crate::ztoc::Ztoc;

/// Reads the layer of `job` once, from front to back, as one of `side_by_side`, and adds what
/// differs from its ztoc, from the manifest and from the config to `done`.
pub(super) async fn prove(
    source: &Source,
    job: &Job,
    spans: &SpanTable,
    side_by_side: usize,
    progress: &Arc<dyn Progress>,
    done: &mut Done,
) -> Result<(), VerifyError> {
    let layer = job.layer.digest;
    let (ztoc, read) = (Some(spans.ztoc()), &mut done.bytes_read);
    let proof = read_layer(source, (&job.layer, ztoc, job.diff_id), side_by_side, progress, read).await;
    let proof = match proof {
        Ok(proof) => proof,
        Err(FeedError::Lost | FeedError::Work(Abandoned)) => return Err(VerifyError::Thread { layer }),
        Err(FeedError::Store(error)) => {
            let Some(how) = Damage::of(&error) else { return Err(VerifyError::Layer { layer, source: error }) };
            done.differences.push(Finding::new(how.of_layer(), format!("the layer: {}", causes(&error))));
            return Ok(());
        }
    };
    if proof.digest != layer {
        let text = format!("the blob's digest is {}, but the manifest says {layer}", proof.digest);
        done.differences.push(Finding::new(Code::LayerDigest, text));
    }
    done.differences.extend(job.diff_id.and_then(|stated| other_tar(&stated, &proof)));
    for difference in &proof.differences {
        done.differences.push(Finding::new(difference.code(), difference.to_string()));
    }
    if proof.more > 0 {
        done.differences.push(Finding::new(Code::More, format!("and {} more differences", proof.more)));
    }
    done.proven.spans = u64::from(spans.count());
    done.proven.bytes = proof.compared;
    Ok(())
}

/// That the config says another digest of the layer's tar.
pub(super) fn other_tar(stated: &Digest, proof: &Proof) -> Option<Finding> {
    let actual = proof.diff_id.filter(|actual| actual != stated)?;
    Some(Finding::new(Code::DiffId, format!("the tar's digest is {actual}, but the image's config says {stated}")))
}

/// Reads a layer once, with its ztoc and its diff ID if they are known.
pub(super) async fn read_layer(
    source: &Source,
    (layer, ztoc, diff_id): (&Descriptor, Option<&Arc<Ztoc>>, Option<Digest>),
    side_by_side: usize,
    progress: &Arc<dyn Progress>,
    bytes_read: &mut u64,
) -> Result<Proof, FeedError> {
    let digest = layer.digest;
    let diff_id = diff_id.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
    let proof = LayerProof::new(ztoc.cloned(), digest.algorithm(), diff_id);
    let on_chunk = |bytes| {
        *bytes_read += bytes;
        progress.report(Event::LayerRead { layer: digest, bytes });
    };
    let read = async {
        let blob = source.blob(layer).await?;
        feed(blob, side_by_side, on_chunk, move |mut batches| proof.read(|| batches.receive())).await
    };
    reported(progress, layer, read).await
}
