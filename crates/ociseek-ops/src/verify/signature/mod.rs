//! The signatures of an index by cosign and notation, which are stored next to it and verified with
//! the keys and certificates that a policy trusts.
//!
//! Anyone who may push to a repository can add signatures, so all that is read is limited, and a
//! signature that cannot be used is skipped with a reason. Signatures with Fulcio and Rekor
//! (without a key) are not verified.

use bytes::Bytes;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{
    CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer, UnixTime,
};
use serde::Deserialize;
use webpki::RawPublicKeyEntity;
use webpki::ring::{
    ECDSA_P256_SHA256, ECDSA_P384_SHA256, ECDSA_P384_SHA384, ED25519, RSA_PKCS1_2048_8192_SHA256,
};

use super::VerifyError;
use crate::damage::Damage;
use ociseek_format::digest::Digest;
use ociseek_format::image::manifest::MAX_DOCUMENT;
use ociseek_format::image::{Descriptor, JsonError, json};
use ociseek_format::progress::causes;
use ociseek_store::blob::Target;
use ociseek_store::layout::LayoutError;
use ociseek_store::signatures::{ECDSA_P521_SHA256, ECDSA_P521_SHA512};
use ociseek_store::{Cause, Source, StoreError};

mod cosign;
mod notation;

/// How many signatures of a manifest are read.
const MOST: usize = 100;
/// How many reasons for skipping signatures are kept.
const REASONS: usize = 8;

/// The result of searching an index's signatures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Signatures {
    /// A trusted signer made one of them.
    Trusted {
        /// The name of the key or certificate for people.
        signer: String,
        /// `cosign` or `notation`.
        kind: &'static str,
        /// The signed manifest: the index, or the SOCI-enabled image that names it.
        subject: Digest,
    },
    /// There are no signatures.
    None {
        /// The manifests that could be signed: the index, and the SOCI-enabled image that names it.
        subjects: Vec<Digest>,
    },
    /// There are signatures, but none is trusted.
    Untrusted {
        /// Why they were skipped, without duplicates.
        reasons: Vec<String>,
        /// The number of signatures.
        count: usize,
    },
}

