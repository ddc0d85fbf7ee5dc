//! Manifests, indexes, configs, SOCI indexes and prefetch lists, as registries and layouts serve them.
//!
//! Invariants under test: no panic; a document that we accept as an image or an index is one for
//! Go's readers too, with the same layers and manifests, whatever its media type; encoded documents
//! can be parsed again.

use ociseek_layer::image::manifest::{self, MAX_DESCRIPTORS, Manifest};
use ociseek_layer::image::{Descriptor, config, go, prefetch, soci};

fn digests(descriptors: &[Descriptor]) -> Vec<String> {
    descriptors.iter().map(|descriptor| format!("{} {}", descriptor.digest, descriptor.size)).collect()
}

/// Parses the document as each kind.
pub fn read(data: &[u8]) {
    if let Ok(document) = manifest::parse(None, data) {
        let media_type = match &document {
            Manifest::Image(image) => {
                let theirs = go::decode_manifest(data).expect("Go reads an image that we read");
                assert_eq!(digests(&image.layers), digests(theirs.layers()));
                assert!(image.layers.len() <= MAX_DESCRIPTORS);
                let again = go::decode_manifest(&theirs.encode()).expect("Go reads what it wrote");
                assert_eq!(again.encode(), theirs.encode());
                image.media_type
            }
            Manifest::Index(index) => {
                let theirs = go::decode_index(data).expect("Go reads an index that we read");
                assert_eq!(digests(&index.manifests), digests(&theirs.manifests));
                assert!(index.manifests.len() <= MAX_DESCRIPTORS);
                let again = go::decode_index(&theirs.encode()).expect("Go reads what it wrote");
                assert_eq!(again.encode(), theirs.encode());
                index.media_type
            }
        };
        let served = manifest::parse(Some(media_type), data).expect("it came as what it is");
        assert_eq!(served, document);
    }
    if let Ok(ranges) = prefetch::parse(data) {
        assert_eq!(prefetch::parse(&prefetch::encode(&ranges)).ok(), Some(ranges));
    }
    let _ = soci::parse(data);
    let _ = (config::platform(data), config::created(data), config::diff_ids(data), config::created_by(data));
    let _ = go::decode_platform(data);
}
