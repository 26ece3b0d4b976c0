//! Hot keys that are split: reads of them go to copies on other servers, in front of three servers that do as Redis does.

use std::collections::HashMap;

use cashew_config::Snapshot;
use cashew_engine::{Action, CloseReason, ConnId};
use cashew_metrics::{HotAct, HotActs, HotCause, HotDeed, PoolCounter, Ranking};
use cashew_protocol::resp::{Parsed, RequestParser};

use crate::world::{World, redis, snapshot};

const SERVERS: usize = 3;

fn config(options: &str) -> Snapshot {
    snapshot(&format!(
        "global: {{worker_processes: 1}}
pools:
  a: {{redis: true, preconnect: true, hide_topology: true, timeout: 5000, databases: 2,
    servers: ['127.0.0.1:7000:1', '127.0.0.1:7001:1', '127.0.0.1:7002:1']}}
routes:
  main: {{redis: true, listen: '127.0.0.1:6000', route: {{cache: {{to: a, hot_only: true{options}}}}}}}
"
    ))
}

#[derive(Default)]
struct Server {
    data: HashMap<String, String>,
    /// What it was asked, in words, but for what trackers ask.
    asked: Vec<String>,
    /// It answers nothing for now.
    is_mute: bool,
    refusal: Option<&'static str>,
    refuses_unlink: bool,
    /// What PTTL says.
    left_ms: Option<u64>,
}

struct Play {
    world: World,
    servers: [Server; SERVERS],
    inputs: HashMap<ConnId, Vec<u8>>,
    trackers: Vec<(usize, ConnId)>,
    client: ConnId,
    acts: HotActs,
    /// How many bytes of a reply come at a time.
    piece: usize,
}

impl Play {
    fn new(config: &Snapshot) -> Self {
        let mut world = World::new(config);
        let acts = HotActs::private();
        world.engine.set_hot_acts(acts.clone());
        world.engine.set_secret([1, 2]);
        let main = world.engine.listener_named("main").unwrap().number();
        let client = world.client_of(main);
        let mut play = Self {
            world,
            servers: Default::default(),
            inputs: HashMap::new(),
            trackers: Vec::new(),
            client,
            acts,
            piece: usize::MAX,
        };
        play.run();
        play
    }

    /// The key is split, and its copies are there.
    fn split(config: &Snapshot, value: &str) -> Self {
        let mut play = Self::new(config);
        play.heat(3);
        play.ask(&["SET", "hot", value]);
        play.rest();
        play.fill();
        play
    }

    fn heat(&mut self, copies: u8) {
        let deed = HotDeed::Split { copies };
        self.acts.set(&[HotAct { deed, ..HotAct::of_key("a", b"hot", HotCause::Rule) }]);
        self.rest();
    }

    fn cool(&mut self) {
        self.acts.set(&[]);
        self.rest();
    }

    /// Reads until copies are there.
    fn fill(&mut self) {
        for _ in 0..3 {
            self.ask(&["GET", "hot"]);
        }
        self.forget();
    }

    fn forget(&mut self) {
        self.servers.iter_mut().for_each(|it| it.asked.clear());
    }

    /// A little more than a second passes.
    fn rest(&mut self) {
        for _ in 0..11 {
            self.world.wait_ms(100);
            self.run();
        }
    }

    /// Servers answer what they are asked, until they are asked nothing more.
    fn run(&mut self) {
        loop {
            let mut is_idle = true;
            for at in 0..SERVERS {
                while self.world.connects_to(at as u32) {
                    self.world.accept(at as u32);
                    is_idle = false;
                }
                for conn in self.world.lanes.get(&(at as u32)).cloned().unwrap_or_default() {
                    let bytes = self.world.received(conn);
                    self.inputs.entry(conn).or_default().extend(bytes);
                    is_idle &= !self.serve(at, conn);
                }
            }
            if is_idle {
                return;
            }
        }
    }

    fn serve(&mut self, at: usize, conn: ConnId) -> bool {
        if self.servers[at].is_mute {
            return false;
        }
        let input = self.inputs.get_mut(&conn).unwrap();
        let mut parser = RequestParser::default();
        let Parsed::Complete { len } = parser.parse(input, 1 << 30) else { return false };
        let bytes: Vec<u8> = input.drain(..len).collect();
        let words = parser.args().iter().map(|arg| String::from_utf8_lossy(arg.of(&bytes)).into());
        let words: Vec<String> = words.collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let reply = self.answer(at, conn, &words);
        for piece in reply.as_bytes().chunks(self.piece) {
            self.world.send(conn, piece);
        }
        true
    }

