//! The files that a container's command needs at least, found without running it: the program, its
//! interpreter and libraries, and the files that its arguments name. For machines on which no
//! container can run.

use std::collections::BTreeSet;
use std::ops::Range;

use bytes::Bytes;
use serde::Deserialize;

use crate::open::RootFs;
use crate::prefetch::file_at;
use ociseek_format::image::json::parse_lenient;
use ociseek_rootfs::record::RecordedRead;

/// The most files that are followed.
const MAX_FILES: usize = 500;
/// How much of a file is read to find out what it is, in bytes.
const START: u64 = 4096;
/// The most bytes of a table in a program that are read.
const MAX_TABLE: u64 = 1 << 20;
/// The longest path, in bytes.
const MAX_PATH: usize = 4096;

/// Where programs are looked for, if the image does not say.
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where libraries are looked for, but for the program's own list.
const LIBRARIES: [&str; 12] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/local/lib/x86_64-linux-gnu",
    "/usr/local/lib/aarch64-linux-gnu",
];

/// Why a command cannot run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    #[error("the image has no command")]
    NoCommand,
    #[error("the image does not have the program {0:?}")]
    NotFound(String),
    #[error("{0:?} of the image is a directory, not a program")]
    Directory(String),
    #[error("{path:?} of the image is not executable: its mode is {mode:04o}")]
    NotExecutable { path: String, mode: u32 },
    #[error(
        "{path:?} of the image needs the interpreter {interpreter:?}, which the image does not have"
    )]
    NoInterpreter { path: String, interpreter: String },
}

/// The files that `command` needs, as reads of all of each. Without a command, that of the image.
///
/// # Errors
/// If the image has no such program.
pub async fn startup_files(
    image: &RootFs,
    entrypoint: Option<&[String]>,
    command: Option<&[String]>,
) -> Result<Vec<RecordedRead>, ProgramError> {
    let config = parse_lenient::<ImageConfig>(&image.config).unwrap_or_default().config;
    let entry = entrypoint.map_or_else(|| config.entrypoint.unwrap_or_default(), <[_]>::to_vec);
    let command = match (command, entrypoint) {
        (Some(command), _) => command.to_vec(),
        (None, Some(_)) => Vec::new(),
        (None, None) => config.cmd.unwrap_or_default(),
    };
    let arguments: Vec<String> = entry.into_iter().chain(command).collect();
    let environment = config.env.unwrap_or_default();
    let search = environment.iter().find_map(|variable| variable.strip_prefix("PATH="));
    let search: Vec<&str> = search.unwrap_or(SEARCH).split(':').collect();
    let directory = config.working_dir.unwrap_or_default();
    let mut files = Files { image, reads: Vec::new(), known: BTreeSet::new() };
    let name = arguments.first().filter(|name| !name.is_empty()).ok_or(ProgramError::NoCommand)?;
    let program =
        files.program(name, &search, &directory).ok_or_else(|| files.absent(name, &directory))?;
    files.check(&program)?;
    files.check_interpreter(&program).await?;
    files.follow(program, &search, &directory).await;
    // `python3 main.py`, `sh -c "exec nginx"`
    let words = arguments.iter().skip(1).flat_map(|argument| argument.split_whitespace());
    for word in words.take(MAX_FILES) {
        let below = format!("{directory}/{word}");
        let place = if word.starts_with('/') { word } else { below.as_str() };
        let place = Some(place.to_owned()).filter(|place| files.has(place));
        if let Some(place) = place.or_else(|| files.program(word, &search, &directory)) {
            files.follow(place, &search, &directory).await;
        }
    }
    Ok(files.reads)
}

#[derive(Default, Deserialize)]
struct ImageConfig {
    #[serde(default)]
    config: RunConfig,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RunConfig {
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    working_dir: Option<String>,
}

struct Files<'a> {
    image: &'a RootFs,
    reads: Vec<RecordedRead>,
    known: BTreeSet<String>,
}

