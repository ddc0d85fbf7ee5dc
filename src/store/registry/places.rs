//! Where a registry sends those who ask for a blob: mostly a signed URL of an object store. It is
//! good for many requests, so that not every part of a blob costs a round trip to the registry.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::header::CACHE_CONTROL;
use url::Url;

use super::http::Request;
use crate::lock::Hold;

/// Blobs whose place is remembered.
const MOST: usize = 64;
/// Registries sign URLs for 10 minutes and longer. One that has run out is noticed all the same.
const LIFETIME: Duration = Duration::from_secs(300);

/// The last places, the newest first.
#[derive(Default)]
pub(super) struct Places(Mutex<VecDeque<Place>>);

struct Place {
    /// Of the blob at the registry, with its repository.
    path: String,
    target: Url,
    since: Instant,
}

impl Places {
    /// Where `request` was last sent, if it reads a blob and has nothing against answers from memory.
    pub(super) fn of(&self, request: &Request) -> Option<Url> {
        if !is_remembered(request) || request.headers.contains_key(CACHE_CONTROL) {
            return None;
        }
        let places = self.0.hold();
        let place = places.iter().find(|place| place.path == request.url.path())?;
        (place.since.elapsed() < LIFETIME).then(|| place.target.clone())
    }

    /// It was answered with success at `target`.
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
