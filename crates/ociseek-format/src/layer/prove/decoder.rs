//! Decodes a layer from start to end with decoders other than ours, and checks the result: its
//! digest, its entries, its spans.

use std::io::{self, Write};

use flate2::write::MultiGzDecoder;
use zstd::stream::write::Decoder as ZstdDecoder;

use super::Differences;
use super::entries::EntryCheck;
use super::fine::FinePlainCheck;
use super::spans::PlainSpanCheck;
use crate::codec::sniff::Format;
use crate::digest::{Algorithm, Hasher};
use crate::layer::format;
use crate::tar;

/// Decodes the pushed bytes and passes them to a [`PlainCheck`].
pub(super) struct LayerDecoder {
    state: State,
}

enum State {
    /// Less than a block, too few bytes to know the format.
    Unknown {
        head: Vec<u8>,
        plain: PlainCheck,
    },
    Gzip(Box<MultiGzDecoder<CheckWriter>>),
    Zstd(Box<ZstdDecoder<'static, CheckWriter>>),
    Plain(PlainCheck),
    Ended(DecodedLayer),
}

/// The result of decoding a layer.
pub(super) struct DecodedLayer {
    pub plain: PlainCheck,
    pub format: Format,
    /// Why decoding failed before the end.
    pub broken: Option<String>,
}

/// A writer that never fails.
pub(super) struct CheckWriter(Option<PlainCheck>);

impl Write for CheckWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(plain) = &mut self.0 {
            plain.push(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl CheckWriter {
    fn take(&mut self) -> Option<PlainCheck> {
        self.0.take()
    }
}

impl LayerDecoder {
    pub(super) fn new(plain: PlainCheck) -> LayerDecoder {
        LayerDecoder { state: State::Unknown { head: Vec::new(), plain } }
    }

    pub(super) fn push(&mut self, chunk: &[u8]) {
        let chunk = match &mut self.state {
            State::Unknown { head, .. } => {
                let taken = chunk.len().min(tar::BLOCK - head.len());
                head.extend_from_slice(&chunk[..taken]);
                if head.len() < tar::BLOCK {
                    return;
                }
                self.decide();
                &chunk[taken..]
            }
            _ => chunk,
        };
        self.decode(chunk);
    }

    /// Chooses the decoder from the first bytes and passes them to it.
    fn decide(&mut self) {
        let State::Unknown { head, plain } = &mut self.state else { return };
        let head = std::mem::take(head);
        let plain = plain.take();
        self.state = match format(&head) {
            Format::Gzip => State::Gzip(Box::new(MultiGzDecoder::new(CheckWriter(Some(plain))))),
            Format::Zstd => match ZstdDecoder::new(CheckWriter(None)) {
                Ok(mut decoder) => {
                    decoder.get_mut().0 = Some(plain);
                    State::Zstd(Box::new(decoder))
                }
                Err(error) => State::Ended(DecodedLayer {
                    plain,
                    format: Format::Zstd,
                    broken: Some(error.to_string()),
                }),
            },
            foreign @ Format::Foreign(name) => {
                let reason = format!("{name} is not supported");
                State::Ended(DecodedLayer { plain, format: foreign, broken: Some(reason) })
            }
            Format::Plain => State::Plain(plain),
        };
        self.decode(&head);
    }

    fn decode(&mut self, chunk: &[u8]) {
        let result = match &mut self.state {
            State::Gzip(decoder) => decoder.write_all(chunk),
            State::Zstd(decoder) => decoder.write_all(chunk),
            State::Plain(plain) => {
                plain.push(chunk);
                Ok(())
            }
            State::Unknown { .. } | State::Ended(_) => Ok(()),
        };
        if let Err(error) = result {
            self.end(Some(error));
        }
    }

    /// Ends the blob.
    pub(super) fn finish(mut self) -> DecodedLayer {
        if matches!(self.state, State::Unknown { .. }) {
            self.decide();
        }
        let result = match &mut self.state {
            State::Gzip(decoder) => decoder.try_finish(),
            State::Zstd(decoder) => decoder.do_finish(),
            _ => Ok(()),
        };
        self.end(result.err());
        match self.state {
            State::Ended(ended) => ended,
            // `end` sets one of the states above.
            _ => DecodedLayer {
                plain: PlainCheck::nothing(),
                format: Format::Foreign("unknown"),
                broken: Some("it was not read".into()),
            },
        }
    }

    fn end(&mut self, error: Option<io::Error>) {
        let broken = error.map(|error| error.to_string());
        let (plain, format) = match &mut self.state {
            State::Gzip(decoder) => (decoder.get_mut().take(), Format::Gzip),
            State::Zstd(decoder) => (decoder.get_mut().take(), Format::Zstd),
            State::Plain(plain) => (Some(plain.take()), Format::Plain),
            State::Unknown { plain, .. } => (Some(plain.take()), Format::Plain),
            State::Ended(_) => return,
        };
        let plain = plain.unwrap_or_else(PlainCheck::nothing);
        self.state = State::Ended(DecodedLayer { plain, format, broken });
    }
}

/// The users of the plain bytes.
pub(super) struct PlainCheck {
    pub diff_id: Hasher,
    pub size: u64,
    /// The entries of the ztoc.
    pub entries: Option<EntryCheck>,
    /// Those of the fine document, unless they equal the ztoc's.
    pub fine_entries: Option<EntryCheck>,
    pub spans: Option<PlainSpanCheck>,
    pub fine: Option<FinePlainCheck>,
    /// The differences of the ztoc's spans.
    pub differences: Differences,
}

impl PlainCheck {
    /// Checks nothing.
    pub(super) fn nothing() -> PlainCheck {
        PlainCheck {
            diff_id: Hasher::new(Algorithm::Sha256),
            size: 0,
            entries: None,
            fine_entries: None,
            spans: None,
            fine: None,
            differences: Differences::default(),
        }
    }

    pub(super) fn take(&mut self) -> PlainCheck {
        std::mem::replace(self, PlainCheck::nothing())
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.size += bytes.len() as u64;
        for entries in [&mut self.entries, &mut self.fine_entries].into_iter().flatten() {
            entries.push(bytes);
        }
        if let Some(fine) = &mut self.fine {
            fine.push(bytes);
        }
        match &mut self.spans {
            Some(spans) => spans.push(bytes, &mut self.diff_id, &mut self.differences),
            None => self.diff_id.update(bytes),
        }
    }
}
