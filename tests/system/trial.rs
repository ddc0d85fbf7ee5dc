//! `ociseek try` with the kernel and runc: what it counts, records and says, and that nothing is
//! left behind.

use std::process::{Command, Stdio};

use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::image::Image;
use ociseek_testkit::mounts::{compressed, config, image_of, mounts_below};
use ociseek_testkit::sandbox::GZIP;
use ociseek_testkit::servers;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::bundle::{rootfs, sandbox, stdout};

#[test]
fn a_trial_lists_what_was_read() {
    let Some(sandbox) = sandbox() else { return };
    let tmp = sandbox.path("tmp");
    std::fs::create_dir(&tmp).unwrap();
    let trial = |args: &[&str]| {
        let mut command = sandbox.command(&[&["try", "--cache-dir", "cache"], args].concat());
        command
            .env("TMPDIR", &tmp)
            .env("PATH", std::env::var_os("PATH").unwrap())
            .stdin(Stdio::null());
        command
    };
    let hello = ["--json", "oci:img:v1", "--", "echo hello; cat /etc/group; exit 7"];
    let output = trial(&hello).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("hello\nroot:x:0:\n"), "{told}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let startup = &report["startup"];
    assert_eq!(
        (&startup["from"], &startup["status"], &report["image"]),
        (&json!("run"), &json!(7), &json!("oci:img:v1"))
    );
    let touches = report["touches"].as_array().unwrap();
    let paths: Vec<&str> = touches.iter().filter_map(|touch| touch["path"].as_str()).collect();
    assert!(
        paths.contains(&"bin/busybox")
            && paths.contains(&"etc/group.real")
            && !paths.contains(&"srv/unread"),
        "{report}"
    );
    let times: Vec<f64> = touches.iter().map(|touch| touch["ms"].as_f64().unwrap()).collect();
    assert!(times.is_sorted(), "{report}");
    let fetched = startup["fetched_bytes"].as_u64();
    let all = report["ways"][0]["bytes"].as_u64();
    assert!(fetched > Some(0) && fetched < all.map(|all| all / 2), "{report}");

    // What startup needs does not depend on the content of the cache.
    let again = trial(&hello).output().unwrap();
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!(again["startup"]["fetched_bytes"], json!(0), "{again}");
    assert_eq!(again["ways"], report["ways"]);

    // The recorded startup is that of mount --record, and replaces a file only when it is complete.
    std::fs::write(sandbox.path("record"), "old").unwrap();
    let missing = ["--record=record", "oci:img:nosuch"];
    assert_eq!(trial(&missing).output().unwrap().status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(sandbox.path("record")).unwrap(), "old");
    let (said, code) = stdout(&mut trial(&["--record=record", "oci:img:v1", "--", "echo hello"]));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("oci:img:v1 linux") && said.contains("with status 0"), "{said}");
    let recorded = std::fs::read(sandbox.path("record")).unwrap();
    let reads = ociseek_rootfs::record::parse(&recorded).unwrap();
    assert!(reads.iter().any(|read| read.path == b"bin/busybox"), "{reads:?}");

    // Without a runtime, the command's files are counted.
    let (said, code) = stdout(trial(&["oci:img:v1"]).env("PATH", "/nowhere"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("No container ran (runc is not in PATH)"), "{said}");
    let (said, code) = stdout(trial(&["--record=record", "oci:img:v1"]).env("PATH", "/nowhere"));
    assert!(code == Some(1) && said.contains("runc is not in PATH"), "{said}");
    assert_eq!(std::fs::read(sandbox.path("record")).unwrap(), recorded);
    // But the one that was asked for must be there.
    let (said, code) = stdout(&mut trial(&["--runtime", "no-such-runtime", "oci:img:v1"]));
    assert!(code == Some(1) && said.contains("no-such-runtime: not found in PATH"), "{said}");

    // A program that cannot run has no startup to record.
    for (program, status) in [("/no/such", 127), ("no-such", 127), ("/etc/group.real", 126)] {
        let args = ["--entrypoint", program, "oci:img:v1"];
        let (said, code) = stdout(&mut trial(&args));
        assert!(code == Some(status) && said.contains(program), "{said}");
    }

    // Other users cannot access its directory, whatever the umask.
    let inner = trial(&["oci:img:v1", "--", "true"]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "umask 0; exec \"$0\" \"$@\""])
        .arg(inner.get_program())
        .args(inner.get_args());
    shell.current_dir(sandbox.dir.path()).env("TMPDIR", &tmp);
    let (said, code) = stdout(&mut shell);
    assert_eq!(code, Some(0), "{said}");

    // A server is ready by what it prints, or by a port.
    let args = ["--until-output=up", "oci:img:v1", "--", "echo 'it is up'; sleep 1000"];
    let (said, code) = stdout(&mut trial(&args));
    assert!(code == Some(0) && said.contains("was ready and was ended"), "{said}");
    let args = ["--until-port=8080", "oci:img:v1", "--", "busybox nc -l -p 8080; sleep 1000"];
    let (said, code) = stdout(&mut trial(&args));
    assert!(code == Some(0) && said.contains("was ready and was ended"), "{said}");

    // Output without a pause hides neither the port nor the end of its time.
    let chatty = "busybox nc -l -p 8080 & while :; do echo up; done";
    for until in ["--until-port=8080", "--for=2s"] {
        let (said, code) = stdout(&mut trial(&[until, "oci:img:v1", "--", chatty]));
        assert!(code == Some(0) && said.contains("was ready and was ended"), "{until}: {said}");
    }

    // The first signal ends the container, what it read is not lost, and nothing is left behind.
    let args = ["--record=signalled", "oci:img:v1", "--", "echo up; sleep 1000"];
    let mut child = ChildProcess::spawn(trial(&args).stdout(Stdio::null()).stderr(Stdio::piped()));
    let mut up = [0; 3];
    let mut printed = child.stderr();
    while &up != b"up\n" {
        up.rotate_left(1);
        std::io::Read::read_exact(&mut printed, &mut up[2..]).unwrap();
    }
    // timeout(1) sends it twice.
    child.signal(Signal::INT);
    child.signal(Signal::TERM);
    assert_eq!(child.end().code(), Some(0));
    let recorded = std::fs::read(sandbox.path("signalled")).unwrap();
    assert!(ociseek_rootfs::record::parse(&recorded).is_ok());
    let (containers, _) = stdout(Command::new("runc").args(["list", "-q"]));
    assert!(!containers.contains(&format!("ociseek-try-{}", child.id())), "{containers}");
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
    assert_eq!(mounts_below(sandbox.dir.path()), Vec::<String>::new());
}

