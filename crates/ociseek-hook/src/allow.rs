//! Which images events may request. Events are untrusted: without this list, anyone who can send
//! one could make us contact any host that we can reach.

use std::sync::Arc;

use ociseek_format::image::Reference;
use ociseek_format::image::allow::Allow;
use ociseek_store::registry::AllowedAddresses;

/// All rules. An empty list allows nothing.
#[derive(Debug, Clone)]
pub struct AllowList {
    allowed: Arc<[Allow]>,
    private: bool,
}

impl AllowList {
    /// With `private`, registries may have private addresses even if the list does not name their
    /// exact host.
    pub fn new(allowed: Vec<Allow>, private: bool) -> AllowList {
        AllowList { allowed: allowed.into(), private }
    }

    /// Whether one of the rules allows an image.
    pub fn admits(&self, image: &Reference) -> bool {
        self.allowed.iter().any(|allow| allow.admits(image))
    }

    /// The addresses that a client may contact for these images. A host that is named in full may
    /// have a private address, because the operator named it. Hosts that match a name pattern, and
    /// targets of redirects, must have public addresses.
    pub fn addresses(&self) -> AllowedAddresses {
        if self.private {
            return AllowedAddresses::Any;
        }
        AllowedAddresses::public_and(self.allowed.iter().filter_map(Allow::registry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_images_are_admitted() {
        let list = |allowed: &[&str]| {
            AllowList::new(allowed.iter().map(|a| a.parse().unwrap()).collect(), false)
        };
        let admits = |allowed: &[&str], image: &str| list(allowed).admits(&image.parse().unwrap());
        assert!(!admits(&[], "r.example/a"));
        assert!(admits(&["r.example"], "R.Example/a/b:t"));
        assert!(!admits(&["r.example"], "r.example:5000/a"));
        assert!(!admits(&["r.example"], "x.r.example/a"));
        assert!(!admits(&["r.example"], "r.example.evil/a"));
        assert!(admits(&["*.r.example"], "x.r.example/a"));
        assert!(!admits(&["*.r.example"], "r.example/a"));
        assert!(!admits(&["*.r.example"], "evilr.example/a"));
        assert!(admits(&["q.example", "r.example/team/*"], "r.example/team/app"));
        assert!(!admits(&["r.example/team/*"], "r.example/other/app"));
    }
}
