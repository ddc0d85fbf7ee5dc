//! What is there before a job runs: registries and folders.

use ociseek_format::digest::Digest;
use serde_json::{Value, json};

use super::jobs::{Before, Job, SMALL, START};
use ociseek_testkit::copied::copy;
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::mounts::compressed;
use ociseek_testkit::sandbox::{GZIP, PLAIN, Sandbox, gzip, tar};
use ociseek_testkit::tarball::{end, file};

/// The registries of a kind, with and without the content that jobs need.
pub struct Registries {
    nothing: Faulty,
    image: Faulty,
    indexed: Faulty,
    large: Faulty,
    fine: Faulty,
    superseded: Faulty,
    converted: Faulty,
}

impl Registries {
    pub async fn new(settings: RegistrySettings) -> Registries {
        let [sandbox, for_large] = [(); 2].map(|()| Sandbox::new());
        image(&sandbox);
        large_image(&for_large);
        let name = |registry: &Faulty| format!("{}/a/b:v1", registry.host());
        let nothing = Faulty::honest(settings).await;
        let image = nothing.copy(|_, _| None).await;
        copy(sandbox.dir.path(), "oci:img:v1", &name(&image), true, None).await;
        let indexed = image.copy(|_, _| None).await;
        let args = [&["index", "--no-cache", "HOST/a/b:v1"], &SMALL[..]].concat();
        run_here(&indexed, &sandbox, &args).await;
        let converted = image.copy(|_, _| None).await;
        run_here(&converted, &sandbox, &CONVERT).await;
        let large = nothing.copy(|_, _| None).await;
        copy(for_large.dir.path(), "oci:img:v1", &name(&large), true, None).await;
        let [fine, newer] = [large.copy(|_, _| None).await, large.copy(|_, _| None).await];
        run_here(&fine, &for_large, &both_kinds(OLD, "HOST/a/b:v1")).await;
        run_here(&newer, &for_large, &both_kinds(NEWER, "HOST/a/b:v1")).await;
        let superseded = fine.copy(|_, _| None).await;
        let from = name(&newer);
        copy(for_large.dir.path(), &from, &name(&superseded), true, None).await;
        Registries { nothing, image, indexed, large, fine, superseded, converted }
    }

    pub fn before(&self, job: &Job) -> &Faulty {
        match job.before {
            Before::Layout
            | Before::IndexedLayout
            | Before::Archives
            | Before::LargeLayout
            | Before::FineLayout => &self.nothing,
            Before::Image => &self.image,
            Before::Indexed => &self.indexed,
            Before::Large => &self.large,
            Before::Fine => &self.fine,
            Before::Superseded => &self.superseded,
            Before::Converted => &self.converted,
        }
    }
}

/// The files on disk before a job.
pub struct Templates {
    layout: Sandbox,
    indexed: Sandbox,
    archives: Sandbox,
    large: Sandbox,
    fine: Sandbox,
}

impl Templates {
    pub fn new() -> Templates {
        let [layout, indexed] = [false, true].map(|is_indexed| {
            let sandbox = Sandbox::new();
            image(&sandbox);
            std::fs::write(sandbox.path("layer"), gzip(&tar(1, 4, 20_000))).unwrap();
            if is_indexed {
                let args = [&["index", "--no-cache", "oci:img:v1"], &SMALL[..]].concat();
                assert!(sandbox.command(&args).output().unwrap().status.success());
            }
            sandbox
        });
        let [large, fine] = [false, true].map(|is_indexed| {
            let sandbox = Sandbox::new();
            large_image(&sandbox);
            if is_indexed {
                assert!(
                    sandbox
                        .command(&both_kinds(OLD, "oci:img:v1"))
                        .output()
                        .unwrap()
                        .status
                        .success()
                );
            }
            // A job that is given the recorded start gets it by itself.
            std::fs::remove_file(sandbox.path(START)).unwrap();
            sandbox
        });
        let archives = Sandbox::new();
        archived(&archives);
        Templates { layout, indexed, archives, large, fine }
    }

