//! Signatures that a policy requires: those of the real cosign and notation
//! (`fixtures/signatures`), and untrusted ones.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ociseek_format::digest::Digest;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair,
};
use serde_json::{Value, json};

use super::image::{Image, QUICK, codes};
use ociseek_testkit::copied::copied;
use ociseek_testkit::image::image_manifest;
use ociseek_testkit::sandbox::{OCI_MANIFEST, Sandbox};
use ociseek_testkit::servers::{Server, run, tool};

const SIMPLE: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
pub(super) const NOTATION: &str = "application/vnd.cncf.notary.signature";
const PREDICATE: &str = "https://sigstore.dev/cosign/sign/v1";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/signatures").join(name)
}

/// The result of the signature rule for the only index, and the codes of all differences of the
/// image.
pub(super) fn ruling(document: &Value) -> (Value, Vec<String>) {
    let indexes = document["manifests"][0]["indexes"].as_array().unwrap();
    assert_eq!(indexes.len(), 1, "{document}");
    let rulings = indexes[0]["policy"].as_array().unwrap();
    assert_eq!((rulings.len(), &rulings[0]["rule"]), (1, &json!("signature")), "{document}");
    (rulings[0].clone(), codes(document))
}

/// The result for an image that was signed by a real tool.
fn golden(status: i32, name: &str, option: &str, file: &str) -> (Value, Vec<String>) {
    let image = format!("oci:{}", fixture("images").join(name).display());
    let file = fixture(file).display().to_string();
    ruling(
        &Sandbox::new()
            .json(status, &["verify", "--format=json", "--progress=none", option, &file, &image]),
    )
}

pub(super) fn is_kept(ruling: &(Value, Vec<String>), kind: &str) {
    assert_eq!((&ruling.0["status"], &ruling.1), (&json!("kept"), &Vec::new()), "{ruling:?}");
    assert!(ruling.0["found"].as_str().unwrap().starts_with(kind), "{ruling:?}");
}

pub(super) fn is_broken(ruling: &(Value, Vec<String>), code: &str, why: &str) {
    assert_eq!(
        (&ruling.0["status"], &ruling.1),
        (&json!("broken"), &vec![code.to_owned()]),
        "{ruling:?}"
    );
    let text = ruling.0["violations"][0]["text"].as_str().unwrap();
    assert!(text.contains(why), "{why}: {text}");
    assert!(ruling.0["violations"][0]["next"].as_str().unwrap().contains("sign"), "{ruling:?}");
}

#[test]
fn signatures_of_real_tools() {
    const KEY: (&str, &str) = ("--signature-key", "cosign.pub");
    const AUTHORITY: (&str, &str) = ("--signature-cert", "ca.pem");
    const SIGNER: (&str, &str) = ("--signature-cert", "leaf.pem");
    for (name, (option, file), result) in [
        ("simple:v1", KEY, Ok("cosign, key ")),
        ("bundle:v1", KEY, Ok("cosign, key ")),
        ("referrer:v1", KEY, Ok("cosign, key ")),
        // The key is right, and the signed content names the index, but it is not a signature of
        // the index.
        ("attested:v1", KEY, Err(("signature-untrusted", "it signs"))),
        ("notation:v1", KEY, Err(("signature-missing", "no signature was found"))),
        // A signature on a SOCI-enabled image counts for its index, but not for the one of
        // version 1.
        ("enabled:v2", KEY, Ok("cosign, key ")),
        ("enabled:v1", KEY, Err(("signature-missing", "no signature was found"))),
        ("notation:v1", AUTHORITY, Ok("notation, certificate ")),
        ("notation:v1", SIGNER, Ok("notation, certificate ")),
        ("expired:v1", AUTHORITY, Err(("signature-untrusted", "it expired at"))),
        ("simple:v1", AUTHORITY, Err(("signature-missing", "no signature was found"))),
    ] {
        println!("{name} {file}");
        match result {
            Ok(kind) => is_kept(&golden(0, name, option, file), kind),
            Err((code, why)) => is_broken(&golden(3, name, option, file), code, why),
        }
    }
}

