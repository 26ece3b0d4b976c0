//! The connections to the servers of groups, which are asked again and again how far they have come,
//! and the board that has what they say. It never waits.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::Snapshot;
use cashew_config::snapshot::{
    Address, Pool, ReadYourWrites, ReplicaReads, ServerAuth, ServerGroup, TopologyState,
};
use cashew_metrics::{
    BoardWriter, MemberState, PoolId, Progress, Segments, ServerId, monotonic_ms,
};
use cashew_protocol::resp::encode::write_command;
use cashew_tls::Security;

use crate::answer;
use crate::link::{Fate, Greeting, Link, Opening};
use crate::replication::{MemberReport, Replication};
use crate::watch::News;

/// How often servers are asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// The same where a limit of the lag is to be kept.
const LAG_INTERVAL: Duration = Duration::from_millis(100);
/// The same where clients wait for replicas to have what they wrote.
const OFFSET_INTERVAL: Duration = Duration::from_millis(50);
/// A successor that has not come into effect is named again.
const NAMED_AGAIN: Duration = Duration::from_secs(1);
/// How often the board is told that somebody writes it.
const BEAT_INTERVAL: Duration = Duration::from_millis(500);

/// The members of the groups of all pools that have replicas.
#[derive(Default)]
pub struct Members {
    pools: Vec<PoolMembers>,
    /// The board in use, and during a change the next one.
    boards: Vec<Published>,
    beaten_at: Option<Instant>,
    news: VecDeque<News>,
    /// By the names of a pool and of a group's primary: the replicas that Sentinels take to be down, also
    /// before they have joined.
    down: BTreeMap<(String, String), Vec<Address>>,
}

struct PoolMembers {
    name: String,
    auth: ServerAuth,
    security: Option<Arc<Security>>,
    rules: ReplicaReads,
    members: Vec<Member>,
    groups: Vec<Replication>,
    /// The number of the last poll.
    begun: u64,
    due: Instant,
    /// Members that were somewhere else, where what the board has of them comes from.
    moved: Vec<String>,
    /// Something was said that is not published yet.
    is_news: bool,
    /// When a successor was last named.
    named_at: Option<Instant>,
}

struct Member {
    name: String,
    /// `None` is one that cannot be asked.
    link: Option<Link>,
    /// The poll that it is to answer.
    asked: Option<u64>,
    /// The first answer of it.
    said: Option<Option<MemberReport>>,
}

/// A board, and where servers are there, by name.
struct Published {
    writer: BoardWriter,
    pools: BTreeMap<String, PlacedPool>,
}

struct PlacedPool {
    id: PoolId,
    /// The last poll that had begun before this board was written. Who reads numbers of polls here has
    /// not been told of it in time, so what comes of it and of earlier ones is not for here.
    since: u64,
    servers: BTreeMap<String, Place>,
}

struct Place {
    server: ServerId,
    /// Its index in the pool.
    index: u16,
    address: Option<Address>,
}

impl Published {
    fn new(segments: &Segments, snapshot: &Snapshot) -> Self {
        let layout = segments.layout();
        let place = |(at, pool): (usize, &Pool)| {
            let servers = pool.servers.iter().enumerate().map(|(index, it)| {
                let (server, address) = (layout.server(at, index), it.endpoint.address());
                (it.name.clone(), Place { server, index: index as u16, address })
            });
            let placed = PlacedPool { id: layout.pool(at), since: 0, servers: servers.collect() };
            (pool.name.clone(), placed)
        };
        let pools = snapshot.pools.iter().enumerate();
        let pools = pools.filter(|(_, pool)| pool.has_replicas()).map(place).collect();
        Self { writer: segments.board_writer(), pools }
    }