/// Why a signature is rejected.
#[derive(Debug, thiserror::Error)]
enum Rejection {
    #[error("no trusted key or certificate matches it, or the signed content was changed")]
    Key,
    #[error("its signature does not match its certificate")]
    Signature(#[source] webpki::Error),
    #[error("its certificate is not trusted")]
    Certificate(#[source] webpki::Error),
    #[error("its certificate is not trusted")]
    Chain(#[source] notation::ChainError),
    #[error("it expired at {0}")]
    Expired(String),
    #[error("it is for another manifest, {0:?}")]
    Subject(String),
    #[error("it signs {0:?}, not an image")]
    Purpose(String),
    #[error("it cannot be used: {0}")]
    Malformed(String),
    #[error("it cannot be used")]
    Json(#[from] JsonError),
    #[error("it cannot be read")]
    Lost(#[source] StoreError),
}

/// Searches for a trusted signature of one of the manifests `subjects`.
///
/// # Errors
/// If the store does not list signatures, or fails to return one.
pub(crate) async fn find(
    source: &Source,
    subjects: &[Digest],
    trust: &Trust,
) -> Result<Signatures, VerifyError> {
    let mut passed_over = Vec::new();
    for subject in subjects {
        let mut search =
            Search { source, subject, trust, passed_over: &mut passed_over, left: MOST };
        let signatures = search.run().await;
        if let Some((signer, kind)) =
            signatures.map_err(|source| VerifyError::Signatures { subject: *subject, source })?
        {
            return Ok(Signatures::Trusted { signer, kind, subject: *subject });
        }
    }
    if passed_over.is_empty() {
        return Ok(Signatures::None { subjects: subjects.to_vec() });
    }
    let count = passed_over.iter().map(|(_, times)| times).sum();
    let more = passed_over.len().saturating_sub(REASONS);
    passed_over.truncate(REASONS);
    let times = |(why, times): (String, usize)| {
        if times > 1 { format!("{why} ({times} times)") } else { why }
    };
    let mut reasons: Vec<String> = passed_over.into_iter().map(times).collect();
    if more > 0 {
        reasons.push(format!("and for {more} more reasons"));
    }
    Ok(Signatures::Untrusted { reasons, count })
}

/// The search for signatures of a manifest.
struct Search<'a> {
    source: &'a Source,
    subject: &'a Digest,
    trust: &'a Trust,
    /// The reasons for skipping signatures, and the number for each.
    passed_over: &'a mut Vec<(String, usize)>,
    /// How many more signatures are read.
    left: usize,
}

/// The signer and the kind of signature.
type Signer = (String, &'static str);

fn is_cosign(artifact_type: &str) -> bool {
    artifact_type == cosign::ARTIFACT || artifact_type.starts_with(cosign::BUNDLE)
}

/// The relevant fields of a signature's manifest.
#[derive(Deserialize)]
struct SignatureManifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
}

impl Search<'_> {
    async fn run(&mut self) -> Result<Option<Signer>, StoreError> {
        if !self.trust.keys.is_empty() {
            let tag = format!("{}-{}.sig", self.subject.algorithm().name(), self.subject.hex());
            let signer = match self.source.manifest(&Target::Tag(tag)).await {
                Ok(document) => self.simple_signatures(&document.bytes).await?,
                Err(error) if is_absent(&error) => None,
                Err(error) => self.lost(error)?,
            };
            if signer.is_some() {
                return Ok(signer);
            }
        }
        for referrer in self.source.all_referrers(self.subject).await?.descriptors {
            let kind = referrer.artifact_type.as_deref().unwrap_or_default();
            let counts = (is_cosign(kind) && !self.trust.keys.is_empty())
                || (kind == notation::ARTIFACT && !self.trust.certificates.is_empty());
            if !counts {
                continue;
            }
            if self.left == 0 {
                self.pass_over("the others were not read", 0);
                break;
            }
            let document = match self.source.manifest(&Target::Digest(referrer.digest)).await {
                Ok(document) => document,
                Err(error) => {
                    self.left -= 1;
                    self.lost(error)?;
                    continue;
                }
            };
            let signer = match kind {
                cosign::ARTIFACT => self.simple_signatures(&document.bytes).await?,
                notation::ARTIFACT => {
                    self.one(&document.bytes, notation::JWS, notation::MAX_ENVELOPE).await?
                }
                _ => self.one(&document.bytes, cosign::BUNDLE, cosign::MAX_DOCUMENT).await?,
            };
            if signer.is_some() {
                return Ok(signer);
            }
        }
        Ok(None)
    }

    /// Verifies the layers of a cosign manifest, each of which is a payload with its signature.
    async fn simple_signatures(&mut self, manifest: &[u8]) -> Result<Option<Signer>, StoreError> {
        let layers = match layers(manifest) {
            Ok(layers) => layers,
            Err(why) => return Ok(self.reject(why)),
        };
        let layers = layers.into_iter().filter(|layer| layer.media_type == cosign::SIMPLE_SIGNING);
        // Several signatures in a manifest usually share the payload.
        let mut last: Option<(Digest, Bytes)> = None;
        for layer in layers {
            let Some(signature) = layer.annotations.get(cosign::SIGNATURE) else { continue };
            if self.left == 0 {
                self.pass_over("the others were not read", 0);
                break;
            }
            self.left -= 1;
            let payload = match last.take().filter(|(digest, _)| *digest == layer.digest) {
                Some((_, payload)) => payload,
                None => match self.source.blob_bytes(&layer, cosign::MAX_DOCUMENT as u64).await {
                    Ok(payload) => payload,
                    Err(error) => {
                        self.lost(error)?;
                        continue;
                    }
                },
            };
            match cosign::simple(&payload, signature, self.subject, &self.trust.keys) {
                Ok(key) => return Ok(Some((format!("key {}", key.name), "cosign"))),
                Err(why) => self.reject(why),
            };
            last = Some((layer.digest, payload));
        }
        Ok(None)
    }

    /// Verifies the first layer with this media type, which is a bundle or an envelope.
    async fn one(
        &mut self,
        manifest: &[u8],
        media_type: &str,
        limit: usize,
    ) -> Result<Option<Signer>, StoreError> {
        self.left = self.left.saturating_sub(1);
        let layer = match layers(manifest) {
            Ok(layers) => layers.into_iter().find(|layer| layer.media_type.starts_with(media_type)),
            Err(why) => return Ok(self.reject(why)),
        };
        let Some(layer) = layer else {
            return Ok(
                self.reject(Rejection::Malformed(format!("it has no layer of type {media_type}")))
            );
        };
        let bytes = match self.source.blob_bytes(&layer, limit as u64).await {
            Ok(bytes) => bytes,
            Err(error) => return self.lost(error),
        };
        let keys = &self.trust.keys;
        let certificates = &self.trust.certificates;
        let key = if media_type == notation::JWS {
            match notation::verify(&bytes, self.subject, certificates, UnixTime::now()) {
                Ok(certificate) => {
                    return Ok(Some((format!("certificate {}", certificate.name), "notation")));
                }
                Err(why) => return Ok(self.reject(why)),
            }
        } else {
            match cosign::bundle(&bytes) {
                Ok(cosign::SignatureBundle::Dsse(envelope)) => envelope.verify(self.subject, keys),
                Ok(cosign::SignatureBundle::Message { signature }) => {
                    let signed = self.source.manifest(&Target::Digest(*self.subject)).await?;
                    cosign::message(&signed.bytes, &signature, keys)
                }
                Err(why) => Err(why),
            }
        };
        match key {
            Ok(key) => Ok(Some((format!("key {}", key.name), "cosign"))),
            Err(why) => Ok(self.reject(why)),
        }
    }

    /// Skips a signature that is listed but missing or damaged.
    ///
    /// # Errors
    /// If it may exist.
    fn lost(&mut self, error: StoreError) -> Result<Option<Signer>, StoreError> {
        match Damage::of(&error) {
            Some(_) => Ok(self.reject(Rejection::Lost(error))),
            None => Err(error),
        }
    }

    fn reject(&mut self, why: Rejection) -> Option<Signer> {
        self.pass_over(&causes(&why), 1);
        None
    }

    fn pass_over(&mut self, why: &str, times: usize) {
        let why = format!("a signature of {}: {why}", self.subject);
        match self.passed_over.iter_mut().find(|(known, _)| *known == why) {
            Some((_, known)) => *known += times,
            None => self.passed_over.push((why, times)),
        }
    }
}

fn layers(manifest: &[u8]) -> Result<Vec<Descriptor>, Rejection> {
    Ok(json::parse::<SignatureManifest>(manifest, MAX_DOCUMENT, &["layers"])?.layers)
}

/// Whether the store has no such content.
fn is_absent(error: &StoreError) -> bool {
    error.is_not_found() || matches!(error, StoreError::Local(LayoutError::NoSuchImage { .. }))
}

/// cosign's signature algorithms, by kind of key. Earlier versions use SHA-256 with P-384 and P-521
/// too.
static ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 7] = [
    ECDSA_P256_SHA256,
    ECDSA_P384_SHA256,
    ECDSA_P384_SHA384,
    ECDSA_P521_SHA256,
    ECDSA_P521_SHA512,
    ED25519,
    RSA_PKCS1_2048_8192_SHA256,
];

/// The trusted keys and certificates. Any one of them is sufficient.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trust {
    /// Public keys, for signatures by cosign.
    pub keys: Vec<PublicKey>,
    /// Certificates, for signatures by notation.
    pub certificates: Vec<Certificate>,
}

impl Trust {
    /// Whether nobody is trusted.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.certificates.is_empty()
    }

