//! Copies what the servers of memcached have, and follows them by passes.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::BuildHasher;
use std::io;
use std::time::{Duration, Instant};

use cashew_protocol::memcached::{can_name_key, encode_key, is_plain_key};

use crate::carrier::{IS_THERE, Step};
use crate::job::Job;
use crate::link::Link;
use crate::side::{Access, Side};

/// Keys that are copied at once.
const BATCH: usize = 128;
/// Bytes of names that are kept of one pass. What is beyond them waits for the next one.
const NAMES_SIZE_MAX: usize = 128 << 20;
/// Keys of all servers. Each takes some hundred bytes.
const KEYS_MAX: usize = 20_000_000;
/// Keys that no line can name are told of, so many of a list at most.
const UNNAMED_MAX: usize = 100;
const NO_NAME: &str = "it is longer than a key may be, as lines have to have it in base64";
/// A pass follows the last one after this, or after a multiple of how long that took.
const PASS_INTERVAL: Duration = Duration::from_millis(500);
const PASS_SHARE: u32 = 4;
/// It is in step if a pass copies no more.
const IN_STEP_MAX: usize = 1000;
/// Passes while clients wait, until one has lost nothing.
const LAST_PASSES_MAX: usize = 8;
/// What `stats` counts of items that a server has given up though nobody has deleted them one by one.
const LOSSES: [&str; 4] =
    ["evictions", "slab_reassign_evictions_nomem", "slab_reassign_busy_deletes", "cmd_flush"];
/// Times to live beyond this many seconds are dates.
const RELATIVE_MAX: i64 = 60 * 60 * 24 * 30;
/// How far two times to live may be apart, in seconds.
const TTL_SLACK: i64 = 3;
/// What was sent on a connection that has ended, perhaps by a process that was killed, may be done still. It has so long for it.
const SETTLE: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_millis(20);
/// How long a server may be busy with another list, and the pause until it is asked again.
const BUSY_MAX: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// When an item was stored, and until when it lives: another one if it has changed.
type Print = (u64, i64);

/// All servers of both sides, as long as all connections last.
pub(crate) struct Passes<'j> {
    job: &'j Job,
    sources: Vec<Source>,
    targets: Vec<Server>,
    hasher: RandomState,
    /// What the targets have: as it was listed last, and as it was written since. Also for who goes the other way.
    there: Prints,
    passed_at: Option<Instant>,
    took: Duration,
    /// How long the last passes took.
    durations: [Duration; 5],
}

/// Of each server, by the hashes of keys.
pub(crate) type Prints = Vec<HashMap<u64, Print>>;

/// What the servers of a side have, where nobody writes.
#[derive(Debug)]
pub(crate) struct Inventory {
    hasher: RandomState,
    prints: Prints,
}

struct Server {
    /// For lists, which take as long as they take, and for the rest.
    lists: Link,
    link: Link,
    /// What the last list had, and no line can name.
    unnamed: Vec<Listed>,
}

struct Source {
    server: Server,
    /// What was copied of each key, by its hash.
    copied: HashMap<u64, Print>,
    /// What is out of date and was not copied, as it was listed last. The last passes look at it again.
    stale: HashMap<u64, Print>,
}

/// What a source has.
#[derive(Default)]
struct Here {
    here: HashSet<u64>,
    changed: Vec<Listed>,
    /// More has changed than is kept of one pass.
    has_more: bool,
}

/// What a target has too much.
#[derive(Default)]
struct Surplus {
    keys: Vec<Vec<u8>>,
    has_more: bool,
}

/// An item of a list.
struct Listed {
    key: Vec<u8>,
    print: Print,
}

/// What a server has for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Item {
    data: Vec<u8>,
    flags: u32,
    /// Seconds; below 0 is for ever.
    ttl: i64,
    unique: u64,
    /// It was said to be out of date.
    is_stale: bool,
    /// Whoever asked is the one to renew it.
    has_won: bool,
}

#[derive(Default)]
struct Found {
    copied: usize,
    removed: usize,
    /// The other side has not taken these.
    failed: usize,
    has_more: bool,
}

impl Found {
    /// Both sides have the same since, if nobody writes and nothing was lost.
    fn is_all(&self) -> bool {
        self.failed == 0 && !self.has_more
    }
}

/// Does the same with each of some servers, at once. The first error counts.
fn at_once<S: Send, T: Send>(
    servers: impl Iterator<Item = S>,
    with: impl Fn(usize, S) -> io::Result<T> + Sync,
) -> io::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let with = &with;
        let threads: Vec<_> =
            servers.enumerate().map(|(at, it)| scope.spawn(move || with(at, it))).collect();
        let panicked = |_| Err(io::Error::other("a thread that lists keys has panicked"));
        threads.into_iter().map(|it| it.join().unwrap_or_else(panicked)).collect()
    })
}

fn named(error: &io::Error, pool: &str, server: &str) -> io::Error {
    io::Error::new(error.kind(), format!("pool {pool}, server {server}: {error}"))
}

