//! The progress on a terminal of 80 columns, with a registry behind a slow connection.

use axum::body::Body;
use axum::http::Response;
use serde_json::json;

use ociseek_format::digest::Digest;
use ociseek_testkit::faulty::{Faulty, RegistrySettings, json_answer};
use ociseek_testkit::sandbox::{Sandbox, gzip, index, tar};
use ociseek_testkit::tarball::{end, file};
use ociseek_testkit::terminal::{lines, on_closed_terminal, on_terminal};
use ociseek_testkit::throttle::throttled;

/// A registry with an image without an index, `a:v1`, with one layer of `size` bytes. Returns its
/// digest.
async fn registry(size: usize) -> (Faulty, Digest) {
    let registry = Faulty::honest(RegistrySettings::with_referrers()).await;
    let digest = registry.add_image("v1", &tar(1, 1, size));
    (registry, digest)
}

/// Checks that the bar has the correct total from the first frame on, and no rate before one was
/// measured.
fn assert_bar(drawn: &str, total: &str) {
    let lines = lines(drawn);
    let bars: Vec<&str> =
        lines.iter().filter_map(|line| line.find("all  ").map(|at| &line[at..])).collect();
    assert!(!bars.is_empty(), "no bar in {lines:#?}");
    assert!(bars.iter().all(|bar| bar.contains(&format!("/{total}"))), "{bars:#?}");
    assert!(
        !bars[0].contains("/s") && !bars[0].contains("left"),
        "nothing is measured yet: {}",
        bars[0]
    );
    assert!(!drawn.contains("0 B/0 B"), "{lines:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_an_image_without_an_index_shows_a_bar_and_a_note() {
    let (registry, layer) = registry(11 << 20).await;
    let slow = throttled(&registry.host(), 8 << 20);
    let work = move || {
        let image = format!("{slow}/a:v1");
        let note = "note: reading 11.0 MiB: this image has no index, so its layers are read once";
        let sandbox = Sandbox::new();
        let (drawn, succeeded) = on_terminal(&sandbox.command(&["ls", &image]));
        assert!(succeeded && drawn.contains(note.trim_start_matches("note:")), "{drawn}");
        assert_bar(&drawn, "11.01 MiB");
        assert_eq!(lines(&drawn).last().map(String::as_str), Some("dir1"), "{drawn:?}");
        // The rate and the remaining time appear as soon as they are known.
        let drawn = lines(&drawn);
        assert!(drawn.iter().any(|line| line.starts_with(&layer.short())), "{drawn:#?}");
        assert!(
            drawn.iter().any(|line| line.contains("all  ")
                && line.contains(" MB/s ")
                && line.ends_with(" s left")),
            "{drawn:#?}"
        );

        // The layer was cached, so there is nothing to report.
        let (drawn, _) = on_terminal(&sandbox.command(&["ls", &image]));
        assert!(
            !drawn.contains("note:") && lines(&drawn).last().is_some_and(|line| line == "dir1"),
            "{drawn}"
        );
        assert_eq!(lines(&on_terminal(&Sandbox::new().command(&["ls", "-q", &image])).0), ["dir1"]);
        // Without a terminal there is only the note. `cat` writes only the file to standard output.
        let output = Sandbox::new().command(&["cat", &image, "/dir1/file0"]).output().unwrap();
        assert!(String::from_utf8(output.stderr).unwrap().starts_with(&format!("{note}\n")));
        assert_eq!(output.stdout.len(), 11 << 20);
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// Its layers are read in less time than the bar takes to be drawn again.
#[test]
fn the_bar_of_a_small_image_moves() {
    let sandbox = Sandbox::with_two_platforms();
    let (drawn, succeeded) = on_terminal(&sandbox.command(&index(&["oci:img"])));
    assert!(succeeded, "{drawn}");
    let shown = lines(&drawn);
    let bars: Vec<&str> =
        shown.iter().filter_map(|line| line.find("all  ").map(|at| &line[at..])).collect();
    assert!(bars.iter().any(|bar| !bar.contains(" 0 B/")), "{bars:#?}");
    // Nothing is read of an image that is up to date.
    let (drawn, succeeded) = on_terminal(&sandbox.command(&index(&["oci:img"])));
    assert!(succeeded && !drawn.contains("all  "), "{drawn}");
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_gets_lines() {
    let sandbox = Sandbox::with_two_platforms();
    let (drawn, succeeded) = on_terminal(sandbox.command(&index(&["oci:img"])).env("TERM", "dumb"));
    assert!(succeeded && !drawn.contains('\x1b'), "{drawn:?}");
}

/// What cannot be drawn any more is no reason to stop.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_terminal_does_not_stop_the_command() {
    let (registry, _) = registry(4 << 20).await;
    let slow = throttled(&registry.host(), 8 << 20);
    let work = move || {
        let image = format!("{slow}/a:v1");
        let index = ["index", "-v", "--min-layer-size=0", "--no-cache", &image];
        assert_eq!(on_closed_terminal(&Sandbox::new().command(&index)), Some(0));
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// Lines of the log stand above the bars, and are whole.
#[tokio::test(flavor = "multi_thread")]
async fn log_lines_and_bars_do_not_mix() {
    let (registry, _) = registry(4 << 20).await;
    let slow = throttled(&registry.host(), 8 << 20);
    let work = move || {
        let image = format!("{slow}/a:v1");
        let index = ["index", "-v", "--min-layer-size=0", "--no-cache", &image];
        let (drawn, succeeded) = on_terminal(&Sandbox::new().command(&index));
        assert!(succeeded, "{drawn}");
        assert!(
            drawn.contains("\x1b[2mdebug\x1b[0m ociseek::registry \x1b[1mrequest\x1b[0m"),
            "{drawn:?}"
        );
        let (drawn, _) = on_terminal(Sandbox::new().command(&index).env("NO_COLOR", "1"));
        assert!(!drawn.contains("\x1b[2mdebug"), "{drawn:?}");
        let requests = lines(&drawn).into_iter().filter(|line| line.contains(" debug "));
        let requests: Vec<String> = requests.collect();
        assert!(requests.len() > 5, "{requests:#?}");
        for request in requests {
            assert!(
                request.starts_with(|c: char| c.is_ascii_digit()) && !request.contains("[="),
                "{request:?}"
            );
        }
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}

/// The digests of compressed layers are determined first.
#[test]
fn reading_a_docker_archive_shows_a_bar() {
    let sandbox = Sandbox::new();
    let layer = tar(1, 1, 3 << 20);
    let diff_id = Digest::sha256(&layer);
    let gzip = gzip(&layer);
    let config = json!({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": [diff_id]}});
    let listed =
        json!([{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["l.tar.gz"]}]).to_string();
    let members = [
        file("c.json", config.to_string().as_bytes()),
        file("l.tar.gz", &gzip),
        file("manifest.json", listed.as_bytes()),
        end(),
    ];
    std::fs::write(sandbox.path("x.tar"), members.concat()).unwrap();
    let (drawn, succeeded) = on_terminal(&sandbox.command(&["ls", "docker-archive:x.tar"]));
    assert!(succeeded, "{drawn}");
    assert_bar(&drawn, "3.00 MiB");
    assert!(!drawn.contains("no SOCI index;"), "it cannot be indexed where it is: {drawn}");
}

/// The number of finished images, below the lines for each.
#[tokio::test(flavor = "multi_thread")]
async fn backfill_reports_its_progress() {
    let registry = Faulty::start(RegistrySettings::with_referrers(), |seen, _| {
        let tags: Vec<String> = (0..12).map(|number| format!("v{number}")).collect();
        seen.is("GET", "/app/tags/list")
            .then(|| -> Response<Body> { json_answer(200, &json!({"tags": tags})) })
    })
    .await;
    for number in 0..12 {
        registry.add_image(&format!("v{number}"), &tar(number, 1, 20_000));
    }
    let place = format!("{}/app", registry.host());
    let work = move || {
        let sandbox = Sandbox::new();
        let args = ["backfill", "--jobs=1", "--min-layer-size=0", "--no-cache", &place];
        let (drawn, succeeded) = on_terminal(&sandbox.command(&args));
        let shown = lines(&drawn);
        assert!(
            succeeded
                && shown.iter().any(|line| line.contains("] ") && line.contains(" of 12 images")),
            "{shown:#?}"
        );
        // Complete lines, without a bar.
        assert_eq!(
            shown.iter().filter(|line| line.starts_with("indexed  ")).count(),
            12,
            "{shown:#?}"
        );
        assert!(
            shown
                .iter()
                .filter(|line| line.starts_with("indexed"))
                .all(|line| line.ends_with(" ms")),
            "{shown:#?}"
        );
        assert!(shown.last().unwrap().starts_with("12 images: 12 indexed; read "), "{shown:#?}");

        let (drawn, _) = on_terminal(&sandbox.command(&[&args[..], &["-q"]].concat()));
        assert!(!drawn.contains(" of 12 images") && drawn.contains("already-indexed"), "{drawn}");
    };
    tokio::task::spawn_blocking(work).await.unwrap();
}
