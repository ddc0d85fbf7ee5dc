//! What an image's config says of how its container runs (image-spec config.md, "config").

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::image::config::MAX_CONFIG;
use crate::image::json::{self, JsonError};

/// The parts of the config that a container is made from; what it does not state is empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ImageConfig {
    #[serde(deserialize_with = "or_empty")]
    pub architecture: String,
    #[serde(deserialize_with = "or_empty")]
    pub os: String,
    #[serde(deserialize_with = "or_empty")]
    pub author: String,
    #[serde(deserialize_with = "or_empty")]
    pub created: String,
    #[serde(deserialize_with = "or_empty")]
    pub config: RunConfig,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct RunConfig {
    #[serde(deserialize_with = "or_empty")]
    pub user: String,
    #[serde(deserialize_with = "or_empty")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    pub working_dir: String,
    #[serde(deserialize_with = "or_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_empty")]
    pub stop_signal: String,
    /// Such as `80/tcp`; the values are empty objects.
    #[serde(deserialize_with = "or_empty")]
    pub exposed_ports: BTreeMap<String, serde_json::Value>,
}

/// Go writes `null` for lists and maps that are empty.
fn or_empty<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

impl ImageConfig {
    /// # Errors
    /// When it is no JSON that all readers understand in the same way, or says it in other types.
    pub fn parse(bytes: &[u8]) -> Result<ImageConfig, JsonError> {
        json::parse(bytes, MAX_CONFIG, &["architecture", "os", "author", "created", "config"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configs() {
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
}
