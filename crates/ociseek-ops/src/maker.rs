//! Identifies the tool that made an index, by its name in the index.

use super::TOOL_IDENTIFIER;

/// The prefix of our name in every version of this program.
const OURS: &str = "ociseek v";
/// The first version of this program that builds the same ztocs as this one. It must be raised
/// together with the cache's format version, whenever another ztoc becomes correct for the same
/// layer.
const FIRST_ALIKE: [u64; 3] = [0, 0, 0];

/// Whether some version of this program made it.
pub fn is_ours(tool: &str) -> bool {
    tool.starts_with(OURS)
}

/// Whether this version of this program or an earlier one made it, as far as the name says. A later
/// version is unknown: anyone can write one, and it says nothing about the index.
pub(super) fn is_known(tool: &str) -> bool {
    version(tool).is_some_and(|maker| Some(maker) <= version(TOOL_IDENTIFIER))
}

/// The version of this program that made it: major, minor, patch; the rest is ignored. None if
/// another tool made it, or the version is not valid.
pub fn version(tool: &str) -> Option<[u64; 3]> {
    numbers(tool.strip_prefix(OURS)?)
}

/// Whether `tool` builds the same ztocs as this program under the name `own_name`, except for the
/// name. That is true of the same name, and of versions of this program up to this one. For other
/// tools it is unknown.
pub(super) fn builds_alike(tool: &str, own_name: &str) -> bool {
    tool == own_name || (is_known(tool) && version(tool) >= Some(FIRST_ALIKE))
}

fn numbers(text: &str) -> Option<[u64; 3]> {
    let core = text.split(['-', '+', ' ']).next()?;
    let mut parts = core.split('.').map(|part| part.parse().ok());
    let version = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_numbers() {
        assert!(version(TOOL_IDENTIFIER).is_some() && is_ours(TOOL_IDENTIFIER));
        assert_eq!(version("ociseek v0.10.0"), Some([0, 10, 0]));
        assert!(version("ociseek v0.10.0") > version("ociseek v0.9.9"));
        assert_eq!(version("ociseek v1.0.0-rc.1"), Some([1, 0, 0]));
        for none in
            ["ociseek v1.0", "ociseek v1.0.0.0", "ociseek vNext", "AWS SOCI CLI v0.2", "0.1.0"]
        {
            assert_eq!(version(none), None, "{none}");
        }
    }

    #[test]
    fn later_versions_are_unknown() {
        assert!(is_known(TOOL_IDENTIFIER) && is_known("ociseek v0.0.9"));
        for unknown in ["ociseek v999.0.0", "ociseek vNext", "AWS SOCI CLI v0.2", ""] {
            assert!(!is_known(unknown), "{unknown}");
        }
    }

    #[test]
    fn only_ztocs_of_older_versions_of_ours_are_alike() {
        for alike in [TOOL_IDENTIFIER, "ociseek v0.0.9", "my tool"] {
            assert!(builds_alike(alike, "my tool"), "{alike}");
        }
        for other in ["ociseek v999.0.0", "ociseek vNext", "AWS SOCI CLI v0.2", "other", ""] {
            assert!(!builds_alike(other, "my tool"), "{other}");
        }
    }
}
