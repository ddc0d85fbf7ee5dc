//! A [`LayerMap`] as bytes, to be stored until the layer is opened again.
//!
//! A record has a line with the version, a line of JSON, and the rest in the encoding of a ztoc:
//! entries, checkpoints, digests. The JSON holds what a ztoc has no field for. Records are never
//! published.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::contents::Notes;
use super::map::{LayerMap, SparseFile, Starts};
use crate::budget::{Charge, OverBudget};
use crate::tar::SparseMap;
use crate::time::Time;
use crate::ztoc::{self, Checkpoints, FileKind, VERSION, Ztoc, ZtocError, ZtocParts};

/// Must change whenever layers are read differently or the layout of records changes. Records of
/// other versions are ignored.
pub const RECORD_VERSION: &str = "ociseek layer map 3";
/// The most memory that a byte of the JSON can become, in bytes: `[0,0,[]],` is a sparse file of 40
/// bytes in a list that may have grown to twice its length, and then of 32 bytes in a map.
const PER_BYTE: u64 = 13;

/// The offset and length of each part of a sparse file.
type SparseParts = Vec<(u64, u64)>;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExtraFacts {
    /// The tar is kept unpacked, and spans are cut from it.
    unpacked: bool,
    /// Sparse files: number of the entry, size, parts.
    sparse: Vec<(u32, u64, SparseParts)>,
    /// Times outside the years 0 to 9999: number of the entry, seconds, nanoseconds.
    times: Vec<(u32, i64, u32)>,
    notes: Notes,
}

/// The most memory that the larger part of a record takes while it is written, in bytes.
pub fn encoded_size_bound(map: &LayerMap) -> usize {
    checkpoints(map)
        .map_or(0, |checkpoints| ztoc::encoded_size_bound(&map.files.all(), &checkpoints))
}

/// The record of a layer with its notes, in two parts. None if they cannot be written as JSON, and
/// for a layer that is read by a fine document, which can be fetched again.
pub fn encode(map: &LayerMap, notes: &Notes) -> Option<[Vec<u8>; 2]> {
    let checkpoints = checkpoints(map)?;
    let files = map.files.all();
    let times = (0..).zip(&*files).filter_map(|(number, file)| {
        let time = file.mtime.filter(|time| !time.has_rfc3339())?;
        Some((number, time.seconds, time.nanos))
    });
    let sparse = map
        .sparse
        .iter()
        .map(|file| (file.entry, file.map.size(), file.map.parts().collect()))
        .collect();
    let extra = ExtraFacts {
        unpacked: map.is_unpacked(),
        sparse,
        times: times.collect(),
        notes: notes.clone(),
    };
    let mut head = format!("{RECORD_VERSION}\n").into_bytes();
    serde_json::to_writer(&mut head, &extra).ok()?;
    head.push(b'\n');
    let parts = ZtocParts {
        version: VERSION,
        build_tool_identifier: &[],
        compressed_size: map.size,
        uncompressed_size: map.tar_end,
        files: &files,
        checkpoints: &checkpoints,
        span_digests: &map.span_digests,
    };
    Some([head, parts.encode()])
}

/// The arguments of [`encode`]. None if the bytes are not a record of this version.
///
/// Charges the result to `memory`.
///
/// # Errors
/// If it does not fit into memory.
pub fn decode(record: &[u8], memory: &mut Charge) -> Result<Option<(LayerMap, Notes)>, OverBudget> {
    let Some((extra, ztoc)) = split(record) else { return Ok(None) };
    memory.grow(extra.len() as u64 * PER_BYTE, || "what is noted of its files".to_owned())?;
    let Ok(extra) = serde_json::from_slice::<ExtraFacts>(extra) else { return Ok(None) };
    match ztoc::decode_within(ztoc, memory) {
        Ok(ztoc) => Ok(joined(ztoc, extra)),
        Err(ZtocError::Memory(over)) => Err(over),
        Err(_) => Ok(None),
    }
}

/// The JSON and the bytes after it.
fn split(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = record.strip_prefix(RECORD_VERSION.as_bytes())?.strip_prefix(b"\n")?;
    let end = memchr::memchr(b'\n', rest)?;
    Some((&rest[..end], &rest[end + 1..]))
}

fn joined(mut ztoc: Ztoc, extra: ExtraFacts) -> Option<(LayerMap, Notes)> {
    for &(number, seconds, nanos) in &extra.times {
        ztoc.files.get_mut(number as usize)?.mtime = Some(Time { seconds, nanos });
    }
    let mut sparse = Vec::with_capacity(extra.sparse.len());
    for (entry, size, parts) in extra.sparse {
        let is_next = sparse.last().is_none_or(|before: &SparseFile| before.entry < entry);
        let file = ztoc
            .files
            .get(entry as usize)
            .filter(|file| is_next && file.kind == FileKind::Regular)?;
        let sound = SparseMap::new(size, parts)?;
        file.offset.0.checked_add(sound.stored()).filter(|end| *end <= ztoc.uncompressed_size.0)?;
        sparse.push(SparseFile { entry, map: sound });
    }
    let mut map = LayerMap { sparse, ..LayerMap::from(ztoc) };
    map.starts = match map.starts {
        Starts::InBlob(Checkpoints::Uncompressed { span_size, .. }) if extra.unpacked => {
            Starts::Unpacked { span_size }
        }
        Starts::InBlob(_) if extra.unpacked => return None,
        starts => starts,
    };
    Some((map, extra.notes))
}

/// Where spans begin, in the form of a ztoc.
fn checkpoints(map: &LayerMap) -> Option<Cow<'_, Checkpoints>> {
    match &map.starts {
        Starts::InBlob(checkpoints) => Some(Cow::Borrowed(checkpoints)),
        Starts::Unpacked { span_size } => {
            Some(Cow::Owned(Checkpoints::Uncompressed { span_size: *span_size, size: map.size.0 }))
        }
        Starts::Fine(_) => None,
    }
}
