//! Registries that are not reachable, proxies, certificates and logins: retries and hints.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::push;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::sandbox::{Sandbox, index, shown, tar};
use ociseek_testkit::servers::{Server, free_port};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn index_waits_for_a_registry_that_restarts_and_says_so() {
    let sandbox = Sandbox::new();
    let host = format!("127.0.0.1:{}", free_port());
    let mut command = sandbox.command(&index(&["--retry-for=30s", &format!("{host}/a/b:v1")]));
    let mut child = ChildProcess::spawn(
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()),
    );
    let mut stderr = child.stderr();
    let mut said = String::new();
    let waiting = format!("warning: cannot connect to {host} (");
    tokio::task::block_in_place(|| {
        while !said.contains(&waiting) {
            let mut some = [0; 4096];
            let read = stderr.read(&mut some).unwrap();
            assert!(read > 0, "it waits for nobody: {said}");
            said.push_str(&String::from_utf8_lossy(&some[..read]));
        }
    });
    // Three tries would have ended by now.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let registry = Faulty::at(&host, RegistrySettings::with_referrers(), |_, _| None).await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let status = tokio::task::block_in_place(|| {
        stderr.read_to_string(&mut said).unwrap();
        child.end()
    });
    assert_eq!(status.code(), Some(0), "{said}");
    assert_eq!(said.matches("cannot connect").count(), 1, "{said}");
    assert!(
        said.contains("; trying again for 30 s\n") && said.contains("is reachable again\n"),
        "{said}"
    );
}

#[test]
fn retry_for_sets_how_long_to_wait_for_a_registry() {
    let sandbox = Sandbox::new();
    let host = format!("127.0.0.1:{}", free_port());
    let text = sandbox.run(&["ls", "--retry-for=1s", &format!("{host}/a/b:v1")]);
    assert!(text.contains("; trying again for 1 s\n"), "{text}");
    assert!(
        text.contains("error: ") && text.contains("cannot read the image: gave up after "),
        "{text}"
    );
    let hint = format!("hint: nothing listens on {host}: check the port, or start the registry");
    assert!(text.contains(&hint) && text.ends_with("--- status 1 ---"), "{text}");
}

#[test]
fn a_port_of_this_machine_without_a_registry_is_given_up_soon() {
    let sandbox = Sandbox::new();
    let text = sandbox.run(&["doctor", &format!("localhost:{}/a/b:v1", free_port())]);
    assert!(text.contains("; trying again for 5 s\n"), "{text}");
    assert!(text.contains("Connection refused") && text.contains("--retry-for 1m"), "{text}");
    assert!(text.ends_with("--- status 1 ---"), "{text}");
}

