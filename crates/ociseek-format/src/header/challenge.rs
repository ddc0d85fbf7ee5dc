//! Parses `WWW-Authenticate` (RFC 9110 section 11.6.1), with which a registry requests
//! authorization.

use super::{text, token};

/// The schemes that registries use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// A user and a password.
    Basic,
    /// A token from the service at `realm` (distribution spec's "token authentication").
    Bearer {
        /// The URL of the token service, as it was written.
        realm: String,
        /// The name of the registry, for the token service.
        service: Option<String>,
        /// What the token must allow.
        scope: Option<String>,
    },
}

impl Challenge {
    /// The same challenge for any scope.
    #[must_use]
    pub fn without_scope(self) -> Challenge {
        match self {
            Challenge::Basic => Challenge::Basic,
            Challenge::Bearer { realm, service, .. } => Challenge::Bearer { realm, service, scope: None },
        }
    }
}

/// The best challenge in the values of a response's headers: Bearer before Basic, in any order.
/// None if ociseek supports none of them.
pub fn challenge<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<Challenge> {
    let all: Vec<Challenge> = values.into_iter().flat_map(|value| parse(value).into_iter().filter_map(known)).collect();
    let bearer = all.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(all.first()).cloned()
}

struct Raw {
    scheme: String,
    parameters: Vec<(String, String)>,
}

fn known(raw: Raw) -> Option<Challenge> {
    let parameter = |name| raw.parameters.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
    match raw.scheme.as_str() {
        "basic" => Some(Challenge::Basic),
        "bearer" => Some(Challenge::Bearer {
            realm: parameter("realm")?,
            service: parameter("service"),
            scope: parameter("scope").filter(|scope| !scope.is_empty()),
        }),
        _ => None,
    }
}

/// The challenges in a header, with scheme and parameter names in lower case. Parsing ends at the
/// first error.
fn parse(value: &str) -> Vec<Raw> {
    let mut found: Vec<Raw> = Vec::new();
    let mut rest = value;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (name, after) = token(rest);
        if name.is_empty() {
            return found;
        }
        let blank = after.trim_start_matches([' ', '\t']);
        match (blank.strip_prefix('='), found.last_mut()) {
            // `name=value` is a parameter of the preceding scheme. With another `=` it would be a
            // token68, which no scheme here uses.
            (Some(after), Some(challenge)) => {
                let Some((text, after)) = text(after.trim_start_matches([' ', '\t']), &[]) else { return found };
                challenge.parameters.push((name.to_ascii_lowercase(), text));
                rest = after;
            }
            (Some(_), None) => return found,
            (None, _) => {
                found.push(Raw { scheme: name.to_ascii_lowercase(), parameters: Vec::new() });
                rest = after;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Option<Challenge> {
        challenge(values.iter().copied())
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let owned = |s: Option<&str>| s.map(str::to_owned);
        Some(Challenge::Bearer { realm: realm.to_owned(), service: owned(service), scope: owned(scope) })
    }

    #[test]
    fn challenges_as_registries_write_them() {
        let full = bearer("https://a.example/token", Some("s e"), Some("repository:a/b:pull,push"));
        let written = r#"Bearer realm="https://a.example/token",service="s e",scope="repository:a/b:pull,push""#;
        assert_eq!(of(&[written]), full);
        assert_eq!(of(&["Basic realm=\"r\"", written]), full);
        assert_eq!(of(&[&format!("Basic realm=\"r\", {written}")]), full);
        assert_eq!(of(&[&format!("{written}, Basic realm=\"r\"")]), full);
        assert_eq!(
            of(&[r#"bEARER  Realm = https://x/t , error="insufficient_scope""#]),
            bearer("https://x/t", None, None)
        );
        assert_eq!(of(&[r#"Bearer realm="a\"b\\c""#]), bearer("a\"b\\c", None, None));
        assert_eq!(of(&["Basic"]), Some(Challenge::Basic));
        assert_eq!(of(&["Negotiate abc==, Basic realm=x"]), Some(Challenge::Basic));
    }

    #[test]
    fn invalid_challenges_are_ignored() {
        for bad in [
            "",
            "Bearer",
            "Bearer realm=\"open",
            "realm=x",
            "Digest realm=\"x\"",
            "=",
            ",,,",
            "Bearer service=\"x\"",
            "\"",
        ] {
            assert_eq!(of(&[bad]), None, "{bad}");
        }
    }
}
