//! Copies what one primary of Redis has, and follows it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cashew_config::snapshot::SlotRange;

use crate::carrier::{IS_THERE, Step};
use crate::feed::Feed;
use crate::job::{Job, Known};
use crate::link::Link;
use crate::reply::Reply;
use crate::side::{Access, Side};
use crate::value::Value;

/// Keys that are copied at once.
const BATCH: usize = 256;
/// Values that are asked for at once, at first: all are in memory at the source. Of large ones fewer are.
const WINDOW_MIN: usize = 16;
const WINDOW_SIZE_MAX: usize = 8 << 20;
/// Redis takes no longer arguments.
const DUMP_MAX: usize = 512 << 20;
/// A value that is copied by its type is in memory some times.
const BY_TYPE_MAX: usize = 128 << 20;
/// Streams of one primary, and keys that are where they do not belong.
const STREAMS_MAX: usize = 1_000_000;
const MISPLACED_MAX: usize = 10_000;
/// Keys that have changed at the other side, and are to be compared.
const SUSPECTS_MAX: usize = 100_000;
/// How long it is looked whether others write while clients wait.
const ALONE_FOR: Duration = Duration::from_millis(50);
/// How many a server is asked to list at once.
const SCAN_COUNT: &[u8] = b"256";
/// Bytes behind the value in what DUMP tells: a version and a checksum.
const DUMP_END: usize = 10;
/// The first byte of a DUMP whose hash has fields that expire by themselves.
const HASHES_WITH_TTL: std::ops::RangeInclusive<u8> = 22..=25;
/// How far two times to live may be apart: what a copy takes, and what clocks do meanwhile.
const TTL_SLACK_MS: i64 = 2000;
/// A server whose connection was ended may be about to do what came on it. It has so long for it.
const SETTLE: Duration = Duration::from_millis(300);
/// Pauses after the other side takes nothing; each is twice the one before it.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_millis(20);

/// One primary, as long as all connections last.
pub(crate) struct Follower<'j> {
    job: &'j Job,
    part: usize,
    feed: Feed,
    source: Link,
    /// What the source was when it was connected to.
    about: About,
    targets: Vec<Target>,
    /// When all servers were last asked whether they are what they were.
    looked_at: Instant,
    databases: BTreeSet<u32>,
    /// Keys that were streams when they were copied. Redis tells of entries, but not of what is read and acknowledged.
    streams: HashSet<Vec<u8>>,
    /// Keys of this server that their names do not place here, with their databases.
    misplaced: HashSet<(u32, Vec<u8>)>,
    /// Keys that have changed at the other side, and not by this.
    suspects: HashSet<Vec<u8>>,
    /// Values that are asked for at once.
    window: usize,
    pause: Duration,
}

struct Target {
    link: Link,
    /// It tells when it is flushed, which nobody does who is in step, and what others write there, or what expires.
    watch: Feed,
    about: About,
    /// It does not take what the source dumps.
    is_foreign: bool,
}

/// What a server says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct About {
    /// Another one after each start.
    run_id: String,
    is_replica: bool,
    /// Keys that it has removed for lack of memory.
    evicted: u64,
    /// Those of the databases that are copied.
    keys: u64,
}

impl About {
    fn ask(link: &mut Link, databases: &Range<u32>) -> io::Result<Self> {
        let text = link.demand(&[b"INFO"])?.bytes().unwrap_or_default();
        Ok(Self::parse(&String::from_utf8_lossy(&text), databases))
    }

    fn parse(text: &str, databases: &Range<u32>) -> Self {
        let field =
            |name: &str| text.lines().find_map(|it| it.strip_prefix(name)?.strip_prefix(':'));
        Self {
            run_id: field("run_id").unwrap_or_default().trim().to_owned(),
            is_replica: field("role").is_some_and(|role| role.trim() != "master"),
            evicted: field("evicted_keys").and_then(|it| it.trim().parse().ok()).unwrap_or(0),
            keys: keyspace(text, databases).1,
        }
    }

    /// Whether it has come back without most of what it had.
    fn has_lost(&self, known: &Known) -> bool {
        self.run_id != known.run_id && self.keys < known.keys / 2 + known.keys % 2
    }

    fn check(&self, before: &Self) -> io::Result<()> {
        if self.run_id != before.run_id {
            return Err(io::Error::other("it was started anew"));
        }
        if self.is_replica {
            return Err(io::Error::other("it is a replica"));
        }
        Ok(())
    }
}

/// What a server says when it takes nothing from anybody for a while.
fn is_passing(why: &str) -> bool {
    ["OOM", "LOADING", "BUSY ", "MISCONF", "NOREPLICAS"].iter().any(|it| why.starts_with(it))
        || is_elsewhere(why)
}

/// What a node of a cluster says of a key that it does not have now. The next map tells who does.
fn is_elsewhere(why: &str) -> bool {
    ["MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN"].iter().any(|it| why.starts_with(it))
}

/// Why a node's word (`CLUSTER NODES`) is not that it owns these slots, all of each; `None` if it is.
fn unsettled(nodes: &str, slots: &[SlotRange], name: &str) -> Option<String> {
    let its = nodes.lines().find(|line| {
        line.split(' ').nth(2).is_some_and(|flags| flags.split(',').any(|it| it == "myself"))
    });
    let words: Vec<&str> = its.unwrap_or_default().split(' ').skip(8).collect();
    if let Some(open) = words.iter().find(|it| it.starts_with('[')) {
        return Some(format!("slots are being moved from or to {name}, such as {open}"));
    }
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some(SlotRange { first: first.parse().ok()?, last: last.parse().ok()? })
    };
    let mut told: Vec<SlotRange> = words.iter().filter_map(range).collect();
    told.sort_unstable();
    (told != slots).then(|| format!("{name} owns other slots than is known yet"))
}

/// What it says about RESTORE rather than the key.
fn is_foreign(why: &str) -> bool {
    ["DUMP payload version", "Bad data format", "unknown command", "NOPERM"]
        .iter()
        .any(|it| why.contains(it))
}

fn connect(access: &Access, side: &str) -> io::Result<Link> {
    Link::connect(access).map_err(|error| named(&error, side, &access.name))
}

fn named(error: &io::Error, pool: &str, server: &str) -> io::Error {
    io::Error::new(error.kind(), format!("pool {pool}, server {server}: {error}"))
}

