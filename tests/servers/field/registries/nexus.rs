//! Sonatype Nexus.

use super::super::profile::{Command, Login, Profile, Refusal, Trait};

pub const NEXUS: Profile = Profile {
    name: "Nexus",
    traits: &[
        (Trait::Login(Login::Basic), "datadrivers/terraform-provider-nexus#341"),
        (Trait::LinksElsewhere, "sonatype/nexus-public#1011"),
    ],
    refusals: &[],
};

/// With the deployment policy "Disable redeploy".
pub const NEXUS_ONCE: Profile = Profile {
    name: "Nexus, redeploy disabled",
    traits: &[
        (Trait::Login(Login::Basic), "datadrivers/terraform-provider-nexus#341"),
        (Trait::ManifestsStay(400), "GoogleContainerTools/jib#3057, GoogleContainerTools/jib#2395"),
    ],
    refusals: &[(
        &[Command::IndexFine, Command::ConvertInPlace, Command::RmObsolete, Command::Rm],
        Refusal {
            says: "Repository does not allow updating assets",
            because: "a manifest can be pushed once",
        },
    )],
};
