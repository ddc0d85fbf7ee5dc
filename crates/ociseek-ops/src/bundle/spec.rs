//! The bundle's config.json (runtime-spec 1.0.2), built from the image's config (image-spec
//! config.md) by the rules of image-spec conversion.md. Where these leave a choice, it follows
//! docker, except that there is no seccomp filter. Volumes need no mounts, because all writes go
//! into the overlay.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::BundleError;
use super::user::{self, User};
use ociseek_format::digest::Digest;
use ociseek_format::image::config::MAX_CONFIG;
use ociseek_format::image::json::{self, JsonError, Level};
use ociseek_format::image::null_is_default;
use ociseek_format::tree::Tree;
use ociseek_rootfs::content::Content;

/// The parts of the config that determine the container. Missing ones are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// In Go's spelling: `amd64`.
    #[serde(deserialize_with = "null_is_default")]
    pub architecture: String,
    /// In Go's spelling: `linux`.
    #[serde(deserialize_with = "null_is_default")]
    pub os: String,
    /// The author of the image.
    #[serde(deserialize_with = "null_is_default")]
    pub author: String,
    /// The creation time of the image, as written in the config.
    #[serde(deserialize_with = "null_is_default")]
    pub created: String,
    /// The runtime configuration.
    #[serde(deserialize_with = "null_is_default")]
    pub config: RunConfig,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RunConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub user: String,
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub working_dir: String,
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    pub stop_signal: String,
    /// Such as `80/tcp`; the values are empty objects.
    #[serde(deserialize_with = "null_is_default")]
    pub exposed_ports: BTreeMap<String, serde_json::Value>,
}

/// The keys that are read on both levels. Go's parsers accept them in any spelling.
const TOP: Level = Level {
    keys: &["architecture", "os", "author", "created", "config"],
    below: &[("config", Level { keys: RUN, below: &[] })],
};
const RUN: &[&str] =
    &["User", "Env", "Entrypoint", "Cmd", "WorkingDir", "Labels", "StopSignal", "ExposedPorts"];

impl ImageConfig {
    /// # Errors
    /// If it is not JSON that all parsers understand in the same way, or has other types.
    pub fn parse(bytes: &[u8]) -> Result<ImageConfig, JsonError> {
        json::parse_levels(bytes, MAX_CONFIG, TOP)
    }
}

/// The default search path, for images without one.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Docker's default capabilities.
const CAPABILITIES: [&str; 14] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

const MASKED: [&str; 11] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];

const READ_ONLY: [&str; 5] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The choices of the user who runs the container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunOptions {
    /// Replaces the image's command.
    pub command: Option<Vec<String>>,
    /// Replaces the image's entrypoint and command. Empty for no entrypoint.
    pub entrypoint: Option<Vec<String>>,
    /// Whether the container's process has a terminal.
    pub terminal: bool,
    /// Whether the container uses this machine's network, resolver and hosts file. Otherwise it has
    /// a separate network with only a loopback interface.
    pub host_network: bool,
}

/// The size limit of `/etc/passwd` and `/etc/group`, in bytes.
const MAX_ACCOUNTS: u64 = 4 << 20;

/// The image's lists of users and groups, which [`plan`] reads.
pub const ACCOUNTS: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// The bundle's config.json, from the image's config, `options`, and the image's own list of users,
/// which is read from its content.
///
/// # Errors
/// If the config is not valid, there is no command to run, or the user is unknown.
pub async fn plan(
    manifest: &Digest,
    config: &[u8],
    tree: &Tree,
    content: &Content,
    options: &RunOptions,
) -> Result<Value, BundleError> {
    let image = ImageConfig::parse(config).map_err(BundleError::Config)?;
    if !image.os.is_empty() && !image.os.eq_ignore_ascii_case("linux") {
        return Err(BundleError::NotLinux(image.os.chars().take(80).collect()));
    }
    if arguments(&image, options).is_empty() {
        return Err(BundleError::NoCommand);
    }
    let [passwd, group] = ACCOUNTS.map(|path| accounts(tree, content, path));
    let (passwd, group) = tokio::try_join!(passwd, group)?;
    let text = &image.config.user;
    let user = user::resolve(text, &passwd, &group);
    let user =
        user.map_err(|source| BundleError::User { text: text.chars().take(80).collect(), source })?;
    let around = SpecInputs {
        user,
        // docker also names containers by twelve digits.
        hostname: manifest.hex().chars().take(12).collect(),
        unified_cgroups: Path::new("/sys/fs/cgroup/cgroup.controllers").exists(),
    };
    Ok(config_json(&image, options, &around))
}

