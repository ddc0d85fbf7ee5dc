//! The help texts, and what options and variables do in every command.

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use ociseek_testkit::mounts;
use ociseek_testkit::sandbox::{Sandbox, shown, tar};
use serde_json::json;

/// The help of every command is in `tests/help`, with a file for each command. `UPDATE_HELP=1 cargo
/// test --test cli help::` writes the files.
///
/// A section that several commands share is only stored with the first of them.
#[test]
fn help_of_every_command() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    let update = std::env::var_os("UPDATE_HELP").is_some();
    let sandbox = Sandbox::new();
    let mut pages = PAGES.clone();
    // Hidden, for other tools.
    collect(&sandbox, &mut vec!["ztoc".to_owned()], &mut pages);
    assert!(pages.len() >= 20, "{}", pages.len());
    for args in [&["-h"][..], &["index", "-h"], &["mount", "-h"], &["verify", "-h"]] {
        pages.push((
            ["ociseek"].iter().chain(args).copied().collect::<Vec<_>>().join(" "),
            sandbox.run(args),
        ));
    }
    if update {
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::create_dir(&dir).unwrap();
    }
    let mut wanted = Vec::new();
    let mut first = HashMap::<&str, &str>::new();
    for (name, page) in &pages {
        let mut folded = String::new();
        for section in sections(page) {
            match *first.entry(section).or_insert(name) {
                other if other == name || section.lines().count() < 4 => folded.push_str(section),
                other => {
                    folded +=
                        &format!("{}\n  (as for {other})\n\n", section.lines().next().unwrap())
                }
            }
        }
        let page = folded;
        let file = dir.join(format!("{}.txt", name.replace(' ', "-")));
        if update {
            std::fs::write(&file, page + "\n").unwrap();
        } else {
            let stored = std::fs::read_to_string(&file).unwrap_or_default();
            assert_eq!(
                stored,
                page + "\n",
                "{name}: the help differs: look at it, then UPDATE_HELP=1"
            );
        }
        wanted.push(file);
    }
    for file in std::fs::read_dir(&dir).unwrap() {
        let file = file.unwrap().path();
        assert!(wanted.contains(&file), "{} is of no command", file.display());
    }
}

#[test]
fn the_list_of_commands_fits_into_a_terminal() {
    let list = Sandbox::new().run(&["-h"]);
    assert!(list.lines().any(|line| line.starts_with("  doctor  ")), "{list}");
    for line in list.lines().take_while(|line| *line != "Options:") {
        assert!(line.chars().count() <= 80, "{line}");
    }
}

/// Each command that does something has a line in docs/commands.md.
#[test]
fn every_command_is_on_the_page_of_commands() {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/commands.md"))
            .unwrap();
    for (name, _) in PAGES.iter() {
        let has_commands = PAGES.iter().any(|(other, _)| other.starts_with(&format!("{name} ")));
        assert!(has_commands || page.contains(&format!("\n| `{name}` |")), "{name}");
    }
}

/// What a person sees first stays small: what most do not need is below other commands, or a
/// variable in docs/environment.md.
#[test]
fn the_first_help_has_few_commands_and_index_has_few_options() {
    let sandbox = Sandbox::new();
    let page = sandbox.run(&["-h"]);
    let is_command =
        |line: &&str| line.starts_with("  ") && line[2..].starts_with(char::is_lowercase);
    let commands = page.lines().take_while(|line| *line != "Options:").filter(is_command).count();
    assert!((10..=18).contains(&commands), "{page}");
    let page = sandbox.run(&["index", "--help"]);
    let options = options(&page);
    assert!((20..=30).contains(&options.len()), "{} options: {options:?}", options.len());
}

/// The name and page of each command that is not hidden.
static PAGES: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let mut pages = vec![];
    collect(&Sandbox::new(), &mut vec![], &mut pages);
    pages
});

/// The pages of a command and of its subcommands.
fn collect(sandbox: &Sandbox, command: &mut Vec<String>, pages: &mut Vec<(String, String)>) {
    let args: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
    let page = sandbox.run(&args);
    let below: Vec<String> = (page.lines().skip_while(|line| !line.starts_with("Usage:")))
        .take_while(|line| *line != "Options:")
        .filter_map(|line| {
            line.strip_prefix("  ")
                .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        })
        .filter_map(|line| line.split(' ').next().map(str::to_owned))
        .collect();
    let name = std::iter::once("ociseek")
        .chain(command.iter().map(String::as_str))
        .collect::<Vec<_>>()
        .join(" ");
    pages.push((name, page));
    for verb in below.into_iter().filter(|verb| verb != "help") {
        command.push(verb);
        collect(sandbox, command, pages);
        command.pop();
    }
}

/// A page, split before each heading.
fn sections(page: &str) -> Vec<&str> {
    let mut cuts = vec![0];
    let mut at = 0;
    for line in page.split_inclusive('\n') {
        let text = line.trim_end();
        if at > 0 && text.ends_with(':') && text.starts_with(|c: char| c.is_ascii_uppercase()) {
            cuts.push(at);
        }
        at += line.len();
    }
    cuts.push(page.len());
    cuts.windows(2).map(|cut| &page[cut[0]..cut[1]]).collect()
}

