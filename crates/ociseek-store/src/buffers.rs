//! Buffers for reading local blobs, which are reused as soon as nobody reads them any more.

use crate::lock::Hold;
use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

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
