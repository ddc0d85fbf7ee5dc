//! The files that a step of CI leaves: outputs and summary.

use ociseek_testkit::sandbox::{Sandbox, index, small_image};

#[test]
fn step_files_are_appended_to_and_report_failures() {
    let sandbox = Sandbox::with_small_image();
    std::fs::write(sandbox.path("out"), "before=1\n").unwrap();
    let files = ["--step-outputs=out", "--step-summary=sum"];
    sandbox.run(&index(&[files[0], files[1], "oci:img", "oci:nothing"]));
    sandbox.run(&index(&[files[0], files[1], "--strict", "--existing=replace", "oci:img"]));
    let read = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    insta::assert_snapshot!(read("out"), @r#"
    before=1
    status=failed
    image_digest=sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
    index_digest=sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
    index_digests=sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
    coverage=99.99
    enabled_digest=
    status=failed
    image_digest=
    index_digest=
    index_digests=
    coverage=99.99
    enabled_digest=
    "#);
    insta::assert_snapshot!(read("sum"), @r#"
    ### SOCI index

    | image | platform | index | covered | left out |
    |---|---|---|---|---|
    | `oci:img` | linux/amd64 | `sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95` attached | 99.99% of 262.2 KiB, 3 of 4 layers | 1 layer |
    | `oci:nothing` | | failed | | |

    - linux/amd64: layer `ee25e607aff9` (24 B) is left out: zstd: SOCI consumers support only gzip and uncompressed layers
    - **`oci:nothing`**: cannot open nothing: No such file or directory (os error 2)

    ### SOCI index

    | image | platform | index | covered | left out |
    |---|---|---|---|---|
    | `oci:img` | linux/amd64 | refused | 99.99% of 262.2 KiB, 3 of 4 layers | 1 layer |

    - linux/amd64: layer `ee25e607aff9` (24 B) is left out: zstd: SOCI consumers support only gzip and uncompressed layers
    - **`oci:img`**: nothing was written: the index does not meet the requirements
      - linux/amd64: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 was left out: zstd: SOCI consumers support only gzip and uncompressed layers
    "#);
    let text = sandbox.run(&index(&["--step-outputs=no/such/dir", "oci:img"]));
    assert!(
        text.contains("error: no/such/dir: cannot write") && text.ends_with("--- status 1 ---"),
        "{text}"
    );
}

#[test]
fn a_name_cannot_add_an_output_or_markup() {
    let sandbox = Sandbox::new();
    let evil = "a|b`\nstatus=ok\n<img src=x>";
    small_image(&sandbox.path(evil));
    let image = format!("oci:{evil}");
    sandbox.run(&index(&["--step-outputs=out", "--step-summary=sum", &image]));
    let read = |name: &str| std::fs::read_to_string(sandbox.path(name)).unwrap();
    assert_eq!(read("out").lines().count(), 6, "{}", read("out"));
    let summary = read("sum");
    assert!(
        !summary.contains("a|b") && summary.lines().all(|line| !line.starts_with("<img")),
        "{summary}"
    );
}
