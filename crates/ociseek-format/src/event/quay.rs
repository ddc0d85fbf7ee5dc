//! Quay's `repo_push` (Quay docs, "Repository notifications"). Its events have neither a digest nor
//! an id, and list the tags of an image.

use serde::Deserialize;
use serde_json::Value;

use super::{Item, PushFields};

#[derive(Deserialize)]
struct Event {
    /// `HOST/NAMESPACE/NAME`.
    docker_url: String,
    repository: String,
    /// A list of tags, or in old versions a map from tags to image ids.
    #[serde(default)]
    updated_tags: Value,
}

pub(super) fn parse(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let event: Event = serde_json::from_slice(body)?;
    let registry = event.docker_url.split_once('/').map(|(host, _)| host);
    let push = |tag: &str| {
        PushFields { registry, repository: &event.repository, tag: Some(tag), ..PushFields::default() }.push()
    };
    Ok(match &event.updated_tags {
        Value::Array(tags) => tags.iter().filter_map(Value::as_str).map(push).collect(),
        Value::Object(tags) => tags.keys().map(|tag| push(tag)).collect(),
        _ => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, Shape, parse};

    #[test]
    fn the_documented_event_and_the_old_one() {
        for tags in [r#"["latest","v2"]"#, r#"{"latest":"0c2cd0","v2":"0c2cd0"}"#] {
            let body = format!(
                r#"{{"name":"repository","repository":"mynamespace/repository","namespace":"mynamespace","docker_url":
                "quay.example/mynamespace/repository","homepage":"https://quay.example/x","updated_tags":{tags}}}"#
            );
            let events = parse(&Headers::default(), body.as_bytes()).unwrap();
            assert_eq!((events.shape, &events.ignored[..]), (Shape::Quay, &[][..]));
            let images: Vec<_> = events.pushes.iter().map(|push| push.image(None).unwrap().to_string()).collect();
            assert_eq!(
                images,
                ["quay.example/mynamespace/repository:latest", "quay.example/mynamespace/repository:v2"]
            );
        }
        let body = br#"{"repository":"a/b","docker_url":"quay.example/a/b","updated_tags":null}"#;
        assert!(parse(&Headers::default(), body).unwrap().pushes.is_empty());
    }
}
