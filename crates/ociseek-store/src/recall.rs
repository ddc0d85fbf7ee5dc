//! The answers of a registry by which an image was opened, so that it can be opened again without
//! asking: which manifest it has, and what refers to it. The documents themselves have digests, and
//! come from the cache.
//!
//! Use them only for an image that this machine already has. As for an image that was unpacked, the
//! registry may have removed it since, or may refuse it now.

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::blob::Referrers;
use super::durable::replace;
use super::entries::open_entry;
use super::lock::Hold;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;

/// The largest file of answers that is read, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// The memory of a descriptor without its texts, in bytes.
const DESCRIPTOR: u64 = 256;

/// The answers of a registry about an image. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Recall(Arc<Mutex<Answers>>);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Answers {
    /// The manifests and image indexes that the registry has.
    manifests: BTreeSet<Digest>,
    referrers: Vec<ListAnswer>,
    /// There are answers that the file does not have.
    #[serde(skip)]
    has_new: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ListAnswer {
    subject: Digest,
    /// The type of the listed artifacts. None for all.
    artifact_type: Option<String>,
    api: bool,
    descriptors: Vec<Descriptor>,
}

impl Recall {
    /// Reads the answers in a file. Returns None if it is missing, too large, or not valid. Blocks.
    pub fn read(path: &Path) -> Option<Recall> {
        let (mut file, _) = open_entry(path, MAX_FILE).ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        Some(Recall(Arc::new(Mutex::new(serde_json::from_slice(&bytes).ok()?))))
    }

    /// Replaces a file by the answers, unless it has all of them. Blocks.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut answers = self.0.hold();
        if !answers.has_new && path.exists() {
            return Ok(());
        }
        let bytes = serde_json::to_vec(&*answers)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("{} bytes: too large", bytes.len())));
        }
        replace(path, &bytes)?;
        answers.has_new = false;
        Ok(())
    }

    /// The same answers, which are not shared.
    #[must_use]
    pub fn copy(&self) -> Recall {
        Recall(Arc::new(Mutex::new(self.0.hold().clone())))
    }

    /// Forgets the answers. An image that is open does not need them any more.
    pub fn forget(&self) {
        *self.0.hold() = Answers::default();
    }

    /// How much memory the answers take, about, in bytes.
    pub fn size(&self) -> u64 {
        let answers = self.0.hold();
        let of_descriptor = |descriptor: &Descriptor| {
            serde_json::to_vec(descriptor).map_or(0, |text| text.len() as u64) + DESCRIPTOR
        };
        let lists = answers.referrers.iter().flat_map(|list| &list.descriptors).map(of_descriptor);
        lists.fold(answers.manifests.len() as u64 * DESCRIPTOR, u64::saturating_add)
    }

    pub(crate) fn add_manifest(&self, digest: Digest) {
        let mut answers = self.0.hold();
        answers.has_new |= answers.manifests.insert(digest);
    }

    pub(crate) fn has(&self, manifest: &Digest) -> bool {
        self.0.hold().manifests.contains(manifest)
    }

    pub(crate) fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Option<Referrers> {
        let answers = self.0.hold();
        let mut lists = answers.referrers.iter();
        let list = lists.find(|list| {
            list.subject == *subject && list.artifact_type.as_deref() == artifact_type
        })?;
        Some(Referrers { descriptors: list.descriptors.clone(), api: list.api })
    }

    pub(crate) fn add(&self, subject: &Digest, artifact_type: Option<&str>, listed: &Referrers) {
        let Referrers { descriptors, api } = listed.clone();
        let subject = *subject;
        let artifact_type = artifact_type.map(str::to_owned);
        let mut answers = self.0.hold();
        answers.referrers.push(ListAnswer { subject, artifact_type, api, descriptors });
        answers.has_new = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answers");
        let subject = Digest::sha256(b"subject");
        let other = Digest::sha256(b"other");
        let descriptors = vec![Descriptor::new("type".to_owned(), other, 7)];
        let answers = Recall::default();
        let some = Referrers { descriptors, api: true };
        let none = Referrers { descriptors: Vec::new(), api: false };
        answers.add(&subject, None, &some);
        answers.add(&subject, Some("kind"), &none);
        answers.write(&path).unwrap();
        let read = Recall::read(&path).unwrap();
        assert_eq!(read.referrers(&subject, None), Some(some));
        assert_eq!(read.referrers(&subject, Some("kind")), Some(none));
        assert_eq!(read.referrers(&subject, Some("another")), None);
        assert_eq!(read.referrers(&other, None), None);
        std::fs::write(&path, "{").unwrap();
        assert!(Recall::read(&path).is_none() && Recall::read(&dir.path().join("none")).is_none());
    }
}
