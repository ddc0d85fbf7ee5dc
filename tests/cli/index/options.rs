//! Options, and the variables that stand for them.

use insta::assert_snapshot;
use ociseek_testkit::sandbox::{Sandbox, index, shown};

#[test]
fn any_number_of_jobs_gives_the_same_index() {
    let sandbox = Sandbox::with_small_image();
    let digests: Vec<String> = ["1", "2", "64"]
        .iter()
        .map(|n| sandbox.run(&index(&["-q", "--dry-run", "--jobs", n, "oci:img"])))
        .collect();
    assert!(digests.windows(2).all(|two| two[0] == two[1]), "{digests:?}");
}

#[test]
fn options_are_read_from_the_environment() {
    let sandbox = Sandbox::with_small_image();
    let mut command = sandbox.command(&["index", "oci:img"]);
    for (name, value) in [
        ("MIN_LAYER_SIZE", "1KiB"),
        ("SPAN_SIZE", "16KiB"),
        ("BUILD_TOOL_IDENTIFIER", "test"),
        ("DRY_RUN", "1"),
        ("QUIET", "true"),
        ("NO_CACHE", "yes"),
        ("PLATFORM", "linux/amd64"),
    ] {
        command.env(format!("OCISEEK_{name}"), value);
    }
    let by_environment = shown(&mut command);
    assert_eq!(by_environment, sandbox.run(&index(&["-q", "--dry-run", "oci:img"])));
}

#[test]
fn the_error_for_a_wrong_value_names_its_variable() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["index", "oci:img"]);
    assert_snapshot!(shown(command.env("OCISEEK_SPAN_SIZE", "abc")), @r"
    --- stderr ---
    error: invalid value 'abc' for '$OCISEEK_SPAN_SIZE': expected a size, such as 4MiB, 64KiB or 512B

    For more information, try '--help'.
    --- status 2 ---
    ");
    // Arguments take precedence over variables.
    let mut command = sandbox.command(&["index", "--span-size=x", "oci:img"]);
    let typed = shown(command.env("OCISEEK_SPAN_SIZE", "abc"));
    assert!(typed.contains("invalid value 'x' for '--span-size <SIZE>'"), "{typed}");
    // A variable does not add its option to the usage line.
    let usage = shown(sandbox.command(&["index"]).env("OCISEEK_CACHE_DIR", "/nowhere"));
    assert!(usage.contains("Usage: ociseek index [OPTIONS] <IMAGE>...\n"), "{usage}");
}
