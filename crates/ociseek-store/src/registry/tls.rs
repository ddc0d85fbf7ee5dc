//! TLS settings: the system's certificate authorities, those of the user, and the client
//! certificate. A server's certificate is verified with rules beyond trusted authorities.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{
    CertificateError, ClientConfig as TlsConfig, DigitallySignedStruct, Error, InconsistentKeys,
    RootCertStore, SignatureScheme,
};
use rustls_native_certs::{CertificateResult, load_native_certs};

use super::config::ClientConfig;
use super::error::RegistryError;
use super::hosts::{self, HostTls};
use super::transport::{is_of_an_authority, one_line};
use crate::signatures;
use crate::x509::X509;
use ociseek_format::progress::{Progress, ProgressEvent};

/// The settings that the registries of a client share. A machine without system certificates is not
/// an error here: it can still use plain HTTP, and registries with a given authority.
pub(super) struct Tls {
    provider: Arc<CryptoProvider>,
    anyone: bool,
    system: Arc<SystemRoots>,
    /// The authorities that the user gave.
    given: Vec<CertificateDer<'static>>,
    identity: Option<Identity>,
    folders: Vec<PathBuf>,
    progress: Arc<dyn Progress>,
}

/// A client certificate chain and its key.
struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

/// The settings of a registry that differ from the common ones.
pub(super) struct RegistryTls {
    /// For the registry itself, with the client certificate.
    pub home: TlsConfig,
    /// For the hosts to which it redirects and its token service.
    pub away: TlsConfig,
    /// Whether the user gave authorities for it.
    pub own_authorities: bool,
}

impl Tls {
    pub(super) fn new(config: &ClientConfig) -> Result<Tls, RegistryError> {
        let progress = Arc::clone(&config.progress);
        let given = authorities(&config.ca_files, &*progress)?;
        let identity = match (&config.client_cert, &config.client_key) {
            (Some(cert), Some(key)) => Some(Identity::read(cert, key)?),
            (None, None) => None,
            _ => return Err(RegistryError::ClientCertificate),
        };
        let provider = Arc::new(signatures::provider());
        let folders = config.certs_d.clone().unwrap_or_else(hosts::certificate_folders);
        let anyone = config.insecure_skip_tls_verify;
        let system = Arc::new(SystemRoots::new(&progress));
        let tls = Tls { provider, anyone, system, given, identity, folders, progress };
        // Reports a certificate and key that do not match before anything is sent.
        tls.build(&tls.given, tls.identity.as_ref(), false)?;
        Ok(tls)
    }

    /// Whether the user gave authorities for every registry.
    pub(super) fn has_own_authorities(&self) -> bool {
        !self.given.is_empty()
    }

    /// For every host without its own settings. Does not send the client certificate.
    pub(super) fn common(&self) -> Result<TlsConfig, RegistryError> {
        self.build(&self.given, None, false)
    }

    /// For a registry with a folder of certificates, with a client certificate or with settings of
    /// its own.
    pub(super) fn own(
        &self,
        registry: &str,
        set: &HostTls,
    ) -> Result<Option<RegistryTls>, RegistryError> {
        let files = hosts::find_certificates(&self.folders, registry)?;
        let of_files = match (&self.identity, set.client.as_ref().or(files.client.as_ref())) {
            (None, Some((cert, key))) => Some(Identity::read(cert, key)?),
            _ => None,
        };
        let identity = self.identity.as_ref().or(of_files.as_ref());
        if identity.is_none() && files.authorities.is_empty() && *set == HostTls::default() {
            return Ok(None);
        }
        let given = [
            self.given.clone(),
            authorities(&files.authorities, &*self.progress)?,
            authorities(&set.authorities, &*self.progress)?,
        ]
        .concat();
        Ok(Some(RegistryTls {
            home: self.build(&given, identity, set.skip_verify)?,
            away: self.build(&given, None, false)?,
            own_authorities: !given.is_empty(),
        }))
    }

