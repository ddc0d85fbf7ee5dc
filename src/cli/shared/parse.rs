//! Parses option values with stricter rules than their types.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::builder::TypedValueParser;
use clap::{Arg, Command};

use super::size::ByteSize;
use ociseek_format::digest::Digest;
use ociseek_format::image::coverage::Share;
use ociseek_format::image::ecr::is_account;
use ociseek_format::image::{
    CANONICAL_REGISTRY, ImageName, ImageNameError, Platform, is_canonical_registry,
};
use ociseek_format::offset::SpanSize;
use ociseek_format::time::Time;

/// Whether registries are accessed without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlainHttp {
    Always,
    Never,
    /// Only those on this machine.
    Local,
}

/// The least span size. A ztoc with smaller spans is larger than most layers.
const LEAST_SPAN: u64 = 16 << 10;

/// The least memory of a service, in bytes.
const LEAST_MEMORY: u64 = 16 << 20;

/// A span size: at most 1 TiB, because it is stored in signed 64-bit fields and no layer is larger.
pub(crate) fn span_size(text: &str) -> Result<SpanSize, String> {
    match text.parse::<ByteSize>().map_err(|e| e.to_string())?.0 {
        size if size < LEAST_SPAN => {
            Err("must be at least 16KiB, because each span takes 32 KiB of the ztoc".to_owned())
        }
        size => SpanSize::new(size)
            .filter(|_| size <= 1 << 40)
            .ok_or_else(|| "must be at most 1024GiB".into()),
    }
}

/// A tool identifier: a single line of limited length, because it is stored in every ztoc and in a
/// manifest annotation, and is printed.
pub(crate) fn tool_identifier(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 256 || text.chars().any(char::is_control) {
        return Err("expected 1 to 256 bytes without control characters".into());
    }
    Ok(text.to_owned())
}

/// A yes or no in the words that variables have. An empty variable counts as unset.
pub(crate) fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "t" | "yes" | "y" | "on" => Ok(true),
        "" | "0" | "false" | "f" | "no" | "n" | "off" => Ok(false),
        _ => Err("expected true or false, or yes or no".into()),
    }
}

/// Whether the rest of an image is fetched in the background, and how fast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RestArg {
    No,
    /// At most this many bits in a second.
    Yes(Option<u64>),
}

impl RestArg {
    pub(crate) fn is_wanted(self) -> bool {
        self != RestArg::No
    }

    /// In bytes per second, if it is limited.
    pub(crate) fn speed(self) -> Option<u64> {
        match self {
            RestArg::Yes(Some(bits)) => Some(bytes_of_speed(bits)),
            RestArg::No | RestArg::Yes(None) => None,
        }
    }
}

/// A yes or no, or a speed.
pub(crate) fn prefetch(text: &str) -> Result<RestArg, String> {
    match switch(text) {
        Ok(true) => Ok(RestArg::Yes(None)),
        Ok(false) => Ok(RestArg::No),
        Err(_) if text.starts_with(|c: char| c.is_ascii_digit()) => {
            link(text).map(|bits| RestArg::Yes(Some(bits)))
        }
        Err(_) => Err("expected true, false, or a speed, such as 100Mbit".to_owned()),
    }
}

/// The bytes that a link of this many bits per second carries in a second.
pub(crate) fn bytes_of_speed(bits: u64) -> u64 {
    (bits / 8).max(1)
}

/// The same for --plain-http, where an empty variable leaves the default.
pub(crate) fn plain_http(text: &str) -> Result<PlainHttp, String> {
    match (text, switch(text)?) {
        ("", _) => Ok(PlainHttp::Local),
        (_, true) => Ok(PlainHttp::Always),
        (_, false) => Ok(PlainHttp::Never),
    }
}

/// A whole number from `least` to `most`.
pub(crate) fn number<T: TryFrom<u64>>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        // `parse` would also accept a `+`.
        let number = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let number =
            number.and_then(|text| text.parse().ok()).filter(|n| (least..=most).contains(n));
        number
            .and_then(|number| T::try_from(number).ok())
            .ok_or_else(|| format!("expected a whole number from {least} to {most}"))
    }
}

/// The number of a layer.
pub(crate) fn layer(text: &str) -> Result<usize, String> {
    number(0, 100_000)(text).map_err(|_| {
        "expected a number: 0 is the layer at the bottom (ociseek doctor --verbose lists the layers)"
            .to_owned()
    })
}

