//! However it is cut, a stream of binary packets is read as the same requests and the same replies,
//! and a tag is put on the same unique.

use crate::{BYTES, Step, WHOLE, ends, feed, split};
use cashew_protocol::memcached::binary::{Packets, Parsed, ReplyScanner, RequestParser};
use cashew_protocol::memcached::{Expect, Tag, Tagger};

/// Small enough for values to be refused.
const VALUE_SIZE_MAX: u64 = 64;

pub fn read(data: &[u8]) {
    let (cuts, input) = split(data);
    let whole = requests(input, WHOLE);
    assert_eq!(requests(input, &cuts), whole);
    assert_eq!(requests(input, BYTES), whole);
    for expect in [Expect::Packet, Expect::Packets] {
        let whole = replies(expect, input, WHOLE);
        assert_eq!(replies(expect, input, &cuts), whole);
        assert_eq!(replies(expect, input, BYTES), whole);
        if let (Expect::Packet, [Some(end), ..]) = (expect, whole.as_slice()) {
            let reply = &input[..*end];
            let once = tagged(reply, WHOLE);
            assert_eq!(tagged(reply, &cuts), once);
            assert_eq!(tagged(reply, BYTES), once);
            assert_eq!(tagged(&once, WHOLE), reply);
        }
        if let [Some(end), ..] = whole.as_slice() {
            let mut packets = Packets::new(&input[..*end]);
            while packets.next().is_some() {}
            assert_eq!(packets.rest(), b"");
        }
    }
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
                let spans = [parser.extras(), parser.key(), parser.value()];
                let [extras, key, value] = spans.map(|span| span.of(buf));
                let (opcode, is_quiet) = (parser.opcode(), parser.is_quiet());
                requests.push(format!("{len} {opcode:?} {is_quiet} {extras:?} {key:?} {value:?}"));
                len as u64
            }
            Parsed::Garbage => {
                requests.push("garbage".into());
                return Step::End;
            }
            Parsed::Reject { status, close: true, .. } => {
                requests.push(format!("closed {status:?}"));
                return Step::End;
            }
            Parsed::Reject { len, swallow, status, close: false } => {
                let dropped = len as u64 + swallow;
                requests.push(format!("{dropped} refused {status:?}"));
                dropped
            }
        };
        parser.reset();
        Step::Used(used)
    });
    requests
}

/// A packet with a tag on its unique, however it comes.
fn tagged(mut packet: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut tagger = Tagger::default();
    tagger.begin(Tag::of(b"127.0.0.1:11211"));
    let mut out = Vec::new();
    for &size in sizes.iter().cycle().take_while(|_| !sizes.is_empty()) {
        if packet.is_empty() {
            break;
        }
        let (piece, rest) = packet.split_at(size.min(packet.len()));
        tagger.write_packet(piece, &mut out);
        packet = rest;
    }
    out
}

/// Where replies end, up to the first that turns out to be none.
fn replies(expect: Expect, input: &[u8], cuts: &[usize]) -> Vec<Option<usize>> {
    let mut scanner = ReplyScanner::default();
    ends(input, cuts, |bytes| scanner.scan(expect, bytes))
}
