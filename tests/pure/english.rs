//! Messages, help, documents and comments are plain English, and no line is too long to read.

use std::path::{Path, PathBuf};

use ociseek_testkit::servers;

/// The longest line, in characters; rustfmt.toml says the same of code.
const COLUMNS: usize = 120;
/// The longest line of a comment in Rust, except for tables, links and examples.
const COMMENT_COLUMNS: usize = 100;

/// Generators of layers and images: tables with one case per line.
const CASES: [&str; 4] =
    ["tests/torture.py", "tests/corpus/small.py", "fixtures/trees.py", "benches/boot/catalogue.py"];

/// Phrases that a native writer would not print, with what to write instead.
const PHRASES: [(&str, &str); 39] = [
    ("is no ", "is not a"),
    ("are none", "there are no"),
    ("that is none", "not a valid"),
    ("its {0} is none", "not valid"),
    (" shall ", "will, must, or the imperative"),
    ("as it comes", "default settings"),
    ("come back when", "return once"),
    ("heeded", "used"),
    ("heeds", "uses"),
    ("gone on with", "continued"),
    ("goes on with", "continues"),
    ("be it ", "whether"),
    ("cannot be had", "not available"),
    ("could be had", "available"),
    ("to be had", "available"),
    ("was told", "was reported"),
    ("tells of", "reports"),
    ("so many ", "the number"),
    ("anew", "again, or rebuild"),
    ("time was up", "timed out"),
    ("takes the place of", "replaces"),
    ("take the place of", "replace"),
    ("is not there", "does not exist"),
    ("are not there", "do not exist"),
    ("there already", "already exists"),
    ("not such as", "not what"),
    ("spoken to", "accessed"),
    ("left as it is", "left unchanged"),
    ("may be repeated", "can be repeated"),
    ("be relied on", "not valid"),
    (", by its documentation", "according to its documentation"),
    ("came instead", "got ... instead of"),
    ("takes it down", "to remove it"),
    ("the name was that", "the tag pointed to"),
    ("costs what", "reads only what"),
    ("the least of all", "the lowest"),
    ("leads to nothing", "does not exist"),
    ("taken for granted", "assumed"),
    ("times as soon", "in a fraction of the time, or times faster"),
];

/// Further phrases that comments must not have, with suggestions.
const COMMENT_PHRASES: [(&str, &str); 29] = [
    ("all the same", "anyway"),
    ("are to be", "must be, should be, or will be"),
    ("by which way", "how"),
    ("for want of", "because there is no"),
    ("gives back", "returns"),
    ("goes on", "continues"),
    ("held against", "compared with"),
    ("in its turn", "nested, or also"),
    ("in the place of", "instead of, or replacing"),
    ("is at its end", "ends"),
    ("is to be", "must be, should be, or will be"),
    ("is told", "receives"),
    ("made of it", "made from it"),
    ("nobody but", "only"),
    ("passed over", "skipped"),
    ("so much of", "that part of"),
    ("somebody", "the caller, the user, or who else it is"),
    ("speaks to", "connects to"),
    ("spoken", "connected"),
    ("tell apart", "distinguish"),
    ("tells apart", "distinguishes"),
    ("told of", "reported"),
    ("unless told", "by default"),
    ("what became of", "the result of"),
    ("what came of", "the result of"),
    ("what goes", "name it"),
    ("what stands", "the content"),
    ("what there is", "the existing"),
    ("whoever", "anyone who, or callers that"),
];

/// What may stand before `is no `: these are idioms.
const BEFORE_IS_NO: [&str; 2] = ["there ", "so there "];
/// What may stand behind it.
const BEHIND_IS_NO: [&str; 2] = ["longer", "more than"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below these folders and files of the repository, sorted, without what was built or
/// downloaded there.
fn files(places: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left: Vec<PathBuf> = places.iter().map(|place| root().join(place)).collect();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path).expect("the folder can be read");
            left.extend(entries.map(|entry| entry.expect("can be listed").path()).filter(|path| {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                !matches!(
                    &*name,
                    "target" | "corpus" | "artifacts" | "__pycache__" | "schema" | "node_modules"
                ) || path.is_file()
            }));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn ends_in(path: &Path, endings: &[&str]) -> bool {
    path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one))
}

/// The part of a Rust source before its unit tests.
fn without_tests(source: &str) -> &str {
    source.split("#[cfg(test)]\nmod tests").next().unwrap_or_default()
}

struct Literal {
    /// The number of the line that it starts in, from 1.
    line: usize,
    text: String,
    is_raw: bool,
}

