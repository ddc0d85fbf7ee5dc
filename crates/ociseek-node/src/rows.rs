//! What the snapshotter knows of each snapshot, and the rules of containerd's
//! `core/snapshots/storage` for it. The rows are in a file, which is replaced as a whole: after a
//! crash it has all of a change or nothing of it.
//!
//! Only a removal does not need the file, because a full disk must not keep containerd from freeing
//! space. The file then still has the row of a snapshot without files, until the next change is
//! written, or until the next start finds the files missing.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use tracing::warn;

use super::messages::{CommitRequest, SnapshotError, SnapshotInfo, Timestamp};
use ociseek_store::lock::Hold;
use ociseek_store::state_file::{self, StateEntry};

/// The numbers are containerd's (`Kind`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum SnapshotKind {
    View = 1,
    Active = 2,
    Committed = 3,
}

/// A layer that was not unpacked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LazyLayer {
    /// The image that it was seen in: a name with the digest of the image manifest.
    pub image: String,
    /// The layer's digest.
    pub digest: String,
    /// The digest of the document by which the image's repository says what the layer has. None if
    /// the whole layer is read, and compared with its digest.
    #[serde(default)]
    pub document: Option<String>,
    /// How many layers of the image this snapshot has, from the bottom.
    pub layers: usize,
}

/// A layer that was not unpacked, with those below it: what is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LazyStack {
    /// The uppermost layer. Its image is mounted.
    pub top: LazyLayer,
    /// The digests of the layers from the bottom up, each with that of its document.
    pub layers: Vec<(String, Option<String>)>,
}

/// Seconds and nanoseconds since 1970.
type Time = (i64, i32);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotRow {
    /// Names its directory. It is never used again.
    pub id: u64,
    pub kind: SnapshotKind,
    pub parent: String,
    pub labels: BTreeMap<String, String>,
    created: Time,
    updated: Time,
    /// Set for committed snapshots that are not unpacked.
    pub lazy: Option<LazyLayer>,
    /// Bytes and inodes, once committed.
    pub usage: (u64, u64),
}

/// The largest id of a row that is believed, so that there is always a next one.
const MAX_ID: u64 = u64::MAX / 2;

/// All snapshots by name.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(from = "StoredRows")]
pub(crate) struct SnapshotRows {
    last_id: u64,
    rows: BTreeMap<String, SnapshotRow>,
    /// Directories whose rows were damaged. Containers may use them, so they are not removed.
    left: BTreeSet<u64>,
    /// How many rows of the file are damaged.
    #[serde(skip)]
    damaged: usize,
}

/// The rows in the file. One that is damaged costs only itself.
#[derive(Deserialize)]
struct StoredRows {
    last_id: u64,
    rows: BTreeMap<String, StateEntry<SnapshotRow>>,
    #[serde(default)]
    left: BTreeSet<u64>,
}

impl From<StoredRows> for SnapshotRows {
    fn from(stored: StoredRows) -> SnapshotRows {
        let StoredRows { last_id, rows, left } = stored;
        let all = rows.len();
        let valid = |(name, row): (String, StateEntry<SnapshotRow>)| Some((name, row.valid()?));
        let mut rows: BTreeMap<String, SnapshotRow> = rows.into_iter().filter_map(valid).collect();
        let ids: BTreeMap<String, u64> =
            rows.iter().map(|(name, row)| (name.clone(), row.id)).collect();
        let mut seen = HashSet::new();
        // A row is younger than its parent. Otherwise it could be its own ancestor.
        rows.retain(|_, row| {
            let is_younger = ids.get(&row.parent).is_none_or(|parent| *parent < row.id);
            row.id <= MAX_ID && is_younger && seen.insert(row.id)
        });
        let last_id = rows.values().map(|row| row.id).fold(last_id.min(MAX_ID), u64::max);
        SnapshotRows { last_id, damaged: all - rows.len(), rows, left }
    }
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_secs().cast_signed(), since.subsec_nanos().cast_signed())
}

impl SnapshotRow {
    pub(crate) fn info(&self, name: &str) -> SnapshotInfo {
        let time = |(seconds, nanos)| Some(Timestamp { seconds, nanos });
        SnapshotInfo {
            name: name.to_owned(),
            parent: self.parent.clone(),
            kind: self.kind as i32,
            created_at: time(self.created),
            updated_at: time(self.updated),
            labels: self.labels.clone(),
        }
    }
}

