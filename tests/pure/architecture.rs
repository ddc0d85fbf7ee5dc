//! The layers of the crate: a module uses only modules above it, and the pure half knows no file, socket, clock or async.

use std::path::{Path, PathBuf};

/// The modules in the order of lib.rs; those before `store` are pure, and so are those of `PURE`.
const ORDER: [&str; 16] = [
    "offset", "budget", "digest", "glob", "codec", "tar", "ztoc", "layer", "image", "progress", "store", "rootfs",
    "ops", "hook", "cli", "main",
];
const PURE: [&str; 2] = ["rootfs/tree", "hook/event"];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("src is there") {
        let path = entry.expect("can be listed").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The lines of a source file that are code of the crate itself: tests, at the end of a file, may use anything.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).expect("is text");
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn rank(module: &str) -> Option<usize> {
    ORDER.iter().position(|known| *known == module)
}

#[test]
fn modules_use_only_what_is_above_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let (mut seen, mut wrong) = (Vec::new(), Vec::new());
    for file in files {
        let relative = file.strip_prefix(&src).expect("lies in src");
        let top = relative.components().next().expect("has a name").as_os_str().to_string_lossy();
        let module = top.trim_end_matches(".rs").to_owned();
        if module == "lib" {
            continue;
        }
        let own = rank(&module).unwrap_or_else(|| panic!("{module} is not in the list"));
        let text = code(&file);
        for used in text.split("crate::").skip(1) {
            let used: String = used.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            if rank(&used).is_some_and(|used| used > own) {
                wrong.push(format!("{} uses crate::{used}", relative.display()));
            }
        }
        let is_pure =
            rank("store").is_some_and(|store| own < store) || PURE.iter().any(|pure| relative.starts_with(pure));
        if is_pure {
            if text.contains("crate::store") {
                wrong.push(format!("{} is pure and uses crate::store", relative.display()));
            }
            for outside in ["std::fs", "std::time", "std::process", "std::env", "tokio", "reqwest", "async "] {
                if text.contains(outside) {
                    wrong.push(format!("{} is pure and uses {outside}", relative.display()));
                }
            }
        }
        seen.push(module);
    }
    assert_eq!(wrong, Vec::<String>::new());
    for module in ORDER {
        assert!(seen.iter().any(|s| s == module), "{module} is gone: the list must say so");
    }
}
