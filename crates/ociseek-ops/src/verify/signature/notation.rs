//! Signatures by notation: a JWS envelope with a payload that names the digest, and the signer's
//! certificates (notaryproject/specifications, signature-envelope-jws.md and
//! signature-specification.md, also "Certificate requirements", and trust-store-trust-policy.md).
//!
//! Verifies the signature, the attributes that it covers, and the certificates up to a trusted one.
//! Does not check revocation lists, countersigned times and plugins.
//!
//! webpki finds the way from the signer to a trusted certificate, with name constraints and the
//! like. It does not look at what a trusted certificate may do, nor at key usages, so all
//! certificates are judged here too.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use serde::Deserialize;
use serde::de::IgnoredAny;
use webpki::ring::{
    ECDSA_P256_SHA256, ECDSA_P384_SHA384, RSA_PSS_2048_8192_SHA256_LEGACY_KEY,
    RSA_PSS_2048_8192_SHA384_LEGACY_KEY, RSA_PSS_2048_8192_SHA512_LEGACY_KEY,
};
use webpki::{EndEntityCert, KeyUsage};

use super::{Certificate, Rejection};
use ociseek_format::digest::Digest;
use ociseek_format::image::json;
use ociseek_format::time::Time;
use ociseek_store::signatures::{self, ECDSA_P521_SHA512, ecdsa_der};
use ociseek_store::x509::{KeyUsageField, X509};

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
    let envelope: Envelope =
        json::parse(envelope, MAX_ENVELOPE, &["payload", "protected", "header", "signature"])?;
    if envelope.header.x5c.len() > MOST {
        return Err(Rejection::Malformed(format!("it has more than {MOST} certificates")));
    }
    let certificate = |text: &String| Some(CertificateDer::from(STANDARD.decode(text).ok()?));
    let chain: Option<Vec<CertificateDer<'_>>> =
        envelope.header.x5c.iter().map(certificate).collect();
    let chain =
        chain.ok_or_else(|| Rejection::Malformed("its certificates are not base64".into()))?;
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

    let anchor = trusted_by(&chain, &protected.alg, trusted, now).map_err(Rejection::Chain)?;
    attributes(&protected, now)?;
    let payload: Payload =
        json::parse(&decoded(&envelope.payload)?, MAX_ENVELOPE, &["targetArtifact"])?;
    if payload.target_artifact.digest == subject.to_string() {
        Ok(anchor)
    } else {
        Err(Rejection::Subject(cut(&payload.target_artifact.digest)))
    }
}

