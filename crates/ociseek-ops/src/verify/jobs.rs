//! Reads each layer completely, once for a ztoc and a fine document where an image has both, and
//! passes it from the store to the thread that verifies it.
//!
//! An archive written by `docker save` has no index. Its image can only be verified by comparing
//! the layers with the config.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::task::spawn_blocking;

use super::fine::FineJob;
use super::model::{
    Depth, LayerCheck, LayerClaim, UnindexedLayers, VerifiedImage, VerifiedManifest, VerifyContext,
    VerifyOptions,
};
use super::{DiscoveredImage, Problem, VerifyError, diff_ids};
use crate::damage::Damage;
use ociseek_format::code::Code;
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::fine::FineLayer;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::layer::prove::{Difference, LayerProof, Proof};
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_format::ztoc::Ztoc;
use ociseek_store::cache::ZtocCache;
use ociseek_store::feed::{FeedAborted, FeedError, feed, reported};
use ociseek_store::{Source, read_times};

/// A layer, and the documents that one reading of it is compared with: at least one.
pub(super) struct LayerJob {
    ztoc: Option<LayerClaim>,
    fine: Option<FineJob>,
    layer: Descriptor,
    /// The digest of the layer's plain tar according to the image's config.
    diff_id: Option<Digest>,
}

/// The results of all jobs.
#[derive(Default)]
pub(super) struct LayerChecks {
    /// By layer and ztoc.
    pub ztocs: BTreeMap<(Digest, Digest), LayerCheck>,
    pub documents: BTreeMap<FineRef, LayerCheck>,
    pub bytes_read: u64,
}

/// The result for a layer.
struct LayerResult {
    ztoc: Option<((Digest, Digest), LayerCheck)>,
    document: Option<(FineRef, LayerCheck)>,
    /// How many bytes of the layer were read for both.
    bytes_read: u64,
}

/// As few jobs as possible, each with at most one document of either kind.
pub(super) fn joined(
    ztocs: BTreeMap<(Digest, Digest), LayerClaim>,
    documents: BTreeMap<FineRef, FineJob>,
) -> Vec<LayerJob> {
    let mut free: BTreeMap<(Digest, u64), Vec<FineJob>> = BTreeMap::new();
    for job in documents.into_values() {
        free.entry((job.layer.digest, job.layer.size)).or_default().push(job);
    }
    let mut jobs = Vec::new();
    for claim in ztocs.into_values() {
        let fine = free.get_mut(&(claim.layer.digest, claim.layer.size)).and_then(Vec::pop);
        let layer = claim.layer.clone();
        let diff_id = claim.diff_id;
        jobs.push(LayerJob { ztoc: Some(claim), fine, layer, diff_id });
    }
    for job in free.into_values().flatten() {
        let layer = job.layer.clone();
        let diff_id = job.diff_id;
        jobs.push(LayerJob { ztoc: None, fine: Some(job), layer, diff_id });
    }
    jobs
}

/// Runs the jobs, as many at a time as `context` says.
pub(super) async fn run(
    jobs: Vec<LayerJob>,
    context: VerifyContext<'_>,
) -> Result<LayerChecks, VerifyError> {
    let running =
        stream::iter(jobs).map(|job| job.run(context)).buffer_unordered(context.side_by_side);
    let add = |mut checked: LayerChecks, done: LayerResult| async move {
        let checks = done
            .ztoc
            .iter()
            .map(|(_, check)| check)
            .chain(done.document.iter().map(|(_, check)| check));
        checked.bytes_read += done.bytes_read + checks.map(|check| check.bytes_read).sum::<u64>();
        checked.ztocs.extend(done.ztoc);
        checked.documents.extend(done.document);
        Ok(checked)
    };
    running.try_fold(LayerChecks::default(), add).await
}

impl LayerJob {
    pub(super) fn layer(&self) -> &Descriptor {
        &self.layer
    }

