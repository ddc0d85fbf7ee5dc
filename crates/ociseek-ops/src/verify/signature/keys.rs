//! The trusted signers: public keys for cosign, certificates for notation.

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::RawPublicKeyEntity;
use webpki::ring::{ECDSA_P256_SHA256, ECDSA_P384_SHA256, ECDSA_P384_SHA384, ED25519, RSA_PKCS1_2048_8192_SHA256};

use ociseek_store::Cause;

/// cosign's signature algorithms, by kind of key. Earlier versions use SHA-256 with P-384 too.
static ALGORITHMS: [&dyn SignatureVerificationAlgorithm; 5] =
    [ECDSA_P256_SHA256, ECDSA_P384_SHA256, ECDSA_P384_SHA384, ED25519, RSA_PKCS1_2048_8192_SHA256];

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
        let mut names: Vec<_> =
            keys.chain(self.certificates.iter().map(|c| format!("certificate {}", c.name))).collect();
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
    pub(super) der: CertificateDer<'static>,
}

/// Why a file contains no usable keys or certificates.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum TrustError {
    #[error("it is not PEM")]
    Pem(#[source] Cause),
    #[error("it has no public key (BEGIN PUBLIC KEY)")]
    NoKey,
    #[error("its public key is malformed")]
    Key(#[source] Cause),
    #[error("unsupported kind of public key: expected ECDSA P-256 or P-384, Ed25519, or RSA of 2048 bits or more")]
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
    pub(super) fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
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
            webpki::anchor_from_trusted_cert(&der).map_err(|error| TrustError::Certificate(error.into()))?;
            certificates.push(Certificate { name: name.to_owned(), der });
        }
        if certificates.is_empty() { Err(TrustError::NoCertificate) } else { Ok(certificates) }
    }
}
