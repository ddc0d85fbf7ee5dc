//! Strict parsing of untrusted JSON: refuses documents that parsers could understand in different
//! ways.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;

use crate::printable::exact_size;
use serde::de::{self, DeserializeOwned, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Why a JSON document is refused.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum JsonError {
    #[error("it has {size} bytes; the limit is {}", exact_size(*limit))]
    TooLarge { size: u64, limit: u64 },
    #[error("it begins with a byte order mark")]
    ByteOrderMark,
    #[error("it is not UTF-8")]
    Utf8(#[source] std::str::Utf8Error),
    #[error("it is not the expected JSON")]
    Json(#[from] JsonFault),
    /// Go's decoder accepts `"Layers"` for `"layers"`, others do not.
    #[error("it has a key {found:?}, which some readers treat as {expected:?} and others do not")]
    Spelling { found: String, expected: &'static str },
}

/// Why a text is not the JSON that its reader expects: serde_json's message and position, without
/// its type.
#[derive(Debug)]
pub struct JsonFault(serde_json::Error);

impl std::error::Error for JsonFault {}

impl fmt::Display for JsonFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        // The name of a type means nothing to the reader.
        match text.split_once("expected struct ") {
            Some((before, after)) => {
                let after = after.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
                write!(f, "{before}expected an object{after}")
            }
            None => f.write_str(&text),
        }
    }
}

impl JsonFault {
    /// The line of the text, from 1. It is 0 if the error is about a value that was parsed before.
    pub fn line(&self) -> usize {
        self.0.line()
    }

    /// The column of that line, in bytes from 1. It is 0 for such a value, and before the first
    /// byte of a line.
    pub fn column(&self) -> usize {
        self.0.column()
    }
}

impl From<serde_json::Error> for JsonFault {
    fn from(error: serde_json::Error) -> JsonFault {
        JsonFault(error)
    }
}

/// The keys that are read from an object, and the objects nested in some of them. All objects in a
/// list have the same keys.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// The keys in their exact spelling.
    pub keys: &'static [&'static str],
    /// The keys whose values are objects or lists of objects, with the keys of those.
    pub below: &'static [(&'static str, Level)],
}

/// Parses JSON as serde_json does, without the checks of [`parse_levels`].
pub fn parse_lenient<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, JsonFault> {
    serde_json::from_slice(bytes).map_err(JsonFault)
}

/// Like [`parse_levels`], if only the spelling of the top-level keys matters.
pub fn parse<T: DeserializeOwned>(
    bytes: &[u8],
    limit: usize,
    keys: &'static [&'static str],
) -> Result<T, JsonError> {
    parse_levels(bytes, limit, Level { keys, below: &[] })
}

/// Parses a document of at most `limit` bytes: UTF-8 without a byte order mark, an object, without
/// duplicate keys, at most 128 levels deep (serde_json's own limit), and with no key of `top` or
/// its nested objects in another spelling.
pub fn parse_levels<T: DeserializeOwned>(
    bytes: &[u8],
    limit: usize,
    top: Level,
) -> Result<T, JsonError> {
    parse_as(bytes, limit, top, |reader, distinct| reader.deserialize_map(distinct))
}

/// Like [`parse_levels`], for a list of objects with the keys of `each`.
pub fn parse_list<T: DeserializeOwned>(
    bytes: &[u8],
    limit: usize,
    each: Level,
) -> Result<Vec<T>, JsonError> {
    parse_as(bytes, limit, each, |reader, distinct| reader.deserialize_seq(DistinctList(distinct)))
}

type Reader<'a> = serde_json::Deserializer<serde_json::de::StrRead<'a>>;

fn parse_as<T: DeserializeOwned>(
    bytes: &[u8],
    limit: usize,
    level: Level,
    walk: impl FnOnce(&mut Reader<'_>, Distinct<'_>) -> serde_json::Result<()>,
) -> Result<T, JsonError> {
    if bytes.len() > limit {
        return Err(JsonError::TooLarge { size: bytes.len() as u64, limit: limit as u64 });
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(JsonError::ByteOrderMark);
    }
    let text = std::str::from_utf8(bytes).map_err(JsonError::Utf8)?;
    let misspelled = RefCell::new(None);
    let mut reader = serde_json::Deserializer::from_str(text);
    let whole = walk(&mut reader, Distinct { level: Some(level), misspelled: &misspelled });
    whole.and_then(|()| reader.end()).map_err(JsonFault)?;
    if let Some((found, expected)) = misspelled.into_inner() {
        return Err(JsonError::Spelling { found, expected });
    }
    Ok(serde_json::from_str(text).map_err(JsonFault)?)
}

/// Whether Go's decoder treats the keys as equal: `encoding/json` folds case like Unicode, where
/// two letters beyond ASCII fold to `s` and `k`.
pub(super) fn is_same_to_go(key: &str, expected: &str) -> bool {
    let folded = key.chars().map(|letter| match letter {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    });
    folded.eq(expected.chars().map(|letter| letter.to_ascii_lowercase()))
}

fn shortened(key: &str) -> String {
    key.chars().take(80).collect()
}

/// Any value without duplicate keys. Records the first key that is spelled differently from `level`
/// or the levels below it.
#[derive(Clone, Copy)]
struct Distinct<'a> {
    level: Option<Level>,
    misspelled: &'a RefCell<Option<(String, &'static str)>>,
}

/// A list of such values.
struct DistinctList<'a>(Distinct<'a>);

