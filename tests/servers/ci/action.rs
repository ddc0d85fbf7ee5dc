//! The GitHub action.

use std::collections::BTreeMap;
use std::process::Command;

use super::{REDIRECT, release_archive, releases, root, yaml};
use ociseek_testkit::sandbox::{Sandbox, program, small_image};
use ociseek_testkit::servers::{Server, copied_by_skopeo, tool};
use yaml_rust2::Yaml;

/// Runs the GitHub action like a runner.
struct Action {
    document: Yaml,
    /// What `${{ ... }}` stands for.
    context: BTreeMap<String, String>,
    sandbox: Sandbox,
    /// Variables of the runner.
    variables: Vec<(&'static str, String)>,
}

impl Action {
    fn new(inputs: &[(&str, &str)]) -> Action {
        let document = yaml("action.yml").remove(0);
        let mut context = BTreeMap::new();
        for (name, input) in document["inputs"].as_hash().unwrap() {
            let name = name.as_str().unwrap();
            assert!(input["description"].as_str().is_some(), "{name}");
            let given = inputs.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
            let kind = || (name == "kind").then_some("v1");
            let value = given
                .or(input["default"].as_str())
                .or_else(kind)
                .unwrap_or_else(|| panic!("{name} is required"));
            context.insert(format!("inputs.{name}"), value.to_owned());
        }
        for (given, _) in inputs {
            assert!(
                context.contains_key(&format!("inputs.{given}")),
                "the action has no input {given}"
            );
        }
        context.insert("github.action_repository".into(), "acme/ociseek".into());
        context.insert("github.token".into(), "a-token".into());
        Action { document, context, sandbox: Sandbox::new(), variables: Vec::new() }
    }

    /// The text of both streams, and whether all steps succeeded.
    fn run(&mut self) -> (bool, String) {
        let mut all = String::new();
        let steps = self.document["runs"]["steps"].as_vec().unwrap().clone();
        for (number, step) in steps.iter().enumerate() {
            let file = self.sandbox.path(&format!("step-{number}.sh"));
            let script = step["run"].as_str().unwrap();
            assert!(
                !script.contains("${{"),
                "an expression in a script is code for whoever names an image"
            );
            std::fs::write(&file, script).unwrap();
            assert_eq!(step["shell"].as_str(), Some("bash"));
            let outputs = self.sandbox.path(&format!("outputs-{number}"));
            std::fs::write(&outputs, "").unwrap();
            // As the runner calls bash.
            let mut command = Command::new("bash");
            command.args(["--noprofile", "--norc", "-e", "-o", "pipefail"]).arg(&file);
            command.current_dir(self.sandbox.dir.path()).env_clear();
            command
                .env("PATH", std::env::var("PATH").unwrap())
                .env("HOME", self.sandbox.dir.path());
            command.env("RUNNER_TEMP", self.sandbox.dir.path()).env("GITHUB_OUTPUT", &outputs);
            command.env("GITHUB_STEP_SUMMARY", self.sandbox.path("summary.md"));
            command.env("GITHUB_ACTION_PATH", root());
            command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
            for (name, value) in step["env"].as_hash().unwrap() {
                command.env(name.as_str().unwrap(), self.evaluated(value.as_str().unwrap()));
            }
            let output = command.output().unwrap();
            all += &String::from_utf8_lossy(&output.stdout);
            all += &String::from_utf8_lossy(&output.stderr);
            let id = step["id"].as_str().unwrap();
            for line in std::fs::read_to_string(&outputs).unwrap().lines() {
                let (name, value) = line.split_once('=').unwrap();
                self.context.insert(format!("steps.{id}.outputs.{name}"), value.to_owned());
            }
            if !output.status.success() {
                return (false, all);
            }
        }
        (true, all)
    }

    fn evaluated(&self, text: &str) -> String {
        let expression =
            text.strip_prefix("${{ ").and_then(|text| text.strip_suffix(" }}")).unwrap();
        self.context
            .get(expression)
            .unwrap_or_else(|| panic!("nothing gives {expression}: {:?}", self.context))
            .clone()
    }

