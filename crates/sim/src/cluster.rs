//! A cluster: which node has which slot, what each node thinks of that, and what it answers to commands that it does
//! not run.
//!
//! Nodes of a shard have the same data at any time, so a failover loses nothing. All else is as in Redis: a node knows
//! its own part at once and what others do later; while a slot is on its way, some of its keys are at one node and some
//! at another.

use std::collections::{BTreeMap, BTreeSet};

use cashew_config::snapshot::{Address, ClusterMap, ClusterNode, ClusterShard, SlotRange};
use cashew_placement::{SLOTS, slot_of};

use crate::oracle::owner_of;
use crate::random::Random;
use crate::redis_server::parse;
use crate::request::Access;
use crate::scenario::port_of;
use crate::server::{Done, Session};
use crate::store::Store;
use crate::world::Fabric;

/// What a node may think: it is true, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    /// By slot: the shard that owns it.
    owners: Vec<u8>,
    /// By shard: the node that takes its writes.
    primaries: Vec<u32>,
    /// By node.
    joined: Vec<bool>,
    epoch: u64,
}

struct Node {
    shard: u32,
    view: View,
    /// It takes the cluster for down.
    is_down: bool,
    is_loading: bool,
}

pub(crate) struct Cluster {
    truth: View,
    nodes: Vec<Node>,
    /// By shard.
    stores: Vec<Store>,
    /// Slots on their way, and the shards where they go.
    moving: BTreeMap<u16, u32>,
    /// Who wrongly takes a slot for another node's.
    lies: BTreeMap<(u32, u16), u32>,
}

/// A command that a node does not run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Moved(Vec<u8>),
    Other(&'static str),
}

impl Refusal {
    fn text(&self) -> &[u8] {
        match self {
            Self::Moved(text) => text,
            Self::Other(text) => text.as_bytes(),
        }
    }
}

const TRY_AGAIN: &str = "-TRYAGAIN Multiple keys request during rehashing of slot\r\n";
const DOWN: &str = "-CLUSTERDOWN The cluster is down\r\n";
const LOADING: &str = "-LOADING Redis is loading the dataset in memory\r\n";
const DEMOTED: &str = "-UNBLOCKED force unblock from blocking operation, instance state changed \
                       (master -> replica?)\r\n";

impl Cluster {
    /// Shards of so many nodes each, of which only the first `sharers` have slots. The others have not joined.
    pub(crate) fn new(shards: &[u32], sharers: usize) -> Self {
        let of_shard = |(shard, &count): (usize, &u32)| vec![shard as u32; count as usize];
        let shard_of: Vec<u32> = shards.iter().enumerate().flat_map(of_shard).collect();
        let first = |shard| shard_of.iter().position(|&its| its == shard).unwrap_or(0) as u32;
        let share = usize::from(SLOTS).div_ceil(sharers);
        let truth = View {
            owners: (0..usize::from(SLOTS)).map(|slot| (slot / share) as u8).collect(),
            primaries: (0..shards.len() as u32).map(first).collect(),
            joined: shard_of.iter().map(|&shard| (shard as usize) < sharers).collect(),
            epoch: 1,
        };
        let node =
            |&shard: &u32| Node { shard, view: truth.clone(), is_down: false, is_loading: false };
        Self {
            nodes: shard_of.iter().map(node).collect(),
            stores: shards.iter().map(|_| Store::default()).collect(),
            moving: BTreeMap::new(),
            lies: BTreeMap::new(),
            truth,
        }
    }

    pub(crate) fn nodes(&self) -> u32 {
        self.nodes.len() as u32
    }

    pub(crate) fn store_of(&mut self, node: u32) -> &mut Store {
        &mut self.stores[self.nodes[node as usize].shard as usize]
    }

    fn shard_of(&self, node: u32) -> u32 {
        self.nodes[node as usize].shard
    }

