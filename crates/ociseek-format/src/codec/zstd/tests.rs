use super::*;
use crate::offset::{Compressed, Uncompressed};

fn decode(blob: &[u8], step: usize) -> io::Result<Vec<u8>> {
    let mut reader = ZstdReader::new()?;
    let mut plain = Vec::new();
    for chunk in blob.chunks(step) {
        reader.push(chunk, &mut |bytes| {
            plain.extend_from_slice(bytes);
            io::Result::Ok(())
        })?;
    }
    reader.finish().map(|()| plain)
}

#[test]
fn all_kinds_of_frames_decode_at_any_chunking() {
    let text: Vec<u8> = (0..400_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
    let skippable = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
    let frame = zstd::stream::encode_all(&text[..], 3).unwrap();
    let blob = [&skippable[..], &frame, skippable, &frame].concat();
    let expected = [&text[..], &text].concat();
    for step in [1, 7, 4096, blob.len()] {
        assert!(decode(&blob, step).unwrap() == expected, "{step}");
    }
    for cut in [1, 5, 13, frame.len() / 2, blob.len() - 1] {
        assert!(decode(&blob[..cut], 1000).is_err(), "{cut}");
    }
    assert!(decode(&[&frame[..], b"garbage"].concat(), 1000).is_err());
}

#[test]
fn a_frame_that_holds_less_than_it_states_is_refused_at_any_chunking() {
    let sound = zstd::stream::encode_all(&b"sound"[..], 3).unwrap();
    // 256 bytes are stated. Two blocks hold 18, and the last one is empty.
    let frame = b"\x28\xb5\x2f\xfd\x40\0\0\0\x08\0\0\0\x8a\0\0\0\0\0\0\x01\0\0";
    let blob = [&sound[..], frame].concat();
    for step in [1, 7, 20, blob.len()] {
        assert!(decode(&blob, step).is_err(), "{step}");
    }
    let error = decode(&blob, 1).unwrap_err().to_string();
    assert_eq!(error, "a zstd frame holds 18 bytes, but its header states 256");
}

#[test]
fn frames_are_refused_wherever_they_are_cut() {
    // An empty content, and a block that repeats a byte zero times.
    let repeating = b"\x28\xb5\x2f\xfd\x20\0\x02\0\0\0\x01\0\0".to_vec();
    // A dictionary whose ID is a magic number, as if a sound frame of 32 bytes began there.
    let nested =
        [&b"\x28\xb5\x2f\xfd\x23\x28\xb5\x2f\xfd\x20\x20\x01\x01\0"[..], &[7; 32]].concat();
    // An empty content, and a compressed block without one.
    let empty = b"\x28\xb5\x2f\xfd\x20\0\x05\0\0".to_vec();
    for frame in [repeating, nested, empty] {
        for cut in 0..=frame.len() {
            let (first, second) = frame.split_at(cut);
            let mut reader = ZstdReader::new().unwrap();
            let mut push = |part| reader.push(part, &mut |_| io::Result::Ok(()));
            assert!(push(first).and_then(|()| push(second)).is_err(), "{cut} of {frame:?}");
        }
    }
}

#[test]
fn a_too_large_window_is_refused_with_its_size() {
    // Magic, a window descriptor of 2^31 bytes, and an empty last block.
    let frame = b"\x28\xb5\x2f\xfd\0\xa8\x01\0\0";
    let error = decode(frame, 100).unwrap_err().to_string();
    assert!(error.contains("2147483648 bytes") && error.contains("128 MiB"), "{error}");
}

/// A checkpoint, and what the output up to the next one refers to.
struct Checkpoint {
    input: usize,
    output: usize,
    state: Option<ZstdState>,
    reach: usize,
    references: Vec<ZstdReference>,
}

/// Takes a checkpoint wherever one can be, if `distance` bytes were decoded since the last one.
#[derive(Default)]
struct Checkpoints {
    distance: usize,
    plain: Vec<u8>,
    list: Vec<Checkpoint>,
}

impl ZstdSink for Checkpoints {
    fn block_start(&mut self, at: ZstdBorder<'_>) {
        let input = at.input.0 as usize;
        let output = at.output.0 as usize;
        if self.list.last().is_none_or(|last| output - last.output >= self.distance) {
            let state = at.state();
            let reach = at.reach() as usize;
            self.list.push(Checkpoint { input, output, state, reach, references: Vec::new() });
        }
    }

    fn since(&self) -> Option<Uncompressed> {
        self.list.last().map(|last| Uncompressed(last.output as u64))
    }

    fn references(&mut self, references: &[ZstdReference]) {
        self.list.last_mut().unwrap().references.extend_from_slice(references);
    }
}

fn scan(blob: &[u8], steps: &[usize], distance: usize) -> io::Result<Checkpoints> {
    let mut sink =
        Checkpoints { distance, plain: decode(blob, blob.len())?, ..Checkpoints::default() };
    let mut blocks = ZstdBlocks::new(Compressed(0), Uncompressed(0));
    let mut rest = blob;
    for step in steps.iter().cycle() {
        let (chunk, after) = rest.split_at((*step).min(rest.len()));
        blocks.push(chunk, &mut sink)?;
        rest = after;
        if rest.is_empty() {
            break;
        }
    }
    assert_eq!(blocks.output().0, sink.plain.len() as u64);
    assert!(!blocks.is_inside());
    Ok(sink)
}

/// What the blob decodes to from a checkpoint to the next, with `fill` in place of the bytes that
/// are not referred to.
fn resumed(blob: &[u8], checkpoints: &Checkpoints, number: usize, fill: u8) -> io::Result<Vec<u8>> {
    let at = &checkpoints.list[number];
    let end = checkpoints.list.get(number + 1).map_or(checkpoints.plain.len(), |next| next.output);
    let mut plain = Vec::new();
    let mut take = |bytes: &[u8]| {
        plain.extend_from_slice(bytes);
        io::Result::Ok(())
    };
    let wanted = end - at.output;
    match &at.state {
        None => ZstdReader::new()?.push(&blob[at.input..], &mut take)?,
        Some(state) => {
            assert!(state.reach().is_some_and(|reach| reach <= ZstdState::MAX_WINDOW));
            let far = at.references.iter().map(|reference| reference.back as usize).max();
            let length = at.reach.max(far.unwrap_or(0));
            let (mut bytes, start) = state.dictionary(length, fill);
            for ZstdReference { back, length: size } in &at.references {
                let from = at.output - *back as usize;
                let to = start + length - *back as usize;
                bytes[to..to + *size as usize]
                    .copy_from_slice(&checkpoints.plain[from..from + *size as usize]);
            }
            let dictionary = ZstdDictionary::new(&bytes)?;
            let end = checkpoints.list.get(number + 1).map_or(blob.len(), |next| next.input);
            ZstdResumed::new(state, &dictionary, wanted as u64)?
                .push(&blob[at.input..end], &mut take)?;
        }
    }
    plain.truncate(wanted);
    Ok(plain)
}

fn check(blob: &[u8], plain: &[u8], steps: &[usize], distance: usize) {
    let checkpoints = scan(blob, steps, distance).unwrap();
    assert!(checkpoints.plain == plain);
    for number in 0..checkpoints.list.len() {
        let at = &checkpoints.list[number];
        let end = checkpoints.list.get(number + 1).map_or(plain.len(), |next| next.output);
        for fill in [0, 0xff] {
            let resumed = resumed(blob, &checkpoints, number, fill).unwrap();
            assert!(resumed == plain[at.output..end], "from {} of {}", at.output, plain.len());
        }
        if let Some(next) = checkpoints.list.get(number + 1) {
            let bytes = &blob[at.input..next.input];
            let (lead, rest) = bytes.split_at(bytes.len().min(at.input % 65));
            let after = zstd_state_after(at.state.as_ref(), lead, rest);
            assert!(after.as_ref() == Some(&next.state), "after {}", next.output);
        }
    }
}

/// Words that repeat at all distances, with noise between them.
pub(super) fn text(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    let mut text: Vec<u8> = (0..4096).map(|_| next() as u8).collect();
    while text.len() < size {
        match next() % 300 {
            0 => text.extend((0..next() % 70_000).map(|_| next() as u8)),
            1 => text.resize(text.len() + next() % 300_000, next() as u8),
            kind => {
                let far = if kind < 30 { text.len() } else { text.len().min(60_000) };
                let back = 1 + next() % far;
                let length = 3 + next() % if kind < 60 { 3000 } else { 40 };
                let from = text.len() - back;
                text.extend_from_within(from..from + length.min(back));
                text.extend((0..next() % 6).map(|_| (next() % 64) as u8));
            }
        }
    }
    text.truncate(size);
    text
}

fn encode(
    plain: &[u8],
    level: i32,
    parameters: &[zstd::zstd_safe::CParameter],
    stated: bool,
) -> Vec<u8> {
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), level).unwrap();
    for parameter in parameters {
        encoder.set_parameter(*parameter).unwrap();
    }
    if stated {
        encoder.set_pledged_src_size(Some(plain.len() as u64)).unwrap();
    }
    io::Write::write_all(&mut encoder, plain).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn every_level_resumes_anywhere() {
    let plain = text(3_000_000, 5);
    for level in [1, 3, 9, 19] {
        let blob = encode(&plain, level, &[], false);
        check(&blob, &plain, &[70_000], 100_000);
    }
}

