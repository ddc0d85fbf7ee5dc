//! Hostile ztocs for `ztoc extract`: it must fail or write the layer's content, but never panic,
//! hang, or write outside the output directory.

use ociseek_testkit::sandbox;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::layer::prove::LayerProof;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::{SpanSize, Uncompressed};
use ociseek_format::time::Time;
use ociseek_format::tree::Tree;
use ociseek_format::ztoc::{Checkpoint, Checkpoints, FileKind, FileMetadata, Ztoc, decode, encode};
use ociseek_ops::extract::{ExtractError, ExtractReport, Output, extract};
use ociseek_testkit::layers::{SPAN, gzip, tar, ztoc};

/// Much longer than any case takes.
const PATIENCE: Duration = Duration::from_secs(60);

struct Case {
    name: String,
    ztoc: Vec<u8>,
    /// Whether the extracted bytes may be wrong, because no digest covers windows and the positions
    /// of checkpoints (CATALOGUE d8).
    may_lie: bool,
}

fn list(ztoc: &mut Ztoc) -> &mut Vec<Checkpoint> {
    match &mut ztoc.checkpoints {
        Checkpoints::Gzip { list, .. } => list,
        Checkpoints::Uncompressed { .. } => panic!("the layer is gzip"),
    }
}

/// All cases for a layer with this ztoc.
fn cases(whole: &Ztoc) -> Vec<Case> {
    let mut cases = Vec::new();
    let encoded = encode(whole);
    let mut add = |name: String, ztoc: Vec<u8>, may_lie| cases.push(Case { name, ztoc, may_lie });
    let mut with = |name: String, may_lie, damage: &dyn Fn(&mut Ztoc)| {
        let mut ztoc = whole.clone();
        damage(&mut ztoc);
        add(name, encode(&ztoc), may_lie);
    };
    // d4: sizes.
    for size in [0, 1, 511, whole.compressed_size.0 + 1, 1 << 62, i64::MAX as u64] {
        with(format!("compressed size {size}"), false, &|z| z.compressed_size.0 = size);
        with(format!("uncompressed size {size}"), false, &|z| z.uncompressed_size.0 = size);
    }
    // d5, d6, d7, d8: spans.
    with("no digests".into(), false, &|z| z.span_digests.clear());
    with("a digest too few".into(), false, &|z| z.span_digests.truncate(5));
    with("a digest too many".into(), false, &|z| z.span_digests.push(Digest::sha256(b"")));
    with("no checkpoints".into(), false, &|z| list(z).clear());
    for number in [0, 1, list(&mut whole.clone()).len() - 1] {
        for by in [1, 3, 1000, 1 << 40, 1 << 62] {
            with(format!("checkpoint {number} in + {by}"), true, &|z| {
                list(z)[number].input.0 += by
            });
            with(format!("checkpoint {number} out + {by}"), true, &|z| {
                list(z)[number].output.0 += by
            });
        }
        for bits in [1, 7, 8, 255] {
            with(format!("checkpoint {number} bits {bits}"), true, &|z| {
                list(z)[number].bits = bits
            });
        }
        with(format!("window {number}"), true, &|z| {
            list(z)[number].window.iter_mut().for_each(|b| *b ^= 0x55)
        });
        with(format!("wrong digest {number}"), false, &|z| {
            z.span_digests[number] = Digest::sha256(b"x")
        });
        with(format!("sha512 {number}"), false, &|z| {
            z.span_digests[number] = Digest::of(Algorithm::Sha512, b"x")
        });
        with(format!("checkpoint {number} twice"), false, &|z| {
            let again = list(z)[number].clone();
            list(z).insert(number, again);
            z.span_digests.insert(number, Digest::sha256(b"x"));
        });
    }
    with("checkpoints reversed".into(), false, &|z| list(z).reverse());
    for span_size in [1, 1 << 40, i64::MAX as u64] {
        with(format!("a plain tar in spans of {span_size}"), false, &|z| {
            let size = z.compressed_size.0;
            z.checkpoints =
                Checkpoints::Uncompressed { span_size: SpanSize::new(span_size).unwrap(), size };
            z.span_digests.truncate(1);
        });
    }
    with("a plain tar with its digest".into(), true, &|z| {
        z.checkpoints = Checkpoints::Uncompressed {
            span_size: SpanSize::new(1 << 40).unwrap(),
            size: z.compressed_size.0,
        };
        z.span_digests = vec![Digest::sha256(b"not it")];
    });
    // d9: extents.
    let end = whole.uncompressed_size.0;
    for number in [1, 5, 10] {
        for offset in [0, 1, end - 1, end, end + 1, 1 << 40, i64::MAX as u64 - (1 << 20)] {
            with(format!("offset of entry {number} is {offset}"), true, &|z| {
                z.files[number].offset = Uncompressed(offset)
            });
        }
        for size in [0, 1, 1 << 20, 1 << 40, (i64::MAX as u64) - end] {
            with(format!("size of entry {number} is {size}"), true, &|z| {
                z.files[number].size = size
            });
        }
    }
    with("two files in one place".into(), false, &|z| z.files[2].offset = z.files[1].offset);
    with("all files in one place".into(), false, &|z| {
        z.files.iter_mut().for_each(|f| f.offset = Uncompressed(512))
    });
    with("entries reversed".into(), false, &|z| z.files.reverse());
    with("no entries".into(), false, &|z| z.files.clear());
    for kind in [
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::CharDevice,
        FileKind::Fifo,
        FileKind::HardLink,
    ] {
        with(format!("every entry a {}", kind.name()), false, &|z| {
            z.files.iter_mut().for_each(|f| f.kind = kind)
        });
        with(format!("an entry a {}", kind.name()), false, &|z| z.files[3].kind = kind);
    }
    // d11 and a35: names.
    let names: [&[u8]; 28] = [
        b"",
        b".",
        b"..",
        b"/",
        b"//",
        b"./",
        b"../",
        b"../../../../escaped",
        b"/escaped",
        b"/../../escaped",
        b"a/../../../escaped",
        b"dir/../../escaped",
        b"dir/soft/below",
        b"dir/out/escaped",
        b"dir/out/tmp/escaped",
        b"dir/file1",
        b"dir/file1/below",
        b"dir",
        b"a\0b",
        b"\xff\xfe",
        b"a\nb\x1b[2J",
        b"\xe2\x80\xae",
        b".ociseek-1-1",
        b"...",
        b". .",
        b"~",
        b"-rf",
        b"C:\\x",
    ];
    for name in names {
        with(format!("name {:?}", name.escape_ascii().to_string()), false, &|z| {
            z.files[3].name = name.into()
        });
        with(format!("link {:?}", name.escape_ascii().to_string()), false, &|z| {
            (z.files[3].kind, z.files[3].linkname) = (FileKind::HardLink, name.into());
        });
        with(format!("symlink first {:?}", name.escape_ascii().to_string()), false, &|z| {
            let mut link = z.files[1].clone();
            (link.kind, link.name, link.linkname) =
                (FileKind::Symlink, (*b"dir").into(), name.into());
            link.size = 0;
            z.files.insert(0, link);
        });
    }
    for length in [255, 256, 3000, 4096, 100_000] {
        with(format!("a name of {length} bytes"), false, &|z| {
            z.files[3].name = vec![b'n'; length].into()
        });
        with(format!("a path of {length} bytes"), false, &|z| {
            z.files[3].name = b"p/".repeat(length / 2).into()
        });
        with(format!("a link of {length} bytes"), false, &|z| {
            (z.files[3].kind, z.files[3].linkname) =
                (FileKind::HardLink, vec![b'n'; length].into());
        });
    }
    with("a name of 500,000 parts".into(), false, &|z| {
        z.files[3].name = b"p/".repeat(500_000).into()
    });
    with("a link to itself".into(), false, &|z| {
        (z.files[3].kind, z.files[3].linkname) = (FileKind::HardLink, z.files[3].name.clone());
    });
    with("a circle of links".into(), false, &|z| {
        for (one, other) in [(3, 4), (4, 3)] {
            let name = z.files[other].name.clone();
            (z.files[one].kind, z.files[one].linkname) = (FileKind::HardLink, name);
        }
    });
    with("a circle of symlinks".into(), false, &|z| {
        for (name, target) in [("dir", "s"), ("s", "dir")] {
            let mut link = z.files[1].clone();
            (link.kind, link.size) = (FileKind::Symlink, 0);
            (link.name, link.linkname) = (name.as_bytes().into(), target.as_bytes().into());
            z.files.insert(0, link);
        }
    });
    // Other fields.
    for number in [i64::MIN, -1, i64::MAX] {
        with(format!("mode {number}"), false, &|z| {
            z.files.iter_mut().for_each(|f| f.mode = number)
        });
        with(format!("device {number}"), false, &|z| {
            z.files.iter_mut().for_each(|f| {
                (f.kind, f.devmajor, f.devminor) = (FileKind::CharDevice, number, number)
            });
        });
    }
    for seconds in [-62_167_219_200, -1, 253_402_300_799] {
        with(format!("time {seconds}"), false, &|z| {
            z.files.iter_mut().for_each(|f| f.mtime = Some(Time { seconds, nanos: 999_999_999 }));
        });
    }
    // d2: the buffer itself.
    for cut in (0..40).map(|n| encoded.len() * n / 40) {
        add(format!("cut at {cut}"), encoded[..cut].to_vec(), false);
    }
    let mut state = 1u64;
    for number in 0..200 {
        let mut bytes = encoded.clone();
        for _ in 0..1 + number % 5 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // Windows are most of the bytes, but little is parsed in them. The tables are before
            // and after them.
            let at = (state >> 33) as usize % 20_000;
            let at =
                if number % 2 == 0 { at % bytes.len() } else { bytes.len() - 1 - at % bytes.len() };
            bytes[at] = (state >> 20) as u8;
        }
        add(format!("bytes changed, {number}"), bytes, true);
    }
    cases
}