/// The path of a socket, also written as a URL: `unix:///run/x.sock`.
pub(crate) fn socket(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
    match path {
        "" => Err("expected the path of a socket".to_owned()),
        path if path.contains("://") => {
            Err("expected the path of a socket, such as /run/ociseek/snapshotter.sock".to_owned())
        }
        path => Ok(path.into()),
    }
}

/// How much memory a service may use: less than 16 MiB cannot hold the files of one image.
pub(crate) fn memory(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>().map_err(|error| error.to_string())? {
        size if size.0 < LEAST_MEMORY => Err("must be at least 16MiB".to_owned()),
        size => Ok(size),
    }
}

/// A speed in bits per second, such as `100Mbit`.
pub(crate) fn link(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().trim_end_matches("/s").trim_end_matches("ps");
    if unit.ends_with('B') || unit.ends_with("yte") || unit.ends_with("ytes") {
        let meant = number.parse::<u64>().ok().and_then(|number| number.checked_mul(8));
        let letter = unit.chars().next().filter(|letter| "kKmMgG".contains(*letter));
        return Err(match meant.zip(letter) {
            Some((meant, letter)) => format!(
                "links are in bits per second: for {text} write {meant}{}bit",
                letter.to_ascii_uppercase()
            ),
            None => "expected a speed in bits per second, such as 100Mbit or 1Gbit".to_owned(),
        });
    }
    let unit = unit.to_ascii_lowercase();
    let factor = match unit.trim_end_matches("it").trim_end_matches('b') {
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        _ => return Err("expected a speed, such as 100Mbit or 1Gbit".to_owned()),
    };
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor))
        .filter(|speed| *speed > 0)
        .ok_or_else(|| "expected a speed, such as 100Mbit or 1Gbit".to_owned())
}

/// A whole number with one of the units s, m, h and d, or of seconds; at least a second.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        0 => Err("must be more than 0".into()),
        seconds => Ok(Duration::from_secs(seconds)),
    }
}

/// The same, within these limits in seconds.
pub(crate) fn duration_of(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| match seconds(text)? {
        seconds if seconds < least => Err(format!("must be at least {least}s")),
        seconds if seconds > most => Err(format!("must be at most {most}s")),
        seconds => Ok(Duration::from_secs(seconds)),
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    let wrong = || {
        "expected seconds, or a number with a unit (s, m, h or d), such as 90s or 10m".to_owned()
    };
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text.strip_suffix(unit).unwrap_or(text);
    let seconds: u64 = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(seconds))
        .ok_or_else(|| "too long".into())
}

/// `IP:PORT`, to listen on.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.trim_start_matches(':').parse().unwrap_or(8080_u16);
        format!("expected IP:PORT, such as 0.0.0.0:{port} for all addresses, or 127.0.0.1:{port} for this machine only")
    })
}

/// A day (in UTC), a time in RFC 3339, or a duration before now; in seconds since 1970.
pub(crate) fn since(text: &str) -> Result<i64, String> {
    // A number alone could be a year.
    if !text.ends_with(|c: char| c.is_ascii_digit())
        && let Ok(ago) = duration(text)
    {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(i64::try_from(now.saturating_sub(ago).as_secs()).unwrap_or(i64::MAX));
    }
    let time =
        Time::from_rfc3339(text).or_else(|| Time::from_rfc3339(&format!("{text}T00:00:00Z")));
    time.map(|time| time.seconds).ok_or_else(|| {
        "expected a date such as 2026-01-31, or a duration such as 12h or 30d".into()
    })
}

/// The number of an AWS account.
pub(crate) fn aws_account(text: &str) -> Result<String, String> {
    if is_account(text) {
        Ok(text.to_owned())
    } else {
        Err("expected a 12-digit account ID".into())
    }
}

/// A path in an image: any bytes, but not none.
#[derive(Debug, Clone)]
pub(crate) struct NonEmptyPath;

impl TypedValueParser for NonEmptyPath {
    type Value = OsString;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<OsString, clap::Error> {
        if !value.is_empty() {
            return Ok(value.to_owned());
        }
        let text = |text: &str| not_empty(text);
        text.parse_ref(command, arg, value).map(OsString::from)
    }
}

/// A text that has a meaning only if there is some of it.
pub(crate) fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("it is empty: is a variable not set?".to_owned());
    }
    Ok(text.to_owned())
}

/// A registry without a repository.
pub(crate) fn registry(text: &str) -> Result<String, String> {
    let registry = text.to_ascii_lowercase();
    if is_canonical_registry(&registry) {
        Ok(registry)
    } else {
        Err(format!("expected {CANONICAL_REGISTRY}"))
    }
}

