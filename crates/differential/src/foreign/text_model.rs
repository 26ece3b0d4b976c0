//! A memcached, text protocol and meta commands, as far as framing goes: which lines a request has for an answer, and
//! how much of what follows belongs to it.

use std::collections::BTreeMap;

use cashew_protocol::memcached::{KEY_SIZE_MAX, decode_key, encode_key};

use super::is_watched;

#[derive(Clone, Default)]
pub(super) struct Item {
    pub(super) flags: u32,
    pub(super) data: Vec<u8>,
    pub(super) unique: u64,
    /// Its key is told in base64. That of others is told as its bytes are, whatever they are.
    has_base64: bool,
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) items: BTreeMap<Vec<u8>, Item>,
    pub(super) stores: u64,
}

impl Store {
    pub(super) fn put(&mut self, key: &[u8], flags: u32, data: Vec<u8>) -> u64 {
        self.stores += 1;
        let unique = self.stores;
        self.items.insert(key.to_vec(), Item { flags, data, unique, has_base64: false });
        unique
    }

    pub(super) fn flush(&mut self) {
        self.items.retain(|key, _| is_watched(key));
    }
}

const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";
const UNKNOWN: &str = "ERROR";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(super) const KEY_MAX: usize = 250;
/// Of `ms`. Behind more the data is not read.
const META_FLAGS_MAX: usize = 16;
/// A line of more bytes without an end closes a connection, unless it is a `get`.
const LINE_MAX: usize = 2048;
const VALUE_MAX: usize = 1024 * 1024;

/// What a server does with the bytes at the front.
pub(super) enum Done {
    /// More is to come.
    Wait,
    /// So many are used up.
    Used(usize, Vec<u8>),
    /// It answers with this error, and reads what follows as commands: data, if the command has any. What may be sent to
    /// a server is checked before, so this is a finding.
    Refused(&'static str),
    /// It ends the connection.
    Close,
}

/// Executes the command at the front.
pub(super) fn execute(input: &[u8], store: &mut Store) -> Done {
    let Some(end) = input.iter().position(|&byte| byte == b'\n') else {
        let is_get = input.starts_with(b"get ") || input.starts_with(b"gets ");
        return if input.len() > LINE_MAX && !is_get { Done::Close } else { Done::Wait };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    // The server reads up to a NUL.
    let line = line.split(|&byte| byte == 0).next().unwrap_or_default();
    let words: Vec<&[u8]> =
        line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let used = end + 1;
    let Some(&verb) = words.first() else { return Done::Refused(UNKNOWN) };
    // Among the keys of a retrieval it is one.
    let takes_word =
        !matches!(verb, b"get" | b"gets" | b"gat" | b"gats" | b"mg" | b"md" | b"ma" | b"me");
    let is_silent = takes_word && words.len() > 1 && words.last() == Some(&&b"noreply"[..]);
    let args = &words[1..];
    if keys(verb, args).iter().any(|key| key.len() > KEY_MAX) {
        return Done::Refused(BAD_FORMAT);
    }
    let reply = match verb {
        b"get" | b"gets" if !args.is_empty() => values(args, verb == b"gets", store),
        b"gat" | b"gats" if args.len() > 1 => values(&args[1..], verb == b"gats", store),
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            return put(verb, args, is_silent, input, used, store);
        }
        b"ms" => return meta_set(args, input, used, store),
        b"mg" | b"md" | b"ma" | b"me" if !args.is_empty() => meta(verb, args, store),
        b"mn" => return Done::Used(used, b"MN\r\n".to_vec()),
        b"incr" | b"decr" if args.len() >= 2 => count(verb, args, store),
        b"touch" if args.len() >= 2 => {
            let has = store.items.contains_key(args[0]);
            if has { b"TOUCHED\r\n".to_vec() } else { b"NOT_FOUND\r\n".to_vec() }
        }
        b"delete" if !args.is_empty() => match store.items.remove(args[0]) {
            Some(_) => b"DELETED\r\n".to_vec(),
            None => b"NOT_FOUND\r\n".to_vec(),
        },
        b"version" => return Done::Used(used, b"VERSION 1.6.18\r\n".to_vec()),
        b"flush_all" => {
            store.flush();
            b"OK\r\n".to_vec()
        }
        b"verbosity" | b"slabs" | b"lru" | b"lru_crawler" | b"cache_memlimit" | b"extstore"
        | b"refresh_certs" => b"OK\r\n".to_vec(),
        b"stats" => return Done::Used(used, stats(args)),
        b"quit" | b"shutdown" => return Done::Close,
        _ => return Done::Refused(UNKNOWN),
    };
    Done::Used(used, if is_silent { Vec::new() } else { reply })
}

/// The words of a command that are keys, as they are sent: in base64, too.
fn keys<'a, 'b>(verb: &[u8], args: &'b [&'a [u8]]) -> &'b [&'a [u8]] {
    match verb {
        b"get" | b"gets" => args,
        b"gat" | b"gats" => args.get(1..).unwrap_or_default(),
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" | b"incr" | b"decr"
        | b"touch" | b"delete" | b"ms" | b"mg" | b"md" | b"ma" | b"me" => {
            args.get(..1).unwrap_or_default()
        }
        _ => &[],
    }
}

