//! What `ociseek list --format json` prints: one document, of which fields are added but never changed or removed.
//!
//! | field | |
//! |---|---|
//! | `place` | what was looked at, in full |
//! | `images` | one object for each tag, in the registry's order, or for each image of a layout |
//!
//! An image:
//!
//! | field | |
//! |---|---|
//! | `name` | its tag, or its digest if it has none |
//! | `digest` | of its manifest or image index; null if it could not be read |
//! | `status` | `ok`; `not-an-image`; `failed` |
//! | `error` | why it is not `ok`, else null |
//! | `manifests` | one object for each platform's manifest; empty unless `ok` |
//!
//! A manifest: `platform` (null if the image does not say), `manifest` with its `digest`, `created`
//! (RFC 3339, what the image's config says; or null), `error` (why indexes of version 1 cannot be
//! listed, or null), and `indexes`, each with
//!
//! | field | |
//! |---|---|
//! | `digest` | of its manifest |
//! | `version` | 1 or 2 |
//! | `found_by` | `annotation`, `referrers-api`, `tag-schema` or `layout` |
//! | `chosen` | whether a reader takes it |
//! | `tool` | what its maker calls itself, or null |
//! | `coverage` | `layers`, `of_layers`, `bytes`, `of_bytes`, `percent` of the image's bytes, `ztoc_bytes`; null if it cannot be used |
//! | `error` | why it cannot be used, or null |

use serde_json::{Value, json};

use crate::cli::shared::report::in_one_line;
use crate::ops::discover::number;
use crate::ops::list::{ListedContent, ListedImage, ListedIndex, ListedManifest};

pub fn document(place: &str, images: &[ListedImage]) -> serde_json::Result<String> {
    let document = json!({"place": place, "images": images.iter().map(image).collect::<Vec<_>>()});
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn image(listed: &ListedImage) -> Value {
    let (status, error, manifests) = match listed.manifests.as_ref() {
        Ok(manifests) => ("ok", None, manifests.iter().map(manifest).collect()),
        Err(error) if error.is_not_an_image() => ("not-an-image", Some(in_one_line(error)), Vec::new()),
        Err(error) => ("failed", Some(in_one_line(error)), Vec::new()),
    };
    json!({
        "name": listed.name,
        "digest": listed.digest,
        "status": status,
        "error": error,
        "manifests": manifests,
    })
}

fn manifest(listed: &ListedManifest) -> Value {
    json!({
        "platform": listed.platform.as_ref().map(ToString::to_string),
        "manifest": {"digest": listed.manifest},
        "created": listed.created.and_then(|time| time.to_rfc3339()),
        "error": listed.unlisted,
        "indexes": listed.indexes.iter().map(index).collect::<Vec<_>>(),
    })
}

fn index(listed: &ListedIndex) -> Value {
    let content = listed.content.as_ref().ok();
    json!({
        "digest": listed.digest,
        "version": number(listed.version),
        "found_by": listed.via.code(),
        "chosen": listed.chosen,
        "tool": content.and_then(|content| content.tool.as_deref()),
        "coverage": content.map(coverage),
        "error": listed.content.as_ref().err(),
    })
}

fn coverage(content: &ListedContent) -> Value {
    let covered = &content.coverage;
    json!({
        "layers": covered.layers,
        "of_layers": covered.of_layers,
        "bytes": covered.bytes,
        "of_bytes": covered.of_bytes,
        "percent": covered.share().percent(),
        "ztoc_bytes": content.ztoc_bytes,
    })
}
