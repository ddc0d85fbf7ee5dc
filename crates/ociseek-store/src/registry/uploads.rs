//! Uploads blobs (distribution spec, "Push"), in one request or in chunks.

use bytes::{Bytes, BytesMut};
use reqwest::Method;
use reqwest::header::{CONTENT_RANGE, HeaderValue, LOCATION, RANGE};
use url::Url;

use super::auth::{Access, Scope};
use super::client::Repository;
use super::error::RegistryError;
use super::request::Request;
use super::response::Response;
use super::retry::Retry;
use ociseek_format::digest::{Digest, Hasher};
use ociseek_format::image::Descriptor;

/// The number of upload sessions for a blob, in case the registry loses them.
const SESSIONS: u32 = 3;
/// The limit for the chunk size that a registry may request (`OCI-Chunk-Min-Length`), in bytes.
const LARGEST_CHUNK: u64 = 1 << 30;
/// The chunk size after a larger body was too large for a server on the way (413), in bytes.
const SMALL_CHUNK: u64 = 4 << 20;
/// The limit for the memory of a blob that is copied, in bytes, however large the chunks that the
/// registry requests.
const LARGEST_BUFFER: u64 = 64 << 20;

/// How many times in a row a chunk may be sent without any of it being accepted.
const STALLS: u32 = 3;

/// The state of an upload.
enum Progress {
    Done,
    /// The registry no longer knows the session or its content.
    Lost(RegistryError),
    /// A body was too large (413).
    TooLarge(RegistryError),
}

impl Repository {
    /// Uploads a blob unless the registry already has it. Returns whether it was uploaded.
    ///
    /// # Errors
    /// [`RegistryError::Content`] if `content` does not have the descriptor's size; errors of the
    /// registry; transport errors after retries.
    pub async fn push_blob(&self, blob: &Descriptor, content: Bytes) -> Result<bool, RegistryError> {
        if self.is_there(blob).await? {
            return Ok(false);
        }
        self.push_blob_unchecked(blob, content).await.map(|()| true)
    }

