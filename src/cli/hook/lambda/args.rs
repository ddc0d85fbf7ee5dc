//! What can be typed behind `ociseek hook lambda`.

use clap::Args;

use crate::cli::shared::args::{BuildArgs, LayerJobsArgs, MemoryArgs, MinLayerArgs, PlatformsArgs};
use crate::cli::shared::parse;
use crate::cli::shared::reuse::HookReuseArgs;
use crate::cli::shared::versions::HookVersionsArgs;

const LAMBDA_LONG_ABOUT: &str = "\
Runs as an AWS Lambda function (custom runtime, provided.al2023) that indexes images as they are pushed to Amazon ECR.

The deployment package is this program under the name bootstrap; called so, it needs no arguments. It takes EventBridge's \
ECR Image Action events, batches of an SQS queue with such events (only the failed ones come again), and {\"image\": \
\"ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY:TAG\"}.

Layers are streamed: no disk is used, and 512 MB of memory are plenty. Before the function's time is up, what is done is attached, and \
the next call goes on from there. A SOCI-enabled image is written when all of its layers are done: with --v2 the index keeps those that \
are, with --v2-only one call must do them all.";

const LAMBDA_AFTER_HELP: &str = "\
The function's role needs ecr:GetAuthorizationToken, and for the repositories ecr:BatchGetImage, ecr:GetDownloadUrlForLayer, \
ecr:BatchCheckLayerAvailability, ecr:InitiateLayerUpload, ecr:UploadLayerPart, ecr:CompleteLayerUpload, ecr:PutImage, and \
ecr:BatchDeleteImage (to remove an index that a better one replaced). With ecr:ListImages it finds layers that other tags have indexed.

AWS_ENDPOINT_URL_ECR or AWS_ENDPOINT_URL sends the calls to ECR elsewhere. docs/hook.md has a template.";

/// Index images pushed to Amazon ECR, as an AWS Lambda function
#[derive(Debug, Args)]
#[command(long_about = LAMBDA_LONG_ABOUT, after_long_help = LAMBDA_AFTER_HELP)]
pub struct HookLambdaArgs {
    #[command(flatten, next_help_heading = "What is indexed")]
    pub platforms: PlatformsArgs,

    #[command(flatten)]
    pub build: BuildArgs,

    #[command(flatten, next_help_heading = "What is indexed")]
    pub min_layer: MinLayerArgs,

    #[command(flatten)]
    pub versions: HookVersionsArgs,

    #[command(flatten)]
    pub reuse: HookReuseArgs,

    #[command(flatten, next_help_heading = "What is indexed")]
    pub layer_jobs: LayerJobsArgs,

    /// Index images of this account's registries too; may be repeated [default: only those of the function's own account]
    #[arg(long, value_name = "ACCOUNT", env = "OCISEEK_ECR_ACCOUNTS", value_delimiter = ',')]
    #[arg(value_parser = parse::aws_account, help_heading = "Where")]
    pub ecr_account: Vec<String>,

    /// Take this registry for every registry of ECR; it is shown ECR's token. For tests
    #[arg(long, value_name = "HOST[:PORT]", env = "OCISEEK_ECR_REGISTRY", value_parser = parse::registry)]
    #[arg(help_heading = "Where")]
    pub ecr_registry: Option<String>,

    #[command(flatten)]
    pub memory: MemoryArgs,
}
