//! `ociseek ztoc`: commands about the ztoc of a layer, and the output of `ociseek ztoc show` for
//! people.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::shared::args::{BuildArgs, FormatArgs, MemoryArgs, OutputFormat};
use crate::cli::shared::error::CliError;
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::stdout::Stdout;
use ociseek_format::digest::Digest;
use ociseek_format::printable::exact_size;
use ociseek_format::printable::is_hostile;
use ociseek_format::ztoc::{FileKind, FileMetadata, MAX_ENCODED, Ztoc, decode};

pub(super) mod json;
pub(super) mod layer;

use json::compression;
use layer::spans;

/// Build, show or verify the ztoc of one layer
#[derive(Debug, Subcommand)]
pub(crate) enum ZtocCommand {
    Create(ZtocCreateArgs),
    Show(ZtocShowArgs),
    Verify(ZtocVerifyArgs),
}

const CREATE_LONG_ABOUT: &str = "\
Builds the ztoc of one layer blob, a gzip or a plain tar (detected by content).

If the layer is broken, or if no consumer could serve files from its ztoc, ociseek prints the reason, writes \
nothing, and exits with status 1.";

const CREATE_AFTER_HELP: &str = "\
Examples:
  ociseek ztoc create layer.tar.gz --output layer.ztoc
  curl -fsSL $BLOB_URL | ociseek ztoc create - --output layer.ztoc
  ociseek ztoc create --span-size 64KiB layer.tar --output - | ociseek ztoc show -";

/// Build the ztoc of one layer blob
#[derive(Debug, Args)]
#[command(long_about = CREATE_LONG_ABOUT, after_help = CREATE_AFTER_HELP)]
pub(crate) struct ZtocCreateArgs {
    /// The layer's blob; - for standard input
    pub layer: PathBuf,

    /// Where to write the ztoc; - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,

    /// Replace an existing file
    #[arg(long)]
    pub force: bool,

    /// An existing ztoc of the layer with other options, to decode faster on several cores; the
    /// result is the same
    #[arg(long, value_name = "FILE")]
    pub guide: Option<PathBuf>,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

const SHOW_AFTER_HELP: &str = "\
Names and records that are not UTF-8 are preserved: JSON has them in base64, in a field with the suffix `_b64`, and \
text shows the bytes as \\xNN.

Examples:
  ociseek ztoc show layer.ztoc
  ociseek ztoc show --format json layer.ztoc | jq '.entries[] | select(.size > 1000000) | .name'";

/// Print everything in a ztoc
#[derive(Debug, Args)]
#[command(after_help = SHOW_AFTER_HELP)]
pub(crate) struct ZtocShowArgs {
    /// The ztoc; - for standard input
    pub file: PathBuf,

    #[command(flatten)]
    pub format: FormatArgs,
}

const VERIFY_LONG_ABOUT: &str = "\
Verifies a ztoc against its layer.

The layer is decoded from start to end by an independent decoder (zlib-rs), and the result is compared with \
everything the ztoc says: the digest of each span, the position and window of each checkpoint, the metadata and \
header position of each entry, and the bytes that each span decodes to from its checkpoint. Anything that consumers \
are known to reject is also reported.

Every difference is listed; the exit status is 3 if there is any.";

/// Verify a ztoc against its layer
#[derive(Debug, Args)]
#[command(long_about = VERIFY_LONG_ABOUT)]
#[command(after_help = "Example:\n  ociseek ztoc verify --layer layer.tar.gz --ztoc layer.ztoc")]
pub(crate) struct ZtocVerifyArgs {
    /// The layer's blob; - for standard input
    #[arg(long, value_name = "FILE")]
    pub layer: PathBuf,

    /// Its ztoc
    #[arg(long, value_name = "FILE")]
    pub ztoc: PathBuf,

    #[command(flatten)]
    pub format: FormatArgs,
}

/// Prints everything in a ztoc.
pub(crate) fn show(args: &ZtocShowArgs, stdout: &mut Stdout) -> Result<(), CliError> {
    let (bytes, ztoc) = read_ztoc(&args.file)?;
    match args.format.get() {
        OutputFormat::Text => write_text(&bytes, &ztoc, stdout),
        OutputFormat::Json => json::write(&bytes, &ztoc, stdout),
    }
    .map_err(CliError::stdout)
}

/// Reads a ztoc, up to the size limit of ztocs.
pub(crate) fn read_ztoc(path: &Path) -> Result<(Vec<u8>, Ztoc), CliError> {
    let bytes = read_ztoc_bytes(path)?;
    let ztoc = decode(&bytes).map_err(CliError::at(path, "not a usable ztoc"))?;
    Ok((bytes, ztoc))
}

/// Reads a ztoc without decoding it.
pub(crate) fn read_ztoc_bytes(path: &Path) -> Result<Vec<u8>, CliError> {
    let limit = MAX_ENCODED as u64;
    let mut bytes = Vec::new();
    open(path)?
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|source| unreadable(path, source))?;
    if bytes.len() as u64 > limit {
        let limit = exact_size(limit);
        let what = format!("{}: not a ztoc: it is larger than {limit}", path.display());
        return Err(CliError::new(what));
    }
    Ok(bytes)
}

