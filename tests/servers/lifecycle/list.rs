//! `ociseek list`.

use serde_json::Value;

use super::{found, image, indexed_by, pushed_from, registries, subjects};
use ociseek_testkit::sandbox::{OCI_MANIFEST, Sandbox, enabled, index, small_image};

/// The name, the status, and for each platform the versions of its indexes.
fn rows(report: &Value) -> Vec<(String, String, Vec<Vec<u64>>)> {
    let versions = |m: &Value| {
        m["indexes"].as_array().unwrap().iter().map(|i| i["version"].as_u64().unwrap()).collect()
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let row = |image: &Value| {
        let manifests = image["manifests"].as_array().unwrap().iter().map(versions).collect();
        (text(&image["name"]), text(&image["status"]), manifests)
    };
    report["images"].as_array().unwrap().iter().map(row).collect()
}

fn row(name: &str, status: &str, versions: &[&[u64]]) -> (String, String, Vec<Vec<u64>>) {
    (name.to_owned(), status.to_owned(), versions.iter().map(|v| v.to_vec()).collect())
}

#[test]
fn tags_of_a_repository_are_listed() {
    for server in registries() {
        let Some((sandbox, image)) = image(&server) else { return };
        let ours = indexed_by(&sandbox, "ociseek v0.0.1", &image);
        let Some(_) = pushed_from(&sandbox, "img", &server, "a/b:v1-too") else { return };
        small_image(&sandbox.path("small"));
        let Some(_) = pushed_from(&sandbox, "small", &server, "a/b:w") else { return };
        // A SOCI-enabled image: the index of `img` with version 2.
        std::fs::rename(sandbox.path("img"), sandbox.path("two")).unwrap();
        small_image(&sandbox.path("img"));
        sandbox.json(0, &index(&["--format=json", "oci:img"]));
        enabled(&sandbox);
        let Some(_) = pushed_from(&sandbox, "enabled", &server, "a/b:x") else { return };
        // An artifact.
        let (_, config) = server.request("GET", &format!("/v2/a/b/manifests/{}", ours[0]));
        server.put_manifest("a/b", "z-artifact", OCI_MANIFEST, config.as_bytes());

        let repository = format!("{}/a/b", server.host);
        let report = sandbox.json(0, &["list", "--format=json", &repository]);
        let two: &[&[u64]] = &[&[1], &[1]];
        assert_eq!(
            rows(&report),
            [
                row("v1", "ok", two),
                row("v1-too", "ok", two),
                row("w", "ok", &[&[]]),
                row("x", "ok", &[&[2]]),
                row("z-artifact", "not-an-image", &[]),
            ]
        );
        let subject = &subjects(&sandbox, &image)[0];
        let log = sandbox.run(&["-v", "list", &format!("{repository}@{subject}")]);
        assert_eq!(
            log.matches(&format!("/manifests/{subject} ")).count(),
            1,
            "it is read once: {log}"
        );
        let first = &report["images"][0]["manifests"][0];
        assert_eq!(first["platform"], "linux/amd64");
        assert_eq!(first["manifest"]["digest"].as_str(), Some(&**subject));
        assert_eq!(
            (&first["indexes"][0]["digest"], &first["indexes"][0]["chosen"]),
            (&ours[0].clone().into(), &true.into())
        );
        assert_eq!(first["indexes"][0]["tool"], "ociseek v0.0.1");
        let coverage = &first["indexes"][0]["coverage"];
        assert_eq!(
            (&coverage["layers"], &coverage["of_layers"], &coverage["percent"]),
            (&2.into(), &2.into(), &100.0.into())
        );
        assert!(coverage["ztoc_bytes"].as_u64().unwrap() > 0);

        let text = sandbox.run(&["list", &repository]);
        let line = |start: &str| {
            text.lines().find(|line| line.starts_with(start)).unwrap_or_default().to_owned()
        };
        let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let v1 = words(line("v1 "));
        assert_eq!(v1[..5], ["v1", "linux/amd64", "1", "2/2", "100%"], "{text}");
        assert_eq!(v1[v1.len() - 2..], ["ociseek", "v0.0.1"], "{text}");
        assert_eq!(words(line("w ")), ["w", "linux/amd64", "none"], "{text}");
        assert_eq!(words(line("x "))[2], "2", "{text}");
        assert!(!text.contains("z-artifact") && !text.contains("sha256-"), "{text}");
        assert!(sandbox.run(&["list", "--all", &repository]).contains("z-artifact"));

        // A single image, by its tag.
        let one = sandbox.json(0, &["list", "--format=json", &image]);
        assert_eq!(rows(&one), [row("v1", "ok", two)]);
        // distribution reports that the repository does not exist, olareg that it has no tags.
        let none = sandbox.run(&["list", &format!("{}/a/none", server.host)]);
        let unknown = none.contains("404") && none.ends_with("--- status 1 ---");
        assert!(unknown || none.ends_with("/a/none: no tags\n--- status 0 ---"), "{none}");
        let none = sandbox.run(&["list", &format!("{repository}:none")]);
        assert!(none.contains("1 of 1 images could not be read"), "{none}");
    }
}

#[test]
fn images_of_a_layout_are_listed() {
    let sandbox = Sandbox::with_small_image();
    let report = sandbox.json(0, &["list", "--format=json", "oci:img"]);
    assert_eq!(rows(&report), [row("v1", "ok", &[&[]])]);
    sandbox.json(0, &index(&["--format=json", "oci:img"]));
    let report = sandbox.json(0, &["list", "--format=json", "oci:img"]);
    assert_eq!(rows(&report), [row("v1", "ok", &[&[1]])]);
    let coverage = &report["images"][0]["manifests"][0]["indexes"][0]["coverage"];
    assert_eq!((&coverage["layers"], &coverage["of_layers"]), (&3.into(), &4.into()));
    assert_eq!(found(&sandbox, "oci:img").len(), 1);
    // Named by its tag, it is listed by its tag. The header is as wide as a digest.
    let by_tag = sandbox.json(0, &["list", "--format=json", "oci:img:v1"]);
    assert_eq!(rows(&by_tag), [row("v1", "ok", &[&[1]])]);
    let digest = &report["images"][0]["digest"].as_str().unwrap();
    let by_digest = sandbox.run(&["list", &format!("oci:img@{digest}")]);
    let lines: Vec<&str> = by_digest.lines().collect();
    assert_eq!(lines[0].find("PLATFORM"), lines[1].find("linux/"), "{by_digest}");
}

/// `crane pull --format=oci` writes entries without a name, and other tools keys in another order.
/// `index` adds its entry and leaves the rest as it was.
#[test]
fn layouts_of_other_tools_are_listed_and_kept() {
    let sandbox = Sandbox::with_small_image();
    let path = sandbox.path("img/index.json");
    let own: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let digest = own["manifests"][0]["digest"].as_str().unwrap();
    let size = &own["manifests"][0]["size"];
    let null = r#""annotations":{"y":null},"urls":null,"platform":null"#;
    let entry = format!(
        r#"{{"size":{size},"x":null,"digest":"{digest}",{null},"mediaType":"{OCI_MANIFEST}"}}"#
    );
    let text = format!(r#"{{"manifests":[{entry}],"other":{{"b":1,"a":[]}},"schemaVersion":2}}"#);
    std::fs::write(&path, &text).unwrap();
    for versions in [&[][..], &[1]] {
        let report = sandbox.json(0, &["list", "--format=json", "oci:img"]);
        assert_eq!(rows(&report), [row(digest, "ok", &[versions])]);
        if versions.is_empty() {
            sandbox.json(0, &index(&["--format=json", "oci:img"]));
        }
    }
    let after = std::fs::read_to_string(&path).unwrap();
    let after = after.replace([' ', '\n'], "");
    assert!(after.starts_with(&format!(r#"{{"manifests":[{entry},{{"#)), "{after}");
    assert!(after.ends_with(r#"],"other":{"b":1,"a":[]},"schemaVersion":2}"#), "{after}");
}

/// skopeo and podman keep full names, and let one follow the path.
#[test]
fn an_image_of_a_layout_is_named_in_full() {
    let sandbox = Sandbox::with_small_image();
    let path = sandbox.path("img/index.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut both: Value =
        serde_json::from_str(&text.replace("\"v1\"", "\"localhost/a:v1\"")).unwrap();
    let mut other = both["manifests"][0].clone();
    other["annotations"]["org.opencontainers.image.ref.name"] = "localhost/b:v1".into();
    both["manifests"].as_array_mut().unwrap().push(other);
    std::fs::write(&path, both.to_string()).unwrap();
    let mut tar = tar::Builder::new(std::fs::File::create(sandbox.path("img.tar")).unwrap());
    tar.append_dir_all(".", sandbox.path("img")).unwrap();
    tar.into_inner().unwrap();
    for store in ["oci:img", "oci-archive:img.tar"] {
        let name = format!("{store}:localhost/a:v1");
        assert_eq!(sandbox.doctor(&name)["image"], name);
        let said = sandbox.run(&["ls", &format!("{store}:localhost/c:v1")]);
        assert!(said.contains("localhost/c:v1") && said.ends_with("--- status 1 ---"), "{said}");
    }
}
