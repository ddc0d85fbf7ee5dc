//! Buffers for local blobs, which are filled again once nobody reads them any more.

use crate::lock::Hold;
use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

/// Bytes that are handed out at a time.
const CHUNK: usize = 256 << 10;

/// The chunks of one blob. There are as many buffers as chunks are under way at once; fresh memory
/// for each would cost the kernel more than reading into it.
#[derive(Default)]
pub struct Buffers(Arc<Mutex<Vec<Box<[u8]>>>>);

/// A buffer on its way; comes home when it is dropped.
struct Lent {
    buffer: Box<[u8]>,
    filled: usize,
    home: Arc<Mutex<Vec<Box<[u8]>>>>,
}

impl Buffers {
    /// The next 256 KiB of `reader`, or as much as there is; nothing at its end.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_chunk(&self, reader: &mut impl Read) -> io::Result<Bytes> {
        let idle = self.0.hold().pop();
        let buffer = idle.unwrap_or_else(|| vec![0; CHUNK].into_boxed_slice());
        let mut lent = Lent { buffer, filled: 0, home: Arc::clone(&self.0) };
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

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.home.hold().push(buffer);
    }
}
