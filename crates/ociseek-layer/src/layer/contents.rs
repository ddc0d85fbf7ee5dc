//! The tar side of a layer: its entries, or why they cannot be served.

use super::consumer;
use super::{LayerError, Unservable};
use crate::budget::{Charge, OverBudget};
use crate::codec::sniff;
use crate::offset::{Compressed, Uncompressed};
use crate::tar::{TarError, TarFault, Walker};
use crate::ztoc::{FileMetadata, MAX_ENCODED};

/// Takes the plain bytes of a layer and collects its entries.
pub(super) struct Contents {
    walker: Walker,
    files: Vec<FileMetadata>,
    /// At least what the entries add to an encoded ztoc, in bytes.
    encoded_size: usize,
    /// What that may come to.
    limit: usize,
    verdict: Option<Unservable>,
    error: Option<TarError>,
    /// What files and checkpoints take in memory.
    memory: Charge,
    over: Option<OverBudget>,
    /// The first bytes, to say what something looks like that is no tar.
    head: Vec<u8>,
}

/// The entries, where the tar's reader stops, and what is charged; or why there are none to serve.
type Settled = Result<(Vec<FileMetadata>, Uncompressed, Charge), Unservable>;

/// How many bytes are kept for that.
const HEAD: usize = 64;
/// What the entries of the smallest gzip blob may come to, encoded.
const LEAST_LIMIT: usize = 64 << 20;

impl Contents {
    pub fn new(memory: Charge) -> Contents {
        Contents {
            walker: Walker::new(),
            files: Vec::new(),
            encoded_size: 0,
            limit: MAX_ENCODED,
            verdict: None,
            error: None,
            memory,
            over: None,
            head: Vec::new(),
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.head.len() < HEAD {
            self.head.extend(bytes.iter().take(HEAD - self.head.len()));
        }
        if self.is_settled() {
            return;
        }
        let Contents { walker, files, encoded_size, limit, verdict, memory, over, .. } = self;
        let walked = walker.push(bytes, &mut |entry| {
            if verdict.is_some() || over.is_some() {
                return;
            }
            match consumer::file(entry) {
                Ok(file) => {
                    *encoded_size += file.encoded_size_bound();
                    *over = memory.grow(file.footprint() as u64, || "the list of its files".to_owned()).err();
                    files.push(file);
                    if *encoded_size > *limit {
                        let reason = format!("its table of contents would pass {} MiB", *limit >> 20);
                        *verdict = Some(Unservable::new("ztoc-too-large", reason));
                    }
                }
                Err(unservable) => *verdict = Some(unservable),
            }
        });
        // A verdict stands whatever comes after it in the tar; the bytes themselves are still checked by their digests.
        if self.verdict.is_none() {
            self.error = walked.err();
        } else {
            self.drop_files();
        }
        if self.over.is_some() {
            self.drop_files();
        }
    }

    /// Charges memory for another checkpoint.
    pub fn charge_checkpoint(&mut self, bytes: usize) {
        if self.over.is_none() {
            self.over = self.memory.grow(bytes as u64, || "its checkpoints".to_owned()).err();
        }
    }

    fn drop_files(&mut self) {
        self.files = Vec::new();
        self.memory.shrink_to(0);
    }

    /// Keeps the list of entries in proportion to the blob, of which so many bytes were read: names and PAX records can be
    /// a thousand times smaller compressed. A million empty files take about a tenth of this.
    pub fn permit(&mut self, blob: Compressed) {
        let limit = LEAST_LIMIT.saturating_add(usize::try_from(blob.0).unwrap_or(usize::MAX).saturating_mul(64));
        self.limit = limit.min(MAX_ENCODED);
    }

    /// Gives the layer up for a reason that lies outside the tar.
    pub fn refuse(&mut self, unservable: Unservable) {
        self.drop_files();
        self.verdict.get_or_insert(unservable);
    }

    pub fn is_refused(&self) -> bool {
        self.verdict.is_some()
    }

    /// Fails as soon as it is clear that the bytes are no tar, or that what they hold does not fit into memory.
    ///
    /// # Errors
    /// With what is wrong with them.
    pub fn check(&self) -> Result<(), LayerError> {
        if let Some(over) = &self.over {
            return Err(over.clone().into());
        }
        self.error.clone().map_or(Ok(()), |error| Err(explain(error, &self.head)))
    }

    fn is_settled(&self) -> bool {
        self.verdict.is_some() || self.error.is_some() || self.over.is_some() || self.walker.is_over()
    }

    /// # Errors
    /// When the tar is cut off or broken.
    pub fn finish(self) -> Result<Settled, LayerError> {
        if let Some(verdict) = self.verdict {
            return Ok(Err(verdict));
        }
        self.check()?;
        let end = self.walker.finish().map_err(|error| explain(error, &self.head))?;
        Ok(Ok((self.files, end, self.memory)))
    }
}

/// A layer's error for a tar's, which says what the bytes look like if they are no tar from their very start.
pub fn explain(error: TarError, head: &[u8]) -> LayerError {
    let at_once = error.offset == Uncompressed(0) && matches!(error.fault, TarFault::Checksum | TarFault::CutInHeader);
    let looks_like = match sniff::content(head) {
        _ if !at_once => None,
        sniff::Content::Gzip => Some("gzip data inside gzip"),
        sniff::Content::Foreign(name) => Some(name),
        sniff::Content::Plain => sniff::looks_like(head),
    };
    match looks_like {
        Some(looks_like) => LayerError::NotALayer { looks_like, cause: error },
        None => LayerError::Tar(error),
    }
}
