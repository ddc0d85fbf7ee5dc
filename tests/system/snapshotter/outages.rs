//! What containers and images survive: the end of all processes that serve them, a reboot, a
//! registry that is away, and tokens that become invalid.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, kill_process_group, prlimit};
use serde_json::json;

use super::node::{Node, ServiceManager, container};
use super::{index, programs, push};
use crate::bundle::{self, rootfs};
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::corpus::debian_layers;
use ociseek_testkit::faulty::{
    Faulty, ReceivedRequest, RegistrySettings, body_of, damaged, no_response, problem, stalls,
    status,
};
use ociseek_testkit::mounts::{can_mount, wait_until};
use ociseek_testkit::sandbox::program;
use ociseek_testkit::servers::{Server, run, tool};

/// A file that nobody reads without being asked to.
const UNREAD: &str = "/usr/share/common-licenses/GPL-3";
const OF_UNREAD: &str = "GNU GENERAL PUBLIC LICENSE";

/// A registry with an image of Debian and these other layers, and its name. None, after a line, if
/// something is missing.
fn registry(others: &[&str]) -> Option<(Server, String)> {
    let layers = debian_layers()?;
    let crane = tool("crane")?;
    let registry = Server::distribution_on_disk("docker-registry")?;
    let paths: Vec<PathBuf> =
        ["debian-rootfs.go.tar.gz"].iter().chain(others).map(|layer| layers.join(layer)).collect();
    let image = push(
        &crane,
        &registry.host,
        "debian",
        &paths.iter().map(PathBuf::as_path).collect::<Vec<_>>(),
    );
    index(&image);
    Some((registry, image))
}

#[test]
fn containers_outlive_the_snapshotter_and_the_keeper() {
    let (Some(programs), Some((registry, image))) = (programs(), registry(&[])) else { return };
    let node = Node::new(programs, &image);
    let mut serving = node.snapshotter();
    let _containerd = node.containerd();
    node.pull(&image, "ociseek");
    let name = &*container("outlives-both");
    node.start(name, &image);
    wait_until("a process keeps the device", || node.keeper().is_some());

    // The registry is away, too.
    registry.signal(Signal::STOP);
    serving.kill();
    thread::scope(|scope| {
        let reader = scope.spawn(|| node.read_in(name, UNREAD));
        wait_until("a read waits", || node.waiting_requests() > 0);
        serving = node.snapshotter();
        registry.signal(Signal::CONT);
        assert!(reader.join().unwrap().contains(OF_UNREAD));
    });
    // What keeps the device was stopped when the server ended.
    let keeper = node.keeper();
    let stopped = keeper.and_then(Pid::from_raw).unwrap();
    kill_process(stopped, Signal::STOP).unwrap();
    node.restart(&mut serving);
    assert!(node.read_in(name, "/usr/share/common-licenses/BSD").contains("Redistribution"));
    assert_eq!(node.keeper(), keeper);
    // It is killed, too, and the server after that.
    node.kill_keeper();
    wait_until("another process keeps the device", || {
        node.keeper().is_some_and(|other| Some(other) != keeper)
    });
    node.restart(&mut serving);
    assert!(node.read_in(name, "/usr/share/common-licenses/Artistic").contains("Artistic License"));
    node.end(name);
    node.remove(&image);
    node.wait_until_clear();
    serving.stop();
    wait_until("the keeper ends", || node.keeper().is_none());
}

/// supervisord with `stopasgroup` and `killasgroup` signals all processes that the snapshotter has
/// started, and so does a shell. systemd is not involved.
#[test]
fn containers_outlive_the_end_of_the_snapshotters_process_group() {
    let (Some(programs), Some((_registry, image))) = (programs(), registry(&[])) else { return };
    let node = Node::new(programs, &image);
    let mut serving = node.snapshotter();
    let _containerd = node.containerd();
    node.pull(&image, "ociseek");
    let name = &*container("outlives-group");
    node.start(name, &image);
    wait_until("a process keeps the device", || node.keeper().is_some());
    let keeper = node.keeper();
    for (signal, file) in [
        (Signal::TERM, UNREAD),
        (Signal::INT, "/usr/share/common-licenses/Artistic"),
        (Signal::KILL, "/usr/share/common-licenses/BSD"),
    ] {
        let group = Pid::from_raw(serving.id().cast_signed()).unwrap();
        kill_process_group(group, signal).unwrap();
        serving.end();
        thread::scope(|scope| {
            let reader = scope.spawn(|| node.read_in(name, file));
            wait_until("a read waits", || node.waiting_requests() > 0);
            serving = node.snapshotter();
            assert!(!reader.join().unwrap().is_empty(), "{signal:?}");
        });
        assert_eq!(node.keeper(), keeper, "{signal:?}");
    }
    node.end(name);
    node.remove(&image);
    node.wait_until_clear();
}

