//! The errors of hooks and `backfill`, with hints.

use std::path::PathBuf;

use ociseek_hook::backfill::StateError;
use ociseek_hook::journal::JournalError;
use ociseek_hook::secret::SecretError;
use ociseek_hook::server::ServeError;

/// Why a service or a walk through registries failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HookError {
    /// Some images or lists failed. Each was reported on standard output.
    #[error("{what}")]
    Backfill { what: String, hint: Option<String> },
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[cfg(feature = "nats")]
    #[error(transparent)]
    Queue(#[from] ociseek_hook::queue::QueueError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{}: not a usable secret file", path.display())]
    SecretFile { path: PathBuf, source: SecretError },
    #[error("the secret is not valid")]
    Secret(#[from] SecretError),
    #[error("{}: other users can {what} this secret (mode {mode:o})", path.display())]
    OpenSecret { path: PathBuf, mode: u32, what: &'static str },
    #[error(transparent)]
    State(#[from] StateError),
    #[cfg(feature = "lambda")]
    #[error("not running as an AWS Lambda function: AWS_LAMBDA_RUNTIME_API is not set")]
    NotInLambda,
    #[cfg(feature = "lambda")]
    #[error(transparent)]
    LambdaRuntime(#[from] ociseek_hook::lambda::RuntimeApiError),
    #[cfg(feature = "lambda")]
    #[error(transparent)]
    Ecr(#[from] ociseek_hook::aws::EcrError),
}

impl HookError {
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            HookError::Backfill { hint, .. } => hint.clone(),
            HookError::Serve(ServeError::NoSecret(_)) => Some(
                "use --secret-file FILE or OCISEEK_HOOK_SECRET (openssl rand -hex 32 makes one), or --listen \
                 127.0.0.1:8080"
                    .into(),
            ),
            HookError::SecretFile { .. } | HookError::Secret(_) => {
                Some("generate a secret with openssl rand -hex 32".into())
            }
            HookError::OpenSecret { path, .. } => Some(format!("chmod 600 {}", path.display())),
            HookError::State(StateError::Other { .. }) => {
                Some("use the options of the earlier run, or another file".into())
            }
            #[cfg(feature = "lambda")]
            HookError::NotInLambda => Some("docs/hook.md shows how to deploy ociseek as a function".into()),
            _ => None,
        }
    }
}
