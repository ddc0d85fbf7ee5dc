//! Hints: what the user can do about an image or list that failed.

use crate::cli::shared::hint::{convert_hint, index_hint, store_hint};
use crate::cli::shared::registry_hint::registry_hint;
use ociseek_hook::backfill::BackfillError;
use ociseek_hook::job::JobError;

pub(super) fn hint(error: &BackfillError) -> Option<String> {
    match error {
        BackfillError::Repositories(error) if !matches!(error.status(), Some(403..=405)) => registry_hint(error),
        BackfillError::Repositories(_) => Some(
            "the registry may not allow listing its repositories: name the repositories to index, HOST/REPOSITORY"
                .into(),
        ),
        BackfillError::Tags(error) => registry_hint(error),
        BackfillError::Job(JobError::Name(error)) => store_hint(error),
        BackfillError::Job(JobError::Index(error)) => index_hint(error),
        BackfillError::Job(JobError::Enabled { source, .. }) => convert_hint(source),
        _ => None,
    }
}
