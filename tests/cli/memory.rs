//! Memory does not grow with a layer, except for its checkpoints and its list of files.
//!
//! The layer is generated and piped into the program. It has 10 GiB in CI, and 1 GiB elsewhere.

use ociseek_testkit::memory_of;
use ociseek_testkit::sandbox::program;
use ociseek_testkit::tarball;
use std::io::Write;
use std::process::{Command, Stdio};

use flate2::{Compress, Compression, FlushCompress};

const MIB: u64 = 1 << 20;

/// One MiB of text and noise, as deflate blocks that do not refer to earlier data.
fn segment() -> (Vec<u8>, Vec<u8>) {
    let mut state = 1u32;
    let plain: Vec<u8> = (0..MIB)
        .map(|i| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if i / 64 % 2 == 0 {
                (state >> 24) as u8
            } else {
                b"nothing new here\n"[i as usize % 17]
            }
        })
        .collect();
    let mut encoder = Compress::new(Compression::fast(), false);
    let mut deflated = Vec::with_capacity(2 * plain.len());
    encoder.compress_vec(&plain, &mut deflated, FlushCompress::Full).expect("compresses");
    (plain, deflated)
}

/// Writes the gzip of a tar with a file of `mib` MiB.
fn write_layer(out: &mut impl Write, mib: u64) -> std::io::Result<()> {
    let (plain, deflated) = segment();
    let stored = |out: &mut dyn Write, data: &[u8], last: u8| {
        let length = data.len() as u16;
        out.write_all(
            &[&[last], &length.to_le_bytes()[..], &(!length).to_le_bytes(), data].concat(),
        )
    };
    out.write_all(b"\x1f\x8b\x08\0\0\0\0\0\0\x03")?;
    let header =
        tarball::Block { name: b"big".to_vec(), size: (mib * MIB) as i64, ..Default::default() };
    stored(out, &header.bytes(), 0)?;
    for _ in 0..mib {
        out.write_all(&deflated)?;
    }
    let mut total = crc32fast::Hasher::new();
    total.update(&header.bytes());
    for _ in 0..mib {
        total.update(&plain);
    }
    let end = tarball::end();
    stored(out, &end, 1)?;
    total.update(&end);
    out.write_all(&total.finalize().to_le_bytes())?;
    out.write_all(&((512 + mib * MIB + 1024) as u32).to_le_bytes())
}

#[test]
fn memory_does_not_grow_with_the_layer() {
    if !cfg!(target_os = "linux") {
        eprintln!("SKIP: peak memory is read from /proc");
        return;
    }
    let mib = if std::env::var_os("CI").is_some() { 10 * 1024 } else { 1024 };
    let dir = tempfile::tempdir().expect("a folder");
    let output = dir.path().join("big.ztoc");
    let mut child = Command::new(program())
        .args(["ztoc", "create", "-", "--output"])
        .arg(&output)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let pid = child.id();
    let mut stdin = child.stdin.take().expect("is piped");
    let writer = std::thread::spawn(move || {
        write_layer(&mut stdin, mib).expect("the layer is taken to its end")
    });
    let mut peak = 0;
    let status = loop {
        peak = memory_of(pid, "VmHWM").unwrap_or(0).max(peak);
        if let Some(status) = child.try_wait().expect("is ours") {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    writer.join().expect("wrote");
    assert!(status.success());
    let ztoc = std::fs::metadata(&output).expect("was written").len();
    let allowed = 96 * MIB + 2 * ztoc;
    println!(
        "{mib} MiB of tar, ztoc of {ztoc} bytes: peak {} KiB, allowed {} KiB",
        peak / 1024,
        allowed / 1024
    );
    assert!(peak > 0 && peak < allowed, "peak {peak} bytes");
}
