//! What `ociseek version --format json` prints.

use serde::Serialize;

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Version<'a> {
    pub version: &'static str,
    /// Null where the build did not know it.
    pub commit: Option<&'static str>,
    /// The target that it was built for.
    pub target: &'static str,
    pub features: Vec<&'static str>,
    /// The name that stands in ztocs and indexes as their maker.
    pub build_tool_identifier: &'static str,
    /// The version of the format of the ztocs that are built.
    pub ztoc_version: &'a str,
    /// The version of soci-snapshotter whose ztocs and indexes these are, byte for byte.
    pub soci_version: &'static str,
}
