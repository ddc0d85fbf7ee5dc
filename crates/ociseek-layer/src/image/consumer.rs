//! Who reads SOCI indexes, and which index of an image each of them takes. Decided from facts,
//! without any I/O; every rule names where it is written down.

use std::fmt;

use super::soci::Version;
use super::{Coverage, Descriptor, LayerKind, Platform};
use crate::digest::Digest;

/// Something that runs containers, by version and settings as far as they matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// soci-snapshotter 0.10 or later with its default settings: `soci_v2` is on, `soci_v1` is off.
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
    /// All of them, in the order in which they are shown.
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
            Consumer::Soci => "soci-snapshotter 0.10 or later (default settings)",
            Consumer::SociV1 => "soci-snapshotter 0.10 or later (soci_v1 enabled)",
            Consumer::SociParallel => "soci-snapshotter (parallel_pull_unpack enabled)",
            Consumer::SociOld => "soci-snapshotter before 0.10",
            Consumer::Fargate => "AWS Fargate",
            Consumer::FargateEarlier => "AWS Fargate (accounts with earlier SOCI use)",
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

    /// Which indexes it looks for, in this order.
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
    /// It mounts the layers that the index covers, and pulls the others whole.
    Lazy {
        /// The index that it uses.
        index: Digest,
        /// Which kind of index that is.
        version: Version,
        /// How much of the image the index covers.
        coverage: Coverage,
    },
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
    /// The image has no index in a version that the runtime reads.
    NoIndex {
        /// The kinds that it reads.
        wants: &'static [Version],
        /// Whether there is an index of another kind.
        other: bool,
    },
    /// The image manifest names its index by something that is not a digest, and it looks no further.
    OddAnnotation,
    /// The indexes of version 1 cannot be listed.
    Unlisted,
    /// It cannot use the first index that it finds, and it looks no further.
    Defect(Digest, Defect),
    /// It reads from Amazon ECR private registries only.
    NotInEcr,
    /// It takes no image with a zstd layer.
    Zstd,
    /// It takes Linux images for amd64 and arm64 only.
    Platform,
}

/// Why an index is of no use to a consumer that finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// It cannot be read, or is not a SOCI index of this image.
    Unusable,
    /// Its JSON is not Go's.
    NotCanonical,
    /// A blob that it names is gone; consumers need them all.
    Incomplete,
    /// A ztoc is damaged, or is not its layer's.
    BrokenZtoc,
    /// It covers none of the layers.
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
            Reason::Defect(_, Defect::CoversNothing) => "covers-nothing",
            Reason::NotInEcr => "not-in-ecr",
            Reason::Zstd => "zstd",
            Reason::Platform => "platform",
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
                let rest = if *other { "an index of the other version" } else { "no index" };
                write!(f, "it reads version {}, but the image has {rest}", versions.join(" and "))
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
                    Defect::BrokenZtoc => write!(f, "index {index} has a ztoc that cannot be used"),
                    Defect::CoversNothing => write!(f, "index {index} covers no layer of the image"),
                }
            }
            Reason::NotInEcr => f.write_str("it reads indexes from Amazon ECR private registries only"),
            Reason::Zstd => f.write_str("it does not support images with zstd layers"),
            Reason::Platform => f.write_str("it runs only Linux images for amd64 and arm64"),
        }
    }
}

/// What decides which consumers mount an image's layers lazily.
#[derive(Debug, Clone)]
pub struct Facts<'a> {
    /// The platform that the image is for, if it says.
    pub platform: Option<&'a Platform>,
    /// From the bottom up.
    pub layers: &'a [Descriptor],
    /// A layer or the config, if it is known to be gone.
    pub missing: Option<Digest>,
    /// The image is in a registry of the kind that the managed consumers read from. None: it is in
    /// no registry.
    pub in_ecr: Option<bool>,
    /// The index of version 2, which the image manifest names.
    pub named: Place,
    /// The first index of version 1 that is listed.
    pub listed: Place,
}

/// What a consumer finds where it looks for an index of one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It holds no index.
    Empty,
    /// What is there is not an index's name, or nobody can say what is there.
    Unreadable,
    /// An index, and how much of the image it covers, or why it is of no use.
    Index(Digest, Result<Coverage, Defect>),
}

impl Facts<'_> {
    fn place(&self, version: Version) -> Place {
        match version {
            Version::V1 => self.listed,
            Version::V2 => self.named,
        }
    }
}

/// The verdict of each consumer.
#[derive(Debug, Clone)]
pub struct Verdicts(Vec<(Consumer, Verdict)>);

impl Verdicts {
    /// What each consumer does with the image.
    pub fn of(facts: &Facts<'_>) -> Verdicts {
        Verdicts(Consumer::ALL.iter().map(|&consumer| (consumer, judge(consumer, facts))).collect())
    }

    /// Each consumer with its verdict, in the order of [`Consumer::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Consumer, Verdict)> + '_ {
        self.0.iter().copied()
    }

    /// At least one of them mounts layers lazily.
    pub fn any_lazy(&self) -> bool {
        self.iter().any(|(_, verdict)| matches!(verdict, Verdict::Lazy { .. }))
    }
}

