//! Checks that nothing that is listed is incomplete, in a registry and in layouts.

use std::collections::BTreeSet;

use ociseek_format::digest::Digest;
use serde_json::Value;

use ociseek_testkit::faulty::Faulty;
use ociseek_testkit::sandbox::Sandbox;

/// Checks that nothing is missing that tags and lists of referrers lead to, down to blobs.
pub fn whole(registry: &Faulty) -> Result<(), String> {
    let manifests = registry.manifests();
    let mut left: Vec<String> =
        manifests.keys().filter(|reference| !reference.contains(':')).cloned().collect();
    if registry.has_referrers() {
        let has_subject = |bytes: &[u8]| {
            serde_json::from_slice::<Value>(bytes).unwrap_or_default()["subject"]["digest"]
                .is_string()
        };
        left.extend(
            manifests
                .iter()
                .filter(|(_, bytes)| has_subject(bytes))
                .map(|(reference, _)| reference.clone()),
        );
    }
    let mut seen = BTreeSet::new();
    while let Some(reference) = left.pop() {
        if !seen.insert(reference.clone()) {
            continue;
        }
        let bytes =
            manifests.get(&reference).ok_or_else(|| format!("manifest {reference} is missing"))?;
        let document: Value =
            serde_json::from_slice(bytes).map_err(|e| format!("{reference}: {e}"))?;
        let digests = |value: &Value| {
            let entries: Vec<Value> = match value {
                Value::Array(entries) => entries.clone(),
                Value::Null => Vec::new(),
                one => vec![one.clone()],
            };
            entries
                .into_iter()
                .filter_map(|entry| Some(entry["digest"].as_str()?.to_owned()))
                .collect::<Vec<_>>()
        };
        left.extend(digests(&document["manifests"]));
        left.extend(digests(&document["subject"]));
        for blob in digests(&document["layers"]).into_iter().chain(digests(&document["config"])) {
            let digest: Digest = blob.parse().map_err(|e| format!("{blob}: {e}"))?;
            let content = registry
                .blob(&digest)
                .ok_or_else(|| format!("blob {blob} of {reference} is missing"))?;
            if Digest::sha256(&content) != digest {
                return Err(format!("blob {blob} of {reference} is damaged"));
            }
        }
    }
    Ok(())
}

/// The entries of a layout's index.json.
pub fn listed(sandbox: &Sandbox, layout: &str) -> Result<Vec<Value>, String> {
    let index = std::fs::read(sandbox.path(layout).join("index.json"))
        .map_err(|e| format!("index.json: {e}"))?;
    let index: Value = serde_json::from_slice(&index).map_err(|e| format!("index.json: {e}"))?;
    Ok(index["manifests"].as_array().cloned().unwrap_or_default())
}

/// Checks that nothing is missing that a layout's index.json leads to, if there is one. The layout
/// `img` always has one.
pub fn layouts_whole(sandbox: &Sandbox) -> Result<(), String> {
    for layout in ["img", "out"] {
        if !sandbox.path(layout).join(if layout == "img" { "" } else { "index.json" }).exists() {
            continue;
        }
        let mut left = listed(sandbox, layout)?;
        while let Some(entry) = left.pop() {
            let digest = entry["digest"].as_str().unwrap_or_default();
            let digest: Digest = digest.parse().map_err(|e| format!("{layout}: {e}"))?;
            let path = sandbox.path(layout).join("blobs/sha256").join(digest.hex());
            let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            if Digest::sha256(&bytes) != digest {
                return Err(format!("{layout}: {digest} is damaged"));
            }
            let kind = entry["mediaType"].as_str().unwrap_or_default();
            if kind.contains("manifest") || kind.contains("image.index") {
                let document: Value =
                    serde_json::from_slice(&bytes).map_err(|e| format!("{digest}: {e}"))?;
                let lists = ["manifests", "layers"]
                    .map(|key| document[key].as_array().cloned().unwrap_or_default());
                let one = |key: &str| document[key].is_object().then(|| document[key].clone());
                left.extend(lists.concat().into_iter().chain(one("config")));
            }
        }
    }
    Ok(())
}
