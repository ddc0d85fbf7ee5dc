//! The runtime configuration in an image's config (image-spec config.md, "config").

use std::collections::BTreeMap;

use serde::Deserialize;

use ociseek_format::image::config::MAX_CONFIG;
use ociseek_format::image::json::{self, JsonError, Level};
use ociseek_format::image::null_is_default;

/// The parts of the config that determine the container. Missing ones are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    /// In Go's spelling: `amd64`.
    #[serde(deserialize_with = "null_is_default")]
    pub architecture: String,
    /// In Go's spelling: `linux`.
    #[serde(deserialize_with = "null_is_default")]
    pub os: String,
    /// The author of the image.
    #[serde(deserialize_with = "null_is_default")]
    pub author: String,
    /// The creation time of the image, as written in the config.
    #[serde(deserialize_with = "null_is_default")]
    pub created: String,
    /// The runtime configuration.
    #[serde(deserialize_with = "null_is_default")]
    pub config: RunConfig,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RunConfig {
    #[serde(deserialize_with = "null_is_default")]
    pub user: String,
    #[serde(deserialize_with = "null_is_default")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub working_dir: String,
    #[serde(deserialize_with = "null_is_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_default")]
    pub stop_signal: String,
    /// Such as `80/tcp`; the values are empty objects.
    #[serde(deserialize_with = "null_is_default")]
    pub exposed_ports: BTreeMap<String, serde_json::Value>,
}

/// The keys that are read on both levels. Go's parsers accept them in any spelling.
const TOP: Level = Level {
    keys: &["architecture", "os", "author", "created", "config"],
    below: &[("config", Level { keys: RUN, below: &[] })],
};
const RUN: &[&str] = &["User", "Env", "Entrypoint", "Cmd", "WorkingDir", "Labels", "StopSignal", "ExposedPorts"];

impl ImageConfig {
    /// # Errors
    /// If it is not JSON that all parsers understand in the same way, or has other types.
    pub fn parse(bytes: &[u8]) -> Result<ImageConfig, JsonError> {
        json::parse_levels(bytes, MAX_CONFIG, TOP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs_are_parsed() {
        let bytes =
            br#"{"os":"linux","architecture":"amd64","config":{"User":"web:www","Env":["A=b"],"Entrypoint":null,
            "Cmd":["sh"],"WorkingDir":"/srv","Labels":{"x":"y"},"StopSignal":"SIGQUIT","ExposedPorts":{"80/tcp":{}}}}"#;
        let image = ImageConfig::parse(bytes).unwrap();
        assert_eq!(image.config.user, "web:www");
        assert_eq!((image.config.entrypoint.len(), image.config.cmd), (0, vec!["sh".to_owned()]));
        assert!(image.config.exposed_ports.contains_key("80/tcp"));
        for empty in ["{}", r#"{"config":null}"#, r#"{"config":{"Labels":null}}"#] {
            assert_eq!(ImageConfig::parse(empty.as_bytes()).unwrap(), ImageConfig::default(), "{empty}");
        }
        assert!(ImageConfig::parse(br#"{"config":{"Cmd":"sh"}}"#).is_err());
    }

    #[test]
    fn configs_that_go_reads_differently_are_refused() {
        for key in RUN {
            for other in [key.to_lowercase(), key.to_uppercase(), key.replace('s', "\u{17f}").replace('k', "\u{212a}")]
            {
                let parsed = ImageConfig::parse(format!(r#"{{"config":{{"{other}":null}}}}"#).as_bytes());
                assert_eq!(matches!(parsed, Err(JsonError::Spelling { .. })), other != **key, "{other}");
            }
        }
        // A label may have any name.
        let labels = br#"{"config":{"Labels":{"user":"a","USER":"b"}}}"#;
        assert_eq!(ImageConfig::parse(labels).map(|image| image.config.labels.len()).ok(), Some(2));
    }
}
