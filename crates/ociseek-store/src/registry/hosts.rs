//! The files that say how to reach a registry: containerd's `hosts.toml`, and the folders of
//! certificates of docker and podman.
//!
//! containerd's `DIR/HOST_PORT_/hosts.toml`, `DIR/HOST:PORT/hosts.toml` or
//! `DIR/_default/hosts.toml` (containerd `docs/hosts.md`) names other hosts that have the content
//! of a registry, and how to reach them. A folder without that file has certificates, as docker's
//! `certs.d`.
//!
//! `certs.d/HOST[:PORT]/` has authorities in `*.crt`, and a client certificate and its key in
//! `*.cert` and `*.key` (docker's "Verify repository client with certificates",
//! containers-certs.d(5)).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;
use toml::Spanned;
use url::Url;

use super::address::same_origin;
use super::error::RegistryError;

/// Larger files do not name hosts.
const MAX_BYTES: u64 = 1 << 20;

/// The certificates for a host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct HostTls {
    /// Files with authorities.
    pub authorities: Vec<PathBuf>,
    /// The files of a client certificate and of its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Accepts any certificate.
    pub skip_verify: bool,
}

/// A host that has the content of a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MirrorConfig {
    /// Scheme, host and port, with the path of its API: `/v2`, or another one.
    pub url: Url,
    pub capabilities: Capabilities,
    /// Whether it is asked by TLS first, although its URL says HTTP.
    pub tries_tls: bool,
    pub tls: HostTls,
    /// Sent to this host only.
    pub headers: HeaderMap,
}

/// What a host may be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// Content with a digest.
    pub pulls: bool,
    /// What a tag names.
    pub resolves: bool,
    /// What refers to a digest.
    pub lists_referrers: bool,
}

/// What is configured for a registry.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RegistryHosts {
    /// Asked first, in this order.
    pub mirrors: Vec<MirrorConfig>,
    /// Asked in the end, in place of the registry itself.
    pub server: Option<MirrorConfig>,
    /// For the registry itself.
    pub tls: HostTls,
}

#[derive(Deserialize)]
struct HostsFile {
    server: Option<String>,
    #[serde(default)]
    host: BTreeMap<Spanned<String>, HostEntry>,
    #[serde(flatten)]
    root: HostEntry,
}

#[derive(Deserialize, Default)]
struct HostEntry {
    #[serde(default)]
    capabilities: Vec<String>,
    ca: Option<OneOrMore<PathBuf>>,
    client: Option<ClientEntry>,
    skip_verify: Option<bool>,
    #[serde(default)]
    header: BTreeMap<String, OneOrMore<String>>,
    #[serde(default)]
    override_path: bool,
    proxy: Option<String>,
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn all(self) -> Vec<T> {
        match self {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(all) => all,
        }
    }
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum ClientEntry {
    One(PathBuf),
    More(Vec<ClientFiles>),
}

#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum ClientFiles {
    /// The key is in the same file.
    Both(PathBuf),
    Pair(PathBuf, PathBuf),
}

/// What the folder `dir` has for a registry. `own` is the registry's URL. As in containerd's
/// `config_path`, `dir` may be several folders with colons in between, of which the first counts
/// that has something for the registry. By default, containerd 2.2 has two
/// (containerd/containerd#12808).
///
/// # Errors
/// If a file cannot be read or is not valid.
pub(super) fn find(dir: &Path, registry: &str, own: &Url) -> Result<RegistryHosts, RegistryError> {
    let with_port = registry.rsplit_once(':').map(|(host, port)| format!("{host}_{port}_"));
    let names = [with_port.as_deref(), Some(registry), Some("_default")];
    // `..` is accepted as a host name elsewhere.
    let names: Vec<&str> =
        names.into_iter().flatten().filter(|name| !name.starts_with('.')).collect();
    let dirs: Vec<PathBuf> =
        std::env::split_paths(dir).filter(|dir| !dir.as_os_str().is_empty()).collect();
    for (dir, name) in dirs.iter().flat_map(|dir| names.iter().map(move |name| (dir, *name))) {
        let folder = dir.join(name);
        if !folder.is_dir() {
            continue;
        }
        let path = folder.join("hosts.toml");
        let mut text = String::new();
        match File::open(&path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
        {
            Ok(read) if read as u64 > MAX_BYTES => {
                return Err(wrong(&path, "is larger than 1 MiB"));
            }
            Ok(1..) => return parsed(&path, &folder, &text, own),
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(RegistryError::File { path, source: error });
            }
            // An empty file counts as none, as with containerd.
            Ok(0) | Err(_) => {
                let tls = certificates_in(&folder)?;
                return Ok(RegistryHosts { tls, ..RegistryHosts::default() });
            }
        }
    }
    Ok(RegistryHosts::default())
}

