//! Judges and opens the images of this node, by the settings that are valid now.

use std::collections::{BTreeSet, HashMap};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout, timeout_at};
use tracing::{info, warn};

use super::events::PodEvents;
use super::metrics::{SnapshotterCounter, SnapshotterMetrics, count_request};
use super::reads::{ImageLog, ImageReads};
use super::room::OpeningMemory;
use crate::cli::blocking;
use crate::cli::image_fs::LazyArgs;
use crate::cli::shared::args::RegistryArgs;
use crate::cli::shared::error::CliError;
use crate::cli::shared::parse::bytes_of_speed;
use crate::cli::shared::source::Images;
use ociseek_format::digest::Digest;
use ociseek_format::image::{ImageName, ImageNameError, Reference};
use ociseek_format::progress::{Progress, causes};
use ociseek_node::{
    ANSWER, ImageLayers, LazyImages, LazyStack, MountAttempt, OpenedLayers, ServingOptions,
    repositories_with,
};
use ociseek_ops::ahead::{DocumentsAhead, Fetching, FetchingAhead};
use ociseek_ops::judge::{JudgedLayer, NotLazy, judge};
use ociseek_ops::lazy_from::LazyFrom;
use ociseek_ops::mount::Prefetch;
use ociseek_ops::open::{LayerChoice, OpenOptions, open};
use ociseek_ops::trust::NotedDocuments;
use ociseek_rootfs::content::{BackgroundFetches, ContentOptions};
use ociseek_rootfs::fuse::release_freed_memory;
use ociseek_rootfs::layers::Caches;
use ociseek_store::Source;
use ociseek_store::lock::Hold;
use ociseek_store::recall::Recall;
use ociseek_store::registry::{FindRepositories, LoginOfPull, PulledLogins, SharedLink};

/// How long containerd may take to say where else an image is.
const CONTAINERD: Duration = Duration::from_secs(5);
/// For how many images the layers are kept in memory, and for how long: containerd asks for each
/// layer of a pull, and mounts the image soon after that.
const KNOWN: usize = 256;
const KNOWN_FOR: Duration = Duration::from_secs(300);
/// How long a pull may take for one layer.
const PULL: Duration = Duration::from_secs(3600);
/// The memory for what the registry said of an image, and of all, in bytes.
const ANSWERS: u64 = 4 << 20;
const ALL_ANSWERS: u64 = 32 << 20;
/// How long a pull waits to learn whether the image has an index. containerd may reach the registry
/// by a mirror that is not configured here. The CRI cancels a pull that makes no progress for a
/// minute or more (`image_pull_progress_timeout`).
const LOOKUP: Duration = Duration::from_secs(15);
/// How long a pull waits at most to learn how long lists of files are, if memory is short.
const LISTS: Duration = Duration::from_secs(3);
/// Otherwise the call would fail, and the pull with it, and nobody would unpack the image.
const _: () = assert!(LOOKUP.as_secs() + 4 < ANSWER.as_secs());

/// The logins of pulls do not outlive the snapshotter.
const LOGIN_IS_GONE: &str = "the logins of pulls are in memory only, and a restart of the snapshotter loses them: \
                             pull the image once more, as a pod with imagePullPolicy: Always does";

/// What a configuration says that can be changed while the server runs. Mounts keep what they were
/// opened with.
pub(super) struct NodeSettings {
    pub word: LazyFrom,
    pub lazy: LazyArgs,
    pub record_starts: Option<Duration>,
    /// In bits per second.
    pub bandwidth: Option<u64>,
}

