//! `ociseek ztoc create` and `verify`: the commands that read a layer.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::{ZtocCreateArgs, ZtocVerifyArgs, is_std, open, read_ztoc, read_ztoc_bytes, unreadable};
use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::difference::{self, DifferenceJson, Status};
use crate::cli::shared::error::CliError;
use crate::cli::shared::indexing::layer_options;
use crate::cli::shared::json::{DigestText, text as text_of};
use crate::cli::shared::size::{counted, duration, human, rate};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{complain, safe};
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::budget::Budget;
use ociseek_format::digest::{Algorithm, Digest};
use ociseek_format::layer::parallel::{ChunksError, Threads, index_chunks};
use ociseek_format::layer::prove::{Difference, LayerProof, Proof};
use ociseek_format::layer::{BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome};
use ociseek_format::offset::{Compressed, SpanId, Uncompressed};
use ociseek_format::ztoc::{Checkpoints, Ztoc, decode};
use ociseek_store::Buffers;
use ociseek_store::durable::{persist, without_path};

/// Builds the ztoc of a layer blob, and writes it only after it is complete.
pub(crate) fn create(
    args: &ZtocCreateArgs,
    verbosity: VerbosityArgs,
    stdout: &mut Stdout,
) -> Result<(), CliError> {
    let started = std::time::Instant::now();
    let keeps = !args.force
        && !is_std(&args.output)
        && args.output.metadata().is_ok_and(|metadata| metadata.is_file());
    if keeps {
        return Err(CliError::exists(&args.output));
    }
    let guide = args.guide.as_deref().map(read_ztoc).transpose()?.map(|(_, ztoc)| Arc::new(ztoc));
    let layer = index(&args.layer, layer_options(&args.build), guide, args.memory.max_memory.0)?;
    let seconds = started.elapsed().as_secs_f64();
    let ztoc = match layer.outcome {
        Outcome::Ztoc(ztoc) => ztoc,
        Outcome::Unservable(source) => {
            let what = "no ztoc written: no consumer could serve files from this layer";
            return Err(CliError::at(&args.layer, what)(source)
                .with_hint("ociseek index leaves out such layers and indexes the others"));
        }
    };
    let summary = summary(&ztoc, layer.size, seconds);
    if is_std(&args.output) {
        stdout.print(&ztoc.bytes)?;
        if !verbosity.quiet {
            complain(&summary);
        }
        return Ok(());
    }
    write_whole(&args.output, &ztoc.bytes, args.force).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => CliError::exists(&args.output),
        _ => CliError::write(&args.output)(source),
    })?;
    let summary = if verbosity.quiet { String::new() } else { format!("{summary}\n") };
    stdout.print(summary)
}

fn index(
    path: &Path,
    options: LayerOptions,
    guide: Option<Arc<Ztoc>>,
    max_memory: u64,
) -> Result<IndexedLayer, CliError> {
    let mut input = open(path)?;
    let buffers = Buffers::default();
    let chunks =
        || buffers.read_chunk(&mut input).map(|chunk| (!chunk.is_empty()).then_some(vec![chunk]));
    let budget = Budget::new(max_memory);
    let threads = Threads::for_one_of(1, guide, &budget);
    let indexed = index_chunks(options, None, threads, &budget, chunks);
    indexed.map_err(|error| match error {
        ChunksError::Next(source) => unreadable(path, source),
        ChunksError::Layer(LayerError::Memory(source)) => {
            CliError::at(path, "the layer does not fit into memory")(source)
        }
        ChunksError::Layer(source) => CliError::at(path, "the layer is broken")(source),
    })
}

fn summary(ztoc: &BuiltZtoc, layer_size: u64, seconds: f64) -> String {
    format!(
        "{}\n{} compressed, {} plain, {}, {}, ztoc {}, in {} {}",
        ztoc.digest,
        human(layer_size),
        human(ztoc.uncompressed_size),
        counted(u64::from(ztoc.spans), "span", "spans"),
        counted(ztoc.entries, "file", "files"),
        human(ztoc.bytes.len() as u64),
        duration(seconds),
        rate(layer_size, seconds),
    )
    .trim_end()
    .to_owned()
}

/// Writes `bytes` to `path` completely or not at all: a temporary file next to it is renamed when
/// it is complete. Special files (a pipe, /dev/null) are written directly. A regular file that
/// appears in the meantime is only replaced with `force`.
fn write_whole(path: &Path, bytes: &[u8], force: bool) -> io::Result<()> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return File::options().write(true).open(path)?.write_all(bytes);
    }
    // If the path is a symbolic link, its target is written instead of the link.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
        _ => PathBuf::from("."),
    };
    dir.metadata()?; // The error is more readable than the one about the temporary file.
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The umask reduces this mode, as for any new file.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.prefix(".ociseek-").tempfile_in(dir).map_err(without_path)?;
    file.write_all(bytes)?;
    persist(file, &path, force)
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
            Checkpoints::Uncompressed { .. } => {
                ztoc.checkpoints.start(SpanId(number + 1)).unwrap_or(last)
            }
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