/// The certificates in a folder, by the rules of containerd (`loadCertFiles`): a client certificate
/// without a file for its key has it in the same file.
fn certificates_in(folder: &Path) -> Result<HostTls, RegistryError> {
    let mut files = list(folder)?;
    files.sort();
    let with = |extension: &'static str| {
        files.iter().filter(move |file| file.extension().is_some_and(|e| e == extension))
    };
    let mut certificates = with("cert");
    let client = certificates.next().map(|certificate| {
        let key = certificate.with_extension("key");
        let key = if files.contains(&key) { key } else { certificate.clone() };
        (certificate.clone(), key)
    });
    match certificates.next() {
        Some(second) => {
            let what = "is a second client certificate, of which only one can be used";
            Err(RegistryError::CertsD { path: second.clone(), what })
        }
        None => {
            Ok(HostTls { authorities: with("crt").cloned().collect(), client, skip_verify: false })
        }
    }
}

fn wrong(path: &Path, what: impl Into<String>) -> RegistryError {
    RegistryError::Hosts { path: path.to_owned(), what: what.into() }
}

fn parsed(
    path: &Path,
    folder: &Path,
    text: &str,
    own: &Url,
) -> Result<RegistryHosts, RegistryError> {
    let first_line =
        |error: toml::de::Error| error.message().lines().next().unwrap_or_default().to_owned();
    let file: HostsFile = toml::from_str(text).map_err(|error| wrong(path, first_line(error)))?;
    let mut hosts: Vec<(Spanned<String>, HostEntry)> = file.host.into_iter().collect();
    // In the order of the file.
    hosts.sort_by_key(|(name, _)| name.span().start);
    let host =
        |name: &str, entry: HostEntry| host(folder, name, entry).map_err(|what| wrong(path, what));
    let mut mirrors = Vec::new();
    for (name, entry) in hosts {
        let mirror = host(name.get_ref(), entry)?;
        if mirror.capabilities.pulls || mirror.capabilities.lists_referrers {
            mirrors.push(mirror);
        }
    }
    let named = file.server.as_deref().filter(|name| !name.is_empty());
    let server = host(named.unwrap_or(own.as_str()), file.root)?;
    if !(server.capabilities.pulls && server.capabilities.resolves) {
        let what = "has capabilities without pull and resolve for the last host, which is not \
                    supported: name a mirror as server if the registry must not be asked";
        return Err(wrong(path, what));
    }
    let is_own =
        same_origin(&server.url, own) && server.url.path() == "/v2" && server.headers.is_empty();
    let tls = server.tls.clone();
    // Without the key, the settings of the file are those of the registry itself.
    Ok(RegistryHosts { mirrors, server: (!is_own).then_some(server), tls })
}

