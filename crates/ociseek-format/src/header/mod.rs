//! Headers of registries' answers that are more than a number or a word: `WWW-Authenticate` and
//! `Link`.
//!
//! Both are lists of parts with parameters, and both come in forms that no RFC allows: what can be
//! understood is.

mod challenge;
mod link;

pub use challenge::{Challenge, challenge};
pub use link::next_link;

/// Blanks between the parts of a header.
const BLANKS: [char; 2] = [' ', '\t'];

/// A token (RFC 9110 section 5.6.2), which may be empty, and what follows it.
fn token(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"!#$%&'*+-.^_`|~".contains(c)).unwrap_or(text.len());
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
