//! The existing SOCI indexes of an image, as sources of ztocs and prefetch lists.

use super::load::ImageDocuments;
use super::plan::found;
use crate::index::{OldList, Origin, ZtocOffer, old_lists};
use ociseek_format::image::enabled::{IndexTarget, soci_indexes};
use ociseek_format::image::soci::{self, FoundIndex, ZtocRef};
use ociseek_format::image::{Descriptor, Platform};
use ociseek_store::{Source, StoreError};

/// A SOCI index (version 2) in an image index.
pub(super) struct OldIndex {
    store: Source,
    platform: Option<Platform>,
    tool: Option<String>,
    ztocs: Vec<ZtocRef>,
    pub lists: Vec<OldList>,
}

impl OldIndex {
    fn of(store: &Source, listed: &Descriptor, index: FoundIndex) -> OldIndex {
        let lists = old_lists(store, &index.ztocs, &index.others);
        let (platform, tool) = (listed.platform.clone(), index.build_tool_identifier);
        OldIndex { store: store.clone(), platform, tool, ztocs: index.ztocs, lists }
    }

    pub(super) fn is_for(&self, target: &IndexTarget) -> bool {
        self.platform.as_ref().is_some_and(|platform| platform.matches(&target.platform))
    }

    pub(super) fn offer(self) -> ZtocOffer {
        let OldIndex { store, tool, ztocs, .. } = self;
        ZtocOffer { store, tool, ztocs, origin: Origin::Destination }
    }
}

/// The SOCI indexes among the entries of an image index.
///
/// # Errors
/// As [`found`].
pub(super) async fn old_indexes(store: &Source, manifests: &[Descriptor]) -> Result<Vec<OldIndex>, StoreError> {
    let found = found(store, manifests).await?.into_iter();
    Ok(found.map(|(listed, index)| OldIndex::of(store, listed, index)).collect())
}

impl ImageDocuments {
    /// The SOCI indexes of the original image.
    pub(super) fn old_indexes(&self, store: &Source) -> Vec<OldIndex> {
        let listed = soci_indexes(&self.original.index.manifests);
        let index = |listed: &Descriptor| soci::parse(self.unchanged.get(&listed.digest)?).ok();
        listed.filter_map(|listed| Some(OldIndex::of(store, listed, index(listed)?))).collect()
    }
}
