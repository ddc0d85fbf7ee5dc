//! `ociseek verify`.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use clap::Args;

use crate::cli::shared::args::{
    CacheArgs, FormatArgs, IndexName, LayerJobsArgs, OutputFormat, PlatformsArgs, RegistryArgs,
};
use crate::cli::shared::error::CliError;
use crate::cli::shared::hint::lost_hint;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::progress::Display;
use crate::cli::shared::remedy::{convert_again, convert_original, or_fine, to_index};
use crate::cli::shared::size::{counted, human};
use crate::cli::shared::source::Images;
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, fitted, quoted, safe, terminal_width};
use crate::cli::shared::trust::PolicyArgs;
use crate::cli::shared::verbosity::VerbosityArgs;
use crate::cli::shared::{caches, difference, parse};
use ociseek_format::code::Code;
use ociseek_format::image::soci::Version;
use ociseek_format::image::{ImageName, Platform};
use ociseek_format::progress::{Progress, ProgressEvent};
use ociseek_ops::discover::DiscoverError;
use ociseek_ops::doctor::NoIndex;
use ociseek_ops::resolve::{PlatformChoice, ResolveError};
use ociseek_ops::verify::policy::Ruling;
use ociseek_ops::verify::{
    ComparedCounts, Depth, MAX_SAMPLE, Problem, VerifiedImage, VerifiedManifest, VerifyError,
    VerifyOptions, verify,
};

pub(super) mod json;

const VERIFY_LONG_ABOUT: &str = "\
Verifies the SOCI indexes and fine indexes of an image against its layers.

Each layer that an index covers is downloaded once and decoded from start to end by an independent decoder \
(zlib-rs). The result is compared with the index: the layer's digest and diff ID, the digest, window and position of \
every span, every file's metadata, and every file's bytes as read through the spans. Anything that a consumer would \
reject is also reported. IMAGE is as for ociseek index.

A fine index is verified in the same way: the digests and sizes of its documents, their entries, and each span with \
its proof and its window. A layer that both kinds of index cover is downloaded once for both. With --quick, its \
documents are checked completely, and some spans of each layer.

docker save keeps no index: for docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER], all layers are read and compared with \
the config.

The cache remembers indexes that were compared completely and are right: mount, bundle and try then use them for an \
image that is named by its digest.

With a policy, each index must also keep its rules: how much it covers, and who signed it. A platform without an index \
breaks any policy.";

const VERIFY_AFTER_HELP: &str = "\
Examples:
  ociseek verify ghcr.io/acme/app:1.4
  ociseek verify --quick --platform linux/arm64 ghcr.io/acme/app:1.4
  ociseek verify --quick --min-coverage 80% --signature-key cosign.pub ghcr.io/acme/app:1.4
  ociseek verify --policy policy.json ghcr.io/acme/app:1.4
  ociseek verify --format json oci:app | jq '.manifests[].indexes[].layers[].differences'

JSON: docs/json.md describes each field; docs/policy.md lists the codes.

