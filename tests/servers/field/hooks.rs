//! What registries send to webhooks, as public reports describe it. Each row has its source.

use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::hook::{Hook, SECRET};
use ociseek_testkit::http::post;
use ociseek_testkit::sandbox::{OCI_INDEX, OCI_MANIFEST, Sandbox, tar};

/// A notification, and the status of the answer to it.
struct Notice {
    source: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: fn(&str, &Digest) -> Value,
    status: u16,
}

const JSON: &[(&str, &str)] = &[("Content-Type", "application/json")];
const GITHUB: &[(&str, &str)] =
    &[("X-GitHub-Event", "registry_package"), ("X-GitHub-Delivery", "2")];

fn harbor(host: &str, digest: &Digest, name: &str) -> Value {
    json!({"type": "PUSH_ARTIFACT", "occur_at": 1, "operator": "admin", "event_data": {
        "resources": [{"digest": digest, "tag": "v1", "resource_url": format!("{host}/{name}:v1")}],
        "repository": {"date_created": 1, "name": "b", "namespace": "a", "repo_full_name": name,
            "repo_type": "private"}}})
}

const NOTICES: &[Notice] = &[
    Notice {
        source: "github.com/argoproj/argo-cd/issues/27810 (Harbor)",
        headers: JSON,
        body: |host, digest| harbor(host, digest, "a/b"),
        status: 202,
    },
    Notice {
        source: "github.com/goharbor/website/pull/439 (Harbor's CloudEvents)",
        headers: &[("Content-Type", "application/cloudevents+json")],
        body: |host, digest| {
            json!({"specversion": "1.0", "id": "i", "source": "/projects/1/webhook/policies/1",
                "type": "harbor.artifact.pushed", "datacontenttype": "application/json",
                "time": "2026-01-01T00:00:00Z", "operator": "admin",
                "data": harbor(host, digest, "a/b")["event_data"]})
        },
        status: 202,
    },
    Notice {
        source: "github.com/distribution/distribution:notifications/event.go (version 3)",
        headers: &[("Content-Type", "application/vnd.docker.distribution.events.v2+json")],
        body: |host, digest| {
            json!({"events": [{"id": "1", "timestamp": "2026-01-01T00:00:00Z", "action": "push",
                "target": {"mediaType": OCI_MANIFEST, "digest": digest, "size": 1, "length": 1,
                    "repository": "a/b", "url": "", "tag": "v1", "references": null},
                "request": {"id": "x", "addr": "", "host": host, "method": "PUT", "useragent": ""},
                "actor": null, "source": null}]})
        },
        status: 202,
    },
    Notice {
        source: "github.com/go-gitea/gitea:services/webhook/deliver.go",
        headers: &[
            ("X-Gitea-Event", "package"),
            ("X-Gogs-Event", "package"),
            ("X-GitHub-Event", "package"),
            ("X-GitHub-Delivery", "1"),
        ],
        body: |host, _| {
            json!({"action": "created", "repository": null, "sender": {"login": "a"}, "package": {
                "id": 1, "owner": {"login": "a"}, "repository": null, "creator": {"login": "a"},
                "type": "container", "name": "b", "version": "v1", "created_at": "2026-01-01T00:00:00Z",
                "html_url": format!("http://{host}/a/-/packages/container/b/v1")}})
        },
        status: 202,
    },
    // What has no tag is named by its digest.
    Notice {
        source: "docs.github.com/webhooks (registry_package, package_url with a colon at its end)",
        headers: GITHUB,
        body: |host, digest| {
            json!({"action": "published", "registry_package": {"name": "b", "namespace": "a",
                "package_type": "CONTAINER", "package_version": {"version": digest,
                    "container_metadata": {"tag": {"name": "", "digest": digest}},
                    "package_url": format!("{host}/a/b:")}}})
        },
        status: 202,
    },
    Notice {
        source: "docs.github.com/webhooks (registry_package, package_url with a digest)",
        headers: GITHUB,
        body: |host, digest| {
            json!({"action": "published", "registry_package": {"name": "b",
                "package_type": "CONTAINER", "package_version": {"version": digest,
                    "container_metadata": {"tag": {"name": "", "digest": ""}},
                    "package_url": format!("{host}/a/b@{digest}")}}})
        },
        status: 202,
    },
    Notice {
        source: "learn.microsoft.com/azure/container-registry (webhook of an index)",
        headers: JSON,
        body: |host, digest| {
            json!({"id": "1", "timestamp": "t", "action": "push", "target": {"mediaType": OCI_INDEX,
                "size": 1, "digest": digest, "length": 1, "repository": "a/b", "tag": "v1"},
                "request": {"id": "1", "host": host, "method": "PUT", "useragent": "x"}})
        },
        status: 202,
    },
    Notice {
        source: "curl -d and old plug-ins of Jenkins (text/plain)",
        headers: &[("Content-Type", "text/plain")],
        body: |host, _| json!({"image": format!("{host}/a/b:v1")}),
        status: 202,
    },
    // Another registry is not indexed, and the sender is told.
    Notice {
        source: "docs.docker.com/docker-hub/webhooks",
        headers: JSON,
        body: |_, _| {
            json!({"push_data": {"pushed_at": 1, "pusher": "a", "tag": "v1"}, "callback_url": "https://x.example",
                "repository": {"repo_name": "a/b", "name": "b", "namespace": "a"}})
        },
        status: 200,
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notifications_are_understood() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let host = registry.host();
    let sandbox = Sandbox::new();
    tokio::task::block_in_place(|| {
        let hook = Hook::serve(&sandbox, &[&format!("--allow={host}"), "--allow-private"]);
        let secret = format!("Bearer {SECRET}");
        for (seed, notice) in (1..).zip(NOTICES) {
            registry.add_image("v1", &tar(seed, 4, 50_000));
            let digest = Digest::sha256(&registry.manifest("v1").unwrap());
            let before: usize = hook.results().values().sum();
            let body = (notice.body)(&host, &digest).to_string();
            let headers = [&[("Authorization", secret.as_str())], notice.headers].concat();
            let (status, text) = post(&hook.address(), "/", &headers, body.as_bytes());
            assert_eq!(status, notice.status, "{}: {text}", notice.source);
            if status == 202 {
                hook.until(notice.source, |hook| hook.results().values().sum::<usize>() > before);
            }
        }
        let results = hook.results();
        let accepted = NOTICES.iter().filter(|notice| notice.status == 202).count();
        assert_eq!(results, [("indexed".to_owned(), accepted)].into());
    });
}
