//! Identifies a process that this user started, for one that comes later.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// How long to wait until a process that was killed has ended.
const KILLED: Duration = Duration::from_secs(10);

/// A process: its number may be used again, but not with the same time of its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: i32,
    /// When it started, in clock ticks since the kernel did (proc_pid_stat(5), field 22).
    pub start: u64,
    /// The device and the inode of its program. An upgrade replaces the file of a program that
    /// runs, but not the inode.
    pub program: (u64, u64),
}

impl ProcessId {
    /// The process with this number. None if there is none, or it may not be inspected.
    pub fn of(pid: i32) -> Option<ProcessId> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let program = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
        Some(ProcessId { pid, start: start(&stat)?, program: (program.dev(), program.ino()) })
    }

    /// This process.
    pub fn own() -> Option<ProcessId> {
        ProcessId::of(std::process::id().cast_signed())
    }

    /// Whether the process still exists, and has no other user IDs than this one.
    ///
    /// Others can choose the arguments of a set-user-ID program, give it descriptors, and stop it.
    pub fn is_ours(&self) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        ProcessId::of(self.pid) == Some(*self) && runs_as(&status, &geteuid().as_raw().to_string())
    }

    /// Lets the process continue if it was stopped.
    ///
    /// # Errors
    /// If this process may not do that.
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT).map(drop)
    }

    /// Kills the process if it still exists, and waits until it has ended.
    ///
    /// # Errors
    /// If this process may not do that, or the other one does not end within 10 s.
    pub fn kill(&self) -> io::Result<()> {
        let Some(process) = self.signal(Signal::KILL)? else { return Ok(()) };
        // pidfd_open(2): it becomes readable when the process has ended.
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        let most = Timespec::try_from(KILLED).map_err(io::Error::other)?;
        match retry_on_intr(|| poll(&mut ended, Some(&most)))? {
            0 => Err(io::Error::new(io::ErrorKind::TimedOut, "a process does not end")),
            _ => Ok(()),
        }
    }

    /// None if the process does not exist any more.
    fn signal(&self, signal: Signal) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(None) };
        let process = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(None),
            opened => opened?,
        };
        // Another process may have got its number before it was opened.
        if ProcessId::of(self.pid) != Some(*self) {
            return Ok(None);
        }
        pidfd_send_signal(&process, signal)?;
        Ok(Some(process))
    }
}

/// Field 22 of a file `stat`. The name of the program, field 2, may have spaces and brackets.
fn start(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Whether a file `status` shows a process with no other user ID. Nobody else can stop it.
fn runs_as(status: &str, user: &str) -> bool {
    let ids = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    ids.is_some_and(|ids| ids.split_whitespace().all(|id| id == user))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_processes_with_no_other_user_are_ours() {
        let status = |ids: &str| format!("Name:\tociseek\nUid:\t{ids}\n");
        assert!(runs_as(&status("0\t0\t0\t0"), "0"));
        // A set-user-ID program that another user started.
        assert!(!runs_as(&status("1000\t0\t0\t0"), "0"));
        assert!(!runs_as("", "0"));
        let own = ProcessId::own().unwrap();
        assert!(own.is_ours());
        assert!(!ProcessId { start: own.start + 1, ..own }.is_ours());
        assert!(!ProcessId { program: (0, 0), ..own }.is_ours());
    }

    #[test]
    fn the_name_of_a_program_does_not_hide_its_start() {
        let fields: Vec<String> = (3..30).map(|number: u32| number.to_string()).collect();
        assert_eq!(start(&format!("7 (a) b) {}", fields.join(" "))), Some(22));
        assert_eq!(start("7 (a) S 1"), None);
    }

    #[test]
    fn only_the_process_that_is_meant_is_killed() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let id = ProcessId::of(child.id().cast_signed()).unwrap();
        ProcessId { start: id.start + 1, ..id }.kill().unwrap();
        assert!(child.try_wait().unwrap().is_none());
        id.kill().unwrap();
        assert!(!child.wait().unwrap().success());
        id.kill().unwrap();
    }
}
