//! Reading blobs: from the first byte to the last or a part of one, going on where a connection broke off.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use reqwest::Method;
use reqwest::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderValue, IF_RANGE, PRAGMA, RANGE};

use super::auth::Access;
use super::client::Repository;
use super::error::{Asked, RegistryError};
use super::http::{Request, Response};
use super::retry::Retry;
use super::transport::TransportError;
use crate::digest::{Digest, Hasher};
use crate::image::Descriptor;

/// What a new connection must bring before earlier failures are forgotten.
const PROGRESS: u64 = 64 << 10;

impl Repository {
    /// Begins to read a blob. It is an error here when the blob is not there, or is of another size.
    ///
    /// # Errors
    /// What the registry answers, as [`RegistryError::Answer`]; transport errors after new tries.
    pub async fn blob(&self, blob: &Descriptor) -> Result<BlobStream, RegistryError> {
        BlobStream::new(self, blob, 0..blob.size).opened().await
    }

    /// Begins to read the bytes of `range`, which lies within the blob, and no others. With `anew`
    /// caches on the way are told to ask the registry. A host that cannot send a part sends what
    /// comes before it as well, if that is not too much.
    ///
    /// # Errors
    /// As [`Repository::blob`], and when the answer is another part than the one that was asked for.
    pub async fn blob_part(
        &self,
        blob: &Descriptor,
        range: Range<u64>,
        anew: bool,
    ) -> Result<BlobStream, RegistryError> {
        let mut stream = BlobStream::new(self, blob, range);
        stream.anew = anew;
        stream.opened().await
    }

    /// A small blob, whole, its digest checked. One that says to be larger than `limit` bytes is not asked for.
    ///
    /// # Errors
    /// As [`Repository::blob`], and when the content is not what the descriptor says.
    pub async fn blob_bytes(&self, blob: &Descriptor, limit: u64) -> Result<Bytes, RegistryError> {
        if blob.size > limit {
            return Err(RegistryError::BlobTooLarge { digest: blob.digest, size: blob.size, limit });
        }
        let mut stream = self.blob(blob).await?;
        let mut hasher = Hasher::new(blob.digest.algorithm());
        // Grown by doubling it would take up to three times as much for a moment; pages that are not written take none.
        let mut content = BytesMut::with_capacity(usize::try_from(blob.size).unwrap_or_default());
        while let Some(chunk) = stream.next().await? {
            hasher.update(&chunk);
            content.extend_from_slice(&chunk);
        }
        let found = hasher.finish();
        if found != blob.digest {
            return Err(RegistryError::Digest {
                asked: stream.asked().await?,
                expected: blob.digest.into(),
                found: found.into(),
            });
        }
        Ok(content.freeze())
    }

    /// Whether the registry says to have a blob.
    pub async fn blob_exists(&self, digest: &Digest) -> Result<bool, RegistryError> {
        let request = self.request(Method::HEAD, &format!("blobs/{digest}")).await?;
        let response = self.registry.send(&request, &self.scope(Access::Pull)).await?;
        match response.status().as_u16() {
            404 => Ok(false),
            _ => response.expect(&[200]).await.map(|_| true),
        }
    }
}

/// A blob or a part of one on its way. It yields exactly as many bytes as the descriptor or the
/// range says; whether they are the right ones is for the caller to tell, by their digest.
pub struct BlobStream {
    repository: Repository,
    digest: Digest,
    size: u64,
    position: u64,
    /// Where the part ends: `size` for a whole blob.
    end: u64,
    /// Caches on the way are not to answer.
    anew: bool,
    /// The first answer's to a request for the whole, if it is a strong one (RFC 9110 section 8.8.3).
    etag: Option<HeaderValue>,
    body: Option<Response>,
    /// Where the body said that it would end. It is behind `end` where a part was asked for and the rest comes too.
    body_end: u64,
    /// What came along with bytes that were there already.
    pending: Option<Bytes>,
    /// Until the server shows that it cannot send a part alone.
    ranges: bool,
    retry: Retry,
    /// Where the last failure was.
    failed_at: u64,
    requests: u32,
    received: u64,
}