    fn is_primary(&self, node: u32) -> bool {
        self.truth.primaries[self.shard_of(node) as usize] == node
    }

    /// The node that a node takes for the owner of a slot.
    fn owner_seen_by(&self, node: u32, slot: u16) -> u32 {
        let view = &self.nodes[node as usize].view;
        let seen = view.primaries[usize::from(view.owners[usize::from(slot)])];
        self.lies.get(&(node, slot)).copied().unwrap_or(seen)
    }

    /// Whether the key is at its slot's owner while the slot is on its way. Shared keys are everywhere.
    fn has(&self, shard: u32, key: &[u8]) -> bool {
        let store = &self.stores[shard as usize];
        owner_of(key).is_none() || store.values.contains_key(&(0, key.to_vec()))
    }

    /// Why a node does not run a command with these keys, if so.
    pub(crate) fn refusal(
        &self,
        node: u32,
        keys: &[Vec<u8>],
        access: Access,
        (asking, reads): (bool, bool),
    ) -> Option<Refusal> {
        let first = keys.first()?;
        let slot = slot_of(first);
        let is_one = keys.iter().all(|key| slot_of(key) == slot);
        assert!(is_one, "I1: keys of several slots for node {node}: {}", first.escape_ascii());
        if self.nodes[node as usize].is_down {
            return Some(Refusal::Other(DOWN));
        }
        let shard = self.shard_of(node);
        let owner = self.owner_seen_by(node, slot);
        let here = keys.iter().filter(|key| self.has(shard, key)).count();
        let to = |word: &str, node: u32| {
            Some(Refusal::Moved(format!("-{word} {slot} {}\r\n", address(node)).into_bytes()))
        };
        let target = self.moving.get(&slot).copied();
        if owner == node {
            let its_owner = u32::from(self.truth.owners[usize::from(slot)]);
            if its_owner != shard {
                // It has given the last key away, and is yet to know that the slot has gone with it.
                return to("ASK", self.truth.primaries[its_owner as usize]);
            }
            assert!(self.is_primary(node), "the model has two primaries of a shard");
            return match target {
                Some(target) if here < keys.len() && here == 0 => {
                    to("ASK", self.truth.primaries[target as usize])
                }
                Some(_) if here < keys.len() => Some(Refusal::Other(TRY_AGAIN)),
                _ => None,
            };
        }
        if target == Some(shard) && self.is_primary(node) && asking {
            return match keys.len() > 1 && here < keys.len() {
                true => Some(Refusal::Other(TRY_AGAIN)),
                false => None,
            };
        }
        if reads
            && access == Access::Read
            && shard == self.shard_of(owner)
            && !self.is_primary(node)
        {
            return None;
        }
        to("MOVED", owner)
    }

    /// Whether the slot of a key is on its way to a node that takes writes.
    fn is_importing(&self, node: u32, key: &[u8]) -> bool {
        self.is_primary(node) && self.moving.get(&slot_of(key)) == Some(&self.shard_of(node))
    }

    /// What becomes of a call that waits at a node for a key.
    pub(crate) fn ends_wait(&self, node: u32, key: &[u8]) -> Option<Vec<u8>> {
        let slot = slot_of(key);
        let is_coming = self.moving.get(&slot) == Some(&self.shard_of(node));
        if !self.is_primary(node) {
            return Some(DEMOTED.into());
        }
        let owner = self.owner_seen_by(node, slot);
        let goes = owner != node && !is_coming;
        goes.then(|| format!("-MOVED {slot} {}\r\n", address(owner)).into_bytes())
    }

    /// Tells some nodes what is true by now.
    pub(crate) fn gossip(&mut self, nodes: impl IntoIterator<Item = u32>) {
        for node in nodes {
            self.nodes[node as usize].view = self.truth.clone();
        }
    }

    /// Shards whose nodes have joined, except one.
    fn others(&self, but: u32) -> Vec<u32> {
        let is_there =
            |&shard: &u32| self.truth.joined[self.truth.primaries[shard as usize] as usize];
        (0..self.stores.len() as u32).filter(is_there).filter(|&shard| shard != but).collect()
    }

