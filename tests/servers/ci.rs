//! The features for CI: the gates of `index`, its step files, the GitHub action, the GitLab
//! component, and the release's scripts.

use crate::support::sandbox;
use crate::support::servers;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::sandbox::{GZIP, Layout, Sandbox, gzip, index, shown, small_image, tar, two_platforms};
use crate::support::servers::{Server, run, tool};
use serde_json::Value;
use yaml_rust2::{Yaml, YamlLoader};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `index` with the options of [`index`], but another minimum layer size.
fn index_from<'a>(least: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    index(args).into_iter().map(|arg| if arg == "--min-layer-size=1KiB" { least } else { arg }).collect()
}

fn referrers(sandbox: &Sandbox) -> usize {
    let index: Value = serde_json::from_slice(&std::fs::read(sandbox.path("img/index.json")).unwrap()).unwrap();
    index["manifests"].as_array().unwrap().len() - 1
}

// ---- the gates

#[test]
fn strict_names_each_layer_that_is_left_out_and_attaches_nothing() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    insta::assert_snapshot!(sandbox.run(&index(&["--strict", "oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      d92a9332da0b    61.0 KiB  4 spans  2 files      ztoc 840 B
      ee25e607aff9        24 B  left out: zstd: SOCI consumers support only gzip and uncompressed layers
      bbd59e0ff808     2.0 KiB   1 span   1 file   ztoc 32.4 KiB
      covers 3 of 4 layers, 99.99% of 262.2 KiB
      refused: nothing was attached
    --- stderr ---
    error: oci:img: nothing was attached: the index does not meet the requirements
      linux/amd64: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 was left out: zstd: SOCI consumers support only gzip and uncompressed layers
    --- status 1 ---
    "#);
    assert_eq!(referrers(&sandbox), 0);
    // Without --strict, the same layer is left out and the rest is indexed. After that, the
    // existing index counts.
    sandbox.json(0, &index(&["--format=json", "oci:img"]));
    assert_eq!(referrers(&sandbox), 1);
    let again = sandbox.json(1, &index(&["--format=json", "--strict", "oci:img"]));
    let image = &again["images"][0];
    assert_eq!((&image["status"], &image["manifests"][0]["status"]), (&"failed".into(), &"refused".into()));
    let shortfalls = image["manifests"][0]["shortfalls"].as_array().unwrap();
    assert_eq!(shortfalls.len(), 1);
    assert_eq!(shortfalls[0]["code"], "left-out");
    assert!(shortfalls[0]["text"].as_str().unwrap().contains("zstd"));
    assert_eq!(referrers(&sandbox), 1);
}

#[test]
fn small_layers_are_no_reason_for_strict() {
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    let report = sandbox.json(0, &index_from("--min-layer-size=100KiB", &["--format=json", "--strict", "oci:img"]));
    let manifest = &report["images"][0]["manifests"][0];
    assert_eq!((&manifest["coverage"]["layers"], &manifest["coverage"]["of_layers"]), (&1.into(), &2.into()));
}

#[test]
fn one_platform_that_falls_short_keeps_all_from_being_attached() {
    let sandbox = Sandbox::new();
    let mut layout = Layout::new(&sandbox.path("img"));
    let good = layout.blob(GZIP, &gzip(&tar(1, 4, 50_000)));
    let zstd = layout.blob(sandbox::ZSTD, b"\x28\xb5\x2f\xfd, which nobody reads");
    let images = [("amd64", vec![good.clone()]), ("arm64", vec![good, zstd])]
        .map(|(architecture, layers)| sandbox::for_platform(layout.image(architecture, &layers), architecture));
    let list = layout.image_index(&images);
    layout.tag(list, "v1");
    let report = sandbox.json(1, &index(&["--format=json", "--strict", "oci:img"]));
    let manifests = report["images"][0]["manifests"].as_array().unwrap();
    assert_eq!(manifests.iter().map(|m| m["shortfalls"].as_array().unwrap().len()).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(referrers(&sandbox), 0);
    sandbox.json(0, &index(&["--format=json", "--strict", "--platform=linux/amd64", "oci:img"]));
    assert_eq!(referrers(&sandbox), 1);
}

#[test]
fn coverage_is_a_share_of_the_compressed_bytes() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    insta::assert_snapshot!(
        sandbox.run(&index_from("--min-layer-size=0", &["--min-coverage=100%", "oci:img"])), @r#"
    oci:img linux/amd64
      manifest sha256:7b5d53755571bed73fb0013e5a6dd83c86fc3d4374f959368e093c1d698f32ad
      b7ffb93ee50b   199.1 KiB  9 spans  4 files  ztoc 289.6 KiB
      d92a9332da0b    61.0 KiB  4 spans  2 files      ztoc 840 B
      ee25e607aff9        24 B  left out: zstd: SOCI consumers support only gzip and uncompressed layers
      bbd59e0ff808     2.0 KiB   1 span   1 file   ztoc 32.4 KiB
      covers 3 of 4 layers, 99.99% of 262.2 KiB
      refused: nothing was attached
    --- stderr ---
    error: oci:img: nothing was attached: the index does not meet the requirements
      linux/amd64: 99.99% of 262.2 KiB in layers covered, less than 100%: 24 B missing
    --- status 1 ---
    "#);
    assert_eq!(referrers(&sandbox), 0);
    for (least, layers, status) in [("100%", "100KiB", 0), ("100%", "1KiB", 0), ("99.9%", "0", 0), ("100", "0", 1)] {
        let (least, layers) = (format!("--min-coverage={least}"), format!("--min-layer-size={layers}"));
        let report = sandbox.json(status, &index_from(&layers, &["--dry-run", "--format=json", &least, "oci:img"]));
        let coverage = &report["images"][0]["manifests"][0]["coverage"];
        assert_eq!(coverage["of_bytes"], 268_483, "{coverage}");
    }
    assert_eq!(referrers(&sandbox), 0);
}

#[test]
fn an_image_of_small_layers_passes() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    let least = "--min-layer-size=1GiB";
    for gate in [&[][..], &["--min-coverage=100%"]] {
        let text = sandbox.run(&index_from(least, &[gate, &["oci:img"]].concat()));
        assert!(text.contains("no index: all layers are small") || text.contains("no index: none"), "{text}");
        assert!(text.ends_with("--- status 0 ---"), "{text}");
    }
}

#[test]
fn an_index_that_is_there_is_measured_and_stays() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    sandbox.run(&index_from("--min-layer-size=100KiB", &["oci:img"]));
    let args = index_from("--min-layer-size=1KiB", &["--existing=keep", "--min-coverage=90%", "oci:img"]);
    let text = sandbox.run(&args);
    assert!(!text.contains("no index") && text.contains("existed before and was kept"), "{text}");
    assert!(text.contains("in layers of at least 1KiB covered, less than 90%: 63.0 KiB missing"), "{text}");
    assert!(text.contains("hint: --existing replace rebuilds the existing index"), "{text}");
    let json = sandbox.json(1, &[&args[..], &["--format=json"]].concat());
    let manifest = &json["images"][0]["manifests"][0];
    assert!(text.contains(manifest["index"]["digest"].as_str().unwrap()), "{text}");
    assert!(manifest["index"]["size"].is_u64(), "{json}");
    assert_eq!(referrers(&sandbox), 1);
}

#[test]
fn what_is_no_percentage_is_wrong_usage() {
    for wrong in ["0.8", "101%", "80%%", "all", ""] {
        let text = Sandbox::new().run(&["index", &format!("--min-coverage={wrong}"), "oci:img"]);
        assert!(text.ends_with("--- status 2 ---") && text.contains("--min-coverage"), "{text}");
    }
}

// ---- outputs and summary

#[test]
fn step_files_are_appended_to_and_tell_of_failures_too() {
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
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
    - **`oci:img`**: nothing was attached: the index does not meet the requirements
      - linux/amd64: layer sha256:ee25e607aff98c0624b0076c4dce5fb633362bf440fcd80f4bffed082398e119 was left out: zstd: SOCI consumers support only gzip and uncompressed layers
    "#);
    let text = sandbox.run(&index(&["--step-outputs=no/such/dir", "oci:img"]));
    assert!(text.contains("error: no/such/dir: cannot write") && text.ends_with("--- status 1 ---"), "{text}");
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
    assert!(!summary.contains("a|b") && summary.lines().all(|line| !line.starts_with("<img")), "{summary}");
}

// ---- the GitHub action

/// A YAML document in this repository.
fn yaml(file: &str) -> Vec<Yaml> {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    YamlLoader::load_from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Runs the GitHub action like a runner.
struct Action {
    document: Yaml,
    /// What `${{ ... }}` stands for.
    context: BTreeMap<String, String>,
    sandbox: Sandbox,
    /// Variables of the runner.
    variables: Vec<(&'static str, String)>,
}

impl Action {
    fn new(inputs: &[(&str, &str)]) -> Action {
        let document = yaml("action.yml").remove(0);
        let mut context = BTreeMap::new();
        for (name, input) in document["inputs"].as_hash().unwrap() {
            let name = name.as_str().unwrap();
            assert!(input["description"].as_str().is_some(), "{name}");
            let given = inputs.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
            let value = given.or(input["default"].as_str()).unwrap_or_else(|| panic!("{name} is required"));
            context.insert(format!("inputs.{name}"), value.to_owned());
        }
        for (given, _) in inputs {
            assert!(context.contains_key(&format!("inputs.{given}")), "the action has no input {given}");
        }
        context.insert("github.action_repository".into(), "acme/ociseek".into());
        context.insert("github.action_ref".into(), "main".into());
        Action { document, context, sandbox: Sandbox::new(), variables: Vec::new() }
    }

    /// The text of both streams, and whether all steps succeeded.
    fn run(&mut self) -> (bool, String) {
        let mut all = String::new();
        let steps = self.document["runs"]["steps"].as_vec().unwrap().clone();
        for (number, step) in steps.iter().enumerate() {
            let file = self.sandbox.path(&format!("step-{number}.sh"));
            let script = step["run"].as_str().unwrap();
            assert!(!script.contains("${{"), "an expression in a script is code for whoever names an image");
            std::fs::write(&file, script).unwrap();
            assert_eq!(step["shell"].as_str(), Some("bash"));
            let outputs = self.sandbox.path(&format!("outputs-{number}"));
            std::fs::write(&outputs, "").unwrap();
            // As the runner calls bash.
            let mut command = Command::new("bash");
            command.args(["--noprofile", "--norc", "-e", "-o", "pipefail"]).arg(&file);
            command.current_dir(self.sandbox.dir.path()).env_clear();
            command.env("PATH", std::env::var("PATH").unwrap()).env("HOME", self.sandbox.dir.path());
            command.env("RUNNER_TEMP", self.sandbox.dir.path()).env("GITHUB_OUTPUT", &outputs);
            command.env("GITHUB_STEP_SUMMARY", self.sandbox.path("summary.md"));
            command.envs(self.variables.iter().map(|(name, value)| (*name, value)));
            for (name, value) in step["env"].as_hash().unwrap() {
                command.env(name.as_str().unwrap(), self.evaluated(value.as_str().unwrap()));
            }
            let output = command.output().unwrap();
            all += &String::from_utf8_lossy(&output.stdout);
            all += &String::from_utf8_lossy(&output.stderr);
            let id = step["id"].as_str().unwrap();
            for line in std::fs::read_to_string(&outputs).unwrap().lines() {
                let (name, value) = line.split_once('=').unwrap();
                self.context.insert(format!("steps.{id}.outputs.{name}"), value.to_owned());
            }
            if !output.status.success() {
                return (false, all);
            }
        }
        (true, all)
    }

    fn evaluated(&self, text: &str) -> String {
        let expression = text.strip_prefix("${{ ").and_then(|text| text.strip_suffix(" }}")).unwrap();
        self.context.get(expression).unwrap_or_else(|| panic!("nothing gives {expression}: {:?}", self.context)).clone()
    }

    fn output(&self, name: &str) -> String {
        self.evaluated(self.document["outputs"][name]["value"].as_str().unwrap())
    }
}

/// Two platforms in a registry, pushed as CI does it; the name by digest.
fn pushed(server: &Server) -> Option<String> {
    let skopeo = tool("skopeo")?;
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    let (from, to) = (format!("oci:{}:v1", sandbox.path("img").display()), format!("docker://{}/a/b:v1", server.host));
    let digest = sandbox.path("digest");
    let file = digest.to_str().unwrap();
    run(&skopeo, &["copy", "--quiet", "--all", "--dest-tls-verify=false", "--digestfile", file, &from, &to]);
    Some(format!("{}/a/b@{}", server.host, std::fs::read_to_string(digest).unwrap().trim()))
}

#[test]
fn the_action_indexes_what_was_pushed() {
    for server in [Server::olareg(|_, _| Vec::new()), Server::distribution("127.0.0.1:0", |_| String::new())] {
        let Some(server) = server else { return };
        let Some(image) = pushed(&server) else { return };
        let given = [
            ("image", image.as_str()),
            ("binary", env!("CARGO_BIN_EXE_ociseek")),
            ("min-layer-size", "0"),
            ("strict", "true"),
            ("min-coverage", "100%"),
            ("v2", "{digest}-soci"),
        ];
        let mut action = Action::new(&given);
        let (done, text) = action.run();
        assert!(done, "{text}");
        assert_eq!((action.output("status"), action.output("coverage")), ("ok".into(), "100".into()));
        assert!(image.ends_with(&action.output("image-digest")));
        let digests = action.output("index-digests");
        let (first, second) = digests.split_once(',').unwrap();
        assert_eq!(first, action.output("index-digest"));
        // They are there, and a reader finds them.
        let found = Sandbox::new().json(0, &["inspect", "--format=json", &image]);
        let listed = [0, 1].map(|n| found["manifests"][n]["indexes"][0]["digest"].as_str().unwrap().to_owned());
        assert_eq!(listed, [first, second]);
        let summary = std::fs::read_to_string(action.sandbox.path("summary.md")).unwrap();
        assert!(summary.contains("| linux/amd64 | `sha256:") && summary.contains("attached | 100% of"), "{summary}");
        // The SOCI-enabled image is there too, under the tag that was asked for.
        let tag = format!("{}-soci", &action.output("image-digest")["sha256:".len()..][..12]);
        let enabled = format!("{}:{tag}", image.rsplit_once('@').unwrap().0);
        let by_digest = format!("{}@{}", enabled.rsplit_once(':').unwrap().0, action.output("enabled-digest"));
        let found = [&enabled, &by_digest].map(|name| Sandbox::new().json(0, &["inspect", "--format=json", name]));
        assert_eq!(found[0]["manifests"], found[1]["manifests"]);
        assert_eq!(found[0]["manifests"].as_array().unwrap().len(), 2);
        assert!(summary.contains(&format!("- SOCI-enabled image `{enabled}` `sha256:")), "{summary}");

        // An index that lacks layers is not sufficient.
        Sandbox::new().run(&["index", "--no-cache", "--existing=replace", "--min-layer-size=100KiB", &image]);
        let gate = [("min-layer-size", "1KiB"), ("min-coverage", "90%"), ("existing", "keep")];
        let mut action = Action::new(&[&[("image", image.as_str()), given[1]], &gate[..]].concat());
        let (done, text) = action.run();
        assert!(!done && text.contains("less than 90%"), "{text}");
        assert_eq!(action.output("status"), "failed");
    }
}

#[test]
fn the_action_takes_several_images_and_no_options_from_their_names() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let Some(image) = pushed(&server) else { return };
    let binary = ("binary", env!("CARGO_BIN_EXE_ociseek"));
    let both = format!("\n  {image}\n  {}/a/b:v1\n", server.host);
    let mut action = Action::new(&[("image", &both), binary, ("platform", "linux/arm64"), ("min-layer-size", "0")]);
    let (done, text) = action.run();
    assert!(done, "{text}");
    assert_eq!(action.output("index-digests").split(',').count(), 2);
    for wrong in ["--help", "$(touch pwned)", "*", " "] {
        let mut action = Action::new(&[("image", wrong), binary]);
        let (done, text) = action.run();
        assert!(!done && !action.sandbox.path("pwned").exists(), "{wrong}: {text}");
    }
    let (done, text) = Action::new(&[("image", &image), ("binary", "no/such/program")]).run();
    assert!(!done && text.contains("::error::binary: there is no program no/such/program"), "{text}");
}

/// A file server below the path of releases, for the files in this map.
fn releases(files: BTreeMap<String, Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut request = String::new();
            let _ = reader.read_line(&mut request);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                line.clear();
            }
            let path = request.split(' ').nth(1).unwrap_or_default();
            let (status, body) = files.get(path).map_or(("404 Not Found", &b""[..]), |body| ("200 OK", body));
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    format!("http://{address}")
}

#[test]
fn the_action_downloads_a_release_and_believes_its_checksum_only() {
    if tool("curl").is_none() {
        return;
    }
    let file = format!("ociseek-{}-unknown-linux-musl.tar.gz", std::env::consts::ARCH);
    let pack = Sandbox::new();
    std::fs::copy(env!("CARGO_BIN_EXE_ociseek"), pack.path("ociseek")).unwrap();
    run(
        Path::new("tar"),
        &["-C", pack.dir.path().to_str().unwrap(), "-czf", pack.path("t").to_str().unwrap(), "ociseek"],
    );
    let archive = std::fs::read(pack.path("t")).unwrap();
    let sum = |bytes: &[u8]| format!("{}  {file}\n", ociseek::digest::Digest::sha256(bytes).hex()).into_bytes();
    let at = |version: &str, name: &str| match version {
        "latest" => format!("/acme/ociseek/releases/latest/download/{name}"),
        version => format!("/acme/ociseek/releases/download/{version}/{name}"),
    };
    let checksum = format!("{file}.sha256");
    let server = releases(BTreeMap::from([
        (at("latest", &file), archive.clone()),
        (at("latest", &checksum), sum(&archive)),
        (at("v1.2.3", &file), archive.clone()),
        (at("v1.2.3", &checksum), sum(&archive)),
        (at("v6.6.6", &file), archive.clone()),
        (at("v6.6.6", &checksum), sum(b"another")),
    ]));
    let image = Sandbox::new();
    small_image(&image.path("img"));
    let name = format!("oci:{}", image.path("img").display());
    for (version, action_ref, works) in [
        ("", "main", Ok(())),
        ("", "v1.2.3", Ok(())),
        ("1.2.3", "main", Ok(())),
        ("v1.2.3", "v6.6.6", Ok(())),
        ("v6.6.6", "main", Err("is not what its checksum says")),
        ("v9.9.9", "main", Err("::error::cannot download")),
    ] {
        let mut action = Action::new(&[("image", &name), ("version", version), ("min-layer-size", "0")]);
        action.context.insert("github.action_ref".into(), action_ref.into());
        action.variables = vec![("GITHUB_SERVER_URL", server.clone())];
        let (done, text) = action.run();
        assert_eq!(done, works.is_ok(), "{version} {action_ref}: {text}");
        if let Err(why) = works {
            assert!(text.contains(why) && !text.contains("index sha256"), "{text}");
        }
    }
}

// ---- the GitLab component

/// Runs the component's job with these inputs, as GitLab does: replaces `$[[ ... ]]`, and passes
/// the script to a shell.
fn gitlab(sandbox: &Sandbox, inputs: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
    let text = std::fs::read_to_string(root().join("templates/ociseek.yml")).unwrap();
    let spec = yaml("templates/ociseek.yml").remove(0);
    let (_, job) = text.split_once("\n---\n").unwrap();
    let mut job = job.to_owned();
    for (name, input) in spec["spec"]["inputs"].as_hash().unwrap() {
        let name = name.as_str().unwrap();
        let default = match &input["default"] {
            Yaml::Boolean(value) => Some(value.to_string()),
            value => value.as_str().map(str::to_owned),
        };
        let given = inputs.iter().find(|(given, _)| *given == name).map(|(_, value)| (*value).to_owned());
        let value = given.or(default).unwrap_or_else(|| panic!("{name} is required"));
        let place = format!("$[[ inputs.{name} ]]");
        assert!(job.contains(&place), "{name} is not used");
        job = job.replace(&place, &value);
    }
    assert!(!job.contains("$[["), "{job}");
    let job = &YamlLoader::load_from_str(&job).unwrap()[0]["ociseek"];
    assert_eq!(job["stage"].as_str(), Some("deploy"));
    let script: Vec<&str> = job["script"].as_vec().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    let program = Path::new(env!("CARGO_BIN_EXE_ociseek")).parent().unwrap().display().to_string();
    let mut command = Command::new("sh");
    command.args(["-c", &script.join("\n")]).current_dir(sandbox.dir.path()).env_clear();
    command.env("HOME", sandbox.dir.path()).env("PATH", format!("{program}:{}", std::env::var("PATH").unwrap()));
    for (name, value) in job["variables"].as_hash().unwrap() {
        command.env(name.as_str().unwrap(), value.as_str().unwrap());
    }
    let text = shown(command.envs(variables.iter().copied()));
    let dotenv = job["artifacts"]["reports"]["dotenv"].as_str().unwrap();
    assert!(sandbox.path(dotenv).exists(), "{text}");
    text
}

#[test]
fn the_component_indexes_with_the_jobs_own_login() {
    let Some(line) = servers::htpasswd("gitlab-ci-token", "s3cret") else { return };
    let sections = |dir: &Path| {
        std::fs::write(dir.join("passwords"), line).unwrap();
        format!("auth: {{htpasswd: {{realm: r, path: '{}'}}}}\n", dir.join("passwords").display())
    };
    let Some(server) = Server::distribution("127.0.0.1:0", sections) else { return };
    let Some(skopeo) = tool("skopeo") else { return };
    let sandbox = Sandbox::new();
    two_platforms(&sandbox.path("img"));
    let (from, image) = (format!("oci:{}:v1", sandbox.path("img").display()), format!("{}/a/b:v1", server.host));
    let to = format!("docker://{image}");
    run(
        &skopeo,
        &["copy", "--quiet", "--all", "--dest-tls-verify=false", "--dest-creds=gitlab-ci-token:s3cret", &from, &to],
    );
    let login = [
        ("CI_REGISTRY", server.host.as_str()),
        ("CI_REGISTRY_USER", "gitlab-ci-token"),
        ("CI_REGISTRY_PASSWORD", "s3cret"),
    ];
    let inputs = [
        ("image", image.as_str()),
        ("min-layer-size", "0"),
        ("strict", "true"),
        ("min-coverage", "90%"),
        ("v2", "{digest}-soci"),
    ];
    let text = gitlab(&sandbox, &inputs, &login);
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    let dotenv = std::fs::read_to_string(sandbox.path("ociseek.env")).unwrap();
    assert!(dotenv.contains("ociseek_status=ok\n") && dotenv.contains("ociseek_index_digest=sha256:"), "{dotenv}");
    assert!(dotenv.contains("ociseek_enabled_digest=sha256:"), "{dotenv}");
    // Without the login it fails with a hint to log in, and keeps no digest of an earlier run.
    let text = gitlab(&sandbox, &inputs, &[]);
    assert!(
        text.contains(&format!("run docker login {}", server.host)) && text.ends_with("--- status 1 ---"),
        "{text}"
    );
    let dotenv = std::fs::read_to_string(sandbox.path("ociseek.env")).unwrap();
    assert!(dotenv.contains("ociseek_status=failed\n") && !dotenv.contains("sha256:"), "{dotenv}");
}

#[test]
fn the_component_downloads_by_checksum() {
    if tool("curl").is_none() {
        return;
    }
    let sandbox = Sandbox::new();
    small_image(&sandbox.path("img"));
    std::fs::copy(env!("CARGO_BIN_EXE_ociseek"), sandbox.path("ociseek")).unwrap();
    let dir = sandbox.dir.path().to_str().unwrap().to_owned();
    run(Path::new("tar"), &["-C", &dir, "-czf", sandbox.path("t").to_str().unwrap(), "ociseek"]);
    let archive = std::fs::read(sandbox.path("t")).unwrap();
    let sum = ociseek::digest::Digest::sha256(&archive).hex();
    let url = releases(BTreeMap::from([("/o.tar.gz".to_owned(), archive)])) + "/o.tar.gz";
    let inputs = |sum| [("image", "oci:img"), ("min-layer-size", "0"), ("download", url.as_str()), ("sha256", sum)];
    let text = gitlab(&sandbox, &inputs(&sum), &[]);
    assert!(text.contains("ociseek.tar.gz: OK") && text.ends_with("--- status 0 ---"), "{text}");
    std::fs::remove_file(sandbox.path("ociseek.outputs")).unwrap();
    let text = gitlab(&sandbox, &inputs("0000"), &[]);
    assert!(!text.ends_with("--- status 0 ---") && !sandbox.path("ociseek.outputs").exists(), "{text}");
}

// ---- the release

/// All scripts of a workflow.
fn scripts(document: &Yaml) -> Vec<String> {
    let jobs = document["jobs"].as_hash().unwrap().values();
    let steps = jobs.flat_map(|job| job["steps"].as_vec().unwrap());
    steps.filter_map(|step| step["run"].as_str()).map(str::to_owned).collect()
}

#[test]
fn the_release_workflow_is_sound_as_far_as_can_be_seen_here() {
    let workflow = yaml(".github/workflows/release.yml").remove(0);
    let all = scripts(&workflow);
    assert!(all.len() >= 6, "{all:?}");
    for script in &all {
        assert!(!script.contains("${{"), "{script}");
        let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(bash.wait().unwrap().success(), "{script}");
    }
    // Each permission is only given to one job, and the packed files are those that the action
    // downloads.
    assert!(workflow["permissions"].as_hash().unwrap().is_empty());
    let pack = all.iter().find(|script| script.contains("tar --sort")).unwrap();
    assert!(pack.contains("dist/ociseek-$TARGET.tar.gz") && pack.contains("$file.sha256"));
    // The commands in it exist.
    for command in [&["version"][..], &["completions", "bash"], &["man", "--output", "man"]] {
        assert!(Sandbox::new().command(command).output().unwrap().status.success(), "{command:?}");
    }
}

/// Programs that only record their arguments, to replace those that install.
fn recording(sandbox: &Sandbox, names: &[&str]) -> String {
    std::fs::create_dir(sandbox.path("fake")).unwrap();
    for name in names {
        let path = sandbox.path("fake").join(name);
        // Go's tools are renamed after installation.
        let script =
            "#!/bin/sh\necho \"${0##*/} $*\" >>\"$HOME/calls\"\n[ -z \"${GOBIN:-}\" ] || touch \"$GOBIN/registry\"\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    format!("{}:{}", sandbox.path("fake").display(), std::env::var("PATH").unwrap())
}

/// Runs `.ci/test` in an empty home, with `answer` on a terminal if there is one. Returns its
/// output, its status, and the programs it called.
fn tests_begun(answer: Option<&str>) -> (String, bool, String) {
    let sandbox = Sandbox::new();
    let path = recording(&sandbox, &["apt-get", "go", "python3", "cargo", "debootstrap"]);
    let script = root().join(".ci/test");
    // Not root, and no sources of the consumer: parts that cannot be set up are skipped.
    std::fs::write(sandbox.path("fake/id"), "#!/bin/sh\necho 1000\n").unwrap();
    std::fs::set_permissions(sandbox.path("fake/id"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = match answer {
        None => Command::new(&script),
        Some(_) => {
            // A terminal from util-linux's `script`.
            let mut command = Command::new("script");
            command.args(["--quiet", "--return", "--command", script.to_str().unwrap(), "/dev/null"]);
            command
        }
    };
    command.env_clear().env("PATH", path).env("HOME", sandbox.dir.path()).env("OCISEEK_SHARED", sandbox.path("none"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(answer.unwrap_or_default().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let calls = std::fs::read_to_string(sandbox.path("calls")).unwrap_or_default();
    (String::from_utf8(output.stdout).unwrap().replace('\r', ""), output.status.success(), calls)
}

#[test]
fn the_tests_say_what_they_install_and_ask_first() {
    let plan =
        "The tests want what this machine lacks. This will be set up:\n  pip install moto_server cargo-lambda (into ";
    let (said, passed, calls) = tests_begun(Some("n\n"));
    assert!(said.contains(plan) && said.contains("\n  go build olareg ") && said.contains("Go on? [y/N]"), "{said}");
    assert!(said.ends_with("names those that it skips.\n") && !passed && calls.is_empty(), "{said}{calls}");
    let (said, passed, calls) = tests_begun(Some("y\n"));
    assert!(passed && said.contains("tools: ready"), "{said}{calls}");
    for ran in [
        "cargo test --no-fail-fast --test system\n",
        "cargo test --workspace --no-fail-fast --lib --bins --test cli --test pure --test servers\n",
        "cargo test --workspace --doc\n",
    ] {
        assert!(calls.contains(ran), "{ran}: {calls}");
    }
    // Without a terminal, it prints the same.
    let (said, passed, calls) = tests_begun(None);
    assert!(passed && said.starts_with(plan) && !said.contains("Go on?"), "{said}");
    assert!(calls.contains("go install ") && calls.contains("cargo test --no-fail-fast --test system\n"), "{calls}");
}

#[test]
fn the_size_of_the_program_is_watched() {
    let sandbox = Sandbox::new();
    let text = std::fs::read_to_string(root().join(".ci/size")).unwrap();
    let limit: u64 = text.lines().find_map(|line| line.strip_prefix("limit=")).unwrap().parse().unwrap();
    for (size, passes) in [(limit, true), (limit + 1, false)] {
        let file = std::fs::File::create(sandbox.path("program")).unwrap();
        file.set_len(size).unwrap();
        let output = Command::new(root().join(".ci/size")).arg(sandbox.path("program")).output().unwrap();
        assert_eq!(output.status.success(), passes);
        assert!(String::from_utf8_lossy(&output.stdout).contains(&size.to_string()));
    }
}
