//! The consumers of SOCI indexes, and which index of an image each of them uses. Decides from
//! facts, without I/O; every rule cites its source.

use std::fmt;

use super::soci::Version;
use super::{Coverage, Descriptor, LayerKind, Platform};
use crate::digest::Digest;

/// A container runtime, with its version and settings as far as they matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// soci-snapshotter 0.10 or later with its default settings: `soci_v2` is on, `soci_v1` is off.
    Soci,
    /// soci-snapshotter with `[pull_modes.soci_v1] enable = true`.
    SociV1,
    /// soci-snapshotter with `[pull_modes.parallel_pull_unpack] enable = true`.
    SociParallel,
    /// soci-snapshotter before 0.10, which does not know version 2 of the index.
    SociOld,
    /// AWS Fargate for accounts that did not use SOCI before version 2.
    Fargate,
    /// AWS Fargate for accounts that used SOCI before version 2.
    FargateEarlier,
    /// Amazon SageMaker Studio, custom images.
    SageMaker,
}

impl Consumer {
    /// All consumers, in display order.
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

    /// The name for people.
    pub fn name(self) -> &'static str {
        match self {
            Consumer::Soci => "soci-snapshotter 0.10 or later (default settings)",
            Consumer::SociV1 => "soci-snapshotter 0.10 or later (soci_v1 enabled)",
            Consumer::SociParallel => "soci-snapshotter (parallel_pull_unpack enabled)",
            Consumer::SociOld => "soci-snapshotter before 0.10",
            Consumer::Fargate => "AWS Fargate",
            Consumer::FargateEarlier => "AWS Fargate (accounts with earlier SOCI use)",
            Consumer::SageMaker => "Amazon SageMaker Studio",
        }
    }

    /// The document that states what it reads.
    pub fn source(self) -> &'static str {
        match self {
            Consumer::Soci | Consumer::SociV1 => {
                "soci-snapshotter v0.15.0: fs/fs.go (findSociIndexDesc), docs/soci-index-manifest-v2.md"
            }
            Consumer::SociParallel => "soci-snapshotter v0.15.0: docs/parallel-mode.md",
            Consumer::SociOld => {
                "soci-snapshotter v0.15.0: docs/soci-index-manifest-v2.md, \"Migrating\""
            }
            Consumer::Fargate => {
                "Amazon ECS Developer Guide: \"Amazon ECS task definition differences for Fargate\", as of \
                 November 2026"
            }
            Consumer::FargateEarlier => {
                "the same, as of November 2026; pabis.eu, 31 August 2025: the end of version 1 was announced for \
                 9 February 2026"
            }
            Consumer::SageMaker => {
                "Amazon SageMaker AI Developer Guide: \"Speed up container startup with SOCI\" and \"Integrate \
                 SOCI-indexed images with Studio example\", as of November 2026"
            }
        }
    }

    /// The index versions it looks for, in order.
    fn versions(self) -> &'static [Version] {
        match self {
            Consumer::Soci | Consumer::Fargate | Consumer::SageMaker => &[Version::V2],
            Consumer::SociV1 | Consumer::FargateEarlier => &[Version::V2, Version::V1],
            Consumer::SociOld => &[Version::V1],
            Consumer::SociParallel => &[],
        }
    }
}

/// What a consumer does with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Mounts the layers that the index covers, and pulls the others completely.
    Lazy {
        /// The index that it uses.
        index: Digest,
        /// The version of the index.
        version: Version,
        /// How much of the image the index covers.
        coverage: Coverage,
    },
    /// Mounts no layer lazily.
    Whole(Reason),
}

/// Why no layer of an image is mounted lazily.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A layer or the config is missing, so the image cannot be pulled.
    MissingBlob(Digest),
    /// Its settings make it pull all layers in parallel without looking for an index.
    NotAsked,
    /// The image has no index in a version that the runtime reads.
    NoIndex {
        /// The versions that it reads.
        wants: &'static [Version],
        /// Whether the image has an index of another version.
        other: bool,
    },
    /// The image manifest names its index by something other than a digest, and the runtime looks
    /// no further.
    OddAnnotation,
    /// The version 1 indexes cannot be listed.
    Unlisted,
    /// It cannot use the first index it finds, and looks no further.
    Defect(Digest, Defect),
    /// It only reads from private Amazon ECR registries.
    NotInEcr,
    /// It does not accept images with zstd layers.
    Zstd,
    /// It only accepts Linux images for amd64 and arm64.
    Platform,
    /// It only runs on Linux.
    NotLinux,
}