impl<'j> Follower<'j> {
    /// Connects to all, and listens.
    pub(crate) fn open(job: &'j Job, part: usize) -> io::Result<Self> {
        let (from, to) = (&job.task.from, &job.task.to);
        let access = &from.shards[part];
        let feed = Feed::open(access).map_err(|error| named(&error, &from.pool, &access.name))?;
        let mut source = connect(access, &from.pool)?;
        // Others with the same name were ours: of a process that was killed, or a connection that was given up.
        let name = format!("cashew-move-{:x}-{part}", print_of(&job.task.directory));
        let (mut targets, mut has_ended) = (Vec::new(), false);
        for access in &to.shards {
            let mut link = connect(access, &to.pool)?;
            has_ended |= end_others(&mut link, &name)?;
            link.ask(&[b"CLIENT", b"SETNAME", name.as_bytes()])?;
            let watch = Feed::of_others(access, &mut link)
                .map_err(|error| named(&error, &to.pool, &access.name))?;
            let about = About::ask(&mut link, &to.databases)?;
            targets.push(Target { link, watch, about, is_foreign: false });
        }
        if has_ended {
            std::thread::sleep(SETTLE);
        }
        let about = About::ask(&mut source, &from.databases)?;
        let looked_at = Instant::now();
        Ok(Self {
            job,
            part,
            feed,
            source,
            about,
            targets,
            looked_at,
            databases: BTreeSet::new(),
            streams: HashSet::new(),
            misplaced: HashSet::new(),
            suspects: HashSet::new(),
            window: WINDOW_MIN,
            pause: PAUSE_MIN,
        })
    }

    fn known(&self, about: &About) -> Known {
        let from = &self.job.task.from;
        Known {
            pool: from.pool.clone(),
            server: self.source.name().to_owned(),
            run_id: about.run_id.clone(),
            keys: about.keys,
        }
    }

    /// What comes back empty would empty the copy, too, which may be all that is left: an operator decides.
    fn wait_unless_whole(&mut self) -> io::Result<()> {
        let known = self.known(&self.about);
        if let Some(before) = self.job.known(self.part)
            && (&before.pool, &before.server) == (&known.pool, &known.server)
            && self.about.has_lost(&before)
        {
            self.job.hold(&format!(
                "server {} was started anew and has {} keys of {}: `cashew migrate resume` has the copy lose them, too",
                known.server, known.keys, before.keys
            ));
            while !self.job.may_copy() && !self.job.is_ended() {
                self.look_at_all()?;
                self.job.wait(LOOK_INTERVAL);
            }
        }
        if !self.job.is_ended() {
            self.job.know(self.part, known);
        }
        Ok(())
    }

    /// Copies everything, and follows until it ends. `has_all` is set where both sides are alike.
    pub(crate) fn run(&mut self, has_all: bool) -> io::Result<()> {
        if !has_all {
            self.wait_unless_whole()?;
        }
        let keys = self.learn_databases()?;
        self.job.walk_begins(self.part, keys);
        if !has_all {
            self.remove_surplus()?;
            self.copy_functions()?;
            self.walk()?;
        } else {
            self.learn_streams()?;
        }
        if self.job.is_ended() {
            return Ok(());
        }
        self.job.in_step(self.part);
        self.suspects.clear();
        while !self.job.is_ended() {
            self.tend()?;
            self.compare_suspects()?;
            if let Some(number) = self.job.wanted_comparison(self.part) {
                // So long it would take while clients wait, about.
                let began = Instant::now();
                self.put_back_streams();
                self.tend()?;
                let pause = began.elapsed() * 2;
                self.job.part(self.part, |it| it.pause = pause);
                let found = self.compare()?;
                if !self.job.is_ended() {
                    self.job.compared(self.part, number, found);
                }
            }
            self.feed.wait(IDLE);
        }
        Ok(())
    }

    /// Streams that are there already, where both sides are alike.
    fn learn_streams(&mut self) -> io::Result<()> {
        self.each_here(Some(b"stream"), |it, _, keys| it.note_streams(keys))
    }

    fn note_streams(&mut self, keys: Vec<Vec<u8>>) -> io::Result<()> {
        self.streams.extend(keys);
        if self.streams.len() > STREAMS_MAX {
            return Err(io::Error::other(format!("more than {STREAMS_MAX} streams are too many")));
        }
        Ok(())
    }

    /// All streams are copied anew. Copying them notes them again.
    fn put_back_streams(&mut self) {
        self.feed.put_back(std::mem::take(&mut self.streams));
    }

