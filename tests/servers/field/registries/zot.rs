//! zot.

use super::super::profile::{Location, PatchRange, Profile, Referrers, Trait};

pub const ZOT: Profile = Profile {
    name: "zot",
    traits: &[
        (Trait::UploadLocation(Location::Relative), "regclient/regclient#961"),
        (Trait::PatchRange(PatchRange::ThisChunk), "regclient/regclient#961"),
        (Trait::Referrers(Referrers::Filtered), "project-zot/zot#936"),
    ],
    refusals: &[],
};