impl Server {
    fn connect(access: &Access, pool: &str) -> io::Result<Self> {
        let connect = || Link::connect(access).map_err(|error| named(&error, pool, &access.name));
        Ok(Self { lists: connect()?, link: connect()?, unnamed: Vec::new() })
    }

    /// All items. memcached takes the names of none of these for others meanwhile: it walks over its hash table.
    fn list(&mut self, mut with: impl FnMut(Listed)) -> io::Result<()> {
        let since = Instant::now();
        loop {
            self.unnamed.clear();
            self.lists.say(b"lru_crawler metadump hash\r\n");
            let (mut is_busy, mut failure) = (false, None);
            self.lists.each_line(|line| {
                is_busy |= line.starts_with(b"BUSY");
                if line == b"END" || is_busy || failure.is_some() {
                    return false;
                }
                match parse_listed(line) {
                    Some(listed) if listed.print.0 == 0 => {
                        failure = Some("it was started with -C: it has no uniques".to_owned());
                    }
                    Some(listed) if !can_name_key(&listed.key) => {
                        if self.unnamed.len() < UNNAMED_MAX {
                            self.unnamed.push(listed);
                        }
                    }
                    Some(listed) => with(listed),
                    None => {
                        let line = String::from_utf8_lossy(line);
                        failure = Some(format!(
                            "memcached 1.6 with -o lru_crawler is needed: it answers {line:?}"
                        ));
                    }
                }
                failure.is_none()
            })?;
            match failure {
                Some(why) => return Err(io::Error::other(why)),
                None if is_busy && since.elapsed() < BUSY_MAX => std::thread::sleep(BUSY_PAUSE),
                None if is_busy => {
                    return Err(io::Error::other("others list its keys all the time"));
                }
                None => return Ok(()),
            }
        }
    }

    /// Items that it has had to give up, or has been told to, since it was started.
    fn losses(&mut self) -> io::Result<u64> {
        self.link.say(b"stats\r\n");
        let (mut losses, mut is_known) = (0u64, false);
        self.link.each_line(|line| {
            let text = std::str::from_utf8(line).unwrap_or_default();
            let mut words = text.split(' ').skip(1);
            if let (Some(name), Some(count)) = (words.next(), words.next())
                && LOSSES.contains(&name)
            {
                is_known = true;
                losses = losses.wrapping_add(count.parse().unwrap_or(0));
            }
            line != b"END" && !line.starts_with(b"ERROR")
        })?;
        is_known
            .then_some(losses)
            .ok_or_else(|| io::Error::other("it does not tell what it evicts"))
    }

    fn ask_for(&mut self, keys: &[&Listed]) {
        keys.iter().for_each(|listed| self.ask_for_key(&listed.key));
    }

    fn ask_for_key(&mut self, key: &[u8]) {
        self.link.say(&named_key(b"mg ", key, b" v f t c"));
    }

    fn item(&mut self) -> io::Result<Option<Item>> {
        let line = self.link.line()?;
        let text = String::from_utf8_lossy(&line).into_owned();
        let mut words = text.split(' ');
        match words.next() {
            Some("EN") => Ok(None),
            Some("VA") => {
                let odd = || io::Error::other(format!("it answers {text:?}"));
                let len = words.next().and_then(|len| len.parse().ok()).ok_or_else(odd)?;
                let mut item = Item {
                    data: self.link.data(len)?,
                    flags: 0,
                    ttl: -1,
                    unique: 0,
                    is_stale: false,
                    has_won: false,
                };
                for word in words {
                    let (name, value) = word.split_at(word.len().min(1));
                    match name {
                        "f" => item.flags = value.parse().map_err(|_| odd())?,
                        "t" => item.ttl = value.parse().map_err(|_| odd())?,
                        "c" => item.unique = value.parse().map_err(|_| odd())?,
                        "X" => item.is_stale = true,
                        "W" => item.has_won = true,
                        _ => {}
                    }
                }
                Ok(Some(item))
            }
            _ => Err(io::Error::other(format!("it answers {text:?}"))),
        }
    }
}

