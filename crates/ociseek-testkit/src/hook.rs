//! Runs `ociseek hook` as a process, reads its log, and sends it notifications.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use crate::PATIENCE;
use crate::child_process::ChildProcess;
use crate::http::{exchange, post};
use crate::image::{Image, config};
use crate::sandbox::{GZIP, OCI_MANIFEST, Sandbox, gzip, tar};
use crate::servers::Server;

pub const SECRET: &str = "correct-horse-battery-staple";

/// A running `ociseek hook serve` or `worker`.
pub struct Hook {
    pub child: ChildProcess,
    log: Arc<Mutex<Vec<Value>>>,
    reader: Option<JoinHandle<()>>,
}

impl Hook {
    /// `ociseek hook` with `args`, and without a minimum layer size.
    pub fn start(sandbox: &Sandbox, args: &[&str]) -> Hook {
        let all = [&["hook"], args, &["--min-layer-size=0", "--span-size=16KiB"]].concat();
        let mut command = sandbox.command(&all);
        Hook::spawn(command.env("OCISEEK_HOOK_SECRET", SECRET).env("OCISEEK_RETRY_FOR", "1s"))
    }

    /// `ociseek hook serve` on a free port.
    pub fn serve(sandbox: &Sandbox, args: &[&str]) -> Hook {
        Hook::start(sandbox, &[&["serve", "--listen=127.0.0.1:0"], args].concat())
    }

    pub fn spawn(command: &mut Command) -> Hook {
        let mut child = ChildProcess::spawn(
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()),
        );
        let log = Arc::new(Mutex::new(Vec::new()));
        let lines = BufReader::new(child.stderr()).lines();
        let kept = Arc::clone(&log);
        let reader = std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let line = serde_json::from_str(&line)
                    .unwrap_or_else(|_| json!({"event": "no JSON", "line": line}));
                kept.lock().unwrap().push(line);
            }
        });
        Hook { child, log, reader: Some(reader) }
    }

    pub fn log(&self) -> Vec<Value> {
        self.log.lock().unwrap().clone()
    }

    /// The log lines of one event.
    pub fn events(&self, event: &str) -> Vec<Value> {
        self.log.lock().unwrap().iter().filter(|line| line["event"] == event).cloned().collect()
    }

    /// The number of log lines of one event.
    pub fn count(&self, event: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|line| line["event"] == event).count()
    }

    /// The number of jobs with each result.
    pub fn results(&self) -> BTreeMap<String, usize> {
        let mut results = BTreeMap::new();
        for line in self.events("job") {
            *results.entry(line["result"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        results
    }

    pub fn indexed(&self) -> usize {
        self.results().get("indexed").copied().unwrap_or_default()
    }

    /// Waits until the log satisfies a condition.
    pub fn until(&self, what: &str, mut holds: impl FnMut(&Hook) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < PATIENCE, "{what} did not come about: {:#?}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the journal says that this number of jobs is done. A job is logged before that,
    /// and runs again if the process is killed in between.
    pub fn until_recorded(&self, journal: &Path, jobs: usize) {
        self.until("the journal's lines", |_| {
            let lines = std::fs::read_to_string(journal).unwrap();
            lines.lines().filter(|line| line.starts_with(r#"{"done":"#)).count() == jobs
        });
    }

    /// `IP:PORT`, after it has started to listen.
    pub fn address(&self) -> String {
        self.until("listening", |hook| !hook.events("listening").is_empty());
        self.events("listening")[0]["address"].as_str().unwrap().to_owned()
    }

    /// Waits for the process to end.
    pub fn end(&mut self) -> ExitStatus {
        let Some(status) = self.child.wait() else { panic!("it did not end: {:#?}", self.log()) };
        // Its last output has arrived when there is no more to read.
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        status
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        exchange(&self.address(), request.as_bytes())
    }

    /// Sends a notification with the secret.
    pub fn post(&self, body: &str) -> (u16, String) {
        post(
            &self.address(),
            "/",
            &[("Authorization", &format!("Bearer {SECRET}"))],
            body.as_bytes(),
        )
    }
}

/// Checks that the tables in docs/hook-operations.md, "The log", have every event and every field
/// of these lines.
pub fn assert_documented(lines: &[Value]) {
    let docs = std::fs::read_to_string(crate::project().join("docs/hook-operations.md")).unwrap();
    let (_, section) = docs.split_once("\n## The log\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let listed: Vec<&str> = rows.flat_map(|names| names.split('`').skip(1).step_by(2)).collect();
    assert!(!lines.is_empty() && listed.contains(&"job") && listed.contains(&"time"), "{listed:?}");
    for line in lines {
        let event = line["event"].as_str().unwrap();
        assert!(
            listed.contains(&event),
            "docs/hook-operations.md does not list the event {event}: {line}"
        );
        for field in line.as_object().unwrap().keys() {
            assert!(
                listed.contains(&field.as_str()),
                "docs/hook-operations.md does not list the field {field}: {line}"
            );
        }
    }
}

/// distribution's event for a pushed image.
pub fn pushed(id: &str, host: &str, repository: &str, digest: &Digest) -> String {
    json!({"events": [{
        "id": id, "action": "push", "request": {"host": host},
        "target": {"mediaType": OCI_MANIFEST, "repository": repository, "digest": digest},
    }]})
    .to_string()
}

/// Creates `count` small images in a registry, which differ in an annotation, without sending
/// events. Returns their repositories and digests.
pub fn images(server: &Server, repositories: usize, count: usize) -> Vec<(String, Digest)> {
    let one = Image::new(&config(&[]), [(GZIP, gzip(&tar(7, 2, 20_000)))]);
    for repository in 0..repositories {
        one.blobs().for_each(|blob| put_blob(&server.host, &format!("team/app{repository}"), blob));
    }
    let push = |number: usize| {
        let repository = format!("team/app{}", number % repositories);
        let image = one.clone().annotated(&json!({"number": number.to_string()}));
        let digest = Digest::sha256(&image.manifest);
        server.put_manifest(&repository, &digest.to_string(), OCI_MANIFEST, &image.manifest);
        (repository, digest)
    };
    (0..count).map(push).collect()
}

/// Uploads a blob without a client.
pub fn put_blob(host: &str, repository: &str, content: &[u8]) {
    let begin = format!(
        "POST /v2/{repository}/blobs/uploads/ HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: \
         close\r\n\r\n"
    );
    let (status, text) = exchange(host, begin.as_bytes());
    assert_eq!(status, 202, "{text}");
    let location = text.lines().find_map(|line| {
        let (name, value) = line.split_once(": ")?;
        name.eq_ignore_ascii_case("location").then(|| value.trim().to_owned())
    });
    let location = location.unwrap();
    let path = location.strip_prefix(&format!("http://{host}")).unwrap_or(&location);
    let joint = if path.contains('?') { '&' } else { '?' };
    let head = format!(
        "PUT {path}{joint}digest={} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        Digest::sha256(content),
        content.len()
    );
    let (status, text) = exchange(host, &[head.as_bytes(), content].concat());
    assert_eq!(status, 201, "{text}");
}

/// The number of SOCI indexes of an image.
pub fn indexes(sandbox: &Sandbox, image: &str) -> usize {
    let inspected = sandbox.doctor(image);
    inspected["manifests"][0]["indexes"].as_array().unwrap().len()
}
