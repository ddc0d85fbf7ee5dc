//! Events of Kubernetes: a pod whose image is pulled whole says why.
//!
//! They are for people who see the pod and not the node's log. Nothing waits for them, and one that
//! cannot be created is lost: the log and the metrics have the reason, too.

use std::convert::Infallible;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::json;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};
use url::Url;

use crate::cli::shared::terminal::safe;
use ociseek_format::digest::Digest;
use ociseek_format::image::ImageName;
use ociseek_format::progress::causes;
use ociseek_format::time::Time;
use ociseek_node::{Pod, PullingPods};
use ociseek_ops::judge::NotLazy;
use ociseek_store::registry::{ClientConfig, http_client};

/// Where the installer links the login of its pod.
pub(super) const LOGIN: &str = "/run/ociseek/events";
/// How many events wait at most.
const WAITING: usize = 256;
/// The time between two events, and after one that could not be created: a node asks the API server
/// five times a second at most.
const SPACING: Duration = Duration::from_millis(200);
const PAUSE: Duration = Duration::from_secs(10);
/// How long creating one may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The longest text, as Kubernetes allows for the note of an event.
const LONGEST: usize = 1024;
/// A token is shorter.
const MAX_TOKEN: u64 = 64 << 10;
const CREATED: u16 = 201;
/// The pod has this event.
const EXISTS: u16 = 409;

/// Where events are created.
#[derive(Debug, Clone)]
pub(super) struct ApiServer {
    pub address: Url,
    /// A folder with `token`, and `ca.crt` if the machine does not know the authority.
    pub login: PathBuf,
}

/// Parses the address of an API server. A token is sent there.
pub(super) fn api_server(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).ok().filter(|url| {
        let has_login = !url.username().is_empty() || url.password().is_some();
        let has_more = url.query().is_some() || url.fragment().is_some();
        url.scheme() == "https" && !has_login && !has_more
    });
    url.ok_or_else(|| "expected https://HOST[:PORT], such as https://10.96.0.1".to_owned())
}

/// Creates events, after the fact.
pub(super) struct PodEvents {
    pods: PullingPods,
    queue: Sender<PodEvent>,
}

#[derive(Debug)]
struct PodEvent {
    pod: Pod,
    /// The image as it is named on the node.
    image: String,
    is_failure: bool,
    text: String,
}

impl PodEvents {
    /// The events are created as long as the returned future is polled.
    pub(super) fn new(
        api: ApiServer,
        pods: PullingPods,
    ) -> (PodEvents, impl Future<Output = Infallible> + use<>) {
        let (queue, waiting) = mpsc::channel(WAITING);
        (PodEvents { pods, queue }, create_all(api, waiting))
    }

    /// Notes why an image is left to containerd, for the pods that it is being pulled for.
    pub(super) fn unpacked(&self, image: &str, reason: &NotLazy) {
        let Ok(ImageName::Registry(name)) = image.parse() else { return };
        for pod in self.pods.of(&name) {
            let event = PodEvent::new(pod, image, reason);
            if self.queue.try_send(event).is_err() {
                debug!(image, "an event is lost: too many wait");
            }
        }
    }
}

impl PodEvent {
    fn new(pod: Pod, image: &str, reason: &NotLazy) -> PodEvent {
        let why = match reason {
            // It may be an image of people that this pod's people do not know.
            NotLazy::OtherDocument { .. } => {
                "another image of this node has the same layer, and is read by another document"
                    .to_owned()
            }
            reason => reason.to_string(),
        };
        let code = reason.code();
        // A registry's words may have codes for terminals.
        let mut text = safe(&format!("{image} is pulled whole, not lazily: {why} ({code})"));
        text.truncate(text.floor_char_boundary(LONGEST));
        PodEvent { pod, image: image.to_owned(), is_failure: reason.is_failure(), text }
    }

