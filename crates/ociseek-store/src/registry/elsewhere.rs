//! Tokens of other registries to which a registry redirects, and which ask for their own.
//!
//! They are asked as a stranger. With a login of the user, the first registry could make ociseek
//! read what is private at the second, and write it into the first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use reqwest::header::HeaderMap;
use url::{Origin, Url};

use super::auth::{Authorizer, Generation, Scope};
use super::config::CredentialSource;
use super::http::Http;
use super::mirrors::name_of;
use super::request::Authorization;
use crate::lock::Hold;

/// How many other registries are remembered.
const MOST: usize = 16;

#[derive(Default)]
pub(super) struct OtherRegistries(Mutex<HashMap<Origin, Arc<Authorizer>>>);

impl OtherRegistries {
    /// The authorization for a request to another host, if it has asked for one.
    pub(super) async fn header(
        &self,
        http: &Arc<Http>,
        url: &Url,
        scope: &Scope,
    ) -> (Option<Authorization>, Generation) {
        let known = self.0.hold().get(&url.origin()).map(Arc::clone);
        let header = match known {
            Some(known) => known.header(http, url, scope).await.ok(),
            None => None,
        };
        header.unwrap_or((None, Generation::NONE))
    }

    /// Fetches a token after a 401. Returns false if there is nothing new to send.
    pub(super) async fn renew(
        &self,
        http: &Arc<Http>,
        url: &Url,
        scope: &Scope,
        used: Generation,
        answer: &HeaderMap,
    ) -> bool {
        let authorizer = {
            let mut known = self.0.hold();
            if known.len() >= MOST && !known.contains_key(&url.origin()) {
                return false;
            }
            let new = || Authorizer::new(name_of(url).into(), CredentialSource::Anonymous);
            Arc::clone(known.entry(url.origin()).or_insert_with(|| Arc::new(new())))
        };
        authorizer.renew(http, url, scope, used, answer).await.unwrap_or(false)
    }
}
