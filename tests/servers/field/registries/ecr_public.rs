//! Amazon ECR Public.

use super::super::profile::{Command, Login, Profile, Refusal, Trait};

pub const ECR_PUBLIC: Profile = Profile {
    name: "Amazon ECR Public",
    traits: &[
        (Trait::Login(Login::Token), "aws/containers-roadmap#2835"),
        (Trait::ExpiredPassword(400), "aws/containers-roadmap#2835"),
        (Trait::NamesMustExist(404), "aws-actions/amazon-ecr-login#202"),
    ],
    refusals: &[(
        &[Command::ConvertNew],
        Refusal { says: "does not exist in the registry", because: "it must be created first" },
    )],
};
