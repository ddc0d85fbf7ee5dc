//! Reads each layer once for a ztoc and a fine document, where an image has both.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::{StreamExt, TryStreamExt, stream};

use super::error::VerifyError;
use super::fine::FineJob;
use super::full::{self, Faults, LayerToVerify};
use super::model::{Depth, LayerCheck, LayerClaim, VerifyContext};
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::layer::prove::Difference;
use ociseek_store::cache::ZtocCache;
use tokio::task::spawn_blocking;

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
        let (layer, diff_id) = (claim.layer.clone(), claim.diff_id);
        jobs.push(LayerJob { ztoc: Some(claim), fine, layer, diff_id });
    }
    for job in free.into_values().flatten() {
        let (layer, diff_id) = (job.layer.clone(), job.diff_id);
        jobs.push(LayerJob { ztoc: None, fine: Some(job), layer, diff_id });
    }
    jobs
}

/// Runs the jobs, as many at a time as `context` says.
pub(super) async fn run(jobs: Vec<LayerJob>, context: VerifyContext<'_>) -> Result<LayerChecks, VerifyError> {
    let running = stream::iter(jobs).map(|job| job.run(context)).buffer_unordered(context.side_by_side);
    let add = |mut checked: LayerChecks, done: LayerResult| async move {
        let checks = done.ztoc.iter().map(|(_, check)| check).chain(done.document.iter().map(|(_, check)| check));
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
        let (mut of_ztoc, mut of_document, mut bytes_read) = (LayerCheck::default(), LayerCheck::default(), 0);
        let budget = context.source.budget();
        let (mut for_ztoc, mut for_document) = (budget.open(), budget.open());
        let ztoc = match &claim {
            Some(claim) => claim.open(context, &mut of_ztoc, &mut for_ztoc).await?,
            None => None,
        };
        if ztoc.is_none() {
            for_ztoc.shrink_to(0);
        }
        let fine = match &job {
            Some(job) => job.open(context, &mut of_document, &mut for_document).await?.map(Arc::new),
            None => None,
        };
        let has_ztoc = ztoc.is_some();
        let tar_end = fine.as_ref().map(|fine| fine.spans().tar_end().0);
        if has_ztoc || fine.is_some() {
            let to_verify = LayerToVerify { layer: &layer, diff_id, ztoc, fine };
            let Faults { proof, of_layer } = full::prove(context, to_verify, &mut bytes_read).await?;
            if has_ztoc {
                of_ztoc.differences.extend(of_layer.iter().cloned());
                if let Some(proof) = &proof {
                    full::add(&proof.differences, proof.more, Difference::to_string, &mut of_ztoc);
                    of_ztoc.compared.spans = of_ztoc.compared.of_spans;
                    of_ztoc.compared.bytes = proof.compared;
                }
            }
            if let Some(end) = tar_end {
                of_document.differences.extend(of_layer);
                if let Some(proof) = &proof {
                    let found = &proof.of_document;
                    full::add(&found.list, found.more, Difference::of_document, &mut of_document);
                    of_document.compared.spans = of_document.compared.of_spans;
                    of_document.compared.bytes = end.min(proof.plain_size);
                }
            }
        }
        if context.depth == Depth::Full {
            let is_right = |done: &LayerCheck| done.compared.spans > 0 && done.differences.is_empty();
            let ztoc = claim.as_ref().filter(|_| is_right(&of_ztoc)).map(|claim| claim.ztoc.ztoc);
            let head = job.as_ref().filter(|_| is_right(&of_document)).map(|job| job.document.head_digest);
            keep_proven(context.cache, layer.digest, ztoc.into_iter().chain(head).collect()).await;
        }
        let ztoc = claim.map(|claim| ((claim.layer.digest, claim.ztoc.ztoc), of_ztoc));
        Ok(LayerResult { ztoc, document: job.map(|job| (job.document, of_document)), bytes_read })
    }
}

/// Stores that documents were compared completely with their layer.
async fn keep_proven(cache: Option<&ZtocCache>, layer: Digest, documents: Vec<Digest>) {
    let Some(cache) = cache.cloned() else { return };
    let keep = spawn_blocking(move || documents.iter().for_each(|document| cache.put_proven(&layer, document)));
    let _ = keep.await;
}