/// A meta command about a key that [can be named](can_name_key).
fn named_key(command: &[u8], key: &[u8], flags: &[u8]) -> Vec<u8> {
    let mut out = command.to_vec();
    match is_plain_key(key) {
        true => {
            out.extend_from_slice(key);
            out.extend_from_slice(flags);
        }
        false => {
            encode_key(key, &mut out);
            out.extend_from_slice(flags);
            out.extend_from_slice(b" b");
        }
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Hashes do not spread names evenly: a slice is about half of what is allowed.
fn slices_of(size: usize) -> u64 {
    (size / NAMES_SIZE_MAX) as u64 * 2 + 1
}

/// Says again that what has this unique is out of date.
fn invalidation(key: &[u8], unique: u64) -> Vec<u8> {
    named_key(b"md ", key, format!(" I C{unique}").as_bytes())
}

/// What `me` tells, as it would be listed.
fn print_of(about: &[u8], now: i64) -> Option<Print> {
    let text = std::str::from_utf8(about.strip_prefix(b"ME ")?).ok()?;
    let field = |name: &str| text.split(' ').find_map(|word| word.strip_prefix(name));
    let left: i64 = field("exp=")?.parse().ok()?;
    Some((field("cas=")?.parse().ok()?, if left < 0 { left } else { now + left }))
}

/// What `ms` tells of what it has stored, if it does.
fn unique_of(line: &[u8]) -> Option<u64> {
    line.strip_prefix(b"HD c").and_then(number)
}

fn parse_listed(line: &[u8]) -> Option<Listed> {
    let (mut key, mut expires, mut unique) = (None, None, None);
    for word in line.split(|&byte| byte == b' ') {
        if let Some(value) = word.strip_prefix(b"key=") {
            key = Some(unescape(value)?);
        } else if let Some(value) = word.strip_prefix(b"exp=") {
            expires = number(value);
        } else if let Some(value) = word.strip_prefix(b"cas=") {
            unique = number(value);
        }
        if let (Some(unique), Some(expires)) = (unique, expires) {
            return Some(Listed { key: key?, print: (unique, expires) });
        }
    }
    None
}

fn number<N: std::str::FromStr>(digits: &[u8]) -> Option<N> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// As in URLs.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        let digit = |at: usize| char::from(*rest.get(at)?).to_digit(16);
        out.push((digit(at + 1)? * 16 + digit(at + 2)?) as u8);
        rest = &rest[at + 3..];
    }
    out.extend_from_slice(rest);
    Some(out)
}

fn exptime(ttl: i64, now: i64) -> i64 {
    match ttl {
        ..0 => 0,
        ttl if ttl > RELATIVE_MAX => now + ttl,
        ttl => ttl,
    }
}

fn unix_now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs() as i64
}

impl<'j> Passes<'j> {
    /// Connects to all. `has_all` is set where both sides are alike and stay so until it runs.
    pub(crate) fn open(job: &'j Job, has_all: bool) -> io::Result<Self> {
        let (from, to) = (&job.task.from, &job.task.to);
        let (hasher, mut prints) = match job.take_inventory().filter(|_| has_all) {
            Some(Inventory { hasher, prints }) => (hasher, Some(prints)),
            None => (RandomState::new(), None),
        };
        let mut sources = Vec::new();
        for access in &from.shards {
            let server = Server::connect(access, &from.pool)?;
            sources.push(Source { server, copied: HashMap::new(), stale: HashMap::new() });
        }
        let targets = to.shards.iter().map(|access| Server::connect(access, &to.pool));
        let targets = targets.collect::<io::Result<_>>()?;
        match prints.take_if(|it| it.len() == sources.len()) {
            Some(prints) => {
                sources.iter_mut().zip(prints).for_each(|(source, its)| source.copied = its);
            }
            None if has_all => {
                at_once(sources.iter_mut(), |_, Source { server, copied, .. }| {
                    server.list(|it| {
                        copied.insert(hasher.hash_one(&it.key), it.print);
                    })
                })?;
            }
            None => std::thread::sleep(SETTLE),
        }
        Ok(Self {
            job,
            sources,
            targets,
            hasher,
            there: Vec::new(),
            passed_at: None,
            took: Duration::ZERO,
            durations: [Duration::ZERO; 5],
        })
    }

    /// Copies everything, and follows until it ends.
    pub(crate) fn run(&mut self, has_all: bool) -> io::Result<()> {
        self.job.part(0, |it| it.is_listed = true);
        self.job.walk_begins(0, 0);
        let mut is_in_step = has_all;
        if has_all {
            self.job.in_step(0);
        }
        while !self.job.is_ended() {
            if self.job.wait_to_copy().is_err() {
                return Ok(());
            }
            if let Some(number) = self.job.wanted_barrier(0).filter(|_| is_in_step) {
                self.pass_finally()?;
                let prints = std::mem::take(&mut self.there);
                self.job.leave_inventory(Inventory { hasher: self.hasher.clone(), prints });
                self.job.part(0, |it| it.barrier = number);
                while self.job.is_held(number) {
                    self.job.wait(IDLE);
                }
                continue;
            }
            let pause = PASS_INTERVAL.max(self.took * PASS_SHARE);
            if self.passed_at.is_none_or(|at| at.elapsed() >= pause) {
                let found = self.pass(false)?;
                if !is_in_step
                    && !found.has_more
                    && found.failed == 0
                    && found.copied + found.removed <= IN_STEP_MAX
                {
                    is_in_step = true;
                    self.job.in_step(0);
                } else if !is_in_step {
                    // It goes on at once.
                    self.passed_at = None;
                }
                let (took, copied) = (self.took, found.copied as u64);
                // One that took long, as the machine was busy, says little.
                self.durations.rotate_right(1);
                self.durations[0] = took;
                let least = self.durations.iter().min().copied().unwrap_or_default();
                self.job.part(0, |it| {
                    it.pause = least + least / 2;
                    it.lag = pause + took;
                    it.keys_behind = copied;
                });
                continue;
            }
            if let Some(number) = self.job.wanted_comparison(0) {
                let found = self.compare()?;
                if !self.job.is_ended() {
                    self.job.compared(0, number, found);
                }
            }
            self.job.wait(IDLE);
        }
        Ok(())
    }

