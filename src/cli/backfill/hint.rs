//! Hints: what the user can do about an image or list that failed.

use crate::cli::shared::hint::{cause_hint, convert_hint, index_hint};
use ociseek_hook::backfill::BackfillError;
use ociseek_hook::job::JobError;

pub(super) fn hint(error: &BackfillError) -> Option<String> {
    let own = match error {
        BackfillError::Repositories(error) if matches!(error.status(), Some(403..=405)) => Some(
            "the registry may not allow listing its repositories: name the repositories to index, HOST/REPOSITORY"
                .into(),
        ),
        BackfillError::Job(JobError::Index(error)) => index_hint(error),
        BackfillError::Job(JobError::Enabled { source, .. }) => convert_hint(source),
        _ => None,
    };
    own.or_else(|| cause_hint(error))
}
