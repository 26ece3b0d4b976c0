//! The connections to the Sentinels of all pools and to the servers of their groups, and what comes
//! of what they say. It never waits but in [`Watch::wait`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{
    Address, ClusterMap, Credentials, Lineage, Pool, Sentinel, ServerAuth,
};
use cashew_metrics::EventKind;
use cashew_protocol::resp::encode::write_command;
use cashew_tls::Security;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{info, warn};

use crate::answer::{self, EVENTS};
use crate::cluster::ClusterWatch;
use crate::group::{Event, Group, Output, Report, State, View};
use crate::link::{Fate, Greeting, Link, Opening};
use crate::maintenance::ServerMaintenances;
use crate::members::Members;
use crate::replica_views::{Agreed, ReplicaViews};

/// How often everybody is asked, as a rule and while anything is suspicious.
const INTERVAL: Duration = Duration::from_secs(1);
const URGENT_INTERVAL: Duration = Duration::from_millis(100);
/// How often it is told how far replicas have come. Other news is told at once.
const OFFSETS_INTERVAL: Duration = Duration::from_secs(5);
/// How long a Sentinel that has failed answers before it counts as one that does. It is twice as long
/// each time it fails soon again, so that what it does cannot fill the log.
const PROBATION_MIN: Duration = Duration::from_millis(1500);
const PROBATION_MAX: Duration = Duration::from_secs(30);
/// Who fails later than that after it was said to answer does not fail soon.
const SOON: Duration = Duration::from_secs(60);
/// What there is to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The primary of a group is there now.
    Primary { pool: String, server: String, to: Address, config_epoch: Option<u64>, why: String },
    /// How a group is, and what whoever watches it next has to know.
    Group {
        pool: String,
        server: String,
        state: State,
        config_epoch: Option<u64>,
        primary: Option<Address>,
        lineage: Lineage,
    },
    /// The replicas of a group, of the primary in effect, are these now.
    Replicas { pool: String, server: String, primary: Address, replicas: Vec<Address> },
    /// Of the replicas of a group, these are down.
    Down { pool: String, server: String, down: Vec<Address> },
    /// A primary without Sentinels has become the replica of another server of its group: by their names.
    Successor { pool: String, from: String, to: String },
    /// Whether a Sentinel answers, and why not.
    Sentinel { pool: String, sentinel: Address, failure: Option<String> },
    /// The map of the cluster that a pool is in front of, which is another one than before.
    Map { pool: String, seeds: Vec<Address>, map: ClusterMap },
    /// Whether a seed answers, and why not.
    Seed { pool: String, seed: Address, failure: Option<String> },
}

pub struct Watch {
    pools: Vec<PoolWatch>,
    clusters: Vec<ClusterWatch>,
    news: VecDeque<News>,
    /// Whether changes are logged.
    is_loud: bool,
}

/// What a pool's connections depend on. With anything else they are made anew.
#[derive(Clone, PartialEq, Eq)]
struct Settings {
    name: String,
    addresses: Vec<Address>,
    auth: Option<Credentials>,
    server_auth: ServerAuth,
    /// What Sentinels and what servers are secured with.
    security: Option<Arc<Security>>,
    server_security: Option<Arc<Security>>,
    /// Names of servers, and what Sentinels call them.
    groups: Vec<(String, String)>,
    /// Their replicas are of interest.
    has_replicas: bool,
}

struct PoolWatch {
    settings: Settings,
    sentinels: Vec<SentinelWatch>,
    groups: Vec<GroupWatch>,
    /// More than half of the Sentinels answer, if it has been said.
    has_majority: Option<bool>,
}

/// What is known of a group, and where.
struct Known {
    settings: Settings,
    server: String,
    master: String,
    group: Group,
}