Exit status: 0 the indexes are correct, 1 failure (or there is no index), 2 usage error, 3 differences or policy \
violations were found; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// Verify an image's SOCI and fine indexes against its layers
#[derive(Debug, Args)]
#[command(long_about = VERIFY_LONG_ABOUT, after_long_help = VERIFY_AFTER_HELP)]
pub(crate) struct VerifyArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// Check only the documents and some spans of each layer, without downloading layers
    #[arg(long)]
    pub quick: bool,

    /// With --quick: how many spans to read from each layer
    #[arg(long, value_name = "N", default_value_t = 4, requires = "quick")]
    #[arg(value_parser = parse::number::<u32>(1, 100_000))]
    pub spans: u32,

    /// With --quick: seed for choosing the spans; the same seed chooses the same spans [default:
    /// random]
    #[arg(long, value_name = "N", requires = "quick")]
    pub seed: Option<u64>,

    #[command(flatten)]
    pub platforms: PlatformsArgs,

    /// Verify only this SOCI index or fine index: its digest, listed or not, or at least its first
    /// six digits [default: all indexes found]
    #[arg(long, value_name = "DIGEST")]
    pub index: Option<IndexName>,

    #[command(flatten)]
    pub layer_jobs: LayerJobsArgs,

    #[command(flatten)]
    pub policy: PolicyArgs,

    #[command(flatten)]
    pub cache: CacheArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: VerifyArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let policy = args.policy.policy()?;
    let display = Arc::new(Display::new(verbosity));
    let progress: Arc<dyn Progress> = display.clone();
    let images = Images::new(args.registry, [&args.image], &progress).await?;
    // The standard library has no random numbers, but its hash keys are chosen by the system.
    // Short, because people type it to see the same again.
    let random = || RandomState::new().build_hasher().finish() % 1_000_000;
    let seed = args.seed.unwrap_or_else(random);
    let mut options = VerifyOptions {
        platforms: args.platforms.platform,
        index: None,
        depth: if args.quick { Depth::Quick { spans: args.spans, seed } } else { Depth::Full },
        jobs: args.layer_jobs.count(),
        policy,
        cache: caches::ztocs(&args.cache, &progress).await,
    };
    let name = args.image.to_string();
    display.begin(&name);
    let verified = async {
        let (source, root) = images.open(&args.image).await?;
        if let Some(index) = &args.index {
            let wanted = PlatformChoice::each_or_all(&options.platforms);
            options.index = Some(index.digest(&source, &root, wanted, &progress).await?);
        }
        verify(&source, &root, &options, &progress)
            .await
            .map_err(|error| failure(&args.image, error))
    }
    .await;
    display.end();
    let verified = verified?;
    for warning in verified.manifests.iter().flat_map(|manifest| &manifest.warnings) {
        progress.report(ProgressEvent::Warning(warning.clone()));
    }
    let mut stdout = Stdout::new();
    let text = match args.format.get() {
        OutputFormat::Json => text_of(json::Verification::of(&name, &verified, options.depth))?,
        OutputFormat::Text => {
            let text = text(&args.image, &verified, options.depth, stdout.style);
            fitted(&text, terminal_width())
        }
    };
    stdout.print(text)?;
    if verified.differences().next().is_some() { Err(CliError::differs()) } else { Ok(()) }
}

/// The error of a verification. It names the image if that must be made again.
fn failure(image: &ImageName, error: VerifyError) -> CliError {
    if let VerifyError::Discover(cause) = &error
        && let DiscoverError::Resolve(ResolveError::Lost { is_enabled, .. }) = **cause
    {
        let hint = lost_hint(is_enabled, &convert_original(image));
        return CliError::because(format!("{image} is incomplete"), error).with_hint(hint);
    }
    if let VerifyError::NoIndex(_, why) = &error {
        let hint = match why {
            NoIndex::Impossible { has_large_zstd: true, .. } => or_fine(image),
            _ => to_index(image, why).unwrap_or_else(|| why.to_string()),
        };
        return CliError::from(error).with_hint(hint);
    }
    error.into()
}

/// A line for each index and for each finding.
fn text(name: &ImageName, verified: &VerifiedImage, depth: Depth, style: Style) -> String {
    let mut text = String::new();
    for manifest in &verified.manifests {
        let platform = manifest
            .platform
            .as_ref()
            .map_or_else(|| "unknown platform".to_owned(), ToString::to_string);
        let image =
            format!("{} {}", style.bold(&safe(&name.to_string())), style.bold(&safe(&platform)));
        let repair = RepairHint { name, platform: manifest.platform.as_ref(), style };
        if !manifest.differences.is_empty() {
            let _ = writeln!(text, "{image}: manifest {}", manifest.manifest.digest);
            findings(&mut text, &manifest.differences, style);
        }
        if let Some(content) = manifest.content {
            let verdict = match manifest.differences.len() {
                0 => style.green("ok"),
                wrong => style.red(&counted(wrong as u64, "difference", "differences")),
            };
            let layers = counted(content.layers as u64, "layer", "layers");
            let bytes = human(content.bytes);
            let _ = writeln!(
                text,
                "{image}: {layers} against the config: {verdict} ({bytes}); docker save keeps no SOCI index"
            );
        }
        indexes(&mut text, &image, manifest, depth, &repair);
        fine(&mut text, &image, manifest, depth, &repair);
    }
    text
}

