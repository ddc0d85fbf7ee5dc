//! The filters of a list: containerd's `pkg/filters`, without regular expressions.

use super::messages::SnapshotInfo;

/// A snapshot is listed if it passes all of these.
#[derive(Debug)]
pub(crate) struct SnapshotFilter(Vec<Clause>);

#[derive(Debug)]
struct Clause {
    field: Vec<String>,
    test: Test,
}

#[derive(Debug)]
enum Test {
    Present,
    Equal(String),
    Different(String),
}

impl SnapshotFilter {
    /// Parses clauses such as `kind==active,labels."a.b"!=c`. None if it is not valid, or uses the
    /// operator `~=`.
    pub(crate) fn parse(text: &str) -> Option<SnapshotFilter> {
        let (mut clauses, mut rest) = (Vec::new(), text);
        loop {
            let mut field = vec![word(&mut rest, ".,=!~")?];
            while let Some(after) = rest.strip_prefix('.') {
                rest = after;
                field.push(word(&mut rest, ".,=!~")?);
            }
            let mut value = |operator: &str| {
                rest = rest.strip_prefix(operator)?;
                Some(word(&mut rest, ",").unwrap_or_default())
            };
            let test = value("==").map(Test::Equal).or_else(|| value("!=").map(Test::Different));
            clauses.push(Clause { field, test: test.unwrap_or(Test::Present) });
            if rest.is_empty() {
                return Some(SnapshotFilter(clauses));
            }
            rest = rest.strip_prefix(',')?;
        }
    }

    pub(crate) fn passes(&self, info: &SnapshotInfo) -> bool {
        self.0.iter().all(|clause| {
            let value = value_of(info, &clause.field);
            match &clause.test {
                Test::Present => value.is_some(),
                Test::Equal(wanted) => value == Some(wanted),
                Test::Different(other) => value != Some(other),
            }
        })
    }
}

/// Takes a word from the start of `rest`: a quoted one, or up to one of `ends`.
fn word(rest: &mut &str, ends: &str) -> Option<String> {
    if !rest.starts_with('"') {
        let (found, after) = rest.split_at(rest.find(|c| ends.contains(c)).unwrap_or(rest.len()));
        *rest = after;
        return (!found.is_empty()).then(|| found.to_owned());
    }
    let (mut word, mut letters) = (String::new(), rest[1..].char_indices());
    loop {
        match letters.next()? {
            (_, '\\') => word.push(letters.next()?.1),
            (at, '"') => {
                *rest = &rest[at + 2..];
                return Some(word);
            }
            (_, letter) => word.push(letter),
        }
    }
}

fn value_of<'a>(info: &'a SnapshotInfo, field: &[String]) -> Option<&'a str> {
    let kind = ["unknown", "view", "active", "committed"];
    let (first, others) = field.split_first()?;
    match (first.as_str(), others) {
        ("name", []) => Some(&info.name),
        ("parent", []) => Some(&info.parent),
        ("kind", []) => usize::try_from(info.kind).ok().and_then(|at| kind.get(at).copied()),
        // Unquoted dots of a label's name are part of it.
        ("labels", [_, ..]) => info.labels.get(&others.join(".")).map(String::as_str),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_pass_or_not() {
        let labels = [("containerd.io/snapshot.ref".to_owned(), "sha256:1,2".to_owned())].into();
        let info = SnapshotInfo { name: "a".into(), parent: "b".into(), kind: 2, labels, ..SnapshotInfo::default() };
        for (filter, passes) in [
            ("name==a", true),
            ("name==b", false),
            ("kind==active,parent==b", true),
            ("kind==view", false),
            ("kind!=view", true),
            (r#"labels."containerd.io/snapshot.ref"=="sha256:1,2",parent==b"#, true),
            (r#"labels."containerd.io/snapshot.ref"==sha256:1,2"#, false),
            ("labels.containerd.io/snapshot.ref", true),
            ("labels.other", false),
            ("parent==", false),
            ("parent!=", true),
        ] {
            assert_eq!(SnapshotFilter::parse(filter).is_some_and(|it| it.passes(&info)), passes, "{filter}");
        }
        for invalid in ["", "name~=a", "==a", r#"name=="a"#, "name=a", "name==a,"] {
            assert!(SnapshotFilter::parse(invalid).is_none(), "{invalid}");
        }
    }
}
