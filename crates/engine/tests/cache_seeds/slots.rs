//! A cluster of two nodes whose slots move while replies are kept: a slot is half moved for a while, its key goes, and
//! workers learn of the new map one after the other, long after. Each key is in a slot of its own.

use cashew_config::Snapshot;
use cashew_config::snapshot::{Cluster, ServerGroup, SlotRange, Topology};
use cashew_placement::slot_of;

use super::{KEYS, Kind, POOL, Play, Stage};
use crate::world::snapshot;

const SLOTS: u16 = 16384;

/// Where the slots are, and the keys.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) owner: [u32; KEYS],
    /// The node that has the key. What is not there may come to be where it is asked for.
    holder: [u32; KEYS],
    /// The slot that is on its way from its owner to the other node.
    going: Option<usize>,
    /// The last one of which that was so.
    last: usize,
    pub(super) moves: u64,
}

/// What a node says to a request for a key.
pub(super) enum Stand {
    Here,
    Elsewhere(String),
}

pub(super) fn slot(key: usize) -> u16 {
    slot_of(format!("k{key}").as_bytes())
}

fn error(word: &str, key: usize, node: u32) -> Stand {
    Stand::Elsewhere(format!("-{word} {} 127.0.0.1:{}\r\n", slot(key), 7000 + node))
}

impl Slots {
    pub(super) fn new() -> Self {
        let owner = std::array::from_fn(|key| u32::from(slot(key) >= SLOTS / 2));
        Self { owner, holder: owner, ..Self::default() }
    }

    /// `text` has a pool of one server.
    pub(super) fn config(&self, text: &str) -> Snapshot {
        let servers = "['127.0.0.1:7000:1', '127.0.0.1:7001:1']";
        let mut config = snapshot(&text.replace("['127.0.0.1:7000:1']", servers));
        let pool = &mut config.pools[POOL.index()];
        pool.cluster = Some(Cluster {
            seeds: Vec::new(),
            connections_max: 0,
            slots: self.map(),
            moving: Vec::new(),
            epoch: 1,
            changes: 1,
        });
        let group = |primary| ServerGroup {
            name: format!("s{primary}"),
            weight: 1,
            primary,
            replicas: Vec::new(),
        };
        pool.topology = Topology::Groups((0..2).map(group).collect());
        config
    }

    /// The slots of each node.
    pub(super) fn map(&self) -> Vec<Vec<SlotRange>> {
        let keys: [u16; KEYS] = std::array::from_fn(slot);
        let mut map: Vec<Vec<SlotRange>> = vec![Vec::new(); 2];
        for at in 0..SLOTS {
            let key = keys.iter().position(|&slot| slot == at);
            let node = key.map_or(u32::from(at >= SLOTS / 2), |key| self.owner[key]);
            match map[node as usize].last_mut() {
                Some(range) if range.last + 1 == at => range.last = at,
                _ => map[node as usize].push(SlotRange { first: at, last: at }),
            }
        }
        map
    }

    pub(super) fn holder(&self, key: usize) -> u32 {
        self.holder[key]
    }

    /// As a node of Redis Cluster answers for a key, which is there or nowhere.
    pub(super) fn stand(&self, node: u32, key: usize, is_asking: bool, is_there: bool) -> Stand {
        let owner = self.owner[key];
        match self.going == Some(key) {
            true if node == owner && !(is_there && self.holder[key] == owner) => {
                error("ASK", key, 1 - owner)
            }
            true if node != owner && is_asking => Stand::Here,
            _ if node == owner => Stand::Here,
            _ => error("MOVED", key, owner),
        }
    }
}

impl Play {
    /// A slot begins to move, unless it is so soon after the last time that clients wait who asked before that: if it
    /// came back meanwhile, what follows in a pipeline would overtake what was sent elsewhere and back.
    pub(super) fn send_slot_away(&mut self) {
        let key = self.random.below(KEYS);
        if self.clients.iter().flat_map(|it| &it.asked).any(|it| it.is_about(key)) {
            return;
        }
        self.slots.last = key;
        self.slots.going = Some(key);
        self.stage = Stage::Moving;
    }

    /// Keys whose slots move are of most interest.
    pub(super) fn some_key(&mut self) -> usize {
        match self.kind == Kind::Moving && self.random.below(2) == 0 {
            true => self.slots.last,
            false => self.random.below(KEYS),
        }
    }

    /// The key goes, or the slot has gone, and the map with it.
    pub(super) fn move_slot(&mut self) {
        let key = self.slots.going.expect("a slot is on its way");
        let (from, to) = (self.slots.owner[key], 1 - self.slots.owner[key]);
        if self.data[key].0 != 0 && self.slots.holder[key] == from {
            // It is restored there, and then removed here.
            self.slots.holder[key] = to;
            self.tell_of(key, to);
            self.tell_of(key, from);
            return;
        }
        self.slots.owner[key] = to;
        self.slots.holder[key] = to;
        self.slots.going = None;
        self.slots.moves += 1;
        self.config.epoch += 1;
        let map = self.slots.map();
        let cluster = self.config.pools[POOL.index()].cluster.as_mut().expect("it is a cluster");
        cluster.slots = map;
        cluster.epoch += 1;
        cluster.changes += 1;
        self.stage = Stage::Finding;
    }

    /// A key has come to be where it was written.
    pub(super) fn came_to_be(&mut self, key: usize, node: u32) {
        if self.data[key].0 == 0 {
            self.slots.holder[key] = node;
        }
    }

    /// The node that somebody who goes by the redirects writes a key at.
    pub(super) fn place_of(&self, key: usize) -> u32 {
        let owner = self.slots.owner[key];
        match self.slots.stand(owner, key, false, self.data[key].0 != 0) {
            Stand::Here => owner,
            Stand::Elsewhere(_) => 1 - owner,
        }
    }
}
