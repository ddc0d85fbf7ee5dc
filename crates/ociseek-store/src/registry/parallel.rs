//! Reads a large blob over several connections: its parts are fetched in parallel and returned in
//! order.
//!
//! Registries, and the object stores behind them, commonly give a connection 60 to 90 MB/s, however
//! fast the network is.
//!
//! The first request asks for the first part. If the response is the whole blob, it is read to the
//! end and nothing else is requested.

use std::collections::VecDeque;
use std::sync::Arc;
use std::vec;

use bytes::Bytes;
use reqwest::Method;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::blobs::BlobStream;
use super::client::Repository;
use super::error::RegistryError;
use super::transport::TransportError;
use ociseek_format::budget::Charge;
use ociseek_format::image::Descriptor;

/// Blobs with fewer parts use a single connection.
const FEWEST_PARTS: u64 = 4;
/// How many bytes a connection passes on at a time, so that a finished part is read in few steps.
const BATCH: usize = 256 << 10;

/// A whole blob as a stream, over one connection or several. Yields exactly as many bytes as the
/// descriptor states. The reader must verify their digest.
pub struct LayerStream(Connections);

ociseek_format::opaque_debug!(LayerStream);

enum Connections {
    /// A large blob keeps its connection permit until it is dropped.
    One {
        stream: Box<BlobStream>,
        _connection: Option<OwnedSemaphorePermit>,
    },
    Several(Box<BlobParts>),
}

/// The parts of a blob. A task fetches each of them.
struct BlobParts {
    repository: Repository,
    blob: Descriptor,
    /// Whether caches on the way must not answer.
    bypass_caches: bool,
    /// The size of each part but the last, in bytes.
    part: u64,
    /// The end of the parts that are being fetched.
    next: u64,
    ahead: VecDeque<Part>,
    /// Chunks of the first part that were taken out of its channel.
    batch: vec::IntoIter<Bytes>,
    /// The tasks end when this is dropped.
    tasks: JoinSet<()>,
}

struct Part {
    batches: Receiver<Result<Vec<Bytes>, RegistryError>>,
    /// The number of bytes that have not come out of `batches`.
    left: u64,
    _permit: PartPermit,
}

/// A connection permit and the memory for a part, released when the part was returned.
struct PartPermit {
    _connection: Option<OwnedSemaphorePermit>,
    _charge: Option<Charge>,
}

impl Repository {
    /// False if the registry sent a whole blob instead of a part, a short time ago.
    pub(crate) fn sends_parts(&self) -> bool {
        self.registry.ranges.may_ask()
    }

    /// Starts to read a whole blob. With `bypass_caches`, caches on the way must ask the registry.
    /// Large blobs are read over as many connections as
    /// [`Limits::connections`](super::Limits::connections) and the memory for parts allow.
    ///
    /// # Errors
    /// Those of [`Repository::blob`].
    pub async fn layer(
        &self,
        blob: &Descriptor,
        bypass_caches: bool,
    ) -> Result<LayerStream, RegistryError> {
        let part = self.registry.http.limits.part.max(1);
        let one = |stream, connection| {
            LayerStream(Connections::One { stream: Box::new(stream), _connection: connection })
        };
        if blob.size / part < FEWEST_PARTS {
            return Ok(one(self.blob_part(blob, 0..blob.size, bypass_caches).await?, None));
        }
        // Fails only if the semaphore is closed, which never happens.
        let connection = Arc::clone(self.permits()).acquire_owned().await.ok();
        let several = self.registry.http.limits.connections > 1 && self.sends_parts();
        let Some(charge) = self.charge_part(part).filter(|_| several) else {
            return Ok(one(self.blob_part(blob, 0..blob.size, bypass_caches).await?, connection));
        };
        let mut stream = self.blob_part(blob, 0..part, bypass_caches).await?;
        if stream.take_whole() {
            return Ok(one(stream, connection));
        }
        let mut parts = BlobParts {
            repository: self.clone(),
            blob: blob.clone(),
            bypass_caches,
            part,
            next: 0,
            ahead: VecDeque::new(),
            batch: Vec::new().into_iter(),
            tasks: JoinSet::new(),
        };
        parts.begin(PartPermit { _connection: connection, _charge: Some(charge) }, Some(stream));
        Ok(LayerStream(Connections::Several(Box::new(parts))))
    }