#[test]
fn nothing_resumes_while_a_repeated_table_would_be_one_of_a_single_symbol() {
    // A compressed block: 4 literals, and a sequence whose tables have one symbol each: 4 literals,
    // a distance of 4, and 8 bytes.
    let single = b"\x5c\0\0\x20abcd\x01\x54\x04\x02\x05\x07";
    // The same with repeated tables, and a distance of 1.
    let repeating = b"\x44\0\0\x20efgh\x01\xfc\x04";
    let raw = b"\x19\0\0end";
    let frame = [&b"\x28\xb5\x2f\xfd\0\x40"[..], single, repeating, raw].concat();
    let plain = text(400_000, 1);
    let blob = [&frame[..], &encode(&plain, 3, &[], false)].concat();
    let whole = [&b"abcdabcdabcdefghhhhhhhhhend"[..], &plain].concat();
    check(&blob, &whole, &[blob.len()], 0);
    check(&blob, &whole, &[1], 0);
    let checkpoints = scan(&blob, &[blob.len()], 0).unwrap();
    assert_eq!(
        checkpoints.list[..2].iter().map(|at| at.input).collect::<Vec<_>>(),
        [0, frame.len()]
    );
    assert_eq!(zstd_state_after(None, &[], &frame[..6 + single.len()]), None);
}