    fn answer(&mut self, at: usize, conn: ConnId, words: &[&str]) -> String {
        let server = &mut self.servers[at];
        match *words {
            ["HELLO", "3"] => return "%1\r\n+proto\r\n:3\r\n".to_owned(),
            ["CLIENT", "TRACKING", ..] => {
                self.trackers.push((at, conn));
                return "+OK\r\n".to_owned();
            }
            ["PING"] => return "+PONG\r\n".to_owned(),
            _ => {}
        }
        server.asked.push(words.join(" ").chars().take(100).collect());
        let bulk = |value: Option<&String>| {
            value.map_or("$-1\r\n".to_owned(), |it| format!("${}\r\n{it}\r\n", it.len()))
        };
        match *words {
            ["GET", name] => bulk(server.data.get(name)),
            ["MGET", ref names @ ..] => {
                let all: String = names.iter().map(|&name| bulk(server.data.get(name))).collect();
                format!("*{}\r\n{all}", names.len())
            }
            ["PTTL", _] => server.left_ms.map_or(":-1\r\n".to_owned(), |ms| format!(":{ms}\r\n")),
            ["SET", _, _, ..] if server.refusal.is_some() && words.len() > 3 => {
                format!("{}\r\n", server.refusal.unwrap())
            }
            ["SET", name, value, ..] => {
                server.data.insert(name.to_owned(), value.to_owned());
                self.tell(at, name);
                "+OK\r\n".to_owned()
            }
            ["UNLINK", _] if server.refuses_unlink => "-NOPERM no unlink\r\n".to_owned(),
            ["UNLINK", name] => format!(":{}\r\n", u32::from(server.data.remove(name).is_some())),
            ["SELECT", _] => "+OK\r\n".to_owned(),
            ref other => panic!("unexpected {other:?}"),
        }
    }

    /// A server tells of a key that has changed, if it is one of those that it is to tell of.
    fn tell(&mut self, at: usize, name: &str) {
        if !name.starts_with("hot") {
            return;
        }
        let push = format!(">2\r\n$10\r\ninvalidate\r\n*1\r\n${}\r\n{name}\r\n", name.len());
        for (_, conn) in self.trackers.clone().into_iter().filter(|&(its, _)| its == at) {
            if !self.world.closed.contains(&conn) {
                self.world.send(conn, &push);
            }
        }
    }

    fn ask_as(&mut self, conn: ConnId, words: &[&str]) -> String {
        self.world.send(conn, text_of(words));
        self.run();
        String::from_utf8_lossy(&self.world.received(conn)).into()
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.ask_as(self.client, words)
    }

    fn another(&mut self) -> ConnId {
        let main = self.world.engine.listener_named("main").unwrap().number();
        self.world.client_of(main)
    }

    /// The server that has the key.
    fn owner(&self) -> usize {
        self.servers.iter().position(|it| it.data.contains_key("hot")).unwrap()
    }

    fn others(&self) -> [usize; 2] {
        let owner = self.owner();
        [(owner + 1) % SERVERS, (owner + 2) % SERVERS]
    }

    /// By server: how many reads it was asked.
    fn gets(&self) -> [usize; SERVERS] {
        let count =
            |server: &Server| server.asked.iter().filter(|text| text.starts_with("GET ")).count();
        [0, 1, 2].map(|at| count(&self.servers[at]))
    }

    /// By server: the names of copies that it has.
    fn copies(&self) -> [Vec<String>; SERVERS] {
        let names = |server: &Server| {
            let names = server.data.keys().filter(|name| name.starts_with("cashew:copy:"));
            names.cloned().collect()
        };
        [0, 1, 2].map(|at| names(&self.servers[at]))
    }

    fn count(&self, counter: PoolCounter) -> u64 {
        let main = self.world.engine.listener_named("main").unwrap().number() as usize;
        self.world.metrics.pool_counter(self.world.metrics.pool(main), counter)
    }

    #[track_caller]
    fn reads(&mut self, count: usize, value: &str) {
        for _ in 0..count {
            assert_eq!(self.ask(&["GET", "hot"]), bulk(value));
        }
    }
}

fn text_of(words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| text += &bulk(word));
    text
}

fn bulk(value: &str) -> String {
    format!("${}\r\n{value}\r\n", value.len())
}