    fn publish(&self, pool: &PoolMembers) {
        let Some(PlacedPool { since, servers, .. }) = self.pools.get(&pool.name) else { return };
        // Of another address nothing is known.
        let place_of = |name: &str| {
            let place = servers.get(name)?;
            let member = pool.members.iter().find(|member| member.name == name)?;
            (member.address() == place.address.as_ref()).then_some(place)
        };
        for group in &pool.groups {
            let Some(primary) = place_of(group.primary()).map(|place| place.index) else {
                continue;
            };
            for name in group.members() {
                let Some(Place { server, .. }) = place_of(name) else { continue };
                match group.standing(name, &pool.rules) {
                    Some((state, polled, covers)) if polled > *since => {
                        let covers = if covers > *since { covers } else { 0 };
                        self.writer.set(*server, &state, Progress { polled, covers, primary });
                    }
                    Some((state, ..)) if state.fitness.is_unfit() => {
                        self.writer.set(*server, &state, Progress::default());
                    }
                    Some(_) => {}
                    None if pool.moved.iter().any(|it| it == name) => {
                        self.writer.set(*server, &MemberState::default(), Progress::default());
                    }
                    // What was there before discovery was started anew still holds.
                    None => {}
                }
            }
        }
    }

    fn begin(&self, pool: &PoolMembers) {
        if let Some(PlacedPool { id, .. }) = self.pools.get(&pool.name) {
            self.writer.begin(*id, pool.begun);
        }
    }

    /// From here on polls of the pool are told of here, too.
    fn join(&mut self, pool: &mut PoolMembers, now: Instant) {
        let Some(PlacedPool { id, since, .. }) = self.pools.get_mut(&pool.name) else { return };
        // Numbers only grow, also after a discovery that has run before.
        pool.begun = pool.begun.max(self.writer.begun(*id));
        *since = pool.begun;
        self.writer.begin(*id, pool.begun);
        pool.due = now;
    }

    fn beat(&self, now_ms: u64) {
        self.pools.values().for_each(|pool| self.writer.beat(pool.id, now_ms));
    }
}

impl Members {
    /// Goes by a snapshot, whose pools are in these states, and writes to its board.
    pub fn put_into_effect(
        &mut self,
        snapshot: &Snapshot,
        states: &[TopologyState],
        segments: &Segments,
        now: Instant,
    ) {
        let mut before = std::mem::take(&mut self.pools);
        for (pool, state) in snapshot.pools.iter().zip(states) {
            if !pool.has_replicas() {
                continue;
            }
            let known = before.iter().position(|it| it.name == pool.name);
            let known = known.map(|at| before.swap_remove(at));
            let mut watched = PoolMembers::new(pool, state, known, now);
            watched.mark_down(&self.down);
            self.pools.push(watched);
        }
        self.boards.clear();
        self.prepare(snapshot, segments, now);
        self.pools.iter_mut().for_each(|pool| pool.moved.clear());
    }

    /// Writes to the board of the next snapshot as well, which may take effect at any time.
    pub fn prepare(&mut self, snapshot: &Snapshot, segments: &Segments, now: Instant) {
        self.boards.truncate(1);
        let mut board = Published::new(segments, snapshot);
        for pool in &mut self.pools {
            board.join(pool, now);
            board.publish(pool);
        }
        board.beat(monotonic_ms());
        self.boards.push(board);
    }

    /// That one does not take effect.
    pub fn abort(&mut self) {
        self.boards.truncate(1);
    }

    /// The topology of a pool is another one.
    pub fn set_topology(&mut self, pool: &Pool, state: &TopologyState) {
        let Some(watched) = self.pools.iter_mut().find(|it| it.name == pool.name) else { return };
        watched.set_groups(groups(pool, state));
        watched.mark_down(&self.down);
    }

    pub(crate) fn links(&self) -> impl Iterator<Item = &Link> {
        self.pools.iter().flat_map(|pool| &pool.members).filter_map(|member| member.link.as_ref())
    }

