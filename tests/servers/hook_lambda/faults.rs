//! The Runtime API fails at each of its requests, and ECR's API at each call: each event is handled
//! once in the end.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};

use super::aws::{EcrFailing, FakeEcr, Moto};
use super::runtime_api::{Bootstrap, Failing, RuntimeApi};
use super::{LONG, pushed};
use ociseek_format::digest::Digest;
use ociseek_testkit::PATIENCE;
use ociseek_testkit::fault_points::{ECR, Points, RUNTIME_API};
use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::sandbox::tar;
use serde_json::{Value, json};

const AT_ONCE: usize = 8;
/// Points of the Runtime API in CI, and of ECR's.
const SAMPLE: usize = 20;
const CALLS: usize = 15;

/// Waits until the process has ended.
async fn ended(function: &mut Bootstrap) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = function.child.ended() {
            return status.code();
        }
        assert!(begun.elapsed() < PATIENCE, "the function still runs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A registry with two images, and their events, with one between them that a function fails at.
/// Whether a function answers each with a response.
struct Ground {
    honest: Faulty,
    ecr: FakeEcr,
    events: [(Value, bool); 3],
    lists: [String; 2],
}

impl Ground {
    async fn new() -> Ground {
        let honest = Faulty::honest(RegistrySettings {
            basic: Some(("AWS".into(), Moto::PASSWORD.into())),
            ..RegistrySettings::default()
        });
        let honest = honest.await;
        let ecr = FakeEcr::start(Moto::PASSWORD).await;
        let digests = ["v1", "v2"].map(|tag| {
            honest.add_image(tag, &tar(u64::from(tag == "v1"), 1, 50_000));
            Digest::sha256(&honest.manifest(tag).unwrap()).to_string()
        });
        let lists = digests.clone().map(|digest| digest.replace(':', "-"));
        let [one, other] = digests.map(|digest| (pushed("team/app", &digest, "v1"), true));
        Ground {
            honest,
            ecr,
            events: [one, (json!({"image": "docker.io/library/debian"}), false), other],
            lists,
        }
    }

    fn environment<'a>(&'a self, host: &'a str) -> [(&'a str, &'a str); 2] {
        [("AWS_ENDPOINT_URL_ECR", &self.ecr.url), ("OCISEEK_ECR_REGISTRY", host)]
    }
}

/// Whether a function ends that meets this at a request. Nothing depends on the body of the answer
/// to its own report.
fn ends(request: &str, failing: Failing) -> bool {
    match failing {
        Failing::Garbled => false,
        Failing::Cut => request == "next",
        _ => true,
    }
}

/// Three events, like Lambda: when a function ends or fails at an event, the event comes again.
/// Returns the requests of the functions.
async fn three_events(
    ground: &Ground,
    fault: Option<(usize, &str, Failing)>,
) -> Result<(String, Vec<String>), String> {
    let (registry, (api, address)) =
        (ground.honest.copy(|_, _| None).await, RuntimeApi::start().await);
    let host = registry.host();
    if let Some((at, _, failing)) = fault {
        api.fail(at, failing).await;
    }
    let start = || Bootstrap::start(&address, &ground.environment(&host));
    let mut function = start();
    let mut codes = Vec::new();
    let mut failed = 0;
    for (event, is_sound) in &ground.events {
        let mut invoked = api.begin(event.clone(), LONG);
        loop {
            tokio::select! {
                answered = &mut invoked.answered => {
                    let (is_response, body) = answered.unwrap();
                    if is_response == *is_sound {
                        break;
                    }
                    failed += 1;
                    if is_response || failed > 1 {
                        return Err(format!("{event}: {body}"));
                    }
                    invoked = api.begin(event.clone(), LONG);
                }
                code = ended(&mut function) => {
                    codes.push(code);
                    if codes.len() > 1 {
                        return Err(format!("functions ended: {codes:?}"));
                    }
                    api.up().await;
                    function = start();
                    api.again(&invoked);
                }
            }
        }
    }
    let ends = fault.is_some_and(|(_, request, failing)| ends(request, failing));
    if ends && codes.is_empty() {
        codes.push(ended(&mut function).await);
    } else if let Some(status) = function.child.ended() {
        codes.push(status.code());
    }
    if codes != [Some(1)][..usize::from(ends)] {
        return Err(format!("functions ended: {codes:?}"));
    }
    for list in &ground.lists {
        let list: Value = serde_json::from_slice(&registry.manifest(list).unwrap()).unwrap();
        if list["manifests"].as_array().unwrap().len() != 1 {
            return Err(list.to_string());
        }
    }
    let end = if ends { "ended, then done by another" } else { "went on" };
    Ok((end.to_owned(), api.requests()))
}

/// A function that cannot start says so, or cannot even do that.
async fn cannot_start(failing: Failing) -> Result<String, String> {
    let (api, address) = RuntimeApi::start().await;
    api.fail(0, failing).await;
    match ended(&mut Bootstrap::start(&address, &[("AWS_SECRET_ACCESS_KEY", "")])).await {
        Some(1) => Ok("could not start".to_owned()),
        code => Err(format!("ended with {code:?}")),
    }
}

