//! Compares our deflate decoder with zlib-rs. tests/pure/inflate.rs calls it too.

use flate2::{Decompress, FlushDecompress, Status};
use ociseek_format::internals::{Inflate, Stop};

/// The output, and how many bytes of input the stream took. None if it is refused or truncated.
pub type Decoded = Option<(Vec<u8>, usize)>;

/// The limit for the output that is compared: a few KiB of input can hold megabytes of zeros.
const MOST: usize = 16 << 20;

fn reference(stream: &[u8]) -> Decoded {
    let mut decoder = Decompress::new(false);
    let mut out = Vec::with_capacity(1 << 16);
    loop {
        let taken = decoder.total_in() as usize;
        let made = out.len();
        match decoder.decompress_vec(&stream[taken..], &mut out, FlushDecompress::None) {
            Ok(Status::StreamEnd) => return Some((out, decoder.total_in() as usize)),
            Ok(_) if out.len() == out.capacity() => out.reserve(out.len()),
            Ok(_) if decoder.total_in() as usize > taken || out.len() > made => {}
            _ => return None,
        }
        if out.len() > MOST {
            return None;
        }
    }
}

/// Decodes in chunks of these sizes, then the rest at once. Checks the results of the steps.
pub fn ours(stream: &[u8], chunks: impl IntoIterator<Item = usize>) -> Decoded {
    let mut decoder = Inflate::new();
    let mut out = Vec::new();
    let mut at = 0;
    let mut chunks = chunks.into_iter();
    loop {
        let end = chunks.next().map_or(stream.len(), |size| stream.len().min(at + size));
        let mut rest = &stream[at..end];
        loop {
            let step = decoder.step(rest).ok()?;
            rest = &rest[step.consumed..];
            out.extend_from_slice(decoder.output());
            if out.len() > MOST {
                return None;
            }
            match step.stop {
                Stop::Input => break,
                Stop::Output => {
                    assert!(!decoder.output().is_empty(), "a step that stops for output made some")
                }
                Stop::Border { bits } => {
                    assert!(bits < 8);
                    let history = &out[out.len().saturating_sub(32_768)..];
                    assert!(
                        decoder.window().ends_with(history),
                        "the window is the output before now"
                    );
                }
                Stop::End => return Some((out, end - rest.len())),
            }
        }
        assert!(rest.is_empty(), "Stop::Input means that all input was taken");
        at = end;
        if at == stream.len() {
            return None;
        }
    }
}

/// zlib, the fast loop (whole input) and the careful one (single bytes) must agree about the
/// stream.
pub fn compare(stream: &[u8]) -> Decoded {
    let expected = reference(stream);
    let whole = ours(stream, []);
    assert!(whole == expected, "whole: {} / {}", shape(&whole), shape(&expected));
    let bytewise = ours(stream, std::iter::repeat_n(1, stream.len()));
    assert!(bytewise == expected, "bytewise: {} / {}", shape(&bytewise), shape(&expected));
    // Chunks that just reach the fast loop, or just do not.
    for size in 15..28 {
        let chunked = ours(stream, std::iter::repeat_n(size, stream.len() / size));
        assert!(chunked == expected, "by {size}: {} / {}", shape(&chunked), shape(&expected));
    }
    expected
}

fn shape(decoded: &Decoded) -> String {
    decoded
        .as_ref()
        .map_or("refused".to_owned(), |(out, taken)| format!("{} bytes from {taken}", out.len()))
}
