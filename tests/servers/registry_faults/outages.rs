//! Registries that become unavailable, temporarily or permanently.

use super::*;
use ociseek_testkit::servers::free_port;

/// An address without a listener, which nobody else is given.
fn nobody() -> String {
    format!("127.0.0.1:{}", free_port())
}

fn patient(patience: Duration, recorder: &Arc<Recorder>) -> ClientConfig {
    let limits = Limits {
        patience: Some(patience),
        local_patience: patience,
        first_wait: Duration::from_millis(20),
        ..limits()
    };
    ClientConfig { limits, progress: recorder.clone(), ..config() }
}

fn warnings(recorder: &Recorder) -> Vec<String> {
    let text = |event| match event {
        ProgressEvent::Warning(text) => Some(text),
        _ => None,
    };
    recorder.events().into_iter().filter_map(text).collect()
}

async fn until(recorder: &Recorder, part: &str) {
    while !warnings(recorder).iter().any(|warning| warning.contains(part)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn waiting_for_a_restarting_registry_is_reported_once() {
    let host = nobody();
    let recorder = Arc::new(Recorder::default());
    let client = Client::new(patient(Duration::from_secs(60), &recorder)).unwrap();
    let read = |blob: &'static [u8]| {
        let repository = client.repository(&host, "a/b").unwrap();
        tokio::spawn(async move { repository.blob_bytes(&Descriptor::of("x/y", blob), 1).await })
    };
    let reads = [read(b"x"), read(b"y")];
    until(&recorder, "cannot connect to").await;
    // Longer than the three tries of earlier versions.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let faulty = Faulty::at(&host, RegistrySettings::default(), |_, _| None).await;
    faulty.add_blob("x");
    faulty.add_blob("y");
    for read in reads {
        read.await.unwrap().unwrap();
    }
    let warnings = warnings(&recorder);
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].starts_with(&format!("cannot connect to {host} (")), "{warnings:?}");
    assert!(warnings[0].ends_with("; trying again for 60 s"), "{warnings:?}");
    assert_eq!(warnings[1], format!("{host} is reachable again"));
}

#[tokio::test]
async fn a_long_outage_is_not_waited_for_by_every_request() {
    let host = nobody();
    let recorder = Arc::new(Recorder::default());
    let client = Client::new(patient(Duration::from_millis(1500), &recorder)).unwrap();
    let get = || async {
        client.repository(&host, "a").unwrap().manifest(&Target::Tag("t".into())).await.unwrap_err()
    };
    let first = get().await;
    let RegistryError::GaveUp { tries, .. } = &first else { panic!("{first:?}") };
    assert!(*tries > 3 && first.is_unreachable() && first.is_transient(), "{first:?}");
    assert!(everything(&first).contains("Connection refused"), "{first:?}");
    let second = get().await;
    assert!(matches!(second, RegistryError::Transport { .. }), "one try, {second:?}");
}

#[tokio::test]
async fn an_unknown_name_is_given_up_soon() {
    let recorder = Arc::new(Recorder::default());
    let client = Client::new(patient(Duration::from_secs(3600), &recorder)).unwrap();
    let error = client
        .repository("registry.invalid", "a")
        .unwrap()
        .manifest(&Target::Tag("t".into()))
        .await;
    let error = error.unwrap_err();
    assert_eq!(error.to_string(), "gave up after 3 tries");
    assert!(everything(&error).contains("cannot resolve the name registry.invalid: "), "{error:?}");
    assert!(error.is_unreachable() && warnings(&recorder).is_empty());
}

#[tokio::test]
async fn requests_with_their_own_time_limit_are_not_given_up() {
    for (outlasts, requests) in [(false, 8), (true, 10)] {
        let some = first(9);
        let faulty =
            Faulty::start(RegistrySettings::default(), move |_, _| some().then(|| status(503)))
                .await;
        faulty.add_manifest("t", OCI_MANIFEST, "{}");
        let recorder = Arc::new(Recorder::default());
        let repository =
            repository(&faulty, ClientConfig { progress: recorder.clone(), ..config() });
        if outlasts {
            repository.retry_forever();
        }
        let found = repository.manifest(&Target::Tag("t".into())).await;
        assert_eq!((found.is_ok(), faulty.requests().len()), (outlasts, requests));
        let warnings = warnings(&recorder);
        assert_eq!(warnings.len(), if outlasts { 2 } else { 0 }, "{warnings:?}");
        let why = "503 Service Unavailable; trying again as long as a read waits for it";
        assert!(warnings.first().is_none_or(|warning| warning.ends_with(why)), "{warnings:?}");
    }
}

/// A server that closes connections without TLS, and rejects the client's certificate otherwise.
fn hangs_up_on_plain_http() -> (String, Arc<std::sync::atomic::AtomicUsize>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let connections = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let mut first = [0; 1];
            if stream.read_exact(&mut first).is_ok() && first[0] == 22 {
                // TLS 1.2, alert, fatal, handshake_failure.
                let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 40]);
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
    });
    (host, connections)
}

#[tokio::test]
async fn a_tls_server_that_hangs_up_on_plain_http_is_recognized() {
    let (host, connections) = hangs_up_on_plain_http();
    let repository = Client::new(config()).unwrap().repository(&host, "a").unwrap();
    let error = repository.manifest(&Target::Tag("t".into())).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::SpeaksTls { .. }) && error.is_not_plain_http(),
        "{error:?}"
    );
    assert_eq!(
        connections.load(std::sync::atomic::Ordering::SeqCst),
        2,
        "asked once, and once by TLS"
    );
}
