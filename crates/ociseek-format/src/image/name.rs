//! The names that users type: of images in every kind of storage, and templates for the tags of
//! SOCI-enabled images.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::reference::{Reference, ReferenceError, is_referrers_tag, is_tag, with_brackets};
use crate::digest::{Digest, DigestError};

/// An image, as typed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageName {
    /// `[REGISTRY/]REPOSITORY[:TAG][@DIGEST]`
    Registry(Reference),
    /// `oci:DIR[:TAG|@DIGEST]`
    Layout {
        /// The layout's directory.
        dir: PathBuf,
        /// Which of its images.
        select: ImageSelector,
    },
    /// `oci-archive:FILE[:TAG|@DIGEST]`
    Archive {
        /// A tar archive of a layout.
        file: PathBuf,
        /// Which of its images.
        select: ImageSelector,
    },
    /// `docker-archive:FILE[:TAG|:REPOSITORY:TAG|:@NUMBER]`
    Saved {
        /// The output of `docker save`.
        file: PathBuf,
        /// Which of its images.
        select: SavedImageSelector,
    },
}

impl ImageName {
    /// The digest in the name, if it has one. It binds all that the digest covers.
    pub fn digest(&self) -> Option<Digest> {
        match self {
            ImageName::Registry(reference) => reference.digest,
            ImageName::Layout { select: ImageSelector::Digest(digest), .. }
            | ImageName::Archive { select: ImageSelector::Digest(digest), .. } => Some(*digest),
            ImageName::Layout { .. } | ImageName::Archive { .. } | ImageName::Saved { .. } => None,
        }
    }
}

/// Which image of a layout or archive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ImageSelector {
    /// The only image.
    Any,
    /// The image with this tag, or with this name if a tool stored a full name as tag.
    Tag(String),
    /// The image with this digest.
    Digest(Digest),
}

/// Which image of a `docker save` archive.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SavedImageSelector {
    /// The only image.
    Any,
    /// The image with this tag, or with this name as docker prints it.
    Name(String),
    /// The image at this index in manifest.json, from 0.
    Number(usize),
}

/// Why a string does not name an image.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ImageNameError {
    #[error("{typed:?} has a variable that nothing replaced: use double quotes, or set it")]
    Variable { typed: String },
    #[error("{typed:?} begins with {first:?}: the name before it is empty. Is a variable not set?")]
    NoName { typed: String, first: char },
    #[error("{typed:?} ends with {last:?}: the {what} behind it is empty. Is a variable not set?")]
    NoEnd { typed: String, last: char, what: &'static str },
    #[error("{typed:?} ends with a {what}")]
    Blank { typed: String, what: &'static str },
    #[error("{typed:?} has a blank or a comma in it: each name is an argument of its own")]
    Inside { typed: String },
    #[error("{typed:?} begins with a typographic dash: options begin with - or --")]
    Dash { typed: String },
    #[error(
        "{typed:?} has the character {what:?} ({code}) in it, which no name has: type the name again"
    )]
    Character { typed: String, what: char, code: String },
    #[error("{typed:?} stands for a name: write that of an image, such as registry.example/app:v1")]
    Placeholder { typed: String },
    #[error(
        "a name has no login in it: use --creds USER:PASSWORD, or docker login, and write {meant}"
    )]
    Login { meant: String },
    #[error("{typed:?} is an address of an image, not its name: write {meant}")]
    Page { typed: String, meant: String },
    #[error(
        "{typed:?} is a template: {{tag}} works only in --kind v2=TAG of index, backfill and the hooks"
    )]
    Template { typed: String },
    #[error("{0:?} has no path: use {1}PATH")]
    NoPath(String, &'static str),
    #[error(
        "{typed:?}: unsupported prefix {scheme:?}: write REGISTRY/REPOSITORY:TAG, oci:DIR, oci-archive:FILE or \
         docker-archive:FILE"
    )]
    OtherScheme { typed: String, scheme: String },
    #[error("{typed:?}: unsupported prefix {scheme:?}: use {meant}")]
    Scheme { typed: String, scheme: String, meant: String },
    #[error(
        "{typed:?} is a path: write {}{}",
        with_prefix(typed),
        if typed.starts_with('/') { ". Or is the variable of a registry not set?" } else { "" }
    )]
    Path { typed: String },
    #[error(
        "{typed:?} names no image: write docker-archive:FILE, and :TAG, :REPOSITORY:TAG or :@NUMBER behind it if FILE \
         holds several; FILE has no colon"
    )]
    Saved { typed: String },
    #[error("{typed:?}: {error}")]
    Digest { typed: String, error: DigestError },
    #[error(transparent)]
    Reference(#[from] ReferenceError),
}