#[test]
fn containers_outlive_a_kill_of_everything_if_the_service_manager_keeps_devices() {
    let (Some(programs), Some((_registry, image))) = (programs(), registry(&[])) else { return };
    let mut node = Node::new(programs, &image);
    node.manager = Some(ServiceManager::new(&node));
    let mut serving = node.snapshotter();
    let _containerd = node.containerd();
    node.pull(&image, "ociseek");
    let name = &*container("outlives-all");
    node.start(name, &image);
    wait_until("a process keeps the device", || node.keeper().is_some());
    // Twice: what the second one was given is kept, too.
    for file in [UNREAD, "/usr/share/common-licenses/Artistic"] {
        serving.kill();
        node.kill_keeper();
        thread::scope(|scope| {
            let reader = scope.spawn(|| node.read_in(name, file));
            wait_until("a read waits", || node.waiting_requests() > 0);
            // Who connects now waits for the next server.
            let mut early = early(&node);
            serving = node.snapshotter();
            assert!(!reader.join().unwrap().is_empty());
            is_answered(&mut early);
        });
    }
    node.end(name);
    node.remove(&image);
    node.wait_until_clear();
}

/// Not only with systemd: the process that keeps the devices has the socket, too. How long calls
/// wait is up to containerd.
#[test]
fn connections_wait_while_the_snapshotter_restarts() {
    let (Some(programs), Some((_registry, image))) = (programs(), registry(&[])) else { return };
    let node = Node::new(programs, &image);
    let mut serving = node.snapshotter();
    for signal in [Signal::KILL, Signal::TERM, Signal::KILL] {
        serving.signal(signal);
        serving.end();
        let status = node.inspected("status");
        assert_eq!((status.0, &status.1["running"]), (Some(3), &json!(false)), "{signal:?}");
        let mut early = early(&node);
        serving = node.snapshotter();
        is_answered(&mut early);
        assert_eq!(node.inspected("status").1["running"], true);
    }
    // Nobody waits for a snapshotter that does not come back.
    serving.kill();
    wait_until("the socket is closed", || {
        UnixStream::connect(node.at("ociseek.sock")).is_err() && node.keeper().is_none()
    });
}

/// A connection to the snapshotter that begins HTTP/2.
fn early(node: &Node) -> UnixStream {
    let mut early = UnixStream::connect(node.at("ociseek.sock")).unwrap();
    early.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    early
}

fn is_answered(early: &mut UnixStream) {
    let mut answer = [0; 9];
    early.read_exact(&mut answer).unwrap();
    assert_eq!(answer[3], 4, "SETTINGS of HTTP/2 (RFC 9113 section 6.5)");
}

#[test]
fn the_service_manager_hears_that_servers_answer() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    fs::create_dir(at("layers")).unwrap();
    let manager = UnixDatagram::bind(at("notify")).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let options = [format!("--cache-dir={}", at("cache")), "--lazy-from=*".to_owned()];
    for (door, place) in [
        ("snapshotter", vec![format!("--socket={}", at("s")), format!("--root={}", at("one"))]),
        ("store", vec![format!("--root={}", at("two")), at("layers")]),
    ] {
        let mut command = Command::new(program());
        command.arg(door).args(&options).args(place);
        command.env("NOTIFY_SOCKET", at("notify")).env("WATCHDOG_USEC", "400000");
        let mut serving = ChildProcess::spawn(command.stderr(Stdio::null()));
        let mut told = 0;
        while told < 3 {
            let mut message = [0; 512];
            let length = manager.recv(&mut message).unwrap();
            told += usize::from(&message[..length] == b"WATCHDOG=1");
        }
        serving.signal(Signal::TERM);
        assert!(serving.end().success(), "{door}");
        manager.set_nonblocking(true).unwrap();
        while manager.recv(&mut [0; 512]).is_ok() {}
        manager.set_nonblocking(false).unwrap();
    }
}

/// As after a reboot: no process and no mount is there any more, and nothing in `/run`.
fn reboot(node: &Node, containerd: &mut ChildProcess, snapshotter: &mut ChildProcess) {
    containerd.kill();
    snapshotter.kill();
    node.kill_keeper();
    for mount in node.lazy_mounts() {
        run("umount".as_ref(), &["--lazy", mount.split(' ').nth(1).unwrap()]);
    }
    fs::remove_dir_all(node.at("state")).unwrap();
    fs::remove_file(node.at("containerd.sock")).unwrap();
}

