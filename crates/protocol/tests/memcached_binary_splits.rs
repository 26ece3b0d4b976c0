//! However the input is cut, binary requests and replies are found to be the same.

use cashew_protocol::Span;
use cashew_protocol::memcached::binary::{
    HEADER_SIZE, Opcode, Packets, Parsed, ReplyScanner, RequestHeader, RequestParser, Status,
    plain_reply, plain_request,
};
use cashew_protocol::memcached::{Expect, Scan};
use proptest::prelude::*;

const VALUE_SIZE_MAX: u64 = 40;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn requests(
        input in prop::collection::vec(packet(0x80), 0..8).prop_map(|pieces| pieces.concat()),
        cuts in prop::collection::vec(1usize..60, 1..20),
    ) {
        let whole = requests_of(&input, &[usize::MAX]);
        prop_assert_eq!(&requests_of(&input, &cuts), &whole);
        prop_assert_eq!(&requests_of(&input, &[1]), &whole);

        if let Some(plain) = plain_request(&input) {
            let mut parser = RequestParser::default();
            prop_assert_eq!(parser.parse(&input), Parsed::Complete { len: plain.bytes.len() });
            prop_assert_eq!(parser.key().of(&input), plain.key);
            prop_assert!(parser.opcode().has_key() && !parser.is_quiet());
            prop_assert_eq!(parser.opcode().retrieves(), plain.retrieves);
            prop_assert_eq!(parser.opcode().byte(), plain.opcode);
            prop_assert_eq!(parser.header().opaque, plain.opaque);
            prop_assert_eq!(plain.rest, &input[plain.bytes.len()..]);
        }
    }

    #[test]
    fn replies(
        input in prop::collection::vec(packet(0x81), 0..8).prop_map(|pieces| pieces.concat()),
        expect in prop::sample::select(vec![Expect::Packet, Expect::Packets]),
        cuts in prop::collection::vec(1usize..60, 1..20),
    ) {
        let whole = replies_of(expect, &input, &[usize::MAX]);
        prop_assert_eq!(&replies_of(expect, &input, &cuts), &whole);
        prop_assert_eq!(&replies_of(expect, &input, &[1]), &whole);

        if let [Some(end), ..] = whole.as_slice() {
            let mut packets = Packets::new(&input[..*end]);
            let found: Vec<_> = packets.by_ref().collect();
            prop_assert_eq!(packets.rest(), b"");
            prop_assert!(found.len() == 1 || expect == Expect::Packets);
            let last = found.last().expect("a reply has a packet");
            let is_last = last.bytes.len() == HEADER_SIZE || last.status != 0;
            prop_assert!(is_last || expect == Expect::Packet);
            if expect == Expect::Packet {
                prop_assert_eq!(plain_reply(&input), Some(input.split_at(*end)));
            }
        }
    }
}

#[derive(Debug, PartialEq)]
enum Request {
    Whole {
        len: usize,
        opcode: Opcode,
        quiet: bool,
        header: RequestHeader,
        spans: [Span; 3],
    },
    Refused {
        status: Status,
        opaque: [u8; 4],
        len: u64,
        key: Option<Vec<u8>>,
    },
    /// The rest depends on when the connection goes.
    Closed(Option<Status>),
}

fn requests_of(input: &[u8], cuts: &[usize]) -> Vec<Request> {
    let mut parser = RequestParser::new(VALUE_SIZE_MAX);
    let mut requests = Vec::new();
    let (mut start, mut arrived) = (0, 0);
    let mut swallow = 0;
    for cut in cuts.iter().cycle() {
        if arrived == input.len() {
            break;
        }
        arrived = arrived.saturating_add(*cut).min(input.len());
        loop {
            let dropped = swallow.min((arrived - start) as u64);
            start += dropped as usize;
            swallow -= dropped;
            if start == arrived {
                break;
            }
            let buf = &input[start..arrived];
            match parser.parse(buf) {
                Parsed::Partial { need } => {
                    assert!(need > buf.len());
                    break;
                }
                Parsed::Complete { len } => {
                    assert!(parser.value().end() == len);
                    requests.push(Request::Whole {
                        len,
                        opcode: parser.opcode(),
                        quiet: parser.is_quiet(),
                        header: *parser.header(),
                        spans: [parser.extras(), parser.key(), parser.value()],
                    });
                    start += len;
                }
                Parsed::Reject { status, close: true, .. } => {
                    requests.push(Request::Closed(Some(status)));
                    return requests;
                }
                Parsed::Garbage => {
                    requests.push(Request::Closed(None));
                    return requests;
                }
                Parsed::Reject { len, swallow: more, status, .. } => {
                    assert!(len <= buf.len());
                    let key = (status == Status::TooLarge).then(|| parser.key().of(buf).to_vec());
                    let opaque = parser.header().opaque;
                    requests.push(Request::Refused { status, opaque, len: len as u64 + more, key });
                    start += len;
                    swallow = more;
                }
            }
            parser.reset();
        }
    }
    requests
}

/// Where replies end in `input`; `None` where one turned out invalid.
fn replies_of(expect: Expect, input: &[u8], cuts: &[usize]) -> Vec<Option<usize>> {
    let mut scanner = ReplyScanner::default();
    let mut ends = Vec::new();
    let mut start = 0;
    for cut in cuts.iter().cycle() {
        if start == input.len() {
            break;
        }
        let end = start.saturating_add(*cut).min(input.len());
        while start < end {
            match scanner.scan(expect, &input[start..end]) {
                Scan::Complete(len) => {
                    assert!(len > 0);
                    start += len;
                    ends.push(Some(start));
                }
                Scan::Partial => start = end,
                Scan::Invalid => {
                    ends.push(None);
                    return ends;
                }
            }
        }
    }
    ends
}

/// A packet whose sizes are mostly right.
fn packet(magic: u8) -> impl Strategy<Value = Vec<u8>> {
    let magic = prop_oneof![30 => Just(magic), 1 => any::<u8>()];
    let opcode = prop_oneof![8 => 0u8..0x26, 1 => any::<u8>()];
    let extras = prop::sample::select(vec![0usize, 0, 0, 4, 8, 20, 1]);
    let key = prop::sample::select(vec![0usize, 1, 1, 3, 3, 250, 251]);
    let value = prop::sample::select(vec![0usize, 0, 0, 1, 5, 39, 41]);
    let status = prop::sample::select(vec![0u8, 0, 1]);
    (magic, opcode, extras, key, value, status, -1i32..12).prop_map(
        |(magic, opcode, extras, key, value, status, slip)| {
            let body = extras + key + value;
            let mut bytes = vec![b'x'; HEADER_SIZE + body];
            bytes[..2].copy_from_slice(&[magic, opcode]);
            bytes[2..4].copy_from_slice(&(key as u16).to_be_bytes());
            bytes[4..8].copy_from_slice(&[extras as u8, 0, 0, status]);
            let told = if slip == -1 { body.saturating_sub(1) } else { body };
            bytes[8..12].copy_from_slice(&(told as u32).to_be_bytes());
            bytes
        },
    )
}
