//! Runs a program in which an access to a file fails, is cut short, or kills it: `inject.c`
//! manipulates its system calls, but only below a folder.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::servers::{skip, tool};

/// A kind of access and its fault, as named in inject.c.
pub type Fault = (&'static str, &'static str);
pub const FAILURES: [Fault; 5] = [
    ("writes", "eio"),
    ("writes", "enospc"),
    ("writes", "short"),
    ("reads", "eio"),
    ("reads", "short"),
];
pub const KILLS: [Fault; 3] = [("writes", "kill"), ("writes", "done"), ("writes", "torn")];

/// The compiled inject.c.
pub struct Injector {
    program: PathBuf,
    _dir: tempfile::TempDir,
}

impl Injector {
    /// If it cannot run here, prints a line with the reason and returns None.
    pub fn new() -> Option<Injector> {
        let compiler = tool("gcc")?;
        if !cfg!(target_arch = "x86_64") {
            skip("inject.c knows the registers of x86-64");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("inject");
        let source = crate::project().join("crates/ociseek-testkit/src/inject.c");
        assert!(
            Command::new(compiler)
                .args(["-O1", "-o"])
                .arg(&program)
                .arg(source)
                .status()
                .unwrap()
                .success()
        );
        let args = [dir.path().to_str().unwrap(), "writes", "count", "0", "/dev/null", "true"];
        if !Command::new(&program).args(args).status().unwrap().success() {
            skip("this system does not allow ptrace and seccomp");
            return None;
        }
        Some(Injector { program, _dir: dir })
    }

    /// The program and arguments that start another program, with the fault at access number `at`
    /// to a file below `dir`. What follows a comma in the mode is not for inject.c.
    pub fn through(
        &self,
        dir: &Path,
        (class, mode): Fault,
        at: usize,
        report: &Report,
    ) -> Vec<String> {
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let dir = text(&dir.canonicalize().unwrap());
        let mode = mode.split(',').next().unwrap().to_owned();
        vec![text(&self.program), dir, class.to_owned(), mode, at.to_string(), text(&report.path())]
    }
}

/// Where the injector reports what it did in one run.
pub struct Report(tempfile::TempDir);

impl Report {
    pub fn new() -> Report {
        Report(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("report")
    }

    /// The folder with what was synced before a power failure.
    pub fn synced(&self) -> PathBuf {
        self.0.path().join("report.synced")
    }

    /// The number of accesses, and the one that was hit. It is there when the program has ended.
    pub fn read(&self) -> Result<(usize, String), String> {
        let text = std::fs::read_to_string(self.path())
            .map_err(|e| format!("the injector reported nothing: {e}"))?;
        let numbers = text
            .split_once('\n')
            .and_then(|(count, hit)| Some((count.parse().ok()?, hit.trim().to_owned())));
        numbers.ok_or_else(|| format!("the injector reported {text:?}"))
    }
}

/// The command `inner`, started by the program and arguments `through`, if there are any.
pub fn started_through(through: &[String], inner: Command) -> Command {
    let Some((program, own)) = through.split_first() else { return inner };
    let mut command = Command::new(program);
    command.args(own).arg(inner.get_program()).args(inner.get_args());
    command.env_clear().envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    if let Some(dir) = inner.get_current_dir() {
        command.current_dir(dir);
    }
    command
}
