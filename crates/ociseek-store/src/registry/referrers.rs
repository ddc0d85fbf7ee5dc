//! The referrers of a manifest (distribution spec, "Listing Referrers"): from the API, or from the
//! tag schema if there is no API. Attaching one pushes it and makes sure that it is listed.

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Method;
use reqwest::header::{ACCEPT, HeaderValue, LINK};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::auth::Access;
use super::client::Repository;
use super::error::{RegistryError, RequestLine};
use super::http::texts;
use super::manifests::MANIFEST;
use super::request::Request;
use super::retry::Retry;
use crate::blob::{AttachMethod, AttachReport, Referrers, Target};
use ociseek_format::budget::{Charge, OverBudget};
use ociseek_format::digest::Digest;
use ociseek_format::header::next_link;
use ociseek_format::image::Descriptor;
use ociseek_format::image::fine::EMPTY_CONFIG;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::image::manifest::{OCI_INDEX, OCI_MANIFEST};
use ociseek_format::progress::causes;

/// The limits for the pages of a list and the referrers in it, far beyond any real image.
const PAGES: usize = 200;
const REFERRERS: usize = 20_000;
/// The longest artifact type that is taken from a manifest, in bytes. RFC 6838 allows 255.
const TYPE_LENGTH: usize = 255;
/// How many entries without an artifact type are looked at.
const UNTYPED: usize = 200;
/// How long to wait for a response that is no longer needed, to reuse its connection.
const UNNEEDED: Duration = Duration::from_secs(5);

/// The list under the fallback tag, requested in the background. Dropping it cancels the request.
struct FallbackRequest(Option<JoinHandle<Result<Vec<Descriptor>, RegistryError>>>);

impl Drop for FallbackRequest {
    fn drop(&mut self) {
        if let Some(asking) = &self.0 {
            asking.abort();
        }
    }
}

impl FallbackRequest {
    /// The list is not needed. Keeps the connection if the response arrives soon.
    fn forget(mut self) {
        let Some(asking) = self.0.take() else { return };
        tokio::spawn(async move {
            let abort = asking.abort_handle();
            if timeout(UNNEEDED, asking).await.is_err() {
                abort.abort();
            }
        });
    }
}

/// A page of a list.
struct Page {
    descriptors: Vec<Descriptor>,
    next: Option<String>,
}

/// The answer to a request for a page.
enum PageAnswer {
    Page(Page),
    /// Status 200 with something else. Some registries send that for an unknown path, and proxies
    /// for a sign-in page.
    Other,
    /// The registry does not have the API.
    Unknown,
}

impl Repository {
    /// The referrers of a manifest in the registry's order, optionally of one artifact type. May be
    /// empty. Unless the registry is known to have the API, the fallback tag is requested at the
    /// same time.
    ///
    /// # Errors
    /// Errors of the registry other than "no such API"; a list that is invalid or endless.
    pub async fn referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Referrers, RegistryError> {
        let mut charge = self.budget.open();
        let known = &self.registry.referrers;
        let beside = (!known.is_known()).then(|| self.tagged_beside(*subject));
        let mut listed = self.api_referrers(subject, artifact_type, &mut charge).await;
        // Harbor answered 401 to paths that it does not know. If the registry lets us read the
        // image, then this is not about the login. It is asked again, so that a single refusal does
        // not hide a list.
        if listed.as_ref().is_err_and(RegistryError::is_refusal) && self.is_readable(subject).await
        {
            listed = match self.api_referrers(subject, artifact_type, &mut charge).await {
                Err(error) if error.is_refusal() => Ok(None),
                listed => listed,
            };
        }
        let listed = listed?;
        let (mut descriptors, api) = match listed {
            Some(descriptors) => {
                known.found();
                beside.into_iter().for_each(FallbackRequest::forget);
                (descriptors, true)
            }
            None => {
                let tagged = match beside.and_then(|mut beside| beside.0.take()) {
                    Some(asking) => asking.await.ok(),
                    None => None,
                };
                let mut descriptors = match tagged {
                    Some(tagged) => tagged?,
                    None => self.tagged_referrers(subject).await?,
                };
                keep_wanted(&mut descriptors, artifact_type);
                charge_list(&mut charge, subject, &descriptors)?;
                (descriptors, false)
            }
        };
        self.find_types(&mut descriptors).await?;
        if let Some(wanted) = artifact_type {
            descriptors.retain(|descriptor| descriptor.artifact_type.as_deref() == Some(wanted));
        }
        charge.keep();
        Ok(Referrers { descriptors, api })
    }

