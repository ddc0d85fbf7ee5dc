//! The fields of an X.509 certificate that webpki does not return, for the rules of TLS and of
//! notation that go beyond its own (RFC 5280, section 4.1).
//!
//! Only DER is read: definite, shortest lengths. No field is trusted before a signature over
//! [`X509::signed`] was verified.

use ociseek_format::time::Time;

const BOOLEAN: u8 = 1;
pub(crate) const INTEGER: u8 = 2;
const BIT_STRING: u8 = 3;
pub(crate) const OCTET_STRING: u8 = 4;
const OBJECT_ID: u8 = 6;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;
/// The optional fields of a TBSCertificate: version, issuerUniqueID, subjectUniqueID, extensions.
const VERSION: u8 = 0xa0;
const ISSUER_ID: u8 = 0x81;
const SUBJECT_ID: u8 = 0x82;
const EXTENSIONS: u8 = 0xa3;

/// rsaEncryption, 1.2.840.113549.1.1.1.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 13, 1, 1, 1];
/// id-ce-keyUsage, id-ce-basicConstraints and id-ce-extKeyUsage: 2.5.29.15, 19 and 37.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 15];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 37];
/// The most extensions that are read.
const MOST_EXTENSIONS: usize = 100;

/// A certificate in DER.
#[derive(Debug, PartialEq, Eq)]
pub struct X509<'a> {
    /// The TBSCertificate, which the issuer's signature covers.
    pub signed: &'a [u8],
    /// The AlgorithmIdentifier of that signature, without the tag and length.
    pub algorithm: &'a [u8],
    /// The issuer's signature.
    pub signature: &'a [u8],
    /// The issuer's name, without the tag and length.
    pub issuer: &'a [u8],
    /// The name of whom it is for, in the same form.
    pub subject: &'a [u8],
    /// The AlgorithmIdentifier of the public key, without the tag and length, and the key.
    pub key: (&'a [u8], &'a [u8]),
    /// In seconds since 1970; it is valid in the second `not_after`.
    pub not_before: i64,
    /// In seconds since 1970.
    pub not_after: i64,
    /// The size of the modulus if the public key is for RSA, in whole bytes as bits.
    pub rsa_bits: Option<usize>,
    /// Whether the basic constraints name an authority.
    pub is_authority: bool,
    /// How many authorities may be between it and a signer, if it states that.
    pub path_length: Option<u64>,
    /// The extension keyUsage, if there is one.
    pub key_usage: Option<KeyUsageField>,
    /// The object identifiers of the extended key usage. None without the extension.
    pub purposes: Option<Vec<&'a [u8]>>,
}

/// The extension keyUsage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUsageField {
    /// Whether who does not know it must refuse the certificate.
    pub is_critical: bool,
    /// The first 16 bits. The first named bit (digitalSignature) is the highest.
    pub bits: u16,
}

