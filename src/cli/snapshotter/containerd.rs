//! containerd's part of `snapshotter install` and `uninstall`: where a distribution of Kubernetes
//! has containerd's configuration.

use std::fmt;
use std::fs;
use std::io;
use std::iter;
use std::path::{Path, PathBuf};

use super::host::{below, put, remove};
use crate::cli::shared::error::CliError;

/// The file for containerd 2.1 and later. It has the snapshotter's default paths.
const FILE: &str = include_str!("../../../packaging/containerd/ociseek.toml");
const SOCKET: &str = "/run/ociseek/snapshotter.sock";
const ROOT: &str = "/var/lib/ociseek/snapshotter";
/// What each version of the file begins with.
const HEAD: &str = "# containerd 2.1 and later: ociseek snapshotter";
const NAME: &str = "ociseek.toml";
/// The oldest version of a main file that only containerd 2 reads.
const VERSION: i64 = 3;

/// Where a distribution of Kubernetes has containerd's files. A node has one; the first whose main
/// file exists counts, because packages of containerd leave theirs on nodes of the others.
#[derive(Debug)]
struct Layout {
    name: &'static str,
    main: &'static str,
    /// The folder to import, which its documentation names.
    folder: &'static str,
    /// It imports all of the folder without a pattern in the main file, if that has this line.
    imports_by: Option<&'static str>,
    /// A program writes the main file each time that it starts, so an import cannot be added to it.
    is_generated: bool,
    /// What makes containerd read its files again.
    restart: &'static str,
}

const LAYOUTS: [Layout; 5] = [
    Layout {
        name: "k3s",
        main: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
        folder: "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d",
        imports_by: None,
        is_generated: true,
        restart: "k3s (or k3s-agent)",
    },
    Layout {
        name: "rke2",
        main: "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        folder: "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d",
        imports_by: None,
        is_generated: true,
        restart: "rke2-agent (or rke2-server)",
    },
    Layout {
        name: "k0s",
        main: "/etc/k0s/containerd.toml",
        folder: "/etc/k0s/containerd.d",
        imports_by: Some("# k0s_managed=true"),
        is_generated: false,
        restart: "k0sworker (or k0scontroller)",
    },
    Layout {
        name: "MicroK8s",
        main: "/var/snap/microk8s/current/args/containerd.toml",
        folder: "/var/snap/microk8s/current/args/containerd.d",
        imports_by: None,
        is_generated: true,
        restart: "snap.microk8s.daemon-containerd snap.microk8s.daemon-kubelite",
    },
    // Also those of kubeadm, EKS (config.d), GKE and kind.
    Layout {
        name: "containerd",
        main: "/etc/containerd/config.toml",
        folder: "/etc/containerd/conf.d",
        imports_by: None,
        is_generated: false,
        restart: "containerd kubelet",
    },
];

/// Where to write containerd's file on a host.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContainerdFile {
    path: String,
    restart: &'static str,
}

impl fmt::Display for ContainerdFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: run systemctl restart {}", self.path, self.restart)
    }
}

