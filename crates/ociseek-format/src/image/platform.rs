//! Platforms: parses and matches `os/arch[/variant]` like containerd (containerd/platforms,
//! database.go).

use std::fmt;
use std::str::FromStr;

pub use super::descriptor::Platform;

/// Why a string is not a platform.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum PlatformError {
    #[error(
        "{0:?} is not a platform: expected OS/ARCH or OS/ARCH/VARIANT, such as linux/amd64 or linux/arm/v7"
    )]
    Malformed(String),
    #[error("the platform is empty: is a variable not set? Expected OS/ARCH, such as linux/amd64")]
    Empty,
    #[error("{typed:?} is not a platform: expected OS/ARCH; did you mean {meant}?")]
    Half { typed: String, meant: String },
}

/// Words that people type as a whole platform: the architectures of Linux, and systems whose images
/// are of one architecture.
fn whole(typed: &str) -> Option<String> {
    const ARCHITECTURES: [&str; 12] = [
        "amd64", "arm64", "x86_64", "aarch64", "386", "arm", "armhf", "ppc64le", "s390x",
        "riscv64", "loong64", "mips64le",
    ];
    let typed = typed.trim_start_matches("linux-").trim_start_matches("linux_");
    let typed = typed.trim_start_matches("linux:").to_ascii_lowercase();
    match &*typed {
        "windows" => Some("windows/amd64".to_owned()),
        "linux" => Some("linux/amd64".to_owned()),
        _ if ARCHITECTURES.contains(&&*typed) => {
            let platform = format!("linux/{typed}").parse::<Platform>().ok()?;
            Some(platform.to_string())
        }
        _ => None,
    }
}

impl FromStr for Platform {
    type Err = PlatformError;

    /// Parses `os/arch[/variant]` and normalises it.
    fn from_str(s: &str) -> Result<Platform, PlatformError> {
        if s.is_empty() {
            return Err(PlatformError::Empty);
        }
        let malformed = || {
            let typed = s.chars().take(80).collect();
            match whole(s) {
                Some(meant) => PlatformError::Half { typed, meant },
                None => PlatformError::Malformed(typed),
            }
        };
        let parts: Vec<&str> = s.split('/').collect();
        let sound = |p: &&str| {
            !p.is_empty() && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
        };
        if !parts.iter().all(sound) {
            return Err(malformed());
        }
        let (os, architecture, variant) = match parts[..] {
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant.to_owned())),
            _ => return Err(malformed()),
        };
        let os = os.to_owned();
        let architecture = architecture.to_owned();
        Ok(Platform { architecture, os, variant, ..Platform::default() }.normalized())
    }
}

impl Platform {
    /// The platform of entries in an image index that are not images, as BuildKit writes it.
    pub fn unknown() -> Platform {
        let unknown = || "unknown".to_owned();
        Platform {
            architecture: unknown(),
            os: unknown(),
            os_version: None,
            os_features: Vec::new(),
            variant: None,
        }
    }

    /// Whether containers of it run on Linux. An image that states no system is for Linux.
    pub fn is_linux(&self) -> bool {
        matches!(self.normalized().os.as_str(), "linux" | "")
    }

    /// Parses `os/arch[/variant]` like containerd (containerd/platforms, `Parse`): normalised,
    /// except that `arm` only has a variant if one is typed, and `arm64/v8` keeps its variant.
    ///
    /// # Errors
    /// If the text is not a platform.
    pub fn as_asked(typed: &str) -> Result<Platform, PlatformError> {
        let mut platform: Platform = typed.parse()?;
        let variant_was_typed = typed.split('/').count() == 3;
        match (platform.architecture.as_str(), platform.variant.as_deref(), variant_was_typed) {
            ("arm64", None, true) => platform.variant = Some("v8".to_owned()),
            ("arm", Some("v7"), false) => platform.variant = None,
            _ => {}
        }
        Ok(platform)
    }

    /// The canonical spelling of this platform: `aarch64` becomes `arm64`, `arm64/v8` becomes
    /// `arm64`, `arm` becomes `arm/v7`, and `macos` becomes `darwin`.
    pub fn normalized(&self) -> Platform {
        let os = match self.os.to_ascii_lowercase().as_str() {
            "macos" => "darwin".to_owned(),
            os => os.to_owned(),
        };
        let variant = self.variant.as_deref().unwrap_or_default().to_ascii_lowercase();
        let (architecture, variant) =
            match (self.architecture.to_ascii_lowercase().as_str(), variant.as_str()) {
                ("i386", _) => ("386".to_owned(), String::new()),
                ("x86_64" | "x86-64" | "amd64", "v1") => ("amd64".to_owned(), String::new()),
                ("x86_64" | "x86-64" | "amd64", v) => ("amd64".to_owned(), v.to_owned()),
                ("aarch64" | "arm64", "8" | "v8" | "v8.0") => ("arm64".to_owned(), String::new()),
                ("aarch64" | "arm64", "9" | "9.0" | "v9.0") => {
                    ("arm64".to_owned(), "v9".to_owned())
                }
                ("aarch64" | "arm64", v) => ("arm64".to_owned(), v.to_owned()),
                ("armhf", _) => ("arm".to_owned(), "v7".to_owned()),
                ("armel", _) => ("arm".to_owned(), "v6".to_owned()),
                ("arm", "" | "7") => ("arm".to_owned(), "v7".to_owned()),
                ("arm", v @ ("5" | "6" | "8")) => ("arm".to_owned(), format!("v{v}")),
                (architecture, v) => (architecture.to_owned(), v.to_owned()),
            };
        Platform {
            architecture,
            os,
            os_version: self.os_version.clone(),
            os_features: self.os_features.clone(),
            variant: Some(variant).filter(|v| !v.is_empty()),
        }
    }

