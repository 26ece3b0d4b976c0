//! What servers say of themselves, asked side by side.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cashew_config::snapshot::{Pool, Protocol, Server};
use cashew_discovery::{Direct, Security};

/// How long one server may take, and all of them with their look-ups of names.
const TIMEOUT: Duration = Duration::from_secs(2);
const TIMEOUT_OF_ALL: Duration = Duration::from_secs(6);

/// What one server has answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It cannot be reached, or says nothing.
    Unreachable(String),
    /// It does not take what the pool logs in with.
    Refused(String),
    /// It can be reached, and does not let us ask.
    Silent(String),
    Redis(Redis),
    Memcached(BTreeMap<String, String>),
    /// It accepts connections, and what it speaks is not known.
    Open,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Redis {
    /// INFO.
    pub(super) info: BTreeMap<String, String>,
    /// By CONFIG GET, if it may be asked.
    pub(super) maxclients: Option<u64>,
    pub(super) min_replicas: Option<u64>,
    /// Milliseconds by which its clock is ahead of ours; what the question took is left out.
    pub(super) clock_ahead_ms: Option<i64>,
}

/// Asks servers of these pools, each the one that is named by its place. In the order of the question.
pub(super) fn ask_all(servers: &[(&Pool, usize)]) -> Vec<Answer> {
    let (sender, receiver) = channel();
    let mut answers = vec![None; servers.len()];
    let mut left = 0;
    for (number, (pool, at)) in servers.iter().enumerate() {
        let (mut pool, sender) = (Pool::clone(pool), sender.clone());
        let server = pool.servers.swap_remove(*at);
        let ask = move || {
            // Whoever has stopped waiting is gone.
            let _ = sender.send((number, ask(&pool, &server)));
        };
        // A thread that hangs in a look-up ends with the process.
        match thread::Builder::new().name("ask".into()).spawn(ask) {
            Ok(_) => left += 1,
            Err(error) => answers[number] = Some(Answer::Silent(format!("no thread: {error}"))),
        }
    }
    drop(sender);
    let deadline = Instant::now() + TIMEOUT_OF_ALL;
    while left > 0 {
        match receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((number, answer)) => {
                answers[number] = Some(answer);
                left -= 1;
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    let late = || Answer::Unreachable("it does not answer in time".to_owned());
    answers.into_iter().map(|answer| answer.unwrap_or_else(late)).collect()
}

fn ask(pool: &Pool, server: &Server) -> Answer {
    let asked = match pool.protocol {
        Protocol::Redis => ask_redis(pool, server),
        Protocol::Memcached => ask_memcached(pool, server),
        Protocol::Tcp => open(pool, server).map(|_| Answer::Open),
    };
    asked.unwrap_or_else(Answer::Unreachable)
}

fn open(pool: &Pool, server: &Server) -> Result<Direct, String> {
    let security = pool.server_tls.clone().map(Security::new);
    Direct::open(&server.endpoint, security.as_ref(), TIMEOUT)
}

fn ask_redis(pool: &Pool, server: &Server) -> Result<Answer, String> {
    let mut direct = open(pool, server)?;
    if let Some(answer) = direct.log_in(pool.server_auth.of(&server.name))? {
        return Ok(Answer::Refused(format!("it answers AUTH with {answer}")));
    }
    let answer = direct.ask(&[b"INFO"])?;
    let text = String::from_utf8_lossy(&answer);
    if text.starts_with("-NOAUTH") {
        return Ok(Answer::Refused("it wants a password".to_owned()));
    }
    if let Some(error) = text.strip_prefix('-') {
        return Ok(Answer::Silent(format!("it answers INFO with -{}", error.trim_end())));
    }
    let mut redis = Redis { info: info_of(&text), ..Redis::default() };
    // What may not be asked is not known.
    let mut option = |name: &[u8]| {
        let answer = direct.ask(&[b"CONFIG", b"GET", name]).ok()?;
        last_number(&answer)
    };
    redis.maxclients = option(b"maxclients");
    redis.min_replicas = option(b"min-replicas-to-write");
    let before = unix_ms();
    let answer = direct.ask(&[b"TIME"]);
    let after = unix_ms();
    redis.clock_ahead_ms =
        answer.ok().as_deref().and_then(time_ms).map(|its| ahead(its, before, after));
    Ok(Answer::Redis(redis))
}

fn ask_memcached(pool: &Pool, server: &Server) -> Result<Answer, String> {
    let mut direct = open(pool, server)?;
    let credentials = pool.server_auth.of(&server.name);
    if !credentials.is_empty() {
        match direct.log_in_to_memcached(credentials) {
            Ok(None) => {}
            Ok(Some(answer)) => {
                return Ok(Answer::Refused(format!("it answers the login with {answer}")));
            }
            // With SASL it speaks the binary protocol alone.
            Err(why) => return Ok(Answer::Silent(format!("after a login in text {why}"))),
        }
    }
    let answer = direct.ask_memcached(b"stats\r\n", b"END\r\n")?;
    let text = String::from_utf8_lossy(&answer);
    if text.starts_with("CLIENT_ERROR unauthenticated") {
        return Ok(Answer::Refused("it wants a password".to_owned()));
    }
    if !text.starts_with("STAT ") {
        let line = text.lines().next().unwrap_or_default();
        return Ok(Answer::Silent(format!("it answers stats with {line}")));
    }
    Ok(Answer::Memcached(stats_of(&text)))
}

/// `name:value` lines.
fn info_of(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// `STAT name value` lines.
fn stats_of(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    pairs.map(|(name, value)| (name.to_owned(), value.trim_end().to_owned())).collect()
}

/// The last line, if it is a number.
fn last_number(answer: &[u8]) -> Option<u64> {
    String::from_utf8_lossy(answer).lines().last()?.parse().ok()
}

/// Of `TIME`: seconds and microseconds, each on its own line behind its length.
fn time_ms(answer: &[u8]) -> Option<i64> {
    let text = String::from_utf8_lossy(answer);
    let numbers: Vec<i64> = text.lines().filter_map(|line| line.parse().ok()).collect();
    match numbers[..] {
        [seconds, micros] => Some(seconds.checked_mul(1000)?.checked_add(micros / 1000)?),
        _ => None,
    }
}

/// How far a clock is ahead that was read at some time between the two.
fn ahead(its: i64, before: i64, after: i64) -> i64 {
    match its {
        _ if its > after => its - after,
        _ if its < before => its - before,
        _ => 0,
    }
}

fn unix_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let info = info_of("$40\r\n# Server\r\nredis_version:7.0.15\r\nrole:master\r\n");
        assert_eq!((&*info["redis_version"], &*info["role"]), ("7.0.15", "master"));
        let stats = stats_of("STAT version 1.6.18\r\nSTAT curr_connections 3\r\nEND\r\n");
        assert_eq!((&*stats["version"], &*stats["curr_connections"]), ("1.6.18", "3"));
        assert_eq!(last_number(b"*2\r\n$10\r\nmaxclients\r\n$5\r\n10000\r\n"), Some(10000));
        assert_eq!(last_number(b"-NOPERM no\r\n"), None);
        let time = b"*2\r\n$10\r\n1700000000\r\n$6\r\n250000\r\n";
        assert_eq!((time_ms(time), time_ms(b"-ERR no\r\n")), (Some(1_700_000_000_250), None));
        assert_eq!((ahead(5, 1, 9), ahead(12, 1, 9), ahead(-4, 1, 9)), (0, 3, -5));
    }
}