    /// When there is something to do at the latest.
    pub(crate) fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let links = self.links().filter_map(|link| link.poll_timeout(now));
        links.chain(self.pools.iter().map(|pool| pool.due)).min()
    }

    /// What has come about since it was asked last.
    pub fn poll_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    /// Sentinels take these replicas of a group to be down, and no others. `primary` is the name of its
    /// primary, which is that of the group.
    pub fn set_down(&mut self, pool: &str, primary: &str, down: Vec<Address>) {
        self.down.insert((pool.to_owned(), primary.to_owned()), down);
        if let Some(pool) = self.pools.iter_mut().find(|it| it.name == pool) {
            pool.mark_down(&self.down);
        }
    }

    /// A worker has found that a server of that pool is no primary: all are asked at once.
    pub fn suspect(&mut self, pool: &str, now: Instant) {
        for pool in self.pools.iter_mut().filter(|it| it.name == pool) {
            pool.due = pool.due.min(now);
        }
    }

    /// Does all there is to do without waiting.
    pub fn advance(&mut self, now: Instant) {
        if self.pools.is_empty() {
            return;
        }
        for pool in &mut self.pools {
            pool.hear(now);
            if now >= pool.due {
                pool.count(now);
                // Before anybody is asked.
                self.boards.iter().for_each(|board| board.begin(pool));
                pool.ask(now);
            }
            if pool.is_news {
                pool.name_successors(&mut self.news, now);
            }
            if std::mem::take(&mut pool.is_news) {
                self.boards.iter().for_each(|board| board.publish(pool));
            }
        }
        if self.beaten_at.is_none_or(|at| now >= at + BEAT_INTERVAL) {
            self.beaten_at = Some(now);
            self.boards.iter().for_each(|board| board.beat(monotonic_ms()));
        }
    }
}

impl PoolMembers {
    fn new(pool: &Pool, state: &TopologyState, known: Option<Self>, now: Instant) -> Self {
        let is_known = known.is_some();
        let security = pool.server_tls.clone().map(Security::new).map(Arc::new);
        let known =
            known.filter(|known| known.auth == pool.server_auth && known.security == security);
        let (mut links, groups_before, begun) = match known {
            Some(known) => (known.members, known.groups, known.begun),
            None => (Vec::new(), Vec::new(), 0),
        };
        let groups = groups(pool, state);
        let mut strangers = Vec::new();
        let mut members = Vec::new();
        for server in &pool.servers {
            let is_member = groups.iter().any(|it| it.members().any(|name| name == server.name));
            if !is_member {
                continue;
            }
            let address = server.endpoint.address();
            let is_same = |it: &Member| it.name == server.name && it.address() == address.as_ref();
            members.push(match links.iter().position(is_same) {
                Some(at) => links.swap_remove(at),
                None => {
                    strangers.push(server.name.clone());
                    let greetings = Greeting::all(pool.server_auth.of(&server.name));
                    let opening =
                        Opening { security: security.clone(), greetings, ..Opening::default() };
                    Member::new(&server.name, address, opening, now)
                }
            });
        }
        let mut pool = Self {
            name: pool.name.clone(),
            auth: pool.server_auth.clone(),
            security,
            rules: pool.replica_reads,
            members,
            groups: groups_before,
            begun,
            due: now,
            moved: Vec::new(),
            is_news: true,
            named_at: None,
        };
        pool.set_groups(groups);
        for group in &mut pool.groups {
            strangers.iter().for_each(|name| group.forget(name));
        }
        pool.moved = if is_known { strangers } else { Vec::new() };
        pool
    }

    /// Tells groups which of their members Sentinels take to be down.
    fn mark_down(&mut self, down: &BTreeMap<(String, String), Vec<Address>>) {
        for group in &mut self.groups {
            let down = down.get(&(self.name.clone(), group.primary().to_owned()));
            for Member { name, link, .. } in &self.members {
                let address = link.as_ref().map(Link::address);
                let is_down = address.is_some_and(|it| down.is_some_and(|down| down.contains(it)));
                group.set_down(name, is_down);
            }
        }
        self.is_news = true;
    }

    fn set_groups(&mut self, groups: Vec<Replication>) {
        let mut before = std::mem::replace(&mut self.groups, groups);
        for group in &mut self.groups {
            let is_same = |it: &&mut Replication| {
                it.members().any(|name| group.members().any(|it| it == name))
            };
            if let Some(known) = before.iter_mut().find(is_same) {
                group.keep(known);
            }
        }
        self.is_news = true;
    }

