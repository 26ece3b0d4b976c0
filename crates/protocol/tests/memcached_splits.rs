//! However the input is cut, memcached requests and replies are parsed alike.

mod pieces;

use cashew_protocol::Span;
use cashew_protocol::memcached::{
    Expect, Meta, Parsed, ReplyScanner, RequestParser, Stats, Values, Verb, is_error,
};
use pieces::{Step, ends, feed};
use proptest::prelude::*;

const VALUE_SIZE_MAX: u64 = 40;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn requests(
        input in prop::collection::vec(request_piece(), 0..12).prop_map(|pieces| pieces.concat()),
        cuts in prop::collection::vec(1usize..30, 1..20),
    ) {
        let whole = requests_of(&input, &[usize::MAX]);
        prop_assert_eq!(&requests_of(&input, &cuts), &whole);
        prop_assert_eq!(&requests_of(&input, &[1]), &whole);
    }

    #[test]
    fn replies(
        input in prop::collection::vec(reply_piece(), 0..12).prop_map(|pieces| pieces.concat()),
        expect in prop::sample::select(vec![
            Expect::Line, Expect::Values, Expect::Meta, Expect::Fenced, Expect::Stats,
        ]),
        cuts in prop::collection::vec(1usize..30, 1..20),
    ) {
        let whole = replies_of(expect, &input, &[usize::MAX]);
        prop_assert_eq!(&replies_of(expect, &input, &cuts), &whole);
        prop_assert_eq!(&replies_of(expect, &input, &[1]), &whole);

        // The blocks of a whole reply are everything before its last line.
        if let (Expect::Values, [Some(end), ..]) = (expect, whole.as_slice()) {
            let mut blocks = Values::new(&input[..*end]);
            while blocks.next().is_some() {}
            prop_assert!(blocks.rest() == b"END\r\n" || is_error(blocks.rest()));
        }
        if let (Expect::Stats, [Some(end), ..]) = (expect, whole.as_slice()) {
            let mut stats = Stats::new(&input[..*end]);
            while stats.next().is_some() {}
            prop_assert!(stats.rest().split(|&byte| byte == b'\n').count() <= 2);
        }
    }
}

#[derive(Debug, PartialEq)]
enum Request {
    Whole {
        len: usize,
        verb: Verb,
        keys: Vec<Span>,
        noreply: Option<Span>,
        meta: Meta,
        line: Span,
        data: Option<Span>,
    },
    Refused {
        reply: &'static [u8],
        noreply: bool,
        len: u64,
    },
    /// The rest depends on when the connection ends.
    Closed {
        reply: &'static [u8],
    },
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
                assert!(parser.keys().iter().all(|key| key.end() <= parser.line().end()));
                requests.push(Request::Whole {
                    len,
                    verb: parser.verb(),
                    keys: parser.keys().to_vec(),
                    noreply: parser.noreply(),
                    meta: parser.meta(),
                    line: parser.line(),
                    data: parser.data(),
                });
                len as u64
            }
            Parsed::Reject { reply, close: true, .. } => {
                requests.push(Request::Closed { reply });
                return Step::End;
            }
            Parsed::Reject { len, swallow, reply, noreply, .. } => {
                assert!(len <= buf.len());
                let len = len as u64 + swallow;
                requests.push(Request::Refused { reply, noreply, len });
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

fn request_piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::sample::select(vec![
            "get ", "gets ", "gat ", "set ", "cas ", "add ", "delete ", "incr ", "touch ", "ms ",
            "flush_all", "verbosity ", "version", "quit", "a ", "key ", "0 ", "1 ", "5 ", "39 ",
            "50 ", "2147483648 ", "-1 ", "noreply", " ", "\r\n", "\r\n", "\n", "\r", "\0", "hello",
            "HTTP/", "mg ", "md ", "ma ", "me ", "mn", "b ", "q ", "stats ", "lru ", "watch ",
        ]).prop_map(|piece| piece.as_bytes().to_vec()),
        4 => prop::sample::select(vec![
            "get a bc\r\n", "set a 0 0 5\r\nhello\r\n", "set a 0 0 5 noreply\r\nhello\r\n",
            "set a 0 0 50\r\n", "cas a 1 2 3 4\r\nxyz\r\n", "set a 0 0 1\r\nxyz\r\n",
            "delete a noreply\r\n", "incr a 1\n", "gats 1 a b c\r\n",
            "mg Zm9v b q k\r\n", "ms a 5 q\r\nhello\r\n", "ms a 50\r\n", "lru tune 1 noreply\r\n",
        ]).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..60),
        1 => (1usize..3000).prop_map(|len| vec![b'k'; len]),
    ]
}

fn reply_piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::sample::select(vec![
            "VALUE a 0 5\r\nhello\r\n", "VALUE b\r 7 0 9\r\n\r\n", "END\r\n", "ERROR\r\n",
            "SERVER_ERROR x y\r\n", "STORED\r\n", "CLIENT_ERROR z\r\n",
            "HD O1\r\n", "EN\r\n", "MN\r\n", "VA 4 f0\r\nMN\r\n\r\n", "VA 0\r\n\r\n", "STAT a b\r\n",
            "ITEM a [1 b; 2 s]\r\n", "RESET\r\n",
        ]).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::sample::select(vec![
            "VALUE ", "a ", "0 ", "12", "\r\n", "\n", "\r", "END", "ERR", " ", "SERVER_ERROR", "VA", "VA 2", "MN", "STAT", "STAT ", "ITEM ",
        ]).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..40),
        1 => (1usize..9000).prop_map(|len| vec![b'x'; len]),
    ]
}
