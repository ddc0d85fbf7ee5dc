//! What docs/registries.md says of the registries is what the profiles say, and the tests of them
//! prove.

use std::fmt::Write as _;

use super::profile::{Command, Location, Login, PatchRange, Profile, Referrers, Trait};

/// The columns: each has commands that succeed or fail together in the table's words.
const COLUMNS: [(&str, &[Command]); 8] = [
    (
        "`ls`, `cat`, `mount`, `verify`, `list`",
        &[Command::Ls, Command::Cat, Command::Mount, Command::Verify, Command::List],
    ),
    (
        "`index`, `backfill`, hooks",
        &[
            Command::Index,
            Command::Backfill,
            Command::HookServe,
            Command::HookWorker,
            Command::HookLambda,
        ],
    ),
    ("`index --kind v1,v2=TAG`", &[Command::IndexV2]),
    ("`index --kind v1,fine`", &[Command::IndexFine]),
    ("`convert`", &[Command::ConvertWithin, Command::ConvertAcross]),
    ("`convert` in place", &[Command::ConvertInPlace]),
    ("`convert` into a new repository", &[Command::ConvertNew]),
    ("`rm`", &[Command::Rm, Command::RmObsolete]),
];

fn cell(profile: &Profile, commands: &[Command]) -> String {
    let refused: Vec<_> = commands.iter().filter_map(|command| profile.refusal(*command)).collect();
    match refused.first() {
        None => "yes".to_owned(),
        Some(refusal)
            if refused.len() == commands.len() || commands.contains(&Command::HookLambda) =>
        {
            format!("no: {}", refusal.because)
        }
        Some(refusal) => format!("in part: {}", refusal.because),
    }
}

/// The table of commands.
fn table(profiles: &[&Profile]) -> String {
    let mut table = String::from("| registry |");
    for (name, _) in COLUMNS {
        let _ = write!(table, " {name} |");
    }
    table += "\n|---|";
    table += &"---|".repeat(COLUMNS.len());
    for profile in profiles {
        let _ = write!(table, "\n| {} |", profile.name);
        for (_, commands) in COLUMNS {
            let _ = write!(table, " {} |", cell(profile, commands));
        }
    }
    table + "\n"
}

/// The list of traits.
fn traits(profiles: &[&Profile]) -> String {
    let mut list = String::new();
    for profile in profiles {
        let _ = writeln!(list, "\n### {}\n", profile.name);
        for (one, source) in profile.traits {
            let _ = writeln!(list, "- {} ({source})", says(*one));
        }
    }
    list
}

