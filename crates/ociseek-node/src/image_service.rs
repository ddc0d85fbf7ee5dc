//! The CRI's image service (`runtime.v1.ImageService`), between kubelet and containerd.
//!
//! kubelet gives the login of a pull, such as a pod's `imagePullSecrets`, to this service only.
//! Every call and every answer is passed on as it is, byte for byte, also of methods that are not
//! known here. Of a pull, the login and the pod are noted; of a removal, the image.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use h2::RecvStream;
use http::HeaderMap;
use http::header::CONNECTION;
use http_body::Frame;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::net::UnixStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use crate::cri::{
    AuthConfig, PREFIX, PullImageAnswer, PullImageRequest, RemoveImageRequest, unframed,
};
use crate::pods::{Pod, PullingPod, PullingPods};
use ociseek_format::image::{ImageName, Reference};
use ociseek_store::registry::{PendingPull, PullLogin, PulledLogins};

/// The longest request, as in kubelet and containerd (`maxMsgSize`), with gRPC's prefix.
const LONGEST: usize = (16 << 20) + PREFIX;
/// How much of the answer to a pull is looked at.
const LOOKED_AT: usize = 4 << 10;
/// How long connecting to containerd may take.
const CONNECTING: Duration = Duration::from_secs(10);
/// How much containerd may send ahead.
const WINDOW: u32 = 1 << 20;

/// containerd's image service, and where logins are noted.
#[derive(Clone)]
pub struct ImageService {
    /// containerd's socket.
    pub containerd: PathBuf,
    /// Has the logins.
    pub logins: PulledLogins,
    /// Has the pods for which images are being pulled.
    pub pods: PullingPods,
    /// Whether the login and the pod of an image are of any use.
    pub is_wanted: Arc<dyn Fn(&Reference) -> bool + Send + Sync>,
}

ociseek_format::opaque_debug!(ImageService);

impl NamedService for ImageService {
    const NAME: &'static str = "runtime.v1.ImageService";
}

impl Service<http::Request<Body>> for ImageService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(
            async move { Ok(service.passed_on(request).await.unwrap_or_else(Status::into_http)) },
        )
    }
}

impl ImageService {
    async fn passed_on(
        &self,
        request: http::Request<Body>,
    ) -> Result<http::Response<Body>, Status> {
        let (mut head, body) = request.into_parts();
        // HTTP/2 has none, and h2 refuses it.
        head.headers.remove(CONNECTION);
        let body = Limited::new(body, LONGEST).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                Status::resource_exhausted(format!("a request of more than {LONGEST} bytes"))
            } else {
                Status::cancelled(error.to_string())
            }
        })?;
        let body = body.to_bytes();
        let (learning, pod) = match head.uri.path().rsplit('/').next() {
            Some("PullImage") => self.pulling(&body),
            Some("RemoveImage") => (removal(&body), None),
            _ => (None, None),
        };
        let unavailable = |error: io::Error| {
            let containerd = self.containerd.display();
            Status::unavailable(format!("containerd does not answer at {containerd}: {error}"))
        };
        let (mut client, connection) = timeout(CONNECTING, self.connected())
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            .map_err(unavailable)?;
        let lost = |error: h2::Error| unavailable(io::Error::other(error));
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        head.uri = format!("http://localhost{path}")
            .parse()
            .map_err(|_| Status::invalid_argument("the path of the call"))?;
        let request = http::Request::from_parts(head, ());
        let (response, mut sent) = client.send_request(request, false).map_err(lost)?;
        sent.send_data(body, true).map_err(lost)?;
        let (head, body) = response.await.map_err(lost)?.into_parts();
        let answer = Answer {
            body,
            has_data: true,
            begun: Vec::new(),
            learning: learning.map(|learning| (learning, self.logins.clone())),
            _connection: connection,
            _pod: pod,
        };
        Ok(http::Response::from_parts(head, Body::new(answer)))
    }

    /// Notes the login and the pod of a pull.
    fn pulling(&self, body: &[u8]) -> (Option<Learning>, Option<PullingPod>) {
        let Some(asked) = unframed::<PullImageRequest>(body) else { return (None, None) };
        let image = asked.image.and_then(|image| image.image.parse().ok());
        let Some(ImageName::Registry(image)) = image else { return (None, None) };
        if !(self.is_wanted)(&image) {
            return (None, None);
        }
        let login = asked.auth.and_then(|auth| self.login(&image, auth));
        let pod = asked.sandbox_config.and_then(|sandbox| Pod::of(sandbox.metadata?));
        (login, pod.and_then(|pod| self.pods.pulling(image, pod)))
    }

    /// Notes the login of a pull.
    fn login(&self, image: &Reference, auth: AuthConfig) -> Option<Learning> {
        let login = PullLogin {
            username: auth.username,
            password: auth.password,
            auth: auth.auth,
            server_address: auth.server_address,
            identity_token: auth.identity_token,
            registry_token: auth.registry_token,
        };
        self.logins.pulling(image, login).map(Learning::Pull)
    }

    /// A connection for one call: when it ends, so does the call.
    async fn connected(&self) -> io::Result<(h2::client::SendRequest<Bytes>, Connection)> {
        let stream = UnixStream::connect(&self.containerd).await?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
        let (client, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
        let running = tokio::spawn(async move {
            // What ends it also ends the call.
            let _ = connection.await;
        });
        Ok((client, Connection(running)))
    }
}

