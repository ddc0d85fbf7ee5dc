//! The command line: options in, text and exit codes out. Commands run here, and end on signals.

use std::ffi::OsString;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use tokio::sync::oneshot;

#[cfg(mounts)]
use args::NodeCommand;
use args::{Cli, Command, Failures, ServiceCommand};
#[cfg(mounts)]
use args::{LazyCli, LazyCommand};
#[cfg(mounts)]
use image_fs::{bundle, mount, store};
#[cfg(mounts)]
use ociseek_format::layer::parallel::cores;
use shared::error::{CliError, DONE};
use shared::json;
use shared::report::{failure, report_error};
use shared::signals::{self, Interrupt};
use shared::stdout::Stdout;
use shared::verbosity::VerbosityArgs;
use ztoc::ZtocCommand;

mod args;
mod backfill;
mod cache;
mod cat;
mod convert;
mod doctor;
mod help;
mod hook;
#[cfg(mounts)]
mod image_fs;
mod index;
mod list;
mod ls;
mod obsolete;
mod rm;
#[cfg(test)]
mod schema;
// Some of it is only used by commands that this build may not have.
#[cfg_attr(not(mounts), allow(dead_code))]
mod shared;
mod slips;
#[cfg(mounts)]
mod snapshotter;
mod trial;
mod verify;
mod version;
mod ztoc;

/// How long work that is writing a file may take to end gracefully after a signal.
const LAST_WORK: Duration = Duration::from_millis(500);

