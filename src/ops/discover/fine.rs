//! The fine indexes of an image, in short.

use super::{Discovered, FoundFineRef, Via, causes};
use crate::digest::Digest;
use crate::image::Coverage;

/// A fine index, as lists show it.
#[derive(Debug, Clone)]
pub struct FineSummary {
    /// The digest of its manifest.
    pub digest: Digest,
    /// Bytes of its manifest; None if nobody says.
    pub size: Option<u64>,
    /// How it was found.
    pub via: Via,
    /// A reader takes this one.
    pub chosen: bool,
    /// What it holds, or why it cannot be used.
    pub content: Result<FineFacts, String>,
}

/// What a fine index holds.
#[derive(Debug, Clone)]
pub struct FineFacts {
    /// What its maker calls itself; none if it does not say.
    pub tool: Option<String>,
    /// How much of the image has documents.
    pub coverage: Coverage,
    /// Bytes of the documents of the image's layers.
    pub bytes: u64,
    /// Of these, what one request for each layer brings: heads, and the pages that a start needs.
    pub start_bytes: u64,
    /// The digest of the recorded reads that it was built with.
    pub profile: Option<Digest>,
}

impl Discovered {
    /// Its fine indexes, in their order.
    pub fn fine_summaries(&self) -> Vec<FineSummary> {
        let fine = self.fine.iter().enumerate();
        fine.map(|(place, found)| FineSummary {
            digest: found.digest,
            size: found.size,
            via: found.via,
            chosen: self.chosen_fine == Some(place),
            content: self.facts(found),
        })
        .collect()
    }

    fn facts(&self, found: &FoundFineRef) -> Result<FineFacts, String> {
        let content = found.content.as_ref().map_err(|why| causes(why))?;
        let sum = |part: fn(&crate::image::fine::FineRef) -> u64| {
            content.documents.values().map(part).fold(0, u64::saturating_add)
        };
        Ok(FineFacts {
            tool: content.index.build_tool.clone(),
            coverage: Coverage::of(&self.layers, |layer| content.documents.contains_key(&layer.digest)),
            bytes: sum(|document| document.size),
            start_bytes: sum(|document| document.start_size),
            profile: content.index.profile,
        })
    }
}
