//! The documents are consistent: every link has a target, every page is in one of the two books,
//! every variable is listed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The folders of the two books: for users, and for those who change the code.
const BOOKS: [&str; 2] = ["docs", "docs/contributing"];

fn pages(book: &str) -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(root().join(book))
        .expect("the book is there")
        .map(|entry| entry.expect("can be listed").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "md"))
        .collect();
    pages.sort();
    assert!(pages.len() >= 5, "{pages:?}");
    pages
}

/// The documents outside of the books.
fn others() -> Vec<PathBuf> {
    let crates = std::fs::read_dir(root().join("crates")).expect("the crates are there");
    let of_crates = crates.map(|entry| entry.expect("can be listed").path().join("README.md"));
    ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md"]
        .map(|file| root().join(file))
        .into_iter()
        .chain(of_crates)
        .collect()
}

/// The page without its blocks of code.
fn prose(path: &Path) -> String {
    let text =
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut is_code = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            prose += line;
            prose.push('\n');
        }
    }
    prose
}

/// The anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let words = heading.trim().to_lowercase();
    words
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn anchors(path: &Path) -> BTreeSet<String> {
    prose(path)
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| anchor(line.trim_start_matches('#')))
        .collect()
}

/// The targets of the links of a page that do not lead to another host.
fn links(path: &Path) -> Vec<String> {
    prose(path)
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target.to_owned()))
        .filter(|target| !target.contains("://") && !target.contains(char::is_whitespace))
        .collect()
}

