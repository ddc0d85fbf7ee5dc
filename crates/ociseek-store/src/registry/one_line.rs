//! Makes untrusted text safe for a terminal.

/// The first line of untrusted text, escaped, with at most `limit` characters.
pub(super) fn one_line(text: &str, limit: usize) -> String {
    let line = text.trim_start().lines().next().unwrap_or_default().trim_end();
    let mut cut: String = line.chars().take(limit).flat_map(escaped).collect();
    if line.chars().nth(limit).is_some() {
        cut.push('…');
    }
    cut
}

/// Escapes control characters and those that change the direction of text, which must not reach a
/// terminal.
fn escaped(c: char) -> Box<dyn Iterator<Item = char>> {
    let hostile =
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if hostile { Box::new(c.escape_unicode()) } else { Box::new(std::iter::once(c)) }
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
}
