//! The client and its repositories, for callers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use reqwest::Method;
use reqwest::header::HeaderValue;
use url::Url;

use super::auth::{Access, Scope};
use super::config::ClientConfig;
use super::error::{RegistryError, RequestLine};
use super::http::Common;
use super::others::Others;
use super::request::Request;
use super::session::Registry;
use crate::Traffic;
use crate::cache::ZtocCache;
use crate::known::KnownDocuments;
use crate::lock::Hold;
use crate::recall::Recall;
use ociseek_format::budget::Budget;
use ociseek_format::image::is_repository;

/// The fraction of an image's memory budget that parts of layers fetched in advance may take in
/// addition.
const PARTS: u64 = 4;
/// The size limit of the response about the API's version, in bytes.
const MAX_VERSION: u64 = 64 << 10;

/// A client for registries; cheap to clone. What it learns about a registry, such as tokens, is
/// shared by all repositories of that registry.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

ociseek_format::opaque_debug!(Client);

struct Shared {
    config: ClientConfig,
    common: Arc<Common>,
    registries: Mutex<HashMap<String, Arc<Registry>>>,
    tags: TagLocks,
}

/// Locks that let only one task of the process change a fallback tag at a time, by registry,
/// repository and tag.
pub(super) type TagLocks = Arc<Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>>;

impl Client {
    /// Creates a client. Sends nothing, and does not look up credentials yet.
    ///
    /// # Errors
    /// If a certificate or key file cannot be read, or a certificate has no key.
    pub fn new(config: ClientConfig) -> Result<Client, RegistryError> {
        let common = Arc::new(Common::new(&config)?);
        let shared =
            Shared { config, common, registries: Mutex::default(), tags: TagLocks::default() };
        Ok(Client { shared: Arc::new(shared) })
    }

    /// The repository `name` of `registry`, which is `HOST` or `HOST:PORT`, with IPv6 addresses in
    /// brackets. `docker.io` is known by that name. The repository has its own budget
    /// ([`ClientConfig::max_memory`]), so call this for each image.
    ///
    /// # Errors
    /// If `registry` is not a host, or `name` does not match the distribution spec's grammar
    /// ("Pulling manifests").
    pub fn repository(&self, registry: &str, name: &str) -> Result<Repository, RegistryError> {
        if !is_repository(name) {
            return Err(RegistryError::Name(name.chars().take(300).collect()));
        }
        let budget = Budget::new(self.shared.config.max_memory);
        Ok(Repository {
            registry: self.registry(registry)?,
            name: name.into(),
            tags: Arc::clone(&self.shared.tags),
            parts: budget.apart(PARTS),
            budget,
            documents: None,
            recall: None,
            known: None,
            others: None,
        })
    }

    pub(super) fn registry(&self, name: &str) -> Result<Arc<Registry>, RegistryError> {
        let mut registries = self.shared.registries.hold();
        if let Some(known) = registries.get(name) {
            return Ok(Arc::clone(known));
        }
        let new = Arc::new(Registry::new(&self.shared.common, &self.shared.config, name)?);
        registries.insert(name.to_owned(), Arc::clone(&new));
        Ok(new)
    }
}

/// Finds repositories that may have the same content as another one.
pub type FindRepositories = Arc<dyn Fn() -> BoxFuture<'static, Vec<Repository>> + Send + Sync>;

/// A repository of a registry; cheap to clone.
#[derive(Clone)]
pub struct Repository {
    pub(super) registry: Arc<Registry>,
    pub(super) name: Arc<str>,
    pub(super) tags: TagLocks,
    pub(super) budget: Budget,
    /// The budget for parts of layers that are fetched in advance.
    pub(super) parts: Budget,
    /// The cache for documents that are named by their digest.
    documents: Option<ZtocCache>,
    /// Answers that are not requested again.
    recall: Option<Recall>,
    /// Manifests that are not fetched again.
    known: Option<KnownDocuments>,
    /// Where the content is, too.
    others: Option<Arc<Others<Repository>>>,
}

ociseek_format::opaque_debug!(Repository);

impl Repository {
    /// The memory budget for the work on an image.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The same repository with another budget.
    #[must_use]
    pub fn with_budget(&self, budget: Budget) -> Repository {
        Repository { parts: budget.apart(PARTS), budget, ..self.clone() }
    }

    pub(crate) fn with_documents_in(&self, cache: &ZtocCache) -> Repository {
        Repository { documents: Some(cache.clone()), ..self.clone() }
    }

    pub(crate) fn recalling(&self, answers: &Recall) -> Repository {
        Repository { recall: Some(answers.clone()), ..self.clone() }
    }

