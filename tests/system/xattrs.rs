//! Images without extended attributes, of which the kernel asks once for all files.

use std::ffi::OsStr;

use rustix::io::Errno;
use serde_json::json;

use ociseek_testkit::mounts::{MountProcess, image, system, xattrs};
use ociseek_testkit::sandbox::{self, Sandbox};

#[test]
fn images_without_extended_attributes_report_no_support() {
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    image(&sandbox, "img", &[sandbox::tar(1, 3, 200_000)], &json!({}));
    std::fs::create_dir(sandbox.path("mnt")).unwrap();
    let _serving = MountProcess::start(&sandbox, &["mount", "oci:img:v1", "mnt"]);
    let file = sandbox.path("mnt/dir1/file0");
    for _ in 0..2 {
        let value = rustix::fs::getxattr(&file, "trusted.overlay.opaque", &mut [0; 10][..]);
        assert_eq!(value, Err(Errno::OPNOTSUPP));
        assert!(xattrs(&file).is_empty());
    }
    // Programs that copy them go on without.
    system("cp", &[OsStr::new("-a"), file.as_os_str(), sandbox.path("copy").as_os_str()]);
    assert_eq!(std::fs::read(sandbox.path("copy")).unwrap(), std::fs::read(&file).unwrap());
}