/// Finds out where containerd would read the file.
///
/// # Errors
/// If its main file imports no folder, or may be one of an older containerd, which would not start
/// with our file.
pub(super) fn place(host: &Path) -> Result<ContainerdFile, CliError> {
    let is_here = |layout: &&Layout| below(host, layout.main).exists();
    let [.., plain] = &LAYOUTS;
    let layout = LAYOUTS.iter().find(is_here).unwrap_or(plain);
    let path = below(host, layout.main);
    let text = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        read => read.map_err(CliError::read(&path))?,
    };
    let refuse = |why: String| {
        let why = format!("{why} (nothing was changed)");
        CliError::at(&path, "cannot read")(why)
    };
    let table: toml::Table = text.parse().map_err(|_| refuse("it is not valid TOML".to_owned()))?;
    let Layout { name, main, folder, is_generated, .. } = layout;
    let imported = layout.folder_in(&text, &table);
    if imported.is_none() && *is_generated {
        return Err(refuse(format!(
            "this version of {name} writes it without an import of a folder, so that its containerd cannot get \
             another snapshotter (docs/kubernetes.md, Distributions)"
        )));
    }
    let version = table.get("version").and_then(toml::Value::as_integer);
    if !text.is_empty() && version.is_none_or(|version| version < VERSION) {
        let version = version.map_or("none".to_owned(), |version| version.to_string());
        return Err(refuse(format!(
            "its version is {version}, so containerd may be older than 2.1, and would not start with the file for 2.1: \
             if it is not, let containerd config migrate rewrite it; if it is, give it the settings of \
             packaging/containerd/ociseek-version-2.toml"
        )));
    }
    let Some(folder) = imported else {
        let lines = if text.is_empty() { "version = 3 and " } else { "" };
        return Err(refuse(format!(
            "containerd would not read {folder}/{NAME}: add {lines}imports = [\"{folder}/*.toml\"] to {main}"
        )));
    };
    Ok(ContainerdFile { path: format!("{folder}/{NAME}"), restart: layout.restart })
}

impl Layout {
    /// The folder that this main file imports. The last one counts, as containerd has it.
    fn folder_in(&self, text: &str, main: &toml::Table) -> Option<String> {
        if self.imports_by.is_some_and(|line| text.lines().any(|other| other.trim() == line)) {
            return Some(self.folder.to_owned());
        }
        folders(self.main, main).pop()
    }
}

/// What the main file imports, with patterns.
fn imports(path: &str, main: &toml::Table) -> Vec<String> {
    let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
    let patterns = main.get("imports").and_then(toml::Value::as_array).into_iter().flatten();
    let absolute = |pattern: &str| match pattern.strip_prefix('/') {
        Some(_) => pattern.to_owned(),
        None => format!("{dir}/{pattern}"),
    };
    patterns.filter_map(|pattern| pattern.as_str().map(absolute)).collect()
}

/// The folders whose *.toml the main file imports.
fn folders(path: &str, main: &toml::Table) -> Vec<String> {
    let imports = imports(path, main).into_iter();
    imports
        .filter_map(|pattern| pattern.strip_suffix("/*.toml").map(str::to_owned))
        .filter(|folder| !folder.contains(['*', '?', '[']))
        .collect()
}

/// Writes the file for a snapshotter with these paths. Keeps a file of another's. Returns whether
/// containerd has another configuration now.
///
/// # Errors
/// If it cannot be written.
pub(super) fn configure(
    host: &Path,
    file: &ContainerdFile,
    socket: &Path,
    root: &Path,
) -> Result<bool, CliError> {
    let path = below(host, &file.path);
    let shown = |path: &Path| path.to_string_lossy().into_owned();
    let text = FILE.replace(SOCKET, &shown(socket)).replace(ROOT, &shown(root));
    let others = fs::read_to_string(&path).ok().filter(|config| !config.starts_with(HEAD));
    if others.is_some() {
        let kept = kept(&path);
        fs::rename(&path, &kept).map_err(CliError::write(&kept))?;
    }
    put(host, &file.path, text.as_bytes(), 0o644)
}

/// Where a file of another's is kept that was there.
fn kept(path: &Path) -> PathBuf {
    path.with_added_extension("bak")
}

/// Whether this file of containerd's has the snapshotter as a plugin.
fn names(text: &str) -> bool {
    let table: toml::Table = text.parse().unwrap_or_default();
    table.get("proxy_plugins").is_some_and(|plugins| plugins.get("ociseek").is_some())
}

/// Whether `configure` wrote it.
fn is_ours(path: &Path, text: &str) -> bool {
    path.ends_with(NAME) && text.starts_with(HEAD)
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.extension() == Some("toml".as_ref()))
        .collect()
}

