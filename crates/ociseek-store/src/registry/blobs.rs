//! Reads blobs or parts of them, and resumes after a broken connection.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use reqwest::header::{CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderValue, IF_RANGE, RANGE};
use reqwest::{Method, StatusCode};

use super::auth::Access;
use super::client::Repository;
use super::error::{RegistryError, RequestLine};
use super::request::Request;
use super::response::Response;
use super::retry::Retry;
use super::transport::TransportError;
use ociseek_format::digest::{Digest, Hasher};
use ociseek_format::image::Descriptor;

/// After this many bytes from a new connection, earlier failures are forgotten.
const PROGRESS: u64 = 64 << 10;

impl Repository {
    /// Starts to read a blob. Fails at once if the blob does not exist or has another size.
    ///
    /// # Errors
    /// [`RegistryError::Answer`] for the registry's response, or transport errors after retries.
    pub async fn blob(&self, blob: &Descriptor) -> Result<BlobStream, RegistryError> {
        BlobStream::new(self, blob, 0..blob.size).opened().await
    }

    /// Starts to read only the bytes of `range`, which must be within the blob. With
    /// `bypass_caches`, caches on the way must ask the registry. If the host cannot send a part,
    /// the bytes before it are read too, unless they are too many.
    ///
    /// # Errors
    /// Those of [`Repository::blob`], or if the response is another part than requested.
    pub async fn blob_part(
        &self,
        blob: &Descriptor,
        range: Range<u64>,
        bypass_caches: bool,
    ) -> Result<BlobStream, RegistryError> {
        let mut stream = BlobStream::new(self, blob, range);
        stream.bypass_caches = bypass_caches;
        stream.opened().await
    }

    /// Finds out to which host the registry redirects requests for a blob, so that later ones go
    /// there at once, over a connection that is open. Waits until the registry has redirected a
    /// request for any blob. Failures are ignored: the next request for the blob reports them.
    pub async fn locate(&self, blob: &Descriptor) {
        let places = &self.registry.places;
        places.wait_for_redirect().await;
        let mut stream = BlobStream::new(self, blob, 0..blob.size.min(1));
        let Ok(request) = stream.request().await else { return };
        if places.of(&request).is_none() && stream.open().await.is_ok() {
            // A connection can be used again once the response was read to its end.
            while let Ok(Some(_)) = stream.step().await {}
        }
    }

    /// A small blob with a verified digest. Not requested if its descriptor states more than
    /// `limit` bytes.
    ///
    /// # Errors
    /// Those of [`Repository::blob`], or if the content does not match the descriptor.
    pub async fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, RegistryError> {
        if blob.size > limit {
            return Err(RegistryError::BlobTooLarge {
                digest: blob.digest,
                size: blob.size,
                limit,
            });
        }
        match self.read_whole(blob, 1).await {
            // It may have been damaged on the way, or by a cache.
            Err(RegistryError::Digest { .. }) => self.read_whole(blob, 2).await,
            read => read,
        }
    }

    /// Reads a whole blob for the first or second time, which is past caches.
    async fn read_whole(&self, blob: &Descriptor, reads: u32) -> Result<Bytes, RegistryError> {
        let mut stream = self.blob_part(blob, 0..blob.size, reads > 1).await?;
        let mut hasher = Hasher::new(blob.digest.algorithm());
        // Growing by doubling would briefly take up to three times as much memory. Reserved pages
        // take none until they are written.
        let mut content = BytesMut::with_capacity(usize::try_from(blob.size).unwrap_or_default());
        while let Some(chunk) = stream.next().await? {
            hasher.update(&chunk);
            content.extend_from_slice(&chunk);
        }
        let found = hasher.finish();
        if found != blob.digest {
            return Err(RegistryError::Digest {
                line: stream.request_line().await?,
                expected: blob.digest.into(),
                found: found.into(),
                reads,
            });
        }
        Ok(content.freeze())
    }

    /// Whether the registry claims to have a blob. With a `size`, it must not state another one.
    pub async fn blob_exists(
        &self,
        digest: &Digest,
        size: Option<u64>,
    ) -> Result<bool, RegistryError> {
        let path = format!("blobs/{digest}");
        let request = self.request(Method::HEAD, &path).await?;
        let mut response = self.registry.send(&request, &self.scope(Access::Pull)).await?;
        // Some registries refuse HEAD, and caches may only tell what they have already
        // (goharbor/harbor#22609).
        if matches!(response.status().as_u16(), 400 | 403 | 404 | 405 | 501) {
            let request = self.request(Method::GET, &path).await?;
            let request = request.header(RANGE, HeaderValue::from_static("bytes=0-0"));
            response = self.registry.send(&request, &self.scope(Access::Pull)).await?;
        }
        if response.status() == StatusCode::NOT_FOUND {
            return Ok(false);
        }
        let response = response.expect(&[200, 206]).await?;
        let stated = match response.status() {
            StatusCode::PARTIAL_CONTENT => response
                .text(CONTENT_RANGE)
                .and_then(|range| range.rsplit('/').next()?.parse().ok()),
            _ => response.content_length(),
        };
        Ok(size.is_none_or(|size| stated.is_none_or(|stated| stated == size)))
    }
}

