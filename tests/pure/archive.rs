//! OCI archives that are read in place: in the forms that tools write, and hostile ones.

use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use ociseek_format::digest::Digest;
use ociseek_format::image::manifest::{OCI_CONFIG, OCI_MANIFEST};
use ociseek_format::image::{Descriptor, ImageSelector};
use ociseek_store::archive::Archive;
use ociseek_store::blob::Target;
use ociseek_store::layout::LayoutError;
use ociseek_testkit::image::image_manifest;
use ociseek_testkit::sandbox::PLAIN;

const BLOCK: usize = 512;

struct Image {
    files: Vec<(String, Vec<u8>)>,
    manifest: Descriptor,
    layer: Descriptor,
}

fn path_of(digest: &Digest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

/// The files of a layout with one image that is tagged `1`.
fn image() -> Image {
    let config = b"{}".to_vec();
    let layer = b"the layer's bytes".to_vec();
    let layer_descriptor = Descriptor::of(PLAIN, &layer);
    let manifest = image_manifest(&Descriptor::of(OCI_CONFIG, &config), &[&layer_descriptor]);
    let manifest = manifest.to_string().into_bytes();
    let descriptor = Descriptor::of(OCI_MANIFEST, &manifest);
    let mut entry = serde_json::to_value(&descriptor).unwrap();
    entry["annotations"] = serde_json::json!({"io.containerd.image.name": "docker.io/library/x:1"});
    let index = serde_json::json!({"schemaVersion": 2, "manifests": [entry]});
    let blob = |content: Vec<u8>| (path_of(&Digest::sha256(&content)), content);
    Image {
        files: vec![
            blob(config),
            blob(layer),
            blob(manifest),
            ("index.json".to_owned(), index.to_string().into_bytes()),
            ("manifest.json".to_owned(), b"[]".to_vec()),
            ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        ],
        manifest: descriptor,
        layer: layer_descriptor,
    }
}

fn tar_of<'a>(files: impl IntoIterator<Item = &'a (String, Vec<u8>)>) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        append(&mut builder, tar::EntryType::Regular, name, content);
    }
    builder.into_inner().unwrap()
}

/// Appends an entry whose name is not checked.
fn append(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, name: &str, content: &[u8]) {
    let mut header = tar::Header::new_ustar();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    builder.append(&header, content).unwrap();
}

