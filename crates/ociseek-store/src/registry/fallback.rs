//! The referrers tag schema (distribution spec, "Referrers Tag Schema"): for registries without a
//! list of referrers, clients keep one in an image index under a tag derived from the subject's
//! digest. Only the writers' own care protects that index from concurrent writes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{HeaderName, HeaderValue, IF_MATCH, IF_NONE_MATCH};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::auth::Access;
use super::backoff::jitter;
use super::client::Repository;
use super::error::RegistryError;
use super::manifests::MANIFEST;
use super::referrers::descriptors;
use crate::blob::Target;
use crate::lock::Hold;
use ociseek_format::digest::Digest;
use ociseek_format::image::manifest::OCI_INDEX;
use ociseek_format::image::{Descriptor, referrers_tag};
use ociseek_format::printable::exact_size;
use ociseek_format::progress::ProgressEvent;

/// The number of writes before we give up because other clients overwrite ours.
const WRITES: u32 = 32;
/// How many times our own reading may have the change and a later one not, before we go on.
const AGREED: u32 = 8;
/// How many times the registry may lack a manifest that the list names.
const INCOMPLETE: u32 = 8;
/// After how many of these refusals the missing manifests are left out. A client that removes a
/// manifest needs a while to take it off the list, and longer if others undo that.
const MISSING: u32 = 4;
/// The number of listed manifests that are looked for.
const LOOKED_FOR: usize = 256;
/// Before each new write the wait doubles, up to this many times. Otherwise, writers that collided
/// would return at the same time and collide again.
const DOUBLINGS: u32 = 4;
/// How many times in a row our entry must be found when the index is read back.
const READINGS: u32 = 5;
/// The total wait between these readings, as a multiple of the time that another writer may take
/// from reading to writing, assumed to be as fast as we are.
const PATIENCE: u32 = 4;
/// The number of tags whose locks are kept. If there are more, unused locks are dropped.
const TAGS: usize = 256;
/// The longest wait before reading back.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// A change to the list of a subject's referrers.
struct Change<'a> {
    /// The entry to add, and the manifest that it names.
    entry: Option<(&'a Descriptor, &'a Bytes)>,
    /// The entries to remove.
    goes: &'a [Digest],
}

impl Change<'_> {
    fn is_made(&self, listed: &[Descriptor]) -> bool {
        self.entry.is_none_or(|(entry, _)| listed.contains(entry))
            && !listed.iter().any(|d| self.goes.contains(&d.digest))
    }
}

/// The content of the tag.
enum TagContent {
    Nothing,
    Referrers(ReferrersIndex),
    /// The subject itself.
    Subject,
    /// Something other than an index of referrers.
    Other {
        media_type: String,
    },
}

/// An index of referrers.
struct ReferrersIndex {
    digest: Digest,
    etag: Option<HeaderValue>,
    bytes: Bytes,
}

impl Repository {
    /// The referrers that the fallback tag lists. Empty if the tag has no index of referrers.
    pub(super) async fn tagged_referrers(
        &self,
        subject: &Digest,
    ) -> Result<Vec<Descriptor>, RegistryError> {
        match self.tag_content(subject, Access::Pull).await? {
            TagContent::Referrers(index) => {
                let target = self
                    .request(reqwest::Method::GET, &format!("manifests/{}", referrers_tag(subject)))
                    .await?;
                let line = self.request_line(&target);
                let (descriptors, others) = descriptors(&index.bytes, &line, 1)?;
                self.warn_of_others(&line, others);
                Ok(descriptors)
            }
            TagContent::Nothing | TagContent::Subject | TagContent::Other { .. } => Ok(Vec::new()),
        }
    }

