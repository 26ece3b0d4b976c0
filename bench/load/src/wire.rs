//! What goes over the wire: requests built from templates, replies checked byte by byte.
//!
//! Every key is `key:` and ten digits, and every value starts with its key, so a reply that
//! reached the wrong request or the wrong client is noticed at once. Values have one of two sizes,
//! which the key decides, so that a reply's size can be checked too.

use std::collections::VecDeque;

pub const KEY_LEN: usize = 14;

/// Distance between the keys of one multi-key request; prime, so that they differ.
const MGET_STRIDE: u64 = 7919;
/// Longest reply line that is not a value.
const MAX_LINE: usize = 1024;
/// Pieces of a value longer than this are compared at their edges only.
const FULL_COMPARE: usize = 8192;
const EDGE: usize = 256;

/// Packets of the binary protocol: the header, and the flags before a value.
const PACKET_HEADER: usize = 24;
const PACKET_FLAGS: usize = 4;
const PACKET_GET: u8 = 0;
const PACKET_SET: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    Redis,
    Memcached,
    /// memcached's meta commands.
    Meta,
    /// memcached's binary protocol.
    Binary,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Get,
    Set,
    MultiGet,
}

/// A request on its way: what it asked and since when it counts, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub since: u64,
    pub op: Op,
    pub key: u32,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    pub hits: u32,
    pub misses: u32,
    pub error: bool,
}

/// How long values are: `small`, and `large` for this many of every hundred keys.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub small: usize,
    pub large: usize,
    pub large_percent: u32,
}

/// What the values of one size have in common.
struct Class {
    /// The value of any key, with its own key to be put over the first bytes, and CR LF where the
    /// protocol has it.
    value: Vec<u8>,
    len: usize,
    set_head: Vec<u8>,
    set_middle: Vec<u8>,
}

impl Class {
    fn new(protocol: Protocol, len: usize) -> Self {
        let mut value: Vec<u8> = b"cashewnut0123456789".iter().copied().cycle().take(len).collect();
        if protocol != Protocol::Binary {
            value.extend_from_slice(b"\r\n");
        }
        let (set_head, set_middle) = match protocol {
            Protocol::Redis => (
                format!("*3\r\n$3\r\nSET\r\n${KEY_LEN}\r\n").into_bytes(),
                format!("\r\n${len}\r\n"),
            ),
            Protocol::Memcached => (b"set ".to_vec(), format!(" 0 0 {len}\r\n")),
            Protocol::Meta => (b"ms ".to_vec(), format!(" {len}\r\n")),
            Protocol::Binary => (packet_head(PACKET_SET, 8, len), String::new()),
        };
        Self { value, len, set_head, set_middle: set_middle.into_bytes() }
    }
}

/// The fixed part of the work: protocol, keys, sizes and the templates made from them.
pub struct Wire {
    protocol: Protocol,
    keys: Vec<[u8; KEY_LEN]>,
    multi: u32,
    small: Class,
    large: Class,
    large_percent: u32,
    get_head: Vec<u8>,
    get_tail: &'static [u8],
    multi_head: Vec<u8>,
}

impl Wire {
    pub fn new(protocol: Protocol, keys: u32, sizes: Sizes, multi: u32) -> Self {
        let (get_head, get_tail, multi_head) = match protocol {
            Protocol::Redis => (
                format!("*2\r\n$3\r\nGET\r\n${KEY_LEN}\r\n").into_bytes(),
                &b"\r\n"[..],
                format!("*{}\r\n$4\r\nMGET\r\n", multi + 1),
            ),
            Protocol::Memcached => (b"get ".to_vec(), &b"\r\n"[..], "get".into()),
            Protocol::Meta => (b"mg ".to_vec(), &b" v\r\n"[..], String::new()),
            Protocol::Binary => (packet_head(PACKET_GET, 0, 0), &b""[..], String::new()),
        };
        Self {
            protocol,
            keys: (0..keys).map(key_name).collect(),
            multi,
            small: Class::new(protocol, sizes.small),
            large: Class::new(protocol, sizes.large),
            large_percent: sizes.large_percent,
            get_head,
            get_tail,
            multi_head: multi_head.into_bytes(),
        }
    }

    pub fn key_count(&self) -> u32 {
        self.keys.len() as u32
    }