impl<'a> X509<'a> {
    /// None for anything but a certificate in DER.
    pub fn parse(der: &'a [u8]) -> Option<X509<'a>> {
        let mut whole = Der(der);
        let mut certificate = Der(whole.take(SEQUENCE)?);
        whole.end()?;
        let signed = certificate.0;
        let mut fields = Der(certificate.take(SEQUENCE)?);
        let signed = &signed[..signed.len() - certificate.0.len()];
        let algorithm = certificate.take(SEQUENCE)?;
        let signature = bits(certificate.take(BIT_STRING)?)?;
        certificate.end()?;

        fields.optional(VERSION)?;
        fields.take(INTEGER)?;
        fields.take(SEQUENCE)?;
        let issuer = fields.take(SEQUENCE)?;
        let mut validity = Der(fields.take(SEQUENCE)?);
        let not_before = validity.time()?;
        let not_after = validity.time()?;
        validity.end()?;
        let subject = fields.take(SEQUENCE)?;
        let key = public_key(fields.take(SEQUENCE)?)?;
        let rsa_bits = rsa_bits(key)?;
        fields.optional(ISSUER_ID)?;
        fields.optional(SUBJECT_ID)?;
        let extensions = fields.optional(EXTENSIONS)?;
        fields.end()?;

        let mut certificate = X509 {
            signed,
            algorithm,
            signature,
            issuer,
            subject,
            key,
            not_before,
            not_after,
            rsa_bits,
            is_authority: false,
            path_length: None,
            key_usage: None,
            purposes: None,
        };
        certificate.read_extensions(extensions)?;
        Some(certificate)
    }

    fn read_extensions(&mut self, extensions: Option<&'a [u8]>) -> Option<()> {
        let Some(extensions) = extensions else { return Some(()) };
        let mut outer = Der(extensions);
        let mut list = Der(outer.take(SEQUENCE)?);
        outer.end()?;
        let mut seen: Vec<&[u8]> = Vec::new();
        while !list.0.is_empty() {
            let mut extension = Der(list.take(SEQUENCE)?);
            let id = extension.take(OBJECT_ID)?;
            let is_critical = extension.boolean()?;
            let value = extension.take(OCTET_STRING)?;
            extension.end()?;
            if seen.contains(&id) || seen.len() == MOST_EXTENSIONS {
                return None;
            }
            seen.push(id);
            let mut value = Der(value);
            match id {
                BASIC_CONSTRAINTS => {
                    let mut constraints = Der(value.take(SEQUENCE)?);
                    self.is_authority = constraints.boolean()?;
                    self.path_length = match constraints.optional(INTEGER)? {
                        Some(number) => Some(small(number)?),
                        None => None,
                    };
                    constraints.end()?;
                }
                KEY_USAGE => {
                    let bytes = value.take(BIT_STRING)?;
                    let (unused, bytes) = bytes.split_first()?;
                    let byte = |at: usize| u16::from(bytes.get(at).copied().unwrap_or(0));
                    // Bits that are not part of the string must be 0 in DER.
                    let padding = bytes.last().map_or(0, |last| last.trailing_zeros());
                    if *unused > 7 || u32::from(*unused) > padding {
                        return None;
                    }
                    self.key_usage =
                        Some(KeyUsageField { is_critical, bits: byte(0) << 8 | byte(1) });
                }
                EXTENDED_KEY_USAGE => {
                    let mut list = Der(value.take(SEQUENCE)?);
                    let mut purposes = Vec::new();
                    while !list.0.is_empty() {
                        purposes.push(list.take(OBJECT_ID)?);
                    }
                    self.purposes = Some(purposes);
                }
                _ => continue,
            }
            value.end()?;
        }
        Some(())
    }
}

/// The algorithm and the key in a SubjectPublicKeyInfo.
fn public_key(spki: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut spki = Der(spki);
    let algorithm = spki.take(SEQUENCE)?;
    let key = bits(spki.take(BIT_STRING)?)?;
    spki.end()?;
    Some((algorithm, key))
}

/// The size of an RSA key; None inside for other keys.
fn rsa_bits((algorithm, key): (&[u8], &[u8])) -> Option<Option<usize>> {
    if Der(algorithm).take(OBJECT_ID)? != RSA {
        return Some(None);
    }
    let mut key = Der(key);
    let mut key = Der(key.take(SEQUENCE)?);
    let modulus = key.take(INTEGER)?;
    let zeros = modulus.iter().take_while(|byte| **byte == 0).count();
    Some(Some((modulus.len() - zeros) * 8))
}

/// The bytes of a BIT STRING of whole bytes.
fn bits(content: &[u8]) -> Option<&[u8]> {
    content.split_first().filter(|(unused, _)| **unused == 0).map(|(_, bytes)| bytes)
}

/// An INTEGER that is not negative and fits into 63 bits.
fn small(content: &[u8]) -> Option<u64> {
    match content {
        [first, ..] if *first < 0x80 && content.len() <= 8 => {
            Some(content.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        }
        _ => None,
    }
}

/// What is left of a DER encoding.
pub(crate) struct Der<'a>(pub &'a [u8]);

impl<'a> Der<'a> {
    /// The content of the next value, which must have this tag.
    pub(crate) fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_first_chunk::<2>()?;
        if head[0] != tag {
            return None;
        }
        let (length, rest) = match head[1] {
            short @ 0..=0x7f => (usize::from(short), rest),
            long @ 0x81..=0x83 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(long & 0x7f))?;
                let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                let is_shortest = length >= 0x80 && bytes.first() != Some(&0);
                (is_shortest.then_some(length)?, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some(content)
    }

    /// As [`Der::take`], but None inside if another tag is next, or nothing.
    pub(crate) fn optional(&mut self, tag: u8) -> Option<Option<&'a [u8]>> {
        match self.0.first() {
            Some(next) if *next == tag => self.take(tag).map(Some),
            _ => Some(None),
        }
    }

    /// A BOOLEAN whose default is false.
    fn boolean(&mut self) -> Option<bool> {
        match self.optional(BOOLEAN)? {
            None | Some([0]) => Some(false),
            Some([0xff]) => Some(true),
            Some(_) => None,
        }
    }

    /// A time in seconds since 1970 (RFC 5280, section 4.1.2.5).
    fn time(&mut self) -> Option<i64> {
        let (century, text) = match self.optional(UTC_TIME)? {
            Some(text) => {
                let year = text
                    .get(..2)
                    .and_then(|year| std::str::from_utf8(year).ok())?
                    .parse::<u8>()
                    .ok()?;
                (if year < 50 { "20" } else { "19" }, text)
            }
            None => ("", self.take(GENERALIZED_TIME)?),
        };
        let text = format!("{century}{}", std::str::from_utf8(text).ok()?);
        if text.len() != 15 || !text.is_ascii() {
            return None;
        }
        let part = |range: std::ops::Range<usize>| &text[range];
        let date = (part(0..4), part(4..6), part(6..8));
        let time = (part(8..10), part(10..12), part(12..15));
        let text = format!("{}-{}-{}T{}:{}:{}", date.0, date.1, date.2, time.0, time.1, time.2);
        Time::from_rfc3339(&text).map(|time| time.seconds)
    }

