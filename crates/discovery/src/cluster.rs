//! The connections to the nodes of a cluster, and the map that comes of what they say.
//!
//! Three nodes of different shards are asked, or the seeds while no node is known or none answers.

mod merge;
mod pace;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::snapshot::{Address, Cluster, ClusterMap, ClusterNode, Pool, ServerAuth};
use cashew_metrics::EventKind;
use cashew_protocol::resp::encode::write_command;
use cashew_tls::Security;
use tracing::{info, warn};

use self::merge::{Merged, merge};
use self::pace::Pace;
use self::view::View;
use crate::answer;
use crate::link::{Fate, Greeting, Link, Opening};
use crate::watch::News;

/// How many nodes are asked at a time: for the map, and where replicas answer reads, as only the nodes that have a part
/// in it show that a slot moves.
const ASKED: usize = 3;
const ASKED_OF_REPLICAS: usize = 16;
/// How long answers are waited for: of all, and once two have come.
const ROUND_MAX: Duration = Duration::from_millis(1000);
const ROUND_MAX_OF_TWO: Duration = Duration::from_millis(100);
/// A node that did not answer is not among those that are asked for so long, if there are others.
const AVOIDED: Duration = Duration::from_secs(10);
/// How long nodes must contradict the map with no higher epoch than it has.
const CONTRADICTED: Duration = Duration::from_secs(2);
/// How often a seed that is not asked for the map is asked whether it is there.
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// So seldom at most it is told of a seed whether it answers.
const TOLD_AGAIN: Duration = Duration::from_secs(3);
/// Bytes of one answer: each slot may be a range of its own, with the nodes that have it.
const ANSWER_SIZE_MAX: usize = 16 << 20;

/// What connections depend on. With anything else they are made anew.
#[derive(Clone, PartialEq, Eq)]
struct Settings {
    name: String,
    reads_replicas: bool,
    server_auth: ServerAuth,
    security: Option<Arc<Security>>,
}

pub(crate) struct ClusterWatch {
    settings: Settings,
    seeds: Vec<Address>,
    nodes: BTreeMap<Address, NodeWatch>,
    /// As last told, with the epochs of its shards.
    map: Option<ClusterMap>,
    pace: Pace,
    round: Round,
    /// The number of the shard that is asked first, where there are too many to ask all at a time.
    turn: usize,
    /// Since when nodes contradict it with no higher epoch.
    contradicted_since: Option<Instant>,
    /// The last time nobody answered.
    is_lost: bool,
    /// Nodes that did not answer, and until when they are left alone.
    avoided: BTreeMap<Address, Instant>,
}

/// Those that are asked at a time, and what they have said.
#[derive(Default)]
struct Round {
    begun: Option<Instant>,
    /// Not asked yet: there is no connection.
    waiting: BTreeSet<Address>,
    asked: BTreeSet<Address>,
    views: Vec<View>,
}

