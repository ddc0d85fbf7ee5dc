//! Uploads blobs (distribution spec, "Push"): in one request where possible, otherwise in chunks.
//!
//! Registries differ in what they support. Amazon ECR answers PATCH with 201 and a `Range` that
//! stays at the end of the first chunk, zot and Aliyun have stated the range of the chunk instead
//! of the blob, and Google's Artifact Registry has no chunks. So a blob is sent in one PUT, and in
//! chunks only if the registry asks for them or refuses the PUT. Positions that cannot be true are
//! ignored: the digest decides.

use std::sync::Arc;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{CONTENT_RANGE, HeaderValue, RANGE};
use tracing::debug;
use url::Url;

use super::TARGET;
use super::auth::{Access, Scope};
use super::client::Repository;
use super::error::RegistryError;
use super::request::{Request, StreamBody};
use super::response::Response;
use super::retry::Retry;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::progress::causes;

/// The limit for the chunk size that a registry may request (`OCI-Chunk-Min-Length`), in bytes.
const LARGEST_CHUNK: u64 = 1 << 30;
/// The chunk size after a larger body was too large for a server on the way (413), in bytes.
const SMALL_CHUNK: u64 = 4 << 20;
/// How many times in a row a chunk may be sent without any of it being accepted.
const STALLS: u32 = 3;
/// How many times an upload is repeated because its authorization expired meanwhile.
const EXPIRIES: u32 = 3;

/// How the bytes of a blob are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadMode {
    /// In a single PUT.
    Whole,
    /// In PATCH requests of this many bytes, and a PUT without a body.
    Chunks(u64),
}

/// Why an upload session ended without the blob.
pub(crate) enum UploadFailure {
    /// The registry no longer knows the session or its content.
    Lost(RegistryError),
    /// A body was too large (413).
    TooLarge(RegistryError),
    /// The registry may refuse only this way of sending the bytes.
    Refused(RegistryError),
    /// The authorization expired, and there is a new one.
    Expired(RegistryError),
    Other(RegistryError),
}

impl From<RegistryError> for UploadFailure {
    fn from(error: RegistryError) -> UploadFailure {
        UploadFailure::Other(error)
    }
}

/// The attempts to upload a blob: how to make the next one, and when to stop.
pub(crate) struct UploadAttempts {
    pub(super) repository: Repository,
    pub(super) blob: Descriptor,
    mode: UploadMode,
    /// The error with which a single PUT was refused.
    whole_refused: Option<RegistryError>,
    are_chunks_refused: bool,
    expired: u32,
    retry: Retry,
}

/// A started session, unless the registry has the blob already.
pub(super) enum BegunUpload {
    Session(UploadSession, UploadMode),
    Present,
}

impl Repository {
    /// Uploads a blob unless the registry already has it. Returns whether it was uploaded.
    ///
    /// # Errors
    /// [`RegistryError::Content`] if `content` does not have the descriptor's size; errors of the
    /// registry; transport errors after retries.
    pub async fn push_blob(
        &self,
        blob: &Descriptor,
        content: Bytes,
    ) -> Result<bool, RegistryError> {
        if self.is_there(blob).await? {
            return Ok(false);
        }
        self.push_blob_unchecked(blob, content).await.map(|()| true)
    }

    /// Uploads a blob without asking whether it exists, for registries that claimed so wrongly.
    ///
    /// # Errors
    /// Those of [`Repository::push_blob`].
    pub async fn push_blob_unchecked(
        &self,
        blob: &Descriptor,
        content: Bytes,
    ) -> Result<(), RegistryError> {
        let found = content.len() as u64;
        if found != blob.size {
            return Err(RegistryError::Content { digest: blob.digest, expected: blob.size, found });
        }
        let mut attempts = self.upload_attempts(blob);
        loop {
            let sent = match attempts.begin().await {
                Ok(BegunUpload::Present) => return Ok(()),
                Ok(BegunUpload::Session(mut session, mode)) => {
                    let sent = session.send(&blob.digest, &content, mode).await;
                    session.close(&sent).await;
                    sent
                }
                Err(failure) => Err(failure),
            };
            let Err(failure) = sent else { return Ok(()) };
            if attempts.after(failure).await? {
                return Ok(());
            }
        }
    }

