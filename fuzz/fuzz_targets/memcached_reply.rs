//! However it is cut, a stream of memcached replies ends where it ends, and what is found in a
//! whole reply is all there is.
#![no_main]

use cashew_fuzz::{arrivals, split};
use cashew_protocol::memcached::{Expect, ReplyScanner, Scan, Stats, Values, is_error};

libfuzzer_sys::fuzz_target!(|data: &[u8]| scan(data));

pub fn scan(data: &[u8]) {
    let (sizes, input) = split(data);
    let expects = [Expect::Line, Expect::Values, Expect::Meta, Expect::Fenced, Expect::Stats];
    for expect in expects {
        let whole = ends(expect, input, &[]);
        assert_eq!(ends(expect, input, sizes), whole);
        assert_eq!(ends(expect, input, &[0]), whole);
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
fn ends(expect: Expect, input: &[u8], sizes: &[u8]) -> Vec<Option<usize>> {
    let mut scanner = ReplyScanner::default();
    let mut ends = Vec::new();
    let mut start = 0;
    for arrived in arrivals(sizes, input.len()) {
        while start < arrived {
            match scanner.scan(expect, &input[start..arrived]) {
                Scan::Complete(len) => {
                    assert!(len > 0);
                    start += len;
                    ends.push(Some(start));
                }
                Scan::Partial => start = arrived,
                Scan::Invalid => {
                    ends.push(None);
                    return ends;
                }
            }
        }
    }
    ends
}
