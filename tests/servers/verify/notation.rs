//! The certificates and attributes of notation signatures: what notation refuses does not count.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair,
};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

use super::image::QUICK;
use super::signatures::{Key, NOTATION, Signed, is_broken, is_kept, openssl_signature, ruling};
use ociseek_format::digest::Digest;
use ociseek_format::time::Time;
use ociseek_testkit::sandbox::OCI_MANIFEST;
use ociseek_testkit::servers::{run, tool};

const DIGITAL_SIGNATURE: u16 = 1 << 15;
const KEY_ENCIPHERMENT: u16 = 1 << 13;
const CERT_SIGN: u16 = 1 << 10;
/// The last numbers of the purposes below 1.3.6.1.5.5.7.3.
const SERVER: u8 = 1;
const CODE: u8 = 3;
const MAIL: u8 = 4;
const TIME_STAMPING: u8 = 8;
/// Stands for anyExtendedKeyUsage.
const ANY: u8 = 0;

fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut der = vec![tag];
    match content.len() {
        length @ 0..=0x7f => der.push(length as u8),
        length => der.extend([0x82, (length >> 8) as u8, length as u8]),
    }
    // 0x82 is only for lengths of two bytes.
    if (0x80..0x100).contains(&content.len()) {
        der.splice(1..4, [0x81, content.len() as u8]);
    }
    der.extend(content);
    der
}

fn text(der: &[u8]) -> String {
    STANDARD.encode(der)
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

fn stamp(days: i64) -> String {
    Time { seconds: now() + days * 86_400, nanos: 0 }.to_rfc3339().unwrap()
}

/// A certificate to be made. By default, that of a signer which is valid.
#[derive(Clone)]
struct Spec {
    name: &'static str,
    is_authority: bool,
    path_length: Option<u8>,
    key_usage: Option<u16>,
    is_usage_critical: bool,
    purposes: &'static [u8],
    /// From and to, in days from now.
    days: (i64, i64),
}

fn signer(name: &'static str) -> Spec {
    Spec {
        name,
        is_authority: false,
        path_length: None,
        key_usage: Some(DIGITAL_SIGNATURE),
        is_usage_critical: true,
        purposes: &[CODE],
        days: (-10, 10),
    }
}

fn authority(name: &'static str) -> Spec {
    Spec { is_authority: true, key_usage: Some(CERT_SIGN), purposes: &[], ..signer(name) }
}

/// A certificate and its key.
struct Made {
    spec: Spec,
    der: Vec<u8>,
    pkcs8: Vec<u8>,
}

impl Made {
    /// A certificate that `issuer` signed, or that is its own issuer.
    fn new(spec: Spec, issuer: Option<&Made>) -> Made {
        let random = SystemRandom::new();
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random)
            .unwrap()
            .as_ref()
            .to_vec();
        let pair = |pkcs8: &[u8]| {
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8, &random).unwrap()
        };
        let name = |cn: &str| {
            let attribute = tlv(0x30, &[&tlv(6, &[&[0x55, 4, 3]]), &tlv(12, &[cn.as_bytes()])]);
            tlv(0x30, &[&tlv(0x31, &[&attribute])])
        };
        let time = |days: i64| {
            let digits: String = stamp(days).chars().filter(char::is_ascii_digit).collect();
            tlv(0x18, &[digits.as_bytes(), b"Z"])
        };
        let algorithm = tlv(0x30, &[&tlv(6, &[&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2]])]);
        let curve = [
            &[0x30, 0x13, 6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1][..],
            &[6, 8, 0x2a, 0x86, 0x48],
        ]
        .concat();
        let curve = [&curve[..], &[0xce, 0x3d, 3, 1, 7]].concat();
        let key = tlv(0x30, &[&curve, &tlv(3, &[&[0], pair(&pkcs8).public_key().as_ref()])]);
        let extension = |id: u8, is_critical: bool, value: Vec<u8>| {
            let critical = if is_critical { &[1, 1, 0xff][..] } else { &[] };
            tlv(0x30, &[&tlv(6, &[&[0x55, 0x1d, id]]), critical, &tlv(4, &[&value])])
        };
        let is_authority = if spec.is_authority { &[1, 1, 0xff][..] } else { &[] };
        let length = spec.path_length.map_or(Vec::new(), |length| vec![2, 1, length]);
        let mut extensions = extension(19, true, tlv(0x30, &[is_authority, &length]));
        if let Some(bits) = spec.key_usage {
            let value = tlv(3, &[&[bits.trailing_zeros() as u8 % 8], &bits.to_be_bytes()[..1]]);
            extensions.extend(extension(15, spec.is_usage_critical, value));
        }
        if !spec.purposes.is_empty() {
            let purpose = |last: &u8| match *last {
                ANY => tlv(6, &[&[0x55, 0x1d, 37, 0]]),
                last => tlv(6, &[&[0x2b, 6, 1, 5, 5, 7, 3, last]]),
            };
            let list: Vec<u8> = spec.purposes.iter().flat_map(purpose).collect();
            extensions.extend(extension(37, false, tlv(0x30, &[&list])));
        }
        let issuer_name = name(issuer.map_or(spec.name, |issuer| issuer.spec.name));
        let signed = tlv(
            0x30,
            &[
                &[0xa0, 3, 2, 1, 2, 2, 1, 7],
                &algorithm,
                &issuer_name,
                &tlv(0x30, &[&time(spec.days.0), &time(spec.days.1)]),
                &name(spec.name),
                &key,
                &tlv(0xa3, &[&tlv(0x30, &[&extensions])]),
            ],
        );
        let signature =
            pair(issuer.map_or(&pkcs8, |issuer| &issuer.pkcs8)).sign(&random, &signed).unwrap();
        let der = tlv(0x30, &[&signed, &algorithm, &tlv(3, &[&[0], signature.as_ref()])]);
        Made { spec, der, pkcs8 }
    }

    fn pem(&self) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", text(&self.der))
    }

    /// An envelope with this chain, after `change` to its protected header.
    fn envelope(&self, signed: &Signed, chain: &[&Made], change: impl Fn(&mut Value)) -> Value {
        let mut protected = json!({
            "alg": "ES256",
            "cty": "application/vnd.cncf.notary.payload.v1+json",
            "crit": ["io.cncf.notary.signingScheme"],
            "io.cncf.notary.signingScheme": "notary.x509",
            "io.cncf.notary.signingTime": stamp(-1),
        });
        change(&mut protected);
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &self.pkcs8, &random)
            .unwrap();
        let chain: Vec<String> = chain.iter().map(|made| text(&made.der)).collect();
        let sign = |message: &[u8]| pair.sign(&random, message).unwrap().as_ref().to_vec();
        sealed(&protected, &signed.index, &chain, sign)
    }
}

