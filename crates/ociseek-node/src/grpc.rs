//! Calls of gRPC services on a socket of this machine.

use std::io;
use std::path::Path;

use http::Request;
use prost::Message;
use tokio::net::UnixStream;

use super::cri::PREFIX;

/// Longer answers are errors.
const LONGEST: usize = 16 << 20;

/// The messages of an answer. `namespace` is one of containerd's.
///
/// # Errors
/// If nobody listens on the socket, the call fails, or the answer is not one of gRPC.
pub(crate) async fn call<A: Message + Default>(
    socket: &Path,
    path: &str,
    namespace: Option<&str>,
    asked: &impl Message,
) -> io::Result<Vec<A>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut client, connection) = h2::client::handshake(stream).await.map_err(io::Error::other)?;
    let connection = tokio::spawn(connection);
    let answered = async {
        let mut request = Request::post(format!("http://localhost/{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        if let Some(namespace) = namespace {
            request = request.header("containerd-namespace", namespace);
        }
        let request = request.body(()).map_err(io::Error::other)?;
        let (response, mut body) = client.send_request(request, false).map_err(io::Error::other)?;
        let message = asked.encode_to_vec();
        let length = u32::try_from(message.len()).map_err(io::Error::other)?;
        let framed = [&[0][..], &length.to_be_bytes(), &message].concat();
        body.send_data(framed.into(), true).map_err(io::Error::other)?;
        let mut body = response.await.map_err(io::Error::other)?.into_body();
        let mut answer = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece.map_err(io::Error::other)?;
            answer.extend_from_slice(&piece);
            if answer.len() > LONGEST {
                return Err(io::Error::other(format!("an answer of more than {LONGEST} bytes")));
            }
            body.flow_control().release_capacity(piece.len()).map_err(io::Error::other)?;
        }
        messages(&answer).ok_or_else(|| io::Error::other("not an answer of gRPC"))
    };
    let answered = answered.await;
    connection.abort();
    answered
}

fn messages<A: Message + Default>(mut answer: &[u8]) -> Option<Vec<A>> {
    let mut messages = Vec::new();
    while !answer.is_empty() {
        let (prefix, rest) = answer.split_at_checked(PREFIX)?;
        let length = u32::from_be_bytes(prefix[1..].try_into().ok()?);
        let (message, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        messages.push(A::decode(message).ok()?);
        answer = rest;
    }
    Some(messages)
}
