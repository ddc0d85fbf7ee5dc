//! The page of `ociseek try` in a browser: nothing in it runs, whatever the names of an image's
//! files.

use std::path::Path;
use std::process::{Command, Stdio};

use ociseek_testkit::report::{Image, NAMES};
use ociseek_testkit::sandbox::Sandbox;
use ociseek_testkit::servers::tool;

/// Chromium's document of the page in `file`, after all scripts that it would run.
fn dom(chromium: &Path, sandbox: &Sandbox, file: &str) -> String {
    let home = sandbox.path("home");
    std::fs::create_dir_all(&home).unwrap();
    let output = Command::new(chromium)
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--virtual-time-budget=1000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", home.display()))
        .arg(format!("file://{}", sandbox.path(file).display()))
        .env("HOME", &home)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn title(dom: &str) -> &str {
    dom.split_once("<title>").unwrap().1.split_once("</title>").unwrap().0
}

#[test]
fn no_script_in_the_page_runs() {
    let Some(chromium) = tool("chromium") else { return };
    let sandbox = Sandbox::new();
    Image::hostile(&sandbox.path("img"));
    let index = ["index", "-q", "--min-layer-size=0", "--no-cache", "oci:img"];
    assert!(sandbox.command(&index).status().unwrap().success());
    assert!(
        sandbox
            .command(&["try", "--no-run", "--no-cache", "-o", "page.html", "oci:img"])
            .status()
            .unwrap()
            .success()
    );
    let page = std::fs::read_to_string(sandbox.path("page.html")).unwrap();
    let ours = dom(&chromium, &sandbox, "page.html");
    assert_eq!(title(&ours), "oci:img – ociseek try");
    assert!(ours.contains("<footer>"), "all of the page is there");
    for element in ["<script", "<img", "<svg onload", "<meta http-equiv=\"refresh\""] {
        assert!(!ours.contains(element), "{element}");
    }
    assert_eq!(ours.matches("<style").count(), 1);

    // This browser does run unescaped scripts: the same page with an unescaped name and no policy.
    let (before, policy_and_rest) =
        page.split_once("<meta http-equiv=\"Content-Security-Policy\"").unwrap();
    let (_, rest) = policy_and_rest.split_once(">\n").unwrap();
    let unescaped = |page: &str| page.replace("<footer>", &format!("{}<footer>", NAMES[0]));
    std::fs::write(sandbox.path("open.html"), unescaped(&format!("{before}{rest}"))).unwrap();
    assert_eq!(title(&dom(&chromium, &sandbox, "open.html")), "ran");
    // If a name were not escaped, the policy would still prevent scripts.
    std::fs::write(sandbox.path("forgotten.html"), unescaped(&page)).unwrap();
    let forgotten = dom(&chromium, &sandbox, "forgotten.html");
    assert!(forgotten.contains("<script>"));
    assert_eq!(title(&forgotten), "oci:img – ociseek try");
}