    /// Uploads a blob without asking whether it exists, for registries that claimed so wrongly.
    ///
    /// # Errors
    /// Those of [`Repository::push_blob`].
    pub async fn push_blob_unchecked(&self, blob: &Descriptor, content: Bytes) -> Result<(), RegistryError> {
        let found = content.len() as u64;
        if found != blob.size {
            return Err(RegistryError::Content { digest: blob.digest, expected: blob.size, found });
        }
        let limits = &self.registry.http.limits;
        let mut chunk = (found > limits.monolithic).then_some(limits.chunk);
        let mut retry = Retry::new(&self.registry.http);
        let mut lost = 0;
        loop {
            match self.session(&blob.digest, &content, chunk).await {
                Ok(Progress::Done) => return Ok(()),
                Ok(Progress::Lost(error)) => {
                    lost += 1;
                    if lost == SESSIONS {
                        return Err(RegistryError::UploadLost {
                            digest: blob.digest,
                            times: lost,
                            source: Box::new(error),
                        });
                    }
                }
                Ok(Progress::TooLarge(error)) => match chunk {
                    Some(size) if size <= SMALL_CHUNK => return Err(error),
                    _ => chunk = Some(SMALL_CHUNK),
                },
                Err(error) => {
                    retry.after_failure(error).await?;
                    // The response may have been lost after the upload succeeded.
                    if self.is_there(blob).await? {
                        return Ok(());
                    }
                }
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

    /// Runs a session from its start to the complete blob. A failed request is not repeated within
    /// a session, because the registry may have accepted a part of its body.
    async fn session(&self, digest: &Digest, content: &Bytes, chunk: Option<u64>) -> Result<Progress, RegistryError> {
        let (mut session, least) = self.begin().await?;
        let outcome = match chunk {
            None => self.put(&mut session, digest, content.clone()).await,
            Some(size) => self.chunks(&mut session, digest, content, size.max(least).min(LARGEST_CHUNK)).await,
        };
        session.close(&outcome).await;
        outcome
    }

    /// Starts a session. Also returns the minimum chunk size that the registry requests.
    async fn begin(&self) -> Result<(Session<'_>, u64), RegistryError> {
        let scope = self.scope(Access::Push);
        let request = self.request(Method::POST, "blobs/uploads/").await?;
        let response = self.registry.send(&request, &scope).await?.expect(&[202]).await?;
        let at = self.location(&response).await?.ok_or_else(|| RegistryError::Protocol {
            line: response.line.clone(),
            what: "the upload has no Location".to_owned(),
        })?;
        let least = response.text("oci-chunk-min-length").and_then(|least| least.parse().ok()).unwrap_or(0);
        Ok((Session { repository: self, scope, at, open: true }, least))
    }

    /// Ends a session with `rest`, the bytes that were not sent yet.
    async fn put(&self, session: &mut Session<'_>, digest: &Digest, rest: Bytes) -> Result<Progress, RegistryError> {
        let mut at = session.at.clone();
        at.query_pairs_mut().append_pair("digest", &digest.to_string());
        let request = Request::new(Method::PUT, at).body(HeaderValue::from_static("application/octet-stream"), rest);
        let response = self.unless_busy(&request, &session.scope).await?;
        match response.status().as_u16() {
            200 | 201 | 204 => response.no_web_page("the answer to an upload").map(|_| Progress::Done),
            _ => interrupted(response).await,
        }
    }

    /// Sends all of the content in chunks, and ends the session.
    async fn chunks(
        &self,
        session: &mut Session<'_>,
        digest: &Digest,
        content: &Bytes,
        size: u64,
    ) -> Result<Progress, RegistryError> {
        match self.piece(session, content, 0, size).await? {
            Progress::Done => self.put(session, digest, Bytes::new()).await,
            other => Ok(other),
        }
    }

    /// Sends a piece that begins at `from` in the blob, chunk by chunk, each from the position that
    /// the registry reports.
    async fn piece(
        &self,
        session: &mut Session<'_>,
        piece: &Bytes,
        from: u64,
        size: u64,
    ) -> Result<Progress, RegistryError> {
        let scope = session.scope.clone();
        let scope = &scope;
        let total = from + piece.len() as u64;
        let (mut sent, mut stalls) = (from, 0);
        let mut retry = Retry::new(&self.registry.http);
        while sent < total {
            let at = session.at.clone();
            let end = total.min(sent.saturating_add(size));
            let octets = HeaderValue::from_static("application/octet-stream");
            let patch = Request::new(Method::PATCH, at.clone())
                .body(octets, piece.slice((sent - from) as usize..(end - from) as usize));
            let range = self.header_value(&patch, &format!("{sent}-{}", end - 1))?;
            let status = Request::new(Method::GET, at);
            let response = match self.unless_busy(&patch.header(CONTENT_RANGE, range), scope).await {
                Ok(response) if response.status() != 416 => response,
                // Its position is not the expected one: ask for it.
                Ok(_) => self.registry.send(&status, scope).await?,
                Err(error) => {
                    retry.after_failure(error).await?;
                    self.registry.send(&status, scope).await?
                }
            };
            let taken = match (response.status().as_u16(), response.text(RANGE)) {
                (202 | 204, Some(range)) => taken(range, end),
                // Without a position, the registry has accepted the chunk.
                (202, None) => Some(end),
                (204, None) => None,
                _ => return interrupted(response).await,
            };
            match taken {
                Some(taken) if taken > sent && taken <= end => {
                    sent = taken;
                    stalls = 0;
                    retry.progressed();
                }
                Some(taken) if taken == sent && stalls < STALLS => stalls += 1,
                _ => {
                    let what = "the registry's part of the upload is not what was sent".to_owned();
                    return Ok(Progress::Lost(RegistryError::Protocol { line: response.line, what }));
                }
            }
            if let Some(next) = self.location(&response).await? {
                session.at = next;
            }
        }
        Ok(Progress::Done)
    }

    /// Sends a part of an upload once. It is only repeated if the registry was too busy to look at
    /// it.
    async fn unless_busy(&self, request: &Request, scope: &Scope) -> Result<Response, RegistryError> {
        let mut retry = Retry::new(&self.registry.http);
        loop {
            match self.registry.once(request, scope).await {
                Err(error) if error.status() == Some(429) => retry.after_failure(error).await?,
                other => return other,
            }
        }
    }

    async fn location(&self, response: &Response) -> Result<Option<Url>, RegistryError> {
        let base = self.registry.base().await?;
        match response.text(LOCATION).filter(|location| !location.is_empty()) {
            Some(location) => self.registry.resolve(base, response, location).map(Some),
            None => Ok(None),
        }
    }
}

/// An upload of a blob to a registry that holds at most a chunk in memory.
pub struct Upload<'a> {
    repository: &'a Repository,
    session: Session<'a>,
    blob: Descriptor,
    /// The size of a chunk in bytes.
    size: usize,
    /// The number of bytes that the registry has.
    sent: u64,
    waiting: BytesMut,
    hasher: Hasher,
}

ociseek_format::opaque_debug!(Upload<'_>);

/// The result of an upload.
#[derive(Debug)]
pub enum UploadOutcome {
    /// The registry has the blob.
    Done,
    /// The registry lost it, or only accepts smaller chunks (`SMALL_CHUNK`). The upload must be
    /// restarted.
    Restart(RegistryError),
}

impl Repository {
    /// Asks the registry to mount a blob from another of its repositories. Returns false if it does
    /// not, and the blob must be uploaded.
    ///
    /// # Errors
    /// If the registry cannot be reached.
    pub async fn mount_blob(&self, digest: &Digest, from: &Repository) -> Result<bool, RegistryError> {
        let scope = self.scope(Access::Push);
        let mut request = self.request(Method::POST, "blobs/uploads/").await?;
        request.url.query_pairs_mut().append_pair("mount", &digest.to_string()).append_pair("from", &from.name);
        let response = self.registry.send(&request, &scope).await?;
        if response.status() == 202
            && let Some(at) = self.location(&response).await?
        {
            // It started an upload instead.
            cancel(self, at, &scope).await;
        }
        Ok(response.status() == 201)
    }

    /// Starts the upload of a blob. With `small`, the chunks are small enough for every proxy.
    ///
    /// # Errors
    /// Those of the registry.
    pub async fn upload(&self, blob: &Descriptor, small: bool) -> Result<Upload<'_>, RegistryError> {
        let (session, least) = self.begin().await?;
        let size = if small { SMALL_CHUNK } else { self.registry.http.limits.chunk };
        Ok(Upload {
            repository: self,
            session,
            blob: blob.clone(),
            size: usize::try_from(size.max(least).min(LARGEST_BUFFER)).unwrap_or(usize::MAX),
            sent: 0,
            waiting: BytesMut::new(),
            hasher: Hasher::new(blob.digest.algorithm()),
        })
    }
}

impl Upload<'_> {
    /// Takes the next bytes of the blob.
    ///
    /// # Errors
    /// Those of the registry; transport errors after retries.
    pub async fn push(&mut self, chunk: &[u8]) -> Result<UploadOutcome, RegistryError> {
        self.hasher.update(chunk);
        self.waiting.extend_from_slice(chunk);
        while self.waiting.len() > self.size {
            let piece = self.waiting.split_to(self.size).freeze();
            let outcome = self.repository.piece(&mut self.session, &piece, self.sent, self.size as u64).await;
            match outcome {
                Ok(Progress::Done) => self.sent += piece.len() as u64,
                outcome => return self.closed(outcome).await,
            }
        }
        Ok(UploadOutcome::Done)
    }

    /// Ends the upload with the bytes that were not sent yet.
    ///
    /// # Errors
    /// [`RegistryError::Content`] and [`RegistryError::Blob`] if the bytes were not those of the
    /// blob, which then does not exist in the registry; otherwise those of [`Upload::push`].
    pub async fn finish(mut self) -> Result<UploadOutcome, RegistryError> {
        let found = self.sent + self.waiting.len() as u64;
        let Descriptor { digest, size, .. } = self.blob;
        if found != size {
            return Err(RegistryError::Content { digest, expected: size, found });
        }
        let hasher = std::mem::replace(&mut self.hasher, Hasher::new(digest.algorithm()));
        let actual = hasher.finish();
        if actual != digest {
            return Err(RegistryError::Blob { expected: digest.into(), found: actual.into() });
        }
        let rest = self.waiting.split().freeze();
        let outcome = self.repository.put(&mut self.session, &digest, rest).await;
        self.closed(outcome).await
    }

    async fn closed(&mut self, outcome: Result<Progress, RegistryError>) -> Result<UploadOutcome, RegistryError> {
        self.session.close(&outcome).await;
        match outcome? {
            Progress::Done => Ok(UploadOutcome::Done),
            Progress::Lost(error) | Progress::TooLarge(error) => Ok(UploadOutcome::Restart(error)),
        }
    }
}

/// An upload session. If it is dropped before its end, as when the user interrupts the program, it
/// is cancelled.
struct Session<'a> {
    repository: &'a Repository,
    scope: Scope,
    /// The URL for the next request.
    at: Url,
    open: bool,
}

