//! What is printed instead of running a command: its help, or what is wrong with the arguments.
//! Also what users of other tools type: names of options that are taken, and hints to the others.

use std::env;
use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Command, Error};
use strsim::levenshtein;

use super::shared::terminal::{Style, complain};

/// Prints `message`, which `program` gave for these arguments.
pub(super) fn print(mut message: Error, program: Command, arguments: Vec<OsString>) -> ExitCode {
    let typed = arguments.iter().skip(1).filter_map(|typed| typed.to_str().map(str::to_owned));
    let typed: Vec<String> = typed.collect();
    if is_short_asked_for(&message, &typed)
        && let Err(shorter) = brief(program.clone()).try_get_matches_from(arguments)
    {
        message = shorter;
    }
    // In ls, -h is an option, as it is for ls. Alone it can only be meant as everywhere else.
    if matches!(&typed[..], [ls, h] if ls == "ls" && h == "-h")
        && let Err(help) = brief(program.clone()).try_get_matches_from(["ociseek", "ls", "--help"])
    {
        message = help;
    }
    let hint = other_tools_hint(&mut message, &typed, program.clone());
    name_variable(&mut message, &typed, program);
    // A closed pipe is not a failure of --help.
    let _ = message.print();
    if let Some(hint) = hint {
        complain(&format!("{} {hint}", Style::stderr().green("hint:")));
    }
    ExitCode::from(message.exit_code() as u8)
}

/// Whether clap prints the help because of `-h`, instead of `--help` or the command `help`. `typed`
/// are the arguments after the program's name.
fn is_short_asked_for(message: &Error, typed: &[String]) -> bool {
    let mut options = typed.iter().take_while(|word| *word != "--");
    match message.kind() {
        ErrorKind::DisplayHelp => !options.any(|word| word == "--help" || word == "help"),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => true,
        _ => false,
    }
}

/// The program without the texts that only `--help` shows: environment variables, and longer
/// descriptions. Options state themselves whether they are hidden (`hide_short_help`).
fn brief(program: Command) -> Command {
    let name = program.get_name().to_owned();
    grouped(below(program, &name), false)
}

/// `name` is the full command as the user types it.
fn below(command: Command, name: &str) -> Command {
    // The program itself ends with its own advice.
    let has_more = command.get_after_long_help().is_some() && name.contains(' ');
    let command = command.mut_args(|arg| arg.hide_env(true));
    let command = command.mut_subcommands(|command| {
        let name = format!("{name} {}", command.get_name());
        below(command, &name)
    });
    if has_more {
        command.after_help(format!(
            "All options, their environment variables, and examples: {name} --help"
        ))
    } else {
        command
    }
}

/// A group of commands: what they do, their names, and whether only `--help` lists them.
struct Group {
    title: &'static str,
    commands: &'static [&'static str],
    only_long: bool,
}

const GROUPS: [Group; 7] = [
    Group { title: "Begin here", commands: &["try"], only_long: false },
    Group {
        title: "Make indexes",
        commands: &["convert", "index", "backfill", "hook"],
        only_long: false,
    },
    Group {
        title: "Run containers and read files before the image is pulled",
        commands: &["snapshotter", "store", "mount", "bundle", "ls", "cat"],
        only_long: false,
    },
    Group { title: "Check", commands: &["doctor", "verify"], only_long: false },
    Group { title: "Find and remove", commands: &["list", "rm"], only_long: false },
    Group { title: "This machine", commands: &["cache"], only_long: false },
    Group {
        title: "About the program",
        commands: &["version", "help", "man", "completions"],
        only_long: true,
    },
];

/// `program` with its commands in groups; in the `long` help all of them.
pub(super) fn grouped(program: Command, long: bool) -> Command {
    let template = template(&program, long);
    program.help_template(template)
}

fn template(program: &Command, long: bool) -> StyledStr {
    let styles = program.get_styles();
    let header = styles.get_header();
    let literal = styles.get_literal();
    let mut text = StyledStr::new();
    let _ = write!(text, "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n");
    for group in GROUPS.iter().filter(|group| long || !group.only_long) {
        let _ = writeln!(text, "{header}{}:{header:#}", group.title);
        for name in group.commands {
            let about = match program.find_subcommand(name) {
                // clap adds it, and not always before this.
                _ if *name == "help" => "Print the help of a command".to_owned(),
                Some(command) => command.get_about().map(ToString::to_string).unwrap_or_default(),
                // Not in this build.
                None => continue,
            };
            let _ = writeln!(text, "  {literal}{name:<11}{literal:#}  {about}");
        }
        let _ = writeln!(text);
    }
    let _ = write!(text, "{header}Options:{header:#}\n{{options}}{{after-help}}");
    text
}

