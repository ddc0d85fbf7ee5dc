//! What is known of a registry: its traits, each with the public report that describes it, and what
//! each command comes to because of them.

/// A registry as public reports describe it.
#[derive(Debug)]
pub struct Profile {
    pub name: &'static str,
    /// Each with its source: an issue or pull request on GitHub (`OWNER/NAME#NUMBER`), or a file
    /// (`OWNER/NAME:PATH`).
    pub traits: &'static [(Trait, &'static str)],
    /// The commands that cannot succeed there.
    pub refusals: &'static [(&'static [Command], Refusal)],
}

/// What a command comes to instead of success. Each registry says why in words that the error must
/// repeat.
#[derive(Debug)]
pub struct Refusal {
    /// Part of the error.
    pub says: &'static str,
    /// For the table of docs/registries.md.
    pub because: &'static str,
}

/// What a registry does otherwise than distribution 2.8, which has no referrers API, takes chunks,
/// deletes manifests, and lets everyone do everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trait {
    Login(Login),
    /// Everyone may pull with a token that takes no login.
    AnonymousPull,
    /// The status for HEAD of a manifest or blob.
    HeadRefused(u16),
    /// The status for a password that was right once.
    ExpiredPassword(u16),
    /// A token that has expired gets 401 without a challenge.
    NoChallengeAfterExpiry,
    /// How long its tokens are valid, in seconds.
    TokensExpire(u64),
    /// Deleting takes a token for `delete`.
    DeleteHasItsScope,
    /// No token for pushing to a repository that is not there: the status, and the words.
    NoNewRepositories(u16, &'static str),
    /// Each repository must be created before something is pushed to it. The status otherwise.
    NamesMustExist(u16),
    /// So must each owner, the first component of a name.
    OwnersMustExist(u16),
    /// Each so many requests, one is answered by 429.
    RateLimit(usize),
    /// Status for everything that changes something.
    ReadOnly(u16, &'static str),
    /// A POST without Content-Length is refused with this status.
    PostNeedsLength(u16),
    UploadLocation(Location),
    /// A PATCH is accepted once in an upload. The next gets this status, and so does GET.
    OnePatch(u16),
    PatchStatus(u16),
    PatchRange(PatchRange),
    /// A PATCH with Content-Range and more than so many bytes gets 416.
    LargestChunk(usize),
    /// A body of more than so many bytes gets 413; the limits of chunks are announced. The tests
    /// divide it by [`SCALE`], so that a layer of 17 MiB is too large.
    LargestBody(usize),
    /// A PUT with the content of a blob gets this status: it must have been sent by PATCH.
    PutTakesNoContent(u16),
    /// After the first PATCH, one without Content-Range gets this status.
    PatchNeedsRange(u16),
    /// The Content-Range of a PATCH must not have a unit.
    NoRangeUnit,
    /// The status for DELETE of an upload.
    CancelRefused(u16),
    /// Blobs are mounted from another repository only if a manifest there lists them.
    MountsWhatManifestsList,
    /// Mounting a blob takes a token that allows reading the other repository, too.
    MountReadsTheOther,
    /// Blobs are answered by a redirect to another host, whose URLs expire, and which refuses
    /// requests with `Authorization`.
    SignedUrls,
    /// So are manifests, by URLs for GET alone.
    SignedManifests,
    /// HEAD of a blob gets 404.
    NoHeadOfBlobs,
    /// `Range` of a GET is ignored.
    NoRanges,
    /// The status for a GET of a blob with `Range`.
    RangesRefused(u16),
    Referrers(Referrers),
    /// The tag `sha256-HEX` is taken for the digest `sha256:HEX`.
    ShaTagIsDigest,
    /// The status for a tag that is not there.
    MissingTag(u16),
    /// The first so many PUTs of a manifest get 400, because its blobs are not known yet.
    KnowsBlobsLate(usize),
    /// A PUT of a manifest is answered without Location and Docker-Content-Digest.
    NoLocationOfManifests,
    /// The config of a manifest must have a media type of images. The status otherwise.
    OnlyImages(u16),
    /// The subject of a manifest must be there. The status otherwise.
    SubjectFirst(u16),
    /// A tag cannot be moved: status, code, and words.
    TagsStay(u16, &'static str, &'static str),
    /// A manifest that is there cannot be put again, not even for another tag.
    ManifestsStay(u16),
    /// The status for DELETE of a manifest.
    DeleteRefused(u16),
    /// The status for DELETE of a manifest that a tag points at.
    TaggedStays(u16),
    /// DELETE takes digests. A tag gets 404.
    DeleteByDigest,
    /// `Link` as `rel=next` without quotation marks.
    PlainLinks,
    /// `Link` has a path that the registry does not have under its own name.
    LinksElsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Login {
    Basic,
    Token,
    /// config.json has an identity token, which the token service takes in a POST.
    Identity,
}

/// Where an upload goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Location {
    /// Without a host.
    Relative,
    /// With a query that must be kept.
    WithState,
    /// At a path outside of the repository, and after a PATCH at another one.
    OtherPath,
    /// At another host, which refuses requests with `Authorization`.
    OtherHost,
}

/// What the `Range` of a PATCH says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchRange {
    /// It stays at the end of the first chunk.
    FirstChunk,
    /// It counts from the start of the chunk.
    ThisChunk,
    /// With a unit after POST (`bytes=0--1`) and after GET, one too many there, and none after
    /// PATCH.
    Quay,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Referrers {
    Api,
    /// In pages of this many, filtered on demand.
    Pages(usize),
    /// Filtered on demand.
    Filtered,
    /// Without `artifactType`, if the manifest has it as the media type of its config.
    WithoutTypes,
    /// Filtered on demand, each with the media type of its config as its type, and with the size of
    /// its manifest and blobs together.
    OfConfigs,
    /// No API: the status.
    Missing(u16),
    /// No API, status 404, but manifests are answered with `OCI-Subject`.
    Claimed,
}

/// By how much limits are smaller than in reality.
pub const SCALE: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    Ls,
    Cat,
    Mount,
    Verify,
    List,
    Index,
    IndexV2,
    IndexFine,
    ConvertWithin,
    ConvertInPlace,
    ConvertAcross,
    /// Into a repository that is not there, of an owner who is not either.
    ConvertNew,
    HookServe,
    HookWorker,
    /// In Amazon ECR only.
    HookLambda,
    Backfill,
    RmObsolete,
    Rm,
}