/// A blob or a part of it as a stream. Yields exactly as many bytes as the descriptor or range
/// states. The caller must verify their digest.
pub struct BlobStream {
    repository: Repository,
    digest: Digest,
    size: u64,
    position: u64,
    /// Where the part ends; `size` for a whole blob.
    end: u64,
    /// Whether caches on the way must not answer.
    bypass_caches: bool,
    /// Whether the next request is not for mirrors, because the last body ended before its first
    /// byte. A mirror may state the length of what it has lost (containerd/containerd#9552).
    skips_mirrors: bool,
    /// The ETag in the first response to a request for the whole blob, if it is strong (RFC 9110
    /// section 8.8.3).
    etag: Option<HeaderValue>,
    body: Option<Response>,
    /// The end of the body according to the response. Greater than `end` if the rest of the blob
    /// follows a requested part.
    body_end: u64,
    /// New bytes that arrived together with known ones.
    pending: Option<Bytes>,
    /// True until the server shows that it cannot send only a part.
    ranges: bool,
    /// A part was requested twice, because the first answer was something else.
    asked_again: bool,
    retry: Retry,
    /// The position of the last failure.
    failed_at: u64,
    requests: u32,
    received: u64,
}

ociseek_format::opaque_debug!(BlobStream);

/// What a response has of a blob.
enum Sent {
    /// From the current position to this one.
    Part(u64),
    Whole,
    /// Something else, and the error to report.
    Other(RegistryError),
    /// It is a refusal.
    Nothing,
}

impl BlobStream {
    fn new(repository: &Repository, blob: &Descriptor, range: Range<u64>) -> BlobStream {
        BlobStream {
            repository: repository.clone(),
            digest: blob.digest,
            size: blob.size,
            position: range.start,
            end: range.end,
            bypass_caches: false,
            skips_mirrors: false,
            etag: None,
            body: None,
            body_end: range.end,
            pending: None,
            ranges: true,
            asked_again: false,
            retry: Retry::new(&repository.registry.http),
            failed_at: range.start,
            requests: 0,
            received: 0,
        }
    }

    async fn opened(mut self) -> Result<BlobStream, RegistryError> {
        loop {
            match self.open().await {
                Ok(()) => return Ok(self),
                Err(error) => self.failed(error).await?,
            }
        }
    }

    /// Whether a request for a part was answered with the whole blob. If so, all of it is returned
    /// from now on.
    pub(super) fn take_whole(&mut self) -> bool {
        let whole = self.body_end > self.end;
        self.end = self.end.max(self.body_end);
        whole
    }

