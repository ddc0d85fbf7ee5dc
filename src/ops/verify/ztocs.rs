//! Fetches a ztoc and verifies it against its layer.

use std::sync::Arc;

use super::documents::{self, Damage};
use super::full::{self, Against};
use super::model::{Depth, LayerCheck, LayerClaim, Problem, Proving, VerifyError};
use super::{causes, sample};
use crate::budget::Charge;
use crate::code::Code;
use crate::image::soci::ZtocRef;
use crate::layer::span::SpanTable;
use crate::ops::discover::{DiscoverError, fetch_ztoc};
use crate::store::Source;
use crate::ztoc::{self, ZtocError};

impl LayerClaim {
    /// Verifies the ztoc.
    pub(super) async fn run(self, proving: Proving<'_>) -> Result<LayerCheck, VerifyError> {
        let Proving { source, depth, .. } = proving;
        let mut done = LayerCheck::default();
        let mut memory = source.budget().open();
        let Some(spans) = self.spans(source, depth, &mut done, &mut memory).await? else { return Ok(done) };
        done.proven.of_spans = u64::from(spans.count());
        match depth {
            Depth::Quick { spans: count, seed } => {
                sample::sample(source, &self.layer, &spans, count, seed, &mut done).await?;
            }
            Depth::Full => {
                let ztoc = Some(Arc::clone(spans.ztoc()));
                let against = Against { layer: &self.layer, diff_id: self.diff_id, ztoc, fine: None };
                if let Some(proof) = full::prove(proving, against, &mut done).await? {
                    done.proven.spans = u64::from(spans.count());
                    done.proven.bytes = proof.compared;
                }
            }
        }
        Ok(done)
    }

    /// The ztoc's spans, if it is usable. Adds its faults to `done`.
    async fn spans(
        &self,
        source: &Source,
        depth: Depth,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<SpanTable>, VerifyError> {
        /// The memory for comparing an entry that must be searched, in bytes.
        const COMPARED: u64 = 96;
        let ZtocRef { ztoc: digest, layer, .. } = self.ztoc;
        let too_large = |source| VerifyError::Memory { ztoc: digest, layer, source };
        let mut differ = |code: Code, text: String| done.differences.push(Problem::new(code, text));
        let bytes = match fetch_ztoc(source, &self.ztoc).await {
            Ok(bytes) => bytes,
            Err(DiscoverError::Ztoc { ztoc, layer, source }) => match Damage::of(&source) {
                Some(how) => {
                    differ(how.of_ztoc(), format!("ztoc {digest}: {}", causes(&source)));
                    return Ok(None);
                }
                None => return Err(DiscoverError::Ztoc { ztoc, layer, source }.into()),
            },
            Err(error) => return Err(error.into()),
        };
        done.bytes_read += bytes.len() as u64;
        let ztoc = match ztoc::decode_within(&bytes, memory) {
            Ok(ztoc) => Arc::new(ztoc),
            Err(ZtocError::Memory(source)) => return Err(too_large(source)),
            Err(error) => {
                differ(Code::ZtocMalformed, format!("ztoc {digest}: {}", causes(&error)));
                return Ok(None);
            }
        };
        memory.grow(COMPARED * ztoc.files.len() as u64, || "the list of its files".to_owned()).map_err(too_large)?;
        done.differences.extend(documents::of_annotations(&ztoc, &self.ztoc));
        if depth != Depth::Full {
            done.differences.extend(documents::of_ztoc(&ztoc, self.layer.size));
        }
        done.proven.entries = ztoc.files.len() as u64;
        done.tool = Some(ztoc.build_tool_identifier.clone());
        match SpanTable::new(ztoc) {
            Ok(spans) => Ok(Some(spans)),
            Err(error) => {
                let text = format!("ztoc {digest}: {}", causes(&error));
                done.differences.push(Problem::new(Code::Spans, text));
                Ok(None)
            }
        }
    }
}
