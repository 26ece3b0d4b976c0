//! Messages of DNS (RFC 1035, 2782, 3596, 6891), as far as addresses and services need them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest answer by UDP that is asked for: no path cuts it up.
pub(crate) const UDP_SIZE: u16 = 1232;
/// Names that refer to others, one after the other: more are a circle.
const JUMPS_MAX: usize = 32;
const NAME_SIZE_MAX: usize = 255;

const IN: u16 = 1;
const CNAME: u16 = 5;
const OPT: u16 = 41;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    A = 1,
    Aaaa = 28,
    Srv = 33,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Seconds.
    pub(crate) ttl: u32,
    pub(crate) data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Address(IpAddr),
    Service { priority: u16, weight: u16, port: u16, target: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// It does not have all: it is to be asked for by TCP.
    pub(crate) is_truncated: bool,
    /// 0 is none.
    pub(crate) error: u8,
    /// Those of the kind that was asked for, of the name that was asked for or one that it is an alias of.
    pub(crate) records: Vec<Record>,
}

/// A record in an answer.
enum Told {
    Record(Record),
    /// Its name is an alias of this one.
    Alias(String),
    /// Of another kind.
    Other,
}

/// A question. The name has labels of a proper size.
pub(crate) fn question(id: u16, name: &str, kind: Kind) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.len() + 32);
    // Recursion is desired. One question, and one additional record, which tells how much there is room for.
    for word in [id, 0x0100, 1, 0, 0, 1] {
        bytes.extend(word.to_be_bytes());
    }
    write_name(&mut bytes, name);
    bytes.extend((kind as u16).to_be_bytes());
    bytes.extend(IN.to_be_bytes());
    bytes.push(0);
    for word in [OPT, UDP_SIZE, 0, 0, 0] {
        bytes.extend(word.to_be_bytes());
    }
    bytes
}

fn write_name(bytes: &mut Vec<u8>, name: &str) {
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(label.len() as u8);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
}

/// What answers that question. `None` if it is no message, or answers another question.
pub(crate) fn reply(bytes: &[u8], id: u16, name: &str, kind: Kind) -> Option<Reply> {
    let mut reader = Reader { bytes, at: 0 };
    let (its, flags) = (reader.word()?, reader.word()?);
    let (questions, answers) = (reader.word()?, reader.word()?);
    reader.skip(4)?;
    let is_response = flags & 0x8000 != 0;
    if its != id || !is_response || questions != 1 {
        return None;
    }
    let asked = reader.name()?;
    if !asked.eq_ignore_ascii_case(name) || reader.word()? != kind as u16 || reader.word()? != IN {
        return None;
    }
    let (is_truncated, error) = (flags & 0x0200 != 0, (flags & 0xf) as u8);
    let mut told = Vec::new();
    // One that is cut off may end anywhere.
    for _ in 0..if is_truncated { 0 } else { answers } {
        told.push(reader.record(kind)?);
    }
    let names = names_of(name, &told);
    let is_of = |owner: &str| names.iter().any(|it| it.eq_ignore_ascii_case(owner));
    let records = told.iter().filter_map(|(owner, told)| match told {
        Told::Record(record) if is_of(owner) => Some(record.clone()),
        _ => None,
    });
    let records = records.collect();
    Some(Reply { is_truncated, error, records })
}

