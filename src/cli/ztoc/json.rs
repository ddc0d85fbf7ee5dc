//! What `ociseek ztoc show --format json` prints. Written as it goes: a ztoc may have hundreds of thousands of entries.
//!
//! Sizes and offsets are bytes. Text that is not UTF-8 stands in base64 under the field's name with `_b64` instead.
//! `spans[].bits` and `window` (the SHA-256 of the 32 KiB of content before the span) are null for a plain tar; `start` and
//! `end` are the bytes of the blob that the span's digest is over.

use std::io::{self, BufWriter, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Serialize, Serializer};

use super::spans::{Span, spans};
use crate::cli::shared::terminal::Stdout;
use crate::digest::Digest;
use crate::ztoc::{Checkpoints, FileMetadata, Ztoc};

/// Writes the document for the ztoc `ztoc`, which `bytes` encode.
pub fn write(bytes: &[u8], ztoc: &Ztoc, stdout: &mut Stdout) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(64 << 10, stdout);
    serde_json::to_writer_pretty(&mut out, &Document { bytes, ztoc }).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    out.flush()
}

struct Document<'a> {
    bytes: &'a [u8],
    ztoc: &'a Ztoc,
}

impl Serialize for Document<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ztoc = self.ztoc;
        let mut document = serializer.serialize_struct("ztoc", 11)?;
        document.serialize_field("digest", &Digest::sha256(self.bytes))?;
        document.serialize_field("size", &self.bytes.len())?;
        text(&mut document, ["version", "version_b64"], &ztoc.version)?;
        let tool = ["build_tool_identifier", "build_tool_identifier_b64"];
        text(&mut document, tool, &ztoc.build_tool_identifier)?;
        document.serialize_field("compression", compression(&ztoc.checkpoints))?;
        document.serialize_field("compressed_size", &ztoc.compressed_size.0)?;
        document.serialize_field("uncompressed_size", &ztoc.uncompressed_size.0)?;
        document.serialize_field("span_size", &ztoc.checkpoints.span_size())?;
        document.serialize_field("spans", &Each(|| spans(ztoc).map(SpanLine)))?;
        document.serialize_field("entries", &Each(|| ztoc.files.iter().map(Entry)))?;
        document.end()
    }
}

pub fn compression(checkpoints: &Checkpoints) -> &'static str {
    match checkpoints {
        Checkpoints::Gzip { .. } => "gzip",
        Checkpoints::Uncompressed { .. } => "uncompressed",
    }
}

/// A sequence that is made while it is written.
pub struct Each<F>(pub F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for Each<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut sequence = serializer.serialize_seq(None)?;
        for item in (self.0)() {
            sequence.serialize_element(&item)?;
        }
        sequence.end()
    }
}

struct SpanLine(Span);

impl Serialize for SpanLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let span = &self.0;
        let mut object = serializer.serialize_struct("span", 8)?;
        object.serialize_field("span", &span.number)?;
        object.serialize_field("start", &span.start.0)?;
        object.serialize_field("end", &span.end.0)?;
        object.serialize_field("uncompressed_start", &span.uncompressed.start.0)?;
        object.serialize_field("uncompressed_end", &span.uncompressed.end.0)?;
        object.serialize_field("digest", &span.digest)?;
        object.serialize_field("bits", &span.bits)?;
        object.serialize_field("window", &span.window)?;
        object.end()
    }
}

pub struct Entry<'a>(pub &'a FileMetadata);

impl Serialize for Entry<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let file = self.0;
        let mut object = serializer.serialize_struct("entry", 14)?;
        text(&mut object, ["name", "name_b64"], &file.name)?;
        object.serialize_field("type", file.kind.name())?;
        object.serialize_field("offset", &file.offset.0)?;
        object.serialize_field("size", &file.size)?;
        text(&mut object, ["linkname", "linkname_b64"], &file.linkname)?;
        object.serialize_field("mode", &file.mode)?;
        object.serialize_field("uid", &file.uid)?;
        object.serialize_field("gid", &file.gid)?;
        text(&mut object, ["uname", "uname_b64"], &file.uname)?;
        text(&mut object, ["gname", "gname_b64"], &file.gname)?;
        object.serialize_field("mtime", &file.mtime.and_then(|time| time.to_rfc3339()))?;
        object.serialize_field("devmajor", &file.devmajor)?;
        object.serialize_field("devminor", &file.devminor)?;
        object.serialize_field("pax_records", &Each(|| file.pax.iter().map(|r| Pax(&r.key, &r.value))))?;
        object.end()
    }
}

struct Pax<'a>(&'a [u8], &'a [u8]);

impl Serialize for Pax<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("record", 2)?;
        text(&mut object, ["key", "key_b64"], self.0)?;
        text(&mut object, ["value", "value_b64"], self.1)?;
        object.end()
    }
}

/// Bytes as text, or as base64 under the second name.
pub fn text<S: SerializeStruct>(object: &mut S, [plain, b64]: [&'static str; 2], bytes: &[u8]) -> Result<(), S::Error> {
    match std::str::from_utf8(bytes) {
        Ok(text) => object.serialize_field(plain, text),
        Err(_) => object.serialize_field(b64, &STANDARD.encode(bytes)),
    }
}
