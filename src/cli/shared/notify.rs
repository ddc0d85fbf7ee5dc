//! Tells the service manager that the service is ready (sd_notify(3)).

use ociseek_rootfs::fuse::notify_manager;

use super::terminal::complain;

/// Tells it, if there is one: `Type=notify` of systemd.
pub(crate) fn ready() {
    if let Err(error) = notify_manager("READY=1", None) {
        complain(&format!("cannot tell the service manager (NOTIFY_SOCKET): {error}"));
    }
}
