//! A document in which one fact about a real layer was changed, with all digests right: a full
//! verification finds it, whatever the fact is.

use ociseek_format::digest::ChainState;
use ociseek_format::digest::Digest;
use ociseek_format::image::fine::{FINE_INDEX, parse};
use ociseek_format::offset::{Compressed, SpanSize, Uncompressed};
use ociseek_format::time::Time;
use ociseek_format::ztoc::{Checkpoints, FileKind, FileMetadata, Ztoc};
use serde_json::Value;

use super::image::{Image, codes};
use ociseek_testkit::fine::{DocumentParts, with_wrong_byte};
use ociseek_testkit::random;
use ociseek_testkit::sandbox::{GZIP, PLAIN};

/// A tar with entries of every kind, and enough content for several spans.
fn tar_of_everything() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let header = |kind: tar::EntryType, size: usize, mode: u32| {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(kind);
        header.set_size(size as u64);
        header.set_mode(mode);
        header.set_mtime(1_700_000_000);
        header.set_uid(7);
        header.set_gid(8);
        header.set_username("someone").unwrap();
        header.set_groupname("somebody").unwrap();
        header
    };
    let mut letters = random::letters(5);
    builder.append_data(&mut header(tar::EntryType::Directory, 0, 0o755), "dir/", &[][..]).unwrap();
    builder.append_pax_extensions([("SCHILY.xattr.user.a", &b"value"[..])]).unwrap();
    for number in 0..4 {
        let content: Vec<u8> = letters.by_ref().take(300_000).collect();
        let mut head = header(tar::EntryType::Regular, content.len(), 0o644);
        builder.append_data(&mut head, format!("dir/file{number}"), &content[..]).unwrap();
    }
    for (kind, name, to) in [
        (tar::EntryType::Symlink, "soft", "dir/file0"),
        (tar::EntryType::Link, "hard", "dir/file1"),
    ] {
        builder.append_link(&mut header(kind, 0, 0o777), name, to).unwrap();
    }
    let mut device = header(tar::EntryType::Char, 0, 0o600);
    device.set_device_major(1).unwrap();
    device.set_device_minor(3).unwrap();
    builder.append_data(&mut device, "null", &[][..]).unwrap();
    builder.append_data(&mut header(tar::EntryType::Fifo, 0, 0o600), "pipe", &[][..]).unwrap();
    builder.into_inner().unwrap()
}

/// An image with a gzip layer and a plain one of the same content.
fn image(more: &[&str]) -> Image {
    let tar = tar_of_everything();
    let image = Image::of(&[(GZIP, &tar), (PLAIN, &tar)], |_| {});
    image.run_index(more);
    image
}

