//! `ociseek list`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use clap::Args;
use futures_util::StreamExt;
use serde::Serialize;

use crate::cli::shared::args::{FormatArgs, ImageJobsArgs, OutputFormat, RegistryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{
    CoverageJson, DigestText, Failure, Fine, Manifest as ManifestRef, text as text_of,
};
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::human;
use crate::cli::shared::source::{Images, ListPlace};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, complain, cut, fitted, safe, terminal_width};
use ociseek_format::image::soci::Version;
use ociseek_format::image::{Coverage, ImageName, ImageSelector};
use ociseek_format::progress::Progress;
use ociseek_ops::discover::FineSummary;
use ociseek_ops::list::{ListedImage, ListedIndex, ListedManifest, NamedTarget, list, tags};
use ociseek_store::Source;

const LIST_LONG_ABOUT: &str = "\
Lists the indexes of images: the platform, the version of a SOCI index or `fine` for a fine index, how many layers and \
how much of the image it covers, the size of its ztocs or documents, and the tool that made it. IMAGE AGE is that of \
the image, from its config: indexes have no date, so that the same layers give the same index.

A repository without a tag means all its tags, and oci:DIR all images of the layout. Layers and ztocs are not read: \
each image costs a few small requests, and tags of the same image are read once. Tags of non-images (charts, \
signatures) are skipped unless --all is given.";

const LIST_AFTER_HELP: &str = "\
Examples:
  ociseek list ghcr.io/acme/app
  ociseek list ghcr.io/acme/app:1.4
  ociseek list --json ghcr.io/acme/app |
    jq -r '.images[] | select(.manifests[].indexes == []) | .name'

JSON: docs/json.md describes each field.

Exit status: 0 success, 1 an image could not be read, 2 usage error; 129, 130 or 143 on SIGHUP, SIGINT or SIGTERM.";

/// List the indexes of images
#[derive(Debug, Args)]
#[command(long_about = LIST_LONG_ABOUT, after_long_help = LIST_AFTER_HELP)]
pub(crate) struct ListArgs {
    /// A repository ([REGISTRY/]REPOSITORY), a layout (oci:DIR), or an image
    #[arg(value_name = "REPOSITORY|IMAGE")]
    pub place: ListPlace,

    /// Include tags of non-images
    #[arg(long)]
    pub all: bool,

    #[command(flatten)]
    pub image_jobs: ImageJobsArgs,

    #[command(flatten)]
    pub registry: RegistryArgs,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: ListArgs) -> Result<(), CliError> {
    args.place.check()?;
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let images = Images::at(args.registry, args.place.registry().into_iter(), &progress).await?;
    let (source, places) = places(&images, &args.place).await?;
    let table = Table::new(&places);
    let mut stdout = Stdout::new();
    let mut print = |text: String| stdout.print(text);
    if args.format.get() == OutputFormat::Text {
        print(table.header())?;
    }
    let mut failed = 0;
    let all = places.len();
    if all == 0 {
        complain(&format!("{}: no tags", args.place));
    }
    let mut listed = Vec::new();
    let mut looked =
        std::pin::pin!(list(&source, places, usize::from(args.image_jobs.jobs), &progress));
    while let Some(image) = looked.next().await {
        failed += usize::from(
            image.manifests.as_ref().as_ref().is_err_and(|error| !error.is_not_an_image()),
        );
        match args.format.get() {
            // A row is printed as soon as it is known, which also shows the progress.
            OutputFormat::Text => print(fitted(&table.rows(&image, args.all), table.columns))?,
            OutputFormat::Json => listed.push(image),
        }
    }
    if args.format.get() == OutputFormat::Json {
        print(text_of(Listing::of(&args.place.to_string(), &listed))?)?;
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::unread(failed, all)),
    }
}

/// The store, and the images to list.
async fn places(
    images: &Images,
    place: &ListPlace,
) -> Result<(Source, Vec<NamedTarget>), CliError> {
    match place {
        ListPlace::Repository { registry, repository } => {
            let repository = images.repository_at(registry, repository)?;
            let places = tags(&repository).await?;
            Ok((Source::Registry(repository), places))
        }
        ListPlace::Image(ImageName::Layout { dir, select: ImageSelector::Any }) => {
            let (layout, entries) = crate::cli::shared::source::layout_images(dir.clone()).await?;
            Ok((Source::Layout(layout), entries))
        }
        ListPlace::Image(name) => {
            let (source, target) = images.open(name).await?;
            let name = match name {
                ImageName::Layout { select: ImageSelector::Tag(tag), .. } => tag.clone(),
                _ => target.to_string(),
            };
            Ok((source, vec![NamedTarget { name, target }]))
        }
    }
}

