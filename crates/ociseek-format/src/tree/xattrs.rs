//! Selects the extended attributes of an entry that containerd sets and Linux accepts.

use crate::tar::PaxRecord;

/// The prefix of the PAX records that containerd takes as extended attributes. It ignores others,
/// such as `LIBARCHIVE.xattr.`.
const PREFIX: &[u8] = b"SCHILY.xattr.";
/// The maximum length of an attribute's name (Linux: XATTR_NAME_MAX).
const NAME_MAX: usize = 255;
pub(super) const CAPABILITY: &[u8] = b"security.capability";

pub(super) enum XattrRule {
    Set,
    /// containerd continues without it.
    Ignore(&'static str),
    /// containerd fails.
    Refuse(&'static str),
}

/// The name and value of a record for an extended attribute.
pub(super) fn of(record: &PaxRecord) -> Option<(&[u8], &[u8])> {
    Some((record.key.strip_prefix(PREFIX)?, &record.value))
}

/// The outcome of setxattr(2) as root on a file system that supports attributes. `is_plain` means a
/// regular file or directory.
///
/// One outcome differs: Linux refuses values of more than 64 KiB. They are kept here, because the
/// kernel also refuses to read them.
pub(super) fn judge(name: &[u8], value: &[u8], is_plain: bool) -> XattrRule {
    let (namespace, rest) = match name.iter().position(|&b| b == b'.') {
        Some(dot) => (&name[..dot], &name[dot + 1..]),
        None => (name, &[][..]),
    };
    if name.starts_with(b"trusted.") {
        return XattrRule::Ignore("is trusted");
    }
    if name.is_empty() || name.len() > NAME_MAX {
        return XattrRule::Refuse("whose name is empty or longer than 255 bytes");
    }
    if name.contains(&0) {
        return XattrRule::Refuse("whose name contains a NUL");
    }
    match namespace {
        b"user" | b"security" if rest.is_empty() && name.ends_with(b".") => XattrRule::Refuse("whose name ends early"),
        b"user" if !rest.is_empty() && is_plain => XattrRule::Set,
        b"user" if !rest.is_empty() => XattrRule::Ignore("is for files and directories only"),
        b"security" if name == CAPABILITY && !is_capability(value) => {
            XattrRule::Refuse("whose value is not a capability set")
        }
        b"security" if !rest.is_empty() => XattrRule::Set,
        b"system" if matches!(rest, b"posix_acl_access" | b"posix_acl_default") => XattrRule::Set,
        _ => XattrRule::Ignore("has a namespace unknown to Linux"),
    }
}

/// Whether Linux accepts the value (security/commoncap.c validheader): revision 2, or 3 with a root
/// id. Empty values are not checked.
fn is_capability(value: &[u8]) -> bool {
    matches!((value.len(), value.get(3)), (0, None) | (20, Some(2)) | (24, Some(3)))
}