type Change<T> = (&'static str, Box<dyn Fn(&mut T)>);

/// Each field of an entry, for entries of several kinds.
fn changes_of_entries() -> Vec<Change<Vec<FileMetadata>>> {
    type Field = (&'static str, fn(&mut FileMetadata));
    let fields: [Field; 17] = [
        ("name", |file| file.name = b"dir/other"[..].into()),
        ("a longer name", |file| file.name = [&file.name[..], b"x"].concat().into()),
        ("kind", |file| {
            file.kind =
                if file.kind == FileKind::Fifo { FileKind::Directory } else { FileKind::Fifo }
        }),
        ("offset", |file| file.offset = Uncompressed(file.offset.0 + 1)),
        ("a whole block", |file| file.offset = Uncompressed(file.offset.0 + 512)),
        ("size", |file| file.size = file.size.saturating_sub(1).max(u64::from(file.size == 0))),
        ("linkname", |file| file.linkname = b"etc/shadow"[..].into()),
        ("set-user-ID", |file| file.mode |= 0o4000),
        ("mode", |file| file.mode ^= 0o022),
        ("uid", |file| file.uid = 0),
        ("gid", |file| file.gid = 0),
        ("uname", |file| file.uname = b"root"[..].into()),
        ("gname", |file| file.gname = b"root"[..].into()),
        ("mtime", |file| file.mtime = Some(Time { seconds: 1, nanos: 0 })),
        ("no mtime", |file| file.mtime = None),
        ("devmajor", |file| file.devmajor += 1),
        ("devminor", |file| file.devminor += 1),
    ];
    let mut changes: Vec<Change<Vec<FileMetadata>>> = Vec::new();
    for (field, change) in fields {
        // A directory, a file with an extended attribute, one without, links, a device.
        for entry in [0, 1, 3, 5, 6, 7] {
            changes.push((field, Box::new(move |files| change(&mut files[entry]))));
        }
    }
    changes.push(("an extended attribute less", Box::new(|files| files[1].pax = Box::new([]))));
    changes.push((
        "another's extended attribute",
        Box::new(|files| files[2].pax = files[1].pax.clone()),
    ));
    changes.push(("an entry less", Box::new(|files| drop(files.remove(2)))));
    changes.push(("the last entry", Box::new(|files| drop(files.pop()))));
    changes.push(("no entry", Box::new(Vec::clear)));
    changes.push((
        "exchanged names",
        Box::new(|files| {
            let name = files[1].name.clone();
            files[1].name = std::mem::replace(&mut files[2].name, name);
        }),
    ));
    changes
}

fn changes_of_ztocs(is_gzip: bool) -> Vec<Change<Ztoc>> {
    let mut changes: Vec<Change<Ztoc>> = Vec::new();
    for (name, change) in changes_of_entries() {
        changes.push((name, Box::new(move |ztoc| change(&mut ztoc.files))));
    }
    let mut add = |name, change: fn(&mut Ztoc)| changes.push((name, Box::new(change)));
    add("version", |ztoc| ztoc.version = b"0.8"[..].into());
    add("the blob's size", |ztoc| ztoc.compressed_size = Compressed(ztoc.compressed_size.0 + 1));
    add("the tar's size", |ztoc| {
        ztoc.uncompressed_size = Uncompressed(ztoc.uncompressed_size.0 - 1)
    });
    add("a larger tar", |ztoc| {
        ztoc.uncompressed_size = Uncompressed(ztoc.uncompressed_size.0 + 512)
    });
    add("a span's digest", |ztoc| ztoc.span_digests[1] = Digest::sha256(b"another"));
    add("the last span's digest", |ztoc| {
        *ztoc.span_digests.last_mut().unwrap() = Digest::sha256(b"another")
    });
    add("exchanged digests", |ztoc| ztoc.span_digests.swap(1, 2));
    add("a digest less", |ztoc| ztoc.span_digests.truncate(ztoc.span_digests.len() - 1));
    add("span size", |ztoc| match &mut ztoc.checkpoints {
        Checkpoints::Gzip { span_size, .. } | Checkpoints::Uncompressed { span_size, .. } => {
            *span_size = SpanSize::new(span_size.get() + 512).unwrap();
        }
    });
    if !is_gzip {
        add("the size of a plain tar", |ztoc| match &mut ztoc.checkpoints {
            Checkpoints::Uncompressed { size, .. } => *size -= 512,
            Checkpoints::Gzip { .. } => unreachable!(),
        });
        return changes;
    }
    fn list(ztoc: &mut Ztoc) -> &mut Vec<ociseek_format::ztoc::Checkpoint> {
        match &mut ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } => list,
            Checkpoints::Uncompressed { .. } => unreachable!(),
        }
    }
    let mut add = |name, change: fn(&mut Ztoc)| changes.push((name, Box::new(change)));
    add("a checkpoint's input", |ztoc| list(ztoc)[2].input.0 += 1);
    add("a checkpoint's output", |ztoc| list(ztoc)[2].output.0 += 1);
    add("a checkpoint's bits", |ztoc| list(ztoc)[2].bits = (list(ztoc)[2].bits + 1) % 8);
    add("a window's first byte", |ztoc| list(ztoc)[3].window[0] ^= 1);
    add("a window's last byte", |ztoc| {
        list(ztoc)[3].window[ociseek_format::codec::WINDOW - 1] ^= 1
    });
    add("the last window", |ztoc| list(ztoc).last_mut().unwrap().window[17] ^= 0x80);
    changes
}

