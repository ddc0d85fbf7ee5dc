//! The `checkpoints` bytes of a ztoc: packed little-endian records for gzip, a separate flatbuffer
//! for a plain tar (soci-snapshotter, ztoc/compression gzip_zinfo.c and tar_zinfo.go).

use super::flatbuffer::{Builder, FlatbufferError, Offset, View, tar};
use super::{Checkpoint, Checkpoints};
use crate::codec::WINDOW;
use crate::offset::{Compressed, SpanId, SpanSize, Uncompressed};

/// i32 count and i64 span size.
const HEADER: usize = 12;
/// i64 input, i64 output, u8 bits, window.
const RECORD: usize = 17 + WINDOW;
/// The version that the reference writes for plain tars.
const TAR_VERSION: i32 = 2;

/// Why a ztoc's checkpoints cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum CheckpointsError {
    #[error("{0} bytes of checkpoints cannot hold the {1} checkpoints they claim")]
    Length(usize, i64),
    #[error("span size {0} is not positive")]
    SpanSize(i64),
    #[error("checkpoint {0} is before the start of the layer")]
    Negative(SpanId),
    #[error("checkpoint {0} does not come after the previous one")]
    Order(SpanId),
    #[error("checkpoint {0} is past the end of the layer")]
    Beyond(SpanId),
    #[error("checkpoint {0} uses {1} bits of a byte (at most 7 are possible)")]
    Bits(SpanId, u8),
    #[error("no checkpoint")]
    None,
    #[error("the span table of an uncompressed layer is malformed")]
    Tar(#[source] FlatbufferError),
    #[error("the span table says that the layer has {0} bytes")]
    TarSize(i64),
}

/// The encoded size of the checkpoints in bytes.
pub(super) fn encoded_size(checkpoints: &Checkpoints) -> usize {
    match checkpoints {
        Checkpoints::Gzip { list, .. } => HEADER + list.len() * RECORD,
        Checkpoints::Uncompressed { .. } => 64,
    }
}

/// Writes the byte vector.
pub(super) fn encode(checkpoints: &Checkpoints, builder: &mut Builder) -> Offset {
    match checkpoints {
        Checkpoints::Gzip { span_size, list } => {
            let mut header = [0; HEADER];
            header[..4].copy_from_slice(&(list.len() as i32).to_le_bytes());
            header[4..].copy_from_slice(&(span_size.get() as i64).to_le_bytes());
            let heads: Vec<[u8; 17]> = list.iter().map(record_head).collect();
            let mut parts: Vec<&[u8]> = Vec::with_capacity(2 * list.len() + 1);
            for (checkpoint, head) in list.iter().zip(&heads).rev() {
                parts.push(&checkpoint.window[..]);
                parts.push(head);
            }
            parts.push(&header);
            builder.byte_vector(&parts)
        }
        Checkpoints::Uncompressed { span_size, size } => {
            let mut inner = Builder::with_capacity(64);
            let mut table = inner.start_table();
            inner.add_u32(&mut table, tar::VERSION, TAR_VERSION as u32);
            inner.add_i64(&mut table, tar::SPAN_SIZE, span_size.get() as i64);
            inner.add_i64(&mut table, tar::SIZE, *size as i64);
            let root = inner.end_table(table);
            builder.byte_vector(&[&inner.finish(root)])
        }
    }
}

fn record_head(checkpoint: &Checkpoint) -> [u8; 17] {
    let mut head = [0; 17];
    head[..8].copy_from_slice(&(checkpoint.input.0 as i64).to_le_bytes());
    head[8..16].copy_from_slice(&(checkpoint.output.0 as i64).to_le_bytes());
    head[16] = checkpoint.bits;
    head
}

