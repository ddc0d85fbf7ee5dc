//! Who reads SOCI indexes, and which index of an image each of them takes. Decided without any I/O; every rule names where it
//! is written down.

use std::fmt;

use super::Pieces;
use crate::digest::Digest;
use crate::image::LayerKind;
use crate::image::soci::Version;
use crate::ops::coverage::Coverage;
use crate::ops::discover::{Discovered, FoundIndexRef, Via};

/// Something that runs containers, by version and settings as far as they matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// soci-snapshotter since 0.10 as it comes: `soci_v2` is on, `soci_v1` is off.
    Soci,
    /// The same with `[pull_modes.soci_v1] enable = true`.
    SociV1,
    /// The same with `[pull_modes.parallel_pull_unpack] enable = true`.
    SociParallel,
    /// soci-snapshotter before 0.10, which knew no index of version 2.
    SociOld,
    /// AWS Fargate for those who did not use SOCI there before version 2 came.
    Fargate,
    /// AWS Fargate for those who did.
    FargateEarlier,
    /// Amazon SageMaker Studio, custom images.
    SageMaker,
}

impl Consumer {
    pub const ALL: [Consumer; 7] = [
        Consumer::Soci,
        Consumer::SociV1,
        Consumer::SociParallel,
        Consumer::SociOld,
        Consumer::Fargate,
        Consumer::FargateEarlier,
        Consumer::SageMaker,
    ];

    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Consumer::Soci => "soci-snapshotter",
            Consumer::SociV1 => "soci-snapshotter-v1-enabled",
            Consumer::SociParallel => "soci-snapshotter-parallel-pull",
            Consumer::SociOld => "soci-snapshotter-before-0.10",
            Consumer::Fargate => "fargate",
            Consumer::FargateEarlier => "fargate-earlier-customers",
            Consumer::SageMaker => "sagemaker-studio",
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Consumer::Soci => "soci-snapshotter 0.10 or later, as it comes",
            Consumer::SociV1 => "soci-snapshotter 0.10 or later, soci_v1 enabled",
            Consumer::SociParallel => "soci-snapshotter, parallel_pull_unpack enabled",
            Consumer::SociOld => "soci-snapshotter before 0.10",
            Consumer::Fargate => "AWS Fargate",
            Consumer::FargateEarlier => "AWS Fargate, who used SOCI there before",
            Consumer::SageMaker => "Amazon SageMaker Studio",
        }
    }

    /// Where it is written down what it reads.
    pub fn source(self) -> &'static str {
        match self {
            Consumer::Soci | Consumer::SociV1 => {
                "soci-snapshotter v0.15.0: fs/fs.go (findSociIndexDesc), docs/soci-index-manifest-v2.md"
            }
            Consumer::SociParallel => "soci-snapshotter v0.15.0: docs/parallel-mode.md",
            Consumer::SociOld => "soci-snapshotter v0.15.0: docs/soci-index-manifest-v2.md, \"Migrating\"",
            Consumer::Fargate => {
                "Amazon ECS Developer Guide: \"Amazon ECS task definition differences for Fargate\", as of November 2026"
            }
            Consumer::FargateEarlier => {
                "the same, as of November 2026; pabis.eu, 31 August 2025: the end of version 1 was announced for 9 February 2026"
            }
            Consumer::SageMaker => {
                "Amazon SageMaker AI Developer Guide: \"Speed up container startup with SOCI\" and \"Integrate SOCI-indexed images with Studio example\", as of November 2026"
            }
        }
    }

    /// Which indexes it looks for, in this order.
    fn versions(self) -> &'static [Version] {
        match self {
            Consumer::Soci | Consumer::Fargate | Consumer::SageMaker => &[Version::V2],
            Consumer::SociV1 | Consumer::FargateEarlier => &[Version::V2, Version::V1],
            Consumer::SociOld => &[Version::V1],
            Consumer::SociParallel => &[],
        }
    }

    fn is_managed(self) -> bool {
        matches!(self, Consumer::Fargate | Consumer::FargateEarlier | Consumer::SageMaker)
    }
}

