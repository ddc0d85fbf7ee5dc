//! Logins stored by other tools are found: real clients log in, and ociseek pushes.

use std::path::Path;
use std::process::Command;

use serde_json::json;

use ociseek_format::image::Reference;
use ociseek_store::blob::Target;
use ociseek_store::registry::{Client, ClientConfig, CredentialProviders, CredentialSource};

use super::push;
use crate::support::sandbox::{Sandbox, index, shown, two_platforms};
use crate::support::servers::{Server, htpasswd, tool};

/// A registry that requires `u` and `s3cret`, and an image in it.
fn locked() -> Option<(Server, Sandbox, String)> {
    let line = htpasswd("u", "s3cret")?;
    let sections = |dir: &Path| {
        std::fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let server = Server::distribution("127.0.0.1:0", sections)?;
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    let image = push(&sandbox, "img", &server, &["--dest-creds=u:s3cret"])?;
    Some((server, sandbox, image))
}

/// Runs `index` with these variables, and returns its output.
fn indexed(sandbox: &Sandbox, image: &str, variables: &[(&str, &str)]) -> String {
    let mut command = sandbox.command(&index(&["--existing=replace", image]));
    command.env("PATH", std::env::var("PATH").unwrap());
    shown(command.envs(variables.iter().copied()))
}

#[test]
fn logins_of_docker_and_podman_are_used() {
    let Some((server, sandbox, image)) = locked() else { return };
    let (Some(crane), Some(skopeo)) = (tool("crane"), tool("skopeo")) else { return };
    assert!(indexed(&sandbox, &image, &[]).ends_with("--- status 1 ---"), "nobody logged in");
    let dir = |name: &str| sandbox.path(name).to_str().unwrap().to_owned();

    // docker's file, written by go-containerregistry with docker's own library.
    let login = |program: &Path, variable: &str, value: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        let output =
            command.args(arguments).env(variable, value).env("HOME", dir("none")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    std::fs::create_dir(sandbox.path("docker")).unwrap();
    login(
        &crane,
        "DOCKER_CONFIG",
        &dir("docker"),
        &["auth", "login", &server.host, "-u", "u", "-p", "s3cret"],
    );
    assert!(sandbox.path("docker/config.json").exists());
    let text = indexed(&sandbox, &image, &[("DOCKER_CONFIG", &dir("docker"))]);
    assert!(text.ends_with("--- status 0 ---"), "{text}");

    // podman's file, in each of its places.
    let arguments = ["login", "--tls-verify=false", "-u", "u", "-p", "s3cret", &server.host];
    std::fs::create_dir(sandbox.path("run")).unwrap();
    for (variable, value) in
        [("XDG_RUNTIME_DIR", dir("run")), ("REGISTRY_AUTH_FILE", dir("auth.json"))]
    {
        login(&skopeo, variable, &value, &arguments);
        let text = indexed(&sandbox, &image, &[(variable, &value)]);
        assert!(text.ends_with("--- status 0 ---"), "{variable}: {text}");
    }
    assert!(
        sandbox.path("run/containers/auth.json").exists() && sandbox.path("auth.json").exists()
    );

    // Docker's file only has another registry, so podman's is used.
    let other = json!({"auths": {"elsewhere.invalid": {"auth": "dTpw"}}}).to_string();
    std::fs::write(sandbox.path("docker/config.json"), other).unwrap();
    let both = [("DOCKER_CONFIG", &*dir("docker")), ("XDG_RUNTIME_DIR", &dir("run"))];
    assert!(indexed(&sandbox, &image, &both).ends_with("--- status 0 ---"));

    // A file that a variable names should exist. The others are still used.
    let named = [("REGISTRY_AUTH_FILE", &*dir("no.json")), ("XDG_RUNTIME_DIR", &dir("run"))];
    let text = indexed(&sandbox, &image, &named);
    let warning =
        format!("warning: $REGISTRY_AUTH_FILE names {}, which does not exist\n", dir("no.json"));
    assert!(text.matches(&warning).count() == 1 && text.ends_with("--- status 0 ---"), "{text}");

    // The variable used in CI systems.
    let file = std::fs::read_to_string(sandbox.path("auth.json")).unwrap();
    assert!(
        indexed(&sandbox, &image, &[("DOCKER_AUTH_CONFIG", &file)]).ends_with("--- status 0 ---")
    );
}

#[test]
fn logins_of_a_credential_helper_are_used() {
    let Some((server, sandbox, image)) = locked() else { return };
    sandbox.script(
        "docker-credential-ecr-login",
        r#"cat > "$0.asked"; echo '{"Username":"u","Secret":"s3cret"}'"#,
    );
    let config = json!({"credHelpers": {server.host.clone(): "ecr-login"}}).to_string();
    std::fs::write(sandbox.path("config.json"), config).unwrap();
    let dir = sandbox.dir.path().to_str().unwrap();
    let path = std::env::var("PATH").unwrap();
    let with_helper = [("DOCKER_CONFIG", dir), ("PATH", &*format!("{dir}:{path}"))];
    let text = indexed(&sandbox, &image, &with_helper);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    let asked = std::fs::read_to_string(sandbox.path("docker-credential-ecr-login.asked")).unwrap();
    assert_eq!(asked, server.host);

    // A missing helper, and one that fails: with a hint, and without the helper's output.
    let text = indexed(&sandbox, &image, &[("DOCKER_CONFIG", dir)]);
    assert!(
        text.contains("refers to docker-credential-ecr-login: install it")
            && text.ends_with("--- status 1 ---"),
        "{text}"
    );
    sandbox.script("docker-credential-ecr-login", "echo hunter2; exit 3");
    let text = indexed(&sandbox, &image, &with_helper);
    assert!(text.contains(&format!(
        "hint: check its output: echo {} | docker-credential-ecr-login get",
        server.host
    )));
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn logins_of_kubelets_credential_providers_are_used() {
    let Some((server, sandbox, image)) = locked() else { return };
    let version = "credentialprovider.kubelet.k8s.io/v1";
    let entry = json!({"name": "cloud", "apiVersion": version, "matchImages": [server.host], "args": ["get"]});
    let config = json!({"kind": "CredentialProviderConfig", "providers": [entry]}).to_string();
    std::fs::write(sandbox.path("providers.json"), config).unwrap();
    let read = async || {
        let providers =
            CredentialProviders::open(&sandbox.path("providers.json"), sandbox.dir.path()).unwrap();
        let config = ClientConfig {
            credentials: CredentialSource::Node(providers),
            ..ClientConfig::default()
        };
        let image: Reference = image.parse().unwrap();
        let repository =
            Client::new(config).unwrap().repository(&image.registry, &image.repository).unwrap();
        repository.manifest(&Target::of(&image)).await
    };
    for (password, succeeds) in [("s3cret", true), ("wrong", false)] {
        let auth = json!({server.host.clone(): {"username": "u", "password": password}});
        let answer =
            json!({"kind": "CredentialProviderResponse", "apiVersion": version, "auth": auth});
        sandbox.script("cloud", &format!("cat >\"$0.asked\"; echo '{answer}'"));
        let found = read().await;
        assert_eq!(found.is_ok(), succeeds, "{:?}", found.err());
    }
    let asked = std::fs::read_to_string(sandbox.path("cloud.asked")).unwrap();
    let name = image.rsplit_once(':').unwrap().0;
    assert!(asked.contains(&format!("\"image\":\"{name}\"")), "{asked}");
    // One that fails is named, without its output.
    sandbox.script("cloud", "echo hunter2; exit 3");
    let error = format!("{:?}", read().await.err().unwrap());
    assert!(error.contains("cloud") && !error.contains("hunter2"), "{error}");
}
