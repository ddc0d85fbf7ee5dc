//! `ociseek ls` and `ociseek cat`: their output, and how little they fetch.

use ociseek_testkit::image::{Image, config, image_manifest};
use ociseek_testkit::sandbox;
use ociseek_testkit::servers;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use insta::assert_snapshot;
use ociseek_format::digest::Digest;
use ociseek_testkit::sandbox::{
    GZIP, Layout, OCI_CONFIG, OCI_MANIFEST, PLAIN, Sandbox, ZSTD, gzip, index,
};
use ociseek_testkit::tarball::{Block, end, entry, file, padded, pax};
use serde_json::json;

/// An image with these tars in the layout `img` under the tag `v1`.
fn image(sandbox: &Sandbox, layers: &[(&'static str, Vec<u8>, Vec<u8>)]) {
    let tars: Vec<_> = layers.iter().map(|(_, tar, _)| tar.clone()).collect();
    let layers = layers.iter().map(|(kind, _, blob)| (*kind, blob.clone()));
    Image::new(&config(&tars), layers).write(&sandbox.path("img"));
}

/// Three layers with all kinds of entries that a tar can have.
fn motley(sandbox: &Sandbox) {
    let header = |name: &str, flag, mode, size: usize| Block {
        name: name.into(),
        flag,
        mode,
        size: size as i64,
        ..Block::default()
    };
    let bottom = [
        header("etc/", b'5', 0o755, 0).bytes(),
        file("etc/os-release", b"NAME=test\n"),
        file("etc/gone", b"x"),
        header("bin/", b'5', 0o755, 0).bytes(),
        [header("bin/su", b'0', 0o4755, 3).bytes(), padded(b"su\n")].concat(),
        // containerd gives the file the mode in the link's entry.
        Block { link: b"bin/su".to_vec(), ..header("bin/su-again", b'1', 0o4755, 0) }.bytes(),
        entry(b'2', "bin/sh", "/bin/su"),
        entry(b'2', "bin/nowhere", "missing"),
        entry(b'2', "loop", "loop"),
        entry(b'2', "out", "../../../etc/os-release"),
        entry(b'6', "fifo", ""),
        end(),
    ]
    .concat();
    let middle = [
        file("etc/.wh.gone", b""),
        pax(b'x', &[("SCHILY.xattr.user.note", b"\xff\x00"), ("mtime", b"1700000000.25")]),
        file("etc/with-xattr", b"0123456789"),
        [
            Block { name: b"odd-\xff\n".to_vec(), size: 2, ..Block::default() }.bytes(),
            padded(b"y\n"),
        ]
        .concat(),
        end(),
    ]
    .concat();
    let top = [file("zstd file", b"from a zstd layer\n"), end()].concat();
    let compressed = zstd::encode_all(&top[..], 3).unwrap();
    image(
        sandbox,
        &[
            (GZIP, bottom.clone(), gzip(&bottom)),
            (PLAIN, middle.clone(), middle),
            (ZSTD, top, compressed),
        ],
    );
    sandbox.run(&index(&["--quiet", "oci:img:v1"]));
}

#[test]
fn ls_lists_files_in_text_and_json() {
    let sandbox = Sandbox::new();
    motley(&sandbox);
    assert_snapshot!(sandbox.run(&["ls", "oci:img:v1", "etc"]), @r#"
    os-release
    with-xattr
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "-l", "oci:img:v1", "/bin"]), @r#"
    lrwxrwxrwx 1 0 0 7 2023-11-14T22:13:20Z nowhere -> missing
    lrwxrwxrwx 1 0 0 7 2023-11-14T22:13:20Z sh -> /bin/su
    -rwsr-xr-x 2 0 0 3 2023-11-14T22:13:20Z su
    -rwsr-xr-x 2 0 0 3 2023-11-14T22:13:20Z su-again
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "-l", "oci:img:v1", "/etc/with-xattr"]), @r#"
    -rw-r--r--+ 1 0 0 10 2023-11-14T22:13:20Z /etc/with-xattr
    --- stderr ---
    --- status 0 ---
    "#);
    // -l shows a link itself. Without it, the link is followed.
    assert_snapshot!(sandbox.run(&["ls", "-l", "oci:img:v1", "out"]), @r#"
    lrwxrwxrwx 1 0 0 23 2023-11-14T22:13:20Z out -> ../../../etc/os-release
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "oci:img:v1", "out"]), @r#"
    out
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "oci:img:v1", "nope/x"]), @r#"
    --- stderr ---
    error: no such file or directory: "/nope"
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "--layer=1", "-l", "oci:img:v1", "etc"]), @r#"
    -rw-r--r--  0 0  0 2023-11-14T22:13:20Z etc/.wh.gone
    -rw-r--r--+ 0 0 10 2023-11-14T22:13:20Z etc/with-xattr
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "--layer=0", "oci:img:v1"]), @r#"
    bin/
    bin/nowhere
    bin/sh
    bin/su
    bin/su-again
    etc/
    etc/gone
    etc/os-release
    fifo
    loop
    out
    --- stderr ---
    --- status 0 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "--layer=3", "oci:img:v1"]), @r#"
    --- stderr ---
    error: no layer 3: the image has 3 layers, counted from 0
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&["ls", "--layer=0", "oci:img:v1", "/nope"]), @r#"
    --- stderr ---
    error: the layer has no entry at or below /nope
    --- status 1 ---
    "#);
}

