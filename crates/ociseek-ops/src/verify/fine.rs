//! Verifies the fine indexes of an image: each document in them, and the document against its
//! layer.
//!
//! A document is opened like a reader does, and then decoded with all its pages.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::model::{COMPARED, Depth, LayerCheck, VerifiedDocument, VerifiedFine, VerifyContext};
use super::policy::{self, JudgedIndex, Policy};
use super::{Problem, VerifyError, documents, sample, signature};
use crate::damage::Damage;
use crate::discover::{FineContent, FoundFineRef};
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::code::Code;
use ociseek_format::digest::Digest;
use ociseek_format::fine::{self, FineError, FineLayer};
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::FineRef;
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::progress::causes;
use ociseek_rootfs::layers::{FetchedDocument, UnfitDocument, fit_document};
use ociseek_store::Source;

/// The plan for a fine index.
pub(super) struct FineCheck {
    verified: VerifiedFine,
    /// None if it cannot be used.
    content: Option<FineContent>,
    /// The manifests whose signature covers it.
    signed: Vec<Digest>,
}

impl FineCheck {
    /// # Errors
    /// If the index could not be examined.
    pub(super) fn make(
        reference: FoundFineRef,
        signed: Vec<Digest>,
    ) -> Result<FineCheck, VerifyError> {
        let digest = reference.digest;
        let (differences, content) = documents::of_fine(reference)?;
        let tool = content.as_ref().and_then(|content| content.index.build_tool.clone());
        let verified =
            VerifiedFine { digest, tool, differences, layers: Vec::new(), rulings: Vec::new() };
        Ok(FineCheck { verified, content, signed })
    }

    /// Its documents with the matching layers of `layers`.
    pub(super) fn jobs(
        &self,
        layers: &[Descriptor],
        diff_ids: &[Digest],
    ) -> BTreeMap<FineRef, FineJob> {
        let job = |(at, layer): (usize, &Descriptor)| {
            let document = self.content.as_ref()?.documents.get(&layer.digest)?.clone();
            Some((
                document.clone(),
                FineJob { layer: layer.clone(), document, diff_id: diff_ids.get(at).copied() },
            ))
        };
        layers.iter().enumerate().filter_map(job).collect()
    }

    /// Judges it by the policy, which searches its signatures if they are required.
    ///
    /// # Errors
    /// If the store does not list signatures, or fails to return one.
    pub(super) async fn judge(
        &mut self,
        source: &Source,
        layers: &[Descriptor],
        policy: &Policy,
    ) -> Result<(), VerifyError> {
        if self.content.is_none() {
            return Ok(());
        }
        let signatures = if policy.fine_is_signed() {
            Some(signature::find(source, &self.signed, &policy.trust).await?)
        } else {
            None
        };
        let judged = JudgedIndex { layers, covered: None, signatures: signatures.as_ref() };
        self.verified.rulings = policy::judge(policy, &judged);
        Ok(())
    }

    pub(super) fn finish(
        self,
        layers: &[Descriptor],
        results: &BTreeMap<FineRef, LayerCheck>,
    ) -> VerifiedFine {
        let mut documents = self.content.map_or_else(BTreeMap::new, |content| content.documents);
        // A layer that occurs twice in the image is reported once.
        let layers = layers.iter().filter_map(|layer| documents.remove(&layer.digest)).filter_map(
            |document| {
                let LayerCheck { compared, differences, .. } = results.get(&document)?;
                let FineRef { layer, document, .. } = document;
                Some(VerifiedDocument {
                    layer,
                    document,
                    compared: *compared,
                    differences: differences.clone(),
                })
            },
        );
        VerifiedFine { layers: layers.collect(), ..self.verified }
    }
}

/// A layer, and the fine document that the index lists for it.
pub(super) struct FineJob {
    pub layer: Descriptor,
    pub document: FineRef,
    /// The digest of the layer's plain tar according to the image's config.
    pub diff_id: Option<Digest>,
}