/// What these words mean to containerd (`parseHostConfig`). Without any, a host can do all.
/// containerd before 2.2 has no word for referrers, so a host that resolves may list them.
fn capabilities(words: &[String]) -> Result<Capabilities, String> {
    const WORDS: [&str; 4] = ["pull", "resolve", "push", "referrers"];
    let unknown = |word: &&String| !WORDS.contains(&&*word.to_ascii_lowercase());
    if let Some(word) = words.iter().find(unknown) {
        return Err(format!("has an unknown capability {word:?}"));
    }
    let has = |wanted: &str| {
        words.is_empty() || words.iter().any(|word| word.eq_ignore_ascii_case(wanted))
    };
    let (pulls, resolves) = (has("pull"), has("resolve"));
    let lists_referrers = has("referrers") || pulls && resolves;
    Ok(Capabilities { pulls, resolves: pulls && resolves, lists_referrers })
}

fn host(folder: &Path, name: &str, entry: HostEntry) -> Result<MirrorConfig, String> {
    if entry.proxy.is_some() {
        return Err(
            "has a proxy, which is not supported: use the variables of the environment".to_owned()
        );
    }
    let typed = if name.contains("://") { name.to_owned() } else { format!("https://{name}") };
    let is_http = |url: &Url| matches!(url.scheme(), "http" | "https");
    let is_plain =
        |url: &Url| url.username().is_empty() && url.password().is_none() && url.query().is_none();
    let url = Url::parse(&typed).ok().filter(|url| is_http(url) && is_plain(url) && url.has_host());
    let mut url = url.ok_or_else(|| format!("{name:?} is not the URL of a host"))?;
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&if entry.override_path || path.ends_with("/v2") {
        path
    } else {
        format!("{path}/v2")
    });
    url.set_fragment(None);
    let at = |path: PathBuf| folder.join(path);
    let client = match entry.client {
        Some(ClientEntry::One(file)) => vec![ClientFiles::Both(file)],
        Some(ClientEntry::More(all)) => all,
        None => Vec::new(),
    };
    if client.len() > 1 {
        return Err(format!(
            "has several client certificates for {name:?}, of which only one can be used"
        ));
    }
    let client = client.into_iter().next().map(|files| match files {
        ClientFiles::Both(both) => (at(both.clone()), at(both)),
        ClientFiles::Pair(cert, key) if key.as_os_str().is_empty() => (at(cert.clone()), at(cert)),
        ClientFiles::Pair(cert, key) => (at(cert), at(key)),
    });
    let authorities =
        entry.ca.map(OneOrMore::all).unwrap_or_default().into_iter().map(at).collect();
    let mut headers = HeaderMap::new();
    for (name, values) in entry.header {
        let invalid = || format!("has a header {name:?} that is not valid");
        let header = HeaderName::try_from(&*name).map_err(|_| invalid())?;
        for value in values.all() {
            let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
            value.set_sensitive(true);
            headers.append(header.clone(), value);
        }
    }
    let capabilities = capabilities(&entry.capabilities)?;
    let skip_verify = entry.skip_verify.unwrap_or(false);
    let tls = HostTls { authorities, client, skip_verify };
    // As containerd does, unless the port is that of HTTP.
    let tries_tls = url.scheme() == "http"
        && url.port().is_some()
        && (entry.skip_verify.is_some() || tls != HostTls::default());
    Ok(MirrorConfig { url, capabilities, tries_tls, tls, headers })
}

/// The content of a registry's folders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CertFiles {
    /// The files with certificate authorities in all folders.
    pub authorities: Vec<PathBuf>,
    /// The certificate and key in the first folder that has both.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The folders with subfolders for registries, the user's before the system's.
pub(super) fn certificate_folders() -> Vec<PathBuf> {
    folders_of(|name| std::env::var_os(name), crate::home_dir())
}

