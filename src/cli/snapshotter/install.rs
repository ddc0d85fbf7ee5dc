//! `ociseek snapshotter install`, what a DaemonSet runs on each node, and `uninstall`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use clap::Args;
use rustix::mount::{UnmountFlags, unmount};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};
use toml::{Table, Value};

use super::events::LOGIN;
use super::host::{below, put, remove};
use super::{SnapshotterArgs, config, containerd};
use crate::cli::shared::error::CliError;
use crate::cli::shared::parse;
use crate::cli::shared::terminal::complain;
use ociseek_node::serves;
use ociseek_ops::lazy_from::LazyRule;
use ociseek_rootfs::fuse::{FS_TYPE, mounts};

const INSTALL_LONG_ABOUT: &str = "\
Installs the snapshotter on a host whose root directory is DIR, starts it there by systemd, and waits until it \
answers. It writes the program as /opt/ociseek/bin/ociseek with a link in /usr/local/bin, the unit as \
/etc/systemd/system/ociseek-snapshotter.service, and the configuration as /etc/ociseek/snapshotter.toml.

It is for a DaemonSet, whose pods come and go: the processes that serve mounts must outlive them, so they run on the \
host. Run again, it replaces what differs and restarts the snapshotter; containers keep running.

The configuration must say whose images start lazily: lazy-from, or a key of signatures. On a host without one, \
--lazy-from is enough.

With --configure-containerd it also writes containerd's file, last of all: a containerd that names a snapshotter which \
does not answer starts no container. It finds the configuration of k3s, rke2, k0s, and containerd's own. It restarts \
nothing but the snapshotter. docs/kubernetes.md has the manifest.";

const INSTALL_AFTER_HELP: &str = "\
Examples:
  ociseek snapshotter install --lazy-from 'registry.example/team/*' /
  ociseek snapshotter install --config /config/snapshotter.toml /host
  ociseek snapshotter install --configure-containerd /

Remove it from the host: ociseek snapshotter uninstall DIR

Exit status: 0 success, 1 failure, 2 usage error.";

const UNINSTALL_LONG_ABOUT: &str = "\
Removes from a host what \"ociseek snapshotter install\" put there, in two runs.

Remove the pods and images first: containerd keeps containers whose snapshotter it no longer knows. The first run \
gives containerd its configuration back: it removes ociseek.toml from the folder that containerd imports, or restores \
the file that was there before. Then restart containerd. The second run stops the snapshotter and removes it. Its \
snapshots in /var/lib/ociseek stay.";

const UNINSTALL_AFTER_HELP: &str = "\
Example:
  systemctl stop kubelet; crictl rmp --all --force; crictl rmi --all
  ociseek snapshotter uninstall /
  systemctl restart containerd kubelet
  ociseek snapshotter uninstall /

Exit status: 0 success, 1 failure, 2 usage error.";

/// The unit of the deb package.
const UNIT: &str = include_str!("../../../packaging/systemd/ociseek-snapshotter.service");
const NAME: &str = "ociseek-snapshotter";
/// Where the deb package has the program.
const PACKAGED: &str = "/usr/bin/ociseek";
/// Where it is installed. Some hosts cannot write to /usr.
const PROGRAM: &str = "/opt/ociseek/bin/ociseek";
/// The commands of the documentation find it here, if the host can write here.
const LINK: &str = "/usr/local/bin/ociseek";
const CONFIG: &str = "/etc/ociseek/snapshotter.toml";
/// Where kubelets have their pods: most of them, and that of k0s.
const KUBELETS: [&str; 2] = ["/var/lib/kubelet", "/var/lib/k0s/kubelet"];
const UNIT_FILE: &str = "/etc/systemd/system/ociseek-snapshotter.service";

/// Install the snapshotter on a host, from a container
#[derive(Debug, Args)]
#[command(long_about = INSTALL_LONG_ABOUT, after_help = INSTALL_AFTER_HELP)]
pub(crate) struct InstallArgs {
    /// The host's root directory
    #[arg(value_name = "DIR")]
    pub host: PathBuf,

