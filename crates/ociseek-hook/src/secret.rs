//! Authenticates senders of events by a secret, in any of the ways that registries support. Every
//! comparison takes the same time whatever the input (Harbor CVE-2023-20902).

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// The minimum length of a secret in bytes. Shorter ones can be guessed.
const SHORTEST: usize = 16;
/// The maximum number of secrets, more than a rotation needs.
const MOST: usize = 16;

/// The valid secrets. There can be several, so that secrets can be rotated without losing events.
#[derive(Clone)]
pub struct Secrets(Vec<Vec<u8>>);

ociseek_format::opaque_debug!(Secrets);

/// Why a text contains no valid secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    #[error("it contains no secret")]
    None,
    #[error("a secret is too short: {0} of at least {SHORTEST} characters")]
    Short(usize),
    #[error("it contains more than {MOST} secrets")]
    TooMany,
}

/// The credentials in a request, before its body is read.
#[derive(Clone, Copy, Default)]
pub struct RequestCredentials<'a> {
    /// The header `Authorization`.
    pub authorization: Option<&'a str>,
    /// `X-Hub-Signature-256`: `sha256=` and the hex of the body's HMAC (GitHub docs, "Validating
    /// webhook deliveries").
    pub signature: Option<&'a str>,
    /// The `token` parameter of the query, for registries that can only be configured with a URL.
    pub token: Option<&'a str>,
}

/// Which credentials there are, without their values.
impl fmt::Debug for RequestCredentials<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("authorization", self.authorization),
            ("signature", self.signature),
            ("token", self.token),
        ];
        f.debug_set()
            .entries(all.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name))
            .finish()
    }
}

/// The decision about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretCheck {
    /// It has a valid secret.
    Good,
    /// It depends on the body: call [`Secrets::signed`].
    Signature,
    /// It has no secret, or a wrong one.
    Bad,
}

impl Secrets {
    /// Parses one secret per line. Empty lines and surrounding white space are ignored.
    ///
    /// # Errors
    /// If there is no secret, or one is too short.
    pub fn parse(text: &str) -> Result<Secrets, SecretError> {
        let secrets: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        match secrets.iter().find(|secret| secret.len() < SHORTEST) {
            Some(short) => Err(SecretError::Short(short.len())),
            None if secrets.is_empty() => Err(SecretError::None),
            None if secrets.len() > MOST => Err(SecretError::TooMany),
            None => {
                Ok(Secrets(secrets.into_iter().map(|secret| secret.as_bytes().to_vec()).collect()))
            }
        }
    }

    /// Checks the credentials of a request. If there are several, only one is checked: the
    /// signature, then the header, then the token.
    pub fn judge(&self, shown: &RequestCredentials) -> SecretCheck {
        let good = match shown {
            RequestCredentials { signature: Some(_), .. } => return SecretCheck::Signature,
            RequestCredentials { authorization: Some(authorization), .. } => {
                self.is_in_header(authorization)
            }
            RequestCredentials { token: Some(token), .. } => self.is_one(token.as_bytes()),
            _ => false,
        };
        if good { SecretCheck::Good } else { SecretCheck::Bad }
    }

    /// Whether `signature` is the body's signature with one of the secrets.
    pub fn signed(&self, signature: &str, body: &[u8]) -> bool {
        let Some(hex) = signature.strip_prefix("sha256=").and_then(unhex) else { return false };
        let by = |secret: &Vec<u8>| {
            // HMAC accepts keys of any length.
            Hmac::<Sha256>::new_from_slice(secret)
                .is_ok_and(|mac| mac.chain_update(body).verify_slice(&hex).is_ok())
        };
        self.0.iter().fold(false, |good, secret| by(secret) | good)
    }

    /// Accepts `Bearer SECRET`, `Basic` with the secret as password, or only the secret, as sent by
    /// Harbor.
    fn is_in_header(&self, value: &str) -> bool {
        let scheme = |name: &str| {
            let (scheme, rest) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case(name).then_some(rest.trim())
        };
        if let Some(token) = scheme("bearer") {
            return self.is_one(token.as_bytes());
        }
        if let Some(encoded) = scheme("basic") {
            let decoded = BASE64_STANDARD.decode(encoded).unwrap_or_default();
            let colon = decoded.iter().position(|byte| *byte == b':');
            return colon.is_some_and(|colon| self.is_one(&decoded[colon + 1..]));
        }
        self.is_one(value.trim().as_bytes())
    }

