//! What `ociseek inspect --format json` prints: one document, of which fields are added but never changed or removed.
//!
//! | field | |
//! |---|---|
//! | `image` | the IMAGE, in full |
//! | `manifests` | one object for each platform's manifest |
//!
//! A manifest:
//!
//! | field | |
//! |---|---|
//! | `platform` | such as `linux/arm64`; null if the image does not say |
//! | `manifest` | `media_type`, `digest` and `size` in bytes of the image manifest |
//! | `listing` | how indexes of version 1 are listed: `referrers-api`, `tag-schema` or `layout`; null if they cannot be |
//! | `error` | why they cannot be, else null |
//! | `indexes` | one object for each index that was found |
//! | `layers` | one object for each layer, in the image's order |
//! | `coverage` | `layers`, `bytes`, `percent` of the image's bytes, `of_layers`, `of_bytes`, `ztoc_bytes`, by the chosen index |
//! | `consumers` | for each `version`: how many `lazy_layers` soci-snapshotter mounts, and the `reason` why none, or null |
//!
//! An index:
//!
//! | field | |
//! |---|---|
//! | `digest`, `size` | of its manifest; the size is null if nobody says |
//! | `version` | 1 or 2 |
//! | `found_by` | `annotation`, `referrers-api`, `tag-schema`, `layout` or `asked` |
//! | `chosen` | whether a reader takes it |
//! | `tool` | what its maker calls itself, or null |
//! | `canonical` | whether its JSON is such as consumers demand; null if it cannot be read |
//! | `ztocs` | `digest`, `size`, `layer`, `span_size` of each ztoc that it lists |
//! | `notes` | `code` (a stable word) and `text` of each thing that is not as it should be |
//! | `error` | why it cannot be used, or null |
//!
//! A layer:
//!
//! | field | |
//! |---|---|
//! | `media_type`, `digest`, `size` | of the layer's blob, in bytes |
//! | `ztoc` | null, or `digest`, `size`, `span_size`, and `compression`, `spans`, `entries`, `uncompressed_size` (null if it cannot be read), `error` |

use serde_json::{Value, json};

use super::covered::{covered, ztoc_bytes};
use crate::cli::shared::report::in_one_line;
use crate::image::Descriptor;
use crate::image::soci::ZtocRef;
use crate::ops::discover::{FoundIndexRef, number};
use crate::ops::inspect::{Inspected, InspectedLayer};

pub fn document(image: &str, inspected: &[Inspected]) -> serde_json::Result<String> {
    let document = json!({"image": image, "manifests": inspected.iter().map(manifest).collect::<Vec<_>>()});
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn manifest(inspected: &Inspected) -> Value {
    let image = &inspected.image;
    let coverage = covered(image);
    let indexes = image.indexes.iter().enumerate().map(|(place, found)| index(found, image.chosen == Some(place)));
    let layers = image.layers.iter().zip(&inspected.layers).map(|(descriptor, found)| layer(descriptor, found));
    let consumers = inspected
        .consumers
        .iter()
        .map(|c| json!({"version": number(c.version), "lazy_layers": c.layers, "reason": c.reason}));
    json!({
        "platform": image.platform.as_ref().map(ToString::to_string),
        "manifest": blob(&image.manifest),
        "listing": image.listing.as_ref().ok().map(|via| via.code()),
        "error": image.listing.as_ref().err().map(|error| in_one_line(error)),
        "indexes": indexes.collect::<Vec<_>>(),
        "layers": layers.collect::<Vec<_>>(),
        "coverage": {
            "layers": coverage.layers,
            "of_layers": image.layers.len(),
            "bytes": coverage.bytes,
            "of_bytes": coverage.of_bytes,
            "percent": coverage.share().percent(),
            "ztoc_bytes": ztoc_bytes(image),
        },
        "consumers": consumers.collect::<Vec<_>>(),
    })
}

fn index(found: &FoundIndexRef, is_chosen: bool) -> Value {
    let content = found.content.as_ref().ok();
    let ztoc = |z: &ZtocRef| json!({"digest": z.ztoc, "size": z.size, "layer": z.layer, "span_size": z.span_size});
    json!({
        "digest": found.digest,
        "size": found.size,
        "version": number(found.version),
        "found_by": found.via.code(),
        "chosen": is_chosen,
        "tool": content.and_then(|c| c.index.build_tool_identifier.as_deref()),
        "canonical": content.map(|c| c.index.canonical),
        "ztocs": content.map_or(&[][..], |c| &c.index.ztocs).iter().map(ztoc).collect::<Vec<_>>(),
        "notes": content.map_or(&[][..], |c| &c.notes).iter()
            .map(|note| json!({"code": note.code().word(), "text": note.to_string()})).collect::<Vec<_>>(),
        "error": found.content.as_ref().err().map(|error| in_one_line(error)),
    })
}

fn layer(descriptor: &Descriptor, found: &InspectedLayer) -> Value {
    let mut value = blob(descriptor);
    value["ztoc"] = match &found.ztoc {
        None => Value::Null,
        Some((reference, facts)) => {
            let read = facts.as_ref().ok();
            json!({
                "digest": reference.ztoc,
                "size": reference.size,
                "span_size": reference.span_size,
                "compression": read.map(|f| if f.is_gzip { "gzip" } else { "uncompressed" }),
                "spans": read.map(|f| f.spans),
                "entries": read.map(|f| f.entries),
                "uncompressed_size": read.map(|f| f.uncompressed_size),
                "error": facts.as_ref().err().map(|error| in_one_line(error)),
            })
        }
    };
    value
}

fn blob(descriptor: &Descriptor) -> Value {
    json!({"media_type": descriptor.media_type, "digest": descriptor.digest, "size": descriptor.size})
}