    /// The content of the tag. A registry may refuse to say whether a tag exists: Artifactory
    /// answers 403 if it does not. A registry that refuses a single request is asked again, so that
    /// a list that exists does not pass for missing.
    async fn tag_content(
        &self,
        subject: &Digest,
        access: Access,
    ) -> Result<TagContent, RegistryError> {
        let tag = Target::Tag(referrers_tag(subject));
        let mut read = self.document(&tag, access).await;
        let is_refused =
            read.as_ref().is_err_and(RegistryError::is_refusal) && self.is_readable(subject).await;
        if is_refused {
            read = self.document(&tag, access).await;
        }
        match read {
            Ok((document, _)) if Digest::of(subject.algorithm(), &document.bytes) == *subject => {
                Ok(TagContent::Subject)
            }
            Ok((document, _)) if document.media_type != OCI_INDEX => {
                Ok(TagContent::Other { media_type: document.media_type })
            }
            Ok((document, etag)) => Ok(TagContent::Referrers(ReferrersIndex {
                digest: document.digest,
                etag,
                bytes: document.bytes,
            })),
            Err(error) if error.is_not_found() => Ok(TagContent::Nothing),
            Err(error) if is_refused && error.is_refusal() => Ok(TagContent::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Lists `entry`, whose manifest is `content`, under the fallback tag, replacing `replaces`,
    /// and makes sure, as far as possible, that it stays listed.
    pub(super) async fn list_under_tag(
        &self,
        entry: &Descriptor,
        content: &Bytes,
        subject: &Descriptor,
        replaces: &[Digest],
    ) -> Result<String, RegistryError> {
        self.change_list(&subject.digest, &Change { entry: Some((entry, content)), goes: replaces })
            .await
    }

    /// Removes `goes` from the list under the fallback tag, if there is one. The list stays even if
    /// it is empty, because deleting it could delete an entry that another client adds at that
    /// moment.
    pub(super) async fn unlist_under_tag(
        &self,
        subject: &Digest,
        goes: &[Digest],
    ) -> Result<(), RegistryError> {
        self.change_list(subject, &Change { entry: None, goes }).await.map(|_| ())
    }

    /// Changes the list under the fallback tag, and makes sure, as far as possible, that the change
    /// lasts.
    ///
    /// Registries have no conditional writes (except those that honour If-Match, which is used
    /// then). So the index is read back several times, over a period longer than other clients need
    /// from reading to writing. If our change was undone, it is applied again to the current index.
    async fn change_list(
        &self,
        subject: &Digest,
        change: &Change<'_>,
    ) -> Result<String, RegistryError> {
        let tag = referrers_tag(subject);
        let failed = |reason: String| RegistryError::FallbackTag {
            repository: format!("{}/{}", self.registry.name, self.name),
            tag: tag.clone(),
            reason,
        };
        let lock = {
            let mut locks = self.tags.hold();
            if locks.len() >= TAGS {
                locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            Arc::clone(
                locks.entry(format!("{}/{}:{tag}", self.registry.name, self.name)).or_default(),
            )
        };
        let _one_at_a_time = lock.lock().await;

        // A registry may reject our condition although nothing has changed. Such a rejection is
        // ignored.
        let mut refused: Option<Option<Digest>> = None;
        let mut writes = 0;
        let mut agreed = 0;
        let mut incomplete = 0;
        let mut missing = Vec::new();
        loop {
            let begun = Instant::now();
            let current = match self.tag_content(subject, Access::Push).await? {
                // Without a list there is nothing to remove.
                TagContent::Nothing | TagContent::Subject | TagContent::Other { .. }
                    if change.entry.is_none() =>
                {
                    return Ok(tag);
                }
                TagContent::Nothing => None,
                // GitLab's registry reads such a name as the digest, and answers with the image
                // although there is no tag. Then there is nothing that a push could replace.
                TagContent::Subject if writes == 0 && self.has_tag(&tag).await == Some(false) => {
                    None
                }
                TagContent::Subject if writes == 0 => {
                    return Err(failed(
                        "it points to the image itself, not to an index of referrers".into(),
                    ));
                }
                TagContent::Subject => {
                    return Err(failed(
                        "the registry answers with the image instead of the pushed index".into(),
                    ));
                }
                TagContent::Referrers(index) => Some(index),
                TagContent::Other { media_type } => {
                    let reason =
                        format!("it points to {media_type:?}, not to an index of referrers");
                    return Err(failed(reason));
                }
            };
            let wrong = |e: serde_json::Error| failed(format!("its index cannot be read: {e}"));
            let before = current
                .as_ref()
                .map(|index| serde_json::from_slice(&index.bytes))
                .transpose()
                .map_err(wrong)?;
            let after = amended(before.as_ref(), change)
                .ok_or_else(|| failed("its index has no list".into()))?;
            if before.as_ref() == Some(&after) {
                if writes == 0 || self.lasts(change, subject, begun.elapsed()).await? {
                    return Ok(tag);
                }
                // Other readings differ from ours, as with replicas of a registry, or a cache.
                agreed += 1;
                if agreed == AGREED {
                    let what = format!(
                        "the list of referrers under {}/{}:{tag} was changed, but not every answer of the registry \
                         has the change",
                        self.registry.name, self.name
                    );
                    self.registry.http.progress().report(ProgressEvent::Warning(what));
                    return Ok(tag);
                }
                self.wait_for_others(agreed).await;
                continue;
            }
            if writes == WRITES {
                return Err(failed(format!("others overwrote our change {WRITES} times")));
            }
            writes += 1;
            // Others may push them again meanwhile, so this holds for one write.
            let left_out = std::mem::take(&mut missing);
            let after = amended(Some(&after), &Change { entry: None, goes: &left_out })
                .ok_or_else(|| failed("its index has no list".into()))?;
            let bytes = Bytes::from(after.to_string());
            if bytes.len() as u64 > MANIFEST {
                return Err(failed(format!(
                    "its index would be larger than {}",
                    exact_size(MANIFEST)
                )));
            }
            let base = current.as_ref().map(|index| index.digest);
            let condition = if refused == Some(base) { None } else { condition(current.as_ref()) };
            let is_conditional = condition.is_some();
            match self.put_manifest(&Target::Tag(tag.clone()), OCI_INDEX, bytes, condition).await {
                Ok(_) => left_out.iter().for_each(|digest| {
                    let what = format!(
                        "the list of referrers under {}/{}:{tag} named the missing {digest}; the entry was removed",
                        self.registry.name, self.name
                    );
                    self.registry.http.progress().report(ProgressEvent::Warning(what));
                }),
                // Harbor answers so where tags are immutable (goharbor/harbor#17332).
                Err(error) if !is_conditional && error.status() == Some(412) => return Err(error),
                // Another client was faster.
                Err(error) if matches!(error.status(), Some(409 | 412)) => {
                    refused = Some(base);
                    self.wait_for_others(writes).await;
                    continue;
                }
                // Another client has removed a manifest that the list names, or that we pushed.
                Err(error) if error.is_blob_unknown() && incomplete < INCOMPLETE => {
                    incomplete += 1;
                    self.wait_for_others(writes).await;
                    if let Some((entry, content)) = change.entry
                        && self.lacks(&entry.digest).await
                    {
                        let target = Target::Digest(entry.digest);
                        self.put_new_manifest(&target, &entry.media_type, content.clone()).await?;
                    } else if incomplete >= MISSING {
                        missing = self.missing(&after).await;
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            if self.lasts(change, subject, begun.elapsed()).await? {
                return Ok(tag);
            }
            self.wait_for_others(writes).await;
        }
    }

    /// Whether the registry says that it has no such manifest. Caches answer HEAD with 404 for what
    /// they have (goharbor/harbor#22609).
    async fn lacks(&self, digest: &Digest) -> bool {
        self.document(&Target::Digest(*digest), Access::Push)
            .await
            .is_err_and(|error| error.is_not_found())
    }

    /// The manifests in a list of referrers that the registry lacks. A client that knows nothing of
    /// the list may have deleted them. A registry that checks lists then refuses every change.
    async fn missing(&self, list: &Value) -> Vec<Digest> {
        let listed = list["manifests"].as_array().into_iter().flatten().take(LOOKED_FOR);
        let mut missing = Vec::new();
        for digest in listed.filter_map(|listed| listed["digest"].as_str()?.parse().ok()) {
            if self.lacks(&digest).await {
                missing.push(digest);
            }
        }
        missing
    }

    /// Waits for other writers to finish, after `writes` of our writes were undone.
    async fn wait_for_others(&self, writes: u32) {
        sleep(jitter(self.registry.http.limits.settle * (1 << writes.min(DOUBLINGS)))).await;
    }

    /// Whether the list keeps the change in several readings. `window` is the time that our own
    /// reading and writing took.
    async fn lasts(
        &self,
        change: &Change<'_>,
        subject: &Digest,
        window: Duration,
    ) -> Result<bool, RegistryError> {
        let pause =
            self.registry.http.limits.settle.max(window * PATIENCE / READINGS).min(LONGEST_PAUSE);
        for _ in 0..READINGS {
            sleep(jitter(pause)).await;
            if !change.is_made(&self.tagged_referrers(subject).await?) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The condition to overwrite only the content that was read, if the registry supports it.
fn condition(current: Option<&ReferrersIndex>) -> Option<(HeaderName, HeaderValue)> {
    match current {
        None => Some((IF_NONE_MATCH, HeaderValue::from_static("*"))),
        Some(index) => index.etag.clone().map(|etag| (IF_MATCH, etag)),
    }
}

/// The changed index: without the removed entries, and with the new entry in place of the first of
/// them or of its older form, otherwise at the end, because consumers take the first entry of a
/// kind. All content of other clients stays, including unknown fields.
fn amended(index: Option<&Value>, change: &Change<'_>) -> Option<Value> {
    let mut index = match index {
        Some(index) => index.clone(),
        None => json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": []}),
    };
    let fields = index.as_object_mut()?;
    let list = fields.entry("manifests").or_insert_with(|| json!([]));
    if list.is_null() {
        *list = json!([]);
    }
    let list = list.as_array_mut()?;
    let goes = |listed: &Value| {
        let digest = listed
            .get("digest")
            .and_then(Value::as_str)
            .and_then(|digest| digest.parse::<Digest>().ok());
        digest.is_some_and(|digest| {
            change.entry.is_some_and(|(e, _)| e.digest == digest) || change.goes.contains(&digest)
        })
    };
    let place = list.iter().position(goes).unwrap_or(list.len());
    list.retain(|listed| !goes(listed));
    if let Some((entry, _)) = change.entry {
        list.insert(place, serde_json::to_value(entry).ok()?);
    }
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> Descriptor {
        let mut entry =
            Descriptor::of("application/vnd.oci.image.manifest.v1+json", name.as_bytes());
        entry.artifact_type = Some("x/y".into());
        entry
    }

    fn listing(index: Option<&Value>, entry: &Descriptor, goes: &[Digest]) -> Option<Value> {
        amended(index, &Change { entry: Some((entry, &Bytes::new())), goes })
    }

    #[test]
    fn removing_an_entry_leaves_the_others_unchanged() {
        let [a, b, c] = ["a", "b", "c"].map(entry);
        let mut foreign = serde_json::to_value(&a).unwrap();
        foreign["x-unknown"] = json!({"k": [1]});
        let index = json!({"schemaVersion": 2, "x": 1, "manifests": [b, foreign, c]});
        let without =
            |goes: &[Digest]| amended(Some(&index), &Change { entry: None, goes }).unwrap();
        assert_eq!(
            without(&[b.digest, c.digest]),
            json!({"schemaVersion": 2, "x": 1, "manifests": [foreign]})
        );
        assert_eq!(without(&[Digest::sha256(b"d")]), index);
        assert_eq!(without(&[a.digest, b.digest, c.digest])["manifests"], json!([]));
        let goes = [a.digest];
        let gone = Change { entry: None, goes: &goes };
        assert!(gone.is_made(std::slice::from_ref(&b)) && !gone.is_made(&[b.clone(), a.clone()]));
        let content = Bytes::new();
        let moved = Change { entry: Some((&b, &content)), goes: &goes };
        assert!(
            moved.is_made(std::slice::from_ref(&b))
                && !moved.is_made(&[c])
                && !moved.is_made(&[a, b.clone()])
        );
    }

    #[test]
    fn our_entry_replaces_the_old_one_and_the_others_stay() {
        let [a, b, c, d] = ["a", "b", "c", "d"].map(entry);
        let mut foreign = serde_json::to_value(&a).unwrap();
        foreign["x-unknown"] = json!({"k": [1]});
        let index = json!({"schemaVersion": 2, "x": 1, "manifests": [foreign, b, c]});
        let after = listing(Some(&index), &d, &[c.digest, b.digest]).unwrap();
        assert_eq!(after, json!({"schemaVersion": 2, "x": 1, "manifests": [foreign, d]}));
        let after = listing(Some(&index), &d, &[]).unwrap();
        assert_eq!(after["manifests"][3], serde_json::to_value(&d).unwrap());
        // Listing the same entry again changes nothing.
        assert_eq!(listing(Some(&after), &d, &[]).unwrap(), after);
        // An entry of ours that lost its artifact type gets it back, in its place.
        let mut bare = serde_json::to_value(&b).unwrap();
        bare.as_object_mut().unwrap().remove("artifactType");
        let index = json!({"schemaVersion": 2, "manifests": [bare, c]});
        assert_eq!(listing(Some(&index), &b, &[]).unwrap()["manifests"], json!([b, c]));
    }

    #[test]
    fn a_missing_or_foreign_index_is_handled() {
        let a = entry("a");
        let fresh = listing(None, &a, &[]).unwrap();
        assert_eq!(fresh, json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [a]}));
        assert_eq!(
            listing(Some(&json!({"manifests": null})), &a, &[]).unwrap(),
            json!({"manifests": [a]})
        );
        for strange in [json!([]), json!("x"), json!({"manifests": {}})] {
            assert_eq!(listing(Some(&strange), &a, &[]), None);
        }
    }
}