fn indexes(
    text: &mut String,
    image: &str,
    manifest: &VerifiedManifest,
    depth: Depth,
    hint: &RepairHint<'_>,
) {
    let style = hint.style;
    for index in &manifest.indexes {
        let wrong = index.differences.len()
            + index.layers.iter().map(|layer| layer.differences.len()).sum::<usize>();
        let broken = index.rulings.iter().map(|ruling| ruling.violations.len()).sum::<usize>();
        let compared: Vec<ComparedCounts> =
            index.layers.iter().map(|layer| layer.compared).collect();
        let head = format!("{image}: index {}: {}", index.digest, verdict(wrong, broken, style));
        covered(text, &head, &compared, manifest.layers, depth, style);
        findings(text, &index.differences, style);
        for layer in index.layers.iter().filter(|layer| !layer.differences.is_empty()) {
            let _ = writeln!(text, "  layer {} ztoc {}", layer.layer, layer.ztoc);
            findings(text, &layer.differences, style);
        }
        let layers = index.layers.iter().flat_map(|layer| &layer.differences);
        hint.add(text, index.differences.iter().chain(layers), Repair::Soci(index.version));
        index.rulings.iter().for_each(|ruling| rule(text, ruling, style));
    }
}

fn fine(
    text: &mut String,
    image: &str,
    manifest: &VerifiedManifest,
    depth: Depth,
    hint: &RepairHint<'_>,
) {
    let style = hint.style;
    for index in &manifest.fine {
        let wrong = index.differences.len()
            + index.layers.iter().map(|layer| layer.differences.len()).sum::<usize>();
        let broken = index.rulings.iter().map(|ruling| ruling.violations.len()).sum::<usize>();
        let compared: Vec<ComparedCounts> =
            index.layers.iter().map(|layer| layer.compared).collect();
        let head =
            format!("{image}: fine index {}: {}", index.digest, verdict(wrong, broken, style));
        covered(text, &head, &compared, manifest.layers, depth, style);
        findings(text, &index.differences, style);
        for layer in index.layers.iter().filter(|layer| !layer.differences.is_empty()) {
            let _ = writeln!(text, "  layer {} document {}", layer.layer, layer.document);
            findings(text, &layer.differences, style);
        }
        let layers = index.layers.iter().flat_map(|layer| &layer.differences);
        // What a SOCI-enabled image names is made together with it.
        let is_enabled = manifest.indexes.iter().any(|index| index.version == Version::V2);
        let repair = if is_enabled { Repair::Soci(Version::V2) } else { Repair::Fine };
        hint.add(text, index.differences.iter().chain(layers), repair);
        index.rulings.iter().for_each(|ruling| rule(text, ruling, style));
    }
}

fn verdict(wrong: usize, broken: usize, style: Style) -> String {
    let counts = [(wrong, "difference", "differences"), (broken, "violation", "violations")];
    let counts = counts.iter().filter(|(count, ..)| *count > 0);
    let counts: Vec<String> =
        counts.map(|(count, one, many)| counted(*count as u64, one, many)).collect();
    if counts.is_empty() { style.green("ok") } else { style.red(&counts.join(", ")) }
}

/// The line for an index that begins with `head`: how many of the image's `layers` it covers, and
/// what was compared.
fn covered(
    text: &mut String,
    head: &str,
    compared: &[ComparedCounts],
    layers: usize,
    depth: Depth,
    style: Style,
) {
    let all = compared.iter().fold(ComparedCounts::default(), |a, b| ComparedCounts {
        spans: a.spans + b.spans,
        of_spans: a.of_spans + b.of_spans,
        too_large: a.too_large + b.too_large,
        entries: a.entries + b.entries,
        bytes: a.bytes + b.bytes,
    });
    let layers = format!("{} of {}", compared.len(), counted(layers as u64, "layer", "layers"));
    let spans = counted(all.of_spans, "span", "spans");
    let what = match depth {
        Depth::Full => {
            format!(
                "{layers}, {spans}, {}, {}",
                counted(all.entries, "file", "files"),
                human(all.bytes)
            )
        }
        Depth::Quick { seed, .. } => format!("{layers}, {} of {spans} (--seed {seed})", all.spans),
    };
    let _ = writeln!(text, "{head} ({what})");
    if all.too_large > 0 {
        let _ = writeln!(
            text,
            "  {} {} not read: --quick skips spans larger than {}",
            style.yellow("note:"),
            counted(all.too_large, "span was", "spans were"),
            human(MAX_SAMPLE)
        );
    }
}

