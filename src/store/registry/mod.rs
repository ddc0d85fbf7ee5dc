//! Registries: a thin client of the OCI distribution spec 1.1.
//!
//! | file | what it does |
//! |---|---|
//! | `client` | what callers hold: [`Client`], [`Repository`] |
//! | `manifests`, `blobs`, `uploads`, `referrers`, `fallback`, `attach`, `names` | the calls, one group each |
//! | `session` | one registry: authorization, redirects and new tries for each request |
//! | `auth`, `challenge`, `credentials`, `helper` | what a request must carry, and where that comes from |
//! | `retry` | when to try again |
//! | `http`, `tls`, `address`, `gate` | one request and its answer; whom to trust; where we may go |
//! | `config`, `error` | what goes in, and what may come out |
//!
//! Rules that hold everywhere: `Authorization` goes to the registry itself and to nobody else; a place that an answer names
//! (redirect, upload location, token service, next page) is looked at before anything is sent there; every wait has an end,
//! and every body a limit; errors hold no secret.

mod address;
mod attach;
mod auth;
mod blobs;
mod challenge;
mod client;
mod config;
mod credentials;
mod error;
mod fallback;
mod gate;
mod helper;
mod http;
mod manifests;
mod names;
mod referrers;
mod retry;
mod session;
mod tls;
mod uploads;

pub use attach::AttachReport;
pub use blobs::BlobStream;
pub use client::{Client, Repository};
pub use config::{ClientConfig, CredentialSource, Limits};
pub use credentials::CredentialError;
pub use error::{Answer, Asked, RegistryError, TransportError};
pub use gate::Reach;
pub use helper::HelperError;
pub use http::http_client;
pub use names::{Names, Page};
