//! Pulp.

use super::super::profile::{Profile, Trait};

pub const PULP: Profile = Profile {
    name: "Pulp",
    traits: &[(Trait::PatchStatus(204), "pulp/pulp_container#2199")],
    refusals: &[],
};