fn folders_of(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Vec<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config =
        folder("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
    let of_user = [
        config.as_ref().map(|config| config.join("containers/certs.d")),
        // Rootless dockerd and Docker Desktop.
        config.as_ref().map(|config| config.join("docker/certs.d")),
        home.as_ref().map(|home| home.join(".docker/certs.d")),
    ];
    let of_system =
        ["/etc/containers/certs.d", "/etc/docker/certs.d"].map(|path| Some(PathBuf::from(path)));
    of_user.into_iter().chain(of_system).flatten().collect()
}

/// Searches `folders` for the certificates of `registry`, under the name that the user typed.
///
/// # Errors
/// If a folder cannot be listed, or a certificate lacks its key.
pub(super) fn find_certificates(
    folders: &[PathBuf],
    registry: &str,
) -> Result<CertFiles, RegistryError> {
    let mut certificates = CertFiles::default();
    // `..` is accepted as a host name elsewhere, so reject it here.
    if registry.starts_with('.') {
        return Ok(certificates);
    }
    for folder in folders.iter().map(|folder| folder.join(registry)) {
        let mut files = list(&folder)?;
        files.sort();
        let with = |extension: &'static str| {
            files.iter().filter(move |file| file.extension().is_some_and(|e| e == extension))
        };
        certificates.authorities.extend(with("crt").cloned());
        for certificate in with("cert") {
            let key = certificate.with_extension("key");
            if !files.contains(&key) {
                let what = "has no matching .key file (certificate authorities end in .crt)";
                return Err(RegistryError::CertsD { path: certificate.clone(), what });
            }
            certificates.client.get_or_insert((certificate.clone(), key));
        }
        if let Some(key) = with("key").find(|key| !files.contains(&key.with_extension("cert"))) {
            let what = "has no matching .cert file";
            return Err(RegistryError::CertsD { path: key.clone(), what });
        }
    }
    Ok(certificates)
}

