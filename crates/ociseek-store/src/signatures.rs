//! The algorithms of signatures that ociseek verifies: those of ring, and the ones that Go's
//! programs take beside them.
//!
//! ring has ECDSA for P-256 and P-384 with SHA-256 and SHA-384. Private authorities also sign with
//! SHA-512, and with keys for P-521, which are here.

use std::sync::{Arc, LazyLock};

use p521::ecdsa::signature::hazmat::{PrehashSigner, PrehashVerifier};
use rustls::crypto::{CryptoProvider, KeyProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{
    AlgorithmIdentifier, InvalidSignature, PrivateKeyDer, SignatureVerificationAlgorithm,
    SubjectPublicKeyInfoDer, alg_id,
};
use rustls::sign::{Signer, SigningKey, public_key_to_spki};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use sha2::{Digest as _, Sha256, Sha384, Sha512};

use crate::key_exchange::P521;
use crate::x509::{Der, INTEGER, OCTET_STRING, SEQUENCE};

/// ECDSA that ring does not have.
#[derive(Debug)]
struct Ecdsa(Curve, Hash);

#[derive(Debug, Clone, Copy)]
enum Curve {
    P256,
    P384,
    P521,
}

#[derive(Debug, Clone, Copy)]
enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// ECDSA with P-521 and SHA-256.
pub static ECDSA_P521_SHA256: &dyn SignatureVerificationAlgorithm =
    &Ecdsa(Curve::P521, Hash::Sha256);
/// ECDSA with P-521 and SHA-512.
pub static ECDSA_P521_SHA512: &dyn SignatureVerificationAlgorithm =
    &Ecdsa(Curve::P521, Hash::Sha512);
static ECDSA_P521_SHA384: &dyn SignatureVerificationAlgorithm = &Ecdsa(Curve::P521, Hash::Sha384);
static ECDSA_P384_SHA512: &dyn SignatureVerificationAlgorithm = &Ecdsa(Curve::P384, Hash::Sha512);
static ECDSA_P256_SHA512: &dyn SignatureVerificationAlgorithm = &Ecdsa(Curve::P256, Hash::Sha512);

/// The field of a private key that names its curve (RFC 5915).
const PARAMETERS: u8 = 0xa0;

/// What is taken for each scheme of TLS beside ring's. In TLS 1.3 the first one counts alone, and
/// the scheme names the curve.
static MORE: &[(SignatureScheme, &[&dyn SignatureVerificationAlgorithm])] = &[
    (
        SignatureScheme::ECDSA_NISTP521_SHA512,
        &[ECDSA_P521_SHA512, ECDSA_P384_SHA512, ECDSA_P256_SHA512],
    ),
    (SignatureScheme::ECDSA_NISTP384_SHA384, &[ECDSA_P521_SHA384]),
    (SignatureScheme::ECDSA_NISTP256_SHA256, &[ECDSA_P521_SHA256]),
];

static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> = LazyLock::new(|| {
    let ring = rustls::crypto::ring::default_provider().signature_verification_algorithms;
    let mut all = ring.all.to_vec();
    let mut mapping: Vec<(_, &'static [_])> = ring.mapping.to_vec();
    for (scheme, more) in MORE {
        all.extend(*more);
        match mapping.iter_mut().find(|(known, _)| known == scheme) {
            Some((_, known)) => *known = [known, *more].concat().leak(),
            None => mapping.push((*scheme, *more)),
        }
    }
    WebPkiSupportedAlgorithms { all: all.leak(), mapping: mapping.leak() }
});

/// Every algorithm, for the signatures in certificates.
pub fn all() -> &'static [&'static dyn SignatureVerificationAlgorithm] {
    ALGORITHMS.all
}

/// ring with these algorithms, and with the key exchange and client keys for P-521.
pub fn provider() -> CryptoProvider {
    let mut kx_groups = rustls::crypto::ring::default_provider().kx_groups;
    kx_groups.push(&P521);
    CryptoProvider {
        kx_groups,
        signature_verification_algorithms: *ALGORITHMS,
        key_provider: &Keys,
        ..rustls::crypto::ring::default_provider()
    }
}

impl Hash {
    fn of(self, message: &[u8]) -> Vec<u8> {
        match self {
            Hash::Sha256 => Sha256::digest(message).to_vec(),
            Hash::Sha384 => Sha384::digest(message).to_vec(),
            Hash::Sha512 => Sha512::digest(message).to_vec(),
        }
    }
}

impl Curve {
    /// The length of a number below the order, in bytes.
    const fn length(self) -> usize {
        match self {
            Curve::P256 => 32,
            Curve::P384 => 48,
            Curve::P521 => 66,
        }
    }
}

impl SignatureVerificationAlgorithm for Ecdsa {
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        match self.0 {
            Curve::P256 => alg_id::ECDSA_P256,
            Curve::P384 => alg_id::ECDSA_P384,
            Curve::P521 => alg_id::ECDSA_P521,
        }
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        match self.1 {
            Hash::Sha256 => alg_id::ECDSA_SHA256,
            Hash::Sha384 => alg_id::ECDSA_SHA384,
            Hash::Sha512 => alg_id::ECDSA_SHA512,
        }
    }

    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let Ecdsa(curve, hash) = *self;
        let numbers = numbers(signature, curve.length()).ok_or(InvalidSignature)?;
        // As ring: no compressed points.
        if public_key.first() != Some(&4) {
            return Err(InvalidSignature);
        }
        let hash = hash.of(message);
        let judged = match curve {
            Curve::P256 => judge(
                p256::ecdsa::VerifyingKey::from_sec1_bytes(public_key),
                p256::ecdsa::Signature::from_slice(&numbers),
                &hash,
            ),
            Curve::P384 => judge(
                p384::ecdsa::VerifyingKey::from_sec1_bytes(public_key),
                p384::ecdsa::Signature::from_slice(&numbers),
                &hash,
            ),
            // The crate refuses a hash of less than half the order's length.
            Curve::P521 => judge(
                p521::ecdsa::VerifyingKey::from_sec1_bytes(public_key),
                p521::ecdsa::Signature::from_slice(&numbers),
                &number(&hash, curve.length()).ok_or(InvalidSignature)?,
            ),
        };
        judged.map_err(|_| InvalidSignature)
    }
}