#[test]
fn credentials_for_one_registry_are_refused_for_several() {
    let sandbox = Sandbox::new();
    let creds = "--creds works for one registry";
    let certificate = "--client-cert works for one registry";
    let pair = ["--client-cert=c", "--client-key=k"];
    let hook = ["hook", "serve", "--listen=127.0.0.1:0", "--creds=u:hunter2"];
    for (arguments, want) in [
        (&["index", "--creds=u:hunter2", "localhost:1/a", "oci:x", "localhost:2/a"][..], creds),
        (&[&["index", "localhost:1/a", "localhost:2/a"][..], &pair].concat(), certificate),
        (&["backfill", "--creds=u:hunter2", "localhost:1", "localhost:2/a"], creds),
        (&["index", "--creds=u:hunter2", "--reuse-from=localhost:2/a", "localhost:1/a"], creds),
        (&["backfill", "--creds=u:hunter2", "--reuse-from=localhost:2/a", "localhost:1/a"], creds),
        (&[&hook[..], &["--allow=a.example", "--allow=b.example/x"]].concat(), creds),
        (&[&hook[..], &["--allow=*.example.com"]].concat(), creds),
    ] {
        let text = sandbox.run(arguments);
        assert!(text.contains(want) && text.ends_with("--- status 2 ---"), "{arguments:?} {text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
    // Images in layouts are not affected: here only the layout is missing.
    let text = sandbox.run(&["index", "--creds=u:hunter2", "oci:x"]);
    assert!(text.ends_with("--- status 1 ---") && !text.contains(creds), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rejected_login_is_reported_as_such() {
    let login = Some(("u".to_owned(), "p".to_owned()));
    let basic = RegistrySettings { basic: login.clone(), ..RegistrySettings::default() };
    for settings in [basic, RegistrySettings { bearer: Some(login), ..RegistrySettings::default() }]
    {
        let registry = Faulty::honest(settings).await;
        registry.add_image("v1", &tar(1, 4, 50_000));
        let host = registry.host();
        let sandbox = Sandbox::new();
        let image = format!("{host}/a/b:v1");
        let run = |arguments: &[&str]| tokio::task::block_in_place(|| sandbox.run(arguments));
        let text = run(&["ls", "--creds=u:hunter2", &image]);
        let hint =
            format!("hint: 401 from {host}: the user name or password in --creds was rejected\n");
        assert!(text.contains(&hint) && !text.contains("hunter2"), "{text}");
        assert!(run(&["ls", "--creds=u:p", &image]).ends_with("--- status 0 ---"));
        std::fs::create_dir(sandbox.path(".docker")).unwrap();
        let stored = format!(r#"{{"auths":{{"{host}":{{"username":"u","password":"hunter2"}}}}}}"#);
        std::fs::write(sandbox.path(".docker/config.json"), stored).unwrap();
        let text = run(&["ls", &image]);
        let place = sandbox.path(".docker/config.json");
        let hint = format!(
            "hint: 401 from {host}: the login in {} was rejected: run docker login {host} again, or use",
            place.display()
        );
        assert!(text.contains(&hint) && !text.contains("hunter2"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_only_registry_is_reported() {
    let registry = Faulty::start(RegistrySettings::default(), |seen, _| {
        seen.is("POST", "/blobs/uploads/")
            .then(|| ociseek_testkit::faulty::problem(405, "UNSUPPORTED", "read-only"))
    })
    .await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    let sandbox = Sandbox::new();
    let text = tokio::task::block_in_place(|| {
        sandbox.run(&index(&[&format!("{}/a/b:v1", registry.host())]))
    });
    let hint = format!("hint: 405 from {}: it seems to be read-only", registry.host());
    assert!(text.contains(&hint) && text.ends_with("--- status 1 ---"), "{text}");
}

#[test]
fn unreachable_and_invalid_proxies_are_reported() {
    let sandbox = Sandbox::new();
    let proxy = format!("127.0.0.1:{}", free_port());
    for (option, variable, scheme) in [
        ("--plain-http", "HTTP_PROXY", "http"),
        ("--plain-http=false", "https_proxy", "http"),
        ("--plain-http=false", "ALL_PROXY", "socks5h"),
    ] {
        let mut command =
            sandbox.command(&["ls", "--retry-for=1s", option, "registry.invalid/a/b:v1"]);
        let text = shown(command.env(variable, format!("{scheme}://u:hunter2@{proxy}")));
        let named = format!("the proxy {scheme}://{proxy} (${variable})");
        assert!(text.contains(&format!("via {named}: ")), "{text}");
        assert!(
            text.contains(&format!("hint: the request went to {named}: check that it is right")),
            "{text}"
        );
        assert!(
            text.contains("warning: cannot connect to registry.invalid (via the proxy"),
            "{text}"
        );
        assert!(!text.contains("hunter2") && text.ends_with("--- status 1 ---"), "{text}");
    }
    for value in ["ftp://u:hunter2@h", "htp:/u:hunter2@h:1", "http://[::1"] {
        let mut command = sandbox.command(&["ls", "--plain-http", "registry.invalid/a/b:v1"]);
        let text = shown(command.env("http_proxy", value));
        assert!(text.contains("the proxy in $http_proxy cannot be used: "), "{text}");
        assert!(
            text.contains("hint: set $http_proxy to a URL such as http://proxy.example:3128"),
            "{text}"
        );
        assert!(!text.contains("hunter2") && text.ends_with("--- status 1 ---"), "{text}");
    }
}

#[test]
fn certificates_of_the_system_and_docker_are_used() {
    let Some(server) = Server::distribution_with_tls() else { return };
    let authority = server.dir.path().join("ca.pem");
    let sandbox = Sandbox::with_small_image();
    let Some(image) = push(&sandbox, "img", &server, &[]) else { return };
    let doctor =
        |options: &[&str]| -> Command { sandbox.command(&[&["doctor", &image], options].concat()) };

    // A registry on this machine with a certificate that the system trusts.
    let trusted = ("SSL_CERT_FILE", &authority);
    let text = shown(doctor(&["--plain-http=false"]).env(trusted.0, trusted.1));
    assert!(text.ends_with("--- status 3 ---"), "{text}");
    let text = shown(doctor(&[]).env(trusted.0, trusted.1).env("OCISEEK_PLAIN_HTTP", "0"));
    assert!(text.ends_with("--- status 3 ---"), "{text}");
    let text = shown(&mut doctor(&["--plain-http=false"]));
    assert!(text.contains("its certificate is not signed by a trusted authority\n"), "{text}");
    let hint =
        format!("use --ca-file FILE, or store it as /etc/docker/certs.d/{}/ca.crt\n", server.host);
    assert!(text.contains(&hint) && text.ends_with("--- status 1 ---"), "{text}");

    let text = shown(doctor(&["--plain-http=false"]).env("SSL_CERT_FILE", "/none.pem"));
    assert!(text.contains("hint: $SSL_CERT_FILE is /none.pem, which does not exist\n"), "{text}");
    // Also where another authority is trusted.
    let given = format!("--ca-file={}", authority.display());
    for (name, value, says) in [
        ("SSL_CERT_FILE", "/none.pem", "No such file or directory (os error 2) at '/none.pem'\n"),
        ("SSL_CERT_FILE", "/dev/null", "warning: $SSL_CERT_FILE: no certificate\n"),
        ("SSL_CERT_DIR", "/none", "No such file or directory (os error 2) at '/none'\n"),
    ] {
        let text = shown(doctor(&["--plain-http=false", &given]).env(name, value));
        let warning = format!("warning: ${name}: ");
        assert!(text.contains(&warning) && text.contains(says), "{text}");
        assert!(text.ends_with("--- status 3 ---"), "{text}");
    }
    // A directory that has certificates does not hide that the file has none.
    std::fs::create_dir(sandbox.path("certificates")).unwrap();
    std::fs::copy(&authority, sandbox.path("certificates/00000000.0")).unwrap();
    let text = shown(
        doctor(&["--plain-http=false"])
            .env("SSL_CERT_FILE", "/dev/null")
            .env("SSL_CERT_DIR", sandbox.path("certificates")),
    );
    assert!(text.contains("warning: $SSL_CERT_FILE: no certificate\n"), "{text}");
    assert!(text.ends_with("--- status 3 ---"), "{text}");
    let text = shown(doctor(&["--plain-http=false"]).env("SSL_CERT_FILE", ""));
    assert!(text.contains("hint: $SSL_CERT_FILE is set, but empty"), "{text}");
    // The folders in which the tools keep them for a user.
    for folder in [".config/containers/certs.d", ".docker/certs.d"] {
        let folder = sandbox.path(folder).join(&server.host);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(&authority, folder.join("ca.crt")).unwrap();
        let text = shown(&mut doctor(&[]));
        assert!(text.ends_with("--- status 3 ---"), "{text}");
        std::fs::write(folder.join("client.cert"), "").unwrap();
        let text = shown(&mut doctor(&[]));
        assert!(
            text.contains("client.cert has no matching .key file")
                && text.contains("docs/laptop.md"),
            "{text}"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
