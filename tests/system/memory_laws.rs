//! Hostile images, mounted: the process mounts them or says why not, and stays within the memory
//! limit.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::hostile::{HostileImage, MIB, images, run_until};
use ociseek_testkit::sandbox::Sandbox;

/// How many files are listed, and how many of them are read from.
const LISTED: usize = 200_000;
const READ: usize = 5;

/// Lists what is mounted, as far as there can be paths of that length. Returns how many files that
/// are, and reads of some of them.
fn listed(mnt: &Path) -> usize {
    let mut found = 0;
    let mut read = 0;
    let mut left = vec![mnt.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten().take(LISTED) {
            found += 1;
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() && found < LISTED {
                left.push(entry.path());
            } else if metadata.is_file() && read < READ {
                read += 1;
                let _ = File::open(entry.path())
                    .and_then(|file| file.read_at(&mut [0; 4096], metadata.len() / 2));
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mounted_hostile_images_stay_below_the_memory_limit() {
    let registry = Faulty::honest(RegistrySettings::default()).await;
    let Some(sandbox) = Sandbox::for_mounts() else { return };
    let mnt = sandbox.path("mnt");
    std::fs::create_dir(&mnt).unwrap();
    let mut table = String::new();
    let mut wrong = Vec::new();
    let mut mounts = 0;
    for HostileImage { what, name, .. } in images(&registry) {
        let mut files = None;
        let ended =
            run_until(&sandbox, &["mount", "--no-cache", "--deadline=5", &name, "mnt"], |log| {
                let is_mounted = std::fs::read_to_string(log).unwrap().contains(" read so far\n");
                if is_mounted {
                    files = Some(listed(&mnt));
                }
                is_mounted
            });
        mounts += usize::from(files.is_some());
        let files = files.map_or("not mounted".to_owned(), |files| format!("{files} files"));
        table += &format!("{what:>40}: {} MiB, {files}, {:?}\n", ended.peak / MIB, ended.code);
        wrong.extend(ended.fault().map(|fault| format!("{what}: {fault}")));
    }
    println!("{mounts} mounts\n{table}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(mounts > 5, "{mounts}");
}