const LAYOUT: &str = "oci:";
const ARCHIVE: &str = "oci-archive:";
const SAVED: &str = "docker-archive:";

/// Prefixes of other tools and what to type instead. `{}` stands for the rest.
const FOREIGN: [(&str, &str); 17] = [
    ("docker://", "{}"),
    ("https://", "{}"),
    ("http://", "{} with --plain-http"),
    ("oci:///", "oci:/{}"),
    ("oci://", "oci:{} for an image layout, or {} for an image in a registry"),
    ("docker-daemon:", "docker-archive:FILE after docker save -o FILE {}"),
    ("containers-storage:", "oci:DIR after skopeo copy containers-storage:{} oci:DIR"),
    ("dir:", "oci:DIR, which skopeo copy dir:{} oci:DIR writes"),
    ("ostree:", "oci:DIR, which skopeo copy ostree:{} oci:DIR writes"),
    ("docker-image://", "{}"),
    ("registry:", "{}"),
    ("docker:", "{}, or docker-archive:FILE after docker save -o FILE {}"),
    ("podman:", "oci-archive:FILE after podman save --format oci-archive -o FILE {}"),
    ("oci-layout://", "oci:{}"),
    ("oci-layout:", "oci:{}"),
    ("ocidir://", "oci:{}"),
    ("file://", "oci:{} for an image layout, or oci-archive:{} for its tar"),
];

/// Those of them that are names of images or hosts, too: `docker:27`, `registry:5000/app`.
const ALSO_NAMES: [&str; 3] = ["registry:", "docker:", "podman:"];

/// Whether it is a name with a path, not a tag, or a port and a repository.
fn follows_a_scheme(rest: &str) -> bool {
    rest.split_once('/').is_some_and(|(first, _)| !first.bytes().all(|b| b.is_ascii_digit()))
}

impl FromStr for ImageName {
    type Err = ImageNameError;

    fn from_str(typed: &str) -> Result<ImageName, ImageNameError> {
        refuse_slips(typed)?;
        if let Some(meant) = of_page(typed) {
            return Err(ImageNameError::Page { typed: typed.chars().take(300).collect(), meant });
        }
        for (scheme, meant) in FOREIGN {
            if let Some(rest) = typed.strip_prefix(scheme)
                && (!ALSO_NAMES.contains(&scheme) || follows_a_scheme(rest))
            {
                let meant = meant.replace("{}", rest);
                return Err(ImageNameError::Scheme {
                    typed: typed.to_owned(),
                    scheme: scheme.to_owned(),
                    meant,
                });
            }
        }
        if let Some(rest) = typed.strip_prefix(LAYOUT) {
            let (dir, select) = split_path(rest)?;
            if dir.is_empty() {
                return Err(ImageNameError::NoPath(typed.to_owned(), LAYOUT));
            }
            return Ok(ImageName::Layout { dir: dir.into(), select });
        }
        if let Some(rest) = typed.strip_prefix(ARCHIVE) {
            let (file, select) = split_path(rest)?;
            if file.is_empty() {
                return Err(ImageNameError::NoPath(typed.to_owned(), ARCHIVE));
            }
            return Ok(ImageName::Archive { file: file.into(), select });
        }
        if let Some(rest) = typed.strip_prefix(SAVED) {
            // As in containers/image: names contain colons, so file names must not.
            let (file, select) = rest.split_once(':').unwrap_or((rest, ""));
            if file.is_empty() {
                return Err(ImageNameError::NoPath(typed.to_owned(), SAVED));
            }
            let select = select_saved(select)
                .ok_or_else(|| ImageNameError::Saved { typed: typed.to_owned() })?;
            return Ok(ImageName::Saved { file: file.into(), select });
        }
        if let Some((scheme, _)) = typed.split_once("://") {
            let scheme = format!("{}://", scheme.chars().take(60).collect::<String>());
            let typed = typed.chars().take(300).collect();
            return Err(ImageNameError::OtherScheme { typed, scheme });
        }
        if typed.starts_with(['/', '.', '~'])
            || typed.ends_with(".tar") && typed.parse::<Reference>().is_err()
        {
            return Err(ImageNameError::Path { typed: typed.to_owned() });
        }
        Ok(ImageName::Registry(typed.parse()?))
    }
}

