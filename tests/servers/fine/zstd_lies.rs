//! Fine indexes that lie about a layer of zstd: dictionaries are compared like the windows of gzip,
//! and so are tar headers.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;

use ociseek_format::budget::Budget;
use ociseek_ops::trust::{AcceptedTrust, TrustLevel};
use zstd::zstd_safe::CParameter;

use super::lies::{LIES, content, open_by, shown};
use super::*;
use ociseek_testkit::fine::{DocumentParts, made_by_indexing, with_page};
use ociseek_testkit::sandbox::ZSTD;

const FILES: usize = 600;

/// A name for it, and what it changes in the page of span 2, after the lead. It gets the place
/// where the tables end.
type WindowLie = (&'static str, fn(&mut Vec<u8>, usize));

const WINDOW_LIES: [WindowLie; 6] = [
    ("a byte", |window, _| *window.last_mut().unwrap() ^= 1),
    ("a repeat offset", |window, tables| window[tables - 4] ^= 1),
    ("a table", |window, _| window[4] ^= 1),
    ("a checksum", |window, _| window[0] = 2),
    ("a larger window", |window, _| window[1] += 8),
    ("the start of a frame", |window, _| *window = vec![0]),
];

fn tarball() -> Vec<u8> {
    tar(1, FILES, 3000)
}

/// The layer, and its document.
fn layer() -> (Vec<u8>, FineLayer) {
    let mut encoder = zstd::Encoder::new(Vec::new(), 9).unwrap();
    // Spans refer to something, but are short since that is little.
    encoder.window_log(13).unwrap();
    encoder.set_parameter(CParameter::MinMatch(4)).unwrap();
    encoder.write_all(&tarball()).unwrap();
    let blob = encoder.finish().unwrap();
    let document = made_by_indexing(&blob);
    assert!(document.spans().count() > 3, "{}", document.spans().count());
    (blob, document)
}

/// The windows of spans 1 and 2 are fetched with the head.
const START: Range<SpanId> = SpanId(1)..SpanId(3);

/// A registry with an image of this layer and a fine index of this document, which has this
/// recorded start. And the image's manifest.
async fn registry(blob: &[u8], document: FineLayer, start: Vec<Range<SpanId>>) -> (Faulty, Bytes) {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let image = image::Image::new(&image::config(&[tarball()]), [(ZSTD, blob.to_vec())]);
    let digest = image.add_to(&registry, "v1").digest;
    registry.add_manifest(&digest.to_string(), OCI_MANIFEST, image.manifest.clone());
    fine::attach(&registry, &image.manifest, &[(document, start)]);
    (registry, image.manifest)
}

/// Documents with a lie each about what is in span 1 or follows it.
fn lying(honest: &FineLayer) -> BTreeMap<&'static str, FineLayer> {
    let encoded = honest.encode(&[]).unwrap();
    let input = honest.spans().starts()[2].input.0;
    let lead = (input.next_multiple_of(64) - input) as usize;
    let mut lying = BTreeMap::new();
    for (name, lie) in WINDOW_LIES {
        let document = with_page(&encoded, 1, |page| {
            let mut window = page.split_off(lead);
            // The size of the tables takes one byte.
            assert!(window[0] == 1 && window[2] < 0x80, "{:?}", &window[..3]);
            let tables = 3 + usize::from(window[2]);
            lie(&mut window, tables);
            page.append(&mut window);
        });
        assert!(document != *honest, "{name}");
        lying.insert(name, document);
    }
    let victim = victim(honest);
    for (name, lie) in LIES.iter().filter(|(name, _)| *name != "a window") {
        let mut parts = DocumentParts::of(&encoded.bytes);
        lie(&mut parts, victim);
        let document = parts.encoded();
        let document =
            ociseek_format::fine::decode(&document.bytes, &mut Budget::new(1 << 30).open())
                .unwrap();
        lying.insert(name, document);
    }
    lying
}

/// The number of an entry in span 1.
fn victim(layer: &FineLayer) -> usize {
    entry_in(layer, SpanId(1))
}

fn entry_in(layer: &FineLayer, span: SpanId) -> usize {
    let span = layer.spans().plain_range(span);
    layer.entries().iter().position(|file| file.offset.0 > span.start.0 + 8192).unwrap()
}

#[tokio::test]
async fn under_a_digest_only_the_layer_of_zstd_is_shown() {
    let (blob, honest) = layer();
    let mut truth = None;
    for (name, document) in lying(&honest) {
        let (registry, manifest) = registry(&blob, document, vec![START]).await;
        let reader = Reader::new(&registry, None);
        let by_digest = Target::Digest(Digest::sha256(&manifest));
        let image = open_by(&reader, &by_digest, AcceptedTrust::Vouched).await;
        assert_eq!(
            (image.layers[0].how, image.trust()),
            (LayerAccess::Whole, TrustLevel::Proven),
            "{name}"
        );
        let shown = shown(&image).await;
        assert!(
            shown.len() == FILES && shown.values().all(|(.., content)| content.is_some()),
            "{name}"
        );
        assert!(*truth.get_or_insert_with(|| shown.clone()) == shown, "{name}");
    }
}

