//! The JSON output of `ociseek version`.

use serde::Serialize;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Version<'a> {
    pub version: &'static str,
    /// Null if it was not known during the build.
    pub commit: Option<&'static str>,
    /// The compilation target.
    pub target: &'static str,
    pub features: Vec<&'static str>,
    /// The tool name that is recorded in ztocs and indexes.
    pub build_tool_identifier: &'static str,
    /// The format version of the ztocs that it builds.
    pub ztoc_version: &'a str,
    /// The version of soci-snapshotter with byte-for-byte equal ztocs and indexes.
    pub soci_version: &'static str,
}
