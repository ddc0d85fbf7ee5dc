//! Fetches a ztoc, and reads randomly chosen spans of its layer, like a consumer.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use super::documents;
use super::model::{COMPARED, Depth, LayerCheck, LayerClaim, VerifyContext};
use super::{Problem, VerifyError};
use crate::damage::Damage;
use crate::discover::{DiscoverError, fetch_ztoc};
use ociseek_format::budget::Charge;
use ociseek_format::code::Code;
use ociseek_format::codec::WINDOW;
use ociseek_format::fine::decode_page;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::ZtocRef;
use ociseek_format::layer::LayerMap;
use ociseek_format::layer::prove::{SpanHeaders, decode_to_next, headers_of};
use ociseek_format::layer::span::{HasSpans, SpanError, SpanTable};
use ociseek_format::offset::SpanId;
use ociseek_format::progress::causes;
use ociseek_format::ztoc::{self, Checkpoints, FileMetadata, Ztoc, ZtocError};
use ociseek_store::{Source, read_times};

impl LayerClaim {
    /// Verifies the ztoc alone, and for a quick check some spans. Returns the ztoc if the whole
    /// layer is still to be compared with it.
    pub(super) async fn open(
        &self,
        VerifyContext { source, depth, .. }: VerifyContext<'_>,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<Arc<Ztoc>>, VerifyError> {
        let Some(spans) = self.spans(source, depth, done, memory).await? else { return Ok(None) };
        done.compared.of_spans = u64::from(spans.count());
        match depth {
            Depth::Quick { spans: count, seed } => {
                sample(source, &self.layer, &spans, count, seed, done).await?;
                Ok(None)
            }
            Depth::Full => Ok(Some(Arc::clone(spans.ztoc()))),
        }
    }

    /// The ztoc's spans, if it is usable. Adds its faults to `done`.
    async fn spans(
        &self,
        source: &Source,
        depth: Depth,
        done: &mut LayerCheck,
        memory: &mut Charge,
    ) -> Result<Option<SpanTable>, VerifyError> {
        let ZtocRef { ztoc: digest, layer, .. } = self.ztoc;
        let too_large = |source| VerifyError::Memory { ztoc: digest, layer, source };
        let mut differ = |code: Code, text: String| done.differences.push(Problem::new(code, text));
        let bytes = match fetch_ztoc(source, &self.ztoc).await {
            Ok(bytes) => bytes,
            Err(DiscoverError::Ztoc { ztoc, layer, source }) => match Damage::of(&source) {
                Some(how) => {
                    differ(how.ztoc_code(), format!("ztoc {digest}: {}", causes(&source)));
                    return Ok(None);
                }
                None => return Err(DiscoverError::Ztoc { ztoc, layer, source }.into()),
            },
            Err(error) => return Err(error.into()),
        };
        done.bytes_read += bytes.len() as u64;
        let ztoc = match ztoc::decode_within(&bytes, memory) {
            Ok(ztoc) => Arc::new(ztoc),
            Err(ZtocError::Memory(source)) => return Err(too_large(source)),
            Err(error) => {
                differ(Code::ZtocMalformed, format!("ztoc {digest}: {}", causes(&error)));
                return Ok(None);
            }
        };
        memory
            .grow(COMPARED * ztoc.files.len() as u64, || "the list of its files".to_owned())
            .map_err(too_large)?;
        done.differences.extend(documents::of_annotations(&ztoc, &self.ztoc));
        if depth != Depth::Full {
            done.differences.extend(documents::of_ztoc(&ztoc, self.layer.size));
        }
        done.compared.entries = ztoc.files.len() as u64;
        done.tool = Some(ztoc.build_tool_identifier.clone());
        match SpanTable::new(ztoc) {
            Ok(spans) => Ok(Some(spans)),
            Err(error) => {
                let text = format!("ztoc {digest}: {}", causes(&error));
                done.differences.push(Problem::new(Code::Spans, text));
                Ok(None)
            }
        }
    }
}