/// Judges and opens the images of this node.
pub(super) struct NodeImages {
    settings: RwLock<Arc<NodeSettings>>,
    /// The logins of pulls, if kubelet gives them.
    pub pulls: Option<PulledLogins>,
    /// Where pods learn why their image is pulled whole, if they do.
    pub events: Option<PodEvents>,
    caches: Caches,
    ahead: FetchingAhead,
    progress: Arc<dyn Progress>,
    /// Images that were looked up, by name with digest.
    known: Mutex<HashMap<String, KnownImage>>,
    /// When an image that is left to containerd was last heard of: its upper layers follow.
    judged_whole: Mutex<HashMap<String, Instant>>,
    pub metrics: Arc<SnapshotterMetrics>,
    /// The memory for opening, of all images together.
    opening: OpeningMemory,
    /// All requests to registries.
    link: Arc<SharedLink>,
    /// What is fetched in the background, for all images.
    background: Arc<BackgroundFetches>,
    /// Its socket.
    pub containerd: PathBuf,
}

/// An image that was looked up.
#[derive(Clone)]
struct KnownImage {
    at: Instant,
    layers: ImageLayers,
    /// What the registry said of it.
    answers: Recall,
    /// What is being fetched of it.
    fetching: Fetching,
    /// Whether its lists of files are in memory already.
    is_open: bool,
}

impl NodeImages {
    /// By these settings, without the logins of pulls, events and containerd's socket.
    pub(super) fn new(
        settings: NodeSettings,
        caches: Caches,
        progress: Arc<dyn Progress>,
        metrics: Arc<SnapshotterMetrics>,
    ) -> NodeImages {
        let counted = Arc::clone(&metrics);
        let link = SharedLink::new(move |request| count_request(&counted, request));
        link.speed.set(settings.bandwidth.map(bytes_of_speed));
        let background = BackgroundFetches::default();
        background.speed.set(settings.lazy.prefetch.speed());
        NodeImages {
            background: Arc::new(background),
            ahead: FetchingAhead::new(caches.clone(), LOOKUP),
            opening: OpeningMemory::new(settings.lazy.registry.memory.max_memory.0),
            settings: RwLock::new(Arc::new(settings)),
            known: Mutex::default(),
            judged_whole: Mutex::default(),
            pulls: None,
            events: None,
            containerd: PathBuf::new(),
            link: Arc::new(link),
            caches,
            progress,
            metrics,
        }
    }

    /// What is valid now.
    pub(super) fn settings(&self) -> Arc<NodeSettings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on, images are judged and opened by these settings.
    pub(super) fn change(&self, settings: NodeSettings) {
        self.link.speed.set(settings.bandwidth.map(bytes_of_speed));
        self.background.speed.set(settings.lazy.prefetch.speed());
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        self.known.hold().clear();
    }

    /// The options for registries.
    fn registry(&self, settings: &NodeSettings) -> Result<RegistryArgs, CliError> {
        let link = Some(Arc::clone(&self.link));
        Ok(RegistryArgs { link, ..settings.lazy.registry()? })
    }

    /// What is known of an image since a short time.
    fn known(&self, image: &str) -> Option<KnownImage> {
        self.known.hold().get(image).filter(|known| known.at.elapsed() < KNOWN_FOR).cloned()
    }

    /// The layers of an image that starts lazily, and what opening it reads first.
    pub(super) async fn judged(
        &self,
        name: &str,
        answers: &Recall,
    ) -> Result<(Vec<JudgedLayer>, DocumentsAhead), NotLazy> {
        let image =
            ImageName::from_str(name).map_err(|source| NotLazy::of(&not_a_name(name)(source)))?;
        let settings = self.settings();
        let trust = settings.word.rules_for(&image)?;
        let last = Arc::new(AtomicU16::new(0));
        let answered = Arc::clone(&last);
        let link = Arc::new(self.link.part(move |request| {
            answered.store(request.status.unwrap_or(0), Ordering::Relaxed);
        }));
        let judging = |registry: RegistryArgs| {
            let registry = RegistryArgs { link: Some(Arc::clone(&link)), ..registry };
            let trust = trust.clone();
            let image = &image;
            let lazy = &settings.lazy;
            async move {
                let images = Images::new(registry, [image], &self.progress).await?;
                let (source, root) = images.open(image).await?;
                // The image is often opened right after this.
                let source = source
                    .recalling(answers)
                    .with_budget(self.opening.of_an_image())
                    .with_documents_in(&self.caches.ztocs);
                let options = OpenOptions { trust, ..lazy.open_options(image)? };
                let judged = judge(&source, &root, &options, &self.caches, &self.progress).await?;
                let documents = DocumentsAhead::of(&source, &judged, &options);
                Ok::<_, CliError>((judged, documents))
            }
        };
        let (judged, documents) =
            match timeout(LOOKUP, self.with_logins(&settings, &image, judging)).await {
                Ok(judged) => judged.map_err(|error| NotLazy::of(&error))?,
                Err(_) => {
                    let last = Some(last.load(Ordering::Relaxed)).filter(|status| *status > 0);
                    return Err(NotLazy::out_of_time(last, LOOKUP));
                }
            };
        Ok((judged.lazy_layers()?, documents))
    }

