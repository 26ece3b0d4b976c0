//! Follows the connections to servers as the gateway must: which request is written when, and which
//! reply belongs to it, by order alone. In runs with surprises this determines what a client may
//! get: the reply that the gateway read in its place, if it matches, else none.

use std::collections::{BTreeMap, VecDeque};

use crate::memcached_server::broadcast_key;
use crate::network::{Conn, Peer, Side};
use crate::oracle::{Oracle, PartRef, owner_of};
use crate::packet::{self, HEADER_SIZE, Packet};
use crate::redis_server;
use crate::request::line_end;
use crate::shape::{self, Reading, Shape};
use crate::world::Fabric;

/// Connections to servers, by number.
#[derive(Default)]
pub(crate) struct Wires {
    wires: BTreeMap<u32, Wire>,
    /// Those whose state is unknown: their servers are to end them.
    pub(crate) lost: Vec<u32>,
}

#[derive(Default)]
struct Wire {
    /// Bytes that the gateway has written; of these and of those about to be written, the ones
    /// split into requests.
    written: u64,
    parsed: u64,
    /// Output that is not split yet.
    tail: Vec<u8>,
    /// Requests not answered.
    queue: VecDeque<Asked>,
    /// Input that is not a whole reply.
    got: Vec<u8>,
    resp3: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Sound,
    /// A reply did not match: the gateway must end the connection.
    Broken,
    /// A reply did not match, which is not detected yet: see [`shape::NOT_YET_STRICT`].
    Unknown,
}

/// A request in flight.
struct Asked {
    shape: Shape,
    parts: Vec<PartRef>,
    /// All commands of one request of a client.
    is_whole: bool,
    /// Its client, if it has no parts that show it.
    client: Option<u32>,
    /// It is an `ms`.
    is_meta_set: bool,
}

impl Asked {
    fn clients(&self) -> impl Iterator<Item = u32> {
        self.parts.iter().map(|part| part.client).chain(self.client)
    }
}

/// A request at the start of the output, and its length.
struct Found<'b> {
    len: usize,
    shape: Shape,
    tag: Vec<u8>,
    keys: Vec<(&'b [u8], Option<Vec<u8>>)>,
    resp3: Option<bool>,
    client: Option<u32>,
    is_meta_set: bool,
}

impl<'b> Found<'b> {
    fn new(len: usize, shape: Shape) -> Self {
        Self {
            len,
            shape,
            tag: Vec::new(),
            keys: Vec::new(),
            resp3: None,
            client: None,
            is_meta_set: false,
        }
    }

    fn of(self, tag: &[u8], key: &'b [u8], payload: Option<Vec<u8>>) -> Self {
        Self { tag: tag.to_vec(), keys: vec![(key, payload)], ..self }
    }
}

impl Fabric {
    /// The gateway has `output` to write on a connection to a server, and has written the first
    /// `taken` bytes of it.
    pub(crate) fn wire_sent(&mut self, conn: u32, output: &[u8], taken: usize) {
        let wire = self.wires.wires.entry(conn).or_default();
        let ahead = wire.parsed.saturating_sub(wire.written) as usize;
        let view = [&wire.tail, &output[ahead.min(output.len())..]].concat();
        let before = wire.parsed;
        wire.written += taken as u64;
        let mut rest = &view[..];
        while wire.parsed < wire.written {
            let found =
                find(rest).expect("requests are as small as what the gateway shows of them");
            rest = &rest[found.len..];
            wire.parsed += found.len as u64;
            wire.resp3 = found.resp3.unwrap_or(wire.resp3);
            let parts: Vec<PartRef> = found
                .keys
                .iter()
                .filter_map(|(key, payload)| {
                    let client = owner_of(key)?;
                    self.oracle.written(client, &found.tag, key, payload.as_deref(), conn)
                })
                .collect();
            let is_whole = parts.first().is_some_and(|first| {
                let is_one = parts.iter().all(|part| part.request == first.request);
                is_one && self.oracle.part_count(*first) == parts.len()
            });
            let shape = if is_whole && found.shape.kind() == shape::Kind::Part {
                Shape::Value
            } else {
                found.shape
            };
            let Found { client, is_meta_set, .. } = found;
            let asked = Asked { shape, parts, is_whole, client, is_meta_set };
            if wire.state == State::Unknown {
                asked.clients().for_each(|client| self.oracle.give_up(client));
            }
            wire.queue.push_back(asked);
        }
        let left = view.len() - rest.len();
        wire.tail = match wire.parsed > wire.written {
            true => Vec::new(),
            false => view[left..view.len().min(left + (wire.written - before) as usize)].to_vec(),
        };
        if wire.parsed == wire.written {
            wire.tail.clear();
        }
    }