/// The largest span that is read, in bytes of the blob, because it is in memory. Larger ones are
/// only counted.
pub const MAX_SAMPLE: u64 = 64 << 20;
/// How many entries are tried to find one whose headers are in a single span.
const MOST_TRIED: usize = 16;
/// How many wrong entries of a span are reported.
const MOST_ENTRIES: usize = 10;

/// Reads `count` spans (or all, if there are fewer) and adds their faults to `done`.
pub(super) async fn sample(
    source: &Source,
    layer: &Descriptor,
    spans: &SpanTable,
    count: u32,
    seed: u64,
    done: &mut LayerCheck,
) -> Result<(), VerifyError> {
    read(source, layer, spans, of_layer(layer, spans.count(), count, seed), check, done).await
}

/// Like [`sample`], with a fine document whose bytes are `document`.
pub(super) async fn sample_fine(
    source: &Source,
    layer: &Descriptor,
    (spans, document): (&SpanTable<LayerMap>, Bytes),
    count: u32,
    seed: u64,
    done: &mut LayerCheck,
) -> Result<(), VerifyError> {
    let check = move |spans: &SpanTable<LayerMap>, span, bytes: &Bytes| {
        check_fine(spans, &document, span, bytes)
    };
    read(source, layer, spans, of_layer(layer, spans.count(), count, seed), check, done).await
}

/// The choice for a layer, which does not depend on the other layers.
fn of_layer(
    layer: &Descriptor,
    all: u32,
    count: u32,
    seed: u64,
) -> impl Iterator<Item = SpanId> + use<> {
    let salt =
        layer.digest.as_bytes().iter().take(8).fold(0, |salt, byte| salt << 8 | u64::from(*byte));
    chosen(all, count, seed ^ salt).map(SpanId)
}

/// Reads the spans that hold the tar headers of `count` entries chosen by `seed`, and the last
/// span, which shows where layer and tar end.
///
/// # Errors
/// If the layer cannot be read for a reason that does not concern the ztoc.
pub(crate) async fn probe(
    source: &Source,
    layer: &Descriptor,
    spans: &SpanTable,
    count: u32,
    seed: u64,
) -> Result<LayerCheck, VerifyError> {
    let mut done = LayerCheck::default();
    let numbers = probed(spans, &spans.ztoc().files, count, seed);
    read(source, layer, spans, numbers.into_iter(), check, &mut done).await?;
    Ok(done)
}

/// The spans that hold the headers of `count` of the `files`, and the last span.
fn probed(spans: &SpanTable, files: &[FileMetadata], count: u32, seed: u64) -> BTreeSet<SpanId> {
    let Some(last) = spans.count().checked_sub(1) else { return BTreeSet::new() };
    let entries = u32::try_from(files.len()).unwrap_or(u32::MAX);
    let headers =
        chosen(entries, count, seed).map(|entry| with_headers(spans, files, entry as usize));
    headers.chain([SpanId(last)]).collect()
}

/// The span that holds the headers of an entry, or of the next entry whose headers are in a single
/// span.
fn with_headers(spans: &SpanTable, files: &[FileMetadata], entry: usize) -> SpanId {
    let span = |entry: usize| SpanId::each(spans.covering(headers_of(files, entry)));
    let whole = (entry..files.len()).take(MOST_TRIED).map(span).find(|spans| spans.len() == 1);
    let first = whole.unwrap_or_else(|| span(entry)).next();
    first.unwrap_or_default().min(SpanId(spans.count().saturating_sub(1)))
}

