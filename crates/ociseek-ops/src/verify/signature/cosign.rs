//! Signatures by cosign: "simple signing" payloads, and sigstore bundles (DSSE envelopes or plain
//! messages).
//!
//! The signature is verified before its content is parsed, and the signed content must name the
//! digest.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::{PublicKey, Rejection};
use ociseek_format::digest::Digest;
use ociseek_format::image::json;

/// The media type of a payload, which is a layer of a signature's manifest.
pub(super) const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The artifact type of such a manifest if it is a referrer.
pub(super) const ARTIFACT: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";
/// The annotation of such a layer with the signature, in base64.
pub(super) const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
/// The prefix of the media and artifact types of sigstore bundles, for all versions.
pub(super) const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.";
/// The size limit of a payload or bundle in bytes.
pub(super) const MAX_DOCUMENT: usize = 1 << 20;

const PAYLOAD_TYPE: &str = "cosign container image signature";
const IN_TOTO: &str = "application/vnd.in-toto+json";
/// The predicate of `cosign sign`. Attestations are signed too, with other predicates.
const PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";
/// How many signatures of an envelope are tried.
const MOST: usize = 16;

/// Verifies a "simple signing" payload, and returns the key.
///
/// # Errors
/// If none of the keys made the signature, or the signature is for another digest.
pub(super) fn simple<'a>(
    payload: &[u8],
    signature: &str,
    subject: &Digest,
    keys: &'a [PublicKey],
) -> Result<&'a PublicKey, Rejection> {
    let key = signer(payload, std::iter::once(signature), keys)?;
    let said: SimpleSigning = json::parse(payload, MAX_DOCUMENT, &["critical"])?;
    if said.critical.kind != PAYLOAD_TYPE {
        return Err(Rejection::Purpose(cut(&said.critical.kind)));
    }
    if said.critical.image.digest == subject.to_string() {
        Ok(key)
    } else {
        Err(Rejection::Subject(cut(&said.critical.image.digest)))
    }
}

/// A sigstore bundle that is not verified yet.
pub(super) enum SignatureBundle {
    /// A signed statement that names the digest.
    Dsse(Envelope),
    /// A signature over the bytes of the manifest.
    Message { signature: String },
}

/// # Errors
/// When the bytes are not a bundle.
pub(super) fn bundle(bytes: &[u8]) -> Result<SignatureBundle, Rejection> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Raw {
        dsse_envelope: Option<Envelope>,
        message_signature: Option<MessageSignature>,
    }
    #[derive(Deserialize)]
    struct MessageSignature {
        signature: String,
    }
    let raw: Raw = json::parse(bytes, MAX_DOCUMENT, &["dsseEnvelope", "messageSignature"])?;
    match (raw.dsse_envelope, raw.message_signature) {
        (Some(envelope), None) => Ok(SignatureBundle::Dsse(envelope)),
        (None, Some(message)) => Ok(SignatureBundle::Message { signature: message.signature }),
        _ => Err(Rejection::Malformed(
            "the bundle must have either dsseEnvelope or messageSignature".into(),
        )),
    }
}

/// A DSSE envelope (secure-systems-lab/dsse, envelope.md).
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Envelope {
    payload: String,
    payload_type: String,
    signatures: Vec<EnvelopeSignature>,
}

#[derive(Deserialize)]
struct EnvelopeSignature {
    sig: String,
}

impl Envelope {
    /// Verifies the envelope, and returns the key.
    ///
    /// # Errors
    /// As [`simple`].
    pub(super) fn verify<'a>(
        &self,
        subject: &Digest,
        keys: &'a [PublicKey],
    ) -> Result<&'a PublicKey, Rejection> {
        let payload = decoded(&self.payload)?;
        let signatures = self.signatures.iter().take(MOST).map(|signature| &signature.sig[..]);
        let key = signer(&pre_authentication(&self.payload_type, &payload), signatures, keys)?;
        if self.payload_type != IN_TOTO {
            return Err(Rejection::Purpose(cut(&self.payload_type)));
        }
        let said: Statement = json::parse(&payload, MAX_DOCUMENT, &["subject", "predicateType"])?;
        if said.predicate_type != PREDICATE {
            return Err(Rejection::Purpose(cut(&said.predicate_type)));
        }
        let algorithm = subject.algorithm().name();
        let hex = subject.hex();
        let names =
            |of: &SubjectDigests| of.digest.get(algorithm).is_some_and(|digest| *digest == hex);
        if said.subject.iter().any(names) {
            Ok(key)
        } else {
            let first = said.subject.first().and_then(|of| of.digest.iter().next());
            Err(Rejection::Subject(
                first.map_or_else(String::new, |(name, hex)| cut(&format!("{name}:{hex}"))),
            ))
        }
    }
}

/// Verifies a signature over the bytes of a manifest, and returns the key.
///
/// # Errors
/// If none of the keys made it.
pub(super) fn message<'a>(
    manifest: &[u8],
    signature: &str,
    keys: &'a [PublicKey],
) -> Result<&'a PublicKey, Rejection> {
    signer(manifest, std::iter::once(signature), keys)
}

/// The content that a DSSE signature covers (protocol.md, "PAE").
fn pre_authentication(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let mut message =
        format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    message.extend_from_slice(payload);
    message
}

/// The first key that made one of the signatures. What is not base64 was made by none.
fn signer<'a, 'b>(
    message: &[u8],
    signatures: impl Iterator<Item = &'b str>,
    keys: &'a [PublicKey],
) -> Result<&'a PublicKey, Rejection> {
    let mut reason = Rejection::Key;
    for signature in signatures {
        let signature = match decoded(signature) {
            Ok(signature) => signature,
            Err(why) => {
                reason = why;
                continue;
            }
        };
        if let Some(key) = keys.iter().find(|key| key.signed(message, &signature)) {
            return Ok(key);
        }
    }
    Err(reason)
}

fn decoded(base64: &str) -> Result<Vec<u8>, Rejection> {
    STANDARD.decode(base64).map_err(|_| Rejection::Malformed("it is not base64".into()))
}

fn cut(text: &str) -> String {
    text.chars().take(150).collect()
}

#[derive(Deserialize)]
struct SimpleSigning {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Image {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Statement {
    subject: Vec<SubjectDigests>,
    predicate_type: String,
}

#[derive(Deserialize)]
struct SubjectDigests {
    digest: std::collections::BTreeMap<String, String>,
}
