//! `-v`, `-vv` and `OCISEEK_LOG`: what they log, and which secrets they never log.

use axum::http::header::HeaderValue;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;

use ociseek_testkit::faulty::{Faulty, RegistrySettings, first, redirect, status};
use ociseek_testkit::sandbox::{Sandbox, small_image, tar};
use ociseek_testkit::servers::{Server, copied_by_skopeo, htpasswd};

const USER: &str = "grace";
const PASSWORD: &str = "hunter2hunter2";
const SIGNATURE: &str = "f00dcafe5i9nature";

fn in_base64() -> String {
    BASE64_STANDARD.encode(format!("{USER}:{PASSWORD}"))
}

/// A home directory with a login to `host`.
fn logged_in(host: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path(".docker")).unwrap();
    let config = json!({"auths": {host: {"auth": in_base64()}}});
    std::fs::write(sandbox.path(".docker/config.json"), config.to_string()).unwrap();
    sandbox
}

/// The logs of a successful command, with `-vv` and with everything enabled.
async fn logs(
    sandbox: Sandbox,
    args: &'static [&'static str],
    image: String,
    proxy: Option<String>,
) -> [String; 2] {
    let work = move || {
        [("-vv", ""), ("-q", "trace")].map(|(flag, filter)| {
            let mut command = sandbox.command(&[args, &[flag, &image]].concat());
            command.env("OCISEEK_LOG", filter);
            if let Some(proxy) = &proxy {
                command.env("HTTP_PROXY", proxy);
            }
            let output = command.output().unwrap();
            let log = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{log}");
            log
        })
    };
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn assert_has(log: &str, events: &[&str]) {
    for event in events {
        assert!(log.contains(event), "no {event:?} in\n{log}");
    }
}

fn assert_no_secret(log: &str) {
    let in_base64 = in_base64();
    for secret in
        [PASSWORD, &in_base64, SIGNATURE, "Signature", "X-Amz", "token-1", "Basic ", "Bearer "]
    {
        assert!(!log.contains(secret), "{secret:?} in\n{log}");
    }
}

/// A real registry that requires a password.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_not_logged() {
    let Some(line) = htpasswd(USER, PASSWORD) else { return };
    let server = Server::distribution("127.0.0.1:0", |dir| {
        std::fs::write(dir.join("htpasswd"), &line).unwrap();
        format!("auth: {{htpasswd: {{realm: x, path: {}}}}}\n", dir.join("htpasswd").display())
    });
    let Some(server) = server else { return };
    let sandbox = logged_in(&server.host);
    small_image(&sandbox.path("img"));
    let image = format!("{}/a:v1", server.host);
    let creds = format!("--dest-creds={USER}:{PASSWORD}");
    let Some(()) = copied_by_skopeo(&sandbox.path("img"), &image, &[&creds]) else { return };
    let logs = logs(sandbox, &["index", "--min-layer-size=0"], image, None).await;
    for log in &logs {
        assert_has(
            log,
            &["credentials registry=127.0.0.1:", "/.docker/config.json", "auth=basic reused=true"],
        );
        assert_no_secret(log);
    }
    assert_has(&logs[0], &["request method=PUT url=http://127.0.0.1:", "status=201", "what=ztoc"]);
}

