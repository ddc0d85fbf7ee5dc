//! Tells the service manager that the service is ready (sd_notify(3)).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use super::terminal::complain;

/// Tells it, if there is one: systemd names its socket in `NOTIFY_SOCKET` for `Type=notify`.
pub(crate) fn ready() {
    let Some(socket) = env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, b"READY=1") {
        complain(&format!("cannot tell the service manager (NOTIFY_SOCKET): {error}"));
    }
}

/// `@` begins the name of an abstract socket.
fn send(socket: &OsStr, message: &[u8]) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message, &address).map(drop)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn the_manager_is_told_on_a_path_and_on_an_abstract_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("ociseek-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, socket) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&address).unwrap(), OsString::from(format!("@{name}"))),
        ] {
            send(&socket, b"READY=1").unwrap();
            let mut told = [0; 64];
            let length = manager.recv(&mut told).unwrap();
            assert_eq!(&told[..length], b"READY=1");
        }
        assert!(send(OsStr::new("/nowhere/notify"), b"READY=1").is_err());
    }
}
