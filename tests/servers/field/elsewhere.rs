//! Registries that send their clients to a server that fails: errors and hints name that one.

use std::net::TcpListener;

use tokio::task::block_in_place;

use super::reports::tag;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, problem, redirect};
use ociseek_testkit::sandbox::{Sandbox, shown, tar};

fn ls(registry: &Faulty) -> String {
    let sandbox = Sandbox::new();
    let image = format!("{}/a/b:{}", registry.host(), tag());
    let mut command = sandbox.command(&["ls", "--retry-for=1s", &image]);
    block_in_place(|| shown(&mut command))
}

/// A registry whose answers to this part of a path are a redirect to a server.
async fn sends_to(part: &'static str, place: String) -> Faulty {
    let registry = Faulty::start(RegistrySettings::default(), move |request, _| {
        request.is("GET", part).then(|| redirect(307, &format!("{place}{}", request.path)))
    })
    .await;
    registry.add_image("v1", &tar(1, 4, 50_000));
    registry
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_name_the_server_that_failed() {
    // Bound, so that nobody else gets the port, and closed again.
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let forbids = Faulty::start(RegistrySettings::default(), |_, _| {
        Some(problem(403, "AccessDenied", "the policy of the endpoint does not allow it"))
    })
    .await;
    for (source, part, server, says) in [
        (
            "github.com/distribution/distribution/issues/479",
            "/manifests/",
            nobody.to_string(),
            "where nothing listens",
        ),
        (
            "github.com/containerd/containerd/issues/2840",
            "/blobs/",
            nobody.to_string(),
            "where nothing listens",
        ),
        (
            "docs.aws.amazon.com/AmazonECR/latest/userguide/vpc-endpoints.html",
            "/blobs/",
            forbids.host(),
            "check proxies, firewalls and the policies",
        ),
    ] {
        let registry = sends_to(part, format!("http://{server}")).await;
        let text = ls(&registry);
        let hint = text.split("hint: ").nth(1).unwrap_or_default();
        let sent = format!("{} sends its clients", registry.host());
        assert!(hint.contains(&server) && hint.contains(&sent), "{source}: {text}");
        assert!(hint.contains(says), "{source}: {text}");
        assert!(!hint.contains("docker login") && !hint.contains("docker run"), "{source}: {text}");
        let warning = text.lines().find(|line| line.contains("cannot connect to"));
        assert!(warning.is_none_or(|line| line.contains(&server)), "{source}: {text}");
        assert!(text.ends_with("--- status 1 ---"), "{source}: {text}");
    }
}
