//! The cost of a second build depends on the changes: ztocs in existing indexes are reused, and
//! their layers are not read again.

use ociseek_testkit::image::{Image, config, image_index};
use ociseek_testkit::{layers, sandbox};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use axum::body::Body;
use axum::http::Response;
use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::image::soci::{SociIndex, ZtocRef};
use ociseek_format::layer::LayerOptions;
use ociseek_format::offset::SpanSize;
use ociseek_format::progress::{ProgressEvent, Recorder};
use ociseek_format::ztoc::{Checkpoint, Checkpoints, Ztoc};
use ociseek_ops::TOOL_IDENTIFIER;
use ociseek_ops::index::{
    Existing, IndexOptions, IndexedImage, LayerOutcome, ManifestResult, Origin, Reuse, ReuseSource,
    Work, index,
};
use ociseek_store::blob::Target;
use ociseek_store::registry::Repository;
use ociseek_store::{Destination, Source};
use ociseek_testkit::faulty::{Faulty, ReceivedRequest, RegistrySettings};
use ociseek_testkit::sandbox::{
    GZIP, Layout, OCI_INDEX, OCI_MANIFEST, Sandbox, for_platform, gzip, tar,
};
use ociseek_testkit::servers::{Server, repository};
use serde_json::json;

const SPAN: u64 = 64 << 10;

/// A registry in memory, with the reported events.
pub struct Setting {
    pub registry: Faulty,
    said: Arc<Recorder>,
}

impl Setting {
    pub async fn new() -> Setting {
        Setting::lying(|_, _| None).await
    }

    pub async fn lying(
        lie: impl Fn(&ReceivedRequest, &Faulty) -> Option<Response<Body>> + Send + Sync + 'static,
    ) -> Setting {
        let registry = Faulty::start(RegistrySettings::with_referrers(), lie).await;
        Setting { registry, said: Arc::default() }
    }

    pub fn repository(&self) -> Repository {
        repository(&self.registry.host(), "a/b", None)
    }

    /// The user's word that the indexes of this tag may be reused.
    pub fn naming(&self, tag: &str) -> Reuse {
        let place = ReuseSource {
            name: tag.into(),
            source: Source::Registry(self.repository()),
            target: Target::Tag(tag.into()),
        };
        Reuse { from: vec![place], ..Reuse::default() }
    }

    /// Pushes an image with these layers. Returns its manifest's descriptor.
    pub fn push(&self, tag: &str, layers: &[&Bytes]) -> Descriptor {
        let layers = layers.iter().map(|layer| (GZIP, Bytes::clone(layer)));
        Image::new(&config(&[]), layers).add_to(&self.registry, tag)
    }

    pub async fn index(&self, tag: &str, options: &IndexOptions) -> IndexedImage {
        let repository = self.repository();
        let source = Source::Registry(repository.clone());
        let destination = Destination::Registry(repository);
        let said: Arc<dyn ociseek_format::progress::Progress> = self.said.clone();
        index(
            &source,
            &Target::Tag(tag.into()),
            Some(&destination),
            Work { cache: None, options, progress: &said },
        )
        .await
        .unwrap()
    }

    pub fn warnings(&self) -> Vec<String> {
        let warning = |event| match event {
            ProgressEvent::Warning(text) => Some(text),
            _ => None,
        };
        self.said.events().into_iter().filter_map(warning).collect()
    }

    /// How many times a blob was requested, completely or in part.
    pub fn reads(&self, blob: Digest) -> usize {
        self.registry.saw("GET", &format!("blobs/{blob}")).len()
    }

    /// Attaches an index by `tool` with the ztoc `ztoc` for `layer`.
    pub fn attach(&self, subject: &Descriptor, layer: &Bytes, ztoc: &Bytes, tool: &str) {
        let index = SociIndex {
            layers: vec![ZtocRef {
                ztoc: self.registry.add_blob(ztoc.clone()),
                size: ztoc.len() as u64,
                layer: Digest::sha256(layer),
                layer_media_type: GZIP.into(),
                span_size: SpanSize::new(SPAN).unwrap(),
            }],
            subject: Some(subject.clone()),
            build_tool_identifier: tool.into(),
            prefetch: Vec::new(),
        };
        self.registry.add_blob(&b"{}"[..]);
        self.registry.add_manifest("attached", OCI_MANIFEST, index.encode().bytes);
    }
}