fn judge<S, K: PrehashVerifier<S>>(
    key: Result<K, p521::ecdsa::Error>,
    signature: Result<S, p521::ecdsa::Error>,
    hash: &[u8],
) -> Result<(), p521::ecdsa::Error> {
    key?.verify_prehash(hash, &signature?)
}

/// The two numbers of a signature in DER, each of `length` bytes.
fn numbers(der: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut whole = Der(der);
    let mut pair = Der(whole.take(SEQUENCE)?);
    whole.end()?;
    let mut numbers = Vec::with_capacity(2 * length);
    for _ in 0..2 {
        let bytes = match pair.take(INTEGER)? {
            [0, rest @ ..] if rest.first().is_some_and(|byte| *byte >= 0x80) => rest,
            // Neither negative nor zero, and no leading zeros.
            bytes @ [1..0x80, ..] => bytes,
            _ => return None,
        };
        numbers.extend(number(bytes, length)?);
    }
    pair.end()?;
    Some(numbers)
}

/// Converts an ECDSA signature of two numbers of the same length (RFC 7518, 3.4) to DER (RFC 3279,
/// 2.2.3).
pub fn ecdsa_der(signature: &[u8]) -> Vec<u8> {
    let (first, second) = signature.split_at(signature.len() / 2);
    let mut numbers = Vec::with_capacity(signature.len() + 8);
    for number in [first, second] {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        let number = &number[zeros.min(number.len().saturating_sub(1))..];
        let sign = number.first().is_some_and(|byte| byte & 0x80 != 0);
        numbers.extend([INTEGER, (number.len() + usize::from(sign)) as u8]);
        numbers.extend(sign.then_some(0));
        numbers.extend_from_slice(number);
    }
    let mut der = vec![SEQUENCE];
    der.extend((numbers.len() >= 0x80).then_some(0x81));
    der.push(numbers.len() as u8);
    der.append(&mut numbers);
    der
}

