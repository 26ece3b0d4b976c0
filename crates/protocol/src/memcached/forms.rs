//! The forms of administrative commands, and of `stats`.
//!
//! Servers parse these loosely, and each version differently: they look for `noreply` after words
//! that they ignore, and take the start of a word for the word. So a line is sent only in a form
//! that is known here, word by word.

use super::number::{is_decimal, signed32, unsigned32};
use super::refusal::*;

/// Most words of a form, and one more for `noreply`.
pub(super) const WORDS_MAX: usize = 7;

#[derive(Clone, Copy)]
enum Word {
    Is(&'static [u8]),
    Unsigned,
    Signed,
    Decimal,
    Any,
    /// Slab classes with commas between them, or a word for all.
    Classes,
}

struct Form {
    words: &'static [Word],
    /// The error for a word that is not a number.
    bad: &'static [u8],
}

use Word::{Any, Classes, Decimal, Signed, Unsigned};

const fn is(word: &'static str) -> Word {
    Word::Is(word.as_bytes())
}

const fn form(bad: &'static [u8], words: &'static [Word]) -> Form {
    Form { words, bad }
}

const ADMIN: &[Form] = &[
    form(BAD_FORMAT, &[is("slabs"), is("reassign"), Signed, Signed]),
    form(ERROR, &[is("slabs"), is("automove"), is("ratio"), Decimal]),
    form(ERROR, &[is("slabs"), is("automove"), is("freeratio"), Decimal]),
    form(BAD_FORMAT, &[is("slabs"), is("automove"), is("window"), Unsigned]),
    form(BAD_FORMAT, &[is("slabs"), is("automove"), Unsigned]),
    form(ERROR, &[is("cache_memlimit"), Unsigned]),
    form(ERROR, &[is("lru"), is("tune"), Unsigned, Unsigned, Decimal, Decimal]),
    form(ERROR, &[is("lru"), is("mode"), is("flat")]),
    form(ERROR, &[is("lru"), is("mode"), is("segmented")]),
    form(ERROR, &[is("lru"), is("temp_ttl"), Signed]),
    form(ERROR, &[is("lru_crawler"), is("enable")]),
    form(ERROR, &[is("lru_crawler"), is("disable")]),
    form(BAD_FORMAT, &[is("lru_crawler"), is("sleep"), Unsigned]),
    form(BAD_FORMAT, &[is("lru_crawler"), is("tocrawl"), Unsigned]),
    form(BAD_CLASS, &[is("lru_crawler"), is("crawl"), Classes]),
    form(ERROR, &[is("extstore"), is("free_memchunks"), Unsigned, Unsigned]),
    form(ERROR, &[is("extstore"), is("item_size"), Unsigned]),
    form(ERROR, &[is("extstore"), is("item_age"), Unsigned]),
    form(ERROR, &[is("extstore"), is("low_ttl"), Unsigned]),
    form(ERROR, &[is("extstore"), is("recache_rate"), Unsigned]),
    form(ERROR, &[is("extstore"), is("compact_under"), Unsigned]),
    form(ERROR, &[is("extstore"), is("drop_under"), Unsigned]),
    form(ERROR, &[is("extstore"), is("max_sleep"), Unsigned]),
    form(ERROR, &[is("extstore"), is("max_frag"), Decimal]),
    form(ERROR, &[is("extstore"), is("drop_unread"), Unsigned]),
    form(ERROR, &[is("refresh_certs")]),
];

const STATS: &[Form] = &[
    form(ERROR, &[is("stats"), is("settings")]),
    form(ERROR, &[is("stats"), is("items")]),
    form(ERROR, &[is("stats"), is("slabs")]),
    form(ERROR, &[is("stats"), is("sizes")]),
    form(ERROR, &[is("stats"), is("sizes_enable")]),
    form(ERROR, &[is("stats"), is("sizes_disable")]),
    form(ERROR, &[is("stats"), is("conns")]),
    // The gateway's own commands.
    form(ERROR, &[is("stats"), is("servers")]),
    form(ERROR, &[is("stats"), is("slow")]),
    form(ERROR, &[is("stats"), is("hot"), Any]),
    form(ERROR, &[is("stats"), is("hot")]),
    form(ERROR, &[is("stats"), is("route"), Any, Any]),
    form(ERROR, &[is("stats"), is("route"), Any]),
    form(ERROR, &[is("stats"), is("reset")]),
    form(ERROR, &[is("stats"), is("extstore")]),
    form(ERROR, &[is("stats"), is("proxy")]),
    form(ERROR, &[is("stats"), is("proxyfuncs")]),
    form(ERROR, &[is("stats"), is("proxybe")]),
    form(ERROR, &[is("stats"), is("detail"), is("on")]),
    form(ERROR, &[is("stats"), is("detail"), is("off")]),
    form(ERROR, &[is("stats"), is("detail"), is("dump")]),
    form(BAD_FORMAT, &[is("stats"), is("cachedump"), Unsigned, Unsigned]),
];

/// Checks that an administrative command has a known form; otherwise returns the error. `noreply`
/// is not among its words.
pub(super) fn admin(words: &[&[u8]]) -> Result<(), &'static [u8]> {
    match find(ADMIN, words, false) {
        Some(found) => found.map(|_| ()),
        None => Err(ERROR),
    }
}

/// How many words of `stats` are its form: servers ignore the others.
pub(super) fn stats(words: &[&[u8]]) -> Result<usize, &'static [u8]> {
    if words.len() == 1 {
        return Ok(1);
    }
    match (find(STATS, words, true), words[1]) {
        (Some(found), _) => found,
        (None, b"detail") => Err(DETAIL_USAGE),
        (None, b"route") => Err(ROUTE_USAGE),
        (None, b"cachedump") => Err(BAD_COMMAND_LINE),
        (None, _) => Err(ERROR),
    }
}