/// Everything below a directory: paths, with the content of regular files.
fn found(dir: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in std::fs::read_dir(dir)
            .expect("a directory")
            .map(|entry| entry.expect("can be listed").path())
        {
            let kind = entry.symlink_metadata().expect("is there").file_type();
            assert!(kind.is_dir() || kind.is_file(), "{} is a {kind:?}", entry.display());
            if kind.is_dir() {
                open.push(entry.clone());
            }
            let content = kind.is_file().then(|| std::fs::read(&entry).expect("can be read"));
            found.push((entry, content));
        }
    }
    found.sort();
    found
}

/// Extracts if the ztoc is usable at all, and returns the result.
fn run(ztoc: &[u8], layer: &File, out: &Path) -> Option<Result<ExtractReport, ExtractError>> {
    let table = SpanTable::new(Arc::new(decode(ztoc).ok()?)).ok()?;
    let mut output = Output::new(out, false).expect("the directory can be made");
    Some(extract(&table, layer, &mut output, &|| true))
}

#[test]
fn hostile_ztocs_do_no_harm() {
    let tar = tar();
    let blob = gzip(&tar, 6);
    let whole = ztoc(&blob, SPAN);
    let cases = cases(&whole);
    assert!(cases.len() > 400, "{}", cases.len());
    let mut unusable = 0;
    let mut failed = 0;
    let mut extracted = 0;
    for case in &cases {
        let jail = tempfile::tempdir().expect("a directory");
        let layer = jail.path().join("layer");
        let canary = jail.path().join("escaped");
        let out = jail.path().join("a/b/out");
        std::fs::write(&layer, &blob).expect("written");
        std::fs::write(&canary, "canary").expect("written");
        std::fs::create_dir_all(out.parent().expect("has one")).expect("made");
        let started = Instant::now();
        let result = run(&case.ztoc, &File::open(&layer).expect("is there"), &out);
        assert!(started.elapsed() < PATIENCE, "{} took {:?}", case.name, started.elapsed());
        // Nothing outside the output has changed, and the output has no incomplete files.
        let outside: Vec<_> =
            found(jail.path()).into_iter().filter(|(path, _)| !path.starts_with(&out)).collect();
        assert_eq!(outside.len(), 4, "{}: {outside:?}", case.name);
        assert_eq!(std::fs::read(&canary).expect("is there"), b"canary", "{}", case.name);
        let files = if out.is_dir() { found(&out) } else { Vec::new() };
        let contents: Vec<&Vec<u8>> =
            files.iter().filter_map(|(_, content)| content.as_ref()).collect();
        if !case.may_lie {
            let parts: Vec<&FileMetadata> =
                whole.files.iter().filter(|file| file.kind == FileKind::Regular).collect();
            let is_of_the_layer = |content: &[u8]| {
                content.is_empty()
                    || parts.iter().any(|f| {
                        tar[f.offset.0 as usize..(f.offset.0 + f.size) as usize]
                            .starts_with(content)
                    })
            };
            assert!(contents.iter().all(|content| is_of_the_layer(content)), "{}", case.name);
        }
        match result {
            None => unusable += 1,
            Some(Err(error)) => {
                failed += 1;
                assert!(!error.to_string().is_empty());
            }
            Some(Ok(done)) => {
                extracted += 1;
                assert_eq!(done.files + done.hard_links, contents.len() as u64, "{}", case.name);
            }
        }
        // The other readers of a ztoc must cope with it too.
        if let Ok(ztoc) = decode(&case.ztoc) {
            let _ = Tree::flatten([&ztoc.files[..]]);
            let mut proof =
                LayerProof::new(Some(Arc::new(ztoc)), Algorithm::Sha256, Algorithm::Sha256);
            proof.push(&blob);
            proof.finish();
        }
    }
    println!("{} cases: {unusable} no ztoc, {failed} failed, {extracted} extracted", cases.len());
    assert!(unusable > 60 && failed > 60 && extracted > 60, "{unusable} {failed} {extracted}");
}

