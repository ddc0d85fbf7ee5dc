//! The help texts, and the messages for wrong arguments.

use std::collections::HashMap;
use std::path::Path;

use insta::assert_snapshot;
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
    let mut pages = vec![];
    collect(&sandbox, &mut vec![], &mut pages);
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
    let mut pages = vec![];
    collect(&Sandbox::new(), &mut vec![], &mut pages);
    for (name, _) in &pages {
        let has_commands = pages.iter().any(|(other, _)| other.starts_with(&format!("{name} ")));
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
    let mut pages = vec![];
    collect(&sandbox, &mut vec![], &mut pages);
    // In ls, -h is the option of ls.
    for (name, long) in pages.iter().filter(|(name, _)| name != "ociseek ls") {
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
fn wrong_usage_exits_with_2() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["index"]), @r#"
    --- stderr ---
    error: the following required arguments were not provided:
      <IMAGE>...

    Usage: ociseek index <IMAGE>...

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--span-size", "4XB", "x"]), @r#"
    --- stderr ---
    error: invalid value '4XB' for '--span-size <SIZE>': unknown unit "XB": expected KiB, MiB, GiB, TiB or K, M, G, T (powers of 1024), KB, MB, GB, TB (powers of 1000), or B for bytes

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--span-size", "0", "x"]), @r#"
    --- stderr ---
    error: invalid value '0' for '--span-size <SIZE>': must be at least 16KiB, because each span takes 32 KiB of the ztoc

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--platform", "amd64", "x"]), @r#"
    --- stderr ---
    error: invalid value 'amd64' for '--platform <OS/ARCH[/VARIANT]>': "amd64" is not a platform: expected OS/ARCH; did you mean linux/amd64?

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "docker://alpine"]), @r#"
    --- stderr ---
    error: invalid value 'docker://alpine' for '<IMAGE>...': "docker://alpine": unsupported prefix "docker://": use alpine

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "Alpine"]), @r#"
    --- stderr ---
    error: invalid value 'Alpine' for '<IMAGE>...': "Alpine" is not a valid image name: repository names are lower case; write "alpine"

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--output", "dir", "x"]), @r#"
    --- stderr ---
    error: invalid value 'dir' for '--output <oci:DIR>': expected an OCI layout to write to: write oci:dir

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "oci-archive:x.tar"]), @r#"
    --- stderr ---
    error: archives are read-only: use --output oci:DIR, or --dry-run
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--creds", "me", "x"]), @r#"
    --- stderr ---
    error: --creds expects USER:PASSWORD, or USER with --password-stdin
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--creds", "me:secret", "--password-stdin", "x"]), @r#"
    --- stderr ---
    error: --creds already has a password; with --password-stdin use --creds USER
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--client-cert", "c.pem", "x"]), @r#"
    --- stderr ---
    error: the following required arguments were not provided:
      --client-key <FILE>

    Usage: ociseek index --client-cert <FILE> --client-key <FILE> <IMAGE>...

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_snapshot!(sandbox.run(&["index", "--jobs", "0", "x"]), @r#"
    --- stderr ---
    error: invalid value '0' for '--jobs <N>': expected a whole number from 1 to 256

    For more information, try '--help'.
    --- status 2 ---
    "#);
    assert_eq!(sandbox.command(&[]).output().unwrap().status.code(), Some(2));
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
    let mut pages = vec![];
    collect(&sandbox, &mut vec![], &mut pages);
    for (name, page) in &pages {
        assert_eq!(page.contains("--format <FORMAT>"), page.contains("      --json"), "{name}");
    }
    let pages = pages.iter().filter(|(_, page)| page.contains("      --json")).count();
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

/// Otherwise each of their events would be ignored, for a reason that only the log has.
#[test]
fn registries_that_no_image_is_named_after_are_refused() {
    let sandbox = Sandbox::new();
    for (args, value) in [
        (&["hook", "serve", "--allow=registry"][..], "registry"),
        (&["hook", "serve", "--allow=r.example,registry/team/*"], "registry/team/*"),
        (&["hook", "worker", "--queue=nats://localhost", "--allow=registry"], "registry"),
        (&["hook", "lambda", "--ecr-registry=registry"], "registry"),
    ] {
        let refused = sandbox.run(args);
        assert!(
            refused.contains(&format!("invalid value '{value}' for '--")),
            "{args:?}: {refused}"
        );
        assert!(
            refused.contains("HOST:PORT, or a HOST that has a dot or is localhost"),
            "{args:?}: {refused}"
        );
        assert!(refused.ends_with("--- status 2 ---"), "{args:?}: {refused}");
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
fn commands_of_other_tools_get_a_hint() {
    let sandbox = Sandbox::new();
    for (args, hint) in [
        (&["umount", "mnt"][..], "fusermount3 -u DIR"),
        (&["create", "app"], "ociseek index IMAGE"),
        (&["push", "app"], "ociseek index IMAGE"),
        (&["index", "--force", "app"], "--existing replace"),
        (&["ztoc", "info", "x"], "ociseek ztoc show FILE"),
        (&["find", "app"], "ociseek ls -R IMAGE"),
        (&["login", "localhost"], "docker login"),
        (&["doctor", "--cert-dir", "x", "app"], "--ca-file FILE"),
        (&["rm", "--force", "app"], "rm does not ask"),
        (&["prune", "app"], "ociseek rm --obsolete"),
        (&["copy", "a", "b"], "oras cp -r"),
        (&["convert", "--to", "v2", "a:1", "b:1"], "ociseek index attaches version 1"),
        (&["attach", "app"], "ociseek convert IMAGE"),
        (&["extract", "app"], "ociseek mount IMAGE DIR"),
        (&["tree", "app"], "ociseek list REPOSITORY"),
        (&["catalog"], "ociseek list REPOSITORY"),
        (&["upgrade"], "docs/install.md"),
        (&["serve"], "ociseek hook serve"),
        (&["status", "app"], "ociseek doctor IMAGE"),
        (&["cp", "a", "b"], "oras cp -r"),
        (&["completions"], "bash, elvish, fish, powershell and zsh"),
        (&["index", "localhost:5000"], "localhost:5000/REPOSITORY:TAG"),
        (&["list", "ghcr.io"], "ghcr.io/REPOSITORY:TAG"),
        (&["doctor", "-platform", "linux/amd64", "app"], "--platform"),
        (&["tag", "a", "b"], "oras cp -r"),
        (&["cache", "prune"], "ociseek cache clear"),
        (&["cache", "clear", "--all"], "cache clear empties"),
        (&["hook", "start"], "ociseek hook serve"),
        (&["hook", "serve", "--port", "80"], "--listen IP:PORT"),
        (&["hook", "worker", "--nats", "x"], "--queue nats://"),
        (&["backfill", "--all", "localhost:5000"], "all repositories and tags"),
        (&["index", "--tag", "x", "app"], "--kind v2=TAG"),
        (&["index", "--push", "app"], "what is made is pushed"),
        (&["index", "--no-push", "app"], "--dry-run"),
        (&["index", "--threads", "4", "app"], "--jobs N"),
        (&["index", "--verbose=2", "app"], "use -v, or -vv"),
        (&["index", "--quiet=true", "app"], "--quiet without a value"),
        (&["index", "--no-color", "app"], "--color never"),
        (&["uninstall"], "ociseek snapshotter uninstall DIR"),
        (&["files", "app"], "ociseek ls -R IMAGE"),
        (&["dive", "app"], "--output report.html"),
        (&["diff", "a", "b"], "compares the files of two images"),
        (&["attest", "app"], "cosign and notation sign"),
        (&["backfill", "--newer-than", "3d", "localhost:5000"], "--since DURATION"),
        (&["try", "--save", "x", "app"], "use --record FILE"),
        (&["completions", "--shell", "bash"], "ociseek completions bash"),
        (&["index", "--no-progress", "app"], "--progress none"),
        (&["ls", "-f", "json", "app"], "hint: for JSON: --json"),
        (&["verify", "--fast", "app"], "--quick"),
        (&["convert", "a:1"], "ociseek convert REPOSITORY:TAG REPOSITORY:TAG-soci"),
        (&["mount", "-o", "ro", "app", "mnt"], "mounts are read-only"),
        (&["try", "app", "echo", "hi"], "ociseek try IMAGE -- COMMAND"),
        (&["doctor", "a", "b"], "one image at a time"),
        (&["list", "a", "b"], "one repository at a time"),
        (&["ls", "app.tar"], "there is no such file"),
    ] {
        let said = sandbox.run(args);
        let line = said
            .lines()
            .find(|line| line.starts_with("hint: "))
            .unwrap_or_else(|| panic!("{args:?}: {said}"));
        assert!(line.contains(hint), "{args:?}: {line}");
        assert!(
            !said.contains("similar")
                && !said.contains("use '--")
                && said.ends_with("--- status 2 ---"),
            "{args:?}: {said}"
        );
    }
    // No hint names an option that the command does not have.
    assert!(!sandbox.run(&["ls", "--threads", "4", "app"]).contains("hint:"));
    // For a mere typing error, clap has a suggestion.
    let mistyped = sandbox.run(&["verfy", "app"]);
    assert!(
        mistyped.contains("a similar subcommand exists: 'verify'") && !mistyped.contains("hint:"),
        "{mistyped}"
    );
}

/// Typed wrong, and what the answer has in it: one line that says what is wrong and what to do.
#[test]
fn slips_are_named() {
    let sandbox = Sandbox::new();
    let digest = format!("sha256:{}", "ab".repeat(32));
    let hex = "ab".repeat(32);
    let (tag_last, colon) = (format!("r.io/a@{digest}:v1"), format!("r.io/a:{digest}"));
    let bare = format!("r.io/a@{hex}");
    let host = sandbox.path("nothost");
    std::fs::create_dir(&host).unwrap();
    let host = host.to_str().unwrap();
    std::fs::write(sandbox.path("c.toml"), "memory = \"64MiB\"\nroot = /var\n").unwrap();
    for (args, answer) in [
        (&["doctor", ""][..], "is a variable not set?"),
        (&["ls", "r.io/a:1", ""], "is a variable not set?"),
        (&["cat", "r.io/a:1", ""], "is a variable not set?"),
        (&["cat", "/etc/hosts", "r.io/a:1"], "the image comes first: ociseek cat IMAGE /etc/hosts"),
        (&["mount", "/tmp", "r.io/a:1"], "the image comes first: ociseek mount IMAGE /tmp"),
        (&["doctor", &tag_last], &format!("write \"r.io/a:v1@{digest}\"")),
        (&["doctor", &colon], &format!("write \"r.io/a@{digest}\"")),
        (&["doctor", &bare], &format!("write \"r.io/a@{digest}\"")),
        (&["doctor", &digest], "a digest without its repository"),
        (&["r.io/a:1"], "a command comes first: ociseek try r.io/a:1"),
        (&["TRY", "r.io/a:1"], "did you mean ociseek try?"),
        (&["tyr", "r.io/a:1"], "did you mean ociseek try?"),
        (&["convet", "r.io/a:1"], "a similar subcommand exists: 'convert'"),
        (&["ls", "--timeout", "2s", "r.io/a:1"], "only ociseek index"),
        (&["try", "--output", "", "r.io/a:1"], "the value is empty: is a variable not set?"),
        (&["try", "--record=", "r.io/a:1"], "the value is empty: is a variable not set?"),
        (&["try", "r.io/a:1", "--", ""], "the command to run is empty: is a variable not set?"),
        (&["bundle", "r.io/a:1", "b", "--", ""], "the command to run is empty"),
        (&["cache", "clear", "all"], "ociseek cache clear takes no names: it empties all caches"),
        (&["man", "ls", "cat"], "man takes one command"),
        (&["verify", "--full", "r.io/a:1"], "verify always reads whole layers"),
        (&["mount", "--layer", "x", "r.io/a:1", "mnt"], "0 is the layer at the bottom"),
        (&["index", "--jobs=auto", "r.io/a:1"], "expected a whole number from 1 to 256"),
        (&["index", "--kind=fien", "r.io/a:1"], "did you mean fine?"),
        (&["index", "--kind=", "r.io/a:1"], "is a variable not set?"),
        (&["index", "-k", "fine", "r.io/a:1"], "use --kind KIND"),
        (&["index", "--v1", "r.io/a:1"], "use --kind v1"),
        (&["convert", "--v2", "r.io/a:1", "r.io/a:2"], "convert writes version 2"),
        (&["convert", "-n", "k8s.io", "r.io/a:1", "r.io/a:2"], "not on an engine's images"),
        (&["convert", "--src-creds", "u:p", "r.io/a:1", "r.io/a:2"], "docker login for each"),
        (&["convert", "--dest-tls-verify=false", "r.io/a:1", "r.io/a:2"], "--plain-http"),
        (&["convert", "--span-size=4194304", "r.io/a:1", "r.io/a:2"], "For bytes, write 4MiB"),
        (&["convert", "r.io/a:1", ":v1-soci"], "If v1-soci is the tag, write REPOSITORY:v1-soci"),
        (&["convert", "--prefetch-file", "r.io/a:1", "r.io/a:2"], "took \"r.io/a:1\" as its value"),
        (&["convert", "--prefetch-file=", "r.io/a:1", "r.io/a:2"], "is a variable not set?"),
        (&["convert", "r.io/a:", "r.io/a:2"], "the tag behind it is empty. Is a variable not set?"),
        (&["convert", "\u{201c}r.io/a:1\u{201d}", "r.io/a:2"], "U+201C"),
        (&["convert", "r.io/a:1,r.io/b:1", "r.io/a:2"], "each name is an argument of its own"),
        (
            &["convert", "123456789012.dkr.ecr.eu-west-1.amazonaws.com:app", "r.io/a:2"],
            "amazonaws.com/app",
        ),
        (&["doctor", "u:secret@r.io/a:1"], "--creds USER:PASSWORD"),
        (&["index", "--output=json", "r.io/a:1"], "for JSON: --json"),
        (&["index", "--output=out", "r.io/a:1"], "write oci:out"),
        (&["doctor", "--format={{.Digest}}", "r.io/a:1"], "--json | jq"),
        (&["try", "-v", "/x:/y", "r.io/a:1"], "-v is --verbose here"),
        (&["try", "--no-run", "--for=3s", "r.io/a:1"], "cannot be used with"),
        (&["list", "r.io/team/*"], "backfill --dry-run --filter"),
        (&["list", "--filter=x", "r.io/team"], "backfill --dry-run --filter"),
        (&["rm", "--obsolete"], "--obsolete takes a repository"),
        (&["rmi", "r.io/a:1"], "ociseek deletes no images"),
        (&["soci", "create", "r.io/a:1"], "docs/comparison.md"),
        (&["index", "rm", "r.io/a:1"], "ociseek rm removes them"),
        (&["index", "--kind=v1", "fine", "r.io/a:1"], "--kind v1,fine"),
        (&["index", "--kind=soci", "r.io/a:1"], "did you mean 'v2={tag}-soci'?"),
        (&["convert", "--platform=all", "r.io/a:1", "r.io/a:2"], "take all platforms"),
        (&["--plain-http", "list", "r.io/a"], "ociseek list --plain-http"),
        (&["load", "-i", "x.tar"], "docker-archive:FILE"),
        (&["index", "--step-outputs=no/dir/f", "r.io/a:1"], "no/dir/f: cannot write: No such file"),
        (&["list", "--JSON", "r.io/a"], "options are in lower case: --json"),
        (&["hook", "serve", "--allow=", "--kind=v1"], "is a variable not set?"),
        (&["hook", "serve", "--allow=https://r.io", "--kind=v1"], "without https://"),
        (&["ls", "--layer", "-1", "r.io/a:1"], "no number is negative here"),
        (&["mount", "-d", "r.io/a:1", "d"], "use --detach"),
        (&["--platform", "linux/amd64", "ls", "r.io/a:1"], "ociseek ls --platform"),
        (&["rpull", "r.io/a:1"], "start from an image without pulling it"),
        (&["hook", "status"], "/healthz"),
        (
            &["hook", "serve", "--allow=r.io", "--kind=v1", "--journal=c.toml"],
            "not a journal of ociseek",
        ),
        (&["snapshotter", "prune"], "crictl rmi"),
        (&["snapshotter", "-c", "c.toml"], "use --config FILE"),
        (&["snapshotter", "--config", "no.toml"], "--print-config > FILE"),
        (&["backfill", "--kind=v1", "--filter=r.io:1/x", "r.io"], "without its registry and tag"),
        (&["cache", "ls", "--all"], "cache ls shows all"),
        (
            &["hook", "serve", "--allow=r.io", "--kind=v1", "--journal=no/j"],
            "create its directory first: mkdir -p no",
        ),
        (&["help", "nosuch"], "ociseek --help lists the commands"),
        (&["help", "ls", "cat"], "ociseek ls has no commands below it"),
        (&["completion", "bash"], "a similar subcommand exists: 'completions'"),
        (&["-version"], "long options start with two dashes: --version"),
        (&["ls", "::1/app"], "an IPv6 address has brackets; write \"[::1]/app\""),
        (&["ls", "fe80::1:5000/app:v1"], "write \"[fe80::1]:5000/app:v1\""),
        (&["try", "-o", "json", "r.io/a:1"], "For JSON, use --json"),
        (&["try", "--env-file", "f", "r.io/a:1"], "edit config.json of ociseek bundle"),
        (&["cat", "-o", "f", "r.io/a:1", "/x"], "use > FILE"),
        (&["ls", "-t", "r.io/a:1"], "ls sorts by name"),
        (&["index", "--kind=v1 fine", "r.io/a:1"], "did you mean v1,fine?"),
        (&["index", "--kind=v2=r.io/a:1", "r.io/a:1"], "write the tag alone"),
        (&["backfill", "--kind=v2={tag}", "r.io/a"], "the image's own tag"),
        (&["index", "--platform=arm64", "r.io/a:1"], "did you mean linux/arm64?"),
        (&["index", "--platform=windows", "r.io/a:1"], "did you mean windows/amd64?"),
        (&["index", "--platform=", "r.io/a:1"], "the platform is empty"),
        (&["cat", "-n", "r.io/a:1", "/x"], "ociseek cat IMAGE PATH | cat -n"),
        (&["try r.io/a:1"], "without quotes around all of them"),
        (&["--debug", "try", "r.io/a:1"], "use -v or -vv"),
        (&["try", "-V"], "ociseek -V prints the version"),
        (&["try", "--", "r.io/a:1"], "the image comes before the two dashes"),
        (&["index", "--", "r.io/a:1", "--dry-run"], "options come before the two dashes"),
        (&["convert", "r.io/a:1", "r.io/a:2", "--fine", "yes"], "a switch has no value"),
        (&["convert", "r.io/a:1", "r.io/a:2", "--fine", "MiB"], "without a blank"),
        (&["cat", "-A", "r.io/a:1", "/x"], "ociseek cat IMAGE PATH | cat -n"),
        (&["verify", "--digest", &digest, "r.io/a:1"], "use --index DIGEST"),
        (&["convert", "--format=oci", "r.io/a:1", "r.io/a:2"], "layers stay as they are"),
        (
            &["convert", "--soci-span-size=4MiB", "r.io/a:1", "r.io/a:2"],
            "did you mean --span-size?",
        ),
        (&["index", "--existing-index=skip", "r.io/a:1"], "did you mean --existing?"),
        (&["try", "--until-log=x", "r.io/a:1"], "--until-output TEXT"),
        (&["ls", "--format=long", "r.io/a:1"], "use -l"),
        (&["index", "--min-layer-size", "-1", "r.io/a:1"], "no number is negative here"),
        (&["index", "--creds", "r.io/a:1"], "--creds took \"r.io/a:1\" as its value"),
        (&["doctor", "--creds=u:", "r.io/a:1"], "an empty password"),
        (&["doctor", "--creds=:p", "r.io/a:1"], "an empty user"),
        (&["doctor", "--password-stdin", "r.io/a:1"], "--creds USER --password-stdin"),
        (&["convert", "r.io/a:1", "-o", "r.io/a:2"], "the destination is the second argument"),
        (&["doctor", "-o", "report.txt", "r.io/a:1"], "use > FILE"),
        (&["try", "r.io/a:1", "--command", "sh"], "ociseek try IMAGE -- COMMAND"),
        (&["try", "r.io/a:1", "-p", "80:80"], "--until-port PORT"),
        (&["try", "r.io/a:1", "--timeout", "9s"], "use --for DURATION"),
        (&["try", "r.io/a:1", "-e", "A=b"], "the environment, the user"),
        (&["try", "-it", "r.io/a:1", "sh"], "not needed: try ends the container"),
        (&["try", "--runtime=docker", "r.io/a:1"], "such as runc or crun"),
        (&["doctor", "--all", "r.io/a:1"], "use --all-platforms"),
        (&["doctor", "--fix", "r.io/a:1"], "doctor changes nothing"),
        (&["doctor", "--node", "c.toml", "r.io/a:1"], "--node=c.toml"),
        (&["mount", "r.io/a:1", "d", "--prefetch", "9Mbit"], "--prefetch=9Mbit"),
        (&["convert", "--kind=v1", "r.io/a:1", "r.io/a:2"], "index attaches version 1"),
        (&["try", "r.io/a:1", "r.io/a:2"], "ociseek try takes one image"),
        (&["doctor", "--ztoc=abcdef", "r.io/a:1"], "--verbose shows the indexes and layers"),
        (&["ls", "--tree", "r.io/a:1"], "ls -R lists all files"),
        (&["ls", "r.io/a:1/etc"], "separate the image and the path with a space"),
        (&["list", "r.io/a/"], "it ends with a slash; write \"r.io/a\""),
        (&["cp", "r.io/a:1:/etc/hosts", "."], "ociseek cat IMAGE PATH > FILE"),
        (&["cache", "size"], "ociseek cache ls shows where"),
        (&["snapshotter", "restart"], "systemctl restart (or reload) ociseek-snapshotter"),
        (&["snapshotter", "doctor"], "ociseek doctor --node IMAGE"),
        (&["mount", "--rw", "r.io/a:1", "d"], "mounts are read-only"),
        (&["convert", "--zstd", "r.io/a:1", "r.io/a:2"], "layers stay as they are"),
        (&["verify", "--key=k.pub", "r.io/a:1"], "use --signature-key FILE"),
        (&["try", "--link=100MB/s", "r.io/a:1"], "for 100MB/s write 800Mbit"),
        (&["try", "--until-output=", "r.io/a:1"], "is a variable not set?"),
        (&["try", "--record=no/dir/f", "r.io/a:1"], "no/dir/f: cannot write: No such file"),
        (&["try", "--record=no/dir/f", "r.io/a:1"], "mkdir -p no/dir"),
        (&["index", "--profile=/dev/zero", "r.io/a:1"], "longer than 67108864 bytes"),
        (&["backfill", "https://r.io"], "write it without https://: r.io"),
        (&["backfill", "r.io/team/**"], "--filter 'team/**' r.io"),
        (&["backfill", "oci:dir"], "backfill works on registries"),
        (&["list", "r.io"], "ociseek backfill --dry-run r.io"),
        (&["store", "status", "--root", host], "service  not mounted"),
        (&["store", "status", "--root", "nosuch"], "nosuch: cannot read: No such file"),
        (&["store", "list"], "ociseek store status lists the images"),
        (&["snapshotter", "install", host], "has no systemctl"),
        (&["snapshotter", "uninstall", host], "has no systemctl"),
        (&["snapshotter", "images", "--root", "nosuch"], "nosuch: cannot read: No such file"),
        (&["snapshotter", "--config", "c.toml"], "in line 2, at \"root\": a text is in double"),
    ] {
        let refused = sandbox.run(args);
        assert!(refused.contains(answer), "{args:?}: {refused}");
        assert!(!refused.ends_with("--- status 0 ---"), "{args:?}: {refused}");
    }
    assert_eq!(std::fs::read_dir(host).unwrap().count(), 0, "install wrote something");
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

/// Also those of the options that every command has.
#[test]
fn empty_variables_count_as_unset() {
    let sandbox = Sandbox::new();
    for name in ["OCISEEK_COLOR", "OCISEEK_PROGRESS", "OCISEEK_FORMAT"] {
        let output = sandbox.command(&["cache", "ls"]).env(name, "").output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
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
    for variable in ["PLATFORM", "JOBS", "KIND", "MIN_LAYER_SIZE", "SPAN_SIZE", "FORMAT", "CREDS"] {
        command.env(format!("OCISEEK_{variable}"), "");
    }
    assert!(shown(&mut command).contains("cannot open nosuch"));
}

#[test]
fn names_of_other_tools_are_understood() {
    let sandbox = Sandbox::new();
    mounts::image(&sandbox, "img", &[tar(1, 4, 50_000)], &json!({}));
    std::fs::write(sandbox.path("auth.json"), "{}").unwrap();
    let listed = sandbox.run(&["list", "--json", "oci:img"]);
    for args in [
        &["list", "-o", "json", "oci:img"][..],
        &["list", "--output", "json", "oci:img"],
        &["list", "--json", "--tls-verify=false", "oci:img"],
        &["list", "--json", "--insecure-skip-tls-verify", "oci:img"],
        &["list", "--json", "--authfile", "auth.json", "oci:img"],
    ] {
        assert_eq!(sandbox.run(args), listed, "{args:?}");
    }
    let platforms =
        ["index", "--dry-run", "--quiet", "--all-platforms", "--min-layer-size=0", "oci:img"];
    assert!(sandbox.run(&platforms).starts_with("sha256:"));
    assert!(sandbox.run(&["list", "--authfile", "none", "oci:img"]).contains("none: cannot read"));
    assert!(
        sandbox
            .run(&["man", "hook", "serve"])
            .contains("ociseek hook serve [OPTIONS]".replace('-', "\\-").as_str())
    );
    let none = sandbox.run(&["index", "--jobs", "-1", "oci:img"]);
    assert!(none.contains("expected a whole number from 1 to 256"), "{none}");
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    for verb in ["mount", "bundle"] {
        let swapped = sandbox.run(&[verb, "mnt", "localhost:1/app:v1"]);
        assert!(swapped.contains("the image comes first"), "{swapped}");
    }
    let archive = sandbox.run(&["convert", "oci:img", "app.tar"]);
    assert!(
        archive.contains("archives are read-only: write to a registry or a layout"),
        "{archive}"
    );
    let pattern = sandbox.run(&["ls", "oci:img", "*.so"]);
    assert!(pattern.contains("without patterns: ociseek ls -R IMAGE"), "{pattern}");
    let with_path = sandbox.run(&["ls", "localhost:5000/app:v1:/etc"]);
    assert!(with_path.contains("separate the image and the path with a space"), "{with_path}");
    let of_layout = sandbox.run(&["ls", "img/index.json"]);
    assert!(of_layout.contains("hint: to read the layout, use oci:img"), "{of_layout}");
    let untagged = sandbox.run(&["convert", "oci:img", "localhost:1/app"]);
    assert!(untagged.contains("the tag is missing: write localhost:1/app:TAG"), "{untagged}");
}

#[test]
fn a_local_archive_is_not_looked_up_on_docker_hub() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("app.tar"), "").unwrap();
    for args in [&["doctor", "app.tar"][..], &["index", "--dry-run", "app.tar"], &["ls", "app.tar"]]
    {
        let want = "--- stderr ---\nerror: app.tar is a file, not an image name\n\
                    hint: to read the file, use oci-archive:app.tar\n--- status 2 ---";
        assert_eq!(sandbox.run(args), want, "{args:?}");
    }
}

#[test]
fn a_local_folder_is_not_looked_up_on_docker_hub() {
    let sandbox = Sandbox::new();
    mounts::image(&sandbox, "img", &[tar(1, 4, 50_000)], &json!({}));
    let want = "--- stderr ---\nerror: img is a folder with an image layout, not an image name\n\
                hint: to read the layout, use oci:img\n--- status 2 ---";
    assert_eq!(sandbox.run(&["ls", "img"]), want);
    // Nor are the names that other tools have for folders, read or written.
    for args in [&["ls", "dir:img"][..], &["convert", "oci:img", "dir:out"]] {
        let said = sandbox.run(args);
        assert!(said.contains("unsupported prefix \"dir:\": use oci:DIR"), "{said}");
        assert!(said.ends_with("--- status 2 ---"), "{said}");
    }
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
