//! How long a key lives: asked behind a `get` whose reply is to be kept.
//!
//! `me` is asked first, since it does nothing but tell: `mg` would take the right to renew a key that is marked stale,
//! and some client would wait for that in vain. But memcached 1.6.18 and others tell with a minus sign, so that `exp=-1`
//! is a key without an end, or one that has a second left. Then `mg` is asked, too.

use cashew_protocol::memcached::words;

/// What a server says of how long a key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyLife {
    /// At least so many microseconds; `None` if it has no end.
    Left(Option<u64>),
    /// [`by_mg`] tells.
    AskMg,
    /// There is none, or it is not to be kept.
    Gone,
    /// The server does not know the question.
    NotTold,
}

/// The question that does nothing but tell.
pub(crate) fn ask_me(key: &[u8]) -> Vec<u8> {
    [b"me ", key, b"\r\n"].concat()
}

pub(crate) fn ask_mg(key: &[u8]) -> Vec<u8> {
    [b"mg ", key, b" t\r\n"].concat()
}

/// What the reply to [`ask_me`] says.
pub(crate) fn by_me(reply: &[u8]) -> KeyLife {
    let mut words = words(reply.trim_ascii_end());
    match words.next() {
        Some(b"ME") => {}
        other => return without(other),
    }
    // A key may look like what follows it.
    let told = words.skip(1).find_map(|word| word.strip_prefix(b"exp="));
    match told.and_then(number) {
        Some(-1) => KeyLife::AskMg,
        Some(seconds) => left(seconds.unsigned_abs()),
        None => KeyLife::NotTold,
    }
}

/// What the reply to [`ask_mg`] says.
pub(crate) fn by_mg(reply: &[u8]) -> KeyLife {
    let mut words = words(reply.trim_ascii_end());
    match words.next() {
        Some(b"HD") => {}
        other => return without(other),
    }
    let mut life = KeyLife::NotTold;
    for word in words {
        match word {
            // It is marked stale.
            b"X" | b"W" | b"Z" => return KeyLife::Gone,
            _ => {}
        }
        if let Some(seconds) = word.strip_prefix(b"t").and_then(number) {
            life = match u64::try_from(seconds) {
                Ok(seconds) => left(seconds),
                Err(_) => KeyLife::Left(None),
            };
        }
    }
    life
}

fn without(code: Option<&[u8]>) -> KeyLife {
    if code == Some(b"ERROR") { KeyLife::NotTold } else { KeyLife::Gone }
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// memcached counts in whole seconds, by a clock that ticks once a second: the last one of a key may
/// have passed.
fn left(seconds: u64) -> KeyLife {
    match seconds.saturating_sub(1) {
        0 => KeyLife::Gone,
        surely => KeyLife::Left(Some(surely.saturating_mul(1_000_000))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_key_is_told_by_both_signs() {
        let left = |seconds: u64| KeyLife::Left(Some(seconds * 1_000_000));
        for (reply, life) in [
            // 1.6.18, and 1.6.45.
            ("ME k exp=-5 la=0 cas=1 fetch=no cls=1 size=61\r\n", left(4)),
            ("ME k exp=5 la=0 cas=2 fetch=no cls=1 size=61\r\n", left(4)),
            ("ME k exp=1 la=0\r\n", KeyLife::Gone),
            ("ME k exp=-1 la=0\r\n", KeyLife::AskMg),
            ("ME exp=7 exp=-1\r\n", KeyLife::AskMg),
            ("EN\r\n", KeyLife::Gone),
            ("ERROR\r\n", KeyLife::NotTold),
            ("ME k size=1\r\n", KeyLife::NotTold),
            ("SERVER_ERROR out of memory\r\n", KeyLife::Gone),
        ] {
            assert_eq!(by_me(reply.as_bytes()), life, "{reply}");
        }
        for (reply, life) in [
            ("HD t-1\r\n", KeyLife::Left(None)),
            ("HD t30\r\n", left(29)),
            ("HD t1\r\n", KeyLife::Gone),
            ("HD t30 X W\r\n", KeyLife::Gone),
            ("HD t30 Z X\r\n", KeyLife::Gone),
            ("EN\r\n", KeyLife::Gone),
            ("HD\r\n", KeyLife::NotTold),
            ("ERROR\r\n", KeyLife::NotTold),
        ] {
            assert_eq!(by_mg(reply.as_bytes()), life, "{reply}");
        }
    }
}
