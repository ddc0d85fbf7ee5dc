//! Tests that need root, FUSE, runc, containerd or the corpus: real layers and a real kernel.

#![allow(unreachable_pub, reason = "nothing outside of a test program could reach it")]

mod boot;
mod bundle;
mod consumer;
mod differential;
mod faults;
mod fine;
mod flatten;
mod load;
mod memory_laws;
mod mount;
mod packages;
mod podman;
mod readback;
mod report;
mod snapshotter;
mod trial;
mod tutorial;
mod users;
mod xattrs;
