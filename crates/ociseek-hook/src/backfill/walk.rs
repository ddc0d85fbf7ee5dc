//! Lists the images of places, page by page. A page is only requested after the images of the
//! previous one were taken.

use std::collections::VecDeque;

use futures_util::stream::{self, Stream};

use super::{BackfillError, ImageLocks, Options, WalkRoot};
use crate::job::Job;
use crate::skip::SkipReason;
use ociseek_format::image::Reference;
use ociseek_ops::versions::Versions;
use ociseek_store::registry::{Names, RegistryError};

pub(super) enum WalkItem {
    Image {
        image: Reference,
        locks: ImageLocks,
    },
    /// A list failed.
    Failed {
        name: String,
        error: BackfillError,
    },
}

/// The state of the walk.
struct Walk<'a> {
    options: &'a Options,
    places: VecDeque<WalkRoot>,
    /// The current list of repositories, and its registry.
    catalog: Option<(String, Names)>,
    /// The repositories of its last page.
    repositories: VecDeque<(String, String)>,
    /// The current list of tags, and its repository.
    tags: Option<Tags>,
    found: VecDeque<WalkItem>,
}

struct Tags {
    registry: String,
    repository: String,
    names: Names,
    locks: ImageLocks,
}

impl Tags {
    /// The image of a tag. None for tags of lists of referrers.
    fn image(&self, tag: String, versions: &Versions) -> Option<WalkItem> {
        let registry = self.registry.clone();
        let repository = self.repository.clone();
        let job = Job { image: Reference { registry, repository, tag: Some(tag), digest: None } };
        match job.skipped_by_name(versions) {
            Some(SkipReason::ReferrersTag(_)) => None,
            _ => Some(WalkItem::Image { image: job.image, locks: self.locks.clone() }),
        }
    }
}

/// All images of `places`. An image that a registry lists twice is returned twice.
pub(super) fn walk<'a>(
    places: &[WalkRoot],
    options: &'a Options,
) -> impl Stream<Item = WalkItem> + 'a {
    let walk = Walk {
        options,
        places: places.iter().cloned().collect(),
        catalog: None,
        repositories: VecDeque::new(),
        tags: None,
        found: VecDeque::new(),
    };
    stream::unfold(walk, |mut walk| async move {
        loop {
            if let Some(item) = walk.found.pop_front() {
                return Some((item, walk));
            }
            if !walk.step().await {
                return None;
            }
        }
    })
}

impl Walk<'_> {
    /// Reads a further page. Returns false at the end.
    async fn step(&mut self) -> bool {
        if let Some(mut tags) = self.tags.take() {
            let name = format!("{}/{}", tags.registry, tags.repository);
            match tags.names.next_page().await {
                Ok(Some(page)) => {
                    self.refused(page.refused, name);
                    let versions = &self.options.context.versions;
                    self.found
                        .extend(page.names.into_iter().filter_map(|tag| tags.image(tag, versions)));
                    self.tags = Some(tags);
                }
                Ok(None) => {}
                // The repository is listed, but all its images were deleted.
                Err(error) if error.is_not_found() && self.catalog.is_some() => {}
                Err(error) => self.failed(name, BackfillError::Tags(error)),
            }
        } else if let Some((registry, repository)) = self.repositories.pop_front() {
            match self.list_tags(&registry, &repository).await {
                Ok(names) => {
                    self.tags =
                        Some(Tags { registry, repository, names, locks: ImageLocks::default() })
                }
                Err(error) => {
                    self.failed(format!("{registry}/{repository}"), BackfillError::Tags(error))
                }
            }
        } else if let Some((registry, mut names)) = self.catalog.take() {
            match names.next_page().await {
                Ok(Some(page)) => {
                    self.refused(page.refused, registry.clone());
                    let wanted = page.names.into_iter().filter(|name| self.wants(name));
                    self.repositories = wanted.map(|name| (registry.clone(), name)).collect();
                    self.catalog = Some((registry, names));
                }
                Ok(None) => {}
                Err(error) => self.failed(registry, BackfillError::Repositories(error)),
            }
        } else {
            match self.places.pop_front() {
                None => return false,
                Some(WalkRoot::Repository { registry, repository }) if self.wants(&repository) => {
                    self.repositories.push_back((registry, repository));
                }
                Some(WalkRoot::Repository { .. }) => {}
                Some(WalkRoot::Registry(registry)) => {
                    match self.options.context.client.repositories(&registry).await {
                        Ok(names) => self.catalog = Some((registry, names)),
                        Err(error) => self.failed(registry, BackfillError::Repositories(error)),
                    }
                }
            }
        }
        true
    }

    async fn list_tags(&self, registry: &str, repository: &str) -> Result<Names, RegistryError> {
        self.options.context.client.repository(registry, repository)?.tags(None).await
    }

    fn wants(&self, repository: &str) -> bool {
        let filters = &self.options.filters;
        filters.is_empty() || filters.iter().any(|glob| glob.matches(repository))
    }

    fn refused(&mut self, refused: usize, name: String) {
        if refused > 0 {
            self.failed(name, BackfillError::Names(refused));
        }
    }

    fn failed(&mut self, name: String, error: BackfillError) {
        self.found.push_back(WalkItem::Failed { name, error });
    }
}