/// Why a consumer cannot use an index it found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// It cannot be read, or is not a SOCI index of this image.
    Unusable,
    /// Its JSON differs from Go's encoding.
    NotCanonical,
    /// A blob that it names is missing. Consumers need all of them.
    Incomplete,
    /// A ztoc is damaged.
    BrokenZtoc,
    /// A ztoc belongs to another layer, so reads through it fail.
    WrongZtoc,
    /// It covers no layer of the image.
    CoversNothing,
}

impl Reason {
    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Reason::MissingBlob(_) => "missing-blob",
            Reason::NotAsked => "reads-no-index",
            Reason::NoIndex { other: true, .. } => "other-version-only",
            Reason::NoIndex { other: false, .. } => "no-index",
            Reason::OddAnnotation => "odd-annotation",
            Reason::Unlisted => "not-listed",
            Reason::Defect(_, Defect::Unusable) => "unusable",
            Reason::Defect(_, Defect::NotCanonical) => "not-canonical",
            Reason::Defect(_, Defect::Incomplete) => "incomplete",
            Reason::Defect(_, Defect::BrokenZtoc) => "broken-ztoc",
            Reason::Defect(_, Defect::WrongZtoc) => "wrong-ztoc",
            Reason::Defect(_, Defect::CoversNothing) => "covers-nothing",
            Reason::NotInEcr => "not-in-ecr",
            Reason::Zstd => "zstd",
            Reason::Platform => "platform",
            Reason::NotLinux => "not-linux",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::MissingBlob(blob) => write!(f, "it cannot run the image: blob {} is missing", blob.short()),
            Reason::NotAsked => f.write_str("it pulls layers in parallel and reads no index"),
            Reason::NoIndex { wants, other } => {
                let versions: Vec<String> = wants.iter().map(|version| version.number().to_string()).collect();
                write!(f, "it reads version {}, but ", versions.join(" and "))?;
                match [Version::V1, Version::V2].iter().find(|version| *other && !wants.contains(version)) {
                    Some(version) => write!(f, "the index of the image is of version {}", version.number()),
                    None => f.write_str("the image has no index"),
                }
            }
            Reason::OddAnnotation => {
                f.write_str("the image manifest does not name its index by a digest, and it tries no other index")
            }
            Reason::Unlisted => f.write_str("the store cannot list indexes of version 1"),
            Reason::Defect(index, defect) => {
                let index = index.short();
                match defect {
                    Defect::Unusable => write!(f, "index {index} cannot be used, and it tries no other"),
                    Defect::NotCanonical => write!(f, "the JSON of index {index} is not what Go's encoder writes"),
                    Defect::Incomplete => write!(f, "index {index} names missing blobs"),
                    Defect::BrokenZtoc => write!(f, "index {index} has a damaged ztoc"),
                    Defect::WrongZtoc => {
                        write!(f, "index {index} has the ztoc of another layer, so reading files of that layer fails")
                    }
                    Defect::CoversNothing => write!(f, "index {index} covers no layer of the image"),
                }
            }
            Reason::NotInEcr => f.write_str("it reads indexes from Amazon ECR private registries only"),
            Reason::Zstd => f.write_str("it does not support images with zstd layers"),
            Reason::Platform => f.write_str("it runs only Linux images for amd64 and arm64"),
            Reason::NotLinux => f.write_str("it runs only Linux images"),
        }
    }
}

/// The facts that decide which consumers mount an image's layers lazily.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The platform of the image, if known.
    pub platform: Option<&'a Platform>,
    /// The layers from the bottom up.
    pub layers: &'a [Descriptor],
    /// A layer or config that is known to be missing.
    pub missing: Option<Digest>,
    /// Whether the image is in a registry from which the managed consumers read. None if it is not
    /// in a registry.
    pub in_ecr: Option<bool>,
    /// The version 2 index that the image manifest names.
    pub named: IndexLookup,
    /// The first version 1 index that the registry lists.
    pub listed: IndexLookup,
}

