//! Nobody but this program and the image itself decides what is published: indexes that anyone who
//! may push to a repository could attach there are not taken over, and prove nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::reuse::{Setting, layer, options, requests, ztoc};
use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::Share;
use ociseek_format::image::enabled::INDEX_DIGEST;
use ociseek_format::image::fine::{BOUND_INDEX, FINE_INDEX, parse_bound};
use ociseek_format::image::soci::parse;
use ociseek_format::offset::Uncompressed;
use ociseek_format::progress::{Progress, SilentProgress};
use ociseek_format::ztoc::{Checkpoint, Checkpoints, FileKind, FileMetadata, Ztoc};
use ociseek_ops::TOOL_IDENTIFIER;
use ociseek_ops::convert::{
    ConvertDestination, ConvertError, ConvertReport, ConvertStatus, SourceImage, convert,
};
use ociseek_ops::index::{
    Existing, ExistingCheck, Gate, IndexError, IndexOptions, IndexedImage, Kinds, ManifestResult,
    Reuse, ReuseSource, Work, index,
};
use ociseek_ops::obsolete::{ObsoleteOptions, obsolete};
use ociseek_ops::prefetch::PrefetchList;
use ociseek_store::blob::Target;
use ociseek_store::cache::ZtocCache;
use ociseek_store::{Destination, Source};
use ociseek_testkit::sandbox::OCI_MANIFEST;
use serde_json::Value;

/// A change of a single field.
type Lie = fn(&mut Ztoc);

fn file(ztoc: &mut Ztoc) -> &mut FileMetadata {
    ztoc.files.iter_mut().find(|file| file.size > 0).unwrap()
}

fn checkpoint(ztoc: &mut Ztoc) -> &mut Checkpoint {
    match &mut ztoc.checkpoints {
        Checkpoints::Gzip { list, .. } => &mut list[2],
        Checkpoints::Uncompressed { .. } => panic!("the layer is gzip"),
    }
}

/// Every field of a ztoc, changed.
const LIES: [(&str, Lie); 20] = [
    ("name", |ztoc| file(ztoc).name = Box::from(&b"etc/shadow"[..])),
    ("type", |ztoc| file(ztoc).kind = FileKind::Fifo),
    ("offset", |ztoc| file(ztoc).offset.0 += 1),
    ("size", |ztoc| file(ztoc).size -= 1),
    ("link", |ztoc| file(ztoc).linkname = Box::from(&b"/etc/shadow"[..])),
    ("mode", |ztoc| file(ztoc).mode = 0o4755),
    ("uid", |ztoc| file(ztoc).uid += 1),
    ("gid", |ztoc| file(ztoc).gid += 1),
    ("owner", |ztoc| file(ztoc).uname = b"root"[..].into()),
    ("group", |ztoc| file(ztoc).gname = b"wheel"[..].into()),
    ("time", |ztoc| file(ztoc).mtime = None),
    ("major", |ztoc| file(ztoc).devmajor = 7),
    ("minor", |ztoc| file(ztoc).devminor = 7),
    ("order", |ztoc| {
        let last = ztoc.files.len() - 1;
        let name = std::mem::take(&mut ztoc.files[0].name);
        ztoc.files[0].name = std::mem::replace(&mut ztoc.files[last].name, name);
    }),
    ("missing", |ztoc| drop(ztoc.files.pop())),
    ("tar size", |ztoc| ztoc.uncompressed_size = Uncompressed(ztoc.uncompressed_size.0 - 512)),
    ("input", |ztoc| checkpoint(ztoc).input.0 += 1),
    ("output", |ztoc| checkpoint(ztoc).output.0 += 1),
    ("window", |ztoc| checkpoint(ztoc).window[100] ^= 1),
    ("digest", |ztoc| ztoc.span_digests[2] = Digest::sha256(b"x")),
];