impl BlobStream {
    fn new(repository: &Repository, blob: &Descriptor, range: Range<u64>) -> BlobStream {
        BlobStream {
            repository: repository.clone(),
            digest: blob.digest,
            size: blob.size,
            position: range.start,
            end: range.end,
            anew: false,
            etag: None,
            body: None,
            body_end: range.end,
            pending: None,
            ranges: true,
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

    /// Whether the answer to a request for a part is the whole blob; then all of it will be handed out.
    pub(super) fn take_whole(&mut self) -> bool {
        let whole = self.body_end > self.end;
        self.end = self.end.max(self.body_end);
        whole
    }

    /// Requests that were sent so far, redirects and renewed tokens not counted.
    pub fn requests(&self) -> u32 {
        self.requests
    }

    /// Bytes of bodies that came so far, those among them that were not asked for.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// The next bytes; `None` when all that was asked for was there. A broken connection is taken
    /// up again where it broke, with a new token if need be.
    ///
    /// # Errors
    /// When new tries do not help, and when the blob turns out to have more or fewer bytes than its descriptor says.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            match self.step().await {
                Ok(chunk) => return Ok(chunk),
                Err(error) => self.failed(error).await?,
            }
        }
    }

    async fn failed(&mut self, error: RegistryError) -> Result<(), RegistryError> {
        self.body = None;
        // Perhaps the registry sends us elsewhere now.
        self.repository.registry.places.forget(&self.request().await?);
        if self.position - self.failed_at >= PROGRESS {
            self.retry.progressed();
        }
        self.failed_at = self.position;
        self.retry.again(error).await
    }

    async fn step(&mut self) -> Result<Option<Bytes>, RegistryError> {
        if self.position == self.end && (self.body.is_none() || self.body_end > self.end) {
            // The rest of a body that goes on behind the part is not waited for.
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
            // All is here; a connection that breaks now has nothing more to lose.
            None => self.chunk().await.unwrap_or_default(),
        };
        match next {
            Some(chunk) if chunk.len() as u64 > left => {
                let found = self.position + chunk.len() as u64;
                Err(RegistryError::Size { asked: self.asked().await?, expected: self.body_end, found })
            }
            Some(mut chunk) => {
                let wanted = usize::try_from(self.end - self.position).unwrap_or(usize::MAX);
                chunk.truncate(wanted);
                self.position += chunk.len() as u64;
                Ok(Some(chunk))
            }
            None if left == 0 => {
                self.body = None;
                // A server may send less than was asked for (RFC 9110 section 14.2), and say so.
                if self.position < self.end { Box::pin(self.step()).await } else { Ok(None) }
            }
            None => {
                let source = TransportError::broken("the body ended early");
                Err(RegistryError::Transport { asked: self.asked().await?, source })
            }
        }
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, RegistryError> {
        let Some(body) = &mut self.body else { return Ok(None) };
        let chunk = body.chunk().await?;
        self.received += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        Ok(chunk)
    }

    async fn asked(&self) -> Result<Asked, RegistryError> {
        Ok(self.repository.asked(&self.request().await?))
    }

    async fn request(&self) -> Result<Request, RegistryError> {
        self.repository.request(Method::GET, &format!("blobs/{}", self.digest)).await
    }

    /// Asks for the blob from where we are.
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
        if self.anew {
            let no_cache = HeaderValue::from_static("no-cache");
            request = request.header(CACHE_CONTROL, no_cache.clone()).header(PRAGMA, no_cache);
        }
        self.requests += 1;
        let response = registry.once(&request, &self.repository.scope(Access::Pull)).await?;
        let protocol = |what: String| RegistryError::Protocol { asked: response.asked.clone(), what };
        if let Some(encoding) = response.text(CONTENT_ENCODING).filter(|e| !e.eq_ignore_ascii_case("identity")) {
            return Err(protocol(format!(
                "the blob comes with Content-Encoding {encoding:?}, which was not asked for"
            )));
        }
        match response.status().as_u16() {
            200 => {
                if let Some(found) = response.content_length().filter(|length| *length != self.size) {
                    return Err(RegistryError::Size { asked: response.asked, expected: self.size, found });
                }
                self.body_end = self.size;
                if part {
                    if ranged && self.etag.is_none() {
                        registry.ranges.refused();
                    }
                    self.ranges = false;
                    self.check_reread(&request)?;
                    return self.read_up(response).await;
                }
                let etag = response.headers().get(ETAG).filter(|etag| etag.as_bytes().starts_with(b"\""));
                self.etag = etag.cloned();
            }
            206 if ranged => {
                let range = response.text(CONTENT_RANGE).unwrap_or_default();
                let Some(end) = continues(range, self.position, self.end, self.size) else {
                    let (from, end, size) = (self.position, self.end, self.size);
                    return Err(protocol(format!("requested bytes {from} to {end} of {size}, but it sent {range:?}")));
                };
                self.body_end = end;
            }
            _ => return Err(response.refusal().await),
        }
        self.body = Some(response);
        Ok(())
    }

    /// Whether it is too much to read all that comes before where we are.
    fn check_reread(&self, request: &Request) -> Result<(), RegistryError> {
        if self.position <= self.repository.registry.http.limits.reread {
            return Ok(());
        }
        let what =
            format!("the registry does not support range requests, and {} bytes precede the range", self.position);
        Err(RegistryError::Protocol { asked: self.repository.asked(request), what })
    }

    /// The server begins at the blob's first byte: reads on to where we are.
    async fn read_up(&mut self, mut response: Response) -> Result<(), RegistryError> {
        let mut before = self.position;
        while before > 0 {
            let Some(mut chunk) = response.chunk().await? else {
                let source = TransportError::broken("the body ended early");
                return Err(RegistryError::Transport { asked: response.asked, source });
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

/// Asks for a part of a blob. It names the last byte even of the rest: crane's registry knows no other ranges.
fn with_range(request: Request, range: Range<u64>) -> Request {
    match HeaderValue::try_from(format!("bytes={}-{}", range.start, range.end.saturating_sub(1))) {
        Ok(value) => request.header(RANGE, value),
        Err(_) => request,
    }
}

/// Where the part that `Content-Range` (RFC 9110 section 14.4) tells of ends, if it begins at
/// `from`, ends at `end` or before it, and is one of content of `size` bytes.
fn continues(range: &str, from: u64, end: u64, size: u64) -> Option<u64> {
    let (range, total) = range.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.trim().split_once('-')?;
    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
    let total = total.trim();
    let right = first == from && last >= first && last < end && (total == "*" || total.parse() == Ok(size));
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
