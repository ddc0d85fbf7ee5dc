//! docker's config.json, read as docker reads it: the credentials in it, and the names of helpers.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer};

use super::{Credential, CredentialError};
use crate::registry::go_json::{self, GoObject};

pub(super) fn is_docker_hub(host: &str) -> bool {
    matches!(host, "docker.io" | "index.docker.io" | "registry-1.docker.io")
}

/// The content of a file.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<DockerConfig, CredentialError> {
    // serde_json's message may repeat a value from the file.
    let json =
        |e: serde_json::Error| CredentialError::Json { path: path.to_owned(), line: e.line(), column: e.column() };
    // Like docker, ignore what follows the object.
    DockerConfig::deserialize(&mut serde_json::Deserializer::from_slice(text)).map_err(json)
}

#[derive(Default)]
pub(super) struct DockerConfig {
    auths: BTreeMap<String, AuthEntry>,
    cred_helpers: BTreeMap<String, Option<String>>,
    creds_store: String,
}

#[derive(Default)]
pub(super) struct AuthEntry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

impl GoObject for DockerConfig {
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error> {
        match key {
            "auths" => self.auths = go_json::value(values)?,
            "credhelpers" => self.cred_helpers = go_json::value(values)?,
            "credsstore" => self.creds_store = go_json::value(values)?,
            _ => drop(values.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl GoObject for AuthEntry {
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error> {
        match key {
            "auth" => self.auth = go_json::value(values)?,
            "username" => self.username = go_json::value(values)?,
            "password" => self.password = go_json::value(values)?,
            "identitytoken" => self.identitytoken = go_json::value(values)?,
            "registrytoken" => self.registrytoken = go_json::value(values)?,
            _ => drop(values.next_value::<IgnoredAny>()?),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for DockerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<DockerConfig, D::Error> {
        go_json::deserialize(deserializer)
    }
}

impl<'de> Deserialize<'de> for AuthEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<AuthEntry, D::Error> {
        go_json::deserialize(deserializer)
    }
}

impl DockerConfig {
    pub(super) fn helper(&self, registry: &str) -> Option<&str> {
        let same = |key: &str| key == registry || is_docker_hub(registry) && is_docker_hub(host(key));
        let own = self.cred_helpers.iter().find(|(key, _)| same(key)).map(|(_, helper)| helper);
        let own = own.map(|helper| helper.as_deref().unwrap_or_default());
        Some(own.unwrap_or(&self.creds_store)).filter(|name| !name.is_empty())
    }

    /// The entry for the registry. Among podman's keys with a path, the one with the longest path
    /// that contains the repository.
    pub(super) fn entry(&self, registry: &str, repository: &str) -> Option<(&str, &AuthEntry)> {
        let matching = self.auths.iter().filter_map(|(key, entry)| {
            let path = matches(key, registry, repository)?;
            Some((path, key.as_str(), entry))
        });
        matching.max_by_key(|(path, _, _)| *path).map(|(_, key, entry)| (key, entry))
    }
}

/// How many bytes of the repository's name an entry's key matches. None if the entry is for
/// something else.
fn matches(key: &str, registry: &str, repository: &str) -> Option<usize> {
    let same = |host: &str| host == registry || is_docker_hub(host) && is_docker_hub(registry);
    if key.contains("://") {
        // docker's old form: a URL whose path is the version of an API.
        return same(host(key)).then_some(0);
    }
    let (name, path) = key.split_once('/').unwrap_or((key, ""));
    let below = repository.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let version = matches!(path.trim_end_matches('/'), "" | "v1" | "v2");
    match same(name) {
        true if version => Some(0),
        true if below => Some(path.len()),
        _ => None,
    }
}

fn host(key: &str) -> &str {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    key.split('/').next().unwrap_or(key)
}

impl AuthEntry {
    pub(super) fn credential(&self) -> Result<Option<Credential>, InvalidEntry> {
        if !self.identitytoken.is_empty() {
            let login = self.login().unwrap_or_default();
            return Ok(Some(Credential::Identity { token: self.identitytoken.clone(), login }));
        }
        if !self.registrytoken.is_empty() {
            return Ok(Some(Credential::Registry(self.registrytoken.clone())));
        }
        Ok(self.login()?.map(|(user, password)| Credential::Password { user, password }))
    }

    /// The user and password.
    fn login(&self) -> Result<Option<(String, String)>, InvalidEntry> {
        if self.auth.is_empty() {
            let login = (self.username.clone(), self.password.clone());
            return Ok(Some(login).filter(|(user, _)| !user.is_empty()));
        }
        let lenient = GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
        let decoder = GeneralPurpose::new(&base64::alphabet::STANDARD, lenient);
        // `base64` breaks long lines.
        let encoded: String = self.auth.split_ascii_whitespace().collect();
        let decoded = decoder.decode(encoded).map_err(|_| InvalidEntry)?;
        let decoded = String::from_utf8(decoded).map_err(|_| InvalidEntry)?;
        let (user, password) = decoded.split_once(':').ok_or(InvalidEntry)?;
        let password = password.trim_end_matches('\0').to_owned();
        Ok((!user.is_empty()).then(|| (user.to_owned(), password)))
    }
}

/// An entry whose credentials cannot be decoded.
#[derive(Debug)]
pub(super) struct InvalidEntry;
