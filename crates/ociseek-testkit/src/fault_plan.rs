//! How the Nth request to a registry fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use axum::body::Body;
use axum::http::{Response, header};
use bytes::Bytes;

use crate::faulty::{
    Faulty, ReceivedRequest, body_of, cut, damaged, damaged_at, hang_up, no_response, problem,
    stalls, web_page,
};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// The response is truncated.
    Cut,
    /// The connection is closed, and the request had no effect.
    Reset,
    /// The connection is closed after the request was executed.
    Lost,
    TooMany,
    Internal,
    Unavailable,
    /// A byte of the body is wrong; without a body, the status is.
    Wrong,
    /// A proxy's sign-in page, with status 200.
    WebPage,
    /// All tokens become invalid.
    Expired,
    Denied,
    /// The response stops, and the connection stays open.
    Stall,
    /// The registry does not answer, and keeps the connection open.
    NoResponse,
    /// From here on nobody answers, and new connections are refused.
    Down,
    /// kill -9, before or after the request is executed.
    Kill {
        done: bool,
    },
}

/// A fault at a request of a kind of image.
#[derive(Debug, Clone, Copy)]
pub struct Point {
    /// The number of the kind.
    pub kind: usize,
    pub fault: Fault,
    /// Whether it comes from then on, or once.
    pub lasts: bool,
    /// The number of the request.
    pub at: usize,
}

impl Point {
    /// Each fault that is not a kill at each of the requests, once and from then on.
    pub fn all(kind: usize, requests: usize) -> impl Iterator<Item = Point> {
        let faults = (0..requests)
            .flat_map(|at| QUICK.into_iter().chain(STALLS).map(move |fault| (at, fault)));
        faults.flat_map(move |(at, fault)| {
            [false, true].map(|lasts| Point { kind, fault, lasts, at })
        })
    }
}

pub const QUICK: [Fault; 10] = [
    Fault::Cut,
    Fault::Reset,
    Fault::Lost,
    Fault::TooMany,
    Fault::Internal,
    Fault::Unavailable,
    Fault::Wrong,
    Fault::WebPage,
    Fault::Expired,
    Fault::Denied,
];
/// A run waits before it continues: see `WAITS` of `fault_points::jobs`.
pub const STALLS: [Fault; 3] = [Fault::Stall, Fault::NoResponse, Fault::Down];
pub const KILLS: [Fault; 2] = [Fault::Kill { done: false }, Fault::Kill { done: true }];

/// The requests of a run, and the fault of one of them.
#[derive(Default)]
pub struct Plan {
    pub fault: Fault,
    pub at: usize,
    /// All requests from that one on have the fault.
    pub lasts: bool,
    pub asked: AtomicUsize,
    /// From now on all is well.
    pub is_over: AtomicBool,
    pub pid: Arc<AtomicI32>,
}

impl Plan {
    pub fn answer(&self, request: &ReceivedRequest, faulty: &Faulty) -> Option<Response<Body>> {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let lasts = self.lasts || self.fault == Fault::Down;
        let is_hit = number == self.at || lasts && number > self.at;
        if !is_hit || self.is_over.load(Ordering::SeqCst) {
            return None;
        }
        let again = |status, code| {
            let mut answer = problem(status, code, "not now");
            answer.headers_mut().insert(header::RETRY_AFTER, "0".parse().unwrap());
            Some(answer)
        };
        match self.fault {
            Fault::None => None,
            Fault::Reset => hang_up(),
            Fault::Down => {
                if number == self.at {
                    faulty.down();
                }
                hang_up()
            }
            Fault::NoResponse => Some(no_response()),
            Fault::Lost => {
                faulty.truth_now(request);
                hang_up()
            }
            Fault::Cut | Fault::Stall => {
                let (answer, bytes) = body_of(faulty.truth_now(request));
                match (self.fault, bytes.len()) {
                    (Fault::Cut, 0) => hang_up(),
                    (Fault::Cut, length) => Some(cut(answer, &bytes, length / 2)),
                    (_, length) => {
                        let mut stalled =
                            stalls(&Bytes::from([&bytes[..], b" "].concat()), length / 2);
                        // Else a part of a blob would be announced as the whole.
                        if answer.status() == axum::http::StatusCode::PARTIAL_CONTENT {
                            *stalled.status_mut() = answer.status();
                            let range = answer.headers()[header::CONTENT_RANGE].clone();
                            stalled.headers_mut().insert(header::CONTENT_RANGE, range);
                            stalled.headers_mut().insert(header::CONTENT_LENGTH, length.into());
                        }
                        Some(stalled)
                    }
                }
            }
            Fault::TooMany => again(429, "TOOMANYREQUESTS"),
            Fault::Unavailable => again(503, "UNAVAILABLE"),
            Fault::Internal => Some(problem(500, "UNKNOWN", "something is broken")),
            Fault::Denied => Some(problem(403, "DENIED", "not allowed")),
            Fault::WebPage => Some(web_page()),
            Fault::Expired => {
                faulty.revoke_tokens();
                None
            }
            Fault::Wrong => {
                let (mut answer, bytes) = body_of(faulty.truth_now(request));
                if bytes.is_empty() {
                    *answer.status_mut() = axum::http::StatusCode::RESET_CONTENT;
                    return Some(answer);
                }
                // These lists have no digest: nobody could notice that an entry is another one. So
                // what is damaged is their form.
                let is_list =
                    ["/tags/list", "/referrers/"].iter().any(|part| request.path.contains(part));
                Some(if is_list { damaged_at(0, answer, &bytes) } else { damaged(answer, &bytes) })
            }
            Fault::Kill { done } => {
                if done {
                    faulty.truth_now(request);
                }
                let pid = loop {
                    match rustix::process::Pid::from_raw(self.pid.load(Ordering::SeqCst)) {
                        Some(pid) => break pid,
                        None => std::thread::yield_now(),
                    }
                };
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                hang_up()
            }
        }
    }
}