    async fn run(self, context: VerifyContext<'_>) -> Result<LayerResult, VerifyError> {
        let LayerJob { ztoc: claim, fine: job, layer, diff_id } = self;
        let mut of_ztoc = LayerCheck::default();
        let mut of_document = LayerCheck::default();
        let mut bytes_read = 0;
        let budget = context.source.budget();
        let mut for_ztoc = budget.open();
        let mut for_document = budget.open();
        let ztoc = match &claim {
            Some(claim) => claim.open(context, &mut of_ztoc, &mut for_ztoc).await?,
            None => None,
        };
        if ztoc.is_none() {
            for_ztoc.shrink_to(0);
        }
        let fine = match &job {
            Some(job) => {
                job.open(context, &mut of_document, &mut for_document).await?.map(Arc::new)
            }
            None => None,
        };
        let has_ztoc = ztoc.is_some();
        let tar_end = fine.as_ref().map(|fine| fine.spans().tar_end().0);
        if has_ztoc || fine.is_some() {
            let to_verify = LayerToVerify { layer: &layer, diff_id, ztoc, fine };
            let Faults { proof, of_layer } = prove(context, to_verify, &mut bytes_read).await?;
            if has_ztoc {
                of_ztoc.differences.extend(of_layer.iter().cloned());
                if let Some(proof) = &proof {
                    add(&proof.differences, proof.more, Difference::to_string, &mut of_ztoc);
                    of_ztoc.compared.spans = of_ztoc.compared.of_spans;
                    of_ztoc.compared.bytes = proof.compared;
                }
            }
            if let Some(end) = tar_end {
                of_document.differences.extend(of_layer);
                if let Some(proof) = &proof {
                    let differences = &proof.of_document;
                    add(
                        &differences.list,
                        differences.more,
                        Difference::of_document,
                        &mut of_document,
                    );
                    of_document.compared.spans = of_document.compared.of_spans;
                    of_document.compared.bytes = end.min(proof.plain_size);
                }
            }
        }
        if context.depth == Depth::Full {
            let is_right =
                |done: &LayerCheck| done.compared.spans > 0 && done.differences.is_empty();
            let ztoc = claim.as_ref().filter(|_| is_right(&of_ztoc)).map(|claim| claim.ztoc.ztoc);
            let head =
                job.as_ref().filter(|_| is_right(&of_document)).map(|job| job.document.head_digest);
            keep_proven(context.cache, layer.digest, ztoc.into_iter().chain(head).collect()).await;
        }
        let ztoc = claim.map(|claim| ((claim.layer.digest, claim.ztoc.ztoc), of_ztoc));
        Ok(LayerResult { ztoc, document: job.map(|job| (job.document, of_document)), bytes_read })
    }
}

/// Stores that documents were compared completely with their layer.
async fn keep_proven(cache: Option<&ZtocCache>, layer: Digest, documents: Vec<Digest>) {
    let Some(cache) = cache.cloned() else { return };
    let keep = spawn_blocking(move || {
        documents.iter().for_each(|document| cache.put_proven(&layer, document))
    });
    let _ = keep.await;
}

/// A layer, and the documents to verify it against.
struct LayerToVerify<'a> {
    pub layer: &'a Descriptor,
    /// The digest of the layer's plain tar according to the image's config.
    pub diff_id: Option<Digest>,
    pub ztoc: Option<Arc<Ztoc>>,
    pub fine: Option<Arc<FineLayer>>,
}

/// The faults of a layer, by what it was compared with.
struct Faults {
    /// None if the layer cannot be read.
    pub proof: Option<Proof>,
    /// Those of the layer itself: each of its documents has them.
    pub of_layer: Vec<Problem>,
}

