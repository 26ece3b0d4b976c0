//! However it is cut, a stream of memcached replies ends where it ends, and what is found in a
//! whole reply is all there is; and so are the uniques in it that get a tag.

use crate::{BYTES, WHOLE, ends, split};
use cashew_protocol::memcached::{Expect, ReplyScanner, Stats, Tag, Tagger, Values, is_error};

pub fn scan(data: &[u8]) {
    let (cuts, input) = split(data);
    let expects = [Expect::Line, Expect::Values, Expect::Meta, Expect::Fenced, Expect::Stats];
    for expect in expects {
        let whole = replies(expect, input, WHOLE);
        assert_eq!(replies(expect, input, &cuts), whole);
        assert_eq!(replies(expect, input, BYTES), whole);
        if let (Expect::Values, [Some(end), ..]) = (expect, whole.as_slice()) {
            let mut blocks = Values::new(&input[..*end]);
            while blocks.next().is_some() {}
            assert!(blocks.rest() == b"END\r\n" || is_error(blocks.rest()));
        }
        if let (Expect::Values | Expect::Meta, [Some(end), ..]) = (expect, whole.as_slice()) {
            let reply = &input[..*end];
            let once = tagged(reply, WHOLE);
            assert_eq!(tagged(reply, &cuts), once);
            assert_eq!(tagged(reply, BYTES), once);
            // To put it on again is to take it off.
            assert_eq!(tagged(&tagged(&once, WHOLE), WHOLE), once);
        }
        if let (Expect::Stats, [Some(end), ..]) = (expect, whole.as_slice()) {
            let mut stats = Stats::new(&input[..*end]);
            while stats.next().is_some() {}
            assert!(stats.rest().split(|&byte| byte == b'\n').count() <= 2);
        }
    }
}

/// A reply with a tag on its uniques, however it comes.
fn tagged(mut reply: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut tagger = Tagger::default();
    tagger.begin(Tag::of(b"127.0.0.1:11211"));
    let mut out = Vec::new();
    for &size in sizes.iter().cycle().take_while(|_| !sizes.is_empty()) {
        if reply.is_empty() {
            break;
        }
        let (piece, rest) = reply.split_at(size.min(reply.len()));
        tagger.write_text(piece, &mut out);
        reply = rest;
    }
    out
}

/// Where replies end, up to the first that turns out to be none.
fn replies(expect: Expect, input: &[u8], cuts: &[usize]) -> Vec<Option<usize>> {
    let mut scanner = ReplyScanner::default();
    ends(input, cuts, |bytes| scanner.scan(expect, bytes))
}
