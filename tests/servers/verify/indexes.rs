//! Faults of an index itself, each with its code.

use ociseek_format::digest::Digest;
use ociseek_ops::discover::MAX_ZTOC;
use serde_json::{Value, json};

use super::damage::consumer;
use super::image::{Image, codes, found};
use ociseek_testkit::sandbox::{self, GZIP, OCI_INDEX, OCI_MANIFEST, ZSTD, enabled};
use ociseek_testkit::servers;

#[test]
fn the_index_document() {
    let image = Image::new();
    image.edit_index(",\"subject\"", ", \"subject\"");
    found(&image, &["not-canonical"], &["not-canonical"]);

    let image = Image::new();
    image.edit_index("span-size\":\"16384\"", "span-size\":\"16385\"");
    found(&image, &["span-size-annotation"], &["span-size-annotation"]);

    let image = Image::new();
    image.edit_index("layer.v1.tar+gzip", "layer.v1.tar");
    found(&image, &["media-type-annotation"], &["media-type-annotation"]);

    let image = Image::new();
    let layer = image.layers[0].to_string();
    let other = Digest::sha256(b"of another image").to_string();
    image.edit_index(&layer, &other);
    found(&image, &["layer-not-in-image"], &["layer-not-in-image"]);

    let image = Image::new();
    let first = image.layers[0].to_string();
    let second = image.layers[2].to_string();
    image.edit_index(&second, &first);
    found(&image, &["second-ztoc"], &["second-ztoc"]);
    // The last one is used, as by soci-snapshotter. Here it is another layer's.
    found(&image, &["size"], &["size"]);
    assert_eq!(consumer(&image, 3)["reason"]["code"], "wrong-ztoc");

    // The ztoc of one layer, listed for another one.
    let image = Image::new();
    let ztoc = image.read(&image.ztoc(2).0);
    image.replace_ztoc(0, &ztoc);
    found(&image, &["size", "span-digest"], &["size", "span-digest"]);
}

#[test]
fn an_image_manifest_with_an_invalid_index_digest() {
    let image = Image::new();
    let name = |name: &str| json!({"org.opencontainers.image.ref.name": name});
    let old = image.tagged("v1");
    let mut manifest: Value = serde_json::from_slice(&image.read(&old)).unwrap();
    manifest["annotations"] = json!({"com.amazon.soci.index-digest": "not a digest"});
    image.list(&manifest, &name("odd"));
    image.sandbox.run(&["index", "--quiet", "--no-cache", "--min-layer-size=1KiB", "oci:img:odd"]);
    let document =
        image.sandbox.json(3, &["verify", "--format=json", "--progress=none", "oci:img:odd"]);
    assert_eq!(codes(&document), ["annotation"]);
}

#[test]
fn the_first_of_two_indexes() {
    let image = Image::unindexed(|_| {});
    image.run_index(&["--build-tool-identifier=someone else's"]);
    image.run_index(&["--build-tool-identifier=another one's"]);
    // soci's decoder rejects unknown fields.
    image.edit_index("{", "{\"unknown\":1,");
    found(&image, &["index-malformed"], &["index-malformed"]);
    let first = image.indexes()[0].to_string();
    let second = image.indexes()[1].to_string();
    let inspected = image.sandbox.doctor("oci:img:v1");
    let indexes = inspected["manifests"][0]["indexes"].as_array().unwrap();
    assert_eq!((&indexes[0]["chosen"], &indexes[1]["chosen"]), (&false.into(), &true.into()));
    let code = &inspected["manifests"][0]["consumers"][1]["reason"]["code"];
    assert_eq!(code, "unusable", "consumers look at the first only");
    let output =
        image.sandbox.command(&["ls", "--json", "--no-cache", "oci:img:v1"]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains(&format!("skipping SOCI index {first}")), "{errors}");
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed["index"]["digest"], second);
}

