//! What happens to a cluster during a run: slots move, replicas take over, nodes join, disagree or refuse everything,
//! and maps come late or are wrong.

use cashew_config::snapshot::{ClusterMap, SlotRange};
use cashew_placement::{SLOTS, slot_of};

use crate::clock::Event;
use crate::random::Random;
use crate::world::World;

/// Keys of clients often have one of these between braces.
const HOT_TAGS: u64 = 3;
/// So long gateways keep away from a node that has refused everything.
const ABSENCE_FELT_US: u64 = 2_500_000;

/// How often the cluster changes, and how long it takes until all know.
#[derive(Clone, Debug)]
pub(crate) struct Resharding {
    /// The nodes of each shard, and how many shards have slots at first.
    pub(crate) shards: Vec<u32>,
    pub(crate) sharers: usize,
    pub(crate) count: u64,
    pub(crate) gap_max_us: u64,
    /// The longest until a node knows what others have done.
    gossip_max_us: u64,
    /// The longest from one key of a slot to the next.
    key_max_us: u64,
    /// The longest until another map is in effect.
    pub(crate) map_max_us: u64,
    /// Nothing happens but what no client needs to notice.
    pub(crate) is_smooth: bool,
    /// How many maps, in percent, are wrong.
    wrong_maps: u64,
}

impl Resharding {
    pub(crate) fn of(random: &mut Random) -> Self {
        let is_smooth = random.percent(25);
        let shards: Vec<u32> = (0..random.range(2, 4)).map(|_| random.range(1, 3) as u32).collect();
        let sharers = shards.len() - usize::from(random.percent(60));
        Self {
            sharers,
            count: random.pick(&[3, 20, 100]),
            gap_max_us: random.pick(&[1_000, 5_000, 30_000]),
            gossip_max_us: random.pick(&[500, 5_000, 60_000]),
            key_max_us: random.pick(&[100, 1_000, 10_000]),
            map_max_us: match is_smooth {
                true => 20_000,
                false => random.pick(&[1_000, 20_000, 400_000]),
            },
            wrong_maps: if is_smooth { 0 } else { random.pick(&[0, 0, 20, 60]) },
            is_smooth,
            shards,
        }
    }
}

/// Something that comes to an end by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Passing {
    Down(u32),
    Loading(u32),
    Loop(u16),
}