    pub fn append(&self, out: &mut Vec<u8>, op: Op, key: u32) {
        let name = &self.keys[key as usize];
        match op {
            Op::Get => {
                out.extend_from_slice(&self.get_head);
                out.extend_from_slice(name);
                out.extend_from_slice(self.get_tail);
            }
            Op::Set => {
                let class = self.class(key);
                out.extend_from_slice(&class.set_head);
                out.extend_from_slice(name);
                out.extend_from_slice(&class.set_middle);
                out.extend_from_slice(name);
                out.extend_from_slice(&class.value[KEY_LEN..]);
            }
            Op::MultiGet => self.append_multi(out, key),
        }
    }

    fn append_multi(&self, out: &mut Vec<u8>, first: u32) {
        out.extend_from_slice(&self.multi_head);
        for index in 0..self.multi {
            let name = &self.keys[self.multi_key(first, index) as usize];
            match self.protocol {
                Protocol::Redis => {
                    out.extend_from_slice(b"$14\r\n");
                    out.extend_from_slice(name);
                    out.extend_from_slice(b"\r\n");
                }
                Protocol::Memcached => {
                    out.push(b' ');
                    out.extend_from_slice(name);
                }
                Protocol::Meta | Protocol::Binary => {
                    unreachable!("a request of these has one key")
                }
            }
        }
        if self.protocol == Protocol::Memcached {
            out.extend_from_slice(b"\r\n");
        }
    }

    fn multi_key(&self, first: u32, index: u32) -> u32 {
        ((u64::from(first) + u64::from(index) * MGET_STRIDE) % self.keys.len() as u64) as u32
    }

    fn class(&self, key: u32) -> &Class {
        if key % 100 < self.large_percent { &self.large } else { &self.small }
    }

    fn value_len(&self, key: u32) -> usize {
        self.class(key).len
    }

    fn asked(&self, request: Pending) -> u32 {
        if request.op == Op::MultiGet { self.multi } else { 1 }
    }
}

/// The header of a request with a key, and its extras, which are zero.
fn packet_head(opcode: u8, extras: u8, value: usize) -> Vec<u8> {
    let mut head = vec![0; PACKET_HEADER + usize::from(extras)];
    head[..2].copy_from_slice(&[0x80, opcode]);
    head[2..4].copy_from_slice(&(KEY_LEN as u16).to_be_bytes());
    head[4] = extras;
    let body = (usize::from(extras) + KEY_LEN + value) as u32;
    head[8..12].copy_from_slice(&body.to_be_bytes());
    head
}

