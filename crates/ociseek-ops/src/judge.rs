//! What a reader makes of an image: which of its indexes it takes, whose word they are, and whether
//! a node starts the image lazily, or why not.
//!
//! The commands that open an image, the servers of a node and `doctor` share these functions, so
//! that they give the same answer. To learn what a node would do with an image:
//!
//! ```text
//! let rules = lazy_from.rules_for(&name)?;           // Err(NotLazy::NotListed)
//! let options = OpenOptions { trust: rules, ..options };
//! let judged = judge(&source, &root, &options, &caches, &progress).await;
//! let judged = judged.map_err(|error| NotLazy::of(&error))?;
//! let layers = judged.lazy_layers()?;                // Err says why not
//! ```

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::discover::{DiscoverError, DiscoveredImage, PlatformImage, both};
use super::open::{OpenImageError, OpenOptions, read_config};
use super::trust::{Chosen, TrustOfLayers, choose};
use ociseek_format::digest::Digest;
use ociseek_format::image::{Coverage, Descriptor, LayerKind, Platform, config, coverage::Share};
use ociseek_format::printable::{exact_size, human_size};
use ociseek_format::progress::{Progress, causes, sources};
use ociseek_rootfs::layers::Caches;
use ociseek_store::blob::Target;
use ociseek_store::registry::RegistryError;
use ociseek_store::{Source, StoreError};

/// An image starts lazily if indexes cover this share of its bytes. Opening it reads the other
/// layers completely.
pub const COVERED_PERCENT: u64 = 80;

/// An image with its config, its indexes, and whose word these are.
#[derive(Debug)]
pub struct Judged {
    /// With the indexes that are read. What the rules do not allow is removed from their content.
    pub image: DiscoveredImage,
    /// Whose word they are.
    pub trust: TrustOfLayers,
    /// The config, as JSON.
    pub config: Bytes,
    /// What the image states as its platform.
    pub platform: Option<Platform>,
    /// The digests of the layers' uncompressed content, as the config claims. As many as layers.
    pub diff_ids: Vec<Digest>,
}

/// A layer of an image that starts lazily.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedLayer {
    /// The layer, as the image manifest lists it.
    pub descriptor: Descriptor,
    /// The digest of its uncompressed content, as the config claims.
    pub diff_id: Digest,
    /// The digest of what it is read by: the head of a fine document, or a ztoc. None if the whole
    /// layer is read.
    pub document: Option<Digest>,
}

/// Why a node leaves an image to the runtime, which pulls and unpacks it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotLazy {
    /// The operator does not name its repository.
    #[error("its repository is not in lazy-from")]
    NotListed,
    /// There are no indexes for it.
    #[error("it has no index")]
    NoIndex,
    /// It has an index that the rules do not allow.
    #[error("it has an index, but none that the policy or the keys accept")]
    Untrusted,
    /// Its indexes cover too little.
    #[error("its index covers {0} of the image's bytes, less than {COVERED_PERCENT}%")]
    Coverage(Share),
    /// Its layers are compressed with zstd, and have no fine index.
    #[error("its zstd layers have no fine index, and SOCI indexes do not cover them")]
    Zstd,
    /// Another image with the same layer is read by another document.
    #[error("{image} has layer {layer}, and is read by another document")]
    OtherDocument {
        /// The name of the layer's snapshot.
        layer: String,
        /// The other image.
        image: String,
    },
    /// Its lowest layers are on the node already, unpacked for another image.
    #[error("its lowest layers are unpacked on this node, by an image that is not lazy")]
    UnpackedBase,
    /// The registry wants a login that may read it.
    #[error("the registry wants a login: {0}")]
    Login(String),
    /// The registry did not answer in this time.
    #[error("the registry did not answer within {} s", .0.as_secs())]
    Silent(Duration),
    /// The registry has an error of its own (5xx), or too many requests (429).
    #[error("the registry fails: {0}")]
    Registry(String),
    /// The lists of files of other images leave no memory for its own.
    #[error("the lists of files of other images take {} of {}", human_size(*used), exact_size(*limit))]
    Memory {
        /// The bytes in use.
        used: u64,
        /// The most for all images.
        limit: u64,
    },
    /// It, its config or its indexes cannot be read.
    #[error("{0}")]
    Failed(String),
}

impl NotLazy {
    /// The words that [`NotLazy::code`] returns.
    pub const CODES: [&str; 12] = [
        "coverage",
        "failed",
        "login",
        "memory",
        "no-index",
        "not-listed",
        "other-document",
        "registry",
        "silent",
        "unpacked-base",
        "untrusted",
        "zstd",
    ];

