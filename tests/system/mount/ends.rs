//! How a mount starts and ends: in the foreground, in the background, and killed.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use super::{MOUNT, mount_with, small_sandbox};
use ociseek_testkit::mounts::{MountProcess, mounts_below, system, unmount, wait_until};
use ociseek_testkit::schema;
use rustix::process::Signal;
use serde_json::Value;

#[test]
fn a_mount_ends_on_signals_and_unmounting() {
    let Some(sandbox) = small_sandbox() else { return };
    let busy = ["umount of a busy one", "SIGTERM of a busy one", "SIGTERM below an overlay"];
    for end in ["SIGINT", "SIGTERM", "SIGHUP", "umount"].into_iter().chain(busy) {
        let mut serving = MountProcess::start(&sandbox, &mount_with(&["--stats-file", "stats"]));
        let mnt = sandbox.path("mnt");
        let shown = mnt.canonicalize().unwrap();
        let said = serving.stderr();
        let ready = format!("mounted at {0} (Ctrl-C or umount {0} to unmount): ", shown.display());
        assert!(
            said.contains(&ready) && said.contains(" files, vouched for only by the repository; "),
            "{said}"
        );
        // Another process reads it: a child of another test could inherit the open file from this
        // one, and keep the mount in use.
        assert!(Command::new("wc").arg(mnt.join("dir1/file0")).output().unwrap().status.success());
        let mut file = None;
        if end.ends_with("busy one") {
            file = Some(std::fs::File::open(mnt.join("dir1/file1")).unwrap());
        }
        let over = sandbox.path("over");
        let is_covered = end.ends_with("overlay");
        if is_covered {
            std::fs::create_dir_all(&over).unwrap();
            let lower = format!("lowerdir={}:{}", mnt.display(), sandbox.path("img").display());
            system(
                "mount",
                &["-t", "overlay", "overlay", "-o", &lower, over.to_str().unwrap()].map(OsStr::new),
            );
        }
        match end.split(' ').next().unwrap() {
            "umount" => {
                if let Some(file) = file.take() {
                    system("umount", &[OsStr::new("-l"), mnt.as_os_str()]);
                    // An open file can still be read.
                    let mut byte = [0];
                    file.read_exact_at(&mut byte, 199_999).unwrap();
                } else {
                    unmount(&mnt);
                }
            }
            "SIGINT" => serving.child.signal(Signal::INT),
            "SIGTERM" => serving.child.signal(Signal::TERM),
            _ => serving.child.signal(Signal::HUP),
        }
        assert_eq!(serving.end().code(), Some(0), "{end}: {}", serving.stderr());
        let warned = serving.stderr().contains("was in use");
        assert_eq!(warned, file.is_some() || is_covered, "{end}: {}", serving.stderr());
        if is_covered {
            unmount(&over);
        }
        assert_eq!(mounts_below(&mnt), Vec::<String>::new(), "{end}");
        let stats: Value =
            serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
        assert!(
            stats["content"]["requests"].is_u64() && stats["seconds_mounted"].is_f64(),
            "{stats}"
        );
    }
}

#[test]
fn a_mount_of_a_killed_process_is_reported_and_replaced() {
    let Some(sandbox) = small_sandbox() else { return };
    let mut serving = MountProcess::start(&sandbox, &MOUNT);
    serving.child.signal(Signal::KILL);
    serving.end();
    let mnt = sandbox.path("mnt");
    wait_until("the mount is dead", || std::fs::read_dir(&mnt).is_err());
    let told = sandbox.run(&MOUNT);
    let at = mnt.canonicalize().unwrap_or(mnt.clone());
    let expected = format!(
        "--- stderr ---\nerror: {0}: the process serving the file system mounted here is gone\nhint: clear it with \
         umount -l {0} (as a user: fusermount3 -uz {0}), or use --replace\n--- status 1 ---",
        at.display()
    );
    assert_eq!(told, expected);
    let mut serving = MountProcess::start(&sandbox, &mount_with(&["--replace"]));
    assert!(mnt.join("dir1/file0").exists());
    assert_eq!(mounts_below(&mnt).len(), 1);
    // A mount whose process still runs.
    let replaced = MountProcess::start(&sandbox, &mount_with(&["--replace"]));
    assert_eq!(serving.end().code(), Some(0));
    assert_eq!(mounts_below(&mnt).len(), 1);
    assert!(mnt.join("dir1/file0").exists());
    drop(replaced);
    assert_eq!(mounts_below(&mnt).len(), 0);
}

/// One document when the files are there, and nothing after it.
#[test]
fn json_on_standard_output() {
    let Some(sandbox) = small_sandbox() else { return };
    sandbox.json(0, &["index", "--json", "--no-cache", "--min-layer-size=0", "oci:img:v1"]);
    let args = ["mount", "--json", "--quiet", "--no-cache", "oci:img:v1", "mnt"];
    let mut child = sandbox.command(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut documents =
        serde_json::Deserializer::from_reader(child.stdout.take().unwrap()).into_iter::<Value>();
    let document = documents.next().unwrap().unwrap();
    schema::check(&args, &document);
    assert_eq!(document["index"]["size"].as_u64().map(|size| size > 0), Some(true), "{document}");
    assert_eq!(std::fs::read(sandbox.path("mnt/dir1/file0")).unwrap().len(), 200_000);
    unmount(&sandbox.path("mnt"));
    assert!(child.wait().unwrap().success());
    assert!(documents.next().is_none());
}

#[test]
fn detach_serves_from_the_background() {
    let Some(sandbox) = small_sandbox() else { return };
    let mnt = sandbox.path("mnt");
    let output =
        sandbox.run(&mount_with(&["--detach", "--log", "log", "--quiet", "--stats-file", "stats"]));
    assert_eq!(output, "--- stderr ---\n--- status 0 ---");
    assert_eq!(std::fs::read(mnt.join("dir1/file0")).unwrap().len(), 200_000);
    unmount(&mnt);
    wait_until("the process ends", || {
        std::fs::read(sandbox.path("stats")).is_ok_and(|stats| !stats.is_empty())
    });
    assert_eq!(std::fs::read_to_string(sandbox.path("log")).unwrap(), "");

    let document = sandbox
        .json(0, &["mount", "--detach", "--json", "--quiet", "--no-cache", "oci:img:v1", "mnt"]);
    assert_eq!(document["dir"], mnt.display().to_string());
    assert_eq!(document["layers"][0]["how"], "index");
    unmount(&mnt);

    let output = sandbox.run(&["mount", "--detach", "oci:img:v2", "mnt"]);
    assert!(
        output.starts_with("--- stderr ---\nerror: ") && output.ends_with("--- status 1 ---"),
        "{output}"
    );
    let output = sandbox.run(&["mount", "--detach", "--log", "no/log", "oci:img:v1", "mnt"]);
    assert!(output.contains("no/log: cannot write"), "{output}");
    assert_eq!(mounts_below(&mnt).len(), 0);
}
