//! Images that are opened as they were the last time, while the registry is asked.

use super::*;
use ociseek_testkit::sandbox::Sandbox;

/// Waits until the cache remembers an image that it did not know `before`. Returns what it
/// remembers.
async fn remembered(cache: &std::path::Path, before: &[u8]) -> Vec<u8> {
    let key = b"{\"key\":\"ociseek opened image ";
    for _ in 0..2000 {
        let mut entries = std::fs::read_dir(cache)
            .unwrap()
            .filter_map(|entry| std::fs::read(entry.unwrap().path()).ok());
        if let Some(found) =
            entries.find(|entry| entry.get(32..).is_some_and(|text| text.starts_with(key)))
            && found != before
        {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the image is not remembered");
}

/// The path of a cache entry about this.
fn entry(cache: &std::path::Path, key: &str) -> std::path::PathBuf {
    cache.join(Digest::sha256(key.as_bytes()).hex())
}

/// The path of the tree of an image, by what the cache remembers of the image.
fn tree_entry(cache: &std::path::Path, remembered: &[u8]) -> std::path::PathBuf {
    let content = 32 + remembered[32..].iter().position(|byte| *byte == b'\n').unwrap() + 1;
    entry(cache, &format!("ociseek tree 1\n{}", Digest::sha256(&remembered[content..])))
}

/// Waits until a file exists.
async fn exists(path: &std::path::Path) {
    for _ in 0..2000 {
        if path.exists() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} is missing", path.display());
}

async fn has_files_of(reader: &Reader, image: &Image) {
    let opened = reader.open(true, options()).await;
    let names = |tar: &[u8]| -> Vec<Vec<u8>> {
        let mut archive = ::tar::Archive::new(tar);
        archive.entries().unwrap().map(|entry| entry.unwrap().path_bytes().into_owned()).collect()
    };
    for (number, (tar, blob)) in (0..).zip(image.tars.iter().zip(&image.blobs)) {
        let layer = &opened.layers[number as usize];
        assert_eq!((&layer.descriptor, layer.how), (blob, LayerAccess::Fine));
        check(&opened, number, tar).await;
        for name in names(tar) {
            assert!(
                opened.tree.resolve(&name, false).is_ok(),
                "{}",
                String::from_utf8_lossy(&name)
            );
        }
    }
    assert_eq!(reader.warnings(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_is_what_the_registry_says_whatever_it_was() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, Some(dir.path()));
    let first = Image::push(&registry, false, &[]);
    has_files_of(&reader, &first).await;
    let before = remembered(dir.path(), b"").await;
    has_files_of(&reader, &first).await;

    // The tag is moved.
    let second = Image::push_layers(&registry, vec![tar(3, 2, 100_000)], false, &[Vec::new()]);
    has_files_of(&reader, &second).await;
    let now = remembered(dir.path(), &before).await;
    has_files_of(&reader, &second).await;

    // The head of its document is damaged in the cache, then missing.
    let head =
        entry(dir.path(), &format!("ociseek fine head 1\n{}", second.fine.layers[0].head_digest));
    let mut bytes = std::fs::read(&head).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&head, bytes).unwrap();
    has_files_of(&reader, &second).await;
    let _ = std::fs::remove_file(&head);
    has_files_of(&reader, &second).await;
    assert!(remembered(dir.path(), b"").await == now);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_stayed_the_same_is_decoded_once() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let image = Image::push(&registry, false, &[]);
    let sandbox = Sandbox::new();
    let host = registry.host();
    let cache = sandbox.path("cache");
    let reader = Reader::new(&registry, Some(&cache));
    let opened = reader.open(false, options()).await;
    let tree = format!("{:?}", opened.tree);
    let path = String::from_utf8(
        opened.tree.path(opened.tree.children(ociseek_format::tree::Tree::ROOT).next().unwrap().1),
    );
    let stored = tree_entry(&cache, &remembered(&cache, b"").await);
    exists(&stored).await;
    let again = reader.open(false, options()).await;
    assert_eq!(format!("{:?}", again.tree), tree);
    let log = tokio::task::spawn_blocking(move || {
        let args = [
            "ls",
            "-vv",
            "--cache-dir",
            cache.to_str().unwrap(),
            &format!("{host}/a/b:v1"),
            &path.unwrap(),
        ];
        let output = sandbox.command(&args).output().unwrap();
        let log = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{log}");
        log
    });
    let log = log.await.unwrap();
    assert_eq!(log.matches("lookup what=head").count(), image.blobs.len(), "{log}");
    assert!(
        log.lines().any(|line| line.contains("lookup what=tree") && line.contains("hit=true")),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_tree_is_made_again() {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let dir = tempfile::tempdir().unwrap();
    let reader = Reader::new(&registry, Some(dir.path()));
    let image = Image::push(&registry, false, &[]);
    has_files_of(&reader, &image).await;
    let stored = tree_entry(dir.path(), &remembered(dir.path(), b"").await);
    exists(&stored).await;
    let whole = std::fs::read(&stored).unwrap();
    let content = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    // The second one has the right digest, but is not a tree.
    let mut other = [&whole[32..content], b"x"].concat();
    other.splice(..0, Digest::sha256(&other).as_bytes().iter().copied());
    for bytes in [damaged, other] {
        std::fs::write(&stored, &bytes).unwrap();
        has_files_of(&reader, &image).await;
        exists(&stored).await;
        assert!(std::fs::read(&stored).unwrap() == whole);
        // By the stored tree.
        has_files_of(&reader, &image).await;
    }
}