/// How many bytes of a name its column has room for: a digest fits.
const LONGEST_NAME: usize = "sha256:".len() + 64;

/// Columns wide enough for most rows. A row is printed before the next one is known, so a longer
/// cell shifts the rest of its row.
struct Table {
    name: usize,
    /// Those of the terminal.
    columns: Option<usize>,
    style: Style,
    now: SystemTime,
}

impl Table {
    fn new(places: &[NamedTarget]) -> Table {
        let longest =
            places.iter().map(|place| place.name.len().min(LONGEST_NAME)).max().unwrap_or(0).max(5);
        let columns = terminal_width();
        Table { name: longest, columns, style: Stdout::new().style, now: SystemTime::now() }
    }

    fn header(&self) -> String {
        let line = self.line(
            "IMAGE",
            "PLATFORM",
            "VERSION",
            "LAYERS",
            "COVERED",
            "SIZE",
            "IMAGE AGE",
            "TOOL",
        );
        self.style.dim(&cut(line.trim_end(), self.columns)) + "\n"
    }

    #[allow(clippy::too_many_arguments, reason = "one for each column")]
    fn line(
        &self,
        name: &str,
        os: &str,
        version: &str,
        layers: &str,
        covered: &str,
        size: &str,
        age: &str,
        tool: &str,
    ) -> String {
        let width = self.name;
        format!(
            "{name:width$}  {os:14}  {version:7}  {layers:>7}  {covered:>7}  {size:>10}  {age:>9}  {tool}"
        )
    }

    fn rows(&self, image: &ListedImage, all: bool) -> String {
        let mut text = String::new();
        let name = safe(&image.name);
        match image.manifests.as_ref() {
            Ok(manifests) => {
                manifests.iter().for_each(|manifest| self.manifest(&mut text, &name, manifest))
            }
            Err(error) if error.is_not_an_image() && !all => {}
            Err(error) => {
                let width = self.name;
                let _ = writeln!(text, "{name:width$}  {}", self.style.yellow(&in_one_line(error)));
            }
        }
        text
    }

    fn manifest(&self, text: &mut String, name: &str, manifest: &ListedManifest) {
        let platform = manifest
            .platform
            .as_ref()
            .map_or_else(|| "unknown".to_owned(), |p| safe(&p.to_string()));
        let age = manifest.created.and_then(|time| age(self.now, time.seconds)).unwrap_or_default();
        let mut print = |line: String| {
            let _ = writeln!(text, "{}", line.trim_end());
        };
        for index in &manifest.indexes {
            print(self.index(name, &platform, &age, index));
        }
        for fine in &manifest.fine {
            print(self.fine(name, &platform, &age, fine));
        }
        let is_bare = manifest.indexes.is_empty() && manifest.fine.is_empty();
        match &manifest.unlisted {
            Some(why) => print(self.line(name, &platform, "?", "", "", "", &age, &safe(why))),
            None if is_bare => print(self.line(name, &platform, "none", "", "", "", &age, "")),
            None => {}
        }
    }

    fn index(&self, name: &str, platform: &str, age: &str, index: &ListedIndex) -> String {
        let version = match index.version {
            Version::V1 => "1",
            Version::V2 => "2",
        };
        let content = index.content.as_ref();
        let content =
            content.map(|content| (&content.coverage, content.ztoc_bytes, content.tool.as_deref()));
        self.content(name, platform, version, age, content)
    }

    fn fine(&self, name: &str, platform: &str, age: &str, index: &FineSummary) -> String {
        let content = index.content.as_ref();
        let content =
            content.map(|content| (&content.coverage, content.bytes, content.tool.as_deref()));
        self.content(name, platform, "fine", age, content)
    }

    /// The columns for the content of an index: its coverage, size and tool, or why it cannot be
    /// used.
    fn content(
        &self,
        name: &str,
        platform: &str,
        version: &str,
        age: &str,
        content: Result<(&Coverage, u64, Option<&str>), &String>,
    ) -> String {
        match content {
            Ok((coverage, bytes, tool)) => {
                let layers = format!("{}/{}", coverage.layers, coverage.of_layers);
                let covered = coverage.share().to_string();
                let size = human(bytes);
                let tool = safe(tool.unwrap_or("unknown"));
                let row = self.line(name, platform, version, &layers, &covered, &size, age, &tool);
                cut(row.trim_end(), self.columns)
            }
            Err(why) => self.line(
                name,
                platform,
                version,
                "",
                "",
                "",
                age,
                &format!("cannot be used: {}", safe(why)),
            ),
        }
    }
}