    /// Nobody writes any more: one pass, and others if the other side has lost something meanwhile.
    fn pass_finally(&mut self) -> io::Result<()> {
        for _ in 0..LAST_PASSES_MAX {
            // A client may have renewed what was out of date when it was last looked at.
            self.sources.iter_mut().for_each(|it| it.stale.clear());
            let before = self.losses()?;
            let found = self.pass(true)?;
            let refused = self.job.control().refused_count();
            if refused > 0 {
                return Err(io::Error::other(format!("{refused} keys cannot be copied")));
            }
            if found.is_all() && before == self.losses()? {
                return Ok(());
            }
        }
        Err(io::Error::other("the sides do not become alike: is there room enough for all keys?"))
    }

    fn losses(&mut self) -> io::Result<Vec<u64>> {
        let to = &self.job.task.to.pool;
        let losses =
            |it: &mut Server| it.losses().map_err(|error| named(&error, to, it.link.name()));
        self.targets.iter_mut().map(losses).collect()
    }

    /// Copies what has changed since the last pass, and removes what is gone.
    fn pass(&mut self, is_last: bool) -> io::Result<Found> {
        let began = Instant::now();
        let job = self.job;
        let (mut changed, mut has_more) = self.list_sources(&HashSet::new())?;
        // Clients wait already: it begins anew as the last one.
        if !is_last && self.is_awaited() {
            return Ok(Found { has_more: true, ..Found::default() });
        }
        let here: HashSet<u64> = changed.iter().flat_map(|it| it.here.iter().copied()).collect();
        let total = here.len();
        if total > KEYS_MAX {
            let message = format!("more than {KEYS_MAX} keys are too many to follow");
            return Err(io::Error::other(message));
        }
        for (Source { copied, stale, .. }, list) in self.sources.iter_mut().zip(&changed) {
            copied.retain(|hash, _| list.here.contains(hash));
            stale.retain(|hash, _| list.here.contains(hash));
        }
        let (surplus, there) = self.list_targets(&here)?;
        let mut lost = self.lost(&there, total);
        let foreign = self.foreign(&there);
        lost.extend(&foreign);
        self.there = there;
        // Those that have changed here have been listed by their names.
        for listed in changed.iter().flat_map(|it| &it.changed) {
            lost.remove(&self.hasher.hash_one(&listed.key));
        }
        if !lost.is_empty() {
            (changed, has_more) = self.list_sources(&lost)?;
        }
        if !foreign.is_empty() {
            job.unverified();
            for listed in changed.iter().flat_map(|it| &it.changed) {
                if foreign.contains(&self.hasher.hash_one(&listed.key)) {
                    job.mismatch(&listed.key);
                }
            }
        }
        let changed: Vec<Vec<Listed>> = changed.into_iter().map(|it| it.changed).collect();
        let mut found = Found { has_more, ..Found::default() };
        let behind: usize = changed.iter().map(Vec::len).sum();
        self.took = began.elapsed();
        job.part(0, |it| {
            (it.keys, it.keys_walked) = (total as u64, total.saturating_sub(behind) as u64);
        });
        for (at, changed) in changed.iter().enumerate() {
            for batch in changed.chunks(BATCH) {
                if !is_last && (self.is_awaited() || !self.pace()) {
                    return Ok(found);
                }
                let (copied, failed) = self.copy(at, batch)?;
                found.copied += copied;
                found.failed += failed;
                if is_last {
                    self.note_there(batch)?;
                }
                job.part(0, |it| {
                    it.keys_walked = (it.keys_walked + batch.len() as u64).min(it.keys)
                });
            }
        }
        job.part(0, |it| it.is_stuck = found.failed > 0);
        job.forget_refused(|key| here.contains(&self.hasher.hash_one(key)));
        found.has_more |= surplus.iter().any(|it| it.has_more);
        found.removed = self.remove(&surplus)?;
        self.passed_at = Some(Instant::now());
        Ok(found)
    }

    /// Whether clients wait for it.
    fn is_awaited(&self) -> bool {
        let is_in_step = self.job.control().parts[0].is_in_step;
        is_in_step && self.job.wanted_barrier(0).is_some()
    }

    /// What has changed at the other side, where only the copier writes: what was copied and is gone, and what was
    /// removed, as it is out of date, and is there. These have no names yet.
    fn lost(&self, there: &Prints, total: usize) -> HashSet<u64> {
        let mut lost = HashSet::new();
        if there.iter().map(HashMap::len).sum::<usize>() == total {
            // All that is here is there.
            let stale = self.sources.iter().flat_map(|it| it.stale.keys());
            lost.extend(stale);
            return lost;
        }
        let is_there = |hash: &&u64| there.iter().any(|it| it.contains_key(hash));
        for Source { copied, stale, .. } in &self.sources {
            let gone = copied.keys().filter(|it| !stale.contains_key(it) && !is_there(it));
            lost.extend(gone.chain(stale.keys().filter(is_there)));
        }
        lost
    }

