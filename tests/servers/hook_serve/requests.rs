//! Requests that are forged, repeated, broken or slow, and the one by which Azure asks first.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use ociseek_format::digest::Digest;
use ociseek_testkit::PATIENCE;
use ociseek_testkit::hook::{Hook, SECRET, pushed};
use ociseek_testkit::http::{answer, exchange, post};
use ociseek_testkit::sandbox::Sandbox;
use sha2::Sha256;
use tokio::net::TcpSocket;

fn signature(body: &str) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes())
        .unwrap()
        .chain_update(body)
        .finalize()
        .into_bytes();
    mac.iter().fold("sha256=".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[test]
fn forged_replayed_and_malformed_requests_are_refused() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--client-timeout=3"]);
    let address = hook.address();
    let digest = Digest::sha256(b"x");
    let body = |id: &str| pushed(id, "127.0.0.1:1", "a/b", &digest);
    let bearer = format!("Bearer {SECRET}");
    let one = body("one");
    let good = signature(&one);
    let bad = signature("something else");
    for (path, headers, want) in [
        ("/", &[][..], 401),
        ("/", &[("Authorization", "Bearer wrong-wrong-wrong-wrong")], 401),
        ("/", &[("Authorization", "Bearer")], 401),
        ("/?token=wrong", &[], 401),
        ("/", &[("X-Hub-Signature-256", &*bad)], 401),
        ("/", &[("X-Hub-Signature-256", &*bad), ("Authorization", &*bearer)], 401),
        ("/", &[("X-Hub-Signature-256", &*good)], 202),
        ("/", &[("Authorization", &*bearer)], 200),
        (&format!("/events?token={SECRET}"), &[], 200),
        ("/", &[("Authorization", &*bearer), ("Content-Encoding", "gzip")], 415),
        ("/?registry=http://x", &[("Authorization", &*bearer)], 400),
        ("/?registry=registry", &[("Authorization", &*bearer)], 400),
    ] {
        let (status, text) = post(&address, path, headers, one.as_bytes());
        assert_eq!(status, want, "{path} {headers:?} {text}");
    }
    let (_, text) = hook.post(&one);
    assert!(text.contains("\"duplicates\":1"), "{text}");
    assert_eq!(hook.events("accepted").len(), 1, "the same event, sent five times");

    let deep = format!("{{\"events\":{}", "[".repeat(100_000));
    for wrong in ["", "{", "null", "{\"x\":1}", "{\"events\":1}", "\u{feff}{}", &deep] {
        assert_eq!(hook.post(wrong).0, 400, "{}", &wrong[..wrong.len().min(50)]);
    }
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\nAuthorization: {bearer}\r\n");
    let (status, _) =
        exchange(&address, format!("{head}Content-Length: 999999999999\r\n\r\n").as_bytes());
    assert_eq!(status, 413, "told by its length");
    let chunk = format!("10000\r\n{}\r\n", "[".repeat(0x10000));
    let (status, _) = exchange(
        &address,
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(40)).as_bytes(),
    );
    assert_eq!(status, 413, "told by itself");
    // An unauthenticated client is not even asked for its body.
    let (status, _) =
        exchange(&address, b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 900000\r\n\r\n");
    assert_eq!(status, 401);
    let (status, _) =
        exchange(&address, b"DELETE / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    assert_eq!(status, 405);

    // A body that is sent byte by byte is abandoned after a while. Other clients are served in the
    // meantime.
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.write_all(format!("{head}Content-Length: 500000\r\n\r\n").as_bytes()).unwrap();
    let begun = Instant::now();
    let mut writer = slow.try_clone().unwrap();
    std::thread::spawn(move || {
        while begun.elapsed() < PATIENCE && writer.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    let mut header = TcpStream::connect(&address).unwrap();
    header.set_read_timeout(Some(PATIENCE)).unwrap();
    header.write_all(b"POST / HT").unwrap();
    assert_eq!(hook.get("/healthz").0, 200);
    assert_eq!(hook.get("/readyz").0, 200);
    assert_eq!(
        header.read(&mut [0; 100]).unwrap(),
        0,
        "a header that does not come ends the connection"
    );
    assert_eq!(answer(slow).0, 408);

    let log = format!("{:?}", hook.log());
    assert!(!log.contains(SECRET) && hook.events("no JSON").is_empty(), "{log}");
}

/// Clients that use all connections, send requests continuously, and accept no responses.
#[tokio::test]
async fn connections_with_unread_responses_are_closed() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1", "--client-timeout=1"]);
    let address = hook.address().parse().unwrap();
    let requests = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n".repeat(2000);
    let mut held = Vec::new();
    for number in 0..512 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket
            .bind(if number % 2 == 0 { "127.0.0.2:0" } else { "127.0.0.3:0" }.parse().unwrap())
            .unwrap();
        let stream = socket.connect(address).await.unwrap();
        let _ = stream.try_write(requests.as_bytes());
        held.push(stream);
    }
    let (status, text) =
        tokio::task::spawn_blocking(move || (hook.get("/healthz"), hook).0).await.unwrap();
    assert_eq!(status, 200, "{text}");
    drop(held);
}

#[test]
fn the_validation_request_of_azure_is_answered() {
    let sandbox = Sandbox::new();
    let hook = Hook::serve(&sandbox, &["--allow=127.0.0.1:1"]);
    let body = r#"[{"eventType":"Microsoft.EventGrid.SubscriptionValidationEvent","data":{"validationCode":"512d38b6"}}]"#;
    let (status, text) = hook.post(body);
    assert!(status == 200 && text.ends_with("{\"validationResponse\":\"512d38b6\"}\n"), "{text}");
    let asked =
        b"OPTIONS / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nWebHook-Request-Origin: eventgrid.azure.net\r\n\r\n";
    let (status, text) = exchange(&hook.address(), asked);
    assert!(
        status == 200 && text.contains("webhook-allowed-origin: eventgrid.azure.net"),
        "{text}"
    );
}
