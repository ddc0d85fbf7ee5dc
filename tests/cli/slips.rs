//! The messages for wrong arguments: what is wrong, and what to do.

use insta::assert_snapshot;
use ociseek_testkit::mounts;
use ociseek_testkit::sandbox::{Sandbox, tar};
use serde_json::json;

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
    assert_snapshot!(sandbox.run(&["index", "--creds", "me", "x"]), @r#"
    --- stderr ---
    error: --creds expects USER:PASSWORD, or USER with --password-stdin
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
    assert_eq!(sandbox.command(&[]).output().unwrap().status.code(), Some(2));
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
        (&["hook", "serve", "--kind=v1"], "such as --allow registry.example"),
        (&["--no-color"], "--color never"),
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
        (&["rpull", "r.io/a:1"], "nothing is pulled"),
        (&["run", "r.io/a:1"], "ociseek try IMAGE -- COMMAND runs a container once"),
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
        (&["index", "--profile=/dev/zero", "r.io/a:1"], "longer than 64MiB"),
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
        (
            &["index", "--span-size", "0", "x"],
            "must be at least 16KiB, because each span takes 32 KiB of the ztoc",
        ),
        (
            &["index", "--platform", "amd64", "x"],
            "\"amd64\" is not a platform: expected OS/ARCH; did you mean linux/amd64?",
        ),
        (
            &["index", "docker://alpine"],
            "\"docker://alpine\": unsupported prefix \"docker://\": use alpine",
        ),
        (
            &["index", "Alpine"],
            "is not a valid image name: repository names are lower case; write \"alpine\"",
        ),
        (&["index", "--output", "dir", "x"], "expected an OCI layout to write to: write oci:dir"),
        (
            &["index", "oci-archive:x.tar"],
            "archives are read-only: use --output oci:DIR, or --dry-run",
        ),
        (
            &["index", "--creds", "me:secret", "--password-stdin", "x"],
            "--creds already has a password; with --password-stdin use --creds USER",
        ),
        (&["index", "--jobs", "0", "x"], "expected a whole number from 1 to 256"),
    ] {
        let refused = sandbox.run(args);
        assert!(refused.contains(answer), "{args:?}: {refused}");
        assert!(!refused.ends_with("--- status 0 ---"), "{args:?}: {refused}");
        if refused.contains("error: invalid value") {
            assert!(refused.ends_with("--- status 2 ---"), "{args:?}: {refused}");
        }
    }
    assert_eq!(std::fs::read_dir(host).unwrap().count(), 0, "install wrote something");
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
    for (args, answer) in [
        (&["ls", "dir:img"][..], "unsupported prefix \"dir:\": use oci:DIR"),
        (&["convert", "oci:img", "dir:out"], "cannot write to \"dir:\": write REGISTRY"),
        (&["ls", "./img"], "\"./img\" is a path: write oci:./img for an image layout"),
        (&["ls", "./img.tar"], "write oci-archive:./img.tar, or docker-archive:./img.tar"),
    ] {
        let said = sandbox.run(args);
        assert!(said.contains(answer), "{said}");
        assert!(said.ends_with("--- status 2 ---"), "{said}");
    }
}
