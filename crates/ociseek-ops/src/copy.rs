//! `copy`: copies an image and everything that refers to it, with their digests, from one store to
//! another.
//!
//! Documents are read first, and their digests verified. Then blobs are copied, then manifests
//! (those listed by an index before the index, images before their referrers), and finally the tag.
//! So when the tag exists, the copy is complete, and an interrupted copy can simply be restarted.

mod graph;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::stream::{self, StreamExt};

use ociseek_format::digest::Digest;
use ociseek_format::image::{Descriptor, JsonError};
use ociseek_format::progress::{Progress, ProgressEvent, chain};
use ociseek_store::blob::Target;
use ociseek_store::copy::CopyMethod;
use ociseek_store::feed::reported;
use ociseek_store::{Destination, Source, StoreError};

use graph::Graph;

/// The maximum number of manifests and indexes that are copied, including referrers.
const MAX_MANIFESTS: usize = 10_000;

/// Options for copying an image.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// Whether referrers of the image are copied too.
    pub referrers: bool,
    /// How many blobs are copied at the same time; at least 1.
    pub jobs: usize,
}

/// Copies the referrers, and four blobs at a time.
impl Default for CopyOptions {
    fn default() -> CopyOptions {
        CopyOptions { referrers: true, jobs: 4 }
    }
}

/// The result of copying.
#[derive(Debug)]
pub struct CopyReport {
    /// The copy's manifest or image index, the same as the original's.
    pub digest: Digest,
    /// The number of manifests and image indexes, without referrers.
    pub manifests: usize,
    /// The copied referrers of the image and its platforms.
    pub referrers: Vec<CopiedReferrer>,
    /// The copied blobs, without duplicates.
    pub blobs: BlobCounts,
}

/// A referrer that was copied.
#[derive(Debug)]
pub struct CopiedReferrer {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The manifest that it refers to.
    pub subject: Digest,
    /// Its type, if it has one.
    pub artifact_type: Option<String>,
}

/// How the blobs were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlobCounts {
    /// The number that the destination already had.
    pub present: usize,
    /// The number that the registry mounted from another of its repositories.
    pub mounted: usize,
    /// The number that were downloaded and uploaded.
    pub streamed: usize,
    /// The size of the streamed blobs in bytes.
    pub bytes: u64,
}

/// Why an image was not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum CopyError {
    #[error("cannot find the image")]
    Find(#[source] StoreError),
    #[error("cannot read manifest {digest}")]
    Read { digest: Digest, source: StoreError },
    #[error("manifest {digest} is not valid")]
    Json { digest: Digest, source: JsonError },
    #[error("{0} is a Docker schema 1 manifest: convert it with another tool first")]
    Schema1(Digest),
    #[error("manifest {digest} has {found} bytes, but its descriptor says {expected}")]
    Size { digest: Digest, expected: u64, found: u64 },
    #[error("cannot list the referrers of {subject}")]
    Referrers { subject: Digest, source: StoreError },
    #[error("the image and its referrers have more than {MAX_MANIFESTS} manifests")]
    TooMany,
    #[error("cannot copy blob {digest}")]
    Blob { digest: Digest, source: StoreError },
    #[error("the destination rejected manifest {digest}")]
    Push { digest: Digest, source: StoreError },
    #[error("the destination rejected the tag {tag:?}")]
    Tag { tag: String, source: StoreError },
}

/// Copies the image `root` of `from` with its digests, and names the copy `tag`.
///
/// # Errors
/// If a part of it cannot be read or is refused. Then the destination has no new tag.
pub async fn copy(
    from: &Source,
    root: &Target,
    to: &Destination,
    tag: &str,
    options: &CopyOptions,
    progress: &Arc<dyn Progress>,
) -> Result<CopyReport, CopyError> {
    let document = from.manifest(root).await.map_err(CopyError::Find)?;
    let digest = document.digest;
    let mut graph = Graph::read(from, document, options, progress).await?;
    let blobs = blobs(&mut graph, from, to, options.jobs, progress).await?;
    let (manifests, referrers) = manifests(&mut graph, to, progress).await?;
    if let Some(image) = graph.nodes.get(&digest) {
        let plain =
            Descriptor::new(image.descriptor.media_type.clone(), digest, image.descriptor.size);
        let tagged = to.tag_manifest(&plain, image.bytes.clone(), tag).await;
        tagged.map_err(|source| CopyError::Tag { tag: tag.to_owned(), source })?;
    }
    Ok(CopyReport { digest, manifests, referrers, blobs })
}

