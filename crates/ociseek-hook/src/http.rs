//! HTTP for all services: connections that are limited in number, in total and for each peer, in
//! their duration, and in how long a peer may do nothing; and endpoints for a service's own state:
//! whether it runs, whether it accepts work, and its counters.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Sleep, sleep, timeout};
use tracing::warn;

use crate::log::TARGET;
use ociseek_store::lock::Hold;

/// The default for how long a service waits for a client that sends or accepts nothing, in seconds.
pub const PATIENCE: u32 = 15;

/// A service with health and metrics endpoints.
pub trait Monitored: Send + Sync + 'static {
    /// Whether it accepts work.
    fn is_ready(&self) -> bool;

    /// Its counters and gauges, in the text format of Prometheus.
    fn metrics(&self) -> String;
}

/// Serves `GET /healthz`, `/readyz` and `/metrics` on `listener`, without authentication, for as
/// long as this is polled. `patience` is the service's.
pub async fn monitor(listener: TcpListener, service: Arc<impl Monitored>, patience: Duration) {
    accept(listener, monitor_router(service), patience, std::future::pending()).await;
}

/// The routes of these endpoints, to be served together with others.
pub(crate) fn monitor_router<M: Monitored>(service: Arc<M>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready::<M>))
        .route("/metrics", get(metrics::<M>))
        .with_state(service)
}

async fn ready<M: Monitored>(State(service): State<Arc<M>>) -> Response {
    if service.is_ready() {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}

async fn metrics<M: Monitored>(State(service): State<Arc<M>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], service.metrics()).into_response()
}

/// The maximum number of connections. Further ones wait in the listener's queue.
const CONNECTIONS: usize = 512;
/// The maximum number for a peer. Further ones are closed at once. A proxy in front of the service
/// counts as one peer.
const OF_A_PEER: usize = CONNECTIONS / 2;
/// The maximum number of requests on a connection.
const REQUESTS: usize = 100;
/// The maximum duration of a connection, as a multiple of the patience with its peer.
const LIFETIME: u32 = 8;
/// How long running requests may take after the service was stopped.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// The address of the client.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// Serves `router` until `stop`; then completes running requests.
///
/// `patience` is how long a peer may take to send a header, and to accept some of a response. After
/// eight times this long, a connection ends with its current request.
pub(crate) async fn accept(
    listener: TcpListener,
    router: Router,
    patience: Duration,
    stop: impl Future<Output = ()>,
) {
    let (last, ending) = watch::channel(());
    let mut connections = JoinSet::new();
    let permits = Arc::new(Semaphore::new(CONNECTIONS));
    let peers = Peers::default();
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await;
            (permit, listener.accept().await)
        };
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            (permit, accepted) = accepted => match accepted {
                Ok((stream, peer)) => {
                    let Some(place) = peers.enter(peer.ip()) else { continue };
                    let router = router.clone();
                    let ending = ending.clone();
                    connections.spawn(async move {
                        let _kept = (permit, place);
                        connection(stream, peer, router, patience, ending).await;
                    });
                }
                // The process may have run out of file descriptors. Connections that end free some.
                Err(error) => {
                    warn!(name: "accept", target: TARGET, error = error.to_string());
                    sleep(Duration::from_millis(200)).await;
                }
            }
        }
    }
    drop(listener);
    let _ = last.send(());
    let all = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(LAST_REQUESTS, all).await;
    connections.shutdown().await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    patience: Duration,
    mut ending: watch::Receiver<()>,
) {
    let _ = stream.set_nodelay(true);
    let answered = Arc::new(AtomicUsize::new(0));
    let count = move |mut response: Response| {
        if answered.fetch_add(1, Ordering::Relaxed) + 1 >= REQUESTS {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        std::future::ready(response)
    };
    let router =
        router.layer(axum::Extension(Peer(peer.ip()))).layer(axum::middleware::map_response(count));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(64 << 10);
    let stream = TokioIo::new(WriteTimeout { stream, patience, waits: None });
    let mut connection =
        std::pin::pin!(builder.serve_connection(stream, TowerToHyperService::new(router)));
    // How a connection ends only concerns its peer.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = ending.changed() => {}
        () = sleep(patience * LIFETIME) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(patience * 2, connection).await;
}

/// The number of connections of each peer.
#[derive(Clone, Default)]
struct Peers(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection of a peer.
struct PeerConnection {
    peers: Peers,
    peer: IpAddr,
}

impl Peers {
    /// None if the peer has as many connections as it may have.
    fn enter(&self, peer: IpAddr) -> Option<PeerConnection> {
        let peer = network(peer);
        let mut peers = self.0.hold();
        let count = peers.entry(peer).or_default();
        if *count >= OF_A_PEER {
            return None;
        }
        *count += 1;
        Some(PeerConnection { peers: self.clone(), peer })
    }
}

impl Drop for PeerConnection {
    fn drop(&mut self) {
        let mut peers = self.peers.0.hold();
        if let Some(count) = peers.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                peers.remove(&self.peer);
            }
        }
    }
}