    fn permits(&self) -> &Arc<Semaphore> {
        self.registry.http.permits()
    }

    /// None if the image has no memory left for another part.
    fn charge_part(&self, part: u64) -> Option<Charge> {
        self.parts.charge(part, || "a part of a layer".to_owned()).ok()
    }
}

impl LayerStream {
    /// The next bytes; None at the end of the blob.
    ///
    /// # Errors
    /// Those of [`BlobStream::next`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, RegistryError> {
        match &mut self.0 {
            Connections::One { stream, .. } => stream.next().await,
            Connections::Several(parts) => parts.next().await,
        }
    }
}

impl BlobParts {
    async fn next(&mut self) -> Result<Option<Bytes>, RegistryError> {
        loop {
            if let Some(chunk) = self.batch.next() {
                return Ok(Some(chunk));
            }
            self.fetch_ahead().await;
            let Some(part) = self.ahead.front_mut() else { return Ok(None) };
            match part.batches.recv().await {
                Some(batch) => {
                    let batch = batch?;
                    part.left -= batch.iter().map(|chunk| chunk.len() as u64).sum::<u64>();
                    self.batch = batch.into_iter();
                }
                None if part.left == 0 => drop(self.ahead.pop_front()),
                None => return Err(self.ended_early().await?),
            }
        }
    }

    /// Starts to fetch as many parts as connections and memory allow. The part that is needed now
    /// waits for a connection, and is fetched even if no memory is left.
    async fn fetch_ahead(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        while self.next < self.blob.size {
            let permits = Arc::clone(self.repository.permits());
            let needed = self.ahead.is_empty();
            let connection = if needed {
                permits.acquire_owned().await.ok()
            } else {
                permits.try_acquire_owned().ok()
            };
            let charge = self.repository.charge_part(self.part);
            if !needed
                && (connection.is_none() || charge.is_none() || !self.repository.sends_parts())
            {
                return;
            }
            self.begin(PartPermit { _connection: connection, _charge: charge }, None);
        }
    }

    /// Starts to fetch the next part. `opened` is its response if it was already requested. If the
    /// registry has stopped sending parts, this fetches the whole rest.
    fn begin(&mut self, permit: PartPermit, opened: Option<BlobStream>) {
        let length = if opened.is_some() || self.repository.sends_parts() {
            self.part
        } else {
            self.blob.size
        };
        let range = self.next..self.next.saturating_add(length).min(self.blob.size);
        // Room for a whole part, which then never waits for earlier parts.
        let (batches, received) = channel(self.part as usize / BATCH + 2);
        self.next = range.end;
        self.ahead.push_back(Part {
            batches: received,
            left: range.end - range.start,
            _permit: permit,
        });
        let repository = self.repository.clone();
        let blob = self.blob.clone();
        let bypass_caches = self.bypass_caches;
        self.tasks.spawn(async move {
            let stream = match opened {
                Some(stream) => Ok(stream),
                None => repository.blob_part(&blob, range, bypass_caches).await,
            };
            if let Err(error) = fetch(stream, &batches).await {
                // Fails if nobody waits for the part any more.
                let _ = batches.send(Err(error)).await;
            }
        });
    }

    /// The error when a task ended without its part or an error.
    async fn ended_early(&self) -> Result<RegistryError, RegistryError> {
        let request =
            self.repository.request(Method::GET, &format!("blobs/{}", self.blob.digest)).await?;
        let source = TransportError::broken("the body ended early");
        Ok(RegistryError::Transport { line: self.repository.request_line(&request), source })
    }
}

/// Passes on the chunks of a part until it ends or its receiver is gone.
async fn fetch(
    stream: Result<BlobStream, RegistryError>,
    batches: &Sender<Result<Vec<Bytes>, RegistryError>>,
) -> Result<(), RegistryError> {
    let mut stream = stream?;
    let mut batch = Vec::new();
    let mut size = 0;
    loop {
        let chunk = stream.next().await?;
        let last = chunk.is_none();
        size += chunk.as_ref().map_or(0, Bytes::len);
        batch.extend(chunk);
        if size >= BATCH || last {
            size = 0;
            if batches.send(Ok(std::mem::take(&mut batch))).await.is_err() || last {
                return Ok(());
            }
        }
    }
}