#[test]
fn extraction_matches_tar() {
    let tar = tar();
    for blob in [gzip(&tar, 6), gzip(&tar, 0), tar.clone()] {
        for span_size in [1, SPAN, 1 << 30] {
            if blob == tar && span_size == 1 {
                continue; // a digest for each byte
            }
            let dir = tempfile::tempdir().expect("a directory");
            std::fs::write(dir.path().join("layer"), &blob).expect("written");
            let ztoc = ztoc(&blob, span_size);
            let layer = File::open(dir.path().join("layer")).expect("is there");
            let out = dir.path().join("out");
            let done = run(&encode(&ztoc), &layer, &out).expect("a ztoc").expect("extracted");
            assert_eq!((done.files, done.hard_links, done.left_out), (11, 1, 2));
            for file in ztoc.files.iter().filter(|file| file.kind == FileKind::Regular) {
                let path = out.join(std::str::from_utf8(&file.name).expect("is text"));
                let expected = &tar[file.offset.0 as usize..(file.offset.0 + file.size) as usize];
                assert!(std::fs::read(&path).expect("is there") == expected, "{}", path.display());
            }
            use std::os::unix::fs::MetadataExt;
            let facts = |name: &str| out.join(name).symlink_metadata().expect("is there");
            assert_eq!(facts("dir/file1").ino(), facts("dir/hard").ino());
            assert_eq!(
                (facts("dir/attributes").mtime(), facts("dir/attributes").mtime_nsec()),
                (1_600_000_000, 500_000_000)
            );
            assert_eq!(facts("dir/file1").mode() & 0o7777, 0o644);
        }
    }
}

