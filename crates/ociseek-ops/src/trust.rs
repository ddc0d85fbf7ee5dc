//! Who vouches for an index, and whether a reader takes it.
//!
//! Digests bind an index's documents to the index, and their spans to the layer, but not their
//! names, modes, offsets and windows: only the maker of the index vouches for these. Anyone who may
//! push to a repository can attach one. So a reader of an image that is named by its digest shows
//! that digest's content only if the image itself binds the index, if a trusted key signed it, or
//! if this machine compared it with the layer.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use tokio::task::spawn_blocking;

use super::discover::{DiscoverError, DiscoveredImage, DiscoveryMethod};
use super::verify::policy::{self, JudgedIndex, Policy};
use super::verify::signature::{self, Signatures};
use ociseek_format::digest::Digest;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_rootfs::layers::LayerAccess;
use ociseek_store::Source;
use ociseek_store::cache::ZtocCache;

/// Whose word it is what an index says of a layer, from the weakest to the strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrustLevel {
    /// Anyone who may push to the repository can have written it.
    Repository,
    /// The user named the index by its digest.
    Named,
    /// The image's manifest names the index by its digest, so it is a part of the image.
    Bound,
    /// A trusted key or certificate signed the index, or the image that binds it.
    Signed,
    /// This machine made it from the layer, or compared it completely with the layer.
    Proven,
}

impl TrustLevel {
    /// The level of an index that was found this way, as far as that alone shows.
    pub fn of(via: DiscoveryMethod) -> TrustLevel {
        match via {
            DiscoveryMethod::Annotation => TrustLevel::Bound,
            DiscoveryMethod::Requested => TrustLevel::Named,
            DiscoveryMethod::Api | DiscoveryMethod::TagSchema | DiscoveryMethod::Layout => {
                TrustLevel::Repository
            }
        }
    }

    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            TrustLevel::Repository => "repository",
            TrustLevel::Named => "named",
            TrustLevel::Bound => "bound",
            TrustLevel::Signed => "signed",
            TrustLevel::Proven => "proven",
        }
    }
}

impl fmt::Display for TrustLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TrustLevel::Repository => "vouched for only by the repository",
            TrustLevel::Named => "named by you",
            TrustLevel::Bound => "bound by the image",
            TrustLevel::Signed => "signed",
            TrustLevel::Proven => "verified on this machine",
        })
    }
}

/// Which indexes a reader takes, besides those that a policy rules out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AcceptedTrust {
    /// All, also those that only the repository vouches for.
    #[default]
    Repository,
    /// Only those above [`TrustLevel::Repository`].
    Vouched,
    /// Only those whose signature by a trusted key also covers the image. What this machine proved
    /// does not count: it says which files a layer has, not that the layer belongs to the image.
    Signed,
    /// Only documents by which layers in use are read ([`TrustRules::noted`]).
    Noted,
}

/// The documents by which the layers of an image in use are read, by the digest of the layer: the
/// digest of a ztoc, or of the head of a fine document. None for a layer that is read completely.
pub type NotedDocuments = BTreeMap<Digest, Option<Digest>>;

/// What a reader requires of an index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TrustRules {
    /// Whose word is enough.
    pub accepted: AcceptedTrust,
    /// The requirements for each index that is taken, also for a bound one. What this machine
    /// proved needs no index.
    pub policy: Policy,
    /// No other document is taken for these layers.
    pub noted: NotedDocuments,
}

impl TrustRules {
    /// Whether a layer in use is read by this document, or the layer is not in use.
    fn fits(&self, layer: &Digest, document: &Digest) -> bool {
        match self.noted.get(layer) {
            Some(noted) => noted.as_ref() == Some(document),
            None => self.accepted != AcceptedTrust::Noted,
        }
    }
}

/// The levels of the documents that are taken, by the digest of their layer.
#[derive(Debug, Clone, Default)]
pub struct TrustOfLayers {
    /// For ztocs of the SOCI index.
    pub soci: BTreeMap<Digest, TrustLevel>,
    /// For documents of the fine index.
    pub fine: BTreeMap<Digest, TrustLevel>,
    /// The layers whose usable document was left out.
    pub left_out: BTreeSet<Digest>,
}

impl TrustOfLayers {
    /// The level of a layer that is read in this way.
    pub fn of(&self, layer: &Digest, how: LayerAccess) -> TrustLevel {
        let of_index = match how {
            LayerAccess::Fine => &self.fine,
            LayerAccess::Index => &self.soci,
            // Its map was made from the layer itself.
            LayerAccess::Local | LayerAccess::Whole => return TrustLevel::Proven,
        };
        of_index.get(layer).copied().unwrap_or(TrustLevel::Repository)
    }
}

/// A place in one of the two lists of a [`DiscoveredImage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Candidate {
    Soci(usize),
    Fine(usize),
}

