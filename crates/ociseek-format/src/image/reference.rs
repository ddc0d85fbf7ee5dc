//! References to images in registries: the grammar of distribution (reference/reference.go), which
//! must match the whole text, and docker's rules for familiar names (`alpine` means
//! `docker.io/library/alpine:latest`).

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::digest::{Digest, DigestError};

/// The default tag of a name with neither tag nor digest.
pub const DEFAULT_TAG: &str = "latest";
/// The default registry.
pub const DOCKER_HUB: &str = "docker.io";
/// The maximum length of a repository name, including the registry, in bytes (distribution,
/// `RepositoryNameTotalLengthMax`).
const MAX_NAME: usize = 255;
/// The maximum length of a tag in bytes (distribution-spec, "Pulling manifests").
const MAX_TAG: usize = 128;

/// An image in a registry. Every part was checked against the grammar, so it can safely be used in
/// a URL, a path, or a log line.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    /// `HOST` or `HOST:PORT`; an IPv6 address is in brackets.
    pub registry: String,
    /// The repository without its registry. Docker Hub's official images have the prefix
    /// `library/`.
    pub repository: String,
    /// `latest` if the parsed name has neither tag nor digest.
    pub tag: Option<String>,
    /// Takes precedence over the tag.
    pub digest: Option<Digest>,
}

/// Why a string is not a reference.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ReferenceError {
    #[error("the image name is empty: is a variable not set?")]
    Empty,
    #[error("{0:?} is not a valid image name: repository names are lower case; write {1:?}")]
    UpperCase(String, String),
    #[error(
        "{0:?} is not a valid image name: {1:?} is not a registry host; expected HOST or HOST:PORT"
    )]
    Registry(String, String),
    #[error("{0:?} is not a valid image name: an IPv6 address has brackets; write {1:?}")]
    Address(String, String),
    #[error(
        "{0:?} is not a valid image name: {1:?} is not a repository; expected lower-case letters, digits and \
         single . _ - between slashes"
    )]
    Repository(String, String),
    #[error(
        "{0:?} is not a valid image name: a part beside a slash is empty. Is a variable not set?"
    )]
    EmptyPart(String),
    #[error("{0:?} is not a valid image name: it has more than one tag")]
    Tags(String),
    #[error("{0:?} is not a valid image name: separate the image and the path with a space")]
    Path(String),
    #[error("{0:?} is not a valid image name: it ends with a slash; write {1:?}")]
    Slash(String, String),
    #[error(
        "{0:?} is not a valid image name: {1:?} is not a tag; expected at most 128 letters, digits, . _ -"
    )]
    Tag(String, String),
    #[error("{0:?} is not a valid image name: {1}")]
    Digest(String, DigestError),
    #[error("the image name {0:?}… is longer than 255 bytes")]
    TooLong(String),
    #[error("{0:?} is an image ID, which only a local engine knows; write a repository name")]
    ImageId(String),
    #[error("{0:?} is not a valid image name: write {1:?}")]
    Order(String, String),
    #[error("{0:?} is a digest without its repository: write REPOSITORY@{0}")]
    NoRepository(String),
}

impl Reference {
    /// Whether the image's name means this image. Valid parts may not form a valid name: a
    /// registry's host needs a dot, a port or a capital letter (`team/app` is an image of Docker
    /// Hub), Docker Hub's repositories have a namespace, and the length of the name is limited.
    pub fn is_canonical(&self) -> bool {
        self.to_string().parse().as_ref() == Ok(self)
    }
}

impl FromStr for Reference {
    type Err = ReferenceError;