    /// The configuration to install [default: the host's]
    #[arg(long, value_name = "FILE", env = "OCISEEK_SNAPSHOTTER_CONFIG")]
    pub config: Option<PathBuf>,

    /// On a host without a configuration, write one with these repositories, whose images start
    /// lazily; can be repeated
    #[arg(long, value_name = "REPOSITORIES", value_delimiter = ',', conflicts_with = "config")]
    pub lazy_from: Vec<LazyRule>,

    /// Once the snapshotter answers, write ociseek.toml to the folder that containerd imports, for
    /// containerd 2.1 and later
    #[arg(long)]
    pub configure_containerd: bool,

    /// Let the snapshotter create events on pods, with the login of this pod
    ///
    /// The pod has a projected volume "events" with the token and ca.crt of its service account
    /// (packaging/kubernetes/events).
    #[arg(long, value_name = "POD-UID", requires = "config", value_parser = pod_uid)]
    pub events: Option<String>,

    /// How long to wait until the snapshotter answers
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    #[arg(value_parser = parse::duration_of(1, 3600))]
    pub wait: Duration,
}

/// Remove the snapshotter from a host
#[derive(Debug, Args)]
#[command(long_about = UNINSTALL_LONG_ABOUT, after_help = UNINSTALL_AFTER_HELP)]
pub(crate) struct UninstallArgs {
    /// The host's root directory
    #[arg(value_name = "DIR")]
    pub host: PathBuf,
}

pub(super) fn run(args: InstallArgs) -> Result<(), CliError> {
    let InstallArgs { host, config, lazy_from, configure_containerd, events, wait } = args;
    check(&host)?;
    // As sd_booted(3) does: systemctl would fail only when the files are written.
    if !below(&host, "/run/systemd/system").is_dir() {
        return Err(CliError::new(format!(
            "systemd does not run on the host at {host:?}: it has no /run/systemd/system"
        ))
        .with_hint("have its own service manager run ociseek snapshotter --config FILE"));
    }
    let mut configuration = configuration(&host, config.as_deref(), &lazy_from)?;
    if let (Some(uid), Some(text)) = (&events, &mut configuration) {
        *text = with_events(text, &api_server()?)?;
        link_login(&host, uid)?;
    }
    let place = configure_containerd.then(|| containerd::place(&host)).transpose()?;
    let program = fs::read("/proc/self/exe").map_err(CliError::start)?;
    let unit = UNIT.replace(PACKAGED, PROGRAM);
    let mut changed = put(&host, PROGRAM, &program, 0o755)?;
    link(&host);
    if let Some(configuration) = configuration {
        // It may hold logins.
        changed |= put(&host, CONFIG, configuration.as_bytes(), 0o600)?;
    }
    changed |= put(&host, UNIT_FILE, unit.as_bytes(), 0o644)?;
    let configured = config::or_defaults(Some(&below(&host, CONFIG)))?;
    let socket = configured.socket;
    enter(&host)?;
    let last: &[&str] = if changed { &["restart", NAME] } else { &["start", NAME] };
    for arguments in [&["daemon-reload"][..], &["enable", NAME], last] {
        systemctl(arguments)?;
    }
    // This thread may block.
    Handle::current().block_on(answers(&socket, wait))?;
    complain(if changed { "installed and started" } else { "already installed" });
    if let Some(place) = place
        && containerd::configure(Path::new("/"), &place, &socket, &configured.root)?
    {
        complain(&format!("wrote {place}"));
    }
    Ok(())
}

