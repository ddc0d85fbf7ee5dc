//! The events of Docker Hub, and of packages of GitHub, Gitea and Forgejo.

use serde::Deserialize;

use super::{Headers, IgnoreReason, Item, PushFields, cut, split_name};
use crate::image::DOCKER_HUB;

#[derive(Deserialize)]
struct DockerHubEvent {
    push_data: DockerHubData,
    repository: DockerHubRepository,
}

#[derive(Deserialize)]
struct DockerHubData {
    tag: Option<String>,
}

#[derive(Deserialize)]
struct DockerHubRepository {
    repo_name: String,
}

/// Docker Hub (Docker docs, "Webhooks"). Its events have neither a digest nor an id.
pub(super) fn docker_hub(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: DockerHubEvent = serde_json::from_slice(body)?;
    let registry = Some(DOCKER_HUB);
    let repository = event.repository.repo_name.as_str();
    Ok(vec![
        PushFields {
            registry,
            repository,
            tag: event.push_data.tag.as_deref(),
            ..PushFields::default()
        }
        .push(),
    ])
}

#[derive(Deserialize)]
struct GithubEvent {
    #[serde(default)]
    action: String,
    registry_package: Option<GithubPackage>,
    package: Option<GithubPackage>,
}

#[derive(Deserialize)]
struct GithubPackage {
    package_type: Option<String>,
    package_version: Option<GithubVersion>,
}

#[derive(Deserialize)]
struct GithubVersion {
    /// The digest.
    version: Option<String>,
    container_metadata: Option<GithubMetadata>,
    /// `HOST/OWNER/NAME[:TAG]`.
    package_url: Option<String>,
}

#[derive(Deserialize)]
struct GithubMetadata {
    tag: Option<GithubTag>,
}

#[derive(Deserialize)]
struct GithubTag {
    name: Option<String>,
    digest: Option<String>,
}

/// GitHub packages (GitHub docs, "Webhook events and payloads", `registry_package` and `package`).
/// Owners may have upper-case letters, but image names may not: the registry uses the lower-case
/// form.
pub(super) fn github(headers: &Headers, body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: GithubEvent = serde_json::from_slice(body)?;
    Ok(vec![github_push(headers, event)])
}

fn github_push(headers: &Headers, event: GithubEvent) -> Item {
    if let Some(other) =
        headers.github_event.filter(|event| !matches!(*event, "registry_package" | "package"))
    {
        return Err(IgnoreReason::NotAPush(cut(other)));
    }
    if !matches!(event.action.as_str(), "published" | "updated") {
        return Err(IgnoreReason::NotAPush(cut(&event.action)));
    }
    let package = event.registry_package.or(event.package).ok_or(IgnoreReason::Nameless)?;
    if let Some(other) = package.package_type.filter(|kind| !kind.eq_ignore_ascii_case("container"))
    {
        return Err(IgnoreReason::NotAnImage(cut(&other)));
    }
    let version = package.package_version.ok_or(IgnoreReason::Nameless)?;
    let url = version.package_url.unwrap_or_default().to_lowercase();
    // The tag in the URL was changed to lower case. The one in the metadata was not.
    let named = split_name(&url, None);
    let tag = version.container_metadata.and_then(|metadata| metadata.tag);
    let (tag, tagged) = tag.map_or((None, None), |tag| (tag.name, tag.digest));
    let digest = version.version.filter(|version| version.contains(':')).or(tagged);
    PushFields {
        id: headers.github_delivery,
        tag: tag.as_deref(),
        digest: digest.as_deref(),
        ..named
    }
    .push()
}

#[derive(Deserialize)]
struct GiteaEvent {
    action: String,
    package: Option<GiteaPackage>,
}

#[derive(Deserialize)]
struct GiteaPackage {
    r#type: String,
    name: String,
    /// A tag, or the digest of a manifest without one.
    version: String,
    owner: GiteaOwner,
    html_url: String,
}

#[derive(Deserialize)]
struct GiteaOwner {
    login: String,
}

/// Gitea's and Forgejo's packages (go-gitea/gitea `modules/structs/hook.go`, `PackagePayload`).
pub(super) fn gitea(headers: &Headers, body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: GiteaEvent = serde_json::from_slice(body)?;
    Ok(vec![gitea_push(headers, &event)])
}

