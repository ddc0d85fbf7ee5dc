//! The JSON output of `ociseek doctor`.

use std::collections::BTreeSet;

use serde::Serialize;

use super::cure::next;
use crate::cli::shared::json::{
    Coded, ConsumerJson, CoverageJson, DigestText, Failure, Fine, FineDocument,
    Manifest as ManifestRef,
};
use crate::cli::shared::layers::{Spans, span_ranges};
use ociseek_format::image::Descriptor;
use ociseek_format::image::coverage::Coverage;
use ociseek_format::image::prefetch::count;
use ociseek_format::image::soci::{PREFETCH, ZtocRef, prefetch_layer};
use ociseek_ops::discover::{DiscoveredImage, FoundIndexRef};
use ociseek_ops::doctor::{Diagnosis, Door, DoorVerdict, Finding};
use ociseek_ops::inspect::{InspectedLayer, InspectedList};
use ociseek_ops::judge::NotLazy;
use ociseek_ops::trust::TrustLevel;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Report {
    /// The full name of IMAGE.
    image: String,
    /// Whether a consumer, or ociseek itself, starts the image lazily on at least one platform.
    lazy: bool,
    /// One object for each platform's manifest.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    manifest: ManifestRef,
    /// How each consumer uses the SOCI indexes.
    consumers: Vec<ConsumerJson>,
    /// ociseek's own ways to start containers, by the rules that they state.
    ociseek: Vec<DoorJson>,
    findings: Vec<FindingJson>,
    /// How indexes of version 1 and fine indexes are listed; null if they cannot be listed.
    listing: Option<&'static str>,
    /// Why they cannot be listed, or null.
    error: Option<Failure>,
    /// The SOCI indexes that were found.
    indexes: Vec<Index>,
    /// The fine indexes that were found: none of the consumers reads them, but `ociseek mount` and
    /// `bundle` do.
    fine: Vec<Fine>,
    /// The layers in the order of the image.
    layers: Vec<Layer>,
    /// By the SOCI index that ociseek reads.
    coverage: CoverageJson,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Door"))]
struct DoorJson {
    /// A stable word: `ociseek-snapshotter`, `ociseek-store` or `ociseek-mount`.
    door: &'static str,
    /// For people.
    name: &'static str,
    /// Whether it starts the image lazily, if the rule is kept.
    lazy: bool,
    /// What it wants besides an index, for people.
    rule: &'static str,
    /// What is read by indexes, or null.
    coverage: Option<CoverageJson>,
    /// Why it does not start the image lazily, or null.
    reason: Option<DoorReason>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct DoorReason {
    /// A stable word, as in the metrics and the log of the snapshotter.
    code: &'static str,
    text: String,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema), schemars(rename = "Finding"))]
struct FindingJson {
    /// A stable word.
    code: &'static str,
    /// Whether it prevents consumers from using an index. Other findings are only informative.
    problem: bool,
    text: String,
    /// A command or advice, or null.
    next: Option<String>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index {
    /// The digest of its manifest.
    digest: DigestText,
    /// Size of its manifest in bytes, or null if unknown.
    size: Option<u64>,
    /// 1 or 2.
    version: u8,
    found_by: &'static str,
    /// Who vouches for it: `bound` by the image, `named` by you, or the `repository`'s.
    trust: &'static str,
    /// Whether ociseek reads the image through this index.
    chosen: bool,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Whether its JSON is encoded as consumers require; null if it cannot be read.
    canonical: Option<bool>,
    ztocs: Vec<Listed>,
    prefetch: Vec<ListedPrefetch>,
    /// The faults of its entries.
    notes: Vec<Coded>,
    /// Why it cannot be used, or null.
    error: Option<Failure>,
}

/// A ztoc listed in an index.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Listed {
    digest: DigestText,
    size: u64,
    /// The digest of its layer.
    layer: DigestText,
    span_size: u64,
}