pub(super) fn uninstall(args: UninstallArgs) -> Result<(), CliError> {
    let UninstallArgs { host } = args;
    check(&host)?;
    if let Some(services) = containerd::restore(&host)? {
        complain(&format!(
            "containerd has its configuration back: if you have not yet, run crictl rmp --all --force and crictl rmi \
             --all; then systemctl restart {services}, and this command again, which removes the snapshotter"
        ));
        return Ok(());
    }
    enter(&host)?;
    if is_in_container() {
        return Err(CliError::usage(
            "run uninstall on the host: a container cannot unmount the host's images",
        ));
    }
    // It may name other paths than the default ones. A damaged one must not keep it installed.
    let configured = config::or_defaults(Some(Path::new(CONFIG)));
    let SnapshotterArgs { root, socket, .. } = configured.or_else(|_| config::or_defaults(None))?;
    if Path::new(UNIT_FILE).exists() {
        systemctl(&["disable", "--now", NAME])?;
        detach_mounts(&root);
    }
    if fs::read_link(LINK).is_ok_and(|to| to == Path::new(PROGRAM)) {
        remove(Path::new(LINK))?;
    }
    for path in
        [Path::new(UNIT_FILE), Path::new(CONFIG), Path::new(PROGRAM), &socket, Path::new(LOGIN)]
    {
        remove(path)?;
    }
    systemctl(&["daemon-reload"])?;
    // Only if nothing else is in them.
    for dir in ["/opt/ociseek/bin", "/opt/ociseek", "/etc/ociseek", "/run/ociseek"] {
        let _ = fs::remove_dir(dir);
    }
    complain("removed; its snapshots and cache in /var/lib/ociseek stay");
    Ok(())
}

/// Unmounts images that nobody serves any more: reads of them would wait without limit. The process
/// that keeps their devices ends with the last one. A container that still uses one keeps it.
fn detach_mounts(root: &Path) {
    // The kernel's list has no symbolic links.
    let Ok(root) = fs::canonicalize(root) else { return };
    let images = root.join("images");
    let mounts = match mounts() {
        Ok(mounts) => mounts,
        Err(error) => {
            complain(&format!("{}: images may still be mounted: {error}", images.display()));
            return;
        }
    };
    for mount in mounts.iter().rev() {
        if mount.fs_type == FS_TYPE
            && mount.point.starts_with(&images)
            && let Err(error) = unmount(&mount.point, UnmountFlags::DETACH)
        {
            complain(&format!("{}: cannot unmount: {error}", mount.point.display()));
        }
    }
}

/// Whether the host's mounts are those of another namespace.
fn is_in_container() -> bool {
    let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    of("1").zip(of("self")).is_some_and(|(first, own)| first != own)
}

/// Refuses what is not the root directory of a host with systemd, before anything is written there.
///
/// # Errors
/// If it has no systemctl.
fn check(host: &Path) -> Result<(), CliError> {
    // Without following links: they are the host's.
    let has = |path: &str| fs::symlink_metadata(below(host, path)).is_ok();
    let is_host = has("/etc") && ["/usr/bin/systemctl", "/bin/systemctl"].into_iter().any(has);
    if is_host {
        return Ok(());
    }
    let what = "is not the root directory of a host with systemd: it has no systemctl";
    Err(CliError::new(format!("{host:?} {what}")).with_hint(
        "in a container, name the directory where the host's / is mounted, such as /host; on the \
         host, /",
    ))
}

/// From here on, paths are those of the host: its systemctl talks to its systemd.
fn enter(host: &Path) -> Result<(), CliError> {
    let enter = || {
        rustix::process::chroot(host)?;
        std::env::set_current_dir("/")
    };
    enter().map_err(CliError::read(host))
}