struct SentinelWatch {
    /// Asks.
    asking: Link,
    /// What the answers that are still to come are about.
    expected: VecDeque<(usize, Question)>,
    /// Where the primary of a group is, while the rest of the answer is to come.
    named: Option<Address>,
    config_epoch: Option<u64>,
    asked_at: Option<Instant>,
    asked_all_at: Option<Instant>,
    /// Listens.
    listening: Link,
    /// When it answered a question on this connection for the first time, and the last.
    answered: Option<(Instant, Instant)>,
    /// Whether it answers, if it has been said, and since when.
    is_up: Option<bool>,
    is_up_since: Option<Instant>,
    probation: Duration,
    /// Groups that it has said nothing of, when it was asked last, and that it refuses to.
    unknown: BTreeSet<usize>,
    refusal: Option<String>,
}

#[derive(Clone, Copy, Debug)]
enum Question {
    Primary,
    ConfigEpoch,
    Replicas,
}

struct GroupWatch {
    server: String,
    master: String,
    group: Group,
    servers: BTreeMap<Address, ServerWatch>,
    replicas: ReplicaViews,
    told: Option<Told>,
}

#[derive(Clone)]
struct Told {
    at: Instant,
    state: State,
    config_epoch: Option<u64>,
    primary: Option<Address>,
    lineage: Lineage,
}

struct ServerWatch {
    link: Link,
    asked_at: Option<Instant>,
}

impl Watch {
    /// Of all groups of a snapshot, with their primaries as it has them in effect.
    pub fn new(snapshot: &Snapshot, now: Instant) -> Self {
        let mut watch =
            Self { pools: Vec::new(), clusters: Vec::new(), news: VecDeque::new(), is_loud: true };
        watch.put_into_effect(snapshot, now);
        watch
    }

    /// Without a word in the log.
    pub(crate) fn quiet(snapshot: &Snapshot, now: Instant) -> Self {
        Self { is_loud: false, ..Self::new(snapshot, now) }
    }

    /// Goes by another snapshot: it is in effect.
    pub fn put_into_effect(&mut self, snapshot: &Snapshot, now: Instant) {
        let mut before = std::mem::take(&mut self.pools);
        let known: Vec<Known> = before.iter().flat_map(PoolWatch::known).collect();
        for pool in &snapshot.pools {
            let Some(sentinel) = &pool.sentinel else { continue };
            let settings = Settings::new(pool, sentinel);
            let same = before.iter().position(|it| it.settings == settings);
            let mut watched = match same {
                Some(at) => before.swap_remove(at),
                None => {
                    let mut watched = PoolWatch::new(settings, pool, sentinel, now);
                    watched.inherit(&known);
                    watched
                }
            };
            for (group, its) in watched.groups.iter_mut().zip(&sentinel.groups) {
                let primary = address_of(pool, &group.server);
                group.group.put_into_effect(primary, its.config_epoch, &its.lineage, now);
            }
            self.pools.push(watched);
        }
        let mut before = std::mem::take(&mut self.clusters);
        for pool in &snapshot.pools {
            let Some(cluster) = &pool.cluster else { continue };
            let same = before.iter().position(|it| it.name() == pool.name);
            let kept = same.map(|at| before.swap_remove(at));
            let kept = kept.and_then(|mut it| it.put_into_effect(pool, cluster, now).then_some(it));
            self.clusters.push(kept.unwrap_or_else(|| ClusterWatch::new(pool, cluster, now)));
        }
    }

    /// A worker has found that a server, which it takes for the primary of a group, is none: all are asked at
    /// once.
    pub fn suspect(&mut self, pool: &str, server: &str, now: Instant) {
        for pool in self.pools.iter_mut().filter(|it| it.settings.name == pool) {
            for group in pool.groups.iter_mut().filter(|it| it.server == server) {
                group.group.refuses_writes(now);
                group.ask_at_once();
                pool.sentinels.iter_mut().for_each(|sentinel| sentinel.asked_at = None);
            }
        }
    }

    /// A worker has found something that does not go with the map of a pool's cluster.
    pub fn doubt(&mut self, pool: &str, now: Instant) {
        let named = self.clusters.iter_mut().filter(|it| it.name() == pool);
        named.for_each(|cluster| cluster.doubt(now));
    }

