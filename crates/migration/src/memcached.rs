//! Copies what the servers of memcached have, and follows them by passes.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::io;
use std::time::{Duration, Instant};

use cashew_protocol::memcached::encode_key;

use crate::job::Job;
use crate::link::Link;
use crate::side::{Access, Side};

/// Keys that are copied at once.
const BATCH: usize = 128;
/// Bytes of names that are kept of one pass. What is beyond them waits for the next one.
const NAMES_SIZE_MAX: usize = 128 << 20;
/// Keys of all servers. Each takes some hundred bytes.
const KEYS_MAX: usize = 20_000_000;
/// A pass follows the last one after this, or after a multiple of how long that took.
const PASS_INTERVAL: Duration = Duration::from_millis(500);
const PASS_SHARE: u32 = 4;
/// It is in step if a pass copies no more.
const IN_STEP_MAX: usize = 1000;
/// Passes while clients wait, until one finds nothing.
const LAST_PASSES_MAX: usize = 8;
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
    passed_at: Option<Instant>,
    took: Duration,
    /// How long the last passes took.
    durations: [Duration; 5],
}

struct Server {
    /// For lists, which take as long as they take, and for the rest.
    lists: Link,
    link: Link,
}

struct Source {
    server: Server,
    /// What was copied of each key, by its hash.
    copied: HashMap<u64, Print>,
    /// What is out of date and was not copied, as it was listed last. The last passes look at it again.
    stale: HashMap<u64, Print>,
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
    /// Both sides had the same before.
    fn is_nothing(&self) -> bool {
        self.copied == 0 && self.removed == 0 && self.failed == 0 && !self.has_more
    }
}

fn named(error: &io::Error, pool: &str, server: &str) -> io::Error {
    io::Error::new(error.kind(), format!("pool {pool}, server {server}: {error}"))
}

impl Server {
    fn connect(access: &Access, pool: &str) -> io::Result<Self> {
        let connect = || Link::connect(access).map_err(|error| named(&error, pool, &access.name));
        Ok(Self { lists: connect()?, link: connect()? })
    }

    /// All items. memcached takes the names of none of these for others meanwhile: it walks over its hash table.
    fn list(&mut self, mut with: impl FnMut(Listed)) -> io::Result<()> {
        let since = Instant::now();
        loop {
            self.lists.say(b"lru_crawler metadump hash\r\n");
            let mut line = self.lists.line()?;
            if line.starts_with(b"BUSY") && since.elapsed() < BUSY_MAX {
                std::thread::sleep(BUSY_PAUSE);
                continue;
            }
            while line != b"END" {
                let listed = parse_listed(&line).ok_or_else(|| {
                    let line = String::from_utf8_lossy(&line).into_owned();
                    io::Error::other(format!(
                        "memcached 1.6 with -o lru_crawler is needed: it answers {line:?}"
                    ))
                })?;
                if listed.print.0 == 0 {
                    return Err(io::Error::other("it was started with -C: it has no uniques"));
                }
                with(listed);
                line = self.lists.line()?;
            }
            return Ok(());
        }
    }