    fn verifier(&self, given: &[CertificateDer<'static>], anyone: bool) -> CertificateVerifier {
        let provider = Arc::clone(&self.provider);
        let system = Arc::clone(&self.system);
        CertificateVerifier {
            provider,
            anyone: self.anyone || anyone,
            system,
            given: given.to_vec(),
            usual: OnceLock::new(),
        }
    }

    fn build(
        &self,
        given: &[CertificateDer<'static>],
        identity: Option<&Identity>,
        anyone: bool,
    ) -> Result<TlsConfig, RegistryError> {
        let builder = TlsConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| RegistryError::Tls(error.into()))?;
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.verifier(given, anyone)));
        let mut tls = match identity {
            Some(Identity { chain, key }) => {
                let key = self.provider.key_provider.load_private_key(key.clone_key());
                let key = key.map_err(|error| RegistryError::Tls(error.into()))?;
                let pair = CertifiedKey::new(chain.clone(), key);
                let other = Error::InconsistentKeys(InconsistentKeys::KeyMismatch);
                // A certificate of version 1, which `openssl x509 -req` makes, cannot be compared.
                // Its server judges it.
                if pair.keys_match() == Err(other) {
                    return Err(RegistryError::ClientKey);
                }
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
            None => builder.with_no_client_auth(),
        };
        // Not HTTP/2: its frames of 16 KiB and its windows suit many small responses. With it,
        // indexing took a fifth longer, and more CPU time.
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(tls)
    }
}

/// The certificates of authorities in these files. As Go does, skips those that cannot be used, but
/// with a warning, unless none is left.
fn authorities(
    files: &[PathBuf],
    progress: &dyn Progress,
) -> Result<Vec<CertificateDer<'static>>, RegistryError> {
    let mut given = Vec::new();
    let mut skipped = Vec::new();
    for path in files {
        let (read, broken) = certificates(path)?;
        let is_usable = |certificate: &CertificateDer<'static>| {
            RootCertStore::empty().add(certificate.clone()).is_ok()
        };
        let (usable, odd): (Vec<_>, Vec<_>) = read.into_iter().partition(is_usable);
        if usable.is_empty() || broken.is_some() || !odd.is_empty() {
            skipped.push((path, usable.len(), broken));
        }
        given.extend(usable);
    }
    if given.is_empty()
        && let Some((path, _, source)) = skipped.pop()
    {
        return Err(not_pem(path, "certificate", source));
    }
    for (path, usable, _) in skipped {
        let what = match usable {
            0 => "has no certificate that can be read, and is skipped",
            _ => "has a certificate that cannot be read, which is skipped",
        };
        progress.report(ProgressEvent::Warning(format!("{} {what}", path.display())));
    }
    Ok(given)
}

fn not_pem(path: &Path, what: &'static str, source: Option<pem::Error>) -> RegistryError {
    RegistryError::Pem { path: path.to_owned(), what, source: source.map(Into::into) }
}

impl Identity {
    fn read(cert: &Path, key: &Path) -> Result<Identity, RegistryError> {
        let key =
            PrivateKeyDer::from_pem_file(key).map_err(|error| not_pem(key, "key", Some(error)))?;
        match certificates(cert)? {
            (chain, None) if !chain.is_empty() => Ok(Identity { chain, key }),
            (_, source) => Err(not_pem(cert, "certificate", source)),
        }
    }
}

/// The certificates in a PEM file, and the error of one that is not PEM.
fn certificates(
    path: &Path,
) -> Result<(Vec<CertificateDer<'static>>, Option<pem::Error>), RegistryError> {
    let mut readable = Vec::new();
    let mut broken = None;
    let all = CertificateDer::pem_file_iter(path)
        .map_err(|error| not_pem(path, "certificate", Some(error)))?;
    for certificate in all {
        match certificate {
            Ok(certificate) => readable.push(certificate),
            Err(error @ pem::Error::Io(_)) => {
                return Err(not_pem(path, "certificate", Some(error)));
            }
            Err(error) => broken = Some(error),
        }
    }
    Ok((readable, broken))
}

/// The system's certificate authorities. They are read when the first certificate is verified: that
/// takes milliseconds, which a registry without TLS need not cost.
struct SystemRoots {
    certificates: OnceLock<SystemCertificates>,
    progress: Arc<dyn Progress>,
}

impl fmt::Debug for SystemRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemRoots").finish_non_exhaustive()
    }
}

/// The certificates in the system's store, or in `$SSL_CERT_FILE` and `$SSL_CERT_DIR` instead.
struct SystemCertificates {
    roots: RootCertStore,
    all: Vec<CertificateDer<'static>>,
}

impl SystemRoots {
    fn new(progress: &Arc<dyn Progress>) -> SystemRoots {
        SystemRoots { certificates: OnceLock::new(), progress: Arc::clone(progress) }
    }

    fn get(&self) -> &SystemCertificates {
        self.certificates.get_or_init(|| {
            let native = load_native_certs();
            self.report_lost(&native);
            let all = native.certs;
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(all.iter().cloned());
            SystemCertificates { roots, all }
        })
    }

