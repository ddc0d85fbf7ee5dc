//! Every command that touches a registry against a registry for each of those that public reports
//! describe.
//!
//! docs/registries.md has the table of what is proven here.

mod cells;
mod challenges;
mod elsewhere;
mod hooks;
mod http;
mod image;
mod places;
mod producers;
mod profile;
mod pushing;
mod reading;
mod registries;
mod reports;
mod server;
mod table;
mod writers;

use cells::Ground;
use profile::{Command, Profile, Trait};

/// Runs the commands of the table, and tells all that did not come to what they should.
async fn all_commands(profile: &'static Profile) {
    let ground = Ground::new(profile).await;
    let mut wrong = Vec::new();
    for command in Command::ALL {
        if command == Command::HookLambda && !profile.name.starts_with("Amazon ECR") {
            continue;
        }
        let outcome = ground.outcome(command).await;
        let right = match (&outcome, profile.refusal(command)) {
            (Ok(()), None) => true,
            (Err(error), Some(refusal)) => {
                error.contains(refusal.says) && ground.moved_tags(command).is_ok()
            }
            _ => false,
        };
        if !right {
            let mut requests = ground.requests();
            requests.drain(..requests.len().saturating_sub(12));
            wrong.push(format!("{command:?}: {outcome:?}\n  {}", requests.join("\n  ")));
        }
    }
    if profile.find(|one| matches!(one, Trait::ExpiredPassword(_)).then_some(())).is_some() {
        wrong.extend(ground.expired().err());
    }
    if profile.has(Trait::AnonymousPull) {
        wrong.extend(ground.anonymous().err());
    }
    assert!(
        wrong.is_empty(),
        "{}, {}:\n{}",
        profile.name,
        ground.path().display(),
        wrong.join("\n")
    );
}

/// A test for each, so that they run beside each other, and the list of all.
macro_rules! registries {
    ($($test:ident $profile:ident,)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                all_commands(&registries::$profile).await;
            }
        )*
        const ALL: &[&Profile] = &[$(&registries::$profile),*];
    };
}

registries! {
    acr ACR,
    acr_replicated ACR_REPLICATED,
    aliyun ALIYUN,
    artifactory ARTIFACTORY,
    artifactory_6 ARTIFACTORY_6,
    artifactory_7_117 ARTIFACTORY_7_117,
    cache CACHE,
    centos CENTOS,
    cloudflare CLOUDFLARE,
    digitalocean DIGITALOCEAN,
    docker_hardened DOCKER_HARDENED,
    docker_hub DOCKER_HUB,
    ecr ECR,
    ecr_2024 ECR_2024,
    ecr_immutable ECR_IMMUTABLE,
    ecr_public ECR_PUBLIC,
    ghcr GHCR,
    gitea GITEA,
    gitlab GITLAB,
    google GOOGLE,
    harbor HARBOR,
    harbor_2_10 HARBOR_2_10,
    harbor_immutable HARBOR_IMMUTABLE,
    harbor_read_only HARBOR_READ_ONLY,
    nexus NEXUS,
    nexus_once NEXUS_ONCE,
    pulp PULP,
    quay QUAY,
    quay_2023 QUAY_2023,
    registry_k8s_io REGISTRY_K8S_IO,
    specification SPECIFICATION,
    zot ZOT,
}
