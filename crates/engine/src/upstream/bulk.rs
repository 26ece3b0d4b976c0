//! Which values are so large that they would hold others up.

pub(crate) use crate::base::mark::Mark;

/// Requests and replies of at least this many bytes take a lane of their own.
pub(crate) const BULK_SIZE: usize = 256 * 1024;

const MARKS: usize = 1024;

/// Remembers keys whose last reply was large, so that the next one takes the bulk lane. It
/// forgets: a key is known by 32 bits, and a newer one may take its place. Both only cost a detour
/// or a wait.
pub(crate) struct LargeReplies {
    marks: Box<[Mark; MARKS]>,
    count: usize,
}

impl LargeReplies {
    pub(crate) fn new() -> Self {
        Self { marks: Box::new([Mark::default(); MARKS]), count: 0 }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn contains(&self, mark: Mark) -> bool {
        self.count > 0 && self.marks[mark.place(MARKS)] == mark
    }

    pub(crate) fn learn(&mut self, mark: Mark, is_large: bool) {
        if mark == Mark::default() {
            return;
        }
        let place = &mut self.marks[mark.place(MARKS)];
        let was_used = *place != Mark::default();
        if is_large {
            *place = mark;
            self.count += usize::from(!was_used);
        } else if *place == mark {
            *place = Mark::default();
            self.count -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_learnt_and_forgotten() {
        let mut replies = LargeReplies::new();
        let keys: Vec<String> = (0..100).map(|n| format!("some:key:{n}")).collect();
        for key in &keys {
            assert!(!replies.contains(Mark::of(key.as_bytes())));
        }
        replies.learn(Mark::of(b"some:key:7"), true);
        let known: Vec<_> =
            keys.iter().filter(|key| replies.contains(Mark::of(key.as_bytes()))).collect();
        assert_eq!(known, ["some:key:7"]);
        replies.learn(Mark::of(b"some:key:7"), false);
        assert!(!replies.contains(Mark::of(b"some:key:7")));
        assert_eq!(replies.count, 0);
    }

    #[test]
    fn short_keys_have_marks_of_their_own() {
        let marks: Vec<_> = [&b""[..], b"a", b"b", b"ab", b"ba"].map(Mark::of).to_vec();
        for (at, mark) in marks.iter().enumerate() {
            assert!(!marks[..at].contains(mark));
        }
    }
}
