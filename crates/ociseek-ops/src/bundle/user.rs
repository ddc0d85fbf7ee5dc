//! The user of a container's process: resolves the config's `User` with the image's own
//! `/etc/passwd` and `/etc/group`, like docker and runc (opencontainers/runc, libcontainer/user):
//! names first, then numbers. A number need not be listed.

/// The largest user or group id that is accepted. Larger ones wrap around to root in some programs
/// (CVE-2024-40635).
const MAX_ID: u32 = i32::MAX as u32;

/// The kernel's limit for supplementary groups (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// A process's user.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct User {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups, sorted.
    pub groups: Vec<u32>,
}

/// Why a user cannot be resolved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("the image's /etc/passwd has no user {0:?}")]
    NoUser(String),
    #[error("the image's /etc/group has no group {0:?}")]
    NoGroup(String),
    #[error("{0} is not a valid user or group ID: the largest is {MAX_ID}")]
    Range(String),
    #[error(
        "the image's /etc/group puts {0:?} in {1} groups, more than the kernel's limit of {MAX_GROUPS}"
    )]
    TooManyGroups(String, usize),
}

/// Resolves `text`: `USER` or `USER:GROUP`, each a name or a number; empty for root.
///
/// # Errors
/// If a name is not listed, a number is too large, or the user is in more groups than a process can
/// have.
pub(super) fn resolve(text: &str, passwd: &[u8], group: &[u8]) -> Result<User, UserError> {
    let (name, group_name) = text.split_once(':').unwrap_or((text, ""));
    let mut users = lines(passwd).filter_map(Account::parse);
    let number = number(name)?;
    let known = match (name, number) {
        ("", _) => users.find(|user| user.uid == 0),
        (_, Some(uid)) => lines(passwd)
            .filter_map(Account::parse)
            .find(|user| user.name == name.as_bytes())
            .or_else(|| users.find(|user| user.uid == uid)),
        _ => users.find(|user| user.name == name.as_bytes()),
    };
    let mut user = match (&known, number) {
        (Some(account), _) => User { uid: account.uid, gid: account.gid, groups: Vec::new() },
        (None, Some(uid)) => User { uid, ..User::default() },
        (None, None) if name.is_empty() => User::default(),
        (None, None) => return Err(UserError::NoUser(shown(name))),
    };
    match group_name {
        // A stated group is the only group.
        "" => user.groups = known.map_or_else(Vec::new, |account| memberships(group, account.name)),
        stated => user.gid = group_id(stated, group)?,
    }
    if user.groups.len() > MAX_GROUPS {
        return Err(UserError::TooManyGroups(shown(name), user.groups.len()));
    }
    Ok(user)
}

struct Account<'a> {
    name: &'a [u8],
    uid: u32,
    gid: u32,
}

impl Account<'_> {
    /// `name:password:uid:gid:...`
    fn parse(line: &[u8]) -> Option<Account<'_>> {
        let mut fields = line.split(|byte| *byte == b':');
        Some(Account { name: fields.next()?, uid: id(fields.nth(1)?)?, gid: id(fields.next()?)? })
    }
}

/// The groups that list a user, from lines `name:password:gid:user,user`.
fn memberships(group: &[u8], user: &[u8]) -> Vec<u32> {
    let member = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let gid = id(fields.nth(2)?)?;
        fields.next()?.split(|byte| *byte == b',').any(|member| member == user).then_some(gid)
    };
    let mut groups: Vec<u32> = lines(group).filter_map(member).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}

fn group_id(name: &str, group: &[u8]) -> Result<u32, UserError> {
    let named = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        (fields.next()? == name.as_bytes()).then(|| id(fields.nth(1)?)).flatten()
    };
    let number = number(name)?;
    lines(group).find_map(named).or(number).ok_or_else(|| UserError::NoGroup(shown(name)))
}

fn lines(file: &[u8]) -> impl Iterator<Item = &[u8]> {
    file.split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty() && !line.starts_with(b"#"))
}

fn id(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.trim().parse().ok().filter(|id| *id <= MAX_ID)
}

/// Parses `text` if it is a number.
fn number(text: &str) -> Result<Option<u32>, UserError> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    id(text.as_bytes()).map(Some).ok_or_else(|| UserError::Range(shown(text)))
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] =
        b"root:x:0:0:root:/root:/bin/sh\n# no one\nweb:x:33:34::/srv:/bin/false\n1000:x:7:8:::\nodd\n\
        far:x:4294967296:0:::\nuser:x:1001:1001:::/bin/sh";
    const GROUP: &[u8] =
        b"root:x:0:\nwww:x:34:\nadm:x:4:root,web\ncdrom:x:24:web\nvideo:x:44:user,web\n";

    fn user(uid: u32, gid: u32, groups: &[u32]) -> Result<User, UserError> {
        Ok(User { uid, gid, groups: groups.to_vec() })
    }

    #[test]
    fn users_are_looked_up_as_by_docker() {
        for (text, expected) in [
            ("", user(0, 0, &[4])),
            ("root", user(0, 0, &[4])),
            ("0", user(0, 0, &[4])),
            ("web", user(33, 34, &[4, 24, 44])),
            ("33", user(33, 34, &[4, 24, 44])),
            ("web:root", user(33, 0, &[])),
            ("web:1234", user(33, 1234, &[])),
            ("web:", user(33, 34, &[4, 24, 44])),
            // A name that looks like a number is first tried as a name.
            ("1000", user(7, 8, &[])),
            ("5000", user(5000, 0, &[])),
            ("5000:www", user(5000, 34, &[])),
            (":www", user(0, 34, &[])),
            ("user", user(1001, 1001, &[44])),
            ("2147483647", user(2_147_483_647, 0, &[])),
            ("2147483648", Err(UserError::Range("2147483648".into()))),
            ("4294967296", Err(UserError::Range("4294967296".into()))),
            ("web:4294967296", Err(UserError::Range("4294967296".into()))),
            ("nobody", Err(UserError::NoUser("nobody".into()))),
            ("far", Err(UserError::NoUser("far".into()))),
            ("web:staff", Err(UserError::NoGroup("staff".into()))),
            ("-1", Err(UserError::NoUser("-1".into()))),
        ] {
            assert_eq!(resolve(text, PASSWD, GROUP), expected, "{text:?}");
        }
        let groups = |count: u32| -> String {
            (1..=count).map(|gid| format!("g{gid}:x:{gid}:web\n")).collect()
        };
        assert_eq!(
            resolve("web", PASSWD, groups(65_536).as_bytes()).map(|user| user.groups.len()),
            Ok(65_536)
        );
        let too_many = Err(UserError::TooManyGroups("web".into(), 65_537));
        assert_eq!(resolve("web", PASSWD, groups(65_537).as_bytes()), too_many);
        // An image from scratch has neither file.
        assert_eq!(resolve("", b"", b""), user(0, 0, &[]));
        assert_eq!(resolve("65534:65534", b"", b""), user(65_534, 65_534, &[]));
    }
}
