//! What the program says when it is asked for help, or asked wrongly.

#[path = "cli/support.rs"]
mod support;

use insta::assert_snapshot;
use support::Sandbox;

#[test]
fn help() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["--help"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--help"]), @"");
    assert_snapshot!(sandbox.run(&["ztoc", "create", "--help"]), @"");
    assert_snapshot!(sandbox.run(&["ztoc", "show", "-h"]), @"");
}

#[test]
fn wrong_usage_is_status_2() {
    let sandbox = Sandbox::new();
    assert_snapshot!(sandbox.run(&["index"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--span-size", "4MB", "x"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--span-size", "0", "x"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--platform", "amd64", "x"]), @"");
    assert_snapshot!(sandbox.run(&["index", "docker://alpine"]), @"");
    assert_snapshot!(sandbox.run(&["index", "Alpine"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--output", "dir", "x"]), @"");
    assert_snapshot!(sandbox.run(&["index", "oci-archive:x.tar"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--creds", "me", "x"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--creds", "me:secret", "--password-stdin", "x"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--client-cert", "c.pem", "x"]), @"");
    assert_snapshot!(sandbox.run(&["index", "--jobs", "0", "x"]), @"");
    assert_eq!(sandbox.command(&[]).output().unwrap().status.code(), Some(2));
}

#[test]
fn every_option_of_index_has_an_environment_variable() {
    let sandbox = Sandbox::new();
    let help = sandbox.run(&["index", "--help"]);
    let options: Vec<&str> = (help.lines().map(str::trim))
        .filter_map(|line| {
            line.strip_prefix("-o, ").or(line.strip_prefix("-j, ")).or(line.strip_prefix("-q, ")).or(Some(line))
        })
        .filter_map(|line| line.strip_prefix("--"))
        .filter_map(|line| line.split([' ', '.']).next())
        .filter(|name| !matches!(*name, "help" | "version"))
        .collect();
    assert!(options.len() >= 20, "{options:?}");
    for option in options {
        let variable = format!("OCISEEK_{}", option.to_uppercase().replace('-', "_"));
        let shown = [format!("[env: {variable}=]"), format!("[env: {variable}]")];
        assert!(shown.iter().any(|s| help.contains(s)), "{option} has no {variable}");
    }
}

#[test]
fn secrets_in_the_environment_are_not_shown() {
    let mut command = Sandbox::new().command(&["index", "--help"]);
    let output = command.current_dir("/").env("OCISEEK_CREDS", "me:s3cret").output().unwrap();
    assert!(!String::from_utf8(output.stdout).unwrap().contains("s3cret"));
}
