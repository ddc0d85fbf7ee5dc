//! Why a server refused, in its own words: the codes and the message in the body of an error.

use serde_json::{Map, Value};

use super::transport::one_line;

/// The most characters of a message, and of what explains it further.
const MESSAGE: usize = 200;
const DETAIL: usize = 300;
/// The most codes that are kept.
const CODES: usize = 16;

/// The codes and message in an error body: JSON of the distribution spec, of a token service or of
/// a gateway, XML of an object store, the title of a web page, or the first line of anything else.
pub(super) fn explain(body: &[u8]) -> (Vec<String>, String) {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(object)) => of_object(&object),
        Ok(Value::String(text)) => (Vec::new(), one_line(&text, MESSAGE)),
        // On one line, whatever the server did.
        Ok(other) => (Vec::new(), one_line(&other.to_string(), MESSAGE)),
        Err(_) => of_text(&String::from_utf8_lossy(body)),
    }
}

fn of_object(object: &Map<String, Value>) -> (Vec<String>, String) {
    let entries = match object.get("errors") {
        Some(Value::Array(all)) => all.as_slice(),
        _ => &[],
    };
    let code = |entry: &Value| entry.get("code").and_then(Value::as_str).map(str::to_owned);
    let mut codes: Vec<String> = entries.iter().take(CODES).filter_map(code).collect();
    let mut message = entries.iter().map(of_entry).find(|text| !text.is_empty());
    match object.get("error") {
        // RFC 6749 section 5.2: a code. Gateways have a sentence there.
        Some(Value::String(error)) if error.contains(' ') => {
            message = message.or_else(|| Some(one_line(error, MESSAGE)));
        }
        Some(Value::String(error)) => codes.push(error.clone()),
        // Google's APIs.
        Some(Value::Object(error)) => {
            codes.extend(error.get("status").and_then(Value::as_str).map(str::to_owned));
            message = message.or_else(|| Some(of_fields(error)));
        }
        _ => {}
    }
    let message = message.filter(|text| !text.is_empty()).unwrap_or_else(|| of_fields(object));
    let is_empty = codes.is_empty() && message.is_empty() && entries.is_empty();
    let message = if is_empty && !object.is_empty() {
        one_line(&Value::Object(object.clone()).to_string(), MESSAGE)
    } else {
        message
    };
    (codes.iter().map(|code| one_line(code, 60)).collect(), message)
}

/// An entry of the distribution spec's `errors`, which gateways write as text, too.
fn of_entry(entry: &Value) -> String {
    match entry {
        Value::String(text) => one_line(text, MESSAGE),
        Value::Object(entry) => {
            let is_scope = entry.get("code").is_some_and(|code| code == "UNAUTHORIZED");
            let mut entry = entry.clone();
            // What was asked for, which the request line says, too.
            if is_scope && entry.get("detail").is_some_and(Value::is_array) {
                entry.remove("detail");
            }
            of_fields(&entry)
        }
        _ => String::new(),
    }
}

/// The message in the fields of an object, and what explains it: RFC 6749's `error_description`,
/// docker's `message` and `detail`, or `details` at its token service, RFC 9457's `title` and
/// `detail`.
fn of_fields(object: &Map<String, Value>) -> String {
    let text =
        |name: &str| object.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let names = ["error_description", "error_message", "message", "title", "msg"];
    let message = names.into_iter().find_map(text).map(|text| one_line(text, MESSAGE));
    let detail = ["detail", "details"].into_iter().find_map(|name| match object.get(name)? {
        Value::Null => None,
        Value::String(text) => Some(text.split_whitespace().collect::<Vec<_>>().join(" ")),
        Value::Object(inner) if inner.is_empty() => None,
        Value::Array(inner) if inner.is_empty() => None,
        other => Some(other.to_string()),
    });
    let detail = detail.map(|detail| one_line(&detail, DETAIL)).filter(|text| !text.is_empty());
    match (message, detail) {
        (Some(message), Some(detail)) if message == detail => message,
        (Some(message), Some(detail)) => format!("{message}: {detail}"),
        (one, other) => one.or(other).unwrap_or_default(),
    }
}

/// Text that is not JSON.
fn of_text(text: &str) -> (Vec<String>, String) {
    if !text.trim_start().starts_with('<') {
        return (Vec::new(), one_line(text, MESSAGE));
    }
    // Object stores: Amazon S3 API Reference, "Error responses".
    let code = element(text, "code").filter(|_| element(text, "title").is_none());
    let message = code.as_ref().and_then(|_| element(text, "message"));
    let codes = code.iter().map(|code| one_line(code, 60)).collect();
    let message = message.or_else(|| code.is_none().then(|| title(text)).flatten());
    match (message, code) {
        (Some(message), _) => (codes, one_line(&message, MESSAGE)),
        (None, Some(_)) => (codes, String::new()),
        (None, None) => (codes, first_words(text)),
    }
}

/// The first text of a page that has no title.
fn first_words(page: &str) -> String {
    let inner = page.split('<').filter_map(|part| part.split_once('>'));
    let words = inner.map(|(_, text)| text.split_whitespace().collect::<Vec<_>>().join(" "));
    let text = words.into_iter().find(|text| !text.is_empty());
    one_line(&text.unwrap_or_else(|| page.to_owned()), MESSAGE)
}