/// Reads the whole layer once, and finds its differences from its documents, the manifest and the
/// config. Counts what was read.
async fn prove(
    VerifyContext { source, side_by_side, progress, .. }: VerifyContext<'_>,
    to_verify: LayerToVerify<'_>,
    bytes_read: &mut u64,
) -> Result<Faults, VerifyError> {
    let layer = to_verify.layer.digest;
    let diff_id = to_verify.diff_id;
    let mut reads = 1;
    let mut read = read_layer(source, &to_verify, side_by_side, progress, false, bytes_read).await;
    if read.as_ref().is_ok_and(|proof| proof.digest != layer) && source.is_remote() {
        // It may have been damaged on the way, or by a cache.
        reads = 2;
        read = read_layer(source, &to_verify, side_by_side, progress, true, bytes_read).await;
    }
    let proof = match read {
        Ok(proof) => proof,
        Err(FeedError::Lost | FeedError::Work(FeedAborted)) => {
            return Err(VerifyError::Thread { layer });
        }
        Err(FeedError::Store(error)) => {
            let Some(how) = Damage::of(&error) else {
                return Err(VerifyError::Layer { layer, source: error });
            };
            let problem = Problem::new(how.layer_code(), format!("the layer: {}", causes(&error)));
            return Ok(Faults { proof: None, of_layer: vec![problem] });
        }
    };
    let mut of_layer = Vec::new();
    if proof.digest != layer {
        let actual = proof.digest;
        let times = read_times(reads);
        let text = format!("the blob's digest is {actual}, but the manifest says {layer}{times}");
        of_layer.push(Problem::new(Code::LayerDigest, text));
    }
    of_layer.extend(diff_id.and_then(|stated| other_tar(&stated, &proof)));
    Ok(Faults { proof: Some(proof), of_layer })
}

/// Adds differences in the words of `tell`, and the number of those that were not kept.
fn add(
    differences: &[Difference],
    more: u64,
    tell: impl Fn(&Difference) -> String,
    done: &mut LayerCheck,
) {
    done.differences.extend(
        differences.iter().map(|difference| Problem::new(difference.code(), tell(difference))),
    );
    if more > 0 {
        done.differences.push(Problem::new(Code::More, format!("and {more} more differences")));
    }
}

/// The finding that the config states another digest for the layer's tar.
fn other_tar(stated: &Digest, proof: &Proof) -> Option<Problem> {
    let actual = proof.diff_id.filter(|actual| actual != stated)?;
    Some(Problem::new(
        Code::DiffId,
        format!("the tar's digest is {actual}, but the image's config says {stated}"),
    ))
}

/// Reads a layer once. With `bypass_caches`, caches on the way must not answer.
async fn read_layer(
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
        feed(blob, side_by_side, on_chunk, move |mut batches| proof.read(|| batches.receive()))
            .await
    };
    reported(progress, layer, read).await
}

/// Reads the layers of the images, without duplicates.
pub(super) async fn verify_saved(
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
                let to_verify =
                    LayerToVerify { layer: &layer, diff_id: Some(diff_id), ztoc: None, fine: None };
                let proof =
                    read_layer(source, &to_verify, side_by_side, progress, false, &mut read).await;
                let proof = proof.map_err(|failure| match failure {
                    FeedError::Lost | FeedError::Work(FeedAborted) => {
                        VerifyError::Thread { layer: digest }
                    }
                    FeedError::Store(source) => VerifyError::Layer { layer: digest, source },
                })?;
                Ok::<_, VerifyError>((digest, other_tar(&diff_id, &proof), proof.plain_size, read))
            })
            .buffered(side_by_side);
        while let Some((layer, wrong, bytes, read)) = proofs.try_next().await? {
            let wrong = wrong
                .map(|Problem { code, text }| Problem::new(code, format!("layer {layer}: {text}")));
            manifest.differences.extend(wrong);
            content.bytes += bytes;
            verified.bytes_read += read;
        }
        manifest.content = Some(content);
        verified.manifests.push(manifest);
    }
    Ok(verified)
}
