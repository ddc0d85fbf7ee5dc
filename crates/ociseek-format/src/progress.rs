//! Progress events. The library reports them and prints nothing.

use std::error::Error;
use std::iter::successors;
use std::sync::Mutex;

use crate::digest::Digest;

/// An event of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgressEvent {
    /// An image manifest of one platform is about to be indexed.
    Image {
        /// The image manifest.
        manifest: Digest,
        /// The platform in readable form.
        platform: String,
        /// The number of layers to read.
        layers: usize,
        /// The size of their blobs in bytes.
        bytes: u64,
    },
    /// Layers are about to be read completely where only parts of them are wanted.
    Reading {
        /// The number of layers.
        layers: usize,
        /// The size of their blobs in bytes.
        bytes: u64,
        /// The reason.
        why: ReadAllReason,
    },
    /// A layer is being read.
    LayerStarted {
        /// The layer's blob.
        layer: Digest,
        /// The size of the blob in bytes.
        bytes: u64,
    },
    /// More of the layer's blob has been read.
    LayerRead {
        /// The layer's blob.
        layer: Digest,
        /// The number of bytes since the last event for this layer.
        bytes: u64,
    },
    /// The layer is done: indexed, skipped, or found in the cache.
    LayerDone {
        /// The layer's blob.
        layer: Digest,
    },
    /// The layer could not be read or is broken.
    LayerFailed {
        /// The layer's blob.
        layer: Digest,
    },
    /// An index is being attached.
    Attaching {
        /// The index's manifest.
        index: Digest,
        /// The number of blobs it lists.
        blobs: usize,
    },
    /// A registry uses a token service on another host, which receives the user's login.
    TokenService {
        /// The registry, as the user named it.
        registry: String,
        /// The host of the token service.
        host: String,
    },
    /// A warning.
    Warning(String),
}

/// Why layers are read completely where only parts of them are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadAllReason {
    /// A `docker save` archive does not contain the digests of compressed layers.
    Undigested,
    /// No index says where their files are.
    Unindexed {
        /// The size of the layers that an index could cover, in bytes; 0 if the image has one or
        /// cannot have one.
        indexable: u64,
    },
    /// The indexes that say it are only the repository's word, or break the policy.
    Untrusted,
}

/// Receives events. Called from several threads at once, and must not block for long.
pub trait Progress: Send + Sync {
    /// Takes one event.
    fn report(&self, event: ProgressEvent);
}

/// Ignores all events.
#[derive(Debug)]
pub struct SilentProgress;

impl Progress for SilentProgress {
    fn report(&self, _: ProgressEvent) {}
}

/// Records all events, for tests.
#[derive(Debug, Default)]
pub struct Recorder(Mutex<Vec<ProgressEvent>>);

impl Recorder {
    /// The events so far, in order.
    pub fn events(&self) -> Vec<ProgressEvent> {
        self.0.lock().map(|events| events.clone()).unwrap_or_default()
    }

    /// The texts of the warnings so far, in order.
    pub fn warnings(&self) -> Vec<String> {
        let warning = |event| match event {
            ProgressEvent::Warning(text) => Some(text),
            _ => None,
        };
        self.events().into_iter().filter_map(warning).collect()
    }
}

impl Progress for Recorder {
    fn report(&self, event: ProgressEvent) {
        if let Ok(mut events) = self.0.lock() {
            events.push(event);
        }
    }
}

/// The error, followed by its causes.
pub fn sources<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    successors(Some(error), |&error| error.source())
}

/// The error followed by its causes. Text that an error repeats from its cause appears only once.
pub fn chain(error: &dyn Error) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    for cause in error.source().into_iter().flat_map(sources) {
        let text = cause.to_string();
        if chain.last().is_none_or(|last| !last.ends_with(&text)) {
            chain.push(text);
        }
    }
    chain
}

/// An error and its causes on one line.
pub fn causes(error: &dyn Error) -> String {
    chain(error).join(": ")
}
