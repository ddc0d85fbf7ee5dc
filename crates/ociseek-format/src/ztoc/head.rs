//! The root of a ztoc, for callers that need it to decide whether to decode the rest.

use super::checkpoints::{decode_tar, gzip_head};
use super::error::ZtocError;
use super::schema::{info, root};
use super::view::View;
use crate::offset::{Compressed, SpanSize, Uncompressed};

/// The root of a ztoc. Its values are unchecked and can be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head<'a> {
    /// The version of the ztoc's format.
    pub version: &'a [u8],
    /// The tool that built the ztoc.
    pub build_tool_identifier: &'a [u8],
    /// Size of the blob in bytes.
    pub compressed_size: Compressed,
    /// The size of the tar in bytes.
    pub uncompressed_size: Uncompressed,
    /// Minimum number of tar bytes between two checkpoints.
    pub span_size: SpanSize,
    /// The number of spans that it claims to have.
    pub spans: u64,
}

/// Reads the root of a ztoc in constant time, without allocating memory.
///
/// # Errors
/// If the root is malformed, or its values make no sense to a reader.
pub fn head(bytes: &[u8]) -> Result<Head<'_>, ZtocError> {
    let root = View::new(bytes).root()?;
    let size = |field, what| u64::try_from(root.i64(field)?).map_err(|_| ZtocError::NegativeSize(what));
    let compressed_size = Compressed(size(root::COMPRESSED_SIZE, "compressed layer")?);
    let uncompressed_size = Uncompressed(size(root::UNCOMPRESSED_SIZE, "uncompressed layer")?);
    let info = root.table(root::COMPRESSION_INFO)?;
    let stored = info.bytes(info::CHECKPOINTS)?;
    let (spans, span_size) = match info.u8(info::ALGORITHM, info::GZIP)? {
        info::GZIP => gzip_head(stored)?,
        info::UNCOMPRESSED => {
            let table = decode_tar(stored, compressed_size)?;
            (table.spans(), table.span_size())
        }
        other => return Err(ZtocError::Algorithm(other)),
    };
    let (version, build_tool_identifier) = (root.bytes(root::VERSION)?, root.bytes(root::BUILD_TOOL_IDENTIFIER)?);
    Ok(Head { version, build_tool_identifier, compressed_size, uncompressed_size, span_size, spans })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::WINDOW;
    use crate::ztoc::{Checkpoint, Checkpoints, CheckpointsError, VERSION, Ztoc, encode};

    fn size(bytes: u64) -> SpanSize {
        SpanSize::new(bytes).unwrap()
    }

    fn ztoc(checkpoints: Checkpoints) -> Ztoc {
        Ztoc {
            version: VERSION.into(),
            build_tool_identifier: b"tool".as_slice().into(),
            compressed_size: Compressed(1000),
            uncompressed_size: Uncompressed(5000),
            files: Vec::new(),
            checkpoints,
            span_digests: Vec::new(),
        }
    }

    #[test]
    fn the_head_round_trips() {
        let checkpoint = |n: u64| Checkpoint {
            input: Compressed(10 + n),
            output: Uncompressed(n),
            bits: 0,
            window: Box::new([0; WINDOW]),
        };
        let gzip = Checkpoints::Gzip { span_size: size(64), list: vec![checkpoint(0), checkpoint(100)] };
        let plain = Checkpoints::Uncompressed { span_size: size(300), size: 1000 };
        for (checkpoints, spans, span_size) in [(gzip, 2, 64), (plain, 4, 300)] {
            let bytes = encode(&ztoc(checkpoints));
            let expected = Head {
                version: VERSION,
                build_tool_identifier: b"tool",
                compressed_size: Compressed(1000),
                uncompressed_size: Uncompressed(5000),
                span_size: size(span_size),
                spans,
            };
            assert_eq!(head(&bytes), Ok(expected));
            for cut in 0..bytes.len().min(64) {
                assert!(head(&bytes[..cut]).is_err());
            }
        }
    }

    #[test]
    fn unusable_heads_are_refused() {
        let mut bad = ztoc(Checkpoints::Uncompressed { span_size: size(0x0102_0304), size: 1000 });
        let encoded = encode(&bad);
        let stored = 0x0102_0304_u64.to_le_bytes();
        let at = encoded.windows(8).position(|bytes| bytes == stored).unwrap();
        for wrong in [0, -1, i64::MIN] {
            let mut encoded = encoded.clone();
            encoded[at..at + 8].copy_from_slice(&wrong.to_le_bytes());
            let expected = ZtocError::Checkpoints(CheckpointsError::SpanSize(wrong));
            assert_eq!(head(&encoded), Err(expected));
        }
        bad.checkpoints = Checkpoints::Uncompressed { span_size: size(300), size: 999 };
        assert!(matches!(head(&encode(&bad)), Err(ZtocError::Checkpoints(_))));
        bad.compressed_size = Compressed(u64::MAX);
        assert!(matches!(head(&encode(&bad)), Err(ZtocError::NegativeSize(_))));
    }
}
