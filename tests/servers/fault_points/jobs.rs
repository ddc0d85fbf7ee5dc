//! The jobs that run at each point: commands on an image in a registry, and their results.

use std::collections::BTreeMap;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use ociseek_format::digest::Digest;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::whole::listed;
use ociseek_testkit::faulty::Faulty;
use ociseek_testkit::hook::{Hook, SECRET, pushed};
use ociseek_testkit::inject::started_through;
use ociseek_testkit::sandbox::Sandbox;

/// The time limit of a run. A longer run hangs.
const PATIENCE: Duration = Duration::from_secs(180);
pub const SMALL: [&str; 4] =
    ["--build-tool-identifier=test", "--span-size=16KiB", "--min-layer-size=1KiB", "--jobs=1"];
/// How long a run waits for a registry that stopped answering, and for one that takes no
/// connections.
pub const WAITS: [(&str, &str); 2] = [("OCISEEK_STALL_TIMEOUT", "1s"), ("OCISEEK_RETRY_FOR", "1s")];
/// The file that has a recorded start of the large image.
pub const START: &str = "start.jsonl";
/// What the fallback tag's list is called.
const FALLBACK: &str = "sha256-";

/// The state before the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// An image in the registry.
    Image,
    /// An image with an index in the registry.
    Indexed,
    /// An image of larger layers in the registry.
    Large,
    /// The same with a SOCI index and a fine index of an older version, both with the recorded
    /// start.
    Fine,
    /// The same with newer indexes beside them.
    Superseded,
    /// An image and a SOCI-enabled image under the tag `v2`, made of it with other spans.
    Converted,
    /// An image in the layout `img`, and a layer in the file `layer`.
    Layout,
    /// The same with an index, and the layer's ztoc in the file `layer.ztoc`.
    IndexedLayout,
    /// The same image in the archives `img.tar`, of a layout, and `saved.tar`, by `docker save`.
    Archives,
    /// The larger image in the layout `img`.
    LargeLayout,
    /// The same with both kinds of index, as in the registry.
    FineLayout,
}

/// A command, where `HOST` stands for the registry.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    pub name: &'static str,
    pub args: &'static [&'static str],
    pub before: Before,
    /// Whether it indexes layers, and therefore needs [`SMALL`].
    indexes: bool,
}

const fn job(
    name: &'static str,
    before: Before,
    indexes: bool,
    args: &'static [&'static str],
) -> Job {
    Job { name, args, before, indexes }
}

pub const JOBS: [Job; 17] = [
    job("index", Before::Image, true, &["index", "HOST/a/b:v1"]),
    job(
        "index --kind v1,v2",
        Before::Image,
        true,
        &["index", "--kind=v1,v2={tag}-soci", "HOST/a/b:v1"],
    ),
    job("convert", Before::Image, true, &["convert", "HOST/a/b:v1", "HOST/a/b:v2"]),
    job("convert of a layout", Before::Layout, true, &["convert", "oci:img:v1", "HOST/a/b:v2"]),
    job("verify", Before::Indexed, false, &["verify", "--jobs=1", "HOST/a/b:v1"]),
    job("cat", Before::Indexed, false, &["cat", "HOST/a/b:v1", "dir1/file2"]),
    job("cat without an index", Before::Image, false, &["cat", "HOST/a/b:v1", "dir1/file2"]),
    job("rm", Before::Indexed, false, &["rm", "--any-tool", "HOST/a/b:v1"]),
    job("hook serve", Before::Image, true, &["hook"]),
    job(
        "index --kind v1,fine",
        Before::Large,
        true,
        &["index", "--kind=v1,fine", "--profile=start.jsonl", "HOST/a/b:v1"],
    ),
    job("index, replacing", Before::Fine, true, &["index", "--existing=replace", "HOST/a/b:v1"]),
    job("index, replacing a fine index", Before::Fine, true, &FINE_AGAIN),
    job("verify of a fine index", Before::Fine, false, &["verify", "--jobs=1", "HOST/a/b:v1"]),
    job("rm of a fine index", Before::Fine, false, &["rm", "HOST/a/b:v1"]),
    job("rm --obsolete", Before::Superseded, false, &["rm", "--obsolete", "--jobs=1", "HOST/a/b"]),
    job("convert, replacing", Before::Converted, true, &["convert", "HOST/a/b:v1", "HOST/a/b:v2"]),
    job("backfill", Before::Image, true, &["backfill", "--state=state", "HOST/a/b"]),
];
const FINE_AGAIN: [&str; 4] = ["index", "--kind=fine", "--existing=replace", "HOST/a/b:v1"];

