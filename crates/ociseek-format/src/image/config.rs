//! The config of an image (image-spec config.md). Only the platform, the creation time, the history
//! and the digests of the layers' tars are read.

use serde::Deserialize;

use super::descriptor::null_is_default;
use super::json::{self, JsonError, Level};
use super::platform::Platform;
use crate::digest::{Digest, DigestError};
use crate::offset::LayerId;
use crate::time::Time;

/// The size limit of a config in bytes. Configs carry a history and labels, so they may exceed the
/// limit for manifests.
pub const MAX_CONFIG: usize = 8 << 20;

/// Why a config is not usable.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ConfigError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error("the image's config does not state {0}")]
    Missing(&'static str),
    #[error("the image's config has no digest for layer {number}")]
    DiffId { number: LayerId, source: DigestError },
}

/// The platform that a config states. All other fields may be missing or invalid. Without an
/// operating system it is Linux, as containerd on Linux assumes (containerd/platforms,
/// normalizeOS).
pub fn platform(bytes: &[u8]) -> Result<Platform, ConfigError> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(flatten)]
        platform: Platform,
    }
    let Config { mut platform } = json::parse(
        bytes,
        MAX_CONFIG,
        &["architecture", "os", "os.version", "os.features", "variant"],
    )?;
    if platform.os.is_empty() {
        "linux".clone_into(&mut platform.os);
    }
    if platform.architecture.is_empty() {
        return Err(ConfigError::Missing("architecture"));
    }
    Ok(platform)
}

/// When the image was created, if the config states it in RFC 3339.
pub fn created(bytes: &[u8]) -> Result<Option<Time>, ConfigError> {
    #[derive(Deserialize)]
    struct Config {
        created: Option<String>,
    }
    let Config { created } = json::parse(bytes, MAX_CONFIG, &["created"])?;
    Ok(created.as_deref().and_then(Time::from_rfc3339))
}

/// The digests of the layers' tars, from the bottom up.
pub fn diff_ids(bytes: &[u8]) -> Result<Vec<Digest>, ConfigError> {
    #[derive(Deserialize)]
    struct Config {
        rootfs: Option<RootFs>,
    }
    #[derive(Deserialize)]
    struct RootFs {
        #[serde(deserialize_with = "null_is_default", default)]
        diff_ids: Vec<String>,
    }
    const BELOW: &[(&str, Level)] = &[("rootfs", Level { keys: &["diff_ids"], below: &[] })];
    let Config { rootfs } =
        json::parse_levels(bytes, MAX_CONFIG, Level { keys: &["rootfs"], below: BELOW })?;
    let listed = rootfs.ok_or(ConfigError::Missing("rootfs"))?.diff_ids;
    (0..)
        .zip(&listed)
        .map(|(number, text)| {
            text.parse().map_err(|source| ConfigError::DiffId { number: LayerId(number), source })
        })
        .collect()
}

/// The commands that created the layers, from the bottom up, according to the config's history.
/// Empty if it has none.
pub fn created_by(bytes: &[u8]) -> Result<Vec<String>, ConfigError> {
    #[derive(Deserialize)]
    struct Config {
        #[serde(deserialize_with = "null_is_default", default)]
        history: Vec<HistoryEntry>,
    }
    #[derive(Deserialize)]
    struct HistoryEntry {
        #[serde(deserialize_with = "null_is_default", default)]
        created_by: String,
        #[serde(deserialize_with = "null_is_default", default)]
        empty_layer: bool,
    }
    const BELOW: &[(&str, Level)] =
        &[("history", Level { keys: &["created_by", "empty_layer"], below: &[] })];
    let Config { history } =
        json::parse_levels(bytes, MAX_CONFIG, Level { keys: &["history"], below: BELOW })?;
    Ok(history.into_iter().filter(|step| !step.empty_layer).map(|step| step.created_by).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_of_configs() {
        let full = br#"{"architecture":"arm64","os":"linux","variant":"v8","rootfs":{"type":"layers","diff_ids":["x"]},"config":7}"#;
        assert_eq!(platform(full).map(|p| p.to_string()).ok().as_deref(), Some("linux/arm64/v8"));
        assert_eq!(
            platform(br#"{"architecture":"amd64"}"#).map(|p| p.to_string()).ok().as_deref(),
            Some("linux/amd64")
        );
        assert!(matches!(platform(b"{}"), Err(ConfigError::Missing("architecture"))));
        assert!(matches!(
            platform(br#"{"os":"linux"}"#),
            Err(ConfigError::Missing("architecture"))
        ));
        for bad in [
            &b""[..],
            b"{}{}",
            br#"{"os":7}"#,
            br#"{"os":"linux","os":"linux","architecture":"x"}"#,
        ] {
            assert!(matches!(platform(bad), Err(ConfigError::Json(_))));
        }
    }

    #[test]
    fn times_of_configs() {
        let made = |created: &str| {
            created_seconds(format!(r#"{{"os":"linux","created":{created}}}"#).as_bytes())
        };
        assert_eq!(made(r#""2024-02-29T12:00:00.5Z""#), Some(1_709_208_000));
        assert_eq!(made(r#""0001-01-01T00:00:00Z""#), Some(-62_135_596_800));
        for none in ["null", r#""yesterday""#, "\"\""] {
            assert_eq!(made(none), None);
        }
        assert_eq!(created(b"{}").unwrap(), None);
    }

    fn created_seconds(config: &[u8]) -> Option<i64> {
        created(config).unwrap().map(|time| time.seconds)
    }

    #[test]
    fn commands_of_configs() {
        let made = |history: &str| {
            created_by(format!(r#"{{"os":"linux","history":{history}}}"#).as_bytes())
        };
        let history = r#"[{"created_by":"ADD x"},{"created_by":"ENV y","empty_layer":true},{"empty_layer":false}]"#;
        assert_eq!(made(history).unwrap(), ["ADD x", ""]);
        assert_eq!(made("null").unwrap(), [""; 0]);
        assert_eq!(created_by(b"{}").unwrap(), [""; 0]);
        for bad in [r#"[{"created_by":7}]"#, "7", r#"[{"created_by":"a","created_by":"b"}]"#] {
            assert!(matches!(made(bad), Err(ConfigError::Json(_))), "{bad}");
        }
    }

    #[test]
    fn layers_of_configs() {
        let digest = Digest::sha256(b"x");
        let listed =
            |rootfs: &str| diff_ids(format!(r#"{{"os":"linux","rootfs":{rootfs}}}"#).as_bytes());
        let one = listed(&format!(r#"{{"type":"layers","diff_ids":["{digest}"]}}"#));
        assert_eq!(one.ok(), Some(vec![digest]));
        assert_eq!(listed(r#"{"type":"layers","diff_ids":null}"#).ok(), Some(Vec::new()));
        assert!(matches!(
            listed(r#"{"diff_ids":["sha256:.."]}"#),
            Err(ConfigError::DiffId { number: LayerId(0), .. })
        ));
        for bad in [r#"{"diff_ids":[7]}"#, r#"{"diff_ids":[],"Diff_IDs":[]}"#] {
            assert!(matches!(listed(bad), Err(ConfigError::Json(_))), "{bad}");
        }
        assert!(matches!(diff_ids(b"{}"), Err(ConfigError::Missing("rootfs"))));
    }
}