/// A tar with a file that makes an image so large that loading it lazily pays, and a script whose
/// interpreter the image does not have.
fn large() -> Vec<u8> {
    let mut state = 1_u64;
    let noise = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    });
    let noise: Vec<u8> = noise.take(24 << 20).collect();
    let mut header = tar::Header::new_gnu();
    header.set_size(noise.len() as u64);
    header.set_mode(0o644);
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_data(&mut header, "srv/large", &noise[..]).unwrap();
    let script = b"#!/bin/none\n";
    header.set_size(script.len() as u64);
    header.set_mode(0o755);
    builder.append_data(&mut header, "srv/script", &script[..]).unwrap();
    builder.into_inner().unwrap()
}

#[test]
fn a_container_that_was_not_ready_promises_nothing() {
    let Some(sandbox) = sandbox() else { return };
    let run = json!({"Entrypoint": ["sh", "-c"], "Cmd": ["true"], "Env": ["PATH=/bin"]});
    let busybox = servers::tool("busybox").unwrap();
    let tars = [rootfs(&busybox), large()];
    let layers = tars.iter().map(|tar| (GZIP, compressed(tar))).collect::<Vec<_>>();
    image_of(&sandbox, "large", &layers, &tars, &run);
    std::fs::create_dir(sandbox.path("tmp")).unwrap();
    let trial = |args: &[&str]| {
        let mut command = sandbox.command(&[&["try", "--cache-dir", "cache"], args].concat());
        command.env("TMPDIR", sandbox.path("tmp")).env("PATH", std::env::var_os("PATH").unwrap());
        let (said, code) = stdout(&mut command);
        // On one line.
        (said.split_whitespace().collect::<Vec<_>>().join(" "), code)
    };
    let not_known = "Whether lazy loading pays is not known";

    // It fails, or exits without having done what was asked for, or is ended without.
    let (said, code) = trial(&["oci:large:v1", "--", "exit 9"]);
    assert!(code == Some(9) && said.contains(not_known), "{said}");
    assert!(said.contains("with status 9. Only what it read until then is counted"), "{said}");
    let (said, code) = trial(&["--until-port=81", "oci:large:v1", "--", "echo bye"]);
    assert!(code == Some(1) && said.contains(not_known), "{said}");
    assert!(said.contains("did not listen on port 81: it exited"), "{said}");
    let server = "busybox nc -l -p 82; sleep 1000";
    let (said, code) = trial(&["--until-port=81", "--for=10s", "oci:large:v1", "--", server]);
    assert!(code == Some(1) && said.contains("It listened on 82"), "{said}");
    assert!(said.contains("Next: ociseek try oci:large:v1 --until-port 82"), "{said}");
    let json = trial(&["-q", "--json", "oci:large:v1", "--", "exit 9"]).0;
    let report: Value = serde_json::from_str(&json).unwrap();
    let answer = (&report["startup"]["is_ready"], &report["answer"]["code"]);
    assert_eq!(answer, (&json!(false), &json!("unknown")), "{report}");

    // A shell without input ends at once.
    let (said, code) = trial(&["oci:large:v1"]);
    assert!(code == Some(0) && said.contains("printed nothing. If it reads its input"), "{said}");
    let (said, code) = trial(&["oci:large:v1", "--", "echo hello"]);
    assert!(code == Some(0) && said.contains("Load it lazily"), "{said}");

    // What did not start is estimated, and the estimate is told as one.
    let (said, code) = trial(&["--runtime=/bin/true", "oci:large:v1"]);
    assert!(code == Some(0) && said.contains("Lazy loading probably pays"), "{said}");
    assert!(said.contains("No container ran (/bin/true could not start it"), "{said}");
    let (said, code) = trial(&["--entrypoint=/etc", "oci:large:v1"]);
    assert!(code == Some(126) && said.contains("is a directory, not a program"), "{said}");
    let (said, code) = trial(&["--entrypoint=/srv/script", "oci:large:v1"]);
    assert!(code == Some(127) && said.contains("needs the interpreter \"/bin/none\""), "{said}");
}

