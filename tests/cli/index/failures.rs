//! What fails, and what is done all the same.

use std::process::Stdio;

use super::referrers;
use insta::assert_snapshot;
use ociseek_testkit::sandbox::{
    GZIP, Layout, Sandbox, gzip, index, masked, small_image, tar, two_platforms,
};

#[test]
fn a_broken_layer_is_an_error_and_nothing_is_attached() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let sound = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let whole = gzip(&tar(2, 2, 20_000));
    let cut = layout.blob(GZIP, &whole[..9000]);
    let image = layout.image("amd64", &[sound, cut]);
    layout.tag(image, "v1");
    let before = sandbox.files("img");
    assert_snapshot!(sandbox.run(&index(&["oci:img"])), @r#"
    --- stderr ---
    error: oci:img: layer sha256:ba1e62f6fa161cab5ca6e440e40a27434464d54dceaba4c6c6e93a8143925cb3 is broken: the gzip data is truncated at byte 9000, inside the compressed data of member 1
    hint: nothing was pushed for this image; if the image can be pulled, the layer was damaged in transit: try again
    --- status 1 ---
    "#);
    assert!(before == sandbox.files("img"), "something was written");
}

#[test]
fn a_layer_with_a_wrong_digest_is_an_error() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let layer = layout.blob(GZIP, &gzip(&tar(1, 2, 20_000)));
    let other = gzip(&tar(9, 2, 20_000));
    let digest = layer["digest"].as_str().unwrap().trim_start_matches("sha256:").to_owned();
    let image = layout.image("amd64", std::slice::from_ref(&layer));
    layout.tag(image, "v1");
    let mut same_size = other.clone();
    same_size.resize(layer["size"].as_u64().unwrap() as usize, 0);
    std::fs::write(sandbox.path("img/blobs/sha256").join(digest), same_size).unwrap();
    let text = sandbox.run(&index(&["oci:img"]));
    assert!(text.contains("layer sha256:") && text.ends_with("--- status 1 ---"), "{text}");
    assert_eq!(referrers(&sandbox, "img").len(), 0);
}

#[test]
fn one_failing_image_does_not_stop_the_others() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("a"));
    two_platforms(&sandbox.path("c"));
    let text = sandbox.run(&index(&["-q", "oci:a", "oci:b", "oci:c"]));
    assert_snapshot!(text, @r#"
    sha256:7ba91f25e64fb255f5510254beaeae348c0ee10f47410cae69a419f778d6ac95
    sha256:cb0bc10a529cd8114f6ef4e257eca331f8749db1e13d69479aba003329a1852d
    sha256:d355c6ca99448a34a8995e0d10b33e041b590f5d451b70da9053d7136d58efce
    --- stderr ---
    error: oci:b: cannot open b: No such file or directory (os error 2)
    error: 1 of 3 images failed
    --- status 1 ---
    "#);
}

#[test]
fn a_closed_pipe_does_not_stop_indexing() {
    let sandbox = Sandbox::with_small_image();
    let mut child = sandbox
        .command(&index(&["oci:img"]))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), masked(std::str::from_utf8(&output.stderr).unwrap())),
        (Some(0), String::new())
    );
    assert_eq!(referrers(&sandbox, "img").len(), 1);
}