/// What was typed by mistake, in a script or from a page.
fn refuse_slips(typed: &str) -> Result<(), ImageNameError> {
    let shown = || typed.chars().take(300).collect::<String>();
    let is_path = [LAYOUT, ARCHIVE, SAVED].iter().any(|prefix| typed.starts_with(prefix))
        || typed.starts_with(['/', '.', '~']);
    match typed.chars().next() {
        Some('\u{2013}' | '\u{2014}') => return Err(ImageNameError::Dash { typed: shown() }),
        Some(first @ (':' | '@')) if with_brackets(typed).is_none() => {
            return Err(ImageNameError::NoName { typed: shown(), first });
        }
        _ => {}
    }
    match typed.chars().next_back() {
        Some('\r' | '\n') => Err(ImageNameError::Blank { typed: shown(), what: "line end" }),
        Some(' ' | '\t') if !is_path => {
            Err(ImageNameError::Blank { typed: shown(), what: "blank" })
        }
        _ if is_path => Ok(()),
        _ if typed.contains('$') => Err(ImageNameError::Variable { typed: shown() }),
        _ if typed.contains("{tag}") || typed.contains("{digest}") => {
            Err(ImageNameError::Template { typed: shown() })
        }
        _ if is_placeholder(typed) => Err(ImageNameError::Placeholder { typed: shown() }),
        // A URL keeps its own message.
        _ if typed.contains("://") => Ok(()),
        Some(last @ ('@' | ':')) => {
            let what = if last == '@' { "digest" } else { "tag" };
            Err(ImageNameError::NoEnd { typed: shown(), last, what })
        }
        _ if typed.contains([' ', '\t', ',', '\n']) => {
            Err(ImageNameError::Inside { typed: shown() })
        }
        _ => match typed.chars().find(|c| !c.is_ascii() || "\\'\"".contains(*c)) {
            Some(what) => Err(ImageNameError::Character {
                typed: shown(),
                what,
                code: format!("U+{:04X}", u32::from(what)),
            }),
            None => without_login(typed),
        },
    }
}

/// The names of the images that may be at this path.
fn with_prefix(path: &str) -> String {
    match [".tar", ".tar.gz", ".tgz"].iter().any(|ending| path.ends_with(ending)) {
        true => format!("oci-archive:{path}, or docker-archive:{path} for what docker save wrote"),
        false => format!("oci:{path} for an image layout"),
    }
}

/// Whether it is how pages and scripts show where a name goes.
fn is_placeholder(typed: &str) -> bool {
    let bare = typed.trim_matches(['<', '>', '{', '}', '%', '[', ']']);
    bare != typed && !bare.contains(['/', ':'])
        || ["IMAGE", "REPOSITORY", "REPOSITORY:TAG", "SRC", "DST", "NAME"].contains(&typed)
}

/// Refuses `USER:PASSWORD@HOST/REPOSITORY`.
fn without_login(typed: &str) -> Result<(), ImageNameError> {
    match typed.split_once('@') {
        Some((before, name)) if !before.contains('/') && name.contains('/') => {
            Err(ImageNameError::Login { meant: name.chars().take(300).collect() })
        }
        _ => Ok(()),
    }
}