    fn output(&self, name: &str) -> String {
        self.evaluated(self.document["outputs"][name]["value"].as_str().unwrap())
    }
}

/// Two platforms in a registry, pushed as CI does it; the name by digest.
fn pushed(server: &Server) -> Option<String> {
    let sandbox = Sandbox::with_two_platforms();
    let digest = sandbox.path("digest");
    let image = format!("{}/a/b:v1", server.host);
    copied_by_skopeo(&sandbox.path("img"), &image, &["--digestfile", digest.to_str().unwrap()])?;
    Some(format!("{}/a/b@{}", server.host, std::fs::read_to_string(digest).unwrap().trim()))
}

#[test]
fn the_action_indexes_the_pushed_image() {
    for server in
        [Server::olareg(|_, _| Vec::new()), Server::distribution("127.0.0.1:0", |_| String::new())]
    {
        let Some(server) = server else { return };
        let Some(image) = pushed(&server) else { return };
        let given = [
            ("image", image.as_str()),
            ("binary", program()),
            ("min-layer-size", "0"),
            ("strict", "true"),
            ("min-coverage", "100%"),
            ("kind", "v1,v2={digest}-soci"),
        ];
        let mut action = Action::new(&given);
        let (done, text) = action.run();
        assert!(done, "{text}");
        assert_eq!(
            (action.output("status"), action.output("coverage")),
            ("ok".into(), "100".into())
        );
        assert!(image.ends_with(&action.output("image-digest")));
        let digests = action.output("index-digests");
        let (first, second) = digests.split_once(',').unwrap();
        assert_eq!(first, action.output("index-digest"));
        // They are there, and a reader finds them.
        let found = Sandbox::new().doctor(&image);
        let listed = [0, 1]
            .map(|n| found["manifests"][n]["indexes"][0]["digest"].as_str().unwrap().to_owned());
        assert_eq!(listed, [first, second]);
        let summary = std::fs::read_to_string(action.sandbox.path("summary.md")).unwrap();
        assert!(
            summary.contains("| linux/amd64 | `sha256:") && summary.contains("attached | 100% of"),
            "{summary}"
        );
        // The SOCI-enabled image is there too, under the tag that was asked for.
        let tag = format!("{}-soci", &action.output("image-digest")["sha256:".len()..][..12]);
        let enabled = format!("{}:{tag}", image.rsplit_once('@').unwrap().0);
        let by_digest =
            format!("{}@{}", enabled.rsplit_once(':').unwrap().0, action.output("enabled-digest"));
        let found = [&enabled, &by_digest].map(|name| Sandbox::new().doctor(name));
        assert_eq!(found[0]["manifests"], found[1]["manifests"]);
        assert_eq!(found[0]["manifests"].as_array().unwrap().len(), 2);
        assert!(
            summary.contains(&format!("- SOCI-enabled image `{enabled}` `sha256:")),
            "{summary}"
        );

        // An index that lacks layers is not sufficient.
        Sandbox::new().run(&[
            "index",
            "--no-cache",
            "--existing=replace",
            "--min-layer-size=100KiB",
            &image,
        ]);
        let gate = [("min-layer-size", "1KiB"), ("min-coverage", "90%"), ("existing", "keep")];
        let mut action = Action::new(&[&[("image", image.as_str()), given[1]], &gate[..]].concat());
        let (done, text) = action.run();
        assert!(!done && text.contains("less than 90%"), "{text}");
        assert_eq!(action.output("status"), "failed");
    }
}

#[test]
fn the_action_takes_several_images_and_ignores_options_in_their_names() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let Some(image) = pushed(&server) else { return };
    let binary = ("binary", program());
    let both = format!("\n  {image}\n  {}/a/b:v1\n", server.host);
    let mut action = Action::new(&[
        ("image", &both),
        binary,
        ("platform", "linux/arm64"),
        ("min-layer-size", "0"),
    ]);
    let (done, text) = action.run();
    assert!(done, "{text}");
    assert_eq!(action.output("index-digests").split(',').count(), 2);
    for wrong in ["--help", "$(touch pwned)", "*", " "] {
        let mut action = Action::new(&[("image", wrong), binary]);
        let (done, text) = action.run();
        assert!(!done && !action.sandbox.path("pwned").exists(), "{wrong}: {text}");
    }
    let (done, text) = Action::new(&[("image", &image), binary, ("kind", "")]).run();
    assert!(
        !done && text.contains("::error::kind: say what to make, such as v2={tag}-soci"),
        "{text}"
    );
    let (done, text) = Action::new(&[("image", &image), ("binary", "no/such/program")]).run();
    assert!(
        !done && text.contains("::error::binary: cannot find the program no/such/program"),
        "{text}"
    );
}

#[test]
fn no_other_word_than_false_turns_a_gate_off() {
    let binary = ("binary", program());
    for (input, word) in ["strict", "verify-provenance"]
        .into_iter()
        .flat_map(|input| ["True", "yes", "1", "on", "", " true"].map(|w| (input, w)))
        // An empty word for this one verifies.
        .filter(|one| *one != ("verify-provenance", ""))
    {
        let mut action = Action::new(&[("image", "oci:none"), binary, (input, word)]);
        let (done, text) = action.run();
        assert!(
            !done && text.contains(&format!("::error::{input}: expected true or false")),
            "{word:?}: {text}"
        );
    }
}

