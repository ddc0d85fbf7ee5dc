//! Signatures by notation: a JWS envelope with a payload that names the digest, and the signer's
//! certificates (notaryproject/specifications, signature-envelope-jws.md and
//! signature-specification.md).
//!
//! Verifies the signature, the attributes that it covers, and by `chain` the certificates up to a
//! trusted one. Does not check revocation lists, countersigned times and plugins.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use serde::Deserialize;
use serde::de::IgnoredAny;
use webpki::EndEntityCert;
use webpki::ring::{
    ECDSA_P256_SHA256, ECDSA_P384_SHA384, RSA_PSS_2048_8192_SHA256_LEGACY_KEY, RSA_PSS_2048_8192_SHA384_LEGACY_KEY,
    RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
};

use super::Rejection;
use super::chain;
use super::keys::Certificate;
use ociseek_format::digest::Digest;
use ociseek_format::image::json;
use ociseek_format::time::Time;

/// The artifact type of a signature's manifest.
pub(super) const ARTIFACT: &str = "application/vnd.cncf.notary.signature";
/// The media type of its layer, the envelope. COSE envelopes are not supported.
pub(super) const JWS: &str = "application/jose+json";
/// The size limit of an envelope in bytes.
pub(super) const MAX_ENVELOPE: usize = 1 << 20;

const PAYLOAD: &str = "application/vnd.cncf.notary.payload.v1+json";
const SCHEME: &str = "notary.x509";
/// The attributes that must be critical, and that this verifier supports: the second only if it
/// is there.
const SCHEME_ATTRIBUTE: &str = "io.cncf.notary.signingScheme";
const EXPIRY_ATTRIBUTE: &str = "io.cncf.notary.expiry";
/// The maximum number of certificates in a chain.
const MOST: usize = 16;

#[derive(Deserialize)]
struct Envelope {
    payload: String,
    protected: String,
    header: Header,
    signature: String,
}

#[derive(Deserialize)]
struct Header {
    x5c: Vec<String>,
}

#[derive(Deserialize)]
struct ProtectedHeader {
    alg: String,
    cty: String,
    crit: Vec<String>,
    #[serde(rename = "io.cncf.notary.signingScheme")]
    scheme: String,
    #[serde(rename = "io.cncf.notary.expiry")]
    expiry: Option<String>,
    #[serde(rename = "io.cncf.notary.signingTime")]
    signing_time: String,
    /// That of another scheme.
    #[serde(rename = "io.cncf.notary.authenticSigningTime")]
    authentic_signing_time: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Payload {
    target_artifact: Target,
}

#[derive(Deserialize)]
struct Target {
    digest: String,
}

/// Verifies an envelope, and returns the trusted certificate.
///
/// # Errors
/// If it is not signed, its signer is not trusted, it is not valid now, or it is for another
/// digest.
pub(super) fn verify<'a>(
    envelope: &[u8],
    subject: &Digest,
    trusted: &'a [Certificate],
    now: UnixTime,
) -> Result<&'a Certificate, Rejection> {
    let envelope: Envelope = json::parse(envelope, MAX_ENVELOPE, &["payload", "protected", "header", "signature"])?;
    if envelope.header.x5c.len() > MOST {
        return Err(Rejection::Malformed(format!("it has more than {MOST} certificates")));
    }
    let certificate = |text: &String| Some(CertificateDer::from(STANDARD.decode(text).ok()?));
    let chain: Option<Vec<CertificateDer<'_>>> = envelope.header.x5c.iter().map(certificate).collect();
    let chain = chain.ok_or_else(|| Rejection::Malformed("its certificates are not base64".into()))?;
    let Some(leaf) = chain.first() else {
        return Err(Rejection::Malformed("it has no certificate".into()));
    };
    let end = EndEntityCert::try_from(leaf).map_err(Rejection::Certificate)?;

    let protected: ProtectedHeader =
        json::parse(&decoded(&envelope.protected)?, MAX_ENVELOPE, &["alg", "cty", "crit"])?;
    let signed = format!("{}.{}", envelope.protected, envelope.payload);
    let signature = decoded(&envelope.signature)?;
    let (algorithm, signature) = algorithm(&protected.alg, signature)?;
    end.verify_signature(algorithm, signed.as_bytes(), &signature).map_err(Rejection::Signature)?;

    let anchor = chain::trusted_by(&chain, &protected.alg, trusted, now).map_err(Rejection::Chain)?;
    attributes(&protected, now)?;
    let payload: Payload = json::parse(&decoded(&envelope.payload)?, MAX_ENVELOPE, &["targetArtifact"])?;
    match payload.target_artifact.digest == subject.to_string() {
        true => Ok(anchor),
        false => Err(Rejection::Subject(cut(&payload.target_artifact.digest))),
    }
}