/// One of the image's two lists. Empty if it has none.
async fn accounts(
    tree: &Tree,
    content: &Content,
    path: &'static str,
) -> Result<Vec<u8>, BundleError> {
    let Ok(id) = tree.resolve(path.as_bytes(), true) else { return Ok(Vec::new()) };
    let file = &tree.node(id).kind;
    if file.size() > MAX_ACCOUNTS {
        return Err(BundleError::AccountsTooLarge { path, size: file.size(), limit: MAX_ACCOUNTS });
    }
    let bytes = content.read_file(file, 0..file.size()).await;
    Ok(bytes.map_err(|source| BundleError::Accounts { path, source })?.into())
}

/// Other inputs of the document.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SpecInputs {
    pub user: User,
    pub hostname: String,
    /// Whether the system only has cgroups of version 2.
    pub unified_cgroups: bool,
}

/// The arguments of the container's process. Empty if neither the image nor the caller states them.
fn arguments(image: &ImageConfig, options: &RunOptions) -> Vec<String> {
    let config = &image.config;
    let entrypoint = options.entrypoint.as_ref().unwrap_or(&config.entrypoint);
    let command = match (&options.command, &options.entrypoint) {
        (Some(command), _) => command.as_slice(),
        // The image's command is only meant for the image's entrypoint.
        (None, Some(_)) => &[],
        (None, None) => &config.cmd,
    };
    entrypoint.iter().chain(command).cloned().collect()
}

