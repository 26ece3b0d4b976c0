//! Servers that have copies of keys that are split: they lose them, refuse them and forget them in time, and a replica that
//! takes over may have none.

use std::collections::HashMap;

use cashew_engine::ConnId;
use cashew_placement::slot_of;

use super::slots::slot;
use super::{KEYS, Kind, OK, Play, REFUSED, SERVERS};

/// A group whose replica takes over at times, and another one. Servers are numbered by the lengths of names.
pub(super) const TWO_GROUPS: &str =
    "[{name: s, primary: '127.0.0.1:7000', replicas: ['127.0.0.1:7001']},
      {name: this-is-the-other-group, primary: '127.0.0.1:7002'}], reads: primary";

const SLOTS_PER_NODE: u16 = 16384 / 2;

pub(super) fn is_copy(name: &str) -> bool {
    name.starts_with("cashew:copy:")
}

#[derive(Default)]
pub(super) struct CopiesAt {
    /// By server and name: what is there, and until when.
    servers: [HashMap<String, (String, u64)>; SERVERS as usize],
    /// By key: a server of its group.
    homes: [Option<u32>; KEYS],
}

impl CopiesAt {
    pub(super) fn note_home(&mut self, key: usize, server: u32) {
        self.homes[key] = Some(server);
    }
}

impl Play {
    /// The primary of a key's group, if it is known.
    pub(super) fn home(&self, key: usize) -> Option<u32> {
        let is_other = self.copies.homes[key]? == 2;
        Some(if is_other { 2 } else { self.primary })
    }

    pub(super) fn lose_copies(&mut self) {
        let server = self.random.below(SERVERS as usize);
        self.copies.servers[server].clear();
    }

    /// A replica has taken over: it has all that there was, or nothing of it yet.
    pub(super) fn promote_copies(&mut self) {
        let (old, new) = (1 - self.primary as usize, self.primary as usize);
        self.copies.servers[new] = match self.random.below(2) {
            0 => HashMap::new(),
            _ => self.copies.servers[old].clone(),
        };
    }

    /// What a server says to what is asked of a copy.
    pub(super) fn answer_for_copy(
        &mut self,
        (worker, conn): (usize, ConnId),
        words: &[&str],
    ) -> String {
        let server = self.peers[worker][&conn].server;
        let name = words[1];
        if self.kind == Kind::Moving {
            let at = slot_of(name.as_bytes());
            let key = (0..KEYS).find(|&key| slot(key) == at);
            let node = key.map_or(u32::from(at >= SLOTS_PER_NODE), |key| self.slots.owner[key]);
            if node != server {
                return format!("-MOVED {at} 127.0.0.1:{}\r\n", 7000 + node);
            }
        } else if words[0] != "GET" && server == 1 - self.primary {
            return REFUSED.to_owned();
        }
        let now_us = self.now_us;
        let copies = &mut self.copies.servers[server as usize];
        match *words {
            ["GET", name] => match copies.get(name).filter(|(_, until)| now_us < *until) {
                Some((value, _)) => format!("${}\r\n{value}\r\n", value.len()),
                None => "$-1\r\n".to_owned(),
            },
            ["SET", _, _, "PX", _] if self.random.below(20) == 0 => {
                "-OOM command not allowed when used memory > 'maxmemory'.\r\n".to_owned()
            }
            ["SET", name, value, "PX", ms] => {
                let until = now_us + ms.parse::<u64>().unwrap() * 1000;
                let before = copies.insert(name.to_owned(), (value.to_owned(), until));
                let is_new = before.is_none_or(|(before, _)| before == value);
                assert!(is_new, "seed {}: {name} had another value", self.seed);
                OK.to_owned()
            }
            ["UNLINK", name] => format!(":{}\r\n", u32::from(copies.remove(name).is_some())),
            ref other => panic!("seed {}: unexpected {other:?}", self.seed),
        }
    }
}
