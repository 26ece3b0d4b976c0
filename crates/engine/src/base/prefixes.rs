//! The prefixes of keys that a pool's requests are counted by.

/// One of a pool's prefixes, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PrefixNumber(u8);

impl PrefixNumber {
    pub(crate) const NONE: Self = Self(0);

    /// By its place in the configuration.
    pub(crate) fn new(at: usize) -> Self {
        Self(u8::try_from(at + 1).unwrap_or(0))
    }

    /// The number that stands in the place of this one.
    pub(crate) fn of(self, numbers: &[Self]) -> Self {
        self.index().and_then(|at| numbers.get(at)).copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }
}

/// A pool's prefixes, as they are looked for in keys.
#[derive(Default)]
pub(crate) struct Prefixes {
    texts: Vec<String>,
    /// Longest first, so that the first that fits is the one.
    starts: Vec<Start>,
}

/// The first bytes of a prefix: few keys that have them do not have it all.
#[derive(Clone, Copy)]
struct Start {
    word: u64,
    /// Of those bytes in a word that are the prefix's.
    mask: u64,
    /// Of the whole prefix.
    len: u8,
    number: PrefixNumber,
}

impl Prefixes {
    pub(crate) fn new(texts: &[String]) -> Self {
        let mut starts: Vec<Start> = texts
            .iter()
            .enumerate()
            .map(|(at, text)| {
                let mask = word(&[0xff; size_of::<u64>()][..text.len().min(size_of::<u64>())]);
                let len = u8::try_from(text.len()).unwrap_or(u8::MAX);
                Start { word: word(text.as_bytes()), mask, len, number: PrefixNumber::new(at) }
            })
            .collect();
        starts.sort_by_key(|start| std::cmp::Reverse(start.len));
        Self { texts: texts.to_vec(), starts }
    }

    /// In the order of the configuration.
    pub(crate) fn texts(&self) -> &[String] {
        &self.texts
    }

    /// The longest that a key begins with.
    pub(crate) fn find(&self, key: &[u8]) -> PrefixNumber {
        let fits = |start: &&Start| {
            let text = start.number.index().and_then(|at| self.texts.get(at));
            text.is_some_and(|text| key.starts_with(text.as_bytes()))
        };
        self.starts.iter().find(fits).map_or(PrefixNumber::NONE, |start| start.number)
    }

    /// The same, if a word of the key is enough to know. It calls nothing.
    #[inline(always)]
    pub(crate) fn find_at_once(&self, key: &[u8]) -> Option<PrefixNumber> {
        if self.starts.is_empty() {
            return Some(PrefixNumber::NONE);
        }
        let first = u64::from_le_bytes(*key.first_chunk()?);
        for start in &self.starts {
            if (first ^ start.word) & start.mask == 0 {
                return (usize::from(start.len) <= size_of::<u64>()).then_some(start.number);
            }
        }
        Some(PrefixNumber::NONE)
    }
}

/// The first bytes, with zeros behind a shorter text.
#[inline(always)]
fn word(text: &[u8]) -> u64 {
    match text.first_chunk() {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => text.iter().rev().fold(0, |word, &byte| (word << 8) | u64::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_that_fits_is_found() {
        let texts = ["a", "ab", "abcdefgh", "abcdefghi", "b\0", "abcdefghij-and-more", "é"];
        let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
        let prefixes = Prefixes::new(&texts);
        assert_eq!(prefixes.texts(), texts);
        let mut keys: Vec<Vec<u8>> = vec![b"".to_vec(), b"xab".to_vec(), b"b".to_vec(), vec![0xc3]];
        for text in &texts {
            for len in 0..=text.len() {
                let key = &text.as_bytes()[..len];
                let more: [&[u8]; 5] = [b"", b"\0", b"x", b"\xff", b"another long end"];
                keys.extend(more.map(|end| [key, end].concat()));
            }
        }
        let (mut found, mut at_once) = (0, 0);
        for key in keys {
            let fits =
                texts.iter().enumerate().filter(|(_, text)| key.starts_with(text.as_bytes()));
            let longest = fits.max_by_key(|(_, text)| text.len()).map(|(at, _)| at);
            let text = String::from_utf8_lossy(&key);
            assert_eq!(prefixes.find(&key).index(), longest, "{text:?}");
            if let Some(number) = prefixes.find_at_once(&key) {
                assert_eq!(number.index(), longest, "{text:?}");
                at_once |= longest.map_or(0, |at| 1 << at);
            }
            found |= longest.map_or(0, |at| 1 << at);
        }
        assert_eq!(found, (1 << texts.len()) - 1, "each is found once");
        assert_eq!(at_once, 0b101_0011, "those at once that are short and begin no other");
        assert_eq!(Prefixes::default().find(b"a"), PrefixNumber::NONE);
    }
}