struct NodeWatch {
    link: Link,
    /// What the answers that are still to come are to.
    expected: VecDeque<Question>,
    nodes: Vec<u8>,
    slots: Vec<u8>,
    answered_at: Option<Instant>,
    asked_at: Option<Instant>,
    /// Why what it answers is of no use.
    refusal: Option<String>,
    /// Whether it answers, if that has been said: of a seed.
    is_up: Option<bool>,
    /// When that was told.
    told_at: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Question {
    Nodes,
    Slots,
    Info,
    Ping,
}

/// What a node has come to say.
enum Said {
    Nothing,
    View(Box<View>),
    /// It answers, and says nothing of use.
    Refusal,
    /// It has answered before, and is gone.
    Lost,
    /// It cannot be reached.
    Unreachable,
}

impl ClusterWatch {
    pub(crate) fn new(pool: &Pool, cluster: &Cluster, now: Instant) -> Self {
        Self {
            settings: Settings::of(pool),
            seeds: cluster.seeds.clone(),
            nodes: BTreeMap::new(),
            map: pool.cluster_map(),
            pace: Pace::new(pool.reads_from_replicas(), now),
            turn: 0,
            round: Round::default(),
            contradicted_since: None,
            is_lost: false,
            avoided: BTreeMap::new(),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.settings.name
    }

    /// Goes by another snapshot's pool of the same name. False where connections have to be made anew.
    pub(crate) fn put_into_effect(&mut self, pool: &Pool, cluster: &Cluster, now: Instant) -> bool {
        if self.settings != Settings::of(pool) {
            return false;
        }
        let in_effect = pool.cluster_map();
        let is_same = match (&self.map, &in_effect) {
            (Some(told), Some(map)) => is_alike(told, map),
            (told, map) => told.is_none() && map.is_none(),
        };
        // With the same seeds, what was told since comes into effect next.
        if self.seeds != cluster.seeds || in_effect.is_none() {
            self.seeds.clone_from(&cluster.seeds);
            if !is_same {
                self.map = in_effect;
            }
            self.pace.doubt(now);
        }
        true
    }

    pub(crate) fn doubt(&mut self, now: Instant) {
        self.pace.doubt(now);
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.nodes.values().map(|node| &node.link)
    }

    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let links = self.links().filter_map(|link| link.poll_timeout(now)).min();
        let round = self.round.begun.map(|_| self.round.deadline());
        let pings = self.nodes.values().filter(|it| it.link.is_at_rest());
        let pings = pings.filter_map(|it| Some(it.asked_at? + PING_INTERVAL));
        [links, self.pace.due(), round].into_iter().flatten().chain(pings).min()
    }

    pub(crate) fn advance(&mut self, is_loud: bool, news: &mut VecDeque<News>, now: Instant) {
        if self.pace.is_due(now) {
            self.begin(now);
        }
        let mut lost = false;
        for (address, node) in &mut self.nodes {
            let said = node.advance(address, now);
            let is_over = !matches!(said, Said::Nothing);
            match said {
                Said::View(view) => {
                    self.avoided.remove(address);
                    if self.round.asked.contains(address) {
                        self.round.views.push(*view);
                    }
                }
                Said::Lost | Said::Unreachable | Said::Refusal => {
                    lost |= matches!(said, Said::Lost);
                    self.avoided.insert(address.clone(), now + AVOIDED);
                }
                Said::Nothing => {}
            }
            if is_over {
                self.round.asked.remove(address);
                self.round.waiting.remove(address);
            } else if self.round.waiting.contains(address)
                && node.link.is_open()
                && node.link.is_at_rest()
            {
                node.ask(now);
                self.round.waiting.remove(address);
                self.round.asked.insert(address.clone());
            }
        }
        if lost {
            self.pace.doubt(now);
        }
        if self.pace.is_asking() && self.round.is_over(now) {
            self.end(news, now);
        }
        self.look_after_seeds(is_loud, news, now);
    }

    fn begin(&mut self, now: Instant) {
        self.avoided.retain(|_, until| now < *until);
        let mut chosen: BTreeSet<Address> = BTreeSet::new();
        if let Some(map) = &self.map {
            let most = if self.settings.reads_replicas { ASKED_OF_REPLICAS } else { ASKED };
            let is_fit = |node: &ClusterNode| !self.avoided.contains_key(&node.address);
            chosen.extend(choose(map, (self.turn, most), is_fit));
            if self.settings.reads_replicas {
                self.turn += most;
            }
        }
        if chosen.is_empty() || self.is_lost {
            chosen.extend(self.seeds.iter().cloned());
        }
        self.nodes.retain(|address, _| chosen.contains(address) || self.seeds.contains(address));
        for address in chosen.iter().chain(&self.seeds) {
            if !self.nodes.contains_key(address) {
                let link = Link::new(address.clone(), self.settings.opening(address), now);
                self.nodes.insert(address.clone(), NodeWatch::new(link));
            }
        }
        for address in &chosen {
            if let Some(node) = self.nodes.get_mut(address) {
                node.link.hurry(now, Duration::ZERO);
            }
        }
        self.round = Round { begun: Some(now), waiting: chosen, ..Round::default() };
        self.pace.begin(now);
    }

