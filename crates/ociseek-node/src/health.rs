//! Asks a snapshotter whether it serves, as gRPC's health checking protocol has it
//! (`grpc.health.v1`).

use std::io;
use std::path::Path;

use crate::grpc::call;
use crate::messages::{HealthAnswer, HealthRequest, SERVING};

/// Whether the snapshotter that listens on a socket says that it serves.
///
/// # Errors
/// If nobody listens there, or the answer is not one of gRPC.
pub async fn serves(socket: &Path) -> io::Result<bool> {
    // An empty request asks for all services.
    let asked = HealthRequest::default();
    let answers: Vec<HealthAnswer> =
        call(socket, "grpc.health.v1.Health/Check", None, &asked).await?;
    let answer = answers.first().ok_or_else(|| io::Error::other("an empty answer"))?;
    Ok(answer.status == SERVING)
}