impl SnapshotRows {
    pub(crate) fn get(&self, name: &str) -> Result<&SnapshotRow, SnapshotError> {
        self.rows.get(name).ok_or_else(|| SnapshotError::NotFound(name.to_owned()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&String, &SnapshotRow)> {
        self.rows.iter()
    }

    /// Whether a snapshot has or had this id.
    pub(crate) fn was_used(&self, id: u64) -> bool {
        id <= self.last_id
    }

    /// Notes which directories exist: their ids are not used. If rows were lost, those without a
    /// row are left alone from now on.
    fn note_directories(&mut self, directories: &BTreeSet<u64>, are_lost: bool) {
        let last = directories.range(..=MAX_ID).next_back();
        self.last_id = last.copied().unwrap_or(0).max(self.last_id);
        let known: HashSet<u64> = self.rows.values().map(|row| row.id).collect();
        if are_lost {
            self.left.extend(directories.iter().filter(|id| !known.contains(id)));
        }
        self.left.retain(|id| directories.contains(id));
    }

    /// Whether a directory is left alone.
    pub(crate) fn is_left(&self, id: u64) -> bool {
        self.left.contains(&id)
    }

    /// Does not use the ids that `other` has used.
    fn skip_ids_of(&mut self, other: &SnapshotRows) {
        self.last_id = self.last_id.max(other.last_id);
    }

    pub(crate) fn add(
        &mut self,
        kind: SnapshotKind,
        name: &str,
        parent: &str,
        labels: BTreeMap<String, String>,
        lazy: Option<LazyLayer>,
    ) -> Result<u64, SnapshotError> {
        if name.is_empty() {
            return Err(SnapshotError::Invalid("a snapshot needs a name".to_owned()));
        }
        if self.rows.contains_key(name) {
            return Err(SnapshotError::Exists(name.to_owned()));
        }
        if !parent.is_empty() && self.get(parent)?.kind != SnapshotKind::Committed {
            return Err(SnapshotError::Invalid(format!(
                "parent {parent} is not a committed snapshot"
            )));
        }
        self.last_id += 1;
        let id = self.last_id;
        let parent = parent.to_owned();
        let time = now();
        let row = SnapshotRow {
            id,
            kind,
            parent,
            labels,
            created: time,
            updated: time,
            lazy,
            usage: (0, 0),
        };
        self.rows.insert(name.to_owned(), row);
        Ok(id)
    }

    pub(crate) fn commit(
        &mut self,
        request: CommitRequest,
        usage: (u64, u64),
    ) -> Result<(), SnapshotError> {
        let CommitRequest { name, key, labels, parent } = request;
        let row = self.get(&key)?;
        if row.kind != SnapshotKind::Active {
            return Err(SnapshotError::Precondition(format!("snapshot {key} is not active")));
        }
        if !parent.is_empty() && parent != row.parent {
            return Err(SnapshotError::Invalid(format!(
                "snapshot {key} cannot get another parent"
            )));
        }
        if name.is_empty() || self.rows.contains_key(&name) {
            return Err(SnapshotError::Exists(name));
        }
        let time = now();
        let kind = SnapshotKind::Committed;
        let row = SnapshotRow { kind, labels, created: time, updated: time, usage, ..row.clone() };
        self.rows.remove(&key);
        self.rows.insert(name, row);
        Ok(())
    }

    pub(crate) fn remove(&mut self, name: &str) -> Result<SnapshotRow, SnapshotError> {
        self.get(name)?;
        if self.rows.values().any(|row| row.parent == name) {
            return Err(SnapshotError::Precondition(format!(
                "cannot remove snapshot {name}, which has a child"
            )));
        }
        self.rows.remove(name).ok_or_else(|| SnapshotError::NotFound(name.to_owned()))
    }

    /// Removes the rows that `is_gone` and nothing lies above, and returns their names.
    pub(crate) fn remove_gone(&mut self, is_gone: impl Fn(&SnapshotRow) -> bool) -> Vec<String> {
        let mut removed = Vec::new();
        loop {
            let parents: HashSet<&str> =
                self.rows.values().map(|row| row.parent.as_str()).collect();
            let gone = self
                .rows
                .iter()
                .filter(|(name, row)| is_gone(row) && !parents.contains(name.as_str()));
            let gone: Vec<String> = gone.map(|(name, _)| name.clone()).collect();
            if gone.is_empty() {
                return removed;
            }
            for name in gone {
                self.rows.remove(&name);
                removed.push(name);
            }
        }
    }

    /// Changes labels: all, or those that `fields` names.
    pub(crate) fn update(
        &mut self,
        info: &SnapshotInfo,
        fields: &[String],
    ) -> Result<SnapshotInfo, SnapshotError> {
        let mut row = self.get(&info.name)?.clone();
        if fields.is_empty() {
            row.labels.clone_from(&info.labels);
        }
        for field in fields {
            match field.strip_prefix("labels.") {
                Some(label) => {
                    row.labels.remove(label);
                    row.labels.extend(
                        info.labels
                            .get_key_value(label)
                            .map(|(name, to)| (name.clone(), to.clone())),
                    );
                }
                None if field == "labels" => row.labels.clone_from(&info.labels),
                None => {
                    return Err(SnapshotError::Invalid(format!(
                        "cannot update {field} of a snapshot"
                    )));
                }
            }
        }
        row.labels.retain(|_, value| !value.is_empty());
        row.updated = now();
        let updated = row.info(&info.name);
        self.rows.insert(info.name.clone(), row);
        Ok(updated)
    }

    /// The snapshots below `row`, from the top down.
    pub(crate) fn below<'a>(
        &'a self,
        row: &'a SnapshotRow,
    ) -> impl Iterator<Item = &'a SnapshotRow> {
        std::iter::successors(self.rows.get(&row.parent), |row| self.rows.get(&row.parent))
    }

