//! A snapshotter for containerd: its snapshots service (version 1, gRPC), for images that ociseek
//! can mount.
//!
//! The layers of such an image are only noted down, so that containerd does not pull them. The
//! first container over them mounts the image as one file system. All other snapshots are
//! directories and overlayfs, as containerd's own snapshotter makes them.
//!
//! How an image is judged and mounted is up to the program: [`LazyImages`].

#[cfg(test)]
#[cfg(target_os = "linux")]
mod faults;
#[cfg(target_os = "linux")]
mod ids;
#[cfg(target_os = "linux")]
mod images;
#[cfg(target_os = "linux")]
mod keep;
#[cfg(target_os = "linux")]
mod messages;
#[cfg(target_os = "linux")]
mod rows;
#[cfg(target_os = "linux")]
mod service;
#[cfg(target_os = "linux")]
mod snapshotter;
#[cfg(target_os = "linux")]
mod status;

#[cfg(target_os = "linux")]
pub use images::{ImageLayers, LazyImages, MountOrder};
#[cfg(target_os = "linux")]
pub use messages::SnapshotError;
#[cfg(target_os = "linux")]
pub use rows::LazyLayer;
#[cfg(target_os = "linux")]
pub use service::{AnsweredCall, CallObserver, Listener, serve};
#[cfg(target_os = "linux")]
pub use snapshotter::{KeptNumbers, Snapshotter};
#[cfg(target_os = "linux")]
pub use status::{KeptImage, KeptMount, KeptState, kept, memory};
