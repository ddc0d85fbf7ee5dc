//! Logins stored by other tools are found: real clients log in, and ociseek pushes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use ociseek_format::image::Reference;
use ociseek_store::blob::Target;
use ociseek_store::registry::{Client, ClientConfig, CredentialProviders, CredentialSource};

use super::push;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::in_own_mounts;
use ociseek_testkit::sandbox::{Sandbox, index, shown, tar};
use ociseek_testkit::servers::{Server, htpasswd, skip, tool};

/// A registry that requires `u` and `s3cret`, and an image in it.
fn locked() -> Option<(Server, Sandbox, String)> {
    let line = htpasswd("u", "s3cret")?;
    let sections = |dir: &Path| {
        std::fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let server = Server::distribution("127.0.0.1:0", sections)?;
    let sandbox = Sandbox::with_two_platforms();
    let image = push(&sandbox, "img", &server, &["--dest-creds=u:s3cret"])?;
    Some((server, sandbox, image))
}

/// Runs `index` with these variables, and returns its output.
fn indexed(sandbox: &Sandbox, image: &str, variables: &[(&str, &str)]) -> String {
    let mut command = sandbox.command(&index(&["--existing=replace", image]));
    command.env("PATH", std::env::var("PATH").unwrap());
    shown(command.envs(variables.iter().copied()))
}

/// The unit in docs/hook.md: systemd takes it, and the hook finds the login in the folder that
/// systemd makes for `LoadCredential`.
#[test]
fn the_login_that_systemd_loads_is_used() {
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/hook.md");
    let docs = std::fs::read_to_string(docs).unwrap();
    let unit: Vec<&str> = docs
        .lines()
        .skip_while(|line| *line != "    [Unit]")
        .take_while(|line| line.is_empty() || line.starts_with("    "))
        .map(str::trim_start)
        .collect();
    let unit = unit.join("\n").replace("/usr/local/bin/ociseek", "/bin/true");
    let has = |line: &str| unit.lines().any(|it| it == line);
    assert!(has("LoadCredential=config.json:/etc/ociseek/config.json"), "{unit}");
    assert!(has("Environment=OCISEEK_CACHE_DIR=%C/ociseek DOCKER_CONFIG=%d"), "{unit}");
    let Some((server, sandbox, image)) = locked() else { return };
    if let Some(systemd) = tool("systemd-analyze") {
        let file = sandbox.path("ociseek-hook.service");
        std::fs::write(&file, &unit).unwrap();
        let output = Command::new(systemd).arg("verify").arg(&file).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
    let folder = sandbox.path("credentials");
    std::fs::create_dir(&folder).unwrap();
    let auths = json!({"auths": {server.host.as_str(): {"username": "u", "password": "s3cret"}}});
    let file = folder.join("config.json");
    std::fs::write(&file, auths.to_string()).unwrap();
    for (path, mode) in [(&file, 0o400), (&folder, 0o500)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = sandbox.command(&index(&["--existing=replace", &image]));
    command.env_remove("HOME").env("DOCKER_CONFIG", &folder);
    let text = shown(command.env("CREDENTIALS_DIRECTORY", &folder));
    assert!(text.ends_with("--- status 0 ---"), "{text}");
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
        text.contains("401 Unauthorized")
            && text.contains("not all logins could be read: credential helper")
            && text.contains("refers to docker-credential-ecr-login: install it")
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

/// One place that cannot be read does not end the search (podman-desktop#12895,
/// rancher-desktop#1124, docker-credential-helpers#149).
#[test]
fn the_next_place_is_searched_after_one_that_is_broken() {
    let Some((server, sandbox, image)) = locked() else { return };
    let auths = json!({server.host.clone(): {"username": "u", "password": "s3cret"}});
    let login = json!({"auths": auths}).to_string();
    let cut = login[..login.len() / 2].to_owned();
    let dir = |name: &str| sandbox.path(name).to_str().unwrap().to_owned();
    sandbox.script("docker-credential-fails", "echo 'Cannot autolaunch D-Bus'; exit 1");
    let lost = json!({"credsStore": "gone"}).to_string();
    let fails = json!({"credsStore": "fails"}).to_string();
    let beside = json!({"credsStore": "gone", "auths": auths}).to_string();
    let entry = json!({"auths": {server.host.clone(): {"auth": "?"}}}).to_string();
    std::fs::create_dir_all(sandbox.path("run/containers")).unwrap();
    let path = format!("{}:{}", dir(""), std::env::var("PATH").unwrap());
    let run = dir("run");
    let variables = [("XDG_RUNTIME_DIR", &*run), ("PATH", &*path)];
    std::fs::create_dir(sandbox.path(".docker")).unwrap();
    for (docker, podman, says) in [
        (&lost, &login, None),
        (&fails, &login, None),
        (&cut, &login, None),
        (&entry, &login, None),
        (&beside, &cut, None),
        (&cut, &beside, None),
        (&lost, &"{}".to_owned(), Some("docker-credential-gone: not found in $PATH")),
        (&cut, &fails, Some(".docker/config.json is not a valid docker configuration")),
        (&entry, &cut, Some("cannot be decoded; ")),
    ] {
        std::fs::write(sandbox.path(".docker/config.json"), docker).unwrap();
        std::fs::write(sandbox.path("run/containers/auth.json"), podman).unwrap();
        let text = indexed(&sandbox, &image, &variables);
        let status = if says.is_some() { 1 } else { 0 };
        assert!(text.ends_with(&format!("--- status {status} ---")), "{docker} {podman}: {text}");
        assert!(text.contains(says.unwrap_or_default()), "{text}");
        assert_eq!(text.contains("not all logins could be read"), says.is_some(), "{text}");
        assert!(!text.contains("autolaunch") && !text.contains("s3cret"), "{text}");
    }
    // A directory where the file should be.
    std::fs::remove_file(sandbox.path(".docker/config.json")).unwrap();
    std::fs::create_dir(sandbox.path(".docker/config.json")).unwrap();
    std::fs::write(sandbox.path("run/containers/auth.json"), &login).unwrap();
    let text = indexed(&sandbox, &image, &variables);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
}

/// A public image takes no login, so it does not matter that none can be read.
#[tokio::test(flavor = "multi_thread")]
async fn public_images_are_read_without_the_helper_that_is_lost() {
    for bearer in [None, Some(None)] {
        let registry = Faulty::honest(RegistrySettings { bearer, ..Default::default() }).await;
        registry.add_image("v1", &tar(1, 4, 50_000));
        let sandbox = Sandbox::new();
        std::fs::create_dir(sandbox.path(".docker")).unwrap();
        std::fs::write(sandbox.path(".docker/config.json"), r#"{"credsStore":"gone"}"#).unwrap();
        let image = format!("{}/a/b:v1", registry.host());
        let text = tokio::task::block_in_place(|| sandbox.run(&["ls", &image]));
        assert!(text.ends_with("--- status 0 ---") && !text.contains("gone"), "{text}");
    }
}

/// systemd gives system units no `$HOME` (coreos/bugs#236, Mirantis/cri-dockerd#349).
#[test]
fn without_home_the_system_is_asked_for_the_users_folder() {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root || tool("unshare").is_none() {
        return skip("another home for root wants root");
    }
    let Some((server, sandbox, image)) = locked() else { return };
    // Not $HOME, which may be another folder.
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let root = users.lines().find(|user| user.split(':').nth(2) == Some("0")).unwrap();
    let home = root.split(':').nth(5).unwrap();
    let login = json!({"auths": {server.host: {"username": "u", "password": "s3cret"}}});
    std::fs::create_dir_all(sandbox.path("root/.docker")).unwrap();
    std::fs::write(sandbox.path("root/.docker/config.json"), login.to_string()).unwrap();
    // The program may be in the folder that is covered.
    sandbox.copy_program("ociseek");
    let mut inside = in_own_mounts("mount --bind \"$0\" \"$1\"; shift; exec \"$@\"");
    inside.current_dir(sandbox.dir.path()).env_remove("HOME");
    inside.arg(sandbox.path("root")).arg(home).arg(sandbox.path("ociseek"));
    let text = shown(inside.args(["index", "--min-layer-size=0", &image]));
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    assert!(sandbox.path("root/.cache/ociseek").exists(), "the cache is there, too");
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