    fn from_str(typed: &str) -> Result<Reference, ReferenceError> {
        if typed.is_empty() {
            return Err(ReferenceError::Empty);
        }
        let shown: String = typed.chars().take(300).collect();
        if let Some(meant) = in_order(typed) {
            return Err(ReferenceError::Order(shown, meant));
        }
        if let Some(meant) = with_brackets(typed) {
            return Err(ReferenceError::Address(shown, meant));
        }
        if typed.starts_with("sha256:") {
            return Err(ReferenceError::NoRepository(shown));
        }
        let (named, digest) = match typed.split_once('@') {
            None => (typed, None),
            Some((named, digest)) => {
                (named, Some(digest.parse().map_err(|e| ReferenceError::Digest(shown.clone(), e))?))
            }
        };
        let (name, tag) = match named.rsplit_once(':') {
            // The text after a registry's port contains a slash. `[::1]` alone contains colons of
            // its own.
            Some((name, tag)) if !tag.contains('/') && !tag.ends_with(']') => (name, Some(tag)),
            _ => (named, None),
        };
        if let Some(tag) = tag
            && !is_tag(tag)
        {
            return Err(ReferenceError::Tag(shown, tag.chars().take(150).collect()));
        }
        let (registry, repository) = split_familiar(name);
        if name.len() > MAX_NAME || registry.len() + 1 + repository.len() > MAX_NAME {
            return Err(ReferenceError::TooLong(name.chars().take(60).collect()));
        }
        if !is_registry(registry) {
            return Err(ReferenceError::Registry(shown, registry.to_owned()));
        }
        if repository.bytes().any(|b| b.is_ascii_uppercase()) {
            return Err(ReferenceError::UpperCase(shown, with_lower_case(typed, &repository)));
        }
        if repository.split_once(':').is_some_and(|(_, behind)| behind.contains('/')) {
            return Err(ReferenceError::Path(shown));
        }
        let shorter = typed.trim_end_matches('/');
        if shorter != typed && (shorter.contains('/') || !looks_like_registry(shorter)) {
            return Err(ReferenceError::Slash(shown, shorter.to_owned()));
        }
        if repository.contains(':') {
            return Err(ReferenceError::Tags(shown));
        }
        if repository.split('/').any(str::is_empty) {
            return Err(ReferenceError::EmptyPart(shown));
        }
        if !is_repository(&repository) {
            return Err(ReferenceError::Repository(shown, repository));
        }
        if name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ReferenceError::ImageId(shown));
        }
        let tag = match (tag, digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, Some(_)) => None,
            (None, None) => Some(DEFAULT_TAG.to_owned()),
        };
        Ok(Reference { registry: registry.to_owned(), repository, tag, digest })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

/// What was meant by a name whose tag is behind the digest, whose digest is behind a colon like a
/// tag, or whose digest lacks its algorithm.
fn in_order(typed: &str) -> Option<String> {
    let is_digest = |text: &str| text.parse::<Digest>().is_ok();
    if let Some((name, digest)) = typed.split_once(":sha256:") {
        let digest = format!("sha256:{digest}");
        return (!name.is_empty() && !name.contains('@') && is_digest(&digest))
            .then(|| format!("{name}@{digest}"));
    }
    let (name, digest) = typed.split_once('@')?;
    match digest.rsplit_once(':') {
        Some((digest, tag)) if is_digest(digest) && is_tag(tag) => {
            Some(format!("{name}:{tag}@{digest}"))
        }
        None if is_digest(&format!("sha256:{digest}")) => Some(format!("{name}@sha256:{digest}")),
        _ => None,
    }
}

/// What was meant by a name whose registry is an IPv6 address without brackets.
pub(super) fn with_brackets(typed: &str) -> Option<String> {
    let (host, path) = typed.split_once('/')?;
    let is_address = |host: &str| host.parse::<Ipv6Addr>().is_ok();
    match host.rsplit_once(':') {
        Some((host, port)) if port.len() > 3 && is_address(host) => {
            Some(format!("[{host}]:{port}/{path}"))
        }
        _ => is_address(host).then(|| format!("[{host}]/{path}")),
    }
}

/// Separates registry and repository like docker (distribution, `splitDockerDomain`).
fn split_familiar(name: &str) -> (&str, String) {
    let (registry, repository) = match name.split_once('/') {
        Some((first, rest)) if looks_like_registry(first) => (first, rest),
        _ => (DOCKER_HUB, name),
    };
    match registry {
        DOCKER_HUB | "index.docker.io" if !repository.contains('/') => {
            (DOCKER_HUB, format!("library/{repository}"))
        }
        "index.docker.io" => (DOCKER_HUB, repository.to_owned()),
        _ => (registry, repository.to_owned()),
    }
}

fn looks_like_registry(first: &str) -> bool {
    first == "localhost"
        || first.contains(['.', ':'])
        || first.bytes().any(|b| b.is_ascii_uppercase())
}

/// A suggestion: `typed` with its repository in lower case.
fn with_lower_case(typed: &str, repository: &str) -> String {
    let repository =
        repository.strip_prefix("library/").filter(|r| !typed.contains(&format!("library/{r}")));
    match repository {
        Some(repository) => typed.replacen(repository, &repository.to_lowercase(), 1),
        None => {
            let (registry, rest) = match typed.split_once('/') {
                Some((first, rest)) if looks_like_registry(first) => (Some(first), rest),
                _ => (None, typed),
            };
            let end = rest.find([':', '@']).unwrap_or(rest.len());
            let lower = format!("{}{}", rest[..end].to_lowercase(), &rest[end..]);
            registry.map_or(lower.clone(), |registry| format!("{registry}/{lower}"))
        }
    }
}

