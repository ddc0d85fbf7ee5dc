//! The manifests that a run has read, so that it fetches none of them twice: the same image under
//! another tag, or in the next step of the work. Registries limit how often manifests are fetched.
//!
//! A known manifest is only what its digest says. Whether the registry still has it is another
//! question: ask for its tag, or by [`Destination::manifest`](crate::Destination::manifest).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use super::blob::Document;
use super::lock::Hold;
use ociseek_format::digest::Digest;

/// How many bytes of manifests are remembered. Then all are forgotten.
const MOST: usize = 8 << 20;

/// Manifests by their digests. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct KnownDocuments(Arc<Mutex<Remembered>>);

#[derive(Debug, Default)]
struct Remembered {
    documents: BTreeMap<Digest, Document>,
    bytes: usize,
    /// Those that are being fetched.
    turns: BTreeMap<Digest, Weak<AsyncMutex<()>>>,
    /// The registry has answered HEAD with the digest of a tag, so it is believed that a tag is
    /// free.
    states_digests: bool,
}

impl KnownDocuments {
    pub(crate) fn get(&self, digest: &Digest) -> Option<Document> {
        self.0.hold().documents.get(digest).cloned()
    }

    /// Whose turn it is to fetch a manifest. It may be known after that.
    pub(crate) async fn turn(&self, digest: &Digest) -> OwnedMutexGuard<()> {
        let turn = {
            let turns = &mut self.0.hold().turns;
            turns.retain(|_, turn| turn.strong_count() > 0);
            let turn = turns.get(digest).and_then(Weak::upgrade).unwrap_or_default();
            turns.insert(*digest, Arc::downgrade(&turn));
            turn
        };
        turn.lock_owned().await
    }

    pub(crate) fn add_stated_digest(&self) {
        self.0.hold().states_digests = true;
    }

    pub(crate) fn has_stated_digest(&self) -> bool {
        self.0.hold().states_digests
    }

    pub(crate) fn add(&self, document: &Document) {
        let mut remembered = self.0.hold();
        if remembered.documents.contains_key(&document.digest) {
            return;
        }
        if remembered.bytes + document.bytes.len() > MOST {
            remembered.documents.clear();
            remembered.bytes = 0;
        }
        remembered.bytes += document.bytes.len();
        remembered.documents.insert(document.digest, document.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_known_documents_is_limited() {
        let known = KnownDocuments::default();
        let document = |seed: u32| {
            let bytes = [&seed.to_le_bytes()[..], &vec![0; 3 << 20]].concat();
            let digest = Digest::sha256(&bytes);
            Document { media_type: String::new(), digest, bytes: bytes.into() }
        };
        let documents: Vec<Document> = (0..5).map(document).collect();
        for document in &documents {
            known.add(document);
            assert_eq!(
                known.get(&document.digest).map(|known| known.digest),
                Some(document.digest)
            );
            assert!(known.0.hold().bytes <= MOST);
        }
        assert!(known.get(&documents[0].digest).is_none());
    }
}
