//! However a stream is cut, the parsers give the same result.

mod pieces;

use cashew_protocol::resp::{
    Parsed, ProtocolError, Reply, ReplyScanner, RequestParser, Scan, encode, plain_reply,
    reply as read,
};
use pieces::{Step, feed};
use proptest::prelude::*;

/// Small enough that generated streams reach the limit.
const REQUEST_SIZE_MAX: usize = 200;

#[derive(Debug, PartialEq)]
enum Outcome {
    Request { len: usize, args: Vec<Vec<u8>>, encoded: Option<Vec<u8>> },
    Invalid(ProtocolError),
}

fn requests(stream: &[u8], cuts: &[usize]) -> Vec<Outcome> {
    let mut parser = RequestParser::default();
    let mut outcomes = Vec::new();
    feed(stream, cuts, |buf| match parser.parse(buf, REQUEST_SIZE_MAX) {
        Parsed::Complete { len } => {
            assert!(len <= buf.len());
            let encoded = parser.inline_encoded().map(<[u8]>::to_vec);
            let text = encoded.as_deref().unwrap_or(buf);
            let args = parser.args().iter().map(|arg| arg.of(text).to_vec()).collect();
            outcomes.push(Outcome::Request { len, args, encoded });
            parser.reset();
            Step::Used(len as u64)
        }
        Parsed::Partial { need } => {
            assert!(need > buf.len() && need <= REQUEST_SIZE_MAX, "{need} {}", buf.len());
            Step::Wait
        }
        Parsed::Invalid(error) => {
            outcomes.push(Outcome::Invalid(error));
            Step::End
        }
    });
    outcomes
}

/// Ends of the replies and pushes in `stream`, which of them are pushes, and whether it stays valid.
fn replies(stream: &[u8], cuts: &[usize]) -> (Vec<(usize, bool)>, bool) {
    let mut scanner = ReplyScanner::default();
    let (mut ends, mut at, mut is_valid) = (Vec::new(), 0, true);
    feed(stream, cuts, |bytes| {
        let is_push = scanner.is_push(bytes);
        let used = match scanner.scan(bytes) {
            Scan::Complete(len) => {
                assert!(scanner.at_start());
                ends.push((at + len, is_push));
                len
            }
            Scan::Partial => {
                assert!(!scanner.at_start() && scanner.is_push(b"") == is_push);
                bytes.len()
            }
            Scan::Invalid => {
                is_valid = false;
                return Step::End;
            }
        };
        at += used;
        Step::Used(used as u64)
    });
    (ends, is_valid)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..12usize, 1..8)
}

/// Bytes that likely include the grammar's own characters.
fn noise() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b"*$+-:_#,(!=%~|>?;.\r\n0123 \"'\\x".to_vec()),
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
    let value = || prop::collection::vec(any::<u8>(), 0..30);
    let scalar = prop_oneof![
        "[+-][a-z\r]{0,8}\r\n".prop_map(String::into_bytes),
        "[,(#][a-z0-9.-]{0,8}\r\n".prop_map(String::into_bytes),
        any::<i64>().prop_map(|value| format!(":{value}\r\n").into_bytes()),
        value().prop_map(|value| string("$", &value)),
        value().prop_map(|value| string("!", &value)),
        value().prop_map(|value| string("=", &value)),
        prop::collection::vec(value(), 0..3).prop_map(|chunks| {
            let full = chunks.iter().filter(|chunk| !chunk.is_empty());
            let chunks: Vec<u8> = full.flat_map(|chunk| string(";", chunk)).collect();
            [b"$?\r\n", chunks.as_slice(), b";0\r\n"].concat()
        }),
        Just(b"$-1\r\n".to_vec()),
        Just(b"*-1\r\n".to_vec()),
        Just(b"_\r\n".to_vec()),
    ];
    scalar.prop_recursive(6, 40, 6, |element| {
        let elements = prop::collection::vec(element.clone(), 0..6);
        let attributes = prop::collection::vec(element, 0..3);
        (aggregate(elements), prop::option::of(attributes)).prop_map(|(aggregate, attributes)| {
            let Some(mut attributes) = attributes else { return aggregate };
            attributes.truncate(attributes.len() & !1);
            let header = format!("|{}\r\n", attributes.len() / 2);
            [header.as_bytes(), &attributes.concat(), &aggregate].concat()
        })
    })
}

