//! Decoding from a block inside a frame, with libzstd as it is: a dictionary stands for what
//! precedes the block.

use std::io;

use zstd::zstd_safe::{DCtx, DDict, DParameter, InBuffer, OutBuffer, get_error_name};

use super::block::{MAX_BLOCK, Tables};
use super::{WINDOW_LOG, ZstdReader};

/// What is needed to decode from a block, in addition to the output that it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZstdState {
    /// The window descriptor of the frame (RFC 8878 section 3.1.1.1.2). The window is at least as
    /// large as the frame's own.
    pub window: u8,
    /// Whether a checksum follows the frame's last block.
    pub has_checksum: bool,
    /// What a dictionary has between its ID and its content (RFC 8878 section 5): the tables in
    /// force, and the repeat offsets.
    pub tables: Box<[u8]>,
}

/// Before the tables of a dictionary: its magic number and an ID.
const DICTIONARY: [u8; 8] = *b"\x37\xa4\x30\xec\x01\0\0\0";

/// The size of the window that a descriptor stands for, in bytes.
pub(super) fn window_size(descriptor: u8) -> u64 {
    let base = 1u64 << (10 + (descriptor >> 3));
    base + base / 8 * u64::from(descriptor & 7)
}

/// The descriptor of the smallest window of at least `size` bytes.
pub(super) fn window_descriptor(size: u64) -> u8 {
    (0..=u8::MAX).find(|descriptor| window_size(*descriptor) >= size).unwrap_or(u8::MAX)
}

impl ZstdState {
    /// The most bytes before a block that it can refer to: 128 MiB.
    pub const MAX_WINDOW: u64 = 1 << WINDOW_LOG;

    /// As at the start of a frame.
    #[cfg(test)]
    pub(crate) fn initial() -> ZstdState {
        ZstdState { window: 0, has_checksum: false, tables: Tables::default().write() }
    }

    /// How many bytes back the repeat offsets point, which is how much content a dictionary must
    /// have at least. None if the window is too large, or the tables are not valid.
    pub fn reach(&self) -> Option<u64> {
        let tables = Tables::read(&self.tables)?;
        (window_size(self.window) <= ZstdState::MAX_WINDOW).then(|| tables.reach().into())
    }

    pub(super) fn window_size(&self) -> u64 {
        window_size(self.window)
    }

    /// A dictionary with `length` bytes of content, all of them `fill`, to be filled in from the
    /// returned position on.
    pub fn dictionary(&self, length: usize, fill: u8) -> (Vec<u8>, usize) {
        let start = DICTIONARY.len() + self.tables.len();
        // The system gives memory that is zero, so a large window with few bytes costs little.
        let mut bytes = vec![0; start + length];
        bytes[..DICTIONARY.len()].copy_from_slice(&DICTIONARY);
        bytes[DICTIONARY.len()..start].copy_from_slice(&self.tables);
        if fill != 0 {
            bytes[start..].fill(fill);
        }
        (bytes, start)
    }
}

/// Decodes from the middle of a frame to its end, and further frames.
pub struct ZstdResumed<'a> {
    /// None after the end of the first frame.
    first: Option<DCtx<'a>>,
    /// All output of the first frame. libzstd writes it here and nowhere else, so it must not move.
    output: Vec<u8>,
    /// How much of it is wanted. There is room for a block more, which is decoded as a whole.
    wanted: usize,
    /// How many bytes the decoder takes next: to the end of a block, so that each step decodes one
    /// block at most.
    next: usize,
    /// None until another frame follows. Most spans end before that.
    rest: Option<ZstdReader>,
}

crate::opaque_debug!(ZstdResumed<'_>);

/// A dictionary that libzstd has loaded.
pub struct ZstdDictionary<'a>(DDict<'a>);

crate::opaque_debug!(ZstdDictionary<'_>);

impl<'a> ZstdDictionary<'a> {
    /// Loads the dictionary of a state with its content, which stays where it is.
    ///
    /// # Errors
    /// If it is not a valid dictionary.
    pub fn new(bytes: &'a [u8]) -> io::Result<ZstdDictionary<'a>> {
        let loaded = DDict::try_create_by_reference(bytes);
        let loaded = loaded.filter(|dictionary| dictionary.get_dict_id().is_some());
        loaded
            .map(ZstdDictionary)
            .ok_or_else(|| io::Error::other("the state of the zstd decoder is not valid"))
    }
}

impl<'a> ZstdResumed<'a> {
    /// Starts at a block. Of the first frame, at least `wanted` bytes are decoded if there are as
    /// many; what follows the block with the last one is not.
    ///
    /// # Errors
    /// If zstd cannot allocate memory.
    pub fn new(
        state: &ZstdState,
        dictionary: &'a ZstdDictionary<'a>,
        wanted: u64,
    ) -> io::Result<ZstdResumed<'a>> {
        let mut context = DCtx::try_create().ok_or(io::ErrorKind::OutOfMemory)?;
        let set = |code: Result<usize, usize>| code.map(drop).map_err(failed);
        set(context.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)))?;
        // It covers bytes that are not decoded here.
        set(context.set_parameter(DParameter::ForceIgnoreChecksum(true)))?;
        // Otherwise libzstd decodes into a window of its own and copies from that.
        set(context.set_parameter(DParameter::StableOutBuffer(true)))?;
        set(context.ref_ddict(&dictionary.0))?;
        let wanted = usize::try_from(wanted).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut output = Vec::new();
        output
            .try_reserve_exact(wanted.saturating_add(MAX_BLOCK))
            .map_err(|_| io::ErrorKind::OutOfMemory)?;
        let header = [0x28, 0xb5, 0x2f, 0xfd, if state.has_checksum { 4 } else { 0 }, state.window];
        let mut resumed =
            ZstdResumed { first: Some(context), output, wanted, next: header.len(), rest: None };
        resumed.push(&header, &mut |_| io::Result::Ok(()))?;
        Ok(resumed)
    }

    /// Decodes the next bytes of the blob into `sink`.
    ///
    /// # Errors
    /// Errors of zstd and of the sink.
    pub fn push<E: From<io::Error>>(
        &mut self,
        mut chunk: &[u8],
        sink: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(context) = &mut self.first {
            let before = self.output.len();
            if chunk.is_empty() || before > self.wanted {
                return Ok(());
            }
            let mut input = InBuffer::around(chunk.get(..self.next).unwrap_or(chunk));
            let mut output = OutBuffer::around_pos(&mut self.output, before);
            self.next = context.decompress_stream(&mut output, &mut input).map_err(failed)?;
            if input.pos() == 0 {
                return Err(io::Error::other("the decoder makes no progress").into());
            }
            chunk = chunk.get(input.pos()..).unwrap_or_default();
            if self.next == 0 {
                self.first = None;
            }
            sink(self.output.get(before..).unwrap_or_default())?;
        }
        match chunk {
            [] => Ok(()),
            rest => {
                let reader = match self.rest.take() {
                    Some(reader) => reader,
                    None => ZstdReader::new()?,
                };
                self.rest.insert(reader).push(rest, sink)
            }
        }
    }
}

fn failed(code: usize) -> io::Error {
    io::Error::other(get_error_name(code))
}