/// What a consumer finds where it looks for an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexLookup {
    /// No index.
    Empty,
    /// The manifest names something other than an index, or the lookup failed.
    Unreadable,
    /// An index, with its coverage or the reason why it cannot be used.
    Index(Digest, Result<Coverage, Defect>),
}

impl Facts<'_> {
    fn place(&self, version: Version) -> IndexLookup {
        match version {
            Version::V1 => self.listed,
            Version::V2 => self.named,
        }
    }
}

/// The verdict for each consumer.
#[derive(Debug, Clone)]
pub struct Verdicts(Vec<(Consumer, Verdict)>);

impl Verdicts {
    /// The verdict for each consumer, from facts about an image.
    pub fn of(facts: &Facts<'_>) -> Verdicts {
        Verdicts(Consumer::ALL.iter().map(|&consumer| (consumer, judge(consumer, facts))).collect())
    }

    /// Each consumer with its verdict, in the order of [`Consumer::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Consumer, Verdict)> + '_ {
        self.0.iter().copied()
    }

    /// Whether at least one consumer mounts layers lazily.
    pub fn any_lazy(&self) -> bool {
        self.iter().any(|(_, verdict)| matches!(verdict, Verdict::Lazy { .. }))
    }
}

fn judge(consumer: Consumer, facts: &Facts<'_>) -> Verdict {
    if let Some(blob) = facts.missing {
        return Verdict::Whole(Reason::MissingBlob(blob));
    }
    let wants = consumer.versions();
    if wants.is_empty() {
        return Verdict::Whole(Reason::NotAsked);
    }
    if let Some(reason) = unacceptable(consumer, facts) {
        return Verdict::Whole(reason);
    }
    // A consumer takes the first index it finds. If it cannot use that one, it does not try the
    // next (fs/fs.go, findSociIndexDesc). It fetches the index and all its blobs before it mounts
    // anything, and otherwise uses no index at all (fs/artifact_fetcher.go, FetchSociArtifacts).
    for &version in wants {
        return match facts.place(version) {
            IndexLookup::Empty => continue,
            IndexLookup::Unreadable if version == Version::V2 => {
                Verdict::Whole(Reason::OddAnnotation)
            }
            IndexLookup::Unreadable => Verdict::Whole(Reason::Unlisted),
            IndexLookup::Index(index, Err(defect)) => Verdict::Whole(Reason::Defect(index, defect)),
            IndexLookup::Index(index, Ok(Coverage { layers: 0, .. })) => {
                Verdict::Whole(Reason::Defect(index, Defect::CoversNothing))
            }
            IndexLookup::Index(index, Ok(coverage)) => Verdict::Lazy { index, version, coverage },
        };
    }
    let other =
        [facts.named, facts.listed].iter().any(|place| matches!(place, IndexLookup::Index(..)));
    Verdict::Whole(Reason::NoIndex { wants, other })
}

