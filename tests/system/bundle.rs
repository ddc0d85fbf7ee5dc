//! `ociseek bundle` with the kernel and runc: containers start before their image is pulled, and
//! nothing is left behind.

use ociseek_testkit::image::image_manifest;
use ociseek_testkit::servers;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::mounts::{
    MountProcess, can_mount, have, image, image_of, mounts_below, wait_until,
};
use ociseek_testkit::sandbox::{Layout, OCI_CONFIG, OCI_MANIFEST, Sandbox, ZSTD, tar};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The size of the part of the image that no container here reads, in bytes.
pub const UNREAD: usize = 8_000_000;

/// A tar of busybox with two users and a large file that is never read.
pub fn rootfs(busybox: &Path) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind: tar::EntryType, mode: u32, data: &[u8], link: Option<&str>| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(1_700_000_000);
        header.set_size(data.len() as u64);
        match link {
            Some(link) => builder.append_link(&mut header, name, link).unwrap(),
            None => builder.append_data(&mut header, name, data).unwrap(),
        }
    };
    for dir in ["bin", "dev", "etc", "proc", "srv", "sys", "tmp"] {
        add(dir, tar::EntryType::Directory, 0o755, b"", None);
    }
    let mut state = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    })
    .take(UNREAD)
    .collect();
    add("bin/busybox", tar::EntryType::Regular, 0o755, &std::fs::read(busybox).unwrap(), None);
    add("srv/unread", tar::EntryType::Regular, 0o644, &noise, None);
    for name in ["sh", "cat", "id", "echo", "chown", "stat", "sleep", "hostname", "true"] {
        add(&format!("bin/{name}"), tar::EntryType::Symlink, 0o777, b"", Some("busybox"));
    }
    let passwd = b"root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n";
    add("etc/passwd", tar::EntryType::Regular, 0o644, passwd, None);
    // Reached by a link that leads out of the image, unless the image's root is respected.
    add("etc/group", tar::EntryType::Symlink, 0o777, b"", Some("/srv/../../etc/group.real"));
    add(
        "etc/group.real",
        tar::EntryType::Regular,
        0o644,
        b"root:x:0:\nwww:x:34:\nadm:x:4:web\n",
        None,
    );
    builder.into_inner().unwrap()
}

/// A sandbox with the image `oci:img:v1`, if containers can run here.
pub fn sandbox() -> Option<Sandbox> {
    if !can_mount() || !have(&["runc"]) {
        return None;
    }
    let busybox = servers::tool("busybox")?;
    let sandbox = Sandbox::new();
    let run = json!({
        "User": "web",
        "Env": ["GREETING=good morning"],
        "Entrypoint": ["sh", "-c"],
        "Cmd": ["echo $GREETING; id; echo $PWD; echo x > /tmp/x || echo refused; hostname"],
        "WorkingDir": "/srv",
        "Labels": {"org.opencontainers.image.title": "a title", "run.oci.handler": "any", "some": "label"},
    });
    image(&sandbox, "img", &[rootfs(&busybox)], &run);
    Some(sandbox)
}

/// What it prints, and its exit status.
pub fn stdout(command: &mut Command) -> (String, Option<i32>) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (text, output.status.code())
}

/// A container name that is unique among the tests.
fn name(sandbox: &Sandbox) -> String {
    let dir = sandbox.dir.path().file_name().unwrap().to_str().unwrap();
    format!("test{}", dir.trim_start_matches('.'))
}

fn runc(sandbox: &Sandbox, name: &str) -> Command {
    let mut command = Command::new("runc");
    command.args(["run", "-b"]).arg(sandbox.path("b")).arg(name);
    command
}

fn run_in_background(sandbox: &Sandbox, name: &str) -> ChildProcess {
    let child = ChildProcess::spawn(runc(sandbox, name).stdin(Stdio::null()).stdout(Stdio::null()));
    wait_until("the container runs", || {
        let (state, _) = stdout(Command::new("runc").args(["state", name]));
        state.contains("\"running\"")
    });
    child
}

fn end_container(name: &str, mut child: ChildProcess) {
    stdout(Command::new("runc").args(["kill", name, "KILL"]));
    child.end();
}

fn nothing_is_left(sandbox: &Sandbox) {
    assert_eq!(mounts_below(sandbox.dir.path()), Vec::<String>::new());
    assert!(!sandbox.path("b").exists());
}