    /// The name of a snapshot below `row` that is missing.
    pub(crate) fn missing_below<'a>(&'a self, row: &'a SnapshotRow) -> Option<&'a str> {
        let lowest = self.below(row).last().unwrap_or(row);
        Some(&*lowest.parent).filter(|parent| !parent.is_empty())
    }

    /// What is mounted for `row`, if it was not unpacked.
    pub(crate) fn stack(&self, row: &SnapshotRow) -> Option<LazyStack> {
        let top = row.lazy.clone()?;
        let below = self.below(row).filter_map(|row| row.lazy.as_ref());
        let layers = std::iter::once(&top).chain(below);
        let mut layers: Vec<_> =
            layers.map(|layer| (layer.digest.clone(), layer.document.clone())).collect();
        layers.reverse();
        (layers.len() == top.layers).then_some(LazyStack { top, layers })
    }
}

const STATE: &str = "state.json";

/// Logs what is wrong with a state.
pub(crate) fn warned(text: &str) {
    warn!(name: "state", "{text}");
}

#[derive(Debug)]
pub(crate) struct RowStore {
    root: PathBuf,
    /// Never locked while something is written: reading the rows waits for no disk.
    rows: Mutex<Held>,
    /// Held by who changes them.
    changing: Mutex<()>,
    /// Held as long as this process lives.
    _lock: File,
}

#[derive(Debug, Default)]
struct Held {
    rows: SnapshotRows,
    /// The file still has rows that were removed.
    is_ahead: bool,
}