    fn end(&mut self, news: &mut VecDeque<News>, now: Instant) {
        let Round { waiting, asked, views, .. } = std::mem::take(&mut self.round);
        let silent = waiting.into_iter().chain(asked);
        self.avoided.extend(silent.map(|address| (address, now + AVOIDED)));
        self.is_lost = views.is_empty();
        let in_trouble = self.is_lost || views.iter().any(View::is_in_trouble);
        let has_lasted = self.contradicted_since.is_some_and(|since| now >= since + CONTRADICTED);
        let (map, is_contradicted) = match merge(&views, self.map.as_ref(), has_lasted) {
            Some(Merged { map, is_contradicted }) => (Some(map), is_contradicted),
            None => (None, false),
        };
        let is_news = match (&map, &self.map) {
            (Some(map), Some(before)) => !is_alike(map, before),
            (map, _) => map.is_some(),
        };
        if map.is_some() {
            self.map = map;
        }
        if let Some(map) = self.map.as_ref().filter(|_| is_news) {
            let (pool, seeds) = (self.settings.name.clone(), self.seeds.clone());
            news.push_back(News::Map { pool, seeds, map: map.clone() });
        }
        self.contradicted_since = match is_contradicted && !has_lasted {
            true => self.contradicted_since.or(Some(now)),
            false => None,
        };
        if self.contradicted_since.is_some() {
            self.pace.doubt(now);
        }
        self.pace.end(in_trouble || self.map.is_none(), is_news, now);
    }

    /// Tells whether seeds answer, and asks those that are not asked for the map.
    fn look_after_seeds(&mut self, is_loud: bool, news: &mut VecDeque<News>, now: Instant) {
        let pool = &self.settings.name;
        for (address, node) in &mut self.nodes {
            if !self.seeds.contains(address) {
                continue;
            }
            let is_due = node.asked_at.is_none_or(|at| now >= at + PING_INTERVAL);
            if is_due && node.link.is_open() && node.link.is_at_rest() {
                node.ping(now);
            }
            let Some(failure) = node.is_news(now) else { continue };
            match &failure {
                _ if !is_loud => {}
                Some(why) => warn!(
                    kind = EventKind::SeedLost.name(),
                    pool,
                    server = %address,
                    "pool '{pool}': the seed {address} {why}"
                ),
                None => info!(
                    kind = EventKind::SeedFound.name(),
                    pool,
                    server = %address,
                    "pool '{pool}': the seed {address} answers"
                ),
            }
            news.push_back(News::Seed { pool: pool.clone(), seed: address.clone(), failure });
        }
    }
}

/// Whether both say the same of slots and nodes: since when is nobody's business.
fn is_alike(map: &ClusterMap, other: &ClusterMap) -> bool {
    map.moving == other.moving && places_alike(map, other)
}

fn places_alike(map: &ClusterMap, other: &ClusterMap) -> bool {
    fn shown(map: &ClusterMap) -> BTreeMap<&ClusterNode, impl PartialEq + '_> {
        let shards = map.shards.iter();
        let shard = |shard: &cashew_config::snapshot::ClusterShard| {
            (shard.replicas.iter().cloned().collect::<BTreeSet<_>>(), shard.slots.clone())
        };
        shards.map(|it| (&it.primary, shard(it))).collect()
    }
    shown(map) == shown(other)
}

/// A node of each of so many shards that own slots, from one of them on, and others of theirs where there are too few
/// shards.
fn choose(
    map: &ClusterMap,
    (first, most): (usize, usize),
    is_fit: impl Fn(&ClusterNode) -> bool,
) -> Vec<Address> {
    let owners = || map.shards.iter().filter(|shard| !shard.slots.is_empty());
    let mut fit: Vec<Vec<&ClusterNode>> = owners()
        .map(|shard| {
            let nodes = std::iter::once(&shard.primary).chain(&shard.replicas);
            nodes.filter(|node| is_fit(node)).collect()
        })
        .filter(|nodes: &Vec<_>| !nodes.is_empty())
        .collect();
    let shards = fit.len();
    if shards > most {
        fit.rotate_left(first % shards);
    }
    let count = most.min(shards.max(ASKED));
    let deepest = fit.iter().map(Vec::len).max().unwrap_or_default();
    let in_turn = (0..deepest).flat_map(|at| fit.iter().filter_map(move |nodes| nodes.get(at)));
    in_turn.take(count).map(|node| node.address.clone()).collect()
}