/// A layer's prefetch list in an index.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct ListedPrefetch {
    digest: DigestText,
    size: u64,
    /// The digest of its layer; null if the index does not state it.
    layer: Option<DigestText>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Layer {
    media_type: String,
    digest: DigestText,
    /// Size of the blob in bytes.
    size: u64,
    /// Null if the index that ociseek reads has none for it.
    ztoc: Option<Ztoc>,
    /// Its prefetch list in that index, or null.
    prefetch: Option<Prefetch>,
    /// Its document in the fine index that ociseek reads, or null.
    document: Option<FineDocument>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Ztoc {
    digest: DigestText,
    size: u64,
    span_size: u64,
    /// `gzip` or `uncompressed`; null if the ztoc cannot be read, like the next three fields.
    compression: Option<&'static str>,
    spans: Option<u64>,
    entries: Option<u64>,
    uncompressed_size: Option<u64>,
    error: Option<Failure>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Prefetch {
    digest: DigestText,
    size: u64,
    /// Number of spans; null if the list cannot be read, like the next two fields.
    spans: Option<u64>,
    ranges: Option<Vec<Spans>>,
    /// Size of these spans in the layer's blob, in bytes.
    bytes: Option<u64>,
    /// Why it cannot be read, or null.
    error: Option<Failure>,
}

impl Report {
    pub(crate) fn of(image: &str, diagnoses: &[Diagnosis]) -> Report {
        Report {
            image: image.to_owned(),
            lazy: diagnoses.iter().any(Diagnosis::is_lazy),
            manifests: diagnoses.iter().map(|one| Manifest::of(image, one)).collect(),
        }
    }
}

impl Manifest {
    fn of(name: &str, diagnosis: &Diagnosis) -> Manifest {
        let image = &diagnosis.inspected.image;
        let finding = |finding: &Finding| FindingJson {
            code: finding.code(),
            problem: finding.is_problem(),
            text: finding.to_string(),
            next: next(finding, name, diagnosis),
        };
        let indexes = image.indexes.iter().enumerate();
        let layers = image.layers.iter().zip(&diagnosis.inspected.layers);
        Manifest {
            platform: image.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::of(&image.manifest),
            consumers: ConsumerJson::each(&diagnosis.inspected),
            ociseek: diagnosis.doors().map(|(door, verdict)| DoorJson::of(door, verdict)).collect(),
            findings: diagnosis.findings.iter().map(finding).collect(),
            listing: image.listing.as_ref().ok().map(|via| via.code()),
            error: image.listing.as_ref().err().map(|error| Failure::of(error)),
            indexes: indexes
                .map(|(place, reference)| Index::of(reference, image.chosen == Some(place)))
                .collect(),
            fine: Fine::each(&image.fine_summaries()),
            layers: layers
                .map(|(descriptor, inspected)| Layer::of(descriptor, inspected, image))
                .collect(),
            coverage: CoverageJson::with_ztocs(&covered(image), ztoc_bytes(image)),
        }
    }
}

impl DoorJson {
    fn of(door: Door, verdict: DoorVerdict) -> DoorJson {
        let reason = |why: &NotLazy| DoorReason { code: why.code(), text: why.to_string() };
        DoorJson {
            door: door.code(),
            name: door.name(),
            lazy: verdict.is_ok(),
            rule: door.rule(),
            coverage: verdict.as_ref().ok().map(CoverageJson::of),
            reason: verdict.as_ref().err().map(reason),
        }
    }
}

impl Index {
    fn of(reference: &FoundIndexRef, chosen: bool) -> Index {
        let content = reference.content.as_ref().ok();
        let listed = |z: &ZtocRef| Listed {
            digest: z.ztoc.into(),
            size: z.size,
            layer: z.layer.into(),
            span_size: z.span_size.get(),
        };
        let lists = content.map_or(&[][..], |content| &content.index.others).iter();
        let lists = lists.filter(|other| other.media_type == PREFETCH).map(|list| ListedPrefetch {
            digest: list.digest.into(),
            size: list.size,
            layer: prefetch_layer(list).map(DigestText::from),
        });
        let notes = content.map_or(&[][..], |content| &content.notes);
        Index {
            digest: reference.digest.into(),
            size: reference.size,
            version: reference.version.number(),
            found_by: reference.via.code(),
            trust: TrustLevel::of(reference.via).code(),
            chosen,
            tool: content.and_then(|content| content.index.build_tool_identifier.clone()),
            canonical: content.map(|content| content.index.canonical),
            ztocs: content
                .map_or(&[][..], |content| &content.index.ztocs)
                .iter()
                .map(listed)
                .collect(),
            prefetch: lists.collect(),
            notes: notes
                .iter()
                .map(|note| Coded { code: note.code().word(), text: note.to_string() })
                .collect(),
            error: reference.content.as_ref().err().map(|error| Failure::of(error)),
        }
    }
}

impl Layer {
    fn of(descriptor: &Descriptor, layer: &InspectedLayer, image: &DiscoveredImage) -> Layer {
        let ztoc = layer.ztoc.as_ref().map(|(reference, facts)| {
            let read = facts.as_ref().ok();
            Ztoc {
                digest: reference.ztoc.into(),
                size: reference.size,
                span_size: reference.span_size.get(),
                compression: read.map(|f| if f.is_gzip { "gzip" } else { "uncompressed" }),
                spans: read.map(|f| f.spans),
                entries: read.map(|f| f.entries),
                uncompressed_size: read.map(|f| f.uncompressed_size),
                error: facts.as_ref().err().map(|error| Failure::of(error)),
            }
        });
        let prefetch = layer.prefetch.as_ref().map(|InspectedList { artifact, spans }| {
            let read = spans.as_ref().ok();
            Prefetch {
                digest: artifact.digest.into(),
                size: artifact.size,
                spans: read.map(|(spans, _)| count(spans)),
                ranges: read.map(|(spans, _)| span_ranges(spans)),
                bytes: read.map(|(_, bytes)| *bytes),
                error: spans.as_ref().err().map(|text| Failure::of_text(text)),
            }
        });
        Layer {
            media_type: descriptor.media_type.clone(),
            digest: descriptor.digest.into(),
            size: descriptor.size,
            ztoc,
            prefetch,
            document: image.document_for(&descriptor.digest).map(FineDocument::of),
        }
    }
}

/// The coverage of an image by the index that a reader takes.
pub(super) fn covered(image: &DiscoveredImage) -> Coverage {
    Coverage::of(&image.layers, |layer| image.ztoc_for(&layer.digest).is_some())
}

/// The size of the ztocs that a reader takes, in bytes.
pub(super) fn ztoc_bytes(image: &DiscoveredImage) -> u64 {
    let layers: BTreeSet<_> = image.layers.iter().map(|layer| layer.digest).collect();
    layers.iter().filter_map(|layer| image.ztoc_for(layer)).map(|ztoc| ztoc.size).sum()
}