    /// The same repository. What its sources read is added to `known`, and they fetch no manifest
    /// of it.
    #[must_use]
    pub fn knowing(&self, known: &KnownDocuments) -> Repository {
        Repository { known: Some(known.clone()), ..self.clone() }
    }

    /// The same repository, which fetches all that it is asked for.
    pub(crate) fn knowing_nothing(&self) -> Repository {
        Repository { known: None, ..self.clone() }
    }

    pub(crate) fn known(&self) -> Option<&KnownDocuments> {
        self.known.as_ref()
    }

    /// The same repository. What it does not give comes from those that `find` returns, as far as
    /// it is named by its digest.
    #[must_use]
    pub fn with_others(&self, find: FindRepositories) -> Repository {
        Repository { others: Some(Arc::new(Others::new(find))), ..self.clone() }
    }

    /// What `ask` gets from this repository, or from another one. If it `was_wrong` before, another
    /// one is asked first.
    pub(crate) async fn anywhere<T, F>(
        &self,
        was_wrong: bool,
        ask: impl Fn(Repository) -> F,
    ) -> Result<T, RegistryError>
    where
        F: Future<Output = Result<T, RegistryError>>,
    {
        let Some(others) = &self.others else { return ask(self.clone()).await };
        // With the same budget, cache and answers.
        let ask_at = |other: Repository| {
            let Repository { registry, name, .. } = other;
            ask(Repository { registry, name, others: None, ..self.clone() })
        };
        if was_wrong {
            others.ask_again(self, ask_at).await
        } else {
            others.ask(self, ask_at).await
        }
    }

    pub(crate) fn recall(&self) -> Option<&Recall> {
        self.recall.as_ref()
    }

    pub(crate) fn document_cache(&self) -> Option<&ZtocCache> {
        self.documents.as_ref()
    }

    /// The registry as the user named it.
    pub fn registry(&self) -> &str {
        &self.registry.name
    }

    /// The name of the repository without its registry.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The traffic of the client so far, with all its registries.
    pub fn traffic(&self) -> Traffic {
        self.registry.http.traffic()
    }

    /// From now on, requests to all registries of the client are retried for as long as their
    /// callers wait, because those have their own time limit.
    pub fn retry_forever(&self) {
        self.registry.http.retry_forever();
    }

    /// Opens a connection to the registry by asking which version of the API it has, without
    /// authorization, so that later requests need not wait for one. Failures are ignored: these
    /// requests report them. Does nothing if mirrors are asked first.
    pub async fn connect(&self) {
        if !self.registry.mirrors.is_empty() {
            return;
        }
        let Ok(base) = self.registry.base().await else { return };
        let mut url = base.clone();
        url.set_path("/v2/");
        let request = Request::new(Method::GET, url);
        let line = self.request_line(&request);
        if let Ok(response) = self.registry.http.exchange(&request, None, line).await {
            // A connection can be used again once the response was read to its end.
            let _ = response.bytes(MAX_VERSION).await;
        }
    }

    pub(super) fn scope(&self, access: Access) -> Scope {
        Scope { repository: Arc::clone(&self.name), access, from: None }
    }

    /// A request for `/v2/<name>/<path>`. The path must only consist of digests, tags and our own
    /// words.
    pub(super) async fn request(
        &self,
        method: Method,
        path: &str,
    ) -> Result<Request, RegistryError> {
        let mut url: Url = self.registry.base().await?.clone();
        url.set_path(&format!("/v2/{}/{path}", self.name));
        Ok(Request::new(method, url))
    }

    pub(super) fn request_line(&self, request: &Request) -> RequestLine {
        self.registry.request_line(&request.method, &request.url)
    }

    /// Converts a value from the caller to the value of a header.
    pub(super) fn header_value(
        &self,
        request: &Request,
        value: &str,
    ) -> Result<HeaderValue, RegistryError> {
        HeaderValue::try_from(value).map_err(|_| RegistryError::Protocol {
            line: self.request_line(request),
            what: format!("{value:?} does not fit in a header"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_settings_make_no_client() {
        let client = Client::new(ClientConfig::default()).unwrap();
        assert!(client.repository("ghcr.io", "a/b").is_ok());
        assert!(matches!(client.repository("ghcr.io", "../b"), Err(RegistryError::Name(_))));
        assert!(matches!(client.repository("gh cr", "a"), Err(RegistryError::Host(_))));
        let alone = ClientConfig { client_cert: Some("c.pem".into()), ..ClientConfig::default() };
        assert!(matches!(Client::new(alone), Err(RegistryError::ClientCertificate)));
        let missing =
            ClientConfig { ca_files: vec!["/none/ca.pem".into()], ..ClientConfig::default() };
        let error = Client::new(missing).err().unwrap();
        assert!(error.to_string().starts_with("/none/ca.pem"), "{error}");
    }
}
