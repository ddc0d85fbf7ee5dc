//! Readers with a cache of their own on one directory, as two processes have.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use rustix::process::{Signal, geteuid};

use super::*;
use ociseek_testkit::child_process::ChildProcess;
use ociseek_testkit::this_test;

const HOST: &str = "OCISEEK_TEST_SHARED_HOST";
const DIR: &str = "OCISEEK_TEST_SHARED_DIR";

/// A layer with its plain bytes and its ztoc.
fn layer() -> (Bytes, Descriptor, Vec<u8>, Bytes) {
    let plain = tar(&[3_000_000]);
    let blob = gzip(&plain);
    let ztoc = ztoc(&blob, 65_536);
    (blob.clone(), Descriptor::of(GZIP, &blob), plain, ztoc)
}

/// A registry that never answers the first `n` requests for the layer.
async fn silent(n: usize) -> (Faulty, Descriptor, Vec<u8>, Bytes) {
    let (blob, layer, plain, ztoc) = layer();
    let is_first = first(n);
    let faulty = Faulty::start(RegistrySettings::default(), move |seen, _| {
        (seen.is("GET", "/blobs/") && is_first()).then(no_response)
    })
    .await;
    faulty.add_blob(blob);
    (faulty, layer, plain, ztoc)
}

async fn until_requested(faulty: &Faulty, requests: usize) {
    for _ in 0..6000 {
        if faulty.saw("GET", "/blobs/").len() == requests {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} requests of {requests}", faulty.saw("GET", "/blobs/").len());
}

/// The sum of the requested ranges.
fn requested(faulty: &Faulty) -> u64 {
    let size = |seen: ReceivedRequest| {
        let (from, last) =
            seen.header("range").unwrap().strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        last.parse::<u64>().unwrap() + 1 - from.parse::<u64>().unwrap()
    };
    faulty.saw("GET", "/blobs/").into_iter().map(size).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_processes_fetch_each_span_once() {
    let (blob, layer, plain, ztoc) = layer();
    // One reads in large pieces and in order, the other in small ones and from the end.
    for (size, step) in [(3_000_000, 1), (65_536, 1), (100_000, 7)] {
        let faulty = Faulty::honest(RegistrySettings {
            slow_blobs: Duration::from_millis(50),
            ..RegistrySettings::default()
        })
        .await;
        faulty.add_blob(blob.clone());
        let source = registry(&faulty.host());
        let dir = tempfile::tempdir().unwrap();
        let mut readers = Vec::new();
        for reader in 0..3 {
            let desk = Desk::new(Some(dir.path()));
            let open = desk.open(&source, &layer, Some(ztoc.clone())).await.unwrap();
            let size = size / (1 + reader);
            let mut starts: Vec<usize> = (0..plain.len()).step_by(size).collect();
            if reader == 1 {
                starts.reverse();
            }
            // Some of them at once.
            let options = ContentOptions { deadline: Duration::from_secs(120), ..options() };
            readers.push((desk.content(&source, vec![open], options), starts, size));
        }
        let reads = readers.iter().map(|(content, starts, size)| {
            let content = content.clone();
            let starts = starts.clone();
            let size = *size;
            let plain = plain.clone();
            tokio::spawn(async move {
                for group in starts.chunks(step) {
                    let read = |at: usize| {
                        let content = content.clone();
                        let end = plain.len().min(at + size);
                        async move { (at..end, read(&content, at, end - at).await.unwrap()) }
                    };
                    for (range, found) in
                        futures_util::future::join_all(group.iter().copied().map(read)).await
                    {
                        assert!(found == plain[range.clone()], "{range:?}");
                    }
                }
            })
        });
        for read in reads.collect::<Vec<_>>() {
            read.await.unwrap();
        }
        let contents = || readers.iter().map(|(content, ..)| content);
        let spans = contents().next().unwrap().layers().next().unwrap().spans().count();
        let decoded: Vec<u64> = contents().map(|content| content.stats().spans_decoded).collect();
        assert_eq!(decoded.iter().sum::<u64>(), u64::from(spans), "{decoded:?}");
        assert_eq!(contents().map(|content| content.stats().errors).sum::<u64>(), 0);
        // Neighbours may share a byte.
        let requested = requested(&faulty);
        assert!(requested <= layer.size + u64::from(spans), "{requested} of {}", layer.size);
        assert_eq!(entries(dir.path()).len(), spans as usize);
    }
}

/// Reads from the layer, until it is killed.
#[tokio::test]
async fn child_of_claims() {
    let (Ok(host), Some(dir)) = (std::env::var(HOST), std::env::var_os(DIR)) else { return };
    let (_, layer, _, ztoc) = layer();
    let content = Desk::new(Some(dir.as_ref())).one(&registry(&host), &layer, Some(ztoc)).await;
    let _ = read(&content, 1000, 1000).await;
}

/// A process that has claimed the span at byte 1000 of the layer.
async fn claimant(faulty: &Faulty, dir: &Path) -> ChildProcess {
    let mut child = this_test(module_path!(), "child_of_claims");
    let child =
        ChildProcess::spawn(child.env(HOST, faulty.host()).env(DIR, dir).stdout(Stdio::null()));
    until_requested(faulty, 1).await;
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_ends_with_its_process() {
    let (faulty, layer, plain, ztoc) = silent(1).await;
    let dir = tempfile::tempdir().unwrap();
    let mut child = claimant(&faulty, dir.path()).await;
    let desk = Desk::new(Some(dir.path()));
    let open = desk.open(&registry(&faulty.host()), &layer, Some(ztoc)).await.unwrap();
    // The bound is not over within the test.
    let options = ContentOptions { deadline: Duration::from_secs(3600), ..options() };
    let content = desk.content(&registry(&faulty.host()), vec![open], options);
    let reader = tokio::spawn({
        let content = content.clone();
        async move { read(&content, 1000, 1000).await }
    });
    // What is not claimed is fetched meanwhile.
    assert!(read(&content, 1_000_000, 1000).await.unwrap() == plain[1_000_000..1_001_000]);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!reader.is_finished());
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 2);
    child.kill();
    assert!(reader.await.unwrap().unwrap() == plain[1000..2000]);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 3);
    // A fetch counts its requests when it ends, a little after its bytes were read.
    while content.stats().requests < 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(content.stats().requests, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_process_does_not_block_others_for_long() {
    let (faulty, layer, plain, ztoc) = silent(1).await;
    let dir = tempfile::tempdir().unwrap();
    let child = claimant(&faulty, dir.path()).await;
    child.signal(Signal::STOP);
    let content =
        Desk::new(Some(dir.path())).one(&registry(&faulty.host()), &layer, Some(ztoc)).await;
    // Within the deadline.
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    assert_eq!((faulty.saw("GET", "/blobs/").len(), content.stats().errors), (2, 0));
}

/// Where nothing can be claimed, nobody waits for others: not within the hour that a claim would
/// take.
async fn everybody_fetches(prepare: impl FnOnce(&Path)) {
    let (faulty, layer, plain, ztoc) = silent(1).await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("spans")).unwrap();
    prepare(&dir.path().join("spans"));
    let source = registry(&faulty.host());
    let [one, other] = [(); 2].map(|()| Desk::new(Some(dir.path())));
    let options = ContentOptions { deadline: Duration::from_secs(4 * 3600), ..options() };
    let open = one.open(&source, &layer, Some(ztoc.clone())).await.unwrap();
    let hanging = one.content(&source, vec![open], options.clone());
    let task = tokio::spawn(async move { read(&hanging, 1000, 1000).await });
    until_requested(&faulty, 1).await;
    let open = other.open(&source, &layer, Some(ztoc)).await.unwrap();
    let content = other.content(&source, vec![open], options);
    assert!(read(&content, 1000, 1000).await.unwrap() == plain[1000..2000]);
    assert_eq!(faulty.saw("GET", "/blobs/").len(), 2);
    task.abort();
    // Or the folder could not be removed.
    std::fs::set_permissions(dir.path().join("spans"), Permissions::from_mode(0o700)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_claims_every_process_fetches() {
    everybody_fetches(|dir| std::fs::create_dir(dir.join(".claims")).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn if_claims_cannot_be_written_every_process_fetches() {
    // Root may write anywhere, unless it gives up that right.
    if geteuid().is_root() && std::env::var_os("OCISEEK_TEST_NO_OVERRIDE").is_none() {
        let test = this_test(module_path!(), "if_claims_cannot_be_written_every_process_fetches");
        let mut child = Command::new("setpriv");
        child.args(["--bounding-set=-dac_override", "--inh-caps=-dac_override"]);
        child.arg(test.get_program()).args(test.get_args()).env("OCISEEK_TEST_NO_OVERRIDE", "1");
        let output = tokio::task::block_in_place(|| child.output().unwrap());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    everybody_fetches(|dir| {
        std::fs::write(dir.join(".claims"), "").unwrap();
        std::fs::set_permissions(dir, Permissions::from_mode(0o500)).unwrap();
        assert!(std::fs::write(dir.join("x"), "").is_err());
    })
    .await;
}
