//! Checks that files do not use each other in a circle: each can be read after those that it uses.
//! A folder's `mod.rs` and the files below it are one family: they may use what it defines, and it
//! uses them. A circle that leaves the folder is found, also where it passes through `mod.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::architecture::{CRATES, code, root, sources};

/// The files that are in a circle anyway, by folder, with the reason.
const KNOWN: [(&str, &[&str], &str); 1] = [(
    "crates/ociseek-rootfs/src/content",
    &["claim", "fetch", "in_flight", "inner", "pieces", "race", "recorded_start", "windows"],
    "what each does is a method of `LayerHandle`, which holds the state of all of them",
)];

/// A module's path in its crate.
pub type Module = Vec<String>;

/// A path after `use`, and whether others can use it by its name here.
pub struct Import {
    pub path: Module,
    is_public: bool,
}

#[test]
fn files_do_not_use_each_other_in_a_circle() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in CRATES {
        let src = root().join(folder);
        let mut files = Vec::new();
        sources(&src, &mut files);
        let module = |file: &PathBuf| {
            let relative = file.strip_prefix(&src).expect("lies in the folder").with_extension("");
            let mut module: Module =
                relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            let _ = module.pop_if(|last| matches!(last.as_str(), "mod" | "lib"));
            module
        };
        files.retain(|file| !file.iter().any(|part| part == "tests" || part == "tests.rs"));
        for mut module in circles(&files.iter().map(|file| (module(file), code(file))).collect()) {
            let name = module.pop().expect("is not the crate itself");
            let folder = [folder]
                .into_iter()
                .chain(module.iter().map(String::as_str))
                .collect::<Vec<_>>()
                .join("/");
            found.entry(folder).or_default().push(name);
        }
    }
    let known = KNOWN.map(|(folder, files, _)| {
        (folder.to_owned(), files.iter().map(|&file| file.to_owned()).collect())
    });
    assert_eq!(found, BTreeMap::from(known));
}

#[test]
fn a_circle_is_found() {
    let circles_of = |texts: &[(&str, &str)]| {
        let files =
            texts.iter().map(|(module, text)| (words(module), (*text).to_owned())).collect();
        circles(&files).iter().map(|module| module.join("::")).collect::<Vec<_>>()
    };
    let top = ("a", "pub use one::One;\nuse two::Two;");
    let a = ("a::one", "use super::two::Two;");
    assert_eq!(circles_of(&[top, a, ("a::two", "use crate::b;"), ("b", "")]), Vec::<String>::new());
    for back in [
        "use super::one::{One, Other};",
        "use crate::{a::{One, Three}, b};",
        "use super::One as First;",
    ] {
        assert_eq!(
            circles_of(&[top, a, ("a::two", back), ("b", "")]),
            ["a::one", "a::two"],
            "{back}"
        );
    }
    assert_eq!(
        circles_of(&[top, a, ("a::two", "use crate::b::B;"), ("b", "use crate::a::One;")]).len(),
        3
    );
    let through =
        [("a", "use crate::b::B;"), ("a::one", ""), ("b", "use crate::c::one::C;"), ("c", "")];
    assert_eq!(
        circles_of(&[through.as_slice(), &[("c::one", "use crate::a::A;")]].concat()),
        ["a", "b", "c::one"]
    );
}

fn words(path: &str) -> Module {
    path.split("::").map(|word| word.trim().to_owned()).collect()
}

/// The modules that use themselves by way of others.
fn circles(files: &BTreeMap<Module, String>) -> Vec<Module> {
    let imports: BTreeMap<&Module, Vec<Import>> =
        files.iter().map(|(module, text)| (module, imports(text))).collect();
    let mut used: BTreeMap<&Module, BTreeSet<Module>> = BTreeMap::new();
    for (module, list) in &imports {
        let targets = list.iter().filter_map(|import| target(&imports, module, &import.path, 0));
        let is_family = |target: &Module| target.starts_with(module) || module.starts_with(target);
        used.insert(*module, targets.filter(|target| !is_family(target)).collect());
    }
    let reaches_itself = |module: &Module| {
        let mut seen = BTreeSet::new();
        let mut todo = vec![module];
        while let Some(next) = todo.pop() {
            todo.extend(used.get(next).into_iter().flatten().filter(|target| seen.insert(*target)));
        }
        seen.contains(module)
    };
    used.keys().filter(|module| reaches_itself(module)).map(|module| (**module).clone()).collect()
}

/// The file that defines what `path` names in `module`, through files that pass it on. None for
/// another crate.
fn target(
    imports: &BTreeMap<&Module, Vec<Import>>,
    module: &Module,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    let mut at = module.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|word| word == "super") {
                at.pop()?;
                rest = &rest[1..];
            }
        }
        child => {
            let inner = [module.as_slice(), &[child.to_owned()]].concat();
            imports.get(&inner)?;
        }
    }
    while let Some((word, after)) = rest.split_first() {
        at.push(word.clone());
        if imports.contains_key(&at) {
            rest = after;
            continue;
        }
        at.pop();
        let passed_on = imports
            .get(&at)?
            .iter()
            .find(|import| import.is_public && import.path.last() == Some(word));
        // The depth is limited, because names may be passed on in a circle.
        return match passed_on.filter(|_| depth < 8) {
            Some(import) => {
                target(imports, &at, &[import.path.as_slice(), after].concat(), depth + 1)
            }
            None => Some(at),
        };
    }
    Some(at)
}

pub fn imports(text: &str) -> Vec<Import> {
    let mut imports = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("use ") {
        let start = before.rsplit('\n').next().unwrap_or_default().trim();
        let is_public = start.starts_with("pub");
        rest = after;
        if !start.is_empty() && !is_public {
            continue;
        }
        let Some((tree, after)) = after.split_once(';') else { break };
        expand(&[], tree, &mut |path| imports.push(Import { path, is_public }));
        rest = after;
    }
    imports
}

/// Passes on each path of a tree such as `a::{b, c::{d, e as f}}`.
fn expand(prefix: &[String], tree: &str, each: &mut dyn FnMut(Module)) {
    let Some((before, inner)) = tree.split_once('{') else {
        let name = tree.split(" as ").next().unwrap_or_default();
        return each([prefix, words(name.trim()).as_slice()].concat());
    };
    let before = before.trim().trim_end_matches("::");
    let prefix = if before.is_empty() {
        prefix.to_vec()
    } else {
        [prefix, words(before).as_slice()].concat()
    };
    let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
    let mut depth = 0;
    let mut start = 0;
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth <= 0 => {
                if !inner[start..at].trim().is_empty() {
                    expand(&prefix, &inner[start..at], each);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}
