//! Blobs and parts of blobs as streams of chunks, and the buffers for reading local ones, which are
//! reused as soon as nobody reads them any more.

use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::StoreError;
use super::layout::BlobReader;
use super::registry::{BlobStream, LayerStream};
use crate::lock::Hold;
use ociseek_format::digest::Digest;

/// The most chunks of a local blob that may wait in the channel.
const CHUNKS: usize = 2;

/// A part of a blob as a stream of chunks.
pub struct Part(InnerPart);

ociseek_format::opaque_debug!(Part);

enum InnerPart {
    Registry(Box<BlobStream>),
    Local(Option<Bytes>),
}

impl Part {
    pub(super) fn of_registry(stream: BlobStream) -> Part {
        Part(InnerPart::Registry(Box::new(stream)))
    }

    /// A part that is in memory already; None if it is empty.
    pub(super) fn of_bytes(bytes: Option<Bytes>) -> Part {
        Part(InnerPart::Local(bytes))
    }

    /// The next bytes; None at the end.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        match &mut self.0 {
            InnerPart::Registry(stream) => Ok(stream.next().await?),
            InnerPart::Local(bytes) => Ok(bytes.take()),
        }
    }

    /// The number of requests sent so far; 0 for local stores.
    pub fn requests(&self) -> u32 {
        match &self.0 {
            InnerPart::Registry(stream) => stream.requests(),
            InnerPart::Local(_) => 0,
        }
    }

    /// The number of bytes that came over the network in addition to the `given` bytes from
    /// [`Part::next`].
    pub fn extra(&self, given: u64) -> u64 {
        match &self.0 {
            InnerPart::Registry(stream) => stream.received().saturating_sub(given),
            InnerPart::Local(_) => 0,
        }
    }
}

/// A blob as a stream of chunks.
pub struct Blob(Inner);

ociseek_format::opaque_debug!(Blob);

enum Inner {
    Registry(Box<LayerStream>),
    Local { digest: Digest, chunks: mpsc::Receiver<io::Result<Bytes>> },
}

impl Blob {
    pub(super) fn of_registry(stream: LayerStream) -> Blob {
        Blob(Inner::Registry(Box::new(stream)))
    }

    /// The blob `digest` of a local store. Another thread reads it.
    pub(super) fn of_reader(digest: Digest, reader: BlobReader) -> Blob {
        let (chunks, received) = mpsc::channel(CHUNKS);
        spawn_blocking(move || read_chunks(reader, &chunks));
        Blob::of_chunks(digest, received)
    }

    /// The blob `digest` from the chunks of another thread; an empty one marks the end.
    pub(super) fn of_chunks(digest: Digest, chunks: mpsc::Receiver<io::Result<Bytes>>) -> Blob {
        Blob(Inner::Local { digest, chunks })
    }

    /// The next bytes; None at the end.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        match &mut self.0 {
            Inner::Registry(stream) => Ok(stream.next().await?),
            Inner::Local { digest, chunks } => match chunks.recv().await {
                Some(Ok(chunk)) if chunk.is_empty() => Ok(None),
                Some(Ok(chunk)) => Ok(Some(chunk)),
                Some(Err(source)) => Err(StoreError::Read { digest: *digest, source }),
                None => Err(StoreError::Thread),
            },
        }
    }
}

/// Reads a local blob to its end, which is marked by an empty chunk, or until the receiver is gone.
fn read_chunks(mut reader: BlobReader, chunks: &mpsc::Sender<io::Result<Bytes>>) {
    let buffers = Buffers::default();
    loop {
        let chunk = buffers.read_chunk(&mut reader);
        let last = chunk.as_ref().map_or(true, Bytes::is_empty);
        if chunks.blocking_send(chunk).is_err() || last {
            return;
        }
    }
}

/// The size of a chunk in bytes.
const CHUNK: usize = 256 << 10;

/// The buffers for the chunks of a blob, as many as there are chunks in use at the same time. With
/// fresh memory for each chunk, the kernel would spend more time on the memory than on reading.
#[derive(Default)]
pub struct Buffers(Arc<Mutex<Vec<Box<[u8]>>>>);

ociseek_format::opaque_debug!(Buffers);

/// A buffer in use. It is returned when it is dropped.
struct LentBuffer {
    buffer: Box<[u8]>,
    filled: usize,
    home: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl Buffers {
    /// Reads the next chunk of `reader`, up to 256 KiB. Empty at the end.
    ///
    /// # Errors
    /// If the reader fails.
    pub fn read_chunk(&self, reader: &mut impl Read) -> io::Result<Bytes> {
        let idle = self.0.hold().pop();
        let buffer = idle.unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
        let mut lent = LentBuffer { buffer, filled: 0, home: Arc::clone(&self.0) };
        while lent.filled < CHUNK {
            match reader.read(&mut lent.buffer[lent.filled..]) {
                Ok(0) => break,
                Ok(read) => lent.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Bytes::from_owner(lent))
    }
}

impl AsRef<[u8]> for LentBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

impl Drop for LentBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.home.hold().push(buffer);
    }
}
