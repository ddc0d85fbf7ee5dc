//! Who made an index, by the name that stands in it.

/// How the name of each version of this program begins.
const OURS: &str = "ociseek v";

/// Made by some version of this program.
pub fn is_ours(tool: &str) -> bool {
    tool.starts_with(OURS)
}

/// The version of this program that made it: major, minor, patch. What follows them is not looked
/// at. None: it is another tool's, or the version cannot be told.
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