/// Verifies the ztoc. Fails with [`CliError::differs`] if differences were found and printed.
pub(crate) fn verify(args: &ZtocVerifyArgs, stdout: &mut Stdout) -> Result<(), CliError> {
    let bytes = read_ztoc_bytes(&args.ztoc)?;
    let (ztoc, malformed) = match decode(&bytes) {
        Ok(ztoc) => (Some(Arc::new(ztoc)), None),
        Err(error) => (None, Some(Difference::Malformed(error))),
    };
    let mut layer = open(&args.layer)?;
    let buffers = Buffers::default();
    let proof = LayerProof::new(ztoc.clone(), Algorithm::Sha256, Algorithm::Sha256);
    let mut proof = proof
        .read(|| {
            buffers.read_chunk(&mut layer).map(|chunk| (!chunk.is_empty()).then_some(vec![chunk]))
        })
        .map_err(|source| unreadable(&args.layer, source))?;
    proof.differences.extend(malformed);
    let text = match args.format.get() {
        OutputFormat::Text => text(ztoc.as_deref(), &proof),
        OutputFormat::Json => text_of(Proven::of(&bytes, ztoc.as_deref(), &proof))?,
    };
    stdout.print(text)?;
    if proof.holds() { Ok(()) } else { Err(CliError::differs()) }
}

fn text(ztoc: Option<&Ztoc>, proof: &Proof) -> String {
    let shown =
        difference::shown(proof.differences.iter().map(|one| (one.code().word(), one.to_string())));
    let differences: String = shown.iter().map(|(_, text)| format!("{}\n", safe(text))).collect();
    if let Some(ztoc) = ztoc.filter(|_| proof.holds()) {
        let spans = ztoc.checkpoints.spans();
        let entries = ztoc.files.len() as u64;
        let what =
            [counted(spans, "span", "spans"), counted(entries, "entry", "entries")].join(", ");
        return format!("the ztoc is correct: {what}, {} compared\n", human(proof.compared));
    }
    let count = proof.differences.len() as u64 + proof.more;
    if let Some(ztoc) = ztoc.filter(|ztoc| is_of_another_layer(ztoc, proof)) {
        let stated = ztoc.compressed_size.0;
        let count = counted(count, "difference", "differences");
        return format!(
            "this is the ztoc of another layer: it is for a blob of {stated} bytes, not {}, and none of its spans is \
             in this one\n{count}; --format json lists them\n",
            proof.size
        );
    }
    let more =
        if proof.more > 0 { format!("... and {} more\n", proof.more) } else { String::new() };
    format!("{differences}{more}{}\n", counted(count, "difference", "differences"))
}

/// Whether a complete layer has none of the content that the ztoc describes. Each entry would be a
/// difference then.
fn is_of_another_layer(ztoc: &Ztoc, proof: &Proof) -> bool {
    proof.diff_id.is_some() && proof.size != ztoc.compressed_size.0 && proof.matching == 0
}

/// The JSON output of `ociseek ztoc verify`.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Proven {
    status: Status,
    layer: Layer,
    ztoc: ZtocFacts,
    differences: Vec<DifferenceJson>,
    /// The number of differences that are not listed.
    more_differences: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    digest: DigestText,
    /// Size of the blob in bytes.
    size: u64,
    /// Null if decoding the layer failed.
    diff_id: Option<DigestText>,
    uncompressed_size: u64,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ZtocFacts {
    digest: DigestText,
    size: u64,
    /// Null if the ztoc cannot be used, like the next field.
    spans: Option<u64>,
    entries: Option<usize>,
    /// Bytes of decoded spans that were compared.
    compared: u64,
}

impl Proven {
    fn of(bytes: &[u8], ztoc: Option<&Ztoc>, proof: &Proof) -> Proven {
        Proven {
            status: Status::of(proof.holds()),
            layer: Layer {
                digest: proof.digest.into(),
                size: proof.size,
                diff_id: proof.diff_id.map(DigestText::from),
                uncompressed_size: proof.plain_size,
            },
            ztoc: ZtocFacts {
                digest: Digest::sha256(bytes).into(),
                size: bytes.len() as u64,
                spans: ztoc.map(|ztoc| ztoc.checkpoints.spans()),
                entries: ztoc.map(|ztoc| ztoc.files.len()),
                compared: proof.compared,
            },
            differences: proof.differences.iter().map(DifferenceJson::from).collect(),
            more_differences: proof.more,
        }
    }
}