impl<'de> Visitor<'de> for DistinctList<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        self.0.visit_seq(seq)
    }
}

impl Distinct<'_> {
    fn below(self, key: &str) -> Self {
        let level = self.level.and_then(|level| level.below.iter().find(|(name, _)| *name == key));
        Distinct { level: level.map(|(_, level)| *level), ..self }
    }

    fn spelling(self, key: &str) {
        let keys = self.level.map(|level| level.keys).unwrap_or_default();
        let expected =
            keys.iter().find(|expected| **expected != key && is_same_to_go(key, expected));
        if let (Some(expected), Ok(mut misspelled)) = (expected, self.misspelled.try_borrow_mut()) {
            misspelled.get_or_insert_with(|| (shortened(key), expected));
        }
    }
}

impl<'de> DeserializeSeed<'de> for Distinct<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Distinct<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.level.is_some() { "an object" } else { "a JSON value" })
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if keys.contains(&key) {
                return Err(de::Error::custom(format_args!("duplicate key {:?}", shortened(&key))));
            }
            self.spelling(&key);
            map.next_value_seed(self.below(&key))?;
            keys.insert(key);
        }
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(self)?.is_some() {}
        Ok(())
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<serde_json::Value, JsonError> {
        parse(bytes, 1 << 20, &["layers"])
    }

    #[test]
    fn faults_do_not_name_types() {
        #[derive(Debug, Deserialize)]
        struct Inner {
            _number: u8,
        }
        let fault = parse_lenient::<Vec<Inner>>(b"[5]").unwrap_err().to_string();
        assert_eq!(fault, "invalid type: integer `5`, expected an object at line 1 column 2");
        let fault = parse_lenient::<Vec<u8>>(b"[{}]").unwrap_err().to_string();
        assert_eq!(fault, "invalid type: map, expected u8 at line 1 column 1");
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        assert!(read(br#"{"layers":[{"a":1},{"a":1}],"x":[1,-1,1.5,null,true,"s"]}"#).is_ok());
        assert!(matches!(read(b"\xef\xbb\xbf{}"), Err(JsonError::ByteOrderMark)));
        assert!(matches!(read(b"{\"a\":\"\xff\"}"), Err(JsonError::Utf8(_))));
        assert!(matches!(read(br#"{"Layers":[]}"#), Err(JsonError::Spelling { .. })));
        for twice in [r#"{"a":1,"a":1}"#, r#"{"x":[{"a":1,"b":2,"\u0061":1}]}"#] {
            match read(twice.as_bytes()) {
                Err(JsonError::Json(e)) => {
                    assert!(e.to_string().contains("duplicate key \"a\""), "{e}")
                }
                other => panic!("{other:?}"),
            }
        }
        for bad in ["", "[]", "null", "{", "{}x", "<html></html>", r#"{"a":tru}"#] {
            assert!(matches!(read(bad.as_bytes()), Err(JsonError::Json(_))), "{bad}");
        }
    }

    #[test]
    fn list_entries_are_checked_like_documents() {
        const EACH: Level = Level { keys: &["Config"], below: &[] };
        let read = |text: &str| parse_list::<serde_json::Value>(text.as_bytes(), 1 << 10, EACH);
        assert_eq!(read(r#"[{"Config":1},{"config ":2}]"#).unwrap().len(), 2);
        assert!(matches!(read(r#"[{},{"config":1}]"#), Err(JsonError::Spelling { .. })));
        for (bad, why) in [
            (r#"{"Config":1}"#, "expected a list"),
            (r#"[{"a":[{"b":1,"b":1}]}]"#, "duplicate key \"b\""),
            ("[]x", "trailing characters"),
            ("[", "EOF"),
        ] {
            match read(bad) {
                Err(JsonError::Json(error)) => {
                    assert!(error.to_string().contains(why), "{bad}: {error}")
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
    }

    #[test]
    fn misspelled_keys_are_refused_at_every_level() {
        const TOP: Level = Level {
            keys: &["layers", "config"],
            below: &[("layers", Level { keys: &["digest", "mask"], below: &[] })],
        };
        let read = |text: &str| parse_levels::<serde_json::Value>(text.as_bytes(), 1 << 20, TOP);
        for odd in ["Digest", "DIGEST", "dige\u{17f}t", "ma\u{17f}k", "mas\u{212a}"] {
            for text in [
                format!(r#"{{"layers":[1,{{"{odd}":1}}]}}"#),
                format!(r#"{{"layers":{{"{odd}":[]}}}}"#),
            ] {
                assert!(
                    matches!(read(&text), Err(JsonError::Spelling { found, .. }) if found == odd),
                    "{text}"
                );
            }
            // In objects that are not read, any key is allowed.
            assert!(
                read(&format!(
                    r#"{{"config":{{"{odd}":1}},"layers":[{{"digest":{{"{odd}":1}}}}]}}"#
                ))
                .is_ok(),
                "{odd}"
            );
        }
    }

    #[test]
    fn faults_name_their_place() {
        match read(b"{\n \"a\": tru}") {
            Err(JsonError::Json(fault)) => {
                assert_eq!((fault.line(), fault.column()), (2, 10));
                assert_eq!(fault.to_string(), "expected ident at line 2 column 10");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn depth_and_size_are_limited() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(matches!(read(deep.as_bytes()), Err(JsonError::Json(_))));
        assert!(matches!(
            parse::<serde_json::Value>(b"{   }", 4, &[]),
            Err(JsonError::TooLarge { size: 5, limit: 4 })
        ));
    }
}
