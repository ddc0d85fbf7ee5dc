//! Every layer of the corpus and some 3,400 unusual ones, indexed by ociseek and by soci's own
//! library:
//!
//! - ociseek must publish the same bytes as soci, and soci's reader must serve every file correctly
//!   from them;
//! - ociseek must not refuse layers that soci builds and serves correctly;
//! - nothing may panic, hang, or use unlimited resources.
//!
//! What soci answered is kept beside the corpus (`soci-answers`; delete it to ask again).
//!
//! The exceptions are listed below with reasons. A separate script creates the corpus
//! (tests/README.md).

use ociseek_testkit::answers::Answers;
use ociseek_testkit::servers::skip;
use ociseek_testkit::{in_memory, soci};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ociseek_format::layer::{Outcome, servable};
use ociseek_format::offset::Uncompressed;
use ociseek_format::ztoc::{Checkpoints, FileKind, FileMetadata, decode};
use ociseek_testkit::soci::{Oracle, TOOL, Verdict};

/// Layers that soci builds and serves correctly but that are refused here: the code and the reason.
const CAUTIOUS: &[(&str, &str)] = &[
    (
        "below-non-directory",
        "soci puts a file below what is no directory; unpacking fails, or follows the symlink there",
    ),
    ("empty-xattr", "soci's reader loses such an xattr in some runs and not in others"),
    (
        "hard-link-target",
        "soci serves hard links to directories and of a name to itself, which unpacking refuses",
    ),
    (
        "long-name",
        "soci's reader takes such a name only as long as it is the first child of its directory",
    ),
    ("mode-type-bits", "soci's reader refuses to open such a file as soon as it has content"),
    ("names-root", "soci takes a file in the place of the root for the root"),
    (
        "repeated-directory",
        "soci's oracle does not look at the root, nor at what is replaced once more",
    ),
    (
        "size-without-data",
        "soci's reader misplaces the regular file behind it; it goes well where there is none",
    ),
];

/// The result for a layer and a span size.
#[derive(Debug)]
enum Finding {
    /// Equal bytes, and every file is served correctly.
    Same,
    /// Equal bytes. The layer was read back with another span size.
    Equal,
    /// soci's ztoc has a known fault; ours is served correctly.
    Better(&'static str),
    /// Neither has a usable ztoc.
    BothRefuse(String),
    /// A listed exception.
    Cautious(String),
    Wrong(String),
}

/// The file in the corpus that has what soci answered.
const ANSWERS: &str = "soci-answers";
/// The time limit for a layer, in an unoptimised build and on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

struct Judge<'a> {
    answers: &'a Answers,
    build: Oracle,
    verify: Oracle,
    ours: PathBuf,
    theirs: PathBuf,
}