#[test]
fn repeat_offsets_are_found_however_few_sequences_blocks_have() {
    // Each block copies what is 1,000 bytes before it, after bytes that are new.
    let mut plain = text(1000, 3);
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 3).unwrap();
    io::Write::write_all(&mut encoder, &plain).unwrap();
    io::Write::flush(&mut encoder).unwrap();
    for number in 0..60u8 {
        let from = plain.len();
        plain.extend_from_slice(&[number, number ^ 0x55, 7, number]);
        plain.extend_from_within(from - 996..from - 500);
        io::Write::write_all(&mut encoder, &plain[from..]).unwrap();
        io::Write::flush(&mut encoder).unwrap();
    }
    let blob = encoder.finish().unwrap();
    for distance in [0, 1500, 5000, 12_000, 25_000] {
        check(&blob, &plain, &[blob.len()], distance);
    }
}

#[test]
fn long_windows_and_odd_parameters_resume_anywhere() {
    use zstd::zstd_safe::CParameter::{
        ChecksumFlag, EnableLongDistanceMatching, MinMatch, TargetCBlockSize, TargetLength,
        WindowLog,
    };
    let plain = text(3_000_000, 8);
    for (level, parameters) in [
        (3, vec![EnableLongDistanceMatching(true), WindowLog(27), ChecksumFlag(true)]),
        (-5, vec![WindowLog(10)]),
        (5, vec![TargetCBlockSize(1340)]),
        (2, vec![MinMatch(7), TargetLength(100)]),
    ] {
        check(&encode(&plain, level, &parameters, true), &plain, &[9000], 300_000);
    }
}