/// What is learned from the removal of an image.
fn removal(body: &[u8]) -> Option<Learning> {
    unframed::<RemoveImageRequest>(body)?.image.map(|image| Learning::Removal(image.image))
}

/// Ends with its call.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What is learned from a call that succeeds.
enum Learning {
    Pull(PendingPull),
    /// Of the image with this name or ID.
    Removal(String),
}

/// containerd's answer, passed on while it arrives.
struct Answer {
    body: RecvStream,
    has_data: bool,
    /// Its first bytes, if something is learned from it.
    begun: Vec<u8>,
    learning: Option<(Learning, PulledLogins)>,
    _connection: Connection,
    _pod: Option<PullingPod>,
}

impl Answer {
    /// Learns from the end of the call.
    fn learn(&mut self, trailers: &HeaderMap) {
        let Some((learning, logins)) = self.learning.take() else { return };
        let status = trailers.get(Status::GRPC_STATUS);
        if status.is_none_or(|status| Code::from_bytes(status.as_bytes()) != Code::Ok) {
            return;
        }
        match learning {
            Learning::Pull(pull) => {
                if let Some(answer) = unframed::<PullImageAnswer>(&self.begun) {
                    pull.succeeded(&answer.image_ref);
                }
            }
            Learning::Removal(image) => logins.removed(&image),
        }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        let answer = &mut *self;
        if answer.has_data {
            match answer.body.poll_data(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Ok(data))) => {
                    // It fails only if the stream has ended.
                    let _ = answer.body.flow_control().release_capacity(data.len());
                    if answer.learning.is_some() {
                        let rest = LOOKED_AT.saturating_sub(answer.begun.len());
                        answer.begun.extend_from_slice(&data[..data.len().min(rest)]);
                    }
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) => answer.has_data = false,
            }
        }
        answer.body.poll_trailers(cx).map(|trailers| {
            let trailers = trailers.transpose()?;
            Some(trailers.map(|trailers| {
                answer.learn(&trailers);
                Frame::trailers(trailers)
            }))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use http_body_util::Full;
    use tokio::net::UnixListener;

    use super::*;
    use crate::cri::{ImageSpec, PodSandboxConfig, PodSandboxMetadata};
    use ociseek_store::lock::Hold;
    use prost::Message;

    fn framed(message: &[u8]) -> Bytes {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0][..], &length, message].concat().into()
    }

    fn body(bytes: Bytes) -> Body {
        Body::new(Full::from(bytes).map_err(|never| match never {}))
    }

    type Seen = Arc<Mutex<Vec<(String, HeaderMap, Bytes)>>>;

    /// Answers each call with `answer` and this status.
    fn containerd(listener: UnixListener, answer: Bytes, status: &'static str) -> Seen {
        let seen = Seen::default();
        let noting = Arc::clone(&seen);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let noting = Arc::clone(&noting);
                let answer = answer.clone();
                tokio::spawn(async move {
                    let mut builder = h2::server::Builder::new();
                    builder.initial_window_size(32 << 20).initial_connection_window_size(32 << 20);
                    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        let noting = Arc::clone(&noting);
                        let answer = answer.clone();
                        tokio::spawn(async move {
                            let (head, mut body) = request.into_parts();
                            let mut all = Vec::new();
                            while let Some(data) = body.data().await {
                                let data = data.unwrap();
                                body.flow_control().release_capacity(data.len()).unwrap();
                                all.extend_from_slice(&data);
                            }
                            let path = head.uri.path().to_owned();
                            noting.hold().push((path, head.headers, all.into()));
                            let head = http::Response::builder().header("x-head", "1");
                            let mut sent =
                                respond.send_response(head.body(()).unwrap(), false).unwrap();
                            sent.send_data(answer, false).unwrap();
                            let mut trailers = HeaderMap::new();
                            trailers.insert("grpc-status", status.parse().unwrap());
                            trailers.insert("grpc-message", "said%20so".parse().unwrap());
                            sent.send_trailers(trailers).unwrap();
                        });
                    }
                });
            }
        });
        seen
    }

    fn service(socket: PathBuf) -> ImageService {
        let is_wanted = Arc::new(|image: &Reference| image.repository.starts_with("team/"));
        ImageService {
            containerd: socket,
            logins: PulledLogins::default(),
            pods: PullingPods::default(),
            is_wanted,
        }
    }

    fn call(method: &str, asked: Bytes) -> http::Request<Body> {
        let path = format!("http://localhost/runtime.v1.ImageService/{method}");
        http::Request::post(path)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("grpc-timeout", "9S")
            .header("x-trace", "t")
            .body(body(asked))
            .unwrap()
    }

    #[tokio::test]
    async fn calls_are_passed_on_byte_for_byte() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("containerd.sock");
        // Not a message of any method, and larger than what gRPC's libraries take by default.
        let answer: Bytes = (0..9_000_000).map(|n| (n % 251) as u8).collect();
        let listener = UnixListener::bind(&socket).unwrap();
        let seen = containerd(listener, answer.clone(), "5");
        let mut service = service(socket);
        let asked: Bytes = (0..16 << 20).map(|n| (n % 239) as u8).collect();
        for method in ["ListImages", "PullImage", "RemoveImage", "StreamImagesOfTomorrow"] {
            let response = service.call(call(method, asked.clone())).await.unwrap();
            assert_eq!(response.headers()["x-head"], "1");
            let collected = response.into_body().collect().await.unwrap();
            let trailers = collected.trailers().unwrap();
            assert_eq!(
                (&trailers["grpc-status"], &trailers["grpc-message"]),
                (&"5".parse().unwrap(), &"said%20so".parse().unwrap())
            );
            assert!(collected.to_bytes() == answer, "{method}");
            let (path, headers, body) = seen.hold().pop().unwrap();
            assert_eq!(path, format!("/runtime.v1.ImageService/{method}"));
            assert_eq!(
                (&headers["grpc-timeout"], &headers["x-trace"]),
                (&"9S".parse().unwrap(), &"t".parse().unwrap())
            );
            assert!(body == asked, "{method}");
        }
    }

    #[tokio::test]
    async fn what_cannot_be_passed_on_has_a_status() {
        let dir = tempfile::tempdir().unwrap();
        let mut service = service(dir.path().join("containerd.sock"));
        let too_long: Bytes = vec![0; LONGEST + 1].into();
        for (asked, code) in
            [(Bytes::new(), Code::Unavailable), (too_long, Code::ResourceExhausted)]
        {
            let response = service.call(call("ListImages", asked)).await.unwrap();
            let status = Status::from_header_map(response.headers()).unwrap();
            assert_eq!(status.code(), code, "{status}");
            if code == Code::Unavailable {
                assert!(status.message().contains("containerd.sock"), "{status}");
            }
        }
    }

    #[tokio::test]
    async fn only_a_pull_that_succeeds_leaves_its_login() {
        let asked = |image: &str| {
            let image = Some(ImageSpec { image: image.to_owned() });
            let auth = AuthConfig { username: "u".into(), ..AuthConfig::default() };
            let metadata = PodSandboxMetadata {
                name: "app".into(),
                uid: "1".into(),
                namespace: "default".into(),
            };
            let sandbox_config = Some(PodSandboxConfig { metadata: Some(metadata) });
            let pull = PullImageRequest { image, auth: Some(auth), sandbox_config };
            framed(&pull.encode_to_vec())
        };
        let answer = framed(&PullImageAnswer { image_ref: "sha256:1".into() }.encode_to_vec());
        for (image, status, is_noted) in [
            ("r.example/team/app:1", "0", true),
            ("r.example/team/app:1", "16", false),
            ("r.example/other/app:1", "0", false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let socket = dir.path().join("containerd.sock");
            containerd(UnixListener::bind(&socket).unwrap(), answer.clone(), status);
            let mut service = service(socket);
            let has_pod = |service: &ImageService| {
                let ImageName::Registry(image) = image.parse().unwrap() else { panic!("{image}") };
                !service.pods.of(&image).is_empty()
            };
            let has_login = |service: &ImageService| {
                let ImageName::Registry(image) = image.parse().unwrap() else { panic!("{image}") };
                service.logins.of(&image)[0].has_login()
            };
            let response = service.call(call("PullImage", asked(image))).await.unwrap();
            let while_it_runs = has_login(&service);
            assert_eq!(while_it_runs, image.contains("team"), "{image}");
            assert_eq!(has_pod(&service), image.contains("team"), "{image}");
            response.into_body().collect().await.unwrap();
            assert!(!has_pod(&service), "{image}");
            assert_eq!(has_login(&service), is_noted, "{image} {status}");
            // Nobody waits for the end of the next one.
            drop(service.call(call("PullImage", asked(image))).await.unwrap());
            assert_eq!(has_login(&service), is_noted, "{image} {status}");
            let removed = RemoveImageRequest { image: Some(ImageSpec { image: "1".into() }) };
            let removal = service.call(call("RemoveImage", framed(&removed.encode_to_vec())));
            removal.await.unwrap().into_body().collect().await.unwrap();
            assert!(!has_login(&service), "{image} {status}");
        }
    }
}