#[test]
fn signatures_in_a_registry() {
    let Some(server) = Server::olareg(|_, _| Vec::new()) else { return };
    let sandbox = Sandbox::new();
    let key = fixture("cosign.pub").display().to_string();
    let judged = |status, name: &str| {
        let image = format!("{}/{name}:v1", server.host);
        let from = format!("oci:{}:v1", fixture("images").join(name).display());
        copied(&sandbox, &from, &image);
        ruling(&sandbox.json(
            status,
            &["verify", "--format=json", "--progress=none", "--signature-key", &key, &image],
        ))
    };
    is_kept(&judged(0, "bundle"), "cosign");
    // What is under a separate tag is not a referrer: docs/lifecycle.md.
    is_broken(&judged(3, "simple"), "signature-missing", "no signature was found");
}

/// Readers apply keys and policies to the index that they open, and read the layer without one that
/// breaks them.
#[test]
fn readers_apply_keys_to_the_index_that_they_open() {
    let sandbox = Sandbox::new();
    let key = fixture("cosign.pub").display().to_string();
    std::fs::write(sandbox.path("p.json"), json!({"signature_keys": [key]}).to_string()).unwrap();
    let by_key = format!("--signature-key={key}");
    let image = |name: &str| format!("oci:{}", fixture("images").join(name).display());
    let index = std::fs::read(fixture("images/simple/index.json")).unwrap();
    let index: Value = serde_json::from_slice(&index).unwrap();
    let listed = index["manifests"].as_array().unwrap();
    let tagged = listed
        .iter()
        .find(|entry| entry["annotations"]["org.opencontainers.image.ref.name"] == "v1");
    let by_digest = image(&format!("simple@{}", tagged.unwrap()["digest"].as_str().unwrap()));
    let untrusted = "breaks the policy";
    let note = "note: only the repository vouches for the index";
    for (options, image, is_lazy, said) in [
        (&[][..], image("attested:v1"), true, None),
        (&[&*by_key], image("simple:v1"), true, None),
        (&[&*by_key], by_digest.clone(), true, None),
        (&[&*by_key], image("enabled:v2"), true, None),
        (&["--policy=p.json"], image("bundle:v1"), true, None),
        (&[&*by_key], image("enabled:v1"), false, Some(untrusted)),
        (&[&*by_key], image("attested:v1"), false, Some(untrusted)),
        (&["--policy=p.json"], image("notation:v1"), false, Some(untrusted)),
        // A rule is a rule, whoever is trusted.
        (&[&*by_key, "--trust=repository"], image("attested:v1"), false, Some(untrusted)),
        (&[], by_digest.clone(), true, Some(note)),
        (&["--trust=repository"], by_digest.clone(), true, Some(note)),
        (&["--trust=image"], by_digest, false, None),
        (&["--trust=image"], image("enabled:v2"), true, None),
        (&["--trust=image"], image("simple:v1"), false, None),
    ] {
        for command in [&["ls"][..], &["try", "--no-run", "--output=/dev/null"]] {
            let more =
                if command[0] == "ls" { &["--stats", "--no-cache"][..] } else { &["--no-cache"] };
            let args = [command, more, &["--progress=none"], options, &[&image]].concat();
            let output = sandbox.run(&args);
            assert!(output.ends_with("--- status 0 ---"), "{args:?}: {output}");
            let notes = [untrusted, note].into_iter().find(|note| output.contains(note));
            assert_eq!(notes, said, "{args:?}: {output}");
            if command[0] == "ls" {
                assert_eq!(output.contains("in 0 requests"), is_lazy, "{args:?}: {output}");
            }
        }
    }
}

#[test]
fn an_unreadable_signature_is_not_a_missing_one() {
    let key = Key::p256();
    let signed = Signed::new(&key);
    let layer = signed.layer("{}", "");
    signed.tag(std::slice::from_ref(&layer));
    let blob = signed.image.path(&layer["digest"].as_str().unwrap().parse().unwrap());
    std::fs::remove_file(&blob).unwrap();
    std::fs::create_dir(&blob).unwrap();
    let said =
        signed.image.sandbox.run(&["verify", "--quick", "--signature-key=key.pub", "oci:img:v1"]);
    let wanted = format!("error: cannot read the signatures of {}: ", signed.index);
    assert!(said.contains(&wanted) && said.ends_with("--- status 1 ---"), "{said}");
}

/// Signs a message.
type Sign = Box<dyn Fn(&[u8]) -> Vec<u8>>;

/// A signing key, and its public key in cosign's format.
pub(super) struct Key {
    sign: Sign,
    pem: String,
}

impl Key {
    pub(super) fn p256() -> Key {
        let head = "3059301306072a8648ce3d020106082a8648ce3d030107034200";
        Key::ecdsa(&ECDSA_P256_SHA256_ASN1_SIGNING, head)
    }

