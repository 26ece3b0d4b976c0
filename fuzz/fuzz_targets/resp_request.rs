#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cashew_fuzzed::resp_request::read(data));
