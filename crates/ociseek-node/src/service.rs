//! The service on a socket, by gRPC.

use std::convert::Infallible;
use std::fs::{self, DirBuilder, Permissions};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use futures_util::stream;
use prost::Message;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use super::image_service::ImageService;
use super::messages::{
    CommitRequest, CreateRequest, Empty, HealthAnswer, HealthRequest, InfoAnswer, KeyRequest,
    ListAnswer, ListRequest, MountsAnswer, NOT_SERVING, SERVING, SnapshotError, SnapshotInfo,
    UpdateRequest, UsageAnswer,
};
use super::rows::SnapshotKind;
use super::snapshotter::Snapshotter;

/// How long a call may take. containerd lets others wait meanwhile, and kubelet gives up after two
/// minutes.
pub const ANSWER: Duration = Duration::from_secs(20);
/// How long to wait after a connection could not be accepted. It stays in the queue
/// (moby/moby#35961: Go's servers wait up to a second).
const NO_CONNECTION: Duration = Duration::from_millis(200);
/// How many snapshots a message of a list has.
const LISTED: usize = 100;
/// How long calls may take to end after the service was asked to stop.
const LAST_CALLS: Duration = Duration::from_secs(10);

impl From<SnapshotError> for Status {
    fn from(error: SnapshotError) -> Status {
        let code = match &error {
            SnapshotError::NotFound(_) => Code::NotFound,
            SnapshotError::Exists(_) => Code::AlreadyExists,
            SnapshotError::Precondition(_) => Code::FailedPrecondition,
            SnapshotError::Invalid(_) => Code::InvalidArgument,
            SnapshotError::Mount(_) | SnapshotError::Silent(_) => Code::Unavailable,
            SnapshotError::Files { .. } => Code::Internal,
        };
        Status::new(code, error.to_string())
    }
}

/// A socket that only its owner can use, and the one of the server before this one, if it was kept:
/// connections that nobody has accepted wait there.
#[derive(Debug)]
pub struct Listener(Vec<UnixListener>);

/// A socket that nobody can connect to yet.
#[derive(Debug)]
pub struct UnnamedListener {
    listener: UnixListener,
    /// The name that it has until then, and the one that it gets.
    new: PathBuf,
    path: PathBuf,
}

impl UnnamedListener {
    /// Makes a socket for `path`, in a directory that is created if it is missing.
    ///
    /// # Errors
    /// If there is another kind of file, or the socket cannot be made.
    pub fn bind(path: &Path) -> io::Result<UnnamedListener> {
        if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.file_type().is_socket()) {
            let why = "something else than a socket has this name";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            DirBuilder::new().recursive(true).mode(0o711).create(dir)?;
        }
        let mut new = path.with_added_extension("new");
        let _ = fs::remove_file(&new).or_else(|_| fs::remove_dir(&new));
        let mut listener = UnixListener::bind(&new);
        if listener.is_err() {
            // A leftover that cannot be removed has the name.
            new.add_extension(std::process::id().to_string());
            listener = UnixListener::bind(&new);
        }
        let listener = listener?;
        let unnamed = UnnamedListener { listener, new, path: path.to_owned() };
        fs::set_permissions(&unnamed.new, Permissions::from_mode(0o600))?;
        Ok(unnamed)
    }

    /// Gives it its name. A socket that another process left there is replaced. `keep` has the
    /// socket kept, and returns an earlier one.
    ///
    /// # Errors
    /// If it cannot be renamed.
    pub fn named(self, keep: impl FnOnce(OwnedFd) -> Option<OwnedFd>) -> io::Result<Listener> {
        let socket = || self.listener.as_fd().try_clone_to_owned();
        let earlier = keep(socket()?);
        fs::rename(&self.new, &self.path)?;
        let listener = std::os::unix::net::UnixListener::from(socket()?);
        let mut listeners = vec![UnixListener::from_std(listener)?];
        if let Some(socket) = earlier {
            let earlier = std::os::unix::net::UnixListener::from(socket);
            earlier.set_nonblocking(true)?;
            listeners.push(UnixListener::from_std(earlier)?);
        }
        Ok(Listener(listeners))
    }
}

impl Drop for UnnamedListener {
    fn drop(&mut self) {
        // It has another name once it is in use.
        let _ = fs::remove_file(&self.new);
    }
}

/// A call that was answered.
#[derive(Debug, Clone, Copy)]
pub struct AnsweredCall {
    /// The name of the method.
    pub method: &'static str,
    /// Whether it failed. "Already exists" and "not found" are answers that containerd waits for,
    /// and not failures.
    pub failed: bool,
    /// How long it took.
    pub took: Duration,
}

/// Receives each call to the service, once it was answered.
pub type CallObserver = Arc<dyn Fn(AnsweredCall) + Send + Sync>;

