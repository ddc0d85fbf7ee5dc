//! Thousands of unusual images, each generated from a number, with content that registries and
//! tools write or could write.

mod image;
mod index;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::cases;
use super::maker::{Maker, with};
use values::{Dice, KEYS, TEXTS};

/// A generated image, with the known facts about its conversion.
#[derive(Default)]
pub struct Odd {
    /// For the converters; None for all platforms.
    pub platform: Option<String>,
    /// In bytes.
    pub min_layer_size: u64,
    /// Its properties in words.
    pub traits: Vec<String>,
    /// Why soci may fail or give another result.
    pub reasons: BTreeSet<&'static str>,
}

impl Odd {
    /// Whether soci's error is known and justified.
    pub fn excuses(&self, error: &str) -> bool {
        let known: &[(&str, &[&str])] = &[
            ("manifest should have proper platform", &[cases::UNPLATFORMED]),
            ("manifest should have proper platform", &[cases::ODD_ENTRY]),
            ("no match for platform in manifest", &[cases::UNPLATFORMED]),
            ("invalid character", &[cases::UNPLATFORMED]),
            ("schema 1 not supported", &[cases::AMBIGUOUS]),
            ("couldn't retrieve artifact", &[cases::OTHERS, cases::TWICE]),
            ("blob not found", &[cases::FOREIGN]),
            ("could not generate gzip zinfo", &[cases::UNLIKE_ITS_TYPE, cases::ENCRYPTED]),
            ("error while reading tar header", &[cases::UNLIKE_ITS_TYPE]),
            ("unexpected media type", &[cases::ODD_ENTRY]),
            ("not a layer mediaType", &[cases::ODD_LAYER]),
            ("unrecognised mediatype", &[cases::ODD_LAYER]),
            ("does not support any platforms", &[cases::OLD_CONFIG]),
            ("no match for platform in manifest", &[cases::NESTED]),
        ];
        self.reasons.contains(cases::OTHER_KIND)
            || known.iter().any(|(text, reasons)| {
                error.contains(text) && reasons.iter().any(|reason| self.reasons.contains(reason))
            })
    }

    /// Whether there is a reason to refuse what soci accepts.
    pub fn forbids(&self, error: &str) -> bool {
        let known: &[(&str, &str)] = &[
            ("digest", cases::UNCHECKED),
            ("but its descriptor says", cases::UNCHECKED),
            ("has the size", cases::UNCHECKED),
            ("does not hold", cases::NO_CONFIG),
            ("holds several images", cases::SEVERAL),
            ("has the fields of something else", cases::AMBIGUOUS),
        ];
        self.reasons.contains(cases::OTHER_KIND)
            || known
                .iter()
                .any(|(text, reason)| error.contains(text) && self.reasons.contains(reason))
    }

    /// Whether the reasons explain all differences between our image index and soci's.
    pub fn explains(&self, ours: &str, theirs: &str) -> bool {
        if [cases::WINDOWS, cases::FEATURES, cases::OTHER_KIND, cases::EMPTY, cases::SEVERAL]
            .iter()
            .any(|reason| self.reasons.contains(reason))
        {
            return true;
        }
        let by: Value = serde_json::from_str(ours).unwrap();
        let masked = |text: &str| {
            let mut index: Value = serde_json::from_str(text).unwrap();
            let entries = index["manifests"].as_array_mut().unwrap();
            for (entry, ours) in entries.iter_mut().zip(by["manifests"].as_array().unwrap()) {
                let is_attestation =
                    ours["annotations"]["vnd.docker.reference.type"] == "attestation-manifest";
                let is_unknown = ours["platform"]["os"] == "unknown"
                    || ours["platform"]["architecture"] == "unknown";
                let Some(entry) = entry.as_object_mut().filter(|_| is_attestation || is_unknown)
                else {
                    continue;
                };
                if self.reasons.contains(cases::ATTESTATIONS) {
                    entry.remove("annotations");
                }
                if self.reasons.contains(cases::ARTIFACTS) {
                    entry.retain(|key, _| {
                        !["digest", "size", "annotations", "mediaType"].contains(&key.as_str())
                    });
                }
            }
            index
        };
        masked(ours) == masked(theirs)
    }
}

struct Odds<'a> {
    m: &'a Maker,
    dice: Dice,
    odd: Odd,
    /// One of this many choices is unusual.
    calm: usize,
    layers: u64,
}

/// Generates the image with this number in the layout.
pub fn make(m: &Maker, number: u64) -> Odd {
    let mut dice = Dice(number.wrapping_mul(0x2545_f491_4f6c_dd1d));
    let calm = dice.pick(&[6, 12, 40, 1000]);
    let mut odds = Odds { m, dice, odd: Odd::default(), calm, layers: number % 7 };
    odds.image_root();
    odds.odd
}