/// The name of the image that a page of Docker Hub, a URL of a registry's API, or an ARN is about.
fn of_page(typed: &str) -> Option<String> {
    let place = typed
        .strip_prefix("https://")
        .or_else(|| typed.strip_prefix("http://"))
        .unwrap_or(typed)
        .trim_end_matches('/');
    if let Some(arn) = typed.strip_prefix("arn:aws") {
        // arn:aws:ecr:REGION:ACCOUNT:repository/NAME; in China, arn:aws-cn.
        let (partition, rest) = arn.split_once(":ecr:")?;
        let (region, rest) = rest.split_once(':')?;
        let (account, name) = rest.split_once(":repository/")?;
        let domain = if partition == "-cn" { "amazonaws.com.cn" } else { "amazonaws.com" };
        return Some(format!("{account}.dkr.ecr.{region}.{domain}/{name}"));
    }
    if let Some(page) = place.strip_prefix("hub.docker.com/") {
        let name = page.strip_prefix("_/").or_else(|| page.strip_prefix("r/"))?;
        let parts = if page.starts_with("_/") { 1 } else { 2 };
        let parts: Vec<&str> = name.split('/').take(parts).collect();
        return Some(parts.join("/"));
    }
    if let Some(page) = place.strip_prefix("gallery.ecr.aws/") {
        return Some(format!("public.ecr.aws/{page}"));
    }
    if let Some(page) = place.strip_prefix("github.com/") {
        // github.com/OWNER/REPOSITORY/pkgs/container/NAME, or
        // github.com/orgs/OWNER/packages/container/package/NAME
        let (owner, name) = page.split_once("/packages/container/package/").or_else(|| {
            let (repository, name) = page.split_once("/pkgs/container/")?;
            Some((repository.split('/').next()?, name))
        })?;
        let owner = owner.trim_start_matches("orgs/").trim_start_matches("users/");
        let name = name.split(['?', '/']).next()?;
        return Some(format!("ghcr.io/{owner}/{name}").to_ascii_lowercase());
    }
    // A repository of Quay may begin with "repository/", but its pages have a scheme.
    if let Some(page) = place.strip_prefix("quay.io/repository/")
        && place != typed
    {
        return Some(format!("quay.io/{}", page.split('?').next()?));
    }
    let (host, api) = place.split_once("/v2/")?;
    let (repository, target) = api.split_once("/manifests/")?;
    let joint = if target.contains(':') { '@' } else { ':' };
    Some(format!("{host}/{repository}{joint}{target}"))
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, path, select) = match self {
            ImageName::Registry(reference) => return reference.fmt(f),
            ImageName::Layout { dir, select } => (LAYOUT, dir, select),
            ImageName::Archive { file, select } => (ARCHIVE, file, select),
            ImageName::Saved { file, select } => {
                write!(f, "{SAVED}{}", file.display())?;
                return match select {
                    SavedImageSelector::Any => Ok(()),
                    SavedImageSelector::Name(name) => write!(f, ":{name}"),
                    SavedImageSelector::Number(number) => write!(f, ":@{number}"),
                };
            }
        };
        write!(f, "{scheme}{}", path.display())?;
        match select {
            // Without the colon, the last part of the path would be read as a tag.
            ImageSelector::Any
                if !matches!(split_path(&path.to_string_lossy()), Ok((_, ImageSelector::Any))) =>
            {
                f.write_str(":")
            }
            ImageSelector::Any => Ok(()),
            ImageSelector::Tag(tag) => write!(f, ":{tag}"),
            ImageSelector::Digest(digest) => write!(f, "@{digest}"),
        }
    }
}

/// Parses the text after the colon that follows the file name.
fn select_saved(s: &str) -> Option<SavedImageSelector> {
    if s.is_empty() {
        return Some(SavedImageSelector::Any);
    }
    if let Some(number) = s.strip_prefix('@') {
        // `parse` would also accept a `+`.
        let number = Some(number).filter(|number| number.bytes().all(|b| b.is_ascii_digit()))?;
        return number.parse().ok().map(SavedImageSelector::Number);
    }
    let is_name =
        |s: &str| s.parse::<Reference>().is_ok_and(|reference| reference.digest.is_none());
    (is_tag(s) || is_name(s)).then(|| SavedImageSelector::Name(s.to_owned()))
}