impl Files<'_> {
    fn has(&self, path: &str) -> bool {
        path.len() <= MAX_PATH && file_at(&self.image.tree, path.as_bytes()).is_ok()
    }

    /// Checks that the program is executable.
    fn check(&self, path: &str) -> Result<(), ProgramError> {
        let tree = &self.image.tree;
        let Ok(node) = tree.resolve(path.as_bytes(), true) else { return Ok(()) };
        match tree.node(node).mode {
            mode if mode & 0o111 == 0 => {
                Err(ProgramError::NotExecutable { path: path.to_owned(), mode })
            }
            _ => Ok(()),
        }
    }

    /// Checks that the image has what the kernel starts for the program: for a script, the
    /// interpreter in its first line, and for a program with libraries, their loader.
    async fn check_interpreter(&self, path: &str) -> Result<(), ProgramError> {
        let start = self.read(path, 0..START).await;
        let interpreter = match &start[..] {
            // The name ends at a blank, but not at the carriage return of a line from Windows.
            [b'#', b'!', line @ ..] => {
                let mut words = line.split(|byte| b" \t\n\0".contains(byte));
                let word = words.find(|word| !word.is_empty()).unwrap_or_default();
                String::from_utf8_lossy(word).into_owned()
            }
            _ => self.loader(path, &start).await.unwrap_or_default(),
        };
        match interpreter.starts_with('/') && !self.has(&interpreter) {
            true => Err(ProgramError::NoInterpreter { path: path.to_owned(), interpreter }),
            false => Ok(()),
        }
    }

    /// The error for a program that the image does not have.
    fn absent(&self, name: &str, directory: &str) -> ProgramError {
        let path =
            if name.starts_with('/') { name.to_owned() } else { format!("{directory}/{name}") };
        let node = self.image.tree.resolve(path.as_bytes(), true);
        let is_directory = node.is_ok_and(|node| self.image.tree.node(node).kind.is_directory());
        if is_directory && name.contains('/') {
            ProgramError::Directory(name.to_owned())
        } else {
            ProgramError::NotFound(name.to_owned())
        }
    }

    /// The path of a program.
    fn program(&self, name: &str, search: &[&str], directory: &str) -> Option<String> {
        let path = match name {
            _ if name.starts_with('/') => Some(name.to_owned()),
            _ if name.contains('/') => Some(format!("{directory}/{name}")),
            _ => search.iter().map(|folder| format!("{folder}/{name}")).find(|path| self.has(path)),
        };
        path.filter(|path| self.has(path))
    }

    /// Adds a file and all that it needs.
    async fn follow(&mut self, path: String, search: &[&str], directory: &str) {
        let mut ahead = vec![path];
        while let Some(path) = ahead.pop() {
            if self.known.len() >= MAX_FILES || !self.known.insert(path.clone()) {
                continue;
            }
            let Ok(file) = file_at(&self.image.tree, path.as_bytes()) else { continue };
            let size = file.size();
            let name = path.trim_start_matches('/').as_bytes().to_vec();
            self.reads.push(RecordedRead { path: name, offset: 0, size });
            let start = self.read(&path, 0..START).await;
            match &start[..] {
                [b'#', b'!', rest @ ..] => {
                    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
                    let line = String::from_utf8_lossy(line).into_owned();
                    let words = line.split_whitespace().take(2);
                    ahead.extend(words.filter_map(|word| self.program(word, search, directory)));
                }
                _ => ahead.extend(self.libraries(&path, &start).await),
            }
        }
    }

    async fn read(&self, path: &str, range: Range<u64>) -> Bytes {
        let Ok(file) = file_at(&self.image.tree, path.as_bytes()) else { return Bytes::new() };
        let end = range.end.min(file.size()).min(range.start.saturating_add(MAX_TABLE));
        let range = range.start.min(end)..end;
        self.image.content.read_file(file, range).await.unwrap_or_default()
    }

    /// What loads the libraries of a program.
    async fn loader(&self, path: &str, start: &[u8]) -> Option<String> {
        let segments = segments(start);
        let segment = segments.iter().find(|segment| segment.kind == INTERPRETER)?;
        Some(text(&self.read(path, segment.in_file()).await, 0))
    }

    /// The loader and the libraries of a program.
    async fn libraries(&self, path: &str, start: &[u8]) -> Vec<String> {
        let segments = segments(start);
        let mut needed = Vec::from_iter(self.loader(path, start).await);
        let Some(dynamic) = segments.iter().find(|segment| segment.kind == DYNAMIC) else {
            return needed;
        };
        let table = self.read(path, dynamic.in_file()).await;
        let entries: Vec<(u64, u64)> = table
            .chunks_exact(16)
            .filter_map(|entry| Some((number(entry, 0, 8)?, number(entry, 8, 8)?)))
            .collect();
        let value = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, v)| *v);
        let Some((address, size)) = value(STRINGS).zip(value(STRINGS_SIZE)) else { return needed };
        let Some(offset) = segments.iter().find_map(|segment| segment.offset_of(address)) else {
            return needed;
        };
        let strings = self.read(path, offset..offset.saturating_add(size)).await;
        let origin = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let own = value(RUN_PATH).or_else(|| value(R_PATH)).map(|at| text(&strings, at));
        let own = own.unwrap_or_default().replace("${ORIGIN}", origin).replace("$ORIGIN", origin);
        let folders = own.split(':').filter(|folder| !folder.is_empty()).chain(LIBRARIES);
        let folders: Vec<&str> = folders.collect();
        let names = entries.iter().filter(|(tag, _)| *tag == NEEDED);
        for name in names.map(|(_, at)| text(&strings, *at)).take(MAX_FILES) {
            let place = folders.iter().map(|folder| format!("{folder}/{name}"));
            needed.extend({ place }.find(|place| self.has(place)));
        }
        needed
    }
}

/// Kinds of program headers, and tags of the dynamic section (elf(5)).
const LOAD: u64 = 1;
const DYNAMIC: u64 = 2;
const INTERPRETER: u64 = 3;
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const STRINGS_SIZE: u64 = 10;
const R_PATH: u64 = 15;
const RUN_PATH: u64 = 29;

struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

impl Segment {
    fn in_file(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.size)
    }

    /// The place in the file of what is loaded at an address.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let within = address.checked_sub(self.address).filter(|within| *within < self.size)?;
        (self.kind == LOAD).then(|| self.offset.checked_add(within))?
    }
}

/// The program headers in the start of a program with 64 bits, the lowest byte first. None of any
/// other file.
fn segments(start: &[u8]) -> Vec<Segment> {
    if !start.starts_with(b"\x7fELF\x02\x01") {
        return Vec::new();
    }
    let table = number(start, 32, 8).and_then(|at| usize::try_from(at).ok());
    let table = table.and_then(|at| start.get(at..)).unwrap_or_default();
    let count = number(start, 56, 2).unwrap_or(0) as usize;
    let segment = |header: &[u8]| {
        Some(Segment {
            kind: number(header, 0, 4)?,
            offset: number(header, 8, 8)?,
            address: number(header, 16, 8)?,
            size: number(header, 32, 8)?,
        })
    };
    table.chunks_exact(56).take(count).filter_map(segment).collect()
}

/// A number of up to eight bytes, the lowest first.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
}

/// The text up to the next zero byte.
fn text(bytes: &[u8], at: u64) -> String {
    let rest = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
    let text = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(&text[..text.len().min(MAX_PATH)]).into_owned()
}