/// Whether a write failed because the disk or the quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl RowStore {
    /// Opens the rows in `root`, which no other process may use. `directories` has the ids of the
    /// directories there. Damaged rows are set aside.
    pub(crate) fn open(root: &Path, directories: &BTreeSet<u64>) -> io::Result<RowStore> {
        let lock = state_file::lock(root, "snapshotter", &warned)?;
        let (mut rows, is_lost) =
            state_file::read_or_set_aside::<SnapshotRows>(root, STATE, &warned)?;
        if rows.damaged > 0 {
            let why = format!("{} of its rows are damaged", rows.damaged);
            state_file::set_aside(&root.join(STATE), &why, &warned);
        }
        // A crash leaves one directory before there is a file.
        let is_missing = directories.len() > 1 && !root.join(STATE).exists();
        let is_lost = is_lost || rows.damaged > 0 || is_missing;
        rows.note_directories(directories, is_lost);
        if is_lost {
            warn!(
                name: "state", left = ?rows.left,
                "directories of unknown snapshots are kept: remove them once their containers have ended"
            );
            if let Err(error) = state_file::save(root, STATE, &rows) {
                warn!(name: "state", %error, "{STATE} cannot be written");
            }
        }
        let held = Held { rows, is_ahead: false };
        let (rows, changing) = (Mutex::new(held), Mutex::default());
        Ok(RowStore { root: root.to_owned(), rows, changing, _lock: lock })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.rows.hold()
    }

    pub(crate) fn read<T>(&self, look: impl FnOnce(&SnapshotRows) -> T) -> T {
        look(&self.held().rows)
    }

    /// Has `look` look at the rows, which nobody changes meanwhile.
    pub(crate) fn unchanged<T>(&self, look: impl FnOnce(&SnapshotRows) -> T) -> T {
        let _changing = self.changing.hold();
        let rows = self.held().rows.clone();
        look(&rows)
    }

    /// Changes the rows. If `change` or writing them fails, they stay as they were, but ids are not
    /// used again. Waits for the disk, as all that changes the rows.
    pub(crate) fn change<T>(
        &self,
        change: impl FnOnce(&mut SnapshotRows) -> Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        let _changing = self.changing.hold();
        let mut changed = self.held().rows.clone();
        let result = change(&mut changed);
        self.held().rows.skip_ids_of(&changed);
        let result = result?;
        self.replace(changed, |full| Err(self.failed(full)))?;
        Ok(result)
    }

    /// Removes a row. If the disk is too full to write the others, the row is removed in memory
    /// only, and `hide` must make the snapshot's files look as if they were removed.
    pub(crate) fn remove(
        &self,
        key: &str,
        hide: impl FnOnce(&SnapshotRow) -> Result<(), SnapshotError>,
    ) -> Result<SnapshotRow, SnapshotError> {
        let _changing = self.changing.hold();
        let mut changed = self.held().rows.clone();
        let row = changed.remove(key)?;
        self.replace(changed, |_| hide(&row))?;
        Ok(row)
    }

    /// Removes the rows of snapshots without files, and returns their names.
    pub(crate) fn remove_gone(
        &self,
        is_gone: impl Fn(&SnapshotRow) -> bool,
    ) -> Result<Vec<String>, SnapshotError> {
        let _changing = self.changing.hold();
        let mut changed = self.held().rows.clone();
        let gone = changed.remove_gone(is_gone);
        if !gone.is_empty() {
            self.replace(changed, |_| Ok(()))?;
        }
        Ok(gone)
    }

    /// Writes `rows` and holds them from now on. If the disk is too full to write them, `when_full`
    /// decides whether they are held anyway.
    fn replace(
        &self,
        rows: SnapshotRows,
        when_full: impl FnOnce(io::Error) -> Result<(), SnapshotError>,
    ) -> Result<(), SnapshotError> {
        let is_ahead = match self.save(&rows) {
            Ok(()) => false,
            Err(error) if is_full(&error) => {
                when_full(error)?;
                true
            }
            Err(error) => return Err(self.failed(error)),
        };
        *self.held() = Held { rows, is_ahead };
        Ok(())
    }

    /// Writes the rows, if a removal could not, now that it freed space.
    pub(crate) fn catch_up(&self) {
        let _changing = self.changing.hold();
        let rows = Some(self.held()).filter(|held| held.is_ahead).map(|held| held.rows.clone());
        if let Some(rows) = rows {
            match self.save(&rows) {
                Ok(()) => self.held().is_ahead = false,
                Err(error) => {
                    warn!(
                        name: "state", %error,
                        "{STATE} cannot be written, and still has snapshots that were removed"
                    )
                }
            }
        }
    }

    fn failed(&self, source: io::Error) -> SnapshotError {
        SnapshotError::Files { path: self.root.join(STATE), source }
    }

    fn save(&self, rows: &SnapshotRows) -> io::Result<()> {
        state_file::save(&self.root, STATE, rows)
    }
}

/// The rows in the file. A missing file has no rows.
pub(crate) fn read(root: &Path) -> io::Result<SnapshotRows> {
    state_file::read(root, STATE)
}