/// The age of an image that was created at this time, in seconds since 1970. None if the time is in
/// the future or was not set by a build: reproducible builds use 1970 or 1980.
fn age(now: SystemTime, then: i64) -> Option<String> {
    const DAY: u64 = 24 * 60 * 60;
    const YEAR_1981: i64 = 347_155_200;
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs();
    let age = now.checked_sub(u64::try_from(then).ok().filter(|_| then >= YEAR_1981)?)?;
    Some(match age {
        0..3600 => format!("{} min", age / 60),
        3600..DAY => format!("{} h", age / 3600),
        _ => format!("{} d", age / DAY),
    })
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Listing {
    /// The full name of the repository, layout or image.
    place: String,
    /// One object for each tag, sorted by name, or for each image of a layout.
    images: Vec<Image>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Image {
    /// Its tag, or its digest if it has none.
    name: String,
    /// The digest of its manifest or image index; null if it could not be read.
    digest: Option<DigestText>,
    status: Status,
    /// Why it is not `ok`, or null.
    error: Option<Failure>,
    /// One object for each platform's manifest; empty unless `ok`.
    manifests: Vec<Manifest>,
}

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(test, derive(schemars::JsonSchema))]
enum Status {
    Ok,
    NotAnImage,
    Failed,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Manifest {
    /// Such as `linux/arm64`; null if the image does not state it.
    platform: Option<String>,
    manifest: ManifestRef,
    /// The creation time of the image according to its config (RFC 3339), or null.
    created: Option<String>,
    /// Why indexes of version 1 and fine indexes cannot be listed, or null.
    error: Option<Failure>,
    /// The SOCI indexes.
    indexes: Vec<Index>,
    /// The fine indexes.
    fine: Vec<Fine>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Index {
    digest: DigestText,
    /// 1 or 2.
    version: u8,
    found_by: &'static str,
    /// Whether ociseek reads the image through this index.
    chosen: bool,
    /// The tool that made it, or null.
    tool: Option<String>,
    /// Null if it cannot be used.
    coverage: Option<CoverageJson>,
    /// Why it cannot be used, or null.
    error: Option<Failure>,
}

impl Listing {
    pub(crate) fn of(place: &str, images: &[ListedImage]) -> Listing {
        Listing { place: place.to_owned(), images: images.iter().map(Image::of).collect() }
    }
}

impl Image {
    fn of(listed: &ListedImage) -> Image {
        let (status, error, manifests) = match listed.manifests.as_ref() {
            Ok(manifests) => (Status::Ok, None, manifests.iter().map(Manifest::of).collect()),
            Err(error) if error.is_not_an_image() => {
                (Status::NotAnImage, Some(Failure::of(error)), Vec::new())
            }
            Err(error) => (Status::Failed, Some(Failure::of(error)), Vec::new()),
        };
        Image {
            name: listed.name.clone(),
            digest: listed.digest.map(DigestText::from),
            status,
            error,
            manifests,
        }
    }
}

impl Manifest {
    fn of(listed: &ListedManifest) -> Manifest {
        Manifest {
            platform: listed.platform.as_ref().map(ToString::to_string),
            manifest: ManifestRef::named(listed.manifest),
            created: listed.created.and_then(|time| time.to_rfc3339()),
            error: listed.unlisted.as_deref().map(Failure::of_text),
            indexes: listed.indexes.iter().map(Index::of).collect(),
            fine: Fine::each(&listed.fine),
        }
    }
}

impl Index {
    fn of(listed: &ListedIndex) -> Index {
        let content = listed.content.as_ref().ok();
        Index {
            digest: listed.digest.into(),
            version: listed.version.number(),
            found_by: listed.via.code(),
            chosen: listed.chosen,
            tool: content.and_then(|content| content.tool.clone()),
            coverage: content
                .map(|content| CoverageJson::with_ztocs(&content.coverage, content.ztoc_bytes)),
            error: listed.content.as_ref().err().map(|error| Failure::of_text(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let ago = |seconds: i64| age(now, 1_700_000_000 - seconds);
        for (seconds, want) in
            [(0, "0 min"), (3599, "59 min"), (7200, "2 h"), (86_400, "1 d"), (864_000, "10 d")]
        {
            assert_eq!(ago(seconds).as_deref(), Some(want));
        }
        assert_eq!(
            (ago(-1), age(now, 0), age(now, -5), age(now, 315_532_800)),
            (None, None, None, None)
        );
    }
}
