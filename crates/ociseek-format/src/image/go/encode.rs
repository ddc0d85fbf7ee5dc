//! Encodes documents like Go.

use serde::Serialize;

/// The output of Go's encoding/json for a document whose fields are in the order of Go's struct:
/// `<`, `>`, `&` and the line separators U+2028 and U+2029 are escaped. They occur only in strings.
pub(crate) fn encode(document: &impl Serialize) -> Vec<u8> {
    // Strings, integers and maps with string keys cannot fail to encode.
    let plain = serde_json::to_string(document).unwrap_or_default();
    let mut escaped = String::with_capacity(plain.len());
    for c in plain.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            c => escaped.push(c),
        }
    }
    escaped.into_bytes()
}