impl Settings {
    fn of(pool: &Pool) -> Self {
        Self {
            name: pool.name.clone(),
            reads_replicas: pool.reads_from_replicas(),
            server_auth: pool.server_auth.clone(),
            security: pool.server_tls.clone().map(Security::new).map(Arc::new),
        }
    }

    fn opening(&self, address: &Address) -> Opening {
        let greetings = Greeting::all(self.server_auth.of(&address.to_string()));
        let answer_size_max = Some(ANSWER_SIZE_MAX);
        Opening {
            security: self.security.clone(),
            greetings,
            answer_size_max,
            ..Opening::default()
        }
    }
}

impl Round {
    fn deadline(&self) -> Instant {
        let max = if self.views.len() >= 2 { ROUND_MAX_OF_TWO } else { ROUND_MAX };
        self.begun.map_or_else(Instant::now, |begun| begun + max)
    }

    fn is_over(&self, now: Instant) -> bool {
        self.waiting.is_empty() && self.asked.is_empty() || now >= self.deadline()
    }
}

impl NodeWatch {
    fn new(link: Link) -> Self {
        Self {
            link,
            expected: VecDeque::new(),
            nodes: Vec::new(),
            slots: Vec::new(),
            answered_at: None,
            asked_at: None,
            refusal: None,
            is_up: None,
            told_at: None,
        }
    }

    fn ask(&mut self, now: Instant) {
        let mut requests = Vec::new();
        let questions: [(&[u8], Question); 3] =
            [(b"NODES", Question::Nodes), (b"SLOTS", Question::Slots), (b"INFO", Question::Info)];
        for (what, question) in questions {
            write_command(&mut requests, &[b"CLUSTER", what]);
            self.expected.push_back(question);
        }
        self.asked_at = Some(now);
        self.link.ask(&requests, questions.len(), now);
    }

    fn ping(&mut self, now: Instant) {
        let mut request = Vec::new();
        write_command(&mut request, &[b"PING"]);
        self.expected.push_back(Question::Ping);
        self.asked_at = Some(now);
        self.link.ask(&request, 1, now);
    }

    fn advance(&mut self, address: &Address, now: Instant) -> Said {
        let Self { link, expected, nodes, slots, answered_at, refusal, .. } = self;
        let mut said = Said::Nothing;
        let fate = link.advance(now, &mut |bytes| match expected.pop_front() {
            Some(Question::Nodes) => {
                *answered_at = Some(now);
                *nodes = bytes.to_vec();
            }
            Some(Question::Slots) => *slots = bytes.to_vec(),
            Some(Question::Info) => {
                let view = View::read(nodes, slots, bytes, address);
                *refusal = match &view {
                    Some(_) => None,
                    None => Some(
                        answer::refusal(nodes)
                            .unwrap_or_else(|| "does not say which nodes there are".to_owned()),
                    ),
                };
                (*nodes, *slots) = (Vec::new(), Vec::new());
                said = view.map_or(Said::Refusal, |view| Said::View(Box::new(view)));
            }
            Some(Question::Ping) => *answered_at = Some(now),
            None => {}
        });
        if let Fate::Lost(_) = fate {
            self.expected.clear();
            self.asked_at = None;
            return match self.answered_at.take() {
                Some(_) => Said::Lost,
                None => Said::Unreachable,
            };
        }
        said
    }

