//! Scripts that came through the gateway, in bounded memory.
//!
//! Each worker remembers for itself what SCRIPT LOAD and EVAL bring, and forgets with SCRIPT FLUSH. That
//! another worker was told to flush it sees by the statistics, before it gives a server a script again.

use std::collections::HashMap;

/// Scripts remembered of each pool.
const SCRIPTS_MAX: usize = 1024;
/// And their bytes.
pub(crate) const SCRIPTS_SIZE_MAX: usize = 1 << 20;
/// A larger one is not remembered: it would be in place of many others.
const SCRIPT_SIZE_MAX: usize = SCRIPTS_SIZE_MAX / 4;

pub(crate) type Sha = [u8; 20];

/// The scripts of a pool, by their place, which a script keeps until another one takes it.
#[derive(Default)]
pub(crate) struct Scripts {
    slots: Vec<Script>,
    by_sha: HashMap<Sha, u32>,
    /// By a hash of the text that costs less than that of Redis.
    by_text: HashMap<u64, u32>,
    size: usize,
    /// Grows with every use.
    uses: u64,
    /// How often they had been flushed, over all workers, when the first of them was remembered.
    flushes: u64,
}

struct Script {
    sha: Sha,
    text: Box<[u8]>,
    quick: u64,
    used: u64,
}

/// Which places of [`Scripts`] a server has been seen to have.
#[derive(Default)]
pub(crate) struct Seen(Option<Box<[u64; SCRIPTS_MAX / 64]>>);