/// Whether a change means nothing: the same document comes out of it.
fn is_unchanged(before: &Ztoc, change: &Change<Ztoc>) -> bool {
    let mut after = before.clone();
    (change.1)(&mut after);
    after == *before
}

#[test]
fn every_field_of_a_ztoc() {
    let image = image(&[]);
    let index = image.manifest();
    let mut count = 0;
    for (place, is_gzip) in [(0, true), (1, false)] {
        let honest = ociseek_format::ztoc::decode(&image.read(&image.ztoc(place).0)).unwrap();
        for change in changes_of_ztocs(is_gzip) {
            if is_unchanged(&honest, &change) {
                continue;
            }
            image.edit_ztoc(place, &change.1);
            let document = image.verify(3, &[]);
            assert_ne!(codes(&document), [""; 0], "{}", change.0);
            image.replace_index(&index);
            count += 1;
        }
    }
    assert!(count > 150, "{count}");
    image.verify(0, &[]);
}

fn changes_of_documents(is_gzip: bool) -> Vec<Change<DocumentParts>> {
    let mut changes: Vec<Change<DocumentParts>> = Vec::new();
    for (name, change) in changes_of_entries() {
        changes.push((name, Box::new(move |parts| change(&mut parts.entries))));
    }
    let mut add = |name, change: fn(&mut DocumentParts)| changes.push((name, Box::new(change)));
    add("a span's proof", |parts| {
        let mut state = parts.starts[1].state.to_bytes();
        state[0] ^= 1;
        parts.starts[1].state = ChainState::from_bytes(state);
    });
    if is_gzip {
        add("a span's input", |parts| parts.starts[2].input.0 += 1);
        add("a span's output", |parts| parts.starts[2].output.0 += 1);
        add("a span's bits", |parts| parts.starts[2].bits = (parts.starts[2].bits + 1) % 8);
        add("a used byte of a window", |parts| {
            parts.windows[0] = with_wrong_byte(&parts.windows[0])
        });
        add("a used byte of the last window", |parts| {
            let last = parts.windows.last_mut().unwrap();
            *last = with_wrong_byte(last);
        });
    }
    changes
}

#[test]
fn every_field_of_a_fine_document() {
    let image = image(&["--kind=fine"]);
    let listed_path = image.dir.join("index.json");
    let listed = std::fs::read_to_string(&listed_path).unwrap();
    let entries: Value = serde_json::from_str(&listed).unwrap();
    let entry = entries["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .find(|entry| entry["artifactType"] == FINE_INDEX);
    let old: Digest = entry.unwrap()["digest"].as_str().unwrap().parse().unwrap();
    let old_bytes = image.read(&old);
    let mut count = 0;
    for (place, is_gzip) in [(0, true), (1, false)] {
        for (name, change) in changes_of_documents(is_gzip) {
            let mut index = parse(&old_bytes).unwrap();
            let honest = image.read(&index.layers[place].document);
            let mut parts = DocumentParts::of(&honest);
            change(&mut parts);
            // What is not consistent cannot even be written.
            let Some(encoded) = parts.try_encoded() else { continue };
            // Fine documents have no names of owners, for example.
            if encoded.bytes == DocumentParts::of(&honest).encoded().bytes {
                continue;
            }
            let reference = &mut index.layers[place];
            reference.document = image.write(&encoded.bytes);
            reference.size = encoded.bytes.len() as u64;
            (reference.head_size, reference.head_digest) = (encoded.head_size, encoded.head_digest);
            reference.start_size = encoded.start_size;
            let new = index.encode().bytes;
            let text =
                |digest: &Digest, size: usize| format!("\"digest\":\"{digest}\",\"size\":{size}");
            let changed =
                listed.replace(&text(&old, old_bytes.len()), &text(&image.write(&new), new.len()));
            std::fs::write(&listed_path, changed).unwrap();
            let document = image.verify(3, &[]);
            assert_ne!(codes(&document), [""; 0], "{name}");
            count += 1;
        }
    }
    assert!(count > 120, "{count}");
    std::fs::write(&listed_path, listed).unwrap();
    image.verify(0, &[]);
}
