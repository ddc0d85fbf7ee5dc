//! Remembers where a registry redirects requests for blobs, usually to a signed URL of an object
//! store. The URL is valid for many requests, so most parts of a blob need no round trip to the
//! registry.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use reqwest::Method;
use reqwest::header::CACHE_CONTROL;
use tokio::sync::SetOnce;
use url::Url;

use super::request::Request;
use crate::lock::Hold;

/// The number of blobs whose place is remembered.
const MOST: usize = 64;
/// How long a place is remembered if its URL does not state its lifetime. Registries sign URLs for
/// 10 minutes and longer. If one expires earlier, its host refuses it, and the registry is asked
/// again.
const LIFETIME: Duration = Duration::from_secs(300);

#[derive(Default)]
pub(super) struct RecentPlaces {
    /// Newest first.
    places: Mutex<VecDeque<KnownAddress>>,
    /// Set once the registry has redirected a request for a blob.
    redirects: SetOnce<()>,
}

struct KnownAddress {
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
        let places = self.places.hold();
        let place = places.iter().find(|place| place.path == request.url.path())?;
        (place.since.elapsed() < lifetime(&place.target)).then(|| place.target.clone())
    }

    /// Records that the registry has redirected `request` to another host.
    pub(super) fn note_redirect(&self, request: &Request) {
        if is_remembered(request) {
            // Only the first one counts.
            let _ = self.redirects.set(());
        }
    }

    /// Waits until the registry has redirected a request for any blob, which many never do.
    pub(super) async fn wait_for_redirect(&self) {
        self.redirects.wait().await;
    }

    /// Records a successful response from `target`.
    pub(super) fn remember(&self, request: &Request, target: &Url) {
        if !is_remembered(request) {
            return;
        }
        self.forget(request);
        let place = KnownAddress {
            path: request.url.path().to_owned(),
            target: target.clone(),
            since: Instant::now(),
        };
        let mut places = self.places.hold();
        places.push_front(place);
        places.truncate(MOST);
    }

    pub(super) fn forget(&self, request: &Request) {
        let mut places = self.places.hold();
        places.retain(|place| place.path != request.url.path());
    }
}

fn is_remembered(request: &Request) -> bool {
    request.method == Method::GET && request.url.path().contains("/blobs/sha")
}

/// How long a place may be used. URLs of AWS and Google state their lifetime in seconds; a tenth of
/// it is left out, for the time that has passed since the URL was signed. Other URLs state when
/// they expire, by a clock that may differ from this machine's.
fn lifetime(target: &Url) -> Duration {
    let mut parameters = target.query_pairs();
    let seconds = parameters.find_map(|(name, value)| match &*name {
        "X-Amz-Expires" | "X-Goog-Expires" => value.parse::<u64>().ok(),
        _ => None,
    });
    seconds.map_or(LIFETIME, |seconds| Duration::from_secs(seconds - seconds / 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_urls_state_their_lifetime() {
        for (query, seconds) in [
            ("X-Amz-Date=20261123T210000Z&X-Amz-Expires=1200&X-Amz-Signature=1", 1080),
            ("X-Goog-Date=20261123T210000Z&X-Goog-Expires=86400", 77_760),
            ("X-Amz-Expires=5", 5),
            ("X-Amz-Expires=0", 0),
            ("X-Amz-Expires=18446744073709551615", 16_602_069_666_338_596_454),
            ("X-Amz-Expires=18446744073709551616", 300),
            ("X-Amz-Expires=-1", 300),
            ("X-Amz-Expires=&X-Amz-Expires=60", 54),
            ("x-amz-expires=60", 300),
            ("Expires=1795468800&Signature=x", 300),
            ("se=2026-11-23T21%3A00%3A00Z&sig=x", 300),
            ("", 300),
        ] {
            let target = Url::parse(&format!("https://store.example/blob?{query}")).unwrap();
            assert_eq!(lifetime(&target), Duration::from_secs(seconds), "{query}");
        }
    }
}