fn attributes(protected: &ProtectedHeader, now: UnixTime) -> Result<(), Rejection> {
    let malformed = |why: String| Err(Rejection::Malformed(why));
    if protected.cty != PAYLOAD {
        return Err(Rejection::Purpose(cut(&protected.cty)));
    }
    if protected.scheme != SCHEME {
        return malformed(format!(
            "unsupported signing scheme {:?} (supported: {SCHEME:?})",
            cut(&protected.scheme)
        ));
    }
    let mut required = vec![SCHEME_ATTRIBUTE];
    required.extend(protected.expiry.as_ref().map(|_| EXPIRY_ATTRIBUTE));
    for critical in &protected.crit {
        match required.iter().position(|attribute| attribute == critical) {
            Some(at) => required.remove(at),
            None => {
                return malformed(format!(
                    "it has the unknown critical attribute {:?}",
                    cut(critical)
                ));
            }
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
    let length = signature.len();
    Ok(match name {
        "PS256" => (RSA_PSS_2048_8192_SHA256_LEGACY_KEY, signature),
        "PS384" => (RSA_PSS_2048_8192_SHA384_LEGACY_KEY, signature),
        "PS512" => (RSA_PSS_2048_8192_SHA512_LEGACY_KEY, signature),
        "ES256" if length == 2 * 32 => (ECDSA_P256_SHA256, ecdsa_der(&signature)),
        "ES384" if length == 2 * 48 => (ECDSA_P384_SHA384, ecdsa_der(&signature)),
        "ES512" if length == 2 * 66 => (ECDSA_P521_SHA512, ecdsa_der(&signature)),
        "ES256" | "ES384" | "ES512" => {
            return Err(Rejection::Malformed(
                "its signature has the wrong length for its algorithm".into(),
            ));
        }
        other => {
            let other: String = other.chars().take(40).collect();
            return Err(Rejection::Malformed(format!(
                "unsupported algorithm {other:?} (supported: PS256 to PS512, ES256 to ES512)"
            )));
        }
    })
}

fn decoded(base64: &str) -> Result<Vec<u8>, Rejection> {
    URL_SAFE_NO_PAD.decode(base64).map_err(|_| Rejection::Malformed("it is not base64".into()))
}

/// id-kp-codeSigning, 1.3.6.1.5.5.7.3.3.
const CODE_SIGNING: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 3];
/// Purposes that a signer of code must not have.
const FORBIDDEN: [(&[u8], &str); 6] = [
    (&[0x55, 0x1d, 37, 0], "anything (anyExtendedKeyUsage)"),
    (&[0x2b, 6, 1, 5, 5, 7, 3, 1], "TLS servers (serverAuth)"),
    (&[0x2b, 6, 1, 5, 5, 7, 3, 2], "TLS clients (clientAuth)"),
    (&[0x2b, 6, 1, 5, 5, 7, 3, 4], "e-mail (emailProtection)"),
    (&[0x2b, 6, 1, 5, 5, 7, 3, 8], "time stamps (timeStamping)"),
    (&[0x2b, 6, 1, 5, 5, 7, 3, 9], "OCSP (OCSPSigning)"),
];
/// Bits of the key usage: see [`KeyUsageField`].
const DIGITAL_SIGNATURE: u16 = 1 << 15;
const CONTENT_COMMITMENT: u16 = 1 << 14;
const CERT_SIGN: u16 = 1 << 10;

/// Why a chain of certificates is not trusted.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChainError {
    #[error("{0} is malformed")]
    Malformed(ChainPlace),
    #[error("{0} is not valid yet")]
    NotYetValid(ChainPlace),
    #[error("{0} expired")]
    Expired(ChainPlace),
    #[error("{0} was not issued by the certificate after it")]
    Link(ChainPlace),
    #[error("{0} is not the certificate of an authority")]
    NoAuthority(ChainPlace),
    #[error("{0} allows fewer authorities below it")]
    PathLength(ChainPlace),
    #[error("{0} has no critical key usage")]
    NoKeyUsage(ChainPlace),
    #[error("the key usage of {0} does not allow issuing certificates")]
    NoIssuer(ChainPlace),
    #[error("the key usage of the signer's certificate is not digital signatures alone")]
    NoSigner,
    #[error("the signer's certificate belongs to an authority")]
    Authority,
    #[error("the signer's certificate is not for signing code")]
    NoCodeSigning,
    #[error("the signer's certificate is also for {0}")]
    Purpose(&'static str),
    #[error("keys like the signer's must sign with {expected}, not {found}")]
    Algorithm { expected: &'static str, found: String },
    #[error("its RSA key has {0} bits; notation allows 2048, 3072 and 4096")]
    KeySize(usize),
    #[error("no trusted certificate is in its chain or issued it")]
    Stranger,
    #[error(transparent)]
    Path(webpki::Error),
}

/// Which certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChainPlace {
    /// In the envelope; the signer's is 0.
    Envelope(usize),
    /// One that is trusted, and not in the envelope.
    Trusted(String),
}

impl std::fmt::Display for ChainPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ChainPlace::Envelope(0) => f.write_str("the signer's certificate"),
            ChainPlace::Envelope(at) => write!(f, "certificate {} of the signature", at + 1),
            ChainPlace::Trusted(name) => write!(f, "the trusted certificate {name}"),
        }
    }
}

/// The trusted certificate that is in the chain or issued its last certificate. The chain begins
/// with the signer's certificate, which signs with `algorithm` (its name in a JWS); each of the
/// others issued the one before.
///
/// # Errors
/// If a certificate breaks a rule, or none is trusted.
fn trusted_by<'a>(
    chain: &[CertificateDer<'_>],
    algorithm: &str,
    trusted: &'a [Certificate],
    now: UnixTime,
) -> Result<&'a Certificate, ChainError> {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let mut parsed = Vec::with_capacity(chain.len());
    for (at, der) in chain.iter().enumerate() {
        let place = ChainPlace::Envelope(at);
        let Some(certificate) = X509::parse(der) else { return Err(ChainError::Malformed(place)) };
        valid(&certificate, seconds, &place)?;
        match at.checked_sub(1) {
            None => signer(&certificate, algorithm)?,
            Some(below) => authority(&certificate, below as u64, &place)?,
        }
        parsed.push(certificate);
    }
    for (at, (certificate, issuer)) in
        parsed.iter().zip(chain.iter().zip(&parsed).skip(1)).enumerate()
    {
        if !is_issued(certificate, issuer) {
            return Err(ChainError::Link(ChainPlace::Envelope(at)));
        }
    }
    let mut reason = ChainError::Stranger;
    for certificate in trusted {
        match is_trusted(chain, &parsed, certificate, seconds) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(why) => {
                reason = why;
                continue;
            }
        }
        match path(chain, certificate, now) {
            Ok(()) => return Ok(certificate),
            Err(why) => reason = ChainError::Path(why),
        }
    }
    Err(reason)
}

