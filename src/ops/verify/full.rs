//! A whole layer, from the store to the thread that proves it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::causes;
use super::documents::Damage;
use super::layer::{LayerProof, Proof};
use super::model::{Finding, VerifyError};
use super::ztocs::{Done, Job};
use crate::digest::{Algorithm, Digest};
use crate::layer::span::SpanTable;
use crate::ops::code::Code;
use crate::progress::{Event, Progress};
use crate::store::{Source, StoreError};

/// Chunks (of 256 KiB at most, as stores hand them out) that may wait for the thread.
const CHUNKS: usize = 8;

/// Reads the layer of `job` once, from front to back, and adds what differs from its ztoc, from the manifest and from the
/// config to `done`.
pub(super) async fn prove(
    source: &Source,
    job: &Job,
    spans: &SpanTable,
    progress: &Arc<dyn Progress>,
    done: &mut Done,
) -> Result<(), VerifyError> {
    let layer = job.layer.digest;
    progress.report(Event::LayerStarted { layer, bytes: job.layer.size });
    let proof = pump(source, job, spans, progress, &mut done.bytes_read).await;
    progress.report(match &proof {
        Ok(_) => Event::LayerDone { layer },
        Err(_) => Event::LayerFailed { layer },
    });
    let proof = match proof {
        Ok(proof) => proof,
        Err(Failure::Thread) => return Err(VerifyError::Thread { layer }),
        Err(Failure::Read(error)) => {
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

enum Failure {
    Read(StoreError),
    Thread,
}

/// Async ends here: chunks go through a short channel to a thread that owns the proof, and ends with the channel. It has another one help it.
async fn pump(
    source: &Source,
    job: &Job,
    spans: &SpanTable,
    progress: &Arc<dyn Progress>,
    bytes_read: &mut u64,
) -> Result<Proof, Failure> {
    let layer = job.layer.digest;
    let mut blob = source.blob(&job.layer).await.map_err(Failure::Read)?;
    let (chunks, received) = mpsc::channel(CHUNKS);
    let diff_id = job.diff_id.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
    let proof = LayerProof::new(Some(Arc::clone(spans.ztoc())), layer.algorithm(), diff_id);
    let thread = tokio::task::spawn_blocking(move || take(proof, received));
    while let Some(chunk) = blob.next().await.map_err(Failure::Read)? {
        *bytes_read += chunk.len() as u64;
        progress.report(Event::LayerRead { layer, bytes: chunk.len() as u64 });
        chunks.send(Some(chunk)).await.map_err(|_| Failure::Thread)?;
    }
    chunks.send(None).await.map_err(|_| Failure::Thread)?;
    thread.await.ok().flatten().ok_or(Failure::Thread)
}

/// That nobody wants the proof any more.
struct Abandoned;

/// The thread's body: chunks up to a `None`. None if it was abandoned.
fn take(proof: LayerProof, mut chunks: mpsc::Receiver<Option<Bytes>>) -> Option<Proof> {
    proof.read(|| chunks.blocking_recv().ok_or(Abandoned)).ok()
}