/// A name, and those that it is an alias of, one by the other. Aliases may come in any order.
fn names_of<'n>(name: &'n str, told: &'n [(String, Told)]) -> Vec<&'n str> {
    let mut names = vec![name];
    while names.len() <= JUMPS_MAX {
        let last = names[names.len() - 1];
        let next = told.iter().find_map(|(owner, told)| match told {
            Told::Alias(target) if owner.eq_ignore_ascii_case(last) => Some(target.as_str()),
            _ => None,
        });
        match next.filter(|next| !names.iter().any(|it| it.eq_ignore_ascii_case(next))) {
            Some(next) => names.push(next),
            None => break,
        }
    }
    names
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(size)?)?;
        self.at += size;
        Some(taken)
    }

    fn skip(&mut self, size: usize) -> Option<()> {
        self.take(size).map(|_| ())
    }

    fn word(&mut self) -> Option<u16> {
        let bytes = self.take(2)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    }

    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let (mut at, mut jumps) = (self.at, 0);
        loop {
            let size = usize::from(*self.bytes.get(at)?);
            at += 1;
            match size {
                0 => break,
                1..=63 => {
                    let label = self.bytes.get(at..at + size)?;
                    at += size;
                    if !name.is_empty() {
                        name.push('.');
                    }
                    // A label with a dot, or with what is no ASCII, is no name of a host.
                    if !label.iter().all(|it| it.is_ascii_graphic() && *it != b'.') {
                        return None;
                    }
                    name.push_str(str::from_utf8(label).ok()?);
                    if name.len() > NAME_SIZE_MAX {
                        return None;
                    }
                }
                192..=255 => {
                    let low = usize::from(*self.bytes.get(at)?);
                    if jumps == 0 {
                        self.at = at + 1;
                    }
                    jumps += 1;
                    if jumps > JUMPS_MAX {
                        return None;
                    }
                    at = (size & 0x3f) << 8 | low;
                }
                _ => return None,
            }
        }
        if jumps == 0 {
            self.at = at;
        }
        Some(name)
    }

    /// Whose it is, and what it says. `None` is for what is no message.
    fn record(&mut self, wanted: Kind) -> Option<(String, Told)> {
        let owner = self.name()?;
        let (kind, class) = (self.word()?, self.word()?);
        let (high, low) = (self.word()?, self.word()?);
        let size = usize::from(self.word()?);
        let end = self.at.checked_add(size).filter(|end| *end <= self.bytes.len())?;
        let is_wanted = kind == wanted as u16 && class == IN;
        let data = match wanted {
            _ if !is_wanted => None,
            Kind::A => {
                let bytes: [u8; 4] = self.take(size)?.try_into().ok()?;
                Some(Data::Address(Ipv4Addr::from(bytes).into()))
            }
            Kind::Aaaa => {
                let bytes: [u8; 16] = self.take(size)?.try_into().ok()?;
                Some(Data::Address(Ipv6Addr::from(bytes).into()))
            }
            Kind::Srv => {
                let (priority, weight, port) = (self.word()?, self.word()?, self.word()?);
                Some(Data::Service { priority, weight, port, target: self.name()? })
            }
        };
        let ttl = u32::from(high) << 16 | u32::from(low);
        let told = match data {
            Some(data) => Told::Record(Record { ttl, data }),
            None if kind == CNAME && class == IN => Told::Alias(self.name()?),
            None => Told::Other,
        };
        self.at = end;
        Some((owner, told))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a server makes of a question: its answers begin with the name that was asked for.
    fn answered(question: &[u8], flags: u16, records: &[(u16, u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = question[..question.len() - 11].to_vec();
        bytes[2..4].copy_from_slice(&(0x8180 | flags).to_be_bytes());
        bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
        bytes[10..12].fill(0);
        for (kind, ttl, data) in records {
            bytes.extend([0xc0, 12]);
            bytes.extend(kind.to_be_bytes());
            bytes.extend(IN.to_be_bytes());
            bytes.extend(ttl.to_be_bytes());
            bytes.extend((data.len() as u16).to_be_bytes());
            bytes.extend(data);
        }
        bytes
    }

    #[test]
    fn a_question_asks_for_one_name() {
        let bytes = question(0x1234, "a.bc", Kind::Srv);
        let expected = b"\x12\x34\x01\x00\0\x01\0\0\0\0\0\x01\x01a\x02bc\0\0\x21\0\x01\0\0\x29\x04\xd0\0\0\0\0\0\0";
        assert_eq!(bytes, expected);
    }

    #[test]
    fn records_of_the_kind_are_read() {
        let asked = question(7, "cache.example", Kind::A);
        // A text, which is passed over.
        let text = b"\x01x".to_vec();
        let bytes = answered(
            &asked,
            0,
            &[(16, 9, text), (1, 60, vec![10, 0, 0, 1]), (1, 5, vec![10, 0, 0, 2])],
        );
        let reply = reply(&bytes, 7, "Cache.example", Kind::A).unwrap();
        let record = |ttl, last| Record { ttl, data: Data::Address([10, 0, 0, last].into()) };
        assert_eq!(reply.records, [record(60, 1), record(5, 2)]);
        assert!(!reply.is_truncated && reply.error == 0);
    }

    /// A record: whose it is, its kind, and what it has.
    fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
        let mut bytes = owner.to_vec();
        bytes.extend(kind.to_be_bytes());
        bytes.extend(b"\0\x01\0\0\0\x09");
        bytes.extend((data.len() as u16).to_be_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn records_are_of_the_name_that_was_asked_for_or_of_what_it_is_an_alias_of() {
        let asked = question(7, "a.b", Kind::A);
        let told = |records: &[Vec<u8>]| {
            let mut bytes = answered(&asked, 0, &[]);
            bytes[6..8].copy_from_slice(&(records.len() as u16).to_be_bytes());
            bytes.extend(records.concat());
            let records = reply(&bytes, 7, "a.b", Kind::A)?.records.into_iter();
            let last = |it: Record| match it.data {
                Data::Address(IpAddr::V4(address)) => address.octets()[3],
                other => panic!("{other:?}"),
            };
            Some(records.map(last).collect::<Vec<u8>>())
        };
        let (x, y) = (&b"\x01x\x01b\0"[..], &b"\x01y\x01B\0"[..]);
        let address = |owner: &[u8], last| record(owner, 1, &[10, 0, 0, last]);
        let own = &b"\xc0\x0c"[..];
        assert_eq!(
            told(&[address(own, 1), address(b"\x01A\x01b\0", 2), address(x, 3)]),
            Some(vec![1, 2])
        );
        // By aliases, in any order.
        let (first, second) = (record(own, CNAME, b"\x01X\x01b\0"), record(x, CNAME, y));
        let all = [second.clone(), address(b"\x01y\x01b\0", 4), first.clone(), address(x, 5)];
        assert_eq!(told(&all), Some(vec![4, 5]));
        assert_eq!(told(&[second, address(y, 4)]), Some(vec![]));
        // In a circle there is nothing.
        let circle = [first, record(x, CNAME, own), address(y, 6)];
        assert_eq!(told(&circle), Some(vec![]));
        // A name that refers to itself: the record would begin there.
        let at = answered(&asked, 0, &[]).len() as u8;
        assert_eq!(told(&[address(&[0xc0, at], 7)]), None);
        assert_eq!(told(&[record(own, CNAME, &[0xc0, at + 12])]), None);
    }

    #[test]
    fn services_have_ports_and_targets() {
        let asked = question(7, "_redis._tcp.example", Kind::Srv);
        // s1.example, whose end is that of the name that was asked for.
        let data = b"\0\x01\0\x02\x18\xeb\x02s1\xc0\x18".to_vec();
        let bytes = answered(&asked, 0, &[(33, 30, data)]);
        let reply = reply(&bytes, 7, "_redis._tcp.example", Kind::Srv).unwrap();
        let data =
            Data::Service { priority: 1, weight: 2, port: 6379, target: "s1.example".to_owned() };
        assert_eq!(reply.records, [Record { ttl: 30, data }]);
    }

    #[test]
    fn errors_and_answers_to_others_are_told_apart() {
        let asked = question(7, "a.b", Kind::A);
        let told = |flags| reply(&answered(&asked, flags, &[]), 7, "a.b", Kind::A);
        assert_eq!(told(3).map(|it| it.error), Some(3));
        assert_eq!(told(0x0200).map(|it| it.is_truncated), Some(true));
        let good = answered(&asked, 0, &[]);
        assert_eq!(reply(&good, 8, "a.b", Kind::A), None);
        assert_eq!(reply(&good, 7, "a.c", Kind::A), None);
        assert_eq!(reply(&good, 7, "a.b", Kind::Aaaa), None);
        assert_eq!(reply(&asked, 7, "a.b", Kind::A), None, "a question is no answer");
        // A name that refers to itself, an address of five bytes, and what ends too early.
        for data in [b"\0\0\0\0\0\x01\xc0\x29".to_vec(), vec![1; 5], vec![0, 0]] {
            for kind in [Kind::Srv, Kind::A] {
                let asked = question(7, "a.b", kind);
                let bytes = answered(&asked, 0, &[(kind as u16, 1, data.clone())]);
                assert_eq!(reply(&bytes, 7, "a.b", kind), None);
            }
        }
        for end in 0..good.len() {
            assert_eq!(reply(&good[..end], 7, "a.b", Kind::A), None);
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_or_not(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..3) {
            let kind = [Kind::A, Kind::Aaaa, Kind::Srv][kind as usize];
            reply(&bytes, 7, "a.b", kind);
            let mut behind = answered(&question(7, "a.b", kind), 0, &[]);
            behind[6..8].copy_from_slice(&[0, 9]);
            behind.extend(bytes);
            reply(&behind, 7, "a.b", kind);
        }
    }
}
