//! Stacks of layers: named ones for each rule of flattening, and any number of random ones.

use super::entry::{
    Layer, device, dir, fifo, file, global, hard_link, opaque, sparse, symlink, whiteout,
};

pub struct Stack {
    pub name: String,
    /// The lowest layer first.
    pub layers: Vec<Layer>,
}

const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A lower layer with various types of files.
fn base() -> Layer {
    vec![
        dir("d/"),
        file("d/f", "lower f"),
        file("d/g", "lower g"),
        dir("d/sub/"),
        file("d/sub/deep", "lower deep"),
        file("top", "lower top"),
        symlink("to-d", "d"),
        symlink("to-abs", "/d/sub"),
        hard_link("top-link", "top"),
    ]
}

/// The named stacks.
pub fn named() -> Vec<Stack> {
    let mut stacks = Vec::new();
    let mut add = |name: &str, layers: Vec<Layer>| stacks.push(Stack { name: name.into(), layers });
    let mut over = |name: &str, layer: Layer| add(name, vec![base(), layer]);

    // Neighbours in a directory, by other spellings of its name.
    let spelled = [
        "d/x", "d/y", "d/./z", "./d/y", "d//x", "d/", "d/.", "d/..", "d/../d/x", "/d/x", "d/x/",
        "d",
    ];
    for one in spelled {
        for other in spelled {
            over(
                &format!("{one}, then {other}"),
                vec![dir("d/"), file(one, "one"), file(other, "other")],
            );
            over(
                &format!("d/x, then {one} and {other}"),
                vec![file("d/x", "x"), file(one, "1"), file(other, "2")],
            );
        }
    }

    // Whiteouts.
    over("whiteout of a file", vec![whiteout("d/f")]);
    over("whiteout of a directory", vec![whiteout("d/sub")]);
    over("whiteout of a symlink", vec![whiteout("to-d")]);
    over("whiteout of one hard link", vec![whiteout("top")]);
    over("whiteout of nothing", vec![whiteout("d/none"), whiteout("none/none")]);
    over("whiteout twice", vec![whiteout("d/f"), whiteout("d/f")]);
    over("whiteout, then the file", vec![whiteout("d/f"), file("d/f", "new")]);
    over("the file, then its whiteout", vec![file("d/f", "new"), whiteout("d/f")]);
    over("whiteout of a directory, then a child", vec![whiteout("d"), file("d/new", "new")]);
    over("a child, then the whiteout of its directory", vec![file("d/new", "new"), whiteout("d")]);
    over("a directory, then its whiteout", vec![dir("d/"), whiteout("d")]);
    over("a new directory, then its whiteout", vec![dir("e/"), file("e/x", "x"), whiteout("e")]);
    over("whiteout below a symlink", vec![whiteout("to-d/f")]);
    over("whiteout below an absolute symlink", vec![whiteout("to-abs/deep")]);
    over("whiteout as a directory", vec![dir("d/.wh.f/")]);
    over("whiteout as a directory with a child", vec![dir("d/.wh.f/"), file("d/.wh.f/x", "x")]);
    over("a file below a whiteout's name", vec![file("d/.wh.f/x", "x")]);
    over("whiteout with content", vec![file("d/.wh.f", "content")]);
    over("whiteout as a symlink", vec![symlink("d/.wh.f", "x")]);
    over("whiteout as a hard link to nothing", vec![hard_link("d/.wh.f", "none")]);
    over("whiteout with a long name", vec![file(format!("d/.wh.{}", "x".repeat(251)), "")]);
    over("whiteout with a name too long", vec![file(format!("d/.wh.{}", "x".repeat(256)), "")]);
    over("whiteout without a name", vec![file("d/.wh.", "")]);
    over("whiteout of dot", vec![file("d/.wh..", "")]);
    over("whiteout of dot dot", vec![file("d/.wh...", "")]);
    over("whiteout of no name at the root", vec![file(".wh.", "")]);
    over("whiteout of dot at the root", vec![file(".wh..", "")]);
    over("whiteout of three dots", vec![file("d/.wh....", "")]);
    over(
        "AUFS metadata",
        vec![file(".wh..wh.aufs", ""), dir(".wh..wh.plnk/"), file("d/.wh..wh.orph", "")],
    );
    over("a file below AUFS metadata", vec![dir(".wh..wh.plnk/"), file(".wh..wh.plnk/1.2", "x")]);
    over("whiteout makes its parents", vec![whiteout("n1/n2/x")]);
    over("whiteout below a file", vec![whiteout("top/x")]);

    // Opaque directories.
    over("opaque first", vec![dir("d/"), opaque("d"), file("d/new", "new")]);
    over("opaque last", vec![dir("d/"), file("d/new", "new"), opaque("d")]);
    over(
        "opaque in the middle",
        vec![dir("d/"), file("d/n1", "1"), opaque("d"), file("d/n2", "2")],
    );
    over("opaque twice", vec![opaque("d"), file("d/sub/n1", "1"), opaque("d")]);
    over("opaque alone", vec![opaque("d")]);
    over("opaque root", vec![opaque(""), file("new", "new")]);
    over("opaque root last", vec![dir("d/"), file("d/new", "new"), file("new", "new"), opaque("")]);
    over("opaque of nothing", vec![opaque("none")]);
    over("opaque below a symlink", vec![opaque("to-d")]);
    over("opaque of a file", vec![opaque("top")]);
    over("opaque as a directory", vec![dir("d/.wh..wh..opq/"), file("d/x", "x")]);
    over(
        "opaque above a directory written before",
        vec![dir("d/sub/"), file("d/sub/new", "n"), opaque("d")],
    );
    over("opaque above an implied directory", vec![file("d/sub/new", "n"), opaque("d")]);
    over("opaque above a new implied directory", vec![file("d/i/new", "n"), opaque("d")]);
    over("opaque root above what is implied", vec![file("d/new", "n"), opaque("")]);
    over(
        "opaque above a path written, removed and implied",
        vec![dir("d/p/"), whiteout("d/p"), file("d/p/new", "n"), opaque("d")],
    );
    over("opaque and a hard link from below it", vec![hard_link("kept", "d/f"), opaque("d")]);
    over("opaque, then a hard link to what it hid", vec![opaque("d"), hard_link("kept", "d/f")]);
    add(
        "opaque in each layer",
        vec![base(), vec![opaque("d"), file("d/1", "1")], vec![opaque("d"), file("d/2", "2")]],
    );

    let mut over = |name: &str, layer: Layer| add(name, vec![base(), layer]);
    // Entries that replace others.
    over("file over file", vec![file("top", "new")]);
    over("file over a hard link", vec![file("top-link", "new")]);
    over("file over directory", vec![file("d", "now a file")]);
    over("file over directory, then a child", vec![file("d", "now a file"), file("d/x", "x")]);
    over(
        "file, directory, file",
        vec![file("x", "1"), dir("x/"), file("x/y", "y"), file("x", "2")],
    );
    over(
        "directory, file, directory",
        vec![dir("x/"), file("x/y", "y"), file("x", "2"), dir("x/")],
    );
    over("directory over file", vec![dir("top/"), file("top/x", "x")]);
    over(
        "directory over directory",
        vec![dir("d/").mode(0o1777).owner(7, 8).mtime(1_500_000_000, 5)],
    );
    over("directory over symlink", vec![dir("to-d/"), file("to-d/x", "x")]);
    over("symlink over directory", vec![symlink("d", "elsewhere"), file("d/x", "x")]);
    over("symlink over file, then a child", vec![symlink("top", "d"), file("top/x", "x")]);
    over(
        "a time that goes to a file",
        vec![dir("x/").mtime(1_400_000_000, 0), file("x", "x").mtime(1_450_000_000, 0)],
    );
    over(
        "a time that goes through a symlink",
        vec![dir("x/").mtime(1_400_000_000, 0), symlink("x", "top")],
    );
    over("a time that goes nowhere", vec![dir("x/"), symlink("x", "none")]);
    over("a time and a loop", vec![dir("x/"), symlink("x", "x")]);
    over("file twice", vec![file("d/n", "1"), file("d/n", "2")]);
    over("directory twice", vec![dir("n/").mode(0o700), file("n/x", "x"), dir("n/").mode(0o711)]);
    over("a file with a slash behind its name", vec![file("n/", "n")]);
    over("implied directories", vec![file("i1/i2/i3/f", "f")]);
    over("an implied directory gets an entry", vec![file("i/f", "f"), dir("i/").mode(0o701)]);
    over(
        "setgid directory",
        vec![dir("s/").mode(0o2775).owner(1, 50), file("s/i/f", "f"), file("s/f", "f")],
    );
    over("a child of a lower directory", vec![file("d/new", "n")]);
    over("below a file", vec![file("top/x", "x")]);
    over("deep below a file", vec![file("top/x/y", "x")]);
    over("below a fifo", vec![fifo("p"), file("p/x", "x")]);

    // Names.
    over(
        "dot names",
        vec![dir("./"), file("./a", "a"), file("././b/../c", "c"), file("/abs", "abs")],
    );
    over(
        "the root",
        vec![dir("/").mode(0o700), dir(".").mode(0o700), dir("..").mode(0o700), file("", "x")],
    );
    over(
        "names that lead out",
        vec![file("../x", "x"), file("../../d/y", "y"), file("/../../z", "z")],
    );
    over("names with dot dot inside", vec![file("d/../e/x", "x"), file("to-d/../y", "y")]);
    over("double slashes", vec![file("d//x", "x"), file("//y", "y"), dir("d//e//")]);
    over(
        "names that are not UTF-8",
        vec![file(b"\xff\xfe", "x"), dir(b"\x80/"), file(b"\x80/\xe9", "y")],
    );
    over(
        "control characters",
        vec![file("a\nb\tc\x1b", "x"), file(" ", "space"), file("\u{202e}x", "rtl")],
    );
    over(
        "255 bytes",
        vec![file("x".repeat(255), "x"), file(format!("{}/y", "z".repeat(255)), "y")],
    );
    over("256 bytes", vec![file("x".repeat(256), "x")]);
    over("256 bytes in the middle", vec![file(format!("d/{}/y", "z".repeat(256)), "y")]);
    over("a path of 3,900 bytes", vec![file("p/".repeat(1950), "x")]);
    over("a path of 4,200 bytes", vec![file("p/".repeat(2100), "x")]);

    // Global headers: what is under their name is removed.
    over("a global header of git", vec![global("pax_global_header", ""), file("x", "x")]);
    over("a global header that names a file", vec![global("d/f", ""), file("x", "x")]);
    over("a global header that names a directory", vec![file("x", "x"), global("d/", "")]);
    over("a global header with a path", vec![global("pax_global_header", "d/f"), file("x", "x")]);
    over("a global header in a new directory", vec![global("n/e/w", ""), file("x", "x")]);
    over("a global header below a file", vec![global("top/x", "")]);
    over("a global header below a symlink", vec![global("to-d/f", "")]);
    over("a global header that is a whiteout", vec![global("d/.wh.f", ""), global(".wh.top", "")]);
    over(
        "a global header that is an opaque marker",
        vec![global("d/.wh..wh..opq", ""), file("d/x", "x")],
    );
    over("a global header that names the root", vec![global("./", ""), file("x", "x")]);
    over("a global header, then its file", vec![global("d/f", ""), file("d/f", "new")]);
    over("a file, then its global header", vec![file("d/f", "new"), global("d/f", "")]);

    // Sparse files.
    over("a sparse file", vec![sparse("s", 5000, "middle", 100_000), sparse("d/f", 0, "start", 6)]);
    over(
        "sparse files without holes and without data",
        vec![sparse("s", 0, "all", 3), sparse("t", 7, "", 9)],
    );
    over("a hard link to a sparse file", vec![sparse("s", 1, "x", 3), hard_link("t", "s")]);
    over(
        "a sparse file with attributes",
        vec![sparse("s", 1, "x", 3).xattr("user.k", "v").mode(0o4755)],
    );

    // Symbolic links on the way.
    over("below a symlink", vec![file("to-d/x", "x")]);
    over("below an absolute symlink", vec![file("to-abs/x", "x")]);
    over("below a symlink to nothing", vec![symlink("s", "nowhere/at/all"), file("s/x", "x")]);
    over("below a symlink that leads out", vec![symlink("s", "../../../../tmp"), file("s/x", "x")]);
    over("below a symlink to the root", vec![symlink("s", "/"), file("s/x", "x")]);
    over("below a symlink to dot", vec![symlink("s", "."), file("s/x", "x")]);
    over("below a symlink to a file", vec![symlink("s", "top"), file("s/x", "x")]);
    over(
        "a directory removed through a symlink, between its files",
        vec![symlink("s", "."), file("d/x", "x"), whiteout("s/d"), file("d/y", "y")],
    );
    over("below a loop", vec![symlink("s", "t"), symlink("t", "s"), file("s/x", "x")]);
    over("below a link to itself", vec![symlink("s", "s"), file("s/x", "x")]);
    over(
        "below two symlinks",
        vec![symlink("s", "to-d"), symlink("d/t", "sub"), file("s/t/x", "x")],
    );
    over("dot dot behind a symlink", vec![symlink("s", "to-abs/../x"), file("s/y", "y")]);
    over(
        "dot dot in a nested symlink",
        vec![symlink("d/sub/s", "../up"), symlink("q", "to-abs"), file("q/s/y", "y")],
    );
    over(
        "a symlink inside a symlink's directory",
        vec![
            symlink("l1", "m"),
            dir("p/q/"),
            symlink("m", "p/q"),
            symlink("p/q/l2", "../z"),
            file("l1/l2/x", "x"),
        ],
    );
    over(
        "absolute link inside a chain",
        vec![symlink("l1", "m"), symlink("m", "/d"), symlink("d/l2", "sub"), file("l1/l2/x", "x")],
    );
    over("a directory entry on a symlink's child", vec![dir("to-d/sub/").mode(0o711)]);
    over(
        "usr merge",
        vec![
            dir("usr/"),
            dir("usr/lib/"),
            symlink("lib", "usr/lib"),
            file("lib/x.so", "x"),
            symlink("lib/y.so", "x.so"),
            hard_link("lib/z.so", "lib/x.so"),
            hard_link("zz", "usr/lib/x.so"),
        ],
    );
    let chain = |links: usize| -> Layer {
        let mut layer: Layer =
            (0..links).map(|n| symlink(format!("c{n}"), format!("c{}", n + 1))).collect();
        layer.extend([dir(format!("c{links}/")), file("c0/x", "x")]);
        layer
    };
    over("a chain of 30 symlinks", chain(30));
    over("a chain of 255 symlinks", chain(255));
    over("a chain of 256 symlinks", chain(256));
    over("a chain of 257 symlinks", chain(257));

    // Hard links.
    over("a link to a lower file", vec![hard_link("n", "d/f")]);
    over(
        "a link changes the file",
        vec![hard_link("n", "d/f").mode(0o4755).owner(5, 6).mtime(1_234_567_890, 7)],
    );
    over("a link to a symlink", vec![hard_link("n", "to-d")]);
    over("a link through a symlink", vec![hard_link("n", "to-d/f")]);
    over("a link through an absolute symlink", vec![hard_link("n", "to-abs/deep")]);
    over("a link to nothing", vec![hard_link("n", "none")]);
    over("a link to itself", vec![hard_link("n", "n")]);
    over("a link to itself that was there", vec![hard_link("top", "top")]);
    over("a link to what comes later", vec![hard_link("n", "late"), file("late", "x")]);
    over("a link to a directory", vec![hard_link("n", "d")]);
    over("a link to the root", vec![hard_link("n", "/")]);
    over("a link to no name", vec![hard_link("n", "")]);
    over("a link with a slash behind", vec![hard_link("n", "top/")]);
    over("a link with dots", vec![hard_link("n", "./d/../d/./f")]);
    over("a link to dot dot", vec![hard_link("n", "d/..")]);
    over("a link that leads out", vec![hard_link("n", "../../../../d/f")]);
    over("an absolute link", vec![hard_link("n", "/d/f")]);
    over("a link below a file", vec![hard_link("n", "top/x")]);
    over("a link to a whiteout", vec![whiteout("d/f"), hard_link("n", "d/f")]);
    over(
        "a link to a device",
        vec![device(b'3', "c", 1, 3), hard_link("n", "c"), fifo("p"), hard_link("m", "p")],
    );
    over("a link's target replaced", vec![file("a", "old"), hard_link("b", "a"), file("a", "new")]);
    over("a link replaced", vec![file("a", "old"), hard_link("b", "a"), file("b", "new")]);
    over(
        "a link's parent is gone",
        vec![file("x/a", "a"), hard_link("b", "x/a"), file("x", "now a file")],
    );
    over("a link over its own directory", vec![file("x/a", "a"), hard_link("x", "x/a")]);
    let mut links = vec![file("h0", "x")];
    links.extend((1..2000).map(|n| hard_link(format!("h{n}"), format!("h{}", n - 1))));
    over("a chain of 2,000 links", links);

    // Kinds and attributes.
    over(
        "devices",
        vec![
            device(b'3', "null", 1, 3).mode(0o666),
            device(b'4', "sda", 8, 1),
            fifo("pipe").mode(0o622),
            device(b'3', "zero", 0, 0),
            device(b'3', "big", 4095, 1_048_575),
        ],
    );
    over(
        "device numbers that are cut",
        vec![device(b'3', "x", 4097, 1 << 20 | 5), device(b'4', "y", 1 << 20, 1 << 24)],
    );
    over("device numbers past 32 bits", vec![device(b'3', "x", 1 << 32, 0)]);
    over("device numbers on a fifo", vec![device(b'6', "p", 3, 4)]);
    over("device numbers on a fifo past 32 bits", vec![device(b'6', "p", 0, 1 << 33)]);
    over(
        "setuid and its like",
        vec![
            file("su", "x").mode(0o4755),
            file("sg", "x").mode(0o2755),
            dir("st/").mode(0o1777),
            file("all", "x").mode(0o7777),
            file("none", "x").mode(0),
        ],
    );
    over("type bits in the mode", vec![file("x", "x").mode(0o100_644), dir("y/").mode(0o040_755)]);
    over(
        "big ids",
        vec![file("x", "x").owner(4_294_967_294, 3_000_000_000), dir("y/").owner(70_000, 70_000)],
    );
    over(
        "ids of all ones",
        vec![
            file("x", "x").owner(4_294_967_295, 4_294_967_295),
            dir("d/").owner(4_294_967_295, 5),
            dir("s/").mode(0o2755).owner(1, 50),
            file("s/y", "y").owner(4_294_967_295, 4_294_967_295),
        ],
    );
    over("ids past 32 bits", vec![file("x", "x").owner(1 << 32, (1 << 32) + 7)]);
    over(
        "times",
        vec![
            file("ns", "x").mtime(1_600_000_000, 123_456_789),
            file("zero", "x").mtime(0, 0),
            file("past", "x").mtime(-5, 0),
            file("far", "x").mtime(9_223_372_036, 854_775_807),
            file("too far", "x").mtime(9_223_372_036, 854_775_808),
            file("year 3000", "x").mtime(32_503_680_000, 0),
            dir("dir ns/").mtime(1_600_000_000, 1),
            symlink("link ns", "x").mtime(1_600_000_000, 2),
        ],
    );
    over(
        "xattrs",
        vec![
            file("x", "x").xattr("user.k", "v").xattr("user.binary", b"\0\xff\n"),
            file("cap", "x").xattr("security.capability", CAPABILITY),
            dir("y/").xattr("user.dir", "").xattr("user.b", "2"),
            file("other", "x").record("LIBARCHIVE.xattr.user.k", "dmFs").record("comment", "c"),
        ],
    );
    over(
        "xattrs that are passed over",
        vec![
            file("x", "x")
                .xattr("trusted.overlay.opaque", "y")
                .xattr("odd", "v")
                .xattr("unknown.space", "v")
                .xattr("system.unknown", "v")
                .xattr("system.", "v"),
            symlink("s", "x").xattr("user.k", "v"),
            fifo("p").xattr("user.k", "v").xattr("security.x", "v"),
        ],
    );
    for (name, value) in [
        ("user.", "v"),
        ("security.", "v"),
        ("", "v"),
        ("security.capability", "no"),
        ("security.capability", ""),
    ] {
        over(&format!("xattr {name:?} of {value:?}"), vec![file("x", "x").xattr(name, value)]);
    }
    over("xattr of more than 64 KiB", vec![file("x", "x").xattr("user.k", "v".repeat(65_537))]);
    over(
        "xattr with a name too long",
        vec![file("x", "x").xattr(&format!("user.{}", "k".repeat(251)), "v")],
    );
    over(
        "xattr with the longest name",
        vec![file("x", "x").xattr(&format!("user.{}", "k".repeat(250)), "v")],
    );
    over(
        "xattrs merge on a directory",
        vec![
            dir("e/").xattr("user.a", "1").xattr("user.b", "1"),
            dir("e/").xattr("user.b", "2").xattr("user.c", "2"),
        ],
    );
    over(
        "xattrs go with a replaced file",
        vec![file("x", "x").xattr("user.a", "1"), file("x", "y")],
    );
    over(
        "a link takes capabilities away",
        vec![
            file("x", "x").xattr("security.capability", CAPABILITY).xattr("user.k", "v"),
            hard_link("y", "x"),
        ],
    );
    over(
        "a link keeps capabilities that it has",
        vec![
            file("x", "x").xattr("security.capability", CAPABILITY),
            hard_link("y", "x").xattr("security.capability", CAPABILITY).xattr("user.k", "v"),
        ],
    );
    over("a symlink of 4,095 bytes", vec![symlink("s", "x/".repeat(2047) + "x")]);
    over("a symlink of 5,000 bytes", vec![symlink("s", "x/".repeat(2500))]);
    over("a symlink to no name", vec![symlink("s", "")]);

    // Whole stacks.
    add("no layers", Vec::new());
    add("an empty layer", vec![Vec::new()]);
    add(
        "three layers",
        vec![
            base(),
            vec![whiteout("d"), file("top", "2")],
            vec![file("d/f", "3"), hard_link("l", "top")],
        ],
    );
    add(
        "a link across three layers",
        vec![
            vec![file("a", "a")],
            vec![hard_link("b", "a")],
            vec![hard_link("c", "b").mode(0o600), whiteout("a")],
        ],
    );
    add("gone and back", vec![base(), vec![whiteout("d")], vec![dir("d/"), file("d/f", "back")]]);
    add(
        "a symlink from below",
        vec![
            vec![symlink("s", "real")],
            vec![file("s/x", "x")],
            vec![dir("real/"), whiteout("s/x")],
        ],
    );
    add(
        "directory times from below",
        vec![vec![dir("d/").mtime(1_111_111_111, 0)], vec![file("other", "x")]],
    );
    stacks
}