    /// The gateway has read bytes of a connection to a server.
    pub(crate) fn wire_received(&mut self, conn: u32, bytes: &[u8]) {
        let wire = self.wires.wires.entry(conn).or_default();
        if wire.state != State::Sound {
            return;
        }
        wire.got.extend_from_slice(bytes);
        while !wire.got.is_empty() {
            if wire.resp3 && wire.got[0] == b'>' {
                match shape::value(&wire.got, 0, true) {
                    Reading::Whole(len) => {
                        wire.got.drain(..len);
                        continue;
                    }
                    Reading::Part => return,
                    Reading::Misfit => {}
                }
            }
            let Some(asked) = wire.queue.front() else {
                wire.state = State::Broken;
                break;
            };
            let refuses_set = asked.is_meta_set && is_refused_set(&wire.got);
            let reading = match refuses_set {
                true => Reading::Misfit,
                false => asked.shape.read(&wire.got, wire.resp3),
            };
            match reading {
                Reading::Part => {
                    // Each value goes to its client as soon as it is complete.
                    note_blocks(asked, &wire.got, false, &mut self.oracle);
                    return;
                }
                Reading::Whole(len) => {
                    let reply: Vec<u8> = wire.got.drain(..len).collect();
                    let asked = wire.queue.pop_front().expect("it was just looked at");
                    tell(&asked, &reply, &mut self.oracle);
                }
                Reading::Misfit => {
                    let is_strict = shape::is_strict(asked.shape.kind());
                    wire.state = if is_strict { State::Broken } else { State::Unknown };
                    let Conn { gateway, peer, .. } = self.network.conn(conn);
                    if let Peer::Server(server) = *peer
                        && refuses_set
                    {
                        let place = self.servers[server as usize];
                        self.oracle.refuses_sets(*gateway, place, self.clock.now());
                    }
                    note_blocks(asked, &wire.got, false, &mut self.oracle);
                    break;
                }
            }
        }
        let (now, conn_number) = (self.clock.now(), u64::from(conn));
        match wire.state {
            State::Sound => {}
            State::Broken => {
                self.oracle.counts.misfits += 1;
                self.trace.note(now, "reply that does not fit on", [conn_number, 0, 0]);
            }
            State::Unknown => {
                self.oracle.counts.unjudged += 1;
                self.trace.note(now, "nobody judges any more", [conn_number, 0, 0]);
                let clients = wire.queue.iter().flat_map(Asked::clients);
                clients.for_each(|client| self.oracle.give_up(client));
                self.wires.lost.push(conn);
            }
        }
    }

    /// A reply that does not match ends the connection at once.
    pub(crate) fn check_wire(&self, conn: u32) {
        let is_broken = self.wires.wires.get(&conn).is_some_and(|wire| wire.state == State::Broken);
        assert!(!is_broken, "I1: connection {conn} goes on behind a reply that does not fit");
    }

    /// Without requests, the remaining connections have as many replies as requests again.
    pub(crate) fn check_wires_at_rest(&mut self) {
        for (&conn, wire) in &self.wires.wires {
            if self.network.is_closed(conn, Side::Gateway)
                || self.network.is_closed(conn, Side::Peer)
            {
                continue;
            }
            let is_even = wire.queue.is_empty() && wire.got.is_empty() && wire.tail.is_empty();
            assert!(is_even, "I3: {} requests are left on {conn}", wire.queue.len());
            assert_eq!(wire.state, State::Sound, "I1: connection {conn} is left");
            self.oracle.untouch(conn);
        }
    }
}

