//! What `ociseek verify --format json` prints: one document, of which fields are added but never changed or removed.
//!
//! | field | |
//! |---|---|
//! | `image` | the IMAGE, in full |
//! | `status` | `right` or `different` |
//! | `depth`, `seed` | `full`, or `quick` with the seed that repeats its choice of spans (else null) |
//! | `bytes_read` | bytes of layers and ztocs that were read |
//! | `manifests` | one object for each platform's manifest |
//!
//! A manifest:
//!
//! | field | |
//! |---|---|
//! | `platform` | such as `linux/arm64`; null if the image does not say |
//! | `manifest` | `media_type`, `digest` and `size` in bytes of the image manifest |
//! | `layers` | how many the image has |
//! | `warnings` | what is not wrong, but may come as a surprise |
//! | `differences` | what is wrong with the image itself: `code` (a stable word, see docs/policy.md), `text`, and `next` (what to do, or null) of each thing |
//! | `indexes` | one object for each index; empty if the manifest has none |
//! | `content` | `layers` and `bytes` of their tars that were compared with the config alone, in a `docker-archive:`; else null |
//!
//! An index: `digest`, `version`, `tool` (or null), `differences` of the document itself, and `layers`, each with `layer` and
//! `ztoc` (digests), `tool` (as the ztoc states it, or null), how many `spans` (`of_spans` in all), `entries` and `bytes` of the tar were compared, and `differences`.
//! `policy` has one object for each rule: `rule` (`min-coverage`, `max-ztoc-ratio`, `allow-tool` or `signature`), `status`
//! (`kept` or `broken`), `wanted` and `found` for people, and `violations`, which are like differences. It is empty without a
//! policy, and if the index cannot be used.

use serde_json::{Value, json};

use crate::ops::discover::number;
use crate::ops::verify::policy::Ruling;
use crate::ops::verify::{Depth, Finding, Verified, VerifiedIndex, VerifiedLayer, VerifiedManifest};

pub fn document(image: &str, verified: &Verified, depth: Depth) -> serde_json::Result<String> {
    let seed = match depth {
        Depth::Full => None,
        Depth::Quick { seed, .. } => Some(seed),
    };
    let document = json!({
        "image": image,
        "status": if verified.differences().next().is_none() { "right" } else { "different" },
        "depth": if seed.is_none() { "full" } else { "quick" },
        "seed": seed,
        "bytes_read": verified.bytes_read,
        "manifests": verified.manifests.iter().map(manifest).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn manifest(verified: &VerifiedManifest) -> Value {
    let blob = &verified.manifest;
    json!({
        "platform": verified.platform.as_ref().map(ToString::to_string),
        "manifest": {"media_type": blob.media_type, "digest": blob.digest, "size": blob.size},
        "layers": verified.layers,
        "warnings": verified.warnings,
        "differences": findings(&verified.differences),
        "indexes": verified.indexes.iter().map(index).collect::<Vec<_>>(),
        "content": verified.content.map(|content| json!({"layers": content.layers, "bytes": content.bytes})),
    })
}

fn index(verified: &VerifiedIndex) -> Value {
    json!({
        "digest": verified.digest,
        "version": number(verified.version),
        "tool": verified.tool,
        "differences": findings(&verified.differences),
        "layers": verified.layers.iter().map(layer).collect::<Vec<_>>(),
        "policy": verified.rulings.iter().map(ruling).collect::<Vec<_>>(),
    })
}

fn ruling(ruling: &Ruling) -> Value {
    json!({
        "rule": ruling.rule.to_string(),
        "status": if ruling.violations.is_empty() { "kept" } else { "broken" },
        "wanted": ruling.wanted,
        "found": ruling.found,
        "violations": findings(&ruling.violations),
    })
}

fn layer(verified: &VerifiedLayer) -> Value {
    json!({
        "layer": verified.layer,
        "ztoc": verified.ztoc,
        "tool": verified.tool.as_deref().map(String::from_utf8_lossy),
        "spans": verified.proven.spans,
        "of_spans": verified.proven.of_spans,
        "spans_too_large": verified.proven.too_large,
        "entries": verified.proven.entries,
        "bytes": verified.proven.bytes,
        "differences": findings(&verified.differences),
    })
}

fn findings(findings: &[Finding]) -> Vec<Value> {
    let one = |finding: &Finding| json!({"code": finding.code.word(), "text": finding.text, "next": super::advice(finding.code)});
    findings.iter().map(one).collect()
}