    /// The number of requests so far, without redirects and renewed tokens.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// The number of body bytes received so far, including those that were not requested.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next bytes; None after all that was requested. Resumes after a broken connection, with a
    /// new token if necessary.
    ///
    /// # Errors
    /// If retries do not help, or if the blob has more or fewer bytes than its descriptor states.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            match self.step().await {
                Ok(chunk) => return Ok(chunk),
                Err(error) => self.failed(error).await?,
            }
        }
    }

    async fn failed(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        let is_empty = self.body.take().is_some() && self.position == self.failed_at;
        let is_other = matches!(error, RegistryError::Size { .. } | RegistryError::Protocol { .. });
        if is_other && self.may_be_a_mirrors() {
            self.skips_mirrors = true;
            return Ok(());
        }
        self.skips_mirrors = is_empty && !self.skips_mirrors;
        // The registry may redirect elsewhere now.
        self.repository.registry.places.forget(&self.request().await?);
        if self.position - self.failed_at >= PROGRESS {
            self.retry.progressed();
        }
        self.failed_at = self.position;
        self.retry.after_failure(error).await
    }

    async fn step(&mut self) -> Result<Option<Bytes>, RegistryError> {
        if self.position == self.end && (self.body.is_none() || self.body_end > self.end) {
            // The rest of a body after the requested part is not read.
            self.body = None;
            return Ok(None);
        }
        if self.body.is_none() {
            self.open().await?;
        }
        let left = self.body_end - self.position;
        let next = match self.pending.take() {
            Some(pending) => Some(pending),
            None if left > 0 => self.chunk().await?,
            // Everything has arrived, so a connection that breaks now does not matter.
            None => self.chunk().await.unwrap_or_default(),
        };
        match next {
            Some(chunk) if chunk.len() as u64 > left => {
                let found = self.position + chunk.len() as u64;
                Err(RegistryError::Size {
                    line: self.request_line().await?,
                    expected: self.body_end,
                    found,
                })
            }
            Some(mut chunk) => {
                let wanted = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
                chunk.truncate(wanted);
                self.position += chunk.len() as u64;
                Ok(Some(chunk))
            }
            None if left == 0 => {
                self.body = None;
                // A server may send less than requested (RFC 9110 section 14.2), and state that.
                if self.position < self.end { Box::pin(self.step()).await } else { Ok(None) }
            }
            None => {
                let source = TransportError::broken("the body ended early");
                Err(RegistryError::Transport { line: self.request_line().await?, source })
            }
        }
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let Some(body) = &mut self.body else { return Ok(None) };
        let chunk = body.chunk().await?;
        self.received += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Ok(chunk)
    }

    async fn request_line(&self) -> Result<RequestLine, RegistryError> {
        Ok(self.repository.request_line(&self.request().await?))
    }

    async fn request(&self) -> Result<Request, RegistryError> {
        self.repository.request(Method::GET, &format!("blobs/{}", self.digest)).await
    }

    /// Requests the blob from the current position.
    async fn open(&mut self) -> Result<(), RegistryError> {
        let mut request = self.request().await?.after(self.requests);
        let part = self.position > 0 || self.end < self.size;
        let registry = std::sync::Arc::clone(&self.repository.registry);
        let ranged = part && self.ranges && registry.ranges.may_ask();
        if ranged {
            request = with_range(request, self.position..self.end);
            if let Some(etag) = &self.etag {
                request = request.header(IF_RANGE, etag.clone());
            }
        } else if part {
            self.check_reread(&request)?;
        }
        request.skips_mirrors = self.skips_mirrors;
        if self.bypass_caches {
            request = request.past_caches();
        }
        self.requests += 1;
        let response = registry.once(&request, &self.repository.scope(Access::Pull)).await?;
        match (self.sent(&response, ranged)?, response.status().as_u16()) {
            (Sent::Part(end), _) => self.body_end = end,
            (Sent::Whole, _) => {
                self.body_end = self.size;
                if part {
                    if (ranged || !self.ranges) && self.etag.is_none() {
                        registry.ranges.refused();
                    }
                    self.ranges = false;
                    self.check_reread(&request)?;
                    return self.read_up(response).await;
                }
                let etag =
                    response.headers().get(ETAG).filter(|etag| etag.as_bytes().starts_with(b"\""));
                self.etag = etag.cloned();
            }
            // A page of a proxy says nothing of the registry. One that always answers parts with
            // something else cannot send them.
            (Sent::Other(_), 200) if ranged && !self.may_be_a_mirrors() && !self.asked_again => {
                self.asked_again = true;
                return Box::pin(self.open()).await;
            }
            (Sent::Other(error), _) if ranged && !self.may_be_a_mirrors() => {
                return self.open_without_range(&request, error).await;
            }
            (Sent::Other(error), _) => return Err(error),
            (Sent::Nothing, 400 | 416 | 501) if ranged => {
                return self.open_without_range(&request, response.refusal().await).await;
            }
            (Sent::Nothing, _) => return Err(response.refusal().await),
        }
        self.body = Some(response);
        Ok(())
    }

    /// What the response has of the blob. Some servers answer with 200 and a part, or with 206 to a
    /// request for the whole.
    fn sent(&self, response: &Response, ranged: bool) -> Result<Sent, RegistryError> {
        let status = response.status().as_u16();
        if !matches!(status, 200 | 206) {
            return Ok(Sent::Nothing);
        }
        let protocol = |what: String| RegistryError::Protocol { line: response.line.clone(), what };
        let range = response.text(CONTENT_RANGE).unwrap_or_default();
        let length = response.content_length();
        // Some servers label blobs by their first bytes (moby/moby#17595). What has the blob's size
        // is the blob.
        let is_sized =
            length == Some(self.size) || range.trim_end().ends_with(&format!("/{}", self.size));
        let encoding = response
            .text(CONTENT_ENCODING)
            .filter(|encoding| !encoding.eq_ignore_ascii_case("identity"));
        if let Some(encoding) = encoding.filter(|encoding| !encoding.is_empty() && !is_sized) {
            let what = format!(
                "the blob comes with Content-Encoding {encoding:?}, which was not asked for"
            );
            return Err(protocol(what));
        }
        Ok(match continues(range, self.position, self.end, self.size) {
            Some(end) if ranged || self.position == 0 => Sent::Part(end),
            _ if status == 206
                && !ranged
                && continues(range, 0, self.size, self.size) == Some(self.size) =>
            {
                Sent::Whole
            }
            _ if status == 206 => {
                let from = self.position;
                let end = self.end;
                let size = self.size;
                Sent::Other(protocol(format!(
                    "requested bytes {from} to {end} of {size}, but it sent {range:?}"
                )))
            }
            _ => match length.filter(|length| *length != self.size) {
                Some(found) => Sent::Other(RegistryError::Size {
                    line: response.line.clone(),
                    expected: self.size,
                    found,
                }),
                None => Sent::Whole,
            },
        })
    }

    /// Whether the last answer may be of a mirror, so that the registry may have another one.
    fn may_be_a_mirrors(&self) -> bool {
        !self.skips_mirrors && !self.repository.registry.mirrors.first.is_empty()
    }

    /// Requests the blob from its start. Some servers refuse a part, or send another one, of what
    /// they send whole (containerd/containerd#11998, kubernetes/registry.k8s.io#333).
    async fn open_without_range(
        &mut self,
        request: &Request,
        error: RegistryError,
    ) -> Result<(), RegistryError> {
        if self.check_reread(request).is_err() {
            return Err(error);
        }
        self.ranges = false;
        Box::pin(self.open()).await
    }

    /// Fails if too many bytes before the current position would have to be read again.
    fn check_reread(&self, request: &Request) -> Result<(), RegistryError> {
        if self.position <= self.repository.registry.http.limits.reread {
            return Ok(());
        }
        let what = format!(
            "the registry does not support range requests, and {} bytes precede the range",
            self.position
        );
        Err(RegistryError::Protocol { line: self.repository.request_line(request), what })
    }

    /// The server starts at the blob's first byte: reads up to the current position.
    async fn read_up(&mut self, mut response: Response) -> Result<(), RegistryError> {
        let mut before = self.position;
        while before > 0 {
            let Some(mut chunk) = response.chunk().await? else {
                let source = TransportError::broken("the body ended early");
                return Err(RegistryError::Transport { line: response.line, source });
            };
            self.received += chunk.len() as u64;
            let known = before.min(chunk.len() as u64);
            before -= known;
            self.pending = Some(chunk.split_off(known as usize)).filter(|rest| !rest.is_empty());
        }
        self.body = Some(response);
        Ok(())
    }
}