async fn read<T: HasSpans + Send + Sync + 'static>(
    source: &Source,
    layer: &Descriptor,
    spans: &SpanTable<T>,
    numbers: impl Iterator<Item = SpanId>,
    check: impl Fn(&SpanTable<T>, SpanId, &Bytes) -> Vec<Problem> + Clone + Send + 'static,
    done: &mut LayerCheck,
) -> Result<(), VerifyError> {
    for span in numbers {
        let range = spans.blob_range(span);
        let start = range.start.0;
        let end = range.end.0;
        if end - start > MAX_SAMPLE {
            done.compared.too_large += 1;
            continue;
        }
        if end > layer.size {
            let text = format!(
                "span {span} is bytes {start}..{end}, but the blob has {} bytes",
                layer.size
            );
            done.differences.push(Problem::new(Code::SpanRange, text));
            continue;
        }
        let mut bypass_caches = false;
        let wrong = loop {
            let bytes = match source.blob_range_bypassing(layer, start..end, bypass_caches).await {
                Ok(bytes) => bytes,
                Err(error) => {
                    let Some(how) = Damage::of(&error) else {
                        return Err(VerifyError::Layer { layer: layer.digest, source: error });
                    };
                    done.differences.push(Problem::new(
                        how.layer_code(),
                        format!("the layer: {}", causes(&error)),
                    ));
                    return Ok(());
                }
            };
            done.bytes_read += bytes.len() as u64;
            let table = spans.clone();
            let check = check.clone();
            let wrong = tokio::task::spawn_blocking(move || check(&table, span, &bytes)).await;
            let wrong = wrong.map_err(|_| VerifyError::Thread { layer: layer.digest })?;
            // The bytes may have been damaged on the way, or by a cache.
            if wrong.is_empty() || bypass_caches || !source.is_remote() {
                break wrong;
            }
            bypass_caches = true;
        };
        let twice = |wrong: Problem| Problem {
            text: format!("{}{}", wrong.text, read_times(1 + u32::from(bypass_caches))),
            ..wrong
        };
        done.differences.extend(wrong.into_iter().map(twice));
        done.compared.spans += 1;
        let plain = spans.plain_range(span);
        done.compared.bytes += plain.end - plain.start;
    }
    Ok(())
}

/// Decodes a span. Its window and content must end in the window of the next checkpoint: windows
/// have no digest, and a wrong one gives wrong bytes. The tar headers in the span must match the
/// ztoc's entries.
fn check(spans: &SpanTable, span: SpanId, bytes: &Bytes) -> Vec<Problem> {
    let ztoc = spans.ztoc();
    let list = match &ztoc.checkpoints {
        Checkpoints::Gzip { list, .. } => &list[..],
        Checkpoints::Uncompressed { .. } => &[],
    };
    let mut tail =
        Tail::new(list.get(span.0 as usize).map_or(&[][..], |checkpoint| &checkpoint.window[..]));
    let mut headers = SpanHeaders::new(&ztoc.files, &spans.plain_range(span));
    let decoded = spans.decode(span, bytes, &mut |piece| {
        tail.push(piece);
        headers.push(piece);
        ControlFlow::Continue(())
    });
    if let Err(error) = decoded {
        let code = match error {
            SpanError::Digest { .. } => Code::SpanDigest,
            _ => Code::SpanContent,
        };
        return vec![Problem::new(code, causes(&error))];
    }
    let entries = headers.finish();
    let mut wrong: Vec<Problem> = (entries.iter().take(MOST_ENTRIES))
        .map(|difference| Problem::new(difference.code(), difference.to_string()))
        .collect();
    let next = list.get(span.0 as usize + 1);
    if next.is_some_and(|next| !tail.bytes().eq(next.window.iter().copied())) {
        let text = format!("the window of span {} is not what span {span} decodes to", span.0 + 1);
        wrong.push(Problem::new(Code::CheckpointWindow, text));
    }
    wrong
}

