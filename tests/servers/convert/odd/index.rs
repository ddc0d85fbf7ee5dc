//! Image indexes, and their entries in addition to images.

use ociseek_format::digest::Digest;

use super::Odds;
use super::values::*;
use crate::convert::cases::{self, enabled};
use crate::convert::maker::*;

impl Odds<'_> {
    /// Entries in addition to images.
    pub(super) fn beside(&mut self, entries: &[String]) -> String {
        let m = self.m;
        let some = entries[self.dice.below(entries.len())].clone();
        let unknown = self.dice.pick(UNKNOWN);
        match self.dice.below(12) {
            0 | 1 => {
                self.say("attestation");
                self.because(cases::ATTESTATIONS);
                attestation(m, &some)
            }
            2 => {
                self.say("attestation of something that is not there");
                self.because(cases::ATTESTATIONS);
                let gone = Digest::sha256(b"gone");
                attestation(m, &format!(r#"{{"digest":"{gone}"}}"#))
            }
            3 => {
                self.say("attestation with annotations of its own");
                self.because(cases::ATTESTATIONS);
                let config = m.config(r#""architecture":"unknown","os":"unknown""#);
                let more = format!(
                    r#","annotations":{{"vnd.docker.reference.digest":"{}","b":"1"}}"#,
                    digest(&some)
                );
                let manifest =
                    m.manifest_as(OCI_MANIFEST, &config, &[m.blob(IN_TOTO, b"{}")], &more);
                on(
                    &with(
                        &manifest,
                        r#""annotations":{"vnd.docker.reference.type":"attestation-manifest","a":"2"}"#,
                    ),
                    unknown,
                )
            }
            4 => {
                self.say("attestation, without annotations");
                let config = m.config(r#""architecture":"unknown","os":"unknown""#);
                let manifest = m.manifest(&config, &[m.blob(IN_TOTO, b"{}")]);
                on(&manifest, r#""architecture":"unknown","os":"unknown""#)
            }
            5 => {
                self.say("attestation of the new kind, with artifactType and subject");
                self.because(cases::ATTESTATIONS);
                self.because(cases::ARTIFACTS);
                let empty = m.blob("application/vnd.oci.empty.v1+json", b"{}");
                let more =
                    r#","artifactType":"application/vnd.docker.attestation.manifest.v1+json""#;
                let manifest = m.manifest_as(OCI_MANIFEST, &empty, &[m.blob(IN_TOTO, b"{}")], more);
                let about = format!(
                    r#""annotations":{{"vnd.docker.reference.digest":"{}","vnd.docker.reference.type":"attestation-manifest"}}"#,
                    digest(&some)
                );
                on(&with(&manifest, &about), unknown)
            }
            6 => {
                self.say("Helm chart");
                self.because(cases::ARTIFACTS);
                let config = m.blob("application/vnd.cncf.helm.config.v1+json", b"{}");
                let chart = m.manifest(
                    &config,
                    &[m.blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"x")],
                );
                on(&chart, unknown)
            }
            7 => {
                self.say("artifact with an empty config");
                self.because(cases::ARTIFACTS);
                let empty = m.blob("application/vnd.oci.empty.v1+json", b"{}");
                let more = r#","artifactType":"application/vnd.example","annotations":{"k":"v"}"#;
                let artifact =
                    m.manifest_as(OCI_MANIFEST, &empty, std::slice::from_ref(&empty), more);
                on(&with(&artifact, r#""artifactType":"application/vnd.example""#), unknown)
            }
            8 => {
                self.say("SOCI index of version 1");
                self.because(cases::ARTIFACTS);
                let config = m.blob("application/vnd.amazon.soci.index.v1+json", b"{}");
                let ztoc = m.blob("application/octet-stream", b"z");
                let size =
                    some.split_once(r#""size":"#).unwrap().1.split([',', '}']).next().unwrap();
                let subject = format!(
                    r#"{{"mediaType":"{OCI_MANIFEST}","digest":"{}","size":{size}}}"#,
                    digest(&some)
                );
                let index = m.manifest_as(
                    OCI_MANIFEST,
                    &config,
                    &[ztoc],
                    &format!(r#","subject":{subject}"#),
                );
                on(&index, unknown)
            }
            9 => {
                self.say("entry of an unknown type");
                self.because(cases::ODD_ENTRY);
                let kind = self.dice.pick(&[
                    "application/vnd.x+json",
                    "",
                    "application/json",
                    "text/plain",
                ]);
                let entry = m.blob(kind, b"{\"any\":1}");
                if self.dice.one_in(2) { on(&entry, unknown) } else { entry }
            }
            10 => {
                self.say("entry of an unknown type with a platform");
                self.because(cases::ODD_ENTRY);
                on(
                    &m.blob("application/vnd.oci.artifact.manifest.v1+json", b"{\"b\":1}"),
                    PLATFORMS[6],
                )
            }
            _ => {
                self.say("image of an unknown platform");
                let (manifest, _) = self.manifest(PLATFORMS[0], false);
                on(&manifest, unknown)
            }
        }
    }

    /// A nested index.
    pub(super) fn nested(&mut self) -> String {
        let docker = self.dice.one_in(4);
        let platform = self.dice.pick(PLATFORMS);
        let mut inner: Vec<String> = vec![self.image_on(platform, false)];
        if self.odd() {
            inner.push(self.image(false));
        }
        let kind = if docker { DOCKER_LIST } else { OCI_INDEX };
        let mut index = self.m.index_as(kind, &inner, "");
        if self.odd() {
            self.say("index in an index in the index");
            index = self.m.index(&[index]);
        }
        if self.odd() && self.odd() {
            self.say("empty index in the index");
            index = self.m.index(&[]);
        }
        self.say("index in the index");
        self.because(cases::NESTED);
        if self.odd() {
            self.because(cases::UNPLATFORMED);
            index
        } else {
            on(&index, platform)
        }
    }

    pub(super) fn image_root(&mut self) {
        self.odd.min_layer_size = self.dice.pick(&[0, 0, 0, 0, 0, 0, 1, 3000, 5000]);
        if self.odd.min_layer_size > 0 {
            self.say(format!("layers of {} bytes at least", self.odd.min_layer_size));
        }
        let docker = self.dice.one_in(4);
        if self.dice.one_in(4) {
            self.say("a single manifest");
            let platform = self.platform();
            let (manifest, bytes) = self.manifest(&platform, docker);
            let mut entry = self.rich(&manifest, Some(&bytes));
            if self.odd() {
                self.say("a platform in index.json");
                let stated = self.platform();
                entry = on(&entry, &stated);
            }
            self.m.root(entry);
            return;
        }
        let count = self.dice.pick(&[1, 2, 2, 2, 3, 3, 4]);
        let mut entries: Vec<String> = Vec::new();
        if self.odd() {
            self.say("SOCI-enabled before");
            let platforms = [PLATFORMS[0], PLATFORMS[1], PLATFORMS[5]];
            let some = 1 + self.dice.below(3);
            entries = enabled(self.m, &platforms[..some]);
            // Any other entry may be missing among the platforms, or repeat one of them.
            self.because(cases::TWICE);
        }
        for number in 0..count {
            let platform = if self.odd() {
                self.platform()
            } else {
                PLATFORMS[(number * 3 + self.layers as usize) % PLATFORMS.len()].to_owned()
            };
            let mixed = docker != self.odd();
            let image = self.image_on(&platform, mixed);
            entries.push(image);
        }
        if self.odd() && self.odd() {
            self.say("digest in capitals");
            let at = self.dice.below(entries.len());
            let upper = digest(&entries[at]).to_uppercase().replace("SHA", "sha");
            entries[at] = entries[at].replace(digest(&entries[at]), &upper);
        }
        if self.odd() {
            self.say("an entry twice");
            let again = entries[self.dice.below(entries.len())].clone();
            let at = self.dice.below(entries.len() + 1);
            entries.insert(at, again);
        }
        if self.odd() {
            self.say("one manifest for two platforms");
            let platform = self.dice.pick(PLATFORMS);
            let some = entries[self.dice.below(entries.len())].clone();
            if let Some((head, _)) = some.split_once(",\"platform\"") {
                entries.push(on(&format!("{}}}", head.trim_end_matches('}')), platform));
            }
        }
        while self.odd() {
            let other = self.nested();
            let at = self.dice.below(entries.len() + 1);
            entries.insert(at, other);
        }
        while self.odd() || self.calm > 30 && self.calm < 100 && self.dice.one_in(4) {
            let other = self.beside(&entries);
            let at = if self.dice.one_in(2) {
                entries.len()
            } else {
                self.dice.below(entries.len() + 1)
            };
            entries.insert(at, other);
        }
        if self.odd() {
            let gone = entries[self.dice.below(entries.len())].clone();
            self.say("an entry that is not in the layout");
            std::fs::remove_file(self.m.path(&gone)).ok();
        }
        if self.odd() && self.odd() {
            let odd = self.dice.pick(&[
                "null",
                "{}",
                "{\"platform\":{\"os\":\"linux\",\"architecture\":\"mips\"}}",
            ]);
            self.say(format!("entry {odd}"));
            let at = self.dice.below(entries.len() + 1);
            entries.insert(at, odd.to_owned());
        }
        self.asked(&entries);
        self.list(&entries, docker);
    }

    /// Chooses the requested platform.
    pub(super) fn asked(&mut self, entries: &[String]) {
        const ASKED: &[&str] = &[
            "linux/amd64",
            "linux/arm64",
            "linux/arm64/v8",
            "linux/arm/v7",
            "linux/arm",
            "linux/386",
        ];
        if self.dice.one_in(5) {
            let platform = self.dice.pick(ASKED);
            self.say(format!("asked for {platform}"));
            self.odd.platform = Some(platform.to_owned());
            if entries.iter().any(|entry| entry.contains("soci.index.v2")) {
                self.because(cases::OTHERS);
            }
        }
    }

    /// The image index.
    pub(super) fn list(&mut self, entries: &[String], docker: bool) {
        let kind = if docker { DOCKER_LIST } else { OCI_INDEX };
        if self.odd() {
            self.say("all in index.json");
            self.because(cases::SEVERAL);
            entries.iter().for_each(|entry| self.m.root(entry.clone()));
            return;
        }
        let mut fields = vec![
            ("schemaVersion", "2".to_owned()),
            ("mediaType", format!("\"{kind}\"")),
            ("manifests", format!("[{}]", entries.join(","))),
        ];
        if self.odd() {
            self.say("no mediaType in the index");
            fields.remove(1);
        }
        if self.odd() {
            let odd = self.dice.pick(&["1", "0", "null", "9007199254740993"]);
            self.say(format!("schemaVersion {odd} in the index"));
            odd.clone_into(&mut fields[0].1);
        }
        if self.odd() {
            self.say("annotations of the index");
            fields.push(("annotations", self.annotations()));
        }
        if self.odd() {
            self.say("subject of the index");
            fields.push(("subject", self.subject()));
        }
        if self.odd() {
            self.say("artifactType of the index");
            fields.push(("artifactType", self.dice.pick(&["null", "\"\"", "\"x/y\""]).to_owned()));
        }
        if self.odd() && self.odd() {
            let odd = self.dice.pick(&["config", "layers", "fsLayers"]);
            self.say(format!("{odd} in the index"));
            self.because(cases::AMBIGUOUS);
            fields.push((odd, "null".to_owned()));
        }
        if self.odd() && self.odd() && self.odd() {
            self.say("no manifests");
            fields.retain(|(key, _)| *key != "manifests");
            fields.push(("manifests", self.dice.pick(&["[]", "null"]).to_owned()));
        }
        let text = self.object(&fields);
        let index = self.m.raw(kind, &text);
        let index = self.rich(&index, Some(text.as_bytes()));
        self.m.root(index);
    }
}
