//! Hints for slips: what users of other tools type, and what is easily mistyped.

use std::collections::BTreeSet;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use strsim::{levenshtein, osa_distance};

use commands::COMMANDS;
use options::OPTIONS;

mod commands;
mod options;

/// Commands that take a single image.
const SINGLE: [&str; 5] = ["doctor", "mount", "rm", "try", "verify"];

/// The hint for one of these arguments, which `program` refused with `error`. Removes clap's own
/// suggestion from `error`, unless it is about a typing error.
pub(super) fn hint(error: &mut clap::Error, typed: &[String], program: Command) -> Option<String> {
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
        ErrorKind::InvalidUtf8 => {
            let odd = typed.iter().find(|word| word.contains('\u{fffd}'))?;
            return Some(format!("{odd:?} is not UTF-8"));
        }
        ErrorKind::InvalidValue if is_about(error, "--kind") && command == "convert" => {
            return Some("v2 is the SOCI index; ociseek index attaches version 1".to_owned());
        }
        ErrorKind::UnknownArgument => {
            if let Some(hint) = without_equals_sign(error, &called(program.clone(), typed), typed) {
                return Some(hint);
            }
            (ContextKind::InvalidArg, ContextKind::SuggestedArg)
        }
        ErrorKind::MissingRequiredArgument => return missing(command, typed, error, program),
        ErrorKind::TooManyValues => return given_a_value(error),
        ErrorKind::InvalidValue if command == "mount" && typed.iter().any(|word| word == "-o") => {
            return Some(
                "mounts are read-only, and -o is not needed: see --suid, --dev and --allow-other in --help".to_owned(),
            );
        }
        // For an empty value, clap reports that the value is missing.
        ErrorKind::InvalidValue if is_empty_value(error, typed) => {
            return Some("the value is empty: is a variable not set?".to_owned());
        }
        ErrorKind::InvalidValue
            if is_about(error, "--format")
                && typed.iter().any(|word| word == "-o" || word == "--output") =>
        {
            let row = OPTIONS.iter().find(|row| row.0 == command && row.1.contains(&"-o"));
            return Some(row.map_or_else(
                || "-o is --format here; to write a file, use > FILE".to_owned(),
                |row| row.2.to_owned(),
            ));
        }
        ErrorKind::ValueValidation if is_behind_dashes(error, typed) => {
            return Some("options come before the two dashes".to_owned());
        }
        ErrorKind::ValueValidation if image_first(error, command, typed).is_some() => {
            return image_first(error, command, typed);
        }
        ErrorKind::ValueValidation
            if error.to_string().contains("invalid digit found in string") =>
        {
            return Some("expected a whole number, such as 4".to_owned());
        }
        ErrorKind::ValueValidation
            if command == "list" && typed.iter().any(|w| w.contains('*')) =>
        {
            return Some(
                "list shows one repository; ociseek backfill --dry-run --filter 'team/*' REGISTRY lists several"
                    .to_owned(),
            );
        }
        ErrorKind::ValueValidation if is_every_platform(error) => {
            return Some(
                "without --platform, index and convert take all platforms, and other commands this machine's"
                    .to_owned(),
            );
        }
        // Where a value is wanted, clap takes -1 for another option.
        ErrorKind::InvalidValue if typed.iter().any(|word| is_negative(word)) => {
            return Some(NO_NEGATIVE.to_owned());
        }
        ErrorKind::InvalidValue if is_about(error, "--format") => {
            return other_format(error, command).map(str::to_owned);
        }
        _ => return None,
    };
    let Some(ContextValue::String(word)) = error.get(place) else { return None };
    let word = word.split('=').next().unwrap_or_default().to_owned();
    // clap reads -platform as -p -l -a ...
    let dashed = |typed: &&String| {
        typed.len() > 3
            && typed.starts_with('-')
            && !typed.starts_with("--")
            && word.strip_prefix('-').is_some_and(|letter| typed.contains(letter))
            && typed[1..].bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
    };
    let is_short = word.len() == 2 && word.starts_with('-');
    let hint = match (error.kind(), is_short, typed.iter().find(dashed)) {
        (_, true, Some(typed)) => Some(format!("long options start with two dashes: -{typed}")),
        (ErrorKind::InvalidSubcommand, ..) => {
            // `ociseek cache size` is not `ociseek size`.
            let is_first = typed.iter().find(|typed| !typed.starts_with('-')) == Some(&word);
            let row = COMMANDS.iter().find(|(before, words, _)| {
                (*before == command || before.is_empty() && is_first) && words.contains(&&*word)
            });
            let row = row.map(|(_, _, hint)| (*hint).to_owned());
            let is_image = word.contains(['/', ':']) && typed.first() == Some(&word);
            let is_line = word.contains(' ').then(|| {
                "each word is an argument of its own: without quotes around all of them".to_owned()
            });
            row.or(is_line).or_else(|| {
                is_image.then(|| {
                    format!(
                        "a command comes first: ociseek try {word}, or ociseek doctor {word}, for example"
                    )
                })
            })
            .or_else(|| is_first.then(|| swapped(&word, &program)).flatten())
        }
        _ if command == word => behind(&word, typed, program.clone()),
        _ if !word.starts_with('-') => surplus(command, typed, &word),
        _ if is_negative(&word) => Some(NO_NEGATIVE.to_owned()),
        _ => {
            let called = called(program.clone(), typed);
            let row = of_another_tool(&word, command, &called);
            let lower = word.to_ascii_lowercase();
            row.or_else(|| {
                (lower != word && has_option(&called, &lower))
                    .then(|| format!("options are in lower case: {lower}"))
            })
            .or_else(|| of_others(&word, command, &program))
        }
    };
    // Of a short word, two wrong letters are another word.
    let most = if word.trim_start_matches('-').len() > 4 { 2 } else { 1 };
    let is_typo =
        |suggested: &String| levenshtein(&word, suggested) <= most || suggested.starts_with(&word);
    if let Some(ContextValue::Strings(all)) = error.get(suggestion) {
        let close: Vec<String> =
            all.iter().filter(|suggested| is_typo(suggested)).cloned().collect();
        if !close.is_empty() {
            error.insert(suggestion, ContextValue::Strings(close));
        }
    }
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
    match error.kind() {
        _ if keeps => hint,
        ErrorKind::InvalidSubcommand => hint.or_else(|| Some(commands_of(typed, program))),
        _ => hint.or_else(|| similar(&word, &called(program, typed))),
    }
}

