//! Where logins and mirrors come from, as public reports of 2025 and 2026 describe it. Each has its
//! source.

use std::time::Duration;

use ociseek_store::registry::{ClientConfig, CredentialProviders, CredentialSource, Limits};
use serde_json::json;

use super::reports::{config, repository, tag};
use ociseek_testkit::faulty::{Faulty, RegistrySettings, problem};
use ociseek_testkit::sandbox::{Sandbox, tar};

/// hosts.toml, where `HOST` is the registry itself.
const HOSTS: &[(&str, &str)] = &[
    (
        "github.com/containerd/containerd/issues/13212",
        "server = \"http://HOST\"\nskip_verify = false\n",
    ),
    // Nobody listens on port 1, and the registry itself is in no table.
    (
        "github.com/casosorg/casos/pull/126",
        "server = \"http://HOST\"\n[host.\"http://127.0.0.1:1\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
    ),
];

#[tokio::test]
async fn the_registry_is_asked_if_no_mirror_answers() {
    for (source, hosts) in HOSTS {
        let registry = Faulty::honest(RegistrySettings::default()).await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(registry.host());
        std::fs::create_dir(&folder).unwrap();
        let hosts = hosts.replace("HOST", &registry.host());
        std::fs::write(folder.join("hosts.toml"), hosts).unwrap();
        let hosts_dir = Some(dir.path().to_owned());
        let read =
            repository(&registry, ClientConfig { hosts_dir, ..config() }).manifest(&tag()).await;
        assert!(read.is_ok(), "{source}: {:?}", read.err());
    }
}

/// A mirror that does not have the image, and a registry that is not there: the error is the
/// registry's, and not the mirror's 404.
#[tokio::test]
async fn the_error_of_the_registry_counts() {
    let source = "github.com/containerd/containerd/issues/12402";
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let mirror = Faulty::start(RegistrySettings::default(), |_, _| {
        Some(problem(404, "MANIFEST_UNKNOWN", "unknown"))
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(registry.host());
    std::fs::create_dir(&folder).unwrap();
    let hosts = format!("[host.\"http://{}\"]\n", mirror.host());
    std::fs::write(folder.join("hosts.toml"), hosts).unwrap();
    registry.down();
    let hosts_dir = Some(dir.path().to_owned());
    let limits = Limits { local_patience: Duration::from_millis(1), ..config().limits };
    let config = ClientConfig { hosts_dir, limits, ..config() };
    let error = repository(&registry, config).manifest(&tag()).await.unwrap_err();
    assert!(!mirror.saw("GET", "/manifests/v1").is_empty(), "{source}");
    assert!(error.is_unreachable() && error.status().is_none(), "{source}: {error:?}");
}

/// containerd 2.2 has two folders for them by default.
#[tokio::test]
async fn mirrors_may_be_in_several_folders() {
    let source = "github.com/containerd/containerd/issues/12636";
    let registry = Faulty::honest(RegistrySettings::default()).await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let mirror = registry.copy(|_, _| None).await;
    let dir = tempfile::tempdir().unwrap();
    let hosts = format!(
        "[host.\"http://{}\"]\n  capabilities = [\"pull\", \"resolve\"]\n  skip_verify = true\n",
        mirror.host()
    );
    for folders in ["{}/containerd:{}/docker", "{}/docker:{}/containerd"] {
        let _ = std::fs::remove_dir_all(dir.path().join("containerd"));
        std::fs::create_dir_all(dir.path().join("containerd/_default")).unwrap();
        std::fs::write(dir.path().join("containerd/_default/hosts.toml"), &hosts).unwrap();
        let folders = folders.replace("{}", dir.path().to_str().unwrap());
        let config = ClientConfig { hosts_dir: Some(folders.into()), ..config() };
        assert!(repository(&registry, config).manifest(&tag()).await.is_ok(), "{source}");
    }
    assert_eq!(mirror.saw("GET", "/manifests/v1").len(), 2, "{source}");
    assert!(registry.saw("GET", "/manifests/v1").is_empty(), "{source}");
}

fn locked() -> RegistrySettings {
    RegistrySettings {
        basic: Some(("u".to_owned(), "p".to_owned())),
        ..RegistrySettings::default()
    }
}

/// A helper that knows each registry by its bare name, as docker writes it, in a file without
/// `auths`; and one that fails, which is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_helper_is_asked_by_the_bare_name_and_named_if_it_fails() {
    let registry = Faulty::honest(locked()).await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let host = registry.host();
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path(".docker")).unwrap();
    let file = json!({"credsStore": "own"}).to_string();
    std::fs::write(sandbox.path(".docker/config.json"), file).unwrap();
    let answer = json!({"ServerURL": host, "Username": "u", "Secret": "p"});
    let image = format!("{host}/a/b:v1");
    for (source, script, parts) in [
        (
            "github.com/opentofu/opentofu/issues/2743",
            format!("read name; [ \"$1 $name\" = \"get {host}\" ] && echo '{answer}'"),
            vec!["--- status 0 ---"],
        ),
        (
            "github.com/keirlawson/docker_credential/pull/16",
            "echo keychain is locked; exit 1".to_owned(),
            vec!["docker-credential-own", "--- status 1 ---"],
        ),
    ] {
        sandbox.script("docker-credential-own", &script);
        let path = format!("{}:{}", sandbox.dir.path().display(), std::env::var("PATH").unwrap());
        let text = tokio::task::block_in_place(|| {
            let mut command = sandbox.command(&["ls", &image]);
            ociseek_testkit::sandbox::shown(command.env("PATH", &path))
        });
        assert!(parts.iter().all(|part| text.contains(part)), "{source}: {text}");
    }
}

