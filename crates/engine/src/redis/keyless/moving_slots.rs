//! The end of a walk over a cluster: whether slots have moved since it began, or are on their way.
//!
//! What has moved as a whole makes another map. That a slot is on its way only its owner tells, and keys of it may have
//! gone to a node that had been walked before they came. So the owners are asked what they own (CLUSTER NODES), and
//! how many keys they have left of each slot that is on its way (CLUSTER COUNTKEYSINSLOT). Such a slot gets no new
//! keys at its owner: while the number stays the same, none has gone.
//!
//! What they tell makes a tag, and a walk is over when it ends with the tag that it began with. So a slot that stays
//! half moved costs one more walk, and no walk is endless.

use cashew_config::snapshot::{Cluster, SLOTS, SlotRange};
use cashew_protocol::resp;

use super::cursor::{Tag, Walk};
use super::merge;
use crate::base::id::ServerId;
use crate::base::time::Time;
use crate::topology::Topology;

/// So long a map is waited for that owners are ahead of.
const MAP_WAIT_MS: u64 = 1000;
/// How often they are asked meanwhile.
const LOOK_MS: u64 = 50;
/// So long a map is waited for where nodes do not tell: longer than one that is doubted takes to be in use.
const SETTLE_MS: u64 = 250;

/// Owners of slots are asked one after the other.
#[derive(Debug)]
pub(super) struct Survey {
    /// What the servers are numbered by.
    walk: Walk,
    began_at: Time,
    round: Round,
}

#[derive(Debug)]
struct Round {
    /// Who is asked.
    node: ServerId,
    /// Slots on their way from there, of which it is to tell how many keys are left.
    uncounted: Vec<u16>,
    told: Tag,
    is_moving: bool,
    /// Some owner has other slots than the map says.
    is_map_old: bool,
    /// Some node did not tell.
    is_unknown: bool,
}

impl Round {
    fn from(node: ServerId) -> Self {
        Self {
            node,
            uncounted: Vec::new(),
            told: Tag::new(),
            is_moving: false,
            is_map_old: false,
            is_unknown: false,
        }
    }
}

/// What the engine knows.
pub(super) struct Known<'e> {
    pub(super) topology: &'e Topology,
    pub(super) cluster: Option<&'e Cluster>,
    pub(super) walk: Walk,
    pub(super) now: Time,
}

/// How it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Ask(ServerId, Question),
    /// A map may come until then.
    Wait(Time),
    /// The tag of what the slots are like.
    Done(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// What it owns.
    Slots,
    /// How many keys of a slot it has left.
    Keys(u16),
}

impl Survey {
    /// `None`, here and below, where there is nobody to ask.
    pub(super) fn begin(known: &Known<'_>) -> Option<(Self, Next)> {
        let first = known.topology.heads().next()?;
        let survey = Self { walk: known.walk, began_at: known.now, round: Round::from(first) };
        Some((survey, Next::Ask(first, Question::Slots)))
    }

    pub(super) fn on_timeout(&mut self, known: &Known<'_>) -> Option<Next> {
        if known.walk != self.walk {
            return known.walk.map().map(Next::Done);
        }
        let first = known.topology.heads().next()?;
        self.round = Round::from(first);
        Some(Next::Ask(first, Question::Slots))
    }

    pub(super) fn on_reply(&mut self, known: &Known<'_>, reply: &[u8]) -> Option<Next> {
        if known.walk != self.walk {
            return known.walk.map().map(Next::Done);
        }
        let round = &mut self.round;
        match round.uncounted.pop() {
            Some(slot) => {
                round.told.add(&slot.to_be_bytes());
                round.told.add(reply);
                round.is_unknown |= resp::is_error(reply);
            }
            None => round.note_slots(known, reply),
        }
        if let Some(&slot) = round.uncounted.last() {
            return Some(Next::Ask(round.node, Question::Keys(slot)));
        }
        let shard = known.topology.shard_of(round.node);
        if let Some(next) = known.topology.heads_behind(shard).next() {
            round.node = next;
            return Some(Next::Ask(next, Question::Slots));
        }
        self.end_round(known)
    }