#[test]
fn setuid_bits_are_dropped() {
    let mut ztoc = ztoc(&tar(), SPAN);
    ztoc.files.iter_mut().for_each(|file| file.mode = 0o6755);
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("layer"), tar()).expect("written");
    let layer = File::open(dir.path().join("layer")).expect("is there");
    run(&encode(&ztoc), &layer, &dir.path().join("out")).expect("a ztoc").expect("extracted");
    use std::os::unix::fs::PermissionsExt;
    let mode = dir.path().join("out/dir/file1").metadata().expect("is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

#[test]
fn a_symlink_in_the_output_is_not_followed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(path("elsewhere")).expect("made");
    std::fs::write(path("layer"), gzip(&tar(), 6)).expect("written");
    let ztoc = encode(&ztoc(&gzip(&tar(), 6), SPAN));
    let layer = File::open(path("layer")).expect("is there");
    // As the output directory ...
    std::fs::create_dir(path("out1")).expect("made");
    std::os::unix::fs::symlink("../elsewhere", path("out1/dir")).expect("linked");
    let error = run(&ztoc, &layer, &path("out1")).expect("a ztoc").unwrap_err();
    assert!(matches!(error, ExtractError::Write { .. }), "{error}");
    // ... and in place of a file: with permission to replace, the link itself is replaced.
    std::fs::create_dir_all(path("out2/dir")).expect("made");
    std::os::unix::fs::symlink("../../elsewhere/file", path("out2/dir/file0")).expect("linked");
    let error = run(&ztoc, &layer, &path("out2")).expect("a ztoc").unwrap_err();
    assert!(matches!(error, ExtractError::Exists { .. }), "{error}");
    let table = SpanTable::new(Arc::new(decode(&ztoc).expect("ours"))).expect("ours");
    let mut output = Output::new(&path("out2"), true).expect("is there");
    extract(&table, &layer, &mut output, &|| true).expect("extracted");
    assert!(path("out2/dir/file0").symlink_metadata().expect("is there").is_file());
    assert!(found(&path("elsewhere")).is_empty());
}