/// The gateway has read a reply in its place.
fn tell(asked: &Asked, reply: &[u8], oracle: &mut Oracle) {
    match &asked.shape {
        Shape::Blocks(_) => note_blocks(asked, reply, true, oracle),
        Shape::Array(_) if reply[0] == b'*' => {
            let mut at = line_end(reply, 0).unwrap_or(reply.len());
            for &part in &asked.parts {
                let Reading::Whole(end) = shape::value(reply, at, true) else { return };
                oracle.tell(part, &reply[at..end], false);
                at = end;
            }
        }
        Shape::Integer if reply[0] == b':' => {
            for (at, &part) in asked.parts.iter().enumerate() {
                oracle.tell(part, if at == 0 { reply } else { b":0\r\n" }, false);
            }
        }
        Shape::Array(_) | Shape::Integer | Shape::Status if reply[0] == b'-' => {
            asked.parts.iter().for_each(|&part| oracle.tell(part, reply, true));
        }
        Shape::Fenced(_) => {
            let shown = &reply[..reply.len() - b"MN\r\n".len()];
            asked.parts.iter().for_each(|&part| oracle.tell(part, shown, false));
        }
        _ if asked.is_whole && asked.parts.len() > 1 => {}
        _ => {
            asked.parts.iter().for_each(|&part| oracle.tell(part, reply, false));
        }
    }
    if let Some(&first) = asked.parts.first().filter(|_| asked.is_whole) {
        oracle.note_whole_reply(first, reply);
    }
}

fn note_blocks(asked: &Asked, reply: &[u8], is_over: bool, oracle: &mut Oracle) {
    let Shape::Blocks(keys) = &asked.shape else { return };
    let (mut found, rest) = shape::split_blocks(reply);
    if is_over && rest != b"END\r\n" {
        // It replaces all, including values that came before it.
        oracle.note_error(asked.parts.iter().copied(), rest);
    }
    for (&part, key) in asked.parts.iter().zip(keys) {
        match found.iter().position(|(named, _)| named == key) {
            Some(at) => oracle.tell(part, found.remove(at).1, false),
            None if !is_over => {}
            None if rest == b"END\r\n" => oracle.tell(part, b"", false),
            None => oracle.tell(part, rest, true),
        }
    }
}

/// Whether a server says so that it does not know `ms`, and has read the data as commands.
fn is_refused_set(reply: &[u8]) -> bool {
    let is_refusal = reply.starts_with(b"ERROR") || reply.starts_with(b"CLIENT_ERROR invalid flag");
    is_refusal && line_end(reply, 0).is_some()
}

/// The request at the start of `bytes`, if it is complete.
fn find(bytes: &[u8]) -> Option<Found<'_>> {
    match bytes.first()? {
        b'*' => find_redis(bytes),
        0x80 => find_packet(bytes),
        _ => find_text(bytes),
    }
}

fn find_redis(bytes: &[u8]) -> Option<Found<'_>> {
    let (args, len) = redis_server::parse(bytes)?;
    let name = args[0].to_ascii_uppercase();
    let count = args.len() - 1;
    let mut found = Found::new(len, Shape::Value);
    found.tag = args[0].to_vec();
    let keys = &args[1..];
    match name.as_slice() {
        b"HELLO" => found.resp3 = Some(keys.first() == Some(&&b"3"[..])),
        b"GET" | b"STRLEN" => found.keys = vec![(keys[0], None)],
        b"SET" | b"INCRBY" => found.keys = vec![(keys[0], Some(keys[1].to_vec()))],
        b"MSET" => {
            found.keys = keys.chunks(2).map(|pair| (pair[0], Some(pair[1].to_vec()))).collect();
            found.shape = Shape::Status;
        }
        b"MGET" | b"DEL" | b"UNLINK" | b"EXISTS" | b"TOUCH" => {
            found.keys = keys.iter().map(|&key| (key, None)).collect();
            found.shape = if name == b"MGET" { Shape::Array(count) } else { Shape::Integer };
        }
        _ => {}
    }
    Some(found)
}

fn find_packet(bytes: &[u8]) -> Option<Found<'_>> {
    if bytes.len() < HEADER_SIZE {
        return None;
    }
    let (asked, len) = Packet::read(bytes)?;
    let shape = Shape::Packet { opcode: asked.opcode, opaque: asked.opaque };
    let payload = packet::payload(asked.opcode, asked.opaque, asked.value);
    Some(Found::new(len, shape).of(&packet::tag_of(asked.opaque), asked.key, Some(payload)))
}

