//! Tests of the program on files: output, exit status, caches, damaged and hostile input.

#![allow(unreachable_pub, reason = "nothing outside of a test program could reach it")]

mod at_once;
mod cache;
mod consumers;
mod doctor;
mod fine;
mod help;
mod index;
mod json;
mod memory;
mod oci_spec;
mod prefetch;
mod report;
mod second_reader;
mod signals;
mod slips;
mod soci_index;
mod span_cache;
mod verify_layer;
mod zstd;
mod ztoc;
