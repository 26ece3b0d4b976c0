//! However the input is cut, binary requests and replies are parsed alike.

mod pieces;

use cashew_protocol::Span;
use cashew_protocol::memcached::Expect;
use cashew_protocol::memcached::binary::{
    HEADER_SIZE, Opcode, Packets, Parsed, ReplyScanner, RequestHeader, RequestParser, Status,
    plain_reply, plain_request,
};
use pieces::{Step, ends, feed};
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
    /// The rest depends on when the connection ends.
    Closed(Option<Status>),
}

fn requests_of(input: &[u8], cuts: &[usize]) -> Vec<Request> {
    let mut parser = RequestParser::new(VALUE_SIZE_MAX);
    let mut requests = Vec::new();
    feed(input, cuts, |buf| {
        let used = match parser.parse(buf) {
            Parsed::Partial { need } => {
                assert!(need > buf.len());
                return Step::Wait;
            }
            Parsed::Complete { len } => {
                assert!(len <= buf.len());
                assert!(parser.value().end() == len);
                requests.push(Request::Whole {
                    len,
                    opcode: parser.opcode(),
                    quiet: parser.is_quiet(),
                    header: *parser.header(),
                    spans: [parser.extras(), parser.key(), parser.value()],
                });
                len as u64
            }
            Parsed::Reject { status, close: true, .. } => {
                requests.push(Request::Closed(Some(status)));
                return Step::End;
            }
            Parsed::Garbage => {
                requests.push(Request::Closed(None));
                return Step::End;
            }
            Parsed::Reject { len, swallow, status, .. } => {
                assert!(len <= buf.len());
                let key = (status == Status::TooLarge).then(|| parser.key().of(buf).to_vec());
                let (opaque, len) = (parser.header().opaque, len as u64 + swallow);
                requests.push(Request::Refused { status, opaque, len, key });
                len
            }
        };
        parser.reset();
        Step::Used(used)
    });
    requests
}

fn replies_of(expect: Expect, input: &[u8], cuts: &[usize]) -> Vec<Option<usize>> {
    let mut scanner = ReplyScanner::default();
    ends(input, cuts, |bytes| scanner.scan(expect, bytes))
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
