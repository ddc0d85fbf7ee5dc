//! A whole layer, from the store to the thread that proves it.

use std::sync::Arc;

use super::causes;
use super::documents::Damage;
use super::layer::{LayerProof, Proof};
use super::model::{Finding, VerifyError};
use super::ztocs::{Done, Job};
use crate::digest::{Algorithm, Digest};
use crate::layer::span::SpanTable;
use crate::ops::code::Code;
use crate::progress::{Event, Progress};
use crate::store::Source;
use crate::store::feed::{FeedError, feed};

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
    progress.report(Event::LayerStarted { layer, bytes: job.layer.size });
    let proof = read(source, job, spans, side_by_side, progress, &mut done.bytes_read).await;
    progress.report(match &proof {
        Ok(_) => Event::LayerDone { layer },
        Err(_) => Event::LayerFailed { layer },
    });
    let proof = match proof {
        Ok(proof) => proof,
        Err(FeedError::Lost) => return Err(VerifyError::Thread { layer }),
        Err(FeedError::Store(error)) => {
            let Some(how) = Damage::of(&error) else { return Err(VerifyError::Layer { layer, source: error }) };
            done.differences.push(Finding::new(how.of_layer(), format!("the layer: {}", causes(&error))));
            return Ok(());
        }
    };
    if proof.digest != layer {
        let text = format!("the blob's digest is {}; the manifest says {layer}", proof.digest);
        done.differences.push(Finding::new(Code::LayerDigest, text));
    }
    if let (Some(stated), Some(actual)) = (job.diff_id, proof.diff_id)
        && stated != actual
    {
        let text = format!("the tar's digest is {actual}; the image's config says {stated}");
        done.differences.push(Finding::new(Code::DiffId, text));
    }
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

async fn read(
    source: &Source,
    job: &Job,
    spans: &SpanTable,
    side_by_side: usize,
    progress: &Arc<dyn Progress>,
    bytes_read: &mut u64,
) -> Result<Proof, FeedError> {
    let layer = job.layer.digest;
    let blob = source.blob(&job.layer).await?;
    let diff_id = job.diff_id.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
    let proof = LayerProof::new(Some(Arc::clone(spans.ztoc())), layer.algorithm(), diff_id);
    let on_chunk = |bytes| {
        *bytes_read += bytes;
        progress.report(Event::LayerRead { layer, bytes });
    };
    feed(blob, side_by_side, on_chunk, move |mut batches| proof.read(|| batches.receive())).await
}
