//! `ociseek ztoc`: commands about the ztoc of a layer.

pub(super) mod args;
pub(super) mod create;
pub(super) mod extract;
pub(super) mod input;
pub(super) mod json;
pub(super) mod show;
mod spans;
pub(super) mod text;
pub(super) mod verify;
