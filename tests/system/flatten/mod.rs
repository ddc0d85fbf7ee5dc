//! Layers that we flatten and that containerd's own applier unpacks: the trees are equal, or both
//! fail.

pub mod entry;
mod overlay;
mod scale;
mod stacks;

use ociseek_testkit::servers::skip;
use ociseek_testkit::soci;
use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use bytes::Bytes;
use ociseek_format::budget::Budget;
use ociseek_format::digest::Digest;
use ociseek_format::layer::parallel::{Threads, read_chunks};
use ociseek_format::layer::{LayerMap, ReadOptions};
use ociseek_format::tree::{NodeId, NodeKind, Tree};
use serde_json::Value;
use stacks::Stack;

/// Our exceptions from containerd's behaviour: a value that the kernel cannot return is kept, and
/// reading it fails.
const OTHERWISE: [&str; 1] = ["xattr of more than 64 KiB"];

/// The map of a layer, as readers make it.
fn map(tar: &[u8]) -> LayerMap {
    let expected = (Digest::sha256(tar), tar.len() as u64);
    let mut batch = Some(vec![Bytes::copy_from_slice(tar)]);
    let next = || Ok::<_, std::convert::Infallible>(batch.take());
    let threads = Threads { cores: 1, guide: None };
    let memory = Budget::new(u64::MAX).open();
    let Ok(read) = read_chunks(ReadOptions::default(), expected, threads, memory, next) else {
        panic!("the stacks' tars are sound")
    };
    read.map
}

/// A line for each path, without times and inode numbers, which are compared separately.
fn ours(tree: &Tree, tars: &[Vec<u8>], counts: bool) -> BTreeMap<Vec<u8>, (String, NodeId)> {
    let mut lines = BTreeMap::new();
    let mut open = vec![(Vec::new(), Tree::ROOT)];
    while let Some((path, id)) = open.pop() {
        let node = tree.node(id);
        let what = match &node.kind {
            NodeKind::Directory(_) => "dir".to_owned(),
            kind @ (NodeKind::File(_) | NodeKind::Sparse(_)) => {
                let stored = kind.stored_in(0..kind.size()).unwrap();
                let start = stored.range().start.0 as usize;
                let end = stored.range().end.0 as usize;
                let stored = &tars[stored.layer.0 as usize][start..end];
                let content =
                    kind.expand(0..kind.size(), stored).unwrap_or_else(|| stored.to_vec());
                format!("reg {} {}", content.len(), Digest::sha256(&content).hex())
            }
            NodeKind::Symlink(target) => format!("symlink {}", hex(target)),
            NodeKind::CharDevice { major, minor } => format!("char {major}:{minor}"),
            NodeKind::BlockDevice { major, minor } => format!("block {major}:{minor}"),
            NodeKind::Fifo => "fifo".to_owned(),
        };
        let xattrs: Vec<String> = tree
            .xattrs(id)
            .iter()
            .map(|(name, value)| format!("{}={}", hex(name), hex(value)))
            .collect();
        let nlink = if node.kind.is_directory() && !counts { 1 } else { node.nlink };
        let mode = node.mode;
        let uid = node.uid;
        let gid = node.gid;
        let line = format!("{what} mode {mode:o} owner {uid}:{gid} links {nlink} {xattrs:?}");
        for (name, child) in tree.children(id) {
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            open.push(([&path[..], slash, name].concat(), child));
        }
        lines.insert(path, (line, id));
    }
    lines
}

fn theirs(entry: &Value) -> String {
    let text = |field: &str| entry[field].as_str().unwrap_or_default().to_owned();
    let number = |field: &str| entry[field].as_u64().expect("a number");
    let what = match text("kind").as_str() {
        "reg" => format!("reg {} {}", number("size"), text("sha256")),
        "symlink" => format!("symlink {}", text("target")),
        kind @ ("char" | "block") => format!("{kind} {}:{}", number("major"), number("minor")),
        kind => kind.to_owned(),
    };
    let mut xattrs: Vec<String> = (entry["xattrs"].as_object().expect("a map").iter())
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    xattrs.sort();
    let mode = number("mode");
    let uid = number("uid");
    let gid = number("gid");
    let nlink = number("nlink");
    format!("{what} mode {mode:o} owner {uid}:{gid} links {nlink} {xattrs:?}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex"))
        .collect()
}

