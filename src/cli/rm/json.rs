//! What `ociseek rm --format json` prints: one document, of which fields are added but never changed or removed.
//!
//! | field | |
//! |---|---|
//! | `image` | the IMAGE, in full |
//! | `dry_run` | nothing was removed |
//! | `manifests` | one object for each platform's manifest |
//!
//! A manifest: `platform` (null if the image does not say, or is gone), `manifest` with its
//! `digest`, `version_2` (what the manifest names as its index of version 2, which stays, or null),
//! and `indexes`, each with
//!
//! | field | |
//! |---|---|
//! | `digest` | of the index |
//! | `tool` | what its maker calls itself, or null |
//! | `status` | `removed`; `would-remove` (dry run); `kept` (another tool's); `not-an-index` (listed as one, and left alone); `failed` |
//! | `listed` | whether it is still listed |
//! | `error` | why it is `not-an-index`, or why removing it `failed`; else null |

use serde_json::{Value, json};

use crate::cli::shared::report::in_one_line;
use crate::ops::remove::{Cleared, Fate, Removal};

pub fn document(image: &str, cleared: &[Cleared], dry_run: bool) -> serde_json::Result<String> {
    let manifests: Vec<Value> = cleared.iter().map(manifest).collect();
    let document = json!({"image": image, "dry_run": dry_run, "manifests": manifests});
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn manifest(cleared: &Cleared) -> Value {
    json!({
        "platform": cleared.platform.as_ref().map(ToString::to_string),
        "manifest": {"digest": cleared.manifest},
        "version_2": cleared.version_2,
        "indexes": cleared.indexes.iter().map(index).collect::<Vec<_>>(),
    })
}

fn index(removal: &Removal) -> Value {
    let (status, listed, error) = match &removal.fate {
        Fate::Removed => ("removed", false, None),
        Fate::WouldRemove => ("would-remove", true, None),
        Fate::OfAnother => ("kept", true, None),
        Fate::NotAnIndex(why) => ("not-an-index", true, Some(in_one_line(why))),
        Fate::Failed { source, unlisted } => ("failed", !unlisted, Some(in_one_line(source))),
    };
    json!({"digest": removal.index, "tool": removal.tool, "status": status, "listed": listed, "error": error})
}