    fn p384() -> Key {
        let head = "3076301006072a8648ce3d020106052b81040022036200";
        Key::ecdsa(&ECDSA_P384_SHA384_ASN1_SIGNING, head)
    }

    fn ecdsa(algorithm: &'static EcdsaSigningAlgorithm, head: &str) -> Key {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).unwrap();
        let pem = pem(head, pair.public_key().as_ref());
        Key {
            sign: Box::new(move |message| pair.sign(&random, message).unwrap().as_ref().to_vec()),
            pem,
        }
    }

    fn ed25519() -> Key {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let pem = pem("302a300506032b6570032100", pair.public_key().as_ref());
        Key { sign: Box::new(move |message| pair.sign(message).as_ref().to_vec()), pem }
    }

    /// By openssl: earlier versions of cosign sign with SHA-256 here too.
    fn p521(hash: &'static str) -> Option<Key> {
        let openssl = tool("openssl")?;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let [key, public] = ["key.pem", "key.pub"].map(at);
        let curve = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-521"];
        run(&openssl, &[&["genpkey"][..], &curve, &["-out", &key]].concat());
        run(&openssl, &["pkey", "-in", &key, "-pubout", "-out", &public]);
        let pem = std::fs::read_to_string(public).unwrap();
        let sign = move |message: &[u8]| openssl_signature(dir.path(), hash, message);
        Some(Key { sign: Box::new(sign), pem })
    }

    pub(super) fn sign(&self, message: &[u8]) -> String {
        STANDARD.encode((self.sign)(message))
    }
}

/// The signature in DER with `key.pem` in `dir`.
pub(super) fn openssl_signature(dir: &Path, hash: &str, message: &[u8]) -> Vec<u8> {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let [key, signed, signature] = ["key.pem", "message", "signature"].map(at);
    std::fs::write(&signed, message).unwrap();
    run(&tool("openssl").unwrap(), &["dgst", hash, "-sign", &key, "-out", &signature, &signed]);
    std::fs::read(signature).unwrap()
}

/// A public key: the bytes before it in DER, in hex, and its own.
fn pem(head: &str, key: &[u8]) -> String {
    let head =
        (0..head.len()).step_by(2).map(|at| u8::from_str_radix(&head[at..at + 2], 16).unwrap());
    let der: Vec<u8> = head.chain(key.iter().copied()).collect();
    format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(der))
}

pub(super) fn payload(digest: &Digest) -> String {
    json!({"critical": {"identity": {"docker-reference": ""}, "image": {"docker-manifest-digest": digest},
        "type": "cosign container image signature"}, "optional": null})
    .to_string()
}

/// An indexed image, with untrusted signatures of its index.
pub(super) struct Signed {
    pub(super) image: Image,
    pub(super) index: Digest,
}

impl Signed {
    pub(super) fn new(key: &Key) -> Signed {
        let image = Image::new();
        std::fs::write(image.sandbox.path("key.pub"), &key.pem).unwrap();
        Signed { index: image.indexes()[0], image }
    }

    fn blob(&self, media_type: &str, content: &[u8]) -> Value {
        json!({"mediaType": media_type, "digest": self.image.write(content), "size": content.len()})
    }

    /// A payload and its signature, as a layer of the manifest that cosign stores under a tag.
    pub(super) fn layer(&self, payload: &str, signature: &str) -> Value {
        let mut layer = self.blob(SIMPLE, payload.as_bytes());
        layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        layer
    }

    /// Puts these layers under the index's tag.
    pub(super) fn tag(&self, layers: &[Value]) {
        self.tag_for(&self.index, layers);
    }

    /// Puts these layers under the tag for signatures of `manifest`.
    pub(super) fn tag_for(&self, manifest: &Digest, layers: &[Value]) {
        let tag = format!("sha256-{}.sig", manifest.hex());
        let manifest = image_manifest(&self.blob("x/y", b"{}"), &layers);
        self.image.list(&manifest, &json!({"org.opencontainers.image.ref.name": tag}));
    }

    /// Lists a manifest with one layer as a referrer of the index.
    pub(super) fn refer(&self, artifact_type: &str, media_type: &str, content: &[u8]) {
        let size = self.image.read(&self.index).len();
        let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": artifact_type,
            "config": self.blob("application/vnd.oci.empty.v1+json", b"{}"), "layers": [self.blob(media_type, content)],
            "subject": {"mediaType": OCI_MANIFEST, "digest": self.index, "size": size}});
        self.image.list(&manifest, &json!({}));
    }

    fn bundle(&self, content: &Value) {
        self.refer(BUNDLE, BUNDLE, content.to_string().as_bytes());
    }

    fn judged(&self, status: i32) -> (Value, Vec<String>) {
        ruling(&self.image.verify(status, &[&QUICK[..], &["--signature-key=key.pub"]].concat()))
    }
}

