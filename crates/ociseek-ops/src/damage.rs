//! What is wrong with a blob or manifest that could be looked at.

use std::error::Error;

use ociseek_format::budget::OverBudget;
use ociseek_format::code::Code;
use ociseek_format::progress::sources;
use ociseek_store::StoreError;
use ociseek_store::layout::LayoutError;

/// Why a blob or manifest does not match its descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damage {
    /// It does not exist.
    Missing,
    /// It has another size or digest.
    Damaged,
}

impl Damage {
    /// None if it could not be examined.
    pub(crate) fn of(error: &StoreError) -> Option<Damage> {
        match error {
            StoreError::Local(LayoutError::Missing { .. }) => Some(Damage::Missing),
            StoreError::Local(
                LayoutError::Size { .. }
                | LayoutError::Damaged { .. }
                | LayoutError::TooLarge { .. },
            ) => Some(Damage::Damaged),
            StoreError::Registry(error) if error.is_other_content() => Some(Damage::Damaged),
            StoreError::Registry(error) if error.is_not_found() => Some(Damage::Missing),
            _ => None,
        }
    }

    pub(crate) fn ztoc_code(self) -> Code {
        match self {
            Damage::Missing => Code::ZtocMissing,
            Damage::Damaged => Code::ZtocDamaged,
        }
    }

    pub(crate) fn document_code(self) -> Code {
        match self {
            Damage::Missing => Code::DocumentMissing,
            Damage::Damaged => Code::DocumentDamaged,
        }
    }

    pub(crate) fn prefetch_code(self) -> Code {
        match self {
            Damage::Missing => Code::PrefetchMissing,
            Damage::Damaged => Code::PrefetchDamaged,
        }
    }

    pub(crate) fn layer_code(self) -> Code {
        match self {
            Damage::Missing => Code::LayerMissing,
            Damage::Damaged => Code::LayerDamaged,
        }
    }
}

/// Whether the memory limit for an image was exceeded: a limit of ours, which says nothing of the
/// image or of other runtimes.
pub fn is_over_budget(error: &(dyn Error + 'static)) -> bool {
    sources(error).any(|cause| {
        cause.is::<OverBudget>() || cause.downcast_ref().is_some_and(StoreError::is_over_budget)
    })
}
