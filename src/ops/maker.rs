//! Identifies the tool that made an index, by its name in the index.

/// The prefix of our name in every version of this program.
const OURS: &str = "ociseek v";

/// Whether some version of this program made it.
pub fn is_ours(tool: &str) -> bool {
    tool.starts_with(OURS)
}

/// The version of this program that made it: major, minor, patch; the rest is ignored. None if
/// another tool made it, or the version is not valid.
pub fn version(tool: &str) -> Option<[u64; 3]> {
    numbers(tool.strip_prefix(OURS)?)
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
        assert!(version(crate::ops::TOOL_IDENTIFIER).is_some() && is_ours(crate::ops::TOOL_IDENTIFIER));
        assert_eq!(version("ociseek v0.10.0"), Some([0, 10, 0]));
        assert!(version("ociseek v0.10.0") > version("ociseek v0.9.9"));
        assert_eq!(version("ociseek v1.0.0-rc.1"), Some([1, 0, 0]));
        for none in ["ociseek v1.0", "ociseek v1.0.0.0", "ociseek vNext", "AWS SOCI CLI v0.2", "0.1.0"] {
            assert_eq!(version(none), None, "{none}");
        }
    }
}