#[test]
fn a_container_starts_before_its_image_is_downloaded() {
    let Some(sandbox) = sandbox() else { return };
    let args =
        ["bundle", "--detach", "--stats-file", "stats", "--cache-dir", "cache", "oci:img:v1", "b"];
    let (said, code) = stdout(&mut sandbox.command(&args));
    assert!(
        code == Some(0)
            && said.contains("bundle of oci:img:v1 created in ")
            && said.contains(" to remove it): "),
        "{said}"
    );
    let (printed, code) = stdout(&mut runc(&sandbox, &name(&sandbox)));
    let spec: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("b/config.json")).unwrap()).unwrap();
    let hostname = spec["hostname"].as_str().unwrap();
    assert_eq!(
        printed.replace(hostname, "HOST"),
        "good morning\nuid=33(web) gid=34(www) groups=4(adm)\n/srv\nrefused\nHOST\nsh: can't create /tmp/x: \
         Permission denied\n"
    );
    assert_eq!(code, Some(0));
    // Runtimes obey some of the other annotations.
    let annotations: Vec<&str> =
        spec["annotations"].as_object().unwrap().keys().map(String::as_str).collect();
    assert!(
        annotations.iter().all(|key| key.starts_with("org.opencontainers.image.")),
        "{annotations:?}"
    );
    assert_eq!(spec["annotations"]["org.opencontainers.image.title"], "a title");
    assert_eq!(std::fs::read_dir(sandbox.path("b/upper")).unwrap().count(), 0);
    // Other users must not access the image's programs.
    assert_eq!(sandbox.path("b").metadata().unwrap().permissions().mode() & 0o777, 0o700);

    assert_eq!(sandbox.run(&["bundle", "--rm", "b"]), "--- stderr ---\n--- status 0 ---");
    nothing_is_left(&sandbox);
    let stats: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
    let fetched = stats["content"]["bytes_fetched"].as_u64().unwrap();
    assert!(fetched > 0 && fetched < UNREAD as u64 / 2, "{stats}");

    // The second run uses the cache of the first.
    let document = sandbox.json(0, &[&args[..], &["--json"]].concat());
    assert_eq!(document["dir"], sandbox.path("b").display().to_string());
    stdout(&mut runc(&sandbox, &name(&sandbox)));
    assert_eq!(sandbox.run(&["bundle", "--rm", "b"]), "--- stderr ---\n--- status 0 ---");
    let stats: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
    assert_eq!(stats["content"]["bytes_fetched"], 0, "{stats}");
}

#[test]
fn writes_go_to_the_overlay() {
    let Some(sandbox) = sandbox() else { return };
    std::fs::create_dir(sandbox.path("b")).unwrap();
    let script = "echo mine > /etc/passwd; chown 33 /srv/unread; stat -c '%u %s' /srv/unread; cat /etc/passwd; id -u; \
                  cat /etc/hosts | grep -c localhost";
    let args = [
        "bundle",
        "--quiet",
        "--net",
        "host",
        "--entrypoint",
        "",
        "oci:img:v1",
        "b",
        "--",
        "sh",
        "-c",
        script,
    ];
    // The last run uses root, because the image's user has no permission.
    let args: Vec<&str> =
        ["bundle", "--detach"].into_iter().chain(args[1..].iter().copied()).collect();
    assert_eq!(sandbox.run(&args), "--- stderr ---\n--- status 0 ---");
    let config = sandbox.path("b/config.json");
    let mut spec: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    spec["process"]["user"]["uid"] = 0.into();
    let capabilities = spec["process"]["capabilities"]["bounding"].clone();
    for set in ["effective", "permitted"] {
        spec["process"]["capabilities"][set] = capabilities.clone();
    }
    std::fs::write(&config, spec.to_string()).unwrap();
    let (printed, code) = stdout(&mut runc(&sandbox, &name(&sandbox)));
    assert!(printed.starts_with(&format!("33 {UNREAD}\nmine\n0\n")), "{printed}");
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(std::fs::read_to_string(sandbox.path("b/upper/etc/passwd")).unwrap(), "mine\n");
    // A change of owner copies no content.
    let copied = sandbox.path("b/upper/srv/unread").metadata().unwrap();
    assert!(std::os::unix::fs::MetadataExt::blocks(&copied) < 100, "{copied:?}");
    assert_eq!(sandbox.run(&["bundle", "--rm", "b"]), "--- stderr ---\n--- status 0 ---");
    // The directory existed before.
    assert_eq!(std::fs::read_dir(sandbox.path("b")).unwrap().count(), 0);
    std::fs::remove_dir(sandbox.path("b")).unwrap();
    nothing_is_left(&sandbox);
}