fn written(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.tar");
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn refusal(bytes: &[u8]) -> String {
    let (_dir, path) = written(bytes);
    Archive::open(&path).expect_err("refused").to_string()
}

fn check(bytes: &[u8], image: &Image) {
    let (_dir, path) = written(bytes);
    let archive = Archive::open(&path).unwrap();
    for select in [
        ImageSelector::Any,
        ImageSelector::Tag("1".to_owned()),
        ImageSelector::Digest(image.manifest.digest),
    ] {
        assert_eq!(archive.find(&select).unwrap().digest, image.manifest.digest);
    }
    let document = archive.manifest(&Target::Tag("1".to_owned())).unwrap();
    assert_eq!(document.digest, image.manifest.digest);
    let mut layer = String::new();
    archive.blob(&image.layer).unwrap().read_to_string(&mut layer).unwrap();
    assert_eq!(layer, "the layer's bytes");
    assert_eq!(archive.blob_bytes(&image.layer, 100).unwrap(), "the layer's bytes");
    assert!(archive.referrers(&image.manifest.digest, None).unwrap().descriptors.is_empty());
    assert!(matches!(archive.blob(&Descriptor::of(PLAIN, b"x")), Err(LayoutError::Missing { .. })));
}

#[test]
fn an_archive_of_too_many_blobs_is_refused() {
    let mut files = image().files;
    files.extend((0..1 << 16).map(|number| (format!("blobs/sha256/{number:064x}"), Vec::new())));
    let said = refusal(&tar_of(&files));
    assert!(said.contains("it has more than 65536 files"), "{said}");
}

#[test]
fn archives_of_all_tools_are_read() {
    let image = image();
    let plain = tar_of(&image.files);
    check(&plain, &image);
    check(&plain[..plain.len() - 1024], &image);
    let dotted: Vec<_> = image.files.iter().map(|(n, c)| (format!("./{n}"), c.clone())).collect();
    check(&tar_of(&dotted), &image);
    // Long names as written by GNU and PAX, directories, and symbolic links by old versions of
    // Docker.
    let mut builder = tar::Builder::new(Vec::new());
    append(&mut builder, tar::EntryType::Directory, "blobs/sha256/", b"");
    append(&mut builder, tar::EntryType::Symlink, "abc/layer.tar", b"");
    append(&mut builder, tar::EntryType::XGlobalHeader, "pax_global_header", b"13 comment=x\n");
    for (i, (name, content)) in image.files.iter().enumerate() {
        if i % 2 == 0 {
            append(
                &mut builder,
                tar::EntryType::GNULongName,
                "././@LongLink",
                format!("{name}\0").as_bytes(),
            );
        } else {
            let records = pax(&[("path", name), ("size", &content.len().to_string())]);
            append(&mut builder, tar::EntryType::XHeader, "pax", &records);
        }
        append(&mut builder, tar::EntryType::Regular, "short", content);
    }
    check(&builder.into_inner().unwrap(), &image);
}

fn pax(records: &[(&str, &str)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (key, value) in records {
        let rest = format!(" {key}={value}\n");
        let mut length = rest.len() + 1;
        while format!("{length}{rest}").len() != length {
            length += 1;
        }
        write!(all, "{length}{rest}").unwrap();
    }
    all
}

#[test]
fn truncated_archives_are_refused_or_read_correctly() {
    let image = image();
    let whole = tar_of(&image.files);
    let padding = BLOCK - image.files.last().unwrap().1.len();
    let end = whole.len() - 2 * BLOCK - padding;
    for cut in (0..end).step_by(37).chain([end - 1]) {
        let (_dir, path) = written(&whole[..cut]);
        assert!(Archive::open(&path).is_err(), "cut at {cut} of {end}");
    }
    // After the last entry's data, nothing is needed.
    check(&whole[..end], &image);
}

#[test]
fn hostile_tars_are_refused() {
    let image = image();
    let evil = |name: &str, kind, content: &[u8]| {
        let mut builder = tar::Builder::new(Vec::new());
        append(&mut builder, kind, name, content);
        for (name, content) in &image.files {
            append(&mut builder, tar::EntryType::Regular, name, content);
        }
        builder.into_inner().unwrap()
    };
    let regular = tar::EntryType::Regular;
    for harmless in [
        "../../etc/passwd",
        "/index.json",
        "a/../index.json",
        "blobs/sha256/../../x",
        "blobs/sha256/XYZ",
    ] {
        check(&evil(harmless, regular, b"evil"), &image);
    }
    for (name, kind, content, reason) in [
        ("x", tar::EntryType::XHeader, &b"99 path=x\n"[..], "malformed PAX records"),
        ("x", tar::EntryType::XHeader, b"0 a=b\n", "malformed PAX records"),
        (
            "x",
            tar::EntryType::XHeader,
            b"28 size=9223372036854775807\n",
            "truncated inside the data of an entry",
        ),
        ("x", tar::EntryType::XHeader, b"11 size=-5\n", "negative size"),
        ("x", tar::EntryType::GNULongName, &[b'x'; (1 << 20) + 1], "more than 1 MiB"),
    ] {
        let said = refusal(&evil(name, kind, content));
        assert!(said.contains(reason), "{name}: {said}");
    }
    // A sparse file that nothing names, and one without parts.
    check(&[sparse("x", 0, 0, 5), tar_of(&image.files)].concat(), &image);
    // A blob with a wrong digest is detected when it is read.
    let damaged: Vec<_> = (image.files.iter())
        .map(|(name, content)| {
            if *name == path_of(&image.layer.digest) {
                (name.clone(), b"the layer's BYTES".to_vec())
            } else {
                (name.clone(), content.clone())
            }
        })
        .collect();
    let mut wrong = tar_of(&damaged);
    let (_dir, path) = written(&wrong);
    let archive = Archive::open(&path).unwrap();
    assert!(matches!(archive.blob_bytes(&image.layer, 100), Err(LayoutError::Damaged { .. })));
    // A size of 2^62 in base-256.
    wrong[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0]);
    wrong[148..156].fill(b' ');
    let sum: u32 = wrong[..512].iter().map(|&b| u32::from(b)).sum();
    wrong[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    assert!(refusal(&wrong).contains("truncated inside the data of an entry"));
}

/// The files of `image`, with `member` for its layer, in front of all or behind.
fn with_layer(
    image: &Image,
    member: &dyn Fn(&mut tar::Builder<Vec<u8>>, &str),
    is_last: bool,
) -> Vec<u8> {
    let path = path_of(&image.layer.digest);
    let mut builder = tar::Builder::new(Vec::new());
    if !is_last {
        member(&mut builder, &path);
    }
    for (name, content) in image.files.iter().filter(|(name, _)| *name != path) {
        append(&mut builder, tar::EntryType::Regular, name, content);
    }
    append(&mut builder, tar::EntryType::Regular, "other/layer", b"the layer's bytes");
    if is_last {
        member(&mut builder, &path);
    }
    builder.into_inner().unwrap()
}

fn link(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, name: &str, target: &str) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    builder.append_link(&mut header, name, target).unwrap();
}

#[test]
fn links_are_followed_inside_the_archive() {
    let image = image();
    let hard = tar::EntryType::Link;
    let soft = tar::EntryType::Symlink;
    for (kind, target) in
        [(hard, "other/layer"), (soft, "../../other/layer"), (soft, "./.././../other//layer")]
    {
        check(
            &with_layer(&image, &|builder, path| link(builder, kind, path, target), true),
            &image,
        );
        check(
            &with_layer(&image, &|builder, path| link(builder, kind, path, target), false),
            &image,
        );
    }
    // Through another link, and through a folder that is one.
    let chain = |builder: &mut tar::Builder<Vec<u8>>, path: &str| {
        link(builder, soft, "there", "other");
        link(builder, soft, path, "../../there/layer");
    };
    check(&with_layer(&image, &chain, true), &image);
    for (kind, target, why) in [
        (soft, "../../../etc/passwd", "leads out of the archive"),
        (soft, "/etc/passwd", "leads out of the archive"),
        (soft, &image.layer.digest.hex(), "is a link in a loop"),
        (hard, "../x", "leads out of the archive"),
        (tar::EntryType::Fifo, "x", "is not a regular file"),
    ] {
        let (_dir, path) =
            written(&with_layer(&image, &|builder, path| link(builder, kind, path, target), true));
        let error = Archive::open(&path).unwrap().blob(&image.layer).unwrap_err().to_string();
        assert!(error.contains(why) && !error.contains("valid"), "{error}");
    }
    // A layout need not have all blobs.
    let (_dir, path) =
        written(&with_layer(&image, &|builder, path| link(builder, soft, path, "gone"), true));
    let error = Archive::open(&path).unwrap().blob(&image.layer).unwrap_err();
    assert!(matches!(error, LayoutError::Missing { .. }), "{error}");
}

/// The header of a sparse file of GNU tar with one part of `length` bytes.
fn sparse(name: &str, start: u64, length: u64, size: u64) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_size(length);
    for (at, number) in [(386, start), (398, length), (483, size)] {
        header.as_mut_bytes()[at..at + 12].copy_from_slice(format!("{number:011o}\0").as_bytes());
    }
    header.set_cksum();
    header.as_bytes().to_vec()
}