/// The hint for an option of several words that shares some with options of `command`.
fn similar(option: &str, command: &Command) -> Option<String> {
    // Of things that differ.
    const COMMON: [&str; 4] = ["cache", "file", "from", "size"];
    let words = |name: &str| -> BTreeSet<String> {
        let tells = |word: &&str| word.len() > 3 && !COMMON.contains(word);
        name.split('-').filter(tells).map(str::to_owned).collect()
    };
    let typed = words(option.strip_prefix("--").filter(|name| name.contains('-'))?);
    let longs = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let shared: Vec<(usize, &str)> = longs
        .filter_map(|arg| arg.get_long())
        .map(|long| (words(long).intersection(&typed).count(), long))
        .collect();
    let most = shared.iter().map(|(count, _)| *count).max().filter(|most| *most > 0)?;
    let names: Vec<&str> =
        shared.iter().filter(|(count, _)| *count == most).map(|(_, long)| *long).collect();
    // A long list helps nobody.
    (names.len() <= 3).then(|| format!("did you mean --{}?", names.join(" or --")))
}

/// Whether `command` has this option.
fn has_option(command: &Command, option: &str) -> bool {
    command.get_arguments().any(|arg| match option.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg
            .get_short()
            .is_some_and(|short| option.strip_prefix('-') == Some(&short.to_string())),
    })
}

const NO_NEGATIVE: &str = "no number is negative here";

