//! Arguments that users of other tools type, with their equivalents here.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Words of other tools, and what does the same here.
const COMMANDS: [(&[&str], &str); 18] = [
    (
        &["umount", "unmount"],
        "to end a mount: umount DIR (as a user: fusermount3 -u DIR); to end a bundle: ociseek bundle --rm DIR",
    ),
    (
        &["create", "build", "push", "attach"],
        "ociseek convert IMAGE NEW-NAME writes a SOCI-enabled image; ociseek index IMAGE attaches version 1",
    ),
    (
        &["info", "show", "manifest"],
        "ociseek inspect IMAGE shows the indexes of an image; ociseek ztoc show FILE shows a ztoc",
    ),
    (&["get-file"], "ociseek cat IMAGE PATH prints a file of an image"),
    (&["export", "extract"], "ociseek mount IMAGE DIR shows all files, and ociseek cat IMAGE PATH prints one"),
    (&["delete", "remove"], "ociseek rm IMAGE removes the indexes of an image"),
    (&["find", "search"], "ociseek ls -R IMAGE lists all files of an image"),
    (&["tags", "tree", "discover", "referrers"], "ociseek list REPOSITORY lists tags and their indexes"),
    (&["catalog"], "ociseek list REPOSITORY lists one repository; ociseek backfill --dry-run REGISTRY lists them all"),
    (&["status", "check"], "ociseek doctor IMAGE says which runtimes load an image lazily, and why others do not"),
    (&["validate"], "ociseek verify IMAGE compares an index with its layers"),
    (&["cp", "mirror", "sync"], "ociseek copy SOURCE DESTINATION copies an image with its indexes"),
    (&["serve", "server"], "ociseek hook serve receives push notifications"),
    (&["worker"], "ociseek hook worker takes jobs from a queue"),
    (&["login", "logout"], "use docker login or podman login: ociseek uses the same credentials"),
    (&["pull", "run"], "ociseek mount IMAGE DIR and ociseek bundle IMAGE DIR start from an image without pulling it"),
    (&["fetch", "rebuild-db"], "not needed: ociseek works directly on registries and layouts"),
    (&["upgrade", "update"], "ociseek does not update itself: see docs/install.md"),
];

/// The same for options. The first text is the command that a row is for; an empty one is any.
const OPTIONS: [(&str, &[&str], &str); 15] = [
    ("rm", &["--force", "-f", "--yes", "-y"], "no option is needed: rm does not ask. --dry-run only lists"),
    ("prune", &["--force", "-f", "--yes", "-y"], "to remove what prune lists: --delete"),
    (
        "copy",
        &["--all", "-a", "--multi-arch", "-r", "--recursive"],
        "not needed: all platforms and referrers are copied",
    ),
    ("convert", &["--existing", "--force", "-f"], "not needed: what DST lacks or has wrong is written again"),
    ("convert", &["--kind", "--v2", "--v2-only"], "not needed: convert writes version 2; --fine adds a fine index"),
    ("convert", &["--to"], "not needed: convert writes version 2; ociseek index attaches version 1"),
    ("", &["--force", "-f"], "to rebuild an index: --existing replace; for JSON: --json"),
    ("", &["-o", "--output"], "for JSON: --json, and > FILE for a file"),
    ("", &["--username", "--user", "--password", "-u"], "use --creds USER:PASSWORD, or --creds USER --password-stdin"),
    ("", &["--cert-dir"], "use --ca-file FILE, or put the certificates into certs.d (see --help)"),
    ("", &["-p", "--arch", "--os"], "use --platform OS/ARCH"),
    ("", &["--debug", "--log-level"], "use -v or -vv, or set OCISEEK_LOG (docs/environment.md)"),
    ("", &["--yes", "-y"], "not needed: ociseek does not ask"),
    ("", &["--plain"], "use --plain-http"),
    ("", &["--all", "-a"], "not needed: all platforms are the default"),
];

/// The hint for one of these arguments. Removes clap's own suggestion from `error`, unless it is
/// about a typing error.
pub(super) fn hint(error: &mut clap::Error, typed: &[String]) -> Option<String> {
    // `use '-- X'`: no argument of ours begins with a dash.
    error.remove(ContextKind::Suggested);
    let (place, suggestion) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::MissingRequiredArgument if typed == ["completions"] => {
            return Some("the shells are bash, elvish, fish, powershell and zsh".to_owned());
        }
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(place) else { return None };
    let word = word.split('=').next().unwrap_or_default().to_owned();
    // clap reads -platform as -p -l -a ...
    let dashed = |typed: &&String| {
        typed.len() > 3 && typed.starts_with(&word) && typed[1..].bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
    };
    let is_short = word.len() == 2 && word.starts_with('-');
    let command = typed.first().map_or("", String::as_str);
    let of_command = |of: &str| of.is_empty() || of == command;
    let hint = match (error.kind(), is_short, typed.iter().find(dashed)) {
        (_, true, Some(typed)) => Some(format!("long options start with two dashes: -{typed}")),
        (ErrorKind::InvalidSubcommand, ..) => {
            COMMANDS.iter().find(|(words, _)| words.contains(&&*word)).map(|(_, hint)| (*hint).to_owned())
        }
        _ => (OPTIONS.iter().find(|(of, words, _)| of_command(of) && words.contains(&&*word)))
            .map(|(_, _, hint)| (*hint).to_owned()),
    };
    let is_typo = |suggested: &String| changes(&word, suggested) <= 2 || suggested.starts_with(&word);
    let keeps = match error.get(suggestion) {
        Some(ContextValue::String(suggested)) => is_typo(suggested),
        Some(ContextValue::Strings(all)) => all.iter().any(is_typo),
        _ => false,
    };
    if hint.is_some() || !keeps {
        error.remove(suggestion);
        // It names the option that was suggested.
        error.remove(ContextKind::Usage);
    }
    hint
}

/// How many letters must be changed, added or removed to make one word of the other.
fn changes(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, of_a) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, of_b) in b.iter().enumerate() {
            let changed = diagonal + usize::from(of_a != *of_b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
