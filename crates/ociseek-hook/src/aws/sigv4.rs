//! Signature Version 4 (AWS IAM User Guide, "AWS Signature Version 4 for API requests"), only for
//! the requests made here: a POST of JSON to the root of a service, without a query.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

use ociseek_format::digest::hex;
use ociseek_format::time::Time;

/// The caller's credentials. In a function, they are in the environment.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    /// Present in temporary credentials.
    pub session_token: Option<String>,
}

/// Shows the key id, but no secrets.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({})", self.access_key_id)
    }
}

/// The scope of a signature: this service in this region, on this day.
#[derive(Debug, Clone, Copy)]
pub(super) struct SigningScope<'a> {
    pub region: &'a str,
    pub service: &'a str,
}

/// A request to be signed: a POST to `/` of `host`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestToSign<'a> {
    pub method: &'a str,
    /// With the port, unless it is the scheme's default.
    pub host: &'a str,
    /// Names in lower case and sorted, without `host` and the signature's own `x-amz-*` headers.
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

/// The headers of the signed request: `x-amz-date`, `authorization`, and `x-amz-security-token` if
/// there is a session token.
pub(super) fn sign(
    request: &RequestToSign,
    scope: SigningScope,
    credentials: &Credentials,
    now: SystemTime,
) -> Vec<(&'static str, String)> {
    let time = timestamp(now);
    let mut added = vec![("x-amz-date", time.clone())];
    if let Some(token) = &credentials.session_token {
        added.push(("x-amz-security-token", token.clone()));
    }
    let mut headers: Vec<(&str, &str)> = vec![("host", request.host)];
    headers.extend(request.headers);
    headers.extend(added.iter().map(|(name, value)| (*name, value.as_str())));
    headers.sort_unstable();

    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let names = names.join(";");
    let mut canonical = format!("{}\n/\n\n", request.method);
    for (name, value) in headers {
        canonical += &format!("{name}:{}\n", value.trim());
    }
    canonical += &format!("\n{names}\n{}", hex(&Sha256::digest(request.body)));

    let day = time.get(..8).unwrap_or_default();
    let within = format!("{day}/{}/{}/aws4_request", scope.region, scope.service);
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{within}\n{}", hex(&Sha256::digest(&canonical)));
    let signature = hex(&mac(&key(credentials, day, scope), &text));
    let id = &credentials.access_key_id;
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={id}/{within}, SignedHeaders={names}, Signature={signature}"
    );
    added.push(("authorization", authorization));
    added
}

fn key(credentials: &Credentials, day: &str, scope: SigningScope) -> [u8; 32] {
    let secret = format!("AWS4{}", credentials.secret_access_key);
    [day, scope.region, scope.service, "aws4_request"]
        .iter()
        .fold(None, |key: Option<[u8; 32]>, part| {
            Some(mac(key.as_ref().map_or(secret.as_bytes(), |k| &k[..]), part))
        })
        .unwrap_or_default()
}

fn mac(key: &[u8], text: &str) -> [u8; 32] {
    // HMAC accepts keys of any length (RFC 2104, section 2), so this never fails.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return [0; 32] };
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

/// `YYYYMMDDTHHMMSSZ`. Times before 1970 become 1970.
fn timestamp(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = Time { seconds: i64::try_from(seconds).unwrap_or_default(), nanos: 0 };
    // Times after the year 9999 do not occur.
    time.to_rfc3339().unwrap_or_default().replace(['-', ':'], "")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn example() -> Credentials {
        Credentials {
            access_key_id: "AKIDEXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
        }
    }

    /// 2015-08-30T12:36:00Z, the time of AWS's test suite.
    fn then() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_440_938_160)
    }

    fn authorization(request: &RequestToSign, credentials: &Credentials, service: &str) -> String {
        let headers =
            sign(request, SigningScope { region: "us-east-1", service }, credentials, then());
        headers.into_iter().find(|(name, _)| *name == "authorization").unwrap().1
    }

    /// The relevant cases of AWS's "Signature Version 4 test suite".
    #[test]
    fn signatures_match_the_aws_test_suite() {
        let request = |method, headers, body| RequestToSign {
            method,
            host: "example.amazonaws.com",
            headers,
            body,
        };
        let form = [("content-type", "application/x-www-form-urlencoded")];
        for (request, names, signature) in [
            (
                request("GET", &[], b""),
                "host;x-amz-date",
                "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
            ),
            (
                request("POST", &[], b""),
                "host;x-amz-date",
                "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
            ),
            (
                request("POST", &form, b"Param1=value1"),
                "content-type;host;x-amz-date",
                "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
            ),
        ] {
            let expected = format!(
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, \
                 SignedHeaders={names}, \
                 Signature={signature}"
            );
            assert_eq!(authorization(&request, &example(), "service"), expected);
        }
    }

    /// botocore 1.44.5's signature for the same call. The suite has no case with a signed session
    /// token.
    #[test]
    fn signatures_match_botocore() {
        let target = "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken";
        let headers = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", target)];
        let host = "api.ecr.us-east-1.amazonaws.com";
        let request = RequestToSign { method: "POST", host, headers: &headers, body: b"{}" };
        let credentials =
            Credentials { session_token: Some("a/session+token==".into()), ..example() };
        assert_eq!(
            authorization(&request, &credentials, "ecr"),
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/ecr/aws4_request, \
             SignedHeaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target, \
             Signature=5fc338ca11439e636c6139068da69f2aeb8c15b2081ea599d32721e0bbb901e9"
        );
    }

    /// The example of a signing key in the AWS documentation ("Examples of how to derive a signing
    /// key").
    #[test]
    fn the_signing_key_matches_the_documented_one() {
        let key = key(&example(), "20150830", SigningScope { region: "us-east-1", service: "iam" });
        assert_eq!(hex(&key), "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9");
    }

    #[test]
    fn timestamps_are_formatted() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101T000000Z");
        assert_eq!(at(1_440_938_160), "20150830T123600Z");
        assert_eq!(timestamp(UNIX_EPOCH - Duration::from_secs(1)), "19700101T000000Z");
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", example()), "Credentials(AKIDEXAMPLE)");
    }
}
