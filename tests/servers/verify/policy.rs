//! Requirements of a policy for an index, from options and from a file.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::image::{Image, QUICK, codes};
use ociseek_testkit::sandbox::{Sandbox, index};

/// The results of the rules for the only index.
fn rulings(document: &Value) -> &Vec<Value> {
    let indexes = document["manifests"][0]["indexes"].as_array().unwrap();
    assert_eq!(indexes.len(), 1, "{document}");
    indexes[0]["policy"].as_array().unwrap()
}

/// Verifies the image by spans. The run must end with `status`.
fn judged(image: &Image, status: i32, more: &[&str]) -> Value {
    image.verify(status, &[&QUICK[..], more].concat())
}

fn hundredths(share: u64) -> String {
    format!("{}.{:02}%", share / 100, share % 100)
}

#[test]
fn coverage_is_computed_as_by_index() {
    let image = Image::new();
    let sizes: Vec<u64> = image.layers.iter().map(|layer| image.read(layer).len() as u64).collect();
    let share = sizes[..3].iter().sum::<u64>() * 10_000 / sizes.iter().sum::<u64>();
    let covered = |least: &str, smallest: &str, status: i32| {
        let document =
            judged(&image, status, &["--min-coverage", least, "--min-layer-size", smallest]);
        let ruling = &rulings(&document)[0];
        let kept = if status == 0 { "kept" } else { "broken" };
        assert_eq!((&ruling["rule"], &ruling["status"]), (&json!("min-coverage"), &json!(kept)));
        assert_eq!(codes(&document), if status == 0 { vec![] } else { vec!["coverage"] });
        // The same for `index`, which keeps the existing index.
        let args =
            ["index", "--no-cache", "--dry-run", "--span-size=16KiB", "--min-coverage", least];
        let output = image.sandbox.command(
            &[&args[..], &["--min-layer-size", smallest, "--existing=keep", "oci:img:v1"]].concat(),
        );
        let output = { output }.output().unwrap();
        assert_eq!(
            output.status.success(),
            status == 0,
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    covered(&hundredths(share), "1B", 0);
    covered(&hundredths(share + 1), "1B", 3);
    // The layer that was left out for its size does not count then.
    covered("100%", "1KiB", 0);
}

#[test]
fn a_platform_without_an_index_violates_any_policy() {
    let sandbox = Sandbox::with_two_platforms();
    let policy = ["verify", "--quick", "--format=json", "--min-coverage=0%", "oci:img"];
    let none = sandbox.run(&policy);
    assert!(
        none.contains("has neither a SOCI index nor a fine index")
            && none.ends_with("--- status 1 ---"),
        "{none}"
    );
    sandbox.run(&index(&["--platform=linux/arm64", "oci:img"]));
    let document = sandbox.json(3, &policy);
    assert!(codes(&document).contains(&"no-index".to_owned()), "{document}");
    assert_eq!(document["manifests"][0]["warnings"], json!([]));
    let document = sandbox.json(3, &[&policy[..], &["--platform=linux/arm64"]].concat());
    // The images of this helper have configs without diff IDs, which is a difference too.
    assert_eq!(codes(&document), ["config"]);
}

#[test]
fn every_index_is_judged() {
    let image = Image::unindexed(|_| {});
    image.run_index(&["--build-tool-identifier=whole v1"]);
    // Without the second layer.
    let args = ["index", "--quiet", "--no-cache", "--span-size=16KiB", "--min-layer-size=95KiB"];
    let second = [&args[..], &["--build-tool-identifier=part v1", "oci:img:v1"]].concat();
    assert!(image.sandbox.command(&second).output().unwrap().status.success());
    let indexes = image.indexes();
    let policy = ["--min-coverage=90%", "--min-layer-size=1B"];
    let all = judged(&image, 3, &policy);
    assert_eq!(codes(&all), ["coverage"]);
    let statuses = ["whole v1", "part v1"].map(|tool| {
        let found = all["manifests"][0]["indexes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|index| index["tool"] == tool);
        found.unwrap()["policy"][0]["status"].as_str().unwrap().to_owned()
    });
    assert_eq!(statuses, ["kept", "broken"]);
    let passing = indexes.iter().filter(|index| {
        let index = index.to_string();
        let one = ["verify", "--quick", "--index", &index, "oci:img:v1"];
        image.sandbox.command(&[&one[..], &policy].concat()).output().unwrap().status.success()
    });
    assert_eq!(passing.count(), 1);
}

#[test]
fn the_text_names_the_violation_and_the_remedy() {
    let image = Image::new();
    let index = image.indexes()[0].to_string();
    let args = [
        "verify",
        "--quick",
        "--seed=1",
        "--min-coverage=100%",
        "--min-layer-size=1B",
        "oci:img:v1",
    ];
    let text = image.sandbox.run(&args).replace(&index, "INDEX");
    let masked: Vec<String> = text
        .lines()
        .map(|line| match line.split_once(" (") {
            Some((before, _)) if line.contains("INDEX") || line.contains("layers of") => {
                format!("{before} (…)")
            }
            _ => line.to_owned(),
        })
        .collect();
    assert_snapshot!(masked.join("\n"), @r#"
    oci:img:v1 linux/amd64: index INDEX: 1 violation (…)
      policy min-coverage: violated: 99.97% (…)
        coverage: the index covers 99.97% (…)
        hint: ociseek doctor says why layers are not covered; index again with a smaller --min-layer-size, or lower the requirement
    --- stderr ---
    --- status 3 ---
    "#);
}

#[test]
fn options_take_precedence_over_the_policy_file() {
    let image = Image::new();
    let write = |text: &str| std::fs::write(image.sandbox.path("policy.json"), text).unwrap();
    let by_file =
        |status, more: &[&str]| judged(&image, status, &[&["--policy=policy.json"], more].concat());
    write(r#"{"min_coverage": "100%", "min_layer_size": "1B"}"#);
    let document = by_file(3, &[]);
    let rules: Vec<&Value> = rulings(&document).iter().map(|ruling| &ruling["rule"]).collect();
    assert_eq!(rules, ["min-coverage"]);
    assert_eq!(codes(&document), ["coverage"]);
    by_file(0, &["--min-layer-size=1KiB"]);
    by_file(0, &["--min-coverage=90%"]);
}

#[test]
fn an_invalid_policy_is_an_error() {
    let image = Image::new();
    let fails = |text: &str, why: &str| {
        std::fs::write(image.sandbox.path("policy.json"), text).unwrap();
        let said = image.sandbox.run(&["verify", "--quick", "--policy=policy.json", "oci:img:v1"]);
        assert!(
            said.starts_with("--- stderr ---\nerror: ") && said.ends_with("--- status 1 ---"),
            "{said}"
        );
        assert!(said.contains(why), "{text}: {said}");
    };
    fails("{}", "it has no rule");
    fails(r#"{"min_coverage": "80%", "signed": true}"#, "unknown field `signed`");
    fails(r#"{"signature_keys": []}"#, "signature_keys is empty");
    fails(r#"{"signature_keys": ["absent.pub"]}"#, "absent.pub: cannot read");
    fails(r#"{"signature_certs": ["policy.json"]}"#, "it has no certificate");
    let missing = image.sandbox.run(&["verify", "--quick", "--policy=absent.json", "oci:img:v1"]);
    assert!(
        missing.contains("absent.json: cannot read") && missing.ends_with("--- status 1 ---"),
        "{missing}"
    );
}
