//! A request, before it is sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use url::Url;

/// A request that can be sent several times.
#[derive(Clone)]
pub(super) struct Request {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// How many times it was sent, counting its clones.
    tries: Arc<AtomicU32>,
}

/// The authorization that a request carries.
pub(super) struct Authorization {
    pub value: HeaderValue,
    /// Whether this is the first request that carries it.
    pub is_new: bool,
}

impl Request {
    pub(super) fn new(method: Method, url: Url) -> Request {
        Request { method, url, headers: HeaderMap::new(), body: Bytes::new(), tries: Arc::default() }
    }

    /// The number of the next try, from 1. Counts it as made.
    pub(super) fn next_try(&self) -> u32 {
        self.tries.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts `tries` earlier requests for the same content.
    pub(super) fn after(self, tries: u32) -> Request {
        self.tries.store(tries, Ordering::Relaxed);
        self
    }

    pub(super) fn header(mut self, name: HeaderName, value: HeaderValue) -> Request {
        self.headers.append(name, value);
        self
    }

    /// Caches on the way must ask the registry instead of answering (RFC 9111 section 5.2.1.4).
    pub(super) fn past_caches(self) -> Request {
        let no_cache = HeaderValue::from_static("no-cache");
        self.header(header::CACHE_CONTROL, no_cache.clone()).header(header::PRAGMA, no_cache)
    }

    pub(super) fn body(mut self, content_type: HeaderValue, body: Bytes) -> Request {
        self.body = body;
        self.header(header::CONTENT_TYPE, content_type)
    }
}
