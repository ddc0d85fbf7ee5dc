//! Fine indexes that lie about a layer: what is shown of an image that is named by its digest, and
//! what a reader that takes the repository's word finds out.

use std::collections::BTreeMap;

use ociseek_format::budget::Budget;
use ociseek_format::image::fine::{BOUND_INDEX, FineRef};
use ociseek_format::layer::prove::headers_across;
use ociseek_format::tree::NodeKind;
use ociseek_format::ztoc::{FileKind, FileMetadata};
use ociseek_ops::trust::{AcceptedTrust, NotedDocuments, TrustLevel, TrustRules};

use super::*;
use ociseek_testkit::fine::{DocumentParts, with_wrong_byte};

const FILES: usize = 80;

/// A name for it, and what it changes in the document, given the number of an entry in span 1.
pub(super) type Lie = (&'static str, fn(&mut DocumentParts, usize));

pub(super) const LIES: [Lie; 15] = [
    ("another name", |parts, at| parts.entries[at].name = (*b"dir1/other").into()),
    ("exchanged names", |parts, at| {
        let name = parts.entries[at].name.clone();
        parts.entries[at].name = std::mem::replace(&mut parts.entries[at + 1].name, name);
    }),
    ("set-user-ID", |parts, at| parts.entries[at].mode = 0o4755),
    ("another owner", |parts, at| parts.entries[at].uid = 7),
    ("another group", |parts, at| parts.entries[at].gid = 7),
    ("an owner's name", |parts, at| parts.entries[at].uname = b"root"[..].into()),
    ("a shorter file", |parts, at| parts.entries[at].size -= 1),
    ("a longer file", |parts, at| parts.entries[at].size += 1),
    ("a later start", |parts, at| {
        parts.entries[at].offset += 512;
        parts.entries[at].size -= 512;
    }),
    ("a link", |parts, at| {
        let link = FileMetadata { kind: FileKind::Symlink, size: 0, ..parts.entries[at].clone() };
        parts.entries[at] = FileMetadata { linkname: (*b"file0").into(), ..link };
    }),
    ("a hard link", |parts, at| {
        let link = FileMetadata { kind: FileKind::HardLink, size: 0, ..parts.entries[at].clone() };
        parts.entries[at] = FileMetadata { linkname: (*b"dir1/file0").into(), ..link };
    }),
    ("no time", |parts, at| parts.entries[at].mtime = None),
    ("a missing file", |parts, at| drop(parts.entries.remove(at))),
    ("a file too many", |parts, at| {
        let after = FileMetadata { size: 0, ..parts.entries[at].clone() };
        let offset = Uncompressed(parts.entries[at].offset.0 + 3072);
        parts
            .entries
            .insert(at + 1, FileMetadata { name: (*b"dir1/more").into(), offset, ..after });
    }),
    ("a window", |parts, _| parts.windows[1] = with_wrong_byte(&parts.windows[1])),
];

fn layer() -> Vec<u8> {
    gzip(&tar(1, FILES, 3000))
}

/// A registry with an image, and its manifest.
async fn registry() -> (Faulty, Bytes) {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    registry.add_image("v1", &tar(1, FILES, 3000));
    let manifest = registry.manifest("v1").unwrap();
    registry.add_manifest(&Digest::sha256(&manifest).to_string(), OCI_MANIFEST, manifest.clone());
    (registry, manifest)
}

/// The layer's document with a lie about an entry in span 1.
fn lying((_, lie): &Lie) -> (FineLayer, usize) {
    let honest = built(&layer());
    let span = honest.spans().plain_range(SpanId(1));
    let victim =
        honest.entries().iter().position(|file| file.offset.0 > span.start.0 + 8192).unwrap();
    assert!(honest.entries()[victim + 2].offset < span.end);
    let mut parts = DocumentParts::of(&honest.encode(&[]).unwrap().bytes);
    lie(&mut parts, victim);
    let document = parts.encoded();
    (
        ociseek_format::fine::decode(&document.bytes, &mut Budget::new(1 << 30).open()).unwrap(),
        victim,
    )
}

pub(super) async fn open_by(reader: &Reader, target: &Target, accepted: AcceptedTrust) -> RootFs {
    let trust = TrustRules { accepted, ..TrustRules::default() };
    open_under(reader, target, trust).await
}

async fn open_under(reader: &Reader, target: &Target, trust: TrustRules) -> RootFs {
    let options = OpenOptions {
        content: options(),
        trust,
        documents: DocumentFetch { start: true },
        ..OpenOptions::default()
    };
    let progress = Arc::clone(&reader.recorder) as Arc<dyn Progress>;
    open(&reader.source, target, &options, &reader.caches, &progress).await.unwrap()
}

/// The content of a file, or None if it has none or cannot be read.
pub(super) async fn content(image: &RootFs, path: &str) -> Option<Bytes> {
    let NodeKind::File(extent) =
        image.tree.node(image.tree.resolve(path.as_bytes(), false).ok()?).kind
    else {
        return None;
    };
    image.content.read(extent.layer, extent.offset, extent.size as usize).await.ok()
}

/// What is shown of the image: each file with its mode, owner, group and content.
pub(super) async fn shown(image: &RootFs) -> BTreeMap<String, (u32, u32, u32, Option<Bytes>)> {
    let mut all = BTreeMap::new();
    for (name, id) in image.tree.children(image.tree.resolve(b"dir1", true).unwrap()) {
        let path = format!("dir1/{}", String::from_utf8_lossy(name));
        let node = image.tree.node(id);
        let bytes = content(image, &path).await;
        all.insert(path, (node.mode, node.uid, node.gid, bytes));
    }
    all
}

#[tokio::test]
async fn under_a_digest_only_the_layer_is_shown() {
    let (honest, manifest) = registry().await;
    let reader = Reader::new(&honest, None);
    let by_digest = Target::Digest(Digest::sha256(&manifest));
    let truth = shown(&open_by(&reader, &by_digest, AcceptedTrust::Vouched).await).await;
    assert!(truth.len() == FILES && truth.values().all(|(.., content)| content.is_some()));
    for lie in &LIES {
        let (registry, manifest) = registry().await;
        fine::attach(&registry, &manifest, &[(lying(lie).0, Vec::new())]);
        let reader = Reader::new(&registry, None);
        let image = open_by(&reader, &by_digest, AcceptedTrust::Vouched).await;
        assert_eq!(
            (image.layers[0].how, image.trust()),
            (LayerAccess::Local, TrustLevel::Proven),
            "{}",
            lie.0
        );
        assert!(shown(&image).await == truth, "{}", lie.0);
        let image = open_by(&reader, &by_digest, AcceptedTrust::Repository).await;
        assert_eq!(
            (image.layers[0].how, image.trust()),
            (LayerAccess::Fine, TrustLevel::Repository),
            "{}",
            lie.0
        );
    }
}

/// Also if another index was pushed meanwhile, or the operator does not name the repository any
/// more.
#[tokio::test]
async fn a_layer_in_use_is_read_by_the_document_that_was_noted_or_as_a_whole() {
    let (registry, manifest) = registry().await;
    let by_digest = Target::Digest(Digest::sha256(&manifest));
    fine::attach(&registry, &manifest, &[(built(&layer()), Vec::new())]);
    let reader = Reader::new(&registry, None);
    let image = open_by(&reader, &by_digest, AcceptedTrust::Repository).await;
    let truth = shown(&image).await;
    let layer = image.layers[0].descriptor.digest;
    let documents = &image.fine.as_ref().unwrap().content.as_ref().unwrap().documents;
    let noted = NotedDocuments::from([(layer, Some(documents[&layer].head_digest))]);

    for lie in &LIES {
        for is_noted_there in [true, false] {
            let (registry, manifest) = self::registry().await;
            let mut attached = vec![lying(lie).0];
            if is_noted_there {
                attached.push(built(&self::layer()));
            }
            for document in attached {
                fine::attach(&registry, &manifest, &[(document, Vec::new())]);
            }
            for accepted in [AcceptedTrust::Noted, AcceptedTrust::Repository] {
                let trust = TrustRules { accepted, noted: noted.clone(), ..TrustRules::default() };
                let image = open_under(&Reader::new(&registry, None), &by_digest, trust).await;
                let how = if is_noted_there { LayerAccess::Fine } else { LayerAccess::Local };
                assert_eq!(image.layers[0].how, how, "{} {accepted:?}", lie.0);
                assert!(shown(&image).await == truth, "{} {accepted:?}", lie.0);
            }
        }
    }
    // A layer that was not noted has no document, if the repository is not named.
    let accepted = AcceptedTrust::Noted;
    let trust = TrustRules { accepted, ..TrustRules::default() };
    let image = open_under(&Reader::new(&registry, None), &by_digest, trust).await;
    assert_eq!(image.layers[0].how, LayerAccess::Local);
}

/// Packs the list of files, as a mount does after a while, or leaves it.
fn pack(image: &RootFs, is_packed: bool) {
    let files = &image.layers[0].map.files;
    if is_packed {
        files.pack();
    }
    assert_eq!(files.is_packed(), is_packed);
}

#[tokio::test]
async fn a_span_that_contradicts_the_index_ends_it() {
    for (lie, is_packed) in LIES.iter().flat_map(|lie| [(lie, false), (lie, true)]) {
        let (registry, manifest) = registry().await;
        let (document, victim) = lying(lie);
        fine::attach(&registry, &manifest, &[(document, Vec::new())]);
        let reader = Reader::new(&registry, None);
        let image = open_by(&reader, &Target::Tag("v1".into()), AcceptedTrust::Repository).await;
        pack(&image, is_packed);
        // The first files are in span 0, of which nothing is wrong.
        let first = content(&image, "dir1/file0").await;
        assert!(first.is_some(), "{}", lie.0);
        // The entry before the wrong one is right, but its span shows the wrong one.
        assert_eq!(content(&image, &format!("dir1/file{}", victim - 1)).await, None, "{}", lie.0);
        let contradiction = |warning: &String| {
            warning.contains("contradicts the index")
                || warning.contains("the window of span 2 is not")
        };
        assert!(reader.warnings().iter().any(contradiction), "{}: {:?}", lie.0, reader.warnings());
        // Nothing is read by that index any more, although this was right.
        assert_eq!(content(&image, "dir1/file0").await, None, "{}", lie.0);
    }
}

/// Neither span shows all of these headers.
#[tokio::test]
async fn headers_in_two_spans_are_compared_when_both_were_read() {
    let honest = built(&layer());
    let spans =
        (1..honest.spans().count()).map(|span| honest.spans().plain_range(SpanId(span)).start);
    let split: Vec<usize> = spans
        .filter(|at| headers_across(honest.entries(), *at).is_some())
        .map(|at| honest.entries().partition_point(|file| file.offset <= at))
        .collect();
    assert!(!split.is_empty());
    for (victim, is_packed) in
        split.into_iter().flat_map(|victim| [(victim, false), (victim, true)])
    {
        let (registry, manifest) = registry().await;
        let mut parts = DocumentParts::of(&honest.encode(&[]).unwrap().bytes);
        parts.entries[victim].mode = 0o4755;
        let document = parts.encoded();
        let document =
            ociseek_format::fine::decode(&document.bytes, &mut Budget::new(1 << 30).open())
                .unwrap();
        fine::attach(&registry, &manifest, &[(document, Vec::new())]);
        let reader = Reader::new(&registry, None);
        let image = open_by(&reader, &Target::Tag("v1".into()), AcceptedTrust::Repository).await;
        pack(&image, is_packed);
        let all = shown(&image).await;
        let lie = format!("dir1/file{victim}");
        assert!(
            reader.warnings().iter().any(|said| said.contains("contradicts the index")),
            "{:?}",
            reader.warnings()
        );
        assert!(all.values().any(|(.., content)| content.is_none()), "{lie}");
        assert_eq!(content(&image, &lie).await, None);
    }
}

#[tokio::test]
async fn what_the_image_binds_is_preferred() {
    let (registry, manifest) = registry().await;
    let honest = built(&layer());
    let encoded = honest.encode(&[]).unwrap();
    registry.add_blob(encoded.bytes.clone());
    let reference = FineRef {
        document: encoded.digest,
        size: encoded.bytes.len() as u64,
        layer: honest.spans().layer(),
        head_size: encoded.head_size,
        head_digest: encoded.head_digest,
        start_size: encoded.start_size,
    };
    let bound =
        FineIndex { layers: vec![reference], subject: None, build_tool: None, profile: None }
            .encode();
    registry.add_manifest(&bound.descriptor.digest.to_string(), OCI_MANIFEST, bound.bytes);
    let mut enabled: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    enabled["annotations"] = json!({BOUND_INDEX: bound.descriptor.digest});
    let enabled = enabled.to_string();
    registry.add_manifest("v2", OCI_MANIFEST, enabled.clone());
    registry.add_manifest(
        &Digest::sha256(enabled.as_bytes()).to_string(),
        OCI_MANIFEST,
        enabled.clone(),
    );
    // A recorded start would make a referrer the better one.
    let (document, _) = lying(&LIES[0]);
    let mut lie = fine::attach(&registry, enabled.as_bytes(), &[(document, Vec::new())]);
    lie.profile = Some(Digest::sha256(b"profile"));
    let lie = lie.encode();
    registry.add_manifest(&lie.descriptor.digest.to_string(), OCI_MANIFEST, lie.bytes);
    let reader = Reader::new(&registry, None);
    let by_digest = Target::Digest(Digest::sha256(enabled.as_bytes()));
    for (target, accepted) in
        [(Target::Tag("v2".into()), AcceptedTrust::Repository), (by_digest, AcceptedTrust::Vouched)]
    {
        let image = open_by(&reader, &target, accepted).await;
        assert_eq!(
            image.fine.as_ref().map(|fine| fine.digest),
            Some(bound.descriptor.digest),
            "{target}"
        );
        assert_eq!((image.layers[0].how, image.trust()), (LayerAccess::Fine, TrustLevel::Bound));
        assert!(image.tree.resolve(b"dir1/other", true).is_err());
    }
}

#[tokio::test]
async fn what_this_machine_proved_is_taken_under_a_digest() {
    let (registry, manifest) = registry().await;
    let index = fine::attach(&registry, &manifest, &[(built(&layer()), Vec::new())]);
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, Some(dir.path()));
    let by_digest = Target::Digest(Digest::sha256(&manifest));
    let level = async || {
        let image = open_by(&reader, &by_digest, AcceptedTrust::Vouched).await;
        (image.layers[0].how, image.trust())
    };
    assert_eq!(level().await, (LayerAccess::Local, TrustLevel::Proven));
    reader.caches.ztocs.put_proven(&index.layers[0].layer, &index.layers[0].head_digest);
    assert_eq!(level().await, (LayerAccess::Fine, TrustLevel::Proven));
}
