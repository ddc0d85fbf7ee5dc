//! The calls of `containerd.services.snapshots.v1`: their messages, without the fields that are not
//! used, as containerd's `api/services/snapshots/v1/snapshots.proto` and
//! `api/types/mount.proto` number them; the filters of a list (containerd's `pkg/filters`, without
//! regular expressions); and why a call fails.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use prost::Message;

/// `PrepareSnapshotRequest`, `ViewSnapshotRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CreateRequest {
    #[prost(string, tag = "2")]
    pub key: String,
    #[prost(string, tag = "3")]
    pub parent: String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub labels: BTreeMap<String, String>,
}

/// `PrepareSnapshotResponse`, `ViewSnapshotResponse`, `MountsResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct MountsAnswer {
    #[prost(message, repeated, tag = "1")]
    pub mounts: Vec<SnapshotMount>,
}

/// `containerd.types.Mount`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapshotMount {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub source: String,
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// `MountsRequest`, `RemoveSnapshotRequest`, `StatSnapshotRequest`, `UsageRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyRequest {
    #[prost(string, tag = "2")]
    pub key: String,
}

/// `CommitSnapshotRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CommitRequest {
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub key: String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub labels: BTreeMap<String, String>,
    #[prost(string, tag = "5")]
    pub parent: String,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `Info`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SnapshotInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub parent: String,
    #[prost(int32, tag = "3")]
    pub kind: i32,
    #[prost(message, optional, tag = "4")]
    pub created_at: Option<Timestamp>,
    #[prost(message, optional, tag = "5")]
    pub updated_at: Option<Timestamp>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub labels: BTreeMap<String, String>,
}

/// `StatSnapshotResponse`, `UpdateSnapshotResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct InfoAnswer {
    #[prost(message, optional, tag = "1")]
    pub info: Option<SnapshotInfo>,
}

/// `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

/// `UpdateSnapshotRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UpdateRequest {
    #[prost(message, optional, tag = "2")]
    pub info: Option<SnapshotInfo>,
    #[prost(message, optional, tag = "3")]
    pub update_mask: Option<FieldMask>,
}

/// `ListSnapshotsRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListRequest {
    #[prost(string, repeated, tag = "2")]
    pub filters: Vec<String>,
}

/// `ListSnapshotsResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ListAnswer {
    #[prost(message, repeated, tag = "1")]
    pub info: Vec<SnapshotInfo>,
}

/// `UsageResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct UsageAnswer {
    #[prost(int64, tag = "1")]
    pub size: i64,
    #[prost(int64, tag = "2")]
    pub inodes: i64,
}

/// `CleanupRequest`, `google.protobuf.Empty`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Empty {}

/// `grpc.health.v1.HealthCheckRequest`, as grpc's `grpc/health/v1/health.proto` numbers its field.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HealthRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

/// `grpc.health.v1.HealthCheckResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HealthAnswer {
    /// A `ServingStatus`.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// `SERVING` and `NOT_SERVING` of `ServingStatus`.
pub(crate) const SERVING: i32 = 1;
pub(crate) const NOT_SERVING: i32 = 2;

/// A snapshot is listed if it passes all of these.
#[derive(Debug)]
pub(crate) struct SnapshotFilter(Vec<Clause>);

#[derive(Debug)]
struct Clause {
    field: Vec<String>,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Present,
    Equal(String),
    Different(String),
}

impl SnapshotFilter {
    /// Parses clauses such as `kind==active,labels."a.b"!=c`. None if it is not valid, or uses the
    /// operator `~=`.
    pub(crate) fn parse(text: &str) -> Option<SnapshotFilter> {
        let mut clauses = Vec::new();
        let mut rest = text;
        loop {
            let mut field = vec![word(&mut rest, ".,=!~")?];
            while let Some(after) = rest.strip_prefix('.') {
                rest = after;
                field.push(word(&mut rest, ".,=!~")?);
            }
            let mut value = |operator: &str| {
                rest = rest.strip_prefix(operator)?;
                Some(word(&mut rest, ",").unwrap_or_default())
            };
            let test = value("==").map(Test::Equal).or_else(|| value("!=").map(Test::Different));
            clauses.push(Clause { field, test: test.unwrap_or(Test::Present) });
            if rest.is_empty() {
                return Some(SnapshotFilter(clauses));
            }
            rest = rest.strip_prefix(',')?;
        }
    }

