//! However it is cut, a stream of memcached requests is read as the same requests.
#![no_main]

use cashew_fuzz::{arrivals, split};
use cashew_protocol::memcached::{Parsed, RequestParser};

libfuzzer_sys::fuzz_target!(|data: &[u8]| read(data));

/// Small enough for values to be refused.
const VALUE_SIZE_MAX: u64 = 64;

pub fn read(data: &[u8]) {
    let (sizes, input) = split(data);
    let whole = requests(input, &[]);
    assert_eq!(requests(input, sizes), whole);
    assert_eq!(requests(input, &[0]), whole);
}

/// Each result as text, with what was dropped in all; up to where the connection is closed.
fn requests(input: &[u8], sizes: &[u8]) -> Vec<String> {
    let mut parser = RequestParser::new(VALUE_SIZE_MAX);
    let mut requests = Vec::new();
    let (mut start, mut swallow) = (0, 0);
    for arrived in arrivals(sizes, input.len()) {
        loop {
            let dropped = swallow.min((arrived - start) as u64);
            start += dropped as usize;
            swallow -= dropped;
            let buf = &input[start..arrived];
            if buf.is_empty() {
                break;
            }
            match parser.parse(buf) {
                Parsed::Partial { need } => {
                    assert!(need > buf.len());
                    break;
                }
                Parsed::Complete { len } => {
                    let keys: Vec<_> = parser.keys().iter().map(|key| key.of(buf)).collect();
                    let noreply = parser.noreply().map(|noreply| noreply.of(buf));
                    let data = parser.data().map(|data| data.of(buf));
                    let line = parser.line().of(buf);
                    assert!(noreply.is_none_or(|word| word.ends_with(b" noreply")));
                    requests.push(format!(
                        "{len} {:?} {keys:?} {noreply:?} {:?} {data:?} {line:?}",
                        parser.verb(),
                        parser.meta()
                    ));
                    start += len;
                }
                Parsed::Reject { reply, close: true, .. } => {
                    requests.push(format!("closed {reply:?}"));
                    return requests;
                }
                Parsed::Reject { len, swallow: more, reply, noreply, close: false } => {
                    let dropped = len as u64 + more;
                    requests.push(format!("{dropped} refused {reply:?} {noreply}"));
                    start += len;
                    swallow = more;
                }
            }
            parser.reset();
        }
    }
    requests
}