    /// As [`Repository::referrers`], but what is recalled is not requested.
    pub(crate) async fn recalled_referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
    ) -> Result<Referrers, RegistryError> {
        if let Some(known) =
            self.recall().and_then(|recall| recall.referrers(subject, artifact_type))
        {
            return Ok(known);
        }
        let listed = self.referrers(subject, artifact_type).await?;
        if let Some(recall) = self.recall() {
            recall.add(subject, artifact_type, &listed);
        }
        Ok(listed)
    }

    /// Requests the list under the fallback tag in the background.
    fn tagged_beside(&self, subject: Digest) -> FallbackRequest {
        let repository = self.clone();
        FallbackRequest(Some(tokio::spawn(
            async move { repository.tagged_referrers(&subject).await },
        )))
    }

    /// The referrers, optionally of one artifact type, with their memory charge. None if the
    /// registry has no such API.
    async fn api_referrers(
        &self,
        subject: &Digest,
        artifact_type: Option<&str>,
        charge: &mut Charge,
    ) -> Result<Option<Vec<Descriptor>>, RegistryError> {
        let mut request = self.request(Method::GET, &format!("referrers/{subject}")).await?;
        request = request.header(ACCEPT, HeaderValue::from_static(OCI_INDEX));
        if let Some(wanted) = artifact_type {
            request.url.query_pairs_mut().append_pair("artifactType", wanted);
        }
        let mut referrers = Vec::new();
        let mut listed = 0;
        let mut seen = HashSet::new();
        loop {
            let line = self.request_line(&request);
            let endless =
                |what: &str| RegistryError::Protocol { line: line.clone(), what: what.to_owned() };
            if !seen.insert(request.url.clone()) {
                return Err(endless("the pages of the list form a loop"));
            }
            let page = match self.page(&request).await {
                // Not a registry without the API, which may say so by 401 or 403.
                Err(error) if seen.len() > 1 && error.is_refusal() => {
                    let why = causes(&error);
                    return Err(endless(&format!("a further page of the list is refused: {why}")));
                }
                page => page?,
            };
            let Some(page) = page else {
                // An incomplete list is not usable.
                return if seen.len() == 1 {
                    Ok(None)
                } else {
                    Err(endless("a further page of the list is missing"))
                };
            };
            let mut on_page = page.descriptors;
            listed += on_page.len();
            keep_wanted(&mut on_page, artifact_type);
            charge_list(charge, subject, &on_page)?;
            referrers.append(&mut on_page);
            if listed > REFERRERS || seen.len() > PAGES {
                return Err(endless("the list does not end"));
            }
            let Some(next) = page.next else {
                // A mirror may have the image without what was attached to it.
                if referrers.is_empty()
                    && !self.registry.mirrors.first.is_empty()
                    && !request.is_past_caches()
                {
                    (request, seen) = (request.past_caches(), HashSet::new());
                    continue;
                }
                return Ok(Some(referrers));
            };
            request.url = self.registry.next_page(&request, &next).await?;
        }
    }

    /// Finds out the types of entries that have none, or that of the empty config. Azure's registry
    /// leaves a type out that only the config states (Azure/acr#784), and so do some clients in the
    /// list under the fallback tag. Harbor stated the config's type alone until version 2.10
    /// (goharbor/harbor#19867).
    async fn find_types(&self, descriptors: &mut [Descriptor]) -> Result<(), RegistryError> {
        let untyped =
            descriptors.iter_mut().filter(|one| is_untyped(one) && one.media_type == OCI_MANIFEST);
        for descriptor in untyped.take(UNTYPED) {
            match self.manifest(&Target::Digest(descriptor.digest)).await {
                Ok(document) => descriptor.artifact_type = type_of(&document.bytes),
                // Listed, but gone or damaged.
                Err(error) if error.is_not_found() || error.is_other_content() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn page(&self, request: &Request) -> Result<Option<Page>, RegistryError> {
        let mut request = request.clone();
        let mut retry = Retry::new(&self.registry.http);
        let mut is_sure = false;
        loop {
            match self.try_page(&request, retry.reads()).await {
                Ok(PageAnswer::Page(page)) => return Ok(Some(page)),
                // The page of a proxy may arrive only once.
                Ok(PageAnswer::Other) if !is_sure => {
                    is_sure = true;
                    request = request.past_caches();
                }
                Ok(PageAnswer::Other | PageAnswer::Unknown) => return Ok(None),
                Err(error) => retry.read_again(&mut request, error).await?,
            }
        }
    }

    async fn try_page(&self, request: &Request, reads: u32) -> Result<PageAnswer, RegistryError> {
        let response = self.registry.once(request, &self.scope(Access::Pull)).await?;
        match response.status().as_u16() {
            200 if response.media_type() == OCI_INDEX => {}
            200 => return Ok(PageAnswer::Other),
            // Artifactory answers 406, Quay 400.
            204 | 400 | 404 | 405 | 406 | 410 | 415 | 422 | 501 => return Ok(PageAnswer::Unknown),
            _ => return Err(response.refusal().await),
        }
        let links = texts(response.headers(), &LINK);
        let next = next_link(links.iter().map(AsRef::as_ref)).map(str::to_owned);
        let line = response.line.clone();
        let bytes = response.bytes(MANIFEST).await?;
        if bytes.is_empty() {
            return Ok(PageAnswer::Other);
        }
        let (descriptors, others) = descriptors(&bytes, &line, reads)?;
        self.warn_of_others(&line, others);
        Ok(PageAnswer::Page(Page { descriptors, next }))
    }
}

impl Repository {
    /// Warns of entries that cannot be read.
    pub(super) fn warn_of_others(&self, line: &RequestLine, others: usize) {
        if others > 0 {
            let entries = if others == 1 { "an entry" } else { "entries" };
            let what = format!(
                "skipping {entries} without a supported digest or a valid size in the list of referrers"
            );
            self.registry.http.warn_once(format!("{what}: {line}"));
        }
    }
}

/// Drops referrers of other artifact types. The registry may or may not have filtered the list.
/// Entries without a type are kept: it may be the wanted one.
fn keep_wanted(descriptors: &mut Vec<Descriptor>, artifact_type: Option<&str>) {
    if let Some(wanted) = artifact_type {
        descriptors.retain(|descriptor| {
            is_untyped(descriptor) || descriptor.artifact_type.as_deref() == Some(wanted)
        });
        descriptors.shrink_to_fit();
    }
}

fn is_untyped(descriptor: &Descriptor) -> bool {
    descriptor
        .artifact_type
        .as_ref()
        .is_none_or(|stated| stated.is_empty() || stated == EMPTY_CONFIG)
}

/// The artifact type of a manifest: the one it states, otherwise the media type of its config
/// (distribution spec, "Listing Referrers").
fn type_of(manifest: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(rename = "mediaType")]
        media_type: Option<String>,
    }
    #[derive(Deserialize)]
    struct Manifest {
        #[serde(rename = "artifactType")]
        artifact_type: Option<String>,
        config: Option<Config>,
    }
    let manifest: Manifest = parse_lenient(manifest).ok()?;
    let stated = manifest.artifact_type.filter(|stated| !stated.is_empty());
    stated.or_else(|| manifest.config?.media_type).filter(|kind| kind.len() <= TYPE_LENGTH)
}

