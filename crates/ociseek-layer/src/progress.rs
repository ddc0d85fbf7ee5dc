//! Progress events: the library reports them and prints nothing.

use std::sync::Mutex;

use crate::digest::Digest;

/// One thing that happened during an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// An image manifest of one platform is about to be indexed: the number of its layers and their total bytes.
    Image {
        /// The image manifest.
        manifest: Digest,
        /// The platform, as people write it.
        platform: String,
        /// How many layers are read.
        layers: usize,
        /// Bytes of their blobs.
        bytes: u64,
    },
    /// Layers are about to be read from end to end where only parts of them are wanted.
    Reading {
        /// How many layers.
        layers: usize,
        /// Bytes of their blobs.
        bytes: u64,
        /// Why all of them.
        why: Why,
    },
    /// A layer is being read.
    LayerStarted {
        /// The layer's blob.
        layer: Digest,
        /// Its size.
        bytes: u64,
    },
    /// More of the layer's blob has been read.
    LayerRead {
        /// The layer's blob.
        layer: Digest,
        /// Bytes since the last event of this layer.
        bytes: u64,
    },
    /// The layer is done (indexed, left out, or found in the cache).
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
        /// How many blobs it lists.
        blobs: usize,
    },
    /// A registry uses a token service on another host, which receives the user's login.
    TokenService {
        /// The registry, as the user named it.
        registry: String,
        /// The host of the token service.
        host: String,
    },
    /// A warning: not a failure.
    Warning(String),
}

/// Why layers are read from end to end where only parts of them are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A `docker save` archive does not say the digests of compressed layers.
    Undigested,
    /// Nothing says where their files are.
    Unindexed {
        /// Bytes of the layers that an index could cover; 0 if the image has one, or cannot have any.
        indexable: u64,
    },
}

/// Takes events; called from several threads at once, and never expected to block for long.
pub trait Progress: Send + Sync {
    /// Takes one event.
    fn report(&self, event: Event);
}

/// Ignores all events.
pub struct Silent;

impl Progress for Silent {
    fn report(&self, _: Event) {}
}

/// Records all events, for tests.
#[derive(Default)]
pub struct Recorder(Mutex<Vec<Event>>);

impl Recorder {
    /// The events so far, in order.
    pub fn events(&self) -> Vec<Event> {
        self.0.lock().map(|events| events.clone()).unwrap_or_default()
    }
}

impl Progress for Recorder {
    fn report(&self, event: Event) {
        if let Ok(mut events) = self.0.lock() {
            events.push(event);
        }
    }
}

/// What failed, then why, then why that; what an error repeats of the one behind it stands once.
pub fn chain(error: &dyn std::error::Error) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut next = error.source();
    while let Some(cause) = next {
        let text = cause.to_string();
        if chain.last().is_none_or(|last| !last.ends_with(&text)) {
            chain.push(text);
        }
        next = cause.source();
    }
    chain
}

/// An error and what is behind it, in one line.
pub fn causes(error: &dyn std::error::Error) -> String {
    chain(error).join(": ")
}
