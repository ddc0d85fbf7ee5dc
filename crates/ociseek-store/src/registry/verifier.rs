//! Verifies a server's certificate with rules beyond trusted authorities.

use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

/// The system's certificate authorities. They are read when the first certificate is verified: that
/// takes milliseconds, which a registry without TLS need not cost.
#[derive(Debug, Default)]
pub(super) struct SystemRoots(pub OnceLock<SystemCertificates>);

/// The certificates in the system's store, or in `$SSL_CERT_FILE` and `$SSL_CERT_DIR` instead.
#[derive(Debug)]
pub(super) struct SystemCertificates {
    roots: RootCertStore,
    all: Vec<CertificateDer<'static>>,
}

impl SystemRoots {
    fn get(&self) -> &SystemCertificates {
        self.0.get_or_init(|| {
            let all = rustls_native_certs::load_native_certs().certs;
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(all.iter().cloned());
            SystemCertificates { roots, all }
        })
    }
}

/// Verifies the certificates of servers.
#[derive(Debug)]
pub(super) struct CertificateVerifier {
    pub provider: Arc<CryptoProvider>,
    /// For `--insecure-skip-tls-verify`: signatures must be valid, but anyone may have made them.
    pub anyone: bool,
    pub system: Arc<SystemRoots>,
    /// The authorities that the user gave.
    pub given: Vec<CertificateDer<'static>>,
    /// The usual verification by all authorities, unless the list is empty.
    pub usual: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
}

impl CertificateVerifier {
    fn usual(&self) -> Option<&WebPkiServerVerifier> {
        let build = || {
            let mut roots = self.system.get().roots.clone();
            roots.add_parsable_certificates(self.given.iter().cloned());
            let provider = Arc::clone(&self.provider);
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().ok()
        };
        self.usual.get_or_init(build).as_deref()
    }
}

impl ServerCertVerifier for CertificateVerifier {
    /// The usual verification, but a server may also present exactly a certificate that the user or
    /// the system trusts as an authority. docker's own recipe for a registry makes such a
    /// certificate (`openssl req -x509`), and Go accepts it.
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.anyone {
            return Ok(ServerCertVerified::assertion());
        }
        let usual = self.usual().ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        match usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki checks the dates of the certificate first
            // (`an_expired_pinned_certificate_is_refused`), then whether it is a CA's, then who
            // signed it. So it is valid now, and its signer does not matter, but its name was not
            // checked yet.
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::Other(_)))
                if self.given.iter().chain(&self.system.get().all).any(|trusted| trusted == end_entity) =>
            {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
