//! SIGHUP: the configuration is read again. Mounts stay as they are.

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::signal::unix::Signal;
use tokio::task::spawn_blocking;
use toml::Table;
use tracing::{info, warn};

use super::images::{NodeImages, NodeSettings};
use super::metrics::SnapshotterCounter;
use super::{config, settings};
use crate::cli::shared::error::CliError;
use crate::cli::shared::verbosity::VerbosityArgs;
use ociseek_format::progress::causes;
use ociseek_node::Snapshotter;

/// Keys whose value is in use, so that a change needs a restart.
const NEEDS_RESTART: [&str; 11] = [
    "cache-dir",
    "cache-size",
    "containerd",
    "events-api-server",
    "events-login",
    "image-service",
    "max-memory",
    "metrics-listen",
    "no-cache",
    "root",
    "socket",
];

/// What a configuration file changes in a server that runs.
pub(super) struct Reloading {
    pub path: PathBuf,
    /// As it was when the program began.
    pub started: Table,
    /// As it was read last.
    pub table: Table,
    pub verbosity: VerbosityArgs,
    pub images: Arc<NodeImages>,
    pub snapshotter: Arc<Snapshotter>,
}

impl Reloading {
    /// Reads the configuration again at each SIGHUP.
    pub(super) async fn at_hangups(mut self, mut hangups: Signal) -> Infallible {
        loop {
            hangups.recv().await;
            // A disk that does not answer, or a FIFO, keeps only this waiting.
            let reading = spawn_blocking(move || {
                self.try_reload();
                self
            });
            self = match reading.await {
                Ok(reloading) => reloading,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            };
        }
    }

    fn try_reload(&mut self) {
        let result = match self.reload() {
            Ok(()) => "reloaded",
            Err(error) => {
                let path = self.path.display();
                warn!(name: "not-reloaded", %path, error = causes(&error), "nothing is changed");
                "failed"
            }
        };
        self.images.metrics.count(SnapshotterCounter::Reloads, result);
    }

    fn reload(&mut self) -> Result<(), CliError> {
        let table = config::table(&self.path).map_err(config::ConfigFileError::at(&self.path))?;
        let typed: Vec<OsString> = std::env::args_os().collect();
        let args = config::args(&table, typed);
        let args = args.map_err(config::ConfigFileError::at(&self.path))?;
        let log_level = args.log_level;
        let memory = args.memory.0;
        let settings: NodeSettings = settings(args)?;
        self.verbosity.set_log_level(log_level);
        self.snapshotter.limit_memory(memory);
        self.images.change(settings);
        let needs_restart = |key: &String| NEEDS_RESTART.contains(&key.as_str());
        let mut changed = differing(&self.table, &table);
        changed.retain(|key| !needs_restart(key));
        let mut restart = differing(&self.started, &table);
        restart.retain(needs_restart);
        self.table = table;
        info!(name: "reloaded", path = %self.path.display(), ?changed);
        if !restart.is_empty() {
            warn!(name: "needs-restart", keys = ?restart, "these changes need a restart");
        }
        Ok(())
    }
}

/// The keys that differ.
fn differing(old: &Table, new: &Table) -> Vec<String> {
    let all = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
    all.filter(|key| old.get(*key) != new.get(*key)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_are_found() {
        assert!(NEEDS_RESTART.iter().all(|key| config::is_key(key)));
        let old = "socket = '/a'\nlazy-from = ['*']\ndeadline = '5s'".parse().unwrap();
        let new = "socket = '/b'\nlazy-from = ['r.example']\ncache-dir = '/c'".parse().unwrap();
        assert_eq!(differing(&old, &new), ["deadline", "lazy-from", "socket", "cache-dir"]);
        assert!(differing(&new, &new).is_empty());
    }
}
