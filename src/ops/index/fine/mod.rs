//! The fine index of one platform: what is there, and what is to be done about it. Its documents come
//! from the same reading of the layers as the ztocs.
//!
//! A fine index is complete if it has a document of each layer that can have one, and was built under
//! the same name with the same list of what a start reads. Its manifest says all of that, so nothing
//! else is read to find out.

use std::collections::BTreeSet;

use super::error::IndexError;
use super::existing::{Decision, Seen, decide_seen};
use super::model::{Existing, IndexOptions};
use super::plan::{are_there, unservable};
use crate::digest::{Algorithm, Digest};
use crate::image::Descriptor;
use crate::image::fine::{FINE_INDEX, FineIndex};
use crate::image::soci::CONFIG;
use crate::ops::discover::{Unusable, parse_fine, to_read};
use crate::store::cache::ZtocCache;
use crate::store::{Destination, StoreError};

mod publish;
mod start;

/// What is to be done for the fine index of one platform.
pub(super) struct FinePlan {
    /// The layers that may have a document, each once, in the image's order.
    pub wanted: Vec<Descriptor>,
    /// What the destination lists as fine indexes, in its order.
    pub found: Vec<FoundFine>,
    pub decision: Decision,
}

/// What the destination lists as a fine index of the image.
pub(super) struct FoundFine {
    pub descriptor: Descriptor,
    /// An error if it was not read or is not a fine index of the image. Such a manifest is never replaced: replacing
    /// deletes.
    pub content: Result<FineIndex, Unusable>,
}

impl FoundFine {
    /// The layers of which it has a document.
    fn covered(&self) -> BTreeSet<Digest> {
        self.content.iter().flat_map(|index| &index.layers).map(|document| document.layer).collect()
    }

    /// It was built under this name, with this list if there is one. Without one, any is as good as none.
    fn is_alike(&self, tool: &str, profile: Option<&Digest>) -> bool {
        self.content.as_ref().is_ok_and(|index| {
            let has_list = profile.is_none_or(|profile| index.profile.as_ref() == Some(profile));
            index.build_tool.as_deref() == Some(tool) && has_list
        })
    }
}

impl FinePlan {
    /// `servable` are the layers that are not left out for their size or type.
    pub(super) async fn make<'a>(
        subject: &Descriptor,
        servable: impl Iterator<Item = &'a Descriptor>,
        destination: Option<&Destination>,
        cache: Option<&ZtocCache>,
        options: &IndexOptions,
    ) -> Result<FinePlan, IndexError> {
        let mut seen = BTreeSet::new();
        // A document holds SHA-256 digests.
        let wanted =
            servable.filter(|layer| layer.digest.algorithm() == Algorithm::Sha256 && seen.insert(layer.digest));
        let wanted: Vec<Descriptor> = wanted.cloned().collect();
        let found = match destination {
            Some(destination) => find(destination, subject).await?,
            None => Vec::new(),
        };
        let mut plan = FinePlan { wanted, found, decision: Decision::Build { replaces: Vec::new() } };
        plan.decision = plan.decide(destination, cache, options).await?;
        Ok(plan)
    }

    /// Looks again at what is there, before anything is attached.
    pub(super) async fn renew(
        &mut self,
        subject: &Descriptor,
        destination: Option<&Destination>,
        cache: Option<&ZtocCache>,
        options: &IndexOptions,
    ) -> Result<(), IndexError> {
        if let (Decision::Build { .. }, Some(there)) = (&self.decision, destination) {
            self.found = find(there, subject).await?;
            self.decision = self.decide(destination, cache, options).await?;
        }
        Ok(())
    }

    /// The layers of which a document must be had: none, unless there is something to build.
    pub(super) fn to_build(&self) -> &[Descriptor] {
        match self.decision {
            Decision::Build { .. } => &self.wanted,
            _ => &[],
        }
    }

    async fn decide(
        &self,
        destination: Option<&Destination>,
        cache: Option<&ZtocCache>,
        options: &IndexOptions,
    ) -> Result<Decision, IndexError> {
        let mut needed: BTreeSet<Digest> = self.wanted.iter().map(|layer| layer.digest).collect();
        let all = needed.clone();
        let profile = options.prefetch.as_ref().map(|list| list.digest());
        let tool = &options.layer.build_tool_identifier;
        let decided = |needed: &BTreeSet<Digest>| {
            let seen = self.found.iter().map(|found| {
                let covered = found.covered();
                let has_all = covered.is_subset(&all) && needed.is_subset(&covered) && !covered.is_empty();
                Seen {
                    digest: found.descriptor.digest,
                    usable: found.content.is_ok(),
                    tool: found.content.as_ref().ok().and_then(|index| index.build_tool.as_deref()),
                    is_same: has_all && found.is_alike(tool, profile.as_ref()),
                }
            });
            decide_seen(&seen.collect::<Vec<_>>(), options.existing, tool)
        };
        let mut decision = decided(&needed);
        if options.existing == Existing::Skip && !self.found.is_empty() && matches!(decision, Decision::Build { .. }) {
            // Perhaps the index that is there lacks a layer of which the cache knows why.
            for layer in &self.wanted {
                if unservable(cache, layer, options).await.is_some() {
                    needed.remove(&layer.digest);
                }
            }
            decision = decided(&needed);
        }
        if let (Decision::Done(place), Some(destination)) = (&decision, destination)
            && !is_whole(destination, &self.found[*place]).await?
        {
            // A registry's garbage collection may have taken documents: then the index is built and pushed again.
            let replaces = vec![self.found[*place].descriptor.digest];
            return Ok(Decision::Build { replaces });
        }
        Ok(decision)
    }
}

/// What is listed as fine indexes of `subject`, and what they say.
async fn find(destination: &Destination, subject: &Descriptor) -> Result<Vec<FoundFine>, IndexError> {
    let subject = subject.digest;
    let unlisted = |source| IndexError::Referrers { subject, source };
    let listed = destination.referrers(&subject, FINE_INDEX).await.map_err(unlisted)?;
    let mut found = Vec::with_capacity(listed.descriptors.len());
    for (descriptor, unread) in to_read(listed.descriptors) {
        let content = match unread {
            Some(why) => Err(why),
            None => match destination.manifest(&descriptor.digest).await {
                Ok(document) => parse_fine(&document.bytes, &subject),
                Err(StoreError::Registry(error)) if !error.is_not_found() => return Err(unlisted(error.into())),
                // Listed, but gone or damaged: then nobody can read it.
                Err(error) => Err(Unusable::Fetch(error)),
            },
        };
        found.push(FoundFine { descriptor, content });
    }
    Ok(found)
}

/// Whether all that an index names is there.
async fn is_whole(destination: &Destination, found: &FoundFine) -> Result<bool, IndexError> {
    let Ok(index) = &found.content else { return Ok(false) };
    let documents = index.layers.iter().map(|document| document.document);
    are_there(destination, documents.chain([Digest::sha256(CONFIG)])).await
}