/// Waits until the snapshotter says that it serves.
async fn answers(socket: &Path, patience: Duration) -> Result<(), CliError> {
    let begun = Instant::now();
    loop {
        let why = match timeout(Duration::from_secs(5), serves(socket)).await {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) => "it does not serve yet".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer within 5 s".to_owned(),
        };
        if begun.elapsed() > patience {
            let socket = socket.display();
            return Err(CliError::start(format!(
                "the snapshotter does not answer at {socket}: {why}; journalctl -u {NAME} says why, and containerd's \
                 configuration was left unchanged"
            )));
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Puts the program where the commands of the documentation find it. Not all hosts can write there.
fn link(host: &Path) {
    let link = below(host, LINK);
    if fs::symlink_metadata(&link).is_err() {
        let _ = symlink(PROGRAM, link);
    }
}

/// The text of the configuration, if it should be written. By an invalid one, or one by which
/// nobody vouches for images, the snapshotter would not start.
fn configuration(
    host: &Path,
    given: Option<&Path>,
    lazy_from: &[LazyRule],
) -> Result<Option<String>, CliError> {
    let hosts = below(host, CONFIG);
    let checked = |path: &Path| {
        let args = config::or_defaults(Some(path))?;
        args.lazy_from.check(&args.lazy.view.trust)?;
        Ok::<_, CliError>(args)
    };
    if let Some(path) = given {
        checked(path)?;
        let text = fs::read_to_string(path);
        return text.map(Some).map_err(CliError::read(path));
    }
    if hosts.exists() {
        let args = checked(&hosts)?;
        if !lazy_from.is_empty() && args.lazy_from.lazy_from != lazy_from {
            return Err(CliError::usage(
                "the host's /etc/ociseek/snapshotter.toml names other repositories: change lazy-from there",
            ));
        }
        return Ok(None);
    }
    let mut by_variable = config::or_defaults(None)?.lazy_from;
    if !lazy_from.is_empty() {
        by_variable.lazy_from = lazy_from.to_vec();
    }
    let repositories = by_variable.named()?;
    let quoted: Vec<String> = repositories.iter().map(|rule| format!("\"{rule}\"")).collect();
    Ok(Some(format!("{}\nlazy-from = [{}]\n", config::printed(), quoted.join(", "))))
}

/// What the kubelet calls a pod.
fn pod_uid(text: &str) -> Result<String, String> {
    let is_uid = (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    if is_uid { Ok(text.to_owned()) } else { Err("expected the uid of a pod".to_owned()) }
}

/// The API server, as each pod has it.
fn api_server() -> Result<String, CliError> {
    let variable = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
    let host = variable("KUBERNETES_SERVICE_HOST");
    let host = host.ok_or_else(|| {
        CliError::usage(
            "--events is for a pod: KUBERNETES_SERVICE_HOST does not name the API server",
        )
    })?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or_else(|| "443".to_owned());
    Ok(format!("https://{host}:{port}"))
}

/// The configuration with the API server, unless it names one.
///
/// # Errors
/// If the snapshotter would refuse it.
fn with_events(text: &str, server: &str) -> Result<String, CliError> {
    let table: Table = text.parse().unwrap_or_default();
    if table.get("image-service") != Some(&Value::Boolean(true)) {
        return Err(CliError::usage(
            "--events needs image-service = true in the configuration: only the image service knows the pod of a pull",
        ));
    }
    if table.contains_key("events-api-server") {
        return Ok(text.to_owned());
    }
    Ok(format!("{text}\n# As --events found it.\nevents-api-server = \"{server}\"\n"))
}

/// Links the login of a pod where the snapshotter looks for it. The kubelet renews it as long as
/// the pod exists, and the API server does not take it after that.
fn link_login(host: &Path, uid: &str) -> Result<(), CliError> {
    let volume = format!("pods/{uid}/volumes/kubernetes.io~projected/events");
    let mut places = KUBELETS.into_iter().map(|kubelet| Path::new(kubelet).join(&volume));
    let place = places.find(|place| host.join(place.strip_prefix("/").unwrap_or(place)).is_dir());
    let place = place.ok_or_else(|| {
        CliError::usage(
            "--events found no projected volume \"events\" of this pod below /var/lib/kubelet",
        )
    })?;
    let link = below(host, LOGIN);
    let linked = || {
        if fs::read_link(&link).is_ok_and(|to| to == place) {
            return Ok(());
        }
        fs::create_dir_all(link.parent().unwrap_or(host))?;
        let _ = fs::remove_file(&link);
        symlink(&place, &link)
    };
    linked().map_err(CliError::write(&link))
}

fn systemctl(arguments: &[&str]) -> Result<(), CliError> {
    let failed = |why: String| CliError::start(format!("systemctl {}: {why}", arguments.join(" ")));
    let output = Command::new("systemctl")
        .args(arguments)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn only_what_differs_is_written() {
        let host = tempfile::tempdir().unwrap();
        let put = |content: &str| put(host.path(), "/opt/a/b", content.as_bytes(), 0o755).unwrap();
        assert_eq!([put("one"), put("one"), put("two")], [true, false, true]);
        let file = host.path().join("opt/a/b");
        assert_eq!(fs::read_to_string(&file).unwrap(), "two");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn events_get_the_login_of_the_pod() {
        assert!(pod_uid("8e1b3c0e-6e55-4a3c").is_ok());
        for wrong in ["", "../x", "a/b", "$(POD_UID)"] {
            assert!(pod_uid(wrong).is_err(), "{wrong}");
        }
        let text = "lazy-from = \"*\"\nimage-service = true\n";
        let server = "https://[fd00::1]:443";
        let table: Table = with_events(text, server).unwrap().parse().unwrap();
        assert_eq!(table["events-api-server"].as_str(), Some(server));
        let own = format!("{text}events-api-server = \"https://a.example\"\n");
        assert_eq!(with_events(&own, server).unwrap(), own);
        assert!(with_events("lazy-from = \"*\"\n", server).is_err());
        let host = tempfile::tempdir().unwrap();
        assert!(link_login(host.path(), "1").is_err());
        for (uid, kubelet) in [("1", "kubelet"), ("2", "k0s/kubelet"), ("2", "k0s/kubelet")] {
            let volume =
                format!("/var/lib/{kubelet}/pods/{uid}/volumes/kubernetes.io~projected/events");
            fs::create_dir_all(below(host.path(), &volume)).unwrap();
            link_login(host.path(), uid).unwrap();
            assert_eq!(fs::read_link(below(host.path(), LOGIN)).unwrap(), Path::new(&volume));
        }
    }

    #[test]
    fn the_hosts_configuration_stays_unless_another_one_is_given() {
        let host = tempfile::tempdir().unwrap();
        let rules = |texts: &[&str]| -> Vec<LazyRule> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let configured = |given: Option<&Path>, lazy_from: &[&str]| {
            configuration(host.path(), given, &rules(lazy_from))
        };
        // Nobody vouches.
        let error = configured(None, &[]).unwrap_err().to_string();
        assert!(error.contains("lazy-from = ["), "{error}");
        let written = configured(None, &["r.example/team/*", "*.s.example"]).unwrap().unwrap();
        assert!(written.contains("# socket = "), "{written}");
        assert!(
            written.ends_with("\nlazy-from = [\"r.example/team/*\", \"*.s.example\"]\n"),
            "{written}"
        );
        put(host.path(), CONFIG, written.as_bytes(), 0o644).unwrap();
        assert_eq!(configured(None, &[]).unwrap(), None);
        assert_eq!(configured(None, &["r.example/team/*", "*.s.example"]).unwrap(), None);
        assert!(configured(None, &["*"]).unwrap_err().to_string().contains("change lazy-from"));
        put(host.path(), CONFIG, b"memory = \"1GiB\"\n", 0o644).unwrap();
        assert!(configured(None, &[]).is_err());
        let given = host.path().join("given");
        for (text, is_right) in [
            ("nonsense = 1\n", false),
            ("memory = \"1GiB\"\n", false),
            ("lazy-from = \"*\"\n", true),
            // A file of the host.
            ("signature-key = \"/etc/ociseek/cosign.pub\"\n", true),
        ] {
            fs::write(&given, text).unwrap();
            let configured = configured(Some(&given), &[]).ok().flatten();
            assert_eq!(configured.as_deref(), is_right.then_some(text));
        }
        assert!(UNIT.contains(&format!("ExecStart={PACKAGED} snapshotter --config {CONFIG}\n")));
    }
}