/// Copies the manifests: the number without referrers, and the referrers. Referrers that are
/// neither indexes nor signatures are left out if the destination refuses them.
async fn manifests(
    graph: &mut Graph,
    to: &Destination,
    progress: &Arc<dyn Progress>,
) -> Result<(usize, Vec<CopiedReferrer>), CopyError> {
    let mut manifests = 0;
    let mut referrers = Vec::new();
    let mut refused: BTreeMap<Digest, String> = BTreeMap::new();
    for node in graph.order() {
        let digest = node.descriptor.digest;
        let subject = node.subject.as_ref().filter(|_| graph.referrers.contains(&digest));
        let is_refused =
            |part: Option<Digest>| part.is_some_and(|part| refused.contains_key(&part));
        if is_refused(node.referrer) || is_refused(subject.map(|subject| subject.digest)) {
            continue;
        }
        let pushed = match subject {
            None => to.push_manifest(&node.descriptor, node.bytes.clone(), None).await,
            Some(subject) => {
                to.attach(&node.descriptor, node.bytes.clone(), subject, &[]).await.map(drop)
            }
        };
        match (pushed, node.foreign_referrer()) {
            (Ok(()), _) => {}
            (Err(source), Some(referrer)) if source.is_refused_content() => {
                refused.insert(referrer, chain(&CopyError::Push { digest, source }).join(": "));
                continue;
            }
            (Err(source), _) => return Err(CopyError::Push { digest, source }),
        }
        match subject {
            None => manifests += 1,
            Some(subject) => {
                let artifact_type = node.descriptor.artifact_type.clone();
                referrers.push(CopiedReferrer { digest, subject: subject.digest, artifact_type });
            }
        }
    }
    for (referrer, why) in refused {
        graph.leave_out(referrer, &why, progress);
    }
    Ok((manifests, referrers))
}

