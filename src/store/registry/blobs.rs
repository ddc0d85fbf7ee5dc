//! Reading blobs: from the first byte to the last, going on where a connection broke off.

use bytes::{Bytes, BytesMut};
use reqwest::Method;
use reqwest::header::{CONTENT_ENCODING, CONTENT_RANGE, ETAG, HeaderValue, IF_RANGE};

use super::auth::Access;
use super::client::Repository;
use super::error::{Asked, RegistryError, TransportError};
use super::http::{Request, Response};
use super::retry::Retry;
use super::session::from_byte;
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
        let mut stream = BlobStream::new(self, blob);
        loop {
            match stream.open().await {
                Ok(()) => return Ok(stream),
                Err(error) => stream.failed(error).await?,
            }
        }
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
        let mut content = BytesMut::new();
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

/// A blob on its way. It yields exactly as many bytes as the descriptor says; whether they are the right ones is for the
/// caller to tell, by their digest.
pub struct BlobStream {
    repository: Repository,
    digest: Digest,
    size: u64,
    position: u64,
    /// The first answer's, if it is a strong one (RFC 9110 section 8.8.3).
    etag: Option<HeaderValue>,
    body: Option<Response>,
    /// What came along with bytes that were there already.
    pending: Option<Bytes>,
    /// Until the server shows that it cannot send a part alone.
    ranges: bool,
    retry: Retry,
    /// Where the last failure was.
    failed_at: u64,
}

impl BlobStream {
    fn new(repository: &Repository, blob: &Descriptor) -> BlobStream {
        BlobStream {
            repository: repository.clone(),
            digest: blob.digest,
            size: blob.size,
            position: 0,
            etag: None,
            body: None,
            pending: None,
            ranges: true,
            retry: Retry::new(&repository.registry.http),
            failed_at: 0,
        }
    }

    /// The next bytes; `None` when all of the blob was there. A broken connection is taken up again where it broke, with
    /// a new token if need be.
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
        if self.position - self.failed_at >= PROGRESS {
            self.retry.progressed();
        }
        self.failed_at = self.position;
        self.retry.again(error).await
    }

    async fn step(&mut self) -> Result<Option<Bytes>, RegistryError> {
        if self.body.is_none() {
            if self.position == self.size {
                return Ok(None);
            }
            self.open().await?;
        }
        let left = self.size - self.position;
        let next = match (self.pending.take(), &mut self.body) {
            (Some(pending), _) => Some(pending),
            (None, Some(body)) if left > 0 => body.chunk().await?,
            // All is here; a connection that breaks now has nothing more to lose.
            (None, Some(body)) => body.chunk().await.unwrap_or_default(),
            (None, None) => None,
        };
        match next {
            Some(chunk) if chunk.len() as u64 > left => {
                let found = self.position + chunk.len() as u64;
                Err(RegistryError::Size { asked: self.asked().await?, expected: self.size, found })
            }
            Some(chunk) => {
                self.position += chunk.len() as u64;
                Ok(Some(chunk))
            }
            None if left == 0 => {
                self.body = None;
                Ok(None)
            }
            None => {
                let source = TransportError::broken("the body ended too early");
                Err(RegistryError::Transport { asked: self.asked().await?, source })
            }
        }
    }

    async fn asked(&self) -> Result<Asked, RegistryError> {
        Ok(self.repository.asked(&self.request().await?))
    }

    async fn request(&self) -> Result<Request, RegistryError> {
        self.repository.request(Method::GET, &format!("blobs/{}", self.digest)).await
    }

    /// Asks for the blob from where we are.
    async fn open(&mut self) -> Result<(), RegistryError> {
        let mut request = self.request().await?;
        if self.position > 0 && self.ranges {
            request = from_byte(request, self.position);
            if let Some(etag) = &self.etag {
                request = request.header(IF_RANGE, etag.clone());
            }
        }
        let response = self.repository.registry.once(&request, &self.repository.scope(Access::Pull)).await?;
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
                if self.position > 0 {
                    return self.read_up(response).await;
                }
                let etag = response.headers().get(ETAG).filter(|etag| etag.as_bytes().starts_with(b"\""));
                self.etag = etag.cloned();
            }
            206 if self.position > 0 && self.ranges => {
                let range = response.text(CONTENT_RANGE).unwrap_or_default();
                if !continues(range, self.position, self.size) {
                    let (from, size) = (self.position, self.size);
                    return Err(protocol(format!("asked for the bytes from {from} on of {size}, it sends {range:?}")));
                }
            }
            _ => return Err(response.refusal().await),
        }
        self.body = Some(response);
        Ok(())
    }

    /// The server begins anew: reads on to where we are, if that is not too far.
    async fn read_up(&mut self, mut response: Response) -> Result<(), RegistryError> {
        self.ranges = false;
        if self.position > self.repository.registry.http.limits.reread {
            let what = format!("it broke off at byte {}, and the registry cannot send the rest alone", self.position);
            return Err(RegistryError::Protocol { asked: response.asked, what });
        }
        let mut before = self.position;
        while before > 0 {
            let Some(mut chunk) = response.chunk().await? else {
                let source = TransportError::broken("the body ended too early");
                return Err(RegistryError::Transport { asked: response.asked, source });
            };
            let known = before.min(chunk.len() as u64);
            before -= known;
            self.pending = Some(chunk.split_off(known as usize)).filter(|rest| !rest.is_empty());
        }
        self.body = Some(response);
        Ok(())
    }
}

/// Whether `Content-Range` (RFC 9110 section 14.4) goes on at `from` in content of `size` bytes.
fn continues(range: &str, from: u64, size: u64) -> bool {
    let parts = || {
        let (range, total) = range.trim().strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.trim().split_once('-')?;
        Some((first.parse::<u64>().ok()?, last.parse::<u64>().ok()?, total.trim()))
    };
    parts().is_some_and(|(first, last, total)| {
        first == from && last >= first && last < size && (total == "*" || total.parse() == Ok(size))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_ranges() {
        for (range, right) in [
            ("bytes 5-9/10", true),
            ("bytes 5-7/10", true),
            ("bytes 5-9/*", true),
            ("bytes 4-9/10", false),
            ("bytes 5-10/10", false),
            ("bytes 5-9/11", false),
            ("bytes 9-5/10", false),
            ("bytes */10", false),
            ("5-9/10", false),
            ("", false),
        ] {
            assert_eq!(continues(range, 5, 10), right, "{range}");
        }
    }
}
