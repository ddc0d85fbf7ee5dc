//! Content digests as in the OCI image spec (descriptor.md, "Digests"), and the hashing for them.

use std::fmt;
use std::str::FromStr;

use sha2::Digest as _;

mod sha256;

pub use sha256::ChainState;
use sha256::Sha256;

/// The digest algorithms that registries use, of those that image-spec registers (descriptor.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// SHA-256, which almost all images use.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// The name before the colon.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    fn bytes(self) -> usize {
        match self {
            Algorithm::Sha256 => 32,
            Algorithm::Sha512 => 64,
        }
    }
}

/// A content digest: `sha256:` or `sha512:` and lower-case hex. Safe in paths and URLs, because
/// nothing else can be parsed into it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    /// The first `algorithm.bytes()` bytes are the digest, the rest are zero.
    bytes: [u8; 64],
}

/// Why a string is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum DigestError {
    #[error("{0:?} is not a digest: expected ALGORITHM:HEX, such as sha256:44136fa3…")]
    Malformed(String),
    #[error("unsupported digest algorithm {0:?} (supported: sha256, sha512)")]
    Algorithm(String),
    #[error("{0:?} is not a digest: expected {1} lower-case hex digits")]
    Hex(String, usize),
}

impl Digest {
    /// The SHA-256 of `data`.
    pub fn sha256(data: &[u8]) -> Digest {
        Digest::of(Algorithm::Sha256, data)
    }

    /// The digest of `data` with `algorithm`.
    pub fn of(algorithm: Algorithm, data: &[u8]) -> Digest {
        let mut hasher = Hasher::new(algorithm);
        hasher.update(data);
        hasher.finish()
    }

    /// A digest from the result of a SHA-256.
    pub(crate) fn from_sha256(digest: [u8; 32]) -> Digest {
        let mut bytes = [0; 64];
        bytes[..32].copy_from_slice(&digest);
        Digest { algorithm: Algorithm::Sha256, bytes }
    }

    /// The algorithm of this digest.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The digest's bytes: 32 or 64.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.bytes()]
    }

    /// The part after the colon.
    pub fn hex(&self) -> String {
        hex(self.as_bytes())
    }

    /// The first twelve hex digits, as docker shows them. For display only.
    pub fn short(&self) -> String {
        self.hex()[..12].to_owned()
    }
}

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(s: &str) -> Result<Digest, DigestError> {
        // The message may contain untrusted text, so cut it to the length of a digest.
        let shown = || s.chars().take(150).collect::<String>();
        let (name, hex) = s.split_once(':').ok_or_else(|| DigestError::Malformed(shown()))?;
        let algorithm = match name {
            "sha256" => Algorithm::Sha256,
            "sha512" => Algorithm::Sha512,
            _ => return Err(DigestError::Algorithm(name.chars().take(40).collect())),
        };
        let wrong = || DigestError::Hex(shown(), algorithm.bytes() * 2);
        if hex.len() != algorithm.bytes() * 2 {
            return Err(wrong());
        }
        let nibble = |c: u8| match c {
            b'0'..=b'9' => Ok(c - b'0'),
            b'a'..=b'f' => Ok(c - b'a' + 10),
            _ => Err(wrong()),
        };
        let mut bytes = [0; 64];
        for (byte, pair) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Digest { algorithm, bytes })
    }
}

/// Lower-case hex, two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let s = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        s.parse().map_err(serde::de::Error::custom)
    }
}

/// A digest being computed.
#[derive(Clone)]
pub enum Hasher {
    /// SHA-256, with the CPU's instructions if it has them.
    Sha256(Sha256),
    /// SHA-512.
    Sha512(sha2::Sha512),
}

crate::opaque_debug!(Hasher);

impl Hasher {
    /// A hasher that has seen no data.
    pub fn new(algorithm: Algorithm) -> Hasher {
        match algorithm {
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(sha2::Sha512::new()),
        }
    }

    /// A SHA-256 that continues after `length` bytes, a multiple of 64, with their `state`.
    pub fn resume(state: ChainState, length: u64) -> Hasher {
        Hasher::Sha256(Sha256::resume(state, length))
    }

    /// The state of a SHA-256 after whole blocks. None inside a block, and for other algorithms.
    pub fn chain_state(&self) -> Option<ChainState> {
        match self {
            Hasher::Sha256(h) => h.chain_state(),
            Hasher::Sha512(_) => None,
        }
    }

    /// Takes the next bytes.
    pub fn update(&mut self, data: &[u8]) {
        match self {
            Hasher::Sha256(h) => h.update(data),
            Hasher::Sha512(h) => h.update(data),
        }
    }

    /// Hashes the same bytes with both, which is faster than one after the other.
    pub fn update_both(a: &mut Hasher, b: &mut Hasher, data: &[u8]) {
        Hasher::update_pair(a, data, b, data);
    }

    /// Hashes some bytes with the one, and some with the other, which is faster than one after the
    /// other.
    pub(crate) fn update_pair(a: &mut Hasher, data_a: &[u8], b: &mut Hasher, data_b: &[u8]) {
        match (a, b) {
            (Hasher::Sha256(a), Hasher::Sha256(b)) => Sha256::update_pair(a, data_a, b, data_b),
            (a, b) => {
                a.update(data_a);
                b.update(data_b);
            }
        }
    }

    /// The digest of all bytes so far.
    pub fn finish(self) -> Digest {
        match self {
            Hasher::Sha256(h) => Digest::from_sha256(h.finish()),
            Hasher::Sha512(h) => {
                Digest { algorithm: Algorithm::Sha512, bytes: h.finalize().into() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_digests_round_trip() {
        for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
            let digest = Digest::of(algorithm, b"{}");
            assert_eq!(digest.to_string().parse(), Ok(digest));
        }
        assert_eq!(
            Digest::sha256(b"{}").to_string(),
            "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
        );
    }

    #[test]
    fn hashing_resumes_from_a_saved_state() {
        let data: Vec<u8> = (0..1000u32).map(|i| (i * 7) as u8).collect();
        let mut hasher = Hasher::new(Algorithm::Sha256);
        assert_eq!(hasher.chain_state(), Some(ChainState::INITIAL));
        hasher.update(&data[..640]);
        let state = hasher.chain_state().unwrap();
        assert_eq!(ChainState::from_bytes(state.to_bytes()), state);
        hasher.update(&data[640..641]);
        assert_eq!(hasher.chain_state(), None);
        assert_eq!(Hasher::new(Algorithm::Sha512).chain_state(), None);
        for chunk in [1, 64, 100, 360] {
            let mut resumed = Hasher::resume(state, 640);
            data[640..].chunks(chunk).for_each(|chunk| resumed.update(chunk));
            assert_eq!(resumed.finish(), Digest::sha256(&data));
        }
    }

    #[test]
    fn invalid_digests_are_rejected() {
        let hex = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        for bad in [
            "",
            "sha256:",
            hex,
            &format!("md5:{hex}"),
            &format!("SHA256:{hex}"),
            &format!("sha256:{}", hex.to_uppercase()),
            &format!("sha256:{hex}0"),
            &format!("sha512:{hex}"),
            &format!("sha256:../../{}", &hex[6..]),
            &format!("sha256:{}é", &hex[2..]),
        ] {
            assert!(bad.parse::<Digest>().is_err(), "{bad}");
        }
    }
}
