//! The error of the program, and its exit codes. What the user can do about an error is in `hint`.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;
use std::path::Path;

use super::signals::Interrupt;
use super::store_hint::{cause_hint, delete_hint};
use super::terminal::quoted;
use ociseek_ops::convert::ConvertError;
use ociseek_ops::index::{IndexError, RefusedImage};
use ociseek_ops::is_over_budget;
use ociseek_store::StoreError;

pub(crate) const DONE: u8 = 0;
pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
/// Verification found differences, or no consumer uses an index.
pub(crate) const DIFFERENT: u8 = 3;

type Source = Box<dyn Error + Send + Sync>;

/// Why a command failed, how the program ends, and what the user can do.
///
/// Any error that implements [`ForUser`] becomes one by `?`.
#[derive(Debug)]
pub(crate) struct CliError {
    error: Source,
    exit_code: u8,
    told: Told,
    hint: Option<String>,
}

/// What a command printed about its failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Nothing,
    /// The JSON document, or it can no longer print one.
    Document,
    /// Everything.
    All,
}

/// An error that a command can fail with.
pub(crate) trait ForUser: Error {
    /// What the user can do about it. It names options, which the libraries do not know.
    fn hint(&self) -> Option<String> {
        None
    }

    fn exit_code(&self) -> u8 {
        FAILED
    }
}

impl<E: ForUser + Send + Sync + 'static> From<E> for CliError {
    fn from(error: E) -> CliError {
        let exit_code = error.exit_code();
        let hint = error.hint();
        CliError { error: Box::new(error), exit_code, told: Told::Nothing, hint }
    }
}

impl CliError {
    /// What failed.
    pub(crate) fn new(what: impl Into<String>) -> CliError {
        CliError::caused(Source::from(what.into()))
    }

    /// The command line asks for what cannot be done.
    pub(crate) fn usage(what: impl Into<String>) -> CliError {
        CliError { exit_code: USAGE, ..CliError::new(what) }
    }

    /// Refuses a container's command whose program is empty, as of `-- "$UNSET"`.
    pub(crate) fn check_command(command: &[String]) -> Result<(), CliError> {
        match command.first() {
            Some(program) if program.is_empty() => {
                Err(CliError::usage("the command to run is empty: is a variable not set?"))
            }
            _ => Ok(()),
        }
    }

    /// What failed, and the cause.
    pub(crate) fn because(what: impl Into<String>, source: impl Into<Source>) -> CliError {
        CliError::caused(Source::from(Because { what: what.into(), source: source.into() }))
    }

