//! The key exchange of TLS by P-521, which ring does not have. In TLS 1.2, a server with a
//! certificate for a curve asks that its client knows the curve here too.

use p521::elliptic_curve::point::AffineCoordinates;
use p521::elliptic_curve::sec1::ToSec1Point;
use p521::{PublicKey, SecretKey};
use rustls::crypto::{ActiveKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// secp521r1.
#[derive(Debug)]
pub(crate) struct P521;

struct OwnKey {
    secret: SecretKey,
    public: Vec<u8>,
}

impl SupportedKxGroup for P521 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let random = rustls::crypto::ring::default_provider().secure_random;
        let mut bytes = [0; 66];
        let secret = loop {
            random.fill(&mut bytes).map_err(|GetRandomFailed| Error::FailedToGetRandomBytes)?;
            // The order has 521 bits, and nearly all of them are ones.
            bytes[0] &= 1;
            if let Ok(secret) = SecretKey::from_slice(&bytes) {
                break secret;
            }
        };
        let public = secret.public_key().to_sec1_point(false).as_bytes().to_vec();
        Ok(Box::new(OwnKey { secret, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

impl ActiveKeyExchange for OwnKey {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let peer = PublicKey::from_sec1_bytes(peer).ok().filter(|_| peer.first() == Some(&4));
        let peer = peer.ok_or(Error::PeerMisbehaved(PeerMisbehaved::InvalidKeyShare))?;
        let shared = peer.to_projective() * *self.secret.to_nonzero_scalar();
        Ok(SharedSecret::from(&shared.to_affine().x()[..]))
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}
