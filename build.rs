//! Passes facts about the build to `ociseek version`: target, features, and the commit if it is
//! certain. Also determines whether this build can mount images.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=OCISEEK_COMMIT");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo::rustc-env=OCISEEK_BUILD_TARGET={}", variable("TARGET"));
    let features = std::env::vars()
        .filter_map(|(name, _)| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase()));
    let features = features.filter(|name| name != "default");
    let mut features: Vec<String> = features.map(|name| name.replace('_', "-")).collect();
    features.sort();
    println!("cargo::rustc-env=OCISEEK_BUILD_FEATURES={}", features.join(","));
    // `cfg(mounts)` stands for code that mounts: the feature is on, and the target is Linux.
    println!("cargo::rustc-check-cfg=cfg(mounts)");
    let is_enabled = std::env::var_os("CARGO_FEATURE_MOUNTS").is_some();
    if is_enabled && variable("CARGO_CFG_TARGET_OS") == "linux" {
        println!("cargo::rustc-cfg=mounts");
    }
    // git is not used: a working tree may differ from its commit, and each commit would cause a
    // rebuild. The release build sets the variable.
    let commit = variable("OCISEEK_COMMIT");
    let is_commit =
        matches!(commit.len(), 40 | 64) && commit.bytes().all(|b| b.is_ascii_hexdigit());
    println!("cargo::rustc-env=OCISEEK_BUILD_COMMIT={}", if is_commit { &commit } else { "" });
}
