//! The features for CI: the gates of `index`, its step files, the GitHub action, the GitLab
//! component, and the release's scripts.

mod action;
mod component;
mod gates;
mod scripts;
mod step_files;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use ociseek_testkit::http::answering;
use ociseek_testkit::sandbox::{Sandbox, program};
use ociseek_testkit::servers::run;
use yaml_rust2::{Yaml, YamlLoader};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// A YAML document in this repository.
fn yaml(file: &str) -> Vec<Yaml> {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    YamlLoader::load_from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// A file that begins with this is a redirect to what follows.
const REDIRECT: &str = "redirect to ";

/// A file server below the path of releases, for the files in this map.
fn releases(files: BTreeMap<String, Vec<u8>>) -> String {
    let address = answering(move |request, stream| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, body) =
            files.get(path).map_or(("404 Not Found", &b""[..]), |body| ("200 OK", body));
        let place = body.strip_prefix(REDIRECT.as_bytes());
        let (status, more) = match place {
            Some(place) => {
                ("302 Found", format!("Location: {}\r\n", String::from_utf8_lossy(place)))
            }
            None => (status, String::new()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
    });
    format!("http://{address}")
}

/// The archive of a release, made in this sandbox.
fn release_archive(sandbox: &Sandbox) -> Vec<u8> {
    let at = |name: &str| sandbox.path(name).to_str().unwrap().to_owned();
    // Most of a test build are symbols for debuggers.
    run(Path::new("strip"), &["-o", &at("ociseek"), program()]);
    run(
        Path::new("tar"),
        &["-C", &at(""), "--use-compress-program=gzip -1", "-cf", &at("t"), "ociseek"],
    );
    std::fs::read(sandbox.path("t")).unwrap()
}
