/// Implements `Debug` for types that are too large to print, or hold secrets or what cannot be
/// printed: their names only.
#[doc(hidden)]
#[macro_export]
macro_rules! opaque_debug {
    ($($name:ident $(<$lifetime:lifetime>)?),+) => {$(
        impl std::fmt::Debug for $name $(<$lifetime>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )+};
}
