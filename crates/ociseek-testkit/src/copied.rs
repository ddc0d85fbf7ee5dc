//! Copies images with everything that refers to them, as `oras cp -r` does, to and from the
//! registries of these tests and layouts.

use std::path::Path;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use ociseek_format::image::manifest::{DOCKER_LIST, DOCKER_MANIFEST};
use ociseek_format::image::{Descriptor, ImageName, ImageSelector};
use ociseek_store::blob::Target;
use ociseek_store::layout::Layout;
use ociseek_store::{Destination, Source};
use serde_json::Value;

use super::sandbox::{OCI_INDEX, OCI_MANIFEST, Sandbox};
use super::servers::repository;

const MANIFESTS: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_LIST, DOCKER_MANIFEST];

/// Copies the image `from` to `to`, with its referrers. The folders of layouts are in the sandbox.
pub fn copied(sandbox: &Sandbox, from: &str, to: &str) {
    by_thread(sandbox, from, to, true);
}

/// The same without referrers.
pub fn copied_alone(sandbox: &Sandbox, from: &str, to: &str) {
    by_thread(sandbox, from, to, false);
}

fn by_thread(sandbox: &Sandbox, from: &str, to: &str, with_referrers: bool) {
    let dir = sandbox.dir.path();
    // Tests may have a runtime, in which a thread cannot start another.
    std::thread::scope(|scope| {
        let work = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(copy(dir, from, to, with_referrers, None));
        };
        scope.spawn(work).join().unwrap();
    });
}

/// Copies an image; `login` is `USER:PASSWORD` for the destination.
pub async fn copy(dir: &Path, from: &str, to: &str, with_referrers: bool, login: Option<&str>) {
    let (source, root) = match from.parse().unwrap() {
        ImageName::Registry(image) => {
            let repository = repository(&image.registry, &image.repository, None);
            (Source::Registry(repository), Target::of(&image))
        }
        ImageName::Layout { dir: layout, select } => {
            let layout = Layout::open(&dir.join(layout)).unwrap();
            let root = Target::Digest(layout.find(&select).unwrap().digest);
            (Source::Layout(Arc::new(layout)), root)
        }
        other => panic!("{other}"),
    };
    let (destination, tag) = match to.parse().unwrap() {
        ImageName::Registry(image) => {
            let repository = repository(&image.registry, &image.repository, login);
            (Destination::Registry(repository), image.tag.unwrap())
        }
        ImageName::Layout { dir: layout, select: ImageSelector::Tag(tag) } => {
            let layout = Layout::open_or_new(&dir.join(layout)).unwrap();
            (Destination::Layout(Arc::new(layout)), tag)
        }
        other => panic!("{other}"),
    };
    let copying = Copying { source, destination, with_referrers };
    let image = copying.manifest(&root, None).await;
    let document = copying.source.manifest(&root).await.unwrap();
    copying.destination.tag_manifest(&image, document.bytes, &tag).await.unwrap();
}

struct Copying {
    source: Source,
    destination: Destination,
    with_referrers: bool,
}

impl Copying {
    /// Copies a manifest after what it lists, and before what refers to it. `listed` is its entry
    /// in the list of the referrers of a subject, and that subject.
    fn manifest<'a>(
        &'a self,
        target: &'a Target,
        listed: Option<(Descriptor, &'a Descriptor)>,
    ) -> BoxFuture<'a, Descriptor> {
        async move {
            let document = self.source.manifest(target).await.unwrap();
            let value: Value = serde_json::from_slice(&document.bytes).unwrap();
            let listing = |field: &str| -> Vec<Descriptor> {
                serde_json::from_value(value[field].clone()).unwrap_or_default()
            };
            let config: Option<Descriptor> =
                serde_json::from_value(value["config"].clone()).unwrap_or_default();
            for part in listing("manifests").into_iter().chain(listing("layers")).chain(config) {
                if MANIFESTS.contains(&part.media_type.as_str()) {
                    self.manifest(&Target::Digest(part.digest), None).await;
                } else {
                    let sent = |_| {};
                    self.destination.copy_blob(&part, &self.source, 4, &sent).await.unwrap();
                }
            }
            let size = document.bytes.len() as u64;
            let plain = Descriptor::new(document.media_type.clone(), document.digest, size);
            match listed {
                None => self.destination.push_manifest(&plain, document.bytes, None).await.unwrap(),
                Some((entry, subject)) => {
                    self.destination.attach(&entry, document.bytes, subject, &[]).await.unwrap();
                }
            }
            if self.with_referrers {
                let referrers = self.source.all_referrers(&plain.digest).await.unwrap();
                for referrer in referrers.descriptors {
                    let digest = Target::Digest(referrer.digest);
                    self.manifest(&digest, Some((referrer, &plain))).await;
                }
            }
            plain
        }
        .boxed()
    }
}
