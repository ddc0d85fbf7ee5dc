//! Uploads of blobs.

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;

use super::super::profile::{Location, PatchRange, SCALE, Trait};
use super::{Asked, Registry, Upload, digest_of, unknown};
use ociseek_testkit::faulty::{problem, status};

impl Registry {
    /// POST: mounts a blob, or starts an upload.
    pub(super) fn begin(&self, asked: &Asked, name: &str) -> Response<Body> {
        let mut content = self.content.lock().unwrap();
        if let (Some(digest), Some(from)) = (asked.parameter("mount"), asked.parameter("from")) {
            let source = content.repositories.get(&from).filter(|source| {
                let listed = || {
                    source
                        .manifests
                        .values()
                        .any(|(_, bytes)| String::from_utf8_lossy(bytes).contains(&digest))
                };
                !self.profile.has(Trait::MountsWhatManifestsList) || listed()
            });
            if let Some(blob) = source.and_then(|source| source.blobs.get(&digest)).cloned() {
                content
                    .repositories
                    .entry(name.to_owned())
                    .or_default()
                    .blobs
                    .insert(digest.clone(), blob);
                let at = format!("/v2/{name}/blobs/{digest}");
                return Response::builder()
                    .status(201)
                    .header(header::LOCATION, at)
                    .body(Body::empty())
                    .unwrap();
            }
        }
        content.count += 1;
        let id = format!("u{}", content.count);
        let upload =
            Upload { repository: name.to_owned(), content: Vec::new(), first: 0, patches: 0 };
        let mut answer = self.taken(&id, &upload, 0, 202);
        content.uploads.insert(id, upload);
        if self.patch_range() == Some(PatchRange::Quay) {
            answer.headers_mut().insert(header::RANGE, "bytes=0--1".parse().unwrap());
        }
        answer
    }

    /// A request to an upload that was started.
    pub(super) fn upload(&self, asked: &Asked, id: &str) -> Response<Body> {
        if self.location() == Location::WithState && asked.parameter("_state").is_none() {
            return problem(400, "BLOB_UPLOAD_INVALID", "the state is missing");
        }
        if self.largest_body().is_some_and(|largest| asked.body.len() > largest) {
            return status(413);
        }
        let mut content = self.content.lock().unwrap();
        let Some(upload) = content.uploads.get_mut(id) else { return unknown("BLOB_UPLOAD") };
        let one_patch = self.profile.find(|one| match one {
            Trait::OnePatch(status) => Some(status),
            _ => None,
        });
        match asked.method.as_str() {
            "PATCH" if one_patch.is_some() && upload.patches > 0 => {
                status(one_patch.unwrap_or_default())
            }
            "PATCH" => self.patch(asked, id, upload),
            "GET" => match one_patch {
                Some(refused) => status(refused),
                None => {
                    let mut answer = self.taken(id, upload, 0, 204);
                    if self.patch_range() == Some(PatchRange::Quay) {
                        let range = format!("bytes=0-{}", upload.content.len());
                        answer.headers_mut().insert(header::RANGE, range.parse().unwrap());
                    }
                    answer
                }
            },
            "PUT" => {
                let refused = self.profile.find(|one| match one {
                    Trait::PutTakesNoContent(status) => Some(status),
                    _ => None,
                });
                if let Some(status) = refused.filter(|_| !asked.body.is_empty()) {
                    return problem(status, "BLOB_UNKNOWN", "blob unknown to registry");
                }
                upload.content.extend_from_slice(&asked.body);
                let name = upload.repository.clone();
                let blob = Bytes::from(std::mem::take(&mut upload.content));
                content.uploads.remove(id);
                let digest = asked.parameter("digest").unwrap_or_default();
                if digest_of(&blob) != digest {
                    return problem(
                        400,
                        "DIGEST_INVALID",
                        "provided digest did not match uploaded content",
                    );
                }
                content
                    .repositories
                    .entry(name.clone())
                    .or_default()
                    .blobs
                    .insert(digest.clone(), blob);
                let at = format!("http://{}/v2/{name}/blobs/{digest}", self.address);
                Response::builder()
                    .status(201)
                    .header(header::LOCATION, at)
                    .header("docker-content-digest", digest)
                    .body(Body::empty())
                    .unwrap()
            }
            "DELETE" => {
                let refused = self.profile.find(|one| match one {
                    Trait::CancelRefused(status) => Some(status),
                    _ => None,
                });
                if let Some(status) = refused {
                    return problem(status, "UNSUPPORTED", "The operation is unsupported.");
                }
                content.uploads.remove(id);
                status(204)
            }
            _ => status(405),
        }
    }

