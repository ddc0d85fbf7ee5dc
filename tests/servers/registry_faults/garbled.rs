//! Lists and manifests without a digest that are damaged on their way, with status 200.

use super::*;
use ociseek_testkit::image::image_index;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Damage {
    /// Half of it, with a length to match.
    Half,
    /// Nothing, with a length to match.
    Empty,
    /// One byte is wrong.
    Byte,
    /// One letter is wrong, and it is still JSON.
    Letter,
    /// Half of it; then the connection ends.
    BrokenOff,
}

/// What is requested, and a part of its path.
const WANTED: [(&str, &str); 7] = [
    ("manifest", "/manifests/t"),
    ("referrers", "/referrers/"),
    ("second page of referrers", "?page=1"),
    ("fallback tag", "/manifests/sha256-"),
    ("tags", "/tags/list"),
    ("second page of tags", "last=t0"),
    ("token", "/token"),
];

/// A registry that states no digest, and damages its first `times` answers for this path.
async fn damaging(path: &'static str, damage: Damage, times: usize) -> Faulty {
    let now = first(times);
    let settings = RegistrySettings {
        referrers: path.contains("/referrers/") || path.contains("page="),
        bearer: Some(None),
        ..RegistrySettings::default()
    };
    let faulty = Faulty::start(settings, move |seen, faulty| {
        let mut answer = match seen.path.rsplit_once("?page=") {
            Some(_) => index_answer(&json!([index("second").1])),
            None => faulty.truth_now(seen),
        };
        answer.headers_mut().remove("docker-content-digest");
        if seen.path.contains("/referrers/") && !seen.path.contains('?') && answer.status() == 200 {
            answer.headers_mut().insert(header::LINK, "<?page=1>; rel=next".parse().unwrap());
        }
        let (answer, whole) = body_of(answer);
        let is_hit =
            seen.method == "GET" && answer.status() == 200 && seen.path.contains(path) && now();
        Some(match damage {
            _ if !is_hit => answer,
            Damage::Half => answer.map(|_| Body::from(whole.slice(..whole.len() / 2))),
            Damage::Empty => answer.map(|_| Body::empty()),
            Damage::Byte => answer.map(|_| Body::from([b"[", &whole[1..]].concat())),
            Damage::Letter => {
                let mut bytes = whole.to_vec();
                *bytes.iter_mut().rfind(|byte| byte.is_ascii_lowercase()).unwrap() ^= 1;
                answer.map(|_| Body::from(bytes))
            }
            Damage::BrokenOff => cut(answer, &whole, whole.len() / 2),
        })
    })
    .await;
    let list = image_index(&[index("x").1]);
    faulty.add_manifest(&tag(), OCI_INDEX, list.to_string());
    for number in 0..150 {
        faulty.add_manifest(&format!("t{number:03}"), OCI_MANIFEST, subject().0);
    }
    faulty.add_manifest("t", OCI_MANIFEST, subject().0);
    faulty
}

/// Requests what has this name. It is right.
async fn ask(name: &str, repository: &Repository) -> Result<(), RegistryError> {
    match name {
        "manifest" | "token" => {
            let document = repository.manifest(&Target::Tag("t".into())).await?;
            assert_eq!((document.digest, document.bytes), (subject().1.digest, subject().0));
        }
        "tags" | "second page of tags" => {
            let mut tags = repository.tags(None).await?;
            let mut found = Vec::new();
            while let Some(page) = tags.next_page().await? {
                found.extend(page.names);
            }
            assert_eq!((found.len(), found.last().unwrap().as_str()), (152, "t149"));
        }
        "fallback tag" => {
            let found = repository.referrers(&subject().1.digest, None).await?;
            assert_eq!((entries(&found.descriptors), found.api), (vec!["x"], false));
        }
        _ => {
            let found = repository.referrers(&subject().1.digest, None).await?;
            assert_eq!((entries(&found.descriptors), found.api), (vec!["second"], true));
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_list_damaged_once_is_read_again() {
    for (name, path) in WANTED {
        for damage in [Damage::Half, Damage::Empty, Damage::Byte, Damage::BrokenOff] {
            let faulty = damaging(path, damage, 1).await;
            ask(name, &repository(&faulty, config()))
                .await
                .unwrap_or_else(|e| panic!("{name}, {damage:?}: {e}"));
            let past_caches = (damage != Damage::BrokenOff).then_some("no-cache");
            let mut seen = faulty.saw("GET", path);
            seen.retain(|seen| name == "token" || seen.header("authorization").is_some());
            let seen: Vec<_> =
                seen.iter().map(|seen| seen.header("cache-control")).take(2).collect();
            assert_eq!(seen, [None, past_caches], "{name}, {damage:?}");
        }
    }
}

#[tokio::test]
async fn a_permanently_damaged_list_is_reported() {
    for (name, path) in WANTED {
        for damage in [Damage::Half, Damage::Empty, Damage::Byte] {
            let faulty = damaging(path, damage, usize::MAX).await;
            if let ("referrers", Damage::Empty) = (name, damage) {
                // As where there is no such API.
                ask("fallback tag", &repository(&faulty, config())).await.unwrap();
                continue;
            }
            let error = ask(name, &repository(&faulty, config())).await.unwrap_err();
            let text = everything(&error);
            let says = match (name, damage) {
                ("second page of referrers", Damage::Empty) => {
                    "a further page of the list is missing"
                }
                _ => "the answer is not the expected JSON (it was read twice)",
            };
            assert!(text.contains(says), "{name}, {damage:?}: {text}");
            let mut seen = faulty.saw("GET", path);
            seen.retain(|seen| name == "token" || seen.header("authorization").is_some());
            assert_eq!(seen.len(), 2, "{name}, {damage:?}");
        }
    }
}

/// Its digest shows that it is damaged, although the registry does not state it.
#[tokio::test]
async fn a_manifest_is_accepted_if_the_registry_knows_its_digest() {
    for (times, reads, is_right) in [(0, 1, true), (1, 2, true), (usize::MAX, 2, false)] {
        for (name, path) in [WANTED[0], WANTED[3]] {
            let faulty = damaging(path, Damage::Letter, times).await;
            let asked = ask(name, &repository(&faulty, config())).await;
            assert_eq!(asked.is_ok(), is_right, "{name}, {times}: {asked:?}");
            if let Err(error) = asked {
                let text = everything(&error);
                assert!(
                    text.contains("which the registry does not know (it was read twice)"),
                    "{name}: {text}"
                );
            }
            let authorized = |method, path| {
                let mut seen = faulty.saw(method, path);
                seen.retain(|seen| seen.header("authorization").is_some());
                seen
            };
            let seen = authorized("GET", path);
            let seen: Vec<_> = seen.iter().map(|seen| seen.header("cache-control")).collect();
            assert_eq!(seen, [None, Some("no-cache")][..reads], "{name}, {times}");
            assert_eq!(authorized("HEAD", "/manifests/sha256:").len(), reads, "{name}, {times}");
        }
    }
}
