//! `ociseek ztoc extract`.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use crate::cli::shared::error::CliError;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::{Stdout, Style, complain, safe};
use crate::cli::ztoc::{ZtocExtractArgs, read_ztoc};
use ociseek_format::digest::Digest;
use ociseek_format::layer::span::SpanTable;
use ociseek_format::offset::{Compressed, SpanId, Uncompressed};
use ociseek_format::ztoc::{Checkpoints, Ztoc};
use ociseek_ops::extract::{ExtractError, Output, extract};

/// Extracts until `still_wanted` returns false.
pub(crate) fn run(
    args: &ZtocExtractArgs,
    stdout: &mut Stdout,
    still_wanted: &dyn Fn() -> bool,
) -> Result<(), CliError> {
    let path = &args.layer;
    let (_, ztoc) = read_ztoc(&args.ztoc)?;
    let blob = File::open(path).map_err(|source| CliError::Read { path: path.clone(), source })?;
    let extracted = SpanTable::new(Arc::new(ztoc)).map_err(ExtractError::Spans).and_then(|table| {
        let mut output = Output::new(&args.output, args.force)?;
        extract(&table, &blob, &mut output, still_wanted)
    });
    let extracted = extracted.map_err(|source| CliError::Extract { path: path.clone(), source })?;
    for warning in &extracted.warnings {
        complain(&format!("{} {}", Style::stderr().yellow("warning:"), safe(warning)));
    }
    let mut summary = format!("{}, {}", counted(extracted.files, "file", "files"), human(extracted.bytes));
    if extracted.hard_links > 0 {
        summary += &format!(", {}", counted(extracted.hard_links, "hard link", "hard links"));
    }
    if extracted.left_out > 0 {
        let left_out = counted(extracted.left_out, "entry", "entries");
        summary += &format!("; {left_out} skipped (symbolic links, devices or fifos)");
    }
    stdout.print(format!("{summary}\n"))
}

pub(super) struct Span {
    pub number: u32,
    /// The start of the bytes that the digest covers.
    pub start: Compressed,
    pub end: Compressed,
    pub uncompressed: Range<Uncompressed>,
    pub digest: Digest,
    /// For gzip layers: the number of high bits of the byte at `start` that belong to the span; 0
    /// means the whole byte.
    pub bits: Option<u8>,
    /// For gzip layers: the SHA-256 of the window.
    pub window: Option<Digest>,
}

pub(super) fn spans(ztoc: &Ztoc) -> impl Iterator<Item = Span> {
    (0..).zip(&ztoc.span_digests).filter_map(|(number, digest)| {
        let (start, from) = ztoc.checkpoints.start(SpanId(number))?;
        let last = (ztoc.compressed_size, ztoc.uncompressed_size);
        let (end, to) = match &ztoc.checkpoints {
            // Neighbours share a byte if the border is inside it.
            Checkpoints::Gzip { list, .. } => {
                list.get(number as usize + 1).map_or(last, |next| (next.input, next.output))
            }
            Checkpoints::Uncompressed { .. } => ztoc.checkpoints.start(SpanId(number + 1)).unwrap_or(last),
        };
        let checkpoint = match &ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } => list.get(number as usize),
            Checkpoints::Uncompressed { .. } => None,
        };
        Some(Span {
            number,
            start,
            end,
            uncompressed: from..to.max(from),
            digest: *digest,
            bits: checkpoint.map(|c| c.bits),
            window: checkpoint.map(|c| Digest::sha256(c.window.as_slice())),
        })
    })
}
