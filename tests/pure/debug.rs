//! `{:?}` shows no secrets: such text ends up in logs and in the reports of panics.

use std::fmt::Debug;
use std::path::Path;

use ociseek_hook::aws::Ecr;
use ociseek_hook::secret::{RequestCredentials, Secrets};
use ociseek_store::Source;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource};

use crate::architecture::{CRATES, code, sources};

const SECRET: &str = "correct-horse-battery";

#[test]
fn debug_output_does_not_show_secrets() {
    let only = || CredentialSource::Only {
        registry: "registry.example".to_owned(),
        user: "user".to_owned(),
        password: SECRET.to_owned(),
    };
    let config = ClientConfig { credentials: only(), ..ClientConfig::default() };
    let client = Client::new(config.clone()).unwrap();
    let repository = client.repository("registry.example", "image").unwrap();
    let keys = |name: &str| (!name.contains("ENDPOINT")).then(|| SECRET.to_owned());
    let shown: [&dyn Debug; 8] = [
        &only(),
        &config,
        &client,
        &repository,
        &Source::Registry(repository.clone()),
        &Ecr::from_environment(keys).unwrap(),
        &Secrets::parse(SECRET).unwrap(),
        &RequestCredentials {
            authorization: Some(SECRET),
            signature: Some(SECRET),
            token: Some(SECRET),
        },
    ];
    let bytes = format!("{:?}", SECRET.as_bytes());
    for value in shown {
        for text in [format!("{value:?}"), format!("{value:#?}")] {
            let text: String = text.split_whitespace().collect();
            assert!(!text.is_empty() && !text.contains(SECRET), "{text}");
            assert!(!text.contains(&bytes.replace(' ', "")), "{text}");
        }
    }
}

/// A derived `Debug` shows all fields.
#[test]
fn no_type_with_a_derived_debug_has_a_field_for_a_secret() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    CRATES.iter().for_each(|folder| sources(&root.join(folder), &mut files));
    let mut derived = 0;
    let mut wrong = Vec::new();
    for file in files {
        for item in code(&file).split("#[derive(").skip(1) {
            let Some((_, item)) =
                item.split_once(")]").filter(|(traits, _)| traits.contains("Debug"))
            else {
                continue;
            };
            derived += 1;
            let fields = item.split("\n}").next().unwrap_or_default();
            let is_secret = |line: &&str| {
                let Some((name, kind)) = line.trim().trim_start_matches("pub ").split_once(": ")
                else {
                    return false;
                };
                let secret = ["password", "secret", "token", "secret_access_key", "session_token"]
                    .contains(&name);
                secret
                    && ["String", "Vec<u8>", "str", "HeaderValue"]
                        .iter()
                        .any(|text| kind.contains(text))
            };
            wrong.extend(
                fields.lines().filter(is_secret).map(|line| format!("{}: {line}", file.display())),
            );
        }
    }
    assert!(derived > 300, "only {derived} were found");
    assert_eq!(wrong, Vec::<String>::new());
}
