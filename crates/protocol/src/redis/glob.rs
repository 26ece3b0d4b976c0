//! Patterns of channels and keys, as Redis matches them.

/// Whether the text matches the pattern.
///
/// `*` matches any text, `?` any byte, `[ab]`, `[^ab]` and `[a-z]` one of a set, and `\` escapes
/// the byte after it. A set without an end extends to the pattern's end.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    // The pattern after the last `*`, and the text it has not tried yet. If the rest does not
    // match, only that star has to take one more byte: the part before it has matched as early as
    // possible.
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(rest) = pattern.strip_prefix(b"*") {
            pattern = rest;
            star = Some((rest, text));
            continue;
        }
        match (pattern.is_empty(), text.split_first()) {
            (true, None) => return true,
            (false, Some((&byte, after))) => {
                let (is_match, rest) = match_one(pattern, byte);
                if is_match {
                    (pattern, text) = (rest, after);
                    continue;
                }
            }
            (false, None) => return false,
            (true, Some(_)) => {}
        }
        let Some((behind, untried)) = star else { return false };
        let Some((_, untried)) = untried.split_first() else { return false };
        star = Some((behind, untried));
        (pattern, text) = (behind, untried);
    }
}

/// Whether the start of the pattern, which is not a star, matches the byte; and what follows it.
fn match_one(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    match pattern {
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', set @ ..] => {
            let (is_in, rest) = match_set(set, byte);
            (!is_in, rest)
        }
        [b'[', set @ ..] => match_set(set, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte, rest),
        [] => (false, pattern),
    }
}

fn match_set(mut set: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut is_in = false;
    loop {
        match set {
            [] => return (is_in, set),
            [b'\\', literal, rest @ ..] => {
                is_in |= *literal == byte;
                set = rest;
            }
            [b']', rest @ ..] => return (is_in, rest),
            [one, b'-', other, rest @ ..] => {
                is_in |= (*one.min(other)..=*one.max(other)).contains(&byte);
                set = rest;
            }
            [literal, rest @ ..] => {
                is_in |= *literal == byte;
                set = rest;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_stand_for_what_redis_says() {
        let good: &[(&str, &str)] = &[
            ("", ""),
            ("*", ""),
            ("*", "any"),
            ("h?llo", "hello"),
            ("h*llo", "hllo"),
            ("h*llo", "heeeello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hbllo"),
            ("h[a-c]llo", "hbllo"),
            ("h[c-a]llo", "hbllo"),
            ("news.*.*", "news.art.x"),
            ("*a*b", "xxaxxaxb"),
            ("a\\*b", "a*b"),
            ("a\\?", "a?"),
            ("[\\]]", "]"),
            ("[abc", "b"),
            ("\\", "\\"),
            ("a***", "a"),
            ("[-a]", "-"),
            ("__key*__:*", "__keyspace@0__:foo"),
        ];
        for (pattern, text) in good {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        let bad: &[(&str, &str)] = &[
            ("", "a"),
            ("a", ""),
            ("?", ""),
            ("h[^e]llo", "hello"),
            ("h[ab]llo", "hello"),
            ("*b", "abc"),
            ("a*b*c", "abbb"),
            ("a\\*b", "axb"),
            ("[a", ""),
            ("abc", "abcd"),
        ];
        for (pattern, text) in bad {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(1000) + "b";
        let text = "a".repeat(3000);
        assert!(!matches(pattern.as_bytes(), text.as_bytes()));
    }
}