#[test]
fn reads_of_a_split_key_go_to_all_servers_that_have_it() {
    let mut it = Play::split(&config(""), "x");
    let (owner, others) = (it.owner(), it.others());
    let copies = it.copies();
    assert_eq!([copies[owner].len(), copies[others[0]].len(), copies[others[1]].len()], [0, 1, 1]);
    for name in copies.iter().flatten() {
        assert!(!name.contains("hot") && !name.contains('{'), "{name}");
    }
    it.reads(300, "x");
    assert!(it.gets().iter().all(|&gets| gets > 60), "{:?}", it.gets());
    let copied: u64 = others.iter().map(|&at| it.gets()[at] as u64).sum();
    assert_eq!(it.count(PoolCounter::CopyReads), copied);
    assert_eq!(it.count(PoolCounter::CopiesWritten), 2);
    assert_eq!(it.count(PoolCounter::CopiesMissing), 0);
    assert_eq!(it.count(PoolCounter::CacheHits), 0, "the gateway has no reply of it");
    // They count for the key, not for names of copies, or it would be taken for cool.
    for _ in 0..20 {
        it.reads(200, "x");
    }
    let pool = it.world.engine.listener_named("a").unwrap().number() as usize;
    let pool = it.world.metrics.pool(pool);
    let hot = it.world.metrics.hot_keys(pool, Ranking::Requests, it.world.now.as_micros());
    assert!(hot.keys.iter().all(|key| key.key == b"hot"), "{hot:?}");
    assert!(hot.keys[0].weight > 2000, "{hot:?}");
}

#[test]
fn a_write_through_this_instance_is_seen_at_once_and_removes_the_copies() {
    let mut it = Play::split(&config(""), "x");
    it.reads(30, "x");
    let writer = it.another();
    it.forget();
    assert_eq!(it.ask_as(writer, &["SET", "hot", "y"]), "+OK\r\n");
    for _ in 0..30 {
        it.reads(1, "y");
    }
    let other: usize = it.others().iter().map(|&at| it.gets()[at]).sum();
    assert!(other > 5, "it is split again: {:?}", it.gets());
    it.rest();
    assert_eq!(it.copies().iter().map(Vec::len).sum::<usize>(), 2, "those of the first are gone");
}

#[test]
fn a_change_by_others_is_seen_when_the_server_tells() {
    let mut it = Play::split(&config(""), "x");
    it.reads(30, "x");
    let owner = it.owner();
    it.servers[owner].data.insert("hot".into(), "y".into());
    it.tell(owner, "hot");
    it.reads(30, "y");
    it.rest();
    assert_eq!(it.copies().iter().map(Vec::len).sum::<usize>(), 2);
}

#[test]
fn copies_that_were_not_worth_it_are_not_made_again_at_once() {
    let mut it = Play::split(&config(""), "x");
    for value in ["1", "2", "3", "4", "5", "6"] {
        it.ask(&["SET", "hot", value]);
        it.reads(2, value);
    }
    assert_eq!(it.count(PoolCounter::CopiesWritten), 2, "only those from before");
    it.rest();
    it.reads(2, "6");
    assert_eq!(it.count(PoolCounter::CopiesWritten), 4);
}

#[test]
fn what_is_missing_is_read_from_the_keys_own_server() {
    let mut it = Play::split(&config(""), "x");
    let [one, other] = it.others();
    it.servers[one].data.clear();
    it.reads(100, "x");
    assert_eq!((it.gets()[one], it.count(PoolCounter::CopiesMissing)), (1, 1), "it is asked once");
    assert!(it.gets()[other] > 20);
    // So does the other one.
    it.forget();
    let name = it.copies()[other][0].clone();
    it.servers[other].data.remove(&name);
    it.reads(100, "x");
    assert_eq!(it.gets()[other], 1);
    assert_eq!(it.count(PoolCounter::CopiesMissing), 2);
    // After a while they are made anew.
    (0..6).for_each(|_| it.rest());
    it.fill();
    it.reads(100, "x");
    assert!(it.gets().iter().all(|&gets| gets > 10), "{:?}", it.gets());
    assert_eq!(it.count(PoolCounter::CopiesMissing), 2);
}

#[test]
fn a_server_that_is_lost_is_asked_for_no_copy() {
    let mut it = Play::split(&config(""), "x");
    let [one, _] = it.others();
    it.servers[one].is_mute = true;
    // Somebody waits for it when it is lost.
    let mut waiting = None;
    for _ in 0..100 {
        let reply = it.ask(&["GET", "hot"]);
        if reply.is_empty() {
            waiting = Some(it.client);
            it.client = it.another();
            break;
        }
        assert_eq!(reply, bulk("x"));
    }
    let waiting = waiting.expect("the copy is asked sooner or later");
    for conn in it.world.lanes[&(one as u32)].clone() {
        it.world.close(conn, CloseReason::Reset);
    }
    it.run();
    it.world.expect(waiting, bulk("x"));
    it.reads(100, "x");
    assert_eq!(it.count(PoolCounter::CopiesMissing), 1);
}

