//! The GitLab component.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::{release_archive, releases, root, yaml};
use ociseek_testkit::sandbox::{Sandbox, program, shown};
use ociseek_testkit::servers::{self, Server, copied_by_skopeo, tool};
use yaml_rust2::{Yaml, YamlLoader};

/// Runs the component's job with these inputs, as GitLab does: replaces `$[[ ... ]]`, and passes
/// the script to a shell.
fn gitlab(sandbox: &Sandbox, inputs: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
    let text = std::fs::read_to_string(root().join("templates/ociseek.yml")).unwrap();
    let spec = yaml("templates/ociseek.yml").remove(0);
    let (_, job) = text.split_once("\n---\n").unwrap();
    let mut job = job.to_owned();
    for (name, input) in spec["spec"]["inputs"].as_hash().unwrap() {
        let name = name.as_str().unwrap();
        let default = match &input["default"] {
            Yaml::Boolean(value) => Some(value.to_string()),
            value => value.as_str().map(str::to_owned),
        };
        let given =
            inputs.iter().find(|(given, _)| *given == name).map(|(_, value)| (*value).to_owned());
        let kind = || (name == "kind").then(|| "v1".to_owned());
        let value = given.or(default).or_else(kind).unwrap_or_else(|| panic!("{name} is required"));
        let place = format!("$[[ inputs.{name} ]]");
        assert!(job.contains(&place), "{name} is not used");
        job = job.replace(&place, &value);
    }
    assert!(!job.contains("$[["), "{job}");
    let job = &YamlLoader::load_from_str(&job).unwrap()[0]["ociseek"];
    assert_eq!(job["stage"].as_str(), Some("deploy"));
    let script: Vec<&str> =
        job["script"].as_vec().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let programs = Path::new(program()).parent().unwrap().display().to_string();
    let mut command = Command::new("sh");
    command.args(["-c", &script.join("\n")]).current_dir(sandbox.dir.path()).env_clear();
    command
        .env("HOME", sandbox.dir.path())
        .env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap()));
    for (name, value) in job["variables"].as_hash().unwrap() {
        command.env(name.as_str().unwrap(), value.as_str().unwrap());
    }
    let text = shown(command.envs(variables.iter().copied()));
    let dotenv = job["artifacts"]["reports"]["dotenv"].as_str().unwrap();
    assert!(sandbox.path(dotenv).exists(), "{text}");
    text
}

#[test]
fn the_component_uses_the_login_of_the_job() {
    let Some(line) = servers::htpasswd("gitlab-ci-token", "s3cret") else { return };
    let sections = |dir: &Path| {
        std::fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let Some(server) = Server::distribution("127.0.0.1:0", sections) else { return };
    let sandbox = Sandbox::with_two_platforms();
    let image = format!("{}/a/b:v1", server.host);
    let login = ["--dest-creds=gitlab-ci-token:s3cret"];
    let Some(()) = copied_by_skopeo(&sandbox.path("img"), &image, &login) else { return };
    let login = [
        ("CI_REGISTRY", server.host.as_str()),
        ("CI_REGISTRY_USER", "gitlab-ci-token"),
        ("CI_REGISTRY_PASSWORD", "s3cret"),
    ];
    let inputs = [
        ("image", image.as_str()),
        ("min-layer-size", "0"),
        ("strict", "true"),
        ("min-coverage", "90%"),
        ("kind", "v1,v2={digest}-soci"),
    ];
    let text = gitlab(&sandbox, &inputs, &login);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    let dotenv = std::fs::read_to_string(sandbox.path("ociseek.env")).unwrap();
    assert!(
        dotenv.contains("ociseek_status=ok\n") && dotenv.contains("ociseek_index_digest=sha256:"),
        "{dotenv}"
    );
    assert!(dotenv.contains("ociseek_enabled_digest=sha256:"), "{dotenv}");
    // Beside an image of another registry, the login is not passed on: the program would not know
    // which of them may get it.
    let both = format!("{image} oci:img:v1");
    let mixed = [&[("image", both.as_str())], &inputs[1..4]].concat();
    let text = gitlab(&sandbox, &mixed, &login);
    assert!(text.contains(&format!("run docker login {}", server.host)), "{text}");
    // Without the login it fails with a hint to log in, and keeps no digest of an earlier run.
    let text = gitlab(&sandbox, &inputs, &[]);
    assert!(
        text.contains(&format!("run docker login {}", server.host))
            && text.ends_with("--- status 1 ---"),
        "{text}"
    );
    let dotenv = std::fs::read_to_string(sandbox.path("ociseek.env")).unwrap();
    assert!(dotenv.contains("ociseek_status=failed\n") && !dotenv.contains("sha256:"), "{dotenv}");
}

#[test]
fn the_images_of_the_component_are_words() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("abc"), "").unwrap();
    for (images, shown) in [("*", "*"), ("a?c", "a?c"), ("$(touch pwned)", "$(touch")] {
        let text = gitlab(&sandbox, &[("image", images)], &[]);
        assert!(text.contains(shown) && !text.ends_with("--- status 0 ---"), "{images}: {text}");
        assert!(!text.contains("abc") && !sandbox.path("pwned").exists(), "{images}: {text}");
    }
}

#[test]
fn the_component_verifies_the_checksum_of_its_download() {
    if tool("curl").is_none() {
        return;
    }
    let sandbox = Sandbox::with_small_image();
    let archive = release_archive(&sandbox);
    let sum = ociseek_format::digest::Digest::sha256(&archive).hex();
    let url = releases(BTreeMap::from([("/o.tar.gz".to_owned(), archive)])) + "/o.tar.gz";
    let inputs = |sum| {
        [("image", "oci:img"), ("min-layer-size", "0"), ("download", url.as_str()), ("sha256", sum)]
    };
    let text = gitlab(&sandbox, &inputs(&sum), &[]);
    assert!(text.contains("ociseek.tar.gz: OK") && text.ends_with("--- status 0 ---"), "{text}");
    std::fs::remove_file(sandbox.path("ociseek.outputs")).unwrap();
    let text = gitlab(&sandbox, &inputs("0000"), &[]);
    assert!(
        !text.ends_with("--- status 0 ---") && !sandbox.path("ociseek.outputs").exists(),
        "{text}"
    );
}
