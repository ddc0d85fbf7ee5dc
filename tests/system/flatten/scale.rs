//! Layers designed to be slow or large: time and memory stay proportional, and nothing is
//! recursive.

use std::time::Duration;

use ociseek_format::offset::Uncompressed;
use ociseek_format::tar::{PaxRecord, PaxText};
use ociseek_format::time::Time;
use ociseek_format::tree::{NodeKind, Tree, TreeFault};
use ociseek_format::ztoc::{FileKind, FileMetadata};

/// Many times the normal processor time. Anything that is not linear takes far longer.
const PATIENCE: Duration = Duration::from_secs(60);

fn of(kind: FileKind, name: impl Into<Vec<u8>>) -> FileMetadata {
    FileMetadata {
        name: name.into().into(),
        kind,
        offset: Uncompressed(512),
        mode: 0o644,
        mtime: Some(Time { seconds: 1_600_000_000, nanos: 0 }),
        ..FileMetadata::default()
    }
}

fn link(kind: FileKind, name: String, target: impl Into<Vec<u8>>) -> FileMetadata {
    FileMetadata { linkname: target.into().into(), ..of(kind, name) }
}

fn flatten(layers: &[Vec<FileMetadata>]) -> Result<Tree, TreeFault> {
    let before = processor_time();
    let tree = Tree::flatten(layers.iter().map(|layer| &layer[..])).map_err(|error| error.fault);
    let taken = processor_time() - before;
    assert!(taken < PATIENCE, "{taken:?}");
    tree
}

/// The processor time of this thread, which other programs on a busy machine do not lengthen.
fn processor_time() -> Duration {
    let stated = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    let nanoseconds = stated.split(' ').next().expect("the first number");
    Duration::from_nanos(nanoseconds.parse().expect("a number"))
}

#[test]
fn a_million_entries() {
    let files = |n: usize| of(FileKind::Regular, format!("d{}/e{}/f{n}", n % 1000, n % 7));
    let tree = flatten(&[(0..1_000_000).map(files).collect()]).unwrap();
    assert_eq!(tree.len(), 1_000_000 + 7000 + 1000 + 1);
    let one = tree.resolve(b"/d17/e3/f2017", false);
    assert!(one.is_err());
    let id = tree.resolve(b"/d17/e1/f2017", false).unwrap();
    assert_eq!(tree.path(id), b"d17/e1/f2017");
    assert_eq!(tree.node(Tree::ROOT).nlink, 1002);
}

#[test]
fn a_directory_of_a_million_and_its_whiteout() {
    let mut layers =
        vec![(0..1_000_000).map(|n| of(FileKind::Regular, format!("d/{n}"))).collect::<Vec<_>>()];
    let tree = flatten(&layers).unwrap();
    let directory = tree.child(Tree::ROOT, b"d").unwrap();
    // Continuing from any position takes constant time, or this would take far too long.
    let last = (0..1000).map(|n| tree.children(directory).nth(n * 999).unwrap().1).max().unwrap();
    assert!(matches!(tree.node(last).kind, NodeKind::File(_)));
    assert_eq!(tree.children(directory).len(), 1_000_000);
    layers.push(vec![of(FileKind::Regular, ".wh.d")]);
    assert_eq!(flatten(&layers).unwrap().len(), 1);
}

#[test]
fn one_name_repeated_many_times() {
    let mut layer: Vec<_> = (0..50_000).map(|_| of(FileKind::Regular, "a/b")).collect();
    layer.extend((0..50_000).map(|n| of([FileKind::Regular, FileKind::Directory][n % 2], "c")));
    layer.push(of(FileKind::Directory, "c"));
    // A directory of 1,000 files that is removed again and again. It is empty from the second time
    // on.
    layer.extend((0..1000).map(|n| of(FileKind::Regular, format!("d/{n}"))));
    layer.extend((0..100_000).map(|n| of(FileKind::Regular, ["d/.wh.e", ".wh.d"][n % 2])));
    assert_eq!(flatten(&[layer]).unwrap().len(), 4);
}

#[test]
fn deep_names() {
    let deep = |parts: usize| of(FileKind::Regular, "x/".repeat(parts) + "f");
    assert_eq!(flatten(&[vec![deep(500_000)]]).unwrap_err(), TreeFault::PathTooLong);
    let tree = flatten(&[vec![deep(2000)]]).unwrap();
    assert_eq!(tree.len(), 2002);
    assert!(tree.resolve(("x/".repeat(2000) + "f").as_bytes(), false).is_ok());
    // Names that create a directory for each two of their bytes.
    let layer: Vec<_> =
        (0..1000).map(|n| of(FileKind::Regular, format!("{n}/{}", "x/".repeat(2000)))).collect();
    assert!(matches!(flatten(&[layer]).unwrap_err(), TreeFault::TooManyImplied(_)));
}

#[test]
fn chains_of_hard_links() {
    let mut layer = vec![of(FileKind::Regular, "h0")];
    layer.extend(
        (1..50_000).map(|n| link(FileKind::HardLink, format!("h{n}"), format!("h{}", n - 1))),
    );
    let tree = flatten(&[layer]).unwrap();
    assert_eq!(tree.len(), 2);
    assert_eq!(tree.node(tree.resolve(b"h49999", false).unwrap()).nlink, 50_000);
}

