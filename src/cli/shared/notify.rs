//! Tells the service manager that the service is ready (sd_notify(3)).

use std::convert::Infallible;
use std::env;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::interval;

use ociseek_rootfs::fuse::notify_manager;

use super::terminal::complain;

/// Tells it, if there is one: `Type=notify` of systemd.
pub(crate) fn ready() {
    if let Err(error) = notify_manager("READY=1", None) {
        complain(&format!("cannot tell the service manager (NOTIFY_SOCKET): {error}"));
    }
}

/// Tells it again and again that the service answers, if it wants to know: systemd kills a service
/// that has told nothing for `WatchdogSec=`, and starts another (sd_watchdog_enabled(3)).
pub(crate) async fn alive(answers: impl Fn() -> bool) -> Infallible {
    let micros = env::var("WATCHDOG_USEC").ok().and_then(|micros| micros.parse().ok());
    // Twice in this time, as that page recommends.
    let Some(half) = micros.map(|micros: u64| Duration::from_micros(micros / 2)) else {
        return std::future::pending().await;
    };
    let mut ticks = interval(half.max(Duration::from_millis(100)));
    loop {
        ticks.tick().await;
        if answers() {
            // The manager finds out by itself if it hears nothing.
            let _ = spawn_blocking(|| notify_manager("WATCHDOG=1", None)).await;
        }
    }
}