#[test]
fn images_are_mounted_again_after_a_reboot_also_if_their_registry_is_away() {
    // The other image has one layer more, or containerd would take the mount of the first.
    let (Some(programs), Some((registry, image)), Some((_other, another))) =
        (programs(), registry(&[]), registry(&["../small/plain-6MB.tar.gz"]))
    else {
        return;
    };
    let node = Node::new(programs, &image);
    let mut serving = node.snapshotter();
    let mut containerd = node.containerd();
    let name = &*container("rebooted");
    node.pull(&image, "ociseek");
    node.pull(&another, "ociseek");
    node.start(name, &image);
    assert!(node.read_in(name, "/etc/issue").starts_with("Debian"));
    node.ctr(&["tasks", "rm", "--force", name]);

    // What was read is in the cache.
    reboot(&node, &mut containerd, &mut serving);
    registry.signal(Signal::STOP);
    serving = node.snapshotter();
    containerd = node.containerd();
    assert_eq!(node.inspected("status").0, Some(0));
    assert_eq!(node.lazy_mounts(), Vec::<String>::new());
    node.ctr(&["tasks", "start", "--detach", name]);
    assert!(node.read_in(name, "/etc/issue").starts_with("Debian"));
    assert_eq!(node.shell(&image, "cat /etc/issue >/dev/null && echo READY"), "READY\n");
    node.ctr(&["tasks", "rm", "--force", name]);

    // Without the cache, its containers wait for the registry, and those of the other image do not.
    reboot(&node, &mut containerd, &mut serving);
    fs::remove_dir_all(node.at("cache")).unwrap();
    serving = node.snapshotter();
    containerd = node.containerd();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| node.shell_in(&container("waiting"), &image, "echo READY"));
        wait_until("the image is being mounted", || node.in_dir("lazy/images") > 0);
        assert_eq!(node.shell(&another, "cat /etc/issue >/dev/null && echo READY"), "READY\n");
        assert_eq!(node.lazy_mounts().len(), 1);
        assert_eq!(node.metric(r#"ociseek_snapshotter_mounts_total{result="mounted"}"#), 1);
        registry.signal(Signal::CONT);
        assert_eq!(waiting.join().unwrap(), "READY\n");
    });
    node.ctr(&["tasks", "start", "--detach", name]);
    assert!(node.read_in(name, UNREAD).contains(OF_UNREAD));
    node.end(name);
    for image in [&image, &another] {
        node.remove(image);
    }
    node.wait_until_clear();
    containerd.kill();
    serving.stop();
}

#[test]
fn a_kill_while_an_image_is_mounted_or_removed_leaves_nothing() {
    let (Some(programs), Some((registry, image))) = (programs(), registry(&[])) else { return };
    let node = Node::new(programs, &image);
    let mut serving = node.snapshotter();
    let _containerd = node.containerd();
    let run =
        ["run", "--rm", "--snapshotter", "ociseek", &image, &container("killed"), "/bin/true"];
    node.pull(&image, "ociseek");
    registry.signal(Signal::STOP);
    thread::scope(|scope| {
        let failing = scope.spawn(|| node.try_ctr(&run));
        wait_until("the image is being mounted", || node.in_dir("lazy/images") > 0);
        node.restart(&mut serving);
        registry.signal(Signal::CONT);
        failing.join().unwrap();
    });
    assert_eq!(node.shell(&image, "cat /etc/issue >/dev/null && echo READY"), "READY\n");
    assert_eq!(node.lazy_mounts().len(), 1);
    node.remove(&image);
    node.wait_until_clear();
    fs::remove_dir_all(node.at("cache")).unwrap();
    for delay in [0, 5, 10, 20, 40, 80] {
        node.pull(&image, "ociseek");
        assert_eq!(node.shell(&image, "cat /etc/issue >/dev/null && echo READY"), "READY\n");
        thread::scope(|scope| {
            scope.spawn(|| node.try_ctr(&["images", "rm", "--sync", &image]));
            thread::sleep(Duration::from_millis(delay));
            serving.kill();
            serving = node.snapshotter();
        });
    }
    node.pull(&image, "ociseek");
    assert_eq!(node.shell(&image, "cat /etc/issue >/dev/null && echo READY"), "READY\n");
    node.remove(&image);
    node.wait_until_clear();
}

