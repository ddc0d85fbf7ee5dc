//! registry.k8s.io.

use super::super::profile::{Profile, Trait};

/// When its blobs moved to another network in August 2026. Others had the same of an Artifactory
/// (containerd/containerd#11998).
pub const REGISTRY_K8S_IO: Profile = Profile {
    name: "registry.k8s.io, August 2026",
    traits: &[(Trait::RangesRefused(400), "kubernetes/registry.k8s.io#333")],
    refusals: &[],
};
