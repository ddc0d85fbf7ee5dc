//! `ociseek index` on layouts and archives.

mod again;
mod failures;
mod images;
mod options;
mod report;

use ociseek_testkit::sandbox::Sandbox;
use serde_json::Value;

fn referrers(sandbox: &Sandbox, layout: &str) -> Vec<Value> {
    let index: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path(layout).join("index.json")).unwrap())
            .unwrap();
    let manifests = index["manifests"].as_array().unwrap().iter();
    manifests
        .filter(|m| m["artifactType"] == "application/vnd.amazon.soci.index.v1+json")
        .cloned()
        .collect()
}