/// The layer's ztoc with a lie.
fn lying(layer: &Bytes, lie: Lie) -> Bytes {
    let right = ztoc(layer, TOOL_IDENTIFIER);
    let mut wrong = ociseek_format::ztoc::decode(&right).unwrap();
    lie(&mut wrong);
    let wrong = Bytes::from(ociseek_format::ztoc::encode(&wrong));
    assert_ne!(wrong, right);
    wrong
}

fn silent() -> Arc<dyn Progress> {
    Arc::new(SilentProgress)
}

async fn try_index(
    setting: &Setting,
    tag: &str,
    cache: Option<&ZtocCache>,
    options: &IndexOptions,
) -> Result<IndexedImage, IndexError> {
    let source = Source::Registry(setting.repository());
    let there = Destination::Registry(setting.repository());
    index(
        &source,
        &Target::Tag(tag.into()),
        Some(&there),
        Work { cache, options, progress: &silent() },
    )
    .await
}

async fn try_convert(
    setting: &Setting,
    root: Target,
    to: &str,
    options: &IndexOptions,
) -> Result<ConvertReport, ConvertError> {
    convert_with(setting, root, to, None, false, options).await
}

async fn convert_with(
    setting: &Setting,
    root: Target,
    to: &str,
    cache: Option<&ZtocCache>,
    replace_tag: bool,
    options: &IndexOptions,
) -> Result<ConvertReport, ConvertError> {
    let from =
        SourceImage { source: Source::Registry(setting.repository()), root, descriptor: None };
    let destination = Some(Destination::Registry(setting.repository()));
    let to = ConvertDestination { destination, tag: Some(to.into()), replace_tag, guard: None };
    convert(&from, &to, Work { cache, options, progress: &silent() }).await
}

/// The ztocs of an index, by its digest.
fn ztocs(setting: &Setting, index: &Digest) -> Vec<Digest> {
    let manifest = setting.registry.manifest(&index.to_string()).unwrap();
    parse(&manifest).unwrap().ztocs.iter().map(|ztoc| ztoc.ztoc).collect()
}

fn enabled_ztocs(setting: &Setting, done: &ConvertReport) -> Vec<Digest> {
    ztocs(setting, &done.images[0].index.as_ref().unwrap().digest)
}

/// The digest of the only index in a result.
fn index_of(done: &IndexedImage) -> Digest {
    done.manifests[0].result.index().unwrap()
}

