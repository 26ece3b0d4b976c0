#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| cashew_fuzzed::memcached_reply::scan(data));