/// Splits `PATH[:TAG|@DIGEST]`. A path may contain `:` and `@`, so only the text after the last one
/// is examined, and it must be a complete digest or tag. If the path itself ends like a tag, add a
/// colon: `oci:/images/a:b:`.
fn split_path(s: &str) -> Result<(&str, ImageSelector), ImageNameError> {
    if let Some((path, digest)) = s.rsplit_once('@') {
        match digest.parse() {
            Ok(digest) => return Ok((path, ImageSelector::Digest(digest))),
            // Otherwise a digest that was cut would be a tag of a path with an `@`.
            Err(error)
                if digest.starts_with("sha256:")
                    && !digest.ends_with(':')
                    && !digest.contains('/') =>
            {
                return Err(ImageNameError::Digest { typed: s.to_owned(), error });
            }
            Err(_) => {}
        }
    }
    Ok(match s.rsplit_once(':') {
        Some((path, "")) => (path, ImageSelector::Any),
        Some((path, tag)) if is_tag(tag) => (path, ImageSelector::Tag(tag.to_owned())),
        _ => (s, ImageSelector::Any),
    })
}

const TAG: &str = "{tag}";
const DIGEST: &str = "{digest}";

/// A tag with `{tag}` and `{digest}` in it, such as `{tag}-soci`: the tag of an image, and the
/// first 12 hex digits of its digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagTemplate(String);

/// Why a template gives no valid tag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum TagError {
    #[error(
        "{0:?} does not make a valid tag: expected a tag with {{tag}} or {{digest}} in it, such as {{tag}}-soci"
    )]
    Template(String),
    #[error(
        "{0:?} is not a tag: write the tag alone, without the repository, such as {{tag}}-soci"
    )]
    Name(String),
    #[error("{{tag}} in {0} has no value: the image is named by its digest only")]
    NoTag(TagTemplate),
    #[error("{tag:?}, which the template makes, is not a valid tag")]
    Invalid { tag: String },
    #[error("{0} is the image's own tag, which is never overwritten")]
    Own(String),
}

impl TagTemplate {
    /// The tag for an image. `tag` is the tag in the image's name, if any.
    ///
    /// # Errors
    /// If the template needs a tag that is missing, or if the result is not a tag.
    pub fn fill(&self, tag: Option<&str>, digest: &Digest) -> Result<String, TagError> {
        if self.needs_tag() && tag.is_none() {
            return Err(TagError::NoTag(self.clone()));
        }
        let made = self.with(tag.unwrap_or_default(), &digest.short());
        if is_tag(&made) && !is_referrers_tag(&made) {
            Ok(made)
        } else {
            Err(TagError::Invalid { tag: made })
        }
    }

    /// Whether the template needs the image's tag, so it cannot be used for images that are only
    /// named by digest.
    pub fn needs_tag(&self) -> bool {
        self.0.contains(TAG)
    }

    /// Whether different images get different tags, none of which is their own.
    pub fn tells_apart(&self) -> bool {
        self.0 != TAG && (self.needs_tag() || self.0.contains(DIGEST))
    }

    /// Whether it gives each image its own tag.
    pub fn is_own(&self) -> bool {
        self.0 == TAG
    }

    fn with(&self, tag: &str, digest: &str) -> String {
        // Tags and digests have no braces, so nothing is replaced twice.
        self.0.replace(TAG, tag).replace(DIGEST, digest)
    }
}

impl FromStr for TagTemplate {
    type Err = TagError;

    fn from_str(text: &str) -> Result<TagTemplate, TagError> {
        let template = TagTemplate(text.to_owned());
        if is_tag(&template.with("t", "0123456789ab")) {
            Ok(template)
        } else if text.contains(['/', ':']) {
            Err(TagError::Name(text.to_owned()))
        } else {
            Err(TagError::Template(text.to_owned()))
        }
    }
}