/// The whole document.
fn config_json(image: &ImageConfig, options: &RunOptions, around: &SpecInputs) -> Value {
    json!({
        "ociVersion": "1.0.2",
        "process": process(image, options, &around.user),
        "root": {"path": "rootfs"},
        "hostname": around.hostname,
        "mounts": mounts(options),
        "annotations": annotations(image),
        "linux": {
            "resources": {"devices": [{"allow": false, "access": "rwm"}]},
            "namespaces": namespaces(options, around),
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    })
}

fn process(image: &ImageConfig, options: &RunOptions, user: &User) -> Value {
    // An entry without a value has no effect, and runc would refuse it.
    let mut env: Vec<String> =
        image.config.env.iter().filter(|entry| entry.contains('=')).cloned().collect();
    let has = |env: &[String], name: &str| env.iter().any(|e| e.split('=').next() == Some(name));
    if !has(&env, "PATH") {
        env.insert(0, PATH.to_owned());
    }
    if options.terminal && !has(&env, "TERM") {
        env.push("TERM=xterm".to_owned());
    }
    let cwd = match image.config.working_dir.as_str() {
        dir if dir.starts_with('/') => dir.to_owned(),
        dir => format!("/{dir}"),
    };
    // For users other than root, only files that grant capabilities give them back.
    let held: &[&str] = if user.uid == 0 { &CAPABILITIES } else { &[] };
    json!({
        "terminal": options.terminal,
        "user": {"uid": user.uid, "gid": user.gid, "additionalGids": user.groups},
        "args": arguments(image, options),
        "env": env,
        "cwd": cwd,
        "capabilities": {"bounding": CAPABILITIES, "effective": held, "permitted": held},
        "noNewPrivileges": false,
    })
}

fn mounts(options: &RunOptions) -> Value {
    let mut mounts = vec![
        mount("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "/dev/pts",
            "devpts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount(
            "/dev/shm",
            "tmpfs",
            "shm",
            &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"],
        ),
        mount("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        mount("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        mount(
            "/sys/fs/cgroup",
            "cgroup",
            "cgroup",
            &["nosuid", "noexec", "nodev", "relatime", "ro"],
        ),
    ];
    if options.host_network {
        for file in ["/etc/resolv.conf", "/etc/hosts"] {
            mounts.push(mount(file, "bind", file, &["bind", "ro", "nosuid", "noexec", "nodev"]));
        }
    }
    Value::Array(mounts)
}

fn mount(destination: &str, kind: &str, source: &str, options: &[&str]) -> Value {
    json!({"destination": destination, "type": kind, "source": source, "options": options})
}

fn namespaces(options: &RunOptions, around: &SpecInputs) -> Value {
    let network = (!options.host_network).then_some("network");
    let cgroup = around.unified_cgroups.then_some("cgroup");
    let kinds = ["pid", "ipc", "uts", "mount"].into_iter().chain(network).chain(cgroup);
    Value::Array(kinds.map(|kind| json!({"type": kind})).collect())
}

/// The labels that are passed on: image-spec's own keys.
const SAFE_LABELS: &str = "org.opencontainers.image.";

/// The image's safe labels, and other values of the config under the keys of conversion.md, where a
/// label with such a key takes precedence. Runtimes obey other annotations, such as
/// `org.systemd.property.*`, `org.criu.config` and `run.oci.*`, which the author of an image must
/// not control.
fn annotations(image: &ImageConfig) -> Value {
    let ports = image.config.exposed_ports.keys().map(String::as_str).collect::<Vec<_>>().join(",");
    let mut annotations = Map::new();
    for (key, value) in [
        ("os", &image.os),
        ("architecture", &image.architecture),
        ("author", &image.author),
        ("created", &image.created),
        ("stopSignal", &image.config.stop_signal),
        ("exposedPorts", &ports),
    ] {
        if !value.is_empty() {
            annotations.insert(format!("{SAFE_LABELS}{key}"), value.as_str().into());
        }
    }
    let labels = image.config.labels.iter().filter(|(key, _)| key.starts_with(SAFE_LABELS));
    annotations.extend(labels.map(|(key, value)| (key.clone(), value.as_str().into())));
    Value::Object(annotations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_are_parsed() {
        let bytes =
            br#"{"os":"linux","architecture":"amd64","config":{"User":"web:www","Env":["A=b"],"Entrypoint":null,
            "Cmd":["sh"],"WorkingDir":"/srv","Labels":{"x":"y"},"StopSignal":"SIGQUIT","ExposedPorts":{"80/tcp":{}}}}"#;
        let image = ImageConfig::parse(bytes).unwrap();
        assert_eq!(image.config.user, "web:www");
        assert_eq!((image.config.entrypoint.len(), image.config.cmd), (0, vec!["sh".to_owned()]));
        assert!(image.config.exposed_ports.contains_key("80/tcp"));
        for empty in ["{}", r#"{"config":null}"#, r#"{"config":{"Labels":null}}"#] {
            assert_eq!(
                ImageConfig::parse(empty.as_bytes()).unwrap(),
                ImageConfig::default(),
                "{empty}"
            );
        }
        assert!(ImageConfig::parse(br#"{"config":{"Cmd":"sh"}}"#).is_err());
    }

    #[test]
    fn configs_that_go_reads_differently_are_refused() {
        for key in RUN {
            for other in [
                key.to_lowercase(),
                key.to_uppercase(),
                key.replace('s', "\u{17f}").replace('k', "\u{212a}"),
            ] {
                let parsed =
                    ImageConfig::parse(format!(r#"{{"config":{{"{other}":null}}}}"#).as_bytes());
                assert_eq!(
                    matches!(parsed, Err(JsonError::Spelling { .. })),
                    other != **key,
                    "{other}"
                );
            }
        }
        // A label may have any name.
        let labels = br#"{"config":{"Labels":{"user":"a","USER":"b"}}}"#;
        assert_eq!(ImageConfig::parse(labels).map(|image| image.config.labels.len()).ok(), Some(2));
    }

    fn image(config: &str) -> ImageConfig {
        let text = format!(r#"{{"os":"linux","architecture":"amd64","config":{config}}}"#);
        ImageConfig::parse(text.as_bytes()).unwrap()
    }

    fn around(uid: u32) -> SpecInputs {
        let user = User { uid, gid: 5, groups: vec![7] };
        SpecInputs { user, hostname: "abc".to_owned(), unified_cgroups: false }
    }

    #[test]
    fn entrypoint_and_command_are_combined_as_by_docker() {
        let image = image(r#"{"Entrypoint":["/entry","-x"],"Cmd":["serve"]}"#);
        let list = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<String>>();
        for (entrypoint, command, expected) in [
            (None, None, &["/entry", "-x", "serve"][..]),
            (None, Some(list(&["sh", "-c", "id"])), &["/entry", "-x", "sh", "-c", "id"]),
            (Some(list(&["/bin/sh"])), None, &["/bin/sh"]),
            (Some(Vec::new()), Some(list(&["id"])), &["id"]),
            (Some(Vec::new()), None, &[]),
        ] {
            let options = RunOptions { command, entrypoint, ..RunOptions::default() };
            assert_eq!(arguments(&image, &options), expected);
        }
    }

    #[test]
    fn the_whole_document() {
        let image = image(
            r#"{"Env":["A=b","PATH=/x"],"Cmd":["sh"],"WorkingDir":"srv","StopSignal":"SIGQUIT",
            "Labels":{"a":"b","":"x","org.opencontainers.image.os":"mine","org.systemd.property.DeviceAllow":"x",
                "org.criu.config":"x","run.oci.handler":"x"},"ExposedPorts":{"80/tcp":{},"53/udp":{}}}"#,
        );
        let spec = config_json(&image, &RunOptions::default(), &around(0));
        assert_eq!(spec["process"]["env"], json!(["A=b", "PATH=/x"]));
        assert_eq!(spec["process"]["cwd"], "/srv");
        assert_eq!(spec["process"]["user"], json!({"uid": 0, "gid": 5, "additionalGids": [7]}));
        assert_eq!(spec["process"]["capabilities"]["effective"].as_array().map(Vec::len), Some(14));
        assert_eq!(
            spec["annotations"],
            json!({"org.opencontainers.image.os": "mine", "org.opencontainers.image.architecture": "amd64",
                "org.opencontainers.image.stopSignal": "SIGQUIT",
                "org.opencontainers.image.exposedPorts": "53/udp,80/tcp"})
        );
        assert_eq!(spec["linux"]["namespaces"].as_array().map(Vec::len), Some(5));
    }

    /// Another reader takes the document, and writes it again without losing anything.
    #[test]
    fn oci_spec_reads_the_document() {
        let image = image(r#"{"Cmd":["sh"],"Labels":{"org.opencontainers.image.title":"x"}}"#);
        for (uid, options) in [
            (0, RunOptions::default()),
            (1000, RunOptions { terminal: true, host_network: true, ..RunOptions::default() }),
        ] {
            let spec =
                config_json(&image, &options, &SpecInputs { unified_cgroups: true, ..around(uid) });
            let read: oci_spec::runtime::Spec = serde_json::from_value(spec.clone()).unwrap();
            let mut again = serde_json::to_value(&read).unwrap();
            // It keeps them in a hash set.
            for held in again["process"]["capabilities"].as_object_mut().unwrap().values_mut() {
                held.as_array_mut().unwrap().sort_by_key(Value::to_string);
            }
            assert_eq!(again, spec);
        }
    }

    #[test]
    fn optional_settings() {
        // An entry without a value does not replace the default.
        let image = image(r#"{"Cmd":["sh"],"Env":["PATH"]}"#);
        let options = RunOptions { terminal: true, host_network: true, ..RunOptions::default() };
        let spec =
            config_json(&image, &options, &SpecInputs { unified_cgroups: true, ..around(1000) });
        assert_eq!(spec["process"]["env"], json!([PATH, "TERM=xterm"]));
        assert_eq!(spec["process"]["capabilities"]["effective"], json!([]));
        assert_eq!(spec["process"]["capabilities"]["bounding"].as_array().map(Vec::len), Some(14));
        assert_eq!(
            spec["linux"]["namespaces"],
            json!([{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
            {"type": "cgroup"}])
        );
        let binds: Vec<&Value> =
            spec["mounts"].as_array().unwrap().iter().filter(|m| m["type"] == "bind").collect();
        assert_eq!(binds.len(), 2);
    }
}
