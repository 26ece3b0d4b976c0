//! A subscription is never lost or doubled: publishers and subscribers of several workers, over a
//! network that delays and splits everything as it likes, while rings change and connections break.
//! More seeds with `CASHEW_SIM_SEEDS=<count>`, from `CASHEW_SIM_FROM=<seed>`.
//!
//! Each channel has one publisher, which publishes numbers, one after the other. So whoever is
//! subscribed hears numbers that grow, and from the first that was published after the subscription
//! was confirmed all of them, until a connection between its worker and a server breaks.

mod seeds;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;

use cashew_config::{Context, Snapshot};
use cashew_engine::{
    Action, Admission, CloseReason, ConnId, Engine, Identity, ListenerId, Plan, Setup, Time,
};
use cashew_metrics::{Layout, Segments};
use seeds::{play, range};

const CHANNELS: usize = 6;
const SERVERS: usize = 4;
const SUBSCRIBERS: usize = 8;
/// What a pattern subscriber has instead of a channel.
const PATTERN: &str = "c:*";

#[test]
fn subscriptions_are_neither_lost_nor_doubled() {
    let played = play(range(16), run);
    let seeds = played.len() as u64;
    let mut total = Counts::default();
    for counts in played {
        total.heard += counts.heard;
        total.epochs += counts.epochs;
        total.breaks += counts.breaks;
        total.published += counts.published;
    }
    println!("{total:?}");
    assert!(total.epochs > 2 * seeds && total.breaks > seeds, "{total:?}");
    assert!(total.heard > 200 * seeds, "{total:?}");
}

#[derive(Debug, Default)]
struct Counts {
    published: u64,
    heard: u64,
    epochs: u64,
    breaks: u64,
}

fn run(seed: u64) -> Counts {
    let mut world = World::new(seed);
    for _ in 0..40_000 {
        world.step();
    }
    world.come_to_rest();
    world.counts
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }

    fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    Server(usize),
    Client(usize),
}

/// A connection of a worker's.
struct Link {
    worker: usize,
    peer: Peer,
    /// On its way to the worker, and from it.
    inward: VecDeque<u8>,
    outward: VecDeque<u8>,
    /// What a server is subscribed to here.
    topics: BTreeSet<(u8, String)>,
    /// Received by the peer, as far as it is not understood.
    seen: Vec<u8>,
}

enum Role {
    Publisher { channel: usize, is_asking: bool },
    Subscriber(Subscriber),
}

#[derive(Default)]
struct Subscriber {
    is_resp3: bool,
    /// What it has asked for and not been told.
    asked: VecDeque<String>,
    /// By what it is subscribed to and channel: the last number.
    last: BTreeMap<(String, usize), u64>,
    /// By what it is subscribed to and channel: from which number on all are to come.
    owed: BTreeMap<(String, usize), u64>,
    topics: BTreeSet<String>,
}

struct Client {
    worker: usize,
    conn: ConnId,
    role: Role,
}

/// What the master says to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Prepare,
    Pause,
    Commit,
    Abort,
}

struct Worker {
    engine: Engine,
    orders: VecDeque<Order>,
    /// A connection of its broke, and it has not got over that.
    is_shaken: bool,
}

struct Change {
    snapshot: Snapshot,
    order: Order,
    pauses: u32,
    answers: BTreeSet<usize>,
}

struct World {
    random: Random,
    now: Time,
    workers: Vec<Worker>,
    links: BTreeMap<(usize, u64), Link>,
    clients: Vec<Client>,
    snapshot: Snapshot,
    segments: Arc<Segments>,
    change: Option<Change>,
    /// By channel: what is published next.
    next: Vec<u64>,
    /// By channel: numbers of which nobody knows whether they were published.
    uncertain: BTreeSet<(usize, u64)>,
    counts: Counts,
    /// Nothing new begins.
    is_quiet: bool,
    /// Nothing was under way any more.
    is_settled: bool,
}

