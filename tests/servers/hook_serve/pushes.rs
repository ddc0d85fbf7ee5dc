//! Pushes to real registries: each image is indexed once.

use std::time::{Duration, Instant};

use ociseek_format::digest::Digest;
use ociseek_testkit::copied::copied;
use ociseek_testkit::hook::{Hook, SECRET, assert_documented, images, indexes, pushed};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, Sandbox, ZSTD, gzip, tar};
use ociseek_testkit::servers::{Server, free_port, run, tool};
use serde_json::json;

/// A registry that notifies `hook` of every push.
fn telling(program: &str, host: &str, hook: &str) -> Option<Server> {
    Server::distribution_by(program, host, |_| {
        format!(
            "notifications: {{endpoints: [{{name: ociseek, url: 'http://{hook}/', timeout: 5s, threshold: 3, \
             backoff: 1s, \
             headers: {{Authorization: ['Bearer {SECRET}']}}}}]}}\n"
        )
    })
}

/// A real client pushes an image, and the service indexes it without being called.
fn a_push_is_indexed(program: &str, client: &str) {
    let (Some(_), Some(client_path)) = (tool(program), tool(client)) else { return };
    let sandbox = Sandbox::with_small_image();
    let host = format!("127.0.0.1:{}", free_port());
    let hook = Hook::serve(&sandbox, &[&format!("--allow={host}")]);
    let Some(_registry) = telling(program, &host, &hook.address()) else { return };
    let layout = sandbox.path("img");
    let image = format!("{host}/a/b:v1");
    let pushed = Instant::now();
    match client {
        "skopeo" => {
            let (from, to) = (format!("oci:{}:v1", layout.display()), format!("docker://{image}"));
            run(&client_path, &["copy", "--quiet", "--all", "--dest-tls-verify=false", &from, &to]);
        }
        _ => {
            run(&client_path, &["push", "--insecure", layout.to_str().unwrap(), &image]);
        }
    }
    hook.until("an index", |hook| hook.indexed() == 1);
    println!("{program}: indexed {:.1} s after the push began", pushed.elapsed().as_secs_f64());
    assert_eq!(indexes(&sandbox, &image), 1);

    // Our own pushes are reported too: of the index, and of the tag under which it is listed. No
    // other events follow.
    hook.until("the event of the index", |hook| hook.results().contains_key("skipped"));
    let mut before = hook.log().len();
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_secs(2) {
        std::thread::sleep(Duration::from_millis(100));
        if hook.log().len() != before {
            (before, quiet) = (hook.log().len(), Instant::now());
        }
    }
    assert_eq!(hook.results(), [("indexed".to_owned(), 1), ("skipped".to_owned(), 1)].into());
    let skipped = hook.events("job").into_iter().find(|line| line["result"] == "skipped").unwrap();
    assert_eq!(skipped["reason"], "not-an-image", "{skipped}");
    assert_documented(&hook.log());
    assert_eq!(indexes(&sandbox, &image), 1);
    let (status, metrics) = hook.get(&format!("/metrics?token={SECRET}"));
    assert_eq!(status, 200);
    assert!(metrics.contains("ociseek_hook_jobs_total{result=\"indexed\"} 1"), "{metrics}");
    assert!(metrics.contains("ociseek_hook_events_total{shape=\"distribution\"}"), "{metrics}");

    // A SOCI-enabled image has layers like any other, and each of its manifests is reported. None
    // is indexed again.
    let name = format!("{host}/a/b:lazy");
    let converted =
        sandbox.run(&["convert", "--no-cache", "--min-layer-size=0", "--quiet", &image, &name]);
    assert!(
        converted.starts_with("sha256:") && converted.ends_with("--- status 0 ---"),
        "{converted}"
    );
    let enabled = |hook: &Hook| {
        hook.events("job").iter().filter(|line| line["reason"] == "soci-enabled").count()
    };
    hook.until("the events of the image and of its manifest", |hook| enabled(hook) == 2);
    assert_eq!((hook.results()["indexed"], hook.results().get("dead")), (1, None));
}

#[test]
fn a_push_by_skopeo_to_distribution_2_8_is_indexed() {
    a_push_is_indexed("docker-registry", "skopeo");
}

#[test]
fn a_push_by_crane_to_distribution_3_1_is_indexed() {
    a_push_is_indexed("distribution3", "crane");
}

