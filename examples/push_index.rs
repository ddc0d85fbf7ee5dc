//! `push_index IMAGE`: builds the SOCI index of an image in a registry, and attaches it there.
//! Credentials are those of `docker login`.

use std::error::Error;
use std::sync::Arc;

use ociseek_format::image::Reference;
use ociseek_format::progress::{Progress, SilentProgress};
use ociseek_ops::index::{IndexOptions, IndexedManifest, ManifestResult, Work, index};
use ociseek_store::blob::Target;
use ociseek_store::registry::{Client, ClientConfig};
use ociseek_store::{Destination, Source};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args().nth(1).ok_or("push_index IMAGE")?;
    for line in push_index(&image).await? {
        println!("{line}");
    }
    Ok(())
}

/// Indexes all platforms of the image. Returns a line with the result for each.
pub async fn push_index(image: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let image: Reference = image.parse()?;
    let repository =
        Client::new(ClientConfig::default())?.repository(&image.registry, &image.repository)?;
    let source = Source::Registry(repository.clone());
    let destination = Destination::Registry(repository);
    // Layers of any size. The other options are those of `ociseek index`.
    let options = IndexOptions { min_layer_size: 0, ..IndexOptions::default() };
    let progress: Arc<dyn Progress> = Arc::new(SilentProgress);
    let work = Work { cache: None, options: &options, progress: &progress };
    let done = index(&source, &Target::of(&image), Some(&destination), work).await?;
    Ok(done.manifests.iter().map(line).collect())
}

fn line(manifest: &IndexedManifest) -> String {
    let platform = manifest.platform.as_deref().unwrap_or("?");
    match &manifest.result {
        ManifestResult::Attached { index, .. } => format!("{platform}: attached {}", index.digest),
        ManifestResult::AlreadyThere { index, .. } => format!("{platform}: has {}", index.digest),
        _ => format!("{platform}: no index"),
    }
}