/// Whether `s` is a registry's host, with or without a port: letters, digits and `-` between dots,
/// or an IPv6 address in brackets.
pub fn is_registry(s: &str) -> bool {
    let (host, port) = match s.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => (host, None),
            Some((host, port)) => match port.strip_prefix(':') {
                Some(port) => (host, Some(port)),
                None => return false,
            },
            None => return false,
        },
        None => s.split_once(':').map_or((s, None), |(host, port)| (host, Some(port))),
    };
    let host_is_good = if s.starts_with('[') {
        host.parse::<Ipv6Addr>().is_ok()
    } else {
        host.split('.').all(|part| {
            !part.is_empty()
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !part.starts_with('-')
                && !part.ends_with('-')
        })
    };
    // `parse` would also accept a `+`.
    host_is_good
        && port.is_none_or(|p| p.bytes().all(|b| b.is_ascii_digit()) && p.parse::<u16>().is_ok())
}

/// What [`is_canonical_registry`] demands, for messages.
pub const CANONICAL_REGISTRY: &str =
    "HOST:PORT, or a HOST that has a dot or is localhost (Docker Hub's name is docker.io)";

/// Whether [canonical](Reference::is_canonical) names of images can begin with `s`, which is in
/// lower case: a registry's host with a port or a dot, or `localhost`.
pub fn is_canonical_registry(s: &str) -> bool {
    let registry = s.to_owned();
    let repository = "a/a".to_owned();
    let tag = Some(DEFAULT_TAG.to_owned());
    Reference { registry, repository, tag, digest: None }.is_canonical()
}

/// Whether `s` is a repository name in the distribution grammar: parts of `[a-z0-9]+`, joined by
/// `.`, `_`, `__` or any number of `-`, separated by slashes.
pub fn is_repository(s: &str) -> bool {
    s.len() <= MAX_NAME && s.split('/').all(is_repository_part)
}

fn is_repository_part(part: &str) -> bool {
    let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let mut rest = part.as_bytes();
    loop {
        let letters = rest.iter().take_while(|&&b| word(b)).count();
        if letters == 0 {
            return false;
        }
        rest = &rest[letters..];
        if rest.is_empty() {
            return true;
        }
        let joint = rest.iter().take_while(|&&b| !word(b)).count();
        let (between, after) = rest.split_at(joint);
        if !matches!(between, b"." | b"_" | b"__") && !between.iter().all(|&b| b == b'-') {
            return false;
        }
        rest = after;
    }
}

/// Whether `s` is a tag: a letter, digit or `_`, followed by at most 127 of these, `.` and `-`.
pub fn is_tag(s: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=MAX_TAG).contains(&s.len())
        && s.bytes().enumerate().all(|(i, b)| word(b) || (i > 0 && matches!(b, b'.' | b'-')))
}

/// The tag under which clients list the referrers of `subject` (distribution spec, "Referrers Tag
/// Schema"): `<algorithm>-<hex>`, with at most 64 characters of the hex.
pub fn referrers_tag(subject: &Digest) -> String {
    let hex = subject.hex();
    format!("{}-{}", subject.algorithm().name(), &hex[..hex.len().min(64)])
}