#[test]
fn a_server_that_takes_no_copies_is_told_of_once() {
    let mut it = Play::new(&config(""));
    it.heat(3);
    it.ask(&["SET", "hot", "x"]);
    it.rest();
    let refusal = "-NOPERM No permissions to access a key";
    it.servers.iter_mut().for_each(|server| server.refusal = Some(refusal));
    for _ in 0..3 {
        it.reads(20, "x");
        it.ask(&["SET", "hot", "x"]);
        it.rest();
    }
    // None is asked again soon.
    let refused = it.count(PoolCounter::CopiesRefused);
    assert!(refused == 2 && it.count(PoolCounter::CopiesWritten) == 0, "{refused}");
    let told = it.world.actions.iter().filter_map(|action| match action {
        Action::CopyRefused { server, why, .. } => Some((server.number(), why.to_string())),
        _ => None,
    });
    let mut told: Vec<_> = told.collect();
    told.sort();
    let others = it.others();
    let mut expected = others.map(|at| (at as u32, refusal[1..].to_owned()));
    expected.sort();
    assert_eq!(told, expected);
}

/// Copies that stay would be more and more.
#[test]
fn a_server_that_removes_no_copies_gets_none() {
    let mut it = Play::split(&config(""), "x");
    let others = it.others();
    let written = it.count(PoolCounter::CopiesWritten);
    for round in 0..3 {
        it.reads(20, "x");
        others.iter().for_each(|&at| it.servers[at].refuses_unlink = true);
        it.ask(&["SET", "hot", "x"]);
        it.rest();
        it.reads(20, "x");
        assert_eq!(it.count(PoolCounter::CopiesWritten), written, "round {round}");
    }
    assert_eq!(it.count(PoolCounter::CopiesRefused), 2);
    let told = |action: &Action| matches!(action, Action::CopyRefused { why, .. } if why.contains("unlink"));
    assert_eq!(it.world.actions.iter().filter(|action| told(action)).count(), 2);
    // After a minute it is tried again.
    others.iter().for_each(|&at| it.servers[at].refuses_unlink = false);
    it.world.wait_ms(60_000);
    it.rest();
    it.fill();
    it.reads(20, "x");
    assert!(it.count(PoolCounter::CopiesWritten) > written);
}

/// A read that finds no copy is sent to the key's own server late: what its client has asked since must not have overtaken
/// it.
#[test]
fn a_client_reads_in_its_own_order() {
    let mut it = Play::split(&config(""), "x");
    for round in 0..60 {
        let value = format!("v{round}");
        it.servers.iter_mut().for_each(|server| {
            server.data.retain(|name, _| !name.starts_with("cashew:copy:"));
        });
        let before = it.servers[it.owner()].data["hot"].clone();
        let text = text_of(&["GET", "hot"])
            + &text_of(&["GET", "hot"])
            + &text_of(&["SET", "hot", &value])
            + &text_of(&["GET", "hot"])
            + &text_of(&["MGET", "hot"]);
        it.world.send(it.client, text);
        it.run();
        let expected = bulk(&before).repeat(2)
            + "+OK\r\n"
            + &bulk(&value)
            + &format!("*1\r\n{}", bulk(&value));
        it.world.expect(it.client, expected);
        it.rest();
        it.fill();
        it.rest();
    }
    assert!(it.count(PoolCounter::CopiesMissing) > 20);
}

/// What a client reads in one go it reads in one place: two could be of different times.
#[test]
fn what_is_read_in_one_go_is_read_in_one_place() {
    let mut it = Play::split(&config(""), "x");
    for _ in 0..40 {
        it.forget();
        it.world.send(it.client, text_of(&["GET", "hot"]).repeat(5));
        it.run();
        it.world.expect(it.client, bulk("x").repeat(5));
        let mut gets = it.gets();
        gets.sort();
        assert_eq!(gets, [0, 0, 5]);
    }
}

#[test]
fn a_key_that_is_cool_has_no_copies() {
    let mut it = Play::split(&config(""), "x");
    it.reads(30, "x");
    it.cool();
    assert_eq!(it.copies().iter().map(Vec::len).sum::<usize>(), 0);
    it.forget();
    it.reads(30, "x");
    assert_eq!(it.gets()[it.owner()], 30);
    // It is kept in place of that.
    it.acts.set(&[HotAct::of_key("a", b"hot", HotCause::Rule)]);
    it.rest();
    it.fill();
    it.reads(30, "x");
    assert_eq!((it.gets(), it.count(PoolCounter::CacheHits) > 20), ([0; 3], true));
    it.heat(2);
    it.fill();
    assert_eq!(it.copies().iter().map(Vec::len).sum::<usize>(), 1, "one besides its own");
}