impl Judge<'_> {
    fn new<'a>(oracle: &Path, answers: &'a Answers, scratch: &Path, number: usize) -> Judge<'a> {
        Judge {
            answers,
            build: Oracle::new(oracle, "build"),
            verify: Oracle::new(oracle, "verify"),
            ours: scratch.join(format!("ours-{number}")),
            theirs: scratch.join(format!("theirs-{number}")),
        }
    }

    /// `verify` says whether a ztoc equal to soci's is also read back.
    fn judge(&mut self, layer: &Path, span_size: u64, verify: bool) -> Finding {
        let start = Instant::now();
        let indexed = catch_unwind(AssertUnwindSafe(|| soci::index(layer, span_size, TOOL)));
        if start.elapsed() > PATIENCE {
            return Finding::Wrong(format!("took {:?}", start.elapsed()));
        }
        let mut subject = None;
        let ours = match indexed {
            Err(_) => return Finding::Wrong("ociseek panicked".into()),
            Ok(Ok(layer)) => match layer.outcome {
                Outcome::Ztoc(ztoc)
                    if self.answers.knows(&layer.digest, span_size, &ztoc.digest, verify) =>
                {
                    return if verify { Finding::Same } else { Finding::Equal };
                }
                Outcome::Ztoc(ztoc) => {
                    subject = Some((layer.digest, ztoc.digest));
                    Ok(ztoc.bytes)
                }
                Outcome::Unservable(why) => Err((why.code.word(), why.reason)),
            },
            Ok(Err(error)) => Err(("error", chain(&error))),
        };
        let built = self.build.build(span_size, TOOL, layer, &self.theirs);
        let theirs =
            built.is_ok().then(|| std::fs::read(&self.theirs).expect("soci wrote its ztoc"));
        let finding = match (ours, theirs) {
            (Ok(ours), Some(theirs)) if ours == theirs && !verify => Finding::Equal,
            (Ok(ours), Some(theirs)) if ours == theirs => {
                match self.verify.verify(&self.theirs, layer) {
                    Verdict::Ok(_) => Finding::Same,
                    other => Finding::Wrong(format!(
                        "same ztoc as soci's, but its reader says: {other:?}"
                    )),
                }
            }
            (Ok(ours), theirs) => {
                std::fs::write(&self.ours, ours).expect("scratch space");
                match (self.verify.verify(&self.ours, layer), theirs) {
                    (Verdict::Ok(_), Some(theirs)) => match known_defect(&theirs) {
                        Some(defect) => Finding::Better(defect),
                        None => Finding::Wrong("served right, but the bytes are not soci's".into()),
                    },
                    (Verdict::Ok(_), None) => {
                        Finding::Wrong(format!("soci refuses it: {}", built.detail()))
                    }
                    (other, _) => Finding::Wrong(format!(
                        "our ztoc is not served: {other:?}; soci's build: {built:?}"
                    )),
                }
            }
            (Err((code, reason)), None) => {
                Finding::BothRefuse(format!("{code}: {reason} | {}", built.detail()))
            }
            (Err((code, reason)), Some(_)) => match self.verify.verify(&self.theirs, layer) {
                Verdict::Ok(_) if CAUTIOUS.iter().any(|(listed, _)| *listed == code) => {
                    Finding::Cautious(format!("{code}: {reason}"))
                }
                Verdict::Ok(_) => {
                    Finding::Wrong(format!("soci serves it, refused here: {code}: {reason}"))
                }
                other => Finding::BothRefuse(format!("{code}: {reason} | {}", other.detail())),
            },
        };
        if let (Finding::Same | Finding::Equal, Some((layer, ztoc))) = (&finding, subject) {
            self.answers.add(&layer, span_size, &ztoc, verify);
        }
        finding
    }
}

/// The known faults of soci's ztocs. With empty blocks or members at the start, they have several
/// checkpoints at output 0, which soci's reader rejects as not monotonic. And a whiteout may be a
/// hard link to a file of a lower layer, which soci's reader does not find.
fn known_defect(theirs: &[u8]) -> Option<&'static str> {
    let at_zero = |list: &[ociseek_format::ztoc::Checkpoint]| {
        list.iter().filter(|c| c.output == Uncompressed(0)).count()
    };
    let is_link = |file: &FileMetadata| {
        file.kind == FileKind::HardLink && String::from_utf8_lossy(&file.name).contains(".wh.")
    };
    match decode(theirs) {
        Ok(ztoc) if ztoc.files.iter().any(is_link) && servable(&ztoc).is_err() => {
            Some("a whiteout that is a hard link to nothing")
        }
        Ok(ztoc) => match &ztoc.checkpoints {
            Checkpoints::Gzip { list, .. } if at_zero(list) > 1 => {
                Some("several checkpoints at output 0")
            }
            _ => None,
        },
        // Our reader rejects such checkpoints, like soci's.
        Err(ociseek_format::ztoc::ZtocError::Checkpoints(_)) => Some("checkpoints out of order"),
        Err(_) => None,
    }
}

