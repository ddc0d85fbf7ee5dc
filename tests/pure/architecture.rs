//! Checks what the borders between the crates cannot: what the pure crate uses of the standard
//! library, the names of types, and the shape of errors.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ociseek_format::code::Code;

use crate::circles::imports;

/// The source folders of the crates.
pub const CRATES: [&str; 7] = [
    PURE,
    "crates/ociseek-store/src",
    "crates/ociseek-rootfs/src",
    "crates/ociseek-ops/src",
    "crates/ociseek-hook/src",
    "crates/ociseek-node/src",
    "src",
];
const PURE: &str = "crates/ociseek-format/src";
/// The allowed dependencies of the pure crate. None of them opens files or sockets or reads clocks.
const PURE_DEPENDENCIES: [&str; 10] = [
    "base64",
    "bytes",
    "crc32fast",
    "flate2",
    "memchr",
    "serde",
    "serde_json",
    "sha2",
    "thiserror",
    "zstd",
];
/// The parts of the standard library that it must not use, however they are imported, and the only
/// exception.
const OUTSIDE: [&str; 16] = [
    "std::{",
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::time",
    "io::stdin",
    "io::stdout",
    "io::stderr",
    "thread::sleep",
    "thread::park",
    "print!",
    "println!",
    "async ",
    ".await",
];
/// Libraries that change their types more often than this one may. Public errors box or wrap their
/// types.
const LIBRARIES: [&str; 13] = [
    "async_nats",
    "axum",
    "fuser",
    "hyper",
    "hyper_util",
    "reqwest",
    "rustls",
    "rustls_pki_types",
    "serde_json",
    "tonic",
    "tower",
    "url",
    "webpki",
];
const INSIDE: &str = "std::net::Ipv6Addr";
/// Errors that callers must handle reason by reason.
const CLOSED: [&str; 1] = ["FeedError"];

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("the folder is there") {
        let path = entry.expect("can be listed").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The code of a source file without its tests, which are at the end and may use anything.
pub fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("is text");
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_pure_crate_uses_no_file_socket_or_clock() {
    let src = root().join(PURE);
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files {
        let code = code(&file).replace(INSIDE, "").replace("zstd::", "");
        for outside in OUTSIDE {
            assert!(!code.contains(outside), "{} uses {outside}", file.display());
        }
    }
}

/// The table in the crate's documentation states an order.
#[test]
fn modules_of_the_pure_crate_use_only_those_above_them() {
    let src = root().join(PURE);
    let lib = std::fs::read_to_string(src.join("lib.rs")).expect("is text");
    // Re-exports for tests.
    let lib = lib.replace("#[doc(hidden)]\npub mod ", "mod ");
    let row = |line: &str| Some(line.strip_prefix("//! | [`")?.split_once("`]")?.0.to_owned());
    let order: Vec<String> = lib.lines().filter_map(row).collect();
    let declared = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    let declared: BTreeSet<&str> = declared.collect();
    assert_eq!(declared, order.iter().map(String::as_str).collect(), "the table");
    let place = |module: &str| order.iter().position(|name| name == module);
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut upwards = Vec::new();
    for file in files.iter().filter(|file| !file.iter().any(|part| part == "tests")) {
        let text = code(file);
        let relative = file.strip_prefix(&src).expect("lies in the folder").with_extension("");
        let module = relative.iter().next().expect("has a name").to_string_lossy().into_owned();
        let imported = imports(&text).into_iter().map(|import| import.path);
        let named = text.split("crate::").skip(1).map(|rest| {
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
            vec!["crate".to_owned(), name]
        });
        for path in imported.chain(named).filter(|path| path[0] == "crate" && path.len() > 1) {
            if let Some((own, used)) = place(&module).zip(place(&path[1]))
                && used > own
            {
                upwards.push(format!("{} uses {}", relative.display(), path[1]));
            }
        }
    }
    assert_eq!(upwards, Vec::<String>::new());
}

/// What contributors are told in numbers.
#[test]
fn the_pages_for_contributors_count_right() {
    let words =
        ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
    let mut files = Vec::new();
    CRATES.iter().for_each(|folder| sources(&root().join(folder), &mut files));
    let allows = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).expect("is text");
        ["#[allow(unsafe_code", "#![allow(unsafe_code"].map(|allow| text.matches(allow).count())
    };
    let unsafe_places = words[files.iter().flat_map(allows).sum::<usize>()];
    let packages = words[CRATES.len()];
    for (page, said) in [
        ("CONTRIBUTING.md", format!("no `unsafe` outside of {unsafe_places} places")),
        ("CONTRIBUTING.md", format!("{packages} packages, and what each may use")),
        ("docs/contributing/architecture.md", format!("everywhere but in {unsafe_places} places")),
        ("docs/contributing/architecture.md", format!("{packages} packages")),
    ] {
        let text = std::fs::read_to_string(root().join(page)).expect("is there").to_lowercase();
        assert!(text.contains(&said), "{page} does not say: {said}");
    }
}

/// Each file that CONTRIBUTING.md sends a reader to exists.
#[test]
fn where_things_are_is_true() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("is there");
    let table = page.split_once("\n## Where is ...?\n").expect("the part is there").1;
    let rows = table
        .split("\n## ")
        .next()
        .expect("it has an end")
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| symptom"));
    let mut count = 0;
    for row in rows {
        count += 1;
        let columns: Vec<&str> = row.split('|').collect();
        for path in columns[2..4].iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)) {
            assert!(root().join(path).exists(), "{path} does not exist: {row}");
        }
    }
    assert_eq!(count, 12);
}

