//! Manifests, tags and referrers.

use axum::body::Body;
use axum::http::{Response, header};
use serde_json::{Value, json};

use super::super::profile::{Referrers, Trait};
use super::{Asked, Registry, digest_of, unknown};
use ociseek_testkit::faulty::{problem, status};
use ociseek_testkit::image::image_index;
use ociseek_testkit::sandbox::{OCI_CONFIG, OCI_INDEX};

const DOCKER_CONFIG: &str = "application/vnd.docker.container.image.v1+json";

impl Registry {
    pub(super) fn get_manifest(&self, name: &str, reference: &str) -> Response<Body> {
        let digest = self.digest(name, reference);
        let mut content = self.content.lock().unwrap();
        let there = content
            .repositories
            .get(name)
            .zip(digest.as_ref())
            .and_then(|(it, digest)| it.manifests.get(digest));
        if let (true, Some((_, bytes))) = (self.profile.has(Trait::SignedManifests), there.cloned())
        {
            return self.signed(&mut content, bytes);
        }
        let repository = content.repositories.get(name);
        let found = repository
            .zip(digest)
            .and_then(|(repository, digest)| repository.manifests.get(&digest));
        let missing = self.profile.find(|one| match one {
            Trait::MissingTag(status) => Some(status),
            _ => None,
        });
        match (found, missing) {
            (Some((media_type, bytes)), _) => Response::builder()
                .header(header::CONTENT_TYPE, media_type)
                .header("docker-content-digest", digest_of(bytes))
                .body(Body::from(bytes.clone()))
                .unwrap(),
            (None, Some(status)) if !reference.contains(':') => {
                let message =
                    format!("The client does not have permission for manifest: {name}/{reference}");
                problem(status, "UNAUTHORIZED", &message)
            }
            (None, _) => unknown("MANIFEST"),
        }
    }

    /// The digest of a reference, if it is a digest or a tag that is there.
    fn digest(&self, name: &str, reference: &str) -> Option<String> {
        if reference.contains(':') {
            return Some(reference.to_owned());
        }
        if let (true, Some(hex)) =
            (self.profile.has(Trait::ShaTagIsDigest), reference.strip_prefix("sha256-"))
        {
            return Some(format!("sha256:{hex}"));
        }
        self.content.lock().unwrap().repositories.get(name)?.tags.get(reference).cloned()
    }

    pub(super) fn put_manifest(
        &self,
        asked: &Asked,
        name: &str,
        reference: &str,
    ) -> Response<Body> {
        let digest = digest_of(&asked.body);
        if let Some(refusal) = self.refused(asked, name, reference, &digest) {
            return refusal;
        }
        let media_type = asked.header("content-type").unwrap_or_default().to_owned();
        let manifest: Value = serde_json::from_slice(&asked.body).unwrap();
        let mut content = self.content.lock().unwrap();
        let repository = content.repositories.entry(name.to_owned()).or_default();
        repository.manifests.insert(digest.clone(), (media_type, asked.body.clone()));
        if !reference.contains(':') {
            repository.tags.insert(reference.to_owned(), digest.clone());
        }
        let mut answer = Response::builder().status(201);
        if !self.profile.has(Trait::NoLocationOfManifests) {
            answer = answer
                .header(header::LOCATION, format!("/v2/{name}/manifests/{digest}"))
                .header("docker-content-digest", digest);
        }
        let claims =
            self.profile.has_referrers() || self.profile.has(Trait::Referrers(Referrers::Claimed));
        if let (true, Some(subject)) = (claims, manifest["subject"]["digest"].as_str()) {
            answer = answer.header("oci-subject", subject);
        }
        answer.body(Body::empty()).unwrap()
    }

