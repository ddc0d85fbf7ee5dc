//! `ociseek hook lambda`, which also runs if the program is called `bootstrap`.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use crate::cli::hook::error::HookError;
use crate::cli::shared::error::CliError;
use crate::cli::shared::report;
use crate::cli::shared::unattended::Unattended;
use args::HookLambdaArgs;
use ociseek_hook::aws::Ecr;
use ociseek_hook::lambda::{Failure, Function, Runtime, Settings, serve};
use ociseek_hook::log::LogProgress;

pub(crate) mod args;

/// The variable with the address of Lambda's Runtime API.
const RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";

/// The arguments of the program. Lambda calls a custom runtime `bootstrap`, without arguments.
pub(crate) fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    let called = arguments.first().map(Path::new).and_then(Path::file_name);
    if called.is_some_and(|name| name == "bootstrap") {
        arguments.splice(1..1, ["hook".into(), "lambda".into()]);
    }
    arguments
}

/// Handles events until Lambda ends the process.
pub(crate) async fn run(args: HookLambdaArgs) -> Result<(), CliError> {
    let settings = settings(args)?;
    let address = variable(RUNTIME_API).ok_or(HookError::NotInLambda)?;
    let runtime = Runtime::new(&address).map_err(HookError::from)?;
    let ecr = match Ecr::from_environment(variable) {
        Ok(ecr) => ecr,
        Err(error) => {
            let failure = Failure { error_type: "CannotStart", error_message: report::in_one_line(&error) };
            runtime.cannot_start(&failure).await.map_err(HookError::from)?;
            return Err(HookError::from(error).into());
        }
    };
    let function = Function::new(settings, ecr, Arc::new(LogProgress));
    Ok(serve(&runtime, &function).await.map_err(HookError::from)?)
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn settings(args: HookLambdaArgs) -> Result<Settings, CliError> {
    let Unattended { index: options, versions, reuse_from } = args.unattended.options(args.layer_jobs.count())?;
    Ok(Settings {
        options,
        versions,
        reuse_from,
        accounts: args.ecr_account,
        registry: args.ecr_registry,
        max_memory: args.memory.max_memory.0,
    })
}