    fn patch(&self, asked: &Asked, id: &str, upload: &mut Upload) -> Response<Body> {
        let range = asked.header("content-range");
        let has = upload.content.len();
        if let Some(range) = range {
            if self.profile.has(Trait::NoRangeUnit) && range.contains(' ') {
                return problem(
                    400,
                    "BLOB_UPLOAD_INVALID",
                    "the Content-Range header format is invalid",
                );
            }
            let first = range
                .rsplit(' ')
                .next()
                .and_then(|range| range.split('-').next()?.parse::<usize>().ok());
            let largest = self.profile.find(|one| match one {
                Trait::LargestChunk(largest) => Some(largest),
                _ => None,
            });
            if largest.is_some_and(|largest| asked.body.len() > largest) {
                let message = "the request body is too large and exceeds the maximum permissible limit of 4.00MiB";
                return problem(416, "REQUESTED_RANGE_NOT_SATISFIABLE", message);
            }
            if first != Some(has) {
                return self.taken(id, upload, 0, 416);
            }
        } else if let Some(status) = self.profile.find(|one| match one {
            Trait::PatchNeedsRange(status) => Some(status),
            _ => None,
        }) && has > 0
        {
            return problem(
                status,
                "BLOB_UPLOAD_INVALID",
                "Stream uploads after first write are not allowed",
            );
        }
        upload.content.extend_from_slice(&asked.body);
        upload.patches += 1;
        if upload.patches == 1 {
            upload.first = upload.content.len();
        }
        let status = self.profile.find(|one| match one {
            Trait::PatchStatus(status) => Some(status),
            _ => None,
        });
        self.taken(id, upload, asked.body.len(), status.unwrap_or(202))
    }

    /// What an upload has, after a chunk of `chunk` bytes.
    fn taken(&self, id: &str, upload: &Upload, chunk: usize, status: u16) -> Response<Body> {
        let name = &upload.repository;
        let has = upload.content.len();
        let end = match self.patch_range() {
            Some(PatchRange::FirstChunk) if upload.patches > 0 => upload.first,
            Some(PatchRange::ThisChunk) if chunk > 0 => chunk,
            _ => has,
        };
        let at = match self.location() {
            Location::Relative => format!("/v2/{name}/blobs/uploads/{id}"),
            Location::WithState => {
                format!("/v2/{name}/blobs/uploads/{id}?_nouploadcache=false&_state=a%2Fb%3D")
            }
            Location::OtherPath if upload.patches == 0 => format!("/artifacts-uploads/{id}"),
            Location::OtherPath => format!("/v2/{name}/blobs/uploads/{id}"),
            Location::OtherHost => format!("http://{}/uploads/{id}", self.storage),
        };
        let mut answer = Response::builder()
            .status(status)
            .header(header::LOCATION, at)
            .header("docker-upload-uuid", id);
        if self.patch_range() != Some(PatchRange::Quay) || has > 0 {
            answer = answer.header(header::RANGE, format!("0-{}", end.saturating_sub(1)));
        }
        if let Some(largest) = self.largest_body() {
            answer = answer
                .header("oci-chunk-min-length", (5 << 20) / SCALE)
                .header("oci-chunk-max-length", largest);
        }
        answer.body(Body::empty()).unwrap()
    }

    fn largest_body(&self) -> Option<usize> {
        self.profile.find(|one| match one {
            Trait::LargestBody(largest) => Some(largest / SCALE),
            _ => None,
        })
    }

    fn location(&self) -> Location {
        self.profile
            .find(|one| if let Trait::UploadLocation(at) = one { Some(at) } else { None })
            .unwrap_or(Location::WithState)
    }

    fn patch_range(&self) -> Option<PatchRange> {
        self.profile.find(|one| if let Trait::PatchRange(range) = one { Some(range) } else { None })
    }
}
