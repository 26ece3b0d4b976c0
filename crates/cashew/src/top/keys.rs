//! Keys, as terminals send them.

/// A key that was pressed. Others are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// A letter while Ctrl is held.
    Held(char),
    Up,
    Down,
    Left,
    Right,
    Home,
    End,
    PageUp,
    PageDown,
    Enter,
    Escape,
    Backspace,
}

/// What was typed and not yet understood.
#[derive(Debug, Default)]
pub(super) struct Typed(Vec<u8>);

impl Typed {
    /// No sequence is longer: what goes on for longer is none, and dropped.
    const SEQUENCE_MAX: usize = 32;

    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The keys that are whole. The rest stays until more is typed, or until it `is_all`: an escape by itself is the
    /// key, and otherwise the start of a sequence.
    pub(super) fn keys(&mut self, is_all: bool) -> Vec<Key> {
        let mut keys = Vec::new();
        let mut rest = self.0.as_slice();
        while !rest.is_empty() {
            let Some((key, len)) = first(rest, is_all) else { break };
            keys.extend(key);
            rest = &rest[len..];
        }
        let used = self.0.len() - rest.len();
        self.0.drain(..used);
        if is_all || self.0.len() > Self::SEQUENCE_MAX {
            self.0.clear();
        }
        keys
    }
}

/// The first key, if it is one of ours, and how many bytes it has. `None` if it may go on.
fn first(bytes: &[u8], is_all: bool) -> Option<(Option<Key>, usize)> {
    match *bytes {
        [0x1b] => is_all.then_some((Some(Key::Escape), 1)),
        [0x1b, b'[', ref rest @ ..] => sequence(rest).map(|(key, len)| (key, 2 + len)),
        [0x1b, b'O', last, ..] => Some((by_letter(last), 3)),
        [0x1b, b'O'] => None,
        // Escape was pressed twice, or a key while Alt was held.
        [0x1b, 0x1b, ..] => Some((Some(Key::Escape), 1)),
        [0x1b, ref rest @ ..] => first(rest, is_all).map(|(key, len)| (key, 1 + len)),
        [b'\r' | b'\n', ..] => Some((Some(Key::Enter), 1)),
        [0x7f | 0x08, ..] => Some((Some(Key::Backspace), 1)),
        [byte @ 1..=26, ..] => Some((Some(Key::Held((byte - 1 + b'a').into())), 1)),
        _ => letter(bytes),
    }
}

/// What stands behind `ESC [`: digits and semicolons, then what it is.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let at = bytes.iter().position(|byte| !matches!(byte, 0x20..=0x3f))?;
    let number = bytes[..at].split(|byte| *byte == b';').next().unwrap_or_default();
    let key = match (bytes[at], number) {
        (b'~', b"1" | b"7") => Some(Key::Home),
        (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"5") => Some(Key::PageUp),
        (b'~', b"6") => Some(Key::PageDown),
        (last, _) => by_letter(last),
    };
    Some((key, at + 1))
}

fn by_letter(letter: u8) -> Option<Key> {
    Some(match letter {
        b'A' => Key::Up,
        b'B' => Key::Down,
        b'C' => Key::Right,
        b'D' => Key::Left,
        b'H' => Key::Home,
        b'F' => Key::End,
        b'M' => Key::Enter,
        _ => return None,
    })
}

fn letter(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let len = match bytes[0] {
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf7 => 4,
        _ => 1,
    };
    let text = std::str::from_utf8(bytes.get(..len)?).unwrap_or_default();
    Some((text.chars().next().filter(|char| !char.is_control()).map(Key::Char), len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(bytes: &[u8]) -> Vec<Key> {
        let mut typed = Typed::default();
        typed.add(bytes);
        let mut keys = typed.keys(false);
        keys.extend(typed.keys(true));
        keys
    }

    const ALL: &[(&[u8], &[Key])] = &[
        (b"q", &[Key::Char('q')]),
        (b"\x03\x04", &[Key::Held('c'), Key::Held('d')]),
        (b"\r\n\x7f\x08", &[Key::Enter, Key::Enter, Key::Backspace, Key::Backspace]),
        (b"\x1b[A\x1b[B\x1b[C\x1b[D", &[Key::Up, Key::Down, Key::Right, Key::Left]),
        (b"\x1bOA\x1bOB\x1bOH\x1bOF", &[Key::Up, Key::Down, Key::Home, Key::End]),
        (b"\x1b[H\x1b[F\x1b[1~\x1b[4~", &[Key::Home, Key::End, Key::Home, Key::End]),
        (b"\x1b[5~\x1b[6~\x1b[1;5B", &[Key::PageUp, Key::PageDown, Key::Down]),
        (b"\x1b", &[Key::Escape]),
        (b"\x1b\x1b", &[Key::Escape, Key::Escape]),
        (b"\x1bj", &[Key::Char('j')]),
        ("é界j".as_bytes(), &[Key::Char('é'), Key::Char('界'), Key::Char('j')]),
        // What is none of ours: Insert, F5, a report of the mouse, broken text, a sequence without an end.
        (b"\x1b[2~\x1b[15~\x1b[<0;1;1mq", &[Key::Char('q')]),
        (b"\xff\0q\xc3", &[Key::Char('q')]),
        (b"\x1b[1;", &[]),
        (b"\x1bO", &[]),
    ];

    #[test]
    fn keys_are_what_terminals_send() {
        for (bytes, expected) in ALL {
            assert_eq!(keys(bytes), *expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_sequence_may_come_byte_by_byte() {
        for (bytes, expected) in ALL {
            let mut typed = Typed::default();
            let mut keys = Vec::new();
            for byte in *bytes {
                typed.add(&[*byte]);
                keys.extend(typed.keys(false));
            }
            keys.extend(typed.keys(true));
            assert_eq!(keys, *expected, "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn what_never_ends_is_dropped() {
        let mut typed = Typed::default();
        typed.add(b"\x1b[");
        for _ in 0..1000 {
            typed.add(b"1;");
            typed.keys(false);
            assert!(typed.0.len() <= Typed::SEQUENCE_MAX);
        }
        // What follows is typed text.
        typed.add(b"q");
        assert_eq!(typed.keys(false).last(), Some(&Key::Char('q')));
    }
}