/// A percentage with at most two decimals, such as `80%`, `99.5%` or `80`.
pub(crate) fn share(text: &str) -> Result<Share, String> {
    const WANT: &str = "expected a percentage from 0% to 100%, such as 80% or 99.5%";
    let number = text.trim().strip_suffix('%').unwrap_or(text.trim());
    let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() > 2 || whole.len() > 3 {
        return Err(WANT.into());
    }
    // A user who types 0.8 probably means 80%.
    if whole == "0" && part.bytes().any(|b| b != b'0') && !text.contains('%') {
        return Err(format!("{WANT}; if you mean less than one percent, write {text}%"));
    }
    let hundredths = |text: &str| text.parse::<u32>().ok();
    let part = hundredths(part).map(|digits| if part.len() == 1 { digits * 10 } else { digits });
    let all = hundredths(whole).zip(part).map(|(whole, part)| whole * 100 + part);
    all.and_then(Share::new).ok_or_else(|| WANT.into())
}

/// A platform, for commands on a single image. Its variable may contain a list, which is meant for
/// `ociseek index`.
pub(crate) fn one_platform(text: &str) -> Result<Platform, String> {
    if text.contains(',') {
        return Err("several platforms, but this command takes one: use --platform OS/ARCH, which overrides \
                    $OCISEEK_PLATFORM"
            .into());
    }
    text.parse::<Platform>().map_err(|error| error.to_string())
}

/// The least number of digits in an abbreviated digest.
const LEAST_DIGITS: usize = 6;

/// A digest, or the first digits of one.
pub(crate) fn start_of_digest(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").unwrap_or(text);
    let is_digits = digits.len() >= LEAST_DIGITS
        && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if is_digits || text.parse::<Digest>().is_ok() {
        Ok(text.to_owned())
    } else {
        Err(format!("expected a digest, or at least {LEAST_DIGITS} of its first digits"))
    }
}

/// The prefixes of other tools for what only they can write.
const LOCAL_STORES: [&str; 6] =
    ["containers-storage:", "dir:", "docker:", "docker-daemon:", "ostree:", "podman:"];

/// The name of an image to write. In a registry it has a tag, so that none appears that nobody
/// typed.
pub(crate) fn destination(text: &str) -> Result<ImageName, String> {
    let name =
        text.parse::<ImageName>().map_err(|error| match (&error, text.strip_prefix(':')) {
            (_, Some(tag)) => format!("{error} If {tag} is the tag, write REPOSITORY:{tag}"),
            // The error says how to read from there.
            (ImageNameError::Scheme { scheme, .. }, _) if LOCAL_STORES.contains(&&**scheme) => {
                format!("cannot write to {scheme:?}: write REGISTRY/REPOSITORY:TAG, or oci:DIR")
            }
            _ => error.to_string(),
        })?;
    let last = text.rsplit('/').next().unwrap_or(text);
    match &name {
        ImageName::Registry(_) if is_archive(text) => {
            Err("archives are read-only: write to a registry or a layout, oci:DIR".into())
        }
        ImageName::Registry(image) if image.digest.is_none() && !last.contains(':') => {
            Err(if text.contains('/') {
                format!("the tag is missing: write {text}:TAG")
            } else {
                format!(
                    "the tag is missing: write {text}:TAG, or REPOSITORY:{last} if {last} is the tag"
                )
            })
        }
        _ => Ok(name),
    }
}

/// Whether `text` ends like the name of an archive. No repository does.
pub(crate) fn is_archive(text: &str) -> bool {
    [".tar", ".tar.gz", ".tgz"].iter().any(|ending| text.ends_with(ending))
}