    /// The refusal of a manifest, if this registry refuses it.
    fn refused(
        &self,
        asked: &Asked,
        name: &str,
        reference: &str,
        digest: &str,
    ) -> Option<Response<Body>> {
        let Ok(manifest) = serde_json::from_slice::<Value>(&asked.body) else {
            return Some(problem(400, "MANIFEST_INVALID", "manifest invalid"));
        };
        if reference.contains(':') && reference != digest
            || self.profile.has(Trait::ShaTagIsDigest) && reference.starts_with("sha256-")
        {
            return Some(problem(
                400,
                "DIGEST_INVALID",
                "provided digest did not match uploaded content",
            ));
        }
        let mut content = self.content.lock().unwrap();
        let repository = content.repositories.get(name).cloned().unwrap_or_default();
        let blobs =
            manifest["layers"].as_array().into_iter().flatten().chain([&manifest["config"]]);
        for blob in blobs.filter_map(|blob| blob["digest"].as_str()) {
            if !repository.blobs.contains_key(blob) {
                return Some(problem(
                    400,
                    "MANIFEST_BLOB_UNKNOWN",
                    &format!("blob unknown to registry: {blob}"),
                ));
            }
        }
        let late = self.profile.find(|one| match one {
            Trait::KnowsBlobsLate(times) => Some(times),
            _ => None,
        });
        if let (Some(times), Some(config)) = (late, manifest["config"]["digest"].as_str()) {
            let refused = content.late.entry(digest.to_owned()).or_default();
            *refused += 1;
            if *refused <= times {
                return Some(problem(
                    400,
                    "MANIFEST_BLOB_UNKNOWN",
                    &format!("blob unknown to registry; {config}"),
                ));
            }
        }
        for child in manifest["manifests"].as_array().into_iter().flatten() {
            let child = child["digest"].as_str().unwrap_or_default();
            if !repository.manifests.contains_key(child) {
                return Some(problem(
                    400,
                    "MANIFEST_UNKNOWN",
                    &format!("manifest unknown to registry: {child}"),
                ));
            }
        }
        let subject = manifest["subject"]["digest"].as_str();
        let there = repository.manifests.contains_key(digest);
        let config = manifest["config"]["mediaType"].as_str();
        self.profile.find(|one| match one {
            Trait::OnlyImages(status)
                if config.is_some_and(|config| ![OCI_CONFIG, DOCKER_CONFIG].contains(&config)) =>
            {
                Some(problem(
                    status,
                    "MANIFEST_INVALID",
                    "manifest schema: config.mediaType is not one of the known",
                ))
            }
            Trait::SubjectFirst(status)
                if subject.is_some_and(|it| !repository.manifests.contains_key(it)) =>
            {
                Some(problem(status, "MANIFEST_UNKNOWN", "the subject is not there"))
            }
            Trait::TagsStay(status, code, message)
                if repository.tags.get(reference).is_some_and(|at| at != digest) =>
            {
                Some(problem(status, code, message))
            }
            Trait::ManifestsStay(status) if there || repository.tags.contains_key(reference) => {
                Some(problem(
                    status,
                    "BLOB_UPLOAD_INVALID",
                    "Repository does not allow updating assets: docker-hosted",
                ))
            }
            _ => None,
        })
    }

    pub(super) fn delete_manifest(&self, name: &str, reference: &str) -> Response<Body> {
        let digest = self.digest(name, reference);
        let mut content = self.content.lock().unwrap();
        let Some(repository) = content.repositories.get_mut(name) else { return unknown("NAME") };
        let Some(digest) = digest.filter(|digest| repository.manifests.contains_key(digest)) else {
            return unknown("MANIFEST");
        };
        let is_tag = !reference.contains(':');
        let tagged = repository.tags.values().any(|at| *at == digest);
        let refusal = self.profile.find(|one| match one {
            Trait::DeleteRefused(status) => {
                Some(problem(status, "UNSUPPORTED", "The operation is unsupported."))
            }
            Trait::TaggedStays(status) if tagged && !is_tag => {
                let message = "Manifest is still referenced by tag: v1";
                Some(problem(status, "GOOGLE_MANIFEST_DANGLING_TAG", message))
            }
            Trait::DeleteByDigest if is_tag => Some(unknown("MANIFEST")),
            _ => None,
        });
        if let Some(refusal) = refusal {
            return refusal;
        }
        if is_tag {
            repository.tags.remove(reference);
        } else {
            repository.manifests.remove(&digest);
            repository.tags.retain(|_, at| *at != digest);
        }
        status(202)
    }

