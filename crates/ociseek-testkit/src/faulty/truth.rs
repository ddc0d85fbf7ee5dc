//! What the registry answers when it does not lie.

use std::time::{Duration, SystemTime};

use super::responses::{basic, index_answer, json_answer, problem, status};
use super::{Faulty, ReceivedRequest};
use axum::body::Body;
use axum::http::{Response, StatusCode, header};
use bytes::Bytes;
use futures_util::FutureExt;
use ociseek_format::digest::Digest;
use serde_json::{Value, json};

impl Faulty {
    /// The correct response, for lies that modify it. Not for registries with slow manifests.
    pub fn truth_now(&self, request: &ReceivedRequest) -> Response<Body> {
        self.truth(request).now_or_never().unwrap()
    }

    /// The correct response.
    pub async fn truth(&self, request: &ReceivedRequest) -> Response<Body> {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        if path == "/token" {
            return self.token(request);
        }
        if let Some(refusal) = self.unauthorized(request) {
            return refusal;
        }
        let slow = self.settings.slow_manifests;
        let Some((name, what, reference)) = split(path) else { return status(404) };
        match (request.method.as_str(), what) {
            ("GET" | "HEAD", "blobs") => {
                pause(self.settings.slow_blobs).await;
                self.get_blob(request, reference)
            }
            ("POST", "uploads") => {
                let mut all = self.content.lock().unwrap();
                all.next_upload += 1;
                let id = format!("u{}", all.next_upload);
                all.uploads.insert(id.clone(), Vec::new());
                accepted(name, &id, 0)
            }
            (_, "uploads") if !query.contains("_state=a%2Fb") => {
                problem(400, "BLOB_UPLOAD_INVALID", "the state is gone")
            }
            (_, "uploads") => self.upload(request, name, reference, query),
            ("GET" | "HEAD", "manifests") => {
                let answer = self.get_manifest(reference);
                pause(slow).await;
                answer
            }
            ("PUT", "manifests") => {
                pause(slow).await;
                self.put_manifest(request, reference)
            }
            ("DELETE", "manifests") => {
                let removed = self.content.lock().unwrap().manifests.remove(reference);
                status(if removed.is_some() { 202 } else { 404 })
            }
            ("GET", "tags") => self.tags(query),
            ("GET", "referrers") if self.settings.referrers => self.get_referrers(reference),
            ("GET", "referrers") => status(404),
            _ => status(405),
        }
    }

