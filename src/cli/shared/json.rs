//! The common parts of all commands' JSON documents. `docs/json.md` describes the documents for
//! users; `docs/schema` has JSON Schemas generated from these types.

use std::io::Write;
use std::{fmt, io};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};

use super::error::CliError;
use super::terminal::safe;
use ociseek_format::digest::Digest;
use ociseek_format::image::consumer::Verdict;
use ociseek_format::image::fine::FineRef;
use ociseek_format::image::{Descriptor, consumer, coverage};
use ociseek_format::printable::{json_line, write_pretty_json};
use ociseek_format::progress::chain;
use ociseek_ops::TOOL_IDENTIFIER;
use ociseek_ops::discover::{FineSummary, FoundFineRef, FoundIndexRef, IndexKind};
use ociseek_ops::inspect::InspectedImage;
use ociseek_ops::trust::TrustLevel;

/// Raised when a field is removed or changes its meaning, but not for new fields.
const SCHEMA_VERSION: u32 = 1;

/// A document with the fields that all documents begin with.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Document<T> {
    /// Raised when a field is removed or changes its meaning, but not for new fields.
    schema_version: u32,
    /// This program and its version.
    tool: &'static str,
    #[serde(flatten)]
    body: T,
}

impl<T: Serialize> Document<T> {
    pub(crate) fn new(body: T) -> Document<T> {
        Document { schema_version: SCHEMA_VERSION, tool: TOOL_IDENTIFIER, body }
    }

    /// # Errors
    /// If writing to `out` fails.
    pub(crate) fn write(&self, mut out: impl Write) -> io::Result<()> {
        write_pretty_json(&mut out, self)?;
        out.write_all(b"\n")?;
        out.flush()
    }
}

/// The printed document.
///
/// # Errors
/// Never for our documents.
pub(crate) fn text(body: impl Serialize) -> Result<String, CliError> {
    let mut text = Vec::new();
    Document::new(body).write(&mut text).map_err(CliError::stdout)?;
    Ok(String::from_utf8(text).unwrap_or_default())
}

/// The document on a single line, for commands that print several.
///
/// # Errors
/// Never for our documents.
pub(crate) fn line(body: impl Serialize) -> Result<String, CliError> {
    json_line(&Document::new(body)).map_err(|error| CliError::stdout(error.into()))
}

/// The document of a command that fails before it has one itself.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Failed {
    pub error: Failure,
}

/// Why something failed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Failure {
    /// The causes on one line.
    pub message: String,
    /// What failed, followed by the causes in order.
    pub causes: Vec<String>,
    /// A hint on how to fix it, or null.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure of a part of the request, without a hint.
    pub(crate) fn of(error: &(dyn std::error::Error + 'static)) -> Failure {
        // Escaped for terminals, where programs often print it.
        let causes: Vec<String> = chain(error).iter().map(|text| safe(text)).collect();
        Failure { message: causes.join(": "), causes, hint: None }
    }

    /// A failure that is known only as text.
    pub(crate) fn of_text(text: &str) -> Failure {
        Failure { message: text.to_owned(), causes: vec![text.to_owned()], hint: None }
    }
}

/// A digest, such as `sha256:6b6c...`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DigestText(Digest);

impl From<Digest> for DigestText {
    fn from(digest: Digest) -> DigestText {
        DigestText(digest)
    }
}

impl From<&Digest> for DigestText {
    fn from(digest: &Digest) -> DigestText {
        DigestText(*digest)
    }
}

impl fmt::Display for DigestText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for DigestText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
impl schemars::JsonSchema for DigestText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Digest".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "pattern": "^(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})$"})
    }
}

impl DigestText {
    pub(crate) fn short(&self) -> String {
        self.0.short()
    }
}

/// A word of an enumeration as it appears in the documents.
pub(crate) fn word(word: impl Serialize) -> String {
    serde_json::to_value(word)
        .ok()
        .and_then(|word| word.as_str().map(str::to_owned))
        .unwrap_or_default()
}

pub(crate) fn digests<'a>(digests: impl IntoIterator<Item = &'a Digest>) -> Vec<DigestText> {
    digests.into_iter().map(DigestText::from).collect()
}

/// An image manifest.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "ManifestRef"))]
pub(crate) struct Manifest {
    /// Null if only the digest is known.
    media_type: Option<String>,
    pub digest: DigestText,
    /// Size in bytes; null if only the digest is known.
    size: Option<u64>,
}

impl Manifest {
    pub(crate) fn of(descriptor: &Descriptor) -> Manifest {
        Manifest {
            media_type: Some(descriptor.media_type.clone()),
            digest: descriptor.digest.into(),
            size: Some(descriptor.size),
        }
    }

    pub(crate) fn named(digest: Digest) -> Manifest {
        Manifest { media_type: None, digest: digest.into(), size: None }
    }
}

/// A SOCI index.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct IndexRef {
    pub digest: DigestText,
    /// Size of its manifest in bytes, or null if unknown.
    size: Option<u64>,
}

impl IndexRef {
    pub(crate) fn of(index: &Descriptor) -> IndexRef {
        IndexRef { digest: index.digest.into(), size: Some(index.size) }
    }

    pub(crate) fn found(index: &FoundIndexRef) -> IndexRef {
        IndexRef { digest: index.digest.into(), size: index.size }
    }

    pub(crate) fn fine(index: &FoundFineRef) -> IndexRef {
        IndexRef { digest: index.digest.into(), size: index.size }
    }
}

/// The kind of an index.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Kind {
    Soci,
    Fine,
}

impl From<IndexKind> for Kind {
    fn from(kind: IndexKind) -> Kind {
        match kind {
            IndexKind::Soci => Kind::Soci,
            IndexKind::Fine => Kind::Fine,
        }
    }
}