    fn owner_of_slot(&self, slot: u16) -> u32 {
        u32::from(self.truth.owners[usize::from(slot)])
    }

    /// A slot sets out for another shard, if there is one; both nodes know.
    pub(crate) fn begin_move(&mut self, slot: u16, random: &mut Random) -> bool {
        let from = self.owner_of_slot(slot);
        let others = self.others(from);
        let is_idle = !self.moving.contains_key(&slot) && !self.lies.keys().any(|it| it.1 == slot);
        if others.is_empty() || !is_idle {
            return false;
        }
        self.moving.insert(slot, random.pick(&others));
        true
    }

    /// One more key moves. Without any left, the slot is the other shard's, which alone knows. Returns whether there
    /// is more to come.
    pub(crate) fn go_on_moving(&mut self, slot: u16) -> bool {
        let Some(&to) = self.moving.get(&slot) else { return false };
        let from = self.owner_of_slot(slot);
        if self.move_keys(slot, (from, to), 1) > 0 {
            return true;
        }
        self.moving.remove(&slot);
        self.give(slot, to);
        self.gossip([self.truth.primaries[to as usize]]);
        false
    }

    fn give(&mut self, slot: u16, to: u32) {
        self.truth.owners[usize::from(slot)] = to as u8;
        self.truth.epoch += 1;
    }

    fn move_keys(&mut self, slot: u16, (from, to): (u32, u32), max: usize) -> usize {
        let of_slot = |place: &&(u32, Vec<u8>)| slot_of(&place.1) == slot;
        let source = &mut self.stores[from as usize];
        let places: Vec<_> = source.values.keys().filter(of_slot).take(max).cloned().collect();
        let mut values = Vec::new();
        for place in places {
            source.note_change(&place);
            values.extend(source.values.remove_entry(&place));
        }
        let count = values.len();
        self.stores[to as usize].values.extend(values);
        count
    }

    /// Slots are another shard's at once; both nodes know.
    pub(crate) fn jump(&mut self, slots: impl Iterator<Item = u16>, random: &mut Random) {
        let mut to = BTreeMap::new();
        for slot in slots {
            let from = self.owner_of_slot(slot);
            let others = self.others(from);
            let is_idle =
                !self.moving.contains_key(&slot) && !self.lies.keys().any(|it| it.1 == slot);
            if others.is_empty() || !is_idle {
                continue;
            }
            let to = *to.entry(from).or_insert_with(|| random.pick(&others));
            self.move_keys(slot, (from, to), usize::MAX);
            self.give(slot, to);
            let primaries = [from, to].map(|shard| self.truth.primaries[shard as usize]);
            for node in primaries {
                self.nodes[node as usize].view.owners[usize::from(slot)] = to as u8;
            }
        }
    }

    /// A replica takes its shard's writes; it and the former primary know. Returns both.
    pub(crate) fn fail_over(&mut self, random: &mut Random) -> Option<[u32; 2]> {
        let is_replica = |&node: &u32| !self.is_primary(node) && self.truth.joined[node as usize];
        let replicas: Vec<u32> = (0..self.nodes()).filter(is_replica).collect();
        if replicas.is_empty() {
            return None;
        }
        let node = random.pick(&replicas);
        let shard = self.shard_of(node);
        let before = std::mem::replace(&mut self.truth.primaries[shard as usize], node);
        self.truth.epoch += 1;
        self.gossip([before, node]);
        Some([before, node])
    }