#[test]
fn names_that_are_not_utf8_are_printed_unchanged() {
    let sandbox = Sandbox::new();
    motley(&sandbox);
    let output = sandbox.command(&["ls", "-R", "oci:img:v1"]).output().unwrap();
    let all: &[u8] = b"/:\nbin\netc\nfifo\nloop\nodd-\xff\n\nout\nzstd file\n\n\
        /bin:\nnowhere\nsh\nsu\nsu-again\n\n/etc:\nos-release\nwith-xattr\n";
    assert_eq!(output.stdout.escape_ascii().to_string(), all.escape_ascii().to_string());
    let listed = sandbox.json(0, &["ls", "-R", "--json", "oci:img:v1"]);
    let entries = listed["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 13);
    let odd = entries.iter().find(|e| e.get("path_b64").is_some()).unwrap();
    assert_eq!(odd["path_b64"], "b2RkLf8K");
    let xattr = entries.iter().find(|e| e["path"] == "etc/with-xattr").unwrap();
    assert_eq!(xattr["xattrs"], json!([{"name": "user.note", "value_b64": "/wA="}]));
    assert_eq!(
        (&xattr["mtime"], &xattr["layer"], &xattr["size"]),
        (&json!("2023-11-14T22:13:20.25Z"), &json!(1), &json!(10))
    );
    let inode = |path: &str| entries.iter().find(|e| e["path"] == path).unwrap()["inode"].clone();
    assert_eq!(inode("bin/su"), inode("bin/su-again"));
    let su = entries.iter().find(|e| e["path"] == "bin/su").unwrap();
    assert_eq!((&su["mode"], &su["nlink"]), (&json!("4755"), &json!(2)));
    let raw = sandbox.json(0, &["ls", "--layer=1", "--json", "oci:img:v1", "etc"]);
    assert_eq!(raw["entries"].as_array().unwrap().len(), 2);
    assert_eq!(raw["entries"][0]["name"], "etc/.wh.gone");
}

#[test]
fn cat_prints_files() {
    let sandbox = Sandbox::new();
    motley(&sandbox);
    // Following links, from every kind of layer.
    assert_snapshot!(sandbox.run(&["cat", "oci:img:v1", "/out", "bin/sh", "zstd file", "etc/with-xattr"]), @r#"
    NAME=test
    su
    from a zstd layer
    0123456789
    --- stderr ---
    --- status 0 ---
    "#);
    // A failure does not prevent the others.
    assert_snapshot!(sandbox.run(&["cat", "oci:img:v1", "etc", "loop", "fifo", "bin/nowhere", "bin/su", "etc/os-release/x"]), @r#"
    su
    --- stderr ---
    error: etc: is a directory, not a file
    error: loop: too many levels of symbolic links: "/loop"
    error: fifo: is a FIFO, not a file
    error: bin/nowhere: no such file or directory: "/bin/missing"
    error: etc/os-release/x: not a directory: "/etc/os-release"
    error: 5 of 6 paths failed
    --- status 1 ---
    "#);
    assert_snapshot!(sandbox.run(&["cat", "oci:img:v1", "etc/gone"]), @r#"
    --- stderr ---
    error: no such file or directory: "/etc/gone"
    --- status 1 ---
    "#);
}

#[test]
fn a_sparse_file_is_read_with_its_holes() {
    let sandbox = Sandbox::new();
    let sparse = [
        pax(
            b'x',
            &[
                ("GNU.sparse.major", b"1"),
                ("GNU.sparse.minor", b"0"),
                ("GNU.sparse.name", b"hole"),
                ("GNU.sparse.realsize", b"1000000"),
            ],
        ),
        file(
            "GNUSparseFile.0/hole",
            &[b"1\n999990\n3\n".to_vec(), vec![0; 501], b"abc".to_vec()].concat(),
        ),
    ];
    let tar = [&sparse.concat()[..], &file("whole", b"whole\n"), &end()].concat();
    image(&sandbox, &[(GZIP, tar.clone(), gzip(&tar))]);
    // From the layer, and from the cache.
    for _ in 0..2 {
        let listed = sandbox.json(0, &["ls", "--json", "oci:img:v1"]);
        let hole = listed["entries"]
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["path"] == "hole")
            .unwrap();
        assert_eq!((&hole["type"], &hole["size"]), (&json!("reg"), &json!(1_000_000)));
        let output = sandbox.command(&["cat", "oci:img:v1", "hole", "whole"]).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let expected = [&vec![0; 999_990][..], b"abc", &[0; 7], b"whole\n"].concat();
        assert!(output.stdout == expected, "{} bytes", output.stdout.len());
    }
}

#[test]
fn reading_stops_when_the_pipe_is_closed() {
    let sandbox = Sandbox::new();
    motley(&sandbox);
    let mut child = sandbox
        .command(&["cat", "oci:img:v1", "etc/os-release"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn damaged_layers_never_return_wrong_bytes() {
    let sandbox = Sandbox::new();
    motley(&sandbox);
    let manifest = sandbox.doctor("oci:img:v1");
    let layer =
        manifest["manifests"][0]["layers"][0]["digest"].as_str().unwrap().replace("sha256:", "");
    let path = sandbox.path("img/blobs/sha256").join(layer);
    let mut blob = std::fs::read(&path).unwrap();
    let at = blob.windows(9).position(|window| window == b"NAME=test").unwrap();
    blob[at] = b'X';
    std::fs::write(&path, blob).unwrap();
    let output = sandbox.command(&["cat", "oci:img:v1", "etc/os-release"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{errors}");
    assert!(errors.contains("span 0"), "{errors}");
}

#[test]
fn a_layer_with_a_lost_ztoc_is_read() {
    let sandbox = Sandbox::new();
    motley(&sandbox);
    let inspected = sandbox.doctor("oci:img:v1");
    let ztoc = inspected["manifests"][0]["layers"][0]["ztoc"]["digest"]
        .as_str()
        .unwrap()
        .replace("sha256:", "");
    std::fs::remove_file(sandbox.path("img/blobs/sha256").join(ztoc)).unwrap();
    for args in [
        &["cat", "oci:img:v1", "etc/os-release"][..],
        &["ls", "--layer=0", "oci:img:v1", "etc/os-release"],
    ] {
        let output = sandbox.command(args).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{errors}");
        assert!(
            errors.starts_with("warning: reading layer ") && errors.contains("without its ztoc"),
            "{errors}"
        );
    }
}

/// Passes bytes to a server, and counts the bytes of the responses.
struct Meter {
    host: String,
    bytes: Arc<AtomicU64>,
}

impl Meter {
    fn before(server: &str) -> Meter {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let bytes = Arc::new(AtomicU64::new(0));
        let server = server.to_owned();
        let counter = Arc::clone(&bytes);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(upstream) = TcpStream::connect(&server) else { return };
                let up = (client.try_clone().unwrap(), upstream.try_clone().unwrap());
                let down = (upstream, client);
                std::thread::spawn(move || pass(up, &AtomicU64::new(0)));
                let counter = Arc::clone(&counter);
                std::thread::spawn(move || pass(down, &counter));
            }
        });
        Meter { host, bytes }
    }

    /// The number of bytes since the last call.
    fn read(&self) -> u64 {
        self.bytes.swap(0, Ordering::SeqCst)
    }
}

fn pass((mut from, mut to): (TcpStream, TcpStream), counter: &AtomicU64) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        counter.fetch_add(read as u64, Ordering::SeqCst);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

#[test]
fn little_is_fetched_of_a_large_layer() {
    let (Some(server), Some(crane)) =
        (servers::Server::olareg(|_, _| Vec::new()), servers::tool("crane"))
    else {
        return;
    };
    let sandbox = Sandbox::new();
    // 64 MiB that do not compress, with small files in between.
    let mut tar = Vec::new();
    let mut state = 1u64;
    for number in 0..16 {
        let large: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .take(4 << 20)
        .collect();
        tar.extend(file(&format!("large/{number}"), &large));
        tar.extend(file(&format!("small/{number}"), format!("content {number}\n").as_bytes()));
    }
    tar.extend(end());
    let blob = gzip(&tar);
    let size = blob.len() as u64;
    image(&sandbox, &[(GZIP, tar.clone(), blob)]);
    let name = format!("{}/app:v1", server.host);
    servers::run(&crane, &["push", sandbox.path("img").to_str().unwrap(), &name]);
    sandbox.run(&["index", "--quiet", "--no-cache", "--span-size=1MiB", &name]);
    let inspected = sandbox.doctor(&name);
    let ztoc = inspected["manifests"][0]["coverage"]["ztoc_bytes"].as_u64().unwrap();

    let meter = Meter::before(&server.host);
    let name = format!("{}/app:v1", meter.host);
    let cat = |more: &[&str], path: &str| {
        let output = sandbox
            .command(&[&["cat", "--stats"], more, &[&name, path]].concat())
            .output()
            .unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{errors}");
        let fetched: u64 = errors
            .strip_prefix("fetched ")
            .and_then(|e| e.split(' ').next())
            .unwrap()
            .parse()
            .unwrap();
        assert!(errors.contains(&format!(" bytes of {size} ")), "{errors}");
        (output.stdout, fetched, meter.read())
    };
    let documents = 64 << 10;
    let (content, fetched, came) = cat(&["--no-cache"], "small/7");
    assert_eq!(content, b"content 7\n");
    // A span has 1 MiB plus the rest of its last block.
    assert!((1..=2 * ((1 << 20) + (64 << 10))).contains(&fetched), "{fetched}");
    assert!(
        came <= ztoc + fetched + documents,
        "{came} bytes came for {ztoc} of the ztoc and {fetched} of the layer"
    );
    // Reading a whole file fetches its length, and the spans at both ends.
    let (content, fetched, _) = cat(&["--no-cache"], "large/3");
    assert_eq!(Digest::sha256(&content), Digest::sha256(tar_file(&tar, "large/3")));
    assert!(fetched <= (4 << 20) + 3 * (1 << 20), "{fetched}");
    // Listing fetches nothing of the layer.
    let output = sandbox.command(&["ls", "--no-cache", "-lR", &name]).output().unwrap();
    assert!(output.status.success());
    let came = meter.read();
    assert!(came <= ztoc + documents, "{came}");
    // The next read finds cached spans.
    cat(&[], "small/7");
    let (content, fetched, came) = cat(&[], "small/7");
    assert_eq!((content, fetched), (b"content 7\n".to_vec(), 0));
    assert!(came <= documents, "{came}");
}

fn tar_file<'a>(tar: &'a [u8], name: &str) -> &'a [u8] {
    let at = tar
        .chunks(512)
        .position(|block| block.starts_with(format!("{name}\0").as_bytes()))
        .unwrap()
        * 512
        + 512;
    &tar[at..at + (4 << 20)]
}

#[test]
fn the_platform_of_this_machine_is_read() {
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        _ => return servers::skip("the name of this machine's architecture is not known here"),
    };
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let manifests = ["s390x", here].map(|architecture| {
        let tar = [file("which", architecture.as_bytes()), end()].concat();
        let rootfs = json!({"type": "layers", "diff_ids": [Digest::sha256(&tar)]});
        let config = json!({"os": "linux", "architecture": architecture, "rootfs": rootfs});
        let config = layout.blob(OCI_CONFIG, config.to_string().as_bytes());
        let layers = [layout.blob(PLAIN, &tar)];
        let manifest = image_manifest(&config, &layers);
        sandbox::for_platform(
            layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes()),
            architecture,
        )
    });
    let index = layout.image_index(&manifests);
    layout.tag(index, "v1");
    let cat = |more: &[&str]| {
        let output =
            sandbox.command(&[&["cat", "oci:img:v1", "which"], more].concat()).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert_eq!(cat(&[]), here);
    assert_eq!(cat(&["--platform=linux/s390x"]), "s390x");
    let other = cat(&["--platform=linux/riscv64"]);
    assert!(other.contains(&format!("it has linux/{here}, linux/s390x")), "{other}");
}