impl Seen {
    pub(crate) fn contains(&self, place: u32) -> bool {
        self.0.as_ref().is_some_and(|bits| bits[place as usize / 64] >> (place % 64) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, place: u32) {
        let bits = self.0.get_or_insert_default();
        bits[place as usize / 64] |= 1 << (place % 64);
    }

    pub(crate) fn remove(&mut self, place: u32) {
        if let Some(bits) = &mut self.0 {
            bits[place as usize / 64] &= !(1 << (place % 64));
        }
    }

    /// Nothing more is known of the server.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

impl Scripts {
    pub(crate) fn find(&mut self, sha: &Sha) -> Option<u32> {
        let place = *self.by_sha.get(sha)?;
        self.touch(place);
        Some(place)
    }

    /// Where the script is, which does not count as a use.
    pub(crate) fn place(&self, sha: &Sha) -> Option<u32> {
        self.by_sha.get(sha).copied()
    }

    pub(crate) fn sha(&self, place: u32) -> Sha {
        self.slots[place as usize].sha
    }

    pub(crate) fn text(&self, place: u32) -> &[u8] {
        &self.slots[place as usize].text
    }

    fn touch(&mut self, place: u32) {
        self.uses += 1;
        self.slots[place as usize].used = self.uses;
    }

    /// Remembers a script. Returns the place that it has newly taken: who was seen to have what was
    /// there has not been seen to have it.
    pub(crate) fn insert(&mut self, text: &[u8]) -> Option<u32> {
        if text.len() > SCRIPT_SIZE_MAX {
            return None;
        }
        let quick = quick_hash(text);
        if let Some(&place) = self.by_text.get(&quick) {
            self.touch(place);
            return None;
        }
        while self.size + text.len() > SCRIPTS_SIZE_MAX {
            self.remove(self.oldest()?);
        }
        let free_ids = self.slots.iter().position(|script| script.used == 0);
        let place = match free_ids {
            Some(place) => place as u32,
            None if self.slots.len() < SCRIPTS_MAX => {
                self.slots.push(Script { sha: [0; 20], text: [].into(), quick: 0, used: 0 });
                self.slots.len() as u32 - 1
            }
            None => {
                let place = self.oldest()?;
                self.remove(place);
                place
            }
        };
        let sha = sha1_smol::Sha1::from(text).digest().bytes();
        self.size += text.len();
        self.by_sha.insert(sha, place);
        self.by_text.insert(quick, place);
        self.slots[place as usize] = Script { sha, text: text.into(), quick, used: 0 };
        self.touch(place);
        Some(place)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_sha.is_empty()
    }

    /// They are those remembered since this flush.
    pub(crate) fn begin(&mut self, flushes: u64) {
        self.flushes = flushes;
    }

    pub(crate) fn began_at(&self) -> u64 {
        self.flushes
    }

    /// The place of the script that has not been used for longest.
    fn oldest(&self) -> Option<u32> {
        let used = self.slots.iter().zip(0..).filter(|(script, _)| script.used > 0);
        used.min_by_key(|(script, _)| script.used).map(|(_, place)| place)
    }

    pub(crate) fn remove(&mut self, place: u32) {
        let script = &mut self.slots[place as usize];
        script.used = 0;
        self.size -= script.text.len();
        script.text = [].into();
        let (sha, quick) = (script.sha, script.quick);
        self.by_sha.remove(&sha);
        self.by_text.remove(&quick);
    }
}

/// Tells texts apart. Two that have the same only means that one of them is not remembered.
fn quick_hash(text: &[u8]) -> u64 {
    let mut hash = text.len() as u64;
    for chunk in text.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    }
    hash
}

/// The hash that EVALSHA names, in hexadecimal digits of either case.
pub(crate) fn parse_sha(text: &[u8]) -> Option<Sha> {
    let mut sha = [0; 20];
    if text.len() != 2 * sha.len() {
        return None;
    }
    for (byte, digits) in sha.iter_mut().zip(text.chunks(2)) {
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(sha)
}

/// Whether a script begins by saying that it writes nothing: a server sees to it that this is so.
pub(crate) fn is_read_only(text: &[u8]) -> bool {
    let Some(end) = text.iter().position(|&byte| byte == b'\n') else { return false };
    let mut words = text[..end].split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let mut is_read_only = false;
    text.starts_with(b"#!")
        && words.next() == Some(b"#!lua")
        && words.all(|word| {
            let flags = word.strip_prefix(b"flags=");
            is_read_only |= flags.is_some_and(|flags| {
                flags.split(|&byte| byte == b',').any(|flag| flag == b"no-writes")
            });
            flags.is_some()
        })
        && is_read_only
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha(text: &[u8]) -> Sha {
        sha1_smol::Sha1::from(text).digest().bytes()
    }

    #[test]
    fn names_of_scripts_are_read() {
        let text = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(parse_sha(text), Some(sha(b"return 1")));
        assert_eq!(parse_sha(&text.to_ascii_uppercase()), Some(sha(b"return 1")));
        for bad in [&text[1..], b"", b"g0e1f9fabfc9d4800c877a703b823ac0578ff8db"] {
            assert_eq!(parse_sha(bad), None);
        }
    }

    #[test]
    fn scripts_say_that_they_only_read() {
        for text in [
            "#!lua flags=no-writes\nreturn 1",
            "#!lua flags=allow-stale,no-writes \nreturn 1",
            "#!lua  flags=allow-stale flags=no-writes\n",
        ] {
            assert!(is_read_only(text.as_bytes()), "{text}");
        }
        for text in [
            "",
            "return 1",
            "#!lua\nreturn 1 -- flags=no-writes",
            "#!lua flags=no-writes",
            "#!lua flags=no-writesx\n",
            "#!lua flags=allow-oom\n",
            "#!lua flags=no-writes name=x\n",
            "#!js flags=no-writes\n",
            " #!lua flags=no-writes\n",
            "\n#!lua flags=no-writes\n",
        ] {
            assert!(!is_read_only(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn those_are_forgotten_that_were_not_used_for_longest() {
        let mut scripts = Scripts::default();
        let text = |n: usize| format!("return {n}").into_bytes();
        for n in 0..SCRIPTS_MAX {
            assert_eq!(scripts.insert(&text(n)), Some(n as u32));
        }
        assert_eq!(scripts.insert(&text(0)), None);
        assert_eq!(scripts.insert(b"one more"), Some(1));
        assert!(scripts.find(&sha(&text(0))).is_some());
        assert!(scripts.find(&sha(&text(1))).is_none());
        assert_eq!(scripts.by_sha.len(), SCRIPTS_MAX);
        assert_eq!(scripts.by_text.len(), SCRIPTS_MAX);
    }

    #[test]
    fn so_many_bytes_are_remembered_and_no_more() {
        let mut scripts = Scripts::default();
        assert_eq!(scripts.insert(&vec![b'x'; SCRIPT_SIZE_MAX + 1]), None);
        for n in 0..100 {
            assert!(scripts.insert(&vec![n; SCRIPT_SIZE_MAX]).is_some());
            assert!(scripts.size <= SCRIPTS_SIZE_MAX);
        }
        assert_eq!(scripts.by_sha.len(), 4);
        assert!(scripts.find(&sha(&vec![99; SCRIPT_SIZE_MAX])).is_some());
    }

    #[test]
    fn what_was_seen_is_noted_by_place() {
        let mut seen = Seen::default();
        assert!(!seen.contains(1023));
        seen.insert(1023);
        seen.insert(0);
        assert!(seen.contains(1023) && seen.contains(0) && !seen.contains(64));
        seen.remove(1023);
        assert!(!seen.contains(1023));
        seen.clear();
        assert!(!seen.contains(0));
    }
}