fn is_negative(word: &str) -> bool {
    word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The hint for a command in capitals, or with two letters swapped, for which clap has no
/// suggestion.
fn swapped(word: &str, program: &Command) -> Option<String> {
    let lower = word.to_ascii_lowercase();
    let names = program.get_subcommands().filter(|command| !command.is_hide_set());
    let name = names.map(Command::get_name).find(|name| {
        *name == lower || name.len() == lower.len() && osa_distance(name, &lower) == 1
    })?;
    // clap suggests it itself.
    (word != lower || levenshtein(name, word) > 1).then(|| format!("did you mean ociseek {name}?"))
}

/// The hint for a command that does not exist.
fn commands_of(typed: &[String], program: Command) -> String {
    let after = typed.iter().filter(|word| *word != "help").cloned().collect::<Vec<_>>();
    let called = called(program, &after);
    // Behind the name under which this runs.
    let names = called.get_bin_name().and_then(|names| names.split_once(' '));
    let name = names.map_or_else(|| "ociseek".to_owned(), |(_, name)| format!("ociseek {name}"));
    if called.has_subcommands() {
        format!("{name} --help lists the commands")
    } else {
        format!("{name} has no commands below it")
    }
}

/// The hint for an option that only other commands have.
fn of_others(option: &str, command: &str, program: &Command) -> Option<String> {
    let long = option.strip_prefix("--")?;
    program.find_subcommand(command)?;
    let has = |command: &&Command| {
        !command.is_hide_set() && command.get_arguments().any(|arg| arg.get_long() == Some(long))
    };
    let names: Vec<&str> = program.get_subcommands().filter(has).map(Command::get_name).collect();
    // A long list helps nobody.
    (1..=3).contains(&names.len()).then(|| {
        let names = names.join(", ociseek ");
        format!("ociseek {command} does not have {option}, only ociseek {names}")
    })
}

/// The hint for a word too many, if an option of `command` that may stand alone has its value after
/// a blank.
fn without_equals_sign(error: &clap::Error, command: &Command, typed: &[String]) -> Option<String> {
    let Some(ContextValue::String(surplus)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_value = |word: &str| word.starts_with(['/', '.']) || !word.contains(['/', ':', '-']);
    let may_stand_alone = |option: &str| {
        let long = option.strip_prefix("--")?;
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(long))?;
        let least = arg.get_num_args()?.min_values();
        Some(least == 0 && arg.get_action().takes_values())
    };
    let pair = typed
        .windows(2)
        .find(|pair| is_value(&pair[1]) && may_stand_alone(&pair[0]).unwrap_or(false));
    let pair = pair.filter(|_| !surplus.starts_with('-'))?;
    Some(format!("the value follows an equals sign: {}={}", pair[0], pair[1]))
}

/// Whether the error is about this option.
fn is_about(error: &clap::Error, option: &str) -> bool {
    matches!(error.get(ContextKind::InvalidArg),
        Some(ContextValue::String(typed)) if typed.split([' ', '=']).next() == Some(option))
}

/// Whether the value that the error is about was typed, and is empty.
fn is_empty_value(error: &clap::Error, typed: &[String]) -> bool {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    let name = option.split([' ', '=']).next().unwrap_or_default();
    let is_absent = matches!(error.get(ContextKind::InvalidValue),
        Some(ContextValue::String(value)) if value.is_empty());
    is_absent
        && (typed.windows(2).any(|pair| pair[0] == name && pair[1].is_empty())
            || typed.iter().any(|word| word.strip_suffix('=') == Some(name)))
}

/// Whether the error is about an option that `--` made an argument.
fn is_behind_dashes(error: &clap::Error, typed: &[String]) -> bool {
    typed.iter().any(|word| word == "--")
        && matches!(error.get(ContextKind::InvalidValue),
            Some(ContextValue::String(value)) if value.starts_with("--"))
}

/// The hint for an option before the command that has it.
fn behind(option: &str, typed: &[String], program: Command) -> Option<String> {
    let is_command = |word: &String| program.find_subcommand(word).is_some();
    let Some(place) = typed.iter().position(is_command) else {
        return of_another_tool(option, "", &program);
    };
    let name = &typed[place];
    let command = called(program, &typed[place..]);
    if option.starts_with("--") && has_option(&command, option) {
        return Some(format!("options of a command follow its name: ociseek {name} {option}"));
    }
    of_another_tool(option, name, &command)
}

/// The hint for an option that `command`, called `name`, has under another name.
fn of_another_tool(option: &str, name: &str, command: &Command) -> Option<String> {
    let row = OPTIONS.iter().find(|(of, names, hint)| {
        names.contains(&option) && (*of == name || of.is_empty() && knows(command, hint))
    });
    row.map(|(_, _, hint)| (*hint).to_owned())
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
fn missing(
    command: &str,
    typed: &[String],
    error: &clap::Error,
    program: Command,
) -> Option<String> {
    let absent = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(absent)) => absent.join(" "),
        Some(ContextValue::String(absent)) => absent.clone(),
        _ => String::new(),
    };
    if absent.starts_with("--creds") && typed.iter().any(|word| word == "--password-stdin") {
        return Some("the user is missing: --creds USER --password-stdin".to_owned());
    }
    let variables = ["OCISEEK_CLIENT_CERT", "OCISEEK_CLIENT_KEY", "OCISEEK_PASSWORD_STDIN"];
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if let (true, Some(name)) = (absent.starts_with("--c"), variables.into_iter().find(is_set)) {
        return Some(format!("${name} is set, which needs it"));
    }
    // An image where the value of an option was left out.
    let took = typed.windows(2).find_map(|pair| match pair {
        [option, value]
            if option.starts_with("--")
                && !option.contains('=')
                && value.contains(['/', ':'])
                && !value.starts_with(['/', '.', '-'])
                && !value.contains("://") =>
        {
            Some((option, value))
        }
        _ => None,
    });
    if let Some((option, value)) = took.filter(|_| absent.starts_with('<'))
        && takes_value(&called(program, typed), option)
    {
        return Some(format!("{option} took {value:?} as its value"));
    }
    if command == "rm" && typed.iter().any(|word| word == "--obsolete") {
        return Some(
            "--obsolete takes a repository: ociseek rm --obsolete REGISTRY/REPOSITORY".to_owned(),
        );
    }
    match (command, typed) {
        ("try" | "bundle", [_, dashes, ..]) if dashes == "--" => {
            Some(format!("the image comes before the two dashes: ociseek {command} IMAGE -- COMMAND"))
        }
        ("hook", _) if absent.starts_with("--allow") => {
            Some("name the registries whose images may be indexed, such as --allow registry.example".to_owned())
        }
        ("completions", [_]) => Some("the shells are bash, elvish, fish, powershell and zsh".to_owned()),
        ("convert", [_, ..]) => Some(
            "name the image and the SOCI-enabled image to write: ociseek convert REPOSITORY:TAG REPOSITORY:TAG-soci"
                .to_owned(),
        ),
        _ => None,
    }
}