    /// A page of tags, in byte order.
    pub(super) fn tags(&self, asked: &Asked, name: &str) -> Response<Body> {
        let content = self.content.lock().unwrap();
        let Some(repository) = content.repositories.get(name) else { return unknown("NAME") };
        let count = asked.parameter("n").and_then(|n| n.parse().ok()).unwrap_or(usize::MAX);
        let last = asked.parameter("last").unwrap_or_default();
        let mut names: Vec<&String> = repository.tags.keys().filter(|tag| **tag > last).collect();
        // Two a page, so that there are several.
        let page = count.min(2);
        let mut answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
        if names.len() > page {
            names.truncate(page);
            let rel = if self.profile.has(Trait::PlainLinks) { "next" } else { "\"next\"" };
            let at = if self.profile.has(Trait::LinksElsewhere) {
                format!("http://{}/repository/docker", self.address)
            } else {
                String::new()
            };
            let next =
                format!("<{at}/v2/{name}/tags/list?n={count}&last={}>; rel={rel}", names[page - 1]);
            answer = answer.header(header::LINK, next);
        }
        answer.body(Body::from(json!({"name": name, "tags": names}).to_string())).unwrap()
    }

    pub(super) fn referrers(&self, asked: &Asked, name: &str, subject: &str) -> Response<Body> {
        let how = self.profile.find(|one| match one {
            Trait::Referrers(how) => Some(how),
            _ => None,
        });
        let how = how.filter(|how| *how != Referrers::Claimed).unwrap_or(Referrers::Missing(404));
        if let Referrers::Missing(status) = how {
            let page = if status == 404 { "404 page not found\n" } else { "" };
            return Response::builder().status(status).body(Body::from(page)).unwrap();
        }
        let content = self.content.lock().unwrap();
        let mut found = Vec::new();
        for (digest, (media_type, bytes)) in
            content.repositories.get(name).iter().flat_map(|it| &it.manifests)
        {
            let manifest: Value = serde_json::from_slice(bytes).unwrap_or_default();
            if manifest["subject"]["digest"] != subject {
                continue;
            }
            let stated = manifest["artifactType"].as_str().map(str::to_owned);
            let config = manifest["config"]["mediaType"].as_str().map(str::to_owned);
            let kind = match how {
                Referrers::WithoutTypes => stated,
                Referrers::OfConfigs => config,
                _ => stated.or(config),
            };
            let blobs =
                manifest["layers"].as_array().into_iter().flatten().chain([&manifest["config"]]);
            let size = match how {
                Referrers::OfConfigs => blobs.filter_map(|blob| blob["size"].as_u64()).sum::<u64>(),
                _ => 0,
            };
            let mut entry = json!({"mediaType": media_type, "digest": digest, "size": bytes.len() as u64 + size});
            if let Some(kind) = kind {
                entry["artifactType"] = json!(kind);
            }
            if manifest["annotations"].is_object() {
                entry["annotations"] = manifest["annotations"].clone();
            }
            found.push(entry);
        }
        let mut answer = Response::builder().header(header::CONTENT_TYPE, OCI_INDEX);
        let wanted = asked.parameter("artifactType");
        if let (Some(wanted), Referrers::Filtered | Referrers::Pages(_) | Referrers::OfConfigs) =
            (&wanted, how)
        {
            found.retain(|entry| entry["artifactType"] == **wanted);
            answer = answer.header("oci-filters-applied", "artifactType");
        }
        if let Referrers::Pages(page) = how {
            let from = asked.parameter("from").and_then(|from| from.parse().ok()).unwrap_or(0);
            found.drain(..from.min(found.len()));
            if found.len() > page {
                found.truncate(page);
                let filter =
                    wanted.map(|wanted| format!("artifactType={wanted}&")).unwrap_or_default();
                let next = format!(
                    "</v2/{name}/referrers/{subject}?{filter}from={}>; rel=\"next\"",
                    from + page
                );
                answer = answer.header(header::LINK, next);
            }
        }
        let index = image_index(&found);
        answer.body(Body::from(index.to_string())).unwrap()
    }
}