    /// The names for people, without duplicates, because a file may hold several keys.
    pub(in crate::verify) fn names(&self) -> impl Iterator<Item = String> {
        let keys = self.keys.iter().map(|key| format!("key {}", key.name));
        let mut names: Vec<_> = keys
            .chain(self.certificates.iter().map(|c| format!("certificate {}", c.name)))
            .collect();
        names.dedup();
        names.into_iter()
    }
}

/// A public key of cosign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// The name for people: the file that it is from.
    pub name: String,
    /// SubjectPublicKeyInfo, in DER.
    spki: Vec<u8>,
}

/// A certificate of an authority, or of a signer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The name for people: the file that it is from.
    pub name: String,
    der: CertificateDer<'static>,
}

/// Why a file contains no usable keys or certificates.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("it is not PEM")]
    Pem(#[source] Cause),
    #[error("it has no public key (BEGIN PUBLIC KEY)")]
    NoKey,
    #[error("its public key is malformed")]
    Key(#[source] Cause),
    #[error(
        "unsupported kind of public key: expected ECDSA P-256, P-384 or P-521, Ed25519, or RSA of 2048 bits or more"
    )]
    Kind,
    #[error("it has no certificate (BEGIN CERTIFICATE)")]
    NoCertificate,
    #[error("its certificate is malformed")]
    Certificate(#[source] Cause),
}