    /// Whether an image of this platform satisfies a request for `wanted`: the operating system,
    /// architecture and variant agree. The OS version and features only matter if `wanted` states
    /// them.
    pub fn matches(&self, wanted: &Platform) -> bool {
        let have = self.normalized();
        let want = wanted.normalized();
        have.os == want.os
            && have.architecture == want.architecture
            && have.variant == want.variant
            && (want.os_version.is_none() || have.os_version == want.os_version)
            && want.os_features.iter().all(|feature| have.os_features.contains(feature))
    }

    /// Whether both the operating system and the architecture are stated.
    pub fn is_complete(&self) -> bool {
        !self.os.is_empty() && !self.architecture.is_empty()
    }

    /// Whether this is BuildKit's placeholder platform for attestations.
    pub fn is_unknown(&self) -> bool {
        self.os == "unknown" && self.architecture == "unknown"
    }
}

impl fmt::Display for Platform {
    /// `os/arch[/variant]`, as stated.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match self.variant.as_deref() {
            None | Some("") => Ok(()),
            Some(variant) => write!(f, "/{variant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platform_spellings_are_normalized() {
        for (typed, normal) in [
            ("linux/amd64", "linux/amd64"),
            ("linux/x86_64", "linux/amd64"),
            ("Linux/AMD64", "linux/amd64"),
            ("linux/amd64/v1", "linux/amd64"),
            ("linux/amd64/v3", "linux/amd64/v3"),
            ("linux/aarch64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64"),
            ("linux/arm64/v9", "linux/arm64/v9"),
            ("linux/arm64/9.0", "linux/arm64/v9"),
            ("linux/arm", "linux/arm/v7"),
            ("linux/arm/6", "linux/arm/v6"),
            ("linux/armhf", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("linux/i386", "linux/386"),
            ("macos/arm64", "darwin/arm64"),
        ] {
            let platform: Platform = typed.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(platform.to_string(), normal);
            assert_eq!(platform.normalized(), platform, "normalising twice changes nothing");
        }
        for bad in
            ["", "linux", "linux/", "/amd64", "linux/amd64/v1/x", "linux/a b", "linux//v7", "a/é"]
        {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }

    #[test]
    fn requested_platforms_are_parsed_as_containerd_does() {
        for (typed, asked) in [
            ("linux/arm64", "linux/arm64"),
            ("linux/arm64/v8", "linux/arm64/v8"),
            ("linux/aarch64/8", "linux/arm64/v8"),
            ("linux/arm", "linux/arm"),
            ("linux/armhf", "linux/arm"),
            ("linux/arm/v7", "linux/arm/v7"),
            ("linux/armel", "linux/arm/v6"),
            ("Linux/x86_64", "linux/amd64"),
        ] {
            assert_eq!(
                Platform::as_asked(typed).map(|p| p.to_string()),
                Ok(asked.to_owned()),
                "{typed}"
            );
        }
    }

    #[test]
    fn platforms_match_as_in_containerd() {
        let stated = |os: &str, architecture: &str, variant: Option<&str>| Platform {
            architecture: architecture.to_owned(),
            os: os.to_owned(),
            os_version: Some("10.0.1".to_owned()),
            os_features: Vec::new(),
            variant: variant.map(str::to_owned),
        };
        let v8 = stated("linux", "arm64", Some("v8"));
        assert_eq!(v8.to_string(), "linux/arm64/v8");
        for (have, want, yes) in [
            (&v8, "linux/arm64", true),
            (&v8, "linux/arm64/v8", true),
            (&v8, "linux/arm64/v9", false),
            (&v8, "linux/arm", false),
            (&v8, "windows/arm64", false),
            (&stated("linux", "arm", None), "linux/arm/v7", true),
            (&stated("linux", "arm", Some("v6")), "linux/arm", false),
            (&stated("linux", "amd64", None), "linux/amd64/v3", false),
        ] {
            assert_eq!(
                have.matches(&want.parse().unwrap_or_else(|e| panic!("{e}"))),
                yes,
                "{have} for {want}"
            );
        }
        let mut other = v8.clone();
        other.os_version = Some("10.0.2".to_owned());
        assert!(!v8.matches(&other));
    }
}
