//! The kinds of differences between a ztoc and its layer.

use crate::code::Code;
use crate::codec::sniff::Format;
use crate::digest::Digest;
use crate::layer::span::SpanError;
use crate::layer::{UnservableReason, shown};
use crate::offset::{SpanId, Uncompressed};
use crate::progress::causes;
use crate::ztoc::ZtocError;

/// A difference. Programs read [`Difference::code`], people its Display.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum Difference {
    /// The ztoc cannot be compared with the layer: it is damaged, or its parts contradict each
    /// other.
    #[error("the ztoc cannot be used: {}", causes(.0))]
    Malformed(ZtocError),
    #[error("the layer cannot be decoded completely: {0}")]
    Broken(String),
    #[error("the layer's tar cannot be read: {0}")]
    Tar(String),
    #[error("the layer is {actual}, but the ztoc is for a {stated} one")]
    Compression { stated: Format, actual: Format },
    #[error("the ztoc's spans cannot be used: {0}")]
    Spans(SpanError),
    /// soci-snapshotter refuses it (FORMAT, section 4).
    #[error("consumers reject this layer: {0}")]
    Unservable(UnservableReason),
    #[error("the ztoc has the format version \"{}\", not \"0.9\"", .0.escape_ascii())]
    Version(Box<[u8]>),
    #[error("{what}: the ztoc says {stated}, actual {actual}")]
    Size { what: &'static str, stated: u64, actual: u64 },
    #[error("span {span} has the digest {actual}, but the ztoc says {stated}")]
    SpanDigest { span: SpanId, stated: Digest, actual: Digest },
    #[error("the window of checkpoint {span} differs from the tar at byte {at}")]
    Window { span: SpanId, at: Uncompressed },
    #[error("decoding span {span} from its checkpoint goes wrong: {reason}; {}", lying_in(*files, .first.as_deref()))]
    SpanContent {
        span: SpanId,
        reason: String,
        /// The number of regular files with bytes in the span, according to the ztoc, and the name
        /// of the first.
        files: u64,
        first: Option<Box<[u8]>>,
    },
    #[error("the bytes of span {span} of the fine document do not have the state of SHA-256 that it says")]
    FineProof { span: SpanId },
    #[error("decoding span {span} by the fine document goes wrong: {reason}")]
    FineContent { span: SpanId, reason: String },
    #[error("the entry {} at byte {offset} of the tar is not in the ztoc", shown(name))]
    EntryMissing { name: Box<[u8]>, offset: Uncompressed },
    #[error("entry {entry} of the ztoc, {}, is not in the layer", shown(name))]
    EntryAdded { entry: usize, name: Box<[u8]> },
    #[error("entry {entry} of the ztoc, {}, is out of order", shown(name))]
    EntryOrder { entry: usize, name: Box<[u8]> },
    #[error("entry {entry} of the ztoc, {}, says {field} {stated}; the layer says {actual}", shown(name))]
    Entry { entry: usize, name: Box<[u8]>, field: &'static str, stated: String, actual: String },
}

impl Difference {
    /// The stable word for this difference.
    pub fn code(&self) -> Code {
        match self {
            Difference::Malformed(_) => Code::ZtocMalformed,
            Difference::Broken(_) => Code::BrokenLayer,
            Difference::Tar(_) => Code::BrokenTar,
            Difference::Compression { .. } => Code::Compression,
            Difference::Spans(_) => Code::Spans,
            Difference::Unservable(_) => Code::Unservable,
            Difference::Version(_) => Code::Version,
            Difference::Size { .. } => Code::Size,
            Difference::SpanDigest { .. } | Difference::FineProof { .. } => Code::SpanDigest,
            Difference::Window { .. } => Code::CheckpointWindow,
            Difference::SpanContent { .. } | Difference::FineContent { .. } => Code::SpanContent,
            Difference::EntryMissing { .. } => Code::EntryMissing,
            Difference::EntryAdded { .. } => Code::EntryAdded,
            Difference::EntryOrder { .. } => Code::EntryOrder,
            Difference::Entry { .. } => Code::EntryField,
        }
    }

    /// The message for people when the entries and sizes come from a fine document instead of a
    /// ztoc.
    pub fn of_document(&self) -> String {
        match self {
            Difference::Size { what, stated, actual } => {
                format!("{what}: the fine document says {stated}, actual {actual}")
            }
            Difference::EntryMissing { name, offset } => {
                format!("the entry {} at byte {offset} of the tar is not in the fine document", shown(name))
            }
            Difference::EntryAdded { entry, name } => {
                format!("entry {entry} of the fine document, {}, is not in the layer", shown(name))
            }
            Difference::EntryOrder { entry, name } => {
                format!("entry {entry} of the fine document, {}, is out of order", shown(name))
            }
            Difference::Entry { entry, name, field, stated, actual } => {
                let name = shown(name);
                format!("entry {entry} of the fine document, {name}, says {field} {stated}; the layer says {actual}")
            }
            other => other.to_string(),
        }
    }

    /// The affected span.
    pub fn span(&self) -> Option<SpanId> {
        match self {
            Difference::SpanDigest { span, .. }
            | Difference::Window { span, .. }
            | Difference::FineProof { span }
            | Difference::FineContent { span, .. }
            | Difference::SpanContent { span, .. } => Some(*span),
            _ => None,
        }
    }

    /// The number (if it is in the ztoc) and name of the affected entry.
    pub fn entry(&self) -> Option<(Option<usize>, &[u8])> {
        match self {
            Difference::EntryMissing { name, .. } => Some((None, name)),
            Difference::EntryAdded { entry, name }
            | Difference::EntryOrder { entry, name }
            | Difference::Entry { entry, name, .. } => Some((Some(*entry), name)),
            _ => None,
        }
    }
}

fn lying_in(files: u64, first: Option<&[u8]>) -> String {
    match first {
        None => "no file lies in it".into(),
        Some(first) if files == 1 => format!("{} lies in it", shown(first)),
        Some(first) => format!("{files} files lie in it, the first is {}", shown(first)),
    }
}

/// The differences found so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// The first thousand, in the order in which they were found.
    pub list: Vec<Difference>,
    /// The number of further differences.
    pub more: u64,
}

/// Enough for a reader. A layer compared with another layer's ztoc has millions of differences.
const MOST: usize = 1000;

impl Differences {
    pub(super) fn add(&mut self, difference: Difference) {
        if self.list.len() < MOST {
            self.list.push(difference);
        } else {
            self.more += 1;
        }
    }

    pub(super) fn add_all(&mut self, other: Differences) {
        other.list.into_iter().for_each(|difference| self.add(difference));
        self.more += other.more;
    }
}