/// Tests layers with span sizes on two threads, prints a table, and fails with all errors.
fn compare(what: &str, answers: PathBuf, jobs: Vec<(PathBuf, u64)>) {
    let Some(oracle) = soci::oracle_binary() else { return };
    assert!(!jobs.is_empty(), "no layers to compare");
    // soci needs both cores and some memory, so comparisons run one after the other. A failure does
    // not affect the next one.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let scratch = tempfile::tempdir().expect("scratch space");
    let start = Instant::now();
    let total = jobs.len();
    let answers = Answers::open(answers, &oracle);
    let queue = Mutex::new(jobs.into_iter());
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..2 {
            let queue = &queue;
            let found = &found;
            let scratch = scratch.path();
            let oracle = &oracle;
            let answers = &answers;
            scope.spawn(move || {
                let mut judge = Judge::new(oracle, answers, scratch, number);
                loop {
                    let Some((layer, span)) = queue.lock().expect("no panic holds it").next()
                    else {
                        break;
                    };
                    // soci reads a hundred megabytes back in seconds, so once for each layer is
                    // enough.
                    let verify =
                        span == 1 << 20 || layer.metadata().is_ok_and(|m| m.len() < 16 << 20);
                    let finding = judge.judge(&layer, span, verify);
                    found.lock().expect("no panic holds it").push((layer, span, finding));
                }
            });
        }
    });
    let found = found.into_inner().expect("no panic held it");
    assert_eq!(found.len(), total);
    let mut table: BTreeMap<String, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    for (layer, span, finding) in &found {
        let row = match finding {
            Finding::Equal => "equal to soci's".into(),
            Finding::Same => "equal to soci's, every file served right".into(),
            Finding::Better(defect) => format!("served right, where soci's has {defect}"),
            Finding::BothRefuse(why) => {
                format!("refused, and not served by soci: {}", why.split(':').next().unwrap_or(""))
            }
            Finding::Cautious(why) => {
                format!("refused, a listed exception: {}", why.split(':').next().unwrap_or(""))
            }
            Finding::Wrong(why) => {
                wrong.push(format!("{} at {span}: {why}", layer.display()));
                "WRONG".into()
            }
        };
        *table.entry(row).or_default() += 1;
        if std::env::var_os("OCISEEK_VERBOSE").is_some() {
            println!("{}\t{span}\t{finding:?}", layer.file_name().unwrap_or_default().display());
        }
    }
    println!("{what}: {total} comparisons in {:.0?}", start.elapsed());
    for (row, count) in table {
        println!("{count:6}  {row}");
    }
    wrong.sort();
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |e| e.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() { files.extend(files_below(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

#[test]
fn torture_layers_agree_with_soci() {
    let dir = tempfile::tempdir_in(in_memory()).expect("scratch space");
    let seed = std::env::var("OCISEEK_TORTURE_SEED").unwrap_or_else(|_| "1".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/torture.py");
    match Command::new("python3").arg(script).arg(dir.path()).arg(seed).output() {
        Ok(made) => assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr)),
        Err(e) => return skip(&format!("no python3: {e}")),
    }
    let layers = files_below(dir.path());
    assert!(layers.len() > 3000, "only {} layers were made", layers.len());
    // The same seed gives the same layers.
    let answers = corpus()
        .filter(|corpus| corpus.is_dir())
        .unwrap_or_else(|| dir.path().to_owned())
        .join(ANSWERS);
    compare(
        "torture",
        answers,
        layers.iter().flat_map(|l| [4096, 65536].map(|span| (l.clone(), span))).collect(),
    );
}

/// The folder that tests/corpus/make fills.
fn corpus() -> Option<PathBuf> {
    let home =
        || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/ociseek-corpus"));
    std::env::var_os("OCISEEK_CORPUS").map(PathBuf::from).or_else(home)
}

#[test]
fn corpus_layers_agree_with_soci() {
    let Some(corpus) = corpus() else {
        return skip("no OCISEEK_CORPUS and no HOME");
    };
    let mut layers = files_below(&corpus.join("layers"));
    if layers.is_empty() {
        return skip(&format!("no corpus in {}: see tests/README.md", corpus.display()));
    }
    let size = |path: &PathBuf| path.metadata().map_or(0, |m| m.len());
    layers.sort_by_key(|path| std::cmp::Reverse(size(path)));
    compare(
        "corpus",
        corpus.join(ANSWERS),
        layers
            .iter()
            .flat_map(|l| [64 << 10, 1 << 20, 4 << 20].map(|span| (l.clone(), span)))
            .collect(),
    );
}
