//! What soci answered before: the same library gives the same answer for the same bytes. Asking it
//! again about hundreds of megabytes takes minutes; only agreement is remembered, so whatever
//! differs is asked and judged again.
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ociseek_format::digest::{Algorithm, Digest, Hasher};

/// A file of lines, each of which says that soci built these bytes for a layer, and whether its
/// reader served every file of the layer from them.
pub struct Answers {
    file: PathBuf,
    /// The digest of the oracle's program, which `.ci/tools` builds reproducibly.
    oracle: Digest,
    known: Mutex<HashSet<String>>,
}

impl Answers {
    pub fn open(file: PathBuf, oracle: &Path) -> Answers {
        let known = std::fs::read_to_string(&file).unwrap_or_default();
        Answers {
            file,
            oracle: digest(oracle),
            known: Mutex::new(known.lines().map(String::from).collect()),
        }
    }

    /// Whether soci built `ztoc` for the layer with this span size and, if `served`, its reader
    /// served all from it.
    pub fn knows(&self, layer: &Digest, span_size: u64, ztoc: &Digest, served: bool) -> bool {
        let known = self.known.lock().expect("no panic holds it");
        let line = |served| self.line(layer, span_size, ztoc, served);
        known.contains(&line(true)) || (!served && known.contains(&line(false)))
    }

    pub fn add(&self, layer: &Digest, span_size: u64, ztoc: &Digest, served: bool) {
        let line = self.line(layer, span_size, ztoc, served);
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.file)
            .expect("the corpus can be written");
        // In one call, since other runs may append too.
        file.write_all(format!("{line}\n").as_bytes()).expect("the corpus can be written");
        self.known.lock().expect("no panic holds it").insert(line);
    }

    fn line(&self, layer: &Digest, span_size: u64, ztoc: &Digest, served: bool) -> String {
        let served = if served { "served" } else { "built" };
        format!("{} {layer} {span_size} {ztoc} {served}", self.oracle)
    }
}

fn digest(file: &Path) -> Digest {
    let mut file = File::open(file).expect("the oracle is there");
    let mut hasher = Hasher::new(Algorithm::Sha256);
    let mut chunk = vec![0; 1 << 20];
    loop {
        match file.read(&mut chunk).expect("the oracle can be read") {
            0 => return hasher.finish(),
            read => hasher.update(&chunk[..read]),
        }
    }
}