    /// Whether the registry has the complete blob, asked with push access. False in doubt.
    ///
    /// # Errors
    /// If the registry cannot be reached, or rejects the credentials.
    pub async fn is_there(&self, blob: &Descriptor) -> Result<bool, RegistryError> {
        let request = self.request(Method::HEAD, &format!("blobs/{}", blob.digest)).await?;
        let response = self.registry.send(&request, &self.scope(Access::Push)).await?;
        match response.status().as_u16() {
            200 => Ok(response.content_length().is_none_or(|length| length == blob.size)),
            401 => Err(response.refusal().await),
            _ => Ok(false),
        }
    }

    /// Asks the registry to mount a blob from another of its repositories. Returns false if it does
    /// not, and the blob must be uploaded.
    ///
    /// The token must also allow reading the other repository (oras-project/rust-oci-client#235). A
    /// client that may not read it gets no such token, or 401 or 403 (containerd/containerd#12163,
    /// containerd/containerd#14086), and can still upload.
    ///
    /// # Errors
    /// If the registry cannot be reached.
    pub async fn mount_blob(
        &self,
        digest: &Digest,
        from: &Repository,
    ) -> Result<bool, RegistryError> {
        let scope = Scope { from: Some(Arc::clone(&from.name)), ..self.scope(Access::Push) };
        let mut request = self.request(Method::POST, "blobs/uploads/").await?;
        request
            .url
            .query_pairs_mut()
            .append_pair("mount", &digest.to_string())
            .append_pair("from", &from.name);
        let response = match self.registry.once(&request, &scope).await {
            Ok(response) => response,
            Err(error) if error.status().is_some() => {
                debug!(name: "no_mount", target: TARGET, registry = &*self.registry.name, error = causes(&error));
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        if response.status() == 202
            && let Some(at) = self.location(&response).await?
        {
            // It started an upload instead.
            cancel(self, at).await;
        }
        Ok(response.status() == 201)
    }

    /// The attempts to upload a blob.
    pub(crate) fn upload_attempts(&self, blob: &Descriptor) -> UploadAttempts {
        let limits = &self.registry.http.limits;
        UploadAttempts {
            repository: self.clone(),
            blob: blob.clone(),
            mode: if blob.size > limits.monolithic {
                UploadMode::Chunks(limits.chunk)
            } else {
                UploadMode::Whole
            },
            whole_refused: None,
            are_chunks_refused: false,
            expired: 0,
            retry: Retry::new(&self.registry.http),
        }
    }

    async fn location(&self, response: &Response) -> Result<Option<Url>, RegistryError> {
        let base = self.registry.base().await?;
        match response.location().filter(|location| !location.is_empty()) {
            Some(location) => self.registry.resolve(base, response, &location).map(Some),
            None => Ok(None),
        }
    }
}

impl UploadAttempts {
    /// Starts a session.
    pub(super) async fn begin(&mut self) -> Result<BegunUpload, UploadFailure> {
        let repository = &self.repository;
        let scope = repository.scope(Access::Push);
        let request = repository.request(Method::POST, "blobs/uploads/").await?;
        let response =
            repository.registry.send(&request, &scope).await?.expect(&[200, 201, 202, 204]).await?;
        // For 201, the registry may have the blob already (distribution spec, "Single POST" and
        // "Mounting a blob from another repository").
        if response.status() != 202 && repository.is_there(&self.blob).await? {
            return Ok(BegunUpload::Present);
        }
        let at = repository.location(&response).await?.ok_or_else(|| RegistryError::Protocol {
            line: response.line.clone(),
            what: "the upload has no Location".to_owned(),
        })?;
        let limit = |name: &str| {
            response
                .text(name)
                .and_then(|length| length.trim().parse::<u64>().ok())
                .filter(|length| *length > 0)
        };
        let least = limit("oci-chunk-min-length");
        let most = limit("oci-chunk-max-length");
        let mut size = match self.mode {
            UploadMode::Chunks(size) => size,
            UploadMode::Whole => repository.registry.http.limits.chunk,
        };
        if let Some(most) = most {
            size = size.min(most);
        }
        size = size.max(least.unwrap_or(0)).clamp(1, LARGEST_CHUNK);
        let asks_for_chunks = (least.is_some() || most.is_some())
            && !self.are_chunks_refused
            && self.blob.size > size;
        if asks_for_chunks || self.mode != UploadMode::Whole {
            self.mode = UploadMode::Chunks(size);
        }
        let session = UploadSession { repository: repository.clone(), at, open: true };
        Ok(BegunUpload::Session(session, self.mode))
    }

    /// Call this after a failed attempt. Returns when it is time for the next one: false to make
    /// it, true if the registry has the blob after all.
    pub(crate) async fn after(&mut self, failure: UploadFailure) -> Result<bool, RegistryError> {
        let chunk = self.repository.registry.http.limits.chunk;
        match failure {
            UploadFailure::TooLarge(error) => match self.mode {
                UploadMode::Chunks(size) if size <= SMALL_CHUNK => return Err(error),
                _ if self.are_chunks_refused || self.blob.size <= SMALL_CHUNK => return Err(error),
                _ => self.mode = UploadMode::Chunks(SMALL_CHUNK),
            },
            UploadFailure::Refused(error) => match self.mode {
                UploadMode::Whole if self.are_chunks_refused => return Err(error),
                UploadMode::Whole => {
                    self.whole_refused = Some(error);
                    self.mode = UploadMode::Chunks(chunk);
                }
                // The first reason is more likely to be the true one.
                UploadMode::Chunks(_) if let Some(first) = self.whole_refused.take() => {
                    return Err(first);
                }
                UploadMode::Chunks(_) if self.are_chunks_refused => return Err(error),
                UploadMode::Chunks(_) => {
                    self.are_chunks_refused = true;
                    self.mode = UploadMode::Whole;
                }
            },
            UploadFailure::Expired(error) => {
                self.expired += 1;
                if self.expired == EXPIRIES {
                    return Err(error);
                }
                // The next token may expire during a long request as well.
                self.prefer_chunks(chunk);
            }
            UploadFailure::Lost(error) => {
                self.retry.after_lost_upload(&self.blob.digest, error).await?;
                self.prefer_chunks(chunk);
            }
            UploadFailure::Other(error) => {
                self.retry.after_failure(error).await?;
                // The response may have been lost after the upload succeeded.
                if self.repository.is_there(&self.blob).await? {
                    return Ok(true);
                }
                self.prefer_chunks(chunk);
            }
        }
        Ok(false)
    }

    /// After an interruption, chunks lose less at the next one.
    fn prefer_chunks(&mut self, chunk: u64) {
        if self.mode == UploadMode::Whole
            && self.blob.size > chunk
            && !self.are_chunks_refused
            && self.whole_refused.is_none()
        {
            self.mode = UploadMode::Chunks(chunk);
        }
    }
}

/// An upload session. If it is dropped before its end, as when the user interrupts the program, it
/// is cancelled.
pub(super) struct UploadSession {
    repository: Repository,
    /// The URL for the next request.
    at: Url,
    open: bool,
}

impl UploadSession {
    /// Sends the whole blob.
    async fn send(
        &mut self,
        digest: &Digest,
        content: &Bytes,
        mode: UploadMode,
    ) -> Result<(), UploadFailure> {
        match mode {
            UploadMode::Whole => self.put(digest, content.clone()).await,
            UploadMode::Chunks(size) => {
                self.piece(content, 0, content.len() as u64, size).await?;
                self.put(digest, Bytes::new()).await
            }
        }
    }

    /// Ends the session with `rest`, the bytes that were not sent yet.
    pub(super) async fn put(&mut self, digest: &Digest, rest: Bytes) -> Result<(), UploadFailure> {
        let octets = HeaderValue::from_static("application/octet-stream");
        let request = Request::new(Method::PUT, self.last(digest)).body(octets, rest);
        finished(self.unless_busy(&request).await?).await
    }

    /// Sends the whole blob in the one request that ends the session, as its bytes arrive. A failed
    /// request is not repeated.
    pub(super) async fn put_stream(
        &mut self,
        digest: &Digest,
        body: StreamBody,
    ) -> Result<(), UploadFailure> {
        let octets = HeaderValue::from_static("application/octet-stream");
        let request = Request::new(Method::PUT, self.last(digest)).stream(octets, body);
        finished(
            self.repository.registry.once(&request, &self.repository.scope(Access::Push)).await?,
        )
        .await
    }

    fn last(&self, digest: &Digest) -> Url {
        let mut at = self.at.clone();
        at.query_pairs_mut().append_pair("digest", &digest.to_string());
        at
    }

    /// Sends a piece that begins at `from` in a blob of `total` bytes, chunk by chunk.
    pub(super) async fn piece(
        &mut self,
        piece: &Bytes,
        from: u64,
        total: u64,
        size: u64,
    ) -> Result<(), UploadFailure> {
        let until = from + piece.len() as u64;
        let mut sent = from;
        let mut stalls = 0;
        let mut retry = Retry::new(&self.repository.registry.http);
        while sent < until {
            let end = until.min(sent.saturating_add(size));
            let octets = HeaderValue::from_static("application/octet-stream");
            let mut patch = Request::new(Method::PATCH, self.at.clone())
                .body(octets, piece.slice((sent - from) as usize..(end - from) as usize));
            // A chunk that is the whole blob is sent as docker sends every blob, which registries
            // without chunks accept.
            if sent > 0 || end < total {
                let range = self.repository.header_value(&patch, &format!("{sent}-{}", end - 1))?;
                patch = patch.header(CONTENT_RANGE, range);
            }
            let response = match self.unless_busy(&patch).await {
                Ok(response) if response.status() != 416 => response,
                // There is no position before the first chunk that could be wrong.
                Ok(response) if sent == 0 => return Err(classify_refusal(response).await),
                failed => {
                    if let Err(error) = failed {
                        retry.after_failure(error).await?;
                    }
                    let (response, stored) = self.kept(sent, end).await?;
                    stalls = if stored == sent { stalls + 1 } else { 0 };
                    if stalls > STALLS {
                        return Err(UploadFailure::Lost(misplaced(response)));
                    }
                    sent = stored;
                    self.move_on(&response).await?;
                    continue;
                }
            };
            if !matches!(response.status().as_u16(), 200 | 201 | 202 | 204) {
                return Err(classify_refusal(response).await);
            }
            // Only a part of the chunk was accepted, or the position is not true.
            let stated = response.text(RANGE).and_then(|range| taken(range, end));
            sent = stated.filter(|stated| (sent + 1..end).contains(stated)).unwrap_or(end);
            stalls = 0;
            retry.progressed();
            self.move_on(&response).await?;
        }
        Ok(())
    }

    /// Asks for the registry's part of the upload, which must be from `sent` to `end` bytes.
    async fn kept(&self, sent: u64, end: u64) -> Result<(Response, u64), UploadFailure> {
        let request = Request::new(Method::GET, self.at.clone());
        let response =
            self.repository.registry.send(&request, &self.repository.scope(Access::Push)).await?;
        match response.status().as_u16() {
            200 | 202 | 204 => {
                let stated = response.text(RANGE).and_then(|range| taken(range, end));
                match stated.filter(|stated| (sent..=end).contains(stated)) {
                    Some(stated) => Ok((response, stated)),
                    None => Err(UploadFailure::Lost(misplaced(response))),
                }
            }
            401 | 403 => Err(response.refusal().await.into()),
            _ => Err(UploadFailure::Lost(response.refusal().await)),
        }
    }

    /// Follows the location in a response.
    async fn move_on(&mut self, response: &Response) -> Result<(), RegistryError> {
        if let Some(next) = self.repository.location(response).await? {
            self.at = next;
        }
        Ok(())
    }

    /// Sends a part of an upload once. It is only repeated if the registry was too busy to look at
    /// it.
    async fn unless_busy(&self, request: &Request) -> Result<Response, RegistryError> {
        let registry = &self.repository.registry;
        let mut retry = Retry::new(&registry.http);
        loop {
            match registry.once(request, &self.repository.scope(Access::Push)).await {
                Err(error) if error.status() == Some(429) => retry.after_failure(error).await?,
                other => return other,
            }
        }
    }

    /// Ends the session, and tells the registry unless it knows.
    pub(super) async fn close(&mut self, outcome: &Result<(), UploadFailure>) {
        self.open = false;
        use UploadFailure::{Expired, Other, Refused, TooLarge};
        if matches!(
            outcome,
            Err(TooLarge(_) | Refused(_) | Expired(_) | Other(RegistryError::Answer(_)))
        ) {
            cancel(&self.repository, self.at.clone()).await;
        }
    }
}

impl Drop for UploadSession {
    fn drop(&mut self) {
        if self.open
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let repository = self.repository.clone();
            let at = self.at.clone();
            // The caller that drops it decides how long to wait for this.
            drop(runtime.spawn(async move { cancel(&repository, at).await }));
        }
    }
}

/// Cancels a session. Only to be polite: the registry deletes it eventually.
async fn cancel(repository: &Repository, at: Url) {
    let _ = repository
        .registry
        .once(&Request::new(Method::DELETE, at), &repository.scope(Access::Push))
        .await;
}

/// Handles the response to the request that ends a session.
async fn finished(response: Response) -> Result<(), UploadFailure> {
    match response.status().as_u16() {
        200 | 201 | 202 | 204 => {
            Ok(response.no_web_page("the answer to an upload").await.map(drop)?)
        }
        _ => Err(classify_refusal(response).await),
    }
}

/// Handles an unexpected response during an upload.
async fn classify_refusal(response: Response) -> UploadFailure {
    let status = response.status().as_u16();
    let is_renewed = response.is_renewed;
    let refusal = response.refusal().await;
    match status {
        _ if is_renewed => UploadFailure::Expired(refusal),
        // Not the upload, but the blob: Artifactory 6 takes content by PATCH alone
        // (docker/buildx#196).
        404 if refusal.has_code("BLOB_UNKNOWN") => UploadFailure::Refused(refusal),
        404 => UploadFailure::Lost(refusal),
        413 => UploadFailure::TooLarge(refusal),
        // A redirect is not followed with a body that can be sent only once.
        307 | 308 | 400 | 405 | 411 | 415 | 416 | 422 | 501 => UploadFailure::Refused(refusal),
        _ => UploadFailure::Other(refusal),
    }
}

fn misplaced(response: Response) -> RegistryError {
    let what = "the registry's part of the upload is not what was sent".to_owned();
    RegistryError::Protocol { line: response.line, what }
}

/// The number of bytes that the registry has, according to its `Range: 0-LAST` after a chunk up to
/// `end`. The format cannot express zero bytes: distribution sends `0-0` then, as for one byte.
fn taken(range: &str, end: u64) -> Option<u64> {
    let range = range.trim();
    let last =
        range.strip_prefix("bytes=").unwrap_or(range).strip_prefix("0-")?.parse::<u64>().ok()?;
    if last == 0 && end != 1 { None } else { last.checked_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_ranges_are_parsed() {
        assert_eq!(taken("0-1023", 2048), Some(1024));
        assert_eq!(taken(" bytes=0-9", 10), Some(10));
        assert_eq!(taken("0-0", 1), Some(1));
        assert_eq!(taken("0-0", 10), None);
        assert_eq!(taken(&format!("0-{}", u64::MAX), 10), None);
        for bad in ["", "0-", "1-5", "-5", "0-x", "5"] {
            assert_eq!(taken(bad, 10), None, "{bad}");
        }
    }
}