impl Session<'_> {
    /// Ends the session, and tells the registry unless it knows.
    async fn close(&mut self, outcome: &Result<Progress, RegistryError>) {
        self.open = false;
        if matches!(outcome, Ok(Progress::TooLarge(_)) | Err(RegistryError::Answer(_))) {
            cancel(self.repository, self.at.clone(), &self.scope).await;
        }
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.open
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (repository, at, scope) = (self.repository.clone(), self.at.clone(), self.scope.clone());
            // The caller that drops it decides how long to wait for this.
            drop(runtime.spawn(async move { cancel(&repository, at, &scope).await }));
        }
    }
}

/// Cancels a session. Only to be polite: the registry deletes it eventually.
async fn cancel(repository: &Repository, at: Url, scope: &Scope) {
    let _ = repository.registry.once(&Request::new(Method::DELETE, at), scope).await;
}

/// Handles an unexpected response during an upload.
async fn interrupted(response: Response) -> Result<Progress, RegistryError> {
    let status = response.status().as_u16();
    let refusal = response.refusal().await;
    match status {
        404 => Ok(Progress::Lost(refusal)),
        413 => Ok(Progress::TooLarge(refusal)),
        _ => Err(refusal),
    }
}

/// The number of bytes that the registry has, according to its `Range: 0-LAST` after a chunk up to
/// `end`. The format cannot express zero bytes: distribution sends `0-0` then, as for one byte.
fn taken(range: &str, end: u64) -> Option<u64> {
    let range = range.trim();
    let last = range.strip_prefix("bytes=").unwrap_or(range).strip_prefix("0-")?.parse::<u64>().ok()?;
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