/// The number of spans and the span size that the checkpoints of a gzip layer claim. Allocates no
/// memory.
///
/// # Errors
/// If there are fewer checkpoints than claimed, or the span size is not positive.
pub(super) fn gzip_head(bytes: &[u8]) -> Result<(u64, SpanSize), CheckpointsError> {
    let (Some(count), Some(span_size)) = (bytes.get(..4), bytes.get(4..HEADER)) else {
        return Err(CheckpointsError::Length(bytes.len(), 0));
    };
    let count = i64::from(i32::from_le_bytes(count.try_into().unwrap_or_default()));
    let span_size = i64::from_le_bytes(span_size.try_into().unwrap_or_default());
    let records = &bytes[HEADER..];
    let stored = (records.len() / RECORD) as i64;
    if !records.len().is_multiple_of(RECORD) || (stored != count && stored + 1 != count) {
        return Err(CheckpointsError::Length(bytes.len(), count));
    }
    let claimed = u64::try_from(count).map_err(|_| CheckpointsError::Length(bytes.len(), count))?;
    Ok((claimed, stored_span_size(span_size)?))
}

/// Reads the checkpoints of a gzip layer of `size` compressed bytes.
///
/// # Errors
/// If a reader could not start from them: out of order, out of range, or not the claimed number.
pub(super) fn decode_gzip(bytes: &[u8], size: Compressed) -> Result<Checkpoints, CheckpointsError> {
    let (count, span_size) = gzip_head(bytes)?;
    let records = &bytes[HEADER..];
    // Version 1 omitted checkpoint 0; readers detect it only by the length.
    let first_is_missing = (records.len() / RECORD) as u64 != count;
    let mut list = Vec::with_capacity(count as usize);
    if first_is_missing {
        list.push(Checkpoint {
            input: Compressed(10),
            output: Uncompressed(0),
            bits: 0,
            window: Box::new([0; WINDOW]),
        });
    }
    for record in records.chunks_exact(RECORD) {
        let span = SpanId(list.len() as u32);
        let offset = |at: usize| {
            let value = i64::from_le_bytes(record[at..at + 8].try_into().unwrap_or_default());
            u64::try_from(value).map_err(|_| CheckpointsError::Negative(span))
        };
        let input = Compressed(offset(0)?);
        let output = Uncompressed(offset(8)?);
        let bits = record[16];
        if bits > 7 {
            return Err(CheckpointsError::Bits(span, bits));
        }
        if input > size {
            return Err(CheckpointsError::Beyond(span));
        }
        if bits != 0 && input.0 == 0 {
            return Err(CheckpointsError::Negative(span));
        }
        if list.last().is_some_and(|last: &Checkpoint| input <= last.input || output <= last.output)
        {
            return Err(CheckpointsError::Order(span));
        }
        let window = Box::new(record[17..].try_into().unwrap_or([0; WINDOW]));
        list.push(Checkpoint { input, output, bits, window });
    }
    if list.is_empty() {
        return Err(CheckpointsError::None);
    }
    Ok(Checkpoints::Gzip { span_size, list })
}

/// Reads the span table of a plain tar of `size` bytes.
///
/// # Errors
/// If its sizes are not positive, or not those of the layer.
pub(super) fn decode_tar(bytes: &[u8], size: Compressed) -> Result<Checkpoints, CheckpointsError> {
    let read = || -> Result<(i64, i64), FlatbufferError> {
        let root = View::new(bytes).root()?;
        Ok((root.i64(tar::SPAN_SIZE)?, root.i64(tar::SIZE)?))
    };
    let (span_size, stored) = read().map_err(CheckpointsError::Tar)?;
    let span_size = stored_span_size(span_size)?;
    let total = u64::try_from(stored).ok().filter(|&total| total == size.0);
    let size = total.ok_or(CheckpointsError::TarSize(stored))?;
    Ok(Checkpoints::Uncompressed { span_size, size })
}

fn stored_span_size(span_size: i64) -> Result<SpanSize, CheckpointsError> {
    u64::try_from(span_size)
        .ok()
        .and_then(SpanSize::new)
        .ok_or(CheckpointsError::SpanSize(span_size))
}