impl Odds<'_> {
    fn odd(&mut self) -> bool {
        let calm = self.calm;
        self.dice.one_in(calm)
    }

    fn say(&mut self, what: impl Into<String>) {
        self.odd.traits.push(what.into());
    }

    fn because(&mut self, reason: &'static str) {
        self.odd.reasons.insert(reason);
    }

    /// An object with these fields, in possibly unusual spelling and order.
    fn object(&mut self, fields: &[(&str, String)]) -> String {
        let mut list: Vec<(String, String)> =
            fields.iter().map(|(key, v)| ((*key).to_owned(), v.clone())).collect();
        if self.odd() {
            self.say("unknown field");
            let value = self.dice.pick(&[
                "1",
                "null",
                "{\"a\":{}}",
                "[[],{}]",
                "1e400",
                "123456789012345678901234567890",
            ]);
            let at = self.dice.below(list.len() + 1);
            list.insert(at, ("x-unknown".to_owned(), value.to_owned()));
        }
        if self.odd() && !list.is_empty() {
            let at = self.dice.below(list.len());
            self.say(format!("key in another case: {}", list[at].0));
            let key = &mut list[at].0;
            *key = match self.dice.below(3) {
                0 => key.to_uppercase(),
                1 => key.to_lowercase(),
                _ => key.replace('s', "ſ").replace('k', "\u{212a}"),
            };
        }
        if self.odd() && !list.is_empty() {
            let at = self.dice.below(list.len());
            self.say(format!("key twice: {}", list[at].0));
            let (key, value) = list[at].clone();
            let first = match self.dice.below(3) {
                0 => "null".to_owned(),
                1 => value,
                // A value that appears to have the same type.
                _ => match value.as_bytes().first() {
                    Some(b'"') => "\"\"".to_owned(),
                    Some(b'[') => "[]".to_owned(),
                    Some(b'{') => "{}".to_owned(),
                    _ => "0".to_owned(),
                },
            };
            list.insert(at, (key, first));
        }
        if self.odd() {
            self.say("keys in another order");
            for end in (1..list.len()).rev() {
                let other = self.dice.below(end + 1);
                // Duplicate keys keep their order, so the last one is still the one that counts.
                if list[end].0.to_lowercase() != list[other].0.to_lowercase() {
                    list.swap(end, other);
                }
            }
        }
        let (colon, comma, open, close) = match self.dice.below(if self.calm < 20 { 6 } else { 40 })
        {
            0 => (" : ", ",\n   ", "{\n ", "\n}\n"),
            1 => (": ", ", ", "{", "}"),
            _ => (":", ",", "{", "}"),
        };
        let members: Vec<String> =
            list.iter().map(|(key, value)| format!("\"{key}\"{colon}{value}")).collect();
        format!("{open}{}{close}", members.join(comma))
    }

    /// Annotations, possibly none.
    fn annotations(&mut self) -> String {
        match self.dice.below(8) {
            0 => "null".to_owned(),
            1 => "{}".to_owned(),
            n => {
                let members: Vec<String> = (0..n.min(4))
                    .map(|_| {
                        let key = self.dice.pick(KEYS);
                        format!("{key}:{}", self.dice.pick(TEXTS))
                    })
                    .collect();
                format!("{{{}}}", members.join(","))
            }
        }
    }

    /// Additional fields for the descriptor of `content`.
    fn rich(&mut self, descriptor: &str, content: Option<&[u8]>) -> String {
        let mut descriptor = descriptor.to_owned();
        if self.odd() {
            self.say("descriptor with annotations");
            descriptor = with(&descriptor, &format!(r#""annotations":{}"#, self.annotations()));
        }
        if self.odd() {
            self.say("descriptor with urls");
            let urls =
                self.dice.pick(&["null", "[]", r#"["https://x/<&>"]"#, r#"["","a"]"#, "[null]"]);
            descriptor = with(&descriptor, &format!(r#""urls":{urls}"#));
        }
        if self.odd() {
            self.say("descriptor with data");
            let own = format!("\"{}\"", BASE64_STANDARD.encode(content.unwrap_or_default()));
            let odd =
                self.dice.pick(&["null", "\"\"", r#""YR==""#, r#""Y\nQ==""#, r#""\u0059Q==""#]);
            let data = if self.dice.one_in(2) { &own } else { odd };
            descriptor = with(&descriptor, &format!(r#""data":{data}"#));
        }
        if self.odd() {
            self.say("descriptor with artifactType");
            let kind = self.dice.pick(&[
                "null",
                "\"\"",
                "\"x/y\"",
                "\"application/vnd.amazon.soci.index.v1+json\"",
            ]);
            descriptor = with(&descriptor, &format!(r#""artifactType":{kind}"#));
        }
        if self.odd() {
            self.say("descriptor with unknown field");
            descriptor = with(&descriptor, r#""newUnspecifiedField":{"a":[1,{}]}"#);
        }
        descriptor
    }

    /// A descriptor with a wrong size.
    fn resized(&mut self, descriptor: &str) -> String {
        let (head, size) = descriptor.split_once(r#""size":"#).unwrap();
        let (size, tail) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap());
        let size: u64 = size.parse().unwrap();
        let other = match self.dice.below(5) {
            0 => (size + 1).to_string(),
            1 => (size - 1).to_string(),
            2 => "0".to_owned(),
            3 => "-1".to_owned(),
            _ => self
                .dice
                .pick(&[
                    "9223372036854775807",
                    "9223372036854775808",
                    "1e3",
                    "1.0",
                    "\"1\"",
                    "null",
                ])
                .to_owned(),
        };
        self.say(format!("size {size} said to be {other}"));
        format!(r#"{head}"size":{other}{tail}"#)
    }

    fn number(&mut self) -> u64 {
        self.layers += 1;
        // Images share layers.
        if self.dice.one_in(4) { 1 + self.dice.next() % 3 } else { 10 + self.layers }
    }
}

/// How many times each property occurred.
pub fn counted(odds: &[Odd]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for name in odds.iter().flat_map(|odd| &odd.traits) {
        *counts.entry(name.split(':').next().unwrap_or(name)).or_default() += 1;
    }
    counts
}