/// Random stacks with few names, so that entries often have the same. The same seed gives the same
/// stacks.
pub fn random(seed: u64, count: usize) -> Vec<Stack> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: usize| -> usize {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % limit
    };
    (0..count)
        .map(|number| {
            // Targets of hard links, most of which exist.
            let mut files = vec!["a".to_owned()];
            let layers = (0..1 + below(4))
                .map(|_| {
                    let entries = (0..1 + below(12)).map(|_| {
                        let mut parts = Vec::new();
                        // Usually the last part of a name determines whether it is a directory.
                        // Otherwise few stacks would be valid.
                        for _ in 0..below(3) {
                            parts.push(["a", "b", "s"][below(7) % 3]);
                        }
                        let directory = parts.join("/");
                        let name = |last: &str| {
                            [&directory[..], last]
                                .iter()
                                .filter(|p| !p.is_empty())
                                .copied()
                                .collect::<Vec<_>>()
                                .join("/")
                        };
                        let file_name = name(["x", "y", "z", "x", "y", "z", "a"][below(7)]);
                        let entry = match below(32) {
                            0..9 => dir(name(["a/", "b/"][below(2)]))
                                .mode([0o755, 0o700, 0o2775][below(3)]),
                            9..18 => file(&file_name, &below(1000).to_string()),
                            18..20 => symlink(
                                name("s"),
                                ["a", "b", "/a", "../b", "a/../b", "b/s"][below(6)],
                            ),
                            20..23 => symlink(&file_name, ["a", "x", "/b/x", "../y"][below(4)]),
                            23 => hard_link(&file_name, &files[below(files.len())]),
                            24..28 => whiteout(&file_name),
                            28 => whiteout(&name(["a", "b", "s"][below(3)])),
                            29 => opaque(&directory),
                            30 => fifo(&file_name),
                            _ => file(format!("../{file_name}"), "out"),
                        };
                        files.push(file_name);
                        let seconds = 1_600_000_000 + below(1000) as i64;
                        entry
                            .mtime(seconds, below(2) as u32)
                            .owner(below(3) as u64, below(3) as u64)
                    });
                    entries.collect()
                })
                .collect();
            Stack { name: format!("random {number} of seed {seed}"), layers }
        })
        .collect()
}
