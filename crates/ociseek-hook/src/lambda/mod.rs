//! Indexing in AWS Lambda: a function with a custom runtime, called with pushes to Amazon ECR.
//!
//! | called with | answers |
//! |---|---|
//! | EventBridge's `ECR Image Action` | the result; an error if the image failed or timed out, so that Lambda retries |
//! | a batch of an SQS queue with such events | the messages to be delivered again, `{"batchItemFailures": [...]}` |
//! | `{"image": "..."}` | what was done, and what is `left`; an error if the image failed |
//!
//! An invocation ends in time: a while before Lambda would end it, it stops reading and attaches
//! what is finished. Between invocations only the registries' tokens are kept, and nothing is
//! written to disk.

mod function;
mod input;
mod runtime;

pub use function::{Function, Settings};
pub use runtime::{Failure, Invocation, Runtime, RuntimeApiError};

/// Handles events until the Runtime API has no more. Logs a `tracing` event for each image.
///
/// # Errors
/// If the Runtime API is not available any more.
pub async fn serve(runtime: &Runtime, function: &Function) -> Result<(), RuntimeApiError> {
    loop {
        let invocation = runtime.next().await?;
        let result = function.handle(&invocation).await;
        runtime.answer(&invocation, &result).await?;
    }
}
