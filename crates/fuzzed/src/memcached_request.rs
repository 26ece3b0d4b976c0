//! However it is cut, a stream of memcached requests is read as the same requests; and uniques that
//! were told with a server's tag come back to that server as its own.

use crate::{BYTES, Step, WHOLE, feed, split};
use cashew_protocol::memcached::{
    COMMAND_SIZE_MAX, Parsed, RequestParser, Tag, Tagger, Uniques, retagged_header, write_untagged,
};

/// Small enough for values to be refused.
const VALUE_SIZE_MAX: u64 = 64;
/// Numbers below it have no tag.
const TAGGED_MIN: u64 = 1 << 40;

pub fn read(data: &[u8]) {
    let (cuts, input) = split(data);
    let whole = requests(input, WHOLE);
    assert_eq!(requests(input, &cuts), whole);
    assert_eq!(requests(input, BYTES), whole);
    if let Some((unique, identity)) = data.split_first_chunk() {
        let unique = u64::from_be_bytes(*unique);
        for shift in [0, 24, 63] {
            come_back(unique >> shift, identity);
        }
    }
}

/// A unique that the server of this identity tells a client.
fn come_back(unique: u64, identity: &[u8]) {
    let tag = Tag::of(identity);
    let other = Tag::of(&[identity, b"x"].concat());
    let told = |reply: &str| {
        let mut out = Vec::new();
        let mut tagger = Tagger::default();
        tagger.begin(tag);
        tagger.write_text(reply.as_bytes(), &mut out);
        String::from_utf8(out).unwrap()
    };
    let value = told(&format!("VALUE k 0 1 {unique}\r\nx\r\nEND\r\n"));
    let (line, rest) = value.split_once("\r\n").unwrap();
    assert_eq!(rest, "x\r\nEND\r\n");
    let seen = line.strip_prefix("VALUE k 0 1 ").unwrap();
    assert_eq!(told(&format!("HD k{unique} c{unique}\r\n")), format!("HD k{unique} c{seen}\r\n"));
    let requests = ["cas k 0 0 1 UNIQUE\r\nx\r\n", "ms k 1 I CUNIQUE\r\nx\r\n", "md k CUNIQUE\r\n"];
    for request in requests {
        let with = |number: &str| request.replace("UNIQUE", number).into_bytes();
        let asked = with(seen);
        let parser = parsed(&asked);
        // What a server calls its tag and a little is told as a little, which `I` takes for a number
        // of before.
        let told_small = seen.parse::<u64>().unwrap() < TAGGED_MIN;
        if !(told_small && request.contains(" I ")) {
            assert_eq!(untagged(&parser, &asked, tag), with(&unique.to_string()));
        }
        // At another server it is no number that this one has given.
        let elsewhere = String::from_utf8(untagged(&parser, &asked, other)).unwrap();
        let (start, end) = request.split_once("UNIQUE").unwrap();
        let number = elsewhere.strip_prefix(start).unwrap().strip_suffix(end).unwrap();
        let number: u64 = number.parse().unwrap();
        assert!(number >= TAGGED_MIN || unique == 0 || unique >= TAGGED_MIN || tag == other);
    }
    let mut header = [0x81; 24];
    header[16..].copy_from_slice(&unique.to_be_bytes());
    assert_eq!(retagged_header(tag, &retagged_header(tag, &header)), header);
}

/// The parser of a request that is complete.
fn parsed(request: &[u8]) -> RequestParser {
    let mut parser = RequestParser::new(VALUE_SIZE_MAX);
    assert_eq!(parser.parse(request), Parsed::Complete { len: request.len() });
    parser
}

fn untagged(parser: &RequestParser, request: &[u8], tag: Tag) -> Vec<u8> {
    let mut out = Vec::new();
    let used = write_untagged(parser, request, None, tag, &mut out);
    out.extend_from_slice(&request[used..]);
    out
}

/// With the tag off its uniques a request is the same but for these, and taking it off again puts it
/// on.
fn retag(parser: &RequestParser, request: &[u8]) {
    let tag = Tag::of(b"127.0.0.1:11211");
    let once = untagged(parser, request, tag);
    let cas_tags = Uniques::of(parser, request);
    assert!(cas_tags.named || once == request);
    // Numbers may become longer than a line has room for.
    if parser.line().of(request).len() > COMMAND_SIZE_MAX / 2 {
        return;
    }
    let again = parsed(&once);
    assert_eq!((again.verb(), Uniques::of(&again, &once)), (parser.verb(), cas_tags));
    let data = |parser: &RequestParser, request: &[u8]| {
        parser.data().map(|data| data.of(request).to_vec())
    };
    assert_eq!(data(&again, &once), data(parser, request));
    let twice = untagged(&again, &once, tag);
    assert_eq!(untagged(&parsed(&twice), &twice, tag), once);
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
                retag(&parser, &buf[..len]);
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
