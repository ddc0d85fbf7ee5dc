//! Lists the repositories of a registry (distribution, "Listing Repositories") and their tags
//! (distribution spec, "Listing Tags"). Both lists arrive in pages, any of which may be invalid.

use std::collections::VecDeque;

use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderValue, LINK};
use serde::Deserialize;

use super::auth::{Access, Scope};
use super::client::{Client, Repository};
use super::error::RegistryError;
use super::http::texts;
use super::request::Request;
use super::retry::Retry;
use super::session::Registry;
use ociseek_format::header::next_link;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::image::{JsonFault, is_repository, is_tag};

/// The number of names requested for each page.
const PAGE: &str = "100";
/// The size limit of a page in bytes. Some registries return all names at once.
const BODY: u64 = 64 << 20;
/// The limit for the pages of a list: enough for a registry of ten million repositories.
const PAGES: usize = 100_000;
/// The limit for consecutive pages without names, which occur if a registry hides names from the
/// user.
const EMPTY: usize = 1000;
/// The number of pages that are remembered, to detect lists with a loop.
const SEEN: usize = 16;

/// A list of names that arrives in pages.
pub struct Names {
    registry: std::sync::Arc<Registry>,
    scope: Scope,
    kind: Kind,
    next: Option<Request>,
    seen: VecDeque<url::Url>,
    pages: usize,
    /// The number of pages without names since the last page with names.
    empty: usize,
}

ociseek_format::opaque_debug!(Names);

#[derive(Clone, Copy)]
enum Kind {
    Repositories,
    Tags,
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The names that match the grammar of the distribution spec.
    pub names: Vec<String>,
    /// The number of other names.
    pub refused: usize,
}

impl Client {
    /// The repositories that a registry lists.
    ///
    /// # Errors
    /// If `registry` is not a host.
    pub async fn repositories(&self, registry: &str) -> Result<Names, RegistryError> {
        let registry = self.registry(registry)?;
        // Not a repository, but the scope of the catalog.
        let scope = Scope { repository: "".into(), access: Access::Pull, from: None };
        Names::new(registry, scope, Kind::Repositories, "/v2/_catalog").await
    }
}

impl Repository {
    /// The tags of the repository. With `after`, those that follow it in the registry's order, if
    /// the registry supports that.
    ///
    /// # Errors
    /// If the registry has no address.
    pub async fn tags(&self, after: Option<&str>) -> Result<Names, RegistryError> {
        let path = format!("/v2/{}/tags/list", self.name);
        let mut names =
            Names::new(self.registry.clone(), self.scope(Access::Pull), Kind::Tags, &path).await?;
        if let (Some(request), Some(after)) = (&mut names.next, after) {
            request.url.query_pairs_mut().append_pair("last", after);
        }
        Ok(names)
    }
}

impl Names {
    async fn new(
        registry: std::sync::Arc<Registry>,
        scope: Scope,
        kind: Kind,
        path: &str,
    ) -> Result<Names, RegistryError> {
        let mut url = registry.base().await?.clone();
        url.set_path(path);
        url.query_pairs_mut().append_pair("n", PAGE);
        let request = Request::new(Method::GET, url)
            .header(ACCEPT, HeaderValue::from_static("application/json"));
        Ok(Names {
            registry,
            scope,
            kind,
            next: Some(request),
            seen: VecDeque::new(),
            pages: 0,
            empty: 0,
        })
    }

    /// Whether all pages were returned.
    pub fn is_over(&self) -> bool {
        self.next.is_none()
    }

    /// The next page; None at the end.
    ///
    /// # Errors
    /// If it cannot be fetched, is not a list, or is not at the registry.
    /// [`RegistryError::is_not_found`] if the repository does not exist.
    pub async fn next_page(&mut self) -> Result<Option<Page>, RegistryError> {
        let Some(mut request) = self.next.take() else { return Ok(None) };
        self.pages += 1;
        if self.seen.contains(&request.url) || self.pages > PAGES {
            return Err(self.wrong(&request, "the list does not end"));
        }
        self.seen.push_back(request.url.clone());
        if self.seen.len() > SEEN {
            self.seen.pop_front();
        }
        let (page, next) = self.page(request.clone()).await?;
        self.empty = if page.names.is_empty() && page.refused == 0 { self.empty + 1 } else { 0 };
        if self.empty > EMPTY {
            return Err(self.wrong(
                &request,
                &format!("the list does not end: {EMPTY} pages in a row are empty"),
            ));
        }
        if let Some(url) = next {
            request.url = url;
            self.next = Some(request);
        }
        Ok(Some(page))
    }

    /// A page, and the URL of the next one.
    async fn page(&self, mut request: Request) -> Result<(Page, Option<url::Url>), RegistryError> {
        let mut retry = Retry::new(&self.registry.http);
        loop {
            match self.try_page(&request, retry.reads()).await {
                Ok(page) => return Ok(page),
                Err(error) => retry.read_again(&mut request, error).await?,
            }
        }
    }

    async fn try_page(
        &self,
        request: &Request,
        reads: u32,
    ) -> Result<(Page, Option<url::Url>), RegistryError> {
        let response = self.registry.once(request, &self.scope).await?.expect(&[200]).await?;
        let response = response.no_web_page("a list").await?;
        let line = response.line.clone();
        let links = texts(response.headers(), &LINK);
        let next = match next_link(links.iter().map(AsRef::as_ref)) {
            Some(link) => Some(self.registry.next_page(request, link).await?),
            None => None,
        };
        let body = response.bytes(BODY).await?;
        let page = parse(&body, self.kind).map_err(|source| RegistryError::Json {
            line,
            source,
            reads,
        })?;
        Ok((page, next))
    }

    fn wrong(&self, request: &Request, what: &str) -> RegistryError {
        let line = self.registry.request_line(&request.method, &request.url);
        RegistryError::Protocol { line, what: what.to_owned() }
    }
}

fn parse(body: &[u8], kind: Kind) -> Result<Page, JsonFault> {
    #[derive(Deserialize)]
    struct List {
        // Go encodes an empty list as null unless the program prevents it.
        #[serde(default)]
        repositories: Option<Vec<String>>,
        #[serde(default)]
        tags: Option<Vec<String>>,
    }
    let list: List = parse_lenient(body)?;
    let (names, is_sound): (_, fn(&str) -> bool) = match kind {
        Kind::Repositories => (list.repositories, is_repository),
        Kind::Tags => (list.tags, is_tag),
    };
    let (names, refused): (Vec<String>, Vec<String>) =
        names.unwrap_or_default().into_iter().partition(|name| is_sound(name));
    Ok(Page { names, refused: refused.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_match_their_grammars() {
        let repositories = br#"{"repositories":["a/b","../x","A","","_catalog","c"],"x":1}"#;
        let page = parse(repositories, Kind::Repositories).unwrap();
        assert_eq!((page.names, page.refused), (vec!["a/b".to_owned(), "c".to_owned()], 4));
        let page =
            parse(br#"{"name":"a","tags":["v1","-x","a/b","$(x)","V.2"]}"#, Kind::Tags).unwrap();
        assert_eq!((page.names, page.refused), (vec!["v1".to_owned(), "V.2".to_owned()], 3));
        for empty in [&br#"{"name":"a","tags":null}"#[..], br#"{"name":"a"}"#, br#"{"tags":[]}"#] {
            assert_eq!(parse(empty, Kind::Tags).unwrap(), Page::default());
        }
        for bad in [&b""[..], b"null", br#"{"tags":"x"}"#, br#"{"tags":[1]}"#] {
            assert!(parse(bad, Kind::Tags).is_err());
        }
    }
}