/// The verdict on an index.
enum IndexVerdict {
    Level(TrustLevel),
    /// It breaks the policy.
    Refused(String),
}

/// Which indexes of an image a reader wants.
#[derive(Debug, Clone, Copy)]
pub struct IndexChoice<'a> {
    /// The index that the user named.
    pub requested: Option<&'a Digest>,
    /// What is required of an index.
    pub rules: &'a TrustRules,
    /// Leaves fine indexes out.
    pub soci_only: bool,
}

/// An image with the indexes that a reader takes.
#[derive(Debug)]
pub struct Chosen {
    /// What the rules do not allow is removed from the indexes that are read.
    pub image: DiscoveredImage,
    /// Whose word they are.
    pub trust: TrustOfLayers,
    /// The fine index that the rules allow, even if only SOCI indexes are read.
    pub fine: Option<usize>,
}

/// Chooses the indexes of `image` that the rules allow: the best of each kind, and of it only the
/// documents that are allowed. An index that breaks the policy is reported as a warning.
///
/// # Errors
/// If the requested index breaks the policy.
pub async fn choose(
    source: &Source,
    mut image: DiscoveredImage,
    choice: IndexChoice<'_>,
    cache: &ZtocCache,
    progress: &dyn Progress,
) -> Result<Chosen, DiscoverError> {
    let IndexChoice { requested, rules, soci_only } = choice;
    let soci: Vec<Candidate> = match image.chosen {
        None => Vec::new(),
        Some(chosen) if requested == Some(&image.indexes[chosen].digest) => {
            vec![Candidate::Soci(chosen)]
        }
        Some(_) => (0..image.indexes.len()).map(Candidate::Soci).collect(),
    };
    let fine = image.fine_by_preference(requested).into_iter().map(Candidate::Fine).collect();
    let mut trust = TrustOfLayers::default();
    let chooser = Chooser { source, requested, rules, cache, progress };
    let (chosen, levels) = chooser.first(&mut image, soci, &mut trust.left_out).await?;
    (image.chosen, trust.soci) = (chosen, levels);
    let (fine, levels) = chooser.first(&mut image, fine, &mut trust.left_out).await?;
    (image.chosen_fine, trust.fine) = (fine.filter(|_| !soci_only), levels);
    Ok(Chosen { image, trust, fine })
}

struct Chooser<'a> {
    source: &'a Source,
    requested: Option<&'a Digest>,
    rules: &'a TrustRules,
    cache: &'a ZtocCache,
    progress: &'a dyn Progress,
}

