//! Layers, configs and manifests of unusual images.

use ociseek_format::digest::{Algorithm, Digest};

use super::Odds;
use super::values::*;
use crate::convert::cases;
use crate::convert::maker::*;
use ociseek_testkit::{layers, tarball};

impl Odds<'_> {
    /// A layer that both converters accept.
    pub(super) fn good_layer(&mut self) -> String {
        let number = self.number();
        let kinds = [GZIP, GZIP, GZIP, GZIP, DOCKER_GZIP, PLAIN, DOCKER_TAR];
        let kind = self.dice.pick(&kinds);
        let layer = self.m.layer_as(kind, number);
        if self.odd() { self.rich(&layer, Some(b"other")) } else { layer }
    }

    pub(super) fn odd_layer(&mut self) -> String {
        let number = self.number();
        let m = self.m;
        let gzip = layers::gzip(&tar(number), 6);
        let plain = tar(number);
        let choice = self.dice.below(24);
        let what = match choice {
            0 => ("zstd", m.blob(ZSTD, b"unread")),
            1 => (
                "Docker's zstd",
                m.blob("application/vnd.docker.image.rootfs.diff.tar.zstd", b"unread"),
            ),
            2 => ("estargz suffix", m.layer_as(&format!("{PLAIN}+estargz+gzip"), number)),
            3 => ("encrypted", m.blob(&format!("{PLAIN}+encrypted"), b"unread")),
            4 => {
                self.because(cases::ENCRYPTED);
                ("encrypted gzip", m.blob(&format!("{PLAIN}+gzip+encrypted"), b"unread"))
            }
            5 => ("brotli", m.blob(&format!("{PLAIN}+br"), b"unread")),
            6 => (
                "nondistributable gzip",
                m.layer_as("application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", number),
            ),
            7 => (
                "nondistributable tar",
                m.layer_as("application/vnd.oci.image.layer.nondistributable.v1.tar", number),
            ),
            8 => (
                "nondistributable zstd",
                m.blob("application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", b"x"),
            ),
            9 => ("Docker's foreign layer that is there", m.layer_as(DOCKER_FOREIGN, number)),
            10 => {
                self.because(cases::FOREIGN);
                let layer = with(
                    &m.layer_as(DOCKER_FOREIGN, 1000 + number),
                    r#""urls":["https://elsewhere/x"]"#,
                );
                std::fs::remove_file(m.path(&layer)).ok();
                ("foreign layer that is elsewhere", layer)
            }
            11 => {
                self.because(cases::ODD_LAYER);
                let kind = self.dice.pick(&[
                    IN_TOTO,
                    "",
                    "text/plain",
                    "application/octet-stream",
                    "application/vnd.oci.image.layer.v2.tar",
                ]);
                ("no layer", m.blob(kind, b"{}"))
            }
            12 => ("empty gzip tar", m.blob(GZIP, &layers::gzip(&tarball::end(), 6))),
            13 => {
                self.because(cases::EMPTY);
                ("gzip of nothing", m.blob(GZIP, &layers::gzip(b"", 6)))
            }
            14 => {
                self.because(cases::EMPTY);
                ("no bytes", m.blob(self.dice.pick(&[GZIP, PLAIN, DOCKER_TAR]), b""))
            }
            15 => {
                let types = [
                    "application/vnd.oci.image.layer.v1.tar+zstd+gzip",
                    "application/vnd.docker.image.rootfs.diff.tar.bz2",
                ];
                self.because(cases::ODD_LAYER);
                ("an odd suffix", m.layer_as(self.dice.pick(&types), number))
            }
            16 => (
                "two members",
                m.blob(
                    GZIP,
                    &[layers::gzip(&plain[..700], 6), layers::gzip(&plain[700..], 6)].concat(),
                ),
            ),
            17 => {
                self.because(cases::UNLIKE_ITS_TYPE);
                ("gzip that is plain", m.blob(GZIP, &plain))
            }
            18 => {
                self.because(cases::UNLIKE_ITS_TYPE);
                ("plain that is gzip", m.blob(PLAIN, &gzip))
            }
            19 => ("sha512", m.blob_by(Algorithm::Sha512, GZIP, &gzip)),
            20 => {
                self.because(cases::ODD_LAYER);
                ("the prefetch type", m.blob("application/vnd.amazon.soci.prefetch.v1+json", b"{}"))
            }
            21 => {
                self.because(cases::UNLIKE_ITS_TYPE);
                ("Docker's plain tar that is gzip", m.blob(DOCKER_TAR, &gzip))
            }
            22 => {
                let layer = m.blob(GZIP, &gzip);
                self.because(cases::UNCHECKED);
                ("another size", self.resized(&layer))
            }
            _ => {
                self.because(cases::UNCHECKED);
                let layer = m.layer(2000 + number);
                let other = layers::gzip(&tar(3000 + number), 6);
                std::fs::write(m.path(&layer), &other).unwrap();
                let size = layer.rsplit_once(':').unwrap().0;
                ("another digest", format!("{size}:{}}}", other.len()))
            }
        };
        self.say(format!("layer: {}", what.0));
        what.1
    }

    pub(super) fn layers(&mut self) -> Vec<String> {
        let mut list: Vec<String> =
            (0..self.dice.pick(&[1, 1, 2, 2, 3, 5])).map(|_| self.good_layer()).collect();
        while self.odd() {
            let at = self.dice.below(list.len() + 1);
            let layer = self.odd_layer();
            list.insert(at, layer);
        }
        if self.odd() {
            self.say("a layer twice");
            list.push(list[0].clone());
        }
        if self.odd() && self.odd() {
            let odd = self.dice.pick(&[
                "null",
                "{}",
                "{\"mediaType\":\"application/vnd.oci.image.layer.v1.tar+gzip\"}",
            ]);
            self.say(format!("layer {odd}"));
            self.because(cases::UNCHECKED);
            list.push(odd.to_owned());
        }
        if self.odd() && self.odd() {
            self.say("only odd layers");
            list = vec![self.odd_layer()];
        }
        list
    }

    /// A config that states this platform or, sometimes, another one.
    pub(super) fn config(&mut self, platform: &str) -> String {
        let stated = if self.odd() {
            self.say("another platform in the config");
            self.dice.pick(ODD_PLATFORMS)
        } else {
            platform
        };
        let config = match self.dice.below(self.calm * 3) {
            0 => {
                self.say("config by sha512");
                self.m.blob_by(Algorithm::Sha512, OCI_CONFIG, format!("{{{stated}}}").as_bytes())
            }
            1 => {
                let odd = self.dice.pick(&[
                    "",
                    "null",
                    "[]",
                    "{}",
                    "x",
                    "{\"os\":1}",
                    "{\"os\":null}",
                    "{\"os\":\"linux\",\"os\":\"x\"}",
                ]);
                self.say(format!("config: {odd}"));
                self.m.blob(OCI_CONFIG, odd.as_bytes())
            }
            2 => {
                self.say("config that is not there");
                self.because(cases::NO_CONFIG);
                let config = self.m.config(&format!(
                    "{stated}{}\"n\":{}",
                    if stated.is_empty() { "" } else { "," },
                    self.dice.0 % 1000
                ));
                self.m.remove(&config);
                config
            }
            3 => {
                self.say("config of another size");
                let config = self.m.config(stated);
                self.because(cases::UNCHECKED);
                self.resized(&config)
            }
            4 => {
                self.say("config of another kind");
                self.because(cases::OTHER_KIND);
                let kind = self.dice.pick(&[
                    "application/vnd.oci.empty.v1+json",
                    "application/vnd.docker.plugin.v1+json",
                    "text/plain",
                ]);
                self.m.config(stated).replace(OCI_CONFIG, kind)
            }
            _ => self.m.config(stated),
        };
        match self.dice.below(30.min(self.calm)) {
            0 => config.replace(OCI_CONFIG, DOCKER_CONFIG),
            1 if self.odd() => {
                self.say("config of no type");
                config.replace(OCI_CONFIG, "")
            }
            2 if self.odd() => {
                self.say("config as Docker had it before 1.10");
                self.because(cases::OLD_CONFIG);
                config.replace(OCI_CONFIG, "application/octet-stream")
            }
            3 if self.odd() => self.rich(&config, Some(b"{}")),
            _ => config,
        }
    }

    /// The manifest of an image, with its bytes.
    pub(super) fn manifest(&mut self, platform: &str, docker: bool) -> (String, Vec<u8>) {
        let config = self.config(platform);
        let layers = self.layers();
        let kind = if docker { DOCKER_MANIFEST } else { OCI_MANIFEST };
        let mut fields = vec![
            ("schemaVersion", "2".to_owned()),
            ("mediaType", format!("\"{kind}\"")),
            ("config", config),
            ("layers", format!("[{}]", layers.join(","))),
        ];
        if self.odd() {
            let odd = self.dice.pick(&[
                "1",
                "0",
                "-3",
                "null",
                "9007199254740993",
                "2.0",
                "\"2\"",
                "9223372036854775808",
            ]);
            self.say(format!("schemaVersion {odd}"));
            odd.clone_into(&mut fields[0].1);
        }
        if self.odd() {
            self.say("no schemaVersion");
            fields.remove(0);
        }
        if self.odd() {
            let odd = self.dice.pick(&[
                "null",
                "\"\"",
                "\"x/y\"",
                "\"application/vnd.docker.distribution.manifest.v2+json\"",
            ]);
            self.say(format!("mediaType {odd}"));
            fields.retain(|(key, _)| *key != "mediaType");
            fields.push(("mediaType", odd.to_owned()));
        }
        if self.odd() {
            self.say("no mediaType");
            fields.retain(|(key, _)| *key != "mediaType");
        }
        if self.odd() {
            self.say("annotations");
            fields.push(("annotations", self.annotations()));
        }
        if self.odd() {
            self.say("artifactType");
            let kind = self.dice.pick(&["null", "\"\"", "\"x/y\"", "\"<>\""]);
            fields.push(("artifactType", kind.to_owned()));
        }
        if self.odd() {
            self.say("subject");
            let subject = self.subject();
            fields.push(("subject", subject));
        }
        if self.odd() && self.odd() {
            let odd = self.dice.pick(&["null", "[]", "{}", "\"\""]);
            self.say(format!("layers {odd}"));
            fields.retain(|(key, _)| *key != "layers");
            fields.push(("layers", odd.to_owned()));
        }
        if self.odd() && self.odd() {
            let odd = self.dice.pick(&["manifests", "fsLayers", "signatures", "history"]);
            self.say(format!("{odd} in a manifest"));
            self.because(cases::AMBIGUOUS);
            fields.push((odd, "[]".to_owned()));
        }
        let text = self.object(&fields);
        let mut bytes = text.into_bytes();
        if self.odd() {
            self.say("white space around it");
            bytes = [b"\n \t".to_vec(), bytes, b"\r\n".to_vec()].concat();
        }
        if self.odd() && self.odd() {
            let odd = self.dice.pick(&["\u{feff}", "x"]);
            self.say("something before it");
            bytes = [odd.as_bytes().to_vec(), bytes].concat();
        }
        if self.odd() && self.odd() {
            self.say("manifest by sha512");
            return (self.m.blob_by(Algorithm::Sha512, kind, &bytes), bytes);
        }
        (self.m.blob(kind, &bytes), bytes)
    }

    pub(super) fn subject(&mut self) -> String {
        match self.dice.below(4) {
            0 => "null".to_owned(),
            1 => self.m.blob(OCI_MANIFEST, b"{\"x\":1}"),
            2 => with(
                &self.m.blob(OCI_MANIFEST, b"{}"),
                r#""annotations":{"a":null},"platform":{"os":"linux"}"#,
            ),
            _ => format!(r#"{{"mediaType":"","size":0,"digest":"{}"}}"#, Digest::sha256(b"gone")),
        }
    }

    pub(super) fn platform(&mut self) -> String {
        match self.dice.below(40) {
            0 if self.calm < 100 => {
                self.because(cases::WINDOWS);
                self.dice.pick(WINDOWS)
            }
            1 if self.calm < 20 => {
                self.because(cases::FEATURES);
                self.dice.pick(FEATURED)
            }
            _ if self.odd() => self.dice.pick(ODD_PLATFORMS),
            _ => self.dice.pick(PLATFORMS),
        }
        .to_owned()
    }

    /// An image as an entry of an index.
    pub(super) fn image(&mut self, docker: bool) -> String {
        let platform = self.platform();
        self.image_on(&platform, docker)
    }

    pub(super) fn image_on(&mut self, platform: &str, docker: bool) -> String {
        let (manifest, bytes) = self.manifest(platform, docker);
        let mut entry = self.rich(&manifest, Some(&bytes));
        if self.odd() && self.odd() {
            entry = self.resized(&entry);
        }
        if self.odd() {
            self.say("entry without a platform");
            self.because(cases::UNPLATFORMED);
            return entry;
        }
        on(&entry, platform)
    }
}