fn charge_list(
    charge: &mut Charge,
    subject: &Digest,
    list: &[Descriptor],
) -> Result<(), OverBudget> {
    let bytes: usize = list.iter().map(Descriptor::footprint).sum();
    charge.grow(bytes as u64, || format!("the list of referrers of {subject}"))
}

/// The entries of an index of referrers, and how many more it has that cannot be read. Anyone who
/// may push could make a list useless with one, and digests may have algorithms of the future.
pub(super) fn descriptors(
    index: &[u8],
    line: &RequestLine,
    reads: u32,
) -> Result<(Vec<Descriptor>, usize), RegistryError> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Descriptor(Box<Descriptor>),
        Other(IgnoredAny),
    }
    #[derive(Deserialize)]
    struct Index {
        // Go encodes an empty list as null unless the program prevents it.
        manifests: Option<Vec<Entry>>,
    }
    let wrong = |source| RegistryError::Json { line: line.clone(), source, reads };
    let index: Index = parse_lenient(index).map_err(wrong)?;
    let entries = index.manifests.unwrap_or_default();
    let listed = entries.len();
    let descriptors: Vec<Descriptor> = entries
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Descriptor(descriptor) => Some(*descriptor),
            Entry::Other(_) => None,
        })
        .collect();
    let others = listed - descriptors.len();
    Ok((descriptors, others))
}