impl Command {
    /// In the order of the table.
    pub const ALL: [Command; 18] = [
        Command::Ls,
        Command::Cat,
        Command::Mount,
        Command::Verify,
        Command::List,
        Command::Index,
        Command::IndexV2,
        Command::IndexFine,
        Command::ConvertWithin,
        Command::ConvertInPlace,
        Command::ConvertAcross,
        Command::ConvertNew,
        Command::HookServe,
        Command::HookWorker,
        Command::HookLambda,
        Command::Backfill,
        Command::RmObsolete,
        Command::Rm,
    ];
    /// All that change something in the repository of the image: all but the first five.
    pub const CHANGES: &[Command] = Command::ALL.split_at(5).1;
    /// All that delete something.
    pub const DELETES: &[Command] = Command::ALL.split_at(16).1;
}

impl Profile {
    /// The first value that `of` finds in a trait.
    pub fn find<T>(&self, of: impl Fn(Trait) -> Option<T>) -> Option<T> {
        self.traits.iter().find_map(|(one, _)| of(*one))
    }

    pub fn has(&self, wanted: Trait) -> bool {
        self.traits.iter().any(|(one, _)| *one == wanted)
    }

    pub fn refusal(&self, command: Command) -> Option<&Refusal> {
        self.refusals
            .iter()
            .find(|(refused, _)| refused.contains(&command))
            .map(|(_, refusal)| refusal)
    }

    pub fn has_referrers(&self) -> bool {
        self.find(|one| match one {
            Trait::Referrers(how) => {
                Some(!matches!(how, Referrers::Missing(_) | Referrers::Claimed))
            }
            _ => None,
        })
        .unwrap_or(false)
    }
}