#[test]
fn keys_of_each_kind() {
    let p521 = ["-sha256", "-sha512"].map(Key::p521).into_iter().flatten();
    for key in [Key::p256(), Key::p384(), Key::ed25519()].into_iter().chain(p521) {
        let signed = Signed::new(&key);
        is_broken(&signed.judged(3), "signature-missing", "no signature was found");
        let payload = payload(&signed.index);
        signed.tag(&[signed.layer(&payload, &key.sign(payload.as_bytes()))]);
        is_kept(&signed.judged(0), "cosign, key key.pub");
    }
}

#[test]
fn untrusted_signatures() {
    let key = Key::p256();
    let other = Key::p256();
    let right = |index: &Digest| payload(index);
    let elsewhere = payload(&Digest::sha256(b"another manifest"));
    type Layer<'a> = Box<dyn Fn(&Signed) -> Value + 'a>;
    let cases: Vec<(&str, Layer<'_>)> = vec![
        // Another key; another curve.
        (
            "no trusted key",
            Box::new(|s| s.layer(&right(&s.index), &other.sign(right(&s.index).as_bytes()))),
        ),
        (
            "no trusted key",
            Box::new(|s| s.layer(&right(&s.index), &Key::p384().sign(right(&s.index).as_bytes()))),
        ),
        // The right key with another payload, in both forms.
        (
            "no trusted key",
            Box::new(|s| s.layer(&right(&s.index), &key.sign(elsewhere.as_bytes()))),
        ),
        (
            "it is for another manifest",
            Box::new(|s| s.layer(&elsewhere, &key.sign(elsewhere.as_bytes()))),
        ),
        ("it is not base64", Box::new(|s| s.layer(&right(&s.index), "%%%"))),
        ("no trusted key", Box::new(|s| s.layer(&right(&s.index), ""))),
        // The signed content is not a payload.
        ("cannot be used", Box::new(|s| s.layer("null", &key.sign(b"null")))),
        (
            "cannot be used",
            Box::new(|s| {
                let deep = format!("{{\"critical\":{}", "[".repeat(100_000));
                s.layer(&deep, &key.sign(deep.as_bytes()))
            }),
        ),
        (
            "it signs",
            Box::new(|s| {
                let odd =
                    right(&s.index).replace("cosign container image signature", "something else");
                s.layer(&odd, &key.sign(odd.as_bytes()))
            }),
        ),
        // A missing payload, and one with an enormous size.
        (
            "cannot be read",
            Box::new(|s| {
                let mut layer = s.layer(&right(&s.index), "");
                layer["digest"] = json!(Digest::sha256(b"absent"));
                layer
            }),
        ),
        (
            "cannot be read",
            Box::new(|s| {
                let mut layer = s.layer(&right(&s.index), "");
                layer["size"] = json!(1_u64 << 60);
                layer
            }),
        ),
    ];
    for (why, layer) in &cases {
        let signed = Signed::new(&key);
        signed.tag(&[layer(&signed)]);
        is_broken(&signed.judged(3), "signature-untrusted", why);
    }
    // None of them prevents a valid signature after them.
    let signed = Signed::new(&key);
    let mut layers: Vec<Value> = cases.iter().map(|(_, layer)| layer(&signed)).collect();
    layers.push(json!({"mediaType": "x/y", "digest": signed.index, "size": 1}));
    layers.push(signed.layer(&right(&signed.index), &key.sign(right(&signed.index).as_bytes())));
    signed.tag(&layers);
    is_kept(&signed.judged(0), "cosign, key key.pub");
}

#[test]
fn ten_thousand_signatures_are_not_all_read() {
    let key = Key::p256();
    let signed = Signed::new(&key);
    let right = payload(&signed.index);
    let mut layers = vec![signed.layer(&right, &Key::p256().sign(right.as_bytes())); 10_000];
    layers.push(signed.layer(&right, &key.sign(right.as_bytes())));
    signed.tag(&layers);
    let judged = signed.judged(3);
    is_broken(
        &judged,
        "signature-untrusted",
        "the signed content was changed (100 times); a signature of",
    );
    is_broken(&judged, "signature-untrusted", "the others were not read");
    assert_eq!(judged.0["found"], "100, none valid");
}