fn find_text(bytes: &[u8]) -> Option<Found<'_>> {
    let end = line_end(bytes, 0)?;
    let line = &bytes[..end - 2];
    let indent = line.iter().take_while(|&&byte| byte == b' ').count();
    let words: Vec<&[u8]> =
        line.split(|&byte| byte == b' ').filter(|word| !word.is_empty()).collect();
    let verb = words[0];
    let tag = &line[..indent + verb.len()];
    let word = |at: usize| words.get(at).map(|word| word.to_vec());
    let changed = |shape: Shape| Found::new(end, shape).of(tag, words[1], word(2));
    Some(match verb {
        b"get" | b"gets" | b"gat" | b"gats" => {
            let first = if verb.starts_with(b"gat") { 2 } else { 1 };
            let payload = (first == 2).then(|| words[1].to_vec());
            let keys = &words[first..];
            let shape = Shape::Blocks(keys.iter().map(|key| key.to_vec()).collect());
            let keys = keys.iter().map(|&key| (key, payload.clone())).collect();
            Found { tag: tag.to_vec(), keys, ..Found::new(end, shape) }
        }
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => {
            let (len, data) = data(bytes, end, words[4])?;
            let shape = Shape::Line(&["STORED", "NOT_STORED", "EXISTS", "NOT_FOUND"]);
            Found::new(len, shape).of(tag, words[1], Some(data))
        }
        b"delete" => {
            Found::new(end, Shape::Line(&["DELETED", "NOT_FOUND"])).of(tag, words[1], None)
        }
        b"touch" => changed(Shape::Line(&["TOUCHED", "NOT_FOUND"])),
        b"incr" | b"decr" => changed(Shape::Count),
        b"flush_all" | b"verbosity" => {
            let number = std::str::from_utf8(words[1]).ok().and_then(|text| text.parse().ok());
            let client = owner_of(&broadcast_key(number.expect("clients send numbers")));
            const FENCE: &[u8] = b"version\r\n";
            match verb == b"verbosity" && shape::is_strict(shape::Kind::Line) {
                true => {
                    bytes.get(end..end + FENCE.len()).filter(|fence| *fence == FENCE)?;
                    Found { client, ..Found::new(end + FENCE.len(), Shape::Told) }
                }
                false => Found { client, ..Found::new(end, Shape::Line(&["OK"])) },
            }
        }
        b"version" => Found::new(end, Shape::Version),
        b"mn" => Found::new(end, Shape::Meta(&["MN"])),
        b"mg" | b"ms" | b"md" | b"ma" => return find_meta(bytes, end, &words),
        _ => panic!("I1: a server is sent {}", line.escape_ascii()),
    })
}

fn data(bytes: &[u8], at: usize, size: &[u8]) -> Option<(usize, Vec<u8>)> {
    let size: usize = std::str::from_utf8(size).ok()?.parse().ok()?;
    bytes.get(..at + size + 2)?;
    Some((at + size + 2, bytes[at..at + size].to_vec()))
}

fn find_meta<'b>(bytes: &'b [u8], end: usize, words: &[&'b [u8]]) -> Option<Found<'b>> {
    let verb = words[0];
    let mut len = end;
    let opaque = words.iter().find_map(|word| word.strip_prefix(b"O")).expect("clients give them");
    let dot = opaque.iter().position(|&byte| byte == b'.').expect("they have a dot");
    let mut payload = [verb, &opaque[dot..], b" "].concat();
    if verb == b"ms" {
        let (next, value) = data(bytes, end, words[2])?;
        payload.extend_from_slice(&value);
        len = next;
    }
    let codes: &'static [&'static str] = match verb {
        b"mg" => &["VA", "HD", "EN"],
        b"ms" => &["HD", "NS", "EX", "NF"],
        b"md" if !words.contains(&&b"q"[..]) => &["HD", "NS", "EX", "NF"],
        _ => &["HD", "VA", "NF", "NS", "EX"],
    };
    let first = if verb == b"ms" { 3 } else { 2 };
    let shape = match words[first..].contains(&&b"q"[..]) {
        true => {
            // The gateway adds a fence after a request without a certain reply.
            bytes.get(len..len + 4).filter(|fence| fence == b"mn\r\n")?;
            len += 4;
            Shape::Fenced(codes)
        }
        false => Shape::Meta(codes),
    };
    let tag = [b"O", &opaque[..dot]].concat();
    let is_meta_set = verb == b"ms";
    Some(Found { is_meta_set, ..Found::new(len, shape).of(&tag, words[1], Some(payload)) })
}
