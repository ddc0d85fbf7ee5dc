//! Tests of the program and its library with registries, NATS and the Lambda runtime, both real and
//! lying ones.

#![allow(unreachable_pub, reason = "nothing outside of a test program could reach it")]

mod backfill;
mod bad_network;
mod budget;
mod ci;
mod content;
mod convert;
mod damaged;
mod deadline;
mod docker_archive;
mod fault_points;
mod field;
mod fine;
mod fine_built;
mod hints;
mod hook_lambda;
mod hook_nats;
mod hook_serve;
mod hook_versions;
mod index;
mod laptop;
mod lifecycle;
mod log;
mod ls_cat;
mod memory_laws;
mod network;
mod parallel;
mod progress;
mod ranges;
mod registry_faults;
mod registry_real;
mod repair;
mod reuse;
mod start;
mod trust;
mod verify;