/// Gives containerd its configuration back, wherever it is. Returns what to restart, if it had
/// another one.
///
/// # Errors
/// If it cannot be written, or if containerd's main file names the snapshotter.
pub(super) fn restore(host: &Path) -> Result<Option<&'static str>, CliError> {
    let mut restart = None;
    for layout in &LAYOUTS {
        let main = below(host, layout.main);
        let text = fs::read_to_string(&main).unwrap_or_default();
        let table = text.parse().unwrap_or_default();
        let mut places = folders(layout.main, &table);
        places.push(layout.folder.to_owned());
        let read = imports(layout.main, &table).into_iter().map(|import| below(host, &import));
        let read = read.chain(places.iter().flat_map(|place| files_in(&below(host, place))));
        for path in iter::once(main).chain(read) {
            if fs::read_to_string(&path).is_ok_and(|text| names(&text) && !is_ours(&path, &text)) {
                let why = "it names the snapshotter: remove those lines and restart containerd first, since \
                           no pod could start otherwise";
                return Err(CliError::at(&path, "cannot read")(why));
            }
        }
        for place in places {
            let path = below(host, &format!("{place}/{NAME}"));
            if !fs::read_to_string(&path).is_ok_and(|text| is_ours(&path, &text)) {
                continue;
            }
            let kept = kept(&path);
            if kept.exists() {
                fs::rename(&kept, &path).map_err(CliError::write(&path))?;
            } else {
                remove(&path)?;
            }
            restart = Some(layout.restart);
        }
    }
    Ok(restart)
}

#[cfg(test)]
mod tests {
    use ociseek_format::progress::causes;

    use super::*;

    /// Main files as their distributions write them, shortened.
    const K3S: &str = "# File generated by k3s. DO NOT EDIT. Use config-v3.toml.tmpl instead.\nversion = 3\n\
        imports = [\"/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/*.toml\"]\n";
    const RKE2: &str = "version = 3\n\
        imports = [\"/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/*.toml\"]\n";
    const K0S: &str =
        "# k0s_managed=true\nversion = 3\nimports = [\"/run/k0s/containerd-cri.toml\"]\n";
    /// Their templates without what does not matter here: kind of August, MicroK8s of June, and
    /// Kubernetes' own script for nodes of GKE.
    const KIND: &str = "# explicitly use v2 config format\nversion = 2\n[proxy_plugins]\n\
        [proxy_plugins.\"fuse-overlayfs\"]\n  type = \"snapshot\"\n";
    const MICROK8S: &str =
        "# Use config version 2 to enable new configuration fields.\nversion = 2\noom_score = 0\n";
    const GKE: &str =
        "version = 2\nrequired_plugins = [\"io.containerd.grpc.v1.cri\"]\noom_score = -999\n";
    const EKS: &str = "version = 3\nimports = [\"/etc/containerd/config.d/*.toml\"]\n";
    /// What containerd 2.4 prints as its default.
    const NEWEST: &str = "version = 4\nimports = ['/etc/containerd/conf.d/*.toml']\n";
    const PLAIN: &str = "version = 3\nimports = [\"/a.toml\", \"conf.d/*.toml\"]\n";