#[test]
fn copies_live_no_longer_than_their_key_or_the_nodes_ttl() {
    let mut it = Play::new(&config(", ttl: 3s"));
    it.heat(3);
    it.ask(&["SET", "hot", "x"]);
    it.rest();
    let life = |it: &Play| -> Vec<u64> {
        let asked = it.servers.iter().flat_map(|server| &server.asked);
        let sets = asked.filter(|text| text.contains(" PX "));
        sets.map(|text| text.rsplit(' ').next().unwrap().parse().unwrap()).collect()
    };
    it.reads(3, "x");
    assert_eq!(life(&it), [3000, 3000]);
    it.reads(60, "x");
    it.forget();
    it.world.wait_ms(3000);
    it.run();
    it.servers.iter_mut().for_each(|server| server.left_ms = Some(700));
    it.reads(3, "x");
    assert_eq!(life(&it), [700, 700]);
    assert_eq!(it.count(PoolCounter::CopiesWritten), 4);
}

#[test]
fn other_commands_and_clients_go_to_the_keys_own_server() {
    let mut it = Play::split(&config(""), "x");
    let owner = it.owner();
    for _ in 0..20 {
        assert_eq!(it.ask(&["MGET", "hot"]), format!("*1\r\n{}", bulk("x")));
    }
    let elsewhere = it.another();
    it.ask_as(elsewhere, &["SELECT", "1"]);
    for _ in 0..20 {
        it.ask_as(elsewhere, &["GET", "hot"]);
    }
    assert_eq!(it.gets()[owner], 20);
    let asked = |at: usize| it.servers[at].asked.iter().filter(|text| text.contains("hot")).count();
    assert_eq!(it.others().map(asked), [0, 0]);
}

#[test]
fn large_values_are_split_and_passed_on_as_they_come() {
    for size in [60_000, 300_000, 1_000_000] {
        let value = "v".repeat(size);
        let mut it = Play::new(&config(", value_max: 1mb, bytes: 64mb"));
        it.piece = 16_000;
        it.heat(3);
        it.ask(&["SET", "hot", &value]);
        it.rest();
        it.fill();
        assert_eq!(it.count(PoolCounter::CopiesWritten), 2, "{size}");
        it.reads(40, &value);
        assert!(it.gets().iter().all(|&gets| gets > 3), "{:?}", it.gets());
        assert_eq!(it.count(PoolCounter::CopiesMissing), 0);
        // One of them goes.
        let [one, _] = it.others();
        it.servers[one].data.clear();
        it.reads(40, &value);
        assert_eq!(it.count(PoolCounter::CopiesMissing), 1);
    }
    // This one is too large.
    let value = "v".repeat(100_000);
    let mut it = Play::new(&config(", value_max: 64kb"));
    it.piece = 16_000;
    it.heat(3);
    it.ask(&["SET", "hot", &value]);
    it.rest();
    it.reads(20, &value);
    assert_eq!(it.count(PoolCounter::CopiesWritten), 0);
}

#[test]
fn a_copy_is_not_read_before_it_is_there() {
    let mut it = Play::new(&config(""));
    it.heat(3);
    it.ask(&["SET", "hot", "x"]);
    it.rest();
    let [one, other] = it.others();
    it.servers[one].is_mute = true;
    it.fill();
    it.reads(60, "x");
    assert_eq!(it.gets()[one], 0);
    assert!(it.gets()[other] > 10);
    it.servers[one].is_mute = false;
    it.run();
    it.reads(60, "x");
    assert!(it.gets()[one] > 5);
}

#[test]
fn a_copy_that_comes_when_its_entry_is_gone_is_removed() {
    let mut it = Play::new(&config(""));
    it.heat(3);
    it.ask(&["SET", "hot", "x"]);
    it.rest();
    let [one, _] = it.others();
    it.servers[one].is_mute = true;
    it.fill();
    it.ask(&["SET", "hot", "y"]);
    it.cool();
    it.servers[one].is_mute = false;
    it.run();
    it.rest();
    assert_eq!(it.copies().iter().map(Vec::len).sum::<usize>(), 0);
    assert_eq!(redis("GET hot"), text_of(&["GET", "hot"]));
}
