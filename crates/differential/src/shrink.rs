//! Finds the smallest input that still shows a mismatch.

use crate::case::{Case, Request};

/// Tries smaller sequences of cases as long as `shows` confirms the mismatch, with a limit of
/// tries.
pub(crate) fn shrunk(
    mut cases: Vec<Case>,
    tries: usize,
    mut shows: impl FnMut(&[Case]) -> bool,
) -> Vec<Case> {
    let mut left = tries;
    let mut shows = move |cases: &[Case]| {
        left = left.saturating_sub(1);
        left > 0 && !cases.is_empty() && shows(cases)
    };
    if cases.len() > 1 {
        let alone = cases[cases.len() - 1..].to_vec();
        if shows(&alone) {
            cases = alone;
        }
    }
    without_pieces(&mut cases, &mut |cases| shows(cases));
    for at in 0..cases.len() {
        let mut one = cases[at].clone();
        let quiet = Case { accompanied: false, ..one.clone() };
        if quiet != one && shows(&replaced(&cases, at, &quiet)) {
            one = quiet;
        }
        let plain = Case { resp3: false, ..one.clone() };
        if plain != one && shows(&replaced(&cases, at, &plain)) {
            one = plain;
        }
        cases[at] = one.clone();
        without_pieces(&mut one.requests, &mut |requests| {
            shows(&replaced(&cases, at, &Case { requests: requests.to_vec(), ..cases[at].clone() }))
        });
        cases[at] = one.clone();
        for number in 0..one.requests.len() {
            let with = |request: Request, cases: &[Case]| {
                let mut case = cases[at].clone();
                case.requests[number] = request;
                replaced(cases, at, &case)
            };
            match one.requests[number].clone() {
                Request::Raw(mut bytes) => {
                    without_pieces(&mut bytes, &mut |bytes| {
                        shows(&with(Request::Raw(bytes.to_vec()), &cases))
                    });
                    cases = with(Request::Raw(bytes), &cases);
                }
                Request::Words(mut words) => {
                    without_pieces(&mut words, &mut |words| {
                        shows(&with(Request::Words(words.to_vec()), &cases))
                    });
                    for word in 0..words.len() {
                        let mut shorter = words[word].clone();
                        without_pieces(&mut shorter, &mut |shorter| {
                            let mut words = words.clone();
                            words[word] = shorter.to_vec();
                            shows(&with(Request::Words(words), &cases))
                        });
                        words[word] = shorter;
                    }
                    cases = with(Request::Words(words), &cases);
                }
            }
        }
    }
    cases
}

fn replaced(cases: &[Case], at: usize, case: &Case) -> Vec<Case> {
    let mut cases = cases.to_vec();
    cases[at] = case.clone();
    cases
}

/// Removes smaller and smaller pieces of a list.
fn without_pieces<T: Clone>(list: &mut Vec<T>, shows: &mut dyn FnMut(&[T]) -> bool) {
    let mut size = list.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < list.len() && list.len() > 1 {
            let end = (at + size).min(list.len());
            let mut fewer = list.clone();
            fewer.drain(at..end);
            match !fewer.is_empty() && shows(&fewer) {
                true => *list = fewer,
                false => at = end,
            }
        }
        size = if size == 1 { 0 } else { size.div_ceil(2) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(bytes: &[u8]) -> Case {
        let requests = vec![Request::Raw(bytes.to_vec())];
        Case { requests, resp3: true, accompanied: true, cuts: 1 }
    }

    #[test]
    fn only_what_shows_it_is_left() {
        let cases = vec![raw(b"one"), raw(b"needed first"), raw(b"three"), raw(b"the last one")];
        let least = shrunk(cases, 10_000, |cases| {
            let all: Vec<Vec<u8>> = cases.iter().map(Case::bytes).collect();
            let has = |word: &[u8]| {
                all.iter().any(|one| one.windows(word.len()).any(|part| part == word))
            };
            has(b"need") && has(b"last")
        });
        let bytes: Vec<Vec<u8>> = least.iter().map(Case::bytes).collect();
        assert_eq!(bytes, [b"need".to_vec(), b"last".to_vec()]);
        assert!(least.iter().all(|case| !case.resp3 && !case.accompanied));
    }

    #[test]
    fn tries_are_bounded() {
        let mut tries = 0;
        shrunk(vec![raw(&[b'x'; 10_000])], 50, |_| {
            tries += 1;
            true
        });
        assert!(tries <= 50);
    }
}
