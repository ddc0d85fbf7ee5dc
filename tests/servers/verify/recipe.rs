//! The gate for CI in docs/policy.md, as it is printed there, with a real registry.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use yaml_rust2::YamlLoader;

use super::image::Image;
use ociseek_testkit::copied::copied;
use ociseek_testkit::sandbox::{Sandbox, program};
use ociseek_testkit::servers::{Server, run, tool};

/// The scripts of the recipe's steps.
fn steps() -> Vec<String> {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/policy.md")).unwrap();
    let (_, section) = page.split_once("\n## A gate in CI\n").unwrap();
    let (_, block) = section.split_once("```yaml\n").unwrap();
    let (block, _) = block.split_once("\n```\n").unwrap();
    let steps = YamlLoader::load_from_str(block).unwrap().remove(0);
    steps.as_vec().unwrap().iter().map(|step| step["run"].as_str().unwrap().to_owned()).collect()
}

/// A `cosign` that signs with the key in the sandbox, like the real one with these arguments.
const COSIGN: &str = r#"
[ "$#" = 5 ] && [ "$1 $2 $3 $4" = "sign --yes --key env://COSIGN_KEY" ] || { echo "cosign: $*" >&2; exit 9; }
digest=${5#*@}
payload='{"critical":{"identity":{"docker-reference":""},"image":{"docker-manifest-digest":"'$digest'"},'
printf '%s"type":"cosign container image signature"},"optional":null}' "$payload" > payload.json
signature=$(openssl dgst -sha256 -sign "$HOME/key.pem" payload.json | base64 -w0)
printf '{"payload.json":{"dev.cosignproject.cosign/signature":"%s"}}' "$signature" > annotations.json
oras push --plain-http --annotation-file annotations.json "${5%%@*}:sha256-${digest#sha256:}.sig" \
  payload.json:application/vnd.dev.cosign.simplesigning.v1+json
echo "$5" >> "$HOME/signed"
"#;

/// A sandbox with a key, a policy that trusts it, and a `cosign`.
fn runner(image: &Image) -> Option<&Sandbox> {
    let openssl = tool("openssl")?;
    tool("oras")?;
    tool("jq")?;
    let sandbox = &image.sandbox;
    let at = |name: &str| sandbox.path(name).to_str().unwrap().to_owned();
    run(
        &openssl,
        &[
            "genpkey",
            "-algorithm",
            "EC",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-out",
            &at("key.pem"),
        ],
    );
    run(&openssl, &["pkey", "-in", &at("key.pem"), "-pubout", "-out", &at("cosign.pub")]);
    std::fs::write(at(".ociseek-policy.json"), r#"{"signature_keys": ["cosign.pub"]}"#).unwrap();
    std::fs::create_dir(at("bin")).unwrap();
    sandbox.script("bin/cosign", COSIGN);
    Some(sandbox)
}

/// Runs the steps until one fails, as a runner does. Returns the status and the text of all.
fn gate(sandbox: &Sandbox, image: &str) -> (i32, String) {
    let oras = tool("oras").unwrap();
    let dirs =
        [&sandbox.path("bin"), Path::new(program()).parent().unwrap(), oras.parent().unwrap()];
    let dirs = dirs.map(|dir| dir.display().to_string()).join(":");
    let path = format!("{dirs}:{}", std::env::var("PATH").unwrap());
    let _ = std::fs::remove_file(sandbox.path("signed"));
    let mut text = String::new();
    for script in steps() {
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-e", "-o", "pipefail", "-c", &script])
            .current_dir(sandbox.dir.path());
        bash.env_clear().env("PATH", &path).env("HOME", sandbox.dir.path()).env("IMAGE", image);
        // The layers of the test are small.
        let output = bash.env("OCISEEK_MIN_LAYER_SIZE", "1KiB").output().unwrap();
        text += &String::from_utf8_lossy(&output.stdout);
        text += &String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            return (output.status.code().unwrap(), text);
        }
    }
    (0, text)
}

#[test]
fn the_gate_signs_what_it_made_itself() {
    for start in [
        || Server::olareg(|_, _| Vec::new()),
        || Server::distribution("127.0.0.1:0", |_| String::new()),
    ] {
        let Some(server) = start() else { return };
        let image = Image::new();
        let Some(sandbox) = runner(&image) else { return };
        let manifest = image.tagged("v1");
        // A stranger's index under our name, with a set-user-ID program that the layer does not
        // have.
        image.edit_ztoc(0, |ztoc| ztoc.files[2].mode = 0o4755);
        let repository = format!("{}/team/app", server.host);
        let name = format!("{repository}:v1");
        copied(sandbox, "oci:img:v1", &name);
        for name in [name.clone(), format!("{repository}@{manifest}"), format!("{name}@{manifest}")]
        {
            let (status, text) = gate(sandbox, &name);
            let signed = std::fs::read_to_string(sandbox.path("signed")).unwrap();
            assert_eq!(signed.lines().count(), 1, "{signed}");
            let digest = signed.trim().strip_prefix(&format!("{repository}@")).unwrap();
            let full = sandbox.command(&["verify", "--index", digest, &name]).output().unwrap();
            assert!(
                full.status.success(),
                "the lie was signed: {}",
                String::from_utf8_lossy(&full.stdout)
            );
            // Either the lie is gone, or the gate fails.
            let all = sandbox.command(&["verify", &name]).output().unwrap();
            assert_eq!(status, all.status.code().unwrap(), "{name}: {text}");
        }
    }
}

#[test]
fn the_gate_fails_for_a_fine_index_that_it_did_not_sign() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let image = Image::unindexed(|_| {});
    let Some(sandbox) = runner(&image) else { return };
    let name = format!("{}/app:v1", server.host);
    copied(sandbox, "oci:img:v1", &name);
    let (status, text) = gate(sandbox, &name);
    assert_eq!(status, 0, "{text}");
    sandbox.run(&["index", "--quiet", "--no-cache", "--min-layer-size=1KiB", "--kind=fine", &name]);
    let (status, text) = gate(sandbox, &name);
    assert!(status == 3 && text.contains("signature-missing"), "{status}: {text}");
    let found: Value = sandbox.doctor(&name);
    assert!(
        found["manifests"][0]["indexes"].as_array().is_some_and(|indexes| !indexes.is_empty()),
        "{found}"
    );
}