/// A restarted service, which remembers nothing, reads and writes nothing.
#[test]
fn both_kinds_of_index_are_written_once() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let (repository, digest) = images(&server, 1, 1).remove(0);
    let serve = || {
        Hook::serve(
            &sandbox,
            &[&format!("--allow={}", server.host), "--kind=v1,fine", "--no-cache"],
        )
    };
    let image = format!("{}/{repository}@{digest}", server.host);
    let tell = |hook: &Hook| {
        assert_eq!(hook.post(&pushed("one", &server.host, &repository, &digest)).0, 202)
    };
    let inspect = || sandbox.doctor(&image)["manifests"][0].take();

    let hook = serve();
    tell(&hook);
    hook.until("an index", |hook| hook.indexed() == 1);
    let job = hook.events("job").remove(0);
    let has = inspect();
    assert_eq!(
        (&has["indexes"][0]["digest"], &has["fine"][0]["digest"]),
        (&job["indexes"][0]["index"], &job["indexes"][0]["fine"])
    );
    assert!(job["indexes"][0]["fine"].is_string() && job["bytes_written"] != 0, "{job}");

    drop(hook);
    let hook = serve();
    tell(&hook);
    hook.until("it was looked at", |hook| hook.results().contains_key("already-indexed"));
    let job = hook.events("job").pop().unwrap();
    assert_eq!((&job["bytes_read"], &job["bytes_written"]), (&json!(0), &json!(0)), "{job}");
    assert_eq!(inspect(), has);
    assert_documented(&hook.log());
}

/// Their fine index is written where that kind is asked for, also beside layers of gzip. Without
/// it, an image of zstd layers alone has nothing to be indexed.
#[test]
fn images_with_layers_of_zstd_get_a_fine_index() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let contents = [tar(1, 4, 300_000), tar(2, 4, 300_000)];
    let push = |name: &str, layers: [(&'static str, Vec<u8>); 2]| {
        let image = Image::new(&config(&contents), layers);
        image.write(&sandbox.path(name));
        copied(&sandbox, &format!("oci:{name}:v1"), &format!("{}/{name}:v1", server.host));
        Digest::sha256(&image.manifest)
    };
    let zstd = |content: &[u8]| ::zstd::encode_all(content, 3).unwrap();
    let [first, second] = &contents;
    let only = push("only", [(ZSTD, zstd(first)), (ZSTD, zstd(second))]);
    let mixed = push("mixed", [(GZIP, gzip(first)), (ZSTD, zstd(second))]);

    let allow = format!("--allow={}", server.host);
    let hook = Hook::serve(&sandbox, &[&allow, "--no-cache"]);
    assert_eq!(hook.post(&pushed("1", &server.host, "only", &only)).0, 202);
    hook.until("it was looked at", |hook| hook.results().contains_key("skipped"));
    assert_eq!(hook.events("job").pop().unwrap()["reason"], "not-servable");
    drop(hook);

    let hook = Hook::serve(&sandbox, &[&allow, "--no-cache", "--kind=v1,fine"]);
    for (name, digest) in [("only", &only), ("mixed", &mixed)] {
        assert_eq!(hook.post(&pushed(name, &server.host, name, digest)).0, 202);
    }
    hook.until("both are indexed", |hook| hook.indexed() == 2);
    for job in hook.events("job") {
        let is_mixed = job["image"].to_string().contains("mixed");
        let index = &job["indexes"][0];
        assert_eq!(
            (index["index"].is_string(), index["fine"].is_string()),
            (is_mixed, true),
            "{job}"
        );
    }
    for name in ["only", "mixed"] {
        let verified =
            sandbox.run(&["verify", "--no-cache", &format!("{}/{name}:v1", server.host)]);
        assert!(
            verified.contains("2 of 2 layers") && verified.ends_with("--- status 0 ---"),
            "{verified}"
        );
    }
    assert_documented(&hook.log());
}

/// Without optimisation, as in Cargo's profile `release`, a job needs more stack than threads have
/// by default.
#[test]
fn jobs_do_not_depend_on_the_default_stack_size() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let (repository, digest) = images(&server, 1, 1).remove(0);
    let sandbox = Sandbox::new();
    let allow = format!("--allow={}", server.host);
    let mut command =
        sandbox.command(&["hook", "serve", "--listen=127.0.0.1:0", &allow, "--min-layer-size=0"]);
    let hook =
        Hook::spawn(command.env("OCISEEK_HOOK_SECRET", SECRET).env("RUST_MIN_STACK", "524288"));
    hook.post(&pushed("1", &server.host, &repository, &digest));
    hook.until("an index", |hook| hook.indexed() == 1);
}
