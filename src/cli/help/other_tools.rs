//! Arguments that users of other tools type, with their equivalents here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands of other tools for which clap would suggest a different command.
const COMMANDS: [(&[&str], &str); 9] = [
    (
        &["umount", "unmount"],
        "to end a mount: umount DIR (as a user: fusermount3 -u DIR); to end a bundle: ociseek bundle --rm DIR",
    ),
    (
        &["create", "build", "push"],
        "ociseek index IMAGE builds the index and pushes it; ociseek ztoc create makes one ztoc",
    ),
    (&["info"], "ociseek inspect IMAGE shows the indexes of an image; ociseek ztoc show FILE shows a ztoc"),
    (&["get-file"], "ociseek cat IMAGE PATH prints a file of an image"),
    (&["delete", "remove"], "ociseek rm IMAGE removes the indexes of an image"),
    (&["find", "search"], "ociseek ls -R IMAGE lists all files of an image"),
    (&["login", "logout"], "use docker login or podman login: ociseek uses the same credentials"),
    (&["pull", "run"], "ociseek mount IMAGE DIR and ociseek bundle IMAGE DIR start from an image without pulling it"),
    (&["fetch", "rebuild-db"], "not needed: ociseek works directly on registries and layouts"),
];

/// The same for options.
const OPTIONS: [(&[&str], &str); 7] = [
    (&["--force", "-f"], "to rebuild an index: --existing replace; for JSON: --format json"),
    (&["--username", "--user", "--password", "-u"], "give --creds USER:PASSWORD, or --creds USER --password-stdin"),
    (&["--authfile"], "set REGISTRY_AUTH_FILE, or DOCKER_CONFIG to the directory of a config.json"),
    (&["--cert-dir"], "give --ca-file FILE, or put the certificates into certs.d (see --help)"),
    (&["--tls-verify", "--insecure", "--skip-tls-verify"], "give --insecure-skip-tls-verify, or --plain-http for HTTP"),
    (&["-p"], "give --platform OS/ARCH"),
    (&["--debug", "--log-level"], "give -v or -vv, or set OCISEEK_LOG (docs/environment.md)"),
];

/// The hint for one of these arguments. Removes clap's own suggestion from `error`.
pub(super) fn hint(error: &mut clap::Error, mut typed: impl Iterator<Item = String>) -> Option<String> {
    let (place, suggestion, table) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand, &COMMANDS[..])
        }
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg, &OPTIONS[..]),
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(place) else { return None };
    let word = word.split('=').next().unwrap_or_default().to_owned();
    // clap reads -platform as -p -l -a ...
    let dashed = |typed: &String| {
        typed.len() > 3 && typed.starts_with(&word) && typed[1..].bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
    };
    let is_short = word.len() == 2 && word.starts_with('-');
    let hint = match (is_short, typed.find(dashed)) {
        (true, Some(typed)) => Some(format!("long options start with two dashes: -{typed}")),
        _ => table.iter().find(|(words, _)| words.contains(&&*word)).map(|(_, hint)| (*hint).to_owned()),
    };
    if hint.is_some() {
        error.remove(suggestion);
        error.remove(ContextKind::Suggested);
    }
    hint
}
