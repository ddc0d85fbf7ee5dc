//! Values whose rules are narrower than their types.

use std::path::PathBuf;

use super::size::ByteSize;

/// A span size: at least 1 byte, at most 1 TiB (it stands in signed 64-bit fields, and no layer is that large).
pub fn span_size(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>().map_err(|e| e.to_string())? {
        ByteSize(0) => Err("must be more than 0".into()),
        size if size.0 > 1 << 40 => Err("must be at most 1024GiB".into()),
        size => Ok(size),
    }
}

/// A tool identifier: it stands in every ztoc and in a manifest annotation, and is printed, so: one line, not endless.
pub fn tool_identifier(text: &str) -> Result<String, String> {
    if text.is_empty() || text.len() > 256 || text.chars().any(char::is_control) {
        return Err("want 1 to 256 bytes without control characters".into());
    }
    Ok(text.to_owned())
}

/// `oci:DIR`.
pub fn layout_dir(text: &str) -> Result<PathBuf, String> {
    match text.strip_prefix("oci:") {
        Some("") | None => Err("want oci:DIR, the OCI layout to write into".into()),
        Some(dir) => Ok(PathBuf::from(dir)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(span_size("1"), Ok(ByteSize(1)));
        assert!(span_size("0").is_err());
        assert!(span_size("0MiB").is_err());
        assert!(span_size("1025GiB").is_err());
        assert!(tool_identifier("").is_err());
        assert!(tool_identifier("a\nb").is_err());
        assert_eq!(tool_identifier("AWS SOCI CLI v0.2").as_deref(), Ok("AWS SOCI CLI v0.2"));
        assert_eq!(layout_dir("oci:some/dir:x"), Ok(PathBuf::from("some/dir:x")));
        assert!(layout_dir("some/dir").is_err());
        assert!(layout_dir("oci:").is_err());
    }
}