pub(crate) fn is_std(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>, CliError> {
    if is_std(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    Ok(Box::new(file))
}

pub(crate) fn unreadable(path: &Path, source: io::Error) -> CliError {
    if is_std(path) { CliError::stdin(source) } else { CliError::read(path)(source) }
}

/// Prints `ztoc`, which was decoded from `bytes`.
pub(crate) fn write_text(bytes: &[u8], ztoc: &Ztoc, stdout: &mut Stdout) -> io::Result<()> {
    let style = stdout.style;
    let out = &mut BufWriter::with_capacity(64 << 10, stdout);
    writeln!(out, "{} {}", style.bold("ztoc"), Digest::sha256(bytes))?;
    writeln!(out, "size               {} bytes", bytes.len())?;
    writeln!(out, "version            {}", shown(&ztoc.version))?;
    writeln!(out, "made by            {}", shown(&ztoc.build_tool_identifier))?;
    writeln!(out, "compression        {}", compression(&ztoc.checkpoints))?;
    let sizes = [
        ("compressed size", ztoc.compressed_size.0),
        ("uncompressed size", ztoc.uncompressed_size.0),
    ];
    for (name, size) in sizes.into_iter().chain([("span size", ztoc.checkpoints.span_size().get())])
    {
        writeln!(out, "{name:18} {size} bytes ({})", human(size))?;
    }

    writeln!(out, "\n{}", style.bold(&counted(ztoc.checkpoints.spans(), "span", "spans")))?;
    writeln!(
        out,
        "{:>6} {:>26} {:>26} {:>4}  digest, window digest",
        "", "bytes of the blob", "bytes of the tar", "bits"
    )?;
    for span in spans(ztoc) {
        let blob = format!("{}..{}", span.start, span.end);
        let tar = format!("{}..{}", span.uncompressed.start, span.uncompressed.end);
        let bits = span.bits.map_or_else(|| "-".to_owned(), |bits| bits.to_string());
        writeln!(out, "{:>6} {blob:>26} {tar:>26} {bits:>4}  {}", span.number, span.digest)?;
        if let Some(window) = span.window {
            writeln!(out, "{:>66} {window}", "")?;
        }
    }

    writeln!(out, "\n{}", style.bold(&format!("{} entries", ztoc.files.len())))?;
    for file in &ztoc.files {
        entry(out, file)?;
    }
    out.flush()
}

/// A line like that of `ls -l`, and one for each PAX record.
fn entry(out: &mut impl Write, file: &FileMetadata) -> io::Result<()> {
    let mtime = file.mtime.and_then(|time| time.to_rfc3339()).unwrap_or_else(|| "-".to_owned());
    let owner = |name: &[u8], id: u32| {
        if name.is_empty() { id.to_string() } else { format!("{}({id})", shown(name)) }
    };
    let size = match file.kind {
        FileKind::CharDevice | FileKind::BlockDevice => {
            format!("{},{}", file.devmajor, file.devminor)
        }
        _ => file.size.to_string(),
    };
    let uid = owner(&file.uname, file.uid);
    let gid = owner(&file.gname, file.gid);
    let kind = file.kind.name();
    let mode = file.mode;
    write!(
        out,
        "{kind:8} {mode:06o} {uid} {gid} {size:>12} @{:<12} {mtime} {}",
        file.offset.0,
        shown(&file.name)
    )?;
    if !file.linkname.is_empty() {
        write!(out, " -> {}", shown(&file.linkname))?;
    }
    writeln!(out)?;
    for record in &file.pax {
        writeln!(out, "         {} = {}", shown(&record.key), shown(&record.value))?;
    }
    Ok(())
}

/// Bytes as text on one line, in a reversible form: `\` becomes `\\`, and bytes that are not
/// printable or not UTF-8 become `\xNN`.
fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let mut buffer = [0; 4];
            match c {
                '\\' => text.push_str("\\\\"),
                c if is_hostile(c) => hex(&mut text, c.encode_utf8(&mut buffer).as_bytes()),
                c => text.push(c),
            }
        }
        hex(&mut text, chunk.invalid());
    }
    text
}

fn hex(text: &mut String, bytes: &[u8]) {
    text.extend(bytes.iter().map(|b| format!("\\x{b:02x}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_are_unambiguous() {
        assert_eq!(shown("a b/é".as_bytes()), "a b/é");
        assert_eq!(shown(b"a\xffb\\c\n"), "a\\xffb\\\\c\\x0a");
        assert_eq!(shown("x\u{202e}y".as_bytes()), "x\\xe2\\x80\\xaey");
    }
}