/// Requests a part of a blob. The last byte is always stated, because crane's registry supports no
/// other ranges.
fn with_range(request: Request, range: Range<u64>) -> Request {
    match HeaderValue::try_from(format!("bytes={}-{}", range.start, range.end.saturating_sub(1))) {
        Ok(value) => request.header(RANGE, value),
        Err(_) => request,
    }
}

/// The end of the part in `Content-Range` (RFC 9110 section 14.4), if the part begins at `from`,
/// ends at or before `end`, and belongs to content of `size` bytes.
fn continues(range: &str, from: u64, end: u64, size: u64) -> Option<u64> {
    // Some servers repeat the unit as the request has it.
    let range = range.trim().strip_prefix("bytes")?.strip_prefix([' ', '='])?;
    let (range, total) = range.split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let first = first.parse::<u64>().ok()?;
    let last = last.parse::<u64>().ok()?;
    let total = total.trim();
    let right =
        first == from && last >= first && last < end && (total == "*" || total.parse() == Ok(size));
    right.then(|| last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        for (range, end) in [
            ("bytes 5-9/20", Some(10)),
            ("bytes 5-7/20", Some(8)),
            ("bytes 5-9/*", Some(10)),
            ("bytes=5-9/20", Some(10)),
            ("bytes=4-9/20", None),
            ("bytes5-9/20", None),
            ("bytes 4-9/20", None),
            ("bytes 5-10/20", None),
            ("bytes 5-9/21", None),
            ("bytes 9-5/20", None),
            ("bytes */20", None),
            ("bytes 5-18446744073709551615/*", None),
            ("5-9/20", None),
            ("", None),
        ] {
            assert_eq!(continues(range, 5, 10, 20), end, "{range}");
        }
    }
}
