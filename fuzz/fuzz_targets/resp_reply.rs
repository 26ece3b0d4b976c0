#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cashew_fuzzed::resp_reply::scan(data));
