//! Registries: a thin client of the OCI distribution spec 1.1.
//!
//! | file | what it does |
//! |---|---|
//! | `client` | the types for callers: [`Client`], [`Repository`] |
//! | `manifests`, `blobs`, `parallel`, `uploads`, `upload_stream` | the calls for content |
//! | `referrers`, `fallback`, `names` | the calls for referrers, tags and repositories |
//! | `session`, `places` | a registry: authorization, redirects and retries for each request |
//! | `auth` | the authorization of requests |
//! | `credentials` | logins |
//! | `retry`, `backoff` | when to retry |
//! | `request`, `http`, `response` | a single request, its line in the log, how it is sent, and its response |
//! | `hosts`, `mirrors` | containerd's `hosts.toml`, the hosts that it names, and docker's `certs.d` |
//! | `proxy`, `address`, `address_filter` | proxies and allowed hosts |
//! | `tls` | trusted authorities, and client certificates |
//! | `config`, `error`, `transport` | settings and errors |
//!
//! Rules that always hold: `Authorization` and the client certificate are only sent to the registry
//! itself (a password also to the token service that the registry names). Every URL in a response
//! (redirect, upload location, token service, next page) is checked before anything is sent there.
//! Every wait and every body has a limit. Errors contain no secrets.

/// The `tracing` target of these modules.
const TARGET: &str = "ociseek::registry";

mod address;
mod address_filter;
mod auth;
mod backoff;
mod blobs;
mod client;
mod config;
mod credentials;
mod elsewhere;
mod error;
mod fallback;
mod hosts;
mod http;
mod link;
mod lookups;
mod manifests;
mod mirrors;
mod names;
mod others;
mod parallel;
mod places;
mod proxy;
mod reason;
mod referrers;
mod request;
mod response;
mod retry;
mod session;
mod tls;
mod transport;
mod upload_stream;
mod uploads;
mod verbatim;

pub use address_filter::AllowedAddresses;
pub use blobs::BlobStream;
pub use client::{Client, FindRepositories, Repository};
pub use config::{ClientConfig, CredentialSource, Limits};
pub use credentials::{
    CredentialError, CredentialProviders, HelperError, LoginOfPull, PendingPull,
    ProviderConfigError, PullLogin, PulledLogins,
};
pub use error::{Answer, CredentialOrigin, RegistryError, RequestLine, Status};
pub use http::http_client;
pub use link::{AnsweredRequest, SharedLink, SpeedLimit};
pub use names::{Names, Page};
pub use parallel::LayerStream;
pub use proxy::ProxyError;
pub use transport::{CertificateFault, TransportError};
pub(crate) use uploads::{UploadAttempts, UploadFailure};