#[test]
fn bundles_are_removed_cleanly() {
    let Some(sandbox) = sandbox() else { return };
    let bundle = ["bundle", "--entrypoint", "sleep", "oci:img:v1", "b", "--", "1000"];

    // In the foreground, ended by a signal.
    let mut serving = MountProcess::start(&sandbox, &bundle);
    assert!(sandbox.path("b/rootfs/bin/busybox").exists());
    serving.child.signal(Signal::TERM);
    assert_eq!(serving.end().code(), Some(0), "{}", serving.stderr());
    nothing_is_left(&sandbox);

    // While its container runs, --rm does nothing, but the serving process can be stopped.
    let mut serving = MountProcess::start(&sandbox, &bundle);
    let name = name(&sandbox);
    let child = run_in_background(&sandbox, &name);
    let (said, code) = stdout(&mut sandbox.command(&["bundle", "--rm", "b"]));
    assert!(
        code == Some(1)
            && said.contains("is still running in it")
            && said.contains("hint: end its container"),
        "{said}"
    );
    assert_eq!(mounts_below(sandbox.dir.path()).len(), 2);
    serving.child.signal(Signal::INT);
    assert_eq!(serving.end().code(), Some(0));
    assert!(serving.stderr().contains("has lost its files"), "{}", serving.stderr());
    nothing_is_left(&sandbox);
    end_container(&name, child);

    // After the serving process was killed.
    let mut serving = MountProcess::start(&sandbox, &bundle);
    serving.child.signal(Signal::KILL);
    serving.end();
    let (said, code) = stdout(&mut sandbox.command(&bundle));
    assert!(code == Some(1) && said.contains("already a bundle"), "{said}");
    assert_eq!(sandbox.run(&["bundle", "--rm", "b"]), "--- stderr ---\n--- status 0 ---");
    nothing_is_left(&sandbox);

    // A directory that is not ours is kept.
    std::fs::create_dir_all(sandbox.path("b/upper")).unwrap();
    for args in [
        &["bundle", "--rm", "b"][..],
        &["bundle", "oci:img:v1", "b"],
        &["bundle", "--rm", "nothing"],
    ] {
        let (said, code) = stdout(&mut sandbox.command(args));
        assert!(
            code == Some(1)
                && (said.contains("not an ociseek bundle") || said.contains("not empty")),
            "{said}"
        );
    }
    assert!(sandbox.path("b/upper").exists());
    std::fs::remove_dir_all(sandbox.path("b")).unwrap();

    // A bundle that cannot be created leaves nothing behind.
    let busybox = servers::tool("busybox").unwrap();
    image(&sandbox, "odd", &[rootfs(&busybox)], &json!({"User": "nobody", "Cmd": ["true"]}));
    let odd = sandbox.run(&["bundle", "oci:odd:v1", "b"]);
    assert_eq!(
        odd,
        "--- stderr ---\nerror: cannot determine the image's user \"nobody\": the image's /etc/passwd has no user \
         \"nobody\"\n--- status 1 ---"
    );
    image(&sandbox, "idle", &[rootfs(&busybox)], &json!({}));
    let idle = sandbox.run(&["bundle", "oci:idle:v1", "b"]);
    assert_eq!(
        idle,
        "--- stderr ---\nerror: the image does not say what to run\nhint: give a command after --\n--- status 1 ---"
    );
    let mut layout = Layout::new(&sandbox.path("win"));
    let config = layout.blob(
        OCI_CONFIG,
        br#"{"os":"windows","architecture":"amd64","rootfs":{"diff_ids":[]},"config":{"Cmd":["cmd"]}}"#,
    );
    let manifest = image_manifest(&config, &json!([]));
    let manifest = layout.blob(OCI_MANIFEST, manifest.to_string().as_bytes());
    layout.tag(manifest, "v1");
    let windows = sandbox.run(&["bundle", "oci:win:v1", "b"]);
    assert!(windows.contains("for \"windows\", and only Linux containers can be run"), "{windows}");
    nothing_is_left(&sandbox);
}

