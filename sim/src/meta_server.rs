//! The meta commands of a memcached.

use crate::memcached_server::{Item, MemcachedServer, REFUSAL};
use crate::request::{Outcome, line_end};
use crate::server::Done;

const NOT_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";

/// A line of a meta command.
struct Line<'a> {
    verb: &'a [u8],
    key: &'a [u8],
    flags: Vec<&'a [u8]>,
}

impl Line<'_> {
    /// The token after the letter of a flag.
    fn token(&self, letter: u8) -> Option<&[u8]> {
        self.flags.iter().find(|flag| flag[0] == letter).map(|flag| &flag[1..])
    }

    /// A code, and the values that the flags request.
    fn reply(&self, code: &str, unique: Option<u64>) -> Vec<u8> {
        let mut reply = code.as_bytes().to_vec();
        for flag in &self.flags {
            match (flag[0], unique) {
                (b'O', _) => reply.extend_from_slice(&[b" ", *flag].concat()),
                (b'k', _) => reply.extend_from_slice(&[b" k", self.key].concat()),
                (b'c', Some(unique)) => reply.extend_from_slice(format!(" c{unique}").as_bytes()),
                _ => {}
            }
        }
        reply.extend_from_slice(b"\r\n");
        reply
    }
}

impl MemcachedServer {
    /// Executes a meta command whose line has `end` bytes; `None` if its data are incomplete.
    pub(crate) fn execute_meta(&mut self, input: &[u8], end: usize, refuse: bool) -> Option<Done> {
        let words: Vec<&[u8]> =
            input[..end - 2].split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
        if words[0] == b"mn" {
            return Some(Done::new(end, b"mn", "MN\r\n"));
        }
        let first = if words[0] == b"ms" { 3 } else { 2 };
        let line = Line { verb: words[0], key: words[1], flags: words[first..].to_vec() };
        let is_quiet = line.token(b'q').is_some();
        let opaque = line.token(b'O').expect("clients give opaques");
        let dot = opaque.iter().position(|&byte| byte == b'.').expect("they have a dot");
        let mut done = Done::new(end, &[b"O", &opaque[..dot]].concat(), "");
        let mut payload = [line.verb, &opaque[dot..], b" "].concat();
        let mut data = None;
        if line.verb == b"ms" {
            let size: usize = std::str::from_utf8(words[2]).ok()?.parse().ok()?;
            done.used = end + size + 2;
            let value = input.get(end..end + size)?;
            assert_eq!(input.get(end + size..done.used)?, b"\r\n", "I1: a data block's end");
            payload.extend_from_slice(value);
            data = Some(value);
        }
        let is_quiet_filtered = matches!(line.verb, b"mg" | b"ms");
        assert!(
            !(is_quiet && is_quiet_filtered),
            "I1: a server is asked quietly for what it always tells"
        );
        let (reply, unique) = match refuse {
            true => (Err(REFUSAL.to_vec()), None),
            false => self.carry_out(&line, data),
        };
        let told = |unique: Option<u64>| match &reply {
            Ok((code, data)) => {
                let mut reply = line.reply(code, unique);
                if let Some(data) = data {
                    reply.extend_from_slice(data);
                    reply.extend_from_slice(b"\r\n");
                }
                reply
            }
            Err(line) => line.clone(),
        };
        let outcome = told(unique.map(|unique| self.tag.apply(unique)));
        done.reply = told(unique);
        if is_quiet && is_left_out(line.verb, &done.reply) {
            done.reply.clear();
        }
        done.keys.push((line.key.to_vec(), Some(payload), Outcome::good(outcome)));
        Some(done)
    }

    /// The code and the data of a reply, or an error line; and the item's unique.
    #[expect(clippy::type_complexity, reason = "it is told apart at once")]
    fn carry_out(
        &mut self,
        line: &Line<'_>,
        data: Option<&[u8]>,
    ) -> (Result<(String, Option<Vec<u8>>), Vec<u8>>, Option<u64>) {
        self.stores += 1;
        let stores = self.stores;
        let code = |code: &str| Ok((code.to_owned(), None));
        let value = |data: &[u8]| Ok((format!("VA {}", data.len()), Some(data.to_vec())));
        let wants_value = line.flags.contains(&&b"v"[..]);
        let unique = self.items.get(line.key).map(|item| item.unique);
        if let (Some(named), Some(unique)) = (line.token(b'C'), unique)
            && named != unique.to_string().as_bytes()
        {
            return (code("EX"), None);
        }
        match (line.verb, self.items.get_mut(line.key)) {
            (b"mg", None) => (Err(b"EN\r\n".to_vec()), None),
            (b"mg", Some(item)) if wants_value => (value(&item.data), unique),
            (b"mg", Some(_)) => (code("HD"), unique),
            (b"ms", item) => {
                let data = data.expect("it is there");
                match (line.token(b'M').map(|mode| mode[0]), item) {
                    (_, None) if line.token(b'C').is_some() => return (code("NF"), None),
                    (Some(b'E'), Some(_)) | (Some(b'A' | b'P' | b'R'), None) => {
                        return (code("NS"), None);
                    }
                    (Some(b'A'), Some(item)) => item.data.extend_from_slice(data),
                    (Some(b'P'), Some(item)) => {
                        item.data.splice(..0, data.iter().copied());
                    }
                    _ => {
                        let item =
                            Item { flags: b"0".to_vec(), data: data.to_vec(), unique: stores };
                        self.items.insert(line.key.to_vec(), item);
                    }
                }
                (code("HD"), self.items.get(line.key).map(|item| item.unique))
            }
            (_, None) => (code("NF"), None),
            (b"md", Some(_)) => {
                self.items.remove(line.key);
                (code("HD"), None)
            }
            (b"ma", Some(item)) => {
                let old = std::str::from_utf8(&item.data).ok().and_then(|text| text.parse().ok());
                let Some(old) = old else { return (Err(NOT_NUMERIC.to_vec()), None) };
                let new: u64 = u64::wrapping_add(old, 1);
                item.data = new.to_string().into_bytes();
                item.unique = stores;
                (code("HD"), Some(stores))
            }
            (verb, _) => panic!("I1: a server is sent {}", verb.escape_ascii()),
        }
    }
}

fn is_left_out(verb: &[u8], reply: &[u8]) -> bool {
    match verb {
        b"mg" => reply.starts_with(b"EN"),
        b"ms" => reply.starts_with(b"HD"),
        _ => reply.starts_with(b"HD") || reply.starts_with(b"NF"),
    }
}

/// What a client gets for this reply if it sent the command of the payload quietly.
pub(crate) fn quieten(payload: &[u8], reply: &[u8]) -> Vec<u8> {
    if is_left_out(&payload[..2], reply) { Vec::new() } else { reply.to_vec() }
}

/// The same for what the gateway has read: the reply if the gateway sent the command loudly, else
/// the server's output.
pub(crate) fn shown(payload: &[u8], reply: &[u8]) -> Vec<u8> {
    match &payload[..2] {
        b"mg" | b"ms" => quieten(payload, reply),
        _ => reply.to_vec(),
    }
}

/// Length of the reply to one meta command at the start of `bytes`, if it is complete.
pub(crate) fn frame(bytes: &[u8]) -> Option<usize> {
    let end = line_end(bytes, 0)?;
    let mut words = bytes[..end - 2].split(|&byte| byte == b' ');
    if words.next() != Some(b"VA") {
        return Some(end);
    }
    let size: usize = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    Some(end + size + 2).filter(|&len| len <= bytes.len())
}
