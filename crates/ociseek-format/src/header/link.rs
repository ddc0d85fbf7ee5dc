//! `Link` (RFC 8288): where the next page of a list is.

use super::{BLANKS, text, token};

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
    let is_next = |relations: String| relations.split_ascii_whitespace().any(|one| one.eq_ignore_ascii_case("next"));
    Some((relations.is_some_and(is_next), rest))
}

#[cfg(test)]
mod tests {
    use super::next_link;

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