/// The options on a page.
fn options(page: &str) -> Vec<&str> {
    // Options without a letter are aligned with the others. Descriptions are indented further.
    let lines = page.lines().filter(|line| line.starts_with("  -") || line.starts_with("      --"));
    lines
        .filter_map(|line| {
            line.split([' ', ',', '=', '[', '.']).find(|word| word.starts_with("--"))
        })
        .collect()
}

/// `-h` shows a part of `--help`, in the same order, without the variables.
#[test]
fn short_help_is_short() {
    let sandbox = Sandbox::new();
    // In ls, -h is the option of ls.
    for (name, long) in PAGES.iter().filter(|(name, _)| name != "ociseek ls") {
        let args: Vec<&str> = name.split(' ').skip(1).chain(["-h"]).collect();
        let short = sandbox.run(&args);
        assert!(!short.contains("[env"), "{name}: {short}");
        let columns = short.lines().map(|line| line.chars().count()).max();
        assert!(columns <= Some(100), "{name}: {columns:?} columns");
        let all = options(long);
        let mut some = options(&short).into_iter().peekable();
        for option in &all {
            some.next_if_eq(option);
        }
        assert_eq!(some.next(), None, "{name} -h: not in --help, or in another place");
    }
    let page = |args: &[&str]| sandbox.run(args);
    let index = page(&["index", "-h"]);
    assert!(index.lines().count() < 80, "{index}");
    assert!(index.contains(
        "\nAll options, their environment variables, and examples: ociseek index --help\n"
    ));
    assert!(!index.contains("--ca-file") && page(&["index", "--help"]).contains("--ca-file"));
    let headings = |page: &str| -> Vec<String> {
        let headings = sections(page)
            .into_iter()
            .skip(1)
            .map(|section| section.lines().next().unwrap().to_owned());
        headings.filter(|line| !line.starts_with("Arguments")).collect()
    };
    let headings = headings(&index);
    assert_eq!(
        (headings[0].as_str(), headings.last().unwrap().as_str()),
        ("Options:", "Output:"),
        "{headings:?}"
    );
    // It is also shown if there are no arguments.
    assert!(!sandbox.run(&[]).contains("[env"));
}

#[test]
fn every_option_of_index_has_an_environment_variable() {
    let sandbox = Sandbox::new();
    let help = sandbox.run(&["index", "--help"]);
    let options: Vec<&str> = (help.lines().map(str::trim))
        .filter_map(|line| {
            line.strip_prefix("-o, ")
                .or(line.strip_prefix("-j, "))
                .or(line.strip_prefix("-q, "))
                .or(Some(line))
        })
        .filter_map(|line| line.strip_prefix("--"))
        .filter_map(|line| line.split([' ', '.', '[']).next())
        // --json is short for --format json, which has a variable. -v has OCISEEK_LOG, which is
        // more detailed.
        .filter(|name| !matches!(*name, "help" | "version" | "json") && !name.starts_with('-'))
        .collect();
    assert!(options.len() >= 20, "{options:?}");
    for option in options {
        let variable = format!("OCISEEK_{}", option.to_uppercase().replace('-', "_"));
        let shown = [format!("[env: {variable}=]"), format!("[env: {variable}]")];
        assert!(shown.iter().any(|s| help.contains(s)), "{option} has no {variable}");
    }
}

#[test]
fn json_is_short_for_format_json() {
    let sandbox = Sandbox::new();
    let long = sandbox.run(&["version", "--format=json"]);
    assert!(long.starts_with("{\n"), "{long}");
    for args in [&["version", "--json"][..], &["version", "--format=text", "--json"]] {
        assert_eq!(shown(sandbox.command(args).env("OCISEEK_FORMAT", "text")), long, "{args:?}");
    }
    for (name, page) in PAGES.iter() {
        assert_eq!(page.contains("--format <FORMAT>"), page.contains("      --json"), "{name}");
    }
    let pages = PAGES.iter().filter(|(_, page)| page.contains("      --json")).count();
    assert!(pages >= 16, "{pages}");
}

#[test]
fn one_variable_sets_the_queue() {
    let sandbox = Sandbox::new();
    let commands = [
        &["backfill", "localhost"][..],
        &["hook", "serve", "--allow=localhost"],
        &["hook", "worker", "--allow=localhost"],
    ];
    for args in commands {
        let refused = shown(sandbox.command(args).env("OCISEEK_QUEUE", "no queue"));
        assert!(
            refused.contains("invalid value 'no queue' for '$OCISEEK_QUEUE'"),
            "{args:?}: {refused}"
        );
    }
}

#[test]
fn help_is_also_a_command() {
    let sandbox = Sandbox::new();
    for command in [&["index"][..], &["ztoc", "show"]] {
        let verb = [&["help"], command].concat();
        let option = [command, &["--help"]].concat();
        assert_eq!(sandbox.run(&verb), sandbox.run(&option));
    }
    assert_eq!(sandbox.run(&["help"]), sandbox.run(&["--help"]));
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let sandbox = Sandbox::new();
    for args in [&["--help"][..], &["-V"], &["help", "ls"], &["index", "-h"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = sandbox.command(args).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains("cannot write standard output: No space left"), "{args:?}: {said}");
    }
}