fn snapshot(servers: &[usize], epoch: u64) -> Snapshot {
    let servers: String =
        servers.iter().map(|n| format!("   - 127.0.0.1:{}:1 s{n}\n", 7000 + n)).collect();
    let text = format!(
        "p:\n  listen: 127.0.0.1:6000\n  redis: true\n  hash: md5\n  timeout: 5000\n  servers:\n\
         {servers}"
    );
    match cashew_config::parse("test.yml", &text, &Context::of_system()) {
        Ok(loaded) => Snapshot { epoch, ..loaded.snapshot },
        Err(errors) => panic!("{errors}"),
    }
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text += &format!("${}\r\n{word}\r\n", word.len());
    }
    text.into_bytes()
}

/// A message or a confirmation, or a request: the words of the array at the start of `bytes`.
fn array(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let mut at = 0;
    let mut line = || {
        let end = at + bytes[at..].windows(2).position(|two| two == b"\r\n")?;
        let line = String::from_utf8(bytes[at..end].to_vec()).unwrap();
        at = end + 2;
        Some(line)
    };
    let mut words = Vec::new();
    let count: usize = line()?[1..].parse().expect("an array");
    for _ in 0..count {
        let head = line()?;
        match head.split_at(1) {
            ("$", "-1") => words.push(String::new()),
            ("$", len) => {
                let len: usize = len.parse().unwrap();
                let word = line()?;
                assert_eq!(word.len(), len);
                words.push(word);
            }
            (":", number) => words.push(number.to_owned()),
            _ => panic!("{head}"),
        }
    }
    Some((words, at))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let count = 1 + random.below(3);
        let snapshot = snapshot(&[0, 1], 1);
        let segments = Arc::new(Segments::in_memory(&Layout::new(&snapshot), count as u32));
        let now = Time::from_micros(1);
        let workers = (0..count).map(|slot| Worker {
            engine: Engine::new(Setup {
                plan: Plan::whole(&snapshot, slot as u32, count as u32),
                metrics: segments.writer(slot as u32),
                seed: random.next(),
                slot: slot as u32,
                identity: Identity { version: "0", process_id: 1 },
                now,
            }),
            orders: VecDeque::new(),
            is_shaken: false,
        });
        let mut world = Self {
            workers: workers.collect(),
            random,
            now,
            links: BTreeMap::new(),
            clients: Vec::new(),
            snapshot,
            segments,
            change: None,
            next: vec![1; CHANNELS],
            uncertain: BTreeSet::new(),
            counts: Counts::default(),
            is_quiet: false,
            is_settled: false,
        };
        for channel in 0..CHANNELS {
            world.join(Role::Publisher { channel, is_asking: false });
        }
        for at in 0..SUBSCRIBERS {
            world
                .join(Role::Subscriber(Subscriber { is_resp3: at % 2 == 1, ..Default::default() }));
        }
        world
    }

    fn join(&mut self, role: Role) {
        let worker = self.random.below(self.workers.len());
        let id = self.clients.len() as u64 + 1;
        let engine = &mut self.workers[worker].engine;
        let conn = engine.handle_accepted(ListenerId::new(0), Admission::Welcome, id, self.now);
        let hello = matches!(&role, Role::Subscriber(Subscriber { is_resp3: true, .. }));
        let peer = Peer::Client(self.clients.len());
        self.clients.push(Client { worker, conn, role });
        let mut link = Link::new(worker, peer);
        if hello {
            link.inward.extend(request(&["HELLO", "3"]));
        }
        self.links.insert((worker, conn.token()), link);
    }

    fn step(&mut self) {
        self.now = self.now.plus_micros(1 + self.random.below(40) as u64);
        match self.random.below(100) {
            0..40 => self.tick_worker(),
            40..75 => self.carry(),
            75..90 => self.publish(),
            90..97 => self.subscribe(),
            _ if self.random.percent(1) && !self.is_quiet => self.break_link(),
            _ if self.random.percent(4) && !self.is_quiet => self.begin_change(),
            _ => {}
        }
        self.coordinate();
    }

    /// One turn of a worker's loop.
    fn tick_worker(&mut self) {
        let worker = self.random.below(self.workers.len());
        let mut readable: Vec<(usize, u64)> = self
            .links
            .iter()
            .filter(|(key, link)| key.0 == worker && !link.inward.is_empty())
            .map(|(&key, _)| key)
            .collect();
        while !readable.is_empty() {
            let key = readable.swap_remove(self.random.below(readable.len()));
            if self.random.percent(30) {
                continue;
            }
            let Some(link) = self.links.get_mut(&key) else { continue };
            let most = link.inward.len();
            let count = if self.random.percent(30) { 1 + self.random.below(most) } else { most };
            let bytes: Vec<u8> = link.inward.drain(..count).collect();
            let engine = &mut self.workers[worker].engine;
            engine.handle_received(ConnId::from_token(key.1), &bytes, self.now);
        }
        if let Some(order) = self.workers[worker].orders.pop_front() {
            self.obey(worker, order);
        }
        let now = self.now;
        let engine = &mut self.workers[worker].engine;
        if engine.poll_timeout() <= now {
            engine.handle_timeout(now);
        }
        engine.settle(now);
        self.act(worker);
        while let Some(conn) = self.workers[worker].engine.poll_dirty() {
            self.write(worker, conn);
        }
        self.act(worker);
    }

    fn write(&mut self, worker: usize, conn: ConnId) {
        let engine = &mut self.workers[worker].engine;
        loop {
            let mut slices = [IoSlice::new(&[]); 8];
            let count = engine.output(conn, &mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            if bytes.is_empty() {
                return;
            }
            if let Some(link) = self.links.get_mut(&(worker, conn.token())) {
                link.outward.extend(&bytes);
            }
            engine.handle_sent(conn, bytes.len() as u64, self.now);
        }
    }

    fn act(&mut self, worker: usize) {
        while let Some(action) = self.workers[worker].engine.poll_action() {
            match action {
                Action::Connect { conn, backend: pool, server } => {
                    let engine = &mut self.workers[worker].engine;
                    let name = engine.backend_config(pool).servers[server.index()].name.clone();
                    let server: usize = name[1..].parse().unwrap();
                    let link = Link::new(worker, Peer::Server(server));
                    self.links.insert((worker, conn.token()), link);
                    engine.handle_connected(conn, self.now);
                }
                Action::Close { conn } => {
                    let link = self.links.remove(&(worker, conn.token()));
                    let peer = link.map(|link| link.peer);
                    assert!(!matches!(peer, Some(Peer::Client(_))), "a client is closed");
                }
                Action::Prepared { .. } | Action::Paused { .. } => {
                    if let Action::Paused { unfinished, .. } = action {
                        assert_eq!(unfinished, 0);
                    }
                    if let Some(change) = &mut self.change {
                        change.answers.insert(worker);
                    }
                }
                _ => {}
            }
        }
    }

    /// Bytes reach a peer.
    fn carry(&mut self) {
        let busy: Vec<(usize, u64)> = self
            .links
            .iter()
            .filter(|(_, link)| !link.outward.is_empty())
            .map(|(&key, _)| key)
            .collect();
        if busy.is_empty() {
            return;
        }
        let key = busy[self.random.below(busy.len())];
        let link = self.links.get_mut(&key).unwrap();
        let most = link.outward.len();
        let count = if self.random.percent(30) { 1 + self.random.below(most) } else { most };
        let bytes: Vec<u8> = link.outward.drain(..count).collect();
        link.seen.extend(bytes);
        match link.peer {
            Peer::Server(server) => self.serve(key, server),
            Peer::Client(client) => self.hear(key, client),
        }
    }

    /// A server does what it is told.
    fn serve(&mut self, key: (usize, u64), server: usize) {
        loop {
            let link = self.links.get_mut(&key).unwrap();
            let Some((words, used)) = array_of(&link.seen) else { return };
            link.seen.drain(..used);
            let name = words[0].to_ascii_lowercase();
            let kind = name.as_bytes()[0];
            match name.as_str() {
                "subscribe" | "psubscribe" => {
                    link.topics.insert((kind, words[1].clone()));
                    let count = link.topics.len();
                    link.inward.extend(reply(&name, &words[1], count));
                }
                "unsubscribe" | "punsubscribe" => {
                    let kind = if kind == b'p' { b'p' } else { b's' };
                    link.topics.remove(&(kind, words[1].clone()));
                    let count = link.topics.len();
                    link.inward.extend(reply(&name, &words[1], count));
                }
                "ping" if link.topics.is_empty() => link.inward.extend(b"+PONG\r\n"),
                "ping" => link.inward.extend(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"),
                "publish" => {
                    let heard = self.spread(server, &words[1], &words[2]);
                    let link = self.links.get_mut(&key).unwrap();
                    link.inward.extend(format!(":{heard}\r\n").as_bytes());
                }
                other => panic!("a server is told {other}"),
            }
        }
    }

    fn spread(&mut self, server: usize, channel: &str, text: &str) -> usize {
        let mut heard = 0;
        for link in self.links.values_mut().filter(|link| link.peer == Peer::Server(server)) {
            if link.topics.contains(&(b's', channel.to_owned())) {
                heard += 1;
                link.inward.extend(request(&["message", channel, text]));
            }
            if link.topics.contains(&(b'p', PATTERN.to_owned())) {
                heard += 1;
                link.inward.extend(request(&["pmessage", PATTERN, channel, text]));
            }
        }
        heard
    }

    /// A worker that has got over a broken connection hears again what is published from here on.
    fn recover(&mut self, worker: usize) {
        if !self.workers[worker].is_shaken || self.change.is_some() || !self.is_subscribed(worker) {
            return;
        }
        self.workers[worker].is_shaken = false;
        for client in self.clients.iter_mut().filter(|client| client.worker == worker) {
            if let Role::Subscriber(subscriber) = &mut client.role {
                for (key, owed) in &mut subscriber.owed {
                    // The number that is on its way was perhaps published before.
                    *owed = (*owed).min(self.next[key.1] + 1);
                }
            }
        }
    }

    /// Whether the worker is subscribed to what its clients want, and nothing is on its way.
    fn is_subscribed(&self, worker: usize) -> bool {
        let links = || self.links.values().filter(|link| link.worker == worker);
        let servers = || links().filter(|link| matches!(link.peer, Peer::Server(_)));
        if servers().any(Link::is_busy) {
            return false;
        }
        let clients = self.clients.iter().filter(|client| client.worker == worker);
        let wanted: Vec<&BTreeSet<String>> = clients
            .filter_map(|client| match &client.role {
                Role::Subscriber(subscriber) => Some(&subscriber.topics),
                Role::Publisher { .. } => None,
            })
            .collect();
        let is_wanted = |topic: &str| wanted.iter().any(|topics| topics.contains(topic));
        let places = |kind: u8, topic: &str| {
            servers().filter(|link| link.topics.contains(&(kind, topic.to_owned()))).count()
        };
        let is_right = |channel: usize| {
            let topic = format!("c:{channel}");
            places(b's', &topic) == usize::from(is_wanted(&topic))
        };
        let all = self.snapshot.pools[0].servers.len();
        let patterns = if is_wanted(PATTERN) { all } else { 0 };
        (0..CHANNELS).all(is_right) && places(b'p', PATTERN) == patterns
    }

    /// A client reads what it is told.
    fn hear(&mut self, key: (usize, u64), client: usize) {
        loop {
            let link = self.links.get_mut(&key).unwrap();
            let seen = &link.seen;
            if seen.first() == Some(&b'%') {
                // HELLO's answer ends with the modules, of which there are none.
                let end = b"modules\r\n*0\r\n";
                let Some(at) = seen.windows(end.len()).position(|part| part == end) else { return };
                link.seen.drain(..at + end.len());
                continue;
            }
            match seen.first() {
                Some(b'*' | b'>') => {
                    let Some((words, used)) = array(seen) else { return };
                    link.seen.drain(..used);
                    self.told(client, &words);
                }
                Some(kind) => {
                    let (is_error, is_number) = (*kind == b'-', *kind == b':');
                    let Some(end) = seen.windows(2).position(|two| two == b"\r\n") else { return };
                    let text = String::from_utf8(seen[1..end].to_vec()).unwrap();
                    link.seen.drain(..end + 2);
                    assert!(is_error || is_number, "{text}");
                    self.answered(client, is_error, &text);
                }
                None => return,
            }
        }
    }

    /// PUBLISH is answered, or somebody's SUBSCRIBE failed.
    fn answered(&mut self, client: usize, is_error: bool, text: &str) {
        match &mut self.clients[client].role {
            Role::Publisher { channel, is_asking } => {
                assert!(*is_asking);
                *is_asking = false;
                let channel = *channel;
                if is_error {
                    self.uncertain.insert((channel, self.next[channel]));
                }
                self.next[channel] += 1;
                self.counts.published += 1;
                if self.is_settled {
                    let expected = self.audience(channel);
                    assert_eq!(text, expected.to_string(), "who has heard");
                }
            }
            Role::Subscriber(subscriber) => {
                assert!(is_error, "{text}");
                subscriber.asked.pop_front();
            }
        }
    }

    /// How many subscriptions of clients a channel has.
    fn audience(&self, channel: usize) -> usize {
        let name = format!("c:{channel}");
        let topics = self.clients.iter().filter_map(|client| match &client.role {
            Role::Subscriber(subscriber) => Some(&subscriber.topics),
            Role::Publisher { .. } => None,
        });
        topics.flatten().filter(|&topic| *topic == name || topic == PATTERN).count()
    }

    fn told(&mut self, client: usize, words: &[String]) {
        self.recover(self.clients[client].worker);
        let is_shaken = self.workers[self.clients[client].worker].is_shaken;
        let Role::Subscriber(subscriber) = &mut self.clients[client].role else {
            panic!("a publisher is told {words:?}");
        };
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words[..] {
            ["subscribe" | "psubscribe", topic, _] => {
                assert_eq!(subscriber.asked.pop_front().as_deref(), Some(topic));
                if subscriber.topics.insert(topic.to_owned()) {
                    for channel in channels_of(topic) {
                        // What is on its way may have been published already.
                        let from = if is_shaken { u64::MAX } else { self.next[channel] + 1 };
                        subscriber.owed.insert((topic.to_owned(), channel), from);
                    }
                }
            }
            ["unsubscribe" | "punsubscribe", topic, _] => {
                assert_eq!(subscriber.asked.pop_front().as_deref(), Some(topic));
                subscriber.topics.remove(topic);
                subscriber.owed.retain(|(of, _), _| of != topic);
                subscriber.last.retain(|(of, _), _| of != topic);
            }
            ["message", topic, text] => self.heard(client, topic, topic, text),
            ["pmessage", topic, channel, text] => self.heard(client, topic, channel, text),
            _ => panic!("{words:?}"),
        }
    }

    fn heard(&mut self, client: usize, topic: &str, channel: &str, text: &str) {
        let (channel, number) = (channel_of(channel).unwrap(), text.parse::<u64>().unwrap());
        let Role::Subscriber(subscriber) = &mut self.clients[client].role else { unreachable!() };
        assert!(subscriber.topics.contains(topic), "{topic} is not subscribed");
        let key = (topic.to_owned(), channel);
        let last = subscriber.last.insert(key.clone(), number).unwrap_or(0);
        assert!(number > last, "client {client}: {number} after {last} of {channel} by {topic}");
        let owed = subscriber.owed.get_mut(&key).expect("it is subscribed");
        check_gap(&self.uncertain, (topic, channel), *owed, last, number);
        *owed = if *owed == u64::MAX { *owed } else { (*owed).max(number + 1) };
        self.counts.heard += 1;
    }

    fn publish(&mut self) {
        let at = self.random.below(self.clients.len());
        let Client { worker, conn, role } = &mut self.clients[at];
        if let Role::Publisher { channel, is_asking: is_asking @ false } = role {
            *is_asking = true;
            let (name, text) = (format!("c:{channel}"), self.next[*channel].to_string());
            let link = self.links.get_mut(&(*worker, conn.token())).unwrap();
            link.inward.extend(request(&["PUBLISH", &name, &text]));
        }
    }

    fn subscribe(&mut self) {
        if self.is_quiet {
            return;
        }
        let at = self.random.below(self.clients.len());
        let is_pattern = self.random.percent(20);
        let is_leaving = self.random.percent(30);
        let channel = format!("c:{}", self.random.below(CHANNELS));
        let Client { worker, conn, role } = &mut self.clients[at];
        let Role::Subscriber(subscriber) = role else { return };
        let topic = if is_pattern { PATTERN.to_owned() } else { channel };
        let verb = match (is_pattern, is_leaving) {
            (false, false) => "SUBSCRIBE",
            (true, false) => "PSUBSCRIBE",
            (false, true) => "UNSUBSCRIBE",
            (true, true) => "PUNSUBSCRIBE",
        };
        let link = self.links.get_mut(&(*worker, conn.token())).unwrap();
        link.inward.extend(request(&[verb, &topic]));
        subscriber.asked.push_back(topic);
    }

    /// A connection between a worker and a server breaks, with all that is on it.
    fn break_link(&mut self) {
        let links = self.links.iter().filter(|(_, link)| matches!(link.peer, Peer::Server(_)));
        let keys: Vec<(usize, u64)> = links.map(|(&key, _)| key).collect();
        if keys.is_empty() {
            return;
        }
        let key = keys[self.random.below(keys.len())];
        self.links.remove(&key);
        self.counts.breaks += 1;
        for client in self.clients.iter_mut().filter(|client| client.worker == key.0) {
            if let Role::Subscriber(subscriber) = &mut client.role {
                subscriber.owed.values_mut().for_each(|owed| *owed = u64::MAX);
            }
        }
        self.workers[key.0].is_shaken = true;
        let engine = &mut self.workers[key.0].engine;
        engine.handle_closed(ConnId::from_token(key.1), CloseReason::Reset, self.now);
    }

    fn begin_change(&mut self) {
        if self.change.is_some() {
            return;
        }
        let mut servers: Vec<usize> = (0..SERVERS).filter(|_| self.random.percent(60)).collect();
        if servers.is_empty() {
            servers.push(self.random.below(SERVERS));
        }
        let snapshot = snapshot(&servers, self.snapshot.epoch + 1);
        let answers = BTreeSet::new();
        self.change = Some(Change { snapshot, order: Order::Prepare, pauses: 0, answers });
        self.tell(Order::Prepare);
    }

    fn tell(&mut self, order: Order) {
        self.workers.iter_mut().for_each(|worker| worker.orders.push_back(order));
    }

    /// The master goes on when all have answered.
    fn coordinate(&mut self) {
        let count = self.workers.len();
        let is_given_up = self.random.percent(10);
        let Some(change) = &mut self.change else { return };
        if change.answers.len() < count {
            return;
        }
        change.answers.clear();
        let order = match change.order {
            Order::Prepare if is_given_up => Order::Abort,
            Order::Prepare => Order::Pause,
            Order::Pause if change.pauses == 0 && count > 1 => {
                change.pauses += 1;
                Order::Pause
            }
            Order::Pause => Order::Commit,
            Order::Commit => {
                self.snapshot = self.change.take().unwrap().snapshot;
                self.counts.epochs += 1;
                return;
            }
            Order::Abort => {
                self.change = None;
                return;
            }
        };
        change.order = order;
        if order == Order::Commit {
            let layout = Layout::new(&change.snapshot);
            self.segments = Arc::new(Segments::in_memory(&layout, count as u32));
        }
        self.tell(order);
    }

    fn obey(&mut self, worker: usize, order: Order) {
        // As a worker does, before anything is renumbered.
        self.act(worker);
        let (count, now) = (self.workers.len() as u32, self.now);
        let engine = &mut self.workers[worker].engine;
        let change = self.change.as_mut().expect("an order belongs to a change");
        match order {
            Order::Prepare => {
                let plan = Plan::whole(&change.snapshot, worker as u32, count);
                engine.handle_prepare(plan, now);
            }
            Order::Pause => engine.handle_pause(60_000, now),
            Order::Commit => {
                engine.handle_commit(self.segments.writer(worker as u32), now);
                change.answers.insert(worker);
            }
            Order::Abort => {
                engine.handle_abort(now);
                change.answers.insert(worker);
            }
        }
    }

    /// All that is under way comes to an end, and what is published then reaches everybody.
    fn come_to_rest(&mut self) {
        self.is_quiet = true;
        for round in 0..2_000_000 {
            self.now = self.now.plus_micros(200);
            match self.random.below(10) {
                0..5 => self.tick_worker(),
                5..9 => self.carry(),
                _ if self.is_settled => self.publish(),
                _ => {}
            }
            self.coordinate();
            if !self.is_settled && self.is_at_rest() {
                // From here on nothing may be missing.
                self.is_settled = true;
                let next = self.next.clone();
                for client in &mut self.clients {
                    if let Role::Subscriber(subscriber) = &mut client.role {
                        for (key, owed) in &mut subscriber.owed {
                            *owed = (*owed).min(next[key.1]);
                        }
                    }
                }
                self.counts.published = 0;
            }
            if self.is_settled && self.counts.published > 10 * CHANNELS as u64 {
                break;
            }
            assert!(round < 1_999_999, "it does not come to rest");
        }
        for _ in 0..100_000 {
            if self.is_at_rest() {
                break;
            }
            self.now = self.now.plus_micros(200);
            self.tick_worker();
            self.carry();
        }
        for (at, client) in self.clients.iter().enumerate() {
            let Role::Subscriber(subscriber) = &client.role else { continue };
            for ((topic, channel), owed) in &subscriber.owed {
                let (last, next) =
                    (subscriber.last[&(topic.clone(), *channel)], self.next[*channel]);
                assert_eq!(last, next - 1, "client {at} by {topic}, owed from {owed}");
            }
        }
    }

    /// Whether nobody waits for anything, and every worker is subscribed to what its clients want.
    fn is_at_rest(&self) -> bool {
        let is_asking = |client: &Client| match &client.role {
            Role::Publisher { is_asking, .. } => *is_asking,
            Role::Subscriber(subscriber) => !subscriber.asked.is_empty(),
        };
        self.change.is_none()
            && !self.clients.iter().any(is_asking)
            && !self.links.values().any(Link::is_busy)
            && (0..self.workers.len()).all(|worker| self.is_subscribed(worker))
    }
}

/// Nothing that is owed lies between two numbers that were heard one after the other.
fn check_gap(
    uncertain: &BTreeSet<(usize, u64)>,
    (topic, channel): (&str, usize),
    owed: u64,
    last: u64,
    number: u64,
) {
    let from = owed.max(last + 1);
    let missing = (from..number).find(|&missing| !uncertain.contains(&(channel, missing)));
    assert_eq!(
        missing, None,
        "c:{channel} by {topic}: {number} came after {last}, owed from {owed}"
    );
}

fn channel_of(topic: &str) -> Option<usize> {
    topic.strip_prefix("c:")?.parse().ok()
}

fn channels_of(topic: &str) -> Vec<usize> {
    channel_of(topic).map_or_else(|| (0..CHANNELS).collect(), |channel| vec![channel])
}

fn array_of(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    if bytes.is_empty() { None } else { array(bytes) }
}

fn reply(verb: &str, topic: &str, count: usize) -> Vec<u8> {
    let mut text = request(&[verb, topic, "x"]);
    text.truncate(text.len() - "$1\r\nx\r\n".len());
    text.extend(format!(":{count}\r\n").as_bytes());
    text
}

impl Link {
    fn is_busy(&self) -> bool {
        !self.inward.is_empty() || !self.outward.is_empty() || !self.seen.is_empty()
    }

    fn new(worker: usize, peer: Peer) -> Self {
        Self {
            worker,
            peer,
            inward: VecDeque::new(),
            outward: VecDeque::new(),
            topics: BTreeSet::new(),
            seen: Vec::new(),
        }
    }
}
