//! The prefetch lists of an index. Consumers fetch the listed spans before the container starts.

use std::collections::BTreeMap;

use super::error::VerifyError;
use super::problem::Problem;
use crate::damage::Damage;
use crate::discover::IndexContent;
use ociseek_format::code::Code;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::prefetch::{MAX_PREFETCH, SpanRange, parse_unmerged};
use ociseek_format::image::soci::{PREFETCH, prefetch_layer};
use ociseek_format::offset::SpanId;
use ociseek_format::progress::causes;
use ociseek_store::Source;

/// The lists of an index.
#[derive(Default)]
pub(super) struct PrefetchLists {
    /// The list of each layer, and the last span on it.
    last: BTreeMap<Digest, (Digest, SpanId)>,
    /// Their faults, as far as the lists show them without the layers' ztocs.
    pub differences: Vec<Problem>,
    /// Facts that are not faults, but may be surprising.
    pub warnings: Vec<String>,
}

impl PrefetchLists {
    /// Reads the lists.
    ///
    /// # Errors
    /// If one cannot be examined.
    pub(super) async fn read(source: &Source, content: &IndexContent) -> Result<PrefetchLists, VerifyError> {
        let mut lists = PrefetchLists::default();
        for artifact in content.index.others.iter().filter(|other| other.media_type == PREFETCH) {
            lists.add(source, content, artifact).await?;
        }
        Ok(lists)
    }

    async fn add(&mut self, source: &Source, content: &IndexContent, artifact: &Descriptor) -> Result<(), VerifyError> {
        let digest = artifact.digest;
        let layer = match prefetch_layer(artifact) {
            Some(layer) => layer,
            None => {
                self.differ(Code::PrefetchLayer, format!("prefetch list {digest} does not say which layer it is for"));
                return Ok(());
            }
        };
        if !content.index.ztocs.iter().any(|ztoc| ztoc.layer == layer) {
            let text = format!("prefetch list {digest} is for layer {layer}, which has no ztoc in the index");
            self.differ(Code::PrefetchLayer, text);
            return Ok(());
        }
        match self.last.get(&layer) {
            // A layer that occurs twice in the image is listed twice.
            Some((known, _)) if *known == digest => return Ok(()),
            Some((known, _)) => {
                let text = format!("prefetch list {digest} is a second one for layer {layer}: {known} is used");
                self.differ(Code::PrefetchLayer, text);
                return Ok(());
            }
            None => {}
        }
        let bytes = match source.blob_bytes(artifact, MAX_PREFETCH).await {
            Ok(bytes) => bytes,
            Err(source) => match Damage::of(&source) {
                Some(how) => {
                    self.differ(how.prefetch_code(), format!("prefetch list {digest}: {}", causes(&source)));
                    return Ok(());
                }
                None => return Err(VerifyError::Prefetch { digest, source }),
            },
        };
        match parse_unmerged(&bytes) {
            Ok(spans) => {
                if overlap(&spans) {
                    self.warnings.push(format!("prefetch list {digest} of layer {layer} names a span twice"));
                }
                let last = spans.iter().map(|range| *range.end()).max().unwrap_or_default();
                self.last.insert(layer, (digest, last));
            }
            Err(error) => self.differ(Code::PrefetchMalformed, format!("prefetch list {digest}: {}", causes(&error))),
        }
        Ok(())
    }

    fn differ(&mut self, code: Code, text: String) {
        self.differences.push(Problem::new(code, text));
    }

    /// The fault of a layer's list, if the layer has only `spans` spans.
    pub(super) fn of_layer(&self, layer: &Digest, spans: u64) -> Option<Problem> {
        let (digest, last) = self.last.get(layer)?;
        let text = || format!("prefetch list {digest} names span {last}, but layer {layer} has {spans} spans");
        (u64::from(last.0) >= spans).then(|| Problem::new(Code::PrefetchRange, text()))
    }
}

fn overlap(spans: &[SpanRange]) -> bool {
    let mut sorted: Vec<&SpanRange> = spans.iter().collect();
    sorted.sort_unstable_by_key(|range| *range.start());
    sorted.windows(2).any(|pair| pair[1].start() <= pair[0].end())
}
