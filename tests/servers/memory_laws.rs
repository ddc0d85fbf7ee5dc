//! A table of hostile images: for any of them, each command ends by itself, with one of its exit
//! codes, and within the memory limit. The table is printed with the peaks. `tests/system` has the
//! same for `mount`.

use std::path::Path;

use serde_json::{Value, json};

use ociseek_testkit::faulty::{Faulty, RegistrySettings};
use ociseek_testkit::hostile::{Ended, HostileImage, MIB, images, run, run_until};
use ociseek_testkit::http::post;
use ociseek_testkit::sandbox::Sandbox;

/// Commands that read or write an image. Those of a group see what the earlier ones have written.
const GROUPS: [&[&[&str]]; 4] = [
    &[
        &["index", "--min-layer-size=0", "--no-cache"],
        &["ls", "--no-cache"],
        &["cat", "--no-cache"],
        &["verify"],
        &["doctor"],
    ],
    &[
        &["try", "--no-run", "--no-cache"],
        &["index", "--kind=fine", "--min-layer-size=0", "--no-cache"],
        &["cat", "--no-cache"],
        &["verify"],
    ],
    &[&["convert", "--min-layer-size=0", "--no-cache"]],
    &[&["hook"]],
];

/// Runs a command on an image.
fn ended(sandbox: &Sandbox, registry: &Faulty, command: &[&str], image: &str) -> Ended {
    let enabled = format!("{}/a/b:enabled", registry.host());
    let more: &[&str] = match command[0] {
        "hook" => return hook_job(sandbox, registry, image),
        "cat" => &["l0"],
        "convert" => &[&enabled],
        _ => &[],
    };
    run(sandbox, &[command, &[image], more].concat())
}

/// `hook serve` until it has done one job.
fn hook_job(sandbox: &Sandbox, registry: &Faulty, image: &str) -> Ended {
    let allow = format!("--allow={}", registry.host());
    let options = ["--listen=127.0.0.1:0", "--retry-wait=1", "--min-layer-size=0", "--no-cache"];
    let mut is_sent = false;
    let is_done = |log: &Path| {
        let log = std::fs::read_to_string(log).unwrap();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        if !is_sent && let Some(line) = lines.clone().find(|line| line["event"] == "listening") {
            is_sent = true;
            let (status, text) = post(
                line["address"].as_str().unwrap(),
                "/",
                &[],
                json!({"image": image}).to_string().as_bytes(),
            );
            assert_eq!(status, 202, "{text}");
        }
        lines.any(|line| line["event"] == "job" || line["event"] == "dead-letter")
    };
    run_until(sandbox, &[&["hook", "serve", &allow], &options[..]].concat(), is_done)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_images_stay_below_the_memory_limit() {
    let hostile = Faulty::honest(RegistrySettings::default()).await;
    let sandbox = Sandbox::new();
    let mut table = String::new();
    let mut wrong = Vec::new();
    let mut runs = 0;
    let mut unseen = 0;
    for HostileImage { what, name, has_index } in images(&hostile) {
        let mut peaks = Vec::new();
        for group in GROUPS {
            let registry = hostile.copy(|_, _| None).await;
            let image = name.replace(&hostile.host(), &registry.host());
            let mut commands = group.to_vec();
            if has_index && commands[0][0] == "index" {
                commands.rotate_left(1);
            }
            for command in commands {
                let ended = ended(&sandbox, &registry, command, &image);
                peaks.push(format!("{} {}", command[0], ended.peak / MIB));
                runs += 1;
                unseen += usize::from(ended.peak == 0);
                wrong.extend(
                    ended.fault().map(|fault| format!("{} of {what}: {fault}", command[0])),
                );
            }
        }
        table += &format!("{what:>40}: {}\n", peaks.join(", "));
    }
    println!("peaks in MiB, {runs} runs\n{table}");
    assert!(unseen * 20 < runs, "{unseen} of {runs} runs ended before their memory was looked at");
    assert!(wrong.is_empty(), "{} of {runs} runs:\n{}", wrong.len(), wrong.join("\n"));
}