    /// Compares hashes, so that the time does not depend on the length either.
    fn is_one(&self, shown: &[u8]) -> bool {
        let shown = Sha256::digest(shown);
        let digests = self.0.iter().map(Sha256::digest);
        digests.fold(Choice::from(0), |good, digest| good | digest.ct_eq(&shown)).into()
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) || digits.len() > 128 {
        return None;
    }
    let nibble = |byte: u8| char::from(byte).to_digit(16);
    digits
        .chunks_exact(2)
        .map(|pair| Some((nibble(pair[0])? << 4 | nibble(pair[1])?) as u8))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_not_in_debug_output() {
        let shown = RequestCredentials {
            authorization: Some("Bearer hidden"),
            token: Some("hidden"),
            signature: None,
        };
        assert_eq!(format!("{shown:?}"), r#"{"authorization", "token"}"#);
    }

    const SECRET: &str = "correct horse battery";

    fn judge(shown: RequestCredentials) -> SecretCheck {
        Secrets::parse(&format!("the other secret one\n\n {SECRET} \r\n")).unwrap().judge(&shown)
    }

    #[test]
    fn secrets_are_accepted_in_each_form() {
        let basic = |text: &str| format!("basic {}", BASE64_STANDARD.encode(text));
        for (authorization, want) in [
            (format!("Bearer {SECRET}"), SecretCheck::Good),
            (format!("bearer  {SECRET}"), SecretCheck::Good),
            (SECRET.to_owned(), SecretCheck::Good),
            ("the other secret one".to_owned(), SecretCheck::Good),
            (basic(&format!("hook:{SECRET}")), SecretCheck::Good),
            (basic(SECRET), SecretCheck::Bad),
            (basic(&format!("{SECRET}:x")), SecretCheck::Bad),
            ("Basic !".to_owned(), SecretCheck::Bad),
            (format!("Bearer {SECRET}x"), SecretCheck::Bad),
            (format!("Bearer {}", &SECRET[1..]), SecretCheck::Bad),
            ("Bearer ".to_owned(), SecretCheck::Bad),
            (String::new(), SecretCheck::Bad),
        ] {
            let shown = RequestCredentials {
                authorization: Some(&authorization),
                token: Some(SECRET),
                ..RequestCredentials::default()
            };
            assert_eq!(judge(shown), want, "{authorization}");
        }
        assert_eq!(
            judge(RequestCredentials { token: Some(SECRET), ..RequestCredentials::default() }),
            SecretCheck::Good
        );
        assert_eq!(
            judge(RequestCredentials { token: Some(""), ..RequestCredentials::default() }),
            SecretCheck::Bad
        );
        assert_eq!(judge(RequestCredentials::default()), SecretCheck::Bad);
        // A valid token does not make up for a wrong signature.
        let both = RequestCredentials {
            signature: Some("x"),
            token: Some(SECRET),
            ..RequestCredentials::default()
        };
        assert_eq!(judge(both), SecretCheck::Signature);
    }

    /// The example in GitHub's documentation.
    #[test]
    fn signatures_are_verified_as_github_documents() {
        let secrets = Secrets::parse("It's a Secret to Everybody").unwrap();
        let right = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert!(secrets.signed(right, b"Hello, World!"));
        assert!(!secrets.signed(right, b"Hello, World?"));
        assert!(!secrets.signed(&right.replace("sha256=", "sha1="), b"Hello, World!"));
        for wrong in
            ["", "sha256=", "sha256=7", "sha256=zz", &right[..70], &right.replace('7', "8")]
        {
            assert!(!secrets.signed(wrong, b"Hello, World!"), "{wrong}");
        }
        assert!(!Secrets::parse("some other secret!").unwrap().signed(right, b"Hello, World!"));
    }

    #[test]
    fn invalid_secrets_are_refused() {
        assert_eq!(Secrets::parse(" \n").err(), Some(SecretError::None));
        assert_eq!(Secrets::parse("short").err(), Some(SecretError::Short(5)));
        assert_eq!(
            Secrets::parse(&"0123456789abcdef\n".repeat(17)).err(),
            Some(SecretError::TooMany)
        );
    }
}
