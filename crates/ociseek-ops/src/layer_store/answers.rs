//! What registries said of images whose layers are used, so that these are opened again while their
//! registry is away: a directory for each manifest (`sha256-...`), with a file for each repository.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ociseek_format::digest::Digest;
use ociseek_store::recall::Recall;

/// The directory of the answers.
#[derive(Debug)]
pub(super) struct AnswerFiles(PathBuf);

impl AnswerFiles {
    /// The answers of a store with its state in `dir`. Those of images that are not used are
    /// removed. Blocks.
    pub(super) fn open(dir: &Path, is_used: impl Fn(&Digest) -> bool) -> AnswerFiles {
        let files = AnswerFiles(dir.join("answers"));
        for entry in fs::read_dir(&files.0).into_iter().flatten().flatten() {
            let name = entry.file_name().into_string().unwrap_or_default();
            if !name.replacen('-', ":", 1).parse().is_ok_and(|manifest| is_used(&manifest)) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        files
    }

    fn image(&self, manifest: &Digest) -> PathBuf {
        self.0.join(manifest.to_string().replace(':', "-"))
    }

    fn file(&self, repository: &str, manifest: &Digest) -> PathBuf {
        // The name of a repository may be longer than that of a file.
        self.image(manifest).join(Digest::sha256(repository.as_bytes()).hex())
    }

    /// What the registry said of an image. Blocks.
    pub(super) fn read(&self, repository: &str, manifest: &Digest) -> Option<Recall> {
        Recall::read(&self.file(repository, manifest))
    }

    /// Blocks.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&self, repository: &str, manifest: &Digest, answers: &Recall) -> io::Result<()> {
        fs::create_dir_all(self.image(manifest))?;
        answers.write(&self.file(repository, manifest))
    }

    /// Removes what is known of an image. Blocks.
    pub(super) fn remove(&self, manifest: &Digest) {
        // What is left is removed at the next start.
        let _ = fs::remove_dir_all(self.image(manifest));
    }
}

#[cfg(test)]
mod tests {
    use ociseek_format::digest::Algorithm;

    use super::*;

    #[test]
    fn answers_stay_as_long_as_their_image_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (Digest::of(Algorithm::Sha512, b"one"), Digest::sha256(b"two"));
        let files = AnswerFiles::open(dir.path(), |_| false);
        for (repository, manifest) in [("a/b", one), ("c/d", one), ("a/b", other)] {
            assert!(files.read(repository, &manifest).is_none());
            files.write(repository, &manifest, &Recall::default()).unwrap();
            assert!(files.read(repository, &manifest).is_some());
        }
        let files = AnswerFiles::open(dir.path(), |manifest| *manifest == one);
        assert!(files.read("c/d", &one).is_some() && files.read("a/b", &other).is_none());
        files.remove(&one);
        files.remove(&one);
        assert!(files.read("a/b", &one).is_none());
    }
}