/// Names the variable with the invalid value, and removes options from the usage line that are only
/// there because their variables are set. `typed` are the arguments after the program's name.
fn name_variable(error: &mut Error, typed: &[String], program: Command) {
    let mut command = called(program, typed);
    if let (Some(ContextValue::String(option)), Some(ContextValue::String(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
        && let Some(arg) = command.get_arguments().find(|arg| arg.to_string() == *option)
        && let Some(variable) =
            arg.get_env().filter(|_| !is_typed(arg, typed)).and_then(|name| name.to_str())
        && env::var(variable).is_ok_and(|set| set.contains(value.as_str()))
    {
        let variable = format!("${variable}");
        error.insert(ContextKind::InvalidArg, ContextValue::String(variable));
    }
    let is_set = |arg: &Arg| arg.get_env().is_some_and(|variable| env::var_os(variable).is_some());
    if error.get(ContextKind::Usage).is_some() && command.get_arguments().any(is_set) {
        let usage = command.render_usage();
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
}

/// The command of `program` that was typed.
fn called(mut program: Command, typed: &[String]) -> Command {
    program.build();
    let mut command = program;
    for word in typed {
        match command.find_subcommand(word) {
            Some(below) => command = below.clone(),
            None => break,
        }
    }
    command
}

fn is_typed(arg: &Arg, typed: &[String]) -> bool {
    let long = arg.get_long().unwrap_or_default();
    let is_long = |word: &str| {
        word.strip_prefix("--").is_some_and(|word| word.split('=').next() == Some(long))
    };
    let is_short = |word: &str| {
        let letters = word.strip_prefix('-').filter(|rest| !rest.starts_with('-'));
        arg.get_short()
            .is_some_and(|letter| letters.is_some_and(|letters| letters.contains(letter)))
    };
    typed.iter().any(|word| is_long(word) || is_short(word))
}

/// `program` with the options that belong to no single command's definition:
///
/// - `-o json` and `--output json` (kubectl, helm, aws) for `--format json`, unless the command has
///   an --output already
/// - `--all-platforms` (soci, nerdctl), which is the default here
pub(super) fn with_other_names(program: Command) -> Command {
    program.mut_subcommands(|command| {
        let mut command = with_other_names(command).mut_args(without_empty_variable);
        let has =
            |command: &Command, test: &dyn Fn(&Arg) -> bool| command.get_arguments().any(test);
        let writes =
            has(&command, &|arg| arg.get_long() == Some("output") || arg.get_short() == Some('o'));
        if has(&command, &|arg| arg.get_id() == "format") && !writes {
            command = command.mut_arg("format", |arg| arg.short_alias('o').alias("output"));
        }
        let several =
            |arg: &Arg| arg.get_id() == "platform" && matches!(arg.get_action(), ArgAction::Append);
        if has(&command, &several) && !has(&command, &|arg| arg.get_id() == "all_platforms") {
            let all = Arg::new("all-platforms")
                .long("all-platforms")
                .hide(true)
                .action(ArgAction::SetTrue);
            command = command.arg(all.conflicts_with("platform"));
        }
        command
    })
}

/// An empty variable counts as unset: CI systems set those of inputs that nobody gave.
fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = |name: &std::ffi::OsStr| env::var_os(name).is_some_and(|value| value.is_empty());
    if arg.get_env().is_some_and(is_empty) { arg.env(None::<&str>) } else { arg }
}

/// Words of other tools, and what does the same here. The first text is the command whose
/// subcommand a row is about; an empty one is any.
const COMMANDS: [(&str, &[&str], &str); 34] = [
    (
        "snapshotter",
        &["list", "ls", "ps", "mounts"],
        "ociseek snapshotter images lists the images; ociseek snapshotter status shows whether it runs",
    ),
    (
        "snapshotter",
        &["uninstall", "remove", "delete"],
        "remove the files that snapshotter install lists (see ociseek snapshotter install --help)",
    ),
    (
        "snapshotter",
        &["start", "run", "serve"],
        "ociseek snapshotter without a word behind it serves containerd",
    ),
    (
        "snapshotter",
        &["stop", "restart", "reload", "logs", "log"],
        "it is a service: systemctl restart ociseek-snapshotter, journalctl -u ociseek-snapshotter",
    ),
    (
        "snapshotter",
        &["doctor", "check", "why"],
        "ociseek doctor --node IMAGE says whether this node starts an image lazily",
    ),
    ("cache", &["prune", "clean", "purge", "rm"], "ociseek cache clear empties the local caches"),
    (
        "cache",
        &["info", "list", "show", "dir", "size", "du", "stat", "status", "path"],
        "ociseek cache ls shows where the local caches are",
    ),
    (
        "hook",
        &["start", "run", "server", "listen"],
        "ociseek hook serve receives push notifications",
    ),
    ("ztoc", &["info", "list"], "ociseek ztoc show FILE shows a ztoc"),
    ("hook", &["consume", "queue"], "ociseek hook worker takes jobs from a queue"),
    (
        "",
        &["umount", "unmount"],
        "to end a mount: umount DIR (as a user: fusermount3 -u DIR); to end a bundle: ociseek bundle --rm DIR",
    ),
    (
        "",
        &["create", "build", "push", "attach", "optimize", "nydusify"],
        "ociseek convert IMAGE NEW-NAME writes a SOCI-enabled image; ociseek index IMAGE attaches version 1",
    ),
    (
        "",
        &["info", "show", "manifest", "inspect", "history", "layers"],
        "ociseek doctor --verbose IMAGE shows the indexes of an image and its layers",
    ),
    (
        "",
        &["trace", "report", "analyze", "estimate", "bench", "profile", "size", "record"],
        "ociseek try IMAGE says how much of an image startup reads, and whether lazy loading pays",
    ),
    ("", &["get-file"], "ociseek cat IMAGE PATH prints a file of an image"),
    (
        "",
        &["export", "extract", "unpack"],
        "ociseek mount IMAGE DIR shows all files, and ociseek cat IMAGE PATH prints one",
    ),
    ("", &["delete", "remove"], "ociseek rm IMAGE removes the indexes of an image"),
    ("", &["find", "search"], "ociseek ls -R IMAGE lists all files of an image"),
    (
        "",
        &["tags", "tree", "discover", "referrers", "images"],
        "ociseek list REPOSITORY lists tags and their indexes",
    ),
    (
        "",
        &["catalog"],
        "ociseek list REPOSITORY lists one repository; ociseek backfill --dry-run REGISTRY lists them all",
    ),
    (
        "",
        &["status", "check"],
        "ociseek doctor IMAGE says which runtimes load an image lazily, and why others do not",
    ),
    ("", &["validate"], "ociseek verify IMAGE compares an index with its layers"),
    (
        "",
        &["copy", "cp", "mirror", "sync", "tag", "retag"],
        "oras cp -r SOURCE DESTINATION copies an image with its indexes (docs/lifecycle.md); \
         ociseek cat IMAGE PATH > FILE copies a file out of an image",
    ),
    ("", &["prune"], "ociseek rm --obsolete REPOSITORY removes obsolete indexes"),
    ("", &["serve", "server", "webhook"], "ociseek hook serve receives push notifications"),
    ("", &["worker"], "ociseek hook worker takes jobs from a queue"),
    ("", &["lambda"], "ociseek hook lambda indexes images pushed to Amazon ECR"),
    (
        "",
        &["daemon", "snapshotter-grpc"],
        "ociseek snapshotter serves containerd; ociseek hook serve indexes images",
    ),
    (
        "",
        &["login", "logout"],
        "use docker login or podman login: ociseek uses the same credentials",
    ),
    (
        "",
        &["pull", "run", "start", "exec"],
        "ociseek mount IMAGE DIR and ociseek bundle IMAGE DIR start from an image without pulling it",
    ),
    (
        "",
        &["ps", "containers"],
        "ociseek starts no containers itself: ask the runtime (runc list, crictl ps)",
    ),
    ("", &["fetch", "rebuild-db"], "not needed: ociseek works directly on registries and layouts"),
    (
        "",
        &["config", "configure", "init"],
        "not needed: options and their variables are all there is (ociseek COMMAND --help)",
    ),
    ("", &["upgrade", "update"], "ociseek does not update itself: see docs/install.md"),
];

/// The same for options. The first text is the command that a row is for; an empty one is any that
/// has the options which the hint names.
const OPTIONS: [(&str, &[&str], &str); 51] = [
    (
        "convert",
        &["-t", "--tag", "-o", "--output", "--dest", "--destination", "--name"],
        "the destination is the second argument: ociseek convert REPOSITORY:TAG REPOSITORY:TAG-soci",
    ),
    (
        "convert",
        &["--timeout"],
        "only ociseek index has --timeout, for several images; a retry takes what was made from the cache",
    ),
    (
        "try",
        &["--command", "--cmd", "--args"],
        "put the command to run after two dashes: ociseek try IMAGE -- COMMAND",
    ),
    ("try", &["--port", "-p", "--publish", "--expose"], "a server is ready with --until-port PORT"),
    ("try", &["--timeout", "--duration", "--wait", "--time", "-d"], "use --for DURATION"),
    ("try", &["--html", "--report", "--page"], "use --output FILE.html"),
    ("try", &["--network", "--net"], "use --host-network"),
    (
        "try",
        &["-i", "-t", "--tty", "--interactive", "--rm", "--detach"],
        "not needed: try ends the container, and its input is empty",
    ),
    (
        "try",
        &[
            "-e",
            "--env",
            "--volume",
            "--mount",
            "-u",
            "--user",
            "-w",
            "--workdir",
            "--memory",
            "-m",
        ],
        "the container has the environment, the user and the directory of the image; for others, edit config.json of \
         ociseek bundle and record the startup with --record",
    ),
    ("doctor", &["--all", "-a", "--platforms"], "use --all-platforms"),
    (
        "doctor",
        &["--fix", "--repair"],
        "doctor changes nothing: the lines that begin with next name the command that does",
    ),
    (
        "doctor",
        &["--index", "--ztoc", "--layers", "--details", "--long", "-l"],
        "--verbose shows the indexes and layers; --json has each ztoc",
    ),
    ("ls", &["--tree"], "ls -R lists all files"),
    (
        "rm",
        &["--all", "-a"],
        "not needed: rm removes all indexes of the image, or with --platform those of one",
    ),
    (
        "mount",
        &["--read-write", "--rw", "--writable", "-w"],
        "mounts are read-only: for a writable container, use ociseek bundle",
    ),
    (
        "mount",
        &["--unmount", "--umount", "-u"],
        "to end a mount: umount DIR (as a user: fusermount3 -u DIR)",
    ),
    (
        "verify",
        &["--key", "--cert", "--certificate"],
        "use --signature-key FILE, or --signature-cert FILE",
    ),
    (
        "convert",
        &["--compression", "--compress", "--gzip", "--zstd", "--estargz"],
        "layers stay as they are: for another compression, build the image again",
    ),
    ("snapshotter", &["--address", "--listen", "--addr", "-a"], "use --socket PATH"),
    (
        "store",
        &["--address", "--socket"],
        "not needed: podman reads the directory (docs/podman.md)",
    ),
    (
        "rm",
        &["--force", "-f", "--yes", "-y", "-r", "-R", "--recursive"],
        "no option is needed: rm does not ask. --dry-run only lists",
    ),
    (
        "convert",
        &["--existing", "--force", "-f", "--overwrite"],
        "not needed: what DST lacks or has wrong is written again",
    ),
    ("", &["--v2", "--v2-only"], "use --kind v2=TAG, or --kind v1,v2=TAG for both versions"),
    ("", &["--fine", "--fine-only"], "use --kind fine, or --kind v1,fine for a SOCI index too"),
    (
        "convert",
        &["--to"],
        "the destination is the second argument; convert writes version 2, and ociseek index attaches version 1",
    ),
    (
        "cache",
        &["--all", "-a", "--force", "-f"],
        "not needed: cache clear empties all of the local caches",
    ),
    ("backfill", &["--all", "-a"], "not needed: all repositories and tags are the default"),
    (
        "doctor",
        &["--runtime", "--consumer"],
        "not needed: doctor lists every runtime that it knows",
    ),
    (
        "list",
        &["--tags", "--referrers"],
        "not needed: list shows all tags of a repository, and their indexes",
    ),
    ("version", &["--short", "--client"], "ociseek -V prints the version alone"),
    (
        "",
        &["--force", "-f", "--overwrite"],
        "to rebuild an index: --existing replace; for JSON: --json",
    ),
    ("", &["-f"], "for JSON: --json"),
    ("", &["-o", "--output"], "for JSON: --json, and > FILE for a file"),
    (
        "",
        &["--tag", "-t", "--dest", "--destination"],
        "for a SOCI-enabled image under another tag: --kind v2=TAG",
    ),
    (
        "",
        &["--username", "--user", "--password", "-u"],
        "use --creds USER:PASSWORD, or --creds USER --password-stdin",
    ),
    ("", &["--cert-dir"], "use --ca-file FILE, or put the certificates into certs.d (see --help)"),
    ("", &["-p", "--arch", "--os"], "use --platform OS/ARCH"),
    (
        "",
        &["--port", "-p", "--address", "--addr", "--bind"],
        "use --listen IP:PORT, such as 0.0.0.0:8080",
    ),
    ("", &["--nats", "--nats-url", "--stream"], "use --queue nats://HOST:PORT/STREAM"),
    ("", &["--debug", "--log-level"], "use -v or -vv, or set OCISEEK_LOG (docs/environment.md)"),
    ("", &["--yes", "-y"], "not needed: ociseek does not ask"),
    ("", &["--plain", "--http", "--use-http"], "use --plain-http"),
    ("", &["--insecure", "--skip-tls-verify", "-k"], "use --insecure-skip-tls-verify"),
    ("", &["--push"], "not needed: what is made is pushed; --dry-run only reports it"),
    ("", &["--no-push"], "use --dry-run"),
    ("", &["--fast", "--shallow"], "use --quick"),
    (
        "",
        &["--threads", "--parallel", "--parallelism", "--concurrency", "--workers"],
        "use --jobs N",
    ),
    ("", &["--no-progress"], "use --progress none, or --quiet"),
    (
        "",
        &["--no-color", "--no-colour", "--colour"],
        "use --color never, --color always or --color auto",
    ),
    (
        "",
        &["--config-file", "--registries-conf"],
        "not read: use options, or the variables in docs/environment.md",
    ),
    ("", &["--all", "-a"], "not needed: all platforms are the default"),
];

/// Commands that take a single image.
const SINGLE: [&str; 5] = ["doctor", "mount", "rm", "try", "verify"];

/// The hint for one of these arguments, which `program` refused with `error`. Removes clap's own
/// suggestion from `error`, unless it is about a typing error.
fn other_tools_hint(error: &mut clap::Error, typed: &[String], program: Command) -> Option<String> {
    // `use '-- X'`: no argument of ours begins with a dash.
    error.remove(ContextKind::Suggested);
    let command = typed.first().map_or("", String::as_str);
    if let Some(word) = typed.iter().find(|word| word.starts_with(['\u{2013}', '\u{2014}'])) {
        return Some(format!(
            "{word:?} begins with a typographic dash: options begin with - or --"
        ));
    }
    if command == "hook"
        && error.kind() == ErrorKind::UnknownArgument
        && typed.get(1).is_some_and(|word| word.starts_with('-'))
    {
        return Some(
            "ociseek hook serve receives push notifications; it has these options".to_owned(),
        );
    }
    let (place, suggestion) = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand)
        }
        // `--node FILE IMAGE`
        ErrorKind::UnknownArgument
            if command == "doctor" && typed.iter().any(|word| word == "--node") =>
        {
            return Some("the configuration follows an equals sign: --node=FILE".to_owned());
        }
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        ErrorKind::MissingRequiredArgument => return missing(command, typed, error),
        ErrorKind::TooManyValues => return given_a_value(error),
        ErrorKind::InvalidValue if command == "mount" && typed.iter().any(|word| word == "-o") => {
            return Some(
                "mounts are read-only, and -o is not needed: see --suid, --dev and --allow-other in --help".to_owned(),
            );
        }
        ErrorKind::InvalidValue if typed.iter().any(|word| word == "-o" || word == "--output") => {
            let row = OPTIONS.iter().find(|row| row.0 == command && row.1.contains(&"-o"));
            return Some(row.map_or_else(
                || "-o is --format here; to write a file, use > FILE".to_owned(),
                |row| row.2.to_owned(),
            ));
        }
        ErrorKind::ValueValidation if image_first(error, command, typed).is_some() => {
            return image_first(error, command, typed);
        }
        ErrorKind::ValueValidation
            if error.to_string().contains("invalid digit found in string") =>
        {
            return Some("expected a whole number, such as 4".to_owned());
        }
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(place) else { return None };
    let word = word.split('=').next().unwrap_or_default().to_owned();
    // clap reads -platform as -p -l -a ...
    let dashed = |typed: &&String| {
        typed.len() > 3
            && typed.starts_with(&word)
            && typed[1..].bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
    };
    let is_short = word.len() == 2 && word.starts_with('-');
    let hint = match (error.kind(), is_short, typed.iter().find(dashed)) {
        (_, true, Some(typed)) => Some(format!("long options start with two dashes: -{typed}")),
        (ErrorKind::InvalidSubcommand, ..) => {
            // `ociseek cache size` is not `ociseek size`.
            let is_first = typed.iter().find(|typed| !typed.starts_with('-')) == Some(&word);
            let is_it = |row: &&(&str, &[&str], &str)| {
                (row.0 == command || row.0.is_empty() && is_first) && row.1.contains(&&*word)
            };
            let row = COMMANDS.iter().find(is_it).map(|row| row.2.to_owned());
            let is_image = word.contains(['/', ':']) && typed.first() == Some(&word);
            row.or_else(|| {
                is_image.then(|| {
                    format!(
                        "a command comes first: ociseek try {word}, or ociseek doctor {word}, for example"
                    )
                })
            })
        }
        _ if !word.starts_with('-') => surplus(command),
        _ if word[1..].starts_with(|c: char| c.is_ascii_digit()) => {
            Some("no number is negative here".to_owned())
        }
        _ => {
            let called = called(program, typed);
            let is_it = |row: &&(&str, &[&str], &str)| {
                row.1.contains(&&*word)
                    && (row.0 == command || row.0.is_empty() && knows(&called, row.2))
            };
            OPTIONS.iter().find(is_it).map(|row| row.2.to_owned())
        }
    };
    let is_typo =
        |suggested: &String| levenshtein(&word, suggested) <= 2 || suggested.starts_with(&word);
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

/// The hint for a path in place of the image, and something behind it.
fn image_first(error: &clap::Error, command: &str, typed: &[String]) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    let takes_paths = ["ls", "cat", "mount", "bundle"].contains(&command);
    let is_first = typed.iter().position(|word| word == value)? + 1 < typed.len();
    (takes_paths && is_first && value.starts_with(['/', '.']))
        .then(|| format!("the image comes first: ociseek {command} IMAGE {value}"))
}

/// Whether `command` has all the options that `hint` names.
fn knows(command: &Command, hint: &str) -> bool {
    let words =
        hint.split([' ', ';', ',', ':', '.', '=', ')']).filter_map(|word| word.strip_prefix("--"));
    words
        .filter(|word| *word != "help")
        .all(|word| command.get_arguments().any(|arg| arg.get_long() == Some(word)))
}

/// The hint for a missing argument.
fn missing(command: &str, typed: &[String], error: &clap::Error) -> Option<String> {
    let absent = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(absent)) => absent.join(" "),
        Some(ContextValue::String(absent)) => absent.clone(),
        _ => String::new(),
    };
    if absent.starts_with("--creds") && typed.iter().any(|word| word == "--password-stdin") {
        return Some("the user is missing: --creds USER --password-stdin".to_owned());
    }
    if let [.., option, value] = typed
        && option.starts_with("--")
        && !option.contains('=')
        && absent.starts_with('<')
        && value.contains(['/', ':'])
    {
        return Some(format!("{option} took {value:?} as its value"));
    }
    match (command, typed) {
        ("completions", [_]) => Some("the shells are bash, elvish, fish, powershell and zsh".to_owned()),
        ("convert", [_, ..]) => Some(
            "name the image and the SOCI-enabled image to write: ociseek convert REPOSITORY:TAG REPOSITORY:TAG-soci"
                .to_owned(),
        ),
        _ => None,
    }
}