    /// Remembers an image if there is memory for its lists of files, beside those that are pulled
    /// and not open yet.
    fn reserve(
        &self,
        image: &str,
        known: &KnownImage,
        settings: &Arc<NodeSettings>,
    ) -> Result<(), NotLazy> {
        let mut all = self.known.hold();
        let others = closed(&all, image).map(|other| other.fetching.lists().kept);
        let others = others.fold(0, u64::saturating_add);
        self.opening.check(known.fetching.lists(), others)?;
        self.remember(&mut all, image, known.clone(), settings);
        Ok(())
    }

    /// Waits until more is known of the lists of files that are not in memory yet.
    async fn lists_known(&self, image: &str, own: &Fetching, until: Instant) {
        let others: Vec<Fetching> =
            closed(&self.known.hold(), image).map(|other| other.fetching.clone()).collect();
        let fetched = join_all(others.into_iter().chain([own.clone()]).map(Fetching::done));
        let until = until.min(Instant::now() + LISTS);
        let _ = timeout_at(until.into(), fetched).await;
    }

    /// The layers of an image that starts lazily. Notes what the registry says of it in `answers`.
    async fn looked_up(&self, image: &str, answers: &Recall) -> Option<ImageLayers> {
        let settings = self.settings();
        let until = Instant::now() + LOOKUP;
        let (layers, documents) = match self.judged(image, answers).await {
            Ok(judged) => judged,
            Err(reason) => {
                self.unpacked(image, &reason);
                return None;
            }
        };
        let fetching = self.ahead.start(documents);
        let layers = ImageLayers {
            chains: chains(layers.iter().map(|layer| layer.diff_id)),
            documents: layers.iter().map(|layer| layer.document.map(text)).collect(),
            digests: layers.iter().map(|layer| text(layer.descriptor.digest)).collect(),
        };
        let known = KnownImage {
            at: Instant::now(),
            layers: layers.clone(),
            answers: answers.clone(),
            fetching,
            is_open: false,
        };
        let mut room = self.reserve(image, &known, &settings);
        if room.is_err() {
            self.lists_known(image, &known.fetching, until).await;
            room = self.reserve(image, &known, &settings);
        }
        if let Err(reason) = room {
            self.unpacked(image, &reason);
            return None;
        }
        Some(layers)
    }

    /// Reads an image with each login of its pulls, until one may read it, and then with those of
    /// the node.
    async fn with_logins<T, Reading>(
        &self,
        settings: &NodeSettings,
        image: &ImageName,
        read: impl Fn(RegistryArgs) -> Reading,
    ) -> Result<T, CliError>
    where
        Reading: Future<Output = Result<T, CliError>>,
    {
        let registry = self.registry(settings)?;
        for login in self.logins_of(image) {
            let has_login = login.has_login();
            let read = read(RegistryArgs { pull: Some(login), ..registry.clone() }).await;
            match read {
                Err(error) if has_login && matches!(NotLazy::of(&error), NotLazy::Login(_)) => {}
                read => return read,
            }
        }
        read(registry).await
    }

    fn logins_of(&self, image: &ImageName) -> Vec<LoginOfPull> {
        match (&self.pulls, image) {
            (Some(pulls), ImageName::Registry(image)) => pulls.of(image),
            _ => Vec::new(),
        }
    }

