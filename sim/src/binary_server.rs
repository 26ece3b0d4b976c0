//! The binary protocol of a memcached.

use crate::memcached_server::{Item, MemcachedServer};
use crate::packet::{self, HEADER_SIZE, Opcode, Packet};
use crate::request::Outcome;
use crate::server::Done;

const VERSION: u8 = 0x0b;

const NOT_FOUND: u16 = 1;
const EXISTS: u16 = 2;
const NOT_STORED: u16 = 5;
const NOT_NUMERIC: u16 = 6;
const OUT_OF_MEMORY: u16 = 0x82;

impl MemcachedServer {
    /// Executes the packet at the front of `input`, if it is complete.
    pub(crate) fn execute_packet(&mut self, input: &[u8], refuse: bool) -> Option<Done> {
        if input.len() < HEADER_SIZE {
            return None;
        }
        let (asked, used) = Packet::read(input)?;
        assert_eq!(asked.magic, 0x80, "I1: this is no request");
        if asked.opcode == VERSION {
            // The fence for a server that was found unresponsive.
            let reply = Packet { opcode: VERSION, value: b"1.6.18", ..Packet::REPLY };
            return Some(Done::new(used, b"", reply.bytes()));
        }
        let opcode =
            Opcode::of(asked.opcode).expect("I1: a server is sent what is always answered");
        let (status, unique, value) = match refuse {
            true => (OUT_OF_MEMORY, 0, b"Out of memory".to_vec()),
            false => self.carry_out_packet(opcode, &asked),
        };
        let is_hit = status == 0 && matches!(opcode, Opcode::Get | Opcode::GetK);
        let key = if opcode == Opcode::GetK && status <= NOT_FOUND { asked.key } else { b"" };
        let reply = Packet {
            opcode: asked.opcode,
            status,
            opaque: asked.opaque,
            unique,
            extras: if is_hit { &[0; 4] } else { b"" },
            key,
            value: &value,
            ..Packet::REPLY
        };
        let outcome = Packet { unique: self.tag.apply(unique), ..reply }.bytes();
        let mut done = Done::new(used, &packet::tag_of(asked.opaque), reply.bytes());
        let payload = packet::payload(asked.opcode, asked.opaque, asked.value);
        done.keys.push((asked.key.to_vec(), Some(payload), Outcome::good(outcome)));
        Some(done)
    }

    /// Status, unique and value of the reply.
    fn carry_out_packet(&mut self, opcode: Opcode, asked: &Packet<'_>) -> (u16, u64, Vec<u8>) {
        use Opcode::*;
        self.stores += 1;
        let stores = self.stores;
        let error = |status: u16, text: &str| (status, 0, text.as_bytes().to_vec());
        let item = self.items.get_mut(asked.key);
        if let Some(item) = &item
            && asked.unique != 0
            && asked.unique != item.unique
            && opcode != Add
        {
            return error(EXISTS, "Data exists for key.");
        }
        match (opcode, item) {
            (Get | GetK, Some(item)) => (0, item.unique, item.data.clone()),
            (GetK, None) => error(NOT_FOUND, ""),
            (Append | Prepend | Replace, None) if asked.unique == 0 => {
                error(NOT_STORED, "Not stored.")
            }
            (Set, None) if asked.unique == 0 => self.put(asked, stores),
            (Add, None) | (Set | Replace, Some(_)) => self.put(asked, stores),
            (Add, Some(_)) => error(EXISTS, "Data exists for key."),
            (Append, Some(item)) => {
                item.data.extend_from_slice(asked.value);
                (0, item.unique, Vec::new())
            }
            (Prepend, Some(item)) => {
                item.data.splice(..0, asked.value.iter().copied());
                (0, item.unique, Vec::new())
            }
            (Delete, Some(_)) => {
                self.items.remove(asked.key);
                (0, 0, Vec::new())
            }
            (Increment, Some(item)) => {
                let old = std::str::from_utf8(&item.data).ok().and_then(|text| text.parse().ok());
                let Some(old) = old else {
                    return error(NOT_NUMERIC, "Non-numeric server-side value for incr or decr");
                };
                let new: u64 = u64::wrapping_add(old, 1);
                (item.data, item.unique) = (new.to_string().into_bytes(), stores);
                (0, stores, new.to_be_bytes().to_vec())
            }
            (Get | Set | Replace | Append | Prepend | Delete | Increment, None) => {
                error(NOT_FOUND, "Not found")
            }
            (Quit | Noop, _) => panic!("I1: a server is sent what is answered by the gateway"),
        }
    }

    fn put(&mut self, asked: &Packet<'_>, unique: u64) -> (u16, u64, Vec<u8>) {
        let item = Item { flags: b"7".to_vec(), data: asked.value.to_vec(), unique };
        self.items.insert(asked.key.to_vec(), item);
        (0, unique, Vec::new())
    }
}
