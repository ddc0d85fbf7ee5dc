//! `ociseek list`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::StreamExt;

use crate::cli::shared::args::OutputFormat;
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::text as text_of;
use crate::cli::shared::place::ListPlace;
use crate::cli::shared::progress::WarningProgress;
use crate::cli::shared::report::in_one_line;
use crate::cli::shared::size::human;
use crate::cli::shared::source::Images;
use crate::cli::shared::terminal::{Stdout, Style, safe};
use args::ListArgs;
use ociseek_format::image::soci::Version;
use ociseek_format::image::{Coverage, ImageName, ImageSelector};
use ociseek_format::progress::Progress;
use ociseek_ops::discover::FineSummary;
use ociseek_ops::list::{ListedImage, ListedIndex, ListedManifest, NamedTarget, list, tags};
use ociseek_store::Source;

pub(super) mod args;
pub(super) mod json;

pub(super) async fn run(args: ListArgs) -> Result<(), CliError> {
    let progress: Arc<dyn Progress> = Arc::new(WarningProgress);
    let images = Images::at(args.registry, args.place.registry().into_iter(), &progress).await?;
    let (source, places) = places(&images, &args.place).await?;
    let table = Table::new(&places);
    let mut stdout = Stdout::new();
    let mut print = |text: String| stdout.write_whole(text.as_bytes()).map_err(CliError::Stdout);
    if args.format.get() == OutputFormat::Text {
        print(table.header())?;
    }
    let (mut failed, all) = (0, places.len());
    let mut listed = Vec::new();
    let mut looked = std::pin::pin!(list(&source, places, usize::from(args.image_jobs.jobs), &progress));
    while let Some(image) = looked.next().await {
        failed += usize::from(image.manifests.as_ref().as_ref().is_err_and(|error| !error.is_not_an_image()));
        match args.format.get() {
            // A row is printed as soon as it is known, which also shows the progress.
            OutputFormat::Text => print(table.rows(&image, args.all))?,
            OutputFormat::Json => listed.push(image),
        }
    }
    if args.format.get() == OutputFormat::Json {
        print(text_of(json::Listing::of(&args.place.to_string(), &listed)).map_err(CliError::Stdout)?)?;
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::Listed { failed, all }),
    }
}

/// The store, and the images to list.
async fn places(images: &Images, place: &ListPlace) -> Result<(Source, Vec<NamedTarget>), CliError> {
    match place {
        ListPlace::Repository { registry, repository } => {
            let repository = images.repository_at(registry, repository)?;
            let places = tags(&repository).await?;
            Ok((Source::Registry(repository), places))
        }
        ListPlace::Image(ImageName::Layout { dir, select: ImageSelector::Any }) => {
            let (layout, found) = crate::cli::shared::source::layout_images(dir.clone()).await?;
            Ok((Source::Layout(layout), found))
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
    style: Style,
    now: SystemTime,
}

impl Table {
    fn new(places: &[NamedTarget]) -> Table {
        let longest = places.iter().map(|place| place.name.len().min(LONGEST_NAME)).max().unwrap_or(0).max(5);
        Table { name: longest, style: Stdout::new().style, now: SystemTime::now() }
    }

    fn header(&self) -> String {
        let line = self.line("IMAGE", "PLATFORM", "VERSION", "LAYERS", "COVERED", "SIZE", "IMAGE AGE", "TOOL");
        self.style.dim(line.trim_end()) + "\n"
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
        format!("{name:width$}  {os:14}  {version:7}  {layers:>7}  {covered:>7}  {size:>10}  {age:>9}  {tool}")
    }

    fn rows(&self, image: &ListedImage, all: bool) -> String {
        let mut text = String::new();
        let name = safe(&image.name);
        match image.manifests.as_ref() {
            Ok(manifests) => manifests.iter().for_each(|manifest| self.manifest(&mut text, &name, manifest)),
            Err(error) if error.is_not_an_image() && !all => {}
            Err(error) => {
                let width = self.name;
                let _ = writeln!(text, "{name:width$}  {}", self.style.yellow(&safe(&in_one_line(error))));
            }
        }
        text
    }

    fn manifest(&self, text: &mut String, name: &str, manifest: &ListedManifest) {
        let platform = manifest.platform.as_ref().map_or_else(|| "unknown".to_owned(), |p| safe(&p.to_string()));
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
        let content = content.map(|content| (&content.coverage, content.ztoc_bytes, content.tool.as_deref()));
        self.content(name, platform, version, age, content)
    }

    fn fine(&self, name: &str, platform: &str, age: &str, index: &FineSummary) -> String {
        let content = index.content.as_ref();
        let content = content.map(|content| (&content.coverage, content.bytes, content.tool.as_deref()));
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
                let (covered, size, tool) =
                    (coverage.share().to_string(), human(bytes), safe(tool.unwrap_or("unknown")));
                self.line(name, platform, version, &layers, &covered, &size, age, &tool)
            }
            Err(why) => self.line(name, platform, version, "", "", "", age, &format!("cannot be used: {}", safe(why))),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let ago = |seconds: i64| age(now, 1_700_000_000 - seconds);
        for (seconds, want) in [(0, "0 min"), (3599, "59 min"), (7200, "2 h"), (86_400, "1 d"), (864_000, "10 d")] {
            assert_eq!(ago(seconds).as_deref(), Some(want));
        }
        assert_eq!((ago(-1), age(now, 0), age(now, -5), age(now, 315_532_800)), (None, None, None, None));
    }
}
