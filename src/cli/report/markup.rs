//! Escapes text from images for HTML, so that it cannot become markup, or reorder or hide the text
//! around it.

use std::fmt;

use crate::cli::shared::terminal::is_hostile;

/// The longest file name that is printed, in characters. Longer ones are shortened in the middle.
const LONGEST: usize = 160;

/// Text between tags or in a quoted attribute.
pub(super) struct Text<'a>(pub &'a str);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            '\'' => f.write_str("&#39;"),
            c if is_hostile(c) => write!(f, "{}", c.escape_default()),
            c => f.write_char(c),
        })
    }
}

/// A file name in an attribute or another place without markup.
pub(super) fn plain_name(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    let count = text.chars().count();
    if count > LONGEST {
        let head: String = text.chars().take(LONGEST / 4).collect();
        let tail: String = text.chars().skip(count - (LONGEST - LONGEST / 4)).collect();
        text = format!("{head}…{tail}");
    }
    Text(&text).to_string()
}

/// A file name with its own text direction, so that a right-to-left name does not affect the text
/// around it.
pub(super) fn name(path: &[u8]) -> String {
    format!("<bdi>{}</bdi>", plain_name(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_names_is_escaped() {
        assert_eq!(name(b"<script>alert(1)</script>"), "<bdi>&lt;script&gt;alert(1)&lt;/script&gt;</bdi>");
        assert_eq!(plain_name(b"\"onmouseover='x' &amp;"), "&quot;onmouseover=&#39;x&#39; &amp;amp;");
        assert_eq!(plain_name("a\nb\u{202e}c\u{61c}d\u{0}".as_bytes()), "a\\nb\\u{202e}c\\u{61c}d\\u{0}");
        assert_eq!(plain_name(b"\xff\xc3"), "\\xff\\xc3");
    }

    #[test]
    fn a_long_name_keeps_both_ends() {
        let long = format!("start/{}/end", "é".repeat(5000));
        let shown = plain_name(long.as_bytes());
        assert_eq!(shown.chars().count(), LONGEST + 1);
        assert!(shown.starts_with("start/") && shown.ends_with("/end"), "{shown}");
    }
}