/// A number as exactly `length` bytes.
fn number(bytes: &[u8], length: usize) -> Option<Vec<u8>> {
    let zeros = length.checked_sub(bytes.len())?;
    Some([&vec![0; zeros], bytes].concat())
}

/// Reads private keys as ring does, and those for P-521.
#[derive(Debug)]
struct Keys;

impl KeyProvider for Keys {
    fn load_private_key(&self, der: PrivateKeyDer<'static>) -> Result<Arc<dyn SigningKey>, Error> {
        match P521Key::read(&der) {
            Some(key) => Ok(Arc::new(key)),
            None => rustls::crypto::ring::default_provider().key_provider.load_private_key(der),
        }
    }
}

/// A private key for P-521.
#[derive(Debug, Clone)]
struct P521Key(p521::ecdsa::SigningKey);

impl P521Key {
    /// In PKCS #8 (RFC 5958) or alone (RFC 5915). None for anything else.
    fn read(der: &PrivateKeyDer<'_>) -> Option<P521Key> {
        let curve = alg_id::ECDSA_P521;
        let alone = match der {
            PrivateKeyDer::Pkcs8(whole) => {
                let mut key = Der(Der(whole.secret_pkcs8_der()).take(SEQUENCE)?);
                key.take(INTEGER)?;
                (key.take(SEQUENCE)? == curve.as_ref()).then_some(())?;
                key.take(OCTET_STRING)?
            }
            PrivateKeyDer::Sec1(whole) => whole.secret_sec1_der(),
            _ => return None,
        };
        let mut key = Der(Der(alone).take(SEQUENCE)?);
        key.take(INTEGER)?;
        let number = number(key.take(OCTET_STRING)?, Curve::P521.length())?;
        let parameters = key.optional(PARAMETERS)?;
        let names_curve = match parameters {
            Some(name) => !name.is_empty() && curve.ends_with(name),
            None => matches!(der, PrivateKeyDer::Pkcs8(_)),
        };
        p521::ecdsa::SigningKey::from_slice(&number).ok().filter(|_| names_curve).map(P521Key)
    }
}

impl SigningKey for P521Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&self.scheme()).then(|| Box::new(self.clone()) as Box<dyn Signer>)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        let point = self.0.verifying_key().to_sec1_point(false);
        Some(public_key_to_spki(&alg_id::ECDSA_P521, point))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ECDSA
    }
}

impl Signer for P521Key {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let signed = self.0.sign_prehash(&Sha512::digest(message));
        let signature: p521::ecdsa::Signature =
            signed.map_err(|error| Error::General(error.to_string()))?;
        Ok(ecdsa_der(&signature.to_bytes()))
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ECDSA_NISTP521_SHA512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn der_integers_are_encoded() {
        let signature = [[0; 31].as_slice(), &[1], &[0x80], &[0; 31]].concat();
        let expected = [&[0x30, 3 + 35, 2, 1, 1, 2, 33, 0, 0x80][..], &[0; 31]].concat();
        assert_eq!(ecdsa_der(&signature), expected);
        assert_eq!(ecdsa_der(&[0; 64]), vec![0x30, 6, 2, 1, 0, 2, 1, 0]);
        assert_eq!(ecdsa_der(&[0xff; 96])[..2], [0x30, 102]);
        assert_eq!(ecdsa_der(&[0x7f; 132])[..3], [0x30, 0x81, 136]);
    }

    #[test]
    fn numbers_of_signatures_are_strict_der() {
        for (number, value) in [
            (&[2, 1, 1][..], Some(1)),
            (&[2, 2, 0, 0x80], Some(0x80)),
            (&[2, 1, 0], None),
            (&[2, 1, 0x80], None),
            (&[2, 2, 0, 1], None),
            (&[2, 0], None),
            (&[4, 1, 1], None),
            (&[2, 3, 1, 0, 0], None),
        ] {
            let pair = [number, number].concat();
            let der = [&[0x30, pair.len() as u8][..], &pair].concat();
            let expected = value.map(|value| vec![0, value, 0, value]);
            assert_eq!(numbers(&der, 2), expected, "{number:?}");
            assert_eq!(numbers(&[&der[..], &[0]].concat(), 2), None);
            assert_eq!(numbers(&der[..der.len() - 1], 2), None);
        }
    }
}