    /// Says why an image is left to containerd.
    fn unpacked(&self, image: &str, reason: &NotLazy) {
        let code = reason.code();
        let why = reason.to_string();
        let hint = self.hint(reason);
        if reason.is_failure() {
            warn!(name: "unpacked", image, reason = code, error = why, hint);
        } else {
            info!(name: "unpacked", image, reason = code, message = why, hint);
        }
        self.metrics.count(SnapshotterCounter::Unpacked, code);
        let mut judged = self.judged_whole.hold();
        if judged.len() >= KNOWN {
            judged.clear();
        }
        judged.insert(image.to_owned(), Instant::now());
        drop(judged);
        if let Some(events) = &self.events {
            events.unpacked(image, reason);
        }
    }

    /// What the operator can do about it, if that is not plain.
    pub(super) fn hint(&self, reason: &NotLazy) -> Option<&'static str> {
        match reason {
            NotLazy::Login(_) if self.pulls.is_some() => Some(LOGIN_IS_GONE),
            NotLazy::Login(_) => Some(
                "log in as the user of the snapshotter, or give it kubelet's credential providers; the logins of \
                 pulls, such as imagePullSecrets, come with image-service",
            ),
            NotLazy::NotListed => {
                Some("lazy-from names the repositories whose images start lazily")
            }
            NotLazy::Memory { .. } => Some("max-memory is for the lists of files of all images"),
            NotLazy::Zstd => Some("ociseek index --kind fine makes an index for zstd layers"),
            _ => None,
        }
    }

    /// Why an image cannot be opened.
    fn unopened(&self, error: &CliError) -> String {
        let why = causes(error);
        match NotLazy::of(error) {
            NotLazy::Login(_) if self.pulls.is_some() => format!("{why}; {LOGIN_IS_GONE}"),
            _ => why,
        }
    }

    /// Opens the lowest layers of an image.
    async fn opened(
        &self,
        stack: &LazyStack,
        noted: NotedDocuments,
        answers: &Path,
    ) -> Result<OpenedLayers, CliError> {
        let name = &stack.top.image;
        let parsed = ImageName::from_str(name);
        let image = parsed.map_err(not_a_name(name))?;
        let file = answers.to_owned();
        let read = blocking(move || Ok::<_, CliError>(Recall::read(&file))).await?;
        let recalled = match (read, self.known(name)) {
            (Some(read), _) => read,
            (None, Some(known)) => {
                known.fetching.done().await;
                known.answers.copy()
            }
            (None, None) => Recall::default(),
        };
        let progress: Arc<dyn Progress> = Arc::new(ImageLog(name.clone()));
        let settings = self.settings();
        let node = Images::new(self.registry(&settings)?, [&image], &progress).await?;
        let others = match &image {
            ImageName::Registry(own) => Some(self.others(own, stack, node)),
            _ => None,
        };
        let content =
            ContentOptions { deadline: settings.lazy.deadline, ..ContentOptions::default() };
        let layers = LayerChoice::Lowest(stack.layers.len());
        let trust = settings.word.rules_in_use(&image, noted);
        let options = OpenOptions { layers, content, trust, ..settings.lazy.open_options(&image)? };
        let opening = |registry: RegistryArgs| async {
            let images = Images::new(registry, [&image], &progress).await?;
            let (source, root) = images.open(&image).await?;
            let source = match (source, &others) {
                (Source::Registry(repository), Some(others)) => {
                    Source::Registry(repository.with_others(Arc::clone(others)))
                }
                (source, _) => source,
            };
            let source = source.recalling(&recalled).with_budget(self.opening.of_an_image());
            Ok::<_, CliError>(open(&source, &root, &options, &self.caches, &progress).await?)
        };
        let opened = self.opening.open(|| self.with_logins(&settings, &image, opening)).await;
        let mut opened = opened?;
        if let Some(known) = self.known.hold().get_mut(name) {
            known.is_open = true;
        }
        let reads = Arc::new(ImageReads::new(name, &self.metrics));
        opened.content = opened.content.with_observer(reads);
        let file = answers.to_owned();
        let answers = recalled.clone();
        let written = blocking(move || Ok::<_, CliError>(answers.write(&file))).await?;
        // The mount would keep what strangers list for it.
        recalled.forget();
        if let Err(error) = written {
            // Another server would ask the registry.
            warn!(name: "state", image = name, %error, "the answers of the registry are not kept");
        }
        Ok(OpenedLayers { image: opened, progress })
    }

    /// Finds other repositories with the layers of an image, as far as the operator names them.
    fn others(&self, own: &Reference, stack: &LazyStack, images: Images) -> FindRepositories {
        let own = (own.registry.clone(), own.repository.clone());
        let socket = self.containerd.clone();
        let place = stack.layers.len().saturating_sub(1);
        let layer = stack.layers.last().map(|(layer, _)| layer.clone()).unwrap_or_default();
        let image = stack.top.image.clone();
        let word = self.settings().word.clone();
        let named = move |name: String| {
            // containerd leaves out the port.
            let name = match name.split_once('/') {
                Some((host, repository)) if host == host_of(&own.0) => {
                    format!("{}/{repository}", own.0)
                }
                _ => name,
            };
            let ImageName::Registry(other) = name.parse().ok()? else { return None };
            let is_other = (&other.registry, &other.repository) != (&own.0, &own.1);
            let is_listed = word.rules_for(&ImageName::Registry(other.clone())).is_ok();
            if is_other && is_listed { images.repository(&other).ok() } else { None }
        };
        let named = Arc::new(named);
        Arc::new(move || {
            let socket = socket.clone();
            let layer = layer.clone();
            let image = image.clone();
            let named = Arc::clone(&named);
            let find = async move {
                let asked = timeout(CONTAINERD, repositories_with(&socket, &layer, place)).await;
                let names = asked.map_err(io::Error::from).flatten();
                let names = names.unwrap_or_else(|error| {
                    warn!(name: "no-others", image, %error, "containerd does not say where else the image is");
                    BTreeSet::new()
                });
                names.into_iter().filter_map(|name| named(name)).collect()
            };
            find.boxed()
        })
    }

    /// Remembers what was found by these settings, unless others are valid by now.
    fn remember(
        &self,
        all: &mut HashMap<String, KnownImage>,
        image: &str,
        mut known: KnownImage,
        settings: &Arc<NodeSettings>,
    ) {
        if known.answers.size() > ANSWERS {
            known.answers = Recall::default();
        }
        // `change` empties it after the settings are others.
        if !Arc::ptr_eq(settings, &self.settings()) {
            return;
        }
        let size: u64 = all.values().map(|other| other.answers.size()).sum();
        if all.len() >= KNOWN || size + known.answers.size() > ALL_ANSWERS {
            all.clear();
        }
        all.insert(image.to_owned(), known);
    }

    /// Forgets images some time after they were looked up.
    pub(super) async fn forget_old(self: Arc<Self>) -> Infallible {
        loop {
            sleep(KNOWN_FOR / 5).await;
            self.known.hold().retain(|_, known| known.at.elapsed() < KNOWN_FOR);
            self.judged_whole.hold().retain(|_, at| at.elapsed() < PULL);
            if let Some(pulls) = &self.pulls {
                pulls.forget_old();
            }
            // Lists of referrers of strangers are large, and few of them are kept.
            let _ = spawn_blocking(release_freed_memory).await;
        }
    }
}

