//! A command line's words.

use memchr::memchr;

use super::KEY_SIZE_MAX;
use super::refusal::{ERROR, Refusal};
use crate::Span;

/// One word more than the longest fixed command has.
pub(super) const WORDS_MAX: usize = 8;

/// The words of a command other than the retrievals. Only the last one may be surplus, which
/// memcached ignores.
pub(super) struct Words<'a> {
    line: &'a [u8],
    spans: [Span; WORDS_MAX],
    pub(super) count: usize,
}

impl<'a> Words<'a> {
    #[inline]
    pub(super) fn new(
        line: &'a [u8],
        arity: std::ops::RangeInclusive<usize>,
    ) -> Result<Self, Refusal> {
        let mut words = Self { line, spans: [Span::default(); WORDS_MAX], count: 0 };
        let mut at = 0;
        while words.count < WORDS_MAX
            && let Some(word) = next_word(line, at)
        {
            words.spans[words.count] = word;
            words.count += 1;
            at = word.end();
        }
        if arity.contains(&words.count) { Ok(words) } else { Err(Refusal::new(ERROR)) }
    }

    pub(super) fn get(&self, index: usize) -> &'a [u8] {
        self.spans[index].of(self.line)
    }

    pub(super) fn key(&self) -> Option<Span> {
        Some(self.spans[1]).filter(|key| key.len as usize <= KEY_SIZE_MAX)
    }

    /// The last word, if it is `noreply`, with the spaces before it.
    pub(super) fn noreply(&self) -> Option<Span> {
        let last = self.count.checked_sub(1).filter(|&last| last > 0)?;
        if self.get(last) != b"noreply" {
            return None;
        }
        let start = self.spans[last - 1].end();
        Some(Span::new(start, self.spans[last].end() - start))
    }
}

/// The word that starts at or after `at`. Only spaces separate words.
#[inline]
pub fn next_word(line: &[u8], at: usize) -> Option<Span> {
    let start = at + line[at..].iter().position(|&byte| byte != b' ')?;
    let rest = &line[start..];
    let len = memchr(b' ', rest).unwrap_or(rest.len());
    Some(Span::new(start, len))
}

/// Whether there are single spaces between words, and none before or after them.
#[inline]
pub(super) fn is_tidy(line: &[u8]) -> bool {
    !line.starts_with(b" ") && !line.ends_with(b" ") && memchr::memmem::find(line, b"  ").is_none()
}

/// All words of a command line, without copying.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let mut at = 0;
    std::iter::from_fn(move || {
        let word = next_word(line, at)?;
        at = word.end();
        Some(word.of(line))
    })
}
