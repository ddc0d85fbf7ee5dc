//! One layer, read on several threads. Planning, scanning and hashing note what they are given.

pub mod laws;
#[path = "../../../crates/ociseek-format/src/layer/parallel/mod.rs"]
pub mod parallel;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerError {
    Broken,
}

/// What the scan does.
#[derive(Debug, Clone, Copy, Default)]
pub struct LayerOptions {
    /// The scan finds the layer broken after this many chunks.
    pub broken_after: Option<usize>,
    /// What decoders ahead of the scan bring is wrong.
    pub is_misleading: bool,
}

pub type ReadOptions = LayerOptions;

/// The numbers of the chunks that were scanned, and of those that were hashed.
#[derive(Debug, PartialEq, Eq)]
pub struct IndexedLayer {
    pub scanned: Vec<u8>,
    pub hashed: Vec<u8>,
}

pub type MappedLayer = IndexedLayer;

mod hashes {
    #[derive(Default)]
    pub(super) struct ScannedSpans;

    pub(super) struct LayerHashes(pub Vec<u8>);

    impl LayerHashes {
        pub(super) fn push(&mut self, _: &[u8], _: ScannedSpans) {}

        pub(super) fn push_all<C: AsRef<[u8]>>(&mut self, chunks: &[C], _: ScannedSpans) {
            self.0.extend(chunks.iter().map(|chunk| chunk.as_ref()[0]));
        }

        pub(super) fn finish(self) -> Vec<u8> {
            self.0
        }
    }
}

mod fine {
    /// The numbers of the chunks that it is for.
    #[derive(Debug, PartialEq, Eq)]
    pub(super) struct ZstdPlan(pub Vec<u8>);
}

mod scan {
    use super::fine::ZstdPlan;
    use super::hashes::{LayerHashes, ScannedSpans};
    use super::scan_result::ScanResult;
    use super::{LayerError, LayerOptions};
    use crate::budget::Charge;
    use crate::codec::stretch::Stretch;
    use crate::digest::Digest;

    /// Hands each batch on when the next one comes.
    pub(super) enum LayerPlanner<C> {
        Idle,
        Noting(Vec<C>),
    }

    impl<C: AsRef<[u8]>> LayerPlanner<C> {
        pub(super) fn plan(&mut self, chunks: Vec<C>) -> Vec<(Vec<C>, Option<ZstdPlan>)> {
            match self {
                LayerPlanner::Idle => vec![(chunks, None)],
                LayerPlanner::Noting(held) => {
                    let before = std::mem::replace(held, chunks);
                    let plan = ZstdPlan(before.iter().map(|chunk| chunk.as_ref()[0]).collect());
                    vec![(before, Some(plan))]
                }
            }
        }

        pub(super) fn give_up(&mut self) -> Option<Vec<C>> {
            match std::mem::replace(self, LayerPlanner::Idle) {
                LayerPlanner::Idle => None,
                LayerPlanner::Noting(held) => Some(held),
            }
        }

        pub(super) fn end(&mut self) -> Vec<(Vec<C>, Option<ZstdPlan>)> {
            self.plan(Vec::new())
        }
    }

    pub(super) struct LayerScan {
        options: LayerOptions,
        scanned: Vec<u8>,
        _memory: Charge,
    }

    pub(super) struct Decoded {
        pub spans: ScannedSpans,
        pub plain: Vec<u8>,
        pub was_right: bool,
    }

    impl LayerScan {
        pub(super) fn to_publish<C: AsRef<[u8]>>(
            options: &LayerOptions,
            known: Option<(Digest, u64)>,
            memory: Charge,
        ) -> (LayerPlanner<C>, LayerScan, LayerHashes) {
            let (scan, hashes) = LayerScan::new(*options, known, memory);
            (LayerPlanner::Noting(Vec::new()), scan, hashes)
        }

        pub(super) fn to_read(
            options: LayerOptions,
            known: (Digest, u64),
            memory: Charge,
        ) -> (LayerScan, LayerHashes) {
            LayerScan::new(options, Some(known), memory)
        }

        fn new(
            options: LayerOptions,
            _: Option<(Digest, u64)>,
            memory: Charge,
        ) -> (LayerScan, LayerHashes) {
            (LayerScan { options, scanned: Vec::new(), _memory: memory }, LayerHashes(Vec::new()))
        }

        pub(super) fn is_fine(&self) -> bool {
            false
        }

        pub(super) fn push_all<C: AsRef<[u8]>>(
            &mut self,
            chunks: &[C],
            plan: Option<ZstdPlan>,
        ) -> Result<ScannedSpans, LayerError> {
            let numbers = || ZstdPlan(chunks.iter().map(|chunk| chunk.as_ref()[0]).collect());
            assert!(plan.is_none_or(|plan| plan == numbers()), "the plan is for other chunks");
            self.take(chunks)
        }

        fn take<C: AsRef<[u8]>>(&mut self, chunks: &[C]) -> Result<ScannedSpans, LayerError> {
            for chunk in chunks {
                if self.options.broken_after == Some(self.scanned.len()) {
                    return Err(LayerError::Broken);
                }
                self.scanned.push(chunk.as_ref()[0]);
            }
            Ok(ScannedSpans)
        }

        pub(super) fn push_decoded<C: AsRef<[u8]>>(
            &mut self,
            chunks: &[C],
            stretch: Stretch,
        ) -> Result<Decoded, LayerError> {
            let numbers: Vec<u8> = chunks.iter().map(|chunk| chunk.as_ref()[0]).collect();
            assert_eq!(stretch.numbers, numbers, "the stretch was decoded from other chunks");
            let spans = self.take(chunks)?;
            Ok(Decoded { spans, plain: stretch.plain, was_right: !self.options.is_misleading })
        }

        pub(super) fn end(&mut self) -> Result<ScannedSpans, LayerError> {
            Ok(ScannedSpans)
        }

        pub(super) fn finish(self, hashed: Vec<u8>) -> Result<ScanResult, LayerError> {
            Ok(ScanResult { scanned: self.scanned, hashed })
        }
    }
}

mod scan_result {
    use super::{IndexedLayer, LayerError, LayerOptions, MappedLayer};

    pub(super) struct ScanResult {
        pub scanned: Vec<u8>,
        pub hashed: Vec<u8>,
    }

    impl ScanResult {
        pub(super) fn publish(self, _: LayerOptions) -> Result<IndexedLayer, LayerError> {
            self.map()
        }

        pub(super) fn map(self) -> Result<MappedLayer, LayerError> {
            Ok(IndexedLayer { scanned: self.scanned, hashed: self.hashed })
        }
    }
}