impl Chooser<'_> {
    /// The first of the `candidates` with an allowed document, with the levels of those that
    /// are. The others are removed from its content.
    async fn first(
        &self,
        image: &mut DiscoveredImage,
        candidates: Vec<Candidate>,
        left_out: &mut BTreeSet<Digest>,
    ) -> Result<(Option<usize>, BTreeMap<Digest, TrustLevel>), DiscoverError> {
        let mut candidates = candidates;
        if !self.rules.noted.is_empty() {
            candidates.sort_by_cached_key(|candidate| {
                let documents = documents_of(image, *candidate).unwrap_or_default();
                let fits = |(layer, document): &&(Digest, Digest)| {
                    self.rules.noted.get(layer) == Some(&Some(*document))
                };
                Reverse(documents.iter().filter(fits).count())
            });
        }
        for candidate in candidates {
            let Some(documents) = documents_of(image, candidate) else { continue };
            let verdict = self.judge(image, candidate).await;
            let proven = proven(self.cache, documents.clone()).await;
            let counts_proofs = self.rules.accepted != AcceptedTrust::Signed;
            let level = |layer: &Digest| match &verdict {
                _ if counts_proofs && proven.contains(layer) => Some(TrustLevel::Proven),
                IndexVerdict::Level(level) => Some(*level),
                IndexVerdict::Refused(_) => None,
            };
            let least = match self.rules.accepted {
                AcceptedTrust::Repository | AcceptedTrust::Noted => TrustLevel::Repository,
                AcceptedTrust::Vouched => TrustLevel::Named,
                AcceptedTrust::Signed => TrustLevel::Signed,
            };
            let levels: BTreeMap<Digest, TrustLevel> = (documents.iter())
                .filter(|(layer, document)| self.rules.fits(layer, document))
                .filter_map(|(layer, _)| {
                    Some((*layer, level(layer).filter(|level| *level >= least)?))
                })
                .collect();
            left_out.extend(
                documents
                    .iter()
                    .map(|(layer, _)| *layer)
                    .filter(|layer| !levels.contains_key(layer)),
            );
            let digest = digest_of(image, candidate);
            if let IndexVerdict::Refused(why) = verdict {
                if self.requested == Some(&digest) {
                    return Err(DiscoverError::Policy { digest, why });
                }
                self.progress.report(ProgressEvent::Warning(format!(
                    "index {digest} breaks the policy: {why}"
                )));
            }
            if levels.is_empty() && !documents.is_empty() {
                continue;
            }
            let place = match candidate {
                Candidate::Soci(place) => {
                    if let Ok(content) = &mut image.indexes[place].content {
                        content.ztocs.retain(|layer, _| levels.contains_key(layer));
                    }
                    place
                }
                Candidate::Fine(place) => {
                    if let Ok(content) = &mut image.fine[place].content {
                        content.documents.retain(|layer, _| levels.contains_key(layer));
                    }
                    place
                }
            };
            return Ok((Some(place), levels));
        }
        Ok((None, BTreeMap::new()))
    }

    /// Judges an index. One whose signatures or ztocs cannot be read breaks the policy.
    async fn judge(&self, image: &DiscoveredImage, candidate: Candidate) -> IndexVerdict {
        let digest = digest_of(image, candidate);
        let via = match candidate {
            Candidate::Soci(place) => image.indexes[place].via,
            Candidate::Fine(place) => image.fine[place].via,
        };
        let level = if self.requested == Some(&digest) {
            TrustLevel::of(via).max(TrustLevel::Named)
        } else {
            TrustLevel::of(via)
        };
        let trust = &self.rules.policy.trust;
        if self.rules.policy.is_empty() {
            return IndexVerdict::Level(level);
        }
        let signatures = if trust.is_empty() {
            None
        } else {
            let mut subjects = image.signed_for(digest, via);
            if self.rules.accepted == AcceptedTrust::Signed && !names_image(image, candidate) {
                // Anyone can make an image that names a signed index of another image.
                subjects.retain(|subject| *subject != digest);
            }
            match signature::find(self.source, &subjects, trust).await {
                Ok(signatures) => Some(signatures),
                Err(error) => return IndexVerdict::Refused(causes(&error)),
            }
        };
        let covered = match candidate {
            Candidate::Soci(place) => match &image.indexes[place].content {
                Ok(content) => Some(&content.ztocs),
                Err(_) => return IndexVerdict::Level(level),
            },
            Candidate::Fine(place) => match &image.fine[place].content {
                Ok(_) => None,
                Err(_) => return IndexVerdict::Level(level),
            },
        };
        let judged = policy::judge(
            &self.rules.policy,
            &JudgedIndex { layers: &image.layers, covered, signatures: signatures.as_ref() },
        );
        let broken: Vec<&str> = judged
            .iter()
            .flat_map(|ruling| &ruling.violations)
            .map(|problem| &problem.text[..])
            .collect();
        match (broken.is_empty(), signatures) {
            (false, _) => IndexVerdict::Refused(broken.join("; ")),
            (true, Some(Signatures::Trusted { .. })) => IndexVerdict::Level(TrustLevel::Signed),
            (true, _) => IndexVerdict::Level(level),
        }
    }
}

/// The layers whose document this machine proved, among layers with what identifies their documents
/// in the cache: the digest of a ztoc, or of the head of a fine document.
pub(crate) async fn proven(cache: &ZtocCache, documents: Vec<(Digest, Digest)>) -> Vec<Digest> {
    let cache = cache.clone();
    let proven = spawn_blocking(move || {
        let proven = documents.iter().filter(|(layer, document)| cache.is_proven(layer, document));
        proven.map(|(layer, _)| *layer).collect()
    });
    proven.await.unwrap_or_default()
}

/// The layers for which a candidate has a document, with what identifies it in the cache: the
/// digest of the ztoc, or of the head of the fine document. None if the index cannot be used.
fn documents_of(image: &DiscoveredImage, candidate: Candidate) -> Option<Vec<(Digest, Digest)>> {
    match candidate {
        Candidate::Soci(place) => {
            let content = image.indexes[place].content.as_ref().ok()?;
            Some(content.ztocs.iter().map(|(layer, reference)| (*layer, reference.ztoc)).collect())
        }
        Candidate::Fine(place) => {
            let content = image.fine[place].content.as_ref().ok()?;
            Some(
                content
                    .documents
                    .iter()
                    .map(|(layer, reference)| (*layer, reference.head_digest))
                    .collect(),
            )
        }
    }
}

/// Whether the index itself says of which image it is.
fn names_image(image: &DiscoveredImage, candidate: Candidate) -> bool {
    let subject = match candidate {
        Candidate::Soci(place) => image.indexes[place]
            .content
            .as_ref()
            .ok()
            .and_then(|content| content.index.subject.as_ref()),
        Candidate::Fine(place) => image.fine[place]
            .content
            .as_ref()
            .ok()
            .and_then(|content| content.index.subject.as_ref()),
    };
    subject.is_some_and(|subject| subject.digest == image.manifest.digest)
}

fn digest_of(image: &DiscoveredImage, candidate: Candidate) -> Digest {
    match candidate {
        Candidate::Soci(place) => image.indexes[place].digest,
        Candidate::Fine(place) => image.fine[place].digest,
    }
}
