#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| ociseek_fuzz::zstd_resume(data));
