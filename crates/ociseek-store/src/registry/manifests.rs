//! Manifests and indexes: read as a whole, within a limit, with a verified digest; pushed by digest
//! or tag; deleted by digest.

use bytes::Bytes;
use reqwest::header::{ACCEPT, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use serde::de::IgnoredAny;
use tokio::time::sleep;

use super::auth::Access;
use super::backoff::jitter;
use super::client::Repository;
use super::error::RegistryError;
use super::request::Request;
use super::response::Response;
use super::retry::Retry;
use crate::blob::{Document, Target};
use ociseek_format::digest::Digest;
use ociseek_format::image::is_tag;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::image::manifest::{
    DOCKER_LIST, DOCKER_MANIFEST, MAX_DOCUMENT, OCI_INDEX, OCI_MANIFEST, is_vague,
};

/// The size limit of a manifest in bytes. The distribution spec lets registries refuse larger ones.
pub(super) const MANIFEST: u64 = MAX_DOCUMENT as u64;
/// How often a manifest is pushed again that is refused for a missing blob. With the usual waits
/// between them, that takes three seconds.
const LATE_BLOBS: u32 = 3;

/// The media types that we read. Includes schema 1, to refuse it by name instead of as "not found".
const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json, \
    application/vnd.docker.distribution.manifest.v1+prettyjws;q=0.1, */*;q=0.05";

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

impl Repository {
    /// The manifest or index that `target` names. Its bytes match the requested digest, or, for a
    /// tag, the digest that the registry states; if it states none, the registry knows them by
    /// their digest. At most 4 MiB are read.
    ///
    /// # Errors
    /// [`RegistryError::is_not_found`] if it does not exist; [`RegistryError::is_other_content`] if
    /// it does not match its digest.
    pub async fn manifest(&self, target: &Target) -> Result<Document, RegistryError> {
        self.document(target, Access::Pull).await.map(|(document, _)| document)
    }

    /// What a tag names, if it exists. Artifactory answers 403 for tags that do not: then its list
    /// of tags decides. If there is none, the tag counts as missing, and a push shows whether it
    /// may be written.
    ///
    /// # Errors
    /// Those of [`Repository::manifest`].
    pub async fn manifest_if_tagged(&self, tag: &str) -> Result<Option<Document>, RegistryError> {
        match self.manifest(&Target::Tag(tag.to_owned())).await {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) if error.status() == Some(403) && self.has_tag(tag).await != Some(true) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Like `manifest_if_tagged`. What a tag names that is known already is not fetched.
    ///
    /// # Errors
    /// Those of [`Repository::manifest`].
    pub async fn known_if_tagged(&self, tag: &str) -> Result<Option<Document>, RegistryError> {
        let Some(known) = self.known() else { return self.manifest_if_tagged(tag).await };
        let stated = match self.head(tag).await {
            Err(StatusCode::NOT_FOUND) if known.has_stated_digest() => return Ok(None),
            answer => answer.ok().flatten(),
        };
        let _turn = match &stated {
            Some(digest) => Some(known.turn(digest).await),
            None => None,
        };
        if let Some(document) = stated.and_then(|digest| known.get(&digest)) {
            return Ok(Some(document));
        }
        let document = self.manifest_if_tagged(tag).await?;
        document.iter().for_each(|document| known.add(document));
        Ok(document)
    }

    /// The digest of what a tag names, as the registry states it in the answer to HEAD. None if it
    /// states none, or the request fails for any reason: a GET says why.
    pub(crate) async fn stated_digest(&self, tag: &str) -> Option<Digest> {
        self.head(tag).await.ok().flatten()
    }

    /// As [`Repository::stated_digest`]. If the answer has another status than 200, that one.
    async fn head(&self, tag: &str) -> Result<Option<Digest>, StatusCode> {
        let target = Target::Tag(tag.to_owned());
        if self.check_tag(&target).is_err() {
            return Ok(None);
        }
        let path = format!("manifests/{target}");
        let Ok(request) = self.request(Method::HEAD, &path).await else { return Ok(None) };
        let request = request.header(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let answer = self.registry.once(&request, &self.scope(Access::Pull)).await;
        let Ok(response) = answer else { return Ok(None) };
        if response.status() != StatusCode::OK {
            return Err(response.status());
        }
        let stated = content_digest(&response).ok().flatten();
        if let (Some(known), Some(_)) = (self.known(), stated) {
            known.add_stated_digest();
        }
        Ok(stated)
    }

    /// Whether the registry lists a tag. None if it gives no list.
    pub(super) async fn has_tag(&self, tag: &str) -> Option<bool> {
        let mut tags = self.tags(None).await.ok()?;
        while let Some(page) = tags.next_page().await.ok()? {
            if page.names.iter().any(|name| name == tag) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Like `manifest`, with the ETag.
    pub(super) async fn document(
        &self,
        target: &Target,
        access: Access,
    ) -> Result<(Document, Option<HeaderValue>), RegistryError> {
        self.check_tag(target)?;
        let request = self.request(Method::GET, &format!("manifests/{target}")).await?;
        let mut request = request.header(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let mut retry = Retry::new(&self.registry.http);
        loop {
            match self.try_document(&request, target, access, retry.reads()).await {
                Ok(document) => return Ok(document),
                Err(error) => retry.read_again(&mut request, error).await?,
            }
        }
    }

    async fn try_document(
        &self,
        request: &Request,
        target: &Target,
        access: Access,
        reads: u32,
    ) -> Result<(Document, Option<HeaderValue>), RegistryError> {
        let response =
            self.registry.once(request, &self.scope(access)).await?.expect(&[200]).await?;
        let response = response.no_web_page("a manifest").await?;
        let line = response.line.clone();
        let media_type = response.media_type();
        let etag = response.headers().get(reqwest::header::ETAG).cloned();
        let stated = content_digest(&response)?;
        let bytes = response.bytes(MANIFEST).await?;
        let expected = match target {
            Target::Digest(digest) => Some(*digest),
            Target::Tag(_) => stated,
        };
        let digest = match expected {
            Some(expected) => {
                let actual = Digest::of(expected.algorithm(), &bytes);
                if actual != expected {
                    let expected = expected.into();
                    let actual = actual.into();
                    return Err(RegistryError::Digest { line, expected, found: actual, reads });
                }
                actual
            }
            None => {
                if let Err(source) = parse_lenient::<IgnoredAny>(&bytes) {
                    return Err(RegistryError::Json { line, source, reads });
                }
                let actual = Digest::sha256(&bytes);
                // Nothing else shows that it arrived whole.
                if !self.knows(&actual, access).await? {
                    return Err(RegistryError::UnknownDigest { line, found: actual.into(), reads });
                }
                actual
            }
        };
        let media_type = match own_media_type(&bytes) {
            Some(own) if is_vague(&media_type) || is_same_kind(&own, &media_type) => own,
            _ => media_type,
        };
        Ok((Document { media_type, digest, bytes }, etag))
    }

    /// Whether the registry has a manifest with this digest, as far as it says so.
    async fn knows(&self, digest: &Digest, access: Access) -> Result<bool, RegistryError> {
        let request = self.request(Method::HEAD, &format!("manifests/{digest}")).await?;
        let request = request.header(ACCEPT, HeaderValue::from_static(ACCEPTED));
        let response = self.registry.once(&request, &self.scope(access)).await?;
        Ok(response.status() != StatusCode::NOT_FOUND)
    }

    /// Whether the registry lets us read a manifest, so that a refusal of something else in the
    /// repository is not about the login.
    pub(super) async fn is_readable(&self, digest: &Digest) -> bool {
        // Some registries refuse HEAD.
        for method in [Method::HEAD, Method::GET] {
            let Ok(request) = self.request(method, &format!("manifests/{digest}")).await else {
                return false;
            };
            let request = request.header(ACCEPT, HeaderValue::from_static(ACCEPTED));
            let response = self.registry.send(&request, &self.scope(Access::Pull)).await;
            if response.is_ok_and(|response| response.status() == StatusCode::OK) {
                return true;
            }
        }
        false
    }

    /// Pushes a manifest. If the response states another digest, the registry stored something
    /// else.
    pub(super) async fn put_manifest(
        &self,
        target: &Target,
        media_type: &str,
        bytes: Bytes,
        condition: Option<(HeaderName, HeaderValue)>,
    ) -> Result<Response, RegistryError> {
        let request = self.request(Method::PUT, &format!("manifests/{target}")).await?;
        let media_type = self.header_value(&request, media_type)?;
        let mut request = request.body(media_type, bytes.clone());
        if let Some((name, value)) = condition {
            request = request.header(name, value);
        }
        let response = self.registry.send(&request, &self.scope(Access::Push)).await?;
        let response = response
            .expect(&[200, 201, 202, 204])
            .await?
            .no_web_page("the answer to a push")
            .await?;
        if let Some(stated) = content_digest(&response)? {
            let expected = Digest::of(stated.algorithm(), &bytes);
            if stated != expected {
                return Err(RegistryError::Digest {
                    line: response.line,
                    expected: expected.into(),
                    found: stated.into(),
                    reads: 1,
                });
            }
        }
        Ok(response)
    }

    /// Pushes a manifest whose parts were written just before. Behind one name there may be several
    /// registries, or a storage that shows new blobs late. So a manifest that is refused for a
    /// missing blob is pushed again a few times (Azure/acr#588, openshift/image-registry#220).
    ///
    /// Returns None if the registry refused the manifest and has it already: some refuse to write
    /// what is there, even if nothing would change (replicatedhq/kots#5940).
    pub(super) async fn put_new_manifest(
        &self,
        target: &Target,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<Option<Response>, RegistryError> {
        let mut tries = 0;
        let mut pause = self.registry.http.limits.first_wait;
        loop {
            match self.put_manifest(target, media_type, bytes.clone(), None).await {
                Err(error) if error.is_blob_unknown() && tries < LATE_BLOBS => {
                    sleep(jitter(pause)).await
                }
                Err(error) if matches!(error.status(), Some(400 | 403 | 405 | 409 | 412)) => {
                    let stored = self.document(target, Access::Push).await;
                    let is_there = stored.is_ok_and(|(document, _)| document.bytes == bytes);
                    return if is_there { Ok(None) } else { Err(error) };
                }
                answered => return answered.map(Some),
            }
            tries += 1;
            pause *= 3;
        }
    }

    /// Pushes a manifest or index, whose parts all exist, by its digest or under a tag.
    ///
    /// # Errors
    /// [`RegistryError::is_blob_unknown`] if a part is missing; other errors of the registry.
    pub async fn push_manifest(
        &self,
        target: &Target,
        media_type: &str,
        bytes: Bytes,
    ) -> Result<(), RegistryError> {
        self.check_tag(target)?;
        self.put_new_manifest(target, media_type, bytes).await.map(drop)
    }

    fn check_tag(&self, target: &Target) -> Result<(), RegistryError> {
        match target {
            Target::Tag(tag) if !is_tag(tag) => Err(RegistryError::Name(format!(
                "{}:{}",
                self.name,
                tag.chars().take(300).collect::<String>()
            ))),
            _ => Ok(()),
        }
    }

    /// Deletes a manifest. A missing manifest counts as deleted.
    pub(super) async fn delete_manifest(&self, digest: &Digest) -> Result<(), RegistryError> {
        let request = self.request(Method::DELETE, &format!("manifests/{digest}")).await?;
        let response = self.registry.send(&request, &self.scope(Access::Delete)).await?;
        response
            .expect(&[200, 202, 204, 404])
            .await?
            .no_web_page("the answer to a deletion")
            .await
            .map(drop)
    }
}

/// The digest of the content according to the registry. Digests with unknown algorithms are
/// ignored.
fn content_digest(response: &Response) -> Result<Option<Digest>, RegistryError> {
    let Some(stated) =
        response.text(CONTENT_DIGEST).map(str::trim).filter(|stated| !stated.is_empty())
    else {
        return Ok(None);
    };
    match stated.to_ascii_lowercase().parse() {
        Ok(digest) => Ok(Some(digest)),
        Err(ociseek_format::digest::DigestError::Algorithm(_)) => Ok(None),
        Err(error) => Err(RegistryError::Protocol {
            line: response.line.clone(),
            what: format!("Docker-Content-Digest: {error}"),
        }),
    }
}

/// Whether a document may be what it says itself, whatever type it was served with, for which its
/// digest vouches. Nexus has served documents of OCI with docker's types, Quay with a type of
/// schema
/// 1. A manifest that is served as an index, or the reverse, is ambiguous.
fn is_same_kind(own: &str, served: &str) -> bool {
    let kind = |media_type: &str| match media_type {
        OCI_MANIFEST | DOCKER_MANIFEST => Some(Kind::Manifest),
        OCI_INDEX | DOCKER_LIST => Some(Kind::Index),
        _ => None,
    };
    kind(own).is_some_and(|own| kind(served).is_none_or(|served| served == own))
}

#[derive(PartialEq, Eq)]
enum Kind {
    Manifest,
    Index,
}

fn own_media_type(bytes: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct MediaTypeField {
        media_type: String,
    }
    serde_json::from_slice::<MediaTypeField>(bytes).ok().map(|field| field.media_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_what_it_says_unless_it_was_served_as_the_other_kind() {
        for (own, served, is_right) in [
            (OCI_MANIFEST, DOCKER_MANIFEST, true),
            (DOCKER_LIST, OCI_INDEX, true),
            (OCI_MANIFEST, "application/vnd.docker.distribution.manifest.v1+prettyjws", true),
            (OCI_INDEX, "application/x-gzip", true),
            (OCI_MANIFEST, OCI_INDEX, false),
            (DOCKER_LIST, DOCKER_MANIFEST, false),
            ("x/y", OCI_MANIFEST, false),
        ] {
            assert_eq!(is_same_kind(own, served), is_right, "{own} served as {served}");
        }
    }
}
