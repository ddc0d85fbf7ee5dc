//! The pods for which images are being pulled, as kubelet names them to the CRI's image service.

use std::sync::{Arc, Mutex};

use crate::cri::PodSandboxMetadata;
use ociseek_format::image::Reference;
use ociseek_store::lock::Hold;

/// The most pulls that are noted at a time. A kubelet has a few hundred pods at most.
const MOST: usize = 1024;

/// A pod. Its names were checked, so they can be used in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name in the namespace.
    pub name: String,
    /// Different for another pod with the same name.
    pub uid: String,
}

impl Pod {
    /// None if it is not how Kubernetes names a pod.
    pub(crate) fn of(metadata: PodSandboxMetadata) -> Option<Pod> {
        let PodSandboxMetadata { name, uid, namespace } = metadata;
        let is_named = |text: &str, most: usize| {
            let is_allowed =
                |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            let mut labels = text.split('.');
            text.len() <= most
                && labels.all(|label| !label.is_empty() && label.bytes().all(is_allowed))
        };
        let is_label = is_named(&namespace, 63) && !namespace.contains('.');
        let is_pod = is_label && is_named(&name, 253) && is_named(&uid, 128);
        is_pod.then_some(Pod { namespace, name, uid })
    }
}

/// The pods for which images are being pulled. Cheap to clone.
#[derive(Clone, Default)]
pub struct PullingPods(Arc<Mutex<Noted>>);

ociseek_format::opaque_debug!(PullingPods);

#[derive(Default)]
struct Noted {
    /// The number of the next pull.
    next: u64,
    pulls: Vec<(u64, Reference, Pod)>,
}

impl PullingPods {
    /// Notes a pull, as long as what this returns exists.
    pub(crate) fn pulling(&self, image: Reference, pod: Pod) -> Option<PullingPod> {
        let mut noted = self.0.hold();
        if noted.pulls.len() >= MOST {
            return None;
        }
        noted.next += 1;
        let number = noted.next;
        noted.pulls.push((number, image, pod));
        Some(PullingPod { number, pods: self.clone() })
    }

    /// The pods for which this image is being pulled. It has the digest of its manifest, and the
    /// pulls may have that of an image index, or none.
    pub fn of(&self, image: &Reference) -> Vec<Pod> {
        let is_it = |pulled: &Reference| {
            let have_tags = pulled.tag.is_some() && image.tag.is_some();
            (&pulled.registry, &pulled.repository) == (&image.registry, &image.repository)
                && (!have_tags || pulled.tag == image.tag)
        };
        let noted = self.0.hold();
        let pulls = noted.pulls.iter().filter(|(_, pulled, _)| is_it(pulled));
        pulls.map(|(.., pod)| pod.clone()).collect()
    }
}

/// A pull for a pod.
pub(crate) struct PullingPod {
    number: u64,
    pods: PullingPods,
}

impl Drop for PullingPod {
    fn drop(&mut self) {
        self.pods.0.hold().pulls.retain(|(number, ..)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(namespace: &str, name: &str, uid: &str) -> PodSandboxMetadata {
        let [namespace, name, uid] = [namespace, name, uid].map(str::to_owned);
        PodSandboxMetadata { name, uid, namespace }
    }

    #[test]
    fn only_names_of_kubernetes_are_taken() {
        for (namespace, name, uid, is_pod) in [
            ("default", "app-1.example", "cb8a9f2e-0c3e", true),
            ("", "app", "1", false),
            ("default", "", "1", false),
            ("default", "app", "", false),
            ("a.b", "app", "1", false),
            ("../..", "app", "1", false),
            ("default", "a/../b", "1", false),
            ("default", "a..b", "1", false),
            ("default", "App", "1", false),
            ("default", "app?x=1", "1", false),
            (&"n".repeat(64), "app", "1", false),
            ("default", &"n".repeat(254), "1", false),
        ] {
            let pod = Pod::of(metadata(namespace, name, uid));
            assert_eq!(pod.is_some(), is_pod, "{namespace} {name} {uid}");
        }
    }

    #[test]
    fn a_pod_is_known_during_its_pull_only() {
        let pods = PullingPods::default();
        let image = |name: &str| name.parse::<Reference>().unwrap();
        let pulling = |name: &str, pod: &str| {
            pods.pulling(image(name), Pod::of(metadata("default", pod, "1")).unwrap()).unwrap()
        };
        let digest = format!("sha256:{}", "1".repeat(64));
        let first = pulling("r.example/app:1", "first");
        let second = pulling(&format!("r.example/app@{digest}"), "second");
        let _third = pulling("r.example/app:1", "third");
        let _others = [pulling("r.example/app:2", "no"), pulling("s.example/app:1", "no")];
        let known = |name: &str| {
            let known = pods.of(&image(name));
            known.into_iter().map(|pod| pod.name).collect::<Vec<String>>()
        };
        let asked = format!("r.example/app:1@{digest}");
        assert_eq!(known(&asked), ["first", "second", "third"]);
        drop(first);
        drop(second);
        assert_eq!(known(&asked), ["third"]);
        let all: Vec<PullingPod> = (0..MOST - 3).map(|_| pulling("r.example/x", "x")).collect();
        let one_more = Pod::of(metadata("default", "more", "1")).unwrap();
        assert!(pods.pulling(image("r.example/more"), one_more).is_none());
        drop(all);
        assert_eq!(known("r.example/x"), [""; 0]);
    }
}
