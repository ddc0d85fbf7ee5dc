//! Fine documents that turn out to be damaged after they were opened.

use super::*;
use ociseek_format::offset::SpanSize;

/// What a registry has beside a fine document whose pages are gone or wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    Ztoc,
    Layer,
    Nothing,
}

/// Adds a SOCI index with a ztoc of the image's lower layer.
fn add_ztoc(registry: &Faulty, image: &Image) {
    let layer = image.blobs[0].digest;
    let ztoc = ztoc(&registry.blob(&layer).unwrap());
    let size = ztoc.len() as u64;
    let ztoc = registry.add_blob(ztoc);
    let index = SociIndex {
        layers: vec![ZtocRef {
            ztoc,
            size,
            layer,
            layer_media_type: GZIP.into(),
            span_size: SpanSize::new(SPAN).unwrap(),
        }],
        subject: image.fine.subject.clone(),
        build_tool_identifier: "test".into(),
        prefetch: Vec::new(),
    };
    let index = index.encode();
    registry.add_manifest(&index.descriptor.digest.to_string(), OCI_MANIFEST, index.bytes);
}

#[tokio::test]
async fn a_layer_with_a_damaged_document_is_read_another_way() {
    let gone = || Some(problem(404, "BLOB_UNKNOWN", "gone"));
    let cases = [
        (Beside::Ztoc, false),
        (Beside::Ztoc, true),
        (Beside::Layer, false),
        (Beside::Nothing, false),
    ];
    for (beside, is_gone) in cases {
        let known = Arc::new(std::sync::OnceLock::<[String; 2]>::new());
        let names = Arc::clone(&known);
        let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, truth| {
            let [document, layer] = names.get()?;
            let range = seen.header("range");
            if seen.path.contains(layer) && range.is_none() && beside == Beside::Nothing {
                return gone();
            }
            if !seen.path.contains(document) || range?.starts_with("bytes=0-") {
                return None;
            }
            if is_gone {
                return gone();
            }
            let (head, _) = truth.truth_now(seen).into_parts();
            let spoilt: Vec<u8> =
                part(seen, truth, document)?.iter().map(|byte| byte ^ 1).collect();
            Some(Response::from_parts(head, Body::from(spoilt)))
        })
        .await;
        let image = Image::push(&registry, false, &[]);
        if beside == Beside::Ztoc {
            add_ztoc(&registry, &image);
        }
        let reader = Reader::new(&registry, None);
        let opened = reader.open(false, options()).await;
        assert_eq!((opened.layers[0].how, reader.warnings()), (LayerAccess::Fine, Vec::new()));
        let layer = image.blobs[0].digest.to_string();
        known.set([image.fine.layers[0].document.to_string(), layer.clone()]).unwrap();
        let reads = (0..20).map(|number| {
            let content = opened.content.clone();
            tokio::spawn(async move {
                content.read(LayerId(0), Uncompressed(500_000 + number), 1000).await
            })
        });
        for (from, read) in (500_000..).zip(reads.collect::<Vec<_>>()) {
            match read.await.unwrap() {
                Ok(bytes) => {
                    assert!(beside != Beside::Nothing && bytes == image.tars[0][from..from + 1000])
                }
                Err(error) => assert!(beside == Beside::Nothing, "{error}"),
            }
        }
        let whole = registry
            .saw("GET", &layer)
            .iter()
            .filter(|seen| seen.header("range").is_none())
            .count();
        assert_eq!(whole, usize::from(beside != Beside::Ztoc), "{beside:?}");
        let warnings = reader.warnings();
        assert!(warnings[0].contains("without its fine document"), "{warnings:?}");
        if beside == Beside::Nothing {
            assert!(
                warnings.iter().any(|warning| warning.contains("cannot fetch layer")),
                "{warnings:?}"
            );
            continue;
        }
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        let pages = image.parts(&registry, 0).len();
        check(&opened, 0, &image.tars[0]).await;
        check(&opened, 1, &image.tars[1]).await;
        assert_eq!(image.parts(&registry, 0).len(), pages, "the document is given up");
        assert_eq!(opened.content.stats().errors, 0);
    }
}
