//! `{"image": "REGISTRY/REPOSITORY[:TAG][@DIGEST]"}`, for people, scripts, and tests of an
//! installation. The name is parsed as on the command line, so one without a registry refers to
//! Docker Hub.

use serde::Deserialize;

use super::{IgnoreReason, Item, PushFields, cut};
use crate::image::Reference;

#[derive(Deserialize)]
struct Event {
    image: String,
}

pub(super) fn parse(body: &[u8]) -> serde_json::Result<Vec<Item>> {
    let Event { image } = serde_json::from_slice(body)?;
    Ok(vec![push(&image)])
}

fn push(image: &str) -> Item {
    let reference: Reference = image.parse().map_err(|_| IgnoreReason::Malformed(cut(image), "image name"))?;
    let Reference { registry, repository, tag, digest } = &reference;
    let digest = digest.map(|digest| digest.to_string());
    let (registry, tag, digest) = (Some(registry.as_str()), tag.as_deref(), digest.as_deref());
    PushFields { id: None, registry, repository, tag, digest }.push()
}

#[cfg(test)]
mod tests {
    use super::super::{Headers, IgnoreReason, Shape, parse};

    #[test]
    fn an_image() {
        let events = parse(&Headers::default(), br#"{"image":"R.example:5000/a/b:t"}"#).unwrap();
        assert_eq!(events.shape, Shape::Direct);
        assert_eq!(events.pushes[0].image(None).unwrap().to_string(), "r.example:5000/a/b:t");
        let events = parse(&Headers::default(), br#"{"image":"http://x/y"}"#).unwrap();
        assert!(matches!(events.ignored[..], [IgnoreReason::Malformed(_, "image name")]));
        // In lower case, `r` is not a registry's host: `r/a/b` is an image of Docker Hub.
        let events = parse(&Headers::default(), br#"{"image":"R/a/b:t"}"#).unwrap();
        assert!(matches!(events.pushes[0].image(None), Err(IgnoreReason::Malformed(_, "image name"))));
    }
}