#[test]
fn symbolic_link_loops() {
    // Each link is a long path through the others, and each of many names goes through all of them.
    let detour = "d/../".repeat(400);
    let mut layer = vec![of(FileKind::Directory, "d"), of(FileKind::Directory, "c200")];
    layer.extend(
        (0..200).map(|n| link(FileKind::Symlink, format!("c{n}"), format!("{detour}c{}", n + 1))),
    );
    layer.extend((0..100_000).map(|n| of(FileKind::Regular, format!("c0/{n}"))));
    assert_eq!(flatten(&[layer]).unwrap_err(), TreeFault::TooMuchWork);
    // As in real images: every file is below a link.
    let mut layer =
        vec![of(FileKind::Directory, "usr/lib"), link(FileKind::Symlink, "lib".into(), "usr/lib")];
    layer.extend((0..200_000).map(|n| of(FileKind::Regular, format!("lib/x86_64/{n}"))));
    assert_eq!(flatten(&[layer]).unwrap().len(), 200_000 + 5);
}

#[test]
fn opaque_markers_in_nested_directories() {
    // Every marker, the deepest first, examines everything below it.
    let mut layer: Vec<_> = (1..1500).map(|n| of(FileKind::Directory, "x/".repeat(n))).collect();
    layer.push(link(FileKind::Symlink, "s".into(), "x/".repeat(1499)));
    layer.extend((0..200_000).map(|n| of(FileKind::Regular, format!("s/{n}"))));
    layer.extend((1..1500).rev().map(|n| of(FileKind::Regular, "x/".repeat(n) + ".wh..wh..opq")));
    let _ = flatten(&[layer]);
}

#[test]
fn more_than_four_gigabytes_and_many_attributes() {
    let mut big = of(FileKind::Regular, "big");
    (big.offset, big.size) = (Uncompressed(1 << 40), (1 << 40) + 1);
    big.pax = (0..20_000)
        .map(|n| PaxRecord {
            key: format!("SCHILY.xattr.user.{n:05}").as_bytes().into(),
            value: PaxText::default(),
        })
        .collect();
    let tree = flatten(&[vec![], vec![big]]).unwrap();
    let id = tree.child(Tree::ROOT, b"big").unwrap();
    let node = tree.node(id);
    let NodeKind::File(extent) = node.kind else { panic!("{node:?}") };
    assert_eq!(
        (extent.layer.0, extent.offset, extent.size),
        (1, Uncompressed(1 << 40), (1 << 40) + 1)
    );
    assert_eq!(tree.xattrs(id).len(), 20_000);
    assert!(tree.xattrs(id).is_sorted());
}

#[test]
fn paths_are_resolved_inside_the_tree() {
    let layer = vec![
        of(FileKind::Directory, "usr/bin"),
        of(FileKind::Regular, "usr/bin/sh"),
        link(FileKind::Symlink, "bin".into(), "usr/bin"),
        link(FileKind::Symlink, "abs".into(), "/bin/sh"),
        link(FileKind::Symlink, "out".into(), "../../../usr"),
        link(FileKind::Symlink, "loop".into(), "loop"),
        link(FileKind::Symlink, "nowhere".into(), "gone/x"),
        link(FileKind::Symlink, "usr/up".into(), ".."),
    ];
    let tree = flatten(&[layer]).unwrap();
    let sh = tree.resolve(b"usr/bin/sh", false).unwrap();
    for path in [
        "/bin/sh",
        "abs",
        "out/bin/sh",
        "//usr/./bin/../bin/sh",
        "/../../bin/sh",
        "usr/up/abs",
        "out/up/abs",
    ] {
        assert_eq!(tree.resolve(path.as_bytes(), true), Ok(sh), "{path}");
    }
    assert_ne!(tree.resolve(b"abs", false), Ok(sh));
    assert_eq!(tree.resolve(b"", true), Ok(Tree::ROOT));
    assert_eq!(tree.resolve(b"bin/", false), tree.resolve(b"usr/bin", true));
    let error = |path: &str| tree.resolve(path.as_bytes(), true).unwrap_err().to_string();
    assert_eq!(error("usr/none/x"), "no such file or directory: \"/usr/none\"");
    assert_eq!(error("nowhere"), "no such file or directory: \"/gone\"");
    assert_eq!(error("abs/x"), "not a directory: \"/usr/bin/sh\"");
    assert_eq!(error("abs/"), "not a directory: \"/usr/bin/sh\"");
    assert_eq!(error("loop"), "too many levels of symbolic links: \"/loop\"");
    assert_eq!(error(&"x/".repeat(3000)), "the path is longer than 4095 bytes");
}

#[test]
fn truncated_owners_are_reported() {
    let mut file = of(FileKind::Regular, "f");
    file.pax = [PaxRecord { key: (*b"uid").into(), value: (*b"4294967296").into() }].into();
    let tree = flatten(&[vec![file.clone()]]).unwrap();
    assert_eq!(
        tree.warnings(),
        ["layer 0: \"f\" has an owner ID wider than 32 bits, truncated to 0:0"]
    );
    let tree = flatten(&[vec![file; 1000]]).unwrap();
    assert_eq!(tree.warnings().len(), 21);
    assert_eq!(tree.warnings()[20], "... and 980 more warnings about the layers' entries");
}
