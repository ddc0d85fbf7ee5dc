//! A snapshotter for containerd: its snapshots service (version 1, gRPC), for images that ociseek
//! can mount.
//!
//! The layers of such an image are only noted down, so that containerd does not pull them. The
//! first container over them mounts the image as one file system. All other snapshots are
//! directories and overlayfs, as containerd's own snapshotter makes them.
//!
//! The socket can also have the CRI's image service, which is containerd's: [`ImageService`].
//!
//! One process serves all images, and another one keeps the devices of their mounts, so that
//! containers outlive the first. How an image is judged and opened is up to the program:
//! [`LazyImages`].

#![cfg(target_os = "linux")]

mod containerd;
mod cri;
#[cfg(test)]
mod faults;
mod grpc;
mod health;
mod ids;
mod image_service;
mod images;
mod lazy;
mod messages;
mod pods;
mod rows;
mod service;
mod session;
mod snapshotter;
mod status;

pub use containerd::repositories_with;
pub use health::serves;
pub use image_service::ImageService;
pub use lazy::{ImageLayers, LazyImages, MountAttempt, OpenedLayers, ServingOptions};
pub use messages::SnapshotError;
pub use pods::{Pod, PullingPods};
pub use rows::{LazyLayer, LazyStack};
pub use service::{ANSWER, AnsweredCall, CallObserver, Listener, METHODS, serve};
pub use snapshotter::{KeptNumbers, Snapshotter};
pub use status::{KeptImage, KeptMount, KeptState, kept, memory};