#[test]
fn directories_accessible_to_others_are_refused() {
    let Some(sandbox) = sandbox() else { return };
    const NOBODY: Option<u32> = Some(65_534);
    let mode = |name: &str, mode: u32| {
        let path = sandbox.path(name);
        std::fs::create_dir_all(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode("theirs/b", 0o755);
    chown(sandbox.path("theirs/b"), NOBODY, None).unwrap();
    mode("home", 0o755);
    chown(sandbox.path("home"), NOBODY, None).unwrap();
    mode("open", 0o777);
    mode("group", 0o775);
    mode("sticky", 0o1777);
    symlink(sandbox.path("sticky"), sandbox.path("link")).unwrap();
    let nothing_in = |dir: &str| std::fs::read_dir(sandbox.path(dir)).unwrap().count() == 0;
    for (dir, above, why) in [
        ("theirs/b", "theirs/b", "the directory belongs to user 65534"),
        ("home/b", "home", "other users can replace the directory, since they can write to "),
        ("open/b", "open", "other users can replace the directory"),
        ("open/../open/b", "open", "other users can replace the directory"),
        ("group/b", "group", "other users can replace the directory"),
        ("link", "sticky", "Not a directory"),
    ] {
        let (said, code) = stdout(&mut sandbox.command(&["bundle", "oci:img:v1", dir]));
        assert!(code == Some(1) && said.contains(why) && nothing_in(above), "{dir}: {said}");
        assert!(
            dir == "link" || said.contains("hint: root must own DIR and its parent directories"),
            "{said}"
        );
    }
    let args = ["bundle", "--quiet", "--detach", "oci:img:v1", "sticky/b"];
    assert_eq!(sandbox.run(&args), "--- stderr ---\n--- status 0 ---");

    // A bundle that other users could have created is not removed either.
    mode("sticky", 0o777);
    let (said, code) = stdout(&mut sandbox.command(&["bundle", "--rm", "sticky/b"]));
    assert!(code == Some(1) && said.contains("other users can replace the directory"), "{said}");
    assert_eq!(mounts_below(sandbox.dir.path()).len(), 2);
    mode("sticky", 0o1777);
    assert_eq!(sandbox.run(&["bundle", "--rm", "sticky/b"]), "--- stderr ---\n--- status 0 ---");
    assert!(nothing_in("sticky"));
}

/// The image's layers have two zstd frames and one. The fine index is used by each command.
#[test]
fn layers_of_zstd_are_tried_and_run_by_their_documents() {
    let Some(sandbox) = sandbox() else { return };
    let tars = [rootfs(&servers::tool("busybox").unwrap()), tar(5, 9, 600_000)];
    let frames = |parts: &[&[u8]]| -> Vec<u8> {
        parts.iter().flat_map(|part| zstd::encode_all(*part, 3).unwrap()).collect()
    };
    let (first, rest) = tars[0].split_at(3_000_000);
    let layers = [(ZSTD, frames(&[first, rest])), (ZSTD, frames(&[&tars[1]]))];
    let size: usize = layers.iter().map(|(_, blob)| blob.len()).sum();
    image_of(
        &sandbox,
        "zst",
        &layers,
        &tars,
        &json!({"Entrypoint": ["sh", "-c"], "Cmd": ["cat /dir5/file2 >/dev/null && echo READY"]}),
    );
    let fine =
        ["index", "--quiet", "--kind=fine", "--min-layer-size=0", "--no-cache", "oci:zst:v1"];
    let made =
        |more: &[&str]| assert!(sandbox.run(&[&fine, more].concat()).ends_with("--- status 0 ---"));
    made(&[]);

    std::fs::create_dir(sandbox.path("tmp")).unwrap();
    let trial = |args: &[&str]| {
        let mut command = sandbox.command(&[&["try", "--no-cache", "oci:zst:v1"], args].concat());
        command.env("TMPDIR", sandbox.path("tmp")).env("PATH", std::env::var_os("PATH").unwrap());
        let output = command.stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let report: Value = serde_json::from_str(&trial(&["--json", "--record=start.jsonl"])).unwrap();
    let paths: Vec<&Value> =
        report["touches"].as_array().unwrap().iter().map(|touch| &touch["path"]).collect();
    assert!(
        paths.contains(&&json!("bin/busybox")) && paths.contains(&&json!("dir5/file2")),
        "{report}"
    );
    let fetched = report["startup"]["fetched_bytes"].as_u64();
    assert!(fetched < Some(size as u64 / 2), "{report}");

    // What the start needs is fetched before it is asked for, and nothing else.
    made(&["--profile=start.jsonl"]);
    let bundle = [
        "bundle",
        "--detach",
        "--quiet",
        "--stats-file",
        "stats",
        "--cache-dir",
        "cache",
        "oci:zst:v1",
        "b",
    ];
    assert_eq!(sandbox.run(&bundle), "--- stderr ---\n--- status 0 ---");
    let (printed, code) = stdout(&mut runc(&sandbox, &name(&sandbox)));
    assert_eq!((printed.trim(), code), ("READY", Some(0)));
    assert_eq!(sandbox.run(&["bundle", "--rm", "b"]), "--- stderr ---\n--- status 0 ---");
    nothing_is_left(&sandbox);
    let stats: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("stats")).unwrap()).unwrap();
    assert!(
        stats["layers"].as_array().unwrap().iter().all(|layer| layer["how"] == "fine"),
        "{stats}"
    );
    assert!(stats["content"]["bytes_fetched"].as_u64() < Some(size as u64 / 2), "{stats}");
    assert!(stats["phases"]["start"]["bytes"].as_u64() > Some(0), "{stats}");
}