fn says(one: Trait) -> String {
    match one {
        Trait::Login(Login::Basic) => "A request carries a user and a password.".into(),
        Trait::Login(Login::Token) => "A request carries a token.".into(),
        Trait::Login(Login::Identity) => "A request carries a token, for which a login has an identity token.".into(),
        Trait::AnonymousPull => "A token for pulling takes no login.".into(),
        Trait::HeadRefused(status) => format!("HEAD gets status {status}."),
        Trait::ExpiredPassword(status) => format!("A password that has expired gets status {status}."),
        Trait::NoChallengeAfterExpiry => "A token that has expired gets status 401 without a challenge.".into(),
        Trait::TokensExpire(_) => "Tokens expire during a long upload.".into(),
        Trait::DeleteHasItsScope => "Deleting takes a token for `delete`.".into(),
        Trait::NoNewRepositories(status, says) => {
            format!("A new repository gets no token, but status {status}: \"{says}\".")
        }
        Trait::NamesMustExist(status) => {
            format!("A repository must be created before a push. Otherwise status {status}.")
        }
        Trait::OwnersMustExist(status) => format!("The owner must exist. Otherwise status {status}."),
        Trait::RateLimit(_) => "Too many requests get status 429, with `Retry-After` and plain text.".into(),
        Trait::ReadOnly(status, says) => format!("Every change gets status {status}: \"{says}\""),
        Trait::PostNeedsLength(status) => {
            format!("A POST without `Content-Length` gets status {status} from its front end.")
        }
        Trait::UploadLocation(Location::Relative) => "`Location` of an upload has no host.".into(),
        Trait::UploadLocation(Location::WithState) => "`Location` of an upload has a query to be kept.".into(),
        Trait::UploadLocation(Location::OtherPath) => {
            "`Location` of an upload is outside of `/v2/`, and changes with the first PATCH.".into()
        }
        Trait::UploadLocation(Location::OtherHost) => {
            "`Location` of an upload is at another host, which refuses `Authorization`.".into()
        }
        Trait::OnePatch(status) => {
            format!("An upload takes one PATCH. The next gets status {status}, and so does GET.")
        }
        Trait::PatchStatus(status) => format!("A PATCH is answered by {status}."),
        Trait::PatchRange(PatchRange::FirstChunk) => "`Range` stays at the end of the first chunk.".into(),
        Trait::PatchRange(PatchRange::ThisChunk) => "`Range` counts from the start of the chunk.".into(),
        Trait::PatchRange(PatchRange::Quay) => {
            "`Range` is `bytes=0--1` after a POST, and one byte too long after a GET.".into()
        }
        Trait::LargestChunk(size) => format!("A chunk of more than {} MiB gets status 416.", size >> 20),
        Trait::LargestBody(size) => {
            format!("A body of more than {} MB gets status 413. A POST tells the limits of chunks.", size / 1_000_000)
        }
        Trait::PutTakesNoContent(status) => format!("A PUT with content gets status {status}: a PATCH must bring it."),
        Trait::PatchNeedsRange(status) => format!("A second PATCH without `Content-Range` gets status {status}."),
        Trait::NoRangeUnit => "`Content-Range` of a PATCH must not have a unit.".into(),
        Trait::CancelRefused(status) => format!("Cancelling an upload gets status {status}."),
        Trait::MountsWhatManifestsList => "A blob is mounted only if a manifest of its repository lists it.".into(),
        Trait::MountReadsTheOther => {
            "Mounting a blob takes a token for reading the repository that has it, too.".into()
        }
        Trait::SignedUrls => "Blobs are redirected to URLs that expire, at a host that refuses `Authorization`.".into(),
        Trait::RangesRefused(status) => format!("A GET of a blob with `Range` gets status {status}."),
        Trait::NoRanges => "`Range` of a GET is ignored.".into(),
        Trait::Referrers(Referrers::Api) => "It has the referrers API.".into(),
        Trait::Referrers(Referrers::Pages(_)) => "The referrers API filters, and answers in pages.".into(),
        Trait::Referrers(Referrers::Filtered) => "It has the referrers API, which filters.".into(),
        Trait::Referrers(Referrers::WithoutTypes) => {
            "The referrers API does not show a type that only the config states.".into()
        }
        Trait::Referrers(Referrers::OfConfigs) => {
            "The referrers API filters, states types of configs alone, and sizes with those of blobs.".into()
        }
        Trait::Referrers(Referrers::Missing(status)) => {
            format!("It has no referrers API: status {status}.")
        }
        Trait::ShaTagIsDigest => "The tag `sha256-HEX` is taken for the digest `sha256:HEX`.".into(),
        Trait::Referrers(Referrers::Claimed) => "It has no referrers API, but answers `OCI-Subject`.".into(),
        Trait::MissingTag(status) => format!("A tag that does not exist gets status {status}."),
        Trait::KnowsBlobsLate(_) => "Blobs are unknown for a while to the place that takes the manifest.".into(),
        Trait::NoLocationOfManifests => "A PUT of a manifest is answered without `Location`.".into(),
        Trait::OnlyImages(status) => format!("A manifest whose config is not that of an image gets status {status}."),
        Trait::SubjectFirst(status) => format!("A manifest whose subject does not exist gets status {status}."),
        Trait::TagsStay(status, code, _) => format!("Moving a tag gets status {status}, {code}."),
        Trait::ManifestsStay(status) => {
            format!("Pushing a manifest that exists, or moving a tag, gets status {status}.")
        }
        Trait::DeleteRefused(status) => format!("Deleting a manifest gets status {status}."),
        Trait::TaggedStays(status) => format!("Deleting a manifest that has a tag gets status {status}."),
        Trait::DeleteByDigest => "Only digests can be deleted, not tags.".into(),
        Trait::SignedManifests => {
            "Manifests are answered by a redirect to signed URLs of another host, for GET alone.".into()
        }
        Trait::NoHeadOfBlobs => "HEAD of a blob gets status 404 until it was read.".into(),
        Trait::LinksElsewhere => "`Link` has a path that only the registry's other port has.".into(),
        Trait::PlainLinks => "`Link` has `rel=next` without quotation marks.".into(),
    }
}

#[test]
fn the_documentation_says_what_the_profiles_say() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/registries.md"))
        .unwrap();
    let mut all = super::ALL.to_vec();
    all.sort_by_key(|profile| profile.name.to_lowercase());
    // Lines may be wrapped.
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let page = words(&docs);
    for part in [table(&all), traits(&all)] {
        assert!(page.contains(&words(&part)), "docs/registries.md should have:\n{part}");
    }
}

#[test]
fn each_trait_has_a_source() {
    for profile in super::ALL {
        assert!(!profile.traits.is_empty(), "{}", profile.name);
        for (one, source) in profile.traits {
            let named = source
                .split(", ")
                .all(|one| one.contains('#') || one.contains(':') || one.contains('('));
            assert!(named, "{}: {one:?}: {source}", profile.name);
        }
    }
}