/// As on a full disk: a directory is in the way.
#[test]
fn a_mount_serves_although_the_answers_of_the_registry_cannot_be_written() {
    let (Some(programs), Some((_registry, image))) = (programs(), registry(&[])) else { return };
    let node = Node::new(programs, &image);
    let mut serving = node.snapshotter();
    let _containerd = node.containerd();
    let in_the_way: Vec<_> =
        (1..20).map(|id| node.at(&format!("lazy/images/{id}/answers"))).collect();
    in_the_way.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    node.pull(&image, "ociseek");
    let name = &*container("no-answers");
    node.start(name, &image);
    assert!(node.read_in(name, UNREAD).contains(OF_UNREAD));
    assert_eq!(node.metric(r#"ociseek_snapshotter_mounts_total{result="mounted"}"#), 1);
    assert_eq!(node.metric(r#"ociseek_snapshotter_replacements_total{result="replaced"}"#), 0);
    node.end(name);
    in_the_way.iter().for_each(|dir| fs::remove_dir_all(dir).unwrap());
    node.remove(&image);
    wait_until("nothing is mounted", || node.lazy_mounts().is_empty());
    serving.stop();
}

/// The snapshotter gives up before its own answer is due.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_image_is_unpacked_if_nobody_says_whether_it_has_an_index() {
    unpacked("silent", "within 15 s", || stalls(&Bytes::from_static(b"{"), 0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_image_is_unpacked_if_its_registry_fails() {
    unpacked("registry", "status 502", || status(502)).await;
}

/// `lists` is the answer to requests for lists of indexes. Pulls an image, which is then unpacked
/// for this `reason`, and the log says `why`.
async fn unpacked(
    reason: &str,
    why: &str,
    lists: impl Fn() -> Response<Body> + Send + Sync + 'static,
) {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let settings = RegistrySettings::with_referrers();
    let is_list = |request: &ReceivedRequest| {
        request.path.contains("/referrers/") || request.path.contains("/manifests/sha256-")
    };
    let lie = move |request: &ReceivedRequest, _: &Faulty| is_list(request).then(&lists);
    let registry = Faulty::start(settings, lie).await;
    registry.add_image("v1", &rootfs(&busybox));
    let image = format!("{}/a/b:v1", registry.host());
    tokio::task::block_in_place(|| {
        let node = Node::new(programs, &image);
        let mut serving = node.snapshotter();
        let mut containerd = node.containerd();
        node.pull(&image, "ociseek");
        assert_eq!(node.shell(&image, "echo READY"), "READY\n");
        assert_eq!(node.unpacked(reason), 1);
        let logged = node.logged("unpacked");
        assert_eq!((logged.len(), &logged[0]["reason"]), (1, &json!(reason)), "{logged:?}");
        assert!(logged[0]["error"].as_str().unwrap().contains(why), "{logged:?}");
        assert_eq!(node.metric(r#"ociseek_snapshotter_failures_total{method="Prepare"}"#), 0);
        node.remove(&image);
        node.wait_until_clear();
        containerd.kill();
        serving.stop();
    });
}

/// The same manifest in `dev`, which was pulled first, and in `prod`. Then `dev` is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_image_that_was_promoted_outlives_its_first_repository() {
    promoted(|_, _| problem(404, "NAME_UNKNOWN", "the repository does not exist")).await;
}

/// The same, but `dev` takes requests and never answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_image_that_was_promoted_outlives_the_silence_of_its_first_repository() {
    promoted(|_, _| no_response()).await;
}

/// The same, but `dev` sends other bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_image_that_was_promoted_outlives_damage_in_its_first_repository() {
    promoted(|request, truth| {
        let (answer, content) = body_of(truth.truth_now(request));
        if content.is_empty() { answer } else { damaged(answer, &content) }
    })
    .await;
}

/// `gone` is what `dev` answers in the end.
async fn promoted(
    gone: impl Fn(&ReceivedRequest, &Faulty) -> Response<Body> + Send + Sync + 'static,
) {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let is_gone = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&is_gone);
    let settings = RegistrySettings::with_referrers();
    let lie = move |request: &ReceivedRequest, truth: &Faulty| {
        let is_there = !is_over.load(Ordering::Relaxed) || !request.path.starts_with("/v2/dev/");
        (!is_there).then(|| gone(request, truth))
    };
    let registry = Faulty::start(settings, lie).await;
    registry.add_image("v1", &rootfs(&busybox));
    let [dev, prod] = ["dev", "prod"].map(|name| format!("{}/{name}/app:v1", registry.host()));
    tokio::task::block_in_place(|| {
        index(&dev);
        let node = Node::new(programs, &dev);
        let mut serving = node.snapshotter();
        let mut containerd = node.containerd();
        node.pull(&dev, "ociseek");
        let name = &*container(&format!("promoted-{}", registry.address.port()));
        node.start(name, &dev);
        node.pull(&prod, "ociseek");
        is_gone.store(true, Ordering::Relaxed);
        let count = |id: &str, image_or_name: &str| {
            let count = ["busybox", "wc", "-c", "/srv/unread"];
            node.ctr(&[&["tasks", "exec", "--exec-id", id, image_or_name][..], &count].concat())
        };
        // The container of the image whose repository is gone.
        assert_eq!(count("one", name), format!("{} /srv/unread\n", bundle::UNREAD));
        let asked = registry.saw("GET", "/v2/prod/app/blobs/");
        assert!(!asked.is_empty());
        // Another server, without the cache.
        serving.kill();
        fs::remove_dir_all(node.at("cache")).unwrap();
        serving = node.snapshotter();
        assert_eq!(count("two", name), format!("{} /srv/unread\n", bundle::UNREAD));
        node.end(name);
        for image in [&dev, &prod] {
            node.remove(image);
        }
        node.wait_until_clear();
        containerd.kill();
        serving.stop();
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn containers_read_on_after_a_token_became_invalid() {
    let (Some(programs), Some(busybox)) = (programs(), tool("busybox")) else { return };
    let login = Some(("user".to_owned(), "password".to_owned()));
    let registry = Faulty::honest(RegistrySettings {
        referrers: true,
        bearer: Some(login),
        ..RegistrySettings::default()
    })
    .await;
    registry.add_image("v1", &rootfs(&busybox));
    let image = format!("{}/a/b:v1", registry.host());
    tokio::task::block_in_place(|| {
        let login = ["--creds", "user:password"];
        let arguments =
            ["index", "--kind=v1,fine", "--min-layer-size=0", "--quiet", "--no-cache", &image];
        run(program().as_ref(), &[&arguments[..], &login].concat());
        let mut node = Node::new(programs, &image);
        let authfile = node.at("logins.json");
        let encoded = "dXNlcjpwYXNzd29yZA==";
        fs::write(&authfile, json!({"auths": {registry.host(): {"auth": encoded}}}).to_string())
            .unwrap();
        node.config = format!("authfile = {authfile:?}\n");
        let mut serving = node.snapshotter();
        let mut containerd = node.containerd();
        let pull = [
            "images",
            "pull",
            "--plain-http",
            "--snapshotter",
            "ociseek",
            "--user",
            "user:password",
            &image,
        ];
        node.ctr(&pull);
        let name = &*container("token");
        node.start(name, &image);
        registry.revoke_tokens();
        let issued = || registry.saw("GET", "/token").len() + registry.saw("POST", "/token").len();
        let before = issued();
        let count = ["busybox", "wc", "-c", "/srv/unread"];
        let counted =
            node.ctr(&[&["tasks", "exec", "--exec-id", "count", name][..], &count].concat());
        assert_eq!(counted, format!("{} /srv/unread\n", bundle::UNREAD));
        assert!(issued() > before, "a new token");
        node.end(name);
        node.remove(&image);
        node.wait_until_clear();
        containerd.kill();
        serving.stop();
    });
}

#[test]
fn a_server_without_descriptors_waits_for_some() {
    let Some(programs) = programs() else { return };
    let node = Node::new(programs, "");
    let mut serving = node.snapshotter();
    let containerd = node.containerd();
    let pid = serving.id();
    let used = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
    let limit = |current| {
        let limits = Rlimit { current: Some(current), maximum: Some(4096) };
        prlimit(Pid::from_raw(pid.cast_signed()), Resource::Nofile, limits).unwrap();
    };
    // The ticks of the processor's clock that it has taken, user and system.
    let taken = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    limit(used());
    let waiting: Vec<UnixStream> =
        (0..8).map(|_| UnixStream::connect(node.at("ociseek.sock")).unwrap()).collect();
    let before = taken();
    thread::sleep(Duration::from_secs(2));
    assert!(serving.ended().is_none());
    assert!(taken() - before < 20, "it does nothing but try");
    limit(4096);
    drop(waiting);
    assert!(node.try_ctr(&["snapshots", "--snapshotter", "ociseek", "ls"]).status.success());
    drop(containerd);
    serving.stop();
}