fn attributes(protected: &ProtectedHeader, now: UnixTime) -> Result<(), Rejection> {
    let malformed = |why: String| Err(Rejection::Malformed(why));
    if protected.cty != PAYLOAD {
        return Err(Rejection::Purpose(cut(&protected.cty)));
    }
    if protected.scheme != SCHEME {
        return malformed(format!("unsupported signing scheme {:?} (supported: {SCHEME:?})", cut(&protected.scheme)));
    }
    let mut required = vec![SCHEME_ATTRIBUTE];
    required.extend(protected.expiry.as_ref().map(|_| EXPIRY_ATTRIBUTE));
    for critical in &protected.crit {
        match required.iter().position(|attribute| attribute == critical) {
            Some(at) => required.remove(at),
            None => return malformed(format!("it has the unknown critical attribute {:?}", cut(critical))),
        };
    }
    if let Some(missing) = required.first() {
        return malformed(format!("its attribute {missing} is not critical"));
    }
    if protected.authentic_signing_time.is_some() {
        return malformed(format!("it has a time that is not for the signing scheme {SCHEME:?}"));
    }
    let seconds = |text: &str| Time::from_rfc3339(text).map(|time| time.seconds);
    let Some(start) = seconds(&protected.signing_time) else {
        return malformed("its signing time is not a time".into());
    };
    let Some(expiry) = &protected.expiry else { return Ok(()) };
    match seconds(expiry) {
        None => malformed("its expiry is not a time".into()),
        Some(end) if end <= start => malformed("it expires before it was signed".into()),
        Some(end) if i64::try_from(now.as_secs()).is_ok_and(|now| now < end) => Ok(()),
        Some(_) => Err(Rejection::Expired(expiry.chars().take(40).collect())),
    }
}

fn cut(text: &str) -> String {
    text.chars().take(150).collect()
}

/// The algorithm for a JWS name (RFC 7518), and the signature in its format.
fn algorithm(
    name: &str,
    signature: Vec<u8>,
) -> Result<(&'static dyn SignatureVerificationAlgorithm, Vec<u8>), Rejection> {
    let malformed = || Rejection::Malformed("its signature has the wrong length for its algorithm".into());
    Ok(match name {
        "PS256" => (RSA_PSS_2048_8192_SHA256_LEGACY_KEY, signature),
        "PS384" => (RSA_PSS_2048_8192_SHA384_LEGACY_KEY, signature),
        "PS512" => (RSA_PSS_2048_8192_SHA512_LEGACY_KEY, signature),
        "ES256" => (ECDSA_P256_SHA256, der(&signature, 32).ok_or_else(malformed)?),
        "ES384" => (ECDSA_P384_SHA384, der(&signature, 48).ok_or_else(malformed)?),
        other => {
            let other: String = other.chars().take(40).collect();
            return Err(Rejection::Malformed(format!(
                "unsupported algorithm {other:?} (supported: PS256 to PS512, ES256, ES384)"
            )));
        }
    })
}

/// Converts an ECDSA signature of two numbers of `length` bytes (RFC 7518, 3.4) to DER (RFC 3279,
/// 2.2.3).
fn der(signature: &[u8], length: usize) -> Option<Vec<u8>> {
    if signature.len() != 2 * length {
        return None;
    }
    let mut numbers = Vec::with_capacity(2 * length + 8);
    for number in signature.chunks(length) {
        let zeros = number.iter().take_while(|byte| **byte == 0).count().min(length - 1);
        let number = &number[zeros..];
        let sign = number.first().is_some_and(|byte| byte & 0x80 != 0);
        numbers.extend([2, (number.len() + usize::from(sign)) as u8]);
        numbers.extend(sign.then_some(0));
        numbers.extend_from_slice(number);
    }
    let mut der = vec![0x30, numbers.len() as u8];
    der.append(&mut numbers);
    Some(der)
}

fn decoded(base64: &str) -> Result<Vec<u8>, Rejection> {
    URL_SAFE_NO_PAD.decode(base64).map_err(|_| Rejection::Malformed("it is not base64".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn der_integers_are_encoded() {
        let signature = [[0; 31].as_slice(), &[1], &[0x80], &[0; 31]].concat();
        let expected = [&[0x30, 3 + 35, 2, 1, 1, 2, 33, 0, 0x80][..], &[0; 31]].concat();
        assert_eq!(der(&signature, 32), Some(expected));
        assert_eq!(der(&[0; 64], 32), Some(vec![0x30, 6, 2, 1, 0, 2, 1, 0]));
        assert_eq!(der(&[0xff; 96], 48).map(|der| (der.len(), der[1])), Some((104, 102)));
        assert_eq!((der(&signature[1..], 32), der(&[], 32)), (None, None));
    }
}
