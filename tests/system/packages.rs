//! The packages are installed like users do, run, and leave nothing behind. `OCISEEK_SHIPPED` names
//! the program to pack.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use ociseek_testkit::corpus::debian_layers;
use ociseek_testkit::mounts::{can_mount, have};
use ociseek_testkit::sandbox::{Sandbox, program};
use ociseek_testkit::servers::{run, tool};

/// Packs the program with a script of `packaging`, and returns its output.
fn packed(script: &str, dir: &Path, arguments: impl Fn(&str, &str) -> [String; 2]) -> String {
    std::fs::create_dir_all(dir).unwrap();
    let stripped = dir.join("ociseek");
    // Most of a test build are symbols for debuggers.
    run(Path::new("strip"), &["-o", stripped.to_str().unwrap(), program()]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(script);
    let arguments = arguments(stripped.to_str().unwrap(), dir.to_str().unwrap());
    let mut command = Command::new(script);
    let output = command.args(arguments).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(stripped).unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

fn program_then_dir(program: &str, dir: &str) -> [String; 2] {
    [program, dir].map(str::to_owned)
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[test]
fn pip_installs_the_wheel_and_removes_it() {
    let Some(python) = tool("python3") else { return };
    let dir = tempfile::tempdir().unwrap();
    let wheel = packed("wheel", dir.path(), program_then_dir);
    let first = std::fs::read(&wheel).unwrap();
    packed("wheel", dir.path(), program_then_dir);
    assert!(first == std::fs::read(&wheel).unwrap(), "the same input gives the same bytes");
    let bare = dir.path().join("venv");
    run(&python, &["-m", "venv", bare.to_str().unwrap()]);
    let in_venv = |program: &str| bare.join("bin").join(program);
    run(&in_venv("pip"), &["install", "--quiet", "--no-index", &wheel]);
    assert_eq!(run(&in_venv("ociseek"), &["--version"]), format!("ociseek {VERSION}\n"));
    let shown = run(&in_venv("pip"), &["show", "--files", "ociseek"]);
    assert!(
        shown.contains(&format!("Version: {VERSION}\n")) && shown.contains("licenses/LICENSE"),
        "{shown}"
    );
    run(&in_venv("pip"), &["uninstall", "--quiet", "--yes", "ociseek"]);
    assert!(!in_venv("ociseek").exists());
}

/// The paths below a directory.
fn below(dir: &Path) -> Vec<PathBuf> {
    let found = run(Path::new("find"), &[dir.to_str().unwrap(), "-xdev", "-iname", "*ociseek*"]);
    found.lines().map(PathBuf::from).collect()
}

#[test]
fn apt_installs_the_package_in_a_clean_root_and_removes_it() {
    let (Some(layers), true) = (debian_layers(), can_mount() && have(&["dpkg-deb", "chroot"]))
    else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let deb = packed("deb", dir.path(), program_then_dir);
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let at = root.to_str().unwrap();
    run(Path::new("tar"), &["-xpf", layers.join("debian-rootfs.tar").to_str().unwrap(), "-C", at]);
    let before = below(&root);
    std::fs::copy(&deb, root.join("package.deb")).unwrap();
    let in_root = |arguments: &[&str]| run(Path::new("chroot"), &[&[at], arguments].concat());
    let quiet = [
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-qq",
        "--no-install-recommends",
        "-y",
    ];
    in_root(&[&quiet[..], &["install", "/package.deb"]].concat());
    assert_eq!(in_root(&["ociseek", "--version"]), format!("ociseek {VERSION}\n"));
    for path in [
        "usr/share/man/man1/ociseek-index.1.gz",
        "usr/share/bash-completion/completions/ociseek",
        "usr/lib/systemd/system/ociseek-snapshotter.service",
        "usr/lib/systemd/system/ociseek-store.service",
        "usr/share/doc/ociseek/containerd/ociseek.toml",
    ] {
        assert!(root.join(path).is_file(), "{path}");
    }
    let config = std::fs::read_to_string(root.join("etc/ociseek/snapshotter.toml")).unwrap();
    assert!(config.contains("# root = \"/var/lib/ociseek/snapshotter\"\n"), "{config}");
    in_root(&[&quiet[..], &["purge", "ociseek"]].concat());
    assert_eq!(below(&root), before);

    a_pod_installs_the_snapshotter(&root);
}

/// `snapshotter install`, with a systemctl that notes down what it is told.
fn a_pod_installs_the_snapshotter(root: &Path) {
    let systemctl = root.join("usr/bin/systemctl");
    let calls = root.join("calls");
    let script =
        "#!/bin/sh\necho \"$*\" >> /calls\ntest ! -e /fails || { echo no bus >&2; exit 1; }\n";
    std::fs::write(&systemctl, script).unwrap();
    std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).unwrap();
    let config = root.parent().unwrap().join("config.toml");
    let at = root.to_str().unwrap();
    // What systemd would start. Its socket is bound elsewhere on the disk: the path is too long.
    let served = tempfile::tempdir().unwrap();
    let mut snapshotter = Command::new(program())
        .args(["snapshotter", "--lazy-from=*", "--socket"])
        .arg(served.path().join("socket"))
        .arg("--root")
        .arg(served.path().join("root"))
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !served.path().join("socket").exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    std::fs::create_dir_all(root.join("run/ociseek")).unwrap();
    std::fs::hard_link(served.path().join("socket"), root.join("run/ociseek/snapshotter.sock"))
        .unwrap();
    let run_with = |command: &[&str]| {
        let _ = std::fs::remove_file(&calls);
        let output = Command::new(program()).arg("snapshotter").args(command).output().unwrap();
        let told = std::fs::read_to_string(&calls).unwrap_or_default();
        (output.status.code(), String::from_utf8(output.stderr).unwrap(), told)
    };
    let given = config.to_str().unwrap();
    let install = || run_with(&["install", "--config", given, at]);
    // Nothing is written where systemd does not run.
    std::fs::write(&config, "lazy-from = [\"*\"]\n").unwrap();
    let (code, said, told) = install();
    assert!(code == Some(1) && said.contains("systemd does not run") && told.is_empty(), "{said}");
    assert!(!root.join("opt/ociseek").exists() && !root.join("etc/ociseek").exists());
    std::fs::create_dir_all(root.join("run/systemd/system")).unwrap();
    let first = "daemon-reload\nenable ociseek-snapshotter\n";
    // The first installation, the same again, another configuration, and an invalid one.
    for (text, status, last) in [
        ("lazy-from = [\"*\"]\n", 0, "restart ociseek-snapshotter\n"),
        ("lazy-from = [\"*\"]\n", 0, "start ociseek-snapshotter\n"),
        ("lazy-from = [\"r.example\"]\n", 0, "restart ociseek-snapshotter\n"),
        ("nonsense = true\n", 1, ""),
        // systemd would start it again and again.
        ("lazy-from = [\"!r.example/db\"]\n", 2, ""),
        ("memory = \"1GiB\"\n", 2, ""),
    ] {
        std::fs::write(&config, text).unwrap();
        let (code, said, told) = install();
        let wanted = if status == 0 { format!("{first}{last}") } else { String::new() };
        assert_eq!((code, told), (Some(status), wanted), "{text}: {said}");
    }
    let installed = std::fs::read_to_string(root.join("etc/ociseek/snapshotter.toml")).unwrap();
    assert_eq!(installed, "lazy-from = [\"r.example\"]\n");
    let unit = std::fs::read_to_string(root.join("etc/systemd/system/ociseek-snapshotter.service"))
        .unwrap();
    for line in ["KillMode=process", "Type=notify", "RestartPreventExitStatus=2"] {
        assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
    }
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let (path, _) = command.split_once(' ').unwrap();
    assert_eq!(run(Path::new("chroot"), &[at, path, "--version"]), format!("ociseek {VERSION}\n"));
    assert_eq!(
        run(Path::new("chroot"), &[at, "/usr/local/bin/ociseek", "--version"]),
        format!("ociseek {VERSION}\n")
    );

    // containerd's file comes last, and only if containerd reads it.
    std::fs::write(&config, "lazy-from = [\"r.example\"]\n").unwrap();
    let configure = || run_with(&["install", "--configure-containerd", "--config", given, at]);
    let conf = root.join("etc/containerd/conf.d/ociseek.toml");
    let (code, said, told) = configure();
    assert!(
        code == Some(1) && said.contains("add version = 3 and imports = ") && told.is_empty(),
        "{said}{told}"
    );
    assert!(!conf.exists());
    std::fs::create_dir_all(root.join("etc/containerd")).unwrap();
    let imports = "version = 3\nimports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    std::fs::write(root.join("etc/containerd/config.toml"), imports).unwrap();
    let (code, said, _) = configure();
    assert!(code == Some(0) && said.contains("systemctl restart containerd"), "{said}");
    assert!(conf.exists());
    // Another configuration, by which nobody answers.
    std::fs::remove_file(&conf).unwrap();
    std::fs::remove_file(root.join("run/ociseek/snapshotter.sock")).unwrap();
    snapshotter.kill().unwrap();
    snapshotter.wait().unwrap();
    let (code, said, _) =
        run_with(&["install", "--wait=1s", "--configure-containerd", "--config", given, at]);
    assert!(code == Some(1) && said.contains("does not answer"), "{said}");
    assert!(!conf.exists(), "a containerd that names it would start no pod");
    // Off, in two steps.
    std::fs::write(&conf, include_str!("../../packaging/containerd/ociseek.toml")).unwrap();
    let (code, said, told) = run_with(&["uninstall", at]);
    assert!(code == Some(0) && said.contains("and this command again"), "{said}");
    assert!(told.is_empty() && !conf.exists() && root.join("opt/ociseek/bin/ociseek").exists());
    let (code, said, told) = run_with(&["uninstall", at]);
    assert_eq!(
        (code, told.as_str()),
        (Some(0), "disable --now ociseek-snapshotter\ndaemon-reload\n"),
        "{said}"
    );
    for gone in ["opt/ociseek", "etc/ociseek", "usr/local/bin/ociseek"] {
        assert!(std::fs::symlink_metadata(root.join(gone)).is_err(), "{gone}");
    }

    std::fs::write(&config, "lazy-from = [\"*\"]\n").unwrap();
    std::fs::write(root.join("fails"), "").unwrap();
    let (code, said, _) = install();
    assert!(code == Some(1) && said.contains("systemctl daemon-reload: no bus"), "{said}");
}

#[test]
fn the_container_image_runs_as_any_user() {
    if !can_mount() || !have(&["runc", "skopeo"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let image = packed("image", &sandbox.path("made"), |program, dir| {
        [format!("{dir}/image"), program.to_owned()]
    });
    assert_eq!(image, format!("oci:{}:{VERSION}", sandbox.path("made/image").display()));
    // An independent reader accepts it.
    run(
        Path::new("skopeo"),
        &[
            "copy",
            "--quiet",
            "--all",
            &image,
            &format!("oci:{}:v1", sandbox.path("copy").display()),
        ],
    );
    let output = sandbox
        .command(&["bundle", "--detach", "--no-cache", "oci:copy:v1", "b"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut spec: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("b/config.json")).unwrap()).unwrap();
    assert_eq!(
        (&spec["process"]["user"]["uid"], &spec["process"]["user"]["gid"]),
        (&json!(65532), &json!(65532))
    );
    assert_eq!(spec["process"]["args"], json!(["/ociseek"]));
    spec["process"]["args"] = json!(["/ociseek", "--version"]);
    std::fs::write(sandbox.path("b/config.json"), spec.to_string()).unwrap();
    let name = format!("ociseek-image-{}", std::process::id());
    let printed =
        run(Path::new("runc"), &["run", "-b", sandbox.path("b").to_str().unwrap(), &name]);
    assert_eq!(printed, format!("ociseek {VERSION}\n"));
    run(Path::new(program()), &["bundle", "--rm", sandbox.path("b").to_str().unwrap()]);
}

#[test]
fn the_formula_names_the_files_of_a_release() {
    if tool("python3").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(
        dir.path().join("ociseek-x86_64-unknown-linux-musl.tar.gz.sha256"),
        "c0ffee  x\n",
    )
    .unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/homebrew");
    let output =
        Command::new(script).arg(dir.path()).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let formula = String::from_utf8(output.stdout).unwrap();
    for line in [
        "  on_linux do",
        "    on_intel do",
        "      sha256 \"c0ffee\"",
        &format!("  version \"{VERSION}\""),
    ] {
        assert!(formula.lines().any(|found| found == line), "{line}: {formula}");
    }
    assert!(!formula.contains("on_arm"), "{formula}");
}