    fn host(files: &[(usize, &str)]) -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        for (layout, text) in files {
            put(host.path(), LAYOUTS[*layout].main, text.as_bytes(), 0o644).unwrap();
        }
        host
    }

    #[test]
    fn each_distribution_has_its_place() {
        let rancher = "/var/lib/rancher";
        for (files, path, restart) in [
            (
                &[(0, K3S), (4, PLAIN)][..],
                format!("{rancher}/k3s/agent/etc/containerd/config-v3.toml.d/ociseek.toml"),
                "k3s",
            ),
            (
                &[(1, RKE2)],
                format!("{rancher}/rke2/agent/etc/containerd/config-v3.toml.d/ociseek.toml"),
                "rke2-agent",
            ),
            (&[(2, K0S)], "/etc/k0s/containerd.d/ociseek.toml".into(), "k0sworker"),
            (&[(4, EKS)], "/etc/containerd/config.d/ociseek.toml".into(), "containerd kubelet"),
            (&[(4, PLAIN)], "/etc/containerd/conf.d/ociseek.toml".into(), "containerd kubelet"),
            (&[(4, NEWEST)], "/etc/containerd/conf.d/ociseek.toml".into(), "containerd kubelet"),
        ] {
            let host = host(files);
            let file = place(host.path()).unwrap();
            assert_eq!(file.path, path);
            assert!(file.to_string().contains(restart), "{file}");
        }
    }

    #[test]
    fn a_file_that_containerd_would_not_read_or_could_not_bear_is_refused() {
        let old = |text: &str| text.replace("version = 3", "version = 2");
        for (files, why) in [
            (
                &[][..],
                "add version = 3 and imports = [\"/etc/containerd/conf.d/*.toml\"] to \
                 /etc/containerd/config.toml",
            ),
            (&[(4, "version = 3\n".to_owned())], "add imports"),
            (
                &[(4, "version = 3\nimports = [\"/a/*/*.toml\", \"/b/*\"]\n".to_owned())],
                "add imports",
            ),
            (&[(4, "nonsense".to_owned())], "not valid TOML"),
            (&[(4, KIND.to_owned())], "let containerd config migrate rewrite it"),
            (&[(4, GKE.to_owned())], "its version is 2"),
            (
                &[(3, MICROK8S.to_owned()), (4, PLAIN.to_owned())],
                "this version of MicroK8s writes it without an import",
            ),
            (&[(4, PLAIN.replace("version = 3\n", ""))], "its version is none"),
            (
                &[(4, old(EKS))],
                "give it the settings of packaging/containerd/ociseek-version-2.toml",
            ),
            (&[(2, old(K0S))], "its version is 2"),
            (&[(0, "version = 3\n".to_owned()), (4, PLAIN.to_owned())], "this version of k3s"),
            (
                &[(2, "version = 3\n".to_owned())],
                "add imports = [\"/etc/k0s/containerd.d/*.toml\"]",
            ),
        ] {
            let files: Vec<(usize, &str)> =
                files.iter().map(|(layout, text)| (*layout, text.as_str())).collect();
            let host = host(&files);
            let error = place(host.path()).unwrap_err();
            let shown = causes(&error);
            assert!(shown.contains(why), "{shown}");
        }
    }

    #[test]
    fn a_file_of_anothers_is_kept_and_restored() {
        for files in [[(0, K3S)], [(1, RKE2)], [(2, K0S)], [(4, EKS)], [(4, PLAIN)]] {
            let host = host(&files);
            let file = place(host.path()).unwrap();
            let path = below(host.path(), &file.path);
            let configure =
                || configure(host.path(), &file, Path::new("/s"), Path::new("/r")).unwrap();
            let read = |path: &Path| fs::read_to_string(path).ok();
            let another = "# mine\n".to_owned();
            for before in [None, Some(&another)] {
                if let Some(before) = before {
                    put(host.path(), &file.path, before.as_bytes(), 0o644).unwrap();
                }
                assert!(configure());
                assert!(!configure(), "the same again");
                let text = read(&path).unwrap();
                assert!(
                    text.contains("address = \"/s\"") && text.contains("root = \"/r\""),
                    "{text}"
                );
                assert_eq!(read(&kept(&path)).as_ref(), before);
                assert_eq!(restore(host.path()).unwrap(), Some(file.restart));
                assert_eq!((read(&path).as_ref(), read(&kept(&path))), (before, None));
                assert_eq!(restore(host.path()).unwrap(), None);
            }
        }
    }

    /// The snapshotter must stay as long as containerd would read of it, wherever that is.
    #[test]
    fn a_file_that_names_the_snapshotter_and_is_not_ours_keeps_it() {
        let by_hand = include_str!("../../../packaging/containerd/ociseek-version-2.toml");
        let main = LAYOUTS[4].main;
        for path in [
            main,
            "/a.toml",
            "/etc/containerd/conf.d/ociseek.toml",
            "/etc/containerd/conf.d/z.toml",
        ] {
            let host = host(&[(4, PLAIN)]);
            put(host.path(), path, by_hand.as_bytes(), 0o644).unwrap();
            let error = restore(host.path()).unwrap_err();
            assert!(causes(&error).contains(path), "{}", causes(&error));
        }
    }
}
