//! Layers by every compressor and archiver that builds images, and unusual ones of every kind:
//! ociseek must build the same ztocs as soci's library (fixtures/golden, see PROVENANCE.md there),
//! and refuse layers that soci could not serve, with the right reason.

use ociseek_testkit::soci;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ociseek_format::layer::Outcome;
use ociseek_testkit::soci::TOOL;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// The lines of a table in the fixtures, split at tabs.
fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(fixtures().join(name)).expect("the table is there");
    text.lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| l.split('\t').map(String::from).collect())
        .collect()
}

/// The result of indexing a layer: the digest of its ztoc, the code of the refusal, or `error`.
fn outcome(layer: &str, span_size: u64) -> (String, Vec<u8>) {
    match soci::index(&fixtures().join("golden/layers").join(layer), span_size, TOOL) {
        Ok(indexed) => match indexed.outcome {
            Outcome::Ztoc(ztoc) => (ztoc.digest.to_string(), ztoc.bytes),
            Outcome::Unservable(why) => (why.code.to_string(), Vec::new()),
        },
        Err(_) => ("error".into(), Vec::new()),
    }
}

#[test]
fn ztocs_match_soci() {
    let mut compared = 0;
    let mut wrong = Vec::new();
    let refused: BTreeMap<_, _> =
        table("refused.tsv").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    for row in table("golden/expected.tsv") {
        let layer = &row[0];
        let span_size = row[1].parse().expect("a span size");
        let digest = &row[2];
        if digest == "none" || refused.contains_key(layer) {
            continue;
        }
        let (got, bytes) = outcome(layer, span_size);
        if got != *digest {
            wrong.push(format!("{layer}: {got}, soci's is {digest}"));
        }
        if let Ok(theirs) = std::fs::read(fixtures().join(format!("golden/ztocs/{layer}.ztoc"))) {
            assert_eq!(
                ociseek_format::ztoc::decode(&bytes),
                ociseek_format::ztoc::decode(&theirs),
                "{layer}"
            );
            assert_eq!(bytes, theirs, "{layer}: other bytes for the same ztoc");
        }
        compared += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(compared > 250, "only {compared} layers were compared");
}

#[test]
fn unservable_layers_are_refused_with_their_reason() {
    let refused: BTreeMap<_, _> =
        table("refused.tsv").into_iter().map(|row| (row[0].clone(), row[1].clone())).collect();
    let mut got = BTreeMap::new();
    for row in table("golden/expected.tsv") {
        let layer = &row[0];
        let span_size = row[1].parse().expect("a span size");
        if row[2] == "none" || refused.contains_key(layer) {
            got.insert(layer.clone(), outcome(layer, span_size).0);
        }
    }
    let differing: Vec<_> = got
        .iter()
        .filter(|(layer, code)| refused.get(*layer) != Some(*code))
        .map(|(layer, code)| format!("{layer}\t{code}"))
        .collect();
    assert!(differing.is_empty(), "not as in fixtures/refused.tsv:\n{}", differing.join("\n"));
    assert_eq!(got.len(), refused.len(), "fixtures/refused.tsv names layers that are not there");
}
