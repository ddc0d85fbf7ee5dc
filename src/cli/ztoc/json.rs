//! The JSON output of `ociseek ztoc show`. Written as a stream, because a ztoc may have hundreds of
//! thousands of entries.

use std::io::{self, BufWriter};

use serde::{Serialize, Serializer};

use crate::cli::shared::json::{DigestText, Document, utf8};
use crate::cli::shared::stdout::Stdout;
use crate::cli::ztoc::layer::{self, spans};
use ociseek_format::digest::Digest;
use ociseek_format::tar::PaxRecord;
use ociseek_format::ztoc::{Checkpoints, FileMetadata, Ztoc};

/// Writes the document for `ztoc`, which was decoded from `bytes`.
pub(crate) fn write(bytes: &[u8], ztoc: &Ztoc, stdout: &mut Stdout) -> io::Result<()> {
    Document::new(Contents::of(bytes, ztoc)).write(BufWriter::with_capacity(64 << 10, stdout))
}

/// Text that is not UTF-8 is in base64, in a field with the suffix `_b64` instead.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Contents<'a> {
    digest: DigestText,
    /// Size of the ztoc in bytes.
    size: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_tool_identifier: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    build_tool_identifier_b64: Option<String>,
    /// `gzip` or `uncompressed`.
    compression: &'static str,
    compressed_size: u64,
    uncompressed_size: u64,
    span_size: u64,
    #[cfg_attr(test, schemars(with = "Vec<Span>"))]
    spans: Spans<'a>,
    #[cfg_attr(test, schemars(with = "Vec<Entry<'static>>"))]
    entries: Entries<'a>,
}

impl<'a> Contents<'a> {
    fn of(bytes: &[u8], ztoc: &'a Ztoc) -> Contents<'a> {
        let (version, version_b64) = utf8(&ztoc.version);
        let (build_tool_identifier, build_tool_identifier_b64) = utf8(&ztoc.build_tool_identifier);
        Contents {
            digest: Digest::sha256(bytes).into(),
            size: bytes.len(),
            version,
            version_b64,
            build_tool_identifier,
            build_tool_identifier_b64,
            compression: compression(&ztoc.checkpoints),
            compressed_size: ztoc.compressed_size.0,
            uncompressed_size: ztoc.uncompressed_size.0,
            span_size: ztoc.checkpoints.span_size().get(),
            spans: Spans(ztoc),
            entries: Entries(&ztoc.files),
        }
    }
}

pub(crate) fn compression(checkpoints: &Checkpoints) -> &'static str {
    match checkpoints {
        Checkpoints::Gzip { .. } => "gzip",
        Checkpoints::Uncompressed { .. } => "uncompressed",
    }
}

struct Spans<'a>(&'a Ztoc);

impl Serialize for Spans<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(spans(self.0).map(Span::of))
    }
}

/// Offsets are in bytes.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Span {
    /// Its number, from 0.
    span: u32,
    /// The range of the blob that the digest covers, up to `end`.
    start: u64,
    end: u64,
    /// The range of the tar that it decodes to, up to `uncompressed_end`.
    uncompressed_start: u64,
    uncompressed_end: u64,
    digest: DigestText,
    /// How many bits of the byte before `start` belong to it; null for a plain tar.
    bits: Option<u8>,
    /// The SHA-256 of the 32 KiB of content before it; null for a plain tar.
    window: Option<DigestText>,
}

impl Span {
    fn of(span: layer::Span) -> Span {
        Span {
            span: span.number,
            start: span.start.0,
            end: span.end.0,
            uncompressed_start: span.uncompressed.start.0,
            uncompressed_end: span.uncompressed.end.0,
            digest: span.digest.into(),
            bits: span.bits,
            window: span.window.map(DigestText::from),
        }
    }
}

struct Entries<'a>(&'a [FileMetadata]);

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(Entry::of))
    }
}

/// An entry of the tar, according to the ztoc.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Entry<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
    /// `reg`, `hardlink`, `symlink`, `dir`, `char`, `block` or `fifo`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Offset of the content in the tar.
    offset: u64,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    linkname: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    linkname_b64: Option<String>,
    mode: i64,
    uid: u32,
    gid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    uname: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    uname_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gname: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gname_b64: Option<String>,
    /// RFC 3339; null if there is none.
    mtime: Option<String>,
    devmajor: i64,
    devminor: i64,
    pax_records: Vec<Pax<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Pax<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value_b64: Option<String>,
}

impl<'a> Entry<'a> {
    pub(crate) fn of(file: &'a FileMetadata) -> Entry<'a> {
        let (name, name_b64) = utf8(&file.name);
        let (linkname, linkname_b64) = utf8(&file.linkname);
        let (uname, uname_b64) = utf8(&file.uname);
        let (gname, gname_b64) = utf8(&file.gname);
        let record = |record: &'a PaxRecord| {
            let ((key, key_b64), (value, value_b64)) = (utf8(&record.key), utf8(&record.value));
            Pax { key, key_b64, value, value_b64 }
        };
        Entry {
            name,
            name_b64,
            kind: file.kind.name(),
            offset: file.offset.0,
            size: file.size,
            linkname,
            linkname_b64,
            mode: file.mode,
            uid: file.uid,
            gid: file.gid,
            uname,
            uname_b64,
            gname,
            gname_b64,
            mtime: file.mtime.and_then(|time| time.to_rfc3339()),
            devmajor: file.devmajor,
            devminor: file.devminor,
            pax_records: file.pax.iter().map(record).collect(),
        }
    }
}