    /// The nodes of a shard join that nobody knows, and get a slot at once.
    pub(crate) fn join(&mut self, slot: u16) -> bool {
        let primaries = &self.truth.primaries;
        let Some(shard) = primaries.iter().position(|&node| !self.truth.joined[node as usize])
        else {
            return false;
        };
        if self.moving.contains_key(&slot) || self.lies.keys().any(|it| it.1 == slot) {
            return false;
        }
        let shard = shard as u32;
        for node in 0..self.nodes() {
            self.truth.joined[node as usize] |= self.shard_of(node) == shard;
        }
        let from = self.owner_of_slot(slot);
        self.move_keys(slot, (from, shard), usize::MAX);
        self.give(slot, shard);
        self.gossip([from, shard].map(|shard| self.truth.primaries[shard as usize]));
        true
    }

    /// The owner of a slot and another primary take each other for the owner. Returns both.
    pub(crate) fn begin_loop(&mut self, slot: u16, random: &mut Random) -> Option<[u32; 2]> {
        let shard = self.owner_of_slot(slot);
        let others = self.others(shard);
        if others.is_empty() || self.moving.contains_key(&slot) {
            return None;
        }
        let pair = [shard, random.pick(&others)].map(|shard| self.truth.primaries[shard as usize]);
        for (node, other) in [(pair[0], pair[1]), (pair[1], pair[0])] {
            self.lies.insert((node, slot), other);
        }
        Some(pair)
    }

    pub(crate) fn end_loop(&mut self, slot: u16) {
        self.lies.retain(|&(_, of), _| of != slot);
    }

    pub(crate) fn set_down(&mut self, node: u32, is_down: bool) {
        self.nodes[node as usize].is_down = is_down;
    }

    pub(crate) fn set_loading(&mut self, node: u32, is_loading: bool) {
        self.nodes[node as usize].is_loading = is_loading;
    }

    pub(crate) fn is_joined(&self, node: u32) -> bool {
        self.truth.joined[node as usize]
    }

    /// Nodes are well and of one mind, and no slot is on its way.
    pub(crate) fn heal(&mut self) {
        self.lies.clear();
        for slot in self.moving.keys().copied().collect::<Vec<u16>>() {
            while self.go_on_moving(slot) {}
        }
        for node in &mut self.nodes {
            (node.is_down, node.is_loading) = (false, false);
        }
        self.gossip(0..self.nodes());
    }

    /// The map by which a node goes.
    pub(crate) fn map_of(&self, node: u32) -> ClusterMap {
        let View { owners, primaries, joined, epoch } = &self.nodes[node as usize].view;
        let of = |node: u32| ClusterNode {
            address: Address { host: "127.0.0.1".into(), port: port_of(node) },
            zone: None,
        };
        let mut shards = Vec::new();
        for (shard, &primary) in (0..).zip(primaries) {
            if !joined[primary as usize] {
                continue;
            }
            let is_replica = |&node: &u32| self.shard_of(node) == shard && node != primary;
            shards.push(ClusterShard {
                primary: of(primary),
                replicas: (0..self.nodes()).filter(is_replica).map(of).collect(),
                slots: ranges(owners, shard as u8),
                epoch: *epoch,
            });
        }
        ClusterMap { shards, moving: Vec::new() }
    }

    /// Every key is at its slot's owner and nowhere else, with its value of these.
    pub(crate) fn check(&self, expected: &BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        for (key, value) in expected {
            let owner = self.owner_of_slot(slot_of(key));
            for (shard, store) in (0..).zip(&self.stores) {
                let is = store.values.get(&(0, key.clone()));
                let due = value.as_ref().filter(|_| shard == owner);
                let key = key.escape_ascii();
                assert!(is == due, "I2: shard {shard} has something else at {key} in the end");
            }
        }
    }
}

/// The slots of a shard.
fn ranges(owners: &[u8], shard: u8) -> Vec<SlotRange> {
    let mut ranges: Vec<SlotRange> = Vec::new();
    for (slot, _) in (0..).zip(owners).filter(|(_, owner)| **owner == shard) {
        match ranges.last_mut() {
            Some(range) if range.last + 1 == slot => range.last = slot,
            _ => ranges.push(SlotRange { first: slot, last: slot }),
        }
    }
    ranges
}

