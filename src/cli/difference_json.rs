//! A difference between a ztoc and its layer, for programs: what `ztoc verify` and whoever else proves ztocs lists.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;

use crate::ops::verify::Difference;

/// `code` is a stable word (see [`Difference::code`]), `message` a line for people. `span` is a span's number; `entry` is an
/// entry's number in the ztoc and `name` its name, in base64 as `name_b64` where it is not UTF-8. Fields that do not apply are left out.
#[derive(Debug, Serialize)]
pub struct DifferenceJson {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    span: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_b64: Option<String>,
}

impl From<&Difference> for DifferenceJson {
    fn from(difference: &Difference) -> DifferenceJson {
        let (entry, name) = difference.entry().map_or((None, None), |(entry, name)| (entry, Some(name)));
        let text = name.and_then(|name| std::str::from_utf8(name).ok());
        DifferenceJson {
            code: difference.code().word(),
            message: difference.to_string(),
            span: difference.span().map(|span| span.0),
            entry,
            name: text.map(str::to_owned),
            name_b64: name.filter(|_| text.is_none()).map(|name| STANDARD.encode(name)),
        }
    }
}
