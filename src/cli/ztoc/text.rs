//! The output of `ociseek ztoc show` for people.

use std::io::{self, BufWriter, Write};

use crate::cli::shared::size::{counted, human};
use crate::cli::shared::terminal::Stdout;
use crate::cli::ztoc::extract::spans;
use crate::cli::ztoc::json::compression;
use ociseek_format::digest::Digest;
use ociseek_format::printable::is_hostile;
use ociseek_format::ztoc::{FileKind, FileMetadata, Ztoc};

/// Prints `ztoc`, which was decoded from `bytes`.
pub(crate) fn write(bytes: &[u8], ztoc: &Ztoc, stdout: &mut Stdout) -> io::Result<()> {
    let style = stdout.style;
    let out = &mut BufWriter::with_capacity(64 << 10, stdout);
    writeln!(out, "{} {}", style.bold("ztoc"), Digest::sha256(bytes))?;
    writeln!(out, "size               {} bytes", bytes.len())?;
    writeln!(out, "version            {}", shown(&ztoc.version))?;
    writeln!(out, "made by            {}", shown(&ztoc.build_tool_identifier))?;
    writeln!(out, "compression        {}", compression(&ztoc.checkpoints))?;
    let sizes = [("compressed size", ztoc.compressed_size.0), ("uncompressed size", ztoc.uncompressed_size.0)];
    for (name, size) in sizes.into_iter().chain([("span size", ztoc.checkpoints.span_size().get())]) {
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
    let owner = |name: &[u8], id: u32| if name.is_empty() { id.to_string() } else { format!("{}({id})", shown(name)) };
    let size = match file.kind {
        FileKind::CharDevice | FileKind::BlockDevice => format!("{},{}", file.devmajor, file.devminor),
        _ => file.size.to_string(),
    };
    let (uid, gid) = (owner(&file.uname, file.uid), owner(&file.gname, file.gid));
    let (kind, mode) = (file.kind.name(), file.mode);
    write!(out, "{kind:8} {mode:06o} {uid} {gid} {size:>12} @{:<12} {mtime} {}", file.offset.0, shown(&file.name))?;
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