    /// Warns of what cannot be read although a variable names it. Those replace the
    /// system's store, so a mistake there leaves nobody trusted.
    fn report_lost(&self, native: &CertificateResult) {
        let mut set = [CERT_FILE, "SSL_CERT_DIR"]
            .into_iter()
            .filter(|name| std::env::var_os(name).is_some())
            .map(|name| format!("${name}"))
            .collect::<Vec<_>>();
        let what = match native.errors.first() {
            Some(error) => one_line(&error.to_string(), 300),
            None if native.certs.is_empty() => "no certificate".to_owned(),
            // The directory of the other variable has some.
            None if is_empty_file() => {
                set.truncate(1);
                "no certificate".to_owned()
            }
            None => return,
        };
        if !set.is_empty() {
            let warning = format!("{}: {what}", set.join(" and "));
            self.progress.report(ProgressEvent::Warning(warning));
        }
    }
}

const CERT_FILE: &str = "SSL_CERT_FILE";

/// Whether `$SSL_CERT_FILE` names a file without a certificate.
fn is_empty_file() -> bool {
    let path = std::env::var_os(CERT_FILE).map(PathBuf::from);
    path.is_some_and(|path| certificates(&path).is_ok_and(|(readable, _)| readable.is_empty()))
}

/// Verifies the certificates of servers.
#[derive(Debug)]
struct CertificateVerifier {
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

    fn trusted(&self) -> impl Iterator<Item = &CertificateDer<'static>> {
        self.given.iter().chain(&self.system.get().all)
    }

    /// Whether a trusted authority itself signed this certificate for a server.
    fn is_signed_by_an_authority(&self, certificate: &CertificateDer<'_>) -> bool {
        let Some(signed) = X509::parse(certificate) else { return false };
        let is_for_servers = signed.purposes.as_ref().is_none_or(|purposes| {
            purposes.iter().any(|purpose| [SERVER_AUTH, ANY_PURPOSE].contains(purpose))
        });
        let algorithms = self.provider.signature_verification_algorithms.all;
        let signs = |authority: &CertificateDer<'static>| {
            let mut anchor = RootCertStore::empty();
            // Names that it must not sign for are a matter for webpki.
            let is_free = anchor.add(authority.clone()).is_ok()
                && anchor.roots.iter().all(|root| root.name_constraints.is_none());
            let Some(authority) = X509::parse(authority).filter(|_| is_free) else { return false };
            let (key_algorithm, key) = authority.key;
            authority.is_authority
                && authority.subject == signed.issuer
                && algorithms.iter().any(|algorithm| {
                    algorithm.signature_alg_id().as_ref() == signed.algorithm
                        && algorithm.public_key_alg_id().as_ref() == key_algorithm
                        && algorithm.verify_signature(key, signed.signed, signed.signature).is_ok()
                })
        };
        is_for_servers && self.trusted().any(signs)
    }
}

/// id-kp-serverAuth and anyExtendedKeyUsage (RFC 5280, section 4.2.1.12).
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
const ANY_PURPOSE: &[u8] = &[0x55, 0x1d, 37, 0];

impl ServerCertVerifier for CertificateVerifier {
    /// The usual verification, but a server may also present exactly a certificate that the user or
    /// the system trusts as an authority, or an authority's that such a one signed. docker's own
    /// recipe for a registry makes such a certificate (`openssl req -x509`), and Go accepts both.
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
        let usual =
            self.usual().ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        match usual.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // webpki checks the dates of the certificate first
            // (`an_expired_pinned_certificate_is_refused`), then whether it is a CA's, then who
            // signed it. So it is valid now, and its signer does not matter, but its name was not
            // checked yet.
            Err(Error::InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::Other(_),
            )) if self.trusted().any(|trusted| trusted == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            // A certificate of an authority (CA:TRUE) that another one signed.
            Err(Error::InvalidCertificate(CertificateError::Other(other)))
                if is_of_an_authority(&other) && self.is_signed_by_an_authority(end_entity) =>
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
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authorities_of_the_system_are_read_for_the_first_certificate() {
        let tls = Tls::new(&ClientConfig::default()).unwrap();
        tls.common().unwrap();
        assert!(tls.own("r.example", &HostTls::default()).unwrap().is_none());
        assert!(tls.system.certificates.get().is_none());
        let verifier = tls.verifier(&[], false);
        let name = "r.example".try_into().unwrap();
        let judged = verifier.verify_server_cert(
            &CertificateDer::from(vec![0]),
            &[],
            &name,
            &[],
            UnixTime::now(),
        );
        assert!(judged.is_err());
        assert!(tls.system.certificates.get().is_some());
    }
}
