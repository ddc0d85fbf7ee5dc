//! `WWW-Authenticate` and `Link` as registries, and whoever sits before them, write them.
//!
//! Invariants under test: no panic; what is found stands in the header; written as the RFCs say it
//! is found again, also between others.

use ociseek_format::header::{Challenge, challenge, next_link};

/// Each line is the value of one header.
pub fn read(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Some(found) = challenge(text.lines()) {
        for value in [write(&found), format!("Basic realm=\"r\", {}, Negotiate", write(&found))] {
            assert_eq!(challenge([&*value]), Some(found.clone()), "{value}");
        }
        assert_eq!(found.clone().without_scope().without_scope(), found.without_scope());
    }
    if let Some(target) = next_link(text.lines()) {
        assert!(text.contains(&format!("<{target}>")) && !target.contains('>'), "{target}");
    }
    // Any text between the brackets is a target, whatever comes before and after it.
    for line in text.lines().filter(|line| !line.contains('>')) {
        let title = quoted(line);
        let links =
            format!("<p>; rel=\"prev\"; title={title}, <{line}>; title={title}; rel=\"next last\"");
        assert_eq!(next_link([&*links]), Some(line), "{links}");
    }
}

/// RFC 9110 section 11.6.1.
fn write(challenge: &Challenge) -> String {
    let Challenge::Bearer { realm, service, scope } = challenge else { return "Basic".to_owned() };
    let parameter = |name, value: &Option<String>| match value {
        Some(value) => format!(",{name}={}", quoted(value)),
        None => String::new(),
    };
    format!(
        "Bearer realm={}{}{}",
        quoted(realm),
        parameter("service", service),
        parameter("scope", scope)
    )
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