impl LazyImages for NodeImages {
    fn cannot_share(&self, image: &str, target: &str, other: &str) {
        let other = NotLazy::OtherDocument { layer: target.to_owned(), image: other.to_owned() };
        self.unpacked(image, &other);
    }

    fn lies_on_unpacked(&self, image: &str) {
        let mut judged = self.judged_whole.hold();
        if let Some(at) = judged.get_mut(image) {
            *at = Instant::now();
            return;
        }
        drop(judged);
        let Ok(name) = ImageName::from_str(image) else { return };
        let refused = self.settings().word.rules_for(&name).err();
        self.unpacked(image, &refused.unwrap_or(NotLazy::UnpackedBase));
    }

    fn layers<'a>(&'a self, image: &'a str) -> BoxFuture<'a, Option<ImageLayers>> {
        Box::pin(async move {
            if let Some(known) = self.known(image) {
                return Some(known.layers);
            }
            let answers = Recall::default();
            let layers = self.looked_up(image, &answers).await;
            if answers.size() > ANSWERS {
                drop(answers);
                let _ = spawn_blocking(release_freed_memory).await;
            }
            layers
        })
    }

    fn open<'a>(
        &'a self,
        stack: &'a LazyStack,
        answers: &'a Path,
    ) -> BoxFuture<'a, Result<OpenedLayers, String>> {
        Box::pin(async move {
            let noted = noted(stack).ok_or("its row has an invalid digest")?;
            let opened = self.opened(stack, noted, answers).await;
            let opened = opened.map_err(|error| self.unopened(&error))?;
            let layers = opened.image.layers.iter().map(|layer| text(layer.descriptor.digest));
            if layers.eq(stack.layers.iter().map(|(layer, _)| layer.clone())) {
                Ok(opened)
            } else {
                Err("its manifest has other layers than those that were noted".to_owned())
            }
        })
    }

    fn serving(&self) -> ServingOptions {
        let settings = self.settings();
        let LazyArgs { prefetch, ignore_prefetch_list, .. } = settings.lazy;
        let rest = prefetch.is_wanted().then(|| Arc::clone(&self.background));
        let prefetch = Prefetch { ignore_lists: ignore_prefetch_list, rest };
        ServingOptions { prefetch, record_starts: settings.record_starts }
    }

    fn attempted(&self, attempt: MountAttempt) {
        let (done, counter) = if attempt.is_replacement {
            ("replaced", SnapshotterCounter::Replacements)
        } else {
            ("mounted", SnapshotterCounter::Mounts)
        };
        self.metrics.count(counter, if attempt.has_succeeded { done } else { "failed" });
    }
}