#[test]
fn an_unreadable_manifest_of_signatures() {
    let key = Key::p256();
    for broken in
        ["[]", "{\"layers\": [{}]}", "{\"layers\": 1}", "{\"layers\": [], \"Layers\": []}"]
    {
        let signed = Signed::new(&key);
        let digest = signed.image.write(broken.as_bytes());
        let name = json!({"org.opencontainers.image.ref.name": format!("sha256-{}.sig", signed.index.hex())});
        signed.image.list_blob(&digest, broken.len(), &name);
        is_broken(&signed.judged(3), "signature-untrusted", "it cannot be used");
    }
}

/// An envelope with a statement about `digest`.
fn envelope(key: &Key, digest: &Digest, predicate: &str, kind: &str) -> Value {
    let statement =
        json!({"_type": "https://in-toto.io/Statement/v1", "subject": [{"digest": {"sha256": digest.hex()}}],
        "predicateType": predicate})
        .to_string();
    let mut signed = String::new();
    write!(signed, "DSSEv1 {} {kind} {} {statement}", kind.len(), statement.len()).unwrap();
    let signature = key.sign(signed.as_bytes());
    json!({"payload": STANDARD.encode(&statement), "payloadType": kind, "signatures": [{"sig": signature}]})
}

#[test]
fn bundles() {
    const IN_TOTO: &str = "application/vnd.in-toto+json";
    let key = Key::p256();
    let other = Key::p256();
    let signed = Signed::new(&key);
    let right = envelope(&key, &signed.index, PREDICATE, IN_TOTO);
    let elsewhere = envelope(&key, &Digest::sha256(b"another"), PREDICATE, IN_TOTO);
    let mut swapped = right.clone();
    swapped["payload"].clone_from(&elsewhere["payload"]);
    let message = |signature: String| json!({"messageSignature": {"messageDigest": {}, "signature": signature}});
    let manifest = signed.image.read(&signed.index);
    for (bundle, why) in [
        (
            json!({"dsseEnvelope": envelope(&other, &signed.index, PREDICATE, IN_TOTO)}),
            "no trusted key",
        ),
        (json!({"dsseEnvelope": swapped}), "no trusted key"),
        (json!({"dsseEnvelope": elsewhere}), "it is for another manifest"),
        (
            json!({"dsseEnvelope": envelope(&key, &signed.index, "https://slsa.dev/provenance/v1", IN_TOTO)}),
            "it signs",
        ),
        (
            json!({"dsseEnvelope": envelope(&key, &signed.index, PREDICATE, "text/plain")}),
            "it signs",
        ),
        (message(other.sign(&manifest)), "no trusted key"),
        (message(key.sign(b"another manifest")), "no trusted key"),
        (json!({"dsseEnvelope": right, "messageSignature": {"signature": ""}}), "must have either"),
        (json!({}), "must have either"),
        (json!([]), "it cannot be used"),
    ] {
        let stranger = Signed::new(&key);
        assert_eq!(stranger.index, signed.index, "the same image has the same index");
        stranger.bundle(&bundle);
        is_broken(&stranger.judged(3), "signature-untrusted", why);
    }
    signed.bundle(&json!({}));
    signed.bundle(&json!({"dsseEnvelope": right}));
    is_kept(&signed.judged(0), "cosign, key key.pub");
    // Neither another signer's signature nor something that is none ends the search in an envelope.
    let signed = Signed::new(&key);
    let mut several = right.clone();
    let own = several["signatures"][0].take();
    several["signatures"] = json!([{"sig": "%%%"}, {"sig": other.sign(b"x")}, own]);
    signed.bundle(&json!({"dsseEnvelope": several}));
    is_kept(&signed.judged(0), "cosign, key key.pub");
    let signed = Signed::new(&key);
    signed.bundle(&message(key.sign(&manifest)));
    is_kept(&signed.judged(0), "cosign, key key.pub");
}