    /// All owners have been asked.
    fn end_round(&self, known: &Known<'_>) -> Option<Next> {
        let Round { told, is_moving, is_map_old, is_unknown, .. } = &self.round;
        let wait_ms = match () {
            () if *is_map_old => MAP_WAIT_MS,
            () if *is_unknown => SETTLE_MS,
            () => 0,
        };
        if known.now < self.began_at.plus_millis(wait_ms) {
            return Some(Next::Wait(known.now.plus_millis(LOOK_MS)));
        }
        // A map that stays old is no reason to walk for ever.
        let tag = match *is_moving || *is_map_old {
            true => self.walk.map_with_moving(told),
            false => self.walk.map(),
        };
        tag.map(Next::Done)
    }
}

impl Round {
    /// What a node owns.
    fn note_slots(&mut self, known: &Known<'_>, reply: &[u8]) {
        let own = Some(reply).filter(|reply| !resp::is_error(reply)).and_then(merge::text);
        let Some((slots, on_their_way)) = own.and_then(own_slots) else {
            self.is_unknown = true;
            return;
        };
        let shard = known.topology.shard_of(self.node);
        let by_map = known.cluster.and_then(|it| it.slots.get(shard.index()));
        let is_as_mapped = by_map.is_some_and(|by_map| all(by_map).eq(all(&slots)));
        if !is_as_mapped {
            self.is_map_old = true;
            for range in slots {
                self.told.add(&range.first.to_be_bytes());
                self.told.add(&range.last.to_be_bytes());
            }
        }
        self.is_moving |= !on_their_way.is_empty();
        self.uncounted = on_their_way;
    }
}

fn all(ranges: &[SlotRange]) -> impl Iterator<Item = u16> {
    ranges.iter().flat_map(|range| range.slots())
}

/// What a node says of itself in CLUSTER NODES: the slots that it owns, and which of them are on their way to others.
fn own_slots(nodes: &[u8]) -> Option<(Vec<SlotRange>, Vec<u16>)> {
    let is_own = |line: &&str| {
        let flags = line.split_ascii_whitespace().nth(2).unwrap_or_default();
        flags.split(',').any(|flag| flag == "myself")
    };
    let line = std::str::from_utf8(nodes).ok()?.lines().find(is_own)?;
    let number = |text: &str| text.parse().ok().filter(|slot| *slot < SLOTS);
    let (mut slots, mut on_their_way) = (Vec::new(), Vec::new());
    for word in line.split_ascii_whitespace().skip(8) {
        if let Some(on_its_way) = word.strip_prefix('[') {
            // `[93-<-id]` comes from another.
            let slot = on_its_way.split_once("->-").and_then(|(slot, _)| number(slot));
            on_their_way.extend(slot);
            continue;
        }
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        slots.push(SlotRange { first: number(first)?, last: number(last)? });
    }
    Some((slots, on_their_way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_tells_what_it_owns_and_what_leaves_it() {
        let range = |first, last| SlotRange { first, last };
        let nodes = "a1 10.0.0.1:7001@17001,host master - 0 1 3 connected 5461-10922\n\
                     b2 10.0.0.2:7002@17002 myself,master - 0 1 2 connected 0-92 94 100-5460 \
                     [93-<-a1] [94->-a1] [100->-c3]\n";
        let slots = vec![range(0, 92), range(94, 94), range(100, 5460)];
        assert_eq!(own_slots(nodes.as_bytes()), Some((slots, vec![94, 100])));
        let replica = "b2 10.0.0.2:7002@17002 myself,slave a1 0 1 2 connected\n";
        assert_eq!(own_slots(replica.as_bytes()), Some((Vec::new(), Vec::new())));
        for bad in
            ["", "a1 10.0.0.1:7001@17001 master - 0 1 3 connected 5461-10922\n", "b2 h myself"]
        {
            assert_eq!(own_slots(bad.as_bytes()).unwrap_or_default(), (Vec::new(), Vec::new()));
        }
        let far = "b2 h:1@2 myself,master - 0 1 2 connected 0-16384\n";
        assert_eq!(own_slots(far.as_bytes()), None);
    }
}
