//! Invalid documents of zstd layers: those that exist for gzip, and others with wrong windows.

use super::*;
use crate::codec::zstd::ZstdState;

/// The state of the first page's window, and the size of the window.
struct Window {
    kind: u8,
    window: u8,
    tables: Vec<u8>,
    length: u64,
    /// The number of parts, and what skips and lengths they have.
    parts: Vec<u64>,
}

/// The first page begins with the lead of the recorded start's first span.
fn wrong_windows(kinds: &mut Kinds) {
    let lead = spans(30, Codec::Zstd).0.lead(SpanId(17));
    let sound = || Window {
        kind: 1,
        window: 0x58,
        tables: ZstdState::initial().tables.into(),
        length: 9000,
        parts: vec![0],
    };
    let mut add = |name: &str, change: &dyn Fn(&mut Window)| {
        let mut window = sound();
        change(&mut window);
        kinds.add(name, |document| {
            let plain = &mut document.pages[0].plain;
            plain.truncate(lead);
            plain.extend([window.kind, window.window]);
            wire::put(plain, window.tables.len() as u64);
            plain.extend(&window.tables);
            wire::put(plain, window.length);
            window.parts.iter().for_each(|number| wire::put(plain, *number));
        });
    };
    for kind in [0, 3, 255] {
        add("another kind of start", &|window| window.kind = kind);
    }
    for descriptor in [0x89, 0x90, 0xff] {
        add("a window of more than 128 MiB", &|window| window.window = descriptor);
    }
    add("no tables", &|window| window.tables.clear());
    for cut in 1..sound().tables.len() {
        add("cut tables", &|window| window.tables.truncate(cut));
    }
    add("a byte after the tables", &|window| window.tables.push(0));
    add("tables of ones", &|window| window.tables.fill(0xff));
    add("repeat offsets past the window", &|window| {
        let end = window.tables.len();
        window.tables[end - 2..].fill(0xff);
    });
    for length in [7, (128 << 20) + 1, u64::from(u32::MAX), u64::MAX] {
        add("a window of another size", &|window| window.length = length);
    }
    let parts: [(&str, &[u64]); 9] = [
        ("more parts than can be", &[4501]),
        ("far more parts than can be", &[u64::MAX]),
        ("a gap of the whole window", &[1, 9000, 0]),
        ("a part of more than the window", &[1, 0, 9000]),
        ("a part past the window", &[1, 8999, 1]),
        ("two parts past the window", &[2, 8000, 0, 999, 0]),
        ("parts that touch", &[2, 0, 0, 0, 0]),
        ("a gap of more than 64 bits", &[1, u64::MAX, 0]),
        ("parts without their bytes", &[1, 0, 8999]),
    ];
    for (name, numbers) in parts {
        add(name, &|window| window.parts = numbers.to_vec());
    }
}

#[test]
fn contradictory_documents_of_zstd_layers_are_refused() {
    contradictory(Codec::Zstd, wrong_windows);
}

#[test]
fn prefixes_and_flipped_bits_of_zstd_documents_never_panic() {
    prefixes_and_flipped_bits(Codec::Zstd);
}
