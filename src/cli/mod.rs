//! The command line: options in, text and exit codes out.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio::sync::oneshot;

use args::{Cli, Command, HookCommand, ZtocCommand};
use report::CliError;
use signals::Interrupt;
use terminal::Stdout;

mod args;
mod args_backfill;
mod args_convert;
mod args_hook;
mod args_lifecycle;
mod args_mount;
mod args_prefetch;
mod args_read;
mod args_reuse;
mod args_serve;
mod args_versions;
mod backfill;
mod bundle;
mod cache;
mod caches;
mod cat;
mod convert;
pub mod convert_json;
mod convert_text;
mod copy;
mod detach;
mod diff;
mod difference_json;
mod difference_text;
mod doctor;
mod doctor_args;
pub mod doctor_json;
mod hook_lambda;
mod hook_serve;
mod index;
mod inspect;
pub mod inspect_json;
pub mod json;
mod lazy;
mod list;
pub mod list_json;
mod ls;
pub mod ls_json;
mod ls_text;
mod mount;
mod parse;
mod progress;
mod prune;
mod quote;
mod registry_hint;
mod report;
mod rm;
pub mod rm_json;
mod rootfs;
mod secret_file;
mod signals;
mod size;
mod source;
mod step;
mod terminal;
mod text;
mod trace;
mod verify;
pub mod verify_json;
mod version;
mod ztoc;
mod ztoc_args;
mod ztoc_extract;
mod ztoc_json;
mod ztoc_spans;
mod ztoc_text;
mod ztoc_verify;

/// How long work that is already writing a file may take to end in good order after a signal.
const LAST_WORK: Duration = Duration::from_millis(500);

/// How long a registry may take, after a signal, to answer that an upload is cancelled.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// Runs the program; the one entry point of `main`.
pub fn run() -> ExitCode {
    let cli = match Cli::try_parse_from(hook_lambda::arguments()) {
        Ok(cli) => cli,
        Err(message) => {
            // A closed pipe is no failure of --help.
            let _ = message.print();
            return ExitCode::from(message.exit_code() as u8);
        }
    };
    match execute(cli.command) {
        Ok(()) => ExitCode::from(report::DONE),
        Err(error) => {
            if !error.was_told() {
                report::tell(None, &error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn execute(command: Command) -> Result<(), CliError> {
    let mut interrupted = signals::listen().map_err(CliError::Start)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(CliError::Start)?;
    let result = runtime.block_on(async {
        let interrupted = &mut interrupted;
        match command {
            Command::Index(args) => settled(until(interrupted, index::run(*args)).await).await,
            Command::Convert(args) => settled(until(interrupted, convert::run(*args)).await).await,
            Command::Backfill(args) => settled(until(interrupted, backfill::run(*args)).await).await,
            Command::Inspect(args) => until(interrupted, inspect::run(*args)).await,
            Command::Ls(args) => until(interrupted, ls::run(*args)).await,
            Command::Cat(args) => until(interrupted, cat::run(*args)).await,
            Command::Verify(args) => until(interrupted, verify::run(*args)).await,
            Command::Doctor(args) => until(interrupted, doctor::run(*args)).await,
            Command::List(args) => until(interrupted, list::run(*args)).await,
            Command::Copy(args) => settled(until(interrupted, copy::run(*args)).await).await,
            Command::Prune(args) => until(interrupted, prune::run(*args)).await,
            Command::Diff(args) => until(interrupted, diff::run(*args)).await,
            Command::Rm(args) => until(interrupted, rm::run(*args)).await,
            // These go on until they are stopped, and clear up then.
            Command::Mount(args) => mount::run(*args, interrupted).await,
            Command::Bundle(args) => bundle::run(*args, interrupted).await,
            Command::Trace(args) => trace::run(*args, interrupted).await,
            // It goes on until it is stopped, and then ends in good order.
            Command::Hook(HookCommand::Serve(args)) => hook_serve::run(*args, interrupted).await,
            #[cfg(feature = "nats")]
            Command::Hook(HookCommand::Worker(args)) => hook_serve::work(*args, interrupted).await,
            Command::Hook(HookCommand::Lambda(args)) => until(interrupted, hook_lambda::run(*args)).await,
            Command::Cache(command) => until(interrupted, blocking(move || cache::run(command))).await,
            Command::Completions(args) => version::completions(&args),
            Command::Man(args) => version::man(&args),
            Command::Version(args) => version::version(&args),
            Command::Ztoc(ztoc) => {
                // Dropped at a signal, with the future: the thread sees that.
                let (wanted, still_wanted) = signals::wanted();
                let work = move || match ztoc {
                    ZtocCommand::Create(args) => ztoc::create(&args, &mut Stdout::new()),
                    ZtocCommand::Show(args) => ztoc::show(&args, &mut Stdout::new()),
                    ZtocCommand::Extract(args) => ztoc_extract::run(&args, &mut Stdout::new(), &still_wanted),
                    ZtocCommand::Verify(args) => ztoc_verify::run(&args, &mut Stdout::new()),
                };
                let result = until(interrupted, blocking(work)).await;
                drop(wanted);
                result
            }
        }
    });
    runtime.shutdown_timeout(LAST_WORK);
    result
}

/// After an interruption, lets uploads that it cancelled end.
async fn settled(result: Result<(), CliError>) -> Result<(), CliError> {
    if matches!(result, Err(CliError::Interrupted(_))) {
        settle().await;
    }
    result
}

/// Waits, but not for long, for what a dropped piece of work still has to send: uploads that it cancels.
async fn settle() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let idle = async {
        while metrics.num_alive_tasks() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _ = tokio::time::timeout(LAST_REQUESTS, idle).await;
}

/// Runs `work` until it is done, or drops it at the first signal.
async fn until<T>(
    interrupted: &mut oneshot::Receiver<Interrupt>,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    tokio::select! {
        biased;
        Ok(signal) = interrupted => Err(CliError::Interrupted(signal)),
        result = work => result,
    }
}

async fn blocking(work: impl FnOnce() -> Result<(), CliError> + Send + 'static) -> Result<(), CliError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            // Our own bug: it goes on as if there had been no thread.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(CliError::Start(error.into())),
        },
    }
}