fn aggregate(elements: impl Strategy<Value = Vec<Vec<u8>>>) -> impl Strategy<Value = Vec<u8>> {
    let kind = prop::sample::select(vec!["*", "~", "%", "*?", "~?", "%?"]);
    (kind, elements).prop_map(|(kind, mut elements)| {
        if kind.starts_with('%') {
            elements.truncate(elements.len() & !1);
        }
        let (len, end) = match kind {
            "%" => ((elements.len() / 2).to_string(), ""),
            "*" | "~" => (elements.len().to_string(), ""),
            _ => (String::new(), ".\r\n"),
        };
        [format!("{kind}{len}\r\n").as_bytes(), &elements.concat(), end.as_bytes()].concat()
    })
}

fn string(kind: &str, value: &[u8]) -> Vec<u8> {
    [format!("{kind}{}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat()
}

fn push() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(reply(), 0..4).prop_map(|elements| {
        let header = format!(">{}\r\n", elements.len());
        [header.as_bytes(), &elements.concat()].concat()
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
        parts in prop::collection::vec(prop_oneof![4 => reply(), 1 => push()], 1..6),
        cuts in cuts(),
    ) {
        let ends: Vec<(usize, bool)> = parts
            .iter()
            .scan(0, |end, part| {
                *end += part.len();
                Some((*end, part.starts_with(b">")))
            })
            .collect();
        let stream = parts.concat();
        for cuts in [&[usize::MAX], cuts.as_slice(), &[1]] {
            prop_assert_eq!(replies(&stream, cuts), (ends.clone(), true));
        }
    }

    /// The fast parser and the scanner agree.
    #[test]
    fn a_plain_reply_is_a_reply(
        part in prop_oneof![4 => reply(), 1 => push(), 1 => noise()],
        rest in noise(),
    ) {
        let stream = [part.as_slice(), &rest].concat();
        if let Some((plain, behind)) = plain_reply(&stream) {
            let mut scanner = ReplyScanner::default();
            prop_assert!(!scanner.is_push(&stream));
            prop_assert_eq!(scanner.scan(&stream), Scan::Complete(plain.len()));
            prop_assert_eq!(&[plain, behind].concat(), &stream);
        }
    }

    /// A whole reply is its header and its elements, if it is not a string in chunks.
    #[test]
    fn a_reply_is_its_elements(part in reply()) {
        match read(&part) {
            Some(
                Reply::Array(elements)
                | Reply::Map(elements)
                | Reply::Set(elements),
            ) => {
                let announced = elements.len();
                let elements: Vec<&[u8]> = elements.collect();
                prop_assert_eq!(elements.len(), announced);
                let end = part.strip_suffix(&elements.concat()[..]).or_else(|| {
                    part.strip_suffix(b".\r\n")?.strip_suffix(&elements.concat()[..])
                });
                prop_assert!(end.is_some_and(|start| start.ends_with(b"\r\n")));
            }
            Some(_) => prop_assert!(!part.starts_with(b">")),
            None => {
                let odd = part.windows(3).any(|window| {
                    window == b"$?\r" || matches!(window[0], b'#' | b'=')
                });
                prop_assert!(odd, "{}", part.escape_ascii());
            }
        }
    }

    #[test]
    fn noise_as_replies_does_not_depend_on_cuts(
        parts in prop::collection::vec(prop_oneof![reply(), push(), noise()], 1..4),
        cuts in cuts(),
    ) {
        let stream = parts.concat();
        let whole = replies(&stream, &[usize::MAX]);
        prop_assert_eq!(&replies(&stream, &cuts), &whole);
        prop_assert_eq!(&replies(&stream, &[1]), &whole);
    }
}