/// Runs the program. The only function that `main` calls.
pub fn run() -> ExitCode {
    #[cfg(mounts)]
    if let Some(code) =
        image_fs::detach::run_keeper(&arguments()).or_else(|| image_fs::detach::run(&arguments()))
    {
        return code;
    }
    let cli = match parsed() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let failures = cli.command.failures();
    let started = cli.command.log_of(cli.verbosity).start_log(cli.command.log_readers());
    match started.and_then(|()| execute(cli.command, cli.verbosity)) {
        Ok(()) => ExitCode::from(DONE),
        Err(error) => {
            if !error.is_reported() {
                report_error(None, &error);
            }
            if !error.is_in_document() {
                print_json_error(failures, &error);
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// The command line. If it asks for help or is not valid, this prints the help or the error, and
/// returns the exit code.
fn parsed() -> Result<Cli, ExitCode> {
    // Building the options of all commands takes over a megabyte of stack. The main thread's stack
    // never shrinks, so servers of mounts would keep that.
    match std::thread::Builder::new().stack_size(STACK).spawn(parse) {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(_) => parse(),
    }
}

fn parse() -> Result<Cli, ExitCode> {
    #[cfg(mounts)]
    if let Some(cli) = parse_lazy(&arguments()) {
        return Ok(cli);
    }
    let mut program = help::grouped(help::with_other_names(Cli::command()), true);
    let parsed = program
        .try_get_matches_from_mut(arguments())
        .and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|message| {
        help::print(message.format(&mut program), program, Cli::command, arguments())
    })
}

/// The command line of a command that shows an image as a file system. None for other commands, for
/// help, and for mistakes.
#[cfg(mounts)]
fn parse_lazy(arguments: &[OsString]) -> Option<Cli> {
    let mut program = LazyCli::command();
    let command =
        arguments.iter().skip(1).find(|typed| !typed.as_encoded_bytes().starts_with(b"-"))?;
    program.find_subcommand(command)?;
    program = help::with_other_names(program);
    let matches = program.try_get_matches_from_mut(arguments).ok()?;
    LazyCli::from_arg_matches(&matches).ok().map(Cli::from)
}

/// The arguments. AWS Lambda passes none.
fn arguments() -> Vec<OsString> {
    hook::lambda::arguments()
}

/// Judges an image by the configuration of this node's snapshotter.
#[cfg(mounts)]
async fn doctor_of_node(
    args: doctor::DoctorArgs,
    verbosity: VerbosityArgs,
) -> Result<(), CliError> {
    let config = args.node.unwrap_or_default();
    snapshotter::doctor::run(&config, &args.image, args.format.get(), verbosity).await
}

/// Runs commands that continue until they are stopped, and clean up then.
#[cfg(mounts)]
async fn lazily(
    command: LazyCommand,
    verbosity: VerbosityArgs,
    interrupted: &mut oneshot::Receiver<signals::Interrupt>,
) -> Result<(), CliError> {
    match command {
        LazyCommand::Mount(args) => boxed(|| mount::run(*args, verbosity, interrupted)).await,
        LazyCommand::Bundle(args) => boxed(|| bundle::run(*args, verbosity, interrupted)).await,
        LazyCommand::Store(args) => boxed(|| store::run(*args, verbosity, interrupted)).await,
    }
}

/// Reports an error as JSON on standard output, if JSON was requested.
fn print_json_error(failures: Failures, error: &CliError) {
    let failed = json::Failed { error: failure(error) };
    let text = match failures {
        Failures::None => return,
        Failures::Document => json::text(failed),
        Failures::Line => json::line(failed).map(|line| line + "\n"),
    };
    // If the output cannot be written, the exit status remains.
    let _ = text.and_then(|text| Stdout::new().print(text));
}

/// The stack size of each thread, as for the main thread. Without optimisation of our own code, as
/// in Cargo's profile `release`, a job of `hook serve` takes more than the default of 2 MiB.
const STACK: usize = 8 << 20;

/// The most threads that run the tasks of a mount. Each thread takes memory, and a node has many
/// mounts.
#[cfg(mounts)]
const MOUNT_WORKERS: usize = 8;

fn execute(command: Command, verbosity: VerbosityArgs) -> Result<(), CliError> {
    let mut interrupted = signals::listen().map_err(CliError::start)?;
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    #[cfg(mounts)]
    if matches!(command, Command::Lazy(_)) {
        runtime.worker_threads(cores().min(MOUNT_WORKERS));
    }
    let runtime = runtime.enable_all().thread_stack_size(STACK).build().map_err(CliError::start)?;
    let result = runtime.block_on(async {
        let interrupted = &mut interrupted;
        match command {
            Command::Index(args) => {
                settled(until(interrupted, boxed(|| index::run(*args, verbosity))).await).await
            }
            Command::Convert(args) => {
                settled(until(interrupted, boxed(|| convert::run(*args, verbosity))).await).await
            }
            Command::Ls(args) => until(interrupted, boxed(|| ls::run(*args, verbosity))).await,
            Command::Try(args) => boxed(|| trial::run(*args, verbosity, interrupted)).await,
            Command::Cat(args) => until(interrupted, boxed(|| cat::run(*args, verbosity))).await,
            Command::Verify(args) => {
                until(interrupted, boxed(|| verify::run(*args, verbosity))).await
            }
            #[cfg(mounts)]
            Command::Doctor(args) if args.node.is_some() => {
                until(interrupted, boxed(|| doctor_of_node(*args, verbosity))).await
            }
            Command::Doctor(args) => {
                until(interrupted, boxed(|| doctor::run(*args, verbosity))).await
            }
            Command::List(args) => until(interrupted, boxed(|| list::run(*args))).await,
            Command::Rm(args) if args.obsolete => {
                until(interrupted, boxed(|| obsolete::run(*args))).await
            }
            Command::Rm(args) => until(interrupted, boxed(|| rm::run(*args))).await,
            #[cfg(mounts)]
            Command::Lazy(command) => lazily(command, verbosity, interrupted).await,
            #[cfg(mounts)]
            Command::Node(NodeCommand::Snapshotter(args)) => {
                boxed(|| snapshotter::run(*args, verbosity, interrupted)).await
            }
            Command::Service(ServiceCommand::Backfill(args)) => {
                settled(until(interrupted, boxed(|| backfill::run(*args, verbosity))).await).await
            }
            Command::Service(ServiceCommand::Hook(command)) => {
                boxed(|| hook::run(command, interrupted)).await
            }
            Command::Cache(command) => {
                until(interrupted, blocking(move || cache::run(command))).await
            }
            Command::Completions(args) => version::completions(&args, Cli::command()),
            Command::Man(args) => version::man(&args, Cli::command()),
            Command::Version(args) => version::version(&args),
            Command::Ztoc(ztoc) => {
                let work = move || match ztoc {
                    ZtocCommand::Create(args) => {
                        ztoc::layer::create(&args, verbosity, &mut Stdout::new())
                    }
                    ZtocCommand::Show(args) => ztoc::show(&args, &mut Stdout::new()),
                    ZtocCommand::Verify(args) => ztoc::layer::verify(&args, &mut Stdout::new()),
                };
                until(interrupted, blocking(work)).await
            }
        }
    });
    runtime.shutdown_timeout(LAST_WORK);
    result
}

#[cfg(all(test, mounts))]
mod tests {
    use super::*;

    #[test]
    fn commands_that_containers_wait_for_are_parsed_as_by_the_whole_program() {
        for line in [
            "ociseek mount a b",
            "ociseek -q bundle --detach --cache-dir c a:1 b -- sh --help",
            "ociseek mount -o json --layer 2 -v a b",
            "ociseek store /x --prefetch",
            "ociseek bundle --rm d",
        ] {
            let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let program = help::grouped(help::with_other_names(Cli::command()), true);
            let whole = program
                .try_get_matches_from(&typed)
                .map(|matches| Cli::from_arg_matches(&matches).unwrap());
            assert_eq!(format!("{:?}", parse_lazy(&typed)), format!("{:?}", whole.ok()), "{line}");
        }
        for line in [
            "ociseek",
            "ociseek ls a",
            "ociseek mount -h",
            "ociseek mount",
            "ociseek --version mount a b",
        ] {
            let typed: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(parse_lazy(&typed).is_none(), "{line}");
        }
    }
}

/// How long registries may take to answer the cancellation of uploads after a signal.
const LAST_REQUESTS: Duration = Duration::from_secs(2);

/// After an interruption, waits for the cancellation of uploads.
async fn settled(result: Result<(), CliError>) -> Result<(), CliError> {
    if result.as_ref().is_err_and(CliError::is_interrupted) {
        settle().await;
    }
    result
}

/// Waits briefly for requests of dropped work: cancellations of uploads.
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
        Ok(signal) = interrupted => Err(CliError::interrupted(signal)),
        result = work => result,
    }
}

/// The future of `make` on the heap. Those of commands are large, and a stack never returns memory
/// to the kernel. Not inlined: a function has room on its stack for all futures that it makes, and
/// touches all of it.
#[inline(never)]
fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::pin(make())
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static, E: Into<CliError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, CliError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(E::into),
        Err(error) => match error.try_into_panic() {
            // A panic on the thread continues on this one.
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(CliError::start(error)),
        },
    }
}