    fn token(&self, request: &ReceivedRequest) -> Response<Body> {
        if let Some(Some((user, password))) = &self.settings.bearer
            && request.header("authorization") != Some(&basic(user, password))
            && !String::from_utf8_lossy(&request.body).contains("refresh_token=identity-of-")
        {
            return Response::builder()
                .status(401)
                .body(Body::from(r#"{"details":"wrong password"}"#))
                .unwrap();
        }
        let mut all = self.content.lock().unwrap();
        all.issued += 1;
        let token = format!("token-{}", all.issued);
        let asked = format!("{}&{}", request.path, String::from_utf8_lossy(&request.body))
            .replace("%3A", ":")
            .replace("%2F", "/");
        let name = asked
            .split("scope=repository:")
            .nth(1)
            .and_then(|scope| scope.split(':').next())
            .unwrap_or_default();
        all.tokens.insert(token.clone(), (name.to_owned(), SystemTime::now()));
        let seconds = self.settings.token_lifetime.map_or(300, |lifetime| lifetime.as_secs());
        json_answer(200, &json!({"token": token, "expires_in": seconds}))
    }

    fn unauthorized(&self, request: &ReceivedRequest) -> Option<Response<Body>> {
        let shown = request.header("authorization").unwrap_or_default();
        let challenge = if self.settings.bearer.is_some() {
            let token = shown.strip_prefix("Bearer ").unwrap_or_default();
            let name = split(request.path.split('?').next().unwrap_or_default())
                .map_or("", |(name, _, _)| name);
            let is_valid = |(repository, issued): &(String, SystemTime)| {
                let age = issued.elapsed().unwrap_or_default();
                repository == name
                    && self.settings.token_lifetime.is_none_or(|lifetime| age < lifetime)
            };
            if self.content.lock().unwrap().tokens.get(token).is_some_and(is_valid) {
                return None;
            }
            let actions = if matches!(request.method.as_str(), "GET" | "HEAD") {
                "pull"
            } else {
                "pull,push"
            };
            let host = self.address;
            let scope = format!("repository:{name}:{actions}");
            format!("Bearer realm=\"http://{host}/token\",service=\"faulty\",scope=\"{scope}\"")
        } else {
            let (user, password) = self.settings.basic.as_ref()?;
            if shown == basic(user, password) {
                return None;
            }
            "Basic realm=\"faulty\"".to_owned()
        };
        let mut refusal = problem(401, "UNAUTHORIZED", "authentication required");
        refusal.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.parse().unwrap());
        Some(refusal)
    }

    pub fn get_blob(&self, request: &ReceivedRequest, digest: &str) -> Response<Body> {
        let Some(blob) = self.content.lock().unwrap().blobs.get(digest).cloned() else {
            return problem(404, "BLOB_UNKNOWN", "blob unknown");
        };
        let total = blob.len();
        let answer = Response::builder().header(header::ETAG, format!("\"{digest}\""));
        let range = request.header("range").and_then(|r| {
            let (from, last) = r.strip_prefix("bytes=")?.split_once('-')?;
            let end = last.parse::<usize>().map_or(total, |last| total.min(last + 1));
            Some((from.parse::<usize>().ok()?, end))
        });
        match range {
            Some((from, end)) if from < end => answer
                .status(206)
                .header(header::CONTENT_RANGE, format!("bytes {from}-{}/{total}", end - 1))
                .body(Body::from(blob.slice(from..end)))
                .unwrap(),
            Some(_) => status(416),
            None => answer.header(header::CONTENT_LENGTH, total).body(Body::from(blob)).unwrap(),
        }
    }

    fn upload(
        &self,
        request: &ReceivedRequest,
        name: &str,
        id: &str,
        query: &str,
    ) -> Response<Body> {
        let mut all = self.content.lock().unwrap();
        let Some(upload) = all.uploads.get_mut(id) else {
            return problem(404, "BLOB_UPLOAD_UNKNOWN", "no such upload");
        };
        match request.method.as_str() {
            "PATCH" => {
                let first = request
                    .header("content-range")
                    .and_then(|r| r.split('-').next()?.parse::<usize>().ok());
                // Without a range, everything is sent at once.
                if first.unwrap_or(0) != upload.len() {
                    return status(416);
                }
                upload.extend_from_slice(&request.body);
                accepted(name, id, upload.len())
            }
            "GET" => {
                let mut answer = accepted(name, id, upload.len());
                *answer.status_mut() = StatusCode::NO_CONTENT;
                answer
            }
            "PUT" => {
                upload.extend_from_slice(&request.body);
                let content = Bytes::from(std::mem::take(upload));
                let digest =
                    query.split('&').find_map(|p| p.strip_prefix("digest=")).unwrap_or_default();
                let digest = digest.replace("%3A", ":");
                if Digest::sha256(&content).to_string() != digest {
                    return problem(400, "DIGEST_INVALID", "digest invalid");
                }
                all.uploads.remove(id);
                all.blobs.insert(digest, content);
                status(201)
            }
            "DELETE" => {
                all.uploads.remove(id);
                status(204)
            }
            _ => status(405),
        }
    }

    fn get_manifest(&self, reference: &str) -> Response<Body> {
        let Some((media_type, bytes)) =
            self.content.lock().unwrap().manifests.get(reference).cloned()
        else {
            return problem(404, "MANIFEST_UNKNOWN", "manifest unknown");
        };
        let digest = Digest::sha256(&bytes);
        Response::builder()
            .header(header::CONTENT_TYPE, media_type)
            .header("docker-content-digest", digest.to_string())
            .header(header::ETAG, format!("\"{digest}\""))
            .body(Body::from(bytes))
            .unwrap()
    }

    fn put_manifest(&self, request: &ReceivedRequest, reference: &str) -> Response<Body> {
        let digest = Digest::sha256(&request.body).to_string();
        let mut all = self.content.lock().unwrap();
        if self.settings.conditions {
            let there = all
                .manifests
                .get(reference)
                .map(|(_, bytes)| format!("\"{}\"", Digest::sha256(bytes)));
            let differs =
                request.header("if-match").is_some_and(|etag| there.as_deref() != Some(etag));
            if differs || request.header("if-none-match").is_some() && there.is_some() {
                return status(412);
            }
        }
        let Ok(parsed) = serde_json::from_slice::<Value>(&request.body) else { return status(400) };
        let blobs = parsed["layers"].as_array().into_iter().flatten().chain([&parsed["config"]]);
        for blob in blobs.filter_map(|blob| blob["digest"].as_str()) {
            if !all.blobs.contains_key(blob) {
                return problem(400, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry");
            }
        }
        let listed = parsed["manifests"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|entry| entry["digest"].as_str());
        if self.settings.complete_lists
            && listed.into_iter().any(|digest| !all.manifests.contains_key(digest))
        {
            return problem(400, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry");
        }
        let subject = parsed["subject"]["digest"].as_str();
        if self.settings.strict_subjects
            && subject.is_some_and(|subject| !all.manifests.contains_key(subject))
        {
            return problem(404, "MANIFEST_BLOB_UNKNOWN", "blob unknown to registry");
        }
        let media_type = request.header("content-type").unwrap_or_default().to_owned();
        all.manifests.insert(digest.clone(), (media_type.clone(), request.body.clone()));
        all.manifests.insert(reference.into(), (media_type, request.body.clone()));
        let mut answer = Response::builder().status(201).header("docker-content-digest", digest);
        if let (true, Some(subject)) =
            (self.settings.referrers, parsed["subject"]["digest"].as_str())
        {
            answer = answer.header("oci-subject", subject);
        }
        answer.body(Body::empty()).unwrap()
    }

    /// A page of tags, in byte order.
    fn tags(&self, query: &str) -> Response<Body> {
        let asked =
            |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        let count = asked("n").map_or(usize::MAX, |n| n.parse().unwrap());
        let last = asked("last").unwrap_or_default();
        let all = self.content.lock().unwrap();
        let mut names: Vec<&str> = all.manifests.keys().map(String::as_str).collect();
        names.retain(|name| !name.contains(':') && *name > last);
        let mut answer = Response::builder().header(header::CONTENT_TYPE, "application/json");
        if names.len() > count {
            names.truncate(count);
            let next =
                format!("</v2/a/b/tags/list?n={count}&last={}>; rel=\"next\"", names[count - 1]);
            answer = answer.header(header::LINK, next);
        }
        answer.body(Body::from(json!({"name": "a/b", "tags": names}).to_string())).unwrap()
    }

    pub fn get_referrers(&self, subject: &str) -> Response<Body> {
        let all = self.content.lock().unwrap();
        let mut found = Vec::new();
        for (reference, (media_type, bytes)) in &all.manifests {
            let manifest: Value = serde_json::from_slice(bytes).unwrap_or_default();
            if reference.contains(':') && manifest["subject"]["digest"] == subject {
                let stated = Some(&manifest["artifactType"]).filter(|stated| stated.is_string());
                let kind = stated.unwrap_or(&manifest["config"]["mediaType"]).clone();
                found.push(
                    json!({"mediaType": media_type, "digest": reference, "size": bytes.len(), "artifactType": kind}),
                );
            }
        }
        index_answer(&json!(found))
    }
}

/// `/v2/NAME/blobs|manifests|referrers/REFERENCE` or `/v2/NAME/blobs/uploads/ID`.
fn split(path: &str) -> Option<(&str, &str, &str)> {
    let path = path.strip_prefix("/v2/")?;
    let (rest, reference) = path.rsplit_once('/')?;
    let (name, what) = rest.rsplit_once('/')?;
    Some((name.strip_suffix("/blobs").unwrap_or(name), what, reference))
}

/// Without a delay this is ready at once, which lets a lie use the correct response without
/// waiting.
async fn pause(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn accepted(name: &str, id: &str, length: usize) -> Response<Body> {
    Response::builder()
        .status(202)
        .header(header::LOCATION, format!("/v2/{name}/blobs/uploads/{id}?_state=a%2Fb"))
        .header(header::RANGE, format!("0-{}", length.saturating_sub(1)))
        .body(Body::empty())
        .unwrap()
}