/// A rule of the policy, with the actual value, and a hint if it is violated.
fn rule(text: &mut String, ruling: &Ruling, style: Style) {
    let Ruling { rule, wanted, found: actual, violations } = ruling;
    let verdict = if violations.is_empty() { style.green("ok") } else { style.red("violated") };
    let _ =
        writeln!(text, "  policy {rule}: {verdict}: {}; required {}", safe(actual), safe(wanted));
    findings(text, violations, style);
}

/// The command that repairs the indexes of an image for a platform.
struct RepairHint<'a> {
    name: &'a ImageName,
    platform: Option<&'a Platform>,
    style: Style,
}

/// The kind of index that must be repaired.
#[derive(Debug, Clone, Copy)]
enum Repair {
    Soci(Version),
    Fine,
}

impl RepairHint<'_> {
    /// Adds the hint if parts of an index are missing or damaged.
    fn add<'a>(
        &self,
        text: &mut String,
        mut problems: impl Iterator<Item = &'a Problem>,
        what: Repair,
    ) {
        if problems.any(|problem| is_lost(problem.code)) {
            let _ = writeln!(text, "  {} {}", self.style.green("hint:"), self.text(what));
        }
    }

    fn text(&self, what: Repair) -> String {
        if matches!(self.name, ImageName::Archive { .. } | ImageName::Saved { .. }) {
            return "archives are read-only: index the image where it came from, and save it again"
                .to_owned();
        }
        let image = quoted(self.name.to_string().as_bytes());
        let platform = self.platform.filter(|platform| !platform.is_unknown());
        let platform = platform.map_or_else(String::new, |p| {
            format!("--platform {} ", quoted(p.to_string().as_bytes()))
        });
        let command = match what {
            Repair::Soci(Version::V1) => {
                format!("ociseek index --existing replace {platform}{image}")
            }
            Repair::Fine => {
                format!("ociseek index --kind fine --existing replace {platform}{image}")
            }
            Repair::Soci(Version::V2) => convert_again(self.name),
        };
        format!("to repair it, run this with the options that it was made with: {command}")
    }
}

/// Whether a part of an index is missing or damaged, so that making the index again repairs it.
fn is_lost(code: Code) -> bool {
    matches!(
        code,
        Code::IndexMissing
            | Code::IndexDamaged
            | Code::ZtocMissing
            | Code::ZtocDamaged
            | Code::PrefetchMissing
            | Code::PrefetchDamaged
            | Code::DocumentMissing
            | Code::DocumentDamaged
    )
}

/// The hint for a violated rule. Other findings need no hint: the image must be indexed again.
fn advice(code: Code) -> Option<&'static str> {
    match code {
        Code::NoIndex => Some(
            "ociseek doctor says what to run; or select the platforms to check with --platform",
        ),
        Code::Coverage => Some(
            "ociseek doctor says why layers are not covered; index again with a smaller --min-layer-size, or lower the \
             requirement",
        ),
        Code::FineIndex => Some("remove it, or allow fine indexes: --fine-index same, or unsigned"),
        Code::SignatureMissing => Some(
            "sign the digest: cosign sign --key cosign.key REPOSITORY@DIGEST (or notation sign)",
        ),
        Code::SignatureUntrusted => Some(
            "sign the digest with a trusted key, or trust the signer's: --signature-key, --signature-cert",
        ),
        _ => None,
    }
}

fn findings(text: &mut String, findings: &[Problem], style: Style) {
    for (code, finding) in
        difference::shown(findings.iter().map(|one| (one.code.word(), one.text.clone())))
    {
        let _ = writeln!(text, "    {} {}", style.yellow(&format!("{code}:")), safe(&finding));
    }
    let advised: BTreeSet<&str> =
        findings.iter().filter_map(|finding| advice(finding.code)).collect();
    for advice in advised {
        let _ = writeln!(text, "    {} {advice}", style.green("hint:"));
    }
}
