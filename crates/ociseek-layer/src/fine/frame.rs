//! The zstd frames of a document.

use zstd::zstd_safe::{find_frame_compressed_size, get_frame_content_size};

use super::FineError;

/// Compresses `plain` to one frame that states its size.
pub(super) fn compress(plain: &[u8], level: i32) -> Result<Vec<u8>, FineError> {
    zstd::bulk::compress(plain, level).map_err(|_| FineError::Compress)
}

/// Decodes a frame of `size` bytes of content, for which there is memory. Errors call it `section`.
///
/// # Errors
/// If `frame` is anything else than one such frame.
pub(super) fn decompress(frame: &[u8], size: usize, section: &'static str) -> Result<Vec<u8>, FineError> {
    let is_stated = matches!(get_frame_content_size(frame), Ok(Some(stated)) if stated == size as u64);
    let is_one = find_frame_compressed_size(frame).is_ok_and(|length| length == frame.len());
    if !is_stated || !is_one {
        return Err(FineError::Frame(section));
    }
    let plain = zstd::bulk::decompress(frame, size).map_err(|_| FineError::Frame(section))?;
    if plain.len() == size { Ok(plain) } else { Err(FineError::Frame(section)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_frame_that_states_its_size_and_nothing_else() {
        let plain: Vec<u8> = (0..5000u32).flat_map(u32::to_le_bytes).collect();
        let frame = compress(&plain, 3).unwrap();
        assert_eq!(decompress(&frame, plain.len(), "x"), Ok(plain.clone()));

        let streamed = zstd::stream::encode_all(&plain[..], 3).unwrap();
        let skippable = [&b"\x50\x2a\x4d\x18\x03\0\0\0abc"[..], &frame].concat();
        let mut lie = frame.clone();
        lie[5] ^= 1;
        let frames = [&frame[..], &frame].concat();
        for wrong in [&streamed[..], &skippable, &lie, &frames, &frame[..frame.len() - 1], b"abc", b""] {
            assert_eq!(decompress(wrong, plain.len(), "x"), Err(FineError::Frame("x")));
        }
        assert_eq!(decompress(&frame, plain.len() - 1, "x"), Err(FineError::Frame("x")));
        assert_eq!(decompress(&frame, usize::MAX, "x"), Err(FineError::Frame("x")));
    }
}
