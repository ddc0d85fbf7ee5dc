//! Reads JSON objects as Go programs do: keys in any case, and null for the default of every value.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{MapAccess, Visitor};

/// An object whose keys are read in any case.
pub(super) trait GoObject: Default {
    /// Takes the value for `key`, which is in lower case. Values of unknown keys must be taken as
    /// well.
    fn set<'de, A: MapAccess<'de>>(&mut self, key: &str, values: &mut A) -> Result<(), A::Error>;
}

/// For implementations of `Deserialize`.
pub(super) fn deserialize<'de, D: Deserializer<'de>, T: GoObject>(deserializer: D) -> Result<T, D::Error> {
    struct ObjectVisitor<T>(PhantomData<T>);

    impl<'de, T: GoObject> Visitor<'de> for ObjectVisitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E>(self) -> Result<T, E> {
            Ok(T::default())
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
            let mut object = T::default();
            while let Some(key) = map.next_key::<String>()? {
                object.set(&key.to_ascii_lowercase(), &mut map)?;
            }
            Ok(object)
        }
    }

    deserializer.deserialize_any(ObjectVisitor(PhantomData))
}

/// The next value, or its default for null.
pub(super) fn value<'de, A: MapAccess<'de>, T: serde::Deserialize<'de> + Default>(
    values: &mut A,
) -> Result<T, A::Error> {
    Ok(values.next_value::<Option<T>>()?.unwrap_or_default())
}