fn stats(args: &[&[u8]]) -> Vec<u8> {
    match (args.first().copied(), args.get(1).copied()) {
        (Some(b"reset"), _) => b"RESET\r\n".to_vec(),
        (Some(b"detail"), Some(b"on" | b"off")) => b"OK\r\n".to_vec(),
        (Some(b"detail"), Some(b"dump")) => b"PREFIX k get 1 hit 1 set 0 del 0\r\nEND\r\n".to_vec(),
        (Some(b"detail"), _) => b"CLIENT_ERROR usage: stats detail on|off|dump\r\n".to_vec(),
        (Some(b"cachedump"), _) => b"ITEM k1 [5 b; 0 s]\r\nEND\r\n".to_vec(),
        (None | Some(_), _) => b"STAT pid 1\r\nSTAT version 1.6.18\r\nEND\r\n".to_vec(),
    }
}

fn values(keys: &[&[u8]], with_unique: bool, store: &Store) -> Vec<u8> {
    let mut reply = Vec::new();
    for &key in keys {
        let Some(item) = store.items.get(key) else { continue };
        reply.extend_from_slice(b"VALUE ");
        reply.extend_from_slice(key);
        reply.extend_from_slice(format!(" {} {}", item.flags, item.data.len()).as_bytes());
        if with_unique {
            reply.extend_from_slice(format!(" {}", item.unique).as_bytes());
        }
        reply.extend_from_slice(b"\r\n");
        reply.extend_from_slice(&item.data);
        reply.extend_from_slice(b"\r\n");
    }
    reply.extend_from_slice(b"END\r\n");
    reply
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// The data block of so many bytes behind the line. The error says why it is none.
fn block(input: &[u8], used: usize, len: usize) -> Option<(&[u8], usize, bool)> {
    let whole = input.get(used..used + len + 2)?;
    Some((&whole[..len], used + len + 2, whole.ends_with(b"\r\n")))
}

fn put(
    verb: &[u8],
    args: &[&[u8]],
    is_silent: bool,
    input: &[u8],
    used: usize,
    store: &mut Store,
) -> Done {
    let wanted = if verb == b"cas" { 5 } else { 4 };
    let is_counted = args.len() == wanted || args.len() == wanted + 1 && is_silent;
    if !is_counted {
        return Done::Refused(UNKNOWN);
    }
    let (key, flags, len) = (args[0], number::<u32>(args[1]), number::<usize>(args[3]));
    let (Some(flags), Some(len), Some(_)) = (flags, len, number::<i32>(args[2])) else {
        return Done::Refused(BAD_FORMAT);
    };
    let unique = args.get(4).filter(|_| verb == b"cas").map(|word| number::<u64>(word));
    if unique == Some(None) {
        return Done::Refused(BAD_FORMAT);
    }
    let Some((data, used, is_ended)) = block(input, used, len) else { return Done::Wait };
    let reply = if !is_ended {
        BAD_CHUNK
    } else if len > VALUE_MAX {
        store.items.remove(key);
        b"SERVER_ERROR object too large for cache\r\n"
    } else {
        stored(verb, key, flags, data, unique.flatten(), store)
    };
    Done::Used(used, if is_silent { Vec::new() } else { reply.to_vec() })
}

fn stored(
    verb: &[u8],
    key: &[u8],
    flags: u32,
    data: &[u8],
    unique: Option<u64>,
    store: &mut Store,
) -> &'static [u8] {
    let old = store.items.get_mut(key);
    match (verb, old) {
        (b"append", Some(item)) => item.data.extend_from_slice(data),
        (b"prepend", Some(item)) => _ = item.data.splice(..0, data.iter().copied()),
        (b"cas", None) => return b"NOT_FOUND\r\n",
        (b"cas", Some(item)) if Some(item.unique) != unique => return b"EXISTS\r\n",
        (b"add", Some(_)) | (b"replace" | b"append" | b"prepend", None) => {
            return b"NOT_STORED\r\n";
        }
        _ => _ = store.put(key, flags, data.to_vec()),
    }
    b"STORED\r\n"
}

