//! Trees of single layers for overlayfs: put together as overlayfs does, they are the flattened
//! tree.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ociseek_format::layer::LayerMap;
use ociseek_format::layer::map::LayerEntries;
use ociseek_format::offset::LayerId;
use ociseek_format::tree::{NodeId, NodeKind, OpaqueXattr, Tree};

use super::entry::{dir, file, hard_link, opaque, whiteout};
use super::{entry, map, stacks};
use ociseek_testkit::mounts::{
    FileAttributes, MountProcess, assert_same, can_mount, image, seen, system, unmount,
};
use ociseek_testkit::sandbox::Sandbox;

/// A line for each path, without link counts.
type Lines = BTreeMap<Vec<u8>, String>;

/// What cannot be the same.
const OTHERWISE: [&str; 5] = [
    // Lower symbolic links that lead elsewhere.
    "below two symlinks",
    "dot dot behind a symlink",
    "dot dot in a nested symlink",
    // A device 0/0 of the image is a whiteout for overlayfs.
    "devices",
    // The owner that a directory keeps is that of a lower layer.
    "ids of all ones",
];

fn line(tree: &Tree, id: NodeId) -> String {
    let node = tree.node(id);
    let kind = match &node.kind {
        NodeKind::Directory(_) => "dir".to_owned(),
        NodeKind::File(extent) => format!("file at {:?} of {}", extent.offset, extent.size),
        NodeKind::Sparse(file) => format!("sparse at {:?} {:?}", file.offset, file.map),
        other => format!("{other:?}"),
    };
    let xattrs: Vec<_> =
        tree.xattrs(id).iter().filter(|(name, _)| **name != *OpaqueXattr::Trusted.name()).collect();
    format!("{kind} {:o} {}:{} {:?} {xattrs:?}", node.mode, node.uid, node.gid, node.mtime())
}

fn is_opaque(tree: &Tree, id: NodeId) -> bool {
    tree.xattrs(id)
        .iter()
        .any(|(name, value)| **name == *OpaqueXattr::Trusted.name() && **value == *b"y")
}

/// What overlayfs shows of these layers, the lowest first.
fn merged(layers: &[Tree]) -> Lines {
    let mut lines = Lines::new();
    let roots = layers.iter().rev().map(|tree| (tree, Tree::ROOT)).collect::<Vec<_>>();
    let mut open = vec![(Vec::new(), roots)];
    while let Some((path, stack)) = open.pop() {
        let names: BTreeSet<&[u8]> = stack
            .iter()
            .flat_map(|(tree, dir)| tree.children(*dir).map(|(name, _)| name))
            .collect();
        for name in names {
            let found =
                stack.iter().filter_map(|(tree, dir)| Some((*tree, tree.child(*dir, name)?)));
            let mut parts: Vec<(&Tree, NodeId)> = Vec::new();
            for (tree, id) in found {
                let is_directory = tree.node(id).kind.is_directory();
                if is_directory || parts.is_empty() {
                    parts.push((tree, id));
                }
                if !is_directory || is_opaque(tree, id) {
                    break;
                }
            }
            let (tree, top) = parts[0];
            let node = tree.node(top);
            if node.kind == (NodeKind::CharDevice { major: 0, minor: 0 }) {
                continue;
            }
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let path = [&path[..], slash, name].concat();
            // Of directories without an entry, overlayfs shows other attributes.
            let is_implied = node.kind.is_directory() && node.origin.is_none();
            lines.insert(path.clone(), if is_implied { "dir".to_owned() } else { line(tree, top) });
            if node.kind.is_directory() {
                open.push((path, parts));
            }
        }
    }
    lines
}

fn flattened(tree: &Tree) -> Lines {
    let all = (1..tree.len() as u32).map(NodeId);
    let mut lines = Lines::new();
    let mut open = vec![(Vec::new(), Tree::ROOT)];
    while let Some((path, id)) = open.pop() {
        for (name, child) in tree.children(id) {
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let path = [&path[..], slash, name].concat();
            lines.insert(path.clone(), line(tree, child));
            open.push((path, child));
        }
    }
    assert!(lines.len() >= all.count());
    lines
}

/// Whether overlayfs must show something else. It shows the lower files of an opaque root, and what
/// a layer itself has in an opaque directory, which containerd removes if it has no entry. Where a
/// layer has a file below a symbolic link of a lower one, containerd follows the link.
fn differs(lower: &Tree, layer: &Tree, entries: &LayerEntries<'_>) -> bool {
    let is_link = |path: &[u8]| {
        let found = lower.resolve(path, false).ok();
        found.is_some_and(|id| matches!(lower.node(id).kind, NodeKind::Symlink(_)))
    };
    let is_below_link = |name: &[u8]| {
        let slashes =
            name.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at + 1 < name.len());
        slashes.into_iter().any(|(at, _)| is_link(&name[..at]))
    };
    let is_hidden = |id: NodeId| {
        let mut above =
            std::iter::successors(Some(id), |id| (*id != Tree::ROOT).then(|| layer.parent(*id)));
        let node = layer.node(id);
        node.kind.is_directory() && node.origin.is_none() && above.any(|id| is_opaque(layer, id))
    };
    is_opaque(layer, Tree::ROOT)
        || (1..layer.len() as u32).map(NodeId).any(is_hidden)
        || entries.files.iter().any(|file| is_below_link(&file.name))
}