    /// A separate sandbox for a job.
    pub fn sandbox(&self, job: &Job) -> Sandbox {
        let sandbox = Sandbox::new();
        if job.args.iter().any(|arg| arg.ends_with(START)) {
            std::fs::write(sandbox.path(START), recorded_start()).unwrap();
        }
        let template = match job.before {
            Before::Image
            | Before::Indexed
            | Before::Large
            | Before::Fine
            | Before::Superseded
            | Before::Converted => {
                return sandbox;
            }
            Before::Layout => &self.layout,
            Before::IndexedLayout => &self.indexed,
            Before::Archives => &self.archives,
            Before::LargeLayout => &self.large,
            Before::FineLayout => &self.fine,
        };
        for (path, content) in template.files("") {
            let path = sandbox.dir.path().join(path.strip_prefix(template.dir.path()).unwrap());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        sandbox
    }
}

async fn run_here(registry: &Faulty, sandbox: &Sandbox, args: &[&str]) {
    let args: Vec<String> = args.iter().map(|arg| arg.replace("HOST", &registry.host())).collect();
    let mut command = sandbox.command(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// An image of two gzip layers and a plain one, in the layout `img`.
pub fn image(sandbox: &Sandbox) {
    let (tars, blobs) = layers();
    packed(sandbox, &tars, &blobs);
}

/// The media type of a layer, and its content.
type Blob = (&'static str, Vec<u8>);

/// The tars of its layers, and their blobs.
fn layers() -> ([Vec<u8>; 3], [Blob; 3]) {
    let tars = [tar(1, 4, 20_000), tar(2, 2, 9_000), tar(3, 1, 3_000)];
    let blobs = [(GZIP, gzip(&tars[0])), (PLAIN, tars[1].clone()), (GZIP, gzip(&tars[2]))];
    (tars, blobs)
}

/// The same image in the archives `img.tar` and `saved.tar`.
fn archived(sandbox: &Sandbox) {
    let (tars, blobs) = layers();
    packed(sandbox, &tars, &blobs);
    let write = |name, members: Vec<Vec<u8>>| {
        std::fs::write(sandbox.path(name), [members.concat(), end()].concat())
    };
    let layout = sandbox.path("img");
    let members = sandbox.files("img").into_iter().map(|(path, content)| {
        let name = path.strip_prefix(&layout).unwrap().to_str().unwrap();
        file(name, &content)
    });
    write("img.tar", members.collect()).unwrap();
    let names = ["0.tar", "1.tar", "2.tar"];
    let manifest =
        json!([{"Config": "config.json", "RepoTags": ["img:v1"], "Layers": names}]).to_string();
    let config = file("config.json", config(&tars).to_string().as_bytes());
    let layers = names.iter().zip(&blobs).map(|(name, (_, blob))| file(name, blob));
    let members =
        [config].into_iter().chain(layers).chain([file("manifest.json", manifest.as_bytes())]);
    write("saved.tar", members.collect()).unwrap();
    std::fs::remove_dir_all(layout).unwrap();
}

/// An image of a gzip layer and a plain one, in the layout `img`. A fine index has several spans of
/// each, and windows with content. The file [`START`] has its recorded start.
fn large_image(sandbox: &Sandbox) {
    let tars = [tar(4, 3, 250_000), tar(5, 2, 150_000)];
    packed(sandbox, &tars, &[(GZIP, compressed(&tars[0])), (PLAIN, tars[1].clone())]);
    std::fs::write(sandbox.path(START), recorded_start()).unwrap();
}

/// A start of the large image that reads the end of the lower layer, then its begin, then the upper
/// layer.
fn recorded_start() -> String {
    let read = |path| json!({"ms": 1.0, "path": path, "layer": "sha256:0", "offset": 0, "size": 4096, "spans": []});
    ["dir4/file2", "dir4/file0", "dir5/file1"].map(|path| format!("{}\n", read(path))).concat()
}

/// The arguments that make the SOCI-enabled image `v2` with other spans than [`SMALL`].
const CONVERT: [&str; 6] = [
    "convert",
    "--no-cache",
    "--span-size=32KiB",
    "--min-layer-size=1KiB",
    "HOST/a/b:v1",
    "HOST/a/b:v2",
];
const OLD: &str = "--build-tool-identifier=ociseek v0.0.1";
const NEWER: &str = "--build-tool-identifier=ociseek v0.0.2";

/// The arguments that attach both kinds of index with the recorded start, by a version of ociseek.
fn both_kinds<'a>(tool: &'a str, image: &'a str) -> Vec<&'a str> {
    let [_, small @ ..] = SMALL;
    [&["index", "--no-cache", "--kind=v1,fine", "--profile=start.jsonl", tool, image], &small[..]]
        .concat()
}

/// An image of these layers in the layout `img`.
fn packed(sandbox: &Sandbox, tars: &[Vec<u8>], blobs: &[Blob]) {
    Image::new(&config(tars), blobs.iter().cloned()).write(&sandbox.path("img"));
}

/// The kinds of registries: with the referrers API and without, both with tokens.
pub fn registry_settings() -> [(&'static str, RegistrySettings); 2] {
    let settings =
        RegistrySettings { bearer: Some(None), conditions: true, ..RegistrySettings::default() };
    [("API", RegistrySettings { referrers: true, ..settings.clone() }), ("tag schema", settings)]
}

/// The digest of the image's manifest.
pub fn image_digest() -> Digest {
    let sandbox = Sandbox::new();
    image(&sandbox);
    let index: Value =
        serde_json::from_slice(&std::fs::read(sandbox.path("img/index.json")).unwrap()).unwrap();
    index["manifests"][0]["digest"].as_str().unwrap().parse().unwrap()
}