fn count(verb: &[u8], args: &[&[u8]], store: &mut Store) -> Vec<u8> {
    let Some(by) = number::<u64>(args[1]) else {
        return b"CLIENT_ERROR invalid numeric delta argument\r\n".to_vec();
    };
    match counted(args[0], by, verb == b"incr", store) {
        Ok(Some(new)) => format!("{new}\r\n").into_bytes(),
        Ok(None) => b"NOT_FOUND\r\n".to_vec(),
        Err(()) => b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".to_vec(),
    }
}

/// The new number; `None` without an item, an error if it is none.
pub(super) fn counted(
    key: &[u8],
    by: u64,
    is_up: bool,
    store: &mut Store,
) -> Result<Option<u64>, ()> {
    let Some(item) = store.items.get_mut(key) else { return Ok(None) };
    let old: u64 = number(&item.data).ok_or(())?;
    let new = if is_up { old.wrapping_add(by) } else { old.saturating_sub(by) };
    item.data = new.to_string().into_bytes();
    Ok(Some(new))
}

const NOT_BASE64: &[u8] = b"CLIENT_ERROR error decoding key\r\n";

/// The bytes of a key, which may be asked for in base64. `None` if it is none.
fn decoded(key: &[u8], flags: &[&[u8]]) -> Option<Vec<u8>> {
    match has(flags, b'b') {
        true => decode_key(key, &mut [0; KEY_SIZE_MAX]).map(<[u8]>::to_vec),
        false => Some(key.to_vec()),
    }
}

/// A key as replies tell it: in base64, or as its bytes are.
fn told(key: &[u8], in_base64: bool) -> Vec<u8> {
    let mut text = Vec::new();
    match in_base64 {
        true => {
            encode_key(key, &mut text);
            text.extend_from_slice(b" b");
        }
        false => text.extend_from_slice(key),
    }
    text
}

/// The flags that a reply repeats or fills in, in the order of the request.
fn meta_flags(key: &[u8], in_base64: bool, flags: &[&[u8]], item: Option<&Item>) -> Vec<u8> {
    let mut said = Vec::new();
    for flag in flags {
        let text = match (flag[0], item) {
            (b'O', _) => flag.to_vec(),
            (b'k', _) => [b"k", &told(key, in_base64)[..]].concat(),
            (b'f', Some(item)) => format!("f{}", item.flags).into_bytes(),
            (b's', Some(item)) => format!("s{}", item.data.len()).into_bytes(),
            (b'c', Some(item)) => format!("c{}", item.unique).into_bytes(),
            (b't', Some(_)) => b"t-1".to_vec(),
            (b'h' | b'l', Some(_)) => vec![flag[0], b'0'],
            _ => continue,
        };
        said.push(b' ');
        said.extend_from_slice(&text);
    }
    said.extend_from_slice(b"\r\n");
    said
}

fn has(flags: &[&[u8]], name: u8) -> bool {
    flags.iter().any(|flag| flag[0] == name)
}

