//! Certificates in the folders of docker and podman, with a subfolder for each registry:
//! `certs.d/HOST[:PORT]/` has authorities in `*.crt`, and a client certificate and its key in
//! `*.cert` and `*.key` (docker's "Verify repository client with certificates",
//! containers-certs.d(5)).

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::error::RegistryError;

/// The content of a registry's folders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct CertFiles {
    /// The files with certificate authorities in all folders.
    pub authorities: Vec<PathBuf>,
    /// The certificate and key in the first folder that has both.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The folders with subfolders for registries, the user's before the system's.
pub(super) fn folders() -> Vec<PathBuf> {
    folders_of(|name| std::env::var_os(name))
}

fn folders_of(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = folder("HOME");
    let config = folder("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
    let of_user = [
        config.as_ref().map(|config| config.join("containers/certs.d")),
        // Rootless dockerd and Docker Desktop.
        config.as_ref().map(|config| config.join("docker/certs.d")),
        home.as_ref().map(|home| home.join(".docker/certs.d")),
    ];
    let of_system = ["/etc/containers/certs.d", "/etc/docker/certs.d"].map(|path| Some(PathBuf::from(path)));
    of_user.into_iter().chain(of_system).flatten().collect()
}

/// Searches `folders` for the certificates of `registry`, under the name that the user typed.
///
/// # Errors
/// If a folder cannot be listed, or a certificate lacks its key.
pub(super) fn find(folders: &[PathBuf], registry: &str) -> Result<CertFiles, RegistryError> {
    let mut found = CertFiles::default();
    // `..` is accepted as a host name elsewhere, so reject it here.
    if registry.starts_with('.') {
        return Ok(found);
    }
    for folder in folders.iter().map(|folder| folder.join(registry)) {
        let mut files = list(&folder)?;
        files.sort();
        let with =
            |extension: &'static str| files.iter().filter(move |file| file.extension().is_some_and(|e| e == extension));
        found.authorities.extend(with("crt").cloned());
        for certificate in with("cert") {
            let key = certificate.with_extension("key");
            if !files.contains(&key) {
                let what = "has no matching .key file (certificate authorities end in .crt)";
                return Err(RegistryError::CertsD { path: certificate.clone(), what });
            }
            found.client.get_or_insert((certificate.clone(), key));
        }
        if let Some(key) = with("key").find(|key| !files.contains(&key.with_extension("cert"))) {
            let what = "has no matching .cert file";
            return Err(RegistryError::CertsD { path: key.clone(), what });
        }
    }
    Ok(found)
}

/// The files in a folder. A folder that is missing or not accessible counts as empty, because
/// docker's may be readable only by root.
fn list(folder: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
    let failed = |source| RegistryError::File { path: folder.to_owned(), source };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | PermissionDenied) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    entries.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_folders_come_first() {
        let of = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
            folders_of(|name| find(name).map(|(_, value)| value.into()))
        };
        let system = [PathBuf::from("/etc/containers/certs.d"), "/etc/docker/certs.d".into()];
        assert_eq!(of(&[]), system);
        let home = of(&[("HOME", "/h")]);
        assert_eq!(
            home[..3],
            ["/h/.config/containers/certs.d", "/h/.config/docker/certs.d", "/h/.docker/certs.d"].map(PathBuf::from)
        );
        assert_eq!(home[3..], system);
        assert_eq!(of(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/c")])[0], PathBuf::from("/c/containers/certs.d"));
    }

    #[test]
    fn folders_hold_authorities_and_client_certificates() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
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
        let found = find(&folders, "r.io:5000").unwrap();
        assert_eq!(found, CertFiles { authorities: vec![ca, other], client: Some(pair) });
        for registry in ["r.io", "..", ".", "other"] {
            assert_eq!(find(&folders, registry).unwrap(), CertFiles::default(), "{registry}");
        }
        put(one.join("alone/client.cert"));
        put(two.join("keyed/client.key"));
        for registry in ["alone", "keyed"] {
            let error = find(&folders, registry).unwrap_err().to_string();
            assert!(error.contains(registry) && error.contains("matching"), "{error}");
        }
    }
}