/// Serves until `stop`, and then ends the calls that were begun. The mounts stay. With
/// `images`, it also serves the CRI's image service.
///
/// # Errors
/// If the socket fails.
pub async fn serve(
    snapshotter: Arc<Snapshotter>,
    listener: Listener,
    observer: CallObserver,
    images: Option<ImageService>,
    stop: impl Future<Output = ()>,
) -> io::Result<()> {
    let health = HealthCalls(Arc::clone(&snapshotter));
    let calls = SnapshotCalls { snapshotter, observer };
    let incoming = stream::select_all(listener.0.into_iter().map(|listener| {
        Box::pin(stream::unfold(listener, |listener| async move {
            let connection = loop {
                match listener.accept().await {
                    Ok((connection, _)) => break connection,
                    // The process may have run out of file descriptors.
                    Err(_) => sleep(NO_CONNECTION).await,
                }
            };
            Some((Ok::<_, io::Error>(connection), listener))
        }))
    }));
    let (tell, mut told) = watch::channel(false);
    let stopping = async move {
        let _ = told.wait_for(|stop| *stop).await;
    };
    let services = tonic::transport::Server::builder()
        .add_service(calls)
        .add_service(health)
        .add_optional_service(images);
    let serving = services.serve_with_incoming_shutdown(incoming, stopping);
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => return ended.map_err(io::Error::other),
        () = stop => {}
    }
    let _ = tell.send(true);
    match tokio::time::timeout(LAST_CALLS, serving).await {
        Ok(ended) => ended.map_err(io::Error::other),
        Err(_) => Ok(()),
    }
}

#[derive(Clone)]
struct SnapshotCalls {
    snapshotter: Arc<Snapshotter>,
    observer: CallObserver,
}

impl NamedService for SnapshotCalls {
    const NAME: &'static str = "containerd.services.snapshots.v1.Snapshots";
}

/// The methods of the service.
pub const METHODS: &[&str] = &[
    "Prepare", "View", "Mounts", "Commit", "Remove", "Stat", "Update", "Usage", "Cleanup", "List",
];

fn is_failure(response: &http::Response<Body>) -> bool {
    // An error has no body, and its status is with the headers.
    let status = response
        .headers()
        .get(Status::GRPC_STATUS)
        .map(|status| Code::from_bytes(status.as_bytes()));
    status.is_some_and(|code| !matches!(code, Code::Ok | Code::AlreadyExists | Code::NotFound))
}

impl Service<http::Request<Body>> for SnapshotCalls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let snapshotter = Arc::clone(&self.snapshotter);
        let observer = Arc::clone(&self.observer);
        Box::pin(async move {
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let Some(method) = METHODS.iter().copied().find(|method| *method == name) else {
                return Ok(Status::unimplemented(name).into_http());
            };
            let begun = Instant::now();
            let response = match method {
                "Prepare" => {
                    unary(request, |asked| create(snapshotter, SnapshotKind::Active, asked)).await
                }
                "View" => {
                    unary(request, |asked| create(snapshotter, SnapshotKind::View, asked)).await
                }
                "Mounts" => {
                    let call = |asked: KeyRequest| async move {
                        snapshotter.mounts(&asked.key).await.map(|mounts| MountsAnswer { mounts })
                    };
                    unary(request, call).await
                }
                "Commit" => {
                    let call = |asked: CommitRequest| async move {
                        snapshotter.commit(asked).await.map(|()| Empty {})
                    };
                    unary(request, call).await
                }
                "Remove" => {
                    let call = |asked: KeyRequest| async move {
                        snapshotter.remove(&asked.key).await.map(|()| Empty {})
                    };
                    unary(request, call).await
                }
                "Stat" => {
                    unary(request, |asked: KeyRequest| async move {
                        snapshotter.stat(&asked.key).map(answer)
                    })
                    .await
                }
                "Update" => {
                    let call = |asked: UpdateRequest| async move {
                        let info = asked.info.unwrap_or_default();
                        let fields = asked.update_mask.unwrap_or_default();
                        snapshotter.update(&info, &fields.paths).await.map(answer)
                    };
                    unary(request, call).await
                }
                "Usage" => {
                    let call = |asked: KeyRequest| async move {
                        let (size, inodes) = snapshotter.usage(&asked.key).await?;
                        Ok(UsageAnswer { size: size.cast_signed(), inodes: inodes.cast_signed() })
                    };
                    unary(request, call).await
                }
                "Cleanup" => {
                    unary(request, |_: Empty| async move {
                        snapshotter.cleanup().await.map(|()| Empty {})
                    })
                    .await
                }
                _ => list(snapshotter, request).await,
            };
            observer(AnsweredCall { method, failed: is_failure(&response), took: begun.elapsed() });
            Ok(response)
        })
    }
}

/// The health of the service, as gRPC's health checking protocol has it (`grpc.health.v1`).
#[derive(Clone)]
struct HealthCalls(Arc<Snapshotter>);

impl NamedService for HealthCalls {
    const NAME: &'static str = "grpc.health.v1.Health";
}

