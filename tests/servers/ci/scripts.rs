//! The release workflow, and the scripts of `.ci`.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{root, yaml};
use ociseek_testkit::sandbox::Sandbox;
use yaml_rust2::Yaml;

/// All scripts of a workflow.
fn scripts(document: &Yaml) -> Vec<String> {
    let jobs = document["jobs"].as_hash().unwrap().values();
    let steps = jobs.flat_map(|job| job["steps"].as_vec().unwrap());
    steps.filter_map(|step| step["run"].as_str()).map(str::to_owned).collect()
}

/// What the attestations of provenance are for.
fn text_of_subjects(workflow: &Yaml) -> String {
    let steps = workflow["jobs"]["attest"]["steps"].as_vec().unwrap().iter();
    let uses = |step: &&Yaml| {
        step["uses"].as_str().is_some_and(|uses| uses.contains("/attest-build-provenance@"))
    };
    let keys = ["subject-path", "subject-digest"];
    let subjects = steps
        .filter(uses)
        .flat_map(|step| keys.map(|key| step["with"][key].as_str().unwrap_or_default()));
    subjects.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_release_workflow_is_consistent() {
    let workflow = yaml(".github/workflows/release.yml").remove(0);
    let all = scripts(&workflow);
    assert!(all.len() >= 6, "{all:?}");
    for script in &all {
        assert!(!script.contains("${{"), "{script}");
        let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(bash.wait().unwrap().success(), "{script}");
    }
    // Each permission is only given to one job. Who can sign runs nothing that others wrote, and
    // compiles nothing.
    assert!(workflow["permissions"].as_hash().unwrap().is_empty());
    for (name, job) in workflow["jobs"].as_hash().unwrap() {
        let permissions = job["permissions"].as_hash().unwrap();
        let writes = |what: &str| permissions.get(&Yaml::String(what.into())).is_some();
        let steps = job["steps"].as_vec().unwrap();
        let runs: Vec<&str> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
        for script in &runs {
            let is_foreign = ["cargo", "pip install", "npm", "apt-get", "packaging/"]
                .iter()
                .any(|word| script.contains(word));
            assert!(!(is_foreign && writes("id-token")), "{name:?}: {script}");
        }
        assert_eq!(writes("id-token"), name.as_str() == Some("attest"), "{name:?}");
    }
    // Actions and the base image are named by their content.
    let workflows = std::fs::read_dir(root().join(".github/workflows")).unwrap();
    let text: String = workflows
        .map(|workflow| std::fs::read_to_string(workflow.unwrap().path()).unwrap())
        .collect();
    let uses = text.lines().filter_map(|line| line.split_once("uses: "));
    let uses: Vec<&str> = uses.map(|(_, used)| used).collect();
    assert!(uses.len() > 10, "{uses:?}");
    for used in uses {
        let (_, commit) = used.split_once('@').unwrap();
        let (commit, version) = commit.split_once(" # v").unwrap();
        let is_hex = commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(commit.len() == 40 && is_hex && !version.is_empty(), "{used}");
    }
    let text = std::fs::read_to_string(root().join("Containerfile")).unwrap();
    let bases: Vec<&str> = text.lines().filter(|line| line.starts_with("FROM ")).collect();
    assert!(bases.iter().all(|base| base.contains("@sha256:") || *base == "FROM scratch"));
    // All that is published is attested.
    let attested = text_of_subjects(&workflow);
    for kind in ["*.tar.gz", "*.whl", "*.deb", "*.cdx.json", "needs.image.outputs.digest"] {
        assert!(attested.contains(kind), "{kind}: {attested}");
    }
    // The packed files are those that the action downloads.
    let pack = all.iter().find(|script| script.contains("tar --sort")).unwrap();
    assert!(pack.contains("dist/ociseek-$TARGET.tar.gz"));
    assert!(all.iter().any(|script| script.contains("$file.sha256")));
    // The commands in it exist.
    for command in [&["version"][..], &["completions", "bash"], &["man", "--output", "man"]] {
        assert!(Sandbox::new().command(command).output().unwrap().status.success(), "{command:?}");
    }
}

/// Programs that only record their arguments, to replace those that install.
fn recording(sandbox: &Sandbox, names: &[&str]) -> String {
    std::fs::create_dir(sandbox.path("fake")).unwrap();
    for name in names {
        // Go's tools are renamed after installation.
        let script = "echo \"${0##*/} $*\" >>\"$HOME/calls\"\n[ -z \"${GOBIN:-}\" ] || touch \"$GOBIN/registry\"";
        sandbox.script(&format!("fake/{name}"), script);
    }
    format!("{}:{}", sandbox.path("fake").display(), std::env::var("PATH").unwrap())
}

/// Runs `.ci/test` in an empty home, with `answer` on a terminal if there is one. Returns its
/// output, its status, and the programs it called.
fn tests_begun(answer: Option<&str>) -> (String, bool, String) {
    let sandbox = Sandbox::new();
    let path = recording(&sandbox, &["apt-get", "go", "python3", "cargo", "debootstrap"]);
    let script = root().join(".ci/test");
    // Not root: parts that cannot be set up are skipped.
    sandbox.script("fake/id", "echo 1000");
    let mut command = match answer {
        None => Command::new(&script),
        Some(_) => {
            // A terminal from util-linux's `script`.
            let mut command = Command::new("script");
            command.args([
                "--quiet",
                "--return",
                "--command",
                script.to_str().unwrap(),
                "/dev/null",
            ]);
            command
        }
    };
    command.env_clear().env("PATH", path).env("HOME", sandbox.dir.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(answer.unwrap_or_default().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let calls = std::fs::read_to_string(sandbox.path("calls")).unwrap_or_default();
    (String::from_utf8(output.stdout).unwrap().replace('\r', ""), output.status.success(), calls)
}

#[test]
fn the_tests_say_what_they_install_and_ask_first() {
    let plan = "The tests want what this machine lacks. This will be set up:\n  \
        pip install moto_server cargo-lambda (into ";
    let (said, passed, calls) = tests_begun(Some("n\n"));
    assert!(
        said.contains(plan)
            && said.contains("\n  go build olareg ")
            && said.contains("Go on? [y/N]"),
        "{said}"
    );
    assert!(
        said.ends_with("names what it leaves out.\n") && !passed && calls.is_empty(),
        "{said}{calls}"
    );
    let (said, passed, calls) = tests_begun(Some("y\n"));
    assert!(passed && said.contains("tools: ready"), "{said}{calls}");
    for ran in [
        " --no-fail-fast --test servers -- --test-threads=",
        " --no-fail-fast --test system -- ",
        " --no-fail-fast --workspace --lib --bins --test cli --test pure -- ",
        "cargo test --workspace --doc\n",
    ] {
        assert!(calls.contains(ran), "{ran}: {calls}");
    }
    // Without a terminal, it prints the same.
    let (said, passed, calls) = tests_begun(None);
    assert!(passed && said.starts_with(plan) && !said.contains("Go on?"), "{said}");
    assert!(
        calls.contains("go install ") && calls.contains(" --no-fail-fast --test system -- "),
        "{calls}"
    );
}

#[test]
fn the_help_of_the_tests_installs_nothing() {
    for option in ["--help", "--plan", "--wrong"] {
        let sandbox = Sandbox::new();
        let path = recording(&sandbox, &["apt-get", "go", "python3", "cargo", "debootstrap"]);
        let mut command = Command::new(root().join(".ci/test"));
        let output = command
            .arg(option)
            .env_clear()
            .env("PATH", path)
            .env("HOME", sandbox.dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            output.status.code(),
            Some(if option == "--wrong" { 2 } else { 0 }),
            "{option}: {said}"
        );
        assert_eq!(said.contains("--setup"), option == "--help", "{option}: {said}");
        assert_eq!(said.contains("\n  go build olareg "), option != "--wrong", "{option}: {said}");
        assert!(
            !sandbox.path("calls").exists() && !sandbox.path(".cache").exists(),
            "{option} installs"
        );
    }
}

#[test]
fn the_size_of_the_program_is_limited() {
    let sandbox = Sandbox::new();
    let text = std::fs::read_to_string(root().join(".ci/size")).unwrap();
    let limit: u64 =
        text.lines().find_map(|line| line.strip_prefix("limit=")).unwrap().parse().unwrap();
    for (size, passes) in [(limit, true), (limit + 1, false)] {
        let file = std::fs::File::create(sandbox.path("program")).unwrap();
        file.set_len(size).unwrap();
        let output =
            Command::new(root().join(".ci/size")).arg(sandbox.path("program")).output().unwrap();
        assert_eq!(output.status.success(), passes);
        assert!(String::from_utf8_lossy(&output.stdout).contains(&size.to_string()));
    }
}
