//! Jobs as JSON, for files and queues. Parsed jobs are checked against the same grammars as data
//! from registries.

use serde::{Deserialize, Serialize};

use super::job::Job;
use ociseek_format::digest::Digest;
use ociseek_format::image::json::parse_lenient;
use ociseek_format::image::{JsonFault, Reference, is_registry, is_repository, is_tag};

/// `{"registry", "repository", "tag"?, "digest"?}`.
#[derive(Serialize, Deserialize)]
struct Record {
    registry: String,
    repository: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
}

/// Why a record is not a valid job.
#[derive(Debug, thiserror::Error)]
pub enum JobRecordError {
    #[error("it is not the JSON of a job")]
    Json(#[from] JsonFault),
    #[error("it has an invalid {0}")]
    Name(&'static str),
}

impl Job {
    /// The job in one line of JSON.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// # Errors
    /// If `json` was not written by [`Job::to_json`].
    pub fn from_json(json: &[u8]) -> Result<Job, JobRecordError> {
        Record::try_into(parse_lenient(json)?)
    }
}

impl Serialize for Job {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Reference { registry, repository, tag, digest } = self.image.clone();
        Record { registry, repository, tag, digest }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Job {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Job, D::Error> {
        Record::deserialize(deserializer)?.try_into().map_err(serde::de::Error::custom)
    }
}

impl TryFrom<Record> for Job {
    type Error = JobRecordError;

    fn try_from(record: Record) -> Result<Job, JobRecordError> {
        let Record { registry, repository, tag, digest } = record;
        let named = tag.is_some() || digest.is_some();
        let checks = [
            (is_registry(&registry), "registry"),
            (is_repository(&repository), "repository"),
            (tag.as_deref().is_none_or(is_tag) && named, "tag"),
        ];
        if let Some((_, what)) = checks.iter().find(|(good, _)| !good) {
            return Err(JobRecordError::Name(what));
        }
        let image = Reference { registry, repository, tag, digest };
        if image.is_canonical() {
            Ok(Job { image })
        } else {
            Err(JobRecordError::Name("image name"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        for image in ["r.example/a", "r.example:5000/a/b:t", "[::1]:5000/a", "localhost/a:T"] {
            for digest in [None, Some(Digest::sha256(b"{}"))] {
                let mut image: Reference = image.parse().unwrap();
                image.digest = digest;
                let job = Job { image };
                assert_eq!(Job::from_json(job.to_json().as_bytes()).unwrap(), job);
            }
        }
    }

    #[test]
    fn invalid_records_are_refused() {
        for bad in [
            "",
            "{}",
            "[]",
            r#"{"registry":"r.example","repository":"a"}"#,
            r#"{"registry":"u@r.example","repository":"a","tag":"t"}"#,
            r#"{"registry":"r.example","repository":"../a","tag":"t"}"#,
            r#"{"registry":"r.example","repository":"a","tag":"$(t)"}"#,
            r#"{"registry":"r.example","repository":"a","digest":"sha256:00"}"#,
            r#"{"registry":"team","repository":"a","tag":"t"}"#,
        ] {
            assert!(Job::from_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