pub fn options() -> IndexOptions {
    IndexOptions {
        layer: LayerOptions { span_size: SpanSize::new(SPAN).unwrap(), ..LayerOptions::default() },
        min_layer_size: 0,
        jobs: 2,
        ..IndexOptions::default()
    }
}

/// A layer of about `size` bytes. Each `seed` gives another one.
pub fn layer(seed: u64, size: usize) -> Bytes {
    gzip(&tar(seed, 8, size / 8)).into()
}

/// The layer's ztoc, built from the layer.
pub fn ztoc(layer: &Bytes, tool: &str) -> Bytes {
    layers::built(layer, SPAN, tool).bytes.into()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ztoc_out_of_proportion_to_its_layer_is_not_fetched() {
    let setting = Setting::new().await;
    let one = layer(1, 300_000);
    let two = layer(2, 300_000);
    let subject = setting.push("v1", &[&one, &two]);
    // With spans of 64 KiB, a layer of 300 KB may have a ztoc of some 2.5 MB.
    let huge = Bytes::from(vec![0; 4 << 20]);
    setting.attach(&subject, &one, &huge, TOOL_IDENTIFIER);
    setting.index("v1", &with(setting.naming("v1"))).await;
    assert_eq!(setting.reads(Digest::sha256(&huge)), 0);
    assert_eq!((setting.reads(Digest::sha256(&one)), setting.reads(Digest::sha256(&two))), (1, 1));
}

/// The number of requests for a whole layer, and for parts of it.
pub fn requests(setting: &Setting, layer: &Bytes) -> (usize, usize) {
    let seen = setting.registry.saw("GET", &format!("blobs/{}", Digest::sha256(layer)));
    let parts = seen.iter().filter(|seen| seen.header("range").is_some()).count();
    (seen.len() - parts, parts)
}

/// The origin of each layer's ztoc.
fn origins(done: &IndexedImage) -> Vec<Origin> {
    let origin = |layer: &ociseek_ops::index::LayerReport| match &layer.outcome {
        LayerOutcome::Indexed(facts) => facts.origin.clone(),
        LayerOutcome::LeftOut(why) => panic!("{why:?}"),
        LayerOutcome::Listed { .. } => panic!("nothing was built"),
    };
    done.manifests.iter().flat_map(|manifest| manifest.layers.iter().map(origin)).collect()
}

fn index_digest(done: &IndexedImage) -> Digest {
    match &done.manifests[0].result {
        ManifestResult::Attached { index, .. } => index.digest,
        other => panic!("{other:?}"),
    }
}

fn with(reuse: Reuse) -> IndexOptions {
    IndexOptions { reuse, ..options() }
}

/// The digest of the index that a run in an empty registry attaches to the same image.
async fn fresh(layers: &[&Bytes]) -> Digest {
    let setting = Setting::new().await;
    setting.push("v1", layers);
    index_digest(&setting.index("v1", &options()).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_a_named_image_are_not_read_again() {
    let setting = Setting::new().await;
    let base = layer(1, 3 << 20);
    let old = layer(2, 200_000);
    let new = layer(3, 200_000);
    setting.push("1.0", &[&base, &old]);
    setting.index("1.0", &options()).await;
    assert_eq!(requests(&setting, &base), (1, 0));

    setting.push("1.1", &[&base, &new]);
    let done = setting.index("1.1", &with(setting.naming("1.0"))).await;
    assert_eq!(origins(&done)[0], Origin::Reused("1.0".into()));
    assert!(matches!(origins(&done)[1], Origin::Read { .. }));
    // Some of its spans were compared; the other layer was read completely.
    let (whole, parts) = requests(&setting, &base);
    assert_eq!(whole, 1, "it was read again");
    assert_eq!(parts, 2);
    assert_eq!(done.bytes_read, new.len() as u64);
    assert!((1..base.len() as u64 / 4).contains(&done.bytes_compared), "{}", done.bytes_compared);
    assert_eq!(index_digest(&done), fresh(&[&base, &new]).await);
    assert_eq!(setting.warnings(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_never_reused() {
    let base = layer(1, 3 << 20);
    let other = layer(9, 1000);
    let right = ociseek_format::ztoc::decode(&ztoc(&base, TOOL_IDENTIFIER)).unwrap();
    let expected = fresh(&[&base, &other]).await;
    type Damage = fn(&mut Ztoc);
    let damages: [(&str, Damage); 7] = [
        ("digests", |ztoc| {
            ztoc.span_digests.iter_mut().for_each(|digest| *digest = Digest::sha256(b"x"))
        }),
        ("windows", |ztoc| each(ztoc, |checkpoint| checkpoint.window.fill(7))),
        ("checkpoints", |ztoc| each(ztoc, |checkpoint| checkpoint.output.0 += 1)),
        ("layer size", |ztoc| ztoc.compressed_size.0 -= 1),
        ("tar size", |ztoc| ztoc.uncompressed_size.0 += 512),
        ("names", |ztoc| ztoc.files.iter_mut().for_each(|file| file.name[0] = b'x')),
        ("offsets", |ztoc| ztoc.files.iter_mut().for_each(|file| file.offset.0 += 512)),
    ];
    for (name, damage) in damages {
        let mut wrong = right.clone();
        damage(&mut wrong);
        let wrong = Bytes::from(ociseek_format::ztoc::encode(&wrong));
        let setting = Setting::new().await;
        let known = setting.push("v1", &[&base]);
        setting.push("v2", &[&base, &other]);
        setting.attach(&known, &base, &wrong, TOOL_IDENTIFIER);
        let done = setting.index("v2", &with(setting.naming("v1"))).await;
        assert!(
            origins(&done).iter().all(|origin| matches!(origin, Origin::Read { .. })),
            "{name}: {done:?}"
        );
        assert_eq!(requests(&setting, &base).0, 1, "{name}");
        let warnings = setting.warnings();
        assert_eq!(warnings.len(), 1, "{name}: {warnings:?}");
        assert!(warnings[0].contains("is not reused"), "{name}: {warnings:?}");
        assert_eq!(index_digest(&done), expected, "{name}");
    }
}

fn each(ztoc: &mut Ztoc, change: fn(&mut Checkpoint)) {
    match &mut ztoc.checkpoints {
        // The first checkpoint is at the start of every layer.
        Checkpoints::Gzip { list, .. } => list.iter_mut().skip(1).for_each(change),
        Checkpoints::Uncompressed { .. } => panic!("the layer is gzip"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ztocs_of_an_older_version_are_reused_under_the_new_name() {
    let setting = Setting::new().await;
    let base = layer(1, 3 << 20);
    setting.push("v1", &[&base]);
    let older = |tool: &str| IndexOptions {
        layer: LayerOptions { build_tool_identifier: tool.into(), ..options().layer },
        ..options()
    };
    let old = index_digest(&setting.index("v1", &older("ociseek v0.0.9")).await);
    let done = setting.index("v1", &with(setting.naming("v1"))).await;
    assert_eq!(origins(&done), [Origin::Reused("v1".into())]);
    assert_eq!(requests(&setting, &base).0, 1);
    assert_ne!(index_digest(&done), old);
    // Byte for byte the same as from reading the layer.
    assert_eq!(index_digest(&done), fresh(&[&base]).await);

    // Another tool may build other ztocs, however similar they are.
    let setting = Setting::new().await;
    setting.push("v1", &[&base]);
    setting.index("v1", &older("AWS SOCI CLI v0.2")).await;
    let done = setting.index("v1", &with(setting.naming("v1"))).await;
    assert!(matches!(origins(&done)[..], [Origin::Read { .. }]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_image_may_be_in_another_registry() {
    let there = Setting::new().await;
    let here = Setting::new().await;
    let base = layer(1, 3 << 20);
    there.push("base", &[&base]);
    there.index("base", &options()).await;
    here.push("v1", &[&base]);
    let elsewhere = |tag: &str| ReuseSource {
        name: tag.into(),
        source: Source::Registry(there.repository()),
        target: Target::Tag(tag.into()),
    };
    let from = vec![elsewhere("missing"), elsewhere("base")];
    let done = here.index("v1", &with(Reuse { from: from.clone(), ..Reuse::default() })).await;
    assert_eq!(origins(&done), [Origin::Reused("base".into())]);
    assert_eq!(requests(&here, &base).0, 0);
    assert_eq!(index_digest(&done), fresh(&[&base]).await);
    let warnings = here.warnings();
    assert!(
        matches!(&warnings[..], [one] if one.contains("cannot reuse anything from missing")),
        "{warnings:?}"
    );

    // Ztocs of replaced indexes are not reused. Those of named images are, unless reuse is
    // disabled.
    let replace = |reuse| IndexOptions { existing: Existing::Replace, ..with(reuse) };
    let done = here.index("v1", &replace(Reuse { from: from.clone(), ..Reuse::default() })).await;
    assert_eq!(origins(&done), [Origin::Reused("base".into())]);
    assert_eq!(requests(&here, &base).0, 0);
    here.index("v1", &replace(Reuse { from, indexes: false })).await;
    assert_eq!(requests(&here, &base).0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ztocs_of_version_2_indexes_are_reused() {
    let setting = Setting::new().await;
    let base = layer(1, 3 << 20);
    let v1 = setting.push("v1", &[&base]);
    let ztoc = ztoc(&base, TOOL_IDENTIFIER);
    setting.attach(&v1, &base, &ztoc, TOOL_IDENTIFIER);
    let listed = setting.registry.manifest("attached").unwrap();
    let text =
        String::from_utf8(listed.to_vec()).unwrap().replace("soci.index.v1", "soci.index.v2");
    let (begin, rest) = text.split_once(",\"subject\":{").unwrap();
    let v2 = format!("{begin}{}", rest.split_once('}').unwrap().1);
    let v2 = setting.registry.add_manifest("v2-index", OCI_MANIFEST, v2);
    let mut image: serde_json::Value =
        serde_json::from_slice(&setting.registry.manifest("v1").unwrap()).unwrap();
    image["annotations"] = json!({"com.amazon.soci.index-digest": v2});
    setting.registry.add_manifest("enabled", OCI_MANIFEST, image.to_string());
    let done = setting.index("enabled", &options()).await;
    assert_eq!(origins(&done), [Origin::Reused(v2.to_string().into())]);
    assert_eq!(requests(&setting, &base).0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn ztocs_of_other_platforms_are_reused() {
    let setting = Setting::new().await;
    let base = layer(1, 3 << 20);
    let arm = layer(2, 50_000);
    let amd = layer(3, 50_000);
    let manifests = [("arm64", &arm), ("amd64", &amd)].map(|(architecture, own)| {
        let manifest = serde_json::to_value(setting.push(architecture, &[&base, own])).unwrap();
        for_platform(manifest, architecture)
    });
    let index = image_index(&manifests).to_string();
    setting.registry.add_manifest("v1", OCI_INDEX, index);
    let only = |platform: &str| IndexOptions {
        platforms: vec![platform.parse().unwrap()],
        ..with(setting.naming("v1"))
    };
    setting.index("v1", &only("linux/arm64")).await;
    let done = setting.index("v1", &only("linux/amd64")).await;
    assert_eq!(origins(&done)[0], Origin::Reused("v1".into()));
    assert_eq!(requests(&setting, &base).0, 1);
    assert_eq!(done.bytes_read, amd.len() as u64);
}

/// The response of a real registry.
fn forwarded(host: &str, seen: &ReceivedRequest) -> Response<Body> {
    let mut stream = TcpStream::connect(host).unwrap();
    // HTTP/1.0 has no chunked encoding, and closes the connection at the end.
    let mut head = format!("{} {} HTTP/1.0\r\n", seen.method, seen.path);
    let ours = ["connection", "content-length", "transfer-encoding"];
    for (name, value) in seen.headers.iter().filter(|(name, _)| !ours.contains(&name.as_str())) {
        head += &format!("{name}: {}\r\n", value.to_str().unwrap());
    }
    head += &format!("content-length: {}\r\n\r\n", seen.body.len());
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&seen.body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap();
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let mut lines = head.lines();
    let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let mut response = Response::builder().status(status);
    for (name, value) in lines.map(|line| line.split_once(": ").unwrap()) {
        if !ours.contains(&name.to_ascii_lowercase().as_str()) || seen.method == "HEAD" {
            response = response.header(name, value);
        }
    }
    response.body(Body::from(answer[end + 4..].to_vec())).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn reused_layers_are_not_requested_from_real_registries() {
    let olareg = Server::olareg(|_, _| Vec::new());
    let distribution = Server::distribution("127.0.0.1:0", |_| String::new());
    for server in [olareg, distribution].into_iter().flatten() {
        let host = server.host.clone();
        let registry =
            Faulty::start(RegistrySettings::default(), move |seen, _| Some(forwarded(&host, seen)))
                .await;
        let setting = Setting { registry, said: Arc::default() };
        let shared: Vec<Bytes> = (0..9).map(|seed| layer(seed, 400_000)).collect();
        let old = layer(10, 400_000);
        let new = layer(11, 400_000);
        let repository = setting.repository();
        let build = async |tag: &str, last: &Bytes| {
            let layers = shared.iter().chain([last]).map(|layer| (GZIP, layer.clone()));
            let image = Image::new(&config(&[]), layers);
            for blob in image.blobs() {
                repository.push_blob(&Descriptor::of(GZIP, blob), blob.clone()).await.unwrap();
            }
            server.put_manifest("a/b", tag, OCI_MANIFEST, &image.manifest);
        };
        build("build-1", &old).await;
        setting.index("build-1", &options()).await;
        build("build-2", &new).await;
        let done = setting.index("build-2", &with(setting.naming("build-1"))).await;

        for layer in &shared {
            let (whole, parts) = requests(&setting, layer);
            assert_eq!((whole, (1..=2).contains(&parts)), (1, true), "{parts} parts");
        }
        assert_eq!(requests(&setting, &new), (1, 0));
        assert_eq!(done.bytes_read, new.len() as u64);
        let from =
            origins(&done).into_iter().filter(|origin| matches!(origin, Origin::Reused(_))).count();
        assert_eq!(from, 9);
        let layers: Vec<&Bytes> = shared.iter().chain([&new]).collect();
        assert_eq!(index_digest(&done), fresh(&layers).await);
    }
}

#[test]
fn the_command_reports_what_it_reused() {
    let sandbox = Sandbox::new();
    let shared = gzip(&tar(1, 4, 50_000));
    let old = gzip(&tar(2, 2, 20_000));
    let new = gzip(&tar(3, 2, 20_000));
    for (dir, last) in [("one", &old), ("two", &new)] {
        let mut layout = Layout::new(&sandbox.path(dir));
        let layers = [layout.blob(GZIP, &shared), layout.blob(GZIP, last)];
        let image = layout.image("amd64", &layers);
        layout.tag(image, "v1");
    }
    sandbox.json(0, &sandbox::index(&["--format=json", "oci:one:v1"]));
    let reusing = sandbox::index(&["--reuse-from=oci:one:v1", "oci:two:v1"]);
    let done = sandbox.json(0, &[&reusing[..], &["--format=json", "--dry-run"]].concat());
    let image = &done["images"][0];
    let [first, second] = [0, 1].map(|place| &image["manifests"][0]["layers"][place]);
    assert_eq!((&first["origin"], &first["reused_from"]), (&json!("reused"), &json!("oci:one:v1")));
    assert_eq!(second["origin"], "read");
    assert!(second.get("reused_from").is_none());
    assert_eq!(image["bytes_read"], new.len());
    assert!(image["bytes_compared"].as_u64().unwrap() > 0);

    let text = sandbox.run(&[&reusing[..], &["--dry-run"]].concat());
    assert!(text.contains("reused from oci:one:v1"), "{text}");
    assert!(text.contains(" of reused ztocs, in "), "{text}");
    let text =
        sandbox.run(&[&sandbox::index(&["--no-reuse", "oci:two:v1"])[..], &["--dry-run"]].concat());
    assert!(!text.contains("reused"), "{text}");
    let text = sandbox.run(&[&reusing[..], &["--no-reuse"]].concat());
    assert!(text.contains("status 2"), "{text}");
    let text = sandbox.run(&sandbox::index(&["--reuse-from=oci:none", "--dry-run", "oci:two:v1"]));
    assert!(
        text.contains("cannot reuse anything from oci:none") && text.contains("status 0"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn backfill_reuses_named_images() {
    let setting = Setting::new().await;
    let base_images = Setting::new().await;
    let base = layer(1, 2 << 20);
    let app = layer(2, 2 << 20);
    let old = layer(3, 100_000);
    let new = layer(4, 100_000);
    base_images.push("base", &[&base]);
    base_images.index("base", &options()).await;
    setting.push("1.0", &[&app, &old]);
    setting.index("1.0", &options()).await;
    setting.push("1.1", &[&base, &app, &new]);
    let sandbox = Sandbox::new();
    let place = format!("{}/a/b", setting.registry.host());
    let from = format!("{}/a/b:base,{place}:1.0", base_images.registry.host());
    let fixed =
        ["backfill", "--format=json", "--min-layer-size=0", "--span-size=64KiB", "--no-cache"];
    let output =
        sandbox.command(&[&fixed[..], &["--reuse-from", &from, &place]].concat()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let line = lines
        .lines()
        .find(|line| line.contains(":1.1"))
        .unwrap_or_else(|| panic!("{lines}{stderr}"));
    let line: serde_json::Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["status"], "indexed", "{line}");
    assert_eq!(line["bytes_read"], new.len(), "{line}");
    assert_eq!(requests(&setting, &base).0, 0);
}
