//! `ociseek ztoc create`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::shared::error::CliError;
use crate::cli::shared::indexing::layer_options;
use crate::cli::shared::size::{counted, duration, human, rate};
use crate::cli::shared::terminal::{Stdout, complain};
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::ztoc::{ZtocCreateArgs, is_std, open, read_ztoc, unreadable};
use ociseek_format::budget::Budget;
use ociseek_format::layer::parallel::{ChunksError, Threads, index_chunks};
use ociseek_format::layer::{BuiltZtoc, IndexedLayer, LayerError, LayerOptions, Outcome};
use ociseek_format::ztoc::Ztoc;
use ociseek_store::Buffers;
use ociseek_store::durable::persist;

/// Builds the ztoc of a layer blob, and writes it only after it is complete.
pub(crate) fn create(args: &ZtocCreateArgs, verbosity: VerbosityArgs, stdout: &mut Stdout) -> Result<(), CliError> {
    let started = std::time::Instant::now();
    let keeps = !args.force && !is_std(&args.output) && args.output.metadata().is_ok_and(|there| there.is_file());
    if keeps {
        return Err(CliError::Exists(args.output.clone()));
    }
    let guide = args.guide.as_deref().map(read_ztoc).transpose()?.map(|(_, ztoc)| Arc::new(ztoc));
    let layer = index(&args.layer, layer_options(&args.build), guide, args.memory.max_memory.0)?;
    let seconds = started.elapsed().as_secs_f64();
    let ztoc = match layer.outcome {
        Outcome::Ztoc(ztoc) => ztoc,
        Outcome::Unservable(source) => return Err(CliError::Unservable { path: args.layer.clone(), source }),
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
        io::ErrorKind::AlreadyExists => CliError::Exists(args.output.clone()),
        _ => CliError::Write { path: args.output.clone(), source },
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
    let chunks = || buffers.read_chunk(&mut input).map(|chunk| (!chunk.is_empty()).then_some(vec![chunk]));
    let budget = Budget::new(max_memory);
    let indexed = index_chunks(options, None, Threads::for_one_of(1, guide), &budget, chunks);
    indexed.map_err(|error| match error {
        ChunksError::Next(source) => unreadable(path, source),
        ChunksError::Layer(LayerError::Memory(source)) => CliError::LayerMemory { path: path.to_owned(), source },
        ChunksError::Layer(source) => CliError::Layer { path: path.to_owned(), source },
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
    // The error would name the temporary file, which means nothing to the user.
    let mut file = builder.prefix(".ociseek-").tempfile_in(dir).map_err(|error| io::Error::from(error.kind()))?;
    file.write_all(bytes)?;
    persist(file, &path, force)
}
