//! Reads the input files of commands about ztocs.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::cli::shared::error::CliError;
use ociseek_format::ztoc::{MAX_ENCODED, Ztoc, decode};

/// Reads a ztoc, up to the size limit of ztocs.
pub(crate) fn read_ztoc(path: &Path) -> Result<(Vec<u8>, Ztoc), CliError> {
    let bytes = read_ztoc_bytes(path)?;
    let ztoc = decode(&bytes).map_err(|source| CliError::Ztoc { path: path.to_owned(), source })?;
    Ok((bytes, ztoc))
}

/// Reads a ztoc without decoding it.
pub(crate) fn read_ztoc_bytes(path: &Path) -> Result<Vec<u8>, CliError> {
    let limit = MAX_ENCODED as u64;
    let mut bytes = Vec::new();
    open(path)?.take(limit + 1).read_to_end(&mut bytes).map_err(|source| unreadable(path, source))?;
    if bytes.len() as u64 > limit {
        return Err(CliError::ZtocTooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

pub(crate) fn is_std(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>, CliError> {
    if is_std(path) {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|source| unreadable(path, source))?;
    Ok(Box::new(file))
}

pub(crate) fn unreadable(path: &Path, source: io::Error) -> CliError {
    if is_std(path) { CliError::Stdin(source) } else { CliError::Read { path: path.to_owned(), source } }
}