/// The title of an HTML page, or its first heading; None for other text.
pub(super) fn title(page: &str) -> Option<String> {
    if !page.trim_start().starts_with('<') {
        return None;
    }
    ["title", "h1", "h2"].iter().find_map(|name| element(page, name))
}

/// The text of the first element with this name, in lower case, of HTML or XML.
fn element(page: &str, name: &str) -> Option<String> {
    // Lowering ASCII keeps the positions.
    let lower = page.to_ascii_lowercase();
    let begins = |at: usize| lower[at + 1 + name.len()..].starts_with(['>', ' ', '\t', '\n', '\r']);
    let tag = format!("<{name}");
    let after = lower.match_indices(&tag).map(|(at, _)| at).find(|at| begins(*at))?;
    let from = after + lower[after..].find('>')? + 1;
    let until = from + lower[from..].find("</")?;
    let words: Vec<&str> = page[from..until].split_whitespace().collect();
    let text = words.join(" ");
    let text = [
        ("&nbsp;", " "),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text, |text, (entity, plain)| text.replace(entity, plain));
    Some(one_line(&text, MESSAGE)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_bodies_of_every_kind() {
        for (body, codes, message) in [
            (
                r#"{"errors":[{"code":"DENIED","message":"no\nquota","detail":{}},{"code":"X"}]}"#,
                &["DENIED", "X"][..],
                "no",
            ),
            (
                r#"{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":"no space\nleft"}]}"#,
                &["UNKNOWN"],
                "unknown error: no space left",
            ),
            (
                r#"{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"blob unknown to registry","detail":{"digest":"sha256:0"}}]}"#,
                &["MANIFEST_BLOB_UNKNOWN"],
                "blob unknown to registry: {\"digest\":\"sha256:0\"}",
            ),
            (
                r#"{"errors":[{"code":"UNAUTHORIZED","message":"log in","detail":[{"Type":"repository"}]}]}"#,
                &["UNAUTHORIZED"],
                "log in",
            ),
            (r#"{"errors":[{"status":403,"message":"Forbidden by X"}]}"#, &[], "Forbidden by X"),
            (r#"{"errors":["no such project"]}"#, &[], "no such project"),
            (
                r#"{"error":"invalid_grant","error_description":"expired"}"#,
                &["invalid_grant"],
                "expired",
            ),
            (r#"{"error":"the project is gone"}"#, &[], "the project is gone"),
            (
                "{\n  \"error\": {\n    \"code\": 403,\n    \"message\": \"Permission denied\",\n\
                 \"status\": \"PERMISSION_DENIED\"\n  }\n}",
                &["PERMISSION_DENIED"],
                "Permission denied",
            ),
            (r#"{"details":"wrong password"}"#, &[], "wrong password"),
            (r#"{"message":"blocked by policy"}"#, &[], "blocked by policy"),
            (r#"{"detail":"Not authenticated"}"#, &[], "Not authenticated"),
            (r#"{"error_message":"quota"}"#, &[], "quota"),
            (
                r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":"No pull right"}"#,
                &[],
                "Forbidden: No pull right",
            ),
            ("{\n  \"reasonCode\": 7\n}", &[], "{\"reasonCode\":7}"),
            ("[\n  1\n]", &[], "[1]"),
            ("{}", &[], ""),
            ("null", &[], "null"),
            (
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>AccessDenied</Code>\
                 <Message>no kms Decrypt</Message></Error>",
                &["AccessDenied"],
                "no kms Decrypt",
            ),
            (
                "\u{feff}<?xml version=\"1.0\"?><Error><Code>AuthenticationFailed</Code>\
                 <Message>Server failed.\nRequestId:1</Message></Error>",
                &["AuthenticationFailed"],
                "Server failed. RequestId:1",
            ),
            ("<html><title>Forbidden</title><code>x</code>", &[], "Forbidden"),
            ("<html><body><p>Blocked by X</p></body></html>", &[], "Blocked by X"),
            ("<html>\u{1b}[2J\n<body>", &[], "\\u{1b}[2J"),
            ("", &[], ""),
        ] {
            assert_eq!(
                explain(body.as_bytes()),
                (codes.iter().map(|code| (*code).to_owned()).collect(), message.to_owned()),
                "{body}"
            );
        }
        assert_eq!(explain(b"\xff\xfe").1, "\u{fffd}\u{fffd}");
        let long = format!(r#"{{"message":"{0}","detail":"{0}"}}"#, "x".repeat(5000));
        assert!(explain(long.as_bytes()).1.chars().count() < 600);
    }

    #[test]
    fn pages_have_titles() {
        let nginx = "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body></body></html>";
        for (page, want) in [
            (nginx, Some("413 Request Entity Too Large")),
            (
                "<!DOCTYPE html>\n<TITLE lang=en>\n  Error 411\n  &amp; more </TITLE>",
                Some("Error 411 & more"),
            ),
            (
                "<html><title></title><body><h1 class=x>502 Bad Gateway</h1>",
                Some("502 Bad Gateway"),
            ),
            ("<html><title>a\u{1b}[2J</title>", Some("a\\u{1b}[2J")),
            ("<html><body>no title", None),
            ("<title>open", None),
            ("<title", None),
            ("plain text", None),
        ] {
            assert_eq!(title(page).as_deref(), want, "{page}");
        }
    }
}