    fn ask_for(&mut self, keys: &[&Listed]) {
        for listed in keys {
            self.link.say(&named_key(b"mg ", &listed.key, b" v f t c"));
        }
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

/// A meta command about a key of any bytes.
fn named_key(command: &[u8], key: &[u8], flags: &[u8]) -> Vec<u8> {
    let mut out = command.to_vec();
    match key.iter().all(|byte| byte.is_ascii_graphic()) {
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

/// What `me` tells.
fn unique_of(about: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(about.strip_prefix(b"ME ")?).ok()?;
    text.split(' ').find_map(|word| word.strip_prefix("cas=")?.parse().ok())
}

fn parse_listed(line: &[u8]) -> Option<Listed> {
    let text = std::str::from_utf8(line).ok()?;
    let (mut key, mut expires, mut unique) = (None, None, None);
    for word in text.split(' ') {
        match word.split_once('=') {
            Some(("key", value)) => key = Some(unescape(value)?),
            Some(("exp", value)) => expires = value.parse().ok(),
            Some(("cas", value)) => unique = value.parse().ok(),
            _ => {}
        }
    }
    Some(Listed { key: key?, print: (unique?, expires?) })
}

/// As in URLs.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                (digit(bytes.next()?)? * 16 + digit(bytes.next()?)?) as u8
            }
            byte => byte,
        });
    }
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
        let hasher = RandomState::new();
        let mut sources = Vec::new();
        for access in &from.shards {
            let server = Server::connect(access, &from.pool)?;
            sources.push(Source { server, copied: HashMap::new(), stale: HashMap::new() });
        }
        let targets = to.shards.iter().map(|access| Server::connect(access, &to.pool));
        let targets = targets.collect::<io::Result<_>>()?;
        if !has_all {
            std::thread::sleep(SETTLE);
        }
        if has_all {
            for source in &mut sources {
                let Source { server, copied, .. } = source;
                server.list(|it| {
                    copied.insert(hasher.hash_one(&it.key), it.print);
                })?;
            }
        }
        Ok(Self {
            job,
            sources,
            targets,
            hasher,
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
                    it.pause = least * 3;
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

    /// Nobody writes any more: passes until nothing is left to copy.
    fn pass_finally(&mut self) -> io::Result<()> {
        for _ in 0..LAST_PASSES_MAX {
            // A client may have renewed what was out of date when it was last looked at.
            self.sources.iter_mut().for_each(|it| it.stale.clear());
            let found = self.pass(true)?;
            let refused = self.job.control().refused_count();
            if refused > 0 {
                return Err(io::Error::other(format!("{refused} keys cannot be copied")));
            }
            if found.is_nothing() {
                return Ok(());
            }
        }
        Err(io::Error::other("the sides do not become alike: is there room enough for all keys?"))
    }

    /// Which keys the other side has, by their hashes, and whether it has some where they do not belong.
    fn list_targets(&mut self) -> io::Result<(HashSet<u64>, bool)> {
        let (mut there, mut has_misplaced) = (HashSet::new(), false);
        let (hasher, to): (_, &Side) = (&self.hasher, &self.job.task.to);
        for (at, target) in self.targets.iter_mut().enumerate() {
            target.list(|it| match to.place(&it.key) == at {
                true => {
                    there.insert(hasher.hash_one(&it.key));
                }
                false => has_misplaced = true,
            })?;
        }
        Ok((there, has_misplaced))
    }

    /// Copies what has changed since the last pass, and removes what is gone.
    fn pass(&mut self, is_last: bool) -> io::Result<Found> {
        let began = Instant::now();
        let job = self.job;
        let from: &Side = &job.task.from;
        let (there, has_misplaced) = self.list_targets()?;
        let mut found = Found::default();
        let (mut here, mut total) = (HashSet::new(), 0);
        let mut changed: Vec<Vec<Listed>> = Vec::new();
        let mut size = 0;
        for (at, Source { server, copied, stale }) in self.sources.iter_mut().enumerate() {
            let mut of_this = Vec::new();
            let hasher = &self.hasher;
            server.list(|it| {
                if from.place(&it.key) != at {
                    return;
                }
                total += 1;
                let hash = hasher.hash_one(&it.key);
                here.insert(hash);
                let is_copied = copied.get(&hash) == Some(&it.print) && there.contains(&hash);
                let is_stale = stale.get(&hash) == Some(&it.print) && !there.contains(&hash);
                if is_copied || is_stale {
                    return;
                }
                size += it.key.len() + size_of::<Listed>();
                match size <= NAMES_SIZE_MAX {
                    true => of_this.push(it),
                    false => found.has_more = true,
                }
            })?;
            if here.len() > KEYS_MAX {
                let message = format!("more than {KEYS_MAX} keys are too many to follow");
                return Err(io::Error::other(message));
            }
            copied.retain(|hash, _| here.contains(hash));
            stale.retain(|hash, _| here.contains(hash));
            changed.push(of_this);
        }
        let behind: usize = changed.iter().map(Vec::len).sum();
        self.took = began.elapsed();
        job.part(0, |it| (it.keys, it.keys_walked) = (total, total - behind as u64));
        for (at, changed) in changed.iter().enumerate() {
            for batch in changed.chunks(BATCH) {
                if !is_last && !self.pace() {
                    return Ok(found);
                }
                let (copied, failed) = self.copy(at, batch)?;
                found.copied += copied;
                found.failed += failed;
                job.part(0, |it| {
                    it.keys_walked = (it.keys_walked + batch.len() as u64).min(it.keys)
                });
            }
        }
        job.part(0, |it| it.is_stuck = found.failed > 0);
        job.forget_refused(|key| here.contains(&self.hasher.hash_one(key)));
        if has_misplaced || there.iter().any(|hash| !here.contains(hash)) {
            found.removed = self.remove_surplus(&here)?;
        }
        self.passed_at = Some(Instant::now());
        Ok(found)
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
            // A second that has begun is over when it arrives.
            match item.filter(|it| it.ttl != 0) {
                Some(item) if !item.is_stale => {
                    let ttl = exptime(item.ttl, unix_now());
                    let flags = format!(" {} F{} T{ttl}", item.data.len(), item.flags);
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
            if let Some(unique) = unique_of(&about).filter(|_| outcome.starts_with(b"HD")) {
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

    /// Removes what the other side has, and none of these keys is.
    fn remove_surplus(&mut self, here: &HashSet<u64>) -> io::Result<usize> {
        let mut removed = 0;
        let (hasher, to): (_, &Side) = (&self.hasher, &self.job.task.to);
        for (at, target) in self.targets.iter_mut().enumerate() {
            let mut surplus = Vec::new();
            let mut size = 0;
            target.list(|it| {
                size += it.key.len();
                let is_surplus = !here.contains(&hasher.hash_one(&it.key));
                if (is_surplus || to.place(&it.key) != at) && size <= NAMES_SIZE_MAX {
                    surplus.push(it.key);
                }
            })?;
            for batch in surplus.chunks(BATCH) {
                for key in batch {
                    target.link.say(&named_key(b"md ", key, b""));
                }
                for _ in batch {
                    target.link.line()?;
                }
                self.job.copied(0, 0, batch.len() as u64);
                removed += batch.len();
            }
        }
        Ok(removed)
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
                        copied.remove(&self.hasher.hash_one(&listed.key));
                    }
                }
                job.spend(batch.len() as u64, size);
                job.part(0, |it| it.compared += batch.len() as u64);
            }
        }
        Ok(Some(found))
    }
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
        for line in
            [&b"ERROR"[..], b"BUSY currently processing", b"key=%2 exp=1 cas=2", b"key=a exp=1"]
        {
            assert!(parse_listed(line).is_none());
        }
    }

    #[test]
    fn keys_are_named_as_servers_know_them() {
        assert_eq!(named_key(b"mg ", b"a", b" v"), b"mg a v\r\n");
        assert_eq!(named_key(b"mg ", b"a b", b" v"), b"mg YSBi v b\r\n");
        assert_eq!(named_key(b"md ", b"\xff", b""), b"md /w== b\r\n");
    }

    #[test]
    fn what_was_renewed_is_not_said_to_be_out_of_date() {
        assert_eq!(invalidation(b"a", 7), b"md a I C7\r\n");
        let about = b"ME a exp=-1 la=3 cas=42 fetch=yes cls=1 size=64";
        assert_eq!((unique_of(about), unique_of(b"EN")), (Some(42), None));
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
    fn the_last_pass_has_found_nothing_only_if_nothing_failed() {
        assert!(Found::default().is_nothing());
        assert!(!Found { failed: 1, ..Found::default() }.is_nothing());
        assert!(!Found { has_more: true, ..Found::default() }.is_nothing());
    }

    #[test]
    fn times_to_live_are_kept_also_beyond_a_month() {
        assert_eq!(exptime(-1, 1_000_000_000), 0);
        assert_eq!(exptime(5, 1_000_000_000), 5);
        assert_eq!(exptime(RELATIVE_MAX + 1, 1_000_000_000), 1_000_000_000 + RELATIVE_MAX + 1);
    }
}