/// A login as other programs write it, and helpers that say more than they have to. The registry
/// wants a login, or none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_of_other_programs_are_understood() {
    let answer = |host: &str| json!({"ServerURL": host, "Username": "u", "Secret": "p"});
    for (source, settings, file, script) in [
        (
            "kubernetes.io/docs/tasks/configure-pod-container/pull-image-private-registry",
            locked(),
            r#"{"auths":{"HOST":{"username":"u","password":"p","email":"e","auth":"dTpw"}}}"#,
            "exit 1",
        ),
        (
            "github.com/awslabs/amazon-ecr-credential-helper (it logs)",
            locked(),
            r#"{"credsStore":"own"}"#,
            "echo 'level=debug msg=hit' >&2; echo 'ANSWER'",
        ),
        (
            "github.com/docker/cli (a helper without the login)",
            locked(),
            r#"{"credsStore":"own","auths":{"HOST":{"auth":"dTpw"}}}"#,
            "echo credentials not found in native keychain; exit 1",
        ),
        (
            "github.com/OctopusDeploy/Calamari/pull/2059 (a public image)",
            RegistrySettings::default(),
            r#"{"credsStore":"own"}"#,
            "echo credentials not found in native keychain >&2; exit 1",
        ),
    ] {
        let registry = Faulty::honest(settings).await;
        registry.add_image("v1", &tar(1, 2, 30_000));
        let host = registry.host();
        let sandbox = Sandbox::new();
        std::fs::write(sandbox.path("auth.json"), file.replace("HOST", &host)).unwrap();
        let script = script.replace("ANSWER", &answer(&host).to_string());
        sandbox.script("docker-credential-own", &script);
        let path = format!("{}:{}", sandbox.dir.path().display(), std::env::var("PATH").unwrap());
        let text = tokio::task::block_in_place(|| {
            let mut command = sandbox.command(&["ls", &format!("{host}/a/b:v1")]);
            command.env("PATH", &path).env("REGISTRY_AUTH_FILE", sandbox.path("auth.json"));
            ociseek_testkit::sandbox::shown(&mut command)
        });
        assert!(text.ends_with("--- status 0 ---"), "{source}: {text}");
    }
}

/// kubelet 1.34 wants `cacheType` for providers that take the pod's token. Those that also work
/// without one are asked.
#[tokio::test]
async fn providers_may_have_attributes_of_tokens() {
    for (source, attributes) in [
        (
            "github.com/kubernetes/kubernetes/pull/132617",
            "    serviceAccountTokenAudience: a\n    cacheType: ServiceAccount\n    requireServiceAccount: false\n",
        ),
        (
            "github.com/kubernetes/cloud-provider-aws/issues/1280",
            "    serviceAccountTokenAudience: sts.amazonaws.com\n    cacheType: Token\n    \
             requireServiceAccount: false\n\
             \x20   optionalServiceAccountAnnotationKeys: [eks.amazonaws.com/role-arn]\n  args: [get-credentials]\n  \
             env: [{name: AWS_REGION, value: eu-west-1}]\n",
        ),
    ] {
        provider_is_asked(source, attributes).await;
    }
}

async fn provider_is_asked(source: &str, attributes: &str) {
    let registry = Faulty::honest(locked()).await;
    registry.add_image("v1", &tar(1, 2, 30_000));
    let host = registry.host();
    let sandbox = Sandbox::new();
    let version = "credentialprovider.kubelet.k8s.io/v1";
    let file = format!(
        "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\nproviders:\n- name: cloud\n  \
         apiVersion: {version}\n  matchImages: [\"{host}\"]\n  defaultCacheDuration: 5m\n  \
         tokenAttributes:\n{attributes}"
    );
    std::fs::write(sandbox.path("providers.yaml"), file).unwrap();
    let auth = json!({host: {"username": "u", "password": "p"}});
    let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": version,
        "cacheKeyType": "Registry", "cacheDuration": "1m", "auth": auth});
    sandbox.script("cloud", &format!("cat >/dev/null; echo '{answer}'"));
    let providers =
        CredentialProviders::open(&sandbox.path("providers.yaml"), sandbox.dir.path()).unwrap();
    let credentials = CredentialSource::Node(providers);
    let read =
        repository(&registry, ClientConfig { credentials, ..config() }).manifest(&tag()).await;
    assert!(read.is_ok(), "{source}: {:?}", read.err());
}