/// The jobs on files: layouts, caches, the journal, and what else they read and write.
pub const ON_DISK: [Job; 14] = [
    job("index in a layout", Before::Layout, true, &["index", "oci:img:v1"]),
    job("index to a layout", Before::Layout, true, &["index", "oci:img:v1", "--output=oci:out"]),
    job("convert in layouts", Before::Layout, true, &["convert", "oci:img:v1", "oci:out:v2"]),
    job("rm in a layout", Before::IndexedLayout, false, &["rm", "--any-tool", "oci:img:v1"]),
    job("index --kind v1,fine in a layout", Before::LargeLayout, true, &FINE_HERE),
    job("index, replacing a fine index in a layout", Before::FineLayout, true, &FINE_AGAIN_HERE),
    job("verify in a layout", Before::FineLayout, false, &["verify", "--jobs=1", "oci:img:v1"]),
    job(
        "index of an archive",
        Before::Archives,
        true,
        &["index", "oci-archive:img.tar:v1", "--output=oci:out"],
    ),
    job(
        "convert of an archive",
        Before::Archives,
        true,
        &["convert", "docker-archive:saved.tar", "oci:out:v2"],
    ),
    job(
        "ztoc create",
        Before::Layout,
        false,
        &["ztoc", "create", "layer", "--output=ztoc", "--span-size=16KiB"],
    ),
    job("cat by a cache", Before::Indexed, false, &["cat", "HOST/a/b:v1", "dir1/file2"]),
    job("index by a cache", Before::Image, true, &["index", "HOST/a/b:v1"]),
    job("backfill", Before::Image, true, &["backfill", "--state=state", "HOST/a/b"]),
    job("hook serve", Before::Image, true, &["hook"]),
];
const FINE_HERE: [&str; 4] = ["index", "--kind=v1,fine", "--profile=start.jsonl", "oci:img:v1"];
const FINE_AGAIN_HERE: [&str; 4] = ["index", "--kind=fine", "--existing=replace", "oci:img:v1"];

/// Where a job runs.
pub struct Place<'a> {
    pub sandbox: &'a Sandbox,
    pub host: &'a str,
    /// The image's manifest.
    pub image: Digest,
    /// The program and arguments that start the tested program, if any.
    pub through: Vec<String>,
}

impl Place<'_> {
    fn command(&self, args: &[&str]) -> Command {
        started_through(&self.through, self.sandbox.command(args))
    }
}

/// The end of a run, with its output.
#[derive(Debug, Default)]
pub struct Ended {
    /// None if it was killed.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    /// Whether a hook confirmed the event.
    pub is_accepted: bool,
}

impl Ended {
    fn of(output: Output) -> Ended {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Ended { code: output.status.code(), stdout: output.stdout, stderr, is_accepted: false }
    }

    /// Checks that it was killed by a fault, succeeded, or reported an error.
    pub fn judge(&self) -> Result<(), String> {
        let Ended { code, stdout, stderr, .. } = self;
        let is_told = stderr.contains("error: ") || stderr.contains("\"event\"");
        match code {
            _ if stderr.contains("panicked") => Err(format!("a panic: {stderr}")),
            None | Some(0) => Ok(()),
            Some(1) if is_told => Ok(()),
            // `verify` found a difference.
            Some(3) if String::from_utf8_lossy(stdout).contains("sha256:") => Ok(()),
            Some(code) => Err(format!("exit code {code}: {stderr}")),
        }
    }
}

impl Job {
    /// Runs a job to its end. `pid` is set when the process starts. A hook gets an event if `posts`
    /// is set.
    pub fn run(&self, place: &Place<'_>, posts: bool, pid: &Arc<AtomicI32>) -> Ended {
        if self.name.starts_with("hook") {
            return self.hook(place, posts, pid);
        }
        let small: &[&str] = if self.indexes { &SMALL } else { &[] };
        let args: Vec<String> =
            self.args.iter().chain(small).map(|arg| arg.replace("HOST", place.host)).collect();
        let mut command = place.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
        command.envs(WAITS).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        pid.store(child.id() as i32, Ordering::SeqCst);
        let guard = Guard::new(&child);
        let output = child.wait_with_output().unwrap();
        let mut ended = Ended::of(output);
        if guard.has_fired() {
            ended.code = Some(-1);
            ended.stderr += &format!("still running after {} s\n", PATIENCE.as_secs());
        }
        ended
    }