impl fmt::Display for TagTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dir: &str, select: ImageSelector) -> ImageName {
        ImageName::Layout { dir: dir.into(), select }
    }

    fn saved(file: &str, select: SavedImageSelector) -> ImageName {
        ImageName::Saved { file: file.into(), select }
    }

    #[test]
    fn names_parse_and_print() {
        let digest = Digest::sha256(b"{}");
        let tag = |t: &str| ImageSelector::Tag(t.to_owned());
        for (typed, want) in [
            ("oci:dir".to_owned(), layout("dir", ImageSelector::Any)),
            ("oci:/a/b:v1".to_owned(), layout("/a/b", tag("v1"))),
            ("oci:/a:b/c".to_owned(), layout("/a:b/c", ImageSelector::Any)),
            ("oci:/a:b/c:1.0".to_owned(), layout("/a:b/c", tag("1.0"))),
            ("oci:/a:b:".to_owned(), layout("/a:b", ImageSelector::Any)),
            ("oci:/u@host/x".to_owned(), layout("/u@host/x", ImageSelector::Any)),
            ("oci:/u@sha256:12:".to_owned(), layout("/u@sha256:12", ImageSelector::Any)),
            ("oci:/u@sha256:x/y".to_owned(), layout("/u@sha256:x/y", ImageSelector::Any)),
            (format!("oci:/u@host/x@{digest}"), layout("/u@host/x", ImageSelector::Digest(digest))),
            (
                "oci-archive:x.tar:1".to_owned(),
                ImageName::Archive { file: "x.tar".into(), select: tag("1") },
            ),
            (
                "oci-archive:x.tar".to_owned(),
                ImageName::Archive { file: "x.tar".into(), select: ImageSelector::Any },
            ),
            ("docker-archive:x.tar".to_owned(), saved("x.tar", SavedImageSelector::Any)),
            (
                "docker-archive:/a@b.tar:1".to_owned(),
                saved("/a@b.tar", SavedImageSelector::Name("1".into())),
            ),
            (
                "docker-archive:x:app:1".to_owned(),
                saved("x", SavedImageSelector::Name("app:1".into())),
            ),
            (
                "docker-archive:x:h:50/a:1".to_owned(),
                saved("x", SavedImageSelector::Name("h:50/a:1".into())),
            ),
            ("docker-archive:x:@12".to_owned(), saved("x", SavedImageSelector::Number(12))),
        ] {
            assert_eq!(typed.parse(), Ok(want.clone()), "{typed}");
            assert_eq!(want.to_string().parse(), Ok(want), "{typed} printed and parsed again");
        }
        assert_eq!("docker-archive:x:".parse(), Ok(saved("x", SavedImageSelector::Any)));
        for name in ["docker:27", "registry:2", "registry:5000/app:v1", "dir/x:1"] {
            assert!(matches!(name.parse(), Ok(ImageName::Registry(_))), "{name}");
        }
        assert!(matches!("oci/x".parse(), Ok(ImageName::Registry(_))));
    }

    #[test]
    fn errors_say_what_to_type() {
        for (typed, hint) in [
            ("docker://alpine:3", "use alpine:3"),
            ("https://ghcr.io/x/y", "ghcr.io/x/y"),
            ("http://localhost:5000/y", "localhost:5000/y with --plain-http"),
            ("oci:///images/app:v1", "use oci:/images/app:v1"),
            ("oci://app:v1", "use oci:app:v1 for an image layout"),
            ("docker-archive::1", "docker-archive:PATH"),
            ("docker-archive:x:@", ":@NUMBER"),
            ("docker-archive:x:@-1", ":@NUMBER"),
            ("docker-archive:x:@+1", ":@NUMBER"),
            ("docker-archive:x:App:1", ":REPOSITORY:TAG"),
            ("docker-daemon:app:1", "docker save -o FILE app:1"),
            ("dir:out", "use oci:DIR, which skopeo copy dir:out oci:DIR writes"),
            ("registry:ghcr.io/x/y:1", "use ghcr.io/x/y:1"),
            ("docker:me/app", "use me/app, or docker-archive:FILE"),
            ("oci:", "oci:PATH"),
            ("oci-archive::x", "oci-archive:PATH"),
            (
                "alpine@sha256:12",
                "\"sha256:12\" is not a digest: expected 64 lower-case hex digits",
            ),
            (
                "oci:dir@sha256:12",
                "\"sha256:12\" is not a digest: expected 64 lower-case hex digits",
            ),
            ("./x", "oci:./x"),
            ("/tmp/x.tar", "oci-archive:/tmp/x.tar"),
            ("/tmp/x.tar", "docker-archive:/tmp/x.tar"),
            ("~/x", "oci:~/x"),
            ("app:", "the tag behind it is empty. Is a variable not set?"),
            ("registry.example/app@", "the digest behind it is empty. Is a variable not set?"),
            ("/team/app:v1", "is the variable of a registry not set?"),
            ("\u{201c}app:v1\u{201d}", "U+201C"),
            ("app:v1\u{200b}", "U+200B"),
            ("localhost\u{ff1a}5000/app", "U+FF1A"),
            ("localhost:5000\\app", "'\\\\' (U+005C)"),
            ("'localhost:5000/app'", "(U+0027)"),
            ("\"app:v1\"", "(U+0022)"),
            ("img/", "write \"img\""),
            ("localhost:5000/", "a part beside a slash is empty"),
            ("localhost:5000//app:v1", "Is a variable not set?"),
            ("localhost:5000/team/:v1", "Is a variable not set?"),
            ("app:v1:v2", "more than one tag"),
            ("localhost:port/app", "expected HOST or HOST:PORT"),
            ("app:v1 app:v2", "each name is an argument of its own"),
            ("app:v1,app:v2", "each name is an argument of its own"),
            (" app:v1", "has a blank or a comma in it"),
            ("<image>", "stands for a name"),
            ("{{image}}", "stands for a name"),
            ("%IMAGE%", "stands for a name"),
            ("IMAGE", "stands for a name"),
            (
                "me:secret@localhost:5000/app:v1",
                "--creds USER:PASSWORD, or docker login, and write localhost:5000/app:v1",
            ),
            ("s3://bucket/app", "write REGISTRY/REPOSITORY:TAG"),
            ("https://hub.docker.com/_/python", "not its name: write python"),
            ("https://hub.docker.com/r/bitnami/redis/tags", "write bitnami/redis"),
            (
                "https://gallery.ecr.aws/docker/library/redis",
                "write public.ecr.aws/docker/library/redis",
            ),
            ("https://github.com/Acme/app/pkgs/container/app", "write ghcr.io/acme/app"),
            ("github.com/orgs/acme/packages/container/package/web?tab=x", "write ghcr.io/acme/web"),
            ("https://quay.io/repository/acme/app?tab=tags", "write quay.io/acme/app"),
            (
                "arn:aws:ecr:eu-west-1:123456789012:repository/team/app",
                "write 123456789012.dkr.ecr.eu-west-1.amazonaws.com/team/app",
            ),
            ("https://ghcr.io/v2/acme/app/manifests/1.4", "write ghcr.io/acme/app:1.4"),
            ("Alpine", "\"alpine\""),
        ] {
            let error = typed.parse::<ImageName>().expect_err(typed).to_string();
            assert!(error.contains(hint), "{typed}: {error}");
        }
    }

    #[test]
    fn templates() {
        let digest = Digest::sha256(b"{}");
        let made =
            |template: &str, tag| template.parse::<TagTemplate>().unwrap().fill(tag, &digest);
        for (template, tag, want) in [
            ("{tag}-soci", Some("v1"), "v1-soci"),
            ("soci_{tag}.{digest}", Some("v1"), "soci_v1.44136fa355b3"),
            ("{digest}-soci", None, "44136fa355b3-soci"),
            ("v2", None, "v2"),
            ("{tag}{tag}", Some("a"), "aa"),
        ] {
            assert_eq!(made(template, tag), Ok(want.to_owned()), "{template}");
        }
        assert!(matches!(made("{tag}-soci", None), Err(TagError::NoTag(_))));
        let long = "x".repeat(128);
        assert!(matches!(made("{tag}-soci", Some(&long)), Err(TagError::Invalid { .. })));
        let referrers = format!("sha256-{}", "0".repeat(64));
        assert_eq!(made("{tag}", Some(&referrers)), Err(TagError::Invalid { tag: referrers }));
        for bad in [
            "",
            "-{tag}",
            "{Tag}",
            "{tag",
            "tag}",
            "{{tag}}",
            "a b",
            "{name}-soci",
            &long.repeat(2),
        ] {
            assert_eq!(bad.parse::<TagTemplate>(), Err(TagError::Template(bad.to_owned())));
        }
        let name = "{tag}:x".to_owned();
        assert_eq!(name.parse::<TagTemplate>(), Err(TagError::Name(name)));
        for (template, apart) in
            [("{tag}", false), ("soci", false), ("{tag}-soci", true), ("{digest}", true)]
        {
            assert_eq!(template.parse::<TagTemplate>().unwrap().tells_apart(), apart, "{template}");
        }
    }
}
