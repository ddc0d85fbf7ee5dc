//! `ociseek cat`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use clap::Args;

use crate::cli::shared::error::CliError;
use crate::cli::shared::parse::NonEmptyPath;
use crate::cli::shared::progress::Display;
use crate::cli::shared::read_image::{FoundImage, ReadArgs, tell_path, tell_stats};
use crate::cli::shared::stdout::Stdout;
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::image::ImageName;
use ociseek_format::tree::NodeKind;
use ociseek_ops::open::RootFs;

const CAT_LONG_ABOUT: &str = "\
Prints files of an image without pulling it. From layers covered by a SOCI index, only the spans that hold the file \
are fetched. Other layers are read once, and the cache keeps their ztocs.

IMAGE is as for ociseek index, or docker-archive:FILE[:[REPOSITORY:]TAG|:@NUMBER] for an archive from docker save.";

const CAT_AFTER_HELP: &str = "\
Examples:
  ociseek cat debian:13 /etc/os-release
  ociseek cat --stats ghcr.io/acme/app:1.4 /app/config.json";

/// Print files of an image without pulling it
#[derive(Debug, Args)]
#[command(long_about = CAT_LONG_ABOUT, after_help = CAT_AFTER_HELP)]
pub(crate) struct CatArgs {
    /// The image
    #[arg(value_name = "IMAGE")]
    pub image: ImageName,

    /// The files; symbolic links are followed inside the image
    #[arg(value_name = "PATH", required = true, value_parser = NonEmptyPath)]
    pub paths: Vec<OsString>,

    #[command(flatten)]
    pub read: ReadArgs,
}

/// How many bytes are read at a time.
const PIECE: u64 = 1 << 20;

/// Writes the files one after the other, and continues after failures.
pub(super) async fn run(args: CatArgs, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let display = Arc::new(Display::new(verbosity));
    let opening = async {
        FoundImage::new(&args.image, &args.read, display.clone())
            .await?
            .open(&args.read, false)
            .await
    };
    let rootfs = display.during(&args.image.to_string(), opening).await?;
    let mut stdout = Stdout::new();
    let mut failed = 0;
    for path in &args.paths {
        let path = path.as_bytes();
        match write(&rootfs, path, &mut stdout).await {
            Ok(()) => {}
            Err(error) if error.is_of_stdout() => return Err(error),
            Err(error) => {
                failed += 1;
                tell_path(path, &error);
            }
        }
    }
    if args.read.stats {
        tell_stats(&rootfs);
    }
    match failed {
        0 => Ok(()),
        failed => Err(CliError::some(failed, args.paths.len(), "paths failed")),
    }
}

async fn write(rootfs: &RootFs, path: &[u8], stdout: &mut Stdout) -> Result<(), CliError> {
    let node = rootfs.tree.node(rootfs.tree.resolve(path, true)?);
    let other = match &node.kind {
        NodeKind::File(_) | NodeKind::Sparse(_) => None,
        NodeKind::Directory(_) => Some("a directory"),
        NodeKind::Symlink(_) => Some("a symbolic link"),
        NodeKind::CharDevice { .. } | NodeKind::BlockDevice { .. } => Some("a device"),
        NodeKind::Fifo => Some("a FIFO"),
    };
    if let Some(other) = other {
        return Err(CliError::new(format!("is {other}, not a file")));
    }
    let mut done = 0;
    // If the reader has gone away, the rest of the file is not fetched.
    while done < node.kind.size() && !stdout.is_gone() {
        let end = node.kind.size().min(done + PIECE);
        stdout.print(&rootfs.content.read_file(&node.kind, done..end).await?)?;
        done = end;
    }
    Ok(())
}