    /// A stable word for programs: in metrics, logs and JSON.
    pub fn code(&self) -> &'static str {
        match self {
            NotLazy::NotListed => "not-listed",
            NotLazy::NoIndex => "no-index",
            NotLazy::Untrusted => "untrusted",
            NotLazy::Coverage(_) => "coverage",
            NotLazy::Zstd => "zstd",
            NotLazy::OtherDocument { .. } => "other-document",
            NotLazy::UnpackedBase => "unpacked-base",
            NotLazy::Login(_) => "login",
            NotLazy::Silent(_) => "silent",
            NotLazy::Registry(_) => "registry",
            NotLazy::Memory { .. } => "memory",
            NotLazy::Failed(_) => "failed",
        }
    }

    /// Whether something failed, and another pull may be lazy.
    pub fn is_failure(&self) -> bool {
        matches!(
            self,
            NotLazy::Login(_)
                | NotLazy::Silent(_)
                | NotLazy::Registry(_)
                | NotLazy::Memory { .. }
                | NotLazy::Failed(_)
        )
    }

    /// Why an image cannot be judged.
    pub fn of(error: &(dyn Error + 'static)) -> NotLazy {
        let status = sources(error).find_map(|cause| {
            let refused = match cause.downcast_ref() {
                Some(StoreError::Registry(error)) => Some(error),
                _ => cause.downcast_ref::<RegistryError>(),
            };
            refused.and_then(RegistryError::status)
        });
        match status {
            Some(401 | 403) => NotLazy::Login(causes(error)),
            Some(status) if is_trouble(status) => NotLazy::Registry(causes(error)),
            _ => NotLazy::Failed(causes(error)),
        }
    }

    /// Why an image cannot be judged in time, with the status of the registry's last answer.
    pub fn out_of_time(last: Option<u16>, time: Duration) -> NotLazy {
        let seconds = time.as_secs();
        match last.filter(|status| is_trouble(*status)) {
            Some(status) => {
                NotLazy::Registry(format!("status {status}, and nothing else within {seconds} s"))
            }
            None => NotLazy::Silent(time),
        }
    }
}

/// Whether a registry says with this status that it cannot answer now.
fn is_trouble(status: u16) -> bool {
    status == 429 || status >= 500
}

