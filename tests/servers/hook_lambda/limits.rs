//! The registry falls silent at each request of an event: the function answers before Lambda would
//! end it, and handles the next event.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};

use serde_json::{Value, json};

use super::aws::{FakeEcr, Moto};
use super::runtime_api::{Bootstrap, RuntimeApi};
use super::{LONG, pushed};
use ociseek_format::digest::Digest;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, no_response};
use ociseek_testkit::sandbox::tar;

/// Of the first event. A busy machine gets the rest of `invoke`'s patience.
const LIMIT: Duration = Duration::from_secs(9);
const AT_ONCE: usize = 32;

/// Handles an event whose request `at` to the registry is not answered, and the same event again.
/// Returns the number of requests, and how long the first answer took.
async fn handled(honest: &Faulty, ecr: &FakeEcr, digest: &str, at: usize) -> (usize, Duration) {
    let asked = Arc::new(AtomicUsize::new(0));
    let is_silent = Arc::new(AtomicBool::new(true));
    let number = Arc::clone(&asked);
    let silent = Arc::clone(&is_silent);
    let registry = honest.copy(move |_, _| {
        let is_hit = number.fetch_add(1, Ordering::SeqCst) == at;
        (is_hit && silent.load(Ordering::SeqCst)).then(no_response)
    });
    let (registry, (api, address)) = (registry.await, RuntimeApi::start().await);
    let host = registry.host();
    let environment = [("AWS_ENDPOINT_URL_ECR", ecr.url.as_str()), ("OCISEEK_ECR_REGISTRY", &host)];
    let mut function = Bootstrap::start(&address, &environment);
    // It has started when it has answered this.
    let mut deleted = pushed("team/app", digest, "v1");
    deleted["detail"]["action-type"] = json!("DELETE");
    api.invoke(deleted, LONG).await;
    let first = api.invoke(pushed("team/app", digest, "v1"), LIMIT).await;
    assert_eq!(function.child.ended(), None, "request {at}: {first:?}");
    is_silent.store(false, Ordering::SeqCst);
    let requests = asked.load(Ordering::SeqCst);
    let again = api.invoke(pushed("team/app", digest, "v1"), LONG).await;
    assert!(again.ok, "request {at}: {first:?}, then {again:?}");
    let listed = registry.manifest(&digest.replace(':', "-")).unwrap();
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["manifests"].as_array().unwrap().len(), 1, "request {at}: {listed}");
    (requests, first.took)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_registry_loses_no_event_and_does_not_end_the_function() {
    let honest = Faulty::honest(RegistrySettings {
        basic: Some(("AWS".into(), Moto::PASSWORD.into())),
        ..RegistrySettings::default()
    });
    let honest = honest.await;
    let ecr = FakeEcr::start(Moto::PASSWORD).await;
    honest.add_image("v1", &tar(1, 2, 50_000));
    let digest = Digest::sha256(&honest.manifest("v1").unwrap()).to_string();
    let (requests, _) = handled(&honest, &ecr, &digest, usize::MAX).await;
    assert!(requests > 5, "{requests}");
    let ecr = &ecr;
    let honest = &honest;
    let digest = &digest;
    let points = stream::iter(0..requests)
        .map(|at| handled(honest, ecr, digest, at))
        .buffer_unordered(AT_ONCE);
    let took: Vec<Duration> = points.map(|(_, took)| took).collect().await;
    let late = took.iter().filter(|took| **took >= LIMIT).count();
    println!(
        "hook lambda: {} points, {late} answers after Lambda would have ended the function",
        took.len()
    );
}