#[test]
fn colors_are_as_asked_for() {
    let sandbox = Sandbox::new();
    let has_colors = |args: &[&str], variable: &str| {
        shown(sandbox.command(args).env(variable, "1")).contains("\x1b[")
    };
    for (args, variable, want) in [
        (&["ls", "oci:nosuch"][..], "UNUSED", false),
        (&["ls", "oci:nosuch"], "CLICOLOR_FORCE", true),
        (&["--color=never", "ls", "oci:nosuch"], "CLICOLOR_FORCE", false),
        (&["ls", "--color", "always", "oci:nosuch"], "NO_COLOR", true),
        (&["ls", "--color=auto", "oci:nosuch"], "NO_COLOR", false),
        (&["ls", "oci:nosuch"], "FORCE_COLOR", true),
        (&["-h"], "UNUSED", false),
        (&["ls", "--help"], "FORCE_COLOR", true),
        (&["nosuch"], "FORCE_COLOR", true),
        (&["--color=always", "--help"], "UNUSED", true),
        (&["ls", "--color", "never", "-h"], "FORCE_COLOR", false),
    ] {
        assert_eq!(has_colors(args, variable), want, "{args:?} {variable}");
    }
}

/// Where nobody looks at each image, no kind is made by default.
#[test]
fn services_are_told_what_to_make() {
    let sandbox = Sandbox::new();
    for args in [
        &["backfill", "r.example/a"][..],
        &["hook", "serve", "--allow=r.example", "--listen=127.0.0.1:0"],
        &["hook", "worker", "--allow=r.example", "--queue=nats://127.0.0.1:1"],
    ] {
        let refused = shown(sandbox.command(args).env_remove("OCISEEK_KIND"));
        assert!(refused.contains("--kind is missing"), "{args:?}: {refused}");
        assert!(refused.ends_with("--- status 2 ---"), "{args:?}: {refused}");
    }
    // It makes nothing, and lists what a registry has.
    let list = ["backfill", "--dry-run", "--retry-for=1s", "127.0.0.1:1/a"];
    let listed = shown(sandbox.command(&list).env_remove("OCISEEK_KIND"));
    assert!(listed.ends_with("--- status 1 ---"), "{listed}");
}

/// CI systems set the variables of inputs that nobody gave to nothing.
#[test]
fn an_empty_variable_counts_as_unset() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["index", "oci:nosuch"]);
    for variable in [
        "PLATFORM",
        "JOBS",
        "KIND",
        "MIN_LAYER_SIZE",
        "SPAN_SIZE",
        "FORMAT",
        "CREDS",
        "COLOR",
        "PROGRESS",
    ] {
        command.env(format!("OCISEEK_{variable}"), "");
    }
    assert!(shown(&mut command).contains("cannot open nosuch"));
}

#[test]
fn shells_offer_words_where_an_argument_is_one_of_few() {
    let sandbox = Sandbox::new();
    let shells = "bash elvish fish powershell zsh";
    let fish = sandbox.run(&["completions", "fish"]);
    assert!(fish.contains(&format!("using_subcommand completions\" -f -a \"{shells}\"")), "{fish}");
    assert!(fish.contains("using_subcommand man\" -f -a \"try convert index"), "{fish}");
    for shell in ["bash", "zsh", "fish"] {
        let script = sandbox.run(&["completions", shell]);
        assert!(script.contains("v2={tag}-soci"), "{shell}: {script}");
    }
}

#[test]
fn ls_accepts_the_short_options_of_ls() {
    let sandbox = Sandbox::new();
    let short = sandbox.run(&["ls", "-h"]);
    assert!(short.contains("Usage: ociseek ls [OPTIONS] <IMAGE>"), "{short}");
    assert!(short.contains("--recursive") && short.lines().count() < 60, "{short}");
    mounts::image(&sandbox, "img", &[tar(1, 4, 50_000)], &json!({}));
    let ls = |options: &[&str]| {
        let args = [&["ls", "--cache-dir=cache", "oci:img:v1", "dir1"], options].concat();
        let output = sandbox.command(&args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let plain = ls(&[]);
    assert_eq!(plain, "file0\nfile1\nfile2\nfile3\n");
    assert_eq!(ls(&["-a1"]), plain);
    assert_eq!(ls(&["-d"]), "dir1\n");
    assert!(ls(&["-ld"]).starts_with('d'));
    assert!(ls(&["-l"]).contains(" 50000 "));
    assert!(ls(&["-lh"]).contains(" 48.8KiB "));
}

#[test]
fn secrets_in_the_environment_are_not_shown() {
    let mut command = Sandbox::new().command(&["index", "--help"]);
    let output = command.current_dir("/").env("OCISEEK_CREDS", "me:s3cret").output().unwrap();
    assert!(!String::from_utf8(output.stdout).unwrap().contains("s3cret"));
}