impl PublicKey {
    /// Reads all public keys in a PEM file; at least one.
    ///
    /// # Errors
    /// If there is none, or one cannot be used.
    pub fn read(name: &str, file: &[u8]) -> Result<Vec<PublicKey>, TrustError> {
        let mut keys = Vec::new();
        for spki in SubjectPublicKeyInfoDer::pem_slice_iter(file) {
            let spki = spki.map_err(|error| TrustError::Pem(error.into()))?;
            RawPublicKeyEntity::try_from(&spki).map_err(|error| TrustError::Key(error.into()))?;
            let key = PublicKey { name: name.to_owned(), spki: spki.to_vec() };
            if !key.is_known() {
                return Err(TrustError::Kind);
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(TrustError::NoKey) } else { Ok(keys) }
    }

    /// Whether one of the algorithms supports keys of this kind. Any signature will do, because it
    /// is checked after the kind.
    fn is_known(&self) -> bool {
        ALGORITHMS.iter().any(|algorithm| {
            !matches!(
                self.verify(*algorithm, b"", b""),
                Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_))
            )
        })
    }

    /// Whether the owner of the key signed `message`.
    fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        ALGORITHMS.iter().any(|algorithm| self.verify(*algorithm, message, signature).is_ok())
    }

    fn verify(
        &self,
        algorithm: &dyn SignatureVerificationAlgorithm,
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), webpki::Error> {
        let spki = SubjectPublicKeyInfoDer::from(&self.spki[..]);
        RawPublicKeyEntity::try_from(&spki)?.verify_signature(algorithm, message, signature)
    }
}

impl Certificate {
    /// Reads all certificates in a PEM file; at least one.
    ///
    /// # Errors
    /// If there is none, or one cannot be used.
    pub fn read(name: &str, file: &[u8]) -> Result<Vec<Certificate>, TrustError> {
        let mut certificates = Vec::new();
        for der in CertificateDer::pem_slice_iter(file) {
            let der = der.map_err(|error| TrustError::Pem(error.into()))?;
            webpki::anchor_from_trusted_cert(&der)
                .map_err(|error| TrustError::Certificate(error.into()))?;
            certificates.push(Certificate { name: name.to_owned(), der });
        }
        if certificates.is_empty() { Err(TrustError::NoCertificate) } else { Ok(certificates) }
    }
}