#[test]
fn the_pure_crate_has_few_dependencies() {
    let manifest =
        std::fs::read_to_string(root().join("crates/ociseek-format/Cargo.toml")).expect("is text");
    let table = manifest.split("\n[dependencies]\n").nth(1).expect("has dependencies");
    // An optional one is there for those who ask for it.
    let is_needed = |line: &&str| !line.is_empty() && !line.contains("optional = true");
    let names = table.lines().take_while(|line| !line.starts_with('[')).filter(is_needed);
    let names: Vec<_> = names
        .map(|line| line.split(['.', ' ', '=']).next().expect("splits into one at least"))
        .collect();
    assert_eq!(names, PURE_DEPENDENCIES);
    assert!(
        !manifest.contains("build-dependencies") && !manifest.contains("target."),
        "these are not looked at here"
    );
}

/// In the two crates to publish, adding errors and removing libraries must be possible without a
/// new major version.
#[test]
fn errors_are_not_exhaustive_and_hold_no_types_of_other_libraries() {
    let mut files = Vec::new();
    CRATES[..2].iter().for_each(|folder| sources(&root().join(folder), &mut files));
    let mut count = 0;
    for file in files {
        let text = code(&file);
        // Names imported from another library, and paths into it.
        let mut foreign: Vec<String> = LIBRARIES.map(str::to_owned).into();
        for import in text.split("\nuse ").skip(1).filter_map(|import| import.split(';').next()) {
            if LIBRARIES.iter().any(|library| {
                import.strip_prefix(library).is_some_and(|rest| rest.starts_with("::"))
            }) {
                let names = import.split(|c: char| !c.is_alphanumeric() && c != '_').skip(1);
                foreign.extend(names.filter(|name| !name.is_empty()).map(str::to_owned));
            }
        }
        for error in text.split("\n\n").filter(|item| item.contains("thiserror::Error)]")) {
            let Some((attributes, body)) = error.split_once("\npub enum ") else { continue };
            count += 1;
            let is_closed = CLOSED.iter().any(|name| body.starts_with(name));
            assert!(is_closed || attributes.contains("#[non_exhaustive]"), "{error}");
            // Messages, and names of errors and fields at the start of a line, may contain these
            // words.
            let fields = body.lines().filter(|line| !line.trim_start().starts_with("#[error"));
            for word in fields.flat_map(|line| {
                line.trim_start().split([' ', '(', ')', ',', '<', '>', '{', '}', '&']).skip(1)
            }) {
                let name = word.split("::").next().unwrap_or_default();
                let is_foreign = foreign.iter().any(|foreign| name == foreign);
                assert!(!is_foreign, "{word} in {error}");
            }
        }
    }
    assert!(count > 25, "only {count} were found");
}

/// docs/policy.md lists the codes (tests/servers/verify compares it), so each must be one that
/// something reports.
#[test]
fn each_code_of_verify_is_reported_somewhere() {
    let mut files = Vec::new();
    CRATES.iter().for_each(|folder| sources(&root().join(folder), &mut files));
    files.retain(|file| *file != root().join(PURE).join("code.rs"));
    let text: String = files.iter().map(|file| code(file)).collect();
    let name = |rest: &str| rest.chars().take_while(|c| c.is_alphanumeric()).collect::<String>();
    let reported: BTreeSet<String> = text.split("Code::").skip(1).map(name).collect();
    let never: Vec<_> =
        Code::ALL.iter().filter(|code| !reported.contains(&format!("{code:?}"))).collect();
    assert_eq!(never, Vec::<&Code>::new());
}

/// A reader who searches for a name finds one thing. Private types may share names: their file
/// tells which is meant. So may the shapes of the JSON documents, whose names docs/schema publishes
/// by document.
#[test]
fn names_of_shared_types_are_unique() {
    let mut files = Vec::new();
    CRATES.iter().for_each(|folder| sources(&root().join(folder), &mut files));
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in files {
        let text = code(&file);
        let mut attributes = String::new();
        for line in text.lines() {
            if line.starts_with('#') {
                attributes.push_str(line);
                continue;
            }
            let is_shape = std::mem::take(&mut attributes).contains("JsonSchema");
            if let Some(name) = public_type(line).filter(|_| !is_shape) {
                let place =
                    file.strip_prefix(root()).expect("lies in the folder").display().to_string();
                places.entry(name.to_owned()).or_default().push(place);
            }
        }
    }
    assert!(places.len() > 500, "only {} were found", places.len());
    places.retain(|_, places| places.len() > 1);
    assert_eq!(places, BTreeMap::new());
}

/// The name of the type that a line defines for others than its own file.
fn public_type(line: &str) -> Option<&str> {
    let item = line.strip_prefix("pub")?;
    let item = item
        .strip_prefix('(')
        .map_or(Some(item), |scope| scope.split_once(')').map(|(_, item)| item))?;
    let (kind, rest) = item.trim_start().split_once(' ')?;
    let is_type = matches!(kind, "struct" | "enum" | "trait" | "type");
    is_type.then(|| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default())
}
