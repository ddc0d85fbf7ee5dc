//! Makes untrusted text safe for a terminal.

use ociseek_format::printable::is_hostile;

/// The first line of untrusted text, escaped, with at most `limit` characters.
pub(super) fn one_line(text: &str, limit: usize) -> String {
    let line = text.trim_start().lines().next().unwrap_or_default().trim_end();
    let mut cut: String = line.chars().take(limit).flat_map(escaped).collect();
    if line.chars().nth(limit).is_some() {
        cut.push('…');
    }
    cut
}

/// The title of an HTML page, or its first heading; None for other text.
pub(super) fn title(page: &str) -> Option<String> {
    if !page.trim_start().starts_with('<') {
        return None;
    }
    // Lowering ASCII keeps the positions.
    let lower = page.to_ascii_lowercase();
    ["title", "h1", "h2"].iter().find_map(|element| {
        let after = lower.find(&format!("<{element}"))?;
        let from = after + lower[after..].find('>')? + 1;
        let until = from + lower[from..].find("</")?;
        let words: Vec<&str> = page[from..until].split_whitespace().collect();
        let text = words.join(" ");
        let text = [("&nbsp;", " "), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#39;", "'"), ("&amp;", "&")]
            .iter()
            .fold(text, |text, (entity, plain)| text.replace(entity, plain));
        Some(one_line(&text, 200)).filter(|text| !text.is_empty())
    })
}

/// Escapes what must not reach a terminal.
fn escaped(c: char) -> Box<dyn Iterator<Item = char>> {
    if is_hostile(c) { Box::new(c.escape_unicode()) } else { Box::new(std::iter::once(c)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_becomes_one_harmless_line() {
        assert_eq!(one_line("\n  a\u{1b}[31mb\r\nsecond", 80), "a\\u{1b}[31mb");
        assert_eq!(one_line(&"x".repeat(500), 10), format!("{}…", "x".repeat(10)));
        assert_eq!(one_line("", 10), "");
    }

    #[test]
    fn pages_have_titles() {
        let nginx = "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body></body></html>";
        for (page, want) in [
            (nginx, Some("413 Request Entity Too Large")),
            ("<!DOCTYPE html>\n<TITLE lang=en>\n  Error 411\n  &amp; more </TITLE>", Some("Error 411 & more")),
            ("<html><title></title><body><h1 class=x>502 Bad Gateway</h1>", Some("502 Bad Gateway")),
            ("<html><title>a\u{1b}[2J</title>", Some("a\\u{1b}[2J")),
            ("<html><body>no title", None),
            ("<title>open", None),
            ("<title", None),
            ("plain text", None),
        ] {
            assert_eq!(title(page).as_deref(), want, "{page}");
        }
    }
}
