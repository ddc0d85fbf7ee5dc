//! What `ociseek doctor --format json` prints: one document, of which fields are added but never changed or removed.
//!
//! | field | |
//! |---|---|
//! | `image` | the IMAGE, in full |
//! | `lazy` | whether at least one consumer uses an index, on at least one platform |
//! | `manifests` | one object for each platform's manifest |
//!
//! A manifest:
//!
//! | field | |
//! |---|---|
//! | `platform` | such as `linux/arm64`; null if the image does not say |
//! | `manifest` | digest of the image manifest |
//! | `consumers` | one object for each consumer |
//! | `findings` | `code` (a stable word), `problem` (or only worth knowing), `text`, `next` (a command or advice, or null) |
//!
//! A consumer:
//!
//! | field | |
//! |---|---|
//! | `consumer` | a stable word, such as `soci-snapshotter-v1-enabled` |
//! | `name` | for people |
//! | `lazy` | whether it uses an index |
//! | `index`, `version`, `layers`, `of_layers`, `percent` | the index that it uses and what that covers; null if none |
//! | `reason` | null, or `code` (a stable word) and `text`: why it mounts no layer lazily |
//! | `source` | where it is written down what the consumer does |

use serde_json::{Value, json};

use super::next::{next, platform};
use crate::ops::discover::number;
use crate::ops::doctor::{Consumer, Diagnosis, Verdict};

pub fn document(image: &str, found: &[Diagnosis]) -> serde_json::Result<String> {
    let document = json!({
        "image": image,
        "lazy": found.iter().any(|one| one.verdicts.any_lazy()),
        "manifests": found.iter().map(|one| manifest(image, one)).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn manifest(image: &str, found: &Diagnosis) -> Value {
    let platform = platform(found);
    let findings = found.findings.iter().map(|finding| {
        json!({
            "code": finding.code(),
            "problem": finding.is_problem(),
            "text": finding.to_string(),
            "next": next(finding, image, &platform),
        })
    });
    json!({
        "platform": found.inspected.image.platform.as_ref().map(ToString::to_string),
        "manifest": found.inspected.image.manifest.digest,
        "consumers": found.verdicts.iter().map(|(who, verdict)| consumer(who, verdict)).collect::<Vec<_>>(),
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn consumer(consumer: Consumer, verdict: Verdict) -> Value {
    let (index, coverage, reason) = match verdict {
        Verdict::Lazy { index, version, coverage } => (Some((index, version)), Some(coverage), None),
        Verdict::Whole(reason) => (None, None, Some(reason)),
    };
    json!({
        "consumer": consumer.code(),
        "name": consumer.name(),
        "lazy": index.is_some(),
        "index": index.map(|(digest, _)| digest),
        "version": index.map(|(_, version)| number(version)),
        "layers": coverage.map(|c| c.layers),
        "of_layers": coverage.map(|c| c.of_layers),
        "percent": coverage.map(|c| c.share().percent()),
        "reason": reason.map(|reason| json!({"code": reason.code(), "text": reason.to_string()})),
        "source": consumer.source(),
    })
}
