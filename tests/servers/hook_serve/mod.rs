//! `ociseek hook serve` with events from real registries, with forged events, and under floods.

mod floods;
mod hosts;
mod pushes;
mod requests;
mod retries;
mod secrets;
mod stops;

use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ociseek_format::digest::Digest;
use ociseek_testkit::hook::{Hook, pushed};
use ociseek_testkit::http::answering;
use ociseek_testkit::servers::Server;

/// A registry that adds a header to every response and sets its status. Its address, and the first
/// lines of the requests.
fn misleading(
    status: &'static str,
    header: impl Fn(&str) -> String + Send + Sync + 'static,
) -> (String, Arc<Mutex<Vec<String>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&asked);
    let address = answering(move |request, stream| {
        requests.lock().unwrap().push(request.to_owned());
        let header = header(request);
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\n{header}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
    });
    (address.to_string(), asked)
}

/// Sends bodies from eight threads. Temporary refusals are repeated, as registries do.
fn send_all(hook: &Hook, bodies: &[String]) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(body) = bodies.get(next.fetch_add(1, Ordering::SeqCst)) {
                    loop {
                        match hook.post(body) {
                            (200 | 202, _) => break,
                            (429 | 503, text) => assert!(text.contains("retry-after: "), "{text}"),
                            (_, text) => panic!("{text}"),
                        }
                        std::thread::sleep(Duration::from_millis(100));
                    }
                }
            });
        }
    });
}

fn burst(server: &Server, images: &[(String, Digest)], events: usize) -> Vec<String> {
    // Neighbours differ, and each image occurs several times.
    let event = |number: usize| {
        let (repository, digest) = &images[number * 7 % images.len()];
        pushed(&format!("event {number}"), &server.host, repository, digest)
    };
    (0..events).map(event).collect()
}

fn indexed_images(hooks: &[&Hook]) -> Vec<String> {
    let jobs = hooks.iter().flat_map(|hook| hook.events("job"));
    jobs.filter(|line| line["result"] == "indexed")
        .map(|line| line["image"].as_str().unwrap().to_owned())
        .collect()
}