/// A `gh` in the sandbox that records its arguments and whether it got the token.
fn fake_gh(action: &mut Action, status: i32) {
    std::fs::create_dir(action.sandbox.path("bin")).unwrap();
    let script = format!("echo \"$GH_TOKEN $*\" >> \"$HOME/gh\"\nexit {status}");
    action.sandbox.script("bin/gh", &script);
    let path =
        format!("{}:{}", action.sandbox.path("bin").display(), std::env::var("PATH").unwrap());
    action.variables.push(("PATH", path));
}

#[test]
fn the_action_downloads_the_release_of_its_commit_and_verifies_it() {
    if tool("curl").is_none() {
        return;
    }
    let file = format!("ociseek-{}-unknown-linux-musl.tar.gz", std::env::consts::ARCH);
    let archive = release_archive(&Sandbox::new());
    let sum = |bytes: &[u8]| {
        format!("{}  {file}\n", ociseek_format::digest::Digest::sha256(bytes).hex()).into_bytes()
    };
    let at = |place: &str, name: &str| format!("/acme/ociseek/releases/{place}/{name}");
    let checksum = format!("{file}.sha256");
    let own = format!("download/v{}", env!("CARGO_PKG_VERSION"));
    let mut files = BTreeMap::from([
        (at("download/v6.6.6", &file), archive.clone()),
        (at("download/v6.6.6", &checksum), sum(b"another")),
    ]);
    for place in [own.as_str(), "download/v7.0.0", "download/v1.2.3", "download/v1.2.3-rc.1"] {
        files.insert(at(place, &file), archive.clone());
        files.insert(at(place, &checksum), sum(&archive));
    }
    let latest = format!("{REDIRECT}/acme/ociseek/releases/tag/v7.0.0");
    files.insert("/acme/ociseek/releases/latest".into(), latest.into_bytes());
    // Where curl gets to from a version that leaves its place.
    files.insert(format!("/evil/repo/releases/download/v1/{file}"), archive.clone());
    files.insert(format!("/evil/repo/releases/download/v1/{checksum}"), sum(&archive));
    let server = releases(files);
    let image = Sandbox::new();
    small_image(&image.path("img"));
    let name = format!("oci:{}", image.path("img").display());
    let run = |version: &str, provenance: &str, gh: i32| {
        let inputs = [("image", name.as_str()), ("version", version), ("min-layer-size", "0")];
        let mut action = Action::new(&[&inputs[..], &[("verify-provenance", provenance)]].concat());
        action.variables = vec![("GITHUB_SERVER_URL", server.clone())];
        fake_gh(&mut action, gh);
        let (done, text) = action.run();
        let calls = std::fs::read_to_string(action.sandbox.path("gh")).unwrap_or_default();
        (done, text, calls)
    };
    let own_tag = format!("v{}", env!("CARGO_PKG_VERSION"));
    for (version, tag) in [
        ("", own_tag.as_str()),
        ("latest", "v7.0.0"),
        ("1.2.3", "v1.2.3"),
        ("v1.2.3", "v1.2.3"),
        ("v1.2.3-rc.1", "v1.2.3-rc.1"),
    ] {
        let (done, text, calls) = run(version, "true", 0);
        assert!(done, "{version}: {text}");
        // An older archive that is attested too must not pass.
        let want = format!(
            "--repo acme/ociseek --deny-self-hosted-runners --source-ref refs/tags/{tag} \
             --signer-workflow acme/ociseek/.github/workflows/release.yml"
        );
        assert!(
            calls.starts_with("a-token attestation verify /") && calls.trim_end().ends_with(&want),
            "{calls}"
        );
    }
    for (version, why) in [
        ("v6.6.6", "does not match its checksum"),
        ("v9.9.9", "::error::cannot download"),
        (
            "v1/../../../../../evil/repo/releases/download/v1",
            "::error::version: expected a release",
        ),
        ("v1.2.3/..", "::error::version: expected a release"),
        ("v1.2.3?x", "::error::version: expected a release"),
        ("main", "::error::version: expected a release"),
        ("v1.2.3\nv1", "::error::version: expected a release"),
    ] {
        let (done, text, calls) = run(version, "true", 0);
        assert!(
            !done && text.contains(why) && !text.contains("index sha256") && calls.is_empty(),
            "{version}: {text}"
        );
    }
    let (done, text, _) = run("", "true", 1);
    assert!(
        !done && text.contains("::error::the provenance of") && !text.contains("index sha256"),
        "{text}"
    );
    let (done, text, calls) = run("", "false", 1);
    assert!(done && calls.is_empty(), "{text}{calls}");
    // The action's own version is what the release workflow compares with the tag.
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let first = manifest.lines().find_map(|line| line.strip_prefix("version = \"")).unwrap();
    assert_eq!(first.trim_end_matches('"'), env!("CARGO_PKG_VERSION"));
}