#[test]
fn every_link_has_a_target() {
    let from = BOOKS.into_iter().flat_map(pages).chain(others());
    let mut seen = 0;
    let mut broken = Vec::new();
    for page in from {
        let folder = page.parent().expect("lies in a folder");
        for link in links(&page) {
            seen += 1;
            let (file, fragment) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() { page.clone() } else { folder.join(file) };
            let leads = target.exists()
                && (fragment.is_empty()
                    || target.extension().is_none_or(|ending| ending != "md")
                    || anchors(&target).contains(fragment));
            if !leads {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(seen > 50, "{seen}");
    assert_eq!(broken, Vec::<String>::new());
}

/// What lies outside of `docs` is not in the books that are built.
#[test]
fn links_of_the_books_stay_in_the_books() {
    let docs = root().join("docs").canonicalize().expect("is there");
    let outside: Vec<String> = BOOKS
        .into_iter()
        .flat_map(pages)
        .flat_map(|page| links(&page).into_iter().map(move |link| (page.clone(), link)))
        .filter(|(page, link)| {
            let file = page.with_file_name(link.split('#').next().unwrap_or_default());
            file.canonicalize().is_ok_and(|file| !file.starts_with(&docs))
        })
        .map(|(page, link)| format!("{}: {link}", page.display()))
        .collect();
    assert_eq!(outside, Vec::<String>::new());
}

/// A link says where it leads: its text is not the name of a page's file.
#[test]
fn link_texts_are_not_file_names() {
    let from = BOOKS.into_iter().flat_map(pages).chain(others());
    let named: Vec<String> = from
        .flat_map(|page| {
            let text = prose(&page);
            let parts: Vec<&str> = text.split(".md](").collect();
            parts
                .windows(2)
                .filter(|pair| !pair[1].split(')').next().is_some_and(|to| to.contains("://")))
                .map(|pair| {
                    let name = pair[0].rsplit('[').next().unwrap_or_default();
                    format!("{}: [{name}.md]", page.display())
                })
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(named, Vec::<String>::new());
}

#[test]
fn every_page_is_in_its_book() {
    for book in BOOKS {
        let listed: BTreeSet<String> =
            links(&root().join(book).join("SUMMARY.md")).into_iter().collect();
        let there: BTreeSet<String> = pages(book)
            .iter()
            .filter_map(|path| path.file_name()?.to_str().map(str::to_owned))
            .filter(|name| name != "SUMMARY.md")
            .collect();
        assert_eq!(listed, there, "{book}");
    }
}

/// The names of this program's environment variables in a text.
fn variables(text: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let ends = text.match_indices("OCISEEK_").map(|(at, _)| {
        let rest = &text[at..];
        rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())].to_owned()
    });
    ends.collect()
}

#[test]
fn every_variable_in_the_help_is_documented() {
    let mut of_help: BTreeMap<String, String> = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("tests/help")).expect("the help pages are there") {
        let path = entry.expect("can be listed").path();
        for name in variables(&std::fs::read_to_string(&path).expect("is text")) {
            of_help.insert(name, path.display().to_string());
        }
    }
    let page = std::fs::read_to_string(root().join("docs/environment.md")).expect("is there");
    // What the help leaves out has a part of the page.
    let (_, rare) = page.split_once("\n## Rarely needed\n").expect("the part is there");
    let rare = variables(rare.split("\n## ").next().expect("it has an end"));
    let listed = variables(&page);
    assert!(of_help.len() > 40, "{of_help:?}");
    let missing: Vec<_> = of_help.iter().filter(|(name, _)| !listed.contains(*name)).collect();
    assert!(missing.is_empty(), "not in docs/environment.md: {missing:?}");
    let unknown: Vec<_> =
        listed.difference(&rare).filter(|name| !of_help.contains_key(*name)).collect();
    assert!(unknown.is_empty(), "in docs/environment.md, but of no command: {unknown:?}");
    let options = ["args", "indexing", "verbosity"]
        .map(|file| format!("src/cli/shared/{file}.rs"))
        .map(|file| std::fs::read_to_string(root().join(file)).expect("is there"))
        .concat();
    for name in rare {
        assert!(options.contains(&format!("env = \"{name}\"")), "{name} is read nowhere");
        assert!(!of_help.contains_key(&name), "{name} is in the help");
    }
}

/// The words of a table's row that are in backticks, in one of its columns.
fn quoted(row: &str, column: usize) -> Vec<&str> {
    row.split('|')
        .nth(column)
        .map_or_else(Vec::new, |cell| cell.split('`').skip(1).step_by(2).collect())
}

#[test]
fn every_option_beside_a_variable_is_in_the_help() {
    let pages = std::fs::read_dir(root().join("tests/help")).expect("the help pages are there");
    let help = pages
        .map(|page| std::fs::read_to_string(page.expect("can be listed").path()).expect("is text"));
    let help = help.collect::<String>();
    let known: BTreeSet<&str> =
        help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').collect();
    let page = std::fs::read_to_string(root().join("docs/environment.md")).expect("is text");
    let options: Vec<&str> =
        page.lines().flat_map(|row| quoted(row, 2)).filter(|word| word.starts_with("--")).collect();
    assert!(options.len() > 50, "{options:?}");
    let unknown: Vec<_> = options.iter().filter(|option| !known.contains(*option)).collect();
    assert!(unknown.is_empty(), "in docs/environment.md, but of no command: {unknown:?}");
}

#[test]
fn every_test_that_docs_security_names_exists() {
    let page = std::fs::read_to_string(root().join("docs/SECURITY.md")).expect("is text");
    let rows = page
        .split("\n## What an attacker")
        .nth(1)
        .expect("has the section")
        .split("\n## ")
        .next()
        .expect("ends");
    let names: Vec<&str> =
        rows.lines().flat_map(|row| quoted(row, 4)).filter(|name| *name != "fuzz/").collect();
    assert!(names.len() > 20, "{names:?}");
    let is_test = |name: &str| {
        ["cli", "pure", "servers", "system"]
            .iter()
            .map(|program| root().join("tests").join(program))
            .any(|program| {
                program.join(name).is_dir() || program.join(format!("{name}.rs")).is_file()
            })
    };
    let unknown: Vec<_> = names.iter().filter(|name| !is_test(name)).collect();
    assert!(unknown.is_empty(), "in docs/SECURITY.md, but no test: {unknown:?}");
}

#[test]
fn the_readme_is_short() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("is there");
    assert!(readme.lines().count() < 150, "{} lines", readme.lines().count());
    // CI finds these two commands by their first words.
    assert_eq!(readme.lines().filter(|line| line.starts_with("cargo run ")).count(), 1);
    assert_eq!(readme.lines().filter(|line| line.starts_with("tests/run")).count(), 1);
}

/// The features of a package, but for `default`.
fn features(manifest: &str) -> BTreeSet<String> {
    let manifest = std::fs::read_to_string(root().join(manifest)).expect("is text");
    let Some((_, rest)) = manifest.split_once("\n[features]\n") else { return BTreeSet::new() };
    let features =
        rest.split("\n[").next().expect("ends").lines().filter(|line| !line.starts_with('#'));
    features
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.to_owned())
        .filter(|name| name != "default")
        .collect()
}