/// An envelope with this protected header, and a signature that `sign` makes.
fn sealed(
    protected: &Value,
    index: &Digest,
    chain: &[String],
    sign: impl Fn(&[u8]) -> Vec<u8>,
) -> Value {
    let payload =
        json!({"targetArtifact": {"mediaType": OCI_MANIFEST, "digest": index, "size": 1}});
    let [protected, payload] =
        [protected, &payload].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
    let signature = sign(format!("{protected}.{payload}").as_bytes());
    json!({"payload": payload, "protected": protected, "header": {"x5c": chain},
        "signature": URL_SAFE_NO_PAD.encode(signature)})
}

/// P-521, by openssl.
#[test]
fn a_signer_may_have_a_key_for_p_521() {
    let Some(openssl) = tool("openssl") else { return };
    let key = Key::p256();
    for right in [true, false] {
        let signed = Signed::new(&key);
        let dir = signed.image.sandbox.path("");
        let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
        let [key, cert, der] = ["key.pem", "cert.pem", "cert.der"].map(at);
        let mut ask = vec!["req", "-x509", "-nodes", "-days", "9", "-subj", "/CN=s", "-sha512"];
        ask.extend(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-521"]);
        for extension in [
            "basicConstraints=critical,CA:FALSE",
            "keyUsage=critical,digitalSignature",
            "extendedKeyUsage=codeSigning",
        ] {
            ask.extend(["-addext", extension]);
        }
        run(&openssl, &[&ask[..], &["-keyout", &key, "-out", &cert]].concat());
        run(&openssl, &["x509", "-in", &cert, "-outform", "DER", "-out", &der]);
        let protected = json!({
            "alg": "ES512",
            "cty": "application/vnd.cncf.notary.payload.v1+json",
            "crit": ["io.cncf.notary.signingScheme"],
            "io.cncf.notary.signingScheme": "notary.x509",
            "io.cncf.notary.signingTime": stamp(-1),
        });
        let sign = |message: &[u8]| {
            let message = if right { message } else { b"another message" };
            fixed(&openssl_signature(&dir, "-sha512", message), 66)
        };
        let chain = [text(&std::fs::read(&der).unwrap())];
        let envelope = sealed(&protected, &signed.index, &chain, sign);
        signed.refer(NOTATION, "application/jose+json", envelope.to_string().as_bytes());
        let args = [&QUICK[..], &["--signature-cert=cert.pem"]].concat();
        let ruled = ruling(&signed.image.verify(if right { 0 } else { 3 }, &args));
        if right {
            is_kept(&ruled, "notation, certificate ");
        } else {
            is_broken(&ruled, "signature-untrusted", "does not match its certificate");
        }
    }
}

/// The two numbers of a signature in DER, `length` bytes each. Its own length takes one byte more
/// from 128 bytes on.
fn fixed(der: &[u8], length: usize) -> Vec<u8> {
    let mut rest = &der[if der[1] == 0x81 { 3 } else { 2 }..];
    let mut both = Vec::new();
    while !rest.is_empty() {
        let (number, next) = rest[2..].split_at(usize::from(rest[1]));
        let number = number.strip_prefix(&[0]).unwrap_or(number);
        both.extend(vec![0; length - number.len()]);
        both.extend(number);
        rest = next;
    }
    both
}

/// Judges one envelope after the other, on one image.
struct Judge {
    signed: Signed,
    /// index.json without a signature.
    index_json: Vec<u8>,
}

impl Judge {
    fn new() -> Judge {
        let signed = Signed::new(&Key::p256());
        let index_json = std::fs::read(signed.image.dir.join("index.json")).unwrap();
        Judge { signed, index_json }
    }

    /// `why` is empty if the signature must count.
    fn judge(
        &self,
        trusted: &Made,
        by: &Made,
        chain: &[&Made],
        change: impl Fn(&mut Value),
        why: &str,
    ) {
        std::fs::write(self.signed.image.dir.join("index.json"), &self.index_json).unwrap();
        let envelope = by.envelope(&self.signed, chain, change);
        self.signed.refer(NOTATION, "application/jose+json", envelope.to_string().as_bytes());
        std::fs::write(self.signed.image.sandbox.path("cert.pem"), trusted.pem()).unwrap();
        let status = if why.is_empty() { 0 } else { 3 };
        let ruled = ruling(
            &self
                .signed
                .image
                .verify(status, &[&QUICK[..], &["--signature-cert=cert.pem"]].concat()),
        );
        if why.is_empty() {
            is_kept(&ruled, "notation, certificate ");
        } else {
            is_broken(&ruled, "signature-untrusted", why);
        }
    }
}

fn nothing(_: &mut Value) {}

#[test]
fn chains_of_certificates() {
    let judge = Judge::new();
    let root = Made::new(authority("root"), None);
    let middle = Made::new(authority("middle"), Some(&root));
    let leaf = Made::new(signer("leaf"), Some(&root));
    let below = Made::new(signer("below"), Some(&middle));
    let own = Made::new(signer("own"), None);
    judge.judge(&root, &leaf, &[&leaf, &root], nothing, "");
    judge.judge(&root, &leaf, &[&leaf], nothing, "");
    judge.judge(&root, &below, &[&below, &middle, &root], nothing, "");
    judge.judge(&root, &below, &[&below, &middle], nothing, "");
    judge.judge(&middle, &below, &[&below, &middle, &root], nothing, "");
    // The signer's own certificate is trusted.
    judge.judge(&leaf, &leaf, &[&leaf, &root], nothing, "");
    judge.judge(&own, &own, &[&own], nothing, "");

    let stranger = Made::new(authority("root"), None);
    judge.judge(
        &stranger,
        &leaf,
        &[&leaf, &root],
        nothing,
        "no trusted certificate is in its chain or issued it",
    );
    judge.judge(
        &root,
        &below,
        &[&below, &root],
        nothing,
        "was not issued by the certificate after it",
    );
    judge.judge(
        &root,
        &leaf,
        &[&leaf, &stranger],
        nothing,
        "was not issued by the certificate after it",
    );
    // In the envelope, but not on the way to the signer.
    let theirs = Made::new(signer("theirs"), Some(&stranger));
    judge.judge(
        &root,
        &theirs,
        &[&theirs, &stranger, &root],
        nothing,
        "certificate 2 of the signature was not issued",
    );

    for days in [(-99, -9), (9, 99)] {
        let why = if days.0 < 0 { "expired" } else { "is not valid yet" };
        let old = Made::new(Spec { days, ..authority("old") }, None);
        let leaf = Made::new(signer("leaf"), Some(&old));
        judge.judge(
            &old,
            &leaf,
            &[&leaf, &old],
            nothing,
            &format!("certificate 2 of the signature {why}"),
        );
        judge.judge(
            &old,
            &leaf,
            &[&leaf],
            nothing,
            &format!("the trusted certificate cert.pem {why}"),
        );
        judge.judge(&leaf, &leaf, &[&leaf, &old], nothing, why);
        let leaf = Made::new(Spec { days, ..signer("leaf") }, Some(&root));
        judge.judge(
            &root,
            &leaf,
            &[&leaf, &root],
            nothing,
            &format!("the signer's certificate {why}"),
        );
        judge.judge(&leaf, &leaf, &[&leaf, &root], nothing, why);
        let middle = Made::new(Spec { days, ..authority("middle") }, Some(&root));
        let leaf = Made::new(signer("leaf"), Some(&middle));
        judge.judge(&root, &leaf, &[&leaf, &middle, &root], nothing, why);
    }
    // A signer is no authority, trusted or not, valid or not.
    for days in [(-10, 10), (-99, -9)] {
        let issuer = Made::new(Spec { days, ..signer("issuer") }, Some(&root));
        let leaf = Made::new(signer("leaf"), Some(&issuer));
        for chain in [&[&leaf, &issuer][..], &[&leaf], &[&leaf, &issuer, &root]] {
            judge.judge(&issuer, &leaf, chain, nothing, "its certificate is not trusted");
        }
        judge.judge(
            &root,
            &leaf,
            &[&leaf, &issuer, &root],
            nothing,
            "its certificate is not trusted",
        );
    }
    let issuer = Made::new(Spec { key_usage: Some(CERT_SIGN), ..signer("issuer") }, None);
    let leaf = Made::new(signer("leaf"), Some(&issuer));
    judge.judge(
        &issuer,
        &leaf,
        &[&leaf, &issuer],
        nothing,
        "is not the certificate of an authority",
    );
    for (usage, why) in [
        (Some(DIGITAL_SIGNATURE), "does not allow issuing certificates"),
        (None, "has no critical key usage"),
    ] {
        let issuer = Made::new(Spec { key_usage: usage, ..authority("issuer") }, None);
        let leaf = Made::new(signer("leaf"), Some(&issuer));
        judge.judge(&issuer, &leaf, &[&leaf, &issuer], nothing, why);
        judge.judge(&issuer, &leaf, &[&leaf], nothing, why);
    }
    let short = Made::new(Spec { path_length: Some(0), ..authority("short") }, None);
    let middle = Made::new(authority("middle"), Some(&short));
    let leaf = Made::new(signer("leaf"), Some(&middle));
    judge.judge(&short, &leaf, &[&leaf, &middle, &short], nothing, "allows fewer authorities");
    judge.judge(&short, &leaf, &[&leaf, &middle], nothing, "allows fewer authorities");
}

#[test]
fn uses_of_the_signers_certificate() {
    let judge = Judge::new();
    let root = Made::new(authority("root"), None);
    let with = |spec: Spec, why: &str| {
        let leaf = Made::new(spec, Some(&root));
        judge.judge(&root, &leaf, &[&leaf, &root], nothing, why);
        // Trusting the certificate itself does not change what it is for.
        judge.judge(&leaf, &leaf, &[&leaf, &root], nothing, why);
    };
    let leaf = || signer("leaf");
    with(Spec { purposes: &[], ..leaf() }, "");
    with(Spec { purposes: &[CODE, 99], ..leaf() }, "");
    with(Spec { key_usage: Some(DIGITAL_SIGNATURE | 1 << 14), ..leaf() }, "");
    with(Spec { purposes: &[SERVER], ..leaf() }, "is not for signing code");
    with(Spec { purposes: &[99], ..leaf() }, "is not for signing code");
    with(Spec { purposes: &[CODE, SERVER], ..leaf() }, "is also for TLS servers");
    with(Spec { purposes: &[MAIL, CODE], ..leaf() }, "is also for e-mail");
    with(Spec { purposes: &[CODE, TIME_STAMPING], ..leaf() }, "is also for time stamps");
    with(Spec { purposes: &[CODE, ANY], ..leaf() }, "is also for anything");
    with(Spec { key_usage: None, ..leaf() }, "has no critical key usage");
    with(Spec { is_usage_critical: false, ..leaf() }, "has no critical key usage");
    for usage in
        [KEY_ENCIPHERMENT, DIGITAL_SIGNATURE | KEY_ENCIPHERMENT, DIGITAL_SIGNATURE | CERT_SIGN]
    {
        with(Spec { key_usage: Some(usage), ..leaf() }, "is not digital signatures alone");
    }
    with(authority("leaf"), "belongs to an authority");
}

#[test]
fn signed_attributes() {
    const CRIT: &str = "crit";
    const SCHEME: &str = "io.cncf.notary.signingScheme";
    const EXPIRY: &str = "io.cncf.notary.expiry";
    const TIME: &str = "io.cncf.notary.signingTime";
    let judge = Judge::new();
    let root = Made::new(authority("root"), None);
    let leaf = Made::new(signer("leaf"), Some(&root));
    let changes: [(Value, &str); 14] = [
        (json!({EXPIRY: stamp(1), CRIT: [SCHEME, EXPIRY]}), ""),
        (json!({CRIT: []}), "attribute io.cncf.notary.signingScheme is not critical"),
        (
            json!({CRIT: [EXPIRY], EXPIRY: stamp(1)}),
            "attribute io.cncf.notary.signingScheme is not critical",
        ),
        (json!({CRIT: null}), "cannot be used"),
        (json!({EXPIRY: stamp(1)}), "attribute io.cncf.notary.expiry is not critical"),
        (json!({CRIT: [SCHEME, EXPIRY]}), "unknown critical attribute \"io.cncf.notary.expiry\""),
        (json!({CRIT: [SCHEME, SCHEME]}), "unknown critical attribute"),
        (json!({CRIT: [SCHEME, "b64"], "b64": false}), "unknown critical attribute \"b64\""),
        (
            json!({CRIT: [SCHEME, EXPIRY], EXPIRY: "2020-01-01T00:00:00Z"}),
            "expires before it was signed",
        ),
        (json!({CRIT: [SCHEME, EXPIRY], EXPIRY: stamp(-2), TIME: stamp(-3)}), "it expired at"),
        (json!({TIME: null}), "cannot be used"),
        (json!({TIME: "yesterday"}), "signing time is not a time"),
        (
            json!({"io.cncf.notary.authenticSigningTime": stamp(-1)}),
            "has a time that is not for the signing scheme",
        ),
        (json!({SCHEME: "notary.x509.signingAuthority"}), "unsupported signing scheme"),
    ];
    for (changed, why) in changes {
        let change = |protected: &mut Value| {
            for (key, value) in changed.as_object().unwrap() {
                match value {
                    Value::Null => drop(protected.as_object_mut().unwrap().remove(key)),
                    value => protected[key] = value.clone(),
                }
            }
        };
        judge.judge(&root, &leaf, &[&leaf, &root], change, why);
    }
}
