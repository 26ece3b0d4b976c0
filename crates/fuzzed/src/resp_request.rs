//! However it is cut, a stream of RESP requests is read as the same requests.

use crate::{BYTES, Step, WHOLE, feed, split};
use cashew_protocol::resp::{Parsed, RequestParser};

/// Small enough for requests to be refused.
const REQUEST_SIZE_MAX: usize = 256;

pub fn read(data: &[u8]) {
    let (cuts, input) = split(data);
    for max in [REQUEST_SIZE_MAX, usize::MAX] {
        let whole = requests(input, WHOLE, max);
        assert_eq!(requests(input, &cuts, max), whole);
        assert_eq!(requests(input, BYTES, max), whole);
    }
}

/// Each result as text, up to where the connection is closed.
fn requests(input: &[u8], cuts: &[usize], max: usize) -> Vec<String> {
    let mut parser = RequestParser::default();
    let mut requests = Vec::new();
    feed(input, cuts, |buf| match parser.parse(buf, max) {
        Parsed::Partial { need } => {
            assert!(need > buf.len() && need <= max);
            Step::Wait
        }
        Parsed::Complete { len } => {
            assert!(0 < len && len <= buf.len() && len <= max);
            let encoded = parser.inline_encoded();
            let text = encoded.unwrap_or(&buf[..len]);
            let args: Vec<_> = parser.args().iter().map(|arg| arg.of(text)).collect();
            requests.push(format!("{len} {args:?} {encoded:?}"));
            if let Some(encoded) = encoded {
                is_plain(encoded, &args);
            }
            parser.reset();
            Step::Used(len as u64)
        }
        Parsed::Invalid(error) => {
            requests.push(format!("closed {error:?}"));
            Step::End
        }
    });
    requests
}

/// What is encoded again says the same, and needs no encoding.
fn is_plain(encoded: &[u8], args: &[&[u8]]) {
    let mut parser = RequestParser::default();
    assert_eq!(parser.parse(encoded, usize::MAX), Parsed::Complete { len: encoded.len() });
    assert_eq!(parser.inline_encoded(), None);
    assert!(parser.args().iter().map(|arg| arg.of(encoded)).eq(args.iter().copied()));
}