    /// Runs `hook serve` with a journal until the posted or recorded job is done.
    fn hook(&self, place: &Place<'_>, posts: bool, pid: &Arc<AtomicI32>) -> Ended {
        let allow = format!("--allow={}", place.host);
        let args = [
            "hook",
            "serve",
            "--listen=127.0.0.1:0",
            "--journal=journal",
            "--retry-wait=1",
            "--workers=1",
        ];
        let args = [&args[..], &[&allow], &SMALL].concat();
        let mut command = place.command(&args);
        let mut hook = Hook::spawn(command.env("OCISEEK_HOOK_SECRET", SECRET).envs(WAITS));
        pid.store(hook.child.id() as i32, Ordering::SeqCst);
        let is_over = |hook: &mut Hook| hook.child.ended().is_some();
        let begun = Instant::now();
        let wait = |hook: &mut Hook, events: &[&str]| {
            while events.iter().all(|event| hook.events(event).is_empty()) && !is_over(hook) {
                assert!(begun.elapsed() < PATIENCE, "none of {events:?}: {:?}", hook.log());
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        wait(&mut hook, &["listening"]);
        let status = if posts && !is_over(&mut hook) {
            hook.post(&pushed("1", place.host, "a/b", &place.image)).0
        } else {
            0
        };
        let is_queued = hook.events("listening").first().is_some_and(|line| line["queued"] != 0);
        if status == 202 || is_queued {
            wait(&mut hook, &["job", "dead-letter"]);
        }
        if !is_over(&mut hook) {
            hook.child.signal(Signal::TERM);
        }
        let code = hook.end().code();
        let stderr = hook.log().iter().map(|line| format!("{line}\n")).collect();
        let results = hook.results();
        let is_done = results.contains_key("indexed") || results.contains_key("already-indexed");
        // Treated like a failed command if its job failed. There may be no job.
        let code = if code == Some(0) && !is_done && (posts || is_queued) { Some(1) } else { code };
        Ended { code, stdout: Vec::new(), stderr, is_accepted: status == 202 }
    }

    /// Whether everything but the cache is as before when it is done.
    pub fn only_reads(&self) -> bool {
        self.name.starts_with("verify")
    }

    /// Whether its output is its result.
    fn prints(&self) -> bool {
        self.name.starts_with("cat")
    }

    /// The result: the tags and referrers in the registry, the files on disk, and the output.
    pub fn result(
        &self,
        registry: &Faulty,
        sandbox: &Sandbox,
        ended: &Ended,
    ) -> BTreeMap<String, String> {
        let manifests = registry.manifests();
        let mut result = BTreeMap::new();
        for (reference, bytes) in &manifests {
            let document: Value = serde_json::from_slice(bytes).unwrap_or_default();
            let digest = Digest::sha256(bytes).to_string();
            if reference.starts_with(FALLBACK) {
                // A list may be empty or missing.
                for entry in document["manifests"].as_array().into_iter().flatten() {
                    result.insert(format!("listed {}", entry["digest"]), reference.clone());
                }
            } else if !reference.contains(':') {
                result.insert(reference.clone(), digest);
            } else if registry.has_referrers() && document["subject"].is_object() {
                result.insert(
                    format!("listed {digest:?}"),
                    document["subject"]["digest"].to_string(),
                );
            }
        }
        for layout in ["img", "out"] {
            for entry in listed(sandbox, layout).unwrap_or_default() {
                result.insert(
                    format!("{layout} {}", entry["digest"]),
                    entry["annotations"].to_string(),
                );
            }
        }
        if let Ok(ztoc) = std::fs::read(sandbox.path("ztoc")) {
            result.insert("ztoc".to_owned(), Digest::sha256(&ztoc).to_string());
        }
        if self.prints() {
            result.insert("output".to_owned(), Digest::sha256(&ended.stdout).to_string());
        }
        result
    }
}

/// Kills a process that hangs.
struct Guard(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<bool>);

impl Guard {
    fn new(child: &Child) -> Guard {
        let pid = rustix::process::Pid::from_child(child);
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let watch = std::thread::spawn(move || {
            let hangs =
                is_done.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if hangs {
                let _ = kill_process(pid, Signal::KILL);
            }
            hangs
        });
        Guard(done, watch)
    }

    fn has_fired(self) -> bool {
        drop(self.0);
        self.1.join().unwrap()
    }
}
