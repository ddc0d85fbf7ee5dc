//! The untrusted notifications that clients post to `ociseek hook serve`.
//!
//! Invariants under test: no panic; at most the allowed number of images; each image has a name
//! that the command line accepts with the same meaning; the handshake, which is returned, is not
//! longer than the body.

use ociseek_format::event::{Headers, MAX_EVENTS, parse};
use ociseek_format::image::Reference;

/// The first byte chooses the headers; the rest is the body.
pub fn read(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    let types = [
        None,
        Some("zotregistry.image.updated"),
        Some("harbor.artifact.pushed"),
        Some("Microsoft.ContainerRegistry.ImagePushed"),
    ];
    let headers = Headers {
        github_event: [None, Some("package"), Some("registry_package"), Some("ping")]
            [usize::from(choice % 4)],
        github_delivery: (choice & 4 != 0).then_some("delivery"),
        gitea_event: (choice & 64 != 0).then_some("package"),
        ce_type: types[usize::from(choice >> 3) % 4],
        ce_id: (choice & 32 != 0).then_some("id"),
    };
    let Ok(events) = parse(&headers, body) else { return };
    assert!(events.pushes.len() <= MAX_EVENTS);
    assert!(events.handshake.is_none_or(|word| word.len() <= body.len()));
    for push in &events.pushes {
        for registry in [None, Some("registry.example:5000")] {
            let Ok(image) = push.image(registry) else { continue };
            let read = image.to_string().parse::<Reference>();
            assert_eq!(read.as_ref().ok(), Some(&image), "{image}: {read:?}");
        }
    }
}