#[tokio::test]
async fn a_span_of_zstd_that_contradicts_the_index_ends_it() {
    let (blob, honest) = layer();
    let before = format!("dir1/file{}", victim(&honest) - 1);
    for (name, document) in lying(&honest).into_iter().chain([("nothing", honest.clone())]) {
        let (registry, _) = registry(&blob, document, vec![START]).await;
        let reader = Reader::new(&registry, None);
        let image = open_by(&reader, &Target::Tag("v1".into()), AcceptedTrust::Repository).await;
        assert_eq!(image.layers[0].how, LayerAccess::Fine, "{name}");
        let is_honest = name == "nothing";
        assert_eq!(content(&image, &before).await.is_some(), is_honest, "{name}");
        let contradiction = |warning: &String| {
            warning.contains("contradicts the index")
                || warning.contains("the window of span 2 is not")
        };
        assert_ne!(
            reader.warnings().iter().any(contradiction),
            is_honest,
            "{name}: {:?}",
            reader.warnings()
        );
        // Nothing is read by that index any more, although this is right.
        assert_eq!(content(&image, "dir1/file0").await.is_some(), is_honest, "{name}");
    }
}

#[tokio::test]
async fn a_window_that_arrives_after_the_span_before_it_is_compared_before_it_is_used() {
    let (blob, honest) = layer();
    let [first, second] =
        [1, 2].map(|span| format!("dir1/file{}", entry_in(&honest, SpanId(span))));
    let truth = {
        let (registry, _) = registry(&blob, honest.clone(), vec![]).await;
        let image = open_by(
            &Reader::new(&registry, None),
            &Target::Tag("v1".into()),
            AcceptedTrust::Repository,
        )
        .await;
        content(&image, &second).await.unwrap()
    };
    let names = WINDOW_LIES.map(|(name, _)| name);
    let lying = lying(&honest).into_iter().filter(|(name, _)| names.contains(name));
    for (name, document) in lying.chain([("nothing", honest.clone())]) {
        let (registry, _) = registry(&blob, document, vec![]).await;
        let reader = Reader::new(&registry, None);
        let image = open_by(&reader, &Target::Tag("v1".into()), AcceptedTrust::Repository).await;
        assert!(content(&image, &first).await.is_some(), "{name}: {:?}", reader.warnings());
        let is_honest = name == "nothing";
        let shown = content(&image, &second).await;
        assert_eq!(shown.as_ref() == Some(&truth), is_honest, "{name}: {:?}", reader.warnings());
        assert_eq!(shown.is_some(), is_honest, "{name}: {:?}", reader.warnings());
        let contradiction = |warning: &String| warning.contains("the window of span 2 is not");
        assert_ne!(
            reader.warnings().iter().any(contradiction),
            is_honest,
            "{name}: {:?}",
            reader.warnings()
        );
    }
}

/// A name for it, and what it changes in the document.
type Fault = (&'static str, fn(&mut DocumentParts));

const FAULTS: [Fault; 2] = [
    ("no block starts there", |parts| parts.starts[2].output.0 += 1),
    ("another state of SHA-256", |parts| parts.starts[2].state = parts.starts[3].state),
];

#[tokio::test]
async fn a_document_that_cannot_be_resumed_is_given_up_for_the_layer() {
    let (blob, honest) = layer();
    let before = format!("dir1/file{}", victim(&honest) - 1);
    let encoded = honest.encode(&[]).unwrap();
    for (name, fault) in FAULTS {
        let mut parts = DocumentParts::of(&encoded.bytes);
        fault(&mut parts);
        let document = parts.encoded();
        let document =
            ociseek_format::fine::decode(&document.bytes, &mut Budget::new(1 << 30).open())
                .unwrap();
        let (registry, _) = registry(&blob, document, vec![START]).await;
        let reader = Reader::new(&registry, None);
        let image = open_by(&reader, &Target::Tag("v1".into()), AcceptedTrust::Repository).await;
        assert_eq!(image.layers[0].how, LayerAccess::Fine, "{name}");
        assert!(content(&image, &before).await.is_some(), "{name}: {:?}", reader.warnings());
        let shown = shown(&image).await;
        assert!(
            shown.len() == FILES && shown.values().all(|(.., content)| content.is_some()),
            "{name}"
        );
        let warnings = reader.warnings();
        assert!(warnings[0].contains("without its fine document"), "{name}: {warnings:?}");
    }
}
