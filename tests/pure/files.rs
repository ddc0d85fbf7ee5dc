//! No test file is forgotten: each is a module of one of the four test programs, or of `schedules`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const PROGRAMS: [&str; 4] = ["cli", "pure", "servers", "system"];

/// The test program of `schedules`.
const LAWS: &str = "laws.rs";

/// The modules that a file declares on separate lines.
fn declared(file: &Path) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).expect("a module's file is there");
    let line = |line: &str| {
        line.strip_prefix("pub ")
            .unwrap_or(line)
            .strip_prefix("mod ")?
            .strip_suffix(';')
            .map(String::from)
    };
    text.lines().filter_map(line).collect()
}

/// Adds each Rust file below `dir` to `forgotten` that is not reachable from `root`, except for
/// other packages.
fn look(dir: &Path, root: &Path, forgotten: &mut Vec<PathBuf>) {
    let declared = declared(root);
    for entry in std::fs::read_dir(dir).expect("tests is there") {
        let path = entry.expect("it can be listed").path();
        let name = path.file_stem().expect("it has a name").to_string_lossy().into_owned();
        if path == root || name == "target" || path.join("Cargo.toml").is_file() {
            continue;
        }
        if path.is_dir() {
            if declared.contains(&name) {
                look(&path, &path.join("mod.rs"), forgotten);
            } else {
                forgotten.push(path);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") && !declared.contains(&name)
        {
            forgotten.push(path);
        }
    }
}

#[test]
fn every_test_file_is_a_module() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let mut forgotten = Vec::new();
    for program in PROGRAMS {
        let dir = tests.join(program);
        look(&dir, &dir.join("main.rs"), &mut forgotten);
    }
    let testkit = tests.with_file_name("crates/ociseek-testkit/src");
    look(&testkit, &testkit.join("lib.rs"), &mut forgotten);
    let schedules = tests.join("schedules");
    for package in [schedules.clone(), schedules.join("std"), schedules.join("tokio")] {
        look(&package, &package.join("lib.rs"), &mut forgotten);
    }
    forgotten.retain(|path| *path != schedules.join(LAWS));
    // Another file or folder here would be a fifth program, which would link everything again.
    for entry in std::fs::read_dir(&tests).expect("tests is there") {
        let path = entry.expect("it can be listed").path();
        let known = PROGRAMS.iter().any(|program| path.ends_with(program));
        if path.extension().is_some_and(|ending| ending == "rs")
            || path.join("main.rs").is_file() && !known
        {
            forgotten.push(path);
        }
    }
    assert_eq!(forgotten, Vec::<PathBuf>::new());
}

#[test]
fn every_law_of_schedules_is_tested() {
    let schedules = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/schedules");
    let program = std::fs::read_to_string(schedules.join(LAWS)).expect("is text");
    let tested: BTreeSet<&str> = program
        .lines()
        .filter_map(|line| line.trim_start().split_once(' '))
        .map(|(a, _)| a)
        .collect();
    let mut files = Vec::new();
    super::architecture::sources(&schedules, &mut files);
    files.retain(|file| file.to_string_lossy().ends_with(LAWS) && *file != schedules.join(LAWS));
    assert!(files.len() >= 4, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).expect("is text");
        for law in
            text.lines().filter_map(|line| line.strip_prefix("pub fn ")?.strip_suffix("() {"))
        {
            assert!(tested.contains(law), "{law} in {}", file.display());
        }
    }
}
