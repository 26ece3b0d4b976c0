//! However a stream is cut, the parsers say the same about it.

use cashew_protocol::resp::{Parsed, ProtocolError, ReplyScanner, RequestParser, Scan, encode};
use proptest::prelude::*;

/// Small enough that generated streams reach the limit.
const REQUEST_SIZE_MAX: usize = 200;

#[derive(Debug, PartialEq)]
enum Outcome {
    Request { len: usize, args: Vec<Vec<u8>>, encoded: Option<Vec<u8>> },
    Invalid(ProtocolError),
}

/// Feeds `stream` as `cuts` say (their sizes, repeated), the way a connection does.
fn requests(stream: &[u8], cuts: &[usize]) -> Vec<Outcome> {
    let mut parser = RequestParser::default();
    let (mut outcomes, mut buf) = (Vec::new(), Vec::new());
    for chunk in chunks(stream, cuts) {
        buf.extend_from_slice(chunk);
        loop {
            match parser.parse(&buf, REQUEST_SIZE_MAX) {
                Parsed::Complete { len } => {
                    let encoded = parser.inline_encoded().map(<[u8]>::to_vec);
                    let text = encoded.as_deref().unwrap_or(&buf);
                    let args = parser.args().iter().map(|arg| arg.of(text).to_vec()).collect();
                    outcomes.push(Outcome::Request { len, args, encoded });
                    parser.reset();
                    buf.drain(..len);
                }
                Parsed::Partial { need } => {
                    assert!(need > buf.len() && need <= REQUEST_SIZE_MAX, "{need} {}", buf.len());
                    break;
                }
                Parsed::Invalid(error) => {
                    outcomes.push(Outcome::Invalid(error));
                    return outcomes;
                }
            }
        }
    }
    outcomes
}

/// Ends of the replies in `stream`, and whether it stays valid.
fn replies(stream: &[u8], cuts: &[usize]) -> (Vec<usize>, bool) {
    let mut scanner = ReplyScanner::default();
    let (mut ends, mut at) = (Vec::new(), 0);
    for mut chunk in chunks(stream, cuts) {
        while !chunk.is_empty() {
            match scanner.scan(chunk) {
                Scan::Complete(len) => {
                    assert!(scanner.at_start());
                    at += len;
                    ends.push(at);
                    chunk = &chunk[len..];
                }
                Scan::Partial => {
                    assert!(!scanner.at_start());
                    at += chunk.len();
                    break;
                }
                Scan::Invalid => return (ends, false),
            }
        }
    }
    (ends, true)
}

fn chunks<'a>(mut stream: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let mut chunks = Vec::new();
    for &size in cuts.iter().cycle() {
        if stream.is_empty() {
            break;
        }
        let (chunk, rest) = stream.split_at(size.min(stream.len()));
        chunks.push(chunk);
        stream = rest;
    }
    chunks
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..12usize, 1..8)
}

/// Bytes in which the grammar's own characters are likely.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b"*$+-:\r\n0123 \"'\\x".to_vec()),
        1 => any::<u8>(),
    ];
    prop::collection::vec(byte, 0..40)
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let value = prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![
        4 => prop::collection::vec(value, 0..6).prop_map(|args| {
            let mut out = Vec::new();
            let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            encode::write_command(&mut out, &args);
            out
        }),
        2 => "[a-z \"'\\\\x4]{0,12}\r?\n".prop_map(String::into_bytes),
        1 => Just(b"*1\rx$2\rxabxx".to_vec()),
        1 => "\\*[0-9-]{1,8}\r\n".prop_map(String::into_bytes),
        1 => noise(),
    ]
}

fn reply() -> impl Strategy<Value = Vec<u8>> {
    let scalar = prop_oneof![
        "[+-][a-z\r]{0,8}\r\n".prop_map(String::into_bytes),
        any::<i64>().prop_map(|value| format!(":{value}\r\n").into_bytes()),
        prop::collection::vec(any::<u8>(), 0..30).prop_map(|value| {
            let mut out = Vec::new();
            encode::write_bulk(&mut out, &value);
            out
        }),
        Just(b"$-1\r\n".to_vec()),
        Just(b"*-1\r\n".to_vec()),
    ];
    scalar.prop_recursive(6, 40, 5, |element| {
        prop::collection::vec(element, 0..5).prop_map(|elements| {
            let mut out = Vec::new();
            encode::write_array_header(&mut out, elements.len());
            elements.iter().for_each(|element| out.extend_from_slice(element));
            out
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn requests_do_not_depend_on_cuts(
        parts in prop::collection::vec(request(), 1..6),
        cuts in cuts(),
    ) {
        let stream = parts.concat();
        let whole = requests(&stream, &[usize::MAX]);
        prop_assert_eq!(&requests(&stream, &cuts), &whole);
        prop_assert_eq!(&requests(&stream, &[1]), &whole);
    }

    #[test]
    fn noise_as_requests_does_not_depend_on_cuts(stream in noise(), cuts in cuts()) {
        let whole = requests(&stream, &[usize::MAX]);
        prop_assert_eq!(&requests(&stream, &cuts), &whole);
        prop_assert_eq!(&requests(&stream, &[1]), &whole);
    }

    #[test]
    fn replies_end_where_they_were_made_to(
        parts in prop::collection::vec(reply(), 1..6),
        cuts in cuts(),
    ) {
        let ends: Vec<usize> = parts
            .iter()
            .scan(0, |end, part| {
                *end += part.len();
                Some(*end)
            })
            .collect();
        let stream = parts.concat();
        for cuts in [&[usize::MAX], cuts.as_slice(), &[1]] {
            prop_assert_eq!(replies(&stream, cuts), (ends.clone(), true));
        }
    }

    #[test]
    fn noise_as_replies_does_not_depend_on_cuts(
        parts in prop::collection::vec(prop_oneof![reply(), noise()], 1..4),
        cuts in cuts(),
    ) {
        let stream = parts.concat();
        let whole = replies(&stream, &[usize::MAX]);
        prop_assert_eq!(&replies(&stream, &cuts), &whole);
        prop_assert_eq!(&replies(&stream, &[1]), &whole);
    }
}