    /// What others have written to the targets, where only the copier writes.
    fn foreign(&self, there: &Prints) -> HashSet<u64> {
        let mut foreign = HashSet::new();
        for (before, now) in self.there.iter().zip(there) {
            let is_foreign =
                |(hash, print): &(&u64, &Print)| before.get(hash).is_some_and(|it| it.0 != print.0);
            foreign.extend(now.iter().filter(is_foreign).map(|(hash, _)| *hash));
        }
        foreign
    }

    /// What the targets have of these now, as it would be listed. What is not known for sure is copied back once more.
    fn note_there(&mut self, batch: &[Listed]) -> io::Result<()> {
        let to: &Side = &self.job.task.to;
        for listed in batch {
            let link = &mut self.targets[to.place(&listed.key)].link;
            link.say(&named_key(b"me ", &listed.key, b""));
            link.flush_some()?;
        }
        for listed in batch {
            let (place, hash) = (to.place(&listed.key), self.hasher.hash_one(&listed.key));
            let line = self.targets[place].link.line()?;
            match print_of(&line, unix_now()) {
                Some(print) => drop(self.there[place].insert(hash, print)),
                None => drop(self.there[place].remove(&hash)),
            }
        }
        Ok(())
    }

    /// What the sources have, and what of it is to be copied: what has changed since it was, and these.
    /// Whether there is more of it than can be kept.
    fn list_sources(&mut self, lost: &HashSet<u64>) -> io::Result<(Vec<Here>, bool)> {
        let (hasher, from): (_, &Side) = (&self.hasher, &self.job.task.from);
        let size_max = NAMES_SIZE_MAX / self.sources.len().max(1);
        let job = self.job;
        let list = |at: usize, Source { server, copied, stale }: &mut Source| {
            let (mut list, mut size) = (Here::default(), 0);
            server.list(|it| {
                if from.place(&it.key) != at {
                    return;
                }
                let hash = hasher.hash_one(&it.key);
                list.here.insert(hash);
                let is_known = |prints: &HashMap<u64, Print>| prints.get(&hash) == Some(&it.print);
                if (is_known(copied) || is_known(stale)) && !lost.contains(&hash) {
                    return;
                }
                size += it.key.len() + size_of::<Listed>();
                match size <= size_max {
                    true => list.changed.push(it),
                    false => list.has_more = true,
                }
            })?;
            for Listed { key, print } in std::mem::take(&mut server.unnamed) {
                let is_news = copied.insert(hasher.hash_one(&key), print) != Some(print);
                if from.place(&key) == at && is_news {
                    job.refused(&key, server.link.name(), NO_NAME);
                }
            }
            Ok(list)
        };
        let lists = at_once(self.sources.iter_mut(), list)?;
        let has_more = lists.iter().any(|it| it.has_more);
        Ok((lists, has_more))
    }

    /// What the targets have that none of these keys is, or that is where it does not belong; and all that they have.
    fn list_targets(&mut self, here: &HashSet<u64>) -> io::Result<(Vec<Surplus>, Prints)> {
        let (hasher, to): (_, &Side) = (&self.hasher, &self.job.task.to);
        let size_max = NAMES_SIZE_MAX / self.targets.len().max(1);
        let list = |at: usize, target: &mut Server| {
            let (mut surplus, mut there, mut size) = (Surplus::default(), HashMap::new(), 0);
            target.list(|it| {
                let hash = hasher.hash_one(&it.key);
                if here.contains(&hash) && to.place(&it.key) == at {
                    there.insert(hash, it.print);
                    return;
                }
                size += it.key.len() + size_of::<Listed>();
                match size <= size_max {
                    true => surplus.keys.push(it.key),
                    false => surplus.has_more = true,
                }
            })?;
            Ok((surplus, there))
        };
        Ok(at_once(self.targets.iter_mut(), list)?.into_iter().unzip())
    }

    /// Removes what the targets have too much. Returns how much that was.
    fn remove(&mut self, surplus: &[Surplus]) -> io::Result<usize> {
        let mut removed = 0;
        for (Server { link, .. }, Surplus { keys, .. }) in self.targets.iter_mut().zip(surplus) {
            for batch in keys.chunks(BATCH) {
                batch.iter().for_each(|key| link.say(&named_key(b"md ", key, b"")));
                for _ in batch {
                    link.line()?;
                }
                self.job.copied(0, 0, batch.len() as u64);
                removed += batch.len();
            }
        }
        Ok(removed)
    }

    /// Waits as the rate says. `false` once it is over, or paused.
    fn pace(&self) -> bool {
        loop {
            if !self.job.may_copy() {
                return false;
            }
            let debt = self.job.debt();
            if debt.is_zero() {
                return true;
            }
            self.job.wait(debt.clamp(Duration::from_millis(1), IDLE));
        }
    }

