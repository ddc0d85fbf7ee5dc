//! What containerd knows of an image: in which repositories its layers are, too.
//!
//! Within a namespace, containerd does not tell a snapshotter of a second image with the same
//! layers. But it notes down with each manifest from which repositories that was pulled
//! (`core/remotes/docker/handler.go`, `containerd.io/distribution.source`), and which layers it has
//! (`core/images/mediatypes.go`, `ChildGCLabels`).

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;

use super::grpc::call;

const SOURCE: &str = "containerd.io/distribution.source.";
const LAYER: &str = "containerd.io/gc.ref.content.l.";

#[derive(Clone, PartialEq, prost::Message)]
struct NamespacesRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct Namespace {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct NamespacesAnswer {
    #[prost(message, repeated, tag = "1")]
    namespaces: Vec<Namespace>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContentRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContentInfo {
    #[prost(map = "string, string", tag = "5")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ContentAnswer {
    #[prost(message, repeated, tag = "1")]
    info: Vec<ContentInfo>,
}

/// The repositories, `HOST/REPOSITORY` without the port of the registry, from which containerd
/// pulled manifests with this layer in this place, counted from 0 at the bottom.
///
/// # Errors
/// If containerd does not answer on the socket.
pub async fn repositories_with(
    socket: &Path,
    layer: &str,
    place: usize,
) -> io::Result<BTreeSet<String>> {
    let path = "containerd.services.namespaces.v1.Namespaces/List";
    let answers: Vec<NamespacesAnswer> = call(socket, path, None, &NamespacesRequest {}).await?;
    let asked = ContentRequest { filters: vec![format!("labels.\"{LAYER}{place}\"=={layer:?}")] };
    let mut repositories = BTreeSet::new();
    for namespace in answers.into_iter().flat_map(|answer| answer.namespaces) {
        let path = "containerd.services.content.v1.Content/List";
        let answers: Vec<ContentAnswer> = call(socket, path, Some(&namespace.name), &asked).await?;
        for info in answers.into_iter().flat_map(|answer| answer.info) {
            for (label, named) in info.labels {
                let Some(registry) = label.strip_prefix(SOURCE) else { continue };
                repositories.extend(named.split(',').map(|name| format!("{registry}/{name}")));
            }
        }
    }
    Ok(repositories)
}
