//! The processes that tests start, signal, wait for and end.

use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{PATIENCE, memory_of};

/// A process that is killed when this is dropped.
pub struct ChildProcess(Child);

impl ChildProcess {
    pub fn spawn(command: &mut Command) -> ChildProcess {
        ChildProcess(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Starts a server and waits until it accepts connections at `address`.
    pub fn listening(command: &mut Command, address: &str) -> ChildProcess {
        let mut child = ChildProcess::spawn(command);
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            assert!(child.ended().is_none(), "{command:?} ended");
            assert!(begun.elapsed() < PATIENCE, "{command:?} does not listen");
            sleep(Duration::from_millis(20));
        }
        child
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its standard input, which must be piped. It is given away once, like the others.
    pub fn stdin(&mut self) -> ChildStdin {
        self.0.stdin.take().expect("standard input is piped")
    }

    pub fn stdout(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("standard output is piped")
    }

    pub fn stderr(&mut self) -> ChildStderr {
        self.0.stderr.take().expect("standard error is piped")
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Kills it and waits until it has ended.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Its status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().unwrap()
    }

    /// Waits for [`PATIENCE`] until it ends.
    pub fn wait(&mut self) -> Option<ExitStatus> {
        let begun = Instant::now();
        loop {
            match self.ended() {
                None if begun.elapsed() < PATIENCE => sleep(Duration::from_millis(5)),
                ended => return ended,
            }
        }
    }

    /// Ends it by SIGTERM, which it must take for success.
    pub fn stop(&mut self) {
        self.signal(Signal::TERM);
        assert!(self.end().success());
    }

    /// The status with which it ends.
    pub fn end(&mut self) -> ExitStatus {
        self.wait().expect("the process ends")
    }

    /// Its peak memory so far, in bytes.
    pub fn peak_memory(&self) -> u64 {
        memory_of(self.id(), "VmHWM").expect("the process runs")
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The processes whose command line has all of these texts.
pub fn processes_with(texts: &[&str]) -> Vec<i32> {
    let has_all = |pid: &i32| {
        let arguments = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        texts.iter().all(|text| arguments.contains(text))
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .filter(has_all)
        .collect()
}

pub fn kill(processes: &[i32]) {
    for process in processes {
        // It may have ended by itself.
        let _ = kill_process(Pid::from_raw(*process).unwrap(), Signal::KILL);
    }
}
