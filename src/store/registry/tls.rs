//! Whom to trust: the system's certificate authorities, those of the user, and the client's own certificate.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig as TlsConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::config::ClientConfig;
use super::error::RegistryError;

/// The TLS side of a client. A machine without any system certificates is no error here: it can still speak to registries
/// whose authority is given, and by plain HTTP.
pub(super) fn tls(config: &ClientConfig) -> Result<TlsConfig, RegistryError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = TlsConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(RegistryError::Tls)?;
    let builder = if config.insecure_skip_tls_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnyone(provider)))
    } else {
        builder.with_root_certificates(roots(config)?)
    };
    let mut tls = match (&config.client_cert, &config.client_key) {
        (Some(cert), Some(key)) => {
            let key = PrivateKeyDer::from_pem_file(key).map_err(|source| RegistryError::Pem {
                path: key.clone(),
                what: "key",
                source: Some(source),
            })?;
            builder.with_client_auth_cert(certificates(cert)?, key).map_err(RegistryError::Tls)?
        }
        (None, None) => builder.with_no_client_auth(),
        _ => return Err(RegistryError::ClientCertificate),
    };
    // Not HTTP/2: its frames of 16 KiB and its windows are for many small answers. Indexing took a fifth longer by it, and more CPU.
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

fn roots(config: &ClientConfig) -> Result<RootCertStore, RegistryError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    for path in &config.ca_files {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(RegistryError::Tls)?;
        }
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let wrong = |source| RegistryError::Pem { path: path.to_owned(), what: "certificate", source };
    let found: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).map_err(|e| wrong(Some(e)))?.collect();
    let found = found.map_err(|e| wrong(Some(e)))?;
    if found.is_empty() { Err(wrong(None)) } else { Ok(found) }
}

/// What `--insecure-skip-tls-verify` asks for: signatures must be sound, but anyone may have made them.
#[derive(Debug)]
struct TrustAnyone(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAnyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