/// An IPv4 address, or the first 64 bits of an IPv6 address, because a host can have any number of
/// addresses in that network.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address => address,
    }
}

/// A stream that fails if its peer accepts none of the written bytes for longer than `patience`.
struct WriteTimeout {
    stream: TcpStream,
    patience: Duration,
    waits: Option<Pin<Box<Sleep>>>,
}

impl WriteTimeout {
    fn judge(
        &mut self,
        context: &mut Context,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waits = None;
            return written;
        }
        let patience = self.patience;
        ready!(self.waits.get_or_insert_with(|| Box::pin(sleep(patience))).as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for WriteTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        into: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for WriteTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        parts: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.judge(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[test]
    fn connections_of_one_peer_are_limited() {
        let peers = Peers::default();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let mut places: Vec<_> =
            (0..OF_A_PEER).map(|_| peers.enter(address("10.0.0.1")).unwrap()).collect();
        assert!(peers.enter(address("10.0.0.1")).is_none());
        assert!(peers.enter(address("::ffff:10.0.0.1")).is_none(), "the same in another spelling");
        assert!(peers.enter(address("10.0.0.2")).is_some());
        places.pop();
        assert!(peers.enter(address("10.0.0.1")).is_some());
        places.clear();
        assert!(peers.0.lock().unwrap().is_empty());
        assert_eq!(network(address("2001:db8::1")), network(address("2001:db8::ffff:1:2")));
        assert_ne!(network(address("2001:db8::1")), network(address("2001:db8:0:1::1")));
    }

    const LONG: usize = 16 << 20;

    /// A client that requested a long response.
    async fn asked(patience: Duration) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", axum::routing::get(async || "x".repeat(LONG)));
        tokio::spawn(accept(listener, router, patience, std::future::pending()));
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut client = socket.connect(address).await.unwrap();
        client.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        client
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_disconnected() {
        let mut client = asked(Duration::from_millis(200)).await;
        sleep(Duration::from_millis(1000)).await;
        let mut taken = Vec::new();
        let _ = client.read_to_end(&mut taken).await;
        assert!((1..LONG).contains(&taken.len()), "{}", taken.len());
    }

    #[tokio::test]
    async fn a_client_that_reads_too_slowly_is_disconnected() {
        let mut client = asked(Duration::from_millis(100)).await;
        let mut taken = vec![0; 1024];
        for _ in 0..60 {
            let _ = client.read(&mut taken).await;
            sleep(Duration::from_millis(20)).await;
        }
        taken.clear();
        let _ = client.read_to_end(&mut taken).await;
        assert!(taken.len() < LONG - (60 << 10), "{}", taken.len());
    }

    #[tokio::test]
    async fn responses_on_one_connection_are_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", axum::routing::get(async || "ok"));
        let patience = Duration::from_secs(60);
        tokio::spawn(accept(listener, router, patience, std::future::pending()));
        let mut client = TcpStream::connect(address).await.unwrap();
        let requests = "GET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(REQUESTS + 50);
        client.write_all(requests.as_bytes()).await.unwrap();
        let mut answers = Vec::new();
        // The further requests were not read, so TCP resets the connection.
        let _ = client.read_to_end(&mut answers).await;
        let answers = String::from_utf8(answers).unwrap();
        assert!((1..=REQUESTS).contains(&answers.matches("HTTP/1.1 200").count()), "{answers}");
    }
}
