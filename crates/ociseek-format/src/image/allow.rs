//! Rules that name images by their registry and repository. Operators write them where images are
//! named by strangers.

use std::fmt;
use std::str::FromStr;

use super::{CANONICAL_REGISTRY, DOCKER_HUB, Reference, is_canonical_registry};
use crate::glob::matches;

/// `REGISTRY[/REPOSITORY-GLOB]`: a registry, `HOST[:PORT]` or `*.DOMAIN[:PORT]`, and a glob for its
/// repositories, where `*` matches anything but a slash, `**` anything, `?` one character. Without
/// a glob, all repositories are allowed. A host that names of images cannot begin with is refused,
/// because it would never match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allow {
    registry: String,
    repositories: Option<Glob>,
}

/// A pattern for names of repositories: `*` matches anything but a slash, `**` anything, `?` one
/// character but not a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glob(String);

impl FromStr for Glob {
    type Err = String;

    fn from_str(text: &str) -> Result<Glob, String> {
        let known = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-/*?".contains(&byte)
        };
        if (1..=255).contains(&text.len()) && text.bytes().all(known) {
            Ok(Glob(text.to_owned()))
        } else if text.is_empty() {
            Err("it is empty: is a variable not set?".into())
        } else if text.contains(':') {
            Err("expected a repository without its registry and tag, such as team/* or **".into())
        } else if text.contains('!') || text.contains(',') {
            Err("expected one glob without ! or commas; the option can be repeated".into())
        } else {
            Err("expected lower-case letters, digits and . _ - / * ?".into())
        }
    }
}

impl Glob {
    /// Whether the whole name of a repository, without its registry, matches.
    pub fn matches(&self, repository: &str) -> bool {
        matches(self.0.as_bytes(), repository.as_bytes())
    }
}

/// Why a text is not an [`Allow`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum AllowError {
    #[error("the rule is empty: is a variable not set?")]
    Empty,
    #[error("{typed:?} is not a valid rule: write it without {scheme}: {rest}")]
    Scheme { typed: String, scheme: &'static str, rest: String },
    #[error(
        "{0:?} is not a valid rule: expected *.DOMAIN, {CANONICAL_REGISTRY}, optionally followed by a slash and a \
         repository glob"
    )]
    Registry(String),
    #[error(
        "{0:?} is not a valid repository glob: expected lower-case letters, digits and . _ - / * ?"
    )]
    Repositories(String),
}

impl FromStr for Allow {
    type Err = AllowError;

    fn from_str(typed: &str) -> Result<Allow, AllowError> {
        if typed.is_empty() {
            return Err(AllowError::Empty);
        }
        for scheme in ["https://", "http://"] {
            if let Some(rest) = typed.strip_prefix(scheme) {
                let [typed, rest] = [typed, rest].map(|text| text.chars().take(150).collect());
                return Err(AllowError::Scheme { typed, scheme, rest });
            }
        }
        let (registry, repositories) =
            typed.split_once('/').map_or((typed, None), |(registry, glob)| (registry, Some(glob)));
        let registry = registry.to_ascii_lowercase();
        let domain = registry.strip_prefix("*.").unwrap_or(&registry);
        if !is_canonical_registry(domain) || registry.starts_with("*.") && !domain.contains('.') {
            return Err(AllowError::Registry(typed.chars().take(150).collect()));
        }
        let glob = |glob: &str| {
            glob.parse().map_err(|_| AllowError::Repositories(glob.chars().take(150).collect()))
        };
        Ok(Allow { registry, repositories: repositories.map(glob).transpose()? })
    }
}

impl fmt::Display for Allow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.registry)?;
        self.repositories.as_ref().map_or(Ok(()), |Glob(glob)| write!(f, "/{glob}"))
    }
}

impl Allow {
    /// The registry in lower case. None if it is a pattern.
    pub fn registry(&self) -> Option<&str> {
        Some(self.registry.as_str()).filter(|registry| !registry.starts_with('*'))
    }

    /// Whether the rule names this image's repository.
    pub fn admits(&self, image: &Reference) -> bool {
        names(&self.registry, &image.registry.to_ascii_lowercase())
            && self.repositories.as_ref().is_none_or(|glob| glob.matches(&image.repository))
    }

    /// Whether the rule, used as an exclusion, names this image's repository: also under another
    /// name of its registry, with a port that the rule leaves open, or as another host of Docker
    /// Hub.
    pub fn excludes(&self, image: &Reference) -> bool {
        let registry = image.registry.to_ascii_lowercase();
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        let host = match registry.rsplit_once(':') {
            Some((host, port)) if is_port(port) => host,
            _ => &registry,
        };
        let host = if host == "registry-1.docker.io" { DOCKER_HUB } else { host };
        let rule = self.registry.strip_suffix(":443").unwrap_or(&self.registry);
        (names(rule, &registry) || names(rule, host))
            && self.repositories.as_ref().is_none_or(|glob| glob.matches(&image.repository))
    }
}

/// Whether a rule for this registry, or for all below a domain, is for `registry`.
fn names(rule: &str, registry: &str) -> bool {
    match rule.strip_prefix('*') {
        Some(domain) => registry.len() > domain.len() && registry.ends_with(domain),
        None => registry == rule,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for good in ["team/**", "*/app", "a?c"] {
            assert_eq!(good.parse(), Ok(Glob(good.into())));
        }
        for bad in ["", "A", "a b", "[a]", &"x".repeat(256)] {
            assert!(bad.parse::<Glob>().is_err(), "{bad}");
        }
    }

    #[test]
    fn patterns_are_validated() {
        for good in [
            "r.example",
            "r.example:5000",
            "[::1]:5000",
            "*.r.example",
            "localhost:1/a/**",
            "r:1/a?-_.*",
        ] {
            assert_eq!(good.parse::<Allow>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "/",
            "*",
            "*/a",
            "*.com/x",
            "*x.example",
            "a.*.example",
            "http://r",
            "u@r.example",
            "r.example/",
            "r.example/A",
            "r.example/a b",
            // Names of images do not begin with these.
            "registry",
            "registry/team/**",
            "REGISTRY",
            "index.docker.io",
        ] {
            assert!(bad.parse::<Allow>().is_err(), "{bad}");
        }
    }
}
