//! The Runtime API and the registry fail under the function: each event is handled once in the end.

use super::aws::{FakeEcr, Moto};
use super::runtime_api::{Bootstrap, Failing, RuntimeApi};
use super::{LONG, pushed};
use crate::support::faulty::{Faulty, Nature};
use crate::support::sandbox::tar;
use ociseek::digest::Digest;
use serde_json::Value;

/// A function that cannot speak to its API ends, as Lambda expects; it starts another one and sends the event again.
#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_api_that_fails_costs_no_event() {
    let faulty = Faulty::honest(Nature { basic: Some(("AWS".into(), Moto::PASSWORD.into())), ..Nature::default() });
    let (faulty, ecr) = (faulty.await, FakeEcr::start(Moto::PASSWORD).await);
    let ((api, address), host) = (RuntimeApi::start().await, faulty.host());
    let environment = [("AWS_ENDPOINT_URL_ECR", ecr.url.as_str()), ("OCISEEK_ECR_REGISTRY", &host)];
    let start = || Bootstrap::start(&address, &environment);
    let failures = [Failing::NextRefused, Failing::NextCut, Failing::AnswerRefused, Failing::AnswerCut];
    for (number, failing) in failures.into_iter().enumerate() {
        let tag = format!("v{number}");
        faulty.add_image(&tag, &tar(number as u64, 1, 50_000));
        let digest = Digest::sha256(&faulty.manifest(&tag).unwrap()).to_string();
        let event = pushed("team/app", &digest, &tag);
        api.fail(failing);
        let mut first = start();
        api.put(event.clone(), LONG);
        let code = tokio::task::block_in_place(|| first.child.end()).code();
        assert_eq!(code, Some(1), "{failing:?}");
        let _second = start();
        let answer = api.invoke(event, LONG).await;
        assert!(answer.ok, "{failing:?}: {answer:?}");
        let was_handled = matches!(failing, Failing::AnswerRefused | Failing::AnswerCut);
        let want = if was_handled { "already-indexed" } else { "indexed" };
        assert_eq!(answer.body["images"][0]["status"], want, "{failing:?}: {answer:?}");
        let list = faulty.manifest(&digest.replace(':', "-")).unwrap();
        let list: Value = serde_json::from_slice(&list).unwrap();
        assert_eq!(list["manifests"].as_array().unwrap().len(), 1, "{failing:?}: {list}");
    }
}
