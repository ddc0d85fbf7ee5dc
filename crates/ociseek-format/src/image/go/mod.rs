//! JSON that is read and written like Go's encoding/json does for the structs of the OCI
//! specification.
//!
//! Every tool that reads SOCI-enabled images is written in Go. So the conversion starts from what
//! these tools see in an image, and writes the bytes that they would write.

mod document;
mod merge;

use std::borrow::Cow;

use serde::Serialize;

pub use document::{GoError, GoManifest, Index, decode_index, decode_manifest, decode_platform};
pub(super) use merge::is_base64;

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

/// The document with U+FFFD for each byte that is not UTF-8 and for each escaped surrogate without
/// its other half.
fn repaired(bytes: &[u8]) -> Cow<'_, str> {
    let text = decoded(bytes);
    match lone_surrogates(&text) {
        lone if lone.is_empty() => text,
        lone => {
            let mut repaired = String::with_capacity(text.len());
            let mut done = 0;
            for at in lone {
                repaired.push_str(&text[done..at]);
                repaired.push_str("\\ufffd");
                done = at + ESCAPE;
            }
            repaired.push_str(&text[done..]);
            Cow::Owned(repaired)
        }
    }
}

/// The length of `\uXXXX` in bytes.
const ESCAPE: usize = 6;

/// Go replaces one byte at a time, the standard library a truncated character as a whole.
fn decoded(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

/// The offsets of escaped lone surrogates.
fn lone_surrogates(text: &str) -> Vec<usize> {
    let bytes = text.as_bytes();
    let mut lone = Vec::new();
    let mut at = 0;
    while let Some(distance) = memchr::memchr(b'\\', bytes.get(at..).unwrap_or_default()) {
        at += distance;
        match unit(bytes, at) {
            // An escaped backslash or another two-character escape.
            None => at += 2,
            Some(0xd800..=0xdbff) if matches!(unit(bytes, at + ESCAPE), Some(0xdc00..=0xdfff)) => {
                at += 2 * ESCAPE
            }
            Some(0xd800..=0xdfff) => {
                lone.push(at);
                at += ESCAPE;
            }
            Some(_) => at += ESCAPE,
        }
    }
    lone
}

/// The UTF-16 unit of an escape `\uXXXX` at this offset, if there is one.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let hex = bytes.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
    let digits = hex.iter().all(u8::is_ascii_hexdigit).then_some(hex)?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_text_is_replaced_as_in_go() {
        for (bytes, read) in [
            (&b"{\"a\":\"b\"}"[..], "{\"a\":\"b\"}"),
            (b"\"\xff\xe2\x82x\"", "\"\u{fffd}\u{fffd}\u{fffd}x\""),
            (br#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (br#""\ud83d""#, r#""\ufffd""#),
            (br#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
            (br#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (br#""\\ud83d""#, r#""\\ud83d""#),
            (br#""\ud83d\u0041""#, r#""\ufffd\u0041""#),
            (br#""\u""#, r#""\u""#),
            (br"\", r"\"),
        ] {
            assert_eq!(repaired(bytes), read);
        }
    }
}