fn address(node: u32) -> String {
    // A node may not know its own address, and where another one is it names by the same host.
    let host = if node.is_multiple_of(3) { "" } else { "127.0.0.1" };
    format!("{host}:{}", port_of(node))
}

/// The keys of a command, and whether it only reads.
fn keys_of(name: &[u8], args: &[&[u8]]) -> (Vec<Vec<u8>>, Access) {
    let all = || args[1..].iter().map(|key| key.to_vec()).collect();
    match name {
        b"GET" | b"STRLEN" | b"MGET" | b"EXISTS" | b"TOUCH" => (all(), Access::Read),
        b"DEL" | b"UNLINK" | b"WATCH" => (all(), Access::Write),
        b"SET" | b"INCRBY" | b"BLPOP" => (vec![args[1].to_vec()], Access::Write),
        b"MSET" => (args[1..].iter().step_by(2).map(|key| key.to_vec()).collect(), Access::Write),
        _ => (Vec::new(), Access::Read),
    }
}

impl Fabric {
    /// What a node answers to the command at the front of `input` without running it, if so.
    pub(crate) fn refuse(
        &mut self,
        node: u32,
        input: &[u8],
        session: &mut Session,
    ) -> Option<Done> {
        let cluster = self.cluster.as_ref()?;
        let (args, used) = parse(input)?;
        let name = args[0].to_ascii_uppercase();
        let reply = |text: &[u8]| Some(Done::new(used, args[0], text));
        let (mut keys, access) = keys_of(&name, &args);
        let mut tags = vec![args[0].to_vec(); keys.len()];
        let is_loading = cluster.nodes[node as usize].is_loading;
        if is_loading && (!keys.is_empty() || name == b"PING" || name == b"ASKING") {
            session.is_dirty |= session.queue.is_some();
            self.note_refused(node, &tags, &keys, &Refusal::Other(LOADING));
            return reply(LOADING.as_bytes());
        }
        match &name[..] {
            b"ASKING" => {
                session.asking = true;
                return reply(b"+OK\r\n");
            }
            b"READONLY" | b"READWRITE" => {
                session.reads = name == b"READONLY";
                return reply(b"+OK\r\n");
            }
            b"EXEC" if !session.is_dirty => {
                for words in session.queue.iter().flatten().filter(|words| words.len() > 1) {
                    tags.push(words[0].clone());
                    keys.push(words[1].clone());
                }
            }
            _ => {}
        }
        let access = if name == b"EXEC" { Access::Write } else { access };
        let modes = (session.asking, session.reads);
        let refusal = cluster.refusal(node, &keys, access, modes)?;
        if name == b"EXEC" {
            session.forget_transaction();
        } else {
            session.is_dirty |= session.queue.is_some();
        }
        self.note_refused(node, &tags, &keys, &refusal);
        reply(refusal.text())
    }

    fn note_refused(&mut self, node: u32, tags: &[Vec<u8>], keys: &[Vec<u8>], refusal: &Refusal) {
        let now = self.clock.now();
        let is_redirect = matches!(refusal, Refusal::Moved(_));
        let text = refusal.text();
        self.oracle.counts.redirects += u64::from(is_redirect);
        let mut noted = BTreeSet::new();
        for (tag, key) in tags.iter().zip(keys) {
            if let Some(client) = owner_of(key)
                && noted.insert((tag, key))
            {
                let cluster = self.cluster.as_ref();
                let is_importing = cluster.is_some_and(|cluster| cluster.is_importing(node, key));
                let asked = format!("-ASK {} {}\r\n", slot_of(key), address(node));
                if is_importing && text.starts_with(b"-MOVED ") {
                    self.oracle.check_asking(client, (tag, key), asked.as_bytes(), now);
                }
                self.oracle.refused(client, (tag, key), text, is_redirect, (node, now));
            }
        }
    }
}