/// Verifies a span by its proof in the fine document, and decodes it with the window in its page.
/// It must lead to the next span, and the tar headers in it must match the document's entries.
fn check_fine(
    spans: &SpanTable<LayerMap>,
    document: &Bytes,
    span: SpanId,
    bytes: &Bytes,
) -> Vec<Problem> {
    let Some(head) = spans.map().fine() else { return Vec::new() };
    let page = |span: SpanId| {
        let windows = head.page_of(span).map(|page| {
            let range = head.page_range(page);
            let page_bytes =
                document.get(range.start as usize..range.end as usize).unwrap_or_default();
            decode_page(head, page, page_bytes)
        });
        windows
            .transpose()
            .map_err(|error| vec![Problem::new(Code::DocumentMalformed, causes(&error))])
    };
    let next = SpanId(span.0 + 1);
    let (own_page, next_page) = match (page(span), page(next)) {
        (Ok(own), Ok(next)) => (own, next),
        (Err(wrong), _) | (_, Err(wrong)) => return wrong,
    };
    let windows =
        [(&own_page, span), (&next_page, next)].map(|(page, span)| page.as_ref()?.get(span));
    let files = spans.map().files.all();
    let mut headers = SpanHeaders::new(&files, &spans.plain_range(span));
    let decoded = decode_to_next(head.spans(), span, windows, bytes, &mut |piece| {
        headers.push(piece);
        ControlFlow::Continue(())
    });
    if let Err(error) = decoded {
        let code = match error {
            SpanError::Proof { .. } => Code::SpanDigest,
            SpanError::Window { .. } => Code::CheckpointWindow,
            _ => Code::SpanContent,
        };
        return vec![Problem::new(code, causes(&error))];
    }
    let differences = headers.finish();
    (differences.iter().take(MOST_ENTRIES))
        .map(|difference| Problem::new(difference.code(), difference.of_document()))
        .collect()
}

/// The last [`WINDOW`] bytes that were pushed.
struct Tail {
    kept: Vec<u8>,
}

impl Tail {
    fn new(start: &[u8]) -> Tail {
        Tail { kept: start.to_vec() }
    }

    fn push(&mut self, piece: &[u8]) {
        self.kept.extend_from_slice(&piece[piece.len().saturating_sub(WINDOW)..]);
        // Moved rarely, so that many small pieces do not cost a window each.
        if self.kept.len() > 4 * WINDOW {
            self.kept.drain(..self.kept.len() - WINDOW);
        }
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.kept[self.kept.len().saturating_sub(WINDOW)..].iter().copied()
    }
}

/// `count` of `all` numbers, or all of them, in order. The same seed gives the same numbers.
fn chosen(all: u32, count: u32, seed: u64) -> impl Iterator<Item = u32> {
    let mut numbers = BTreeSet::new();
    let mut state = seed;
    if count >= all {
        numbers.extend(0..all);
    }
    while (numbers.len() as u64) < u64::from(count.min(all)) {
        // splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        numbers.insert(((mixed ^ (mixed >> 31)) % u64::from(all)) as u32);
    }
    numbers.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_depend_only_on_the_seed() {
        let numbers = |all, count, seed| chosen(all, count, seed).collect::<Vec<_>>();
        assert_eq!(numbers(3, 5, 1), [0, 1, 2]);
        assert_eq!(numbers(0, 5, 1), Vec::<u32>::new());
        assert_eq!(numbers(1000, 4, 7), numbers(1000, 4, 7));
        assert_ne!(numbers(1000, 4, 7), numbers(1000, 4, 8));
        assert_eq!(numbers(1000, 999, 3).len(), 999);
    }

    #[test]
    fn tails_keep_the_last_window() {
        let mut tail = Tail::new(&[0; WINDOW]);
        let mut all = vec![0; WINDOW];
        for length in [1, 100, WINDOW - 1, 5 * WINDOW, 3, 0, WINDOW] {
            let piece: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            tail.push(&piece);
            all.extend_from_slice(&piece);
            assert!(tail.bytes().eq(all[all.len() - WINDOW..].iter().copied()), "{length}");
        }
    }
}
