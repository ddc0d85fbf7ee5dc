//! Fetches a ztoc, and samples its spans.

use std::sync::Arc;

use super::documents;
use super::error::VerifyError;
use super::model::{COMPARED, Depth, LayerCheck, LayerClaim, VerifyContext};
use super::problem::Problem;
use super::sample;
use crate::damage::Damage;
use crate::discover::{DiscoverError, fetch_ztoc};
use ociseek_format::budget::Charge;
use ociseek_format::code::Code;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::progress::causes;
use ociseek_format::ztoc::{self, Ztoc, ZtocError};
use ociseek_store::Source;

impl LayerClaim {
    /// Verifies the ztoc alone, and for a quick check some spans. Returns the ztoc if the whole
    /// layer is still to be compared with it.
    pub(super) async fn open(
        &self,
        VerifyContext { source, depth, .. }: VerifyContext<'_>,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<Arc<Ztoc>>, VerifyError> {
        let Some(spans) = self.spans(source, depth, done, memory).await? else { return Ok(None) };
        done.compared.of_spans = u64::from(spans.count());
        match depth {
            Depth::Quick { spans: count, seed } => {
                sample::sample(source, &self.layer, &spans, count, seed, done).await?;
                Ok(None)
            }
            Depth::Full => Ok(Some(Arc::clone(spans.ztoc()))),
        }
    }

    /// The ztoc's spans, if it is usable. Adds its faults to `done`.
    async fn spans(
        &self,
        source: &Source,
        depth: Depth,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<SpanTable>, VerifyError> {
        let ZtocRef { ztoc: digest, layer, .. } = self.ztoc;
        let too_large = |source| VerifyError::Memory { ztoc: digest, layer, source };
        let mut differ = |code: Code, text: String| done.differences.push(Problem::new(code, text));
        let bytes = match fetch_ztoc(source, &self.ztoc).await {
            Ok(bytes) => bytes,
            Err(DiscoverError::Ztoc { ztoc, layer, source }) => match Damage::of(&source) {
                Some(how) => {
                    differ(how.ztoc_code(), format!("ztoc {digest}: {}", causes(&source)));
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
        done.compared.entries = ztoc.files.len() as u64;
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