/// The files in a folder. A folder that is missing or not accessible counts as empty, because
/// docker's may be readable only by root.
fn list(folder: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let failed = |source| RegistryError::File { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn found(dir: &tempfile::TempDir, registry: &str) -> RegistryHosts {
        find(dir.path(), registry, &Url::parse(&format!("https://{registry}/")).unwrap()).unwrap()
    }

    fn urls(hosts: &RegistryHosts) -> Vec<&str> {
        hosts.mirrors.iter().chain(&hosts.server).map(|host| host.url.as_str()).collect()
    }

    #[test]
    fn the_folder_of_a_registry_is_found_by_its_names() {
        let server = |name: &str| format!("server = \"https://{name}\"\n");
        let with_port = server("port.example");
        let plain = server("plain.example");
        let rest = server("rest.example");
        let dir = folder(&[
            ("r.io_5000_/hosts.toml", &with_port),
            ("r.io:5000/hosts.toml", &plain),
            ("q.io:5000/hosts.toml", &plain),
            ("_default/hosts.toml", &rest),
            ("certs.io/ca.crt", ""),
        ]);
        for (registry, url) in [
            ("r.io:5000", "https://port.example/v2"),
            ("q.io:5000", "https://plain.example/v2"),
            ("r.io", "https://rest.example/v2"),
        ] {
            assert_eq!(urls(&found(&dir, registry)), [url], "{registry}");
        }
        let two = folder(&[
            ("two.io/hosts.toml", &server("two.example")),
            ("r.io_5000_/hosts.toml", &plain),
        ]);
        let both =
            std::env::join_paths([dir.path().join("none"), two.path().into(), dir.path().into()])
                .unwrap();
        for (registry, url) in [
            ("two.io", "https://two.example/v2"),
            ("r.io:5000", "https://plain.example/v2"),
            ("q.io:5000", "https://plain.example/v2"),
            ("r.io", "https://rest.example/v2"),
        ] {
            let own = Url::parse(&format!("https://{registry}/")).unwrap();
            assert_eq!(urls(&find(Path::new(&both), registry, &own).unwrap()), [url], "{registry}");
        }
        let certs = found(&dir, "certs.io");
        assert_eq!(
            (urls(&certs).len(), certs.tls.authorities),
            (0, vec![dir.path().join("certs.io/ca.crt")])
        );
        assert_eq!(found(&folder(&[]), "r.io"), RegistryHosts::default());
    }

    #[test]
    fn hosts_are_in_the_order_of_the_file() {
        let dir = folder(&[(
            "r.io/hosts.toml",
            "ca = \"own.pem\"\n[host.\"https://z.example\"]\ncapabilities = [\"pull\"]\n\
             [host.\"http://a.example:5000/proxy/\"]\noverride_path = true\nca = [\"/a.pem\", \"b.pem\"]\n\
             client = [[\"c.pem\", \"c.key\"]]\nskip_verify = true\n\
             [host.\"http://a.example:5000/proxy/\".header]\nx-one = \"1\"\nx-two = [\"2\", \"3\"]\n\
             [host.\"m.example/cache\"]\ndial_timeout = \"1s\"\n[host.\"https://push.example\"]\n\
             capabilities = [\"push\"]\n",
        )]);
        let hosts = found(&dir, "r.io");
        assert_eq!(
            urls(&hosts),
            ["https://z.example/v2", "http://a.example:5000/proxy", "https://m.example/cache/v2"]
        );
        assert_eq!(
            hosts.mirrors.iter().map(|mirror| mirror.capabilities.resolves).collect::<Vec<_>>(),
            [false, true, true]
        );
        let at = |name: &str| dir.path().join("r.io").join(name);
        assert_eq!((&hosts.tls.authorities, hosts.server), (&vec![at("own.pem")], None));
        let tls = &hosts.mirrors[1].tls;
        assert_eq!(tls.authorities, [PathBuf::from("/a.pem"), at("b.pem")]);
        assert_eq!((&tls.client, tls.skip_verify), (&Some((at("c.pem"), at("c.key"))), true));
        let headers: Vec<_> =
            hosts.mirrors[1].headers.values().map(|value| value.to_str().unwrap()).collect();
        assert_eq!(headers, ["1", "2", "3"]);
    }

    #[test]
    fn capabilities_are_those_of_containerd() {
        for (words, wanted) in [
            ("", Some([true, true, true])),
            ("\"Pull\", \"RESOLVE\"", Some([true, true, true])),
            ("\"pull\"", Some([true, false, false])),
            ("\"pull\", \"referrers\"", Some([true, false, true])),
            ("\"referrers\"", Some([false, false, true])),
            ("\"resolve\"", None),
            ("\"push\"", None),
        ] {
            let text = format!("[host.\"https://m\"]\ncapabilities = [{words}]");
            let hosts = found(&folder(&[("r.io/hosts.toml", &text)]), "r.io");
            let all = hosts.mirrors.first().map(|mirror| mirror.capabilities);
            let all = all.map(|host| [host.pulls, host.resolves, host.lists_referrers]);
            assert_eq!(all, wanted, "{words}");
        }
    }

    #[test]
    fn settings_for_tls_mean_that_tls_is_tried() {
        for (name, setting, tries) in [
            ("http://m:5000", "skip_verify = true", true),
            ("http://m:5000", "skip_verify = false", true),
            ("http://m:5000", "ca = \"ca.pem\"", true),
            ("http://m:5000", "", false),
            ("http://m", "skip_verify = true", false),
            ("https://m:5000", "skip_verify = true", false),
        ] {
            let text = format!("[host.\"{name}\"]\n{setting}");
            let hosts = found(&folder(&[("r.io/hosts.toml", &text)]), "r.io");
            assert_eq!(hosts.mirrors[0].tries_tls, tries, "{text}");
        }
    }

    #[test]
    fn without_a_hosts_file_the_certificates_count_as_with_containerd() {
        for hosts in [&[][..], &[("r.io/hosts.toml", "")]] {
            let dir = folder(
                &[&[("r.io/a.crt", ""), ("r.io/b.cert", ""), ("r.io/c.key", "")], hosts].concat(),
            );
            let at = |name: &str| dir.path().join("r.io").join(name);
            let tls = found(&dir, "r.io").tls;
            assert_eq!(
                (tls.authorities, tls.client),
                (vec![at("a.crt")], Some((at("b.cert"), at("b.cert"))))
            );
            std::fs::write(at("b.key"), "").unwrap();
            assert_eq!(found(&dir, "r.io").tls.client, Some((at("b.cert"), at("b.key"))));
            std::fs::write(at("d.cert"), "").unwrap();
            let error = find(dir.path(), "r.io", &Url::parse("https://r.io/").unwrap());
            assert!(error.unwrap_err().to_string().contains("second client certificate"));
        }
    }

    #[test]
    fn the_server_replaces_the_registry_unless_it_is_the_same() {
        for (text, server) in [
            ("server = \"https://r.io\"", None),
            ("server = \"r.io/v2/\"", None),
            ("server = \"\"", None),
            ("server = \"http://r.io\"", Some("http://r.io/v2")),
            ("server = \"https://other.example:8443\"", Some("https://other.example:8443/v2")),
        ] {
            let hosts = found(&folder(&[("r.io/hosts.toml", text)]), "r.io");
            assert_eq!(hosts.server.as_ref().map(|host| host.url.as_str()), server, "{text}");
        }
    }

    #[test]
    fn invalid_files_are_errors() {
        for (text, what) in [
            ("server = [", "hosts.toml"),
            ("server = 1", "invalid type"),
            ("[host.\"ftp://x\"]", "is not the URL of a host"),
            ("[host.\"https://u:p@x\"]", "is not the URL of a host"),
            ("[host.\"https://x\"]\nproxy = \"http://p\"", "proxy"),
            ("[host.\"https://x\".header]\n\"a b\" = \"c\"", "header \"a b\""),
            ("client = [\"a\", \"b\"]", "several client certificates"),
            ("[host.\"https://x\"]\ncapabilities = [\"pul\"]", "capability \"pul\""),
            ("capabilities = [\"pull\"]", "for the last host"),
        ] {
            let dir = folder(&[("r.io/hosts.toml", text)]);
            let error = find(dir.path(), "r.io", &Url::parse("https://r.io/").unwrap())
                .unwrap_err()
                .to_string();
            assert!(error.contains(what) && error.contains("hosts.toml"), "{text}: {error}");
        }
    }

    #[test]
    fn the_users_folders_come_first() {
        let of = |home: Option<&str>, variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            folders_of(|name| find(name).map(|(_, value)| value.into()), home.map(PathBuf::from))
        };
        let system = [PathBuf::from("/etc/containers/certs.d"), "/etc/docker/certs.d".into()];
        assert_eq!(of(None, &[]), system);
        let home = of(Some("/h"), &[]);
        assert_eq!(
            home[..3],
            ["/h/.config/containers/certs.d", "/h/.config/docker/certs.d", "/h/.docker/certs.d"]
                .map(PathBuf::from)
        );
        assert_eq!(home[3..], system);
        assert_eq!(
            of(Some("/h"), &[("XDG_CONFIG_HOME", "/c")])[0],
            PathBuf::from("/c/containers/certs.d")
        );
    }

    #[test]
    fn folders_hold_authorities_and_client_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("one");
        let two = dir.path().join("two");
        let put = |path: PathBuf| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "").unwrap();
            path
        };
        let ca = put(one.join("r.io:5000/ca.crt"));
        let other = put(two.join("r.io:5000/more.crt"));
        let pair = (put(two.join("r.io:5000/client.cert")), put(two.join("r.io:5000/client.key")));
        put(one.join("outside.crt"));
        let folders = [one.clone(), dir.path().join("none"), two.clone()];
        let files = find_certificates(&folders, "r.io:5000").unwrap();
        assert_eq!(files, CertFiles { authorities: vec![ca, other], client: Some(pair) });
        for registry in ["r.io", "..", ".", "other"] {
            assert_eq!(
                find_certificates(&folders, registry).unwrap(),
                CertFiles::default(),
                "{registry}"
            );
        }
        put(one.join("alone/client.cert"));
        put(two.join("keyed/client.key"));
        for registry in ["alone", "keyed"] {
            let error = find_certificates(&folders, registry).unwrap_err().to_string();
            assert!(error.contains(registry) && error.contains("matching"), "{error}");
        }
    }
}
