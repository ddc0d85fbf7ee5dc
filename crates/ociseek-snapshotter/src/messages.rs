//! The messages of `containerd.services.snapshots.v1`, without the fields that are not used, as
//! containerd's `api/services/snapshots/v1/snapshots.proto` and `api/types/mount.proto` number
//! them.

use std::collections::BTreeMap;

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

/// `SERVING` of `ServingStatus`.
pub(crate) const SERVING: i32 = 1;