    pub(crate) fn passes(&self, info: &SnapshotInfo) -> bool {
        self.0.iter().all(|clause| {
            let value = value_of(info, &clause.field);
            match &clause.test {
                Test::Present => value.is_some(),
                Test::Equal(wanted) => value == Some(wanted),
                Test::Different(other) => value != Some(other),
            }
        })
    }
}

/// Takes a word from the start of `rest`: a quoted one, or up to one of `ends`.
fn word(rest: &mut &str, ends: &str) -> Option<String> {
    if !rest.starts_with('"') {
        let (bare, after) = rest.split_at(rest.find(|c| ends.contains(c)).unwrap_or(rest.len()));
        *rest = after;
        return (!bare.is_empty()).then(|| bare.to_owned());
    }
    let mut word = String::new();
    let mut letters = rest[1..].char_indices();
    loop {
        match letters.next()? {
            (_, '\\') => word.push(letters.next()?.1),
            (at, '"') => {
                *rest = &rest[at + 2..];
                return Some(word);
            }
            (_, letter) => word.push(letter),
        }
    }
}

fn value_of<'a>(info: &'a SnapshotInfo, field: &[String]) -> Option<&'a str> {
    let kind = ["unknown", "view", "active", "committed"];
    let (first, others) = field.split_first()?;
    match (first.as_str(), others) {
        ("name", []) => Some(&info.name),
        ("parent", []) => Some(&info.parent),
        ("kind", []) => usize::try_from(info.kind).ok().and_then(|at| kind.get(at).copied()),
        // Unquoted dots of a label's name are part of it.
        ("labels", [_, ..]) => info.labels.get(&others.join(".")).map(String::as_str),
        _ => None,
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// No such snapshot.
    #[error("snapshot {0}: not found")]
    NotFound(String),
    /// There is one already.
    #[error("snapshot {0}: already exists")]
    Exists(String),
    /// Its state does not allow the call.
    #[error("{0}: failed precondition")]
    Precondition(String),
    /// The call makes no sense.
    #[error("{0}: invalid argument")]
    Invalid(String),
    /// The image cannot be mounted.
    #[error("the image cannot be mounted: {0}")]
    Mount(String),
    /// The disk with this directory does not answer.
    #[error("{}: the disk does not answer, try again", .0.display())]
    Silent(PathBuf),
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Files {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_pass_or_not() {
        let labels = [("containerd.io/snapshot.ref".to_owned(), "sha256:1,2".to_owned())].into();
        let info = SnapshotInfo {
            name: "a".into(),
            parent: "b".into(),
            kind: 2,
            labels,
            ..SnapshotInfo::default()
        };
        for (filter, passes) in [
            ("name==a", true),
            ("name==b", false),
            ("kind==active,parent==b", true),
            ("kind==view", false),
            ("kind!=view", true),
            (r#"labels."containerd.io/snapshot.ref"=="sha256:1,2",parent==b"#, true),
            (r#"labels."containerd.io/snapshot.ref"==sha256:1,2"#, false),
            ("labels.containerd.io/snapshot.ref", true),
            ("labels.other", false),
            ("parent==", false),
            ("parent!=", true),
        ] {
            assert_eq!(
                SnapshotFilter::parse(filter).is_some_and(|parsed| parsed.passes(&info)),
                passes,
                "{filter}"
            );
        }
        for invalid in ["", "name~=a", "==a", r#"name=="a"#, "name=a", "name==a,"] {
            assert!(SnapshotFilter::parse(invalid).is_none(), "{invalid}");
        }
    }
}
