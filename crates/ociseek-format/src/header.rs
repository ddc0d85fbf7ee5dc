//! Headers of registries' answers that are more than a number or a word: `WWW-Authenticate` (RFC
//! 9110 section 11.6.1), with which a registry requests authorization, and `Link` (RFC 8288), which
//! says where the next page of a list is.
//!
//! Both are lists of parts with parameters, and both come in forms that no RFC allows: what can be
//! understood is.

/// Blanks between the parts of a header.
const BLANKS: [char; 2] = [' ', '\t'];

/// A token (RFC 9110 section 5.6.2), which may be empty, and what follows it.
fn token(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_alphanumeric() && !"!#$%&'*+-.^_`|~".contains(c))
        .unwrap_or(text.len());
    text.split_at(end)
}

/// A quoted string or a token, and what follows it. A token ends leniently only at a comma, a blank
/// or one of `ends`.
fn text<'a>(from: &'a str, ends: &[char]) -> Option<(String, &'a str)> {
    let Some(quoted) = from.strip_prefix('"') else {
        let is_end = |c: char| c == ',' || BLANKS.contains(&c) || ends.contains(&c);
        let (token, rest) = from.split_at(from.find(is_end).unwrap_or(from.len()));
        return Some((token.to_owned(), rest));
    };
    let mut text = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((text, &quoted[at + 1..])),
            '\\' => text.push(characters.next()?.1),
            c => text.push(c),
        }
    }
    None
}

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
            Challenge::Bearer { realm, service, .. } => {
                Challenge::Bearer { realm, service, scope: None }
            }
        }
    }
}

/// The best challenge in the values of a response's headers: Bearer before Basic, in any order.
/// None if ociseek supports none of them.
pub fn challenge<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<Challenge> {
    let all: Vec<Challenge> =
        values.into_iter().flat_map(|value| parse(value).into_iter().filter_map(known)).collect();
    let bearer = all.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(all.first()).cloned()
}

struct Raw {
    scheme: String,
    parameters: Vec<(String, String)>,
}

fn known(raw: Raw) -> Option<Challenge> {
    let parameter =
        |name| raw.parameters.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
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
    let mut challenges: Vec<Raw> = Vec::new();
    let mut rest = value;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let (name, after) = token(rest);
        if name.is_empty() {
            return challenges;
        }
        let blank = after.trim_start_matches([' ', '\t']);
        match (blank.strip_prefix('='), challenges.last_mut()) {
            // `name=value` is a parameter of the preceding scheme. With another `=` it would be a
            // token68, which no scheme here uses.
            (Some(after), Some(challenge)) => {
                let Some((text, after)) = text(after.trim_start_matches([' ', '\t']), &[]) else {
                    return challenges;
                };
                challenge.parameters.push((name.to_ascii_lowercase(), text));
                rest = after;
            }
            (Some(_), None) => return challenges,
            (None, _) => {
                challenges.push(Raw { scheme: name.to_ascii_lowercase(), parameters: Vec::new() });
                rest = after;
            }
        }
    }
}

/// The target of the first `Link: <...>; rel="next"` in the values of an answer's headers, as it
/// was written.
pub fn next_link<'a>(values: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    values.into_iter().find_map(next_in)
}

fn next_in(value: &str) -> Option<&str> {
    let mut rest = value;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        match rest.strip_prefix('<').and_then(|link| link.split_once('>')) {
            // A target may have commas, so that it is taken whole before the next one is looked
            // for.
            Some((target, parameters)) => {
                let (is_next, after) = is_next(parameters)?;
                if is_next {
                    return Some(target);
                }
                rest = after;
            }
            None if rest.is_empty() => return None,
            None => {}
        }
        rest = &rest[rest.find(',')?..];
    }
}

/// Whether a link's parameters say that it is the next page, and what follows them. `None`: a
/// string has no end.
fn is_next(parameters: &str) -> Option<(bool, &str)> {
    let mut relations: Option<String> = None;
    let mut rest = parameters.trim_start_matches(BLANKS);
    while let Some(parameter) = rest.strip_prefix(';') {
        let (name, after) = token(parameter.trim_start_matches(BLANKS));
        rest = after.trim_start_matches(BLANKS);
        if let Some(value) = rest.strip_prefix('=') {
            let (value, after) = text(value.trim_start_matches(BLANKS), &[';'])?;
            rest = after.trim_start_matches(BLANKS);
            // The first one counts (section 3.3).
            if name.eq_ignore_ascii_case("rel") && relations.is_none() {
                relations = Some(value);
            }
        }
    }
    let is_next = |relations: String| {
        relations.split_ascii_whitespace().any(|one| one.eq_ignore_ascii_case("next"))
    };
    Some((relations.is_some_and(is_next), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Option<Challenge> {
        challenge(values.iter().copied())
    }

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let owned = |s: Option<&str>| s.map(str::to_owned);
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: owned(service),
            scope: owned(scope),
        })
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

    #[test]
    fn links() {
        for (value, next) in [
            (r#"</v2/a?n=1>; rel="next""#, "/v2/a?n=1"),
            ("<x>; title=y; REL=next", "x"),
            (r#"<p>; rel="prev", <n>; rel="next""#, "n"),
            (r#"<p>;rel="prev",<n>;rel="next""#, "n"),
            ("x; rel=next, <n>; rel=next", "n"),
            ("<n>;rel=next;title=t", "n"),
            ("<n>; crossorigin; rel = next", "n"),
            // Commas in the target and in a title, and more relations than one.
            (r#"</v2/a?last=b,c&n=1>; rel="next""#, "/v2/a?last=b,c&n=1"),
            (r#"<p>; title="a, b; rel=next"; rel=prev, <n>; rel=next"#, "n"),
            (r#"<n>; rel="last next""#, "n"),
        ] {
            assert_eq!(next_link([value]), Some(next), "{value}");
        }
        assert_eq!(next_link(["<p>; rel=prev", "<n>; rel=next"]), Some("n"));
    }

    #[test]
    fn invalid_links_are_ignored() {
        for none in [
            "",
            ",,",
            "<x>",
            "x; rel=next",
            "<x; rel=next",
            r#"<x>; rel="prev""#,
            r#"<x>; title="; rel=next"#,
            r#"<x>; title="a; rel=next""#,
            "<x>; rel=nextpage",
            "<x>; rel=prev; rel=next",
        ] {
            assert_eq!(next_link([none]), None, "{none}");
        }
    }
}