/// The images that are pulled and not open yet, without one.
fn closed<'a>(
    all: &'a HashMap<String, KnownImage>,
    without: &'a str,
) -> impl Iterator<Item = &'a KnownImage> {
    let is_closed = move |(name, known): &(&String, &KnownImage)| {
        !known.is_open && known.at.elapsed() < KNOWN_FOR && *name != without
    };
    all.iter().filter(is_closed).map(|(_, known)| known)
}

fn not_a_name(typed: &str) -> impl FnOnce(ImageNameError) -> CliError {
    let what = format!("{typed:?} is not the name of an image");
    move |source| CliError::because(what, source)
}

/// A registry without its port.
fn host_of(registry: &str) -> &str {
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let host = registry.rsplit_once(':').filter(|(_, port)| is_port(port));
    host.map_or(registry, |(host, _)| host).trim_matches(['[', ']'])
}

/// The documents by which the layers of a mount are read.
fn noted(stack: &LazyStack) -> Option<NotedDocuments> {
    let parsed = |(layer, document): &(String, Option<String>)| {
        let document = document.as_deref().map(Digest::from_str).transpose();
        Some((layer.parse().ok()?, document.ok()?))
    };
    stack.layers.iter().map(parsed).collect()
}

fn text(digest: Digest) -> String {
    digest.to_string()
}

/// The chain IDs of the OCI image specification (config.md, "Layer ChainID").
fn chains(diff_ids: impl Iterator<Item = Digest>) -> Vec<String> {
    let mut chains: Vec<String> = Vec::new();
    for diff_id in diff_ids {
        let above =
            |below: &String| Digest::sha256(format!("{below} {diff_id}").as_bytes()).to_string();
        chains.push(chains.last().map_or_else(|| diff_id.to_string(), above));
    }
    chains
}