impl FineJob {
    /// Verifies the document alone, and for a quick check some spans. Returns the document if the
    /// whole layer is still to be compared with it.
    pub(super) async fn open(
        &self,
        VerifyContext { source, depth, .. }: VerifyContext<'_>,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<FineLayer>, VerifyError> {
        // Both have a list of entries. It stays charged twice, because the comparison may have its
        // own.
        let mut for_now = source.budget().open();
        let is_full = depth == Depth::Full;
        let Some(bytes) = self.fetch(source, done).await? else { return Ok(None) };
        let Some(spans) = self.spans(&bytes, done, memory)? else { return Ok(None) };
        let Some(layer) = self.decode(&bytes, done, if is_full { memory } else { &mut for_now })?
        else {
            return Ok(None);
        };
        done.compared.entries = layer.entries().len() as u64;
        done.compared.of_spans = u64::from(spans.count());
        match depth {
            Depth::Quick { spans: count, seed } => {
                drop((layer, for_now));
                sample::sample_fine(source, &self.layer, (&spans, bytes), count, seed, done)
                    .await?;
                Ok(None)
            }
            Depth::Full => Ok(Some(layer)),
        }
    }

    /// The document's bytes, if they have the right digest.
    async fn fetch(
        &self,
        source: &Source,
        done: &mut LayerCheck,
    ) -> Result<Option<Bytes>, VerifyError> {
        let FineRef { document, size, .. } = self.document;
        match source.blob_bytes(&self.document.blob(), size).await {
            Ok(bytes) => {
                done.bytes_read += bytes.len() as u64;
                Ok(Some(bytes))
            }
            Err(error) => match Damage::of(&error) {
                Some(how) => {
                    self.differ(done, how.document_code(), &error);
                    Ok(None)
                }
                None => Err(VerifyError::Document { document, source: error }),
            },
        }
    }

    /// Opens the head, and compares it with the index and the manifest.
    fn spans(
        &self,
        bytes: &Bytes,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<SpanTable<LayerMap>>, VerifyError> {
        let head = usize::try_from(self.document.head_size).unwrap_or(usize::MAX).min(bytes.len());
        let fetched =
            FetchedDocument { reference: self.document.clone(), bytes: bytes.slice(..head) };
        let (spans, _) = match fit_document(&self.layer, &fetched, memory) {
            Ok(opened) => opened,
            Err(UnfitDocument::Fine(FineError::Memory(source))) => {
                return Err(self.too_large(source));
            }
            Err(why) => {
                let code = match &why {
                    UnfitDocument::Size(..) => Code::Size,
                    UnfitDocument::Compression(_) => Code::Compression,
                    _ => Code::DocumentMalformed,
                };
                self.differ(done, code, &why);
                return Ok(None);
            }
        };
        let compared = COMPARED * spans.map().files.len() as u64;
        memory
            .grow(compared, || "the list of its files".to_owned())
            .map_err(|source| self.too_large(source))?;
        Ok(Some(spans))
    }

    /// The whole document with its pages.
    fn decode(
        &self,
        bytes: &Bytes,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<FineLayer>, VerifyError> {
        match fine::decode(bytes, memory) {
            Ok(layer) => Ok(Some(layer)),
            Err(FineError::Memory(source)) => Err(self.too_large(source)),
            Err(error) => {
                self.differ(done, Code::DocumentMalformed, &error);
                Ok(None)
            }
        }
    }

    fn differ(&self, done: &mut LayerCheck, code: Code, why: &dyn std::error::Error) {
        let text = format!("fine document {}: {}", self.document.document, causes(why));
        done.differences.push(Problem::new(code, text));
    }

    fn too_large(&self, source: OverBudget) -> VerifyError {
        VerifyError::DocumentMemory {
            document: self.document.document,
            layer: self.document.layer,
            source,
        }
    }
}
