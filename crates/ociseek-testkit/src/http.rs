//! HTTP without a client or a server: bytes that are sent as they are, and small servers that need
//! not behave.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use ociseek_format::digest::Digest;
use serde_json::json;

use super::PATIENCE;
use super::sandbox::{GZIP, OCI_CONFIG, OCI_MANIFEST};
use crate::image::image_manifest;

/// Sends a POST. Returns the status, and the rest of the response including its header.
pub fn post(address: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> (u16, String) {
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    request += "\r\n";
    exchange(address, &[request.as_bytes(), body].concat())
}

/// Sends bytes unchanged. The server need not accept all of them.
pub fn exchange(address: &str, bytes: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let _ = stream.write_all(bytes);
    answer(stream)
}

pub fn answer(mut stream: TcpStream) -> (u16, String) {
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_default(), text)
}

/// A server, until the process ends. `answer` gets the first line of each request, and writes the
/// response.
pub fn answering(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let answer = Arc::clone(&answer);
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while let Some(request) = next_request(&mut reader) {
                    answer(&request, &mut stream);
                }
            });
        }
    });
    address
}

/// The first line of the next request on a connection. Requests have no bodies.
fn next_request(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut request = String::new();
    let mut line = String::new();
    reader.read_line(&mut request).ok().filter(|read| *read > 0)?;
    while reader.read_line(&mut line).ok().filter(|read| *read > 0)? > 2 {
        line.clear();
    }
    Some(request.trim_end().to_owned())
}

/// A registry with one image, which only sends the first byte of its layer, whose digest is that of
/// `layer`. Its address, and the first line of each request that it has answered.
pub fn stalling_registry() -> (String, Receiver<String>) {
    let layer = json!({"mediaType": GZIP, "digest": Digest::sha256(b"layer"), "size": 50_000_000});
    let config = json!({"mediaType": OCI_CONFIG, "digest": Digest::sha256(b"{}"), "size": 2});
    let manifest = image_manifest(&config, &[layer]).to_string();
    let (sender, requests) = channel();
    let address = answering(move |request, stream| {
        let answer = if request.contains("/manifests/") && !request.contains("/manifests/sha256-") {
            let digest = Digest::sha256(manifest.as_bytes());
            let length = manifest.len();
            let headers =
                format!("Content-Type: {OCI_MANIFEST}\r\nDocker-Content-Digest: {digest}");
            let body = if request.starts_with("HEAD") { "" } else { &manifest };
            format!("HTTP/1.1 200 OK\r\n{headers}\r\nContent-Length: {length}\r\n\r\n{body}")
        } else if request.contains("/blobs/")
            && request.contains(&Digest::sha256(b"layer").to_string())
        {
            "HTTP/1.1 200 OK\r\nContent-Length: 50000000\r\n\r\n\x1f".to_owned()
        } else {
            "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned()
        };
        // A test that waits for the request can rely on the response.
        if stream.write_all(answer.as_bytes()).is_ok() {
            let _ = sender.send(request.to_owned());
        }
    });
    (address.to_string(), requests)
}
