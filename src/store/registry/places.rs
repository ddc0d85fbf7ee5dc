//! Remembers where a registry redirects requests for blobs, usually to a signed URL of an object
//! store. The URL is valid for many requests, so most parts of a blob need no round trip to the
//! registry.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::header::CACHE_CONTROL;
use url::Url;

use super::http::Request;
use crate::lock::Hold;

/// The number of blobs whose place is remembered.
const MOST: usize = 64;
/// Registries sign URLs for 10 minutes and longer. If one expires earlier, that is detected.
const LIFETIME: Duration = Duration::from_secs(300);

/// The most recent places, newest first.
#[derive(Default)]
pub(super) struct RecentPlaces(Mutex<VecDeque<Place>>);

struct Place {
    /// The path of the blob at the registry, including the repository.
    path: String,
    target: Url,
    since: Instant,
}

impl RecentPlaces {
    /// The last place of a blob, unless `request` is of another kind or refuses cached responses.
    pub(super) fn of(&self, request: &Request) -> Option<Url> {
        if !is_remembered(request) || request.headers.contains_key(CACHE_CONTROL) {
            return None;
        }
        let places = self.0.hold();
        let place = places.iter().find(|place| place.path == request.url.path())?;
        (place.since.elapsed() < LIFETIME).then(|| place.target.clone())
    }

    /// Records a successful response from `target`.
    pub(super) fn remember(&self, request: &Request, target: &Url) {
        if !is_remembered(request) {
            return;
        }
        self.forget(request);
        let place = Place { path: request.url.path().to_owned(), target: target.clone(), since: Instant::now() };
        let mut places = self.0.hold();
        places.push_front(place);
        places.truncate(MOST);
    }

    pub(super) fn forget(&self, request: &Request) {
        let mut places = self.0.hold();
        places.retain(|place| place.path != request.url.path());
    }
}

fn is_remembered(request: &Request) -> bool {
    request.method == Method::GET && request.url.path().contains("/blobs/sha")
}