/// Whether `tag` follows the referrers tag schema (distribution spec, "Referrers Tag Schema"), or
/// cosign's scheme, which is modelled on it.
pub fn is_referrers_tag(tag: &str) -> bool {
    let hex = match tag.split_once('-') {
        Some(("sha256" | "sha512", hex)) => hex,
        _ => return false,
    };
    let (hex, rest) = hex.split_at(hex.bytes().take_while(u8::is_ascii_hexdigit).count());
    hex.len() == 64 && (rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Algorithm;

    const HEX: &str = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

    #[test]
    fn familiar_names_become_canonical() {
        let digest = format!("sha256:{HEX}");
        for (typed, canonical) in [
            ("alpine", "docker.io/library/alpine:latest".to_owned()),
            ("alpine:3", "docker.io/library/alpine:3".to_owned()),
            ("docker.io/alpine", "docker.io/library/alpine:latest".to_owned()),
            ("index.docker.io/alpine", "docker.io/library/alpine:latest".to_owned()),
            ("index.docker.io/me/x", "docker.io/me/x:latest".to_owned()),
            ("me/x", "docker.io/me/x:latest".to_owned()),
            ("localhost/x", "localhost/x:latest".to_owned()),
            ("localhost:5000/x", "localhost:5000/x:latest".to_owned()),
            ("localhost:5000/x:y", "localhost:5000/x:y".to_owned()),
            ("LOCALHOST/x", "LOCALHOST/x:latest".to_owned()),
            ("[::1]:5000/x", "[::1]:5000/x:latest".to_owned()),
            ("[::1]/x/y:z", "[::1]/x/y:z".to_owned()),
            ("a.b/c/d__e--f.g_h:T.a-g", "a.b/c/d__e--f.g_h:T.a-g".to_owned()),
            (&format!("x@{digest}"), format!("docker.io/library/x@{digest}")),
            (&format!("ghcr.io/x/y:1@{digest}"), format!("ghcr.io/x/y:1@{digest}")),
        ] {
            let parsed: Reference = typed.parse().unwrap_or_else(|e| panic!("{typed}: {e}"));
            assert_eq!(parsed.to_string(), canonical);
            assert_eq!(canonical.parse(), Ok(parsed), "canonical names mean themselves");
        }
    }

    #[test]
    fn referrers_tags_are_valid_for_every_algorithm() {
        let sha256 = Digest::sha256(b"");
        assert_eq!(referrers_tag(&sha256), format!("sha256-{}", sha256.hex()));
        let sha512 = Digest::of(Algorithm::Sha512, b"");
        assert_eq!(referrers_tag(&sha512), format!("sha512-{}", &sha512.hex()[..64]));
        for digest in [sha256, sha512] {
            assert!(is_tag(&referrers_tag(&digest)) && is_referrers_tag(&referrers_tag(&digest)));
        }
    }

    #[test]
    fn invalid_references_are_refused() {
        let long = format!("a/{}", "b".repeat(255));
        let long_tag = format!("a:{}", "t".repeat(129));
        for bad in [
            "",
            ":",
            "@",
            "/",
            "a/",
            "/a",
            "a//b",
            "a:",
            "a:b:c",
            "a@b",
            "a@sha256:00",
            "-a",
            "a-",
            "a._b",
            "a___b",
            "a..b",
            "../x",
            "x/../y",
            "é/x",
            "a b",
            "a:$(x)",
            "a:.x",
            "x.y/",
            "http://x/y",
            "x.y:99999/z",
            "x.y:+5/z",
            "x.y:/z:t",
            "-x.y/z",
            "[::g]/x",
            "[::1/x",
            "[::1]",
            "[::1]5/x",
            "a?b",
            "a%2e",
            "a\0",
            "a\n",
            HEX,
            &long,
            &long_tag,
            &format!("a@sha256:{HEX}@sha256:{HEX}"),
        ] {
            assert!(
                bad.parse::<Reference>().is_err(),
                "{bad:?} parsed as {:?}",
                bad.parse::<Reference>()
            );
        }
    }

    #[test]
    fn canonical_registries() {
        for good in [
            "r.example",
            "r.example:5000",
            "r:5000",
            "localhost",
            "localhost:1",
            "[::1]",
            "[::1]:1",
            "docker.io",
        ] {
            assert!(is_canonical_registry(good), "{good}");
        }
        for bad in [
            "",
            "registry",
            "index.docker.io",
            "r.example/a",
            "u@r.example",
            "http://r.example",
            "r:x",
        ] {
            assert!(!is_canonical_registry(bad), "{bad}");
        }
    }

    #[test]
    fn repositories_and_tags() {
        for good in ["a", "library/debian", "a/b/c", "a.b", "a_b", "a__b", "a---b", "0/1"] {
            assert!(is_repository(good), "{good}");
        }
        let long = "a".repeat(256);
        for bad in [
            "", "/", "a/", "/a", "a//b", "A", "a..b", "a___b", "a._b", "-a", "a-", "../x", "a b",
            "a%2e", "a?b", "é", &long,
        ] {
            assert!(!is_repository(bad), "{bad}");
        }
        for good in ["latest", "v1.2-3_4", "_x", "sha256-abc"] {
            assert!(is_tag(good), "{good}");
        }
        for bad in ["", ".x", "-x", "a/b", "a?b", "a#b", "é", "a b", &long] {
            assert!(!is_tag(bad), "{bad}");
        }
    }

    #[test]
    fn the_error_for_upper_case_suggests_lower_case() {
        for (typed, meant) in [
            ("MyApp:V1", "myapp:V1"),
            ("me/MyApp", "me/myapp"),
            ("Ghcr.io/Me/App:T", "Ghcr.io/me/app:T"),
        ] {
            match typed.parse::<Reference>() {
                Err(ReferenceError::UpperCase(_, hint)) => assert_eq!(hint, meant),
                other => panic!("{other:?}"),
            }
        }
    }
}