#[test]
fn sparse_members_are_expanded() {
    let mut image = image();
    let mut content = b"\0\0\0the layer's bytes".to_vec();
    content.resize(5000, 0);
    let (layer, digest) = (Descriptor::of(PLAIN, &content), image.layer.digest);
    image.files.retain(|(name, _)| *name != path_of(&digest));
    let archive = |size: u64| {
        let member = [
            sparse(&path_of(&layer.digest), 3, 17, size),
            b"the layer's bytes".to_vec(),
            vec![0; 495],
        ];
        let (dir, path) = written(&[&member.concat()[..], &tar_of(&image.files)].concat());
        (dir, Archive::open(&path).unwrap())
    };
    let (_dir, whole) = archive(5000);
    assert_eq!(whole.blob_bytes(&layer, 5000).unwrap(), content);
    let mut read = Vec::new();
    whole.blob(&layer).unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read, content);
    for range in [0..1, 2..5, 0..5000, 3..20, 19..21, 20..5000, 4999..5000] {
        let expected = &content[range.start as usize..range.end as usize];
        assert_eq!(whole.blob_range(&layer, range).unwrap(), expected);
    }
    let (_dir, bomb) = archive(1 << 32);
    let error = bomb.blob(&layer).unwrap_err().to_string();
    assert!(
        error.contains("is a sparse file of more than 1024 times the bytes of the archive"),
        "{error}"
    );
}

#[test]
fn the_last_member_of_a_name_counts() {
    let image = image();
    let mut files = image.files.clone();
    for (name, _) in &image.files {
        files.insert(0, (format!("./{name}"), b"an older one".to_vec()));
    }
    check(&tar_of(&files), &image);
    // The content that a hard link names is that of its time.
    let linked = |builder: &mut tar::Builder<Vec<u8>>, path: &str| {
        link(builder, tar::EntryType::Link, path, "other/layer");
        append(builder, tar::EntryType::Regular, "other/layer", b"changed");
    };
    check(&with_layer(&image, &linked, true), &image);
}

#[test]
fn a_folder_in_front_is_named() {
    let image = image();
    let folder: Vec<_> = image
        .files
        .iter()
        .map(|(name, content)| (format!("./a b/{name}"), content.clone()))
        .collect();
    let said = refusal(&tar_of(&folder));
    assert!(
        said.contains("it has oci-layout only in the folder a b: pack what is in the folder"),
        "{said}"
    );
}

#[test]
fn errors_for_other_files_say_what_to_do() {
    let image = image();
    let docker: Vec<_> =
        image.files.iter().filter(|(n, _)| n == "manifest.json").cloned().collect();
    assert!(refusal(&tar_of(&docker)).contains("use docker-archive:FILE"));
    assert!(refusal(&tar_of(&[])).contains("no file oci-layout"));
    for (magic, command) in
        [(&b"\x1f\x8b\x08"[..], "gunzip"), (b"\x28\xb5\x2f\xfd", "unzstd"), (b"BZh9", "bunzip2")]
    {
        assert!(refusal(magic).contains(command));
    }
    assert!(refusal(b"").contains("it is empty"));
    for garbage in [&b"x"[..], &[b'x'; 4096]] {
        assert!(refusal(garbage).contains("not a valid tar"));
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(Archive::open(dir.path()).unwrap_err().to_string().contains("oci:DIR"));
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert!(Archive::open(&fifo).unwrap_err().to_string().contains("not a regular file"));
}
