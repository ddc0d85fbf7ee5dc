//! JSON from strangers: what two readers could understand in two ways is refused.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};

/// Why bytes are no JSON document to rely on.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    #[error("it has {size} bytes where at most {limit} are read")]
    TooLarge { size: u64, limit: u64 },
    #[error("it begins with a byte order mark")]
    ByteOrderMark,
    #[error("it is not UTF-8")]
    Utf8(#[source] std::str::Utf8Error),
    #[error("it is not the JSON that is expected")]
    Json(#[source] serde_json::Error),
    /// Go's decoder takes `"Layers"` for `"layers"`, others do not.
    #[error("it has a key {found:?} where {expected:?} is spelled in lower case")]
    Spelling { found: String, expected: &'static str },
}

/// Reads a document of at most `limit` bytes: UTF-8 without a mark, no key twice in an object, at most 128 levels deep
/// (serde_json's own limit), and no key at the top that is one of `keys` but for upper and lower case.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], limit: usize, keys: &[&'static str]) -> Result<T, JsonError> {
    if bytes.len() > limit {
        return Err(JsonError::TooLarge { size: bytes.len() as u64, limit: limit as u64 });
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(JsonError::ByteOrderMark);
    }
    let text = std::str::from_utf8(bytes).map_err(JsonError::Utf8)?;
    let TopKeys(top) = serde_json::from_str(text).map_err(JsonError::Json)?;
    for found in top {
        if let Some(expected) = keys.iter().find(|key| **key != found && key.eq_ignore_ascii_case(&found)) {
            return Err(JsonError::Spelling { found, expected });
        }
    }
    serde_json::from_str(text).map_err(JsonError::Json)
}

/// Any object without a key twice, at any depth; and its own keys.
struct TopKeys(HashSet<String>);

impl<'de> Deserialize<'de> for TopKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TopKeys, D::Error> {
        struct Top;
        impl<'de> Visitor<'de> for Top {
            type Value = TopKeys;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TopKeys, A::Error> {
                distinct_keys(map).map(TopKeys)
            }
        }
        deserializer.deserialize_map(Top)
    }
}

fn distinct_keys<'de, A: MapAccess<'de>>(mut map: A) -> Result<HashSet<String>, A::Error> {
    let mut keys = HashSet::new();
    while let Some(key) = map.next_key::<String>()? {
        if keys.contains(&key) {
            return Err(de::Error::custom(format_args!("the key {:?} stands twice", shortened(&key))));
        }
        map.next_value::<Distinct>()?;
        keys.insert(key);
    }
    Ok(keys)
}

fn shortened(key: &str) -> String {
    key.chars().take(80).collect()
}

/// Any value in which no object has a key twice.
struct Distinct;

impl<'de> Deserialize<'de> for Distinct {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Distinct, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Distinct;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Distinct, A::Error> {
                distinct_keys(map).map(|_| Distinct)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Distinct, A::Error> {
                while seq.next_element::<Distinct>()?.is_some() {}
                Ok(Distinct)
            }
            fn visit_bool<E>(self, _: bool) -> Result<Distinct, E> {
                Ok(Distinct)
            }
            fn visit_i64<E>(self, _: i64) -> Result<Distinct, E> {
                Ok(Distinct)
            }
            fn visit_u64<E>(self, _: u64) -> Result<Distinct, E> {
                Ok(Distinct)
            }
            fn visit_f64<E>(self, _: f64) -> Result<Distinct, E> {
                Ok(Distinct)
            }
            fn visit_str<E>(self, _: &str) -> Result<Distinct, E> {
                Ok(Distinct)
            }
            fn visit_unit<E>(self) -> Result<Distinct, E> {
                Ok(Distinct)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<serde_json::Value, JsonError> {
        parse(bytes, 1 << 20, &["layers"])
    }

    #[test]
    fn ambiguous_documents_are_refused() {
        assert!(read(br#"{"layers":[{"a":1},{"a":1}],"x":[1,-1,1.5,null,true,"s"]}"#).is_ok());
        assert!(matches!(read(b"\xef\xbb\xbf{}"), Err(JsonError::ByteOrderMark)));
        assert!(matches!(read(b"{\"a\":\"\xff\"}"), Err(JsonError::Utf8(_))));
        assert!(matches!(read(br#"{"Layers":[]}"#), Err(JsonError::Spelling { .. })));
        for twice in [r#"{"a":1,"a":1}"#, r#"{"x":[{"a":1,"b":2,"\u0061":1}]}"#] {
            match read(twice.as_bytes()) {
                Err(JsonError::Json(e)) => assert!(e.to_string().contains("\"a\" stands twice"), "{e}"),
                other => panic!("{other:?}"),
            }
        }
        for bad in ["", "[]", "null", "{", "{}x", "<html></html>", r#"{"a":tru}"#] {
            assert!(matches!(read(bad.as_bytes()), Err(JsonError::Json(_))), "{bad}");
        }
    }

    #[test]
    fn depth_and_size_are_bounded() {
        let deep = format!("{{\"a\":{}1{}}}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(matches!(read(deep.as_bytes()), Err(JsonError::Json(_))));
        assert!(matches!(parse::<serde_json::Value>(b"{   }", 4, &[]), Err(JsonError::TooLarge { size: 5, limit: 4 })));
    }
}
