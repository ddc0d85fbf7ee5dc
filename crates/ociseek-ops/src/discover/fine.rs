//! Summaries of an image's fine indexes.

use super::{DiscoveredImage, DiscoveryMethod, FoundFineRef};
use ociseek_format::digest::Digest;
use ociseek_format::image::Coverage;
use ociseek_format::progress::causes;

/// A fine index as shown in lists.
#[derive(Debug, Clone)]
pub struct FineSummary {
    /// The digest of its manifest.
    pub digest: Digest,
    /// The size of its manifest in bytes, if known.
    pub size: Option<u64>,
    /// How it was found.
    pub via: DiscoveryMethod,
    /// Whether a reader takes this one.
    pub chosen: bool,
    /// Its content, or why it cannot be used.
    pub content: Result<FineFacts, String>,
}

/// The content of a fine index.
#[derive(Debug, Clone)]
pub struct FineFacts {
    /// The tool that built it, if it names one.
    pub tool: Option<String>,
    /// How much of the image has documents.
    pub coverage: Coverage,
    /// The size of the documents for the image's layers, in bytes.
    pub bytes: u64,
    /// How many of these bytes a single request for each layer returns: heads, and the pages for a
    /// start.
    pub start_bytes: u64,
    /// The digest of the profile that it was built with, if any.
    pub profile: Option<Digest>,
}

impl DiscoveredImage {
    /// The fine indexes of the image, in order.
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
        let sum = |part: fn(&ociseek_format::image::fine::FineRef) -> u64| {
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
