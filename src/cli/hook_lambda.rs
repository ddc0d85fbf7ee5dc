//! `ociseek hook lambda`, and what the program does when it is called `bootstrap`.

use std::ffi::OsString;
use std::io::Write;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::args_hook::HookLambdaArgs;
use super::report::{self, CliError};
use super::ztoc;
use crate::hook::aws::Ecr;
use crate::hook::lambda::{Failure, Function, Runtime, Settings, serve};
use crate::ops::index::{Existing, IndexOptions};
use crate::progress::{Event, Progress};

/// Where Lambda says that its Runtime API is.
const RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";

/// Lambda calls a custom runtime by this name, without arguments.
pub fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|name| name == "bootstrap") {
        arguments.splice(1..1, ["hook".into(), "lambda".into()]);
    }
    arguments
}

/// Handles events until Lambda ends the process.
pub async fn run(args: HookLambdaArgs) -> Result<(), CliError> {
    let address = variable(RUNTIME_API).ok_or(CliError::NotInLambda)?;
    let runtime = Runtime::new(&address)?;
    let ecr = match Ecr::from_environment(variable) {
        Ok(ecr) => ecr,
        Err(error) => {
            let failure = Failure { error_type: "CannotStart", error_message: report::in_one_line(&error) };
            runtime.cannot_start(&failure).await?;
            return Err(error.into());
        }
    };
    let function = Function::new(settings(args), ecr, Arc::new(Log));
    serve(&runtime, &function, &print).await?;
    Ok(())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn settings(args: HookLambdaArgs) -> Settings {
    let cpus = || std::thread::available_parallelism().map_or(1, NonZero::get);
    Settings {
        options: IndexOptions {
            platforms: args.platform,
            layer: ztoc::layer_options(&args.build),
            min_layer_size: args.min_layer_size.0,
            existing: Existing::Skip,
            jobs: args.jobs.map_or_else(cpus, usize::from),
            dry_run: false,
            deadline: None,
        },
        accounts: args.ecr_account,
        registry: args.ecr_registry,
    }
}

/// A line of the function's log: a JSON object.
fn print(line: &Value) {
    // Where nobody takes the log there is nobody to tell.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Warnings are lines of the log.
struct Log;

impl Progress for Log {
    fn report(&self, event: Event) {
        if let Event::Warning(text) = event {
            print(&json!({"warning": text}));
        }
    }
}