/// docs/contributing/library.md lists each feature with the packages that have it.
#[test]
fn every_feature_is_documented() {
    let packages = [
        "ociseek",
        "ociseek-format",
        "ociseek-store",
        "ociseek-rootfs",
        "ociseek-ops",
        "ociseek-hook",
    ];
    let mut expected: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        let folder =
            if package == "ociseek" { String::new() } else { format!("crates/{package}/") };
        for feature in features(&format!("{folder}Cargo.toml")) {
            expected.entry(feature).or_default().insert(package);
        }
    }
    let page =
        std::fs::read_to_string(root().join("docs/contributing/library.md")).expect("is text");
    let section = page
        .split("\n## Features\n")
        .nth(1)
        .expect("has the section")
        .split("\n## ")
        .next()
        .expect("ends");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let listed: BTreeMap<String, BTreeSet<&str>> =
        rows.map(|row| (quoted(row, 1).concat(), quoted(row, 2).into_iter().collect())).collect();
    assert_eq!(listed, expected);
    assert!(expected.len() >= 3, "{expected:?}");
}

/// The names of the events that the sources in a file or folder log.
fn events_of(path: &Path, events: &mut BTreeSet<String>) {
    if path.is_dir() {
        let entries = std::fs::read_dir(path).expect("the folder is there");
        return entries.flatten().for_each(|entry| events_of(&entry.path(), events));
    }
    let text = std::fs::read_to_string(path).expect("the file is there");
    for line in ["info!(", "warn!("].iter().flat_map(|log| text.split(log).skip(1)) {
        let name =
            line.trim_start().strip_prefix("name: \"").and_then(|rest| rest.split('"').next());
        let name = name.unwrap_or_else(|| panic!("{}: an event without a name", path.display()));
        events.insert(name.to_owned());
    }
}

#[test]
fn each_event_of_the_snapshotters_log_has_a_row() {
    let mut events = BTreeSet::new();
    for path in [
        "crates/ociseek-node/src",
        "crates/ociseek-rootfs/src/fuse/keeping.rs",
        "src/cli/snapshotter",
    ] {
        events_of(&root().join(path), &mut events);
    }
    let page =
        std::fs::read_to_string(root().join("docs/snapshotter.md")).expect("the page is there");
    let log = page.split("\n## The log\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = log.unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| `"));
    let rows: BTreeSet<String> =
        rows.filter_map(|row| row.split('`').next()).map(str::to_owned).collect();
    assert_eq!(rows, events);
}

/// The help wraps lines at 100 columns. A command that is wrapped cannot be pasted.
#[test]
fn no_example_of_the_help_is_wrapped() {
    let mut folders = vec![root().join("src/cli")];
    let mut seen = 0;
    let mut wrapped = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("can be listed") {
            let path = entry.expect("can be listed").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("is text");
            for part in source.split("\nExamples:\n").skip(1) {
                let examples = part.split("\";").next().unwrap_or_default();
                for line in examples.lines().filter(|line| line.starts_with("  ")) {
                    seen += 1;
                    let columns = line.replace(r"\\", r"\").chars().count();
                    if columns > 100 {
                        wrapped.push(format!("{}: {line}", path.display()));
                    }
                }
            }
        }
    }
    assert!(seen > 40, "{seen}");
    assert_eq!(wrapped, Vec::<String>::new());
}

/// The table "Where is ...?" in CONTRIBUTING.md names files and tests that exist.
#[test]
fn where_to_look_exists() {
    let page = std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("is text");
    let section = page.split("\n## Where is ...?\n").nth(1).expect("has the section");
    let rows = section.split("\n## ").next().expect("ends").lines();
    let paths: Vec<&str> = rows.flat_map(|row| [quoted(row, 2), quoted(row, 3)].concat()).collect();
    assert!(paths.len() >= 24, "{paths:?}");
    let unknown: Vec<_> = paths.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(unknown.is_empty(), "in CONTRIBUTING.md, but not in the tree: {unknown:?}");
}