#[test]
fn layers_under_an_overlay_are_the_flattened_tree() {
    let mut all = stacks::named();
    all.extend(stacks::random(2, 600));
    let mut compared = 0;
    let mut hiding = 0;
    let mut wrong = Vec::new();
    for stack in &all {
        let maps: Vec<LayerMap> =
            stack.layers.iter().map(|layer| map(&entry::tar(layer))).collect();
        let layers: Vec<_> = maps.iter().map(LayerMap::entries).collect();
        let Ok(tree) = Tree::flatten(&layers) else { continue };
        let alone: Result<Vec<Tree>, _> = layers
            .iter()
            .map(|layer| Tree::for_overlay(layer, LayerId(0), OpaqueXattr::Trusted))
            .collect();
        // Links to other layers.
        let Ok(alone) = alone else { continue };
        let below = |number: usize| Tree::flatten(&layers[..number]).unwrap();
        let layers = &layers;
        if alone
            .iter()
            .enumerate()
            .any(|(number, layer)| differs(&below(number), layer, &layers[number]))
        {
            continue;
        }
        compared += 1;
        let hides = |tree: &Tree| {
            (0..tree.len() as u32).map(NodeId).any(|id| {
                is_opaque(tree, id)
                    || tree.node(id).kind == (NodeKind::CharDevice { major: 0, minor: 0 })
            })
        };
        hiding += usize::from(alone.iter().any(hides));
        let overlay = merged(&alone);
        let mut flat = flattened(&tree);
        for (path, line) in &overlay {
            if line == "dir" {
                flat.entry(path.clone()).and_modify(|of_flat| of_flat.truncate(3));
            }
        }
        if overlay != flat && !OTHERWISE.contains(&&*stack.name) {
            let shown = |lines: &Lines, other: &Lines| {
                let only = lines.iter().filter(|(path, line)| other.get(*path) != Some(line));
                only.map(|(path, line)| format!("{} {line}", path.escape_ascii()))
                    .collect::<Vec<_>>()
                    .join("\n    ")
            };
            let here = shown(&overlay, &flat);
            let there = shown(&flat, &overlay);
            wrong
                .push(format!("{}\n  overlay:\n    {here}\n  flattened:\n    {there}", stack.name));
        }
    }
    println!("{compared} of {} stacks, {hiding} of them hide files", all.len());
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 300 && hiding > 100, "{compared} {hiding}");
}

/// Everything below `root`, without the link counts of directories: overlayfs does not count them.
fn without_counts(root: &Path) -> BTreeMap<PathBuf, FileAttributes> {
    let mut files = seen(root, true);
    files
        .values_mut()
        .filter(|file| file.mode & 0o170_000 == 0o040_000)
        .for_each(|file| file.links = 0);
    files
}

/// The kernel's own overlayfs over mounts of single layers shows what a mount of the image shows.
#[test]
fn overlayfs_over_mounted_layers_shows_the_image() {
    if !can_mount() {
        return;
    }
    let middle = vec![
        whiteout("d/f"),
        dir("d/sub/").xattr("user.k", "upper"),
        opaque("d/sub"),
        whiteout("d/sub/deep"),
        whiteout("d/sub/none/none"),
        file("d/sub/new", "new"),
        whiteout("gone"),
        whiteout("again"),
        dir("again/").mode(0o700),
        file("again/new", "new"),
        file("turned", "now a file"),
        whiteout("to-d"),
        hard_link("d/sub/same", "d/sub/new"),
    ];
    let top = vec![
        dir("d/").mode(0o755),
        file("d/f", "back"),
        whiteout("turned"),
        dir("turned/"),
        file("turned/y", "y"),
        dir("gone/"),
        whiteout("capable"),
    ];
    let sandbox = Sandbox::new();
    let tars = [entry::motley(), middle, top].map(|layer| entry::tar(&layer));
    image(&sandbox, "img", &tars, &serde_json::json!({}));
    let mount = |dir: &str, more: &[&str]| {
        std::fs::create_dir(sandbox.path(dir)).unwrap();
        MountProcess::start(
            &sandbox,
            &[&["mount", "--suid", "--dev", "oci:img:v1", dir], more].concat(),
        )
    };
    let _flat = mount("flat", &[]);
    let _layers = ["0", "1", "2"].map(|layer| mount(layer, &["--layer", layer]));
    let layer = seen(&sandbox.path("1"), false);
    let gone = &layer[Path::new("gone")];
    let sub = &layer[Path::new("d/sub")];
    assert!(!layer.contains_key(Path::new("d/sub/none/none")));
    assert_eq!((gone.mode, gone.device, gone.owner), (0o020_000, 0, (0, 0)));
    assert!(sub.xattrs.contains(&(b"trusted.overlay.opaque".to_vec(), b"y".to_vec())), "{sub:?}");
    std::fs::create_dir(sandbox.path("merged")).unwrap();
    let lower =
        ["2", "1", "0"].map(|layer| sandbox.path(layer).to_str().unwrap().to_owned()).join(":");
    let options = OsString::from(format!("lowerdir={lower}"));
    let merged = sandbox.path("merged");
    system(
        "mount",
        &[
            "-t".as_ref(),
            "overlay".as_ref(),
            "none".as_ref(),
            "-o".as_ref(),
            &options,
            merged.as_ref(),
        ],
    );
    let overlay = without_counts(&merged);
    let flat = without_counts(&sandbox.path("flat"));
    unmount(&merged);
    assert_same(&overlay, &flat);
    assert!(!flat.contains_key(Path::new("again/old")) && flat.contains_key(Path::new("turned/y")));
}
