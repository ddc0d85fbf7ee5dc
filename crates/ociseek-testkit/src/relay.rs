//! A TCP relay that is a bad network: it cuts, holds up, stalls and damages what it passes on, by a
//! seed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::random::Random;

/// How many bytes are passed on at a time.
const PIECE: usize = 16 << 10;
/// One of this many pieces is hit.
const HIT: u64 = 12;
/// How many pieces after a damaged one stay whole, so that what is read again at once is right.
const APART: usize = 100;
/// How long a stalled connection stays open.
const STALL: Duration = Duration::from_secs(20);

/// A relay. It runs until the process ends.
pub struct Relay {
    /// `127.0.0.1:PORT`
    pub host: String,
    pub state: Arc<RelayState>,
}

/// What it has done so far, and whether it still cuts, delays and damages.
#[derive(Default)]
pub struct RelayState {
    pub connections: AtomicUsize,
    pub cuts: AtomicUsize,
    pub delays: AtomicUsize,
    pub stalls: AtomicUsize,
    pub damages: AtomicUsize,
    /// From now on everything is passed on unchanged.
    pub is_over: AtomicBool,
    /// Pieces since the last that was damaged.
    since: AtomicUsize,
}

impl Relay {
    pub fn start(server: &str, seed: u64) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let state = Arc::new(RelayState::default());
        let server = server.to_owned();
        let counts = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let number = counts.connections.fetch_add(1, Ordering::Relaxed) as u64;
                let Ok(upstream) = TcpStream::connect(&server) else { continue };
                let client_too = client.try_clone().unwrap();
                let upstream_too = upstream.try_clone().unwrap();
                let up = Arc::clone(&counts);
                let down = Arc::clone(&counts);
                thread::spawn(move || {
                    pass(client_too, upstream_too, Random::new(seed, 2 * number), &up, false)
                });
                thread::spawn(move || {
                    pass(upstream, client, Random::new(seed, 2 * number + 1), &down, true)
                });
            }
        });
        Relay { host, state }
    }
}

/// Passes on what one side sends, until it ends or the connection is cut.
fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    mut random: Random,
    state: &RelayState,
    is_answer: bool,
) {
    let mut piece = vec![0; PIECE];
    while let Ok(read) = from.read(&mut piece)
        && read > 0
    {
        let mut passed = &mut piece[..read];
        let is_hit = random.below(HIT) == 0 && !state.is_over.load(Ordering::Relaxed);
        let kind = if is_hit { random.below(16) } else { u64::MAX };
        let since = state.since.fetch_add(1, Ordering::Relaxed);
        let hit = |count: &AtomicUsize| count.fetch_add(1, Ordering::Relaxed);
        match kind {
            0 => {
                hit(&state.stalls);
                thread::sleep(STALL);
                break;
            }
            1..5 => {
                hit(&state.cuts);
                passed = &mut passed[..read / 2];
            }
            5..8 if is_answer && since > APART => {
                if let Some(body) = body(passed) {
                    hit(&state.damages);
                    state.since.store(0, Ordering::Relaxed);
                    body[random.below(body.len() as u64) as usize] ^= 1 << random.below(8);
                }
            }
            8..16 => {
                hit(&state.delays);
                thread::sleep(Duration::from_millis(random.below(300)));
            }
            _ => {}
        }
        if to.write_all(passed).is_err() || (1..5).contains(&kind) {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

/// The part of a response that its digest covers: the body of a successful one.
fn body(piece: &mut [u8]) -> Option<&mut [u8]> {
    if !piece.starts_with(b"HTTP/") {
        return Some(piece);
    }
    let end = piece.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let is_content =
        piece.starts_with(b"HTTP/1.1 20") && piece[..end].windows(7).any(|word| word == b"-Digest");
    Some(&mut piece[end..]).filter(|body| is_content && !body.is_empty())
}
