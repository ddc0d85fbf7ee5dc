//! Docker Hub (Docker docs, "Webhooks"). Its events have neither a digest nor an id.

use serde::Deserialize;

use super::{Item, PushFields};
use crate::image::DOCKER_HUB;

#[derive(Deserialize)]
struct Event {
    push_data: Data,
    repository: Repository,
}

#[derive(Deserialize)]
struct Data {
    tag: Option<String>,
}

#[derive(Deserialize)]
struct Repository {
    repo_name: String,
}

pub(super) fn parse(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: Event = serde_json::from_slice(body)?;
    let (registry, repository) = (Some(DOCKER_HUB), event.repository.repo_name.as_str());
    Ok(vec![PushFields { registry, repository, tag: event.push_data.tag.as_deref(), ..PushFields::default() }.push()])
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, Shape, parse};

    #[test]
    fn the_documented_event() {
        let body = br#"{"callback_url":"https://registry.example/u/svendowideit/testhook/hook/2141b5bi5i5b02bec211i4eeih0242eg110/",
            "push_data":{"pushed_at":1417566161,"pusher":"trustedbuilder","tag":"latest"},"repository":{"comment_count":0,
            "date_created":1417494799,"is_official":false,"is_private":true,"is_trusted":true,"name":"testhook","namespace":
            "svendowideit","owner":"svendowideit","repo_name":"svendowideit/testhook","star_count":0,"status":"Active"}}"#;
        let events = parse(&Headers::default(), body).unwrap();
        assert_eq!(events.shape, Shape::DockerHub);
        assert_eq!(events.pushes[0].image(None).unwrap().to_string(), "docker.io/svendowideit/testhook:latest");
    }
}
