//! `ociseek ztoc`: what is done with the ztoc of one layer.

pub mod args;
pub mod create;
pub mod extract;
pub mod input;
pub mod json;
pub mod show;
mod spans;
pub mod text;
pub mod verify;
