//! Runs the program on a terminal, and parses what it draws.

use std::process::{Command, Stdio};

/// The output and errors of `command` on a terminal of 80 columns, and whether it succeeded.
pub fn on_terminal(command: &Command) -> (String, bool) {
    let quoted =
        |text: &std::ffi::OsStr| format!("'{}'", text.to_str().unwrap().replace('\'', r"'\''"));
    let mut line = "stty cols 80 rows 24; exec env -i".to_owned();
    for (name, value) in command.get_envs() {
        line += &format!(" {}={}", name.to_str().unwrap(), quoted(value.unwrap()));
    }
    for word in std::iter::once(command.get_program()).chain(command.get_args()) {
        line += &format!(" {}", quoted(word));
    }
    // util-linux's `script` provides a terminal.
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.current_dir(command.get_current_dir().unwrap()).stdin(Stdio::null());
    let output = script.output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

/// The exit status of `command` where standard error is a terminal that is closed once something
/// was drawn on it, and standard output is of no interest.
pub fn on_closed_terminal(command: &Command) -> Option<i32> {
    // In a session of its own it gets no SIGHUP.
    const RUN: &str = "\
import os, subprocess, sys
master, terminal = os.openpty()
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=terminal,
                         start_new_session=True)
os.close(terminal)
drawn = b''
while b'[2K' not in drawn:
    drawn += os.read(master, 4096)
os.close(master)
sys.exit(child.wait())";
    let mut python = Command::new("python3");
    python.args(["-c", RUN]).arg(command.get_program()).args(command.get_args());
    python.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    python.current_dir(command.get_current_dir().unwrap());
    python.status().unwrap().code()
}

/// The lines that the terminal showed, even if only for a while, in order, without colours and
/// surrounding spaces. Progress bars below each other are one line, because spaces fill each row.
pub fn lines(drawn: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = drawn;
    while let Some((before, sequence)) = rest.split_once("\x1b[") {
        plain += before;
        let end = sequence.find(|c: char| ('@'..='~').contains(&c)).unwrap();
        // Every movement of the cursor ends a line.
        plain.push_str(if &sequence[end..=end] == "m" { "" } else { "\n" });
        rest = &sequence[end + 1..];
    }
    plain += rest;
    plain
        .split(['\r', '\n'])
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}