    /// What failed with this file or folder, and the cause.
    pub(crate) fn at<E: Into<Source>>(path: &Path, what: &str) -> impl FnOnce(E) -> CliError {
        let what = format!("{}: {what}", path.display());
        move |source| CliError::because(what, source)
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(io::Error) -> CliError {
        CliError::at(path, "cannot read")
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(io::Error) -> CliError {
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).map(Path::to_owned);
        let failed = CliError::at(path, "cannot write");
        move |source| {
            let is_missing = source.kind() == io::ErrorKind::NotFound;
            let missing = dir.filter(|dir| is_missing && !dir.exists());
            let hint = missing.map(|dir| CliError::make_dir(&dir));
            CliError { hint, ..failed(source) }
        }
    }

    /// The hint for a file in a directory that does not exist.
    pub(crate) fn make_dir(dir: &Path) -> String {
        let dir = quoted(dir.as_os_str().as_encoded_bytes());
        format!("create its directory first: mkdir -p {dir}")
    }

    pub(crate) fn exists(path: &Path) -> CliError {
        CliError::new(format!("{} already exists", path.display()))
            .with_hint("use --force to replace it")
    }

    /// The system does not give what the command needs.
    pub(crate) fn start(source: impl Into<Source>) -> CliError {
        CliError::because("cannot start", source)
    }

    pub(crate) fn stdin(source: impl Into<Source>) -> CliError {
        CliError::because("cannot read standard input", source)
    }

    pub(crate) fn stdout(source: io::Error) -> CliError {
        CliError::caused(Source::from(StdoutError(source))).in_document()
    }

    /// The findings that were printed say no.
    fn verdict(what: &str) -> CliError {
        CliError { exit_code: DIFFERENT, told: Told::All, ..CliError::new(what) }
    }

    pub(crate) fn differs() -> CliError {
        CliError::verdict("verification found differences")
    }

    pub(crate) fn not_lazy() -> CliError {
        CliError::verdict("no runtime starts the image lazily")
    }

    #[cfg(mounts)]
    pub(crate) fn not_serving() -> CliError {
        CliError::verdict("the service does not run, or the server of a mount does not answer")
    }

    /// Some parts of the request failed. Each failure was already reported, so that of a single
    /// part says everything.
    pub(crate) fn some(failed: usize, all: usize, what: &str) -> CliError {
        let told = if all == 1 { Told::All } else { Told::Document };
        CliError { told, ..CliError::new(format!("{failed} of {all} {what}")) }
    }

    /// Some images could not be read. Each was listed with the reason.
    pub(crate) fn unread(failed: usize, all: usize) -> CliError {
        CliError::new(format!("{failed} of {all} images could not be read")).in_document()
    }

    /// Some indexes could not be removed. Each was listed with the reason; `source` is the first.
    pub(crate) fn not_removed(failed: usize, all: usize, source: StoreError) -> CliError {
        let hint = delete_hint(&source);
        let what = format!("{failed} of {all} indexes could not be removed");
        CliError { hint, ..CliError::because(what, source).in_document() }
    }

    /// The exit status after an error that was already reported.
    pub(crate) fn exit(exit_code: u8) -> CliError {
        let error = CliError::new(format!("exit status {exit_code}"));
        CliError { exit_code, told: Told::All, ..error }
    }

    pub(crate) fn interrupted(signal: Interrupt) -> CliError {
        let error = Source::from(Interrupted);
        CliError { exit_code: signal.exit_code(), ..CliError::caused(error).in_document() }
    }

    fn caused(error: Source) -> CliError {
        CliError { error, exit_code: FAILED, told: Told::Nothing, hint: None }
    }

    /// What the user can do.
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> CliError {
        CliError { hint: Some(hint.into()), ..self }
    }

    /// The command printed its JSON document, or can no longer print one.
    pub(crate) fn in_document(self) -> CliError {
        CliError { told: Told::Document, ..self }
    }

    /// Whether the command reported everything.
    pub(crate) fn is_reported(&self) -> bool {
        self.told == Told::All
    }

    pub(crate) fn is_in_document(&self) -> bool {
        self.told != Told::Nothing
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.error.is::<Interrupted>()
    }

    /// Whether nothing more can be printed.
    pub(crate) fn is_of_stdout(&self) -> bool {
        self.error.is::<StdoutError>()
    }

    pub(crate) fn downcast_ref<E: Error + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }

    /// The refusal, if an index falls short of --strict or --min-coverage.
    pub(crate) fn refused(&self) -> Option<&RefusedImage> {
        let error = match self.downcast_ref() {
            Some(ConvertError::Index(error)) => error.as_ref(),
            Some(_) => return None,
            None => self.downcast_ref()?,
        };
        match error {
            IndexError::Refused(refused) => Some(refused),
            _ => None,
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// What the user can do about it, if known.
    pub(crate) fn hint(&self) -> Option<String> {
        if is_over_budget(self) {
            return Some("raise --max-memory (OCISEEK_MAX_MEMORY) if you trust the image".into());
        }
        self.hint.clone().or_else(|| cause_hint(self))
    }
}

impl Display for CliError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.error, f)
    }
}

/// The error is the first cause, so that it is found among the causes by its type. Its text is not
/// repeated.
impl Error for CliError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{what}")]
struct Because {
    what: String,
    source: Source,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot write standard output")]
struct StdoutError(#[source] io::Error);

#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
struct Interrupted;
