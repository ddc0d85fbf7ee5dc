//! `ociseek bundle`.

use tokio::sync::oneshot;

use crate::cli::lazy::detach::{self, Log};
use crate::cli::lazy::live_bundle::{LiveBundle, blocking, make};
use crate::cli::lazy::{self, End};
use crate::cli::run::until;
use crate::cli::shared::error::CliError;
use crate::cli::shared::signals::Interrupt;
use crate::cli::shared::talk::TalkArgs;
use args::BundleArgs;
use ociseek_ops::bundle::{Bundle, remove};
use ociseek_ops::mount::Record;

pub(super) mod args;

pub(super) async fn run(
    args: BundleArgs,
    talk: TalkArgs,
    interrupted: &mut oneshot::Receiver<Interrupt>,
) -> Result<(), CliError> {
    if let Some(dir) = args.rm {
        return blocking(move || remove(&dir)).await;
    }
    let (Some(name), Some(dir)) = (args.image, args.dir) else {
        return Err(CliError::Usage("expected IMAGE and DIR, or --rm DIR"));
    };
    let (serve, format) = (args.serve, args.format);
    if serve.detach && !serve.detached {
        return detach::start(interrupted).await;
    }
    let log = serve.detached.then(|| Log::open(serve.log.as_deref())).transpose()?;
    let record = serve.record.as_deref().map(lazy::create).transpose()?.map(Record::File);
    let (mut opened, live_bundle) = until(interrupted, async {
        let image = name.to_string();
        let bundle = blocking(move || Bundle::new(&dir, &image)).await?;
        let run = lazy::run_options(args.container, args.command);
        let prefetch = args.lazy.prefetching();
        let opened = lazy::open_image(&name, None, args.lazy, talk).await?;
        let live_bundle = make(&opened, bundle, &run, record, prefetch).await?;
        Ok((opened, live_bundle))
    })
    .await?;
    let LiveBundle { bundle, mut live } = live_bundle;
    let dir = bundle.dir().display();
    let or_interrupt = if serve.detached { "" } else { "Ctrl-C or " };
    opened.tell_ready(&format!(
        "{} is a bundle in {dir} ({or_interrupt}ociseek bundle --rm {dir} takes it down)",
        opened.name
    ));
    if format.is_json() {
        opened.print_ready(bundle.dir())?;
    }
    if let Some(log) = log {
        log.ready()?;
    }
    let end = lazy::serve(&mut live, interrupted).await;
    let mounted = live.since();
    let ended = match end {
        Ok(End::Stopped) => LiveBundle { bundle, live }.take_down(&opened).await,
        // The process that unmounted it also removes the bundle.
        Ok(End::Unmounted) => {
            bundle.leave();
            Ok(())
        }
        Err(error) => Err(error),
    };
    let written = opened.write_stats(mounted);
    ended.and(written).map_err(|error| if format.is_json() { lazy::too_late(&error) } else { error })
}