/// Finds the image `root` of `source`, and judges its indexes. If the source keeps the registry's
/// answers ([`Source::recalling`]), the referrers of a digest are requested together with its
/// manifest.
///
/// # Errors
/// If the image, its config or its index cannot be read.
pub async fn judge(
    source: &Source,
    root: &Target,
    options: &OpenOptions,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<Judged, OpenImageError> {
    let finding = async {
        Ok(Box::pin(PlatformImage::find(source, root, options.platform.as_ref(), progress)).await?)
    };
    let listing = async {
        source.list_ahead(root).await;
        Ok::<_, DiscoverError>(())
    };
    let (image, ()) = both(finding, listing).await?;
    judge_image(source, &image, options, caches, progress).await
}

/// The same for an image that was found.
///
/// # Errors
/// If its config or its index cannot be read.
pub async fn judge_image(
    source: &Source,
    image: &PlatformImage,
    options: &OpenOptions,
    caches: &Caches,
    progress: &Arc<dyn Progress>,
) -> Result<Judged, OpenImageError> {
    let digest = image.manifest.config.digest;
    let choosing = Box::pin(async {
        let discovered = image.indexes(source, options.index.as_ref(), progress).await?;
        Ok(choose(source, discovered, options.choice(), &caches.ztocs, &**progress).await?)
    });
    let reading = read_config(source, image, options.platform.as_ref());
    let ((config, platform), chosen) = Box::pin(both(reading, choosing)).await?;
    let diff_ids =
        config::diff_ids(&config).map_err(|source| OpenImageError::OddConfig { digest, source })?;
    let Chosen { image, trust, .. } = chosen;
    Ok(Judged { image, trust, config, platform, diff_ids })
}

impl Judged {
    /// The layers from the bottom up, if the image starts lazily.
    ///
    /// # Errors
    /// Why it does not. A registry that did not show its indexes is not an image without one.
    pub fn lazy_layers(&self) -> Result<Vec<JudgedLayer>, NotLazy> {
        covers_enough(&self.image.layers, &self.trust.left_out, |layer| {
            self.image.read_by(&layer.digest).is_some()
        })
        .map_err(|why| match (why, self.image.unseen()) {
            (NotLazy::NoIndex, Some(error)) => NotLazy::of(error),
            (why, _) => why,
        })?;
        let layers = self.image.layers.iter().zip(&self.diff_ids);
        Ok(layers
            .map(|(layer, diff_id)| JudgedLayer {
                descriptor: layer.clone(),
                diff_id: *diff_id,
                document: self.image.read_by(&layer.digest),
            })
            .collect())
    }
}

/// How much of an image is read by indexes, if a node starts it lazily. `is_read` tells whether a
/// layer is; `left_out` are the layers whose index the rules do not allow.
///
/// # Errors
/// Why it does not.
pub fn covers_enough(
    layers: &[Descriptor],
    left_out: &BTreeSet<Digest>,
    is_read: impl Fn(&Descriptor) -> bool,
) -> Result<Coverage, NotLazy> {
    let read = Coverage::of(layers, &is_read);
    let untrusted = Coverage::of(layers, |layer| left_out.contains(&layer.digest)).bytes;
    let is_zstd =
        |layer: &Descriptor| !is_read(layer) && LayerKind::of(&layer.media_type) == LayerKind::Zstd;
    let zstd = Coverage::of(layers, is_zstd).bytes;
    let (indexed, bytes) = (read.bytes, read.of_bytes);
    let is_enough = |covered: u64| covered > 0 && covered >= bytes / 100 * COVERED_PERCENT;
    if is_enough(indexed) {
        return Ok(read);
    }
    Err(if untrusted > 0 && (indexed == 0 || is_enough(indexed.saturating_add(untrusted))) {
        NotLazy::Untrusted
    } else if zstd > 0 && is_enough(indexed.saturating_add(zstd)) {
        NotLazy::Zstd
    } else if indexed == 0 {
        NotLazy::NoIndex
    } else {
        NotLazy::Coverage(read.share())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::{DiscoveryMethod, FoundIndexRef, UnusableIndexError};
    use ociseek_format::image::soci::Version;

    #[test]
    fn indexes_that_cannot_be_asked_for_are_not_missing() {
        let manifest = Descriptor::of("application/vnd.oci.image.manifest.v1+json", b"m");
        let digest = manifest.digest;
        let reason = |listing, index: Option<StoreError>| {
            let content = |error| Err(UnusableIndexError::Fetch(error));
            let index = index.map(|error| FoundIndexRef {
                digest,
                size: None,
                version: Version::V1,
                via: DiscoveryMethod::Api,
                content: content(error),
            });
            let image = DiscoveredImage {
                root: digest,
                config: manifest.clone(),
                manifest: manifest.clone(),
                platform: None,
                layers: vec![manifest.clone()],
                indexes: Vec::from_iter(index),
                listing,
                odd_annotation: None,
                chosen: None,
                fine: Vec::new(),
                chosen_fine: None,
            };
            let (trust, config) = (TrustOfLayers::default(), Bytes::new());
            Judged { image, trust, config, platform: None, diff_ids: vec![digest] }
                .lazy_layers()
                .unwrap_err()
                .code()
        };
        assert_eq!(reason(Ok(DiscoveryMethod::Api), None), "no-index");
        assert_eq!(reason(Err(StoreError::Thread), None), "failed");
        assert_eq!(reason(Ok(DiscoveryMethod::Api), Some(StoreError::Thread)), "failed");
    }

    #[test]
    fn an_image_starts_lazily_if_indexes_cover_most_of_it() {
        let layer = |media: &str, content: &[u8], size: u64| Descriptor {
            size,
            ..Descriptor::of(format!("application/vnd.oci.image.layer.v1.tar+{media}"), content)
        };
        let layers = [layer("gzip", b"1", 79), layer("gzip", b"2", 20), layer("zstd", b"3", 1)];
        let judge = |read: &[usize], left_out: &[usize]| {
            let digest = |place: &usize| layers[*place].digest;
            let left_out = left_out.iter().map(digest).collect();
            let read: Vec<Digest> = read.iter().map(digest).collect();
            match covers_enough(&layers, &left_out, |layer| read.contains(&layer.digest)) {
                Ok(coverage) => format!("{} of {}", coverage.bytes, coverage.of_bytes),
                Err(why) => why.code().to_owned(),
            }
        };
        assert_eq!(judge(&[0, 1], &[]), "99 of 100");
        assert_eq!(judge(&[0, 2], &[]), "80 of 100");
        assert_eq!(judge(&[0], &[]), "zstd");
        assert_eq!(judge(&[1], &[]), "coverage");
        assert_eq!(judge(&[], &[]), "no-index");
        assert_eq!(judge(&[], &[0, 1]), "untrusted");
    }
}
