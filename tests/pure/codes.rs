//! A test names each stable code of a fault.

use std::fs;
use std::path::Path;

use ociseek::code::Code;

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

#[test]
fn every_code_is_named_by_a_test() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut text = String::new();
    for program in ["cli", "servers", "system"] {
        add_files(&tests.join(program), &mut text);
    }
    let is_named = |code: &&Code| text.contains(&format!("\"{}\"", code.word()));
    let (named, missing): (Vec<&Code>, Vec<&Code>) = Code::ALL.iter().partition(is_named);
    assert!(missing.is_empty(), "no test provokes {missing:?}");
    assert!(named.len() > 50, "{named:?}");
}
