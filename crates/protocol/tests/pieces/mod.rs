//! Input that arrives in pieces, as a connection gives it to a parser. The fuzz targets use it, too.
#![allow(dead_code, unreachable_pub, reason = "each user has its own part, and one exports it")]

use cashew_protocol::memcached::Scan;

/// What was made of what has arrived and is not used yet.
pub enum Step {
    /// So many bytes are used; those of them that have not arrived are dropped as they come.
    Used(u64),
    /// More is needed first.
    Wait,
    /// The rest does not count.
    End,
}

/// Gives `input` to `step` in pieces of the sizes `cuts`, over and over; none of them is 0.
pub fn feed(input: &[u8], cuts: &[usize], mut step: impl FnMut(&[u8]) -> Step) {
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
            match step(&input[start..arrived]) {
                Step::Used(len) => {
                    assert!(len > 0, "this would never end");
                    swallow = len;
                }
                Step::Wait => break,
                Step::End => return,
            }
        }
    }
}

/// Where memcached's replies end in `input`; `None` where one turned out invalid.
pub fn ends(
    input: &[u8],
    cuts: &[usize],
    mut scan: impl FnMut(&[u8]) -> Scan,
) -> Vec<Option<usize>> {
    let (mut ends, mut at) = (Vec::new(), 0);
    feed(input, cuts, |bytes| {
        let used = match scan(bytes) {
            Scan::Complete(len) => {
                assert!(0 < len && len <= bytes.len());
                ends.push(Some(at + len));
                len
            }
            Scan::Partial => bytes.len(),
            Scan::Invalid => {
                ends.push(None);
                return Step::End;
            }
        };
        at += used;
        Step::Used(used as u64)
    });
    ends
}