/// What a consumer does with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It mounts the layers that the index covers, and pulls the others whole.
    Lazy { index: Digest, version: Version, coverage: Coverage },
    /// It mounts none of them lazily.
    Whole(Reason),
}

/// Why no layer of an image is mounted lazily.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A layer of the image, or its config, is gone: it cannot be pulled at all.
    MissingBlob(Digest),
    /// By its setting it pulls all layers side by side, and looks for no index.
    NotAsked,
    /// There is none of the versions that it reads. `other`: there is one of a version that it does not read.
    NoIndex { wants: &'static [Version], other: bool },
    /// The indexes of version 1 cannot be listed.
    Unlisted,
    /// The first that it finds cannot be used, and it looks no further.
    Unusable(Digest),
    /// The JSON of the first that it finds is not Go's.
    NotCanonical(Digest),
    /// A blob that the index names is gone; it needs them all.
    Incomplete(Digest),
    /// A ztoc of the index is damaged, or is not its layer's.
    BrokenZtoc(Digest),
    /// The index covers none of the layers.
    CoversNothing(Digest),
    /// It reads from Amazon ECR private registries only.
    NotInEcr,
    /// It takes no image with a zstd layer.
    Zstd,
    /// It takes Linux images for amd64 and arm64 only.
    Platform,
}

impl Reason {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Reason::MissingBlob(_) => "missing-blob",
            Reason::NotAsked => "reads-no-index",
            Reason::NoIndex { other: true, .. } => "other-version-only",
            Reason::NoIndex { other: false, .. } => "no-index",
            Reason::Unlisted => "not-listed",
            Reason::Unusable(_) => "unusable",
            Reason::NotCanonical(_) => "not-canonical",
            Reason::Incomplete(_) => "incomplete",
            Reason::BrokenZtoc(_) => "broken-ztoc",
            Reason::CoversNothing(_) => "covers-nothing",
            Reason::NotInEcr => "not-in-ecr",
            Reason::Zstd => "zstd",
            Reason::Platform => "platform",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |version: &Version| crate::ops::discover::number(*version);
        match self {
            Reason::MissingBlob(blob) => write!(f, "it cannot run the image: blob {} is gone", blob.short()),
            Reason::NotAsked => f.write_str("it pulls layers side by side and reads no index"),
            Reason::NoIndex { wants, other } => {
                let versions: Vec<String> = wants.iter().map(|version| number(version).to_string()).collect();
                let rest = if *other { ", and there is one of the other version only" } else { ": there is none" };
                write!(f, "it reads version {}{rest}", versions.join(" and "))
            }
            Reason::Unlisted => f.write_str("the store does not list indexes of version 1"),
            Reason::Unusable(index) => write!(f, "index {} cannot be used, and it looks no further", index.short()),
            Reason::NotCanonical(index) => write!(f, "the JSON of index {} is not such as Go writes it", index.short()),
            Reason::Incomplete(index) => write!(f, "index {} names blobs that are gone", index.short()),
            Reason::BrokenZtoc(index) => write!(f, "index {} has a ztoc that cannot be used", index.short()),
            Reason::CoversNothing(index) => write!(f, "index {} covers no layer of the image", index.short()),
            Reason::NotInEcr => f.write_str("it reads indexes from Amazon ECR private registries only"),
            Reason::Zstd => f.write_str("it does not support images with zstd layers"),
            Reason::Platform => f.write_str("it runs Linux images for amd64 and arm64"),
        }
    }
}

/// The verdict of each consumer.
#[derive(Debug, Clone)]
pub struct Verdicts(Vec<(Consumer, Verdict)>);

