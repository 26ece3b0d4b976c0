//! However it is cut, a stream of binary packets is read as the same requests and the same replies.
#![no_main]

use cashew_fuzz::{arrivals, split};
use cashew_protocol::memcached::binary::{Packets, Parsed, ReplyScanner, RequestParser};
use cashew_protocol::memcached::{Expect, Scan};

libfuzzer_sys::fuzz_target!(|data: &[u8]| read(data));

/// Small enough for values to be refused.
const VALUE_SIZE_MAX: u64 = 64;

pub fn read(data: &[u8]) {
    let (sizes, input) = split(data);
    let whole = requests(input, &[]);
    assert_eq!(requests(input, sizes), whole);
    assert_eq!(requests(input, &[0]), whole);
    for expect in [Expect::Packet, Expect::Packets] {
        let whole = replies(expect, input, &[]);
        assert_eq!(replies(expect, input, sizes), whole);
        assert_eq!(replies(expect, input, &[0]), whole);
        if let [Some(end), ..] = whole.as_slice() {
            let mut packets = Packets::new(&input[..*end]);
            while packets.next().is_some() {}
            assert_eq!(packets.rest(), b"");
        }
    }
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
                    let spans = [parser.extras(), parser.key(), parser.value()];
                    let [extras, key, value] = spans.map(|span| span.of(buf));
                    let (opcode, is_quiet) = (parser.opcode(), parser.is_quiet());
                    requests
                        .push(format!("{len} {opcode:?} {is_quiet} {extras:?} {key:?} {value:?}"));
                    start += len;
                }
                Parsed::Garbage => {
                    requests.push("garbage".into());
                    return requests;
                }
                Parsed::Reject { status, close: true, .. } => {
                    requests.push(format!("closed {status:?}"));
                    return requests;
                }
                Parsed::Reject { len, swallow: more, status, close: false } => {
                    requests.push(format!("{} refused {status:?}", len as u64 + more));
                    start += len;
                    swallow = more;
                }
            }
            parser.reset();
        }
    }
    requests
}

/// Where replies end, up to the first that turns out to be none.
fn replies(expect: Expect, input: &[u8], sizes: &[u8]) -> Vec<Option<usize>> {
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