/// What reuses the indexes that are attached to `v1`.
fn trusting(setting: &Setting) -> IndexOptions {
    IndexOptions { reuse: setting.naming("v1"), ..options() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lie_in_any_field_is_never_published() {
    let base = layer(1, 600_000);
    let right = Digest::sha256(&ztoc(&base, TOOL_IDENTIFIER));
    let fine = IndexOptions { kinds: Kinds::Both, ..options() };
    for (name, lie) in LIES {
        let wrong = lying(&base, lie);
        let setting = Setting::new().await;
        let image = setting.push("v1", &[&base]);
        setting.push("v2", &[&base, &layer(2, 1000)]);
        setting.attach(&image, &base, &wrong, TOOL_IDENTIFIER);
        let bad = Digest::sha256(&setting.registry.manifest("attached").unwrap());
        // Another tag with the same layer, and SOCI-enabled images.
        let done = try_index(&setting, "v2", None, &options()).await.unwrap();
        assert_eq!(ztocs(&setting, &index_of(&done))[0], right, "{name}");
        for root in [Target::Tag("v1".into()), Target::Digest(image.digest)] {
            let done = try_convert(&setting, root, "v1-soci", &fine).await.unwrap();
            assert_eq!(enabled_ztocs(&setting, &done), [right], "{name}");
        }
        // Beside an honest index: the layer decides which one goes.
        let honest = {
            let other = Setting::new().await;
            other.push("v1", &[&base]);
            let done = try_index(&other, "v1", None, &options()).await.unwrap();
            other.registry.manifest(&index_of(&done).to_string()).unwrap()
        };
        let honest = setting.registry.add_manifest("honest", OCI_MANIFEST, honest);
        let done = try_index(&setting, "v1", None, &options()).await.unwrap();
        assert_eq!(index_of(&done), honest, "{name}");
        assert!(setting.registry.manifest(&honest.to_string()).is_some(), "{name}");
        assert!(setting.registry.manifest(&bad.to_string()).is_none(), "{name}: proven wrong");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_that_contradict_each_other_are_not_sampled_even_by_those_who_trust() {
    let base = layer(1, 3 << 20);
    let right = Digest::sha256(&ztoc(&base, TOOL_IDENTIFIER));
    let setting = Setting::new().await;
    let image = setting.push("v1", &[&base]);
    setting.push("v2", &[&base, &layer(2, 1000)]);
    setting.attach(&image, &base, &lying(&base, LIES[0].1), TOOL_IDENTIFIER);
    setting.attach(&image, &base, &ztoc(&base, TOOL_IDENTIFIER), TOOL_IDENTIFIER);
    for (tag, reads) in [("v2", 1), ("v1", 2)] {
        let done = setting.index(tag, &trusting(&setting)).await;
        assert_eq!(ztocs(&setting, &index_of(&done))[0], right, "{tag}");
        assert_eq!(requests(&setting, &base), (reads, 0), "{tag}");
    }
    let warnings = setting.warnings();
    assert!(
        warnings.iter().all(|text| text.contains("2 different ztocs")) && warnings.len() == 2,
        "{warnings:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_stays_if_only_a_sample_speaks_against_it() {
    let base = layer(1, 3 << 20);
    let setting = Setting::new().await;
    let image = setting.push("v1", &[&base]);
    // Two older versions: which of them is right is not known.
    let old = ["ociseek v0.0.8", "ociseek v0.0.9"].map(|tool| {
        setting.attach(&image, &base, &ztoc(&base, tool), tool);
        Digest::sha256(&setting.registry.manifest("attached").unwrap())
    });
    let done = setting.index("v1", &trusting(&setting)).await;
    let is_there = |index: &Digest| setting.registry.manifest(&index.to_string()).is_some();
    assert_eq!(old.iter().filter(|index| is_there(index)).count(), 1, "{done:?}");
    // Whoever reads the layer knows.
    let done =
        setting.index("v1", &IndexOptions { existing: Existing::Replace, ..options() }).await;
    assert!(old.iter().all(|index| !is_there(index)) && is_there(&index_of(&done)), "{done:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cache_contradicts_an_index() {
    let base = layer(1, 600_000);
    let right = Digest::sha256(&ztoc(&base, TOOL_IDENTIFIER));
    let dir = tempfile::tempdir().unwrap();
    let cache = ZtocCache::open(Some(dir.path()), silent());
    let other = Setting::new().await;
    other.push("v1", &[&base]);
    try_index(&other, "v1", Some(&cache), &options()).await.unwrap();

    let setting = Setting::new().await;
    let image = setting.push("v1", &[&base]);
    setting.attach(&image, &base, &lying(&base, LIES[0].1), TOOL_IDENTIFIER);
    let bad = index_of(&try_index(&setting, "v1", None, &options()).await.unwrap());
    let unchecked = try_index(&setting, "v1", None, &options()).await.unwrap();
    let check_of = |done: &IndexedImage| match &done.manifests[0].result {
        ManifestResult::AlreadyThere { check, built: false, .. } => *check,
        other => panic!("{other:?}"),
    };
    assert_eq!((check_of(&unchecked), index_of(&unchecked)), (ExistingCheck::Listed, bad));
    let done = try_index(&setting, "v1", Some(&cache), &options()).await.unwrap();
    assert_eq!(ztocs(&setting, &index_of(&done)), [right]);
    assert!(setting.registry.manifest(&bad.to_string()).is_none());
    let again = try_index(&setting, "v1", Some(&cache), &options()).await.unwrap();
    assert_eq!((check_of(&again), index_of(&again)), (ExistingCheck::Cached, index_of(&done)));
    assert_eq!(requests(&setting, &base), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_does_not_exist_deletes_and_delays_nothing() {
    let base = layer(1, 600_000);
    let setting = Setting::new().await;
    let image = setting.push("v1", &[&base]);
    let later = "ociseek v999.0.0";
    for ztoc in [ztoc(&base, later), "garbage".into()] {
        setting.attach(&image, &base, &ztoc, later);
        let done = setting.index("v1", &options()).await;
        let ours = index_of(&done);
        assert_eq!(ztocs(&setting, &ours), [Digest::sha256(&self::ztoc(&base, TOOL_IDENTIFIER))]);
        let options = ObsoleteOptions { delete: true, ..ObsoleteOptions::default() };
        let found = obsolete(&setting.repository(), &options, &silent()).await.unwrap();
        assert!(found.waste.is_empty() && found.unexamined.is_empty(), "{found:?}");
        assert!(setting.registry.manifest(&ours.to_string()).is_some());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn obsolete_opens_what_supersedes() {
    let base = layer(1, 600_000);
    let old_tool = "ociseek v0.0.9";
    let right = ztoc(&base, TOOL_IDENTIFIER);
    let options = ObsoleteOptions { delete: true, ..ObsoleteOptions::default() };
    let cases = [
        ("the same", right.clone(), true),
        ("garbage", "garbage".into(), false),
        ("half", right.slice(..right.len() / 2), false),
        ("a lie", lying(&base, LIES[5].1), false),
        ("a window", lying(&base, LIES[18].1), false),
    ];
    for (name, newer, goes) in cases {
        let setting = Setting::new().await;
        let image = setting.push("v1", &[&base]);
        setting.attach(&image, &base, &ztoc(&base, old_tool), old_tool);
        let old = Digest::sha256(&setting.registry.manifest("attached").unwrap());
        setting.attach(&image, &base, &newer, TOOL_IDENTIFIER);
        let found = obsolete(&setting.repository(), &options, &silent()).await.unwrap();
        assert!(found.unexamined.is_empty(), "{name}: {found:?}");
        assert_eq!(setting.registry.manifest(&old.to_string()).is_none(), goes, "{name}");
        assert_eq!(found.waste.len(), usize::from(goes), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gate_opens_the_ztocs_of_an_existing_index() {
    let base = layer(1, 600_000);
    let gated =
        IndexOptions { gate: Gate { all_servable: true, least_coverage: None }, ..options() };
    let kept = IndexOptions { existing: Existing::Keep, ..gated.clone() };
    let covered = |share: u32| IndexOptions {
        gate: Gate { all_servable: false, least_coverage: Share::new(share) },
        ..kept.clone()
    };
    let setting = Setting::new().await;
    let image = setting.push("v1", &[&base]);
    setting.attach(&image, &base, &"garbage".into(), TOOL_IDENTIFIER);
    for options in [&kept, &covered(100)] {
        let refused = try_index(&setting, "v1", None, options).await;
        assert!(matches!(refused, Err(IndexError::Refused(_))), "{refused:?}");
    }
    let done = try_index(&setting, "v1", None, &gated).await.unwrap();
    assert_eq!(ztocs(&setting, &index_of(&done)), [Digest::sha256(&ztoc(&base, TOOL_IDENTIFIER))]);
    for options in [&gated, &kept, &covered(10_000)] {
        try_index(&setting, "v1", None, options).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_moves_meanwhile_is_not_overwritten() {
    let old = layer(1, 100_000);
    let new = layer(2, 100_000);
    let digest = Digest::sha256(&old);
    for (to, replace_tag) in [("v1", true), ("v1-soci", false)] {
        let next: Arc<OnceLock<Bytes>> = Arc::default();
        let pushed = Arc::clone(&next);
        let moved = AtomicBool::new(false);
        let setting = Setting::lying(move |seen, registry| {
            let is_read = seen.is("GET", &format!("blobs/{digest}"));
            if is_read && !moved.swap(true, Ordering::SeqCst) {
                // A colleague pushes while the layer is read.
                registry.add_manifest("v1", OCI_MANIFEST, pushed.get().unwrap().clone());
            }
            None
        })
        .await;
        setting.push("v1", &[&new]);
        next.set(setting.registry.manifest("v1").unwrap()).unwrap();
        setting.push("v1", &[&old]);
        let root = Target::Tag("v1".into());
        let done = convert_with(&setting, root.clone(), to, None, replace_tag, &options()).await;
        assert!(
            matches!(done, Err(ConvertError::Moved { .. } | ConvertError::Changed { .. })),
            "{to}: {done:?}"
        );
        let now = setting.registry.manifest("v1").unwrap();
        assert_eq!(&now, next.get().unwrap(), "{to}");
        assert_eq!(setting.registry.manifest("v1-soci"), None);
        // Once more, for what the tag names now.
        convert_with(&setting, root, to, None, replace_tag, &options()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_image_is_replaced_only_on_request() {
    let setting = Setting::new().await;
    setting.push("v1", &[&layer(1, 100_000)]);
    let other = setting.push("mine", &[&layer(2, 100_000)]);
    let root = Target::Tag("v1".into());
    let done = try_convert(&setting, root.clone(), "mine", &options()).await;
    assert!(
        matches!(done, Err(ConvertError::Occupied { digest }) if digest == other.digest),
        "{done:?}"
    );
    let done = convert_with(&setting, root.clone(), "mine", None, true, &options()).await.unwrap();
    assert!(
        matches!(done.outcome, ConvertStatus::Written { replaced: Some(old) } if old == other.digest)
    );
    // Now it is a SOCI-enabled image.
    let done = try_convert(&setting, root, "mine", &options()).await.unwrap();
    assert!(matches!(done.outcome, ConvertStatus::AlreadyThere));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_destination_says_is_not_taken_over() {
    let base = layer(1, 600_000);
    let setting = Setting::new().await;
    let image = setting.push("v1", &[&base]);
    let right =
        try_convert(&setting, Target::Digest(image.digest), "right", &options()).await.unwrap();
    // A stranger pushes a SOCI-enabled image of his own to the tag.
    let index = setting
        .registry
        .manifest(&right.images[0].index.as_ref().unwrap().digest.to_string())
        .unwrap();
    let wrong = lying(&base, LIES[0].1);
    let listed = Digest::sha256(&ztoc(&base, TOOL_IDENTIFIER)).to_string();
    let text = String::from_utf8_lossy(&index)
        .replace(&listed, &setting.registry.add_blob(wrong).to_string());
    let bad = setting.registry.add_manifest("bad", OCI_MANIFEST, text.clone());
    let mut root: Value =
        serde_json::from_slice(&setting.registry.manifest("right").unwrap()).unwrap();
    let place = root["manifests"]
        .as_array()
        .unwrap()
        .iter()
        .position(|entry| entry["artifactType"].is_string());
    root["manifests"][place.unwrap()]["digest"] = bad.to_string().into();
    setting.registry.add_manifest("v1-soci", ociseek_testkit::sandbox::OCI_INDEX, root.to_string());
    let done =
        try_convert(&setting, Target::Digest(image.digest), "v1-soci", &options()).await.unwrap();
    assert_eq!(done.digest, right.digest);
    // Nor is a prefetch list there.
    let mut list = PrefetchList::default();
    list.add_path("dir1/file0");
    let listing = IndexOptions { prefetch: Some(Arc::new(list)), ..options() };
    let listed =
        try_convert(&setting, Target::Digest(image.digest), "v1-soci", &listing).await.unwrap();
    assert_ne!(listed.digest, right.digest);
    let done =
        try_convert(&setting, Target::Digest(image.digest), "v1-soci", &options()).await.unwrap();
    assert_eq!(done.digest, right.digest);

    // The image's own index is bound to it, and named images are the user's word.
    let before = requests(&setting, &base).0;
    let done =
        try_convert(&setting, Target::Digest(right.digest), "copy", &options()).await.unwrap();
    assert_eq!(enabled_ztocs(&setting, &done), enabled_ztocs(&setting, &right));
    let from = vec![ReuseSource {
        name: "right".into(),
        source: Source::Registry(setting.repository()),
        target: Target::Digest(right.digest),
    }];
    let named = IndexOptions { reuse: Reuse { from, ..Reuse::default() }, ..options() };
    let done = try_convert(&setting, Target::Digest(image.digest), "named", &named).await.unwrap();
    assert_eq!(done.digest, right.digest);
    assert_eq!(requests(&setting, &base).0, before, "no layer was read again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_binds_its_fine_index() {
    let base = layer(1, 600_000);
    let setting = Setting::new().await;
    let image = setting.push("v1", &[&base]);
    let plain =
        try_convert(&setting, Target::Digest(image.digest), "plain", &options()).await.unwrap();
    let both = IndexOptions { kinds: Kinds::Both, ..options() };
    let done = try_convert(&setting, Target::Digest(image.digest), "v1-soci", &both).await.unwrap();
    let converted = &done.images[0];
    let manifest: Value = serde_json::from_slice(
        &setting.registry.manifest(&converted.manifest.to_string()).unwrap(),
    )
    .unwrap();
    let fine = converted.fine.as_ref().unwrap();
    assert_eq!(manifest["annotations"][BOUND_INDEX], fine.digest.to_string());
    assert_eq!(
        manifest["annotations"][INDEX_DIGEST],
        converted.index.as_ref().unwrap().digest.to_string()
    );
    let bound = parse_bound(&setting.registry.manifest(&fine.digest.to_string()).unwrap()).unwrap();
    assert_eq!(
        bound.layers.iter().map(|document| document.layer).collect::<Vec<_>>(),
        [Digest::sha256(&base)]
    );
    assert!(setting.registry.blob(&bound.layers[0].document).is_some());
    let root: Value =
        serde_json::from_slice(&setting.registry.manifest("v1-soci").unwrap()).unwrap();
    let entries = root["manifests"].as_array().unwrap();
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[2]["artifactType"], FINE_INDEX);
    assert_eq!(entries[2]["digest"], fine.digest.to_string());
    assert_eq!(entries[2]["platform"]["os"], "unknown");
    assert_eq!(
        entries[2]["annotations"]["dev.ociseek.fine.image-manifest-digest"],
        converted.manifest.to_string()
    );

    // Again: nothing to do. Without it: the bytes are soci's. In place, as `verify` recommends.
    let again =
        try_convert(&setting, Target::Digest(image.digest), "v1-soci", &both).await.unwrap();
    assert!(matches!(again.outcome, ConvertStatus::AlreadyThere), "{again:?}");
    let without =
        try_convert(&setting, Target::Digest(image.digest), "plain", &options()).await.unwrap();
    assert_eq!((without.digest, without.images[0].fine.clone()), (plain.digest, None));
    let in_place =
        try_convert(&setting, Target::Tag("v1-soci".into()), "v1-soci", &both).await.unwrap();
    assert_eq!(in_place.digest, done.digest);
    let kept =
        try_convert(&setting, Target::Tag("v1-soci".into()), "v1-soci", &options()).await.unwrap();
    assert_eq!(kept.digest, done.digest, "an image keeps the fine index that it names");
    // Converting an image that has none yet adds it, and moves nothing else.
    let added = try_convert(&setting, Target::Digest(plain.digest), "added", &both).await.unwrap();
    assert_eq!(added.digest, done.digest);
}