fn meta(verb: &[u8], args: &[&[u8]], store: &mut Store) -> Vec<u8> {
    let (flags, is_base64) = (&args[1..], has(&args[1..], b'b'));
    let Some(key) = &decoded(args[0], flags) else { return NOT_BASE64.to_vec() };
    let is_quiet = has(flags, b'q');
    let quietly = |reply: Vec<u8>| if is_quiet { Vec::new() } else { reply };
    let with = |code: &[u8], item: Option<&Item>| {
        [code, &meta_flags(key, is_base64, flags, item)].concat()
    };
    match verb {
        b"me" => match store.items.get(key) {
            Some(item) => {
                let key = &told(key, item.has_base64)[..];
                [b"ME ", key, b" exp=-1 la=0 cas=1 fetch=no cls=1 size=60\r\n"].concat()
            }
            None => b"EN\r\n".to_vec(),
        },
        b"md" => match store.items.remove(key) {
            Some(_) => quietly(with(b"HD", None)),
            None => quietly(with(b"NF", None)),
        },
        b"ma" => {
            if has(flags, b'N') && !store.items.contains_key(key) {
                store.put(key, 0, b"0".to_vec());
            } else if counted(key, 1, true, store).is_err() {
                return b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"
                    .to_vec();
            }
            match store.items.get(key) {
                None => quietly(with(b"NF", None)),
                Some(item) if has(flags, b'v') => valued(key, is_base64, flags, item),
                Some(item) => quietly(with(b"HD", Some(item))),
            }
        }
        _ => {
            if has(flags, b'N') && !store.items.contains_key(key) {
                store.put(key, 0, Vec::new());
            }
            match store.items.get(key) {
                None => quietly(b"EN\r\n".to_vec()),
                // The key is told as the item has it, not as it was asked for.
                Some(item) if has(flags, b'v') => valued(key, item.has_base64, flags, item),
                Some(item) => quietly(
                    [b"HD", &meta_flags(key, item.has_base64, flags, Some(item))[..]].concat(),
                ),
            }
        }
    }
}

fn valued(key: &[u8], in_base64: bool, flags: &[&[u8]], item: &Item) -> Vec<u8> {
    let head = format!("VA {}", item.data.len());
    [head.as_bytes(), &meta_flags(key, in_base64, flags, Some(item)), &item.data, b"\r\n"].concat()
}

fn meta_set(args: &[&[u8]], input: &[u8], used: usize, store: &mut Store) -> Done {
    let (Some(key), Some(len)) = (args.first(), args.get(1).and_then(|word| number(word))) else {
        return Done::Refused(BAD_FORMAT);
    };
    let flags = &args[2..];
    if flags.len() > META_FLAGS_MAX {
        return Done::Refused("CLIENT_ERROR options flags too long");
    }
    let Some((data, used, is_ended)) = block(input, used, len) else { return Done::Wait };
    if !is_ended {
        return Done::Used(used, BAD_CHUNK.to_vec());
    }
    if len > VALUE_MAX {
        return Done::Used(used, b"SERVER_ERROR object too large for cache\r\n".to_vec());
    }
    let Some(key) = &decoded(key, flags) else { return Done::Used(used, NOT_BASE64.to_vec()) };
    if has(flags, b'E') {
        // Only newer ones know it.
        return Done::Used(used, b"CLIENT_ERROR invalid flag\r\n".to_vec());
    }
    let mode = flags.iter().find(|flag| flag[0] == b'M').and_then(|flag| flag.get(1));
    let verb: &[u8] = match mode.map(u8::to_ascii_uppercase) {
        Some(b'E') => b"add",
        Some(b'A') => b"append",
        Some(b'P') => b"prepend",
        Some(b'R') => b"replace",
        _ => b"set",
    };
    let unique = flags.iter().find(|flag| flag[0] == b'C').and_then(|flag| number(&flag[1..]));
    let verb = if unique.is_some() { b"cas" } else { verb };
    let number_of = |name| flags.iter().find(|flag| flag[0] == name).map(|flag| &flag[1..]);
    let client_flags = number_of(b'F').and_then(number).unwrap_or(0);
    let code: &[u8] = match stored(verb, key, client_flags, data, unique, store) {
        b"STORED\r\n" => b"HD",
        b"EXISTS\r\n" => b"EX",
        b"NOT_FOUND\r\n" => b"NF",
        _ => b"NS",
    };
    let is_base64 = has(flags, b'b');
    if code == b"HD" && !matches!(verb, b"append" | b"prepend") {
        store.items.entry(key.clone()).and_modify(|item| item.has_base64 = is_base64);
    }
    if code == b"HD" && has(flags, b'q') {
        return Done::Used(used, Vec::new());
    }
    Done::Used(used, [code, &meta_flags(key, is_base64, flags, None)].concat())
}