/// The differences between our tree and containerd's.
fn compare(stack: &Stack, answer: &Value) -> Vec<String> {
    let tars: Vec<Vec<u8>> = stack.layers.iter().map(|layer| entry::tar(layer)).collect();
    let layers: Vec<LayerMap> = tars.iter().map(|tar| map(tar)).collect();
    let entries: Vec<_> = layers.iter().map(LayerMap::entries).collect();
    let flattened = Tree::flatten(&entries);
    let refused = answer["error"].as_str();
    let tree = match (flattened, refused) {
        (Ok(tree), None) => tree,
        (Err(error), Some(_)) if answer["layer"] == error.layer.0 => return Vec::new(),
        (Err(error), theirs) => {
            return vec![format!("we say {error}; containerd: {theirs:?} {}", answer["layer"])];
        }
        (Ok(_), Some(theirs)) => return vec![format!("containerd says {theirs}; we have a tree")],
    };
    let mut differences = Vec::new();
    // Some file systems do not count a directory's links.
    let counts = answer["entries"][0]["nlink"] != 1;
    let mut ours = ours(&tree, &tars, counts);
    let mut to_inode = HashMap::new();
    let mut to_node = HashMap::new();
    for entry in answer["entries"].as_array().expect("a list") {
        let path = unhex(entry["path"].as_str().expect("a path"));
        let shown = path.escape_ascii().to_string();
        let theirs = theirs(entry);
        let Some((line, id)) = ours.remove(&path) else {
            differences.push(format!("{shown}: only containerd has it: {theirs}"));
            continue;
        };
        if line != theirs {
            differences.push(format!("{shown}:\n     ours {line}\n   theirs {theirs}"));
        }
        let node = tree.node(id);
        let mtime = [node.mtime().seconds, i64::from(node.mtime().nanos)];
        if !entry["mtime"].is_null() && entry["mtime"] != Value::from(mtime.to_vec()) {
            differences.push(format!("{shown}: our time {mtime:?}, theirs {}", entry["mtime"]));
        }
        let inode = entry["inode"].as_u64().expect("a number");
        if *to_inode.entry(id).or_insert(inode) != inode
            || *to_node.entry(inode).or_insert(id) != id
        {
            differences.push(format!("{shown}: is another file's link"));
        }
        if tree.resolve(&tree.path(id), false) != Ok(id) {
            differences.push(format!("{shown}: its path is {}", tree.path(id).escape_ascii()));
        }
    }
    differences.extend(ours.keys().map(|path| format!("{}: only we have it", path.escape_ascii())));
    if tree.len() != to_inode.len() {
        differences.push(format!("{} nodes for {} inodes", tree.len(), to_inode.len()));
    }
    differences
}

#[test]
fn the_tree_matches_what_containerd_unpacks() {
    let binary =
        soci::tools().map(|dir| dir.join("ociseek-unpack-oracle")).filter(|file| file.is_file());
    let Some(binary) = binary else {
        return skip("no ociseek-unpack-oracle: run .ci/tools, which needs Go");
    };
    if !rustix::process::geteuid().is_root() {
        return skip("unpacking needs root");
    }
    let seed =
        std::env::var("OCISEEK_TORTURE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut stacks = stacks::named();
    let named = stacks.len();
    assert!(named > 150, "{named}");
    stacks.extend(stacks::random(seed, 600));

    let scratch = tempfile::tempdir().expect("a directory");
    let mut oracle = Command::new(binary)
        .arg(scratch.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the oracle starts");
    let mut stdin = oracle.stdin.take().expect("piped");
    let mut stdout = BufReader::new(oracle.stdout.take().expect("piped"));
    let mut wrong = Vec::new();
    let mut refused = 0;
    for stack in &stacks {
        let files: Vec<_> =
            (0..stack.layers.len()).map(|n| scratch.path().join(format!("layer-{n}"))).collect();
        for (layer, file) in stack.layers.iter().zip(&files) {
            std::fs::write(file, entry::tar(layer)).expect("a layer is written");
        }
        let job: Vec<_> = files.iter().map(|file| file.to_str().expect("UTF-8")).collect();
        let mut answer = String::new();
        writeln!(stdin, "{}", job.join("\t"))
            .and_then(|()| stdout.read_line(&mut answer))
            .expect("the oracle answers");
        let answer: Value = serde_json::from_str(&answer).expect("JSON");
        assert_ne!(answer["layer"], -1, "{}: {answer}", stack.name);
        refused += usize::from(answer["error"].is_string());
        let differences = compare(stack, &answer);
        let is_known = OTHERWISE.contains(&&stack.name[..]);
        if differences.is_empty() == is_known {
            wrong.push(format!("{}:\n  {}", stack.name, differences.join("\n  ")));
        }
    }
    drop(stdin);
    oracle.wait().expect("the oracle ends");
    println!("{} stacks, of which containerd refuses {refused}", stacks.len());
    assert!(
        wrong.is_empty(),
        "{} of {} stacks differ:\n{}",
        wrong.len(),
        stacks.len(),
        wrong.join("\n")
    );
    assert!((100..stacks.len() * 2 / 3).contains(&refused), "{refused}");
}