#[test]
fn invalid_envelopes_of_notation() {
    let blobs = fixture("images/notation/blobs/sha256");
    let envelopes =
        std::fs::read_dir(blobs).unwrap().map(|file| std::fs::read(file.unwrap().path()).unwrap());
    let envelope = envelopes.filter_map(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let right: Value = { envelope }.find(|document| !document["protected"].is_null()).unwrap();
    let text = |value: &Value| {
        String::from_utf8(URL_SAFE_NO_PAD.decode(value.as_str().unwrap()).unwrap()).unwrap()
    };
    let judged = |envelope: &Value, certificate: &str| {
        let signed = Signed::new(&Key::p256());
        signed.refer(NOTATION, "application/jose+json", envelope.to_string().as_bytes());
        let certificate = fixture(certificate).display().to_string();
        ruling(&signed.image.verify(3, &[&QUICK[..], &["--signature-cert", &certificate]].concat()))
    };
    // It is valid, but for the index of another image.
    is_broken(&judged(&right, "ca.pem"), "signature-untrusted", "it is for another manifest");
    let changed = |field: &str, change: &dyn Fn(Value) -> Value| {
        let mut envelope = right.clone();
        envelope[field] = change(envelope[field].take());
        judged(&envelope, "ca.pem")
    };
    let encode = |text: String| json!(URL_SAFE_NO_PAD.encode(text));
    let payload = changed("payload", &|old| encode(text(&old).replace("sha256:", "sha256:0")));
    is_broken(&payload, "signature-untrusted", "does not match its certificate");
    let scheme =
        changed("protected", &|old| encode(text(&old).replace("notary.x509", "notary.x510")));
    is_broken(&scheme, "signature-untrusted", "does not match its certificate");
    let algorithm = changed("protected", &|old| encode(text(&old).replace("PS256", "none")));
    is_broken(&algorithm, "signature-untrusted", "unsupported algorithm \"none\"");
    let curve = changed("protected", &|old| encode(text(&old).replace("PS256", "ES256")));
    is_broken(&curve, "signature-untrusted", "has the wrong length for its algorithm");
    let chain = changed("header", &|_| json!({"x5c": []}));
    is_broken(&chain, "signature-untrusted", "it has no certificate");
    let chain = changed("header", &|old| json!({"x5c": vec![old["x5c"][0].clone(); 17]}));
    is_broken(&chain, "signature-untrusted", "more than 16 certificates");
    let chain = changed("header", &|_| json!({"x5c": [STANDARD.encode([0x30, 0x80, 0, 0])]}));
    is_broken(&chain, "signature-untrusted", "its certificate is not trusted");
    // The authority's own certificate did not sign this.
    let chain = changed("header", &|old| json!({"x5c": [old["x5c"][1]]}));
    is_broken(&chain, "signature-untrusted", "does not match its certificate");
    // Another authority.
    let Some(ca) = stranger() else { return };
    let signed = Signed::new(&Key::p256());
    signed.refer(NOTATION, "application/jose+json", right.to_string().as_bytes());
    std::fs::write(signed.image.sandbox.path("ca.pem"), ca).unwrap();
    let judged =
        ruling(&signed.image.verify(3, &[&QUICK[..], &["--signature-cert=ca.pem"]].concat()));
    is_broken(&judged, "signature-untrusted", "its certificate is not trusted");
}

/// The certificate of another authority.
fn stranger() -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    ociseek_testkit::servers::private_ca(dir.path())?;
    Some(std::fs::read(dir.path().join("ca.pem")).unwrap())
}

#[test]
fn unusable_keys_fail_before_anything_is_read() {
    let image = Image::new();
    // secp256k1
    let k256 = pem("3056301006072a8648ce3d020106052b8104000a034200", &[4; 65]);
    let cut = Key::p256().pem.replace("MFkw", "MFkx");
    let certificate = std::fs::read_to_string(fixture("ca.pem")).unwrap();
    for (option, content, why) in [
        ("--signature-key", k256.as_str(), "unsupported kind of public key"),
        ("--signature-key", &cut, "malformed"),
        ("--signature-key", &certificate, "it has no public key"),
        ("--signature-key", "", "it has no public key"),
        ("--signature-key", "-----BEGIN PUBLIC KEY-----\n", "it is not PEM"),
        ("--signature-cert", &Key::p256().pem, "it has no certificate"),
        ("--signature-cert", &certificate.replace("MII", "MIJ"), "its certificate is malformed"),
    ] {
        std::fs::write(image.sandbox.path("file"), content).unwrap();
        let said = image.sandbox.run(&["verify", option, "file", "oci:img:v1"]);
        assert!(said.starts_with("--- stderr ---\nerror: file: "), "{said}");
        assert!(said.contains(why) && said.ends_with("--- status 1 ---"), "{why}: {said}");
    }
}
