//! Registries: a thin client of the OCI distribution spec 1.1.
//!
//! | file | what it does |
//! |---|---|
//! | `client` | the types for callers: [`Client`], [`Repository`] |
//! | `manifests`, `blobs`, `parallel`, `uploads`, `upload_stream` | the calls for content |
//! | `referrers`, `fallback`, `attach`, `names` | the calls for referrers, tags and repositories |
//! | `session`, `places`, `referrers_api` | a registry: authorization, redirects and retries for each request |
//! | `auth` | the authorization of requests |
//! | `credentials`, `go_json`, `helper` | logins |
//! | `retry`, `backoff`, `outage` | when to retry |
//! | `request`, `http`, `response`, `trail` | a single request, how it is sent, its response, and its line in the log |
//! | `hosts`, `mirrors` | containerd's `hosts.toml`, and the hosts that it names |
//! | `proxy`, `address`, `address_filter` | proxies and allowed hosts |
//! | `tls`, `certs_d`, `verifier` | trusted authorities, and client certificates |
//! | `config`, `error`, `transport`, `one_line` | settings and errors |
//!
//! Rules that always hold: `Authorization` and the client certificate are only sent to the registry
//! itself (a password also to the token service that the registry names). Every URL in a response
//! (redirect, upload location, token service, next page) is checked before anything is sent there.
//! Every wait and every body has a limit. Errors contain no secrets.

/// The `tracing` target of these modules.
const TARGET: &str = "ociseek::registry";

mod address;
mod address_filter;
mod attach;
mod auth;
mod backoff;
mod blobs;
mod certs_d;
mod client;
mod config;
mod credentials;
mod error;
mod fallback;
mod go_json;
mod helper;
mod hosts;
mod http;
mod manifests;
mod mirrors;
mod names;
mod one_line;
mod outage;
mod parallel;
mod places;
mod proxy;
mod referrers;
mod referrers_api;
mod request;
mod response;
mod retry;
mod session;
mod tls;
mod trail;
mod transport;
mod upload_stream;
mod uploads;
mod verifier;

pub use address_filter::AllowedAddresses;
pub use blobs::BlobStream;
pub use client::{Client, Repository};
pub use config::{ClientConfig, CredentialSource, Limits};
pub use credentials::{CredentialError, CredentialProviders, ProviderConfigError};
pub use error::{Answer, CredentialOrigin, RegistryError, RequestLine, Status};
pub use helper::HelperError;
pub use http::http_client;
pub use names::{Names, Page};
pub use parallel::LayerStream;
pub use proxy::ProxyError;
pub use transport::{CertificateFault, TransportError};
pub(crate) use uploads::{UploadAttempts, UploadFailure};