impl Verdicts {
    pub fn of(image: &Discovered, pieces: &Pieces) -> Verdicts {
        Verdicts(Consumer::ALL.iter().map(|&consumer| (consumer, judge(consumer, image, pieces))).collect())
    }

    pub fn iter(&self) -> impl Iterator<Item = (Consumer, Verdict)> + '_ {
        self.0.iter().copied()
    }

    /// At least one of them mounts layers lazily.
    pub fn any_lazy(&self) -> bool {
        self.iter().any(|(_, verdict)| matches!(verdict, Verdict::Lazy { .. }))
    }
}

fn judge(consumer: Consumer, image: &Discovered, pieces: &Pieces) -> Verdict {
    if let Some(blob) = pieces.config.as_ref().or(pieces.layers.first()) {
        return Verdict::Whole(Reason::MissingBlob(*blob));
    }
    if consumer.is_managed()
        && let Some(reason) = unmanageable(consumer, image, pieces)
    {
        return Verdict::Whole(reason);
    }
    let wants = consumer.versions();
    if wants.is_empty() {
        return Verdict::Whole(Reason::NotAsked);
    }
    // It takes the first that there is, and if it cannot use that one it does not try the next.
    let found = wants.iter().find_map(|version| image.indexes.iter().find(|index| is_listed(index, *version)));
    match found {
        Some(index) => read(index, image, pieces),
        None if wants.contains(&Version::V1) && image.listing.is_err() => Verdict::Whole(Reason::Unlisted),
        None => Verdict::Whole(Reason::NoIndex { wants, other: !image.indexes.is_empty() }),
    }
}

/// What keeps a managed consumer from an image, whatever its indexes are: the considerations on the pages that
/// [`Consumer::source`] names.
fn unmanageable(consumer: Consumer, image: &Discovered, pieces: &Pieces) -> Option<Reason> {
    let fargate = matches!(consumer, Consumer::Fargate | Consumer::FargateEarlier);
    let runs = |platform: &crate::image::Platform| {
        let platform = platform.normalized();
        platform.os == "linux" && matches!(platform.architecture.as_str(), "amd64" | "arm64")
    };
    let zstd = || image.layers.iter().any(|layer| LayerKind::of(&layer.media_type) == LayerKind::Zstd);
    match () {
        () if fargate && image.platform.as_ref().is_some_and(|platform| !runs(platform)) => Some(Reason::Platform),
        () if fargate && zstd() => Some(Reason::Zstd),
        () if pieces.in_ecr == Some(false) => Some(Reason::NotInEcr),
        () => None,
    }
}

/// Found where one of this version is looked for.
fn is_listed(index: &FoundIndexRef, version: Version) -> bool {
    match index.via {
        Via::Annotation => version == Version::V2,
        Via::Api | Via::TagSchema | Via::Layout => version == Version::V1,
        Via::Asked => false,
    }
}

/// What becomes of the image with this index: the snapshotter fetches the index and all its blobs before it mounts anything,
/// and falls back as a whole (fs/artifact_fetcher.go, FetchSociArtifacts).
fn read(index: &FoundIndexRef, image: &Discovered, pieces: &Pieces) -> Verdict {
    let digest = index.digest;
    let whole = |reason: fn(Digest) -> Reason| Verdict::Whole(reason(digest));
    let Ok(content) = &index.content else { return whole(Reason::Unusable) };
    if !content.index.canonical {
        return whole(Reason::NotCanonical);
    }
    if pieces.lost.contains_key(&digest) {
        return whole(Reason::Incomplete);
    }
    if !pieces.broken.is_empty() && image.index().is_some_and(|(chosen, _)| chosen.digest == digest) {
        return whole(Reason::BrokenZtoc);
    }
    let coverage = Coverage::of(&image.layers, |layer| content.ztocs.contains_key(&layer.digest));
    match coverage.layers {
        0 => whole(Reason::CoversNothing),
        _ => Verdict::Lazy { index: digest, version: content.index.version, coverage },
    }
}
