//! A test names each stable code of a fault.

use std::fs;
use std::path::Path;

use ociseek_format::code::Code;

/// Adds the Rust files below `dir` to `text`.
fn add_files(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).expect("the folder is there") {
        let path = entry.expect("it can be listed").path();
        if path.is_dir() {
            add_files(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            *text += &fs::read_to_string(&path).expect("it is text");
        }
    }
}

/// Whether `text` has the word as a string of its own, which is not a key of JSON.
fn names(text: &str, word: &str) -> bool {
    let quoted = format!("\"{word}\"");
    text.match_indices(&quoted).any(|(at, _)| {
        let before = &text[..at];
        let after = &text[at + quoted.len()..];
        let is_key = after.trim_start().starts_with(':');
        let indexed = before.strip_suffix('[').filter(|_| after.starts_with(']'));
        let is_index = indexed.is_some_and(|value| {
            value.ends_with(|c: char| c.is_alphanumeric() || ")]_".contains(c))
        });
        !is_key && !is_index
    })
}

#[test]
fn every_code_is_named_by_a_test() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers");
    let mut text = String::new();
    // The tests of `verify`, and those of other commands that give codes which `verify` does not.
    add_files(&tests.join("verify"), &mut text);
    for file in ["fine_built.rs", "laptop/doctor.rs"] {
        text += &fs::read_to_string(tests.join(file)).expect("it is there");
    }
    let missing: Vec<&str> =
        Code::ALL.iter().map(|code| code.word()).filter(|word| !names(&text, word)).collect();
    assert!(missing.is_empty(), "no test provokes {missing:?}");
    assert!(!names("x[\"size\"], \"size\": 1", "size") && names("&[\"size\"]", "size"));
}
