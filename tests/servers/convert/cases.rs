//! Unusual images, and intentional differences between our conversion and soci's.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ociseek_format::digest::Algorithm;

use super::maker::*;

/// The expected results of both converters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expect {
    /// The same digest.
    Same,
    /// soci fails, and our result is right. With the reason.
    OnlyOurs(&'static str),
    /// The results differ. With the reason.
    Differs(&'static str),
    /// soci accepts an image that we refuse with this message.
    OnlySoci(&'static str),
    /// Neither can convert the image.
    Neither,
}
use Expect::{Differs, Neither, OnlyOurs, OnlySoci, Same};

pub const ATTESTATIONS: &str =
    "soci drops the annotations of attestations, so that nothing says what they attest";
pub const ARTIFACTS: &str = "soci makes images of artifacts by giving them an image's config type";
pub const WINDOWS: &str =
    "soci takes a version of Windows for another that containers of it run on";
pub const FEATURES: &str = "soci takes an image without OS features for one with them";
pub const OTHERS: &str = "soci cannot convert one platform beside the index of another";
pub const FOREIGN: &str = "soci fails the whole image for a foreign layer that is elsewhere";
pub const ODD_LAYER: &str = "soci fails the whole image for a layer of an unknown type";
pub const UNPLATFORMED: &str = "soci does not look for the platform of an entry in its config";
pub const UNLIKE_ITS_TYPE: &str =
    "soci fails the whole image for a layer that is not what its type says";
pub const ENCRYPTED: &str =
    "soci fails the whole image for an encrypted layer whose type says gzip, too";
pub const EMPTY: &str = "soci lists ztocs of empty layers, which its snapshotter cannot mount";
pub const NO_CONFIG: &str = "soci writes an image whose config is missing";
pub const OTHER_KIND: &str = "soci takes what has the config of something else for an image";
pub const OLD_CONFIG: &str =
    "soci does not know the type of configs that Docker pushed before 1.10";
pub const NESTED: &str =
    "soci looks for a platform in an index of the image that holds another one";
pub const ODD_ENTRY: &str =
    "soci fails the whole image for an entry of an unknown type that has a platform";
pub const SEVERAL: &str = "soci takes all that a layout's index.json lists for one image";
pub const AMBIGUOUS: &str = "soci takes for an index what others take for a manifest";
pub const UNCHECKED: &str = "soci does not check digests of layers and configs";
pub const TWICE: &str =
    "soci fails when the SOCI indexes in the image are not those of its platforms";

pub struct Case {
    pub name: &'static str,
    pub make: fn(&Maker),
    /// soci's `--platform`. None for all platforms.
    pub platform: Option<&'static str>,
    pub expect: Expect,
}

const fn all(name: &'static str, expect: Expect, make: fn(&Maker)) -> Case {
    Case { name, make, platform: None, expect }
}

const fn one(name: &'static str, platform: &'static str, expect: Expect, make: fn(&Maker)) -> Case {
    Case { name, make, platform: Some(platform), expect }
}

fn single(m: &Maker, config: &str, layers: &[String], more: &str) {
    m.root(m.manifest_as(OCI_MANIFEST, config, layers, more));
}

fn two(m: &Maker, first: &str, second: &str) {
    let images = [(first, 1), (second, 2)]
        .map(|(platform, seed)| on(&m.manifest(&m.linux("amd64"), &[m.layer(seed)]), platform));
    m.root(m.index(&images));
}

/// An image that was converted before, by another tool, so that its index is replaced.
pub fn enabled(m: &Maker, platforms: &[&str]) -> Vec<String> {
    let mut entries = Vec::new();
    let mut indexes = Vec::new();
    for (seed, platform) in platforms.iter().enumerate() {
        let empty = m.blob("application/vnd.amazon.soci.index.v2+json", b"{}");
        let layer = m.layer(seed as u64);
        let ztoc = m.blob("application/octet-stream", format!("not a ztoc, of {seed}").as_bytes());
        let annotations = format!(
            r#""annotations":{{"com.amazon.soci.image-layer-digest":"{}","com.amazon.soci.image-layer-mediaType":"{GZIP}","com.amazon.soci.span-size":"65536"}}"#,
            digest(&layer)
        );
        let tool = r#","annotations":{"com.amazon.soci.build-tool-identifier":"old"}"#;
        let index = m.manifest_as(OCI_MANIFEST, &empty, &[with(&ztoc, &annotations)], tool);
        let named =
            format!(r#""annotations":{{"com.amazon.soci.index-digest":"{}"}}"#, digest(&index));
        let manifest =
            m.manifest_as(OCI_MANIFEST, &m.linux("amd64"), &[layer], &format!(",{named}"));
        let names = format!(
            r#""annotations":{{"com.amazon.soci.image-manifest-digest":"{}"}}"#,
            digest(&manifest)
        );
        entries.push(on(&with(&manifest, &named), platform));
        let kind = r#""artifactType":"application/vnd.amazon.soci.index.v2+json""#;
        indexes.push(with(&on(&with(&index, &names), platform), kind));
    }
    entries.extend(indexes);
    entries
}

pub const CASES: &[Case] = &[
    // Single manifests.
    all("single", Same, |m| single(m, &m.linux("amd64"), &[m.layer(1)], "")),
    all("single of several layers", Same, |m| {
        single(m, &m.linux("amd64"), &[m.layer(1), m.layer(2), m.layer(3)], "")
    }),
    all("single, Docker's types", Same, |m| {
        let config = m.linux("amd64").replace(OCI_CONFIG, DOCKER_CONFIG);
        m.root(m.manifest_as(DOCKER_MANIFEST, &config, &[m.layer_as(DOCKER_GZIP, 1)], ""));
    }),
    all("single, arm64/v8", Same, |m| {
        single(
            m,
            &m.config(r#""architecture":"arm64","os":"linux","variant":"v8""#),
            &[m.layer(1)],
            "",
        );
    }),
    all("single, arm without a variant", Same, |m| single(m, &m.linux("arm"), &[m.layer(1)], "")),
    all("single, armhf", Same, |m| single(m, &m.linux("armhf"), &[m.layer(1)], "")),
    all("single, x86_64 in capitals", Same, |m| {
        single(m, &m.config(r#""architecture":"X86_64","os":"Linux""#), &[m.layer(1)], "");
    }),
    all("single, no os", Same, |m| {
        single(m, &m.config(r#""architecture":"amd64""#), &[m.layer(1)], "")
    }),
    all("single, no platform at all", Same, |m| single(m, &m.config(""), &[m.layer(1)], "")),
    all("single, features and version in the config", Same, |m| {
        let config =
            r#""architecture":"amd64","os":"linux","os.features":["z","a","z"],"os.version":"5""#;
        single(m, &m.config(config), &[m.layer(1)], "");
    }),
    all("single, a platform in index.json that the config denies", Same, |m| {
        m.root(on(
            &m.manifest(&m.linux("amd64"), &[m.layer(1)]),
            r#""architecture":"arm64","os":"linux","variant":"v8""#,
        ));
    }),
    one("single, its platform asked for", "linux/arm64", Same, |m| {
        single(
            m,
            &m.config(r#""architecture":"arm64","os":"linux","variant":"v8""#),
            &[m.layer(1)],
            "",
        );
    }),
    one("single, another platform asked for", "linux/s390x", Neither, |m| {
        single(m, &m.linux("amd64"), &[m.layer(1)], "")
    }),
    all("single, annotations in index.json", Same, |m| {
        m.root(with(
            &m.manifest(&m.linux("amd64"), &[m.layer(1)]),
            r#""annotations":{"a":"b"},"urls":["https://x"]"#,
        ));
    }),
    all("single, no layers", Neither, |m| single(m, &m.linux("amd64"), &[], "")),
    all("single, layers null", Neither, |m| {
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{},"layers":null}}"#,
            m.linux("amd64")
        );
        m.root(m.raw(OCI_MANIFEST, &text));
    }),
    // The fields of a manifest.
    all("annotations with everything that is escaped", Same, |m| {
        let odd = r#","annotations":{"<&>":"a\u003cb","\u2028":"\u2029","é":"\/","Z":"\u0001\u001f\u007f\u0080","\b":"\f\n\r\t","q\"":"\\"}"#;
        single(m, &m.linux("amd64"), &[m.layer(1)], odd);
    }),
    all("annotations of every plane, sorted by bytes", Same, |m| {
        single(
            m,
            &m.linux("amd64"),
            &[m.layer(1)],
            ",\"annotations\":{\"\u{ffff}\":\"\",\"\u{10000}\":\"\",\"é\":\"\",\"a\":\"\",\"\":\"\"}",
        );
    }),
    all("lone surrogates", Same, |m| {
        single(
            m,
            &m.linux("amd64"),
            &[m.layer(1)],
            r#","annotations":{"a":"\ud800","b":"\udc00\ud800x","c":"\ud83d\ude00"}"#,
        );
    }),
    all("bytes that are not UTF-8", Same, |m| {
        let text = format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{},"layers":[{}],"annotations":{{"a":"@@"}}}}"#,
            m.linux("amd64"),
            m.layer(1)
        );
        let bytes: Vec<u8> =
            text.bytes().flat_map(|b| if b == b'@' { vec![0xe2, 0x82] } else { vec![b] }).collect();
        m.root(m.blob(OCI_MANIFEST, &bytes));
    }),
    all("null among annotations", Same, |m| {
        single(m, &m.linux("amd64"), &[m.layer(1)], r#","annotations":{"a":null,"b":"c"}"#)
    }),
    all("empty annotations, artifactType and subject", Same, |m| {
        single(
            m,
            &m.linux("amd64"),
            &[m.layer(1)],
            r#","annotations":{},"artifactType":"","subject":null"#,
        );
    }),
    all("unknown fields at every level", Same, |m| {
        let layer = with(&m.layer(1), r#""x":{"y":[1,2]},"urls":[],"data":"","annotations":{}"#);
        single(m, &with(&m.linux("amd64"), r#""z":null"#), &[layer], r#","w":"v""#);
    }),
    all("a subject", Same, |m| {
        let subject = m.blob(OCI_MANIFEST, b"{}");
        single(m, &m.linux("amd64"), &[m.layer(1)], &format!(r#","subject":{subject}"#));
    }),
    all("an artifactType on an image", Same, |m| {
        single(m, &m.linux("amd64"), &[m.layer(1)], r#","artifactType":"x/y""#)
    }),
    all("keys in other orders and with spaces", Same, |m| {
        let text = format!(
            "{{ \"layers\" : [ {} ],\n\"config\":{},\t\"schemaVersion\":2 }}",
            m.layer(1),
            m.linux("amd64")
        );
        m.root(m.raw(OCI_MANIFEST, &text));
    }),
    all("no schemaVersion and no mediaType", Same, |m| {
        m.root(m.raw(
            OCI_MANIFEST,
            &format!(r#"{{"config":{},"layers":[{}]}}"#, m.linux("amd64"), m.layer(1)),
        ));
    }),
    all("keys in other cases", Same, |m| {
        let text = format!(
            r#"{{"SchemaVersion":2,"Config":{},"LAYERS":[{}],"annotationſ":{{"a":"b"}}}}"#,
            m.linux("amd64"),
            m.layer(1)
        );
        m.root(m.raw(OCI_MANIFEST, &text));
    }),
    all("keys that stand twice", Same, |m| {
        single(
            m,
            &m.linux("amd64"),
            &[m.layer(1)],
            r#","annotations":{"a":"1","b":"1"},"annotations":{"b":"2"},"artifactType":"x","artifactType":"y""#,
        );
    }),
    all("data and urls of layers", Same, |m| {
        single(
            m,
            &m.linux("amd64"),
            &[with(
                &m.layer(1),
                r#""urls":["https://x/<&>"],"data":"YR==","annotations":{"k":"v"},"artifactType":"t""#,
            )],
            "",
        );
    }),
    all("a sha512 layer", Same, |m| {
        let layer = m.blob_by(Algorithm::Sha512, GZIP, &ociseek_testkit::layers::gzip(&tar(1), 6));
        single(m, &m.linux("amd64"), &[layer], "");
    }),
    all("manifest that lists manifests too", Neither, |m| {
        single(m, &m.linux("amd64"), &[m.layer(1)], r#","manifests":[]"#);
    }),
    // Layers.
    all("a plain tar", Same, |m| single(m, &m.linux("amd64"), &[m.layer_as(PLAIN, 1)], "")),
    all("Docker's plain tar", Same, |m| {
        single(m, &m.linux("amd64"), &[m.layer_as(DOCKER_TAR, 1)], "")
    }),
    all("a zstd layer beside a gzip one", Same, |m| {
        single(m, &m.linux("amd64"), &[m.blob(ZSTD, b"unread"), m.layer(1)], "");
    }),
    all("only zstd", Neither, |m| single(m, &m.linux("amd64"), &[m.blob(ZSTD, b"unread")], "")),
    all("suffixes", Same, |m| {
        let types = ["+estargz+gzip", "+gzip+estargz"].map(|suffix| format!("{PLAIN}{suffix}"));
        single(m, &m.linux("amd64"), &[m.layer_as(&types[0], 1), m.layer_as(&types[1], 2)], "");
    }),
    all("an encrypted layer", Same, |m| {
        single(
            m,
            &m.linux("amd64"),
            &[m.blob(&format!("{PLAIN}+encrypted"), b"secret"), m.layer(1)],
            "",
        );
    }),
    all("an encrypted layer that is gzip by its type", OnlyOurs(ENCRYPTED), |m| {
        single(
            m,
            &m.linux("amd64"),
            &[m.blob(&format!("{PLAIN}+gzip+encrypted"), b"secret"), m.layer(1)],
            "",
        );
    }),
    all("layers without anything in them", Differs(EMPTY), |m| {
        let nothing = ociseek_testkit::layers::gzip(b"", 6);
        single(m, &m.linux("amd64"), &[m.blob(PLAIN, b""), m.blob(GZIP, &nothing), m.layer(1)], "");
    }),
    all("a plain tar that is gzip by its type", OnlyOurs(UNLIKE_ITS_TYPE), |m| {
        single(m, &m.linux("amd64"), &[m.blob(GZIP, &tar(2)), m.layer(1)], "");
    }),
    all("nondistributable layers that are there", Same, |m| {
        let types = [
            "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
            DOCKER_FOREIGN,
            "application/vnd.oci.image.layer.nondistributable.v1.tar",
        ];
        single(m, &m.linux("amd64"), &types.map(|t| m.layer_as(t, t.len() as u64)), "");
    }),
    all("a foreign layer that is elsewhere", OnlyOurs(FOREIGN), |m| {
        let foreign = with(&m.layer_as(DOCKER_FOREIGN, 7), r#""urls":["https://elsewhere"]"#);
        single(m, &m.linux("amd64"), &[foreign.clone(), m.layer(1)], "");
        m.remove(&foreign);
    }),
    all("a layer that is no layer", OnlyOurs(ODD_LAYER), |m| {
        single(m, &m.linux("amd64"), &[m.blob(IN_TOTO, b"{}"), m.layer(1)], "");
    }),
    all("a layer twice", Same, |m| {
        single(m, &m.linux("amd64"), &[m.layer(1), m.layer(2), m.layer(1)], "")
    }),
    all("a layer of two types", Same, |m| {
        single(m, &m.linux("amd64"), &[m.layer(1), m.layer_as(DOCKER_GZIP, 1)], "")
    }),
    all("the prefetch type", Same, |m| {
        let prefetch = m.blob("application/vnd.amazon.soci.prefetch.v1+json", b"{}");
        single(m, &m.linux("amd64"), &[prefetch, m.layer(1)], "");
    }),
    all("a layer that is cut", Neither, |m| {
        let layer = m.layer(1);
        let path = m.path(&layer);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
        single(m, &m.linux("amd64"), &[layer], "");
    }),
    all("a layer of another digest", OnlySoci(UNCHECKED), |m| {
        let layer = m.layer(1);
        let other = ociseek_testkit::layers::gzip(&tar(2), 6);
        std::fs::write(m.path(&layer), &other).unwrap();
        let size = layer.rsplit_once(':').unwrap().0;
        single(m, &m.linux("amd64"), &[format!("{size}:{}}}", other.len())], "");
    }),
    all("a config of another digest", OnlySoci(UNCHECKED), |m| {
        let config = m.linux("amd64");
        let text = std::fs::read_to_string(m.path(&config)).unwrap();
        std::fs::write(m.path(&config), text.replace("amd64", "arm64")).unwrap();
        single(m, &config, &[m.layer(1)], "");
    }),
    // Image indexes.
    all("two platforms", Same, |m| m.root(m.index(&[m.image("amd64", 1), m.image("arm64", 2)]))),
    all("a Docker list", Same, |m| {
        m.root(m.index_as(DOCKER_LIST, &[m.image("amd64", 1), m.image("arm64", 2)], ""))
    }),
    one("one of two platforms", "linux/arm64", Same, |m| {
        m.root(m.index(&[m.image("amd64", 1), m.image("arm64", 2)]))
    }),
    one("a platform that is not there", "linux/s390x", Neither, |m| {
        m.root(m.index(&[m.image("amd64", 1), m.image("arm64", 2)]))
    }),
    all("index fields", Same, |m| {
        let subject = m.blob(OCI_MANIFEST, b"{}");
        let more = format!(
            r#","artifactType":"x/y","subject":{subject},"annotations":{{"b":"<","a":null}},"x":1"#
        );
        m.root(m.index_as(OCI_INDEX, &[m.image("amd64", 1), m.image("arm64", 2)], &more));
    }),
    all("an index of one", Same, |m| {
        m.root(m.index_as(OCI_INDEX, &[m.image("amd64", 1)], r#","annotations":{"a":"b"}"#))
    }),
    all("entries that are not in the layout", Same, |m| {
        let gone = m.image("arm64", 2);
        let there = m.image("amd64", 1);
        m.root(m.index(&[gone.clone(), there]));
        m.remove(&gone);
    }),
    all("an entry of three that is not in the layout", Same, |m| {
        let gone = m.image("386", 3);
        m.root(m.index(&[m.image("amd64", 1), gone.clone(), m.image("arm64", 2)]));
        m.remove(&gone);
    }),
    all("platforms in index.json", Same, |m| {
        m.root(m.image("amd64", 1));
        m.root(m.image("arm64", 2));
    }),
    all("spellings of platforms", Same, |m| {
        two(
            m,
            r#""architecture":"x86_64","os":"Linux""#,
            r#""architecture":"arm64","os":"linux","variant":"8""#,
        )
    }),
    all("a platform twice, spelled differently", Same, |m| {
        two(m, &linux("x86_64"), &linux("amd64"))
    }),
    all("variants", Same, |m| {
        two(m, r#""architecture":"amd64","os":"linux","variant":"v3""#, &linux("amd64"))
    }),
    all("arm of three variants", Same, |m| {
        let arm = |seed, variant: &str| {
            let platform = format!(r#""architecture":"arm","os":"linux"{variant}"#);
            on(&m.manifest(&m.linux("arm"), &[m.layer(seed)]), &platform)
        };
        m.root(m.index(&[
            arm(1, r#","variant":"v6""#),
            arm(2, ""),
            arm(3, r#","variant":"7""#),
            arm(4, r#","variant":"v5""#),
        ]));
    }),
    one("arm64 beside v8", "linux/arm64/v8", Same, |m| two(m, &linux("arm64"), &linux("amd64"))),
    one("arm", "linux/arm", Same, |m| {
        two(m, r#""architecture":"arm","os":"linux","variant":"v7""#, &linux("amd64"))
    }),
    all("os.version on Linux", Same, |m| {
        two(
            m,
            r#""architecture":"amd64","os":"linux","os.version":"1""#,
            r#""architecture":"amd64","os":"linux","os.version":"2""#,
        )
    }),
    all("an odd system and architecture", Same, |m| {
        two(m, r#""architecture":"","os":"plan9""#, r#""architecture":"x","os":"linux","y":1"#)
    }),
    all("unknown platforms", Same, |m| {
        let entry =
            |seed, platform: &str| on(&m.manifest(&m.linux("amd64"), &[m.layer(seed)]), platform);
        m.root(m.index(&[
            entry(1, &linux("amd64")),
            entry(2, r#""architecture":"unknown","os":"unknown""#),
            entry(3, r#""architecture":"unknown","os":"linux""#),
            entry(4, r#""architecture":"amd64","os":"unknown""#),
        ]));
    }),
    all("descriptors with everything", Same, |m| {
        let rich = |entry: &str| {
            let bytes = std::fs::read(m.path(entry)).unwrap();
            with(
                entry,
                &format!(
                    r#""urls":["https://a"],"data":"{}","artifactType":"t/u","annotations":{{"own":"1"}}"#,
                    BASE64_STANDARD.encode(bytes)
                ),
            )
        };
        m.root(m.index(&[rich(&m.image("amd64", 1)), rich(&m.image("arm64", 2))]));
    }),
    all("annotations of manifests become those of descriptors", Same, |m| {
        let entry = |architecture: &str, seed| {
            let more = format!(r#","annotations":{{"of":"{architecture}"}}"#);
            let manifest =
                m.manifest_as(OCI_MANIFEST, &m.linux(architecture), &[m.layer(seed)], &more);
            on(&with(&manifest, r#""annotations":{"own":"1"}"#), &linux(architecture))
        };
        m.root(m.index(&[entry("amd64", 1), entry("arm64", 2)]));
    }),
    all("one manifest for two platforms", Same, |m| {
        let manifest = m.manifest(&m.linux("amd64"), &[m.layer(1)]);
        m.root(m.index(&[on(&manifest, &linux("amd64")), on(&manifest, &linux("arm64"))]));
    }),
    all("two platforms of the same layers", Same, |m| {
        m.root(m.index(
            &["amd64", "arm64"].map(|a| on(&m.manifest(&m.linux(a), &[m.layer(1)]), &linux(a))),
        ));
    }),
    all("a platform without anything to index", Same, |m| {
        let bare = on(&m.manifest(&m.linux("386"), &[m.blob(ZSTD, b"unread")]), &linux("386"));
        m.root(m.index(&[bare, m.image("amd64", 1)]));
    }),
    all("an index in the index, with a platform", Same, |m| {
        let inner = on(&m.index(&[m.image("arm64", 2)]), &linux("arm64"));
        m.root(m.index(&[m.image("amd64", 1), inner]));
    }),
    one("an index in the index, behind what is asked for", "linux/amd64", Same, |m| {
        let inner = m.index(&[m.image("arm64", 2), m.image("386", 3)]);
        m.root(m.index(&[m.image("amd64", 1), inner]));
    }),
    all("an index in the index, without a platform", OnlyOurs(UNPLATFORMED), |m| {
        m.root(m.index(&[m.image("amd64", 1), m.index(&[m.image("arm64", 2)])]));
    }),
    all("an entry without a platform", OnlyOurs(UNPLATFORMED), |m| {
        m.root(m.index(&[m.manifest(&m.linux("arm64"), &[m.layer(2)]), m.image("amd64", 1)]));
    }),
    all("an entry of an unknown type", Same, |m| {
        let odd = on(
            &m.blob("application/vnd.x+json", b"{}"),
            r#""architecture":"unknown","os":"unknown""#,
        );
        m.root(m.index(&[m.image("amd64", 1), odd, m.image("arm64", 2)]));
    }),
    // The content of index.json.
    all("odd JSON in index.json", Same, |m| {
        let odd = r#""urls":[null],"annotations":{"a":null,"b":"1","b":"2","c":"\ud800"},"Data":"YR==","x":1e999"#;
        m.root(with(&m.manifest(&m.linux("amd64"), &[m.layer(1)]), odd));
    }),
    all("an artifactType in index.json", Same, |m| {
        m.root(with(&m.manifest(&m.linux("amd64"), &[m.layer(1)]), r#""artifactType":"x/y""#));
    }),
    all("an empty artifactType in index.json", Same, |m| {
        m.root(with(&m.manifest(&m.linux("amd64"), &[m.layer(1)]), r#""artifactType":"""#));
    }),
    all("a platform in index.json, and a config without anything", Same, |m| {
        let config = m.blob(OCI_CONFIG, b"");
        m.root(on(&m.manifest(&config, &[m.layer(1)]), &linux("amd64")));
    }),
    // Entries in addition to images.
    all("an image with a reference type that is not an attestation's", Same, |m| {
        let named = with(
            &m.manifest(&m.linux("amd64"), &[m.layer(1)]),
            r#""annotations":{"vnd.docker.reference.type":"x"}"#,
        );
        m.root(m.index(&[on(&named, &linux("amd64")), m.image("arm64", 2)]));
    }),
    all("attestations", Differs(ATTESTATIONS), |m| {
        let images = [m.image("amd64", 1), m.image("arm64", 2)];
        let attestations = images.clone().map(|image| attestation(m, &image));
        m.root(m.index(&[&images[..], &attestations[..]].concat()));
    }),
    all("a chart", Differs(ARTIFACTS), |m| {
        let chart = m.manifest(
            &m.blob("application/vnd.cncf.helm.config.v1+json", b"{}"),
            &[m.blob("application/tar+gzip", b"x")],
        );
        m.root(m.index(&[
            m.image("amd64", 1),
            on(&chart, r#""architecture":"unknown","os":"unknown""#),
        ]));
    }),
    all("only a chart", Neither, |m| {
        single(m, &m.blob("application/vnd.cncf.helm.config.v1+json", b"{}"), &[m.layer(1)], "");
    }),
    all("versions of Windows", Differs(WINDOWS), |m| {
        two(m, &windows("10.0.20348.1"), &windows("10.0.26100.1"))
    }),
    all("versions of Windows that do not run each other", Same, |m| {
        two(m, &windows("10.0.14393.1"), &windows("10.0.17763.1"))
    }),
    all("features of the system", Differs(FEATURES), |m| {
        two(m, &linux("amd64"), r#""architecture":"amd64","os":"linux","os.features":["f"]"#);
    }),
    all("SOCI-enabled by another tool", Same, |m| {
        m.root(m.index(&enabled(m, &[&linux("amd64"), &linux("arm64")])))
    }),
    one("SOCI-enabled, one platform again", "linux/amd64", OnlyOurs(OTHERS), |m| {
        m.root(m.index(&enabled(m, &[&linux("amd64"), &linux("arm64")])));
    }),
    all("two SOCI indexes for one platform", OnlyOurs(TWICE), |m| {
        let entries = enabled(m, &[&linux("amd64"), &linux("arm64")]);
        let second = entries[3].replace("arm64", "amd64");
        m.root(m.index(&[&entries[..3], &[second]].concat()));
    }),
];