#[test]
fn an_index_of_another_image() {
    // A layout lists by subject, so it is not an index of this image there.
    let image = Image::new();
    let text = image.manifest();
    let subject = text.split("\"subject\":").nth(1).unwrap().split("sha256:").nth(1).unwrap()[..64]
        .to_owned();
    let other = Digest::sha256(b"another image").hex();
    image.edit_index(&subject, &other);
    let output = image.sandbox.command(&["verify", "oci:img:v1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    // A registry's tag can list it.
    let (Some(server), Some(crane)) = (servers::Server::crane(), servers::tool("crane")) else {
        return;
    };
    let image = Image::unindexed(|_| {});
    let name = format!("{}/app:v1", server.host);
    servers::run(&crane, &["push", image.dir.to_str().unwrap(), &name]);
    image.sandbox.run(&sandbox::index(&["--quiet", &name]));
    let inspected = image.sandbox.doctor(&name);
    let found = inspected["manifests"][0]["indexes"][0]["digest"].as_str().unwrap().to_owned();
    assert_eq!(inspected["manifests"][0]["indexes"][0]["found_by"], "tag-schema");
    let manifest = servers::run(&crane, &["manifest", &format!("{}/app@{found}", server.host)]);
    let manifest = manifest.trim_end().replace(&subject, &other);
    let digest = Digest::sha256(manifest.as_bytes());
    server.put_manifest("app", &digest.to_string(), OCI_MANIFEST, manifest.as_bytes());
    let tag = format!("sha256-{subject}");
    let list = servers::run(&crane, &["manifest", &format!("{}/app:{tag}", server.host)]);
    let list = list.trim_end().replace(&found, &digest.to_string());
    server.put_manifest("app", &tag, OCI_INDEX, list.as_bytes());
    let document = image.sandbox.json(3, &["verify", "--format=json", &name]);
    assert_eq!(codes(&document), ["subject"]);
}

#[test]
fn a_missing_or_damaged_index() {
    let image = Image::new();
    enabled(&image.sandbox);
    let args = ["verify", "--format=json", "--progress=none", "oci:enabled:v1"];
    let index = image.sandbox.json(0, &args)["manifests"][0]["indexes"][0]["digest"].clone();
    let index: Digest = index.as_str().unwrap().parse().unwrap();
    let path = image.sandbox.path("enabled/blobs/sha256").join(index.hex());
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(codes(&image.sandbox.json(3, &args)), ["index-damaged"]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(codes(&image.sandbox.json(3, &args)), ["index-missing"]);
}

#[test]
fn more_indexes_than_are_read() {
    let image = Image::new();
    let first = image.manifest();
    let tool = serde_json::from_str::<Value>(&first).unwrap()["annotations"]["com.amazon.soci.build-tool-identifier"]
        .as_str()
        .unwrap()
        .to_owned();
    for number in 1..32 {
        let another = first.replace(&tool, &format!("another {number}"));
        image.list_blob(&image.write(another.as_bytes()), another.len(), &Value::Null);
    }
    found(&image, &[], &[]);
    let last = first.replace(&tool, "the last one");
    image.list_blob(&image.write(last.as_bytes()), last.len(), &Value::Null);
    found(&image, &["index-unread"], &["index-unread"]);
}

#[test]
fn a_ztoc_for_a_layer_that_cannot_have_one() {
    let image = Image::new();
    let subject =
        serde_json::from_str::<Value>(&image.manifest()).unwrap()["subject"]["digest"].clone();
    let subject: Digest = subject.as_str().unwrap().parse().unwrap();
    let manifest = String::from_utf8(image.read(&subject)).unwrap();
    // Both media types have as many bytes, so no size changes.
    let other = image.write(manifest.replacen(GZIP, ZSTD, 1).as_bytes());
    let list = image.dir.join("index.json");
    let listed =
        std::fs::read_to_string(&list).unwrap().replace(&subject.to_string(), &other.to_string());
    std::fs::write(&list, listed).unwrap();
    image.edit_index(&subject.to_string(), &other.to_string());
    found(&image, &["layer-not-servable"], &["layer-not-servable"]);
}

/// It does no harm, so `verify` only warns of it.
#[test]
fn a_blob_of_an_unknown_type() {
    let image = Image::new();
    let other = image.write(b"something else");
    let entry =
        format!(r#",{{"mediaType":"application/x-else","digest":"{other}","size":14}}],"subject""#);
    image.edit_index(r#"],"subject""#, &entry);
    let warnings = image.verify(0, &[])["manifests"][0]["warnings"].to_string();
    assert!(
        warnings.contains(&format!("{other} is neither a ztoc nor a prefetch list")),
        "{warnings}"
    );
    let inspected = image.sandbox.doctor("oci:img:v1");
    assert_eq!(inspected["manifests"][0]["indexes"][0]["notes"][0]["code"], "unknown-blob");
}

/// Its size is enough: nobody fetches it.
#[test]
fn a_too_large_ztoc() {
    let image = Image::new();
    let (ztoc, size) = image.ztoc(0);
    let entry = |size: u64| format!("\"digest\":\"{ztoc}\",\"size\":{size}");
    image.edit_index(&entry(size), &entry(MAX_ZTOC + 1));
    found(&image, &["ztoc-too-large"], &["ztoc-too-large"]);
}
