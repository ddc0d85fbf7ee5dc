//! Reads layers through their spans: whatever happens in between, the bytes are correct or there is
//! an error.

mod caching;
mod faults;
mod laws;
mod opening;
mod rest;
mod shared;

use ociseek_testkit::{layers, tarball};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ociseek_format::digest::Digest;
use ociseek_format::image::Descriptor;
use ociseek_format::offset::{LayerId, SpanId, Uncompressed};
use ociseek_format::progress::{Progress, Recorder, SilentProgress};
use ociseek_rootfs::cache::{SpanCache, SpanKey, SpanPlace};
use ociseek_rootfs::content::{BackgroundFetches, Content, ContentOptions, ReadError, RestStats};
use ociseek_rootfs::layers::{Caches, LayerAccess, OpenError, OpenLayer, open_layer};
use ociseek_store::Source;
use ociseek_store::cache::ZtocCache;
use ociseek_store::registry::{Client, ClientConfig, CredentialSource, Limits};
use ociseek_testkit::faulty::*;
use ociseek_testkit::sandbox::{GZIP, PLAIN, ZSTD};

/// Text that compresses, but without long repetitions.
fn text(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(format!("{:x} ", state >> 44).as_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A tar with files of these sizes.
fn tar(sizes: &[usize]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (number, &size) in sizes.iter().enumerate() {
        tar.extend(tarball::file(&format!("f{number}"), &text(number as u64, size)));
    }
    tar.extend(tarball::end());
    tar
}

fn gzip(plain: &[u8]) -> Bytes {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder.write_all(plain).unwrap();
    encoder.finish().unwrap().into()
}

fn gunzip(blob: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    flate2::read::MultiGzDecoder::new(blob).read_to_end(&mut plain).unwrap();
    plain
}

fn zstd(plain: &[u8]) -> Bytes {
    zstd::stream::encode_all(plain, 3).unwrap().into()
}

/// The ztoc that `index` would build, with spans of this size.
fn ztoc(blob: &[u8], span_size: u64) -> Bytes {
    layers::built(blob, span_size, "test").bytes.into()
}

fn limits() -> Limits {
    Limits {
        first_wait: Duration::from_millis(2),
        longest_wait: Duration::from_secs(2),
        tries: 3,
        ..Limits::default()
    }
}

fn registry(host: &str) -> Source {
    let config = ClientConfig {
        credentials: CredentialSource::Anonymous,
        limits: limits(),
        ..ClientConfig::default()
    };
    Source::Registry(Client::new(config).unwrap().repository(host, "a/b").unwrap())
}

/// Caches in `dir`, if any, and the reported events.
struct Desk {
    caches: Caches,
    recorder: Arc<Recorder>,
    progress: Arc<dyn Progress>,
}

impl Desk {
    fn new(dir: Option<&Path>) -> Desk {
        Desk::with_limit(dir, 1 << 30)
    }

    fn with_limit(dir: Option<&Path>, most: u64) -> Desk {
        let recorder = Arc::new(Recorder::default());
        let progress = Arc::clone(&recorder) as Arc<dyn Progress>;
        let ztocs =
            ZtocCache::open(dir.map(|dir| dir.join("ztocs")).as_deref(), Arc::clone(&progress));
        let spans = SpanCache::open(dir, most, Arc::clone(&progress));
        Desk { caches: Caches { ztocs, spans }, recorder, progress }
    }

    async fn open(
        &self,
        source: &Source,
        layer: &Descriptor,
        ztoc: Option<Bytes>,
    ) -> Result<OpenLayer, OpenError> {
        open_layer(source, layer, ztoc, &self.caches, &self.progress).await
    }

    fn content(&self, source: &Source, layers: Vec<OpenLayer>, options: ContentOptions) -> Content {
        Content::new(
            source.clone(),
            layers,
            self.caches.spans.clone(),
            options,
            Arc::clone(&self.progress),
        )
    }

    /// The content of a single layer.
    async fn one(&self, source: &Source, layer: &Descriptor, ztoc: Option<Bytes>) -> Content {
        let open = self.open(source, layer, ztoc).await.unwrap();
        self.content(source, vec![open], options())
    }

    fn warnings(&self) -> Vec<String> {
        self.recorder.warnings()
    }
}

/// The files of the cached spans.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir.join("spans")).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.file_name().is_some_and(|name| name.len() == 64)).collect()
}

/// Nothing is read ahead, so that requests can be counted.
pub fn options() -> ContentOptions {
    ContentOptions { deadline: Duration::from_secs(20), read_ahead: 0, ..ContentOptions::default() }
}

async fn read(content: &Content, at: usize, size: usize) -> Result<Bytes, ReadError> {
    content.read(LayerId(0), Uncompressed(at as u64), size).await
}

/// Reads at random places and compares.
async fn check(content: &Content, layer: u32, plain: &[u8], reads: usize) {
    let mut state = 88_172_645_463_325_252u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below.max(1) as u64) as usize
    };
    for number in 0..reads {
        let at = random(plain.len() + 1);
        let most = [1, 512, 5000, 1 << 17, 1 << 20][number % 5];
        let size = random(most + 1).min(plain.len() - at);
        let found = content.read(LayerId(layer), Uncompressed(at as u64), size).await.unwrap();
        assert!(found == plain[at..at + size], "{size} bytes at {at}");
    }
}
