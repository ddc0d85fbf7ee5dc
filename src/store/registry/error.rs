//! Why a registry did not do what was asked. No message holds a secret: URLs are shown without their query.

/// Why a request to a registry failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("{0:?} is not a registry: want HOST or HOST:PORT")]
    Host(String),
}

impl RegistryError {
    /// The status of the registry's answer, if it gave one.
    pub fn status(&self) -> Option<u16> {
        unimplemented!("being written")
    }

    /// The host that did not do what was asked.
    pub fn host(&self) -> Option<&str> {
        unimplemented!("being written")
    }

    /// The registry wants other credentials than it was given, or any at all (401).
    pub fn is_unauthorized(&self) -> bool {
        unimplemented!("being written")
    }

    /// What was asked for is not there (404).
    pub fn is_not_found(&self) -> bool {
        self.status() == Some(404)
    }

    /// A manifest was refused since a blob that it names is not there: push it with
    /// [`push_blob_unchecked`](super::Repository::push_blob_unchecked) and try again.
    pub fn is_blob_unknown(&self) -> bool {
        unimplemented!("being written")
    }
}
