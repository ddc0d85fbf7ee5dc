//! A TCP proxy that limits the rate at which the server's bytes are passed to clients, all
//! connections together.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How many bytes are sent at a time.
const PIECE: usize = 16 << 10;

/// Starts the proxy and returns its address, `127.0.0.1:PORT`. It runs until the process ends.
pub fn throttled(server: &str, bytes_per_second: u64) -> String {
    throttled_and_counted(server, bytes_per_second).0
}

/// The same, with the number of bytes that it has passed to clients.
pub fn throttled_and_counted(server: &str, bytes_per_second: u64) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = server.to_owned();
    // When the connection is free again.
    let free = Arc::new(Mutex::new(Instant::now()));
    let passed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&passed);
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(upstream) = TcpStream::connect(&server) else { continue };
            let mut from = client.try_clone().unwrap();
            let mut to = upstream.try_clone().unwrap();
            thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            let free = Arc::clone(&free);
            let count = Arc::clone(&count);
            thread::spawn(move || slowly(upstream, client, bytes_per_second, &free, &count));
        }
    });
    (address, passed)
}

fn slowly(
    mut from: TcpStream,
    mut to: TcpStream,
    bytes_per_second: u64,
    free: &Mutex<Instant>,
    count: &AtomicU64,
) {
    let mut piece = vec![0; PIECE];
    while let Ok(read) = from.read(&mut piece)
        && read > 0
    {
        count.fetch_add(read as u64, Ordering::Relaxed);
        let takes = Duration::from_secs_f64(read as f64 / bytes_per_second as f64);
        let mut at = free.lock().unwrap();
        *at = (*at).max(Instant::now()) + takes;
        let until = *at;
        drop(at);
        thread::sleep(until.saturating_duration_since(Instant::now()));
        if to.write_all(&piece[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
