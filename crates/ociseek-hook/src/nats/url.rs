//! The URL of a queue.

use std::fmt;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

/// `nats://[USER:PASSWORD@|TOKEN@]HOST[:PORT][/STREAM]`, or `tls://`.
#[derive(Clone, PartialEq, Eq)]
pub struct QueueUrl {
    /// Scheme, host and port.
    pub(super) server: String,
    pub(super) tls: bool,
    /// User and password, or only a token.
    pub(super) login: Option<(String, Option<String>)>,
    pub(super) stream: String,
}

/// Why a text is not a [`QueueUrl`]. Messages do not include the text, which may contain a
/// password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum QueueUrlError {
    #[error("expected nats://HOST[:PORT][/STREAM], or tls://")]
    Url,
    #[error("a stream name has at most 64 letters, digits, - and _")]
    Stream,
    #[error("user and password must be percent-encoded UTF-8")]
    Login,
}

impl FromStr for QueueUrl {
    type Err = QueueUrlError;

    fn from_str(text: &str) -> Result<QueueUrl, QueueUrlError> {
        let url = Url::parse(text).map_err(|_| QueueUrlError::Url)?;
        let host = url.host_str().filter(|host| !host.is_empty()).ok_or(QueueUrlError::Url)?;
        if !matches!(url.scheme(), "nats" | "tls") || url.query().is_some() || url.fragment().is_some() {
            return Err(QueueUrlError::Url);
        }
        let stream = match url.path().trim_start_matches('/') {
            "" => "ociseek",
            stream => stream,
        };
        let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        if stream.len() > 64 || !stream.bytes().all(word) {
            return Err(QueueUrlError::Stream);
        }
        let decoded = |text| {
            let text = percent_decode_str(text).decode_utf8().map_err(|_| QueueUrlError::Login)?;
            Ok(text.into_owned())
        };
        let login = match (url.username(), url.password()) {
            ("", None) => None,
            (user, password) => Some((decoded(user)?, password.map(decoded).transpose()?)),
        };
        let server = format!("{}://{host}:{}", url.scheme(), url.port().unwrap_or(4222));
        Ok(QueueUrl { server, tls: url.scheme() == "tls", login, stream: stream.to_owned() })
    }
}

/// Omits the login.
impl fmt::Display for QueueUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server, self.stream)
    }
}

impl fmt::Debug for QueueUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_urls_are_validated() {
        let parsed = |text: &str| text.parse::<QueueUrl>().unwrap();
        assert_eq!(parsed("nats://127.0.0.1").to_string(), "nats://127.0.0.1:4222/ociseek");
        let all = parsed("tls://us%40er:p%3Aw@[::1]:4333/my-stream");
        assert_eq!(all.to_string(), "tls://[::1]:4333/my-stream");
        assert_eq!((all.tls, all.login.clone()), (true, Some(("us@er".into(), Some("p:w".into())))));
        assert_eq!(parsed("nats://token@h").login, Some(("token".into(), None)));
        assert!(!format!("{all:?}").contains("p:w"));
        for bad in ["", "h:4222", "http://h", "nats://", "nats://h/a/b", "nats://h/a.b", "nats://h/a?x", "nats://%ff@h"]
        {
            assert!(bad.parse::<QueueUrl>().is_err(), "{bad}");
        }
    }
}