    /// Calls with all keys of this server, or those of one type, until the job ends.
    fn each_here(
        &mut self,
        kind: Option<&[u8]>,
        mut with: impl FnMut(&mut Self, u32, Vec<Vec<u8>>) -> io::Result<()>,
    ) -> io::Result<()> {
        for database in self.databases.clone() {
            let mut cursor = b"0".to_vec();
            loop {
                if !self.pace()? {
                    return Ok(());
                }
                self.source.select(database)?;
                let (next, keys) = scan(&mut self.source, &cursor, kind)?;
                with(self, database, keys)?;
                cursor = next;
                if cursor == b"0" {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The other side has all functions of this server.
    fn copy_functions(&mut self) -> io::Result<()> {
        let dump = match self.source.ask(&[b"FUNCTION", b"DUMP"])? {
            Reply::Bulk(dump) if dump.len() > DUMP_END => dump,
            // Redis 6 has none.
            Reply::Error(why) if !why.contains("unknown command") => {
                return Err(io::Error::other(format!("FUNCTION DUMP: {why}")));
            }
            _ => return Ok(()),
        };
        for Target { link, .. } in &mut self.targets {
            let restore: [&[u8]; 4] = [b"FUNCTION", b"RESTORE", &dump, b"REPLACE"];
            if let Reply::Error(why) = link.ask(&restore)? {
                let name = link.name();
                return Err(io::Error::other(format!("{name} does not take functions: {why}")));
            }
        }
        Ok(())
    }

    /// Counts keys that are here though their names place them elsewhere: scripts have written them that do not name
    /// their keys. No client but such a script sees them, and they are not copied.
    fn note_misplaced(&mut self, database: u32, keys: &[&[u8]]) -> io::Result<()> {
        // A node of a cluster lets nobody write what is not its own. What is on its way to it is looked at later.
        if keys.is_empty() || self.job.task.from.is_cluster() {
            return Ok(());
        }
        self.source.select(database)?;
        keys.iter().for_each(|key| self.source.send(&[b"EXISTS", key]));
        for key in keys {
            let about = (database, key.to_vec());
            match self.source.reply()? {
                Reply::Integer(0) => drop(self.misplaced.remove(&about)),
                Reply::Error(why) => return Err(io::Error::other(why)),
                _ if self.misplaced.len() < MISPLACED_MAX => drop(self.misplaced.insert(about)),
                _ => {}
            }
        }
        let count = self.misplaced.len() as u64;
        let example = self.misplaced.iter().next().map(|(_, key)| &key[..]);
        self.job.misplaced(self.part, count, example, self.source.name());
        Ok(())
    }

    /// Which databases have keys; how many these are.
    fn learn_databases(&mut self) -> io::Result<u64> {
        let allowed = self.job.task.from.databases.clone();
        let (found, keys) = databases(&mut self.source, &allowed)?;
        self.databases.extend(found);
        Ok(keys)
    }

    /// Whether all servers are what they were. Each is asked once a second, also while nothing is copied: so one that
    /// has gone is missed, and none ends an idle connection.
    fn look(&mut self) -> io::Result<()> {
        self.feed.take(0)?;
        let (from, to) = (&self.job.task.from, &self.job.task.to.pool);
        for target in &self.targets {
            loop {
                let told = target.watch.take(BATCH);
                let told = told.map_err(|error| named(&error, to, target.link.name()))?;
                if told.is_empty() {
                    break;
                }
                // The others are written by those who copy other primaries.
                let own = told.iter().filter(|key| from.place(key) == self.part);
                self.suspects.extend(own.map(|key| key.to_vec()));
            }
        }
        // While nothing is in step a comparison is to come.
        if self.suspects.len() > SUSPECTS_MAX {
            self.suspects.clear();
            self.job.unverified();
        }
        if self.looked_at.elapsed() >= LOOK_INTERVAL { self.look_now() } else { Ok(()) }
    }

    fn look_now(&mut self) -> io::Result<()> {
        let known = self.look_at_all()?;
        self.job.know(self.part, known);
        self.is_settled()?;
        Ok(())
    }

    /// Whether this primary has all keys that it has by the map: no slot of it is being moved, and none has another
    /// owner since. Always, if it is none of a cluster.
    fn is_settled(&mut self) -> io::Result<bool> {
        let Some(slots) = self.job.task.from.slots_of(self.part) else { return Ok(true) };
        let nodes = self.source.demand(&[b"CLUSTER", b"NODES"])?.bytes().unwrap_or_default();
        let found = unsettled(&String::from_utf8_lossy(&nodes), slots, self.source.name());
        let is_settled = found.is_none();
        if !is_settled {
            self.job.doubt(&self.job.task.from.pool);
        }
        self.job.part(self.part, |it| it.unsettled = found);
        Ok(is_settled)
    }

    /// Returns what the source is.
    fn look_at_all(&mut self) -> io::Result<Known> {
        let (from, to) = (&self.job.task.from.pool, &self.job.task.to.pool);
        let databases = self.job.task.from.databases.clone();
        let name = self.source.name().to_owned();
        let about =
            About::ask(&mut self.source, &databases).map_err(|error| named(&error, from, &name))?;
        about.check(&self.about).map_err(|error| named(&error, from, &name))?;
        let known = self.known(&about);
        for Target { link, watch, about: before, .. } in &mut self.targets {
            let name = link.name().to_owned();
            let about = About::ask(link, &databases).map_err(|error| named(&error, to, &name))?;
            about.check(before).map_err(|error| named(&error, to, &name))?;
            watch.take(0).map_err(|error| named(&error, to, &name))?;
            if about.evicted > before.evicted {
                let count = about.evicted - before.evicted;
                self.job.evicts(&name, count);
            }
            *before = about;
        }
        self.looked_at = Instant::now();
        Ok(known)
    }

    /// Looks at what others have changed at the other side, where nobody else writes. Returns whether that is all well.
    fn compare_suspects(&mut self) -> io::Result<bool> {
        if self.suspects.is_empty() {
            return Ok(true);
        }
        let keys: Vec<Vec<u8>> = std::mem::take(&mut self.suspects).into_iter().collect();
        let compared = self.job.control().parts[self.part].compared;
        let mut found = 0;
        for database in self.databases.clone() {
            found += self.compare_some(database, &keys)?;
        }
        self.job.part(self.part, |it| it.compared = compared);
        if found > 0 {
            self.job.unverified();
        }
        Ok(found == 0)
    }

    /// Whether anybody writes to the source though all clients of this gateway wait. What expires is copied.
    fn is_alone(&mut self) -> io::Result<bool> {
        self.job.wait(ALONE_FOR);
        self.feed.sync()?;
        let keys = self.feed.take(usize::MAX)?;
        let names: Vec<Vec<u8>> = keys.iter().map(|key| key.to_vec()).collect();
        for database in self.databases.clone() {
            let missing = self.missing(database, &names)?;
            if let Some(key) = names.iter().find(|key| !missing.contains(key)) {
                let foreign = Some((Instant::now(), key.clone()));
                self.job.part(self.part, |it| it.foreign = foreign);
                self.feed.put_back(names);
                return Ok(false);
            }
        }
        self.copy_changed(&keys)?;
        Ok(true)
    }

    /// Copies what has changed, and passes a barrier if there is one.
    fn tend(&mut self) -> io::Result<()> {
        // A lost feed is noticed also while it tells nothing.
        self.look()?;
        let is_in_step = self.job.control().parts[self.part].is_in_step;
        let barrier = self.job.wanted_barrier(self.part).filter(|_| is_in_step);
        if barrier.is_some() {
            // If a slot were moved between this look and the next one, the second one would see it: it has another
            // owner then.
            if !self.is_settled()? {
                self.job.wait(IDLE);
                return Ok(());
            }
            self.feed.sync()?;
            self.put_back_streams();
            self.copy_functions()?;
        }
        // What changes while these are copied is left for the next time: a walk goes on beside it. Behind a barrier
        // nothing is left.
        let mut left = self.feed.backlog().0;
        loop {
            let (behind, lag) = self.feed.backlog();
            self.job.part(self.part, |it| (it.keys_behind, it.lag) = (behind as u64, lag));
            if !self.job.may_copy() {
                if self.job.is_ended() {
                    return Ok(());
                }
                // What changes is still noted, and a lost feed is noticed.
                self.look()?;
                self.job.wait(IDLE);
                if !is_in_step || self.job.control().is_paused {
                    continue;
                }
                return Ok(());
            }
            if left == 0 && barrier.is_none() {
                break;
            }
            let keys = self.feed.take(BATCH)?;
            if keys.is_empty() {
                break;
            }
            left = left.saturating_sub(keys.len());
            self.copy_changed(&keys)?;
        }
        if let Some(number) = barrier {
            if !self.is_alone()? {
                return Ok(());
            }
            // Whoever is to serve has to be there, and to have what it was given.
            for target in &self.targets {
                target.watch.sync()?;
            }
            self.look()?;
            self.look_now()?;
            if !self.compare_suspects()? || !self.is_settled()? {
                return Ok(());
            }
            self.job.part(self.part, |it| it.barrier = number);
            // Keys expire here still, which is nothing to the side that may be serving by now.
            while self.job.is_held(number) {
                self.look()?;
                self.job.wait(IDLE);
            }
        }
        Ok(())
    }

    /// A key is told without its database: whichever has it is copied, and it goes where it had been.
    fn copy_changed(&mut self, keys: &[Arc<[u8]>]) -> io::Result<()> {
        self.learn_databases()?;
        for database in self.databases.clone() {
            let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            self.copy(database, &keys)?;
        }
        Ok(())
    }

    /// Makes keys at the other side what they are here: as they are when they are read, which is after this begins.
    /// Returns the bytes of their values.
    fn copy(&mut self, database: u32, keys: &[&[u8]]) -> io::Result<u64> {
        let job = self.job;
        let (from, to) = (&job.task.from, &job.task.to);
        // What is here though it belongs elsewhere must not take the place of what clients see.
        let (keys, misplaced): (Vec<&[u8]>, Vec<&[u8]>) =
            keys.iter().copied().partition(|key| from.place(key) == self.part);
        self.note_misplaced(database, &misplaced)?;
        self.source.select(database)?;
        for target in &mut self.targets {
            target.link.select(database)?;
        }
        let mut asked_at: Vec<Instant> = Vec::with_capacity(keys.len());
        let mut sent: Vec<Vec<(&[u8], bool)>> = vec![Vec::new(); self.targets.len()];
        let mut by_type: Vec<&[u8]> = Vec::new();
        let (mut size, mut removed) = (0, 0);
        let mut unread: Option<String> = None;
        let (mut again, mut refused): (Vec<Vec<u8>>, Vec<&[u8]>) = Default::default();
        for (number, &key) in keys.iter().enumerate() {
            // What waits at the source takes memory there.
            for key in keys.iter().take(number + self.window).skip(asked_at.len()) {
                self.source.send(&[b"DUMP", key]);
                self.source.send(&[b"PTTL", key]);
                asked_at.push(Instant::now());
            }
            let (dump, ttl) = (self.source.reply()?, self.source.reply()?);
            // What cannot be read is not what is gone.
            if let Some((command, why)) = refusal_of(&dump, &ttl) {
                if is_passing(&why) {
                    if is_elsewhere(&why) {
                        self.job.doubt(&from.pool);
                    }
                    self.job.failed(self.source.name(), &why);
                    again.push(key.to_vec());
                } else {
                    unread.get_or_insert(format!("{}: {command}: {why}", self.source.name()));
                }
                continue;
            }
            let place = to.place(key);
            let target = &mut self.targets[place];
            let left = ttl_left(&ttl, asked_at[number].elapsed());
            match (dump, left) {
                (Reply::Bulk(dump), Some(ttl_ms)) => {
                    size += dump.len() as u64;
                    self.window = fitting(self.window, dump.len());
                    if is_stream(&dump) {
                        self.streams.insert(key.to_vec());
                    }
                    if dump.len() > DUMP_MAX {
                        refused.push(key);
                        job.refused(key, target.link.name(), "its DUMP is larger than 512 MiB");
                        continue;
                    }
                    if target.is_foreign {
                        by_type.push(key);
                        continue;
                    }
                    let ttl = ttl_ms.to_string();
                    target.link.send(&[b"RESTORE", key, ttl.as_bytes(), &dump, b"REPLACE"]);
                    sent[place].push((key, true));
                }
                _ => {
                    target.link.send(&[b"DEL", key]);
                    sent[place].push((key, false));
                }
            }
            target.link.flush_some()?;
        }
        for (target, sent) in self.targets.iter_mut().zip(sent) {
            for (key, is_value) in sent {
                match target.link.reply()? {
                    Reply::Error(why) if is_passing(&why) => {
                        if is_elsewhere(&why) {
                            self.job.doubt(&to.pool);
                        }
                        self.job.failed(target.link.name(), &why);
                        again.push(key.to_vec());
                    }
                    Reply::Error(why) if is_value && is_foreign(&why) => {
                        target.is_foreign = true;
                        by_type.push(key);
                    }
                    Reply::Error(why)
                        if why.starts_with("READONLY") || why.starts_with("NOAUTH") =>
                    {
                        return Err(io::Error::other(why));
                    }
                    Reply::Error(why) => {
                        refused.push(key);
                        job.refused(key, target.link.name(), &why);
                    }
                    Reply::Integer(count) if !is_value => removed += count.max(0) as u64,
                    _ => {}
                }
            }
        }
        if let Some(why) = unread {
            return Err(io::Error::other(why));
        }
        for key in by_type {
            let outcome = match self.copy_by_type(key) {
                // The source says so, between two commands.
                Err(error) if is_passing(&error.to_string()) => Err(error.to_string()),
                outcome => outcome?,
            };
            if let Err(why) = outcome {
                let name = self.targets[to.place(key)].link.name();
                match is_passing(&why) {
                    true => {
                        self.job.failed(name, &why);
                        again.push(key.to_vec());
                    }
                    false => {
                        refused.push(key);
                        job.refused(key, name, &why);
                    }
                }
            }
        }
        self.window = (self.window * 2).min(BATCH);
        let is_done = |key: &&&[u8]| !refused.contains(key) && !again.iter().any(|it| it == **key);
        self.job.accepted(keys.iter().filter(is_done).copied());
        self.job.copied((keys.len() - again.len()) as u64, size, removed);
        let is_stuck = !again.is_empty();
        self.job.part(self.part, |it| it.is_stuck = is_stuck);
        if again.is_empty() {
            self.pause = PAUSE_MIN;
        } else {
            self.feed.put_back(again);
            self.job.wait(self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        Ok(size)
    }

    fn copy_by_type(&mut self, key: &[u8]) -> io::Result<Result<(), String>> {
        let dump = self.source.demand(&[b"DUMP", key])?;
        if let Reply::Bulk(dump) = &dump
            && dump.first().is_some_and(|kind| HASHES_WITH_TTL.contains(kind))
        {
            return Ok(Err(
                "its fields expire by themselves, and the other side does not take its DUMP".into(),
            ));
        }
        if let Reply::Bulk(dump) = &dump
            && dump.len() > BY_TYPE_MAX
        {
            return Ok(Err("it is too large to be copied by its type".into()));
        }
        drop(dump);
        let asked_at = Instant::now();
        let ttl = self.source.demand(&[b"PTTL", key])?;
        let value = Value::read(&mut self.source, key)?;
        let place = self.job.task.to.place(key);
        let target = &mut self.targets[place];
        match (value, ttl_left(&ttl, asked_at.elapsed())) {
            (Some(value), Some(ttl_ms)) => value.write(&mut target.link, key, ttl_ms),
            _ => match target.link.ask(&[b"DEL", key])? {
                Reply::Error(why) => Ok(Err(why)),
                _ => Ok(Ok(())),
            },
        }
    }

    /// Waits as the rate says, and copies meanwhile what changes. `false` once it is over.
    fn pace(&mut self) -> io::Result<bool> {
        loop {
            self.tend()?;
            if self.job.is_ended() {
                return Ok(false);
            }
            let debt = self.job.debt();
            if debt.is_zero() && self.job.may_copy() {
                return Ok(true);
            }
            self.job.wait(debt.clamp(Duration::from_millis(1), IDLE));
        }
    }

    fn walk(&mut self) -> io::Result<()> {
        self.each_here(None, |it, database, keys| {
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let size = it.copy(database, &keys)?;
            it.job.spend(keys.len() as u64, size);
            it.job.part(it.part, |it| {
                it.keys_walked += keys.len() as u64;
                it.keys = it.keys.max(it.keys_walked);
            });
            Ok(())
        })
    }

    /// Removes what the other side has and this one has not: what went while nobody listened.
    fn remove_surplus(&mut self) -> io::Result<()> {
        self.each_at_target(|it, at, database, keys| {
            let missing = it.missing(database, &keys)?;
            let missing: Vec<&[u8]> = missing.iter().map(Vec::as_slice).collect();
            it.copy(database, &missing)?;
            // No client of this pool sees what is where it does not belong. A cluster has no such keys.
            let to = &it.job.task.to;
            if to.is_cluster() {
                return Ok(());
            }
            let misplaced: Vec<&[u8]> =
                keys.iter().map(Vec::as_slice).filter(|key| to.place(key) != at).collect();
            let link = &mut it.targets[at].link;
            link.select(database)?;
            misplaced.iter().for_each(|key| link.send(&[b"DEL", key]));
            for _ in &misplaced {
                link.reply()?;
            }
            it.job.copied(0, 0, misplaced.len() as u64);
            Ok(())
        })
    }

    /// Those of the keys that are not here.
    fn missing(&mut self, database: u32, keys: &[Vec<u8>]) -> io::Result<Vec<Vec<u8>>> {
        self.source.select(database)?;
        keys.iter().for_each(|key| self.source.send(&[b"EXISTS", key]));
        let mut missing = Vec::new();
        for key in keys {
            match self.source.reply()? {
                Reply::Integer(0) => missing.push(key.clone()),
                // Nobody can say yet.
                Reply::Error(why) if is_elsewhere(&why) => {}
                Reply::Error(why) => return Err(io::Error::other(why)),
                _ => {}
            }
        }
        Ok(missing)
    }

    /// Calls with the keys of the other side that would be here.
    fn each_at_target(
        &mut self,
        mut with: impl FnMut(&mut Self, usize, u32, Vec<Vec<u8>>) -> io::Result<()>,
    ) -> io::Result<()> {
        let job = self.job;
        let (from, allowed) = (&job.task.from, job.task.from.databases.clone());
        for at in 0..self.targets.len() {
            let (found, _) = databases(&mut self.targets[at].link, &allowed)?;
            self.databases.extend(&found);
            for database in found {
                let mut cursor = b"0".to_vec();
                loop {
                    if !self.pace()? {
                        return Ok(());
                    }
                    self.targets[at].link.select(database)?;
                    let (next, keys) = scan(&mut self.targets[at].link, &cursor, None)?;
                    let keys =
                        keys.into_iter().filter(|key| from.place(key) == self.part).collect();
                    with(self, at, database, keys)?;
                    cursor = next;
                    if cursor == b"0" {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares all keys of both sides. Returns how many differ though nothing has changed them.
    fn compare(&mut self) -> io::Result<u64> {
        self.job.part(self.part, |it| it.compared = 0);
        let mut found = 0;
        self.learn_databases()?;
        self.misplaced.clear();
        self.job.misplaced(self.part, 0, None, self.source.name());
        self.each_here(None, |it, database, keys| {
            let part = it.part;
            let (keys, misplaced): (Vec<Vec<u8>>, Vec<Vec<u8>>) =
                keys.into_iter().partition(|key| it.job.task.from.place(key) == part);
            let misplaced: Vec<&[u8]> = misplaced.iter().map(Vec::as_slice).collect();
            it.note_misplaced(database, &misplaced)?;
            found += it.compare_some(database, &keys)?;
            Ok(())
        })?;
        self.each_at_target(|it, _, database, keys| {
            let missing = it.missing(database, &keys)?;
            found += it.compare_some(database, &missing)?;
            Ok(())
        })?;
        Ok(found)
    }

    fn compare_some(&mut self, database: u32, keys: &[Vec<u8>]) -> io::Result<u64> {
        let (mut found, mut left) = (0, keys);
        while !left.is_empty() {
            let (some, rest) = left.split_at(self.window.min(left.len()));
            found += self.compare_window(database, some)?;
            self.window = (self.window * 2).min(BATCH);
            left = rest;
        }
        Ok(found)
    }

    fn compare_window(&mut self, database: u32, keys: &[Vec<u8>]) -> io::Result<u64> {
        let job = self.job;
        let (from, to) = (&job.task.from, &job.task.to);
        self.source.select(database)?;
        let keys: Vec<&Vec<u8>> = keys.iter().filter(|key| from.place(key) == self.part).collect();
        for key in &keys {
            let target = &mut self.targets[to.place(key)].link;
            target.select(database)?;
            for link in [&mut self.source, target] {
                link.send(&[b"DUMP", key]);
                link.send(&[b"PTTL", key]);
            }
        }
        let (mut suspects, mut unread, mut size) = (Vec::new(), None, 0);
        let mut elsewhere = 0;
        for key in &keys {
            let target = &mut self.targets[to.place(key)].link;
            let here = (self.source.reply()?, self.source.reply()?);
            let there = (target.reply()?, target.reply()?);
            if let Reply::Bulk(dump) = &here.0 {
                size += dump.len() as u64;
                self.window = fitting(self.window, dump.len());
            }
            let refusals = [&here, &there].map(|(dump, ttl)| refusal_of(dump, ttl));
            if refusals.iter().flatten().any(|(_, why)| is_elsewhere(why)) {
                // It is on its way from one node to another: this comparison proves nothing.
                elsewhere += 1;
                self.feed.put_back([key.to_vec()]);
                continue;
            }
            if let Some((command, why)) = refusals.into_iter().flatten().next() {
                unread.get_or_insert(format!("{command}: {why}"));
            }
            if !are_alike(&here, &there) {
                suspects.push(&key[..]);
            }
        }
        if let Some(why) = unread {
            return Err(io::Error::other(why));
        }
        let differ = self.differing(&suspects)?;
        let mut found = elsewhere;
        if !differ.is_empty() {
            // What has changed since is told by now, and is copied anyway.
            self.feed.sync()?;
            for key in differ {
                if !self.feed.has(&key) {
                    self.job.mismatch(&key);
                    found += 1;
                    self.feed.put_back([key]);
                }
            }
        }
        self.job.spend(keys.len() as u64, size);
        self.job.part(self.part, |it| it.compared += keys.len() as u64);
        Ok(found)
    }

    /// Those of the keys whose values are not the same on both sides. Equal ones may be kept in different ways.
    fn differing(&mut self, keys: &[&[u8]]) -> io::Result<Vec<Vec<u8>>> {
        let to = &self.job.task.to;
        let all_here = read_with_ttl(&mut self.source, keys)?;
        let mut by_target: Vec<Vec<usize>> = vec![Vec::new(); self.targets.len()];
        keys.iter().enumerate().for_each(|(at, key)| by_target[to.place(key)].push(at));
        let mut differ = Vec::new();
        for (target, ats) in self.targets.iter_mut().zip(by_target) {
            let its: Vec<&[u8]> = ats.iter().map(|&at| keys[at]).collect();
            let all_there = read_with_ttl(&mut target.link, &its)?;
            for (at, there) in ats.into_iter().zip(all_there) {
                match verdict(&all_here[at], &there) {
                    Verdict::Alike => {}
                    // Of what is read and acknowledged nobody tells: these are copied at the end, whatever they are now.
                    Verdict::ReadOnly => self.feed.put_back([keys[at].to_vec()]),
                    Verdict::Differ => differ.push(keys[at].to_vec()),
                }
            }
        }
        Ok(differ)
    }
}

enum Verdict {
    Alike,
    /// The same entries of a stream, which others have been read of.
    ReadOnly,
    Differ,
}

fn verdict(here: &(Option<Value>, Reply), there: &(Option<Value>, Reply)) -> Verdict {
    let is_alike = here.0 == there.0 && !matches!(here.0, Some(Value::Other(_)));
    let (is_same_ttl, is_gone) = (ttls_alike(&here.1, &there.1), there.0.is_none());
    let is_about_to_expire = here.1.integer().is_some_and(|left| (0..TTL_SLACK_MS).contains(&left));
    if let (Some(Value::Stream(one)), Some(Value::Stream(other))) = (&here.0, &there.0)
        && !is_alike
        && one.has_entries_of(other)
        && is_same_ttl
    {
        return Verdict::ReadOnly;
    }
    match is_alike && is_same_ttl || is_gone && (here.0.is_none() || is_about_to_expire) {
        true => Verdict::Alike,
        false => Verdict::Differ,
    }
}

/// The values and times to live of these keys.
fn read_with_ttl(link: &mut Link, keys: &[&[u8]]) -> io::Result<Vec<(Option<Value>, Reply)>> {
    let values = Value::read_all(link, keys)?;
    keys.iter().for_each(|key| link.send(&[b"PTTL", key]));
    let with_ttl = |(value, key): (Option<Value>, &&[u8])| match link.reply()? {
        Reply::Error(_) => Ok((value, link.demand(&[b"PTTL", key])?)),
        ttl => Ok((value, ttl)),
    };
    values.into_iter().zip(keys).map(with_ttl).collect()
}

/// The servers of these keys, by their places.
fn connect_to(side: &Side, keys: &[Vec<u8>]) -> io::Result<BTreeMap<usize, Link>> {
    let link = |at: usize| Ok((at, connect(&side.shards[at], &side.pool)?));
    side.shards_of(keys).into_iter().map(link).collect()
}

/// The first of these keys that a server has, in whichever database.
pub(crate) fn first_there(
    access: &Access,
    databases_of: &Range<u32>,
    keys: &[&[u8]],
) -> io::Result<Option<usize>> {
    let mut link = Link::connect(access)?;
    for database in databases(&mut link, databases_of)?.0 {
        link.select(database)?;
        for (at, key) in keys.iter().enumerate() {
            if link.demand(&[b"EXISTS", key])? != Reply::Integer(0) {
                return Ok(Some(at));
            }
        }
    }
    Ok(None)
}

/// The first of these keys that takes more memory than so much, and how much. `None` if a server does not tell.
pub(crate) fn first_larger(
    access: &Access,
    databases_of: &Range<u32>,
    (keys, most): (&[&[u8]], u64),
) -> io::Result<Option<(usize, u64)>> {
    let mut link = Link::connect(access)?;
    for database in databases(&mut link, databases_of)?.0 {
        link.select(database)?;
        for (at, key) in keys.iter().enumerate() {
            let Reply::Integer(size) = link.ask(&[b"MEMORY", b"USAGE", key])? else { continue };
            match u64::try_from(size) {
                Ok(size) if size > most => return Ok(Some((at, size))),
                _ => {}
            }
        }
    }
    Ok(None)
}

/// Has `to` have what `from` has of the keys of a step, in all databases, where nobody writes.
pub(crate) fn carry(step: &Step) -> io::Result<()> {
    let (from, to) = step.sides();
    let (mut sources, mut targets) = (connect_to(&from, &step.keys)?, connect_to(&to, &step.keys)?);
    let mut there = Vec::new();
    for link in sources.values_mut().chain(targets.values_mut()) {
        there.extend(databases(link, &from.databases)?.0);
    }
    for database in BTreeSet::from_iter(there) {
        for key in &step.keys {
            step.check()?;
            let source = sources.get_mut(&from.place(key));
            let target = targets.get_mut(&to.place(key));
            let (Some(source), Some(target)) = (source, target) else { continue };
            source.select(database)?;
            target.select(database)?;
            let way = [(&from, source.name()), (&to, target.name())]
                .map(|(side, server)| format!("pool {}, server {server}", side.pool))
                .join(" to ");
            carry_key(step, source, target, key).map_err(|error| {
                let key = key.escape_ascii();
                io::Error::other(format!("key \"{key}\": {error} (from {way})"))
            })?;
        }
    }
    Ok(())
}

fn carry_key(step: &Step, source: &mut Link, target: &mut Link, key: &[u8]) -> io::Result<()> {
    if !step.may_overwrite && target.demand(&[b"EXISTS", key])? != Reply::Integer(0) {
        return Err(io::Error::other(IS_THERE));
    }
    let asked_at = Instant::now();
    let (dump, ttl) = (source.demand(&[b"DUMP", key])?, source.demand(&[b"PTTL", key])?);
    let (Reply::Bulk(dump), Some(ttl_ms)) = (dump, ttl_left(&ttl, asked_at.elapsed())) else {
        step.write(key);
        return target.demand(&[b"DEL", key]).map(drop);
    };
    step.write(key);
    let ttl = ttl_ms.to_string();
    match target.ask(&[b"RESTORE", key, ttl.as_bytes(), &dump, b"REPLACE"])? {
        Reply::Error(why) if is_foreign(&why) => {
            if dump.first().is_some_and(|kind| HASHES_WITH_TTL.contains(kind)) {
                return Err(io::Error::other(
                    "its fields expire, and the other side does not take its DUMP",
                ));
            }
            if let Some(value) = Value::read(source, key)? {
                value.write(target, key, ttl_ms)?.map_err(io::Error::other)?;
            }
        }
        Reply::Error(why) => return Err(io::Error::other(why)),
        _ => {}
    }
    let here = (Value::read(source, key)?, source.demand(&[b"PTTL", key])?);
    let there = (Value::read(target, key)?, target.demand(&[b"PTTL", key])?);
    // What only DUMP tells was taken as it is.
    match (verdict(&here, &there), &here.0, &there.0) {
        (Verdict::Alike, ..) | (_, Some(Value::Other(_)), Some(Value::Other(_))) => Ok(()),
        _ => Err(io::Error::other("it is another one in the other pool once it is copied")),
    }
}

/// Removes keys from a side, in all databases.
pub(crate) fn remove(side: &Side, keys: &[Vec<u8>]) -> io::Result<()> {
    for (at, link) in &mut connect_to(side, keys)? {
        for database in databases(link, &side.databases)?.0 {
            link.select(database)?;
            for key in keys.iter().filter(|key| side.place(key) == *at) {
                link.demand(&[b"UNLINK", key])?;
            }
        }
    }
    Ok(())
}

/// What a DUMP begins with that may be one of a stream: of the types that are known, or a later one.
fn is_stream(dump: &[u8]) -> bool {
    dump.first().is_some_and(|kind| matches!(kind, 15 | 19 | 21 | 26..))
}

/// As many values may be asked for at once as fit, if they are as large as this one.
fn fitting(window: usize, len: usize) -> usize {
    window.min(WINDOW_SIZE_MAX / len.max(1)).max(1)
}

/// Which of the two a server refuses, and why.
fn refusal_of(dump: &Reply, ttl: &Reply) -> Option<(&'static str, String)> {
    [("DUMP", dump), ("PTTL", ttl)].into_iter().find_map(|(command, reply)| match reply {
        Reply::Error(why) => Some((command, why.clone())),
        _ => None,
    })
}

/// How long a key lives, in milliseconds; 0 is for ever, `None` is no more.
fn ttl_left(ttl: &Reply, passed: Duration) -> Option<u64> {
    match ttl.integer()? {
        -1 => Some(0),
        left => {
            Some(left - passed.as_millis() as i64).filter(|&left| left > 0).map(|left| left as u64)
        }
    }
}

fn ttls_alike(one: &Reply, other: &Reply) -> bool {
    match (one.integer(), other.integer()) {
        (Some(one), Some(other)) if one >= 0 && other >= 0 => (one - other).abs() <= TTL_SLACK_MS,
        (one, other) => one == other,
    }
}

fn are_alike(one: &(Reply, Reply), other: &(Reply, Reply)) -> bool {
    let values = match (&one.0, &other.0) {
        (Reply::Bulk(one), Reply::Bulk(other)) => {
            one.len() == other.len()
                && one.len() > DUMP_END
                && one[..one.len() - DUMP_END] == other[..other.len() - DUMP_END]
        }
        (one, other) => one == other && *one == Reply::Nil,
    };
    values && ttls_alike(&one.1, &other.1)
}

fn scan(
    link: &mut Link,
    cursor: &[u8],
    kind: Option<&[u8]>,
) -> io::Result<(Vec<u8>, Vec<Vec<u8>>)> {
    let mut words: Vec<&[u8]> = vec![b"SCAN", cursor, b"COUNT", SCAN_COUNT];
    words.extend(kind.iter().flat_map(|&kind| [b"TYPE".as_slice(), kind]));
    let answer = link.demand(&words)?.array().unwrap_or_default();
    let mut answer = answer.into_iter();
    let (next, keys) = (answer.next().and_then(Reply::bytes), answer.next().and_then(Reply::array));
    let (Some(next), Some(keys)) = (next, keys) else {
        return Err(io::Error::other("it answers SCAN with what is no list"));
    };
    Ok((next, keys.into_iter().filter_map(Reply::bytes).collect()))
}

/// Ends the connections of that name, so that nothing that was sent on them is done after what is sent from here on.
/// Returns whether there were any.
fn end_others(link: &mut Link, name: &str) -> io::Result<bool> {
    let list = link.ask(&[b"CLIENT", b"LIST"])?;
    let Some(list) = list.bytes() else {
        // Whoever may not look waits.
        return Ok(true);
    };
    let list = String::from_utf8_lossy(&list);
    let mark = format!(" name={name} ");
    let mut has_ended = false;
    for line in list.lines().filter(|line| line.contains(&mark)) {
        let id = line.split(' ').find_map(|word| word.strip_prefix("id="));
        link.ask(&[b"CLIENT", b"KILL", b"ID", id.unwrap_or_default().as_bytes()])?;
        has_ended = true;
    }
    Ok(has_ended)
}

fn print_of(directory: &Path) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    directory.as_os_str().as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The databases that have keys, and how many keys these are.
pub(crate) fn databases(link: &mut Link, allowed: &Range<u32>) -> io::Result<(Vec<u32>, u64)> {
    let info = link.demand(&[b"INFO", b"keyspace"])?.bytes().unwrap_or_default();
    Ok(keyspace(&String::from_utf8_lossy(&info), allowed))
}

fn keyspace(info: &str, allowed: &Range<u32>) -> (Vec<u32>, u64) {
    let (mut found, mut count) = (Vec::new(), 0);
    for line in info.lines() {
        let Some((name, about)) = line.split_once(':') else { continue };
        let number = name.strip_prefix("db").and_then(|number| number.parse().ok());
        let keys = about
            .strip_prefix("keys=")
            .and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
        if let (Some(number), Some(keys)) = (number, keys)
            && allowed.contains(&number)
        {
            found.push(number);
            count += keys;
        }
    }
    (found, count)
}

/// Why a side is not empty, if it is not.
pub(crate) fn check_empty(side: &Side) -> Result<(), String> {
    for access in &side.shards {
        let describe = |error: io::Error| named(&error, &side.pool, &access.name).to_string();
        let mut link = Link::connect(access).map_err(describe)?;
        let (_, keys) = databases(&mut link, &side.databases).map_err(describe)?;
        if keys > 0 {
            return Err(format!(
                "pool {} is not empty: server {} has {keys} keys, which would be removed; empty it, or say --overwrite",
                side.pool, access.name
            ));
        }
    }
    Ok(())
}

/// What there is to know of servers that evict keys for lack of memory. An error if the copy does, unless it may.
pub(crate) fn check_eviction(
    from: &Side,
    to: &Side,
    may_evict: bool,
) -> Result<Vec<String>, String> {
    let mut notes = Vec::new();
    for (side, is_copy) in [(from, false), (to, true)] {
        for access in &side.shards {
            let describe = |error: io::Error| named(&error, &side.pool, &access.name).to_string();
            let mut link = Link::connect(access).map_err(describe)?;
            let text = link.demand(&[b"INFO", b"memory"]).map_err(describe)?.bytes();
            let Some(policy) = evicting(&String::from_utf8_lossy(&text.unwrap_or_default())) else {
                continue;
            };
            let server = format!("server {} of pool {}", access.name, side.pool);
            let what =
                format!("{server} evicts keys when its memory is full (maxmemory-policy {policy})");
            if is_copy && !may_evict {
                return Err(format!(
                    "{what}: what it evicts is lost once it serves; set its policy to noeviction, or say --evicting-target"
                ));
            }
            notes.push(match is_copy {
                true => format!("{what}: what it evicts is lost once it serves"),
                false => format!("{what}: what it evicts goes from the copy, too, and after a cut-over it is the copy"),
            });
        }
    }
    Ok(notes)
}

/// The policy by which a server evicts keys, of what it says of its memory; `None` if it evicts none.
fn evicting(info: &str) -> Option<String> {
    let field = |name: &str| {
        let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':').map(str::to_owned);
        info.lines().find_map(|line| value(line.trim_end()))
    };
    let is_bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
    field("maxmemory_policy").filter(|policy| is_bounded && policy != "noeviction")
}

/// Whether all servers of the side that serves can be asked, and tell what changes.
pub(crate) fn check_source(side: &Side) -> Result<(), String> {
    for access in &side.shards {
        Feed::open(access).map_err(|error| named(&error, &side.pool, &access.name).to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_evicts_if_its_memory_is_bounded_and_its_policy_says_so() {
        let of = |max, policy| {
            evicting(&format!(
                "# Memory\r\nmaxmemory:{max}\r\nmaxmemory_human:x\r\nmaxmemory_policy:{policy}\r\n"
            ))
        };
        assert_eq!(of(100, "allkeys-lru").as_deref(), Some("allkeys-lru"));
        assert_eq!(of(100, "volatile-ttl").as_deref(), Some("volatile-ttl"));
        assert_eq!((of(0, "allkeys-lru"), of(100, "noeviction"), evicting("")), (None, None, None));
    }

    #[test]
    fn slots_that_are_being_moved_are_seen_and_so_are_others() {
        let slots = [SlotRange { first: 0, last: 5460 }, SlotRange { first: 6000, last: 6000 }];
        let nodes = |its: &str| {
            format!(
                "07c3 127.0.0.1:7001@17001 slave 6ec2 0 1 3 connected\n6ec2 127.0.0.1:7000@17000,h myself,master - 0 0 1 connected{its}\n"
            )
        };
        let of = |its: &str| unsettled(&nodes(its), &slots, "node 7000");
        assert_eq!(of(" 0-5460 6000"), None);
        assert!(of(" 0-5460 6000 [93-<-07c3]").unwrap().contains("[93-<-07c3]"));
        assert!(of(" 0-5460").unwrap().contains("other slots"));
        assert!(of("").is_some() && unsettled("", &slots, "n").is_some());
        assert_eq!(unsettled(&nodes(""), &[], "n"), None);
        assert!(is_passing("MOVED 3 127.0.0.1:7001") && !is_elsewhere("OOM"));
    }

    #[test]
    fn what_a_server_refuses_to_tell_is_not_gone() {
        let refused = Reply::Error("NOPERM".into());
        let dump = Reply::Bulk(b"x".to_vec());
        assert_eq!(refusal_of(&dump, &refused), Some(("PTTL", "NOPERM".into())));
        assert_eq!(refusal_of(&refused, &Reply::Integer(-1)), Some(("DUMP", "NOPERM".into())));
        assert_eq!(refusal_of(&Reply::Nil, &Reply::Integer(-2)), None);
    }

    #[test]
    fn another_server_in_the_place_of_one_is_noticed() {
        let about = |run: &str, role: &str| {
            let text = format!("# Server\r\nrun_id:{run}\r\nrole:{role}\r\nevicted_keys:3\r\n");
            About::parse(
                &format!("{text}db0:keys=4,expires=0\r\ndb9:keys=7,expires=0\r\n"),
                &(0..4),
            )
        };
        let before = about("a", "master");
        assert_eq!((before.evicted, before.is_replica), (3, false));
        assert!(before.check(&before).is_ok());
        assert!(about("b", "master").check(&before).is_err());
        assert!(about("a", "slave").check(&before).is_err());
    }

    #[test]
    fn a_source_that_comes_back_empty_is_not_followed() {
        let known = |keys| Known { run_id: "a".into(), keys, ..Known::default() };
        let about = |run_id: &str, keys| About { run_id: run_id.into(), keys, ..About::default() };
        assert!(about("b", 0).has_lost(&known(1)) && about("b", 4).has_lost(&known(9)));
        assert!(!about("b", 5).has_lost(&known(9)) && !about("b", 0).has_lost(&known(0)));
        assert!(!about("a", 0).has_lost(&known(9)), "it was flushed");
    }

    #[test]
    fn of_large_values_few_are_asked_for_at_once() {
        assert_eq!(fitting(256, 100), 256);
        assert_eq!(fitting(256, 1 << 20), 8);
        assert_eq!(fitting(256, 1 << 30), 1);
        assert!(is_stream(&[19, 0]) && is_stream(&[26]) && !is_stream(&[0, 19]) && !is_stream(b""));
    }
}