fn judge(consumer: Consumer, facts: &Facts<'_>) -> Verdict {
    if let Some(blob) = facts.missing {
        return Verdict::Whole(Reason::MissingBlob(blob));
    }
    if let Some(reason) = unmanageable(consumer, facts) {
        return Verdict::Whole(reason);
    }
    let wants = consumer.versions();
    if wants.is_empty() {
        return Verdict::Whole(Reason::NotAsked);
    }
    // It takes the first that there is, and if it cannot use that one it does not try the next
    // (fs/fs.go, findSociIndexDesc). It fetches the index and all its blobs before it mounts
    // anything, and falls back as a whole (fs/artifact_fetcher.go, FetchSociArtifacts).
    for &version in wants {
        return match facts.place(version) {
            Place::Empty => continue,
            Place::Unreadable if version == Version::V2 => Verdict::Whole(Reason::OddAnnotation),
            Place::Unreadable => Verdict::Whole(Reason::Unlisted),
            Place::Index(index, Err(defect)) => Verdict::Whole(Reason::Defect(index, defect)),
            Place::Index(index, Ok(Coverage { layers: 0, .. })) => {
                Verdict::Whole(Reason::Defect(index, Defect::CoversNothing))
            }
            Place::Index(index, Ok(coverage)) => Verdict::Lazy { index, version, coverage },
        };
    }
    let other = [facts.named, facts.listed].iter().any(|place| matches!(place, Place::Index(..)));
    Verdict::Whole(Reason::NoIndex { wants, other })
}

/// What keeps a managed consumer from an image, whatever its indexes are: the considerations on the
/// pages that [`Consumer::source`] names.
fn unmanageable(consumer: Consumer, facts: &Facts<'_>) -> Option<Reason> {
    let fargate = matches!(consumer, Consumer::Fargate | Consumer::FargateEarlier);
    let runs = |platform: &Platform| {
        let platform = platform.normalized();
        platform.os == "linux" && matches!(platform.architecture.as_str(), "amd64" | "arm64")
    };
    let zstd = || facts.layers.iter().any(|layer| LayerKind::of(&layer.media_type) == LayerKind::Zstd);
    match () {
        () if fargate && facts.platform.is_some_and(|platform| !runs(platform)) => Some(Reason::Platform),
        () if fargate && zstd() => Some(Reason::Zstd),
        () if (fargate || consumer == Consumer::SageMaker) && facts.in_ecr == Some(false) => Some(Reason::NotInEcr),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the consumers in the order of [`Consumer::ALL`]: `v1`, `v2`, or why nothing.
    fn verdicts(facts: &Facts<'_>) -> Vec<String> {
        let word = |verdict: Verdict| match verdict {
            Verdict::Lazy { version, .. } => format!("v{}", version.number()),
            Verdict::Whole(reason) => reason.code().to_owned(),
        };
        Verdicts::of(facts).iter().map(|(_, verdict)| word(verdict)).collect()
    }

    #[test]
    fn who_takes_what() {
        let layers = [Descriptor::of("application/vnd.oci.image.layer.v1.tar+gzip", b"layer")];
        let zstd = [Descriptor::of("application/vnd.oci.image.layer.v1.tar+zstd", b"layer")];
        let covered = Coverage::of(&layers, |_| true);
        let index = |n: u8| Place::Index(Digest::sha256(&[n]), Ok(covered));
        let defect = |defect| Place::Index(Digest::sha256(&[2]), Err(defect));
        let none = Facts {
            platform: None,
            layers: &layers,
            missing: None,
            in_ecr: Some(true),
            named: Place::Empty,
            listed: Place::Empty,
        };
        let (v1, v2) = (Facts { listed: index(1), ..none.clone() }, Facts { named: index(2), ..none.clone() });
        let both = Facts { named: index(2), ..v1.clone() };
        let windows: Platform = "windows/amd64".parse().unwrap();
        let uncovered = Place::Index(Digest::sha256(&[1]), Ok(Coverage { layers: 0, ..covered }));
        let parallel = "reads-no-index";
        for (name, facts, [soci, soci_v1, old, fargate, earlier, studio]) in [
            ("none", none.clone(), ["no-index"; 6]),
            ("v1", v1.clone(), ["other-version-only", "v1", "v1", "other-version-only", "v1", "other-version-only"]),
            ("v2", v2.clone(), ["v2", "v2", "other-version-only", "v2", "v2", "v2"]),
            ("both", both.clone(), ["v2", "v2", "v1", "v2", "v2", "v2"]),
            // What it finds first it cannot use, and it looks no further.
            (
                "not canonical",
                Facts { named: defect(Defect::NotCanonical), ..v1.clone() },
                ["not-canonical", "not-canonical", "v1", "not-canonical", "not-canonical", "not-canonical"],
            ),
            (
                "not a digest",
                Facts { named: Place::Unreadable, ..v1.clone() },
                ["odd-annotation", "odd-annotation", "v1", "odd-annotation", "odd-annotation", "odd-annotation"],
            ),
            (
                "unlisted",
                Facts { listed: Place::Unreadable, ..v2.clone() },
                ["v2", "v2", "not-listed", "v2", "v2", "v2"],
            ),
            (
                "unlisted alone",
                Facts { listed: Place::Unreadable, ..none.clone() },
                ["no-index", "not-listed", "not-listed", "no-index", "not-listed", "no-index"],
            ),
            (
                "covers nothing",
                Facts { listed: uncovered, ..v2.clone() },
                ["v2", "v2", "covers-nothing", "v2", "v2", "v2"],
            ),
            ("zstd", Facts { layers: &zstd, ..both.clone() }, ["v2", "v2", "v1", "zstd", "zstd", "v2"]),
            (
                "not in ECR",
                Facts { in_ecr: Some(false), ..both.clone() },
                ["v2", "v2", "v1", "not-in-ecr", "not-in-ecr", "not-in-ecr"],
            ),
            (
                "windows",
                Facts { platform: Some(&windows), ..both.clone() },
                ["v2", "v2", "v1", "platform", "platform", "v2"],
            ),
        ] {
            assert_eq!(verdicts(&facts), [soci, soci_v1, parallel, old, fargate, earlier, studio], "{name}");
        }
        let gone = Facts { missing: Some(Digest::sha256(b"layer")), ..both };
        assert_eq!(verdicts(&gone), ["missing-blob"; 7]);
    }
}