    pub(crate) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// The object identifier in DER as people write it, such as `1.2.840.10045.4.3.4`.
pub(crate) fn object_id(algorithm: &[u8]) -> Option<String> {
    let id = Der(algorithm).take(OBJECT_ID)?;
    let mut numbers: Vec<u64> = Vec::new();
    let mut number = 0;
    for byte in id.iter().take(64) {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            // The first two are in one.
            if numbers.is_empty() {
                let first = (number / 40).min(2);
                numbers.push(first);
                number -= first * 40;
            }
            numbers.push(number);
            number = 0;
        }
    }
    Some(numbers.iter().map(u64::to_string).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    const SIGNER: &str = include_str!("../../../fixtures/signatures/leaf.pem");
    const AUTHORITY: &str = include_str!("../../../fixtures/signatures/ca.pem");

    fn der(pem: &str) -> Vec<u8> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec()
    }

    #[test]
    fn fields_of_certificates() {
        let signer = der(SIGNER);
        let authority = der(AUTHORITY);
        let signer = X509::parse(&signer).unwrap();
        let authority = X509::parse(&authority).unwrap();
        assert_eq!((signer.issuer, authority.issuer), (authority.subject, authority.subject));
        assert_ne!(signer.subject, authority.subject);
        assert_eq!((signer.is_authority, signer.path_length), (false, None));
        assert_eq!((authority.is_authority, authority.path_length), (true, Some(0)));
        assert_eq!((signer.rsa_bits, authority.rsa_bits), (Some(2048), Some(2048)));
        assert_eq!(signer.key_usage, Some(KeyUsageField { is_critical: true, bits: 0x8000 }));
        assert_eq!(authority.key_usage, Some(KeyUsageField { is_critical: true, bits: 0x0400 }));
        assert_eq!(signer.purposes, Some(vec![&[0x2b, 6, 1, 5, 5, 7, 3, 3][..]]));
        assert_eq!(authority.purposes, None);
        let time = |text: &str| Time::from_rfc3339(text).unwrap().seconds;
        assert_eq!(signer.not_before, time("2026-11-22T11:00:42Z"));
        assert_eq!(signer.not_after, time("2126-10-28T11:00:42Z"));
    }

    #[test]
    fn object_identifiers_as_text() {
        for (der, text) in [
            (&[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4][..], Some("1.2.840.10045.4.3.4")),
            (&[6, 3, 0x2b, 0x65, 0x70, 5, 0], Some("1.3.101.112")),
            (&[6, 1, 0x88], Some("")),
            (&[4, 1, 0], None),
        ] {
            assert_eq!(object_id(der).as_deref(), text, "{der:?}");
        }
    }

    #[test]
    fn cut_and_changed_certificates_do_not_panic() {
        let whole = der(SIGNER);
        for end in 0..whole.len() {
            assert_eq!(X509::parse(&whole[..end]), None, "{end}");
        }
        let mut longer = whole.clone();
        longer.push(0);
        assert_eq!(X509::parse(&longer), None);
        for at in 0..whole.len() {
            for byte in [0, 1, 0x30, 0x7f, 0x80, 0x84, 0xff] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let _ = X509::parse(&changed);
            }
        }
    }

    #[test]
    fn lengths_and_times_are_those_of_der() {
        for (bytes, content) in [
            (&[4, 1, 7][..], Some(&[7][..])),
            (&[4, 0x80, 7, 0, 0], None),
            (&[4, 0x81, 1, 7], None),
            (&[4, 0x82, 0, 0x80], None),
            (&[4, 0x84, 0xff, 0xff, 0xff, 0xff], None),
            (&[5, 1, 7], None),
            (&[4], None),
        ] {
            assert_eq!(Der(bytes).take(OCTET_STRING), content, "{bytes:?}");
        }
        let long = [&[4, 0x81, 0x80][..], &[9; 0x80]].concat();
        assert_eq!(Der(&long).take(OCTET_STRING).map(<[u8]>::len), Some(0x80));
        for (tag, text, seconds) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (GENERALIZED_TIME, "20500101000000Z", Some(2_524_608_000)),
            (UTC_TIME, "7001010000Z", None),
            (UTC_TIME, "701301000000Z", None),
            (UTC_TIME, "700101000000+", None),
            (GENERALIZED_TIME, "2050010100000é", None),
            (GENERALIZED_TIME, "700101000000Z", None),
        ] {
            let der = [&[tag, text.len() as u8][..], text.as_bytes()].concat();
            assert_eq!(Der(&der).time(), seconds, "{text}");
        }
    }
}