/// How much of an image an index covers.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Coverage"))]
pub(crate) struct CoverageJson {
    pub layers: usize,
    pub of_layers: usize,
    /// Compressed size of these layers in bytes.
    bytes: u64,
    pub of_bytes: u64,
    /// Covered share of the bytes, truncated to two decimals, so only full coverage is 100.
    pub percent: f64,
    /// Size of the ztocs in bytes, if they were examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    ztoc_bytes: Option<u64>,
    #[serde(skip)]
    pub shown: String,
}

impl CoverageJson {
    pub(crate) fn of(coverage: &coverage::Coverage) -> CoverageJson {
        CoverageJson {
            layers: coverage.layers,
            of_layers: coverage.of_layers,
            bytes: coverage.bytes,
            of_bytes: coverage.of_bytes,
            percent: coverage.share().percent(),
            ztoc_bytes: None,
            shown: coverage.share().to_string(),
        }
    }

    pub(crate) fn with_ztocs(coverage: &coverage::Coverage, bytes: u64) -> CoverageJson {
        CoverageJson { ztoc_bytes: Some(bytes), ..CoverageJson::of(coverage) }
    }
}

/// A stable word for programs, with an explanation for people.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Coded {
    pub code: &'static str,
    pub text: String,
}

/// Rounds seconds to three decimals.
pub(crate) fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

/// Bytes as text, or else in base64 for the field with the suffix `_b64`.
pub(crate) fn utf8(bytes: &[u8]) -> (Option<&str>, Option<String>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text), None),
        Err(_) => (None, Some(STANDARD.encode(bytes))),
    }
}

/// A fine index.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Fine {
    /// The digest of its manifest.
    digest: DigestText,
    /// Size of its manifest in bytes, or null if unknown.
    size: Option<u64>,
    found_by: &'static str,
    /// Who vouches for it: `bound` by the image, `named` by you, or the `repository`'s.
    trust: &'static str,
    /// Whether ociseek reads the image through this index.
    chosen: bool,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Null if it cannot be used, like the next two fields.
    coverage: Option<CoverageJson>,
    /// Size of its documents in bytes.
    bytes: Option<u64>,
    /// How many of these bytes are fetched before startup.
    start_bytes: Option<u64>,
    /// The digest of the profile that it was built with, or null.
    profile: Option<DigestText>,
    /// Why it cannot be used, or null.
    error: Option<Failure>,
}

/// A layer's document in a fine index.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct FineDocument {
    digest: DigestText,
    size: u64,
    /// Size of its head in bytes: the layer's files and spans.
    head_size: u64,
    /// Size of its head and the parts for a recorded startup, in bytes.
    start_size: u64,
}

impl FineDocument {
    pub(crate) fn of(document: &FineRef) -> FineDocument {
        FineDocument {
            digest: document.document.into(),
            size: document.size,
            head_size: document.head_size,
            start_size: document.start_size,
        }
    }
}

impl Fine {
    pub(crate) fn each(summaries: &[FineSummary]) -> Vec<Fine> {
        summaries.iter().map(Fine::of).collect()
    }

    fn of(summary: &FineSummary) -> Fine {
        let content = summary.content.as_ref().ok();
        Fine {
            digest: summary.digest.into(),
            size: summary.size,
            found_by: summary.via.code(),
            trust: TrustLevel::of(summary.via).code(),
            chosen: summary.chosen,
            tool: content.and_then(|content| content.tool.clone()),
            coverage: content.map(|content| CoverageJson::of(&content.coverage)),
            bytes: content.map(|content| content.bytes),
            start_bytes: content.map(|content| content.start_bytes),
            profile: content.and_then(|content| content.profile).map(DigestText::from),
            error: summary.content.as_ref().err().map(|why| Failure::of_text(why)),
        }
    }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Consumer"))]
pub(crate) struct ConsumerJson {
    /// A stable word.
    consumer: &'static str,
    /// For people.
    name: &'static str,
    /// Whether it uses an index.
    lazy: bool,
    /// The index that it uses, or null.
    index: Option<IndexRef>,
    /// The version of that index: 1 or 2.
    version: Option<u8>,
    /// What that index covers.
    coverage: Option<CoverageJson>,
    /// Why it mounts no layer lazily, or null.
    reason: Option<Coded>,
    /// The document that states what the consumer does.
    source: &'static str,
}

impl ConsumerJson {
    pub(crate) fn each(inspected: &InspectedImage) -> Vec<ConsumerJson> {
        let indexes = &inspected.image.indexes;
        inspected
            .verdicts()
            .iter()
            .map(|(consumer, verdict)| ConsumerJson::of(consumer, verdict, indexes))
            .collect()
    }

    fn of(
        consumer: consumer::Consumer,
        verdict: Verdict,
        indexes: &[FoundIndexRef],
    ) -> ConsumerJson {
        let (index, coverage, reason) = match verdict {
            Verdict::Lazy { index, version, coverage } => {
                (Some((index, version)), Some(coverage), None)
            }
            Verdict::Whole(reason) => (None, None, Some(reason)),
        };
        ConsumerJson {
            consumer: consumer.code(),
            name: consumer.name(),
            lazy: index.is_some(),
            index: index
                .and_then(|(digest, _)| indexes.iter().find(|index| index.digest == digest))
                .map(IndexRef::found),
            version: index.map(|(_, version)| version.number()),
            coverage: coverage.map(|coverage| CoverageJson::of(&coverage)),
            reason: reason.map(|reason| Coded { code: reason.code(), text: reason.to_string() }),
            source: consumer.source(),
        }
    }
}
