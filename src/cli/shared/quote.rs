//! Quotes file names like GNU ls, so that a terminal can show them and the output can be typed into
//! a shell.

use super::terminal::is_hostile;

/// `bytes` unchanged if a shell accepts them, otherwise in quotes, with `$'\033'` for characters
/// that must not reach a terminal.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    let mut pieces: Vec<(bool, String)> = Vec::new();
    let mut add = |is_plain: bool, text: &str| match pieces.last_mut() {
        Some((last, so_far)) if *last == is_plain => so_far.push_str(text),
        _ => pieces.push((is_plain, text.to_owned())),
    };
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut buffer = [0; 4];
            let text = c.encode_utf8(&mut buffer);
            if is_hostile(c) { add(false, &octal(text.as_bytes())) } else { add(true, text) }
        }
        if !chunk.invalid().is_empty() {
            add(false, &octal(chunk.invalid()));
        }
    }
    if let [(true, text)] = &pieces[..]
        && !needs_quotes(text)
    {
        return text.clone();
    }
    if pieces.is_empty() {
        return "''".to_owned();
    }
    pieces
        .iter()
        .map(|(is_plain, text)| match is_plain {
            true => format!("'{}'", text.replace('\'', "'\\''")),
            false => format!("$'{text}'"),
        })
        .collect()
}

fn octal(bytes: &[u8]) -> String {
    let escape = |byte: &u8| match byte {
        b'\n' => "\\n".to_owned(),
        b'\t' => "\\t".to_owned(),
        b'\r' => "\\r".to_owned(),
        byte => format!("\\{byte:03o}"),
    };
    bytes.iter().map(escape).collect()
}

/// Whether the text contains characters that are special to a shell.
fn needs_quotes(text: &str) -> bool {
    text.starts_with(['~', '#'])
        || text
            .contains([' ', '!', '"', '$', '&', '\'', '(', ')', '*', ';', '<', '=', '>', '?', '[', '\\', '^', '`', '|'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_where_needed() {
        for (name, shown) in [
            (&b"plain-name_1.0,x+y@z:%/a"[..], "plain-name_1.0,x+y@z:%/a"),
            ("é ü".as_bytes(), "'é ü'"),
            (b"", "''"),
            (b"it's", "'it'\\''s'"),
            (b"a\nb", "'a'$'\\n''b'"),
            (b"\x1b[31m", "$'\\033''[31m'"),
            (b"\xff\xfe", "$'\\377\\376'"),
            ("x\u{202e}y".as_bytes(), "'x'$'\\342\\200\\256''y'"),
            (b"~", "'~'"),
            (b"a=b", "'a=b'"),
        ] {
            assert_eq!(quoted(name), shown);
        }
    }
}
