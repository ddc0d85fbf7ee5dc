//! Runs the examples of the pure crate. (`tests/servers/index.rs` runs `push_index`.)

use ociseek_testkit::layers::{gzip, tar};

#[path = "../../crates/ociseek-format/examples/index_layer.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod index_layer;
#[path = "../../crates/ociseek-format/examples/read_file.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod read_file;

#[test]
fn a_file_is_read_through_the_ztoc_of_its_layer() {
    let dir = tempfile::tempdir().unwrap();
    let [layer, ztoc] = ["layer", "ztoc"].map(|name| dir.path().join(name));
    std::fs::write(&layer, gzip(&tar(), 6)).unwrap();
    let said = index_layer::index_layer(&layer, &ztoc).unwrap();
    assert!(said.contains(" entries in 1 spans, sha256:"), "{said}");
    let mut archive = tar::Archive::new(std::io::Cursor::new(tar()));
    let mut files = 0;
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap_or_default().to_owned();
        if entry.header().entry_type().is_file() && !name.is_empty() {
            let mut content = Vec::new();
            let mut read = Vec::new();
            std::io::copy(&mut entry, &mut content).unwrap();
            read_file::read_file(&layer, &ztoc, &name, &mut read).unwrap();
            assert!(read == content, "{name}");
            files += 1;
        }
    }
    assert!(files > 2, "{files}");
    assert!(read_file::read_file(&layer, &ztoc, "no/such/file", &mut Vec::new()).is_err());
}