fn gitea_push(headers: &Headers, event: &GiteaEvent) -> Item {
    if let Some(other) = headers.gitea_event.filter(|event| *event != "package") {
        return Err(IgnoreReason::NotAPush(cut(other)));
    }
    if event.action != "created" {
        return Err(IgnoreReason::NotAPush(cut(&event.action)));
    }
    let package = event.package.as_ref().ok_or(IgnoreReason::Nameless)?;
    if package.r#type != "container" {
        return Err(IgnoreReason::NotAnImage(cut(&package.r#type)));
    }
    // The registry is at the root of the server.
    let host = package.html_url.split_once("://").map(|(_, rest)| rest.split('/').next());
    // Owners may have upper-case letters, but image names may not.
    let repository = format!("{}/{}", package.owner.login, package.name).to_lowercase();
    let is_digest = package.version.contains(':');
    PushFields {
        id: headers.github_delivery,
        registry: host.flatten(),
        repository: &repository,
        tag: Some(&*package.version).filter(|_| !is_digest),
        digest: Some(&*package.version).filter(|_| is_digest),
    }
    .push()
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, Shape, parse};
    use super::*;

    #[test]
    fn the_documented_event_of_docker_hub() {
        let body = br#"{"callback_url":"https://registry.example/u/svendowideit/testhook/hook/2141b5bi5i5b02bec211i4eeih0242eg110/",
            "push_data":{"pushed_at":1417566161,"pusher":"trustedbuilder","tag":"latest"},"repository":{"comment_count":0,
            "date_created":1417494799,"is_official":false,"is_private":true,"is_trusted":true,"name":"testhook","namespace":
            "svendowideit","owner":"svendowideit","repo_name":"svendowideit/testhook","star_count":0,"status":"Active"}}"#;
        let events = parse(&Headers::default(), body).unwrap();
        assert_eq!(events.shape, Shape::DockerHub);
        assert_eq!(
            events.pushes[0].image(None).unwrap().to_string(),
            "docker.io/svendowideit/testhook:latest"
        );
    }

    const HEX: &str = "f6554b75e3a6ecb5f38c5e21a2a9b67757a360b2dad1bb70c2f3db5ef63dad60";

    fn body(key: &str, action: &str, kind: &str) -> String {
        format!(
            r#"{{"action":"{action}","{key}":{{"id":1,"name":"hello","namespace":"Octo","ecosystem":"CONTAINER","package_type":
            "{kind}","package_version":{{"id":2,"version":"sha256:{HEX}","container_metadata":{{"tag":{{"name":"V1","digest":
            "sha256:{HEX}"}},"labels":{{}},"manifest":{{}}}},"package_url":"ghcr.example/Octo/hello:V1"}}}},"repository":{{}},
            "organization":{{}},"sender":{{}}}}"#
        )
    }

    #[test]
    fn the_documented_events_of_github() {
        for key in ["registry_package", "package"] {
            for (event, action) in
                [(Some(key), "published"), (Some(key), "updated"), (None, "published")]
            {
                let headers = Headers {
                    github_event: event,
                    github_delivery: Some("72d3162e"),
                    ..Headers::default()
                };
                let events = parse(&headers, body(key, action, "CONTAINER").as_bytes()).unwrap();
                assert_eq!((events.shape, events.ignored), (Shape::Github, vec![]));
                let [push] = &events.pushes[..] else { panic!() };
                assert_eq!(push.id.as_deref(), Some("72d3162e"));
                assert_eq!(
                    push.image(None).unwrap().to_string(),
                    format!("ghcr.example/octo/hello:V1@sha256:{HEX}")
                );
            }
        }
    }

    #[test]
    fn events_of_gitea_and_forgejo() {
        let body = |action: &str, kind: &str, version: &str| {
            format!(
                r#"{{"action":"{action}","repository":null,"package":{{"id":1,"owner":{{"id":1,"login":"Team"}},
                "repository":null,"creator":{{"login":"me"}},"type":"{kind}","name":"x/y","version":"{version}",
                "html_url":"https://git.example:3000/Team/-/packages/container/x%2Fy/{version}",
                "created_at":"2026-01-01T00:00:00Z"}},"sender":{{"login":"me"}}}}"#
            )
        };
        // Both send the header of GitHub, too.
        let get = |name: &str| match name {
            "x-gitea-event" | "x-github-event" => Some("package"),
            "x-github-delivery" => Some("7"),
            _ => None,
        };
        let headers = Headers::new(get);
        let digest = format!("sha256:{HEX}");
        for (version, image) in [
            ("V1", "git.example:3000/team/x/y:V1".to_owned()),
            (&*digest, format!("git.example:3000/team/x/y@{digest}")),
        ] {
            let events = parse(&headers, body("created", "container", version).as_bytes()).unwrap();
            assert_eq!((events.shape, events.ignored), (Shape::Gitea, vec![]));
            let [push] = &events.pushes[..] else { panic!() };
            assert_eq!(push.image(None).unwrap().to_string(), image);
            assert_eq!(push.id.as_deref(), Some("7"));
        }
        for (body, ignored) in [
            (body("deleted", "container", "v1"), IgnoreReason::NotAPush("deleted".into())),
            (body("created", "npm", "v1"), IgnoreReason::NotAnImage("npm".into())),
            (r#"{"action":"created","package":null}"#.into(), IgnoreReason::Nameless),
        ] {
            assert_eq!(parse(&headers, body.as_bytes()).unwrap().ignored, [ignored]);
        }
        let push = Headers { gitea_event: Some("push"), ..Headers::default() };
        let ignored = parse(&push, br#"{"action":"","ref":"refs/heads/main"}"#).unwrap().ignored;
        assert_eq!(ignored, [IgnoreReason::NotAPush("push".into())]);
    }

    #[test]
    fn other_events_of_github_are_ignored() {
        let ping = Headers { github_event: Some("ping"), ..Headers::default() };
        assert_eq!(
            parse(&ping, br#"{"zen":"x","hook":{}}"#).unwrap().ignored,
            [IgnoreReason::NotAPush("ping".into())]
        );
        let package = Headers { github_event: Some("package"), ..Headers::default() };
        for (body, ignored) in [
            (body("package", "deleted", "CONTAINER"), IgnoreReason::NotAPush("deleted".into())),
            (body("package", "published", "npm"), IgnoreReason::NotAnImage("npm".into())),
            (r#"{"action":"published"}"#.into(), IgnoreReason::Nameless),
            (r#"{"action":"published","package":{}}"#.into(), IgnoreReason::Nameless),
        ] {
            assert_eq!(parse(&package, body.as_bytes()).unwrap().ignored, [ignored]);
        }
    }
}