/// The files of the container have no place.
#[test]
fn without_a_temporary_directory_the_startup_is_estimated() {
    let Some(sandbox) = sandbox() else { return };
    let mut command = sandbox.command(&["try", "--no-cache", "oci:img:v1", "--", "true"]);
    command.env("PATH", std::env::var_os("PATH").unwrap()).env("TMPDIR", sandbox.path("none"));
    let (said, code) = stdout(&mut command);
    assert!(code == Some(0) && said.contains("No container ran (cannot create a directory in"));
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("(TMPDIR): No such file or directory (os error 2))"), "{said}");
}

/// What this machine cannot run is estimated, or needs no estimate.
#[test]
fn an_image_for_another_machine_is_not_measured() {
    let Some(sandbox) = sandbox() else { return };
    let mut program = std::fs::read(servers::tool("busybox").unwrap()).unwrap();
    // The machine in the head of the ELF file: RISC-V.
    program[18..20].copy_from_slice(&[0xf3, 0]);
    std::fs::write(sandbox.path("busybox"), program).unwrap();
    let tars = [rootfs(&sandbox.path("busybox")), large()];
    let layers = tars.iter().map(|tar| (GZIP, compressed(tar))).collect::<Vec<_>>();
    let trial = |os: &str, architecture: &str| {
        let mut config: Value =
            serde_json::from_slice(&config(&tars, &json!({"Cmd": ["/bin/true"]}))).unwrap();
        config["os"] = json!(os);
        config["architecture"] = json!(architecture);
        Image::new(&config, layers.iter().cloned()).write(&sandbox.path(os));
        let mut command = sandbox.command(&["try", "--no-cache", &format!("oci:{os}:v1")]);
        stdout(command.env("PATH", std::env::var_os("PATH").unwrap()))
    };
    let (said, code) = trial("linux", "riscv64");
    assert!(code == Some(0) && said.contains("Lazy loading probably pays"), "{said}");
    assert!(said.contains("does not run programs for linux/riscv64"), "{said}");
    let (said, code) = trial("windows", "amd64");
    assert!(code == Some(0) && said.contains("only Linux images are loaded lazily"), "{said}");
}
