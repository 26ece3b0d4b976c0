//! However it is cut, a stream of RESP replies ends where it ends, and a whole array is nothing but
//! its elements.

use crate::{BYTES, Step, WHOLE, feed, split};
use cashew_protocol::resp::{Reply, ReplyScanner, Scan, plain_reply, reply};

pub fn scan(data: &[u8]) {
    let (cuts, input) = split(data);
    let whole = ends(input, WHOLE);
    assert_eq!(ends(input, &cuts), whole);
    assert_eq!(ends(input, BYTES), whole);
    let mut start = 0;
    for end in whole.into_iter().flatten() {
        look_into(&input[start..end]);
        start = end;
    }
    // Of whatever else, too, it can be asked whether it is a reply.
    look_into(input);
}

/// Where replies end, up to the first that turns out to be none.
fn ends(input: &[u8], cuts: &[usize]) -> Vec<Option<usize>> {
    let mut scanner = ReplyScanner::default();
    let mut ends = Vec::new();
    let (mut start, mut begun) = (0, 0);
    feed(input, cuts, |bytes| {
        assert_eq!(scanner.is_push(bytes), input[begun] == b'>');
        let used = match scanner.scan(bytes) {
            Scan::Complete(len) => {
                assert!(0 < len && len <= bytes.len() && scanner.at_start());
                begun = start + len;
                ends.push(Some(begun));
                len
            }
            Scan::Partial => {
                assert!(!scanner.at_start());
                bytes.len()
            }
            Scan::Invalid => {
                ends.push(None);
                return Step::End;
            }
        };
        start += used;
        Step::Used(used as u64)
    });
    ends
}

fn look_into(buf: &[u8]) {
    if let Some((plain, _)) = plain_reply(buf) {
        assert_eq!(ReplyScanner::default().scan(buf), Scan::Complete(plain.len()));
    }
    let Some(looked_into) = reply(buf) else { return };
    assert_eq!(ReplyScanner::default().scan(buf), Scan::Complete(buf.len()));
    if let Reply::Array(mut elements)
    | Reply::Map(mut elements)
    | Reply::Set(mut elements)
    | Reply::Push(mut elements) = looked_into
    {
        let (announced, mut taken, mut size) = (elements.len(), 0, 0);
        for element in &mut elements {
            taken += 1;
            size += element.len();
        }
        assert_eq!(taken, announced);
        assert!(size < buf.len());
    }
}
