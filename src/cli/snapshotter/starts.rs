//! The records of starts, which the snapshotter has its mounts write.

use std::path::{Path, PathBuf};

/// The directory of the records, below the snapshotter's.
const DIR: &str = "starts";

/// The file for the record of `image`, a name with a digest, of the snapshotter with the directory
/// `root`.
pub(super) fn path(root: &Path, image: &str) -> Option<PathBuf> {
    let (_, digest) = image.rsplit_once('@')?;
    let (algorithm, hex) = digest.split_once(':')?;
    let is_plain = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_plain(algorithm) && is_plain(hex)).then(|| root.join(DIR).join(format!("{algorithm}-{hex}.jsonl")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_named_after_the_image_manifest() {
        let named = |image: &str| path(Path::new("/r"), image).map(|path| path.display().to_string());
        assert_eq!(named("host/app:1@sha256:ab12").as_deref(), Some("/r/starts/sha256-ab12.jsonl"));
        for odd in ["host/app:1", "host/app@sha256", "host/app@sha256:../x", "host/app@:ab"] {
            assert_eq!(named(odd), None, "{odd}");
        }
    }
}