impl Service<http::Request<Body>> for HealthCalls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let is_ready = self.0.is_ready();
        Box::pin(async move {
            if !request.uri().path().ends_with("/Check") {
                // Clients that watch fall back to checks then.
                return Ok(Status::unimplemented("Watch").into_http());
            }
            let status = if is_ready { SERVING } else { NOT_SERVING };
            let call = service_fn(move |request: Request<HealthRequest>| async move {
                match request.into_inner().service.as_str() {
                    "" | SnapshotCalls::NAME => Ok(Response::new(HealthAnswer { status })),
                    other => Err(Status::not_found(other)),
                }
            });
            Ok(Grpc::new(ProstCodec::<HealthAnswer, HealthRequest>::default())
                .unary(call, request)
                .await)
        })
    }
}

async fn create(
    snapshotter: Arc<Snapshotter>,
    kind: SnapshotKind,
    asked: CreateRequest,
) -> Result<MountsAnswer, SnapshotError> {
    snapshotter.create(kind, asked).await.map(|mounts| MountsAnswer { mounts })
}

fn answer(info: SnapshotInfo) -> InfoAnswer {
    InfoAnswer { info: Some(info) }
}

/// Answers one message by one. The work continues if the caller does not wait for its end, or if it
/// takes too long.
async fn unary<Asked, Answer, Work>(
    request: http::Request<Body>,
    work: impl FnOnce(Asked) -> Work + Send + 'static,
) -> http::Response<Body>
where
    Asked: Message + Default + 'static,
    Answer: Message + Default + 'static,
    Work: Future<Output = Result<Answer, SnapshotError>> + Send + 'static,
{
    let mut work = Some(work);
    let call = service_fn(move |request: Request<Asked>| {
        let work = work.take().map(|work| tokio::spawn(work(request.into_inner())));
        async move {
            let Some(work) = work else { return Err(Status::internal("called twice")) };
            let Ok(answer) = tokio::time::timeout(ANSWER, work).await else {
                return Err(Status::unavailable("it is still being done, try again"));
            };
            Ok(Response::new(answer.map_err(|error| Status::internal(error.to_string()))??))
        }
    });
    Grpc::new(ProstCodec::<Answer, Asked>::default()).unary(call, request).await
}

async fn list(snapshotter: Arc<Snapshotter>, request: http::Request<Body>) -> http::Response<Body> {
    let call = service_fn(move |request: Request<ListRequest>| {
        let snapshotter = Arc::clone(&snapshotter);
        async move {
            let infos = snapshotter.list(&request.into_inner().filters)?;
            let messages: Vec<Result<ListAnswer, Status>> =
                infos.chunks(LISTED).map(|some| Ok(ListAnswer { info: some.to_vec() })).collect();
            Ok::<_, Status>(Response::new(stream::iter(messages)))
        }
    });
    Grpc::new(ProstCodec::<ListAnswer, ListRequest>::default())
        .server_streaming(call, request)
        .await
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    #[tokio::test]
    async fn the_socket_is_for_its_owner_in_a_directory_that_is_made_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/ociseek/snapshotter.sock");
        // What is in the way of the next one: a directory, and one that cannot be removed.
        for left in ["", "file"] {
            UnnamedListener::bind(&path).unwrap().named(|_| None).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            fs::create_dir_all(path.with_added_extension("new").join(left)).unwrap();
        }
        UnnamedListener::bind(&path).unwrap().named(|_| None).unwrap();
        let left = fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(left, 2, "the socket, and the directory");
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(UnnamedListener::bind(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(UnnamedListener::bind(&file.join("socket")).is_err());
    }

    /// The body of a gRPC message.
    fn framed(message: &impl Message) -> Vec<u8> {
        let message = message.encode_to_vec();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        [&[0][..], &length, &message].concat()
    }

    fn called(path: &str, message: &impl Message) -> http::Request<Body> {
        let body = Body::new(Full::from(framed(message)).map_err(|never| match never {}));
        http::Request::post(path).header("content-type", "application/grpc").body(body).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_service_is_healthy_as_long_as_it_answers() {
        let root = tempfile::tempdir().unwrap();
        let health = HealthCalls(Arc::new(crate::faults::open(root.path()).await.unwrap()));
        for (service, status) in
            [("", Code::Ok), (SnapshotCalls::NAME, Code::Ok), ("other", Code::NotFound)]
        {
            let asked = HealthRequest { service: service.to_owned() };
            let response =
                health.clone().call(called("/grpc.health.v1.Health/Check", &asked)).await.unwrap();
            let header = response
                .headers()
                .get(Status::GRPC_STATUS)
                .map(|code| Code::from_bytes(code.as_bytes()));
            assert_eq!(header.unwrap_or(Code::Ok), status, "{service}");
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let serving = framed(&HealthAnswer { status: SERVING });
            assert_eq!(body, if status == Code::Ok { serving } else { Vec::new() }, "{service}");
        }
        let watched = health
            .clone()
            .call(called("/grpc.health.v1.Health/Watch", &HealthRequest::default()))
            .await;
        assert!(is_failure(&watched.unwrap()));
    }
}