    /// What has come about since it was asked last.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Waits until there is something to do, also for `others`, or one of `readable` is that.
    pub fn wait(
        &self,
        (members, maintenances): (&Members, &ServerMaintenances),
        readable: &[BorrowedFd<'_>],
        until: Option<Instant>,
    ) -> io::Result<()> {
        let now = Instant::now();
        let mut fds: Vec<PollFd<'_>> = Vec::new();
        let mut wake = until.unwrap_or(now + INTERVAL).min(now + INTERVAL);
        fds.extend(readable.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
        for pool in &self.pools {
            let is_urgent = pool.groups.iter().any(|group| group.group.is_urgent());
            if is_urgent {
                wake = wake.min(now + URGENT_INTERVAL / 4);
            }
            for link in pool.links() {
                if let Some((fd, flags)) = link.interest() {
                    fds.push(PollFd::from_borrowed_fd(fd, flags));
                }
                wake = link.poll_timeout(now).map_or(wake, |at| wake.min(at));
            }
            for (link, asked_at, interval) in pool.asking() {
                if link.is_open() && link.is_at_rest() {
                    wake = wake.min(asked_at.map_or(now, |at| at + interval));
                }
            }
        }
        for cluster in &self.clusters {
            fds.extend(cluster.links().filter_map(Link::interest).map(poll_fd));
            wake = cluster.poll_timeout(now).map_or(wake, |at| wake.min(at));
        }
        fds.extend(members.links().filter_map(Link::interest).map(poll_fd));
        wake = members.poll_timeout(now).map_or(wake, |at| wake.min(at));
        fds.extend(maintenances.links().filter_map(Link::interest).map(poll_fd));
        wake = maintenances.poll_timeout(now).map_or(wake, |at| wake.min(at));
        // A millisecond at least: what is due at once is done before this is called.
        let left = wake.saturating_duration_since(now).max(Duration::from_millis(1));
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Does all there is to do without waiting.
    pub fn advance(&mut self, now: Instant) {
        for pool in &mut self.pools {
            pool.advance(self.is_loud, &mut self.news, now);
        }
        for cluster in &mut self.clusters {
            cluster.advance(self.is_loud, &mut self.news, now);
        }
    }
}

fn poll_fd((fd, flags): (BorrowedFd<'_>, PollFlags)) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, flags)
}

fn address_of(pool: &Pool, server: &str) -> Option<Address> {
    pool.servers.iter().find(|it| it.name == server)?.endpoint.address()
}

impl Settings {
    fn new(pool: &Pool, sentinel: &Sentinel) -> Self {
        let names =
            |group: &cashew_config::snapshot::Group| (group.server.clone(), group.master.clone());
        Self {
            name: pool.name.clone(),
            addresses: sentinel.addresses.clone(),
            auth: sentinel.auth.clone(),
            server_auth: pool.server_auth.clone(),
            security: sentinel.tls.clone().map(Security::new).map(Arc::new),
            server_security: pool.server_tls.clone().map(Security::new).map(Arc::new),
            groups: sentinel.groups.iter().map(names).collect(),
            has_replicas: pool.takes_replicas(),
        }
    }

    /// Towards a Sentinel.
    fn opening(&self, greeting: Greeting) -> Opening {
        Opening { security: self.security.clone(), greetings: vec![greeting], ..Opening::default() }
    }

    /// Towards the servers of a group.
    fn server_opening(&self, server: &str) -> Opening {
        let greetings = Greeting::all(self.server_auth.of(server));
        Opening { security: self.server_security.clone(), greetings, ..Opening::default() }
    }

    /// What a Sentinel is told first.
    fn greeting(&self) -> Greeting {
        self.auth.as_ref().map(Greeting::of).unwrap_or_default()
    }

    fn subscribing_greeting(&self) -> Greeting {
        let Greeting { mut bytes, answers } = self.greeting();
        let events = EVENTS.iter().map(|event| event.as_bytes());
        let words: Vec<&[u8]> = std::iter::once(&b"SUBSCRIBE"[..]).chain(events).collect();
        write_command(&mut bytes, &words);
        Greeting { bytes, answers: answers + EVENTS.len() }
    }
}

impl Known {
    /// Whether that is the group that a pool has at that server.
    fn is_of(&self, settings: &Settings, server: &str, master: &str) -> bool {
        let is_named = (&*self.settings.name, &*self.server) == (&*settings.name, server);
        let mut addresses = self.settings.addresses.iter();
        self.master == master
            && (is_named || addresses.any(|address| settings.addresses.contains(address)))
    }
}

impl PoolWatch {
    fn new(settings: Settings, pool: &Pool, sentinel: &Sentinel, now: Instant) -> Self {
        let sentinels = settings.addresses.iter().map(|address| SentinelWatch {
            asking: Link::new(address.clone(), settings.opening(settings.greeting()), now),
            expected: VecDeque::new(),
            named: None,
            config_epoch: None,
            asked_at: None,
            asked_all_at: None,
            listening: Link::new(
                address.clone(),
                settings.opening(settings.subscribing_greeting()),
                now,
            ),
            answered: None,
            is_up: None,
            is_up_since: None,
            probation: Duration::ZERO,
            unknown: BTreeSet::new(),
            refusal: None,
        });
        let groups = sentinel.groups.iter().map(|group| {
            let primary = address_of(pool, &group.server);
            GroupWatch {
                server: group.server.clone(),
                master: group.master.clone(),
                group: Group::new(
                    settings.addresses.len(),
                    primary,
                    group.config_epoch,
                    &group.lineage,
                    now,
                ),
                servers: BTreeMap::new(),
                replicas: ReplicaViews::new(settings.addresses.len()),
                told: None,
            }
        });
        let (sentinels, groups) = (sentinels.collect(), groups.collect());
        Self { settings, sentinels, groups, has_majority: None }
    }

    fn known(&self) -> impl Iterator<Item = Known> {
        self.groups.iter().map(|watched| Known {
            settings: self.settings.clone(),
            server: watched.server.clone(),
            master: watched.master.clone(),
            group: watched.group.clone(),
        })
    }

    /// Goes on with what is known of its groups, if that is under another name or from other
    /// Sentinels.
    fn inherit(&mut self, known: &[Known]) {
        let sentinels = self.sentinels.len();
        for watched in &mut self.groups {
            let is_same = |it: &&Known| it.is_of(&self.settings, &watched.server, &watched.master);
            let is_named = |it: &&Known| {
                (&it.settings.name, &it.server) == (&self.settings.name, &watched.server)
            };
            let same = || known.iter().filter(is_same);
            if let Some(same) = same().find(is_named).or_else(|| same().next()) {
                watched.group = same.group.watched_by(sentinels);
            }
        }
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        let sentinels = self.sentinels.iter().flat_map(|it| [&it.asking, &it.listening]);
        let servers = self.groups.iter().flat_map(|group| group.servers.values());
        sentinels.chain(servers.map(|server| &server.link))
    }

    /// Who is asked, when it was last, and how often it is.
    fn asking(&self) -> impl Iterator<Item = (&Link, Option<Instant>, Duration)> {
        let interval = self.interval();
        let sentinels = self.sentinels.iter().flat_map(move |it| {
            [(&it.asking, it.asked_at, interval), (&it.listening, it.asked_at, INTERVAL)]
        });
        let servers = self.groups.iter().flat_map(|group| {
            let interval = group.interval();
            group.servers.values().map(move |server| (&server.link, server.asked_at, interval))
        });
        sentinels.chain(servers)
    }

    fn interval(&self) -> Duration {
        self.groups.iter().map(GroupWatch::interval).min().unwrap_or(INTERVAL)
    }

    fn advance(&mut self, is_loud: bool, news: &mut VecDeque<News>, now: Instant) {
        let interval = self.interval();
        let name = &self.settings.name;
        for (index, sentinel) in self.sentinels.iter_mut().enumerate() {
            for master in sentinel.advance(index, &mut self.groups, interval, now) {
                let address = sentinel.asking.address();
                if is_loud {
                    warn!(kind = EventKind::SentinelUnaware.name(), pool = name, server = %address, "pool '{name}': the Sentinel {address} does not know {master}");
                }
            }
            if let Some(failure) = sentinel.tell(name, is_loud, now) {
                let sentinel = sentinel.asking.address().clone();
                news.push_back(News::Sentinel { pool: name.clone(), sentinel, failure });
            }
        }
        self.tell_majority(is_loud);
        for group in &mut self.groups {
            group.advance(&self.settings.server_opening(&group.server), now);
            group.tell(&self.settings.name, is_loud, news, now);
            if self.settings.has_replicas {
                group.tell_replicas(&self.settings.name, news);
            }
        }
    }

    fn tell_majority(&mut self, is_loud: bool) {
        let up = self.sentinels.iter().filter(|it| it.is_up == Some(true)).count();
        if self.sentinels.iter().any(|it| it.is_up.is_none()) {
            return;
        }
        let (all, has_majority) = (self.sentinels.len(), up > self.sentinels.len() / 2);
        let before = self.has_majority.replace(has_majority);
        let name = &self.settings.name;
        match is_loud {
            true if !has_majority && before != Some(false) => warn!(
                kind = EventKind::SentinelsTooFew.name(),
                pool = name,
                "pool '{name}': {up} of {all} Sentinels answer: no majority, so primaries stay where \
                 they are"
            ),
            true if has_majority && before == Some(false) => {
                info!(
                    kind = EventKind::SentinelsEnough.name(),
                    pool = name,
                    "pool '{name}': {up} of {all} Sentinels answer again"
                );
            }
            _ => {}
        }
    }
}

impl SentinelWatch {
    /// Returns the groups that it has turned out not to know.
    fn advance(
        &mut self,
        index: usize,
        groups: &mut [GroupWatch],
        interval: Duration,
        now: Instant,
    ) -> Vec<String> {
        let Self { asking, expected, answered, named, config_epoch, unknown, refusal, .. } = self;
        let mut strangers = Vec::new();
        let fate = asking.advance(now, &mut |bytes| {
            let Some((at, question)) = expected.pop_front() else { return };
            answered.get_or_insert((now, now)).1 = now;
            let Some(group) = groups.get_mut(at) else { return };
            match question {
                Question::Primary => {
                    *named = answer::primary(bytes);
                    *refusal = answer::refusal(bytes);
                    if named.is_some() || refusal.is_some() {
                        unknown.remove(&at);
                    } else if unknown.insert(at) {
                        strangers.push(group.master.clone());
                    }
                }
                Question::ConfigEpoch => *config_epoch = answer::config_epoch(bytes),
                Question::Replicas => {
                    let replicas = answer::replicas(bytes);
                    let view = |(primary, config_epoch)| View {
                        primary,
                        config_epoch,
                        replicas: replicas.iter().map(|(address, _)| address.clone()).collect(),
                    };
                    let view = named.take().zip(config_epoch.take()).map(view);
                    match &view {
                        Some(view) => group.replicas.says(index, view.primary.clone(), replicas),
                        None => group.replicas.lost(index),
                    }
                    group.group.sentinel_says(index, view, now);
                }
            }
        });
        match fate {
            Fate::Lost(_) => {
                self.expected.clear();
                self.answered = None;
                groups.iter_mut().for_each(|group| group.replicas.lost(index));
                (self.named, self.config_epoch) = (None, None);
            }
            Fate::Opened => (self.asked_at, self.asked_all_at) = (None, None),
            Fate::Same => {}
        }
        self.listen(groups, now);
        if self.asking.is_open()
            && self.asking.is_at_rest()
            && self.asked_at.is_none_or(|at| now >= at + interval)
        {
            self.ask(groups, now);
        }
        strangers
    }

    fn listen(&mut self, groups: &mut [GroupWatch], now: Instant) {
        let mut events = false;
        self.listening.advance(now, &mut |bytes| {
            for group in groups.iter_mut() {
                let Some(event) = answer::event(bytes, &group.master) else { continue };
                if matches!(event, Event::Nominated(_)) {
                    group.ask_at_once();
                }
                group.group.sentinel_tells(event, now);
                events = true;
            }
        });
        if events {
            self.asked_at = None;
        }
    }

    /// Asks for all groups, or for those that are urgent.
    fn ask(&mut self, groups: &[GroupWatch], now: Instant) {
        let all = self.asked_all_at.is_none_or(|at| now >= at + INTERVAL);
        let mut requests = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            if !all && !group.group.is_urgent() {
                continue;
            }
            let master = group.master.as_bytes();
            write_command(&mut requests, &[b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", master]);
            write_command(&mut requests, &[b"SENTINEL", b"MASTER", master]);
            // As Sentinels of all versions call it.
            write_command(&mut requests, &[b"SENTINEL", b"SLAVES", master]);
            for question in [Question::Primary, Question::ConfigEpoch, Question::Replicas] {
                self.expected.push_back((at, question));
            }
        }
        self.asked_at = Some(now);
        if all {
            self.asked_all_at = Some(now);
            if self.listening.is_open() && self.listening.is_at_rest() {
                let mut ping = Vec::new();
                write_command(&mut ping, &[b"PING"]);
                self.listening.ask(&ping, 1, now);
            }
        }
        let answers = self.expected.len();
        self.asking.ask(&requests, answers, now);
    }

    /// Whether it answers, if that is news: the failure if it does not.
    fn tell(&mut self, pool: &str, is_loud: bool, now: Instant) -> Option<Option<String>> {
        let answers = self.answered.is_some_and(|(first, last)| last >= first + self.probation);
        let failure = match answers {
            true => self.refusal.clone(),
            false => self.asking.failure.clone().or_else(|| self.refusal.clone()),
        };
        if failure.is_none() && !answers {
            // It has not been asked for the first time, or the answer is to come.
            return None;
        }
        let is_up = failure.is_none();
        let before = self.is_up.replace(is_up);
        if before == Some(is_up) {
            return None;
        }
        if is_up {
            self.is_up_since = Some(now);
        } else {
            let was_soon = self.is_up_since.is_some_and(|since| now < since + SOON);
            let longer = if was_soon { self.probation * 2 } else { Duration::ZERO };
            self.probation = longer.clamp(PROBATION_MIN, PROBATION_MAX);
        }
        let address = self.asking.address();
        match &failure {
            _ if !is_loud => {}
            Some(why) => {
                warn!(kind = EventKind::SentinelLost.name(), pool, server = %address, "pool '{pool}': the Sentinel {address} {why}")
            }
            None => {
                info!(kind = EventKind::SentinelFound.name(), pool, server = %address, "pool '{pool}': the Sentinel {address} answers")
            }
        }
        Some(failure)
    }
}

impl GroupWatch {
    fn interval(&self) -> Duration {
        if self.group.is_urgent() { URGENT_INTERVAL } else { INTERVAL }
    }

    fn ask_at_once(&mut self) {
        self.servers.values_mut().for_each(|server| server.asked_at = None);
    }

    fn advance(&mut self, opening: &Opening, now: Instant) {
        let wanted = self.group.servers();
        self.servers.retain(|address, _| wanted.contains(address));
        for address in wanted {
            self.servers.entry(address.clone()).or_insert_with(|| ServerWatch {
                link: Link::new(address, opening.clone(), now),
                asked_at: None,
            });
        }
        let interval = self.interval();
        for (address, server) in &mut self.servers {
            server.advance(address, &mut self.group, interval, now);
        }
        self.group.handle_timeout(now);
    }

    fn tell(&mut self, pool: &str, is_loud: bool, news: &mut VecDeque<News>, now: Instant) {
        self.tell_standing(pool, news, now);
        let (server, master) = (&self.server, &self.master);
        while let Some(output) = self.group.poll_output() {
            match output {
                Output::Switch { to, config_epoch, why } => {
                    let (pool, server) = (pool.to_owned(), server.clone());
                    news.push_back(News::Primary { pool, server, to, config_epoch, why });
                }
                Output::Changed { from, to, why } if is_loud => {
                    info!(
                        kind = EventKind::GroupState.name(),
                        pool,
                        server,
                        "pool '{pool}': group '{server}' ({master}): {from} -> {to}: {why}"
                    );
                }
                Output::Unconfirmed { primary } if is_loud => warn!(
                    kind = EventKind::PrimaryNotChanged.name(),
                    pool,
                    server,
                    "pool '{pool}': group '{server}' ({master}): the Sentinels have not confirmed \
                     {primary}; it stays the primary"
                ),
                Output::Changed { .. } | Output::Unconfirmed { .. } => {}
            }
        }
    }

    /// Once it is in effect who the primary is, and where its replicas are may be put into effect.
    fn tell_replicas(&mut self, pool: &str, news: &mut VecDeque<News>) {
        let Some(primary) = self.group.primary() else { return };
        let Some(Agreed { primary, replicas, down }) = self.replicas.news(primary) else { return };
        let (pool, server) = (pool.to_owned(), self.server.clone());
        news.push_back(News::Down { pool: pool.clone(), server: server.clone(), down });
        news.push_back(News::Replicas { pool, server, primary, replicas });
    }

    fn tell_standing(&mut self, pool: &str, news: &mut VecDeque<News>, now: Instant) {
        let (state, config_epoch) = (self.group.state(), self.group.config_epoch());
        let (primary, lineage) = (self.group.primary().cloned(), self.group.lineage());
        let is_same = |told: &Told| {
            let addresses = |lineage: &Lineage| {
                lineage.followers.iter().map(|(address, _)| address.clone()).collect::<Vec<_>>()
            };
            let is_recent = now.saturating_duration_since(told.at) < OFFSETS_INTERVAL;
            (told.state, told.config_epoch, &told.primary) == (state, config_epoch, &primary)
                && told.lineage.superseded == lineage.superseded
                && told.lineage.replid == lineage.replid
                && addresses(&told.lineage) == addresses(&lineage)
                && (is_recent || told.lineage == lineage)
        };
        if self.told.as_ref().is_some_and(is_same) {
            return;
        }
        let told = Told { at: now, state, config_epoch, primary, lineage };
        let Told { primary, lineage, .. } = told.clone();
        self.told = Some(told);
        let (pool, server) = (pool.to_owned(), self.server.clone());
        news.push_back(News::Group { pool, server, state, config_epoch, primary, lineage });
    }
}

impl ServerWatch {
    fn advance(&mut self, address: &Address, group: &mut Group, interval: Duration, now: Instant) {
        let mut reports: Vec<Report> = Vec::new();
        let fate = self.link.advance(now, &mut |bytes| reports.push(answer::report(bytes)));
        for report in reports {
            group.server_says(address, report, now);
        }
        match fate {
            Fate::Lost(why) => {
                group.server_lost(address, &why, now);
                self.asked_at = None;
            }
            Fate::Opened => self.asked_at = None,
            Fate::Same => {}
        }
        if group.is_urgent() {
            self.link.hurry(now, URGENT_INTERVAL);
        }
        let is_due = self.asked_at.is_none_or(|at| now >= at + interval);
        if is_due && self.link.is_open() && self.link.is_at_rest() {
            let mut request = Vec::new();
            write_command(&mut request, &[b"INFO", b"replication"]);
            self.link.ask(&request, 1, now);
            self.asked_at = Some(now);
        }
    }
}