impl World<'_> {
    /// Something happens to the cluster.
    pub(crate) fn reshard(&mut self) {
        let Some(plan) = &self.scenario.resharding else { return };
        if self.healed || self.reshardings >= plan.count {
            return;
        }
        self.reshardings += 1;
        let now = self.fabric.clock.now();
        let gap = self.fabric.random.below(plan.gap_max_us);
        self.fabric.clock.plan(now + gap, Event::Reshard);
        let slot = self.any_slot();
        let length = self.fabric.random.range(500, 200_000);
        let kind = self.fabric.random.below(if plan.is_smooth { 14 } else { 20 });
        let what = self.change_cluster(kind, slot, length);
        let numbers = [kind, slot.into(), u64::from(what.is_some())];
        self.fabric.trace.note(now, what.unwrap_or("nothing can change about"), numbers);
        self.fabric.oracle.counts.reshardings += u64::from(what.is_some());
        self.send_away();
        self.spread();
    }

    fn change_cluster(&mut self, kind: u64, slot: u16, length: u64) -> Option<&'static str> {
        let fabric = &mut self.fabric;
        let (now, random) = (fabric.clock.now(), &mut fabric.random);
        let cluster = fabric.cluster.as_mut()?;
        let mut passes = |passing| fabric.clock.plan(now + length, Event::Pass { passing });
        match kind {
            0..=4 => {
                let is_begun = cluster.begin_move(slot, random);
                is_begun.then(|| {
                    fabric.clock.plan(now + 1, Event::MoveKey { slot });
                    "a slot sets out:"
                })
            }
            5..=7 => {
                let last = slot.saturating_add(random.pick(&[0, 0, 10, 500])).min(SLOTS - 1);
                cluster.jump(slot..=last, random);
                Some("slots jump:")
            }
            8..=11 => {
                let [before, after] = cluster.fail_over(random)?;
                fabric.oracle.counts.promotions += 1;
                let numbers = [before.into(), after.into(), 0];
                fabric.trace.note(now, "a replica takes over from", numbers);
                Some("a replica takes over:")
            }
            12 | 13 => cluster.join(slot).then_some("a shard joins:"),
            14 | 15 => {
                let node = random.below(cluster.nodes().into()) as u32;
                cluster.set_down(node, true);
                fabric.oracle.node_absent(node, now, now + length + ABSENCE_FELT_US);
                passes(Passing::Down(node));
                Some("a node takes the cluster for down:")
            }
            16 | 17 => {
                let node = random.below(cluster.nodes().into()) as u32;
                cluster.set_loading(node, true);
                fabric.oracle.node_absent(node, now, now + length + ABSENCE_FELT_US);
                passes(Passing::Loading(node));
                Some("a node loads its data:")
            }
            _ => {
                cluster.begin_loop(slot, random)?;
                passes(Passing::Loop(slot));
                Some("two nodes take each other for the owner:")
            }
        }
    }

    fn any_slot(&mut self) -> u16 {
        let random = &mut self.fabric.random;
        match random.percent(80) {
            true => slot_of(random.below(HOT_TAGS).to_string().as_bytes()),
            false => random.below(SLOTS.into()) as u16,
        }
    }

    pub(crate) fn pass(&mut self, passing: Passing) {
        if let Some(cluster) = &mut self.fabric.cluster {
            match passing {
                Passing::Down(node) => cluster.set_down(node, false),
                Passing::Loading(node) => cluster.set_loading(node, false),
                Passing::Loop(slot) => cluster.end_loop(slot),
            }
        }
        let (what, number) = match passing {
            Passing::Down(node) => ("a node no longer takes the cluster for down:", node),
            Passing::Loading(node) => ("a node has loaded its data:", node),
            Passing::Loop(slot) => ("two nodes agree again about", slot.into()),
        };
        self.fabric.trace.note(self.fabric.clock.now(), what, [number.into(), 0, 0]);
    }

    pub(crate) fn move_key(&mut self, slot: u16) {
        let Some(plan) = &self.scenario.resharding else { return };
        let Some(cluster) = &mut self.fabric.cluster else { return };
        let has_more = cluster.go_on_moving(slot);
        let now = self.fabric.clock.now();
        let numbers = [slot.into(), has_more.into(), 0];
        self.fabric.trace.note(now, "a key of a slot has moved", numbers);
        if has_more {
            let at = now + self.fabric.random.below(plan.key_max_us);
            self.fabric.clock.plan(at, Event::MoveKey { slot });
        } else {
            self.spread();
        }
        self.send_away();
    }

    /// Nodes hear of it one by one.
    fn spread(&mut self) {
        let Some(plan) = &self.scenario.resharding else { return };
        let Some(cluster) = &self.fabric.cluster else { return };
        for node in 0..cluster.nodes() {
            let at = self.fabric.clock.now() + self.fabric.random.below(plan.gossip_max_us);
            self.fabric.clock.plan(at, Event::Gossip { node });
        }
    }

    pub(crate) fn gossip(&mut self, node: u32) {
        if let Some(cluster) = &mut self.fabric.cluster {
            cluster.gossip([node]);
        }
        self.send_away();
    }

    /// Calls that wait at nodes that are no longer the owners of their keys end.
    fn send_away(&mut self) {
        for server in &mut self.servers {
            server.send_away(&mut self.fabric);
        }
    }

    /// Discovery is to look at the map: soon, if somebody doubts it.
    pub(crate) fn plan_map(&mut self, soon: bool) {
        let Some(plan) = &self.scenario.resharding else { return };
        let max = if soon { plan.map_max_us } else { 10 * plan.map_max_us };
        let at = self.fabric.clock.now() + self.fabric.random.below(max);
        if at < self.map_at || self.map_at <= self.fabric.clock.now() {
            self.map_at = at;
            self.fabric.clock.plan(at, Event::Map);
        }
    }

    /// Discovery asks some node for its map, which is to be in effect.
    pub(crate) fn map(&mut self) {
        let Some(plan) = &self.scenario.resharding else { return };
        if self.fabric.clock.now() != self.map_at {
            return;
        }
        let is_healed = self.healed;
        let Some(cluster) = &self.fabric.cluster else { return };
        let random = &mut self.fabric.random;
        let joined: Vec<u32> = (0..cluster.nodes()).filter(|&it| cluster.is_joined(it)).collect();
        let node = random.pick(&joined);
        let mut map = cluster.map_of(node);
        let is_wrong = !is_healed && random.percent(plan.wrong_maps);
        if is_wrong {
            distort(&mut map, random);
        }
        let numbers = [node.into(), is_wrong.into(), map.epoch()];
        self.fabric.trace.note(self.fabric.clock.now(), "a map is taken from", numbers);
        self.fabric.oracle.counts.wrong_maps += u64::from(is_wrong);
        let orders = self.coordinator.remap(map, !is_healed && !plan.is_smooth);
        self.send(orders);
        if !is_healed {
            self.plan_map(false);
        }
    }

    /// From here on all nodes are of one mind, and so is the map.
    pub(crate) fn heal_cluster(&mut self) {
        let Some(cluster) = &mut self.fabric.cluster else { return };
        cluster.heal();
        self.send_away();
        let now = self.fabric.clock.now();
        self.map_at = now + 1000;
        self.fabric.clock.plan(self.map_at, Event::Map);
    }
}

/// Makes a map wrong in one way or another.
fn distort(map: &mut ClusterMap, random: &mut Random) {
    let at = random.below(map.shards.len() as u64) as usize;
    match random.below(4) {
        0 if !map.shards[at].replicas.is_empty() => {
            let shard = &mut map.shards[at];
            std::mem::swap(&mut shard.primary, &mut shard.replicas[0]);
        }
        1 if map.shards.len() > 1 => {
            let slots = std::mem::take(&mut map.shards[at].slots);
            let to = (at + 1) % map.shards.len();
            map.shards[to].slots.extend(slots);
            map.shards[to].slots.sort_unstable();
        }
        2 if map.shards.len() > 1 => drop(map.shards.remove(at)),
        _ => {
            let first = random.below(SLOTS.into()) as u16;
            let hole = SlotRange { first, last: first.saturating_add(3000).min(SLOTS - 1) };
            for shard in &mut map.shards {
                shard.slots = shard.slots.iter().flat_map(|&range| without(range, hole)).collect();
            }
        }
    }
}

fn without(range: SlotRange, hole: SlotRange) -> Vec<SlotRange> {
    if range.last < hole.first || range.first > hole.last {
        return vec![range];
    }
    let mut left = Vec::new();
    if range.first < hole.first {
        left.push(SlotRange { last: hole.first - 1, ..range });
    }
    if range.last > hole.last {
        left.push(SlotRange { first: hole.last + 1, ..range });
    }
    left
}
