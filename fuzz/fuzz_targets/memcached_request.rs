//! However it is cut, a stream of memcached requests is read as the same requests.
#![no_main]

use cashew_fuzz::{BYTES, Step, WHOLE, feed, split};
use cashew_protocol::memcached::{Parsed, RequestParser};

libfuzzer_sys::fuzz_target!(|data: &[u8]| read(data));

/// Small enough for values to be refused.
const VALUE_SIZE_MAX: u64 = 64;

pub fn read(data: &[u8]) {
    let (cuts, input) = split(data);
    let whole = requests(input, WHOLE);
    assert_eq!(requests(input, &cuts), whole);
    assert_eq!(requests(input, BYTES), whole);
}

/// Each result as text, with what was dropped in all; up to where the connection is closed.
fn requests(input: &[u8], cuts: &[usize]) -> Vec<String> {
    let mut parser = RequestParser::new(VALUE_SIZE_MAX);
    let mut requests = Vec::new();
    feed(input, cuts, |buf| {
        let used = match parser.parse(buf) {
            Parsed::Partial { need } => {
                assert!(need > buf.len());
                return Step::Wait;
            }
            Parsed::Complete { len } => {
                let keys: Vec<_> = parser.keys().iter().map(|key| key.of(buf)).collect();
                let noreply = parser.noreply().map(|noreply| noreply.of(buf));
                let data = parser.data().map(|data| data.of(buf));
                let line = parser.line().of(buf);
                assert!(noreply.is_none_or(|word| word.ends_with(b" noreply")));
                let (verb, meta) = (parser.verb(), parser.meta());
                requests.push(format!(
                    "{len} {verb:?} {keys:?} {noreply:?} {meta:?} {data:?} {line:?}"
                ));
                len as u64
            }
            Parsed::Reject { reply, close: true, .. } => {
                requests.push(format!("closed {reply:?}"));
                return Step::End;
            }
            Parsed::Reject { len, swallow, reply, noreply, close: false } => {
                let dropped = len as u64 + swallow;
                requests.push(format!("{dropped} refused {reply:?} {noreply}"));
                dropped
            }
        };
        parser.reset();
        Step::Used(used)
    });
    requests
}
