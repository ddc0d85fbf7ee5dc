//! What people see: foreign text, in which characters are escaped, also in JSON; and sizes.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter, Serializer};

/// The units of sizes, the largest first.
pub const SIZE_UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A limit as people type it, in the largest unit of which it is a multiple: `10MiB`.
pub fn exact_size(bytes: u64) -> String {
    let unit = SIZE_UNITS.iter().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    match unit {
        Some((name, factor)) => format!("{}{name}", bytes / factor),
        None if bytes == 0 => "0".to_owned(),
        None => format!("{bytes}B"),
    }
}

/// `bytes` with about three digits: `17.3 MiB`.
pub fn human_size(bytes: u64) -> String {
    match SIZE_UNITS.iter().find(|(_, factor)| bytes >= *factor) {
        Some((name, factor)) => format!("{:.1} {name}", bytes as f64 / *factor as f64),
        None => format!("{bytes} B"),
    }
}

/// Whether a character is a control character, or invisible with an effect on the rest of its line.
pub fn is_hostile(c: char) -> bool {
    c.is_control()
        || c == '\u{61c}'
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

/// JSON on one line, in which [hostile](is_hostile) characters are escaped.
///
/// # Errors
/// If `value` cannot be serialized, for example a map with keys that are not strings.
pub fn json_line(value: &(impl Serialize + ?Sized)) -> serde_json::Result<String> {
    let mut text = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut text, Escaping(CompactFormatter)))?;
    Ok(String::from_utf8(text).unwrap_or_default())
}

/// JSON on several lines, in which [hostile](is_hostile) characters are escaped.
///
/// # Errors
/// If `value` cannot be serialized, or writing to `out` fails.
pub fn write_pretty_json(
    out: impl Write,
    value: &(impl Serialize + ?Sized),
) -> serde_json::Result<()> {
    value.serialize(&mut Serializer::with_formatter(out, Escaping(PrettyFormatter::new())))
}

/// A formatter that also escapes what JSON allows in strings, but terminals obey.
struct Escaping<F>(F);

impl<F: Formatter> Formatter for Escaping<F> {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(at) = rest.find(is_hostile) {
            let (before, from) = rest.split_at(at);
            self.0.write_string_fragment(writer, before)?;
            let mut chars = from.chars();
            if let Some(hostile) = chars.next() {
                // All of them are in the basic plane.
                write!(writer, "\\u{:04x}", u32::from(hostile))?;
            }
            rest = chars.as_str();
        }
        self.0.write_string_fragment(writer, rest)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_key(writer)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn hostile_characters_are_escaped_and_read_back() {
        let hostile: String = (0..0x1_0000)
            .filter_map(char::from_u32)
            .filter(|c| c.is_control() || is_hostile(*c))
            .collect();
        for c in [
            '\u{80}', '\u{9b}', '\u{9f}', '\u{200e}', '\u{202a}', '\u{202e}', '\u{2066}',
            '\u{2069}', '\u{61c}',
        ] {
            assert!(hostile.contains(c), "{c:?}");
        }
        let value = json!({"é\u{9b}31m": [format!("a{hostile}\"\\𝄞"), {}, []], "b": {"c": null, "d": [1, 2]}});
        let mut pretty = Vec::new();
        write_pretty_json(&mut pretty, &value).unwrap();
        let pretty = String::from_utf8(pretty).unwrap();
        let line = json_line(&value).unwrap();
        for text in [&pretty, &line] {
            assert!(!text.chars().any(|c| c != '\n' && is_hostile(c)), "{text}");
            assert!(
                text.contains("\"é\\u009b31m\"") && text.contains("\\u202e") && text.contains("𝄞"),
                "{text}"
            );
            assert_eq!(serde_json::from_str::<Value>(text).unwrap(), value);
        }
        assert!(!line.contains('\n'));
    }

    #[test]
    fn harmless_json_is_that_of_serde() {
        let value = json!({"a": [1, "b\n\t\u{1}", {"c": []}, []], "d": {}, "e": -1.5, "é": true});
        let mut pretty = Vec::new();
        write_pretty_json(&mut pretty, &value).unwrap();
        assert_eq!(pretty, serde_json::to_vec_pretty(&value).unwrap());
        assert_eq!(json_line(&value).unwrap(), serde_json::to_string(&value).unwrap());
    }
}
