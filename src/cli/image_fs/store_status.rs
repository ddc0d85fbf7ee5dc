//! `ociseek store status`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::cli::blocking;
use crate::cli::shared::args::{FormatArgs, OutputFormat};
use crate::cli::shared::error::CliError;
use crate::cli::shared::json::{DigestText, text as text_of};
use crate::cli::shared::size::counted;
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::terminal::{Style, safe};
use ociseek_node::store::{KeptStore, UsedImage, kept_store};
use ociseek_store::home_dir;

const STATUS_LONG_ABOUT: &str = "\
Shows whether a store is mounted and answers, and the images whose layers podman or CRI-O uses through it.

It reads the store's directory and the kernel's list of mounts, so the store need not run. An image is listed until \
podman removes it; layers that were pulled are not counted.";

const STATUS_AFTER_HELP: &str = "\
JSON: docs/json.md describes each field.

Exit status: 0 it is mounted and answers, 1 failure, 2 usage error, 3 it is not mounted, or does not answer.";

/// Show whether the store is mounted, and the images that it serves
#[derive(Debug, Args)]
#[command(long_about = STATUS_LONG_ABOUT, after_help = STATUS_AFTER_HELP)]
pub(crate) struct StoreStatusArgs {
    /// Its directory, as for ociseek store [default: /var/lib/ociseek/store, for users
    /// ~/.local/share/ociseek/store]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    #[command(flatten)]
    pub format: FormatArgs,
}

pub(super) async fn run(args: StoreStatusArgs) -> Result<(), CliError> {
    // One that was typed is meant to be there.
    if let Some(root) = &args.root {
        std::fs::read_dir(root).map_err(CliError::read(root))?;
    }
    let root = args
        .root
        .or_else(default_root)
        .ok_or(CliError::usage("--root is needed where HOME is not set"))?;
    let place = root.clone();
    let store = blocking(move || kept_store(&place).map_err(CliError::read(&place))).await?;
    let status = StoreStatus::of(root.display().to_string(), store);
    let mut stdout = Stdout::new();
    match args.format.get() {
        OutputFormat::Json => stdout.print(text_of(&status)?)?,
        OutputFormat::Text => stdout.tell(&status.text(stdout.style))?,
    }
    if status.answers { Ok(()) } else { Err(CliError::not_serving()) }
}

/// Where a store has its state, unless --root names another place.
pub(super) fn default_root() -> Option<PathBuf> {
    if rustix::process::geteuid().is_root() {
        return Some(PathBuf::from("/var/lib/ociseek/store"));
    }
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let data = var("XDG_DATA_HOME").or_else(|| home_dir().map(|home| home.join(".local/share")));
    data.map(|data| data.join("ociseek/store"))
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct StoreStatus {
    /// The store's directory.
    root: String,
    /// Where it was mounted last, or null.
    mount_point: Option<String>,
    /// Whether it is mounted there.
    mounted: bool,
    /// Whether the mount answers.
    answers: bool,
    /// The images of which podman or CRI-O uses layers, by name.
    images: Vec<StoredImage>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct StoredImage {
    /// The name by which it was pulled.
    image: String,
    /// The digest of its manifest.
    digest: DigestText,
    /// How many of its layers are used through the store.
    layers: usize,
    #[serde(skip)]
    shown: String,
}

impl StoreStatus {
    fn of(root: String, store: KeptStore) -> StoreStatus {
        let image = |image: UsedImage| StoredImage {
            shown: format!("{}@{}", image.name, image.manifest),
            image: image.name,
            digest: image.manifest.into(),
            layers: image.layers,
        };
        StoreStatus {
            root,
            mount_point: store.point.map(|point| point.display().to_string()),
            mounted: store.is_mounted,
            answers: store.answers,
            images: store.images.into_iter().map(image).collect(),
        }
    }

    fn text(&self, style: Style) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<7}  {value}");
        };
        let service = match (self.mounted, self.answers) {
            (true, true) => style.green("mounted"),
            (true, false) => style.red("mounted, but does not answer"),
            (false, _) => style.red("not mounted"),
        };
        let point = self.mount_point.as_ref().map(|point| format!(" ({})", safe(point)));
        line("service", format!("{service}{}", point.unwrap_or_default()));
        line("state", safe(&self.root));
        line("images", self.images.len().to_string());
        for StoredImage { shown, layers, .. } in &self.images {
            let layers = counted(*layers as u64, "layer", "layers");
            let _ = writeln!(text, "  {}  {layers}", safe(shown));
        }
        text
    }
}