    /// Whether it answers, if that is news: the failure if it does not.
    fn is_news(&mut self, now: Instant) -> Option<Option<String>> {
        let failure = match self.answered_at {
            Some(_) => self.refusal.clone(),
            None => Some(self.link.failure.clone()?),
        };
        let is_up = failure.is_none();
        // What it does must not fill the log.
        let is_early = self.told_at.is_some_and(|at| now < at + TOLD_AGAIN);
        if self.is_up == Some(is_up) || is_early {
            return None;
        }
        (self.is_up, self.told_at) = (Some(is_up), Some(now));
        Some(failure)
    }
}

#[cfg(test)]
mod tests {
    use cashew_config::snapshot::{ClusterShard, SlotRange};

    use super::*;

    fn node(port: u16) -> ClusterNode {
        let address = Address { host: "10.0.0.1".to_owned(), port };
        ClusterNode { address, zone: None }
    }

    fn map(shards: &[(u16, &[u16], u16)]) -> ClusterMap {
        let shard = |&(primary, replicas, slots): &(u16, &[u16], u16)| ClusterShard {
            primary: node(primary),
            replicas: replicas.iter().map(|&it| node(it)).collect(),
            slots: (0..slots).map(|slot| SlotRange { first: slot, last: slot }).collect(),
            epoch: u64::from(slots),
        };
        ClusterMap { shards: shards.iter().map(shard).collect(), moving: Vec::new() }
    }

    #[test]
    fn three_of_different_shards_are_asked() {
        let asked = |map: &ClusterMap, unfit: &[u16]| -> Vec<u16> {
            let chosen = choose(map, (0, ASKED), |node| !unfit.contains(&node.address.port));
            chosen.iter().map(|it| it.port).collect()
        };
        let four = map(&[(1, &[11], 1), (9, &[], 0), (2, &[12], 1), (3, &[], 1), (4, &[14], 1)]);
        assert_eq!(asked(&four, &[]), [1, 2, 3]);
        assert_eq!(asked(&four, &[2]), [1, 12, 3]);
        assert_eq!(asked(&four, &[1, 11, 3]), [2, 4, 12]);
        let one = map(&[(1, &[11, 12, 13], 1)]);
        assert_eq!(asked(&one, &[]), [1, 11, 12]);
        assert!(asked(&one, &[1, 11, 12, 13]).is_empty());
    }

    #[test]
    fn all_shards_are_asked_in_turn_where_a_slot_that_moves_matters() {
        let shards: Vec<(u16, &[u16], u16)> = (1..=20).map(|port| (port, &[][..], 1)).collect();
        let asked = |map: &ClusterMap, first| -> Vec<u16> {
            let chosen = choose(map, (first, ASKED_OF_REPLICAS), |_| true);
            chosen.iter().map(|it| it.port).collect()
        };
        let all = map(&shards);
        assert_eq!(asked(&all, 0), (1..=16).collect::<Vec<u16>>());
        assert_eq!(asked(&all, 16)[..6], [17, 18, 19, 20, 1, 2]);
        // All of few, and not their replicas, too.
        let few = map(&[(1, &[11], 1), (2, &[12], 1), (3, &[13], 1), (4, &[14], 1)]);
        assert_eq!(asked(&few, 16), [1, 2, 3, 4]);
        assert_eq!(asked(&map(&[(1, &[11, 12], 1)]), 16), [1, 11, 12]);
    }

    #[test]
    fn maps_are_alike_that_say_the_same() {
        let one = map(&[(1, &[11, 12], 1), (2, &[], 5)]);
        let mut other = map(&[(2, &[], 5), (1, &[12, 11], 1)]);
        other.shards[0].epoch = 99;
        assert!(is_alike(&one, &other));
        other.moving = vec![SlotRange { first: 0, last: 0 }];
        assert!(!is_alike(&one, &other));
        for differs in [
            map(&[(1, &[11, 12], 1)]),
            map(&[(1, &[11], 1), (2, &[], 5)]),
            map(&[(1, &[11, 12], 1), (2, &[], 4)]),
            map(&[(11, &[1, 12], 1), (2, &[], 5)]),
        ] {
            assert!(!is_alike(&one, &differs));
        }
    }
}
