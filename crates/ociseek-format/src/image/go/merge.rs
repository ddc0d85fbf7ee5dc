//! Decodes like Go, which merges new values into existing ones. For a key that occurs twice, this
//! gives the last value of a string, but both values combined for an object or a list.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::image::json::is_same_to_go;
use crate::image::manifest::MAX_DESCRIPTORS;

/// A value into which JSON is decoded.
pub(super) trait Merge {
    /// # Errors
    /// If the JSON type does not match the value's type.
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error>;
}

/// Passes a value to serde.
struct MergeInto<'a, T>(&'a mut T);

impl<'de, T: Merge> DeserializeSeed<'de> for MergeInto<'_, T> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        self.0.merge(json)
    }
}

/// The fields of a Go struct by their JSON names.
pub(super) trait Fields {
    /// Decodes the value of the field `name`, if it exists.
    ///
    /// # Errors
    /// If the JSON type does not match the field's type.
    fn field<'de, A: MapAccess<'de>>(
        &mut self,
        name: &str,
        map: &mut A,
    ) -> Option<Result<(), A::Error>>;
    const NAMES: &'static [&'static str];
}

/// Implements [`Fields`] and [`Merge`] for a struct.
macro_rules! fields {
    ($type:ty { $($name:literal => $field:ident),* $(,)? }) => {
        impl $crate::image::go::merge::Fields for $type {
            const NAMES: &'static [&'static str] = &[$($name),*];
            fn field<'de, A: serde::de::MapAccess<'de>>(
                &mut self,
                name: &str,
                map: &mut A,
            ) -> Option<Result<(), A::Error>> {
                match name {
                    $($name => Some($crate::image::go::merge::value(map, &mut self.$field)),)*
                    _ => None,
                }
            }
        }
        impl $crate::image::go::merge::Merge for $type {
            fn merge<'de, D: serde::Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
                $crate::image::go::merge::object(self, json)
            }
        }
    };
}
pub(super) use fields;

/// Decodes the value of a key.
pub(super) fn value<'de, A: MapAccess<'de>, T: Merge>(
    map: &mut A,
    onto: &mut T,
) -> Result<(), A::Error> {
    map.next_value_seed(MergeInto(onto))
}

/// Decodes an object; null changes nothing.
pub(super) fn object<'de, D: Deserializer<'de>, T: Fields>(
    onto: &mut T,
    json: D,
) -> Result<(), D::Error> {
    struct Object<'a, T>(&'a mut T);
    impl<'de, T: Fields> Visitor<'de> for Object<'_, T> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_unit<E>(self) -> Result<(), E> {
            Ok(())
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                let name = T::NAMES.iter().find(|name| **name == key);
                let name = name.or_else(|| T::NAMES.iter().find(|name| is_same_to_go(&key, name)));
                match name.and_then(|name| self.0.field(name, &mut map)) {
                    Some(result) => result?,
                    None => drop(map.next_value::<IgnoredAny>()?),
                }
            }
            Ok(())
        }
    }
    json.deserialize_any(Object(onto))
}

impl Merge for String {
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        if let Some(text) = <Option<String> as serde::Deserialize>::deserialize(json)? {
            *self = text;
        }
        Ok(())
    }
}

impl Merge for i64 {
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        if let Some(number) = <Option<i64> as serde::Deserialize>::deserialize(json)? {
            *self = number;
        }
        Ok(())
    }
}

/// Whether a key is present, whatever its value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Present(pub bool);

impl Merge for Present {
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        self.0 = true;
        json.deserialize_ignored_any(IgnoredAny).map(drop)
    }
}

/// Bytes in base64.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Data(pub Vec<u8>);

/// Like Go's `base64.StdEncoding`: line breaks are skipped, padding is required, and trailing bits
/// are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical),
);

fn from_base64(text: &str) -> Result<Vec<u8>, DecodeError> {
    BASE64.decode(text.replace(['\r', '\n'], ""))
}

/// Whether Go reads a text as base64.
pub(crate) fn is_base64(text: &str) -> bool {
    from_base64(text).is_ok()
}

impl Merge for Data {
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        let text = <Option<String> as serde::Deserialize>::deserialize(json)?.unwrap_or_default();
        self.0 = from_base64(&text).map_err(D::Error::custom)?;
        Ok(())
    }
}

impl Merge for BTreeMap<String, String> {
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        struct Map<'a>(&'a mut BTreeMap<String, String>);
        impl<'de> Visitor<'de> for Map<'_> {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_unit<E>(self) -> Result<(), E> {
                self.0.clear();
                Ok(())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
                while let Some((key, value)) = map.next_entry::<String, Option<String>>()? {
                    self.0.insert(key, value.unwrap_or_default());
                }
                Ok(())
            }
        }
        json.deserialize_any(Map(self))
    }
}

/// A pointer: null clears it.
impl<T: Fields + Merge + Default> Merge for Option<Box<T>> {
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        struct Pointer<'a, T>(&'a mut Option<Box<T>>);
        impl<'de, T: Fields + Merge + Default> Visitor<'de> for Pointer<'_, T> {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or null")
            }
            fn visit_unit<E>(self) -> Result<(), E> {
                *self.0 = None;
                Ok(())
            }
            fn visit_none<E>(self) -> Result<(), E> {
                *self.0 = None;
                Ok(())
            }
            fn visit_some<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
                self.0.get_or_insert_default().merge(json)
            }
        }
        json.deserialize_option(Pointer(self))
    }
}

/// A list: null clears it. Each new element is decoded into the element that an earlier list had at
/// its position.
impl<T: Merge + Default> Merge for Option<Vec<T>> {
    fn merge<'de, D: Deserializer<'de>>(&mut self, json: D) -> Result<(), D::Error> {
        struct List<'a, T>(&'a mut Option<Vec<T>>, PhantomData<T>);
        impl<'de, T: Merge + Default> Visitor<'de> for List<'_, T> {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }
            fn visit_unit<E>(self) -> Result<(), E> {
                *self.0 = None;
                Ok(())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
                let list = self.0.get_or_insert_default();
                let mut count = 0;
                loop {
                    let mut new = None;
                    let onto = match list.get_mut(count) {
                        Some(element) => element,
                        None => new.insert(T::default()),
                    };
                    if elements.next_element_seed(MergeInto(onto))?.is_none() {
                        break;
                    }
                    list.extend(new);
                    count += 1;
                    if count > MAX_DESCRIPTORS {
                        return Err(A::Error::custom(format_args!(
                            "a list has more than {MAX_DESCRIPTORS} elements"
                        )));
                    }
                }
                list.truncate(count);
                Ok(())
            }
        }
        json.deserialize_any(List(self, PhantomData))
    }
}
