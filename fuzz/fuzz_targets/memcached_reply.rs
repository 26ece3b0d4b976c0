//! However it is cut, a stream of memcached replies ends where it ends, and what is found in a
//! whole reply is all there is.
#![no_main]

use cashew_fuzz::{BYTES, WHOLE, ends, split};
use cashew_protocol::memcached::{Expect, ReplyScanner, Stats, Values, is_error};

libfuzzer_sys::fuzz_target!(|data: &[u8]| scan(data));

pub fn scan(data: &[u8]) {
    let (cuts, input) = split(data);
    let expects = [Expect::Line, Expect::Values, Expect::Meta, Expect::Fenced, Expect::Stats];
    for expect in expects {
        let whole = replies(expect, input, WHOLE);
        assert_eq!(replies(expect, input, &cuts), whole);
        assert_eq!(replies(expect, input, BYTES), whole);
        if let (Expect::Values, [Some(end), ..]) = (expect, whole.as_slice()) {
            let mut blocks = Values::new(&input[..*end]);
            while blocks.next().is_some() {}
            assert!(blocks.rest() == b"END\r\n" || is_error(blocks.rest()));
        }
        if let (Expect::Stats, [Some(end), ..]) = (expect, whole.as_slice()) {
            let mut stats = Stats::new(&input[..*end]);
            while stats.next().is_some() {}
            assert!(stats.rest().split(|&byte| byte == b'\n').count() <= 2);
        }
    }
}

/// Where replies end, up to the first that turns out to be none.
fn replies(expect: Expect, input: &[u8], cuts: &[usize]) -> Vec<Option<usize>> {
    let mut scanner = ReplyScanner::default();
    ends(input, cuts, |bytes| scanner.scan(expect, bytes))
}
