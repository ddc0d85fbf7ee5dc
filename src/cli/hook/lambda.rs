//! `ociseek hook lambda`, which also runs if the program is called `bootstrap`.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use clap::Args;

use crate::cli::shared::args::{LayerJobsArgs, MemoryArgs};
use crate::cli::shared::error::CliError;
use crate::cli::shared::indexing::{Unattended, UnattendedArgs};
use crate::cli::shared::{parse, report};
use ociseek_format::progress::Progress;
use ociseek_hook::aws::Ecr;
use ociseek_hook::lambda::{Failure, Function, Runtime, Settings, serve};
use ociseek_hook::log::LogProgress;
use ociseek_store::cache::ZtocCache;
use tokio::task::spawn_blocking;

const LAMBDA_LONG_ABOUT: &str = "\
Runs as an AWS Lambda function (custom runtime, provided.al2023) that indexes images as they are pushed to Amazon ECR.

The deployment package is this program, named bootstrap; under that name it needs no arguments. It accepts \
EventBridge's ECR Image Action events, batches of such events from an SQS queue (only failed ones are retried), and \
{\"image\": \"ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY:TAG\"}.

Layers are streamed, and 512 MB of memory is plenty. Ztocs of finished layers are kept in /tmp. Before the function \
times out, it attaches what is finished, and the next call in the same environment continues from there. In a new \
environment it starts over. A SOCI-enabled image is written once all its layers are done.";

const LAMBDA_AFTER_HELP: &str = "\
The function's role needs ecr:GetAuthorizationToken, and for the repositories ecr:BatchGetImage, \
ecr:GetDownloadUrlForLayer, ecr:BatchCheckLayerAvailability, ecr:InitiateLayerUpload, ecr:UploadLayerPart, \
ecr:CompleteLayerUpload, ecr:PutImage, and ecr:BatchDeleteImage (to remove a replaced index).

AWS_ENDPOINT_URL_ECR or AWS_ENDPOINT_URL overrides the ECR endpoint. docs/hook-lambda.md has a template.";

/// Index images pushed to Amazon ECR, as an AWS Lambda function
#[derive(Debug, Args)]
#[command(long_about = LAMBDA_LONG_ABOUT, after_long_help = LAMBDA_AFTER_HELP)]
pub(crate) struct HookLambdaArgs {
    #[command(flatten)]
    pub unattended: UnattendedArgs,

    #[command(flatten, next_help_heading = "Indexing")]
    pub layer_jobs: LayerJobsArgs,

    /// Also index images in this account's registries; can be repeated [default: only the
    /// function's own account]
    #[arg(long, value_name = "ACCOUNT", env = "OCISEEK_ECR_ACCOUNTS", value_delimiter = ',')]
    #[arg(value_parser = parse::aws_account, help_heading = "Registries")]
    pub ecr_account: Vec<String>,

    /// Use this registry in place of every ECR registry; it receives ECR's token. For tests
    #[arg(long, value_name = "HOST[:PORT]", env = "OCISEEK_ECR_REGISTRY", value_parser = parse::registry)]
    #[arg(help_heading = "Registries")]
    pub ecr_registry: Option<String>,

    #[command(flatten)]
    pub memory: MemoryArgs,
}

/// The variable with the address of Lambda's Runtime API.
const RUNTIME_API: &str = "AWS_LAMBDA_RUNTIME_API";
/// How many bytes of ztocs are kept in `/tmp`, which has 512 MB unless the function is given more.
const MAX_CACHE: u64 = 256 << 20;

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
    let progress: Arc<dyn Progress> = Arc::new(LogProgress);
    let dir = std::env::temp_dir().join("ociseek");
    let opening = Arc::clone(&progress);
    let cache =
        spawn_blocking(move || ZtocCache::with_limit(Some(&dir), MAX_CACHE, opening)).await.ok();
    let settings = settings(args, cache)?;
    let address = variable(RUNTIME_API).ok_or_else(not_in_lambda)?;
    let runtime = Runtime::new(&address)?;
    let ecr = match Ecr::from_environment(variable) {
        Ok(ecr) => ecr,
        Err(error) => {
            let failure =
                Failure { error_type: "CannotStart", error_message: report::in_one_line(&error) };
            runtime.cannot_start(&failure).await?;
            return Err(error.into());
        }
    };
    let function = Function::new(settings, ecr, progress);
    Ok(serve(&runtime, &function).await?)
}

fn not_in_lambda() -> CliError {
    CliError::new("not running as an AWS Lambda function: AWS_LAMBDA_RUNTIME_API is not set")
        .with_hint("docs/hook-lambda.md shows how to deploy ociseek as a function")
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

fn settings(args: HookLambdaArgs, cache: Option<ZtocCache>) -> Result<Settings, CliError> {
    let Unattended { index: options, versions, reuse_from } =
        args.unattended.options(args.layer_jobs.count())?;
    Ok(Settings {
        options,
        versions,
        reuse_from,
        accounts: args.ecr_account,
        registry: args.ecr_registry,
        max_memory: args.memory.max_memory.0,
        cache,
    })
}