fn key_name(id: u32) -> [u8; KEY_LEN] {
    let mut name = *b"key:0000000000";
    let (mut rest, mut at) = (id, KEY_LEN);
    while rest > 0 {
        at -= 1;
        name[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    name
}

/// A reply that cannot be right: the run must fail.
#[derive(Debug)]
pub struct Mismatch(pub String);

/// What one reply line means for the request it answers.
enum Step {
    Finished(Outcome),
    /// More lines of the same reply follow.
    Continues,
    /// The value of this key follows.
    Value(u32),
}

/// Reads the replies of one connection, however they are cut.
#[derive(Default)]
pub struct Checker {
    /// The start of a line, or of a packet's header, whose end has not arrived.
    carry: Vec<u8>,
    /// Inside a value: whose, and how much of it (CR LF included) has been seen.
    value: Option<(u32, usize)>,
    /// Inside a RESP array: elements still to come.
    elements: u32,
    outcome: Outcome,
    pub first_error: Option<String>,
}

impl Checker {
    /// Takes what was received and calls `finished` for every request that got its whole reply.
    pub fn feed(
        &mut self,
        wire: &Wire,
        mut data: &[u8],
        pending: &mut VecDeque<Pending>,
        mut finished: impl FnMut(Pending, Outcome),
    ) -> Result<(), Mismatch> {
        while !data.is_empty() {
            let Some(&request) = pending.front() else {
                return Err(Mismatch(format!("a reply to no request: {}", printable(data))));
            };
            let done = if let Some((key, seen)) = self.value {
                let end = (wire.class(key).value.len() - seen).min(data.len());
                let (piece, rest) = data.split_at(end);
                data = rest;
                self.value_piece(wire, request, key, seen, piece)?
            } else if wire.protocol == Protocol::Binary {
                let (rest, done) = self.packet_piece(wire, request, data)?;
                data = rest;
                done
            } else {
                let Some(end) = data.iter().position(|&byte| byte == b'\n') else {
                    return self.keep(data);
                };
                let (piece, rest) = data.split_at(end + 1);
                data = rest;
                self.line_piece(wire, request, piece)?
            };
            if let Some(outcome) = done {
                pending.pop_front();
                finished(request, outcome);
            }
        }
        Ok(())
    }

    fn keep(&mut self, piece: &[u8]) -> Result<(), Mismatch> {
        self.carry.extend_from_slice(piece);
        if self.carry.len() > MAX_LINE {
            return Err(Mismatch(format!("an endless reply line: {}", printable(&self.carry))));
        }
        Ok(())
    }

    fn value_piece(
        &mut self,
        wire: &Wire,
        request: Pending,
        key: u32,
        seen: usize,
        piece: &[u8],
    ) -> Result<Option<Outcome>, Mismatch> {
        if !matches_value(wire, key, seen, piece) {
            return Err(Mismatch(format!(
                "the value of {} is not its own at byte {seen}: {}",
                printable(&wire.keys[key as usize]),
                printable(piece)
            )));
        }
        if seen + piece.len() < wire.class(key).value.len() {
            self.value = Some((key, seen + piece.len()));
            return Ok(None);
        }
        self.value = None;
        self.outcome.hits += 1;
        // memcached's text says END after the values; elsewhere the last value is the end.
        Ok((wire.protocol != Protocol::Memcached && self.element_done(request))
            .then(|| self.take()))
    }

    fn line_piece(
        &mut self,
        wire: &Wire,
        request: Pending,
        piece: &[u8],
    ) -> Result<Option<Outcome>, Mismatch> {
        let carried = !self.carry.is_empty();
        let whole = if carried {
            self.carry.extend_from_slice(piece);
            std::mem::take(&mut self.carry)
        } else {
            Vec::new()
        };
        let line = if carried { &whole[..] } else { piece };
        let bad = || Mismatch(format!("unexpected reply to {:?}: {}", request.op, printable(line)));
        let Some(text) = line.strip_suffix(b"\r\n") else {
            return Err(bad());
        };
        let step = match wire.protocol {
            Protocol::Redis => self.redis_line(wire, request, text),
            Protocol::Memcached => self.memcached_line(wire, request, text),
            Protocol::Meta => self.meta_line(wire, request, text),
            Protocol::Binary => unreachable!("packets are no lines"),
        };
        match step.ok_or_else(bad)? {
            Step::Finished(outcome) => Ok(Some(outcome)),
            Step::Continues => Ok(None),
            Step::Value(key) => {
                self.value = Some((key, 0));
                Ok(None)
            }
        }
    }

    fn redis_line(&mut self, wire: &Wire, request: Pending, line: &[u8]) -> Option<Step> {
        let (&kind, rest) = line.split_first()?;
        match (kind, request.op) {
            (b'-', _) if self.elements == 0 => Some(self.failed(line)),
            (b'+', Op::Set) if rest == b"OK" => Some(Step::Finished(Outcome::default())),
            (b'*', Op::MultiGet) if self.elements == 0 => {
                self.elements = (number(rest)? == wire.multi as usize).then_some(wire.multi)?;
                Some(Step::Continues)
            }
            (b'_', Op::Get) => Some(self.missed(request)),
            (b'_', Op::MultiGet) if self.elements > 0 => Some(self.missed(request)),
            (b'$', Op::Get) => self.redis_value(wire, request, rest, request.key),
            (b'$', Op::MultiGet) if self.elements > 0 => {
                let key = wire.multi_key(request.key, wire.multi - self.elements);
                self.redis_value(wire, request, rest, key)
            }
            _ => None,
        }
    }

    fn redis_value(&mut self, wire: &Wire, request: Pending, len: &[u8], key: u32) -> Option<Step> {
        if len != b"-1" {
            return (number(len)? == wire.value_len(key)).then_some(Step::Value(key));
        }
        Some(self.missed(request))
    }

    fn missed(&mut self, request: Pending) -> Step {
        self.outcome.misses += 1;
        let done = self.element_done(request);
        if done { Step::Finished(self.take()) } else { Step::Continues }
    }

    fn memcached_line(&mut self, wire: &Wire, request: Pending, line: &[u8]) -> Option<Step> {
        if line == b"ERROR"
            || line.starts_with(b"SERVER_ERROR")
            || line.starts_with(b"CLIENT_ERROR")
        {
            return Some(self.failed(line));
        }
        if request.op == Op::Set {
            return (line == b"STORED").then(|| Step::Finished(Outcome::default()));
        }
        if line == b"END" {
            let misses = wire.asked(request).checked_sub(self.outcome.hits)?;
            self.outcome.misses = misses;
            return Some(Step::Finished(self.take()));
        }
        let mut words = line.strip_prefix(b"VALUE ")?.split(|&byte| byte == b' ');
        let name = words.next()?;
        let (_flags, len) = (words.next()?, words.next()?);
        let key = match request.op {
            Op::Get => Some(request.key),
            _ => (0..wire.multi)
                .map(|index| wire.multi_key(request.key, index))
                .find(|&key| wire.keys[key as usize] == name),
        }?;
        (wire.keys[key as usize] == name && number(len)? == wire.value_len(key))
            .then_some(Step::Value(key))
    }

    fn meta_line(&mut self, wire: &Wire, request: Pending, line: &[u8]) -> Option<Step> {
        match (request.op, line) {
            (Op::Set, b"HD") => Some(Step::Finished(Outcome::default())),
            (Op::Get, b"EN") => {
                self.outcome.misses = 1;
                Some(Step::Finished(self.take()))
            }
            (Op::Get, _) if line.starts_with(b"VA ") => (number(&line[3..])?
                == wire.value_len(request.key))
            .then_some(Step::Value(request.key)),
            _ if line.starts_with(b"SERVER_ERROR")
                || line.starts_with(b"CLIENT_ERROR")
                || line == b"ERROR" =>
            {
                Some(self.failed(line))
            }
            _ => None,
        }
    }

    /// Takes in a packet as far as its value; returns what is behind that.
    fn packet_piece<'d>(
        &mut self,
        wire: &Wire,
        request: Pending,
        mut data: &'d [u8],
    ) -> Result<(&'d [u8], Option<Outcome>), Mismatch> {
        loop {
            let Some(need) = self.packet_need(wire, request) else {
                let packet = printable(&self.carry);
                return Err(Mismatch(format!("unexpected reply to {:?}: {packet}", request.op)));
            };
            let missing = need - self.carry.len();
            if missing == 0 {
                return Ok((data, self.packet_step(request)));
            }
            if data.is_empty() {
                return Ok((data, None));
            }
            let (piece, rest) = data.split_at(missing.min(data.len()));
            self.carry.extend_from_slice(piece);
            data = rest;
        }
    }

    /// How many bytes of a packet are needed in one piece, by what has come of it.
    fn packet_need(&self, wire: &Wire, request: Pending) -> Option<usize> {
        let Some(header) = self.carry.first_chunk::<PACKET_HEADER>() else {
            return Some(PACKET_HEADER);
        };
        let opcode = if request.op == Op::Set { PACKET_SET } else { PACKET_GET };
        let body = u32::from_be_bytes(*header[8..].first_chunk()?) as usize;
        let is_value = request.op == Op::Get && header[6..8] == [0, 0];
        let fits = match is_value {
            true => body == PACKET_FLAGS + wire.value_len(request.key),
            false => body <= MAX_LINE,
        };
        let rest = if is_value { PACKET_FLAGS } else { body };
        (header[..2] == [0x81, opcode] && fits).then_some(PACKET_HEADER + rest)
    }

    fn packet_step(&mut self, request: Pending) -> Option<Outcome> {
        let packet = std::mem::take(&mut self.carry);
        let step = match (request.op, packet[7]) {
            (Op::Get, 0) => Step::Value(request.key),
            (_, 0) => Step::Finished(Outcome::default()),
            (Op::Get, 1) => Step::Finished(Outcome { misses: 1, ..Outcome::default() }),
            _ => self.failed(&packet[PACKET_HEADER..]),
        };
        match step {
            Step::Finished(outcome) => Some(outcome),
            Step::Continues => None,
            Step::Value(key) => {
                self.value = Some((key, 0));
                None
            }
        }
    }

    fn failed(&mut self, line: &[u8]) -> Step {
        self.first_error.get_or_insert_with(|| printable(line));
        self.outcome.error = true;
        Step::Finished(self.take())
    }

    /// Whether the value just seen was the last of its reply.
    fn element_done(&mut self, request: Pending) -> bool {
        if request.op == Op::MultiGet {
            self.elements -= 1;
        }
        self.elements == 0
    }

    fn take(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }
}

fn matches_value(wire: &Wire, key: u32, seen: usize, piece: &[u8]) -> bool {
    let expected = &wire.class(key).value[seen..seen + piece.len()];
    if seen >= KEY_LEN {
        return same(piece, expected);
    }
    let own = (KEY_LEN - seen).min(piece.len());
    piece[..own] == wire.keys[key as usize][seen..seen + own]
        && same(&piece[own..], &expected[own..])
}

fn same(left: &[u8], right: &[u8]) -> bool {
    if left.len() <= FULL_COMPARE {
        return left == right;
    }
    let tail = left.len() - EDGE;
    left[..EDGE] == right[..EDGE] && left[tail..] == right[tail..]
}

fn number(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 12 {
        return None;
    }
    digits.iter().try_fold(0usize, |value, &byte| {
        byte.is_ascii_digit().then(|| value * 10 + usize::from(byte - b'0'))
    })
}

fn printable(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(80)].escape_ascii().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_size(protocol: Protocol, keys: u32, len: usize, multi: u32) -> Wire {
        Wire::new(protocol, keys, Sizes { small: len, large: len, large_percent: 0 }, multi)
    }

    fn replies(
        wire: &Wire,
        op: Op,
        key: u32,
        reply: &[u8],
        cut: usize,
    ) -> Result<Vec<Outcome>, Mismatch> {
        let mut pending = VecDeque::from([Pending { since: 0, op, key }]);
        let (mut checker, mut seen) = (Checker::default(), Vec::new());
        for piece in [&reply[..cut], &reply[cut..]] {
            checker.feed(wire, piece, &mut pending, |_, outcome| seen.push(outcome))?;
        }
        Ok(seen)
    }

    fn value(id: u32, len: usize) -> Vec<u8> {
        let mut value: Vec<u8> = b"cashewnut0123456789".iter().copied().cycle().take(len).collect();
        value[..KEY_LEN].copy_from_slice(&key_name(id));
        value
    }

    fn bulk(id: u32, len: usize) -> Vec<u8> {
        [format!("${len}\r\n").as_bytes(), &value(id, len), b"\r\n"].concat()
    }

    #[test]
    fn any_cut_of_a_redis_value_is_accepted() {
        let wire = one_size(Protocol::Redis, 100, 40, 1);
        let reply = bulk(7, 40);
        for cut in 0..=reply.len() {
            let seen = replies(&wire, Op::Get, 7, &reply, cut).unwrap();
            assert_eq!((seen.len(), seen[0].hits), (1, 1), "cut at {cut}");
        }
    }

    #[test]
    fn the_key_decides_the_size() {
        let sizes = Sizes { small: 40, large: 9000, large_percent: 5 };
        let wire = Wire::new(Protocol::Redis, 1000, sizes, 1);
        assert_eq!((wire.value_len(404), wire.value_len(405)), (9000, 40));
        assert_eq!(replies(&wire, Op::Get, 404, &bulk(404, 9000), 100).unwrap()[0].hits, 1);
        assert!(replies(&wire, Op::Get, 404, &bulk(404, 40), 0).is_err());
    }

    #[test]
    fn a_value_of_another_key_is_refused() {
        let wire = one_size(Protocol::Redis, 100, 40, 1);
        assert!(replies(&wire, Op::Get, 8, &bulk(7, 40), 0).is_err());
    }

    #[test]
    fn a_reply_to_nobody_is_refused() {
        let wire = one_size(Protocol::Redis, 100, 40, 1);
        let reply = [bulk(7, 40), b"+OK\r\n".to_vec()].concat();
        assert!(replies(&wire, Op::Get, 7, &reply, 0).is_err());
    }

    #[test]
    fn an_error_and_a_miss_are_counted_apart() {
        let wire = one_size(Protocol::Redis, 100, 40, 1);
        assert!(replies(&wire, Op::Get, 7, b"-ERR no\r\n", 3).unwrap()[0].error);
        assert_eq!(replies(&wire, Op::Get, 7, b"$-1\r\n", 2).unwrap()[0].misses, 1);
    }

    #[test]
    fn an_array_answers_its_keys_in_order() {
        let wire = one_size(Protocol::Redis, 100_000, 40, 3);
        let keys: Vec<u32> = (0..3).map(|index| wire.multi_key(5, index)).collect();
        let reply = [&b"*3\r\n"[..], &bulk(keys[0], 40), b"$-1\r\n", &bulk(keys[2], 40)].concat();
        for cut in 0..=reply.len() {
            let seen = replies(&wire, Op::MultiGet, 5, &reply, cut).unwrap();
            assert_eq!((seen[0].hits, seen[0].misses), (2, 1), "cut at {cut}");
        }
        let swapped = [&b"*3\r\n"[..], &bulk(keys[1], 40), &bulk(keys[0], 40), b"$-1\r\n"].concat();
        assert!(replies(&wire, Op::MultiGet, 5, &swapped, 0).is_err());
    }

    #[test]
    fn memcached_values_may_come_in_any_order_but_only_those_asked() {
        let wire = one_size(Protocol::Memcached, 100_000, 40, 2);
        let item = |key| {
            [format!("VALUE key:{key:010} 0 40\r\n").as_bytes(), &value(key, 40), b"\r\n"].concat()
        };
        let (first, second) = (wire.multi_key(5, 0), wire.multi_key(5, 1));
        let reply = [&item(second)[..], &item(first), b"END\r\n"].concat();
        for cut in 0..=reply.len() {
            assert_eq!(replies(&wire, Op::MultiGet, 5, &reply, cut).unwrap()[0].hits, 2);
        }
        assert!(replies(&wire, Op::MultiGet, 5, &item(first + 1), 0).is_err());
        assert_eq!(replies(&wire, Op::Get, 5, b"END\r\n", 1).unwrap()[0].misses, 1);
    }

    #[test]
    fn meta_and_binary_replies_are_accepted_at_any_cut() {
        let packet = |opcode: u8, status: u8, body: &[u8]| {
            let mut head = [0; PACKET_HEADER];
            (head[0], head[1], head[7], head[11]) = (0x81, opcode, status, body.len() as u8);
            [&head[..], body].concat()
        };
        let (own, other) = ([&[0; 4], &value(7, 40)[..]].concat(), value(8, 40));
        for (protocol, hit, miss, stored, wrong) in [
            (
                Protocol::Meta,
                [b"VA 40\r\n", &value(7, 40)[..], b"\r\n"].concat(),
                b"EN\r\n".to_vec(),
                b"HD\r\n".to_vec(),
                [b"VA 40\r\n", &other[..], b"\r\n"].concat(),
            ),
            (
                Protocol::Binary,
                packet(PACKET_GET, 0, &own),
                packet(PACKET_GET, 1, b"Not found"),
                packet(PACKET_SET, 0, b""),
                packet(PACKET_GET, 0, &[&[0; 4], &other[..]].concat()),
            ),
        ] {
            let wire = one_size(protocol, 100, 40, 1);
            for cut in 0..=hit.len() {
                assert_eq!(replies(&wire, Op::Get, 7, &hit, cut).unwrap()[0].hits, 1);
            }
            assert_eq!(replies(&wire, Op::Get, 7, &miss, 1).unwrap()[0].misses, 1);
            assert_eq!(replies(&wire, Op::Set, 7, &stored, 1).unwrap().len(), 1);
            assert!(replies(&wire, Op::Get, 7, &wrong, 9).is_err());
            assert!(replies(&wire, Op::Get, 7, &stored, 0).is_err());
        }
    }

    #[test]
    fn requests_read_as_the_protocol_says() {
        let mut out = Vec::new();
        let wire = one_size(Protocol::Redis, 100, 15, 2);
        wire.append(&mut out, Op::Set, 7);
        assert_eq!(
            out,
            b"*3\r\n$3\r\nSET\r\n$14\r\nkey:0000000007\r\n$15\r\nkey:0000000007t\r\n"
                .map(|byte| if byte == b't' { wire.small.value[14] } else { byte })
        );
        out.clear();
        one_size(Protocol::Memcached, 10_000, 20, 2).append(&mut out, Op::MultiGet, 7);
        assert_eq!(out, b"get key:0000000007 key:0000007926\r\n");
    }
}
