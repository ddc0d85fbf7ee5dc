//! Gitea and Forgejo.

use super::super::profile::{Command, Location, Login, Profile, Refusal, Trait};

pub const GITEA: Profile = Profile {
    name: "Gitea, Forgejo",
    traits: &[
        (Trait::Login(Login::Token), "go-gitea/gitea#25846"),
        (Trait::OwnersMustExist(404), "go-gitea/gitea#19704, blue-build/cli#838"),
        (
            Trait::UploadLocation(Location::Relative),
            "go-gitea/gitea:routers/api/packages/container/container.go",
        ),
        (Trait::PatchNeedsRange(400), "dotnet/sdk-container-builds#471"),
        (Trait::NoRanges, "go-gitea/gitea:routers/api/packages/container/container.go"),
    ],
    refusals: &[(
        &[Command::ConvertNew],
        Refusal { says: "404 Not Found", because: "the owner must exist" },
    )],
};
