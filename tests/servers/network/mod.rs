//! Networks that are not the usual one: proxies, names that lead elsewhere or to several addresses,
//! IPv6 alone, and runs that are stopped for a while.

mod names;
mod proxies;
mod time;
