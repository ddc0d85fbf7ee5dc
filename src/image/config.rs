//! The config of an image (image-spec config.md), of which indexing needs the platform and nothing else.

use serde::Deserialize;

use super::json::{self, JsonError};
use super::platform::Platform;
use crate::digest::Digest;

/// The largest config that is read, in bytes. Configs carry a history and labels, so they may pass a manifest's limit.
pub const MAX_CONFIG: usize = 8 << 20;

/// Why a config does not tell its image's platform.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the image's config cannot be relied on")]
    Json(#[from] JsonError),
    #[error("the image's config states no {0}")]
    Missing(&'static str),
}

/// The platform that a config states. Everything else in it may be missing or odd.
pub fn platform(bytes: &[u8]) -> Result<Platform, ConfigError> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(flatten)]
        platform: Platform,
    }
    let Config { platform } =
        json::parse(bytes, MAX_CONFIG, &["architecture", "os", "os.version", "os.features", "variant"])?;
    if platform.os.is_empty() {
        return Err(ConfigError::Missing("os"));
    }
    if platform.architecture.is_empty() {
        return Err(ConfigError::Missing("architecture"));
    }
    Ok(platform)
}

/// The digests of the layers' plain tars, from the bottom up (`rootfs.diff_ids`).
pub fn diff_ids(bytes: &[u8]) -> Result<Vec<Digest>, ConfigError> {
    #[derive(Deserialize)]
    struct Config {
        rootfs: Option<RootFs>,
    }
    #[derive(Deserialize)]
    struct RootFs {
        diff_ids: Option<Vec<Digest>>,
    }
    let Config { rootfs } = json::parse(bytes, MAX_CONFIG, &["rootfs"])?;
    rootfs.and_then(|rootfs| rootfs.diff_ids).ok_or(ConfigError::Missing("rootfs.diff_ids"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_of_configs() {
        let full = br#"{"architecture":"arm64","os":"linux","variant":"v8","rootfs":{"type":"layers","diff_ids":["x"]},"config":7}"#;
        assert_eq!(platform(full).map(|p| p.to_string()).ok().as_deref(), Some("linux/arm64/v8"));
        assert!(matches!(platform(b"{}"), Err(ConfigError::Missing("os"))));
        assert!(matches!(platform(br#"{"os":"linux"}"#), Err(ConfigError::Missing("architecture"))));
        for bad in [&b""[..], b"{}{}", br#"{"os":7}"#, br#"{"os":"linux","os":"linux","architecture":"x"}"#] {
            assert!(matches!(platform(bad), Err(ConfigError::Json(_))));
        }
    }
}