    fn interval(&self) -> Duration {
        match self.rules.read_your_writes {
            ReadYourWrites::Offset => OFFSET_INTERVAL,
            ReadYourWrites::Off | ReadYourWrites::For(_) if self.rules.lag_max.is_some() => {
                LAG_INTERVAL
            }
            ReadYourWrites::Off | ReadYourWrites::For(_) => INTERVAL,
        }
    }

    /// Says which primaries have handed over.
    fn name_successors(&mut self, news: &mut VecDeque<News>, now: Instant) {
        if self.named_at.is_some_and(|at| now < at + NAMED_AGAIN) {
            return;
        }
        for group in &self.groups {
            let Some(to) = group.successor() else { continue };
            self.named_at = Some(now);
            let (pool, from, to) = (self.name.clone(), group.primary().to_owned(), to.to_owned());
            news.push_back(News::Successor { pool, from, to });
        }
    }

    /// Takes what servers have answered.
    fn hear(&mut self, now: Instant) {
        for member in &mut self.members {
            let Some(link) = &mut member.link else { continue };
            let mut answers: Vec<Option<MemberReport>> = Vec::new();
            let (asked, said) = (&mut member.asked, &mut member.said);
            let mut polls = Vec::new();
            let fate = link.advance(now, &mut |bytes| {
                let Some(poll) = *asked else { return };
                match said.take() {
                    None => *said = Some(answer::member(bytes)),
                    Some(report) => {
                        let is_loading = answer::is_loading(bytes);
                        let report = report.map(|it| MemberReport { is_loading, ..it });
                        answers.push(report);
                        polls.push(poll);
                        *asked = None;
                    }
                }
            });
            for (report, poll) in answers.into_iter().zip(polls) {
                for group in &mut self.groups {
                    group.says(&member.name, poll, report.clone());
                }
                self.is_news = true;
            }
            match fate {
                Fate::Same => {}
                // It is asked at once.
                Fate::Opened => self.due = self.due.min(now),
                Fate::Lost(_) => {
                    (member.asked, member.said) = (None, None);
                    self.groups.iter_mut().for_each(|group| group.lost(&member.name));
                    self.is_news = true;
                }
            }
        }
    }

    /// Begins another poll.
    fn count(&mut self, now: Instant) {
        self.begun = (self.begun + 1).max(monotonic_ms());
        self.groups.iter_mut().for_each(|group| group.begin(self.begun));
        self.due = now + self.interval();
        // Who cannot be asked tells nothing at once.
        for member in self.members.iter().filter(|member| member.link.is_none()) {
            self.groups.iter_mut().for_each(|group| group.says(&member.name, self.begun, None));
            self.is_news = true;
        }
    }

    /// Asks everybody who owes nothing.
    fn ask(&mut self, now: Instant) {
        let mut request = Vec::new();
        write_command(&mut request, &[b"INFO", b"replication"]);
        write_command(&mut request, &[b"INFO", b"persistence"]);
        for member in &mut self.members {
            let Some(link) = &mut member.link else { continue };
            if member.asked.is_none() && link.is_open() && link.is_at_rest() {
                link.ask(&request, 2, now);
                (member.asked, member.said) = (Some(self.begun), None);
            }
        }
    }
}

impl Member {
    fn new(name: &str, address: Option<Address>, opening: Opening, now: Instant) -> Self {
        let link = address.map(|address| Link::new(address, opening, now));
        Self { name: name.to_owned(), link, asked: None, said: None }
    }

    fn address(&self) -> Option<&Address> {
        self.link.as_ref().map(Link::address)
    }
}

/// The groups of a pool that have replicas.
fn groups(pool: &Pool, state: &TopologyState) -> Vec<Replication> {
    let name = |server: u32| pool.servers[server as usize].name.clone();
    let group = |(number, group): (u32, ServerGroup)| {
        let primary = state.primary_of(number, group.primary);
        let replicas = group.members().filter(|&member| member != primary).map(name);
        Replication::new(&name(primary), replicas)
    };
    pool.replicated().into_iter().map(group).collect()
}
