//! The servers of a node: they mount indexed images instead of unpacking them.
//!
//! Each server has one door. containerd's is its snapshots service (version 1, gRPC):
//! [`Snapshotter`]. Layers that ociseek can read are only noted down, so that containerd does not
//! pull them, and the first container over them mounts the image as one file system. All other
//! snapshots are directories and overlayfs, as containerd's own snapshotter makes them. The socket
//! can also have the CRI's image service, which is containerd's: [`ImageService`]. The door of
//! podman and CRI-O is a file system with the layers of images: [`store`].
//!
//! One process serves all images, and another one, of `ociseek-rootfs`, keeps the devices of their
//! mounts, so that containers outlive the first. How an image is opened is up to the program:
//! [`LazyImages`] and [`store::ImageOpener`].

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
mod mount_server;
mod pods;
mod rows;
mod service;
mod session;
mod snapshotter;
mod status;
pub mod store;

pub use containerd::repositories_with;
pub use health::serves;
pub use image_service::ImageService;
pub use lazy::{ImageLayers, LazyImages, MountAttempt, OpenedLayers, ServingOptions};
pub use messages::SnapshotError;
pub use mount_server::{Fetched, StartRecord};
pub use pods::{Pod, PullingPods};
pub use rows::{LazyLayer, LazyStack};
pub use service::{ANSWER, AnsweredCall, CallObserver, METHODS, UnnamedListener, serve};
pub use snapshotter::{KeptNumbers, Snapshotter};
pub use status::{KeptImage, KeptMount, KeptState, kept, memory};