/// Whether all servers answer a packet for statistics of this key alike: with packets of which the
/// last one is empty, or with an error. Servers take the beginning of a known word for the word,
/// and some answer `sizes_enable` and `sizes_disable` with one packet that is not empty.
pub fn knows_statistics(key: &[u8]) -> bool {
    if key.is_empty() {
        return true;
    }
    let words: Vec<&[u8]> = [b"stats"]
        .into_iter()
        .map(|word| &word[..])
        .chain(key.split(|&byte| byte == b' '))
        .take(6)
        .collect();
    !matches!(words[1], b"sizes_enable" | b"sizes_disable") && stats(&words) == Ok(words.len())
}

/// The words of the first form that matches, or the error of their numbers.
fn find(
    forms: &[Form],
    words: &[&[u8]],
    takes_surplus: bool,
) -> Option<Result<usize, &'static [u8]>> {
    forms.iter().find_map(|form| {
        let len = form.words.len();
        let is_long = words.len() == len || (takes_surplus && words.len() > len);
        let mut pairs = form.words.iter().zip(words);
        let has_words = pairs.all(|(expected, word)| match expected {
            Word::Is(expected) => expected == word,
            _ => true,
        });
        let mut pairs = form.words.iter().zip(words);
        let mut is_good = || pairs.all(|(expected, word)| expected.takes(word));
        (is_long && has_words).then(|| if is_good() { Ok(len) } else { Err(form.bad) })
    })
}

impl Word {
    fn takes(self, word: &[u8]) -> bool {
        match self {
            Self::Is(expected) => expected == word,
            Self::Any => true,
            Self::Unsigned => unsigned32(word).is_some(),
            Self::Signed => signed32(word).is_some(),
            Self::Decimal => is_decimal(word),
            Self::Classes => {
                matches!(word, b"all" | b"hash")
                    || word.split(|&byte| byte == b',').all(|id| unsigned32(id).is_some())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<&[u8]> {
        line.split(' ').map(str::as_bytes).collect()
    }

    #[test]
    fn knows_the_forms_of_commands_that_administer() {
        for (line, expected) in [
            ("slabs automove 1", Ok(())),
            ("slabs automove noreply", Err(BAD_FORMAT)),
            ("slabs automove 0 noreply", Err(ERROR)),
            ("slabs automove", Err(ERROR)),
            ("slabs auto 1", Err(ERROR)),
            ("slabs automove ratio 0.8", Ok(())),
            ("slabs automove ratio", Err(BAD_FORMAT)),
            ("slabs reassign -1 7", Ok(())),
            ("slabs reassign a 7", Err(BAD_FORMAT)),
            ("slabs", Err(ERROR)),
            ("lru noreply", Err(ERROR)),
            ("lru tune 10 25 0.1 2.0", Ok(())),
            ("lru tune 10 25 0.1 2.0 x", Err(ERROR)),
            ("lru mode flat", Ok(())),
            ("lru mode f", Err(ERROR)),
            ("extstore noreply", Err(ERROR)),
            ("extstore max_frag 0.8", Ok(())),
            ("cache_memlimit noreply", Err(ERROR)),
            ("cache_memlimit 64", Ok(())),
            ("cache_memlimit 0x40", Err(ERROR)),
            ("refresh_certs", Ok(())),
            ("refresh_certs noreply", Err(ERROR)),
            ("lru_crawler crawl 1,2,3", Ok(())),
            ("lru_crawler crawl all", Ok(())),
            ("lru_crawler crawl 1,,2", Err(BAD_CLASS)),
            ("lru_crawler metadump all", Err(ERROR)),
            ("lru_crawler enable noreply", Err(ERROR)),
        ] {
            assert_eq!(admin(&words(line)), expected, "{line}");
        }
    }

    #[test]
    fn knows_keys_of_statistics() {
        for key in [
            "",
            "items",
            "settings",
            "reset",
            "detail on",
            "detail dump",
            "cachedump 1 100",
            "route k",
            "route k set",
        ] {
            assert!(knows_statistics(key.as_bytes()), "{key}");
        }
        for key in [
            "x",
            "resetx",
            "reset ",
            " reset",
            "reset x",
            "detail",
            "detailx",
            "detail  on",
            "route",
            "route k set x",
            "detail on x",
            "items\0",
            "sizes_enable",
            "sizes_disable",
            "cachedump",
            "cachedump 1 x",
            "items\r\nreset",
            " ",
        ] {
            assert!(!knows_statistics(key.as_bytes()), "{key:?}");
        }
    }

    #[test]
    fn knows_the_forms_of_stats() {
        for (line, expected) in [
            ("stats", Ok(1)),
            ("stats settings", Ok(2)),
            ("stats settings noreply", Ok(2)),
            ("stats s", Err(ERROR)),
            ("stats RESET", Err(ERROR)),
            ("stats noreply", Err(ERROR)),
            ("stats detail", Err(DETAIL_USAGE)),
            ("stats detail o", Err(DETAIL_USAGE)),
            ("stats detail on x", Ok(3)),
            ("stats route", Err(ROUTE_USAGE)),
            ("stats route reset", Ok(3)),
            ("stats route key set x", Ok(4)),
            ("stats cachedump 1", Err(BAD_COMMAND_LINE)),
            ("stats cachedump 1 x", Err(BAD_FORMAT)),
            ("stats cachedump 1 100 x", Ok(4)),
        ] {
            assert_eq!(stats(&words(line)), expected, "{line}");
        }
    }
}