/// The hint for a switch that was given a value.
fn given_a_value(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    Some(match option.trim_end_matches("...") {
        "--verbose" => "use -v, or -vv for more".to_owned(),
        option => format!("use {option} without a value"),
    })
}

/// The hint for an argument too many.
fn surplus(command: &str) -> Option<String> {
    match command {
        "try" => {
            Some("put the command to run after two dashes: ociseek try IMAGE -- COMMAND".to_owned())
        }
        "bundle" => Some(
            "put the command to run after two dashes: ociseek bundle IMAGE DIR -- COMMAND"
                .to_owned(),
        ),
        "convert" => Some("ociseek convert takes one image and the name to write".to_owned()),
        "list" => Some("ociseek list takes one repository at a time".to_owned()),
        command if SINGLE.contains(&command) => {
            Some(format!("ociseek {command} takes one image at a time"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::args::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let listed: Vec<&str> = GROUPS.iter().flat_map(|group| group.commands).copied().collect();
        let once: BTreeSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), once.len());
        let program = Cli::command();
        for command in program.get_subcommands().filter(|command| !command.is_hide_set()) {
            assert!(once.contains(command.get_name()), "{}", command.get_name());
            let line = 15 + command.get_about().unwrap().to_string().chars().count();
            assert!(line <= 100, "{}: {line} columns", command.get_name());
        }
    }
}
