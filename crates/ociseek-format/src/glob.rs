//! Globs for paths and repository names: `*` matches anything but a slash, `**` anything, `?` one
//! character.

/// Whether `text` matches `glob`. Takes linear space, and time proportional to the product of their
/// lengths.
pub fn matches(glob: &[u8], text: &[u8]) -> bool {
    // at[i]: the glob so far matches the first i bytes of the text.
    let mut at = vec![false; text.len() + 1];
    at[0] = true;
    let mut rest = glob;
    while let Some((&first, after)) = rest.split_first() {
        let any = first == b'*';
        let deep = any && after.first() == Some(&b'*');
        rest = if deep { &after[1..] } else { after };
        if any {
            for i in 1..at.len() {
                at[i] = at[i] || at[i - 1] && (deep || text[i - 1] != b'/');
            }
        } else {
            for i in (1..at.len()).rev() {
                at[i] = at[i - 1] && (text[i - 1] == first || first == b'?' && text[i - 1] != b'/');
            }
            at[0] = false;
        }
    }
    at[text.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (glob, text, want) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("*", "ab", true),
            ("*", "a/b", false),
            ("**", "a/b", true),
            ("a/*", "a/b", true),
            ("a/*", "a/b/c", false),
            ("a/**", "a/b/c", true),
            ("a/**", "a", false),
            ("**/c", "a/b/c", true),
            ("?b", "ab", true),
            ("?b", "/b", false),
            ("a*c", "abbc", true),
            ("a*c*", "ab", false),
            ("", "", true),
        ] {
            assert_eq!(matches(glob.as_bytes(), text.as_bytes()), want, "{glob} {text}");
        }
        // Takes exponential time in a naive implementation.
        let glob = format!("{}b", "a*".repeat(100));
        assert!(!matches(glob.as_bytes(), "a".repeat(250).as_bytes()));
    }
}
