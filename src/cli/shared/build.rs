//! Converts options for building an index to those of the library.

use std::sync::Arc;

use super::args::{BuildArgs, ExistingArg};
use super::source::Images;
use ociseek_format::image::ImageName;
use ociseek_format::layer::LayerOptions;
use ociseek_format::progress::{Progress, ProgressEvent, causes};
use ociseek_ops::index::{Existing, ReuseSource};

pub(crate) fn layer_options(build: &BuildArgs) -> LayerOptions {
    LayerOptions {
        span_size: build.span_size.0,
        build_tool_identifier: build.build_tool_identifier.clone(),
        fine: false,
    }
}

/// The images of --reuse-from. Prints a warning for each image that cannot be opened.
pub(crate) async fn named(images: &Images, names: &[ImageName], progress: &Arc<dyn Progress>) -> Vec<ReuseSource> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        match images.open(name).await {
            Ok((source, target)) => found.push(ReuseSource { name: name.to_string().into(), source, target }),
            Err(error) => {
                let why = format!("cannot reuse anything from {name}: {}", causes(&error));
                progress.report(ProgressEvent::Warning(why));
            }
        }
    }
    found
}

impl From<ExistingArg> for Existing {
    fn from(rule: ExistingArg) -> Existing {
        match rule {
            ExistingArg::Skip => Existing::Skip,
            ExistingArg::Replace => Existing::Replace,
            ExistingArg::Keep => Existing::Keep,
        }
    }
}
