//! Layers, ztocs and local stores, in one process and without a socket.

#![allow(unreachable_pub, reason = "nothing outside of a test program could reach it")]

#[path = "../../fuzz/src/lib.rs"]
mod bodies;

mod architecture;
mod archive;
mod circles;
mod codes;
mod cut_and_flip;
mod debug;
mod docs;
mod english;
mod examples;
mod files;
mod fuzz_bodies;
mod golden;
mod hostile_ztoc;
mod inflate;
mod laws;
mod layout;
mod members;
mod refusals;
mod sparse;