#[test]
fn extraction_stops_when_cancelled() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("layer"), tar()).expect("written");
    let table = SpanTable::new(Arc::new(ztoc(&tar(), SPAN))).expect("ours");
    let layer = File::open(dir.path().join("layer")).expect("is there");
    let mut output = Output::new(&dir.path().join("out"), false).expect("made");
    let left = std::cell::Cell::new(9);
    let go_on = || left.replace(left.get() - 1) > 0;
    assert!(matches!(extract(&table, &layer, &mut output, &go_on), Err(ExtractError::Stopped)));
    assert!(
        found(&dir.path().join("out"))
            .iter()
            .all(|(path, _)| !path.to_string_lossy().contains(".ociseek-"))
    );
}

#[test]
fn the_command_extracts_all_entries_or_some() {
    let sandbox = sandbox::Sandbox::new();
    let blob = gzip(&tar(), 6);
    let mut ztoc = ztoc(&blob, SPAN);
    std::fs::write(sandbox.path("layer"), &blob).expect("written");
    std::fs::write(sandbox.path("ztoc"), encode(&ztoc)).expect("written");
    ztoc.span_digests[3] = Digest::sha256(b"");
    std::fs::write(sandbox.path("wrong"), encode(&ztoc)).expect("written");
    let args = |ztoc, out| ["ztoc", "extract", "--layer", "layer", "--ztoc", ztoc, "--output", out];
    insta::assert_snapshot!(sandbox.run(&args("ztoc", "out")), @r"
    11 files, 312.5 KiB, 1 hard link; 2 entries skipped (symbolic links, devices or fifos)
    --- stderr ---
    --- status 0 ---
    ");
    insta::assert_snapshot!(sandbox.run(&args("ztoc", "out")), @r#"
    --- stderr ---
    error: layer: cannot extract: "file0" already exists
    hint: use --force to replace existing files, or an empty directory for --output
    --- status 1 ---
    "#);
    assert!(
        sandbox
            .run(&[&args("ztoc", "out")[..], &["--force"]].concat())
            .ends_with("--- status 0 ---")
    );
    let wrong = sandbox.run(&args("wrong", "out2"));
    assert!(wrong.contains("cannot be read: the bytes of span 3 have the digest"), "{wrong}");
    assert!(wrong.ends_with("--- status 1 ---"), "{wrong}");
    std::fs::write(sandbox.path("no ztoc"), "no ztoc").expect("written");
    insta::assert_snapshot!(sandbox.run(&args("no ztoc", "out3")), @"
    --- stderr ---
    error: no ztoc: not a usable ztoc: not a ztoc, or a damaged one: an offset at byte 0 points outside the buffer
    --- status 1 ---
    ");
    assert!(!sandbox.path("out3").exists());
}