    /// Returns how many it has copied, and how many the other side did not take.
    fn copy(&mut self, at: usize, batch: &[Listed]) -> io::Result<(usize, usize)> {
        let job = self.job;
        let to: &Side = &job.task.to;
        let source = &mut self.sources[at];
        let keys: Vec<&Listed> = batch.iter().collect();
        source.server.ask_for(&keys);
        let (mut sent, mut stale) = (vec![Vec::new(); self.targets.len()], Vec::new());
        let (mut size, mut removed) = (0, 0);
        for listed in batch {
            let item = source.server.item()?;
            let place = to.place(&listed.key);
            let link = &mut self.targets[place].link;
            let hash = self.hasher.hash_one(&listed.key);
            source.stale.remove(&hash);
            // A second that has begun is over when it arrives.
            match item.filter(|it| it.ttl != 0) {
                Some(item) if !item.is_stale => {
                    let ttl = exptime(item.ttl, unix_now());
                    let flags = format!(" {} F{} T{ttl} c", item.data.len(), item.flags);
                    size += item.data.len() as u64;
                    link.say(&named_key(b"ms ", &listed.key, flags.as_bytes()));
                    link.say(&item.data);
                    link.say(b"\r\n");
                }
                item => {
                    // What is out of date is not made new by being copied.
                    stale.extend(item.filter(|it| it.has_won).map(|it| (listed, it.unique)));
                    link.say(&named_key(b"md ", &listed.key, b""));
                }
            }
            sent[place].push(listed);
            link.flush_some()?;
        }
        let (mut done, mut failed) = (0, 0);
        for (target, sent) in self.targets.iter_mut().zip(sent) {
            for listed in sent {
                let line = target.link.line()?;
                let hash = self.hasher.hash_one(&listed.key);
                if let Some(there) = self.there.get_mut(to.place(&listed.key)) {
                    match unique_of(&line) {
                        Some(unique) => drop(there.insert(hash, (unique, listed.print.1))),
                        None => drop(there.remove(&hash)),
                    }
                }
                if line.starts_with(b"HD") {
                    source.copied.insert(hash, listed.print);
                    job.accepted([&listed.key[..]].into_iter());
                    done += 1;
                } else if line.starts_with(b"NF") {
                    source.copied.insert(hash, listed.print);
                    removed += 1;
                } else {
                    let why = String::from_utf8_lossy(&line).into_owned();
                    if why.starts_with("SERVER_ERROR out of memory") || why.starts_with("NS") {
                        job.failed(target.link.name(), &why);
                        failed += 1;
                    } else {
                        job.refused(&listed.key, target.link.name(), &why);
                        source.copied.insert(hash, listed.print);
                    }
                }
            }
        }
        // Whoever asks next is to renew it, as if nobody had asked here. What was renewed meanwhile stays what it is.
        for (listed, unique) in &stale {
            source.server.link.say(&invalidation(&listed.key, *unique));
            source.server.link.say(&named_key(b"me ", &listed.key, b""));
        }
        for (listed, _) in &stale {
            let (outcome, about) = (source.server.link.line()?, source.server.link.line()?);
            // It has another unique by that, and is not asked for again because of it.
            let print = print_of(&about, unix_now()).filter(|_| outcome.starts_with(b"HD"));
            if let Some((unique, _)) = print {
                let hash = self.hasher.hash_one(&listed.key);
                source.stale.insert(hash, (unique, listed.print.1));
            }
        }
        job.copied(done as u64, size, removed);
        if failed > 0 {
            job.part(0, |it| it.is_stuck = true);
            job.wait(PASS_INTERVAL);
        }
        Ok((done, failed))
    }

    /// Compares all keys of both sides. Returns how many differ though nothing has changed them.
    fn compare(&mut self) -> io::Result<u64> {
        self.job.part(0, |it| it.compared = 0);
        let mut found = 0;
        for at in 0..self.sources.len() {
            let slices = self.slices(at)?;
            for slice in 0..slices {
                match self.compare_slice(at, slice, slices)? {
                    Some(differ) => found += differ,
                    None => return Ok(found.max(1)),
                }
            }
        }
        Ok(found)
    }

    /// In how many parts the names of a server are looked at, so that those of one are not too many at once.
    fn slices(&mut self, at: usize) -> io::Result<u64> {
        let mut size = 0;
        self.sources[at].server.list(|it| size += it.key.len() + size_of::<Listed>())?;
        Ok(slices_of(size))
    }