/// Whether a trusted certificate is in the chain, or issued its last certificate and may do so.
fn is_trusted(
    chain: &[CertificateDer<'_>],
    parsed: &[X509<'_>],
    trusted: &Certificate,
    now: i64,
) -> Result<bool, ChainError> {
    if chain.contains(&trusted.der) {
        return Ok(true);
    }
    let place = ChainPlace::Trusted(trusted.name.clone());
    let Some(certificate) = X509::parse(&trusted.der) else {
        return Err(ChainError::Malformed(place));
    };
    let Some(last) = parsed.last().filter(|last| is_issued(last, (&trusted.der, &certificate)))
    else {
        return Ok(false);
    };
    valid(&certificate, now, &place)?;
    // One that is its own issuer has the same key and name as the trusted one.
    let below =
        parsed.len() as u64 - 1 - u64::from(last.issuer == last.subject && parsed.len() > 1);
    authority(&certificate, below, &place)?;
    Ok(true)
}

/// Whether webpki finds a path from the signer to the trusted certificate.
fn path(
    chain: &[CertificateDer<'_>],
    trusted: &Certificate,
    now: UnixTime,
) -> Result<(), webpki::Error> {
    let Some((leaf, rest)) = chain.split_first() else { return Err(webpki::Error::UnknownIssuer) };
    let (between, anchor) = match chain.iter().position(|certificate| *certificate == trusted.der) {
        // The signer itself is trusted. The issuer of its certificate (perhaps itself) need not be
        // trusted, but the certificate must be correctly signed and valid.
        Some(0) => (&[][..], rest.first().unwrap_or(leaf)),
        Some(at) => (&rest[..at - 1], &chain[at]),
        None => (rest, &trusted.der),
    };
    let end = EndEntityCert::try_from(leaf)?;
    let anchor = webpki::anchor_from_trusted_cert(anchor)?;
    let usage = KeyUsage::required_if_present(CODE_SIGNING);
    end.verify_for_usage(signatures::all(), &[anchor], between, now, usage, None, None).map(drop)
}

/// Whether `issuer` signed the certificate.
fn is_issued(certificate: &X509<'_>, (der, issuer): (&CertificateDer<'_>, &X509<'_>)) -> bool {
    let Ok(key) = EndEntityCert::try_from(der) else { return false };
    let mut algorithms = signatures::all()
        .iter()
        .filter(|known| *known.signature_alg_id() == *certificate.algorithm);
    certificate.issuer == issuer.subject
        && algorithms.any(|known| {
            key.verify_signature(*known, certificate.signed, certificate.signature).is_ok()
        })
}

fn valid(certificate: &X509<'_>, now: i64, place: &ChainPlace) -> Result<(), ChainError> {
    match now {
        now if now < certificate.not_before => Err(ChainError::NotYetValid(place.clone())),
        now if now > certificate.not_after => Err(ChainError::Expired(place.clone())),
        _ => Ok(()),
    }
}

fn key_usage(certificate: &X509<'_>, place: &ChainPlace) -> Result<u16, ChainError> {
    match certificate.key_usage {
        Some(KeyUsageField { is_critical: true, bits }) => Ok(bits),
        _ => Err(ChainError::NoKeyUsage(place.clone())),
    }
}

/// The rules for an authority with this many authorities between it and the signer.
fn authority(certificate: &X509<'_>, below: u64, place: &ChainPlace) -> Result<(), ChainError> {
    if !certificate.is_authority {
        return Err(ChainError::NoAuthority(place.clone()));
    }
    if certificate.path_length.is_some_and(|most| most < below) {
        return Err(ChainError::PathLength(place.clone()));
    }
    match key_usage(certificate, place)? & CERT_SIGN {
        0 => Err(ChainError::NoIssuer(place.clone())),
        _ => Ok(()),
    }
}

fn signer(certificate: &X509<'_>, algorithm: &str) -> Result<(), ChainError> {
    if certificate.is_authority {
        return Err(ChainError::Authority);
    }
    if key_usage(certificate, &ChainPlace::Envelope(0))? & !CONTENT_COMMITMENT != DIGITAL_SIGNATURE
    {
        return Err(ChainError::NoSigner);
    }
    if let Some(purposes) = &certificate.purposes {
        if !purposes.contains(&CODE_SIGNING) {
            return Err(ChainError::NoCodeSigning);
        }
        if let Some((_, name)) = FORBIDDEN.iter().find(|(purpose, _)| purposes.contains(purpose)) {
            return Err(ChainError::Purpose(name));
        }
    }
    // webpki's algorithms are for one curve each, but for RSA keys of any size.
    let expected = match certificate.rsa_bits {
        None => return Ok(()),
        Some(2048) => "PS256",
        Some(3072) => "PS384",
        Some(4096) => "PS512",
        Some(other) => return Err(ChainError::KeySize(other)),
    };
    if algorithm == expected {
        Ok(())
    } else {
        Err(ChainError::Algorithm { expected, found: algorithm.to_owned() })
    }
}
