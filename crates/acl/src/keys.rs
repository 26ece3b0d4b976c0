//! Patterns of keys, and what may be done to the keys that match.

use cashew_protocol::redis::glob_matches;

/// What the names of the gateway's own keys begin with: copies of hot keys. Whoever may not touch all keys may touch none of
/// them, whatever the patterns, as they are copies of any key.
pub const OWN_KEYS: &[u8] = b"cashew:copy:";

/// What is done to a key, or may be done to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touch {
    pub reads: bool,
    pub writes: bool,
}

impl Touch {
    pub(crate) const ANY: Self = Self { reads: true, writes: true };

    /// From the words of COMMAND's key specifications. Neither reads nor writes, for example, who
    /// only wants to know whether a key exists.
    pub(crate) fn of(uses: &str) -> Self {
        uses.split(' ').fold(Self::default(), |touch, word| Self {
            reads: touch.reads || word == "access",
            writes: touch.writes || matches!(word, "insert" | "delete" | "update"),
        })
    }

    fn allows(self, wanted: Self) -> bool {
        (self.reads || !wanted.reads) && (self.writes || !wanted.writes)
    }
}

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    touch: Touch,
}

/// The keys of a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyPatterns {
    pub(crate) all: bool,
    patterns: Vec<Pattern>,
}

impl KeyPatterns {
    pub(crate) fn set_all(&mut self, all: bool) {
        self.all = all;
        self.patterns.clear();
    }

    /// A pattern that is there already gets the touch in addition.
    pub(crate) fn add(&mut self, text: &str, touch: Touch) {
        match self.patterns.iter_mut().find(|pattern| pattern.text == text) {
            Some(Pattern { touch: known, .. }) => {
                known.reads |= touch.reads;
                known.writes |= touch.writes;
            }
            None => self.patterns.push(Pattern { text: text.to_owned(), touch }),
        }
    }

    pub(crate) fn allow(&self, key: &[u8], touch: Touch) -> bool {
        let is_fit = |pattern: &Pattern| {
            pattern.touch.allows(touch) && glob_matches(pattern.text.as_bytes(), key)
        };
        self.all || self.patterns.iter().any(is_fit) && !key.starts_with(OWN_KEYS)
    }

    /// Whether that may be done to every key.
    pub(crate) fn allow_every(&self, touch: Touch) -> bool {
        let is_fit = |pattern: &Pattern| pattern.touch.allows(touch) && pattern.text == "*";
        self.all || self.patterns.iter().any(is_fit)
    }

    /// As rules.
    pub(crate) fn rules(&self) -> Vec<String> {
        if self.all {
            return vec!["~*".to_owned()];
        }
        let rule = |Pattern { text, touch }: &Pattern| match (touch.reads, touch.writes) {
            (true, false) => format!("%R~{text}"),
            (false, true) => format!("%W~{text}"),
            // Where others follow, `~*` would be another rule.
            _ if text == "*" => "%RW~*".to_owned(),
            _ => format!("~{text}"),
        };
        self.patterns.iter().map(rule).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_for_those_who_may_use_all_keys() {
        let mut keys = KeyPatterns::default();
        for pattern in ["*", "cashew:*", "cashew:copy:*"] {
            keys.add(pattern, Touch::ANY);
        }
        let copy = b"cashew:copy:0:12-3";
        assert!(keys.allow(b"cashew:copies", Touch::ANY) && !keys.allow(copy, Touch::ANY));
        keys.set_all(true);
        assert!(keys.allow(copy, Touch::ANY));
    }
}
