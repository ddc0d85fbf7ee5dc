//! The registry client with registries that each lie in one way.

mod attaching;
mod authorization;
mod certificates;
mod downloads;
mod environment;
mod garbled;
mod manifests;
mod outages;
mod redirects;
mod referrers;
mod retries;
mod uploads;

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;
use futures_util::stream;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::progress::{ProgressEvent, Recorder};
use ociseek_store::blob::{AttachMethod, AttachReport, Target};
use ociseek_store::registry::{
    CertificateFault, Client, ClientConfig, CredentialOrigin, CredentialProviders,
    CredentialSource, Limits, RegistryError, Repository,
};
use ociseek_store::{Destination, Source, StoreError};
use ociseek_testkit::blobs::{SOCI, content, descriptor, index_manifest};
use ociseek_testkit::faulty::*;
use ociseek_testkit::sandbox::{OCI_INDEX, OCI_MANIFEST};
use serde_json::json;

/// Limits that keep the tests fast.
fn limits() -> Limits {
    Limits {
        connect: Duration::from_secs(5),
        header: Duration::from_secs(10),
        idle: Duration::from_secs(10),
        first_wait: Duration::from_millis(2),
        longest_wait: Duration::from_secs(5),
        patience: Some(Duration::ZERO),
        settle: Duration::from_millis(10),
        ..Limits::default()
    }
}

fn config() -> ClientConfig {
    let credentials = CredentialSource::Anonymous;
    ClientConfig {
        credentials,
        limits: limits(),
        certs_d: Some(Vec::new()),
        ..ClientConfig::default()
    }
}

fn with_password(faulty: &Faulty, user: &str, password: &str) -> ClientConfig {
    let credentials = CredentialSource::Only {
        registry: faulty.host(),
        user: user.into(),
        password: password.into(),
    };
    ClientConfig { credentials, ..config() }
}

fn repository(faulty: &Faulty, config: ClientConfig) -> Repository {
    Client::new(config).unwrap().repository(&faulty.host(), "a/b").unwrap()
}

async fn read(repository: &Repository, blob: &Descriptor) -> Result<Bytes, RegistryError> {
    let mut stream = repository.blob(blob).await?;
    let mut all = Vec::new();
    while let Some(chunk) = stream.next().await? {
        all.extend_from_slice(&chunk);
    }
    Ok(all.into())
}

/// Everything that could be printed about an error.
fn everything(error: &RegistryError) -> String {
    let mut text = format!("{error:?} {error:#?} {error}");
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause} {cause:?}");
        next = cause.source();
    }
    text
}

fn subject() -> (Bytes, Descriptor) {
    let bytes = Bytes::from_static(br#"{"schemaVersion":2,"image":1}"#);
    (bytes.clone(), Descriptor::of(OCI_MANIFEST, &bytes))
}

/// An index manifest for the subject. Each `name` gives another one.
fn index(name: &str) -> (Bytes, Descriptor) {
    index_manifest(&subject().1, &[], name)
}

async fn attach(
    repository: &Repository,
    name: &str,
    replaces: &[Digest],
) -> Result<AttachReport, RegistryError> {
    repository.push_blob(&Descriptor::of(SOCI, b"{}"), Bytes::from_static(b"{}")).await?;
    let (bytes, descriptor) = index(name);
    repository.attach(&descriptor, bytes, &subject().1, replaces).await
}

fn tag() -> String {
    format!("sha256-{}", subject().1.digest.hex())
}

fn entries(descriptors: &[Descriptor]) -> Vec<&str> {
    descriptors
        .iter()
        .filter_map(|descriptor| descriptor.annotations.get("name"))
        .map(String::as_str)
        .collect()
}