    /// Its name is the same for the same pod and image, so that the API server refuses a second
    /// one.
    fn name(&self) -> String {
        let Pod { name, uid, .. } = &self.pod;
        let which = Digest::sha256(format!("{uid} {}", self.image).as_bytes());
        // With a dot and twelve digits, it is at most as long as the name of a pod may be.
        let name = name[..name.len().min(240)].trim_end_matches(['.', '-']);
        format!("{name}.{}", which.short())
    }

    fn document(&self, node: &str, now: Time) -> Vec<u8> {
        let Pod { namespace, name, uid } = &self.pod;
        let at = now.to_rfc3339();
        let component = "ociseek-snapshotter";
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"namespace": namespace, "name": self.name()},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid,
            },
            "type": if self.is_failure { "Warning" } else { "Normal" },
            "reason": "ImageNotLazy",
            "message": self.text,
            "source": {"component": component, "host": node},
            "reportingComponent": component,
            "reportingInstance": node,
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        });
        event.to_string().into_bytes()
    }
}

/// Creates the events, one after the other.
async fn create_all(api: ApiServer, mut waiting: Receiver<PodEvent>) -> Infallible {
    while let Some(event) = waiting.recv().await {
        let created = timeout(ANSWER, create(&api, &event)).await;
        let created =
            created.unwrap_or_else(|_| Err(format!("no answer within {} s", ANSWER.as_secs())));
        let Err(error) = created else {
            sleep(SPACING).await;
            continue;
        };
        let PodEvent { pod: Pod { namespace, name, .. }, image, .. } = &event;
        warn!(name: "event-lost", image, namespace, pod = name, error, "an event is not created");
        sleep(PAUSE).await;
    }
    std::future::pending().await
}