/// The string literals of a Rust source.
fn literals(source: &str) -> Vec<Literal> {
    let bytes = source.as_bytes();
    let mut at = 0;
    let mut found = Vec::new();
    while at < bytes.len() {
        let rest = &source[at..];
        // The r of a raw string begins a word, or comes after the b of one of bytes.
        let word =
            |at: usize| at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_');
        let is_word = word(at) && (bytes[at - 1] != b'b' || word(at - 1));
        let hashes = rest.bytes().skip(1).take_while(|b| *b == b'#').count();
        let start = at;
        let end = if rest.starts_with("//") {
            at += rest.find('\n').unwrap_or(rest.len());
            continue;
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") || rest.starts_with("b'\"'") {
            // A quotation mark or an escape as a character.
            at += rest[2..].find('\'').map_or(rest.len(), |end| end + 3);
            continue;
        } else if rest.starts_with('r') && !is_word && rest[1 + hashes..].starts_with('"') {
            at += hashes + 2;
            source[at..].find(&format!("\"{}", "#".repeat(hashes))).map(|end| at + end)
        } else if rest.starts_with('"') {
            at += 1;
            let mut escaped = false;
            source[at..]
                .bytes()
                .position(|b| {
                    let ends = b == b'"' && !escaped;
                    escaped = b == b'\\' && !escaped;
                    ends
                })
                .map(|end| at + end)
        } else {
            at += 1;
            while !source.is_char_boundary(at) {
                at += 1;
            }
            continue;
        };
        let end = end.expect("the literal ends");
        let text = source[at..end].replace("\\\n", "");
        let is_raw = rest.starts_with('r');
        found.push(Literal { line: source[..start].matches('\n').count() + 1, text, is_raw });
        at = end + 1;
    }
    found
}

/// The comments of a Rust source, each with the number of its first line, from 1. Text in backticks
/// is code, and omitted.
fn comments(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::<(usize, String)>::new();
    let mut is_open = false;
    for (at, line) in source.lines().enumerate() {
        let comment =
            line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']));
        match (comment, found.last_mut().filter(|_| is_open)) {
            (Some(text), Some((_, earlier))) => earlier.push_str(text),
            (Some(text), None) => found.push((at + 1, text.to_owned())),
            (None, _) => {}
        }
        is_open = comment.is_some();
    }
    let english = |text: String| text.split('`').step_by(2).collect::<Vec<_>>().join("`");
    found.into_iter().map(|(line, text)| (line, english(text))).collect()
}

/// The unwanted phrases in a text, with suggestions.
fn phrases(text: &str, unwanted: &[(&str, &str)]) -> Vec<String> {
    let text = text.to_lowercase();
    let found = unwanted.iter().flat_map(|(phrase, better)| {
        let said = text.match_indices(phrase).filter(|(at, _)| {
            *phrase != "is no "
                || !BEFORE_IS_NO.iter().any(|idiom| text[..*at].ends_with(idiom))
                    && !BEHIND_IS_NO
                        .iter()
                        .any(|idiom| text[at + phrase.len()..].starts_with(idiom))
        });
        said.map(move |_| format!("{phrase:?}: write {better:?}"))
    });
    found.collect()
}

