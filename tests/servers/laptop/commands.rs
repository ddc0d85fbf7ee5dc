//! `completions`, `man` and `version`, from the same definitions as the options.

use std::process::Command;

use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::tool;

fn stdout(sandbox: &Sandbox, args: &[&str]) -> Vec<u8> {
    let output = sandbox.command(args).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Every command, with its full name.
fn commands(sandbox: &Sandbox) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let mut next = vec![Vec::<String>::new()];
    while let Some(command) = next.pop() {
        let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
        args.push("--help");
        let help = String::from_utf8(stdout(sandbox, &args)).unwrap();
        let listed = help
            .lines()
            .skip_while(|line| !line.starts_with("Usage:"))
            .take_while(|line| *line != "Options:");
        let is_command = |line: &&str| line.starts_with(|first: char| first.is_ascii_lowercase());
        let below = listed.filter_map(|line| {
            line.strip_prefix("  ").filter(is_command)?.split_whitespace().next()
        });
        // `help` has no options.
        let below = below.filter(|name| *name != "help");
        next.extend(below.map(|name| [&command[..], &[name.to_owned()]].concat()));
        all.push(command);
    }
    all
}

#[test]
fn bash_completes_commands_options_and_values() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path("completions"), stdout(&sandbox, &["completions", "bash"]))
        .unwrap();
    let complete = |words: &[&str]| {
        let script = format!(
            "set -u; source ./completions; complete -p ociseek >/dev/null || exit 1\n\
             COMP_WORDS=({}); COMP_CWORD={}; _ociseek ociseek '{}' '{}'; echo \"${{COMPREPLY[@]}}\"",
            words.join(" "),
            words.len() - 1,
            words[words.len() - 1],
            words[words.len() - 2],
        );
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-c", &script]).current_dir(sandbox.dir.path());
        let output = bash.output().unwrap();
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete(&["ociseek", "doc"]), "doctor");
    assert_eq!(complete(&["ociseek", "index", "--min-c"]), "--min-coverage");
    assert_eq!(complete(&["ociseek", "index", "--existing", "re"]), "replace");
    for command in commands(&sandbox).iter().filter_map(|command| command.first()) {
        assert!(
            complete(&["ociseek", command]).split(' ').any(|found| found == command),
            "{command}"
        );
    }
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        assert!(!stdout(&sandbox, &["completions", shell]).is_empty());
    }
    if let Some(zsh) = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|d| d.join("zsh"))
        .find(|f| f.exists())
    {
        std::fs::write(sandbox.path("zsh"), stdout(&sandbox, &["completions", "zsh"])).unwrap();
        assert!(Command::new(zsh).arg("-n").arg(sandbox.path("zsh")).status().unwrap().success());
    }
}

#[test]
fn every_command_has_a_page_that_renders() {
    let sandbox = Sandbox::new();
    assert!(stdout(&sandbox, &["man", "--output", "pages"]).is_empty());
    let Some(groff) = tool("groff") else { return };
    for command in commands(&sandbox) {
        let name = [&["ociseek".to_owned()][..], &command].concat().join("-");
        let page = sandbox.path("pages").join(format!("{name}.1"));
        let output = Command::new(&groff)
            .args(["-man", "-Tutf8", "-ww", "-rLL=100n", "-P-cbou"])
            .arg(&page)
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{name}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("NAME") && text.contains("SYNOPSIS"), "{name}: {text}");
        if name == "ociseek-index" {
            assert!(
                text.contains("--min-coverage") && text.contains("OCISEEK_MIN_COVERAGE"),
                "{text}"
            );
            assert!(
                text.contains("SYNOPSIS\n       ociseek index [OPTIONS] <IMAGE>...\n"),
                "{text}"
            );
            // Indented lines are the same as in the help.
            assert!(
                text.contains("\n         oci:DIR[:TAG|@DIGEST]\n           an OCI image layout;"),
                "{text}"
            );
        }
    }
    let files = std::fs::read_dir(sandbox.path("pages")).unwrap().count();
    assert_eq!(files, commands(&sandbox).len());
    assert_eq!(stdout(&sandbox, &["man"]), std::fs::read(sandbox.path("pages/ociseek.1")).unwrap());
}

#[test]
fn version_prints_text_and_json() {
    let sandbox = Sandbox::new();
    let version = sandbox.json(0, &["version", "--json"]);
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(version["build_tool_identifier"], ociseek_ops::TOOL_IDENTIFIER);
    assert_eq!(
        (&version["ztoc_version"], &version["soci_version"]),
        (&"0.9".into(), &"v0.15.0".into())
    );
    assert!(version["target"].as_str().unwrap().starts_with(std::env::consts::ARCH), "{version}");
    assert!(version["features"].is_array());
    let commit = &version["commit"];
    assert!(commit.is_null() || matches!(commit.as_str().unwrap().len(), 40 | 64), "{version}");
    // The release from which the other tests' oracle is built.
    let module =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/oracle/go.mod"))
            .unwrap();
    let soci = version["soci_version"].as_str().unwrap();
    assert!(
        module.lines().any(|line| line.contains("awslabs/soci-snapshotter") && line.contains(soci)),
        "{module}"
    );
    let text = String::from_utf8(stdout(&sandbox, &["version"])).unwrap();
    assert_eq!(
        text.lines().next().unwrap().as_bytes(),
        stdout(&sandbox, &["--version"]).trim_ascii()
    );
}
