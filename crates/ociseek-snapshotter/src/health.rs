//! Asks a snapshotter whether it serves, as gRPC's health checking protocol has it
//! (`grpc.health.v1`).

use std::io;
use std::path::Path;

use http::Request;
use prost::Message as _;
use tokio::net::UnixStream;

use crate::cri::PREFIX;
use crate::messages::{HealthAnswer, SERVING};

/// An answer is not longer.
const LONGEST: usize = 1 << 10;

/// Whether the snapshotter that listens on a socket says that it serves.
///
/// # Errors
/// If nobody listens there, or the answer is not one of gRPC.
pub async fn serves(socket: &Path) -> io::Result<bool> {
    let stream = UnixStream::connect(socket).await?;
    let (mut client, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let answered = async {
        let request = Request::post("http://localhost/grpc.health.v1.Health/Check")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .map_err(io::Error::other)?;
        let (response, mut body) = client.send_request(request, false).map_err(io::Error::other)?;
        // An empty message asks for all services.
        body.send_data(vec![0; PREFIX].into(), true).map_err(io::Error::other)?;
        let mut body = response.await.map_err(io::Error::other)?.into_body();
        let mut answer = Vec::new();
        while let Some(piece) = body.data().await {
            answer.extend_from_slice(&piece.map_err(io::Error::other)?);
            if answer.len() > LONGEST {
                break;
            }
        }
        let message = answer.get(PREFIX..).ok_or_else(|| io::Error::other("an empty answer"))?;
        HealthAnswer::decode(message).map_err(io::Error::other)
    };
    let answered = answered.await;
    connection.abort();
    Ok(answered?.status == SERVING)
}
