//! Layers of zstd frames.
//!
//! Invariants under test: how the input is cut does not matter; what is accepted is what libzstd's
//! own reader makes of it, and it ends where a frame ends; what libzstd has written is accepted,
//! between skippable frames too.

use std::io::{self, Read};

use ociseek_format::codec::ZstdReader;

/// A frame that decoders pass over (RFC 8878 section 3.1.2).
const SKIPPABLE: &[u8] = b"\x50\x2a\x4d\x18\x03\0\0\0abc";

/// The bytes, or why there are none; `None` when there are more than `most`.
fn decode<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    most: u64,
) -> Option<Result<Vec<u8>, String>> {
    let mut reader = ZstdReader::new().expect("there is memory");
    let mut plain = Vec::new();
    for piece in pieces {
        let mut take = |bytes: &[u8]| {
            plain.extend_from_slice(bytes);
            let fits = plain.len() as u64 <= most;
            fits.then_some(()).ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))
        };
        match reader.push(piece, &mut take) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => return None,
            Err(error) => return Some(Err(error.to_string())),
        }
    }
    Some(reader.finish().map(|()| plain).map_err(|error| error.to_string()))
}

/// Both the input as frames, and frames of the input.
pub fn frames<'a>(data: &'a [u8], pieces: impl Iterator<Item = &'a [u8]> + Clone, most: u64) {
    if let Some(whole) = decode(std::iter::once(data), most) {
        if let Some(cut) = decode(pieces.clone(), most) {
            assert_eq!(whole.is_ok(), cut.is_ok(), "{whole:?}, in pieces {cut:?}");
            assert!(whole.is_err() || whole == cut, "other bytes in pieces");
        }
        // libzstd's own reader wants at least one frame.
        if let Some(Ok(plain)) = (!data.is_empty()).then_some(whole) {
            let mut theirs = Vec::new();
            let reader = zstd::Decoder::new(data).expect("there is memory");
            reader.take(most + 1).read_to_end(&mut theirs).expect("it was accepted");
            assert!(plain == theirs, "libzstd reads other bytes");
        }
    }
    let level = i32::from(data.first().copied().unwrap_or(0) % 4);
    let (first, second) = data.split_at(data.len() / 3);
    let [first, second] =
        [first, second].map(|part| zstd::encode_all(part, level).expect("there is memory"));
    let frames = [SKIPPABLE, &first, SKIPPABLE, &second].concat();
    for step in [1 + data.len() % 61, 1 << 17] {
        assert_eq!(
            decode(frames.chunks(step), u64::MAX),
            Some(Ok(data.to_vec())),
            "in steps of {step}"
        );
    }
    assert!(
        !matches!(decode(std::iter::once(&frames[..frames.len() - 1]), u64::MAX), Some(Ok(_))),
        "it was cut"
    );
}