    /// Compares those of a server's keys whose hash is of this part. `None` if it was interrupted.
    fn compare_slice(&mut self, at: usize, slice: u64, slices: u64) -> io::Result<Option<u64>> {
        let job = self.job;
        let (from, to): (&Side, &Side) = (&job.task.from, &job.task.to);
        let mut found = 0;
        let mut all = Vec::new();
        {
            let Source { server, copied, .. } = &mut self.sources[at];
            let hasher = &self.hasher;
            server.list(|it| {
                let hash = hasher.hash_one(&it.key);
                // What is to be copied yet says nothing.
                let is_copied = from.place(&it.key) == at && copied.get(&hash) == Some(&it.print);
                if is_copied && hash % slices == slice {
                    all.push(it);
                }
            })?;
        }
        {
            for batch in all.chunks(BATCH) {
                if !self.pace() {
                    return Ok(None);
                }
                let mut size = 0;
                let Source { server, copied, .. } = &mut self.sources[at];
                let keys: Vec<&Listed> = batch.iter().collect();
                server.ask_for(&keys);
                for listed in batch {
                    self.targets[to.place(&listed.key)].ask_for(&[listed]);
                }
                for listed in batch {
                    let (here, there) =
                        (server.item()?, self.targets[to.place(&listed.key)].item()?);
                    let Some(here) = here.filter(|it| it.unique == listed.print.0 && !it.is_stale)
                    else {
                        continue;
                    };
                    size += here.data.len() as u64;
                    let is_alike = there.as_ref().is_some_and(|there| {
                        there.data == here.data
                            && there.flags == here.flags
                            && (there.ttl - here.ttl).abs() <= TTL_SLACK
                    });
                    let is_gone = there.is_none() && (0..TTL_SLACK).contains(&here.ttl);
                    // Its time to live may have been changed.
                    let left = listed.print.1 - unix_now();
                    let is_touched = match (listed.print.1 < 0, here.ttl < 0) {
                        (true, true) => false,
                        (false, false) => (left - here.ttl).abs() > TTL_SLACK,
                        _ => true,
                    };
                    if !is_alike && !is_gone && !is_touched {
                        job.mismatch(&listed.key);
                        found += 1;
                        let hash = self.hasher.hash_one(&listed.key);
                        copied.remove(&hash);
                        if let Some(there) = self.there.get_mut(to.place(&listed.key)) {
                            there.remove(&hash);
                        }
                    }
                }
                job.spend(batch.len() as u64, size);
                job.part(0, |it| it.compared += batch.len() as u64);
            }
        }
        Ok(Some(found))
    }
}

/// The servers of these keys, by their places.
fn connect_to(side: &Side, keys: &[Vec<u8>]) -> io::Result<BTreeMap<usize, Server>> {
    let server = |at: usize| Ok((at, Server::connect(&side.shards[at], &side.pool)?));
    side.shards_of(keys).into_iter().map(server).collect()
}

/// The first of these keys that a server has.
pub(crate) fn first_there(access: &Access, keys: &[&[u8]]) -> io::Result<Option<usize>> {
    let mut link = Link::connect(access)?;
    for (at, key) in keys.iter().enumerate() {
        // Without flags nothing is told of it, and it is not touched.
        link.say(&named_key(b"mg ", key, b""));
        match link.line()? {
            line if line.starts_with(b"EN") => {}
            line if line.starts_with(b"HD") => return Ok(Some(at)),
            line => return Err(io::Error::other(String::from_utf8_lossy(&line).into_owned())),
        }
    }
    Ok(None)
}

/// The first of these keys whose value has more than so many bytes, and how many.
pub(crate) fn first_larger(
    access: &Access,
    (keys, most): (&[&[u8]], u64),
) -> io::Result<Option<(usize, u64)>> {
    let mut link = Link::connect(access)?;
    for (at, key) in keys.iter().enumerate() {
        link.say(&named_key(b"mg ", key, b" s"));
        let line = link.line()?;
        let text = String::from_utf8_lossy(&line);
        let size = text.split(' ').find_map(|word| word.strip_prefix('s')?.parse::<u64>().ok());
        if let Some(size) = size.filter(|size| *size > most) {
            return Ok(Some((at, size)));
        }
    }
    Ok(None)
}

/// Has `to` have what `from` has of the keys of a step, where nobody writes.
pub(crate) fn carry(step: &Step) -> io::Result<()> {
    let (from, to) = step.sides();
    let (mut sources, mut targets) = (connect_to(&from, &step.keys)?, connect_to(&to, &step.keys)?);
    for key in &step.keys {
        step.check()?;
        let source = sources.get_mut(&from.place(key));
        let target = targets.get_mut(&to.place(key));
        let (Some(source), Some(target)) = (source, target) else { continue };
        let way = [(&from, source.link.name()), (&to, target.link.name())]
            .map(|(side, server)| format!("pool {}, server {server}", side.pool))
            .join(" to ");
        carry_key(step, source, target, key).map_err(|error| {
            let key = key.escape_ascii();
            io::Error::other(format!("key \"{key}\": {error} (from {way})"))
        })?;
    }
    Ok(())
}

fn carry_key(step: &Step, source: &mut Server, target: &mut Server, key: &[u8]) -> io::Result<()> {
    let ask = |server: &mut Server| {
        server.ask_for_key(key);
        server.item()
    };
    if !step.may_overwrite && ask(target)?.is_some() {
        return Err(io::Error::other(IS_THERE));
    }
    let found = ask(source)?;
    if let Some(item) = found.as_ref().filter(|it| it.has_won) {
        // Whoever asks next is to renew it, as if nobody had asked here.
        source.link.say(&invalidation(key, item.unique));
        source.link.line()?;
    }
    step.write(key);
    let Some(item) = found.filter(|it| !it.is_stale && it.ttl != 0) else {
        target.link.say(&named_key(b"md ", key, b""));
        return target.link.line().map(drop);
    };
    let ttl = exptime(item.ttl, unix_now());
    let flags = format!(" {} F{} T{ttl}", item.data.len(), item.flags);
    target.link.say(&named_key(b"ms ", key, flags.as_bytes()));
    target.link.say(&item.data);
    target.link.say(b"\r\n");
    let line = target.link.line()?;
    if !line.starts_with(b"HD") {
        return Err(io::Error::other(String::from_utf8_lossy(&line).into_owned()));
    }
    match ask(target)? {
        Some(there) if there.data == item.data && there.flags == item.flags => Ok(()),
        None if (0..TTL_SLACK).contains(&item.ttl) => Ok(()),
        _ => Err(io::Error::other("it is another one in the other pool once it is copied")),
    }
}