#[test]
fn messages_help_and_documents_are_plain_english() {
    let mut found = Vec::new();
    let mut seen = 0;
    let mut look = |path: &Path, line: usize, text: &str| {
        seen += 1;
        let file = path.strip_prefix(root()).unwrap_or(path).display();
        found.extend(
            phrases(text, &PHRASES).into_iter().map(|what| format!("{file}:{line}: {what}")),
        );
    };
    for path in files(&["src", "crates"]).into_iter().filter(|path| ends_in(path, &["rs"])) {
        let text = std::fs::read_to_string(&path).expect("is text");
        literals(without_tests(&text))
            .iter()
            .for_each(|literal| look(&path, literal.line, &literal.text));
    }
    for path in files(&[
        "docs",
        "README.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "tests/help",
        "packaging",
        "templates",
        "action.yml",
    ]) {
        // Binary files and the like have no English.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        text.lines().enumerate().for_each(|(at, line)| look(&path, at + 1, line));
    }
    assert!(seen > 5000, "{seen} texts were looked at");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn comments_are_plain_english() {
    let unwanted = [&PHRASES[..], &COMMENT_PHRASES].concat();
    let mut seen = 0;
    let mut found = Vec::new();
    for path in files(&["src", "crates"]) {
        if !ends_in(&path, &["rs"]) {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("is text");
        for (line, text) in comments(&source) {
            seen += 1;
            let file = path.strip_prefix(root()).unwrap_or(&path).display();
            found.extend(
                phrases(&text, &unwanted).into_iter().map(|what| format!("{file}:{line}: {what}")),
            );
        }
    }
    assert!(seen > 5000, "{seen} comments were examined");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_check_finds_each_listed_phrase() {
    assert_eq!(phrases("\"x\" is no image name", &PHRASES).len(), 1);
    assert_eq!(
        phrases("There is no image, and it is no longer than that.", &PHRASES),
        Vec::<String>::new()
    );
    let found = comments("/// What became\n    /// of `anew` it.\nlet a = 1;\n// Somebody asks");
    assert_eq!(found, [(1, " What became of ` it.".to_owned()), (4, " Somebody asks".to_owned())]);
    assert!(found.iter().all(|(_, text)| phrases(text, &COMMENT_PHRASES).len() == 1));
    let source = "// \"no\"\nlet a = ('\"', \"o\\\"ne\", b\"two\");\nlet b = br#\"th\"ree\"#; // 'x'\n\
                  #[cfg(test)]\nmod tests \"four\"";
    let found = literals(without_tests(source));
    let found: Vec<_> =
        found.iter().map(|literal| (literal.line, &*literal.text, literal.is_raw)).collect();
    assert_eq!(found, [(2, "o\\\"ne", false), (2, "two", false), (3, "th\"ree", true)]);
}

/// The numbers of the lines that may be longer: raw strings hold what a program prints, line by
/// line.
fn raw_lines(source: &str) -> Vec<usize> {
    let raw = literals(source).into_iter().filter(|literal| literal.is_raw);
    raw.flat_map(|literal| literal.line..=literal.line + literal.text.matches('\n').count())
        .collect()
}

/// The numbers of the lines of a document that cannot be wrapped: tables, code, and lines with a
/// link.
fn fixed_lines(page: &str) -> Vec<usize> {
    let mut is_code = false;
    let fixed = page.lines().enumerate().filter(|(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        is_code
            || is_fence
            || line.starts_with('|')
            || line.starts_with("    ")
            || line.contains("](")
    });
    fixed.map(|(at, _)| at + 1).collect()
}

/// The numbers of the lines of a TOML file that are entries, such as dependencies: each is easier
/// to find in one line.
fn entries(text: &str) -> Vec<usize> {
    (1..)
        .zip(text.lines())
        .filter(|(_, line)| !line.starts_with('#'))
        .map(|(number, _)| number)
        .collect()
}

/// All files of the repository, by their paths in it; None if this is not a checkout.
fn tracked() -> Option<Vec<String>> {
    let output = std::process::Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root())
        .output()
        .ok()?;
    let names = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(names.split_terminator('\0').map(str::to_owned).collect())
}

/// Whether a program wrote the file, or it is a table of cases: nobody wraps its lines.
fn is_given(name: &str) -> bool {
    // What others sent or wrote, and what our own programs write.
    let written = [
        "docs/schema/",
        "crates/ociseek-format/src/event/payloads/",
        "fuzz/regressions/",
        "fuzz/seeds/",
    ];
    let file = name.rsplit('/').next();
    let is_script = |file: &str| {
        file == "make" || [".py", ".go", ".md"].iter().any(|ending| file.ends_with(ending))
    };
    CASES.contains(&name)
        || written.iter().any(|folder| name.starts_with(folder))
        || name.starts_with("fixtures/") && !file.is_some_and(is_script)
        || name == "tests/cli/report.html"
        || matches!(file, Some("Cargo.lock" | "go.sum"))
}

#[test]
fn the_check_of_lines_includes_files_without_an_extension() {
    let tracked = tracked().unwrap_or_default();
    for name in ["benches/compare", ".ci/tools", "packaging/deb", "fixtures/make", "action.yml"] {
        assert!(
            !is_given(name)
                && (tracked.is_empty() || tracked.iter().any(|tracked| tracked == name)),
            "{name}"
        );
    }
    assert!(is_given("fixtures/golden/layers/a12.tar") && is_given("fuzz/Cargo.lock"));
    assert_eq!(entries("# a\n[b]\nc = 1\n"), [2, 3]);
}

/// Whether a line of Rust is a comment that can be wrapped: neither a row of a table nor code.
fn is_prose(line: &str) -> bool {
    let comment = line.trim_start();
    let text = ["///", "//!", "//"].iter().find_map(|marker| comment.strip_prefix(marker));
    text.is_some_and(|text| {
        text.starts_with(' ') && !text.starts_with("     ") && !text.starts_with(" |")
    }) && !(comment.starts_with("//!") && line.contains(';') || line.contains("://"))
}

#[test]
fn no_line_is_too_long() {
    let Some(tracked) = tracked() else { return servers::skip("not a checkout of git") };
    let mut seen = 0;
    let mut long = Vec::new();
    for name in tracked.iter().filter(|name| !is_given(name)) {
        let path = root().join(name);
        // A file that was removed is tracked until the next commit, and a binary one has no lines.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let exempt = match () {
            () if ends_in(&path, &["rs"]) => raw_lines(&text),
            () if ends_in(&path, &["md"]) => fixed_lines(&text),
            () if ends_in(&path, &["toml"]) => entries(&text),
            () => Vec::new(),
        };
        for (at, line) in text.lines().enumerate() {
            seen += 1;
            let columns = line.chars().count();
            let most =
                if ends_in(&path, &["rs"]) && is_prose(line) { COMMENT_COLUMNS } else { COLUMNS };
            if columns > most && exempt.binary_search(&(at + 1)).is_err() {
                long.push(format!("{name}:{}: {columns} columns", at + 1));
            }
        }
    }
    assert!(seen > 50_000, "{seen} lines were looked at");
    assert!(long.is_empty(), "{} lines are too long:\n{}", long.len(), long.join("\n"));
}
