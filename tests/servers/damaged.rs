//! What is damaged on its way from the registry is read once more before it is called broken.

use std::collections::HashSet;
use std::sync::Mutex;

use ociseek_format::digest::Digest;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, body_of, damaged};
use ociseek_testkit::image::{Image, config};
use ociseek_testkit::sandbox::{GZIP, PLAIN, Sandbox, ZSTD, gzip, index, shown, tar};

const FILE: usize = 60_000;

/// A registry with an image that has a layer of each kind, whose numbers are 1 to 3, and their
/// digests.
async fn image() -> (Faulty, Vec<Digest>) {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let tars: Vec<Vec<u8>> = (1..4).map(|seed| tar(seed, 2, FILE)).collect();
    let zstd = zstd::stream::encode_all(&tars[2][..], 3).unwrap();
    let blobs = [(GZIP, gzip(&tars[0])), (PLAIN, tars[1].clone()), (ZSTD, zstd)];
    let image = Image::new(&config(&tars), blobs);
    image.add_to(&registry, "v1");
    (registry, image.descriptors().iter().map(|layer| layer.digest).collect())
}

/// A copy of a registry that damages `always`, or everything that has a digest when it is asked for
/// the first time.
async fn damaging(registry: &Faulty, always: Option<Digest>) -> Faulty {
    let asked = Mutex::new(HashSet::new());
    let copy = registry.copy(move |seen, faulty| {
        let (_, digest) =
            seen.path.rsplit_once('/').filter(|(_, last)| last.starts_with("sha256:"))?;
        let part = (seen.path.clone(), seen.header("range").map(str::to_owned));
        let is_hit = match always {
            Some(always) => always.to_string() == digest,
            None => asked.lock().unwrap().insert(part),
        };
        if seen.method != "GET" || seen.path.contains("/referrers/") || !is_hit {
            return None;
        }
        let (answer, bytes) = body_of(faulty.truth_now(seen));
        (!bytes.is_empty()).then(|| damaged(answer, &bytes))
    });
    copy.await
}

async fn run(registry: &Faulty, args: &[&str]) -> String {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&[args, &[&format!("{}/a/b:v1", registry.host())]].concat());
    tokio::task::spawn_blocking(move || shown(&mut command)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_damaged_once_are_read_again() {
    let (registry, _) = image().await;
    let there = damaging(&registry, None).await;
    let text = run(&there, &index(&["--kind=v1,fine"])).await;
    assert!(text.ends_with("--- status 0 ---"), "{text}");
    assert!(text.contains(" arrived damaged, and is read once more: "), "{text}");
    for more in [&[][..], &["--quick", "--spans=3"]] {
        let args = [&["verify", "--progress=none"], more].concat();
        let text = run(&damaging(&there, None).await, &args).await;
        assert!(text.contains(": ok (") && text.ends_with("--- status 0 ---"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_without_an_index_are_read_again_if_damaged() {
    let (registry, _) = image().await;
    for layer in 1..4 {
        let there = damaging(&registry, None).await;
        let sandbox = Sandbox::new();
        let name = format!("{}/a/b:v1", there.host());
        let path = format!("dir{layer}/file1");
        let mut command = sandbox.command(&["cat", "--progress=none", &name, &path]);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert!(tar(layer, 2, FILE).windows(FILE).any(|file| file == output.stdout), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn permanent_damage_is_reported_after_two_reads() {
    let (registry, layers) = image().await;
    run(&registry, &index(&[])).await;
    for layer in &layers[..2] {
        let there = damaging(&registry, Some(*layer)).await;
        let text = run(&there, &index(&["--existing=replace"])).await;
        let message = format!("layer {layer} is broken (it was read twice): ");
        assert!(text.contains(&message) && text.ends_with("--- status 1 ---"), "{text}");
        assert_eq!(there.saw("GET", &layer.to_string()).len(), 2);
        for more in [&[][..], &["--quick", "--spans=99"]] {
            let text = run(&there, &[&["verify", "--progress=none"], more].concat()).await;
            assert!(
                text.contains(" (it was read twice)") && text.ends_with("--- status 3 ---"),
                "{text}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn copied_blobs_are_read_again_if_damaged() {
    let (registry, layers) = image().await;
    let convert = async |from: &Faulty, to: &str| {
        let sandbox = Sandbox::new();
        let from = format!("{}/a/b:v1", from.host());
        // Small layers are copied without a look at their content.
        let options = ["convert", "--no-cache", "--min-layer-size=4KiB", "--progress=none"];
        let mut command = sandbox.command(&[&options[..], &[&from, to]].concat());
        tokio::task::spawn_blocking(move || shown(&mut command)).await.unwrap()
    };
    let other = Faulty::honest(RegistrySettings::with_referrers()).await;
    let name = format!("{}/c/d:v1", other.host());
    for to in ["oci:copy:v1", &name] {
        let text = convert(&damaging(&registry, None).await, to).await;
        assert!(text.ends_with("--- status 0 ---"), "{to}: {text}");
    }
    assert!(layers.iter().all(|layer| other.blob(layer) == registry.blob(layer)));
    let another = format!("{}/e/f:v1", Faulty::honest(RegistrySettings::default()).await.host());
    for to in ["oci:copy:v1", &another] {
        for layer in &layers {
            let text = convert(&damaging(&registry, Some(*layer)).await, to).await;
            assert!(
                text.contains("it was read twice") && text.ends_with("--- status 1 ---"),
                "{to}: {text}"
            );
        }
    }
}