/// Removes keys from a side.
pub(crate) fn remove(side: &Side, keys: &[Vec<u8>]) -> io::Result<()> {
    let mut servers = connect_to(side, keys)?;
    for key in keys {
        let Some(Server { link, .. }) = servers.get_mut(&side.place(key)) else { continue };
        link.say(&named_key(b"md ", key, b""));
        link.line()?;
    }
    Ok(())
}

/// Why a side is not empty, if it is not, or cannot be listed.
pub(crate) fn check(side: &Side, must_be_empty: bool) -> Result<(), String> {
    for access in &side.shards {
        let describe = |error: io::Error| named(&error, &side.pool, &access.name).to_string();
        let mut server = Server::connect(access, &side.pool).map_err(|error| error.to_string())?;
        let mut keys = 0;
        server.list(|_| keys += 1).map_err(describe)?;
        if must_be_empty && keys > 0 {
            return Err(format!(
                "pool {} is not empty: server {} has {keys} keys, which would be removed; empty it, or say --overwrite",
                side.pool, access.name
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        let line = b"key=a%20b%00%25 exp=1795906934 la=1795906884 cas=3 fetch=no cls=1 size=70";
        let Listed { key, print } = parse_listed(line).unwrap();
        assert_eq!((&key[..], print), (&b"a b\0%"[..], (3, 1_795_906_934)));
        assert_eq!(
            parse_listed(b"key=a exp=-1 la=1 cas=9 fetch=no cls=1 size=7").unwrap().print,
            (9, -1)
        );
        for line in [
            &b"ERROR"[..],
            b"BUSY currently processing",
            b"key=%2 exp=1 cas=2",
            b"key=a exp=1",
            b"exp=1 cas=2",
        ] {
            assert!(parse_listed(line).is_none());
        }
    }

    #[test]
    fn keys_are_named_as_servers_know_them() {
        assert_eq!(named_key(b"mg ", b"a", b" v"), b"mg a v\r\n");
        assert_eq!(named_key(b"mg ", b"a b", b" v"), b"mg YSBi v b\r\n");
        assert_eq!(named_key(b"md ", b"\0", b""), b"md AA== b\r\n");
        assert_eq!(named_key(b"md ", b"\xc3\xa4", b""), b"md \xc3\xa4\r\n");
    }

    #[test]
    fn what_was_renewed_is_not_said_to_be_out_of_date() {
        assert_eq!(
            (unique_of(b"HD c17"), unique_of(b"HD"), unique_of(b"NF")),
            (Some(17), None, None)
        );
        assert_eq!(invalidation(b"a", 7), b"md a I C7\r\n");
        let about = b"ME a exp=-1 la=3 cas=42 fetch=yes cls=1 size=64";
        assert_eq!((print_of(about, 7), print_of(b"EN", 7)), (Some((42, -1)), None));
        assert_eq!(print_of(b"ME a exp=30 la=3 cas=42", 7), Some((42, 37)));
    }

    #[test]
    fn names_are_compared_in_slices_that_fit() {
        assert_eq!(slices_of(0), 1);
        assert_eq!(slices_of(NAMES_SIZE_MAX - 1), 1);
        for times in [1, 2, 10, 100] {
            let size = NAMES_SIZE_MAX * times + NAMES_SIZE_MAX - 1;
            assert!(size as u64 / slices_of(size) < NAMES_SIZE_MAX as u64);
        }
    }

    #[test]
    fn the_last_pass_has_all_only_if_nothing_failed() {
        assert!(Found { copied: 7, removed: 3, ..Found::default() }.is_all());
        assert!(!Found { failed: 1, ..Found::default() }.is_all());
        assert!(!Found { has_more: true, ..Found::default() }.is_all());
    }

    #[test]
    fn servers_are_asked_at_once_and_the_first_error_counts() {
        let barrier = std::sync::Barrier::new(3);
        let found = at_once([5, 6, 7].into_iter(), |at, it| {
            barrier.wait();
            Ok(at * 10 + it)
        });
        assert_eq!(found.unwrap(), [5, 16, 27]);
        let failed = at_once([true, false].into_iter(), |_, is_well| match is_well {
            true => Ok(()),
            false => Err(io::Error::other("it is down")),
        });
        assert_eq!(failed.unwrap_err().to_string(), "it is down");
    }

    #[test]
    fn times_to_live_are_kept_also_beyond_a_month() {
        assert_eq!(exptime(-1, 1_000_000_000), 0);
        assert_eq!(exptime(5, 1_000_000_000), 5);
        assert_eq!(exptime(RELATIVE_MAX + 1, 1_000_000_000), 1_000_000_000 + RELATIVE_MAX + 1);
    }
}