/// Why a consumer does not accept an image, whatever its indexes are: for the managed ones, the
/// considerations on the pages that [`Consumer::source`] names.
fn unacceptable(consumer: Consumer, facts: &Facts<'_>) -> Option<Reason> {
    let fargate = matches!(consumer, Consumer::Fargate | Consumer::FargateEarlier);
    let runs = |platform: &Platform| {
        let platform = platform.normalized();
        platform.os == "linux" && matches!(platform.architecture.as_str(), "amd64" | "arm64")
    };
    let zstd =
        || facts.layers.iter().any(|layer| LayerKind::of(&layer.media_type) == LayerKind::Zstd);
    match () {
        () if fargate && facts.platform.is_some_and(|platform| !runs(platform)) => {
            Some(Reason::Platform)
        }
        () if facts.platform.is_some_and(|platform| !platform.is_linux()) => Some(Reason::NotLinux),
        () if fargate && zstd() => Some(Reason::Zstd),
        () if (fargate || consumer == Consumer::SageMaker) && facts.in_ecr == Some(false) => {
            Some(Reason::NotInEcr)
        }
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For each consumer in the order of [`Consumer::ALL`]: `v1`, `v2`, or the reason for neither.
    fn verdicts(facts: &Facts<'_>) -> Vec<String> {
        let word = |verdict: Verdict| match verdict {
            Verdict::Lazy { version, .. } => format!("v{}", version.number()),
            Verdict::Whole(reason) => reason.code().to_owned(),
        };
        Verdicts::of(facts).iter().map(|(_, verdict)| word(verdict)).collect()
    }

    #[test]
    fn consumers_mount_what_their_version_supports() {
        let layers = [Descriptor::of("application/vnd.oci.image.layer.v1.tar+gzip", b"layer")];
        let zstd = [Descriptor::of("application/vnd.oci.image.layer.v1.tar+zstd", b"layer")];
        let covered = Coverage::of(&layers, |_| true);
        let index = |n: u8| IndexLookup::Index(Digest::sha256(&[n]), Ok(covered));
        let defect = |defect| IndexLookup::Index(Digest::sha256(&[2]), Err(defect));
        let none = Facts {
            platform: None,
            layers: &layers,
            missing: None,
            in_ecr: Some(true),
            named: IndexLookup::Empty,
            listed: IndexLookup::Empty,
        };
        let v1 = Facts { listed: index(1), ..none.clone() };
        let v2 = Facts { named: index(2), ..none.clone() };
        let both = Facts { named: index(2), ..v1.clone() };
        let windows: Platform = "windows/amd64".parse().unwrap();
        let uncovered =
            IndexLookup::Index(Digest::sha256(&[1]), Ok(Coverage { layers: 0, ..covered }));
        let parallel = "reads-no-index";
        for (name, facts, [soci, soci_v1, old, fargate, earlier, studio]) in [
            ("none", none.clone(), ["no-index"; 6]),
            (
                "v1",
                v1.clone(),
                [
                    "other-version-only",
                    "v1",
                    "v1",
                    "other-version-only",
                    "v1",
                    "other-version-only",
                ],
            ),
            ("v2", v2.clone(), ["v2", "v2", "other-version-only", "v2", "v2", "v2"]),
            ("both", both.clone(), ["v2", "v2", "v1", "v2", "v2", "v2"]),
            // It cannot use the first index it finds, and looks no further.
            (
                "not canonical",
                Facts { named: defect(Defect::NotCanonical), ..v1.clone() },
                [
                    "not-canonical",
                    "not-canonical",
                    "v1",
                    "not-canonical",
                    "not-canonical",
                    "not-canonical",
                ],
            ),
            (
                "not a digest",
                Facts { named: IndexLookup::Unreadable, ..v1.clone() },
                [
                    "odd-annotation",
                    "odd-annotation",
                    "v1",
                    "odd-annotation",
                    "odd-annotation",
                    "odd-annotation",
                ],
            ),
            (
                "unlisted",
                Facts { listed: IndexLookup::Unreadable, ..v2.clone() },
                ["v2", "v2", "not-listed", "v2", "v2", "v2"],
            ),
            (
                "unlisted alone",
                Facts { listed: IndexLookup::Unreadable, ..none.clone() },
                ["no-index", "not-listed", "not-listed", "no-index", "not-listed", "no-index"],
            ),
            (
                "covers nothing",
                Facts { listed: uncovered, ..v2.clone() },
                ["v2", "v2", "covers-nothing", "v2", "v2", "v2"],
            ),
            (
                "zstd",
                Facts { layers: &zstd, ..both.clone() },
                ["v2", "v2", "v1", "zstd", "zstd", "v2"],
            ),
            (
                "not in ECR",
                Facts { in_ecr: Some(false), ..both.clone() },
                ["v2", "v2", "v1", "not-in-ecr", "not-in-ecr", "not-in-ecr"],
            ),
            (
                "windows",
                Facts { platform: Some(&windows), ..both.clone() },
                ["not-linux", "not-linux", "not-linux", "platform", "platform", "not-linux"],
            ),
        ] {
            assert_eq!(
                verdicts(&facts),
                [soci, soci_v1, parallel, old, fargate, earlier, studio],
                "{name}"
            );
        }
        let gone = Facts { missing: Some(Digest::sha256(b"layer")), ..both };
        assert_eq!(verdicts(&gone), ["missing-blob"; 7]);
    }
}
