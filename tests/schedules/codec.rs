//! Blobs that need no decoding: each chunk of [`CHUNK`] bytes is a member, and begins with its
//! number.

use std::sync::Arc;

use bytes::Bytes;

use crate::offset::{Compressed, Uncompressed};

/// The cutter makes no shorter stretches.
pub const CHUNK: usize = 256 << 10;
pub const WINDOW: usize = 32 << 10;

/// A ztoc without checkpoints.
#[derive(Debug)]
pub struct Ztoc {
    pub checkpoints: Checkpoints,
}

#[derive(Debug)]
pub enum Checkpoints {
    Plain,
    Gzip { list: Vec<Checkpoint> },
}

#[derive(Debug)]
pub struct Checkpoint {
    pub input: Compressed,
    pub output: Uncompressed,
    pub bits: u8,
    pub window: Arc<[u8]>,
}

pub(crate) mod stretch {
    use super::*;

    pub(crate) enum StretchStart {
        Member,
        Block { bits: u8, before: u8, window: Arc<[u8]> },
        Unknown,
    }

    pub(crate) struct MemberFinder;

    impl MemberFinder {
        pub(crate) fn like(_: &Bytes) -> Option<MemberFinder> {
            Some(MemberFinder)
        }

        pub(crate) fn find(&self, _: &Bytes, from: usize) -> Option<usize> {
            (from == 0).then_some(0)
        }
    }

    /// The numbers of the chunks that were decoded.
    #[derive(Default)]
    pub(crate) struct Stretch {
        pub numbers: Vec<u8>,
        pub plain: Vec<u8>,
    }

    impl Stretch {
        pub(crate) fn decode(
            at: Compressed,
            _: StretchStart,
            chunks: &[Bytes],
            plain: Vec<u8>,
            _: usize,
            _: bool,
        ) -> Stretch {
            let numbers: Vec<u8> = chunks.iter().map(|chunk| chunk[0]).collect();
            assert_eq!(at, Compressed(u64::from(numbers[0]) * CHUNK as u64));
            Stretch { numbers, plain }
        }
    }
}
