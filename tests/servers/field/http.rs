//! Answers that are odd as HTTP, byte by byte, in public reports. Each row has its source.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_store::registry::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::reports::{config, tag};
use ociseek_testkit::sandbox::OCI_MANIFEST;

const CONTENT: &str = "{\"schemaVersion\":2,\"layers\":[]}";

/// A server that answers the first requests by these bytes, and later ones by the last of them. It
/// closes each connection.
async fn answers(answers: Vec<Vec<u8>>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&count);
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_) => break,
                }
            }
            let at = seen.fetch_add(1, Ordering::SeqCst);
            let _ = stream.write_all(&answers[at.min(answers.len() - 1)]).await;
            let _ = stream.shutdown().await;
        }
    });
    (host, count)
}

/// The lines of an answer with the manifest. `\n` ends each.
fn manifest(status: &str, more: &str) -> String {
    let digest = Digest::sha256(CONTENT.as_bytes());
    format!(
        "{status}\nContent-Type: {OCI_MANIFEST}\nDocker-Content-Digest: {digest}\n\
         Content-Length: {}\n{more}\n{CONTENT}",
        CONTENT.len()
    )
}

fn crlf(lines: &str) -> Vec<u8> {
    lines.replace('\n', "\r\n").into_bytes()
}

#[tokio::test]
async fn answers_may_be_framed_oddly() {
    let limited = "HTTP/1.1 429 Too Many Requests\nCache-Control: no-cache\nConnection: close\n\
         Content-Type: text/plain\nRetry-After: 1\n\nToo Many Requests (HAP429).\n";
    let large = format!("Content-Security-Policy: {}\n", "y".repeat(65_000));
    let ok = "HTTP/1.1 200 OK";
    for (source, all) in [
        (
            "github.com/docker/hub-feedback/issues/1907 (lines end with LF)",
            vec![manifest(ok, "").into_bytes()],
        ),
        (
            "github.com/docker/hub-feedback/issues/1907 (its limiter)",
            vec![limited.into(), crlf(&manifest(ok, ""))],
        ),
        (
            "tomcat.apache.org (no reason phrase since 8.5)",
            vec![crlf(&manifest("HTTP/1.1 200", ""))],
        ),
        ("docs.gitlab.com (a long Content-Security-Policy)", vec![crlf(&manifest(ok, &large))]),
        (
            "github.com/golang/go/issues/26089 (103 before the answer)",
            vec![crlf(&format!("HTTP/1.1 103 Early Hints\nLink: </x>\n\n{}", manifest(ok, "")))],
        ),
        (
            "www.rfc-editor.org/rfc/rfc9110#section-8.6 (Content-Length twice)",
            vec![crlf(&manifest(ok, &format!("Content-Length: {}\n", CONTENT.len())))],
        ),
        (
            "www.rfc-editor.org/rfc/rfc9110#section-8.8.3 (a weak ETag, and Vary)",
            vec![crlf(&manifest(ok, "ETag: W/\"abc\"\nVary: Accept-Encoding\n"))],
        ),
        (
            "proxies that add a Content-Type of their own",
            vec![crlf(&manifest(ok, "Content-Type: text/plain\n"))],
        ),
        (
            "github.com/containerd/containerd/issues/3110 (no length, as bintray.io)",
            vec![crlf(&format!("HTTP/1.0 200 OK\nContent-Type: {OCI_MANIFEST}\n\n{CONTENT}"))],
        ),
        (
            "github.com/Katello/katello/pull/10124 (in chunks)",
            vec![crlf(&format!(
                "{ok}\nContent-Type: {OCI_MANIFEST}\nTransfer-Encoding: chunked\n\n\
                 {:x}\n{CONTENT}\n0\n\n",
                CONTENT.len()
            ))],
        ),
    ] {
        let (host, _) = answers(all).await;
        let repository = Client::new(config()).unwrap().repository(&host, "a/b").unwrap();
        let read = repository.manifest(&tag()).await;
        let read = read.unwrap_or_else(|error| panic!("{source}: {error:?}"));
        assert_eq!(read.bytes, CONTENT.as_bytes(), "{source}");
    }
}

/// Stores of files know no media types of manifests, and the manifest needs none in it (image-spec,
/// manifest.md: SHOULD).
#[tokio::test]
async fn manifests_come_under_any_content_type() {
    for kind in [
        "text/plain; charset=utf-8",
        "application/octet-stream",
        "binary/octet-stream",
        "application/json",
        "Application/VND.OCI.image.manifest.v1+JSON; charset=UTF-8",
    ] {
        let (host, _) = answers(vec![crlf(&format!(
            "HTTP/1.1 200 OK\nContent-Type: {kind}\nContent-Length: {}\n\n{CONTENT}",
            CONTENT.len()
        ))])
        .await;
        let repository = Client::new(config()).unwrap().repository(&host, "a/b").unwrap();
        let read = repository.manifest(&tag()).await;
        assert!(read.is_ok(), "{kind}: {:?}", read.err());
    }
}

/// What comes where a part of a blob was asked for.
#[tokio::test]
async fn parts_may_come_in_odd_answers() {
    let content: Vec<u8> = (0..=255).cycle().take(20_000).collect();
    let blob = Descriptor::of("x/y", &content);
    let part = &content[100..200];
    let with = |head: &str, body: &[u8]| [&crlf(head), body].concat();
    let chunks: Vec<u8> = (content.chunks(5000))
        .flat_map(|chunk| with(&format!("{:x}\n", chunk.len()), &[chunk, b"\r\n"].concat()))
        .chain(*b"0\r\n\r\n")
        .collect();
    for (source, answer) in [
        (
            "github.com/cloudflare/serverless-registry/issues/134 (200, without a length)",
            with("HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n", &chunks),
        ),
        (
            "servers that repeat the unit of Range",
            with(
                "HTTP/1.1 206 Partial Content\nContent-Range: bytes=100-199/20000\n\
                 Content-Length: 100\n\n",
                part,
            ),
        ),
        (
            "www.rfc-editor.org/rfc/rfc9110#section-14.4 (a size that is not known)",
            with(
                "HTTP/1.1 206 Partial Content\nContent-Range: bytes 100-199/*\n\
                 Content-Length: 100\n\n",
                part,
            ),
        ),
    ] {
        let (host, count) = answers(vec![answer]).await;
        let repository = Client::new(config()).unwrap().repository(&host, "a/b").unwrap();
        let read = async {
            let mut bytes = Vec::new();
            let mut part = repository.blob_part(&blob, 100..200, false).await?;
            while let Some(piece) = part.next().await? {
                bytes.extend(piece);
            }
            Ok::<_, ociseek_store::registry::RegistryError>(bytes)
        };
        let read = read.await.unwrap_or_else(|error| panic!("{source}: {error:?}"));
        assert_eq!(read, part, "{source}");
        assert!(count.load(Ordering::SeqCst) < 4, "{source}");
    }
}