impl Repository {
    /// Pushes `manifest`, whose descriptor is `index` and which names `subject`, and makes it a
    /// referrer that replaces `replaces`. Those are then deleted, if the registry allows it. All
    /// blobs that the manifest names must exist. The caller must have read each of `replaces`,
    /// because a list of referrers can name any manifest of the repository.
    ///
    /// `index` has the artifact type and annotations for the list of the tag schema.
    ///
    /// # Errors
    /// [`RegistryError::is_blob_unknown`] if a blob is missing; [`RegistryError::FallbackTag`] if
    /// the manifest was pushed but cannot be listed; other errors of the registry. A replaced
    /// manifest that cannot be deleted is not an error.
    pub async fn attach(
        &self,
        index: &Descriptor,
        manifest: Bytes,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<AttachReport, RegistryError> {
        let actual = Digest::of(index.digest.algorithm(), &manifest);
        if actual != index.digest || manifest.len() as u64 != index.size {
            let found = manifest.len() as u64;
            return Err(RegistryError::Content {
                digest: index.digest,
                expected: index.size,
                found,
            });
        }
        let replaces: Vec<Digest> = replaces
            .iter()
            .copied()
            .filter(|digest| *digest != index.digest && *digest != subject.digest)
            .collect();

        let target = Target::Digest(index.digest);
        let response = self.put_new_manifest(&target, &index.media_type, manifest.clone()).await?;
        let linked = response.is_some_and(|response| {
            response.text("oci-subject").and_then(|subject| subject.trim().parse().ok())
                == Some(subject.digest)
        });
        let attached = if self.api_lists(index, &subject.digest, linked).await {
            AttachMethod::ReferrersApi
        } else {
            AttachMethod::TagSchema(
                self.list_under_tag(index, &manifest, subject, &replaces).await?,
            )
        };

        let mut not_deleted = Vec::new();
        for digest in replaces {
            if self.delete_manifest(&digest).await.is_err() {
                not_deleted.push(digest);
            }
        }
        Ok(AttachReport { attached, not_deleted })
    }

    /// Removes manifests from the list of `subject`'s referrers under the fallback tag, if there is
    /// one, and then deletes them. In this order, no deleted manifest is ever listed. Returns a
    /// result for each, in order. Each must be a referrer of `subject` that was read before: on
    /// most registries, deleting a manifest also deletes all its tags.
    ///
    /// # Errors
    /// If the list cannot be changed. Then nothing is deleted.
    pub async fn detach(
        &self,
        subject: &Digest,
        referrers: &[Digest],
    ) -> Result<Vec<Result<(), RegistryError>>, RegistryError> {
        self.unlist_under_tag(subject, referrers).await?;
        let mut deleted = Vec::with_capacity(referrers.len());
        for digest in referrers {
            deleted.push(self.delete_manifest(digest).await);
        }
        Ok(deleted)
    }

    /// The referrers of `subject` that are listed under the fallback tag, whatever the registry's
    /// own list has.
    ///
    /// # Errors
    /// If the list cannot be read. A missing list is not an error.
    pub async fn listed_under_tag(
        &self,
        subject: &Digest,
    ) -> Result<Vec<Descriptor>, RegistryError> {
        self.tagged_referrers(subject).await
    }

    /// Removes manifests from the list under the fallback tag. Nothing is deleted.
    ///
    /// # Errors
    /// If the list cannot be changed.
    pub async fn unlist(
        &self,
        subject: &Digest,
        referrers: &[Digest],
    ) -> Result<(), RegistryError> {
        self.unlist_under_tag(subject, referrers).await
    }

    /// Whether the registry lists the referrer itself. One that did not send `OCI-Subject` may do
    /// so anyway, and one that did may have no API (Amazon ECR in 2024, sigstore/sigstore-js#1183).
    /// One that has the API may list the referrer a little later. In doubt the answer is no: then
    /// the tag schema is used as well, which does no harm.
    async fn api_lists(&self, index: &Descriptor, subject: &Digest, linked: bool) -> bool {
        if linked && self.registry.referrers.is_known() {
            return true;
        }
        match self
            .api_referrers(subject, index.artifact_type.as_deref(), &mut self.budget.open())
            .await
        {
            Ok(Some(listed)) => linked || listed.iter().any(|entry| entry.digest == index.digest),
            Ok(None) => false,
            // A refusal may mean that the path is unknown.
            Err(error) => linked && !error.is_refusal(),
        }
    }
}