/// A credential helper that knows the password, and one that fails and prints it.
#[tokio::test(flavor = "multi_thread")]
async fn the_output_of_a_credential_helper_is_not_logged() {
    let basic = Some((USER.to_owned(), PASSWORD.to_owned()));
    let registry =
        Faulty::honest(RegistrySettings { referrers: true, basic, ..RegistrySettings::default() })
            .await;
    push(&registry);
    let host = registry.host();
    let sandbox = Sandbox::new();
    std::fs::create_dir(sandbox.path(".docker")).unwrap();
    std::fs::write(
        sandbox.path(".docker/config.json"),
        json!({"credHelpers": {&*host: "kept"}}).to_string(),
    )
    .unwrap();
    let path = format!("{}:{}", sandbox.path("").display(), std::env::var("PATH").unwrap());
    let work = move || {
        let said = format!(r#"{{"Username":"{USER}","Secret":"{PASSWORD}"}}"#);
        for (body, status) in [
            (format!("echo '{said}'"), 0),
            (format!("echo '{said}'; echo '{said}' >&2; exit 3"), 1),
        ] {
            sandbox.script("docker-credential-kept", &format!("cat >/dev/null\n{body}"));
            for (flag, filter) in [("-vv", ""), ("-q", "trace")] {
                let mut command = sandbox.command(&["ls", flag, &format!("{host}/a:v1")]);
                let output =
                    command.env("OCISEEK_LOG", filter).env("PATH", &path).output().unwrap();
                let log = String::from_utf8(output.stderr).unwrap();
                assert_eq!(output.status.code(), Some(status), "{log}");
                if status == 0 {
                    assert_has(
                        &log,
                        &[
                            "credentials registry=127.0.0.1:",
                            "docker-credential-kept",
                            "auth=basic",
                        ],
                    );
                }
                assert_no_secret(&log);
            }
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// A registry that requires tokens and redirects blobs to signed URLs.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_signatures_are_not_logged() {
    let settings = RegistrySettings::with_referrers();
    let bucket = Faulty::start(settings.clone(), |seen, bucket| {
        let digest = seen.path.strip_prefix("/bucket/")?.split('?').next()?;
        Some(bucket.get_blob(seen, digest))
    })
    .await;
    let elsewhere = bucket.host();
    let registry = Faulty::start(
        RegistrySettings { bearer: Some(Some((USER.into(), PASSWORD.into()))), ..settings },
        move |seen, _| {
            let digest =
                seen.path.split("/blobs/sha256:").nth(1).filter(|_| seen.method == "GET")?;
            seen.header("authorization").filter(|shown| shown.starts_with("Bearer "))?;
            let query = format!(
                "X-Amz-Credential=AKIA%2Fs3&X-Amz-Signature={SIGNATURE}&X-Amz-Expires=1200"
            );
            Some(redirect(307, &format!("http://{elsewhere}/bucket/sha256:{digest}?{query}")))
        },
    )
    .await;
    for registry in [&registry, &bucket] {
        push(registry);
    }
    let sandbox = logged_in(&registry.host());
    let image = format!("{}/a:v1", registry.host());
    for log in logs(sandbox, &["ls", "--no-cache"], image, None).await {
        assert_has(
            &log,
            &["token registry=127.0.0.1:", "auth=bearer reused=false", "auth=bearer reused=true"],
        );
        let to = format!("to=http://{}/bucket/sha256:", bucket.host());
        assert_has(&log, &["redirect status=307 from=http://127.0.0.1:", &to]);
        assert_no_secret(&log);
    }
}

/// A proxy with a password in its URL, and the messages of libraries about it.
#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_a_proxy_is_not_logged() {
    let proxy = Faulty::honest(RegistrySettings::with_referrers()).await;
    push(&proxy);
    let by = format!("http://{USER}:{PASSWORD}@{}", proxy.host());
    let args = &["ls", "--plain-http"];
    for log in logs(Sandbox::new(), args, "registry.invalid/a:v1".into(), Some(by)).await {
        assert_has(&log, &["debug reqwest::connect log", &format!("http://{}", proxy.host())]);
        assert_has(&log, &["url=http://registry.invalid/v2/a/manifests/v1 status=200"]);
        assert_no_secret(&log);
    }
    let shown = proxy.requests()[0].headers.get("proxy-authorization").cloned();
    assert_eq!(
        shown,
        HeaderValue::from_str(&format!("Basic {}", in_base64())).ok(),
        "the proxy was shown it"
    );
}

fn push(registry: &Faulty) {
    registry.add_image("v1", &tar(1, 3, 20_000));
}

/// A line for each request with its result, for each failed try with the reason and the next one,
/// and for the cache.
#[tokio::test(flavor = "multi_thread")]
async fn requests_retries_and_cache_hits_are_logged() {
    let busy = first(1);
    let registry = Faulty::start(RegistrySettings::with_referrers(), move |seen, _| {
        (seen.is("GET", "/manifests/v1") && busy()).then(|| status(503))
    })
    .await;
    push(&registry);
    let host = registry.host();
    let sandbox = Sandbox::new();
    let work = move || {
        let image = format!("{host}/a:v1");
        let run = |args: &[&str]| {
            let output = sandbox.command(args).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
        };
        // Before or after the command.
        let (listed, log) = run(&["-v", "ls", &image]);
        let url = format!("method=GET url=http://{host}/v2/a/manifests/v1");
        let line = |part: &str| {
            let found = log.lines().find(|line| line.contains(part));
            found.unwrap_or_else(|| panic!("no {part:?} in\n{log}")).to_owned()
        };
        let refused = line(&format!("request {url} status=503"));
        assert!(
            refused.contains(" debug ociseek::registry ") && refused.contains(" attempt=1"),
            "{refused}"
        );
        let again = line(&format!("retry registry={host} attempt=2 wait_ms="));
        assert!(again.contains("503 Service Unavailable"), "{again}");
        let answered = line(&format!("request {url} status=200 ms="));
        assert!(answered.contains(" bytes=") && answered.contains(" attempt=2"), "{answered}");
        assert!(
            log.contains("cache lookup what=map of=sha256:") && log.contains("hit=false"),
            "{log}"
        );
        assert!(log.contains("cache store what=map of=sha256:"), "{log}");
        assert!(!log.contains("reqwest") && !log.contains('\x1b'), "{log}");

        let (_, log) = run(&["ls", "-v", &image]);
        // Only images with a fine index are opened as they were the last time.
        let missed = |line: &str| line.contains("hit=false") && !line.contains("\"opened image\"");
        assert!(log.contains("hit=true") && !log.lines().any(missed), "{log}");
        assert_eq!(run(&["ls", &image]), (listed, String::new()), "nothing is told unasked");

        // The bytes of a file, and their sources.
        run(&["index", "--min-layer-size=0", "--span-size=16KiB", &image]);
        let cat = ["cat", "-vv", "--cache-dir=new", &image, "/dir1/file0"];
        let (_, log) = run(&cat);
        assert!(
            log.contains("ociseek::content fetched layer=sha256:")
                && log.contains("store what=span"),
            "{log}"
        );
        let (_, log) = run(&cat);
        assert!(
            !log.contains("content fetched") && log.contains("lookup what=span of=sha256:"),
            "{log}"
        );
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}