/// Whether `command` has this option, and it takes a value.
fn takes_value(command: &Command, option: &str) -> bool {
    command
        .get_arguments()
        .any(|arg| arg.get_long() == option.strip_prefix("--") && arg.get_action().takes_values())
}

/// Whether `--platform` has a word for all of them.
fn is_every_platform(error: &clap::Error) -> bool {
    let text = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    text(ContextKind::InvalidArg).starts_with("--platform")
        && ["all", "any", "*"].contains(&text(ContextKind::InvalidValue).as_str())
}

/// The hint for a value that `--format` has in another tool.
fn other_format(error: &clap::Error, command: &str) -> Option<&'static str> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    match value.as_str() {
        "html" if command == "try" => Some("use --output FILE.html"),
        "long" if command == "ls" => Some("use -l"),
        "oci" | "docker" | "v2s1" | "v2s2" => Some(
            "--format is that of the report: layers stay as they are, and a new image is an OCI image index",
        ),
        "yaml" | "table" | "wide" | "csv" | "name" | "tree" => Some(FILTER_JSON),
        template if template.contains("{{") => Some(FILTER_JSON),
        _ => None,
    }
}

const FILTER_JSON: &str = "for other formats, filter the JSON: --json | jq";

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

/// Units behind the number that they belong to.
const UNITS: [&str; 8] = ["KiB", "MiB", "GiB", "KB", "MB", "GB", "Mbit", "Gbit"];

/// The hint for an argument too many.
fn surplus(command: &str, typed: &[String], word: &str) -> Option<String> {
    if ["true", "false", "yes", "no", "on", "off"].contains(&word) {
        return Some("a switch has no value: write it, or leave it out".to_owned());
    }
    if UNITS.contains(&word) {
        return Some(format!("write the number and {word} without a blank between them"));
    }
    // As in docker run -v /host:/container.
    let is_volume = |pair: &[String]| pair[0] == "-v" && pair[1].contains(":/");
    match command {
        "try" | "bundle" if typed.windows(2).any(is_volume) => {
            Some("-v is --verbose here; for mounts, edit config.json of ociseek bundle".to_owned())
        }
        "try" => Some(
            "ociseek try takes one image; put the command to run after two dashes: ociseek try IMAGE -- COMMAND"
                .to_owned(),
        ),
        "bundle" => Some(
            "put the command to run after two dashes: ociseek bundle IMAGE DIR -- COMMAND"
                .to_owned(),
        ),
        "convert" => Some("ociseek convert takes one image and the name to write".to_owned()),
        "list" => Some("ociseek list takes one repository at a time".to_owned()),
        "cache" => Some("ociseek cache clear takes no names: it empties all caches".to_owned()),
        command if SINGLE.contains(&command) => {
            Some(format!("ociseek {command} takes one image at a time"))
        }
        _ => None,
    }
}

/// The command of `program` that was typed.
pub(super) fn called(mut program: Command, typed: &[String]) -> Command {
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