/// `oci:DIR`.
pub(crate) fn layout_dir(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("oci:") {
        None if ["json", "yaml", "text", "table", "wide"].contains(&text) => {
            Err("expected oci:DIR, the OCI layout to write to; for JSON: --json".into())
        }
        None if !text.is_empty() => {
            Err(format!("expected an OCI layout to write to: write oci:{text}"))
        }
        Some("") | None => Err("expected oci:DIR, the OCI layout to write to".into()),
        Some(dir) => Ok(PathBuf::from(dir)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_is_fetched_or_not_or_at_a_speed() {
        let limited = Ok(RestArg::Yes(Some(100_000_000)));
        for (text, wanted) in [
            ("true", Ok(RestArg::Yes(None))),
            ("1", Ok(RestArg::Yes(None))),
            ("", Ok(RestArg::No)),
            ("off", Ok(RestArg::No)),
            ("100Mbit", limited),
        ] {
            assert_eq!(prefetch(text), wanted, "{text}");
        }
        assert_eq!(RestArg::Yes(Some(100_000_000)).speed(), Some(12_500_000));
        assert!(prefetch("12MB/s").unwrap_err().contains("96Mbit"));
        assert!(prefetch("fast").unwrap_err().contains("or a speed"));
    }

    #[test]
    fn limits() {
        assert_eq!(span_size("16384B"), Ok(SpanSize::new(LEAST_SPAN).unwrap()));
        for small in ["0", "0MiB", "1B", "16383B", "15KiB"] {
            assert!(span_size(small).is_err(), "{small}");
        }
        assert!(span_size("4").is_err_and(|why| why.contains("Did you mean 4MiB?")));
        assert!(span_size("1025GiB").is_err());
        for (text, want) in [
            ("80%", "80%"),
            ("80", "80%"),
            ("99.5%", "99.5%"),
            ("0.25%", "0.25%"),
            ("100.00", "100%"),
        ] {
            assert_eq!(share(text).map(|share| share.to_string()).as_deref(), Ok(want));
        }
        for text in ["", "%", "0.8", "101", "100.01%", "-1", "+1", "1.234", "80 %x", "1e2", "."] {
            assert!(share(text).is_err(), "{text}");
        }
        assert!(tool_identifier("").is_err());
        assert!(tool_identifier("a\nb").is_err());
        assert!(one_platform("linux/amd64").is_ok() && one_platform("linux").is_err());
        assert!(
            one_platform("linux/amd64,linux/arm64")
                .is_err_and(|text| text.contains("several platforms"))
        );
        assert_eq!(tool_identifier("AWS SOCI CLI v0.2").as_deref(), Ok("AWS SOCI CLI v0.2"));
        assert_eq!(layout_dir("oci:some/dir:x"), Ok(PathBuf::from("some/dir:x")));
        assert!(layout_dir("some/dir").is_err());
        assert!(destination("localhost:5000/app:v1").is_ok() && destination("oci:app").is_ok());
        assert!(destination("v1-soci").is_err_and(|why| why.contains("REPOSITORY:v1-soci")));
        assert!(destination("localhost:5000/app").is_err());
        for store in ["docker-daemon:app:v1", "containers-storage:app:v1", "podman:me/app:v1"] {
            assert!(destination(store).is_err_and(|why| why.starts_with("cannot write to")));
        }
        assert!(layout_dir("oci:").is_err());
        assert_eq!(since("2024-02-29"), Ok(1_709_164_800));
        assert_eq!(since("2024-02-29T12:00:00Z"), Ok(1_709_208_000));
        assert!(since("1d").unwrap() > 1_709_208_000);
        assert_eq!(duration_of(0, 60)("0"), Ok(Duration::ZERO));
        assert!(duration_of(1, 60)("0s").is_err() && duration_of(1, 60)("2m").is_err());
        assert!(listen(":9000").is_err_and(|why| why.contains("0.0.0.0:9000")));
        assert_eq!(number::<u16>(1, 256)("256"), Ok(256));
        for bad in ["", "0", "257", "+1", "-1", "4.5", "auto", "99999999999999999999"] {
            let why = number::<u16>(1, 256)(bad).unwrap_err();
            assert_eq!(why, "expected a whole number from 1 to 256", "{bad}");
        }
        assert!(layer("sha256:00").is_err_and(|why| why.contains("at the bottom")));
        assert!(layout_dir("json").is_err_and(|why| why.contains("--json")));
        assert!(layout_dir("out").is_err_and(|why| why.contains("write oci:out")));
        assert!(since("2024").is_err() && since("2024-02-30").is_err() && since("lately").is_err());
        assert_eq!(aws_account("123456789012").as_deref(), Ok("123456789012"));
        assert!(aws_account("12345678901x").is_err());
        assert_eq!(registry("Localhost:5000").as_deref(), Ok("localhost:5000"));
        assert!(registry("http://x").is_err());
        assert!(registry("Registry").is_err());
        for (text, seconds) in [
            ("1", 1),
            ("30", 30),
            ("1s", 1),
            ("90s", 90),
            ("10m", 600),
            ("2h", 7200),
            ("30d", 2_592_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in [
            "",
            "s",
            "0",
            "0s",
            "-1s",
            "+1s",
            "1.5h",
            "1 s",
            "1é",
            "99999999999999999999s",
            "999999999999999999d",
        ] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