async fn create(api: &ApiServer, event: &PodEvent) -> Result<(), String> {
    let ApiServer { address, login } = api.clone();
    // kubelet replaces the token about every hour.
    let connected = spawn_blocking(move || {
        let authority = Some(login.join("ca.crt")).filter(|file| file.exists());
        let config =
            ClientConfig { ca_files: Vec::from_iter(authority), ..ClientConfig::default() };
        let client = http_client(&config, &address).map_err(|error| causes(&error))?;
        let token = login.join("token");
        let token = text(&token).map_err(|error| format!("{}: {error}", token.display()))?;
        Ok::<_, String>((client, token))
    });
    let (client, token) = connected.await.map_err(|error| error.to_string())??;
    let base = api.address.as_str().trim_end_matches('/');
    let url = format!("{base}/api/v1/namespaces/{}/events", event.pod.namespace);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Time { seconds: since.as_secs() as i64, nanos: 0 };
    let node = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let request = client
        .post(url)
        .bearer_auth(token.trim())
        .header("content-type", "application/json")
        .body(event.document(node.trim(), now));
    let answer = request.send().await.map_err(|error| causes(&error))?;
    match answer.status().as_u16() {
        CREATED | EXISTS => Ok(()),
        status => Err(format!("the API server answers {status}")),
    }
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_TOKEN).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::http::{HeaderMap, StatusCode, Uri};
    use serde_json::Value;
    use tokio::net::TcpListener;

    use super::*;
    use ociseek_store::lock::Hold;

    fn pod(name: &str) -> Pod {
        let [namespace, name, uid] = ["default", name, "1-2"].map(str::to_owned);
        Pod { namespace, name, uid }
    }

    #[test]
    fn a_token_is_only_sent_by_https() {
        for (text, is_right) in [
            ("https://10.96.0.1", true),
            ("https://[fd00::1]:6443/k8s/clusters/c-1/", true),
            ("http://10.96.0.1", false),
            ("10.96.0.1:443", false),
            ("https://user:password@10.96.0.1", false),
            ("https://10.96.0.1/?x=1", false),
        ] {
            assert_eq!(api_server(text).is_ok(), is_right, "{text}");
        }
    }

    #[test]
    fn one_event_for_each_pod_and_image() {
        let long = "n".repeat(239) + &"-".repeat(14);
        let name = |pod: Pod, image: &str| PodEvent::new(pod, image, &NotLazy::NoIndex).name();
        let first = name(pod("app"), "r.example/app:1");
        assert_eq!(first, name(pod("app"), "r.example/app:1"));
        assert_ne!(first, name(pod("app"), "r.example/app:2"));
        assert_ne!(first, name(Pod { uid: "3".into(), ..pod("app") }, "r.example/app:1"));
        let long = name(pod(&long), "r.example/app:1");
        assert!(long.len() <= 253 && long.starts_with("nnn") && long.contains("nn."), "{long}");
    }

    #[test]
    fn it_says_why_but_names_no_other_image() {
        let shown = |reason: &NotLazy| PodEvent::new(pod("app"), "r.example/app:1", reason);
        let event = shown(&NotLazy::NoIndex);
        assert_eq!(
            event.text,
            "r.example/app:1 is pulled whole, not lazily: it has no index (no-index)"
        );
        assert!(!event.is_failure && shown(&NotLazy::Silent(ANSWER)).is_failure);
        let [layer, image] = ["sha256:1", "r.example/secret"].map(str::to_owned);
        let other = shown(&NotLazy::OtherDocument { layer, image });
        assert!(other.text.contains("other-document") && !other.text.contains("secret"));
        let hostile = shown(&NotLazy::Failed("\x1b[2Jgone".to_owned()));
        assert!(!hostile.text.contains('\x1b'), "{}", hostile.text);
        let long = shown(&NotLazy::Failed("é".repeat(2000)));
        assert!(long.text.len() <= LONGEST && long.text.ends_with('é'));
    }

    #[tokio::test]
    async fn events_are_created_by_the_token_of_the_moment() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/base", listener.local_addr().unwrap()).parse().unwrap();
        let seen: Arc<Mutex<Vec<(String, String, Value)>>> = Arc::default();
        let noting = Arc::clone(&seen);
        let answer = move |uri: Uri, headers: HeaderMap, body: String| async move {
            let login = headers["authorization"].to_str().unwrap().to_owned();
            let event: Value = serde_json::from_str(&body).unwrap();
            let mut seen = noting.hold();
            seen.push((uri.path().to_owned(), login, event));
            // Created, a second time, not allowed.
            [StatusCode::CREATED, StatusCode::CONFLICT, StatusCode::FORBIDDEN][seen.len() - 1]
        };
        let router = Router::new().fallback(answer);
        tokio::spawn(async move { axum::serve(listener, router).await });
        let login = tempfile::tempdir().unwrap();
        let api = ApiServer { address, login: login.path().to_owned() };
        let event = PodEvent::new(pod("app"), "r.example/app:1", &NotLazy::Zstd);
        let create = || create(&api, &event);
        let missing = create().await.unwrap_err();
        assert!(missing.contains("token: No such file"), "{missing}");
        std::fs::write(login.path().join("token"), "first\n").unwrap();
        create().await.unwrap();
        std::fs::write(login.path().join("token"), "second").unwrap();
        create().await.unwrap();
        let refused = create().await.unwrap_err();
        assert_eq!(refused, "the API server answers 403");
        let seen = seen.hold();
        let logins: Vec<&str> = seen.iter().map(|(_, login, _)| login.as_str()).collect();
        assert_eq!(logins, ["Bearer first", "Bearer second", "Bearer second"]);
        let (path, _, event) = &seen[0];
        assert_eq!(path, "/base/api/v1/namespaces/default/events");
        assert_eq!(event["involvedObject"]["uid"], "1-2");
        assert_eq!(event["reason"], "ImageNotLazy");
        let at = event["lastTimestamp"].as_str().unwrap();
        assert!(at.ends_with('Z') && at.len() == 20, "{at}");
    }
}
