//! PAX extended headers (POSIX pax, "pax Extended Header"), parsed as archive/tar's parsePAX and
//! mergePAX do.

use super::numeric::{decimal, pax_time};
use super::{Entry, PaxRecord};

/// The records of one extended header, sorted by key. The last record of a key is used.
pub(super) type Records = Box<[PaxRecord]>;

/// Parses the data of an `x` header. None if Go rejects it.
pub(super) fn parse(mut data: &[u8]) -> Option<Records> {
    let mut records: Vec<(&[u8], &[u8])> = Vec::new();
    // GNU's sparse format 0.0 repeats two keys; Go merges their values into the single record of
    // format 0.1.
    let mut sparse_map: Vec<&[u8]> = Vec::new();
    while !data.is_empty() {
        let (key, value, rest) = record(data)?;
        data = rest;
        match key {
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                let expected: &[u8] =
                    if sparse_map.len().is_multiple_of(2) { b"GNU.sparse.offset" } else { b"GNU.sparse.numbytes" };
                if key != expected || value.contains(&b',') {
                    return None;
                }
                sparse_map.push(value);
            }
            _ => records.push((key, value)),
        }
    }
    let joined = sparse_map.join(&b","[..]);
    if !sparse_map.is_empty() {
        records.push((b"GNU.sparse.map", &joined));
    }
    // Of records with the same key, the last one comes first and is kept.
    records.reverse();
    records.sort_by_key(|(key, _)| *key);
    records.dedup_by_key(|(key, _)| *key);
    Some(records.into_iter().map(|(key, value)| PaxRecord { key: key.into(), value: value.into() }).collect())
}

/// One record, `LENGTH KEY=VALUE\n`, where LENGTH counts itself (strconv.go parsePAXRecord).
fn record(data: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = data.iter().position(|&b| b == b' ')?;
    let length = usize::try_from(decimal(&data[..space])?).ok()?;
    if length < 5 || length > data.len() || length <= space + 1 {
        return None;
    }
    let (body, rest) = (&data[space + 1..length], &data[length..]);
    let body = body.strip_suffix(b"\n")?;
    let equals = body.iter().position(|&b| b == b'=')?;
    let (key, value) = (&body[..equals], &body[equals + 1..]);
    // NULs are errors where they would end a C string: in keys and in values that are names.
    let must_not_hold_nul = match key {
        b"" => return None,
        b"path" | b"linkpath" | b"uname" | b"gname" => value,
        _ => key,
    };
    if must_not_hold_nul.contains(&0) { None } else { Some((key, value, rest)) }
}

/// Overrides the header block with the records. None if Go rejects them.
pub(super) fn merge(entry: &mut Entry, records: Records) -> Option<()> {
    for PaxRecord { key, value } in &records {
        if value.is_empty() {
            continue; // keeps what the header block says
        }
        match &key[..] {
            b"path" => entry.name = value[..].into(),
            b"linkpath" => entry.linkname = value[..].into(),
            b"uname" => entry.uname = value[..].into(),
            b"gname" => entry.gname = value[..].into(),
            b"uid" => entry.uid = decimal(value)?,
            b"gid" => entry.gid = decimal(value)?,
            b"size" => entry.size = decimal(value)?,
            b"mtime" => entry.mtime = pax_time(value)?,
            b"atime" | b"ctime" => {
                pax_time(value)?;
            }
            _ => {}
        }
    }
    entry.pax = records;
    Some(())
}

/// The value of a key; empty if there is none.
pub(super) fn value_of<'a>(records: &'a [PaxRecord], key: &[u8]) -> &'a [u8] {
    records.binary_search_by(|record| record.key[..].cmp(key)).map_or(&[][..], |at| &records[at].value[..])
}

/// Whether the records make the entry a GNU sparse file (reader.go readGNUSparsePAXHeaders).
pub(super) fn is_sparse(records: &[PaxRecord]) -> bool {
    match (value_of(records, b"GNU.sparse.major"), value_of(records, b"GNU.sparse.minor")) {
        (b"0", b"0" | b"1") | (b"1", b"0") => true,
        (b"", b"") => !value_of(records, b"GNU.sparse.map").is_empty(),
        _ => false, // a version that Go does not know: a file like any other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records() {
        let parsed = parse(b"12 path=a/b\n7 k==v\n12 path=c d\n").unwrap();
        let parsed: Vec<_> = parsed.iter().map(|record| (&record.key[..], &record.value[..])).collect();
        assert_eq!(parsed, [(&b"k"[..], &b"=v"[..]), (b"path", b"c d")]);
    }

    #[test]
    fn records_that_go_refuses_are_refused() {
        for bad in [
            &b"12 path=a/b"[..],  // no newline
            b"11 path=a/b\n",     // one too short: no newline where it should be
            b"13 path=a/b\n",     // longer than the data
            b"12 path:a/b\n",     // no equals sign
            b"4 =\n",             // shorter than any record
            b"5 =v\n",            // no key
            b"path=a/b\n",        // no length
            b" 12 path=a/b\n",    // no length either
            b"-12 path=a/b\n",    // negative
            b"0x0c path=a/b\n",   // not decimal
            b"12 path=a\0b\n",    // NUL in a name
            b"10 k\0ey=v\n",      // NUL in a key
            b"12 path=a/b\n\0\0", // bytes behind the last record
            b"99999999999999999999 path=a/b\n",
            b"26 GNU.sparse.numbytes=1\n",
        ] {
            assert_eq!(parse(bad), None, "{}", bad.escape_ascii());
        }
        assert!(parse(b"+12 path=ab\n").is_some(), "strconv.ParseInt takes a plus sign");
    }
}