/// A function that cannot speak to its API ends, as Lambda expects; it starts another one and sends
/// the event again.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_runtime_api_loses_no_event() {
    let ground = Ground::new().await;
    let (_, requests) = three_events(&ground, None).await.unwrap();
    assert_eq!(requests[..6], ["next", "response", "next", "error", "next", "response"]);
    const ANSWERS: [Failing; 7] = [
        Failing::Down,
        Failing::Refused,
        Failing::Reset,
        Failing::Lost,
        Failing::Cut,
        Failing::Garbled,
        Failing::Silent,
    ];
    const EVENTS: [Failing; 6] = [
        Failing::Down,
        Failing::Refused,
        Failing::Reset,
        Failing::Cut,
        Failing::Garbled,
        Failing::NoId,
    ];
    let mut points: Points<(usize, &str, Failing)> = Points::of(RUNTIME_API);
    for (at, request) in requests[..6].iter().enumerate() {
        let failings = if request == "next" { &EVENTS[..] } else { &ANSWERS };
        points.add(request, failings.iter().map(|&failing| (at, request.as_str(), failing)));
    }
    // While no event is waiting.
    points.add("the last request", EVENTS[..3].iter().map(|&failing| (6, "next", failing)));
    points.add("a start", ANSWERS.map(|failing| (0, "init", failing)));
    let ((points, mut score), ground) = (points.chosen(SAMPLE), &ground);
    let outcomes = stream::iter(points).map(async |(at, request, failing)| {
        let outcome = match request {
            "init" => cannot_start(failing).await,
            _ => three_events(ground, Some((at, request, failing))).await.map(|(end, _)| end),
        };
        (format!("{failing:?} at request {at}, {request}"), outcome)
    });
    let outcomes: Vec<_> = outcomes.buffer_unordered(AT_ONCE).collect().await;
    for (point, outcome) in outcomes {
        score.count(&point, outcome);
    }
    score.conclude();
}

/// How many calls in a row may fail so, before the event fails.
fn calls_that_may_fail(failing: EcrFailing) -> u32 {
    match failing {
        EcrFailing::Busy
        | EcrFailing::Throttled
        | EcrFailing::Reset
        | EcrFailing::Silent
        | EcrFailing::Cut => 2,
        // Twice in a row means that it is what ECR says.
        EcrFailing::Garbled | EcrFailing::WebPage | EcrFailing::NoToken | EcrFailing::BadToken => 1,
        EcrFailing::Denied => 0,
    }
}

async fn calls_fail(ground: &Ground, failing: EcrFailing, times: u32) -> Result<String, String> {
    let (registry, (api, address)) =
        (ground.honest.copy(|_, _| None).await, RuntimeApi::start().await);
    let host = registry.host();
    let ecr = FakeEcr::start(Moto::PASSWORD).await;
    ecr.fail(failing, times);
    let environment = [("AWS_ENDPOINT_URL_ECR", ecr.url.as_str()), ("OCISEEK_ECR_REGISTRY", &host)];
    let mut function = Bootstrap::start(&address, &environment);
    let first = api.invoke(ground.events[0].0.clone(), LONG).await;
    let calls = ecr.calls("GetAuthorizationToken").len() as u32;
    let most = calls_that_may_fail(failing) + 1;
    if first.ok != (times < most) || calls != most.min(times + 1) {
        return Err(format!("{calls} calls: {first:?}"));
    }
    ecr.fail(failing, 0);
    let next = api.invoke(ground.events[0].0.clone(), LONG).await;
    if !next.ok || function.child.ended().is_some() {
        return Err(format!("{first:?}, then {next:?}"));
    }
    let said = format!("{first:?} {next:?} {:?}", function.logged(2).await);
    if said.contains(Moto::PASSWORD) || said.contains("QVdTO") {
        return Err(format!("a token stands in it: {said}"));
    }
    Ok(if first.ok { "done" } else { "failed, then done" }.to_owned())
}

/// Calls are tried again, and an answer that is not usable is read once more.
#[tokio::test(flavor = "multi_thread")]
async fn a_failing_ecr_loses_no_event_and_does_not_end_the_function() {
    let ground = Ground::new().await;
    let failings = [
        EcrFailing::Busy,
        EcrFailing::Throttled,
        EcrFailing::Denied,
        EcrFailing::Reset,
        EcrFailing::Silent,
        EcrFailing::Cut,
        EcrFailing::Garbled,
        EcrFailing::WebPage,
        EcrFailing::NoToken,
        EcrFailing::BadToken,
    ];
    let mut points = Points::of(ECR);
    points.add(
        "an event",
        failings.into_iter().flat_map(|failing| (1..=3).map(move |times| (failing, times))),
    );
    let ((points, mut score), ground) = (points.chosen(CALLS), &ground);
    let outcomes = stream::iter(points).map(async |(failing, times)| {
        (format!("{failing:?} at {times} calls"), calls_fail(ground, failing, times).await)
    });
    let outcomes: Vec<_> = outcomes.buffer_unordered(AT_ONCE).collect().await;
    for (point, outcome) in outcomes {
        score.count(&point, outcome);
    }
    score.conclude();
}