/// Copies the blobs that the documents name, without duplicates. Referrers whose blobs the source
/// does not have are left out, as are those that are neither indexes nor signatures and whose blobs
/// the destination refuses.
async fn blobs(
    graph: &mut Graph,
    from: &Source,
    to: &Destination,
    jobs: usize,
    progress: &Arc<dyn Progress>,
) -> Result<BlobCounts, CopyError> {
    let mut seen = BTreeSet::new();
    let all = graph.order().into_iter().flat_map(|node| &node.blobs);
    // A referrer may state a wrong size for a blob of another one.
    let blobs: Vec<&Descriptor> =
        all.filter(|blob| seen.insert((blob.digest, blob.size))).collect();
    let bytes = blobs.iter().map(|blob| blob.size).fold(0, u64::saturating_add);
    progress.report(ProgressEvent::Copying { blobs: blobs.len(), bytes });
    let mut copied = Vec::new();
    let mut lost = Vec::new();
    let mut results = stream::iter(blobs)
        .map(|blob| async move {
            let layer = blob.digest;
            let sent = |bytes| progress.report(ProgressEvent::LayerRead { layer, bytes });
            let work = async {
                let method = to.copy_blob(blob, from, jobs, &sent).await?;
                if method != CopyMethod::Sent {
                    sent(blob.size);
                }
                Ok::<_, StoreError>(method)
            };
            (blob, reported(progress, blob, work).await)
        })
        .buffer_unordered(jobs);
    while let Some((blob, result)) = results.next().await {
        match result {
            Ok(method) => copied.push((blob.size, method)),
            Err(source) => {
                let is_lost = source.is_lost() || source.is_other_content();
                let is_refused = source.is_refused_content();
                let error = CopyError::Blob { digest: blob.digest, source };
                let can_go =
                    |with: &BTreeSet<Digest>| is_lost || is_refused && graph.are_foreign(with);
                match graph.referrers_with(blob).filter(can_go) {
                    Some(referrers) => lost.push((referrers, chain(&error).join(": "))),
                    None => return Err(error),
                }
            }
        }
    }
    drop(results);
    for (referrers, why) in lost {
        referrers.into_iter().for_each(|referrer| graph.leave_out(referrer, &why, progress));
    }
    let mut counts = BlobCounts::default();
    for (bytes, copied) in copied {
        match copied {
            CopyMethod::Present => counts.present += 1,
            CopyMethod::Mounted => counts.mounted += 1,
            CopyMethod::Sent => {
                counts.streamed += 1;
                counts.bytes += bytes;
            }
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::{CopyError, CopyOptions, CopyReport, copy};
    use crate::resolve::tests::{Store, Warnings, entry, on};
    use ociseek_format::budget::Budget;
    use ociseek_format::image::manifest::{OCI_INDEX, OCI_MANIFEST};
    use ociseek_format::image::soci::INDEX_V1;
    use ociseek_format::image::{Descriptor, OCI_LAYER};
    use ociseek_format::progress::Progress;
    use ociseek_store::blob::Target;
    use ociseek_store::{Destination, Source};

    /// Copies `root` with this memory. The copy, its report, and the warnings.
    fn copied(
        from: &Store,
        root: &Descriptor,
        memory: u64,
    ) -> (Store, Result<CopyReport, CopyError>, Vec<String>) {
        let to = Store::new();
        let source = Source::Layout(Arc::new(from.layout.clone().with_budget(Budget::new(memory))));
        let destination = Destination::Layout(Arc::new(to.layout.clone()));
        let warnings = Arc::new(Warnings::default());
        let progress: Arc<dyn Progress> = warnings.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let target = Target::Digest(root.digest);
        let report = runtime.block_on(copy(
            &source,
            &target,
            &destination,
            "v",
            &CopyOptions::default(),
            &progress,
        ));
        let warnings = warnings.0.lock().unwrap().clone();
        (to, report, warnings)
    }

    fn index(store: &Store, entries: &[Value]) -> Descriptor {
        store.put(
            OCI_INDEX,
            &json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}),
        )
    }

    fn referrer(
        store: &Store,
        subject: &Descriptor,
        artifact_type: &str,
        text: &str,
    ) -> Descriptor {
        let empty = store.put("application/vnd.oci.empty.v1+json", &json!({}));
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": artifact_type,
            "config": empty, "layers": [empty],
            "subject": subject, "annotations": {"text": text},
        });
        let referrer = store.put(OCI_MANIFEST, &manifest);
        let listed =
            Descriptor { artifact_type: Some(artifact_type.to_owned()), ..referrer.clone() };
        store.layout.attach(&listed, manifest.to_string().as_bytes(), &[]).unwrap();
        referrer
    }

    #[test]
    fn platforms_that_a_layout_lacks_are_not_copied() {
        let store = Store::new();
        let amd = store.image("amd64");
        let gone = Descriptor::of(OCI_MANIFEST, b"not here");
        let root = index(&store, &[entry(&amd, on("amd64")), entry(&gone, on("arm64"))]);
        let (to, report, warnings) = copied(&store, &root, 100 << 20);
        assert_eq!(report.unwrap().digest, root.digest);
        assert!(to.layout.blob_exists(&amd.digest, None).unwrap());
        let warned = format!("{} is not copied, because it is not in the layout", gone.digest);
        assert_eq!(warnings, [warned]);
    }

    #[test]
    fn an_index_of_layers_is_copied() {
        let store = Store::new();
        let layer = store.put(OCI_LAYER, &json!(1));
        let cache = store.put("application/vnd.buildkit.cacheconfig.v0", &json!({}));
        let root = index(&store, &[entry(&layer, json!({})), entry(&cache, json!({}))]);
        let (to, report, warnings) = copied(&store, &root, 100 << 20);
        assert_eq!((report.unwrap().blobs.streamed, warnings.len()), (2, 0));
        assert!(to.layout.blob_exists(&layer.digest, Some(layer.size)).unwrap());
    }

    #[test]
    fn referrers_of_strangers_do_not_take_the_image_s_memory() {
        let store = Store::new();
        let image = store.image("amd64");
        let ours = referrer(&store, &image, INDEX_V1, "ours");
        let sbom = referrer(&store, &image, "application/spdx+json", "small");
        let large: Vec<_> = (0..9)
            .map(|number| {
                referrer(
                    &store,
                    &image,
                    "application/x",
                    &format!("{number}{}", "x".repeat(200 << 10)),
                )
            })
            .collect();
        let too_large = referrer(&store, &image, "application/x", &"y".repeat(1 << 20));
        let (to, report, warnings) = copied(&store, &image, 8 << 20);
        let report = report.unwrap();
        let is_there = |descriptor: &Descriptor| {
            report.referrers.iter().any(|one| one.digest == descriptor.digest)
        };
        assert!(is_there(&ours) && is_there(&sbom) && large.iter().all(is_there), "{warnings:?}");
        assert!(!is_there(&too_large));
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].contains("was not copied") && warnings[0].contains("bytes of memory"),
            "{warnings:?}"
        );
        // The lists of layouts and fallback tags stay small.
        let listed = to.layout.referrers(&image.digest, None).unwrap().descriptors;
        assert_eq!(listed.len(), 11);
        // What must not be left out fails instead.
        let signature = "application/vnd.cncf.notary.signature";
        referrer(&store, &image, signature, &"z".repeat(1 << 20));
        let (_, report, _) = copied(&store, &image, 8 << 20);
        assert!(matches!(report, Err(CopyError::Read { .. })), "{report:?}");
    }

    #[test]
    fn what_strangers_attach_does_not_keep_an_image_from_being_copied() {
        let store = Store::new();
        let image = store.image("amd64");
        let ours = referrer(&store, &image, INDEX_V1, "ours");
        let empty = store.put("application/vnd.oci.empty.v1+json", &json!({}));
        let gone = Descriptor::of("application/x", b"not here");
        let wrong_size = Descriptor { size: 7, ..empty.clone() };
        let attach = |artifact_type: &str,
                      subject: &Descriptor,
                      media_type: &str,
                      fields: Value| {
            let mut manifest = json!({
                "schemaVersion": 2, "mediaType": media_type, "artifactType": artifact_type, "subject": subject,
            });
            manifest.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let referrer = store.put(media_type, &manifest);
            let listed =
                Descriptor { artifact_type: Some(artifact_type.to_owned()), ..referrer.clone() };
            store.layout.attach(&listed, manifest.to_string().as_bytes(), &[]).unwrap();
            referrer
        };
        let mut strange = Vec::new();
        for kind in [INDEX_V1, "application/x"] {
            for blobs in [
                json!({"config": empty, "layers": [gone]}),
                json!({"config": wrong_size, "layers": []}),
                json!({"config": empty, "layers": [{"mediaType": "x/y", "digest": "blake3:ab", "size": 1}]}),
                json!({"config": empty, "layers": [], "fsLayers": []}),
            ] {
                strange.push(attach(kind, &image, OCI_MANIFEST, blobs));
            }
            let child = Descriptor { media_type: OCI_MANIFEST.to_owned(), ..wrong_size.clone() };
            strange.push(attach(kind, &image, OCI_INDEX, json!({"manifests": [child]})));
        }
        // What refers to those goes with them.
        let of_strange = referrer(&store, &strange[0], "application/x", "of a stranger");
        let (to, report, warnings) = copied(&store, &image, 100 << 20);
        let copied: Vec<_> = report.unwrap().referrers.iter().map(|one| one.digest).collect();
        assert_eq!(copied, [ours.digest], "{warnings:#?}");
        assert!(to.layout.blob_exists(&image.digest, None).unwrap());
        assert!(!to.layout.blob_exists(&of_strange.digest, None).unwrap());
        for one in &strange {
            let told =
                warnings.iter().filter(|warning| warning.starts_with(&one.digest.to_string()));
            assert_eq!(told.count(), 1, "{one:?}: {warnings:#?}");
        }
    }
}
