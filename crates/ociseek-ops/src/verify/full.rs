//! Passes a whole layer from the store to the thread that verifies it.

use std::sync::Arc;

use super::error::VerifyError;
use super::model::{LayerCheck, VerifyContext};
use super::problem::Problem;
use crate::damage::Damage;
use ociseek_format::code::Code;
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::fine::FineLayer;
use ociseek_format::image::Descriptor;
use ociseek_format::layer::prove::{Difference, LayerProof, Proof};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::ztoc::Ztoc;
use ociseek_store::feed::{FeedAborted, FeedError, feed, reported};
use ociseek_store::{Source, read_times};

/// A layer, and the documents to verify it against.
pub(super) struct LayerToVerify<'a> {
    pub layer: &'a Descriptor,
    /// The digest of the layer's plain tar according to the image's config.
    pub diff_id: Option<Digest>,
    pub ztoc: Option<Arc<Ztoc>>,
    pub fine: Option<Arc<FineLayer>>,
}

/// The faults of a layer, by what it was compared with.
pub(super) struct Faults {
    /// None if the layer cannot be read.
    pub proof: Option<Proof>,
    /// Those of the layer itself: each of its documents has them.
    pub of_layer: Vec<Problem>,
}

/// Reads the whole layer once, and finds its differences from its documents, the manifest and the
/// config. Counts what was read.
pub(super) async fn prove(
    VerifyContext { source, side_by_side, progress, .. }: VerifyContext<'_>,
    to_verify: LayerToVerify<'_>,
    bytes_read: &mut u64,
) -> Result<Faults, VerifyError> {
    let (layer, diff_id) = (to_verify.layer.digest, to_verify.diff_id);
    let mut reads = 1;
    let mut read = read_layer(source, &to_verify, side_by_side, progress, false, bytes_read).await;
    if read.as_ref().is_ok_and(|proof| proof.digest != layer) && source.is_remote() {
        // It may have been damaged on the way, or by a cache.
        reads = 2;
        read = read_layer(source, &to_verify, side_by_side, progress, true, bytes_read).await;
    }
    let proof = match read {
        Ok(proof) => proof,
        Err(FeedError::Lost | FeedError::Work(FeedAborted)) => return Err(VerifyError::Thread { layer }),
        Err(FeedError::Store(error)) => {
            let Some(how) = Damage::of(&error) else { return Err(VerifyError::Layer { layer, source: error }) };
            let problem = Problem::new(how.layer_code(), format!("the layer: {}", causes(&error)));
            return Ok(Faults { proof: None, of_layer: vec![problem] });
        }
    };
    let mut of_layer = Vec::new();
    if proof.digest != layer {
        let (found, times) = (proof.digest, read_times(reads));
        let text = format!("the blob's digest is {found}, but the manifest says {layer}{times}");
        of_layer.push(Problem::new(Code::LayerDigest, text));
    }
    of_layer.extend(diff_id.and_then(|stated| other_tar(&stated, &proof)));
    Ok(Faults { proof: Some(proof), of_layer })
}

/// Adds differences in the words of `tell`, and the number of those that were not kept.
pub(super) fn add(found: &[Difference], more: u64, tell: impl Fn(&Difference) -> String, done: &mut LayerCheck) {
    done.differences.extend(found.iter().map(|difference| Problem::new(difference.code(), tell(difference))));
    if more > 0 {
        done.differences.push(Problem::new(Code::More, format!("and {more} more differences")));
    }
}

/// The finding that the config states another digest for the layer's tar.
pub(super) fn other_tar(stated: &Digest, proof: &Proof) -> Option<Problem> {
    let actual = proof.diff_id.filter(|actual| actual != stated)?;
    Some(Problem::new(Code::DiffId, format!("the tar's digest is {actual}, but the image's config says {stated}")))
}

/// Reads a layer once. With `bypass_caches`, caches on the way must not answer.
pub(super) async fn read_layer(
    source: &Source,
    LayerToVerify { layer, diff_id, ztoc, fine }: &LayerToVerify<'_>,
    side_by_side: usize,
    progress: &Arc<dyn Progress>,
    bypass_caches: bool,
    bytes_read: &mut u64,
) -> Result<Proof, FeedError> {
    let digest = layer.digest;
    let diff_id = diff_id.as_ref().map_or(Algorithm::Sha256, Digest::algorithm);
    let proof = LayerProof::with_fine(ztoc.clone(), fine.clone(), digest.algorithm(), diff_id);
    let on_chunk = |bytes| {
        *bytes_read += bytes;
        progress.report(ProgressEvent::LayerRead { layer: digest, bytes });
    };
    let read = async {
        let blob = source.blob(layer, bypass_caches).await?;
        feed(blob, side_by_side, on_chunk, move |mut batches| proof.read(|| batches.receive())).await
    };
    reported(progress, layer, read).await
}
